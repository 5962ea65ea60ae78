// SPDX-License-Identifier: Apache-2.0
// RMSNorm and its gradients as this library defines them, operation by operation. Every target
// gives these bits.
//
// All arithmetic is IEEE, rounded to nearest even, subnormals kept; no operation may be contracted,
// reordered or replaced by an estimate. Real is float. It is double on the cold path: for rows
// whose squares overflow or vanish in f32, and for dx alone where c is not finite in f32.
//
// A row is worked through in blocks. Of each block every operand is read, and widened to f32,
// before any is written, since an output may be in the place of an input.
#include "reference.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "activation.h"
#include "element.h"
#include "gradient_terms.h"
#include "inverse_rms.h"
#include "quantised.h"

#ifdef __FAST_MATH__
#error "-ffast-math changes results: build this library without it"
#endif
static_assert(FLT_EVAL_METHOD == 0, "f32 arithmetic must be done in f32");

namespace rmsnorm::internal {
namespace {

// Calls f with an element of the type, of no value.
template <class F>
void CallWithType(rmsnorm_dtype dtype, const F& f) {
  switch (dtype) {
    case RMSNORM_F16:
      return f(F16());
    case RMSNORM_BF16:
      return f(BF16());
    default:
      return f(float());
  }
}

void ReadElements(rmsnorm_dtype dtype, const void* from, size_t count, float* to) {
  CallWithType(dtype, [=](auto type) {
    const auto* elements = static_cast<const decltype(type)*>(from);
    for (size_t j = 0; j < count; ++j) to[j] = ToF32(elements[j]);
  });
}

void WriteElements(rmsnorm_dtype dtype, const float* from, size_t count, void* to) {
  CallWithType(dtype, [=](auto type) {
    auto* elements = static_cast<decltype(type)*>(to);
    for (size_t j = 0; j < count; ++j) elements[j] = CastTo<decltype(type)>(from[j]);
  });
}

void RoundValues(rmsnorm_dtype dtype, float* values, size_t count) {
  CallWithType(dtype, [=](auto type) {
    for (size_t j = 0; j < count; ++j) values[j] = ToF32(CastTo<decltype(type)>(values[j]));
  });
}

// At most kBlock columns of a row.
struct Block {
  const Norm& norm;
  const Run& run;
  size_t row;
  size_t begin;
  size_t size;

  void Read(Operand operand, float* to) const {
    ReadElements(norm.dtype[operand], At(operand), size, to);
  }
  void Write(Operand operand, const float* from) const {
    WriteElements(norm.dtype[operand], from, size, At(operand));
  }
  // Of a weight, a bias, or sums of dw or db, which are f32 in every run.
  float* Columns(Operand operand) const { return run.Row<float>(operand, row) + begin; }

 private:
  char* At(Operand operand) const {
    return run.Row<char>(operand, row) + begin * ElementSize(norm.dtype[operand]);
  }
};

template <class F>
void ForEachBlock(const Norm& norm, const Run& run, size_t row, const F& f) {
  for (size_t begin = 0; begin < run.d; begin += kBlock) {
    f(Block{norm, run, row, begin, std::min(kBlock, run.d - begin)});
  }
}

// The sum of a block. add(lane, j) is a lane with the term of element j added to it. Element j is
// added to lane j mod kLanes; the lanes fold as a tree. A block that is not full counts as padded
// with +0: as g and x of a product may have any sign, a lane may become -0, but that is lost when
// the sum of the first block is added to +0.
template <class Real, class Add>
Real SumByLanes(size_t size, const Add& add) {
  Real lane[kLanes] = {};
  for (size_t j = 0; j < size; ++j) lane[j % kLanes] = add(lane[j % kLanes], j);
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

// ------------------------------------------------------------------------------------- forward

// The inverse RMS of a row, and whether it multiplies in binary64.
struct Inverse {
  double r;
  bool cold;
};

// Step 1, the sum of squares of what read(block, h) gives. In binary64 the square is exact, so that
// fma and multiply-then-add agree.
template <class Real, class Read>
Real SumSquares(const Norm& norm, const Run& run, size_t row, const Read& read) {
  Real total = 0;
  ForEachBlock(norm, run, row, [&](const Block& block) {
    float h[kBlock];
    read(block, h);
    total += SumByLanes<Real>(block.size, [&](Real lane, size_t j) {
      const Real value = h[j];
      return std::fma(value, value, lane);
    });
  });
  return total;
}

void ReadX(const Block& block, float* x) { block.Read(kX, x); }

// Step 2, from the sum to the inverse RMS r, by inverse_rms.h. cold_sum() is the sum in binary64.
template <class ColdSum>
Inverse InverseOf(const Norm& norm, float sum, const ColdSum& cold_sum) {
  const float under_root = UnderRoot(norm.root, sum);
  if (IsSafe(under_root)) return {InverseRms(norm.root, under_root), false};
  return {InverseRms(norm.root, UnderRoot(norm.root, cold_sum())), true};
}

// Step 3. The product with r is rounded to f32, once; then to x's type, by the rounding order; then
// the weight and the bias, which may be null.
void Scale(const Norm& norm, const Inverse& inverse, rmsnorm_dtype x_dtype, const float* weight,
           const float* bias, size_t size, float* h) {
  float r = static_cast<float>(inverse.r);
  bool cold = inverse.cold;
  if (norm.rounding == RMSNORM_INVERSE_ROUNDED) {
    RoundValues(x_dtype, &r, 1);
    cold = false;
  }
  for (size_t j = 0; j < size; ++j) {
    h[j] = cold ? static_cast<float>(double{h[j]} * inverse.r) : h[j] * r;
  }
  if (norm.rounding != RMSNORM_SCALE_THEN_CAST) RoundValues(x_dtype, h, size);
  for (size_t j = 0; j < size; ++j) {
    h[j] = bias != nullptr ? std::fma(h[j], weight[j], bias[j]) : h[j] * weight[j];
  }
}

// 2^n, a normal number.
float PowerOfTwo(int n) { return FromBits(static_cast<uint32_t>(n + 127) << 23); }

// Multiplies by the activation of the gate: activation.h says how that is computed.
void MultiplyByGate(const Block& block, float* h) {
  float gate[kBlock];
  block.Read(kGate, gate);
  for (size_t j = 0; j < block.size; ++j) {
    if (std::isnan(gate[j])) {
      h[j] *= gate[j];
      continue;
    }
    const float z = std::max(gate[j], kSmallestGate);
    const float t = -std::min(z, kLargestGate);
    const float k = std::nearbyint(t * kInverseOfLn2);
    float s = std::fma(-k, kUpperLn2, t);
    s = std::fma(-k, kLowerLn2, s);
    float polynomial = kExpCoefficients[0];
    for (size_t i = 1; i < std::size(kExpCoefficients); ++i) {
      polynomial = std::fma(polynomial, s, kExpCoefficients[i]);
    }
    const float e = std::fma(polynomial, s * s, s);
    const int m = std::max(static_cast<int>(k), 0);
    const int a = m / 2;
    const float f = PowerOfTwo(-a);
    const float g = PowerOfTwo(a - m);
    const float v = PowerOfTwo(static_cast<int>(k) - m);
    const float b = std::fma(e, v, f * g) + v;
    const float numerator = block.norm.activation == RMSNORM_SILU ? z : 1.0f;
    h[j] *= (numerator / b * f) * g;
  }
}

// Whether what is normalised has been rounded to the type of the residual, and counts as of that
// type.
bool IsSumRounded(const Norm& norm, const Run& run) {
  return run.Has(kResidual) && !norm.norm_unrounded;
}

// A row of a forward call.
class ForwardRow {
 public:
  ForwardRow(const Norm& norm, const Run& run, size_t row)
      : norm_(norm),
        run_(run),
        row_(row),
        x_dtype_(norm.dtype[IsSumRounded(norm, run) ? kResidual : kX]) {}

  // The sum of squares of what is normalised.
  template <class Real>
  Real Sum() const {
    return SumSquares<Real>(norm_, run_, row_,
                            [this](const Block& block, float* h) { ReadNormalised(block, h); });
  }

  // Writes every output.
  void Normalise() {
    if (run_.Has(kPostNormWeight)) post_norm_ = InverseOfPostNorm();
    const bool is_scaled = run_.Has(kY) || run_.Has(kQ);
    const bool norm_wanted = is_scaled || run_.Has(kRstd);
    if (norm_wanted || run_.Has(kSumsOut)) inverse_ = FindInverse(norm_wanted);
    if (run_.Has(kRstd)) *run_.Row<float>(kRstd, row_) = static_cast<float>(inverse_.r);
    if (run_.Has(kQ)) FindSteps();
    ForEachBlock(norm_, run_, row_, [&](const Block& block) {
      float h[kBlock];
      ReadNormalised(block, h);
      if (run_.Has(kResidualOut)) block.Write(kResidualOut, h);
      if (!is_scaled) return;
      MakeOutput(block, h);
      if (run_.Has(kY)) block.Write(kY, h);
      if (run_.Has(kQ)) Quantise(block, h);
    });
  }

 private:
  // What is normalised: x itself, or what is made of it in this order.
  void ReadNormalised(const Block& block, float* h) const {
    const rmsnorm_dtype dtype = norm_.dtype[kX];
    block.Read(kX, h);
    if (run_.Has(kPostNormWeight)) {
      Scale(norm_, post_norm_, dtype, block.Columns(kPostNormWeight), nullptr, block.size, h);
      RoundValues(dtype, h, block.size);
    }
    if (norm_.factor != 1.0f) {
      for (size_t j = 0; j < block.size; ++j) h[j] *= norm_.factor;
      RoundValues(dtype, h, block.size);
    }
    if (norm_.gate_placement == RMSNORM_GATE_BEFORE) MultiplyByGate(block, h);
    if (!run_.Has(kResidual)) return;
    float residual[kBlock];
    block.Read(kResidual, residual);
    for (size_t j = 0; j < block.size; ++j) h[j] = residual[j] + h[j];
    if (IsSumRounded(norm_, run_)) RoundValues(x_dtype_, h, block.size);
  }

  // From what is normalised to y in its type, or x's where there is no y.
  void MakeOutput(const Block& block, float* h) const {
    Scale(norm_, inverse_, x_dtype_, block.Columns(kWeight),
          run_.Has(kBias) ? block.Columns(kBias) : nullptr, block.size, h);
    if (run_.Has(kGate) && norm_.gate_placement == RMSNORM_GATE_AFTER) {
      if (norm_.gate_rounding == RMSNORM_GATE_ROUNDED_TO_X) RoundValues(x_dtype_, h, block.size);
      MultiplyByGate(block, h);
    }
    RoundValues(run_.Has(kY) ? norm_.dtype[kY] : x_dtype_, h, block.size);
  }

  Inverse InverseOfPostNorm() const {
    return InverseOf(norm_, SumSquares<float>(norm_, run_, row_, ReadX),
                     [&] { return SumSquares<double>(norm_, run_, row_, ReadX); });
  }

  // Writes the sum that is handed out, too.
  Inverse FindInverse(bool norm_wanted) const {
    const double* given = run_.Has(kSums) ? run_.Row<double>(kSums, row_) : nullptr;
    const float sum = given != nullptr ? static_cast<float>(*given) : Sum<float>();
    const auto cold_sum = [&] { return given != nullptr ? *given : Sum<double>(); };
    if (run_.Has(kSumsOut)) {
      *run_.Row<double>(kSumsOut, row_) = IsSafeSum(sum, norm_.root.divisor) ? sum : cold_sum();
    }
    return norm_wanted ? InverseOf(norm_, sum, cold_sum) : Inverse{};
  }

  // Finds the step and the zero point of the row's quantised output, and writes them.
  void FindSteps() {
    QuantisedRange range;
    ForEachBlock(norm_, run_, row_, [&](const Block& block) {
      float h[kBlock];
      ReadNormalised(block, h);
      MakeOutput(block, h);
      for (size_t j = 0; j < block.size; ++j) range.Add(h[j]);
    });
    steps_ = range.Steps(run_.Has(kZero));
    *run_.Row<float>(kScale, row_) = steps_.scale;
    if (run_.Has(kZero)) *run_.Row<int8_t>(kZero, row_) = static_cast<int8_t>(steps_.zero);
  }

  void Quantise(const Block& block, const float* v) const {
    int8_t* q = run_.Row<int8_t>(kQ, row_) + block.begin;
    for (size_t j = 0; j < block.size; ++j) {
      const float integer = steps_.none ? 0 : std::nearbyint(v[j] * steps_.inverse) + steps_.zero;
      q[j] = static_cast<int8_t>(std::clamp(integer, kSmallestInteger, kLargestInteger));
    }
  }

  const Norm& norm_;
  const Run& run_;
  const size_t row_;
  const rmsnorm_dtype x_dtype_;  // that of what is normalised, in the rounding orders
  Inverse post_norm_ = {};
  Inverse inverse_ = {};
  QuantisedSteps steps_ = {};
};

void Forward(const Norm& norm, const Run& run) {
  for (size_t row = 0; row < run.count; ++row) ForwardRow(norm, run, row).Normalise();
}

void Prepare(rmsnorm_dtype dtype, const void* from, size_t d, float offset, float* prepared) {
  ReadElements(dtype, from, d, prepared);
  for (size_t j = 0; j < d; ++j) prepared[j] = offset + prepared[j];
}

// ------------------------------------------------------------------------------------ backward
//
// The gradients pass through the unrounded values in every rounding order: a cast counts as the
// identity. A saved 1 / RMS is taken as it is. With eps inside it spares the sum of squares, and
// says whether the forward was computed in binary64.
//
//   g = dy * w'                     the gradient of x * r
//   c = sum of g * x                over the lanes and blocks of the sum of squares
//   dx = r * (g - (x * scale_x) * mean)      from the terms r, scale_x and mean
//   dw = sum over rows of (dy * x) * r
//   db = sum over rows of dy

// Step 1. c, by fma; 0 without a weight, as where dw alone is wanted.
template <class Real>
Real DotOfRow(const Norm& norm, const Run& run, size_t row) {
  if (!run.Has(kWeight)) return 0;
  Real total = 0;
  ForEachBlock(norm, run, row, [&](const Block& block) {
    float x[kBlock];
    float dy[kBlock];
    block.Read(kX, x);
    block.Read(kDy, dy);
    const float* weight = block.Columns(kWeight);
    total += SumByLanes<Real>(block.size, [&](Real lane, size_t j) {
      const Real g = static_cast<Real>(dy[j]) * static_cast<Real>(weight[j]);
      return std::fma(g, static_cast<Real>(x[j]), lane);
    });
  });
  return total;
}

RowSums SumsOfRow(const Norm& norm, const Run& run, size_t row) {
  return {NeedsSquares(norm.root, run.Has(kRstd)) ? SumSquares<float>(norm, run, row, ReadX) : 0,
          DotOfRow<float>(norm, run, row)};
}

// Step 2, from the sums to the terms r, scale_x and mean, is in gradient_terms.h.
RowTerms TermsOfRow(const Norm& norm, const Run& run, size_t row) {
  const float* rstd = run.Has(kRstd) ? run.Row<float>(kRstd, row) : nullptr;
  const HotTerms hot = MakeHotTerms(norm.root, SumsOfRow(norm, run, row), rstd);
  if (hot.cold == Cold::kNothing) return Widened(hot);
  const double under_root = NeedsSquares(norm.root, rstd != nullptr)
                                ? UnderRoot(norm.root, SumSquares<double>(norm, run, row, ReadX))
                                : 0;
  const double r = rstd != nullptr ? *rstd : InverseRms(norm.root, under_root);
  return {MakeTerms(norm.root, r, under_root, DotOfRow<double>(norm, run, row)), hot.terms.r,
          hot.cold, IsOnlyG(norm.root, under_root)};
}

// Step 3. dw and db add to sums in f32, with one rounding for each row; they take the rows of a
// block of rows in rising order. Real is of the product's and the sum's arithmetic.
template <class Real>
void AddToDw(const Block& block, const float* x, const float* dy, Real r) {
  float* dw = block.Columns(kDw);
  const bool start = block.run.start_sums && block.row == 0;
  for (size_t j = 0; j < block.size; ++j) {
    const Real product = static_cast<Real>(dy[j]) * static_cast<Real>(x[j]);
    dw[j] = static_cast<float>(std::fma(product, r, static_cast<Real>(start ? 0 : dw[j])));
  }
}

void AddRows(const Norm& norm, const Run& run) {
  for (size_t row = 0; row < run.count; ++row) {
    const bool start = run.start_sums && row == 0;
    ForEachBlock(norm, run, row, [&](const Block& block) {
      float dy[kBlock];
      block.Read(kDy, dy);
      float* db = block.Columns(kDb);
      for (size_t j = 0; j < block.size; ++j) db[j] = (start ? 0 : db[j]) + dy[j];
    });
  }
}

// Step 4. dx is rounded to f32 once, then added to what is there, then rounded to its type.
template <class Real>
void WriteDx(const Block& block, const float* x, const float* dy, const Terms<Real>& terms,
             bool only_g) {
  const float* weight = block.Columns(kWeight);
  float dx[kBlock];
  if (block.norm.add_to_dx) block.Read(kDx, dx);
  for (size_t j = 0; j < block.size; ++j) {
    const Real g = static_cast<Real>(dy[j]) * static_cast<Real>(weight[j]);
    const Real mean_term = only_g ? 0 : (static_cast<Real>(x[j]) * terms.scale_x) * terms.mean;
    const float gradient = static_cast<float>(terms.r * (g - mean_term));
    dx[j] = block.norm.add_to_dx ? dx[j] + gradient : gradient;
  }
  block.Write(kDx, dx);
}

void GradientOfRow(const Norm& norm, const Run& run, size_t row, const RowTerms& of_row) {
  ForEachBlock(norm, run, row, [&](const Block& block) {
    float x[kBlock];
    float dy[kBlock];
    block.Read(kX, x);
    block.Read(kDy, dy);
    if (run.Has(kDw)) {
      if (of_row.cold == Cold::kAll) {
        AddToDw(block, x, dy, of_row.terms.r);
      } else {
        AddToDw(block, x, dy, of_row.r);
      }
    }
    if (run.Has(kDx)) {
      if (of_row.cold == Cold::kNothing) {
        WriteDx(block, x, dy, Narrowed(of_row.terms), of_row.only_g);
      } else {
        WriteDx(block, x, dy, of_row.terms, of_row.only_g);
      }
    }
  });
}

// Row by row, as dx may be in the place of dy.
void Backward(const Norm& norm, const Run& run) {
  for (size_t row = 0; row < run.count; ++row) {
    GradientOfRow(norm, run, row, TermsOfRow(norm, run, row));
  }
}

// Step 5. The sums of the blocks of rows add up in rising order, then to what is there; the total
// is rounded to the type of dw or db.
void StoreSums(const float* sums, size_t stride, size_t blocks, size_t d, bool add,
               rmsnorm_dtype dtype, void* to) {
  char* elements = static_cast<char*>(to);
  for (size_t begin = 0; begin < d; begin += kBlock) {
    const size_t size = std::min(kBlock, d - begin);
    char* const at = elements + begin * ElementSize(dtype);
    float total[kBlock];
    std::copy_n(sums + begin, size, total);
    for (size_t block = 1; block < blocks; ++block) {
      for (size_t j = 0; j < size; ++j) total[j] += sums[block * stride + begin + j];
    }
    if (add) {
      float before[kBlock];
      ReadElements(dtype, at, size, before);
      for (size_t j = 0; j < size; ++j) total[j] = before[j] + total[j];
    }
    WriteElements(dtype, total, size, at);
  }
}

}  // namespace

const KernelTable kReferenceTable = {
    "reference", Prepare, Forward, Backward, AddRows, StoreSums, /*leaves=*/nullptr,
};

}  // namespace rmsnorm::internal
