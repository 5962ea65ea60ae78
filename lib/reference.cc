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

#include "element.h"
#include "gradient_terms.h"
#include "inverse_rms.h"

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

// Whether what is normalised has been rounded to the type of the residual, and counts as of that
// type.
bool IsSumRounded(const Norm& norm, const Run& run) {
  return run.Has(kResidual) && !norm.norm_unrounded;
}

// Step 1. What is normalised: x, or h = residual + x in f32, as residual_out holds it or before
// that is rounded.
void ReadNormalised(const Block& block, float* h) {
  block.Read(kX, h);
  if (!block.run.Has(kResidual)) return;
  float residual[kBlock];
  block.Read(kResidual, residual);
  for (size_t j = 0; j < block.size; ++j) h[j] = residual[j] + h[j];
  if (IsSumRounded(block.norm, block.run)) {
    RoundValues(block.norm.dtype[kResidual], h, block.size);
  }
}

// Step 2, the sum of squares. In binary64 the square is exact, so that fma and multiply-then-add
// agree.
template <class Real>
Real SumSquares(const Norm& norm, const Run& run, size_t row) {
  Real total = 0;
  ForEachBlock(norm, run, row, [&](const Block& block) {
    float h[kBlock];
    ReadNormalised(block, h);
    total += SumByLanes<Real>(block.size, [&](Real lane, size_t j) {
      const Real value = h[j];
      return std::fma(value, value, lane);
    });
  });
  return total;
}

// Step 3, from the sum to the inverse RMS r, is in inverse_rms.h.

// Step 4. The product with r is rounded to f32, once; then to x's type, by the rounding order; then
// the weight and the bias; then the type of y. residual_out is written beside it.
template <class Real>
void WriteRow(const Norm& norm, const Run& run, size_t row, Real r) {
  const rmsnorm_dtype x_dtype = norm.dtype[IsSumRounded(norm, run) ? kResidual : kX];
  if (norm.rounding == RMSNORM_INVERSE_ROUNDED) {
    float rounded = static_cast<float>(r);
    RoundValues(x_dtype, &rounded, 1);
    r = rounded;
  }
  ForEachBlock(norm, run, row, [&](const Block& block) {
    float h[kBlock];
    ReadNormalised(block, h);
    if (run.Has(kResidualOut)) block.Write(kResidualOut, h);
    if (!run.Has(kY)) return;
    for (size_t j = 0; j < block.size; ++j) h[j] = static_cast<float>(static_cast<Real>(h[j]) * r);
    if (norm.rounding != RMSNORM_SCALE_THEN_CAST) RoundValues(x_dtype, h, block.size);
    const float* weight = block.Columns(kWeight);
    if (run.Has(kBias)) {
      const float* bias = block.Columns(kBias);
      for (size_t j = 0; j < block.size; ++j) h[j] = std::fma(h[j], weight[j], bias[j]);
    } else {
      for (size_t j = 0; j < block.size; ++j) h[j] *= weight[j];
    }
    block.Write(kY, h);
  });
}

void ForwardRow(const Norm& norm, const Run& run, size_t row) {
  const bool norm_wanted = run.Has(kY) || run.Has(kRstd);
  if (!norm_wanted && !run.Has(kSumsOut)) return WriteRow<float>(norm, run, row, 0);

  const double* given = run.Has(kSums) ? run.Row<double>(kSums, row) : nullptr;
  const float sum = run.safe_sum != nullptr ? *run.safe_sum
                    : given != nullptr      ? static_cast<float>(*given)
                                            : SumSquares<float>(norm, run, row);
  const auto cold_sum = [&] {
    return given != nullptr ? *given : SumSquares<double>(norm, run, row);
  };
  if (run.Has(kSumsOut)) {
    *run.Row<double>(kSumsOut, row) = IsSafeSum(sum, norm.divisor) ? sum : cold_sum();
  }
  const float under_root = UnderRoot(norm, sum);
  float r;
  if (!norm_wanted || IsSafe(under_root)) {
    r = InverseRms(norm, under_root);
    WriteRow(norm, run, row, r);
  } else {
    const double cold_r = InverseRms(norm, UnderRoot(norm, cold_sum()));
    WriteRow(norm, run, row, cold_r);
    r = static_cast<float>(cold_r);
  }
  if (run.Has(kRstd)) *run.Row<float>(kRstd, row) = r;
}

void Forward(const Norm& norm, const Run& run) {
  for (size_t row = 0; row < run.count; ++row) ForwardRow(norm, run, row);
}

float SumOfBlock(const Norm& norm, const Run& run) { return SumSquares<float>(norm, run, 0); }

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
//   dx = r * (g - (x * k) * q)      from the terms r, k and q
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
  return {NeedsSquares(norm, run.Has(kRstd)) ? SumSquares<float>(norm, run, row) : 0,
          DotOfRow<float>(norm, run, row)};
}

RowSums BackwardSums(const Norm& norm, const Run& run) { return SumsOfRow(norm, run, 0); }

// Step 2, from the sums to the terms r, k and q, is in gradient_terms.h.
RowTerms TermsOfRow(const Norm& norm, const Run& run, size_t row) {
  const float* rstd = run.Has(kRstd) ? run.Row<float>(kRstd, row) : nullptr;
  const HotTerms hot = MakeHotTerms(norm, SumsOfRow(norm, run, row), rstd);
  if (hot.cold == Cold::kNothing) return Widened(hot);
  const double under_root =
      NeedsSquares(norm, rstd != nullptr) ? UnderRoot(norm, SumSquares<double>(norm, run, row)) : 0;
  const double r = rstd != nullptr ? *rstd : InverseRms(norm, under_root);
  return {MakeTerms(norm, r, under_root, DotOfRow<double>(norm, run, row)), hot.terms.r, hot.cold,
          IsOnlyG(norm, under_root)};
}

void TermsOfRows(const Norm& norm, const Run& run, RowTerms* terms) {
  for (size_t row = 0; row < run.count; ++row) terms[row] = TermsOfRow(norm, run, row);
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
    const Real mean_term = only_g ? 0 : (static_cast<Real>(x[j]) * terms.k) * terms.q;
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

void BackwardColumns(const Norm& norm, const Run& run, const RowTerms* terms) {
  for (size_t row = 0; row < run.count; ++row) GradientOfRow(norm, run, row, terms[row]);
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
    "reference",        Prepare,     Forward,         SumOfBlock, Backward,
    BackwardSums,       TermsOfRows, BackwardColumns, AddRows,    StoreSums,
    /*leaves=*/nullptr,
};

}  // namespace rmsnorm::internal
