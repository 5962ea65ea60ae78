// SPDX-License-Identifier: Apache-2.0
// The definition of doc/definition.md, operation by operation. Every target gives these bits.
//
// All arithmetic is IEEE, rounded to nearest even, and keeps subnormals. No operation may be
// contracted, reordered or replaced by an estimate. Real is float, and double on the cold path: for
// rows whose squares overflow or vanish in f32, and for dx alone where f32 cannot hold its second
// term.
//
// A row is worked through piece by piece. Every operand of a piece is read, and widened to f32,
// before any output of it is written, since an output may replace an input.
#include "reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "activation.h"
#include "element.h"
#include "fma.h"
#include "gradient_terms.h"
#include "inverse_rms.h"
#include "portable.h"
#include "quantised.h"

namespace rmsnorm::internal {
namespace {

// Calls f with a zero of the C++ type for `dtype`. Its users below are not inlined, as they would
// be a large part of the library.
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

RMSNORM_NOINLINE void ReadElements(rmsnorm_dtype dtype, const void* from, size_t count, float* to) {
  CallWithType(dtype, [=](auto type) {
    const auto* elements = static_cast<const decltype(type)*>(from);
    for (size_t j = 0; j < count; ++j) to[j] = ToF32(elements[j]);
  });
}

RMSNORM_NOINLINE void WriteElements(rmsnorm_dtype dtype, const float* from, size_t count,
                                    void* to) {
  CallWithType(dtype, [=](auto type) {
    auto* elements = static_cast<decltype(type)*>(to);
    for (size_t j = 0; j < count; ++j) elements[j] = CastTo<decltype(type)>(from[j]);
  });
}

RMSNORM_NOINLINE void RoundValues(rmsnorm_dtype dtype, float* values, size_t count) {
  CallWithType(dtype, [=](auto type) {
    for (size_t j = 0; j < count; ++j) values[j] = ToF32(CastTo<decltype(type)>(values[j]));
  });
}

// Columns of a row that are read and written together. They are few, since a thread's stack may be
// small.
constexpr size_t kPiece = 1024;
static_assert(kBlock % kPiece == 0 && kPiece % kLanes == 0);

struct Piece {
  const Norm& norm;
  const RowRun& run;
  size_t row;
  size_t begin;
  size_t size;

  void Read(Operand operand, float* to) const {
    ReadElements(norm.dtype[operand], At(operand), size, to);
  }
  void Write(Operand operand, const float* from) const {
    WriteElements(norm.dtype[operand], from, size, At(operand));
  }
  // A weight, a bias, or the sums of dw or db, which are f32 in every run.
  float* F32(Operand operand) const { return run.Row<float>(operand, row) + begin; }

  bool EndsBlock() const { return (begin + size) % kBlock == 0 || begin + size == run.d; }

 private:
  char* At(Operand operand) const {
    return run.Row<char>(operand, row) + begin * ElementSize(norm.dtype[operand]);
  }
};

// Calls f(piece) for the columns from `begin` up to `end`.
template <class F>
void ForEachPiece(const Norm& norm, const RowRun& run, size_t row, size_t begin, size_t end,
                  const F& f) {
  for (; begin < end; begin += kPiece) {
    f(Piece{norm, run, row, begin, std::min(kPiece, end - begin)});
  }
}

template <class F>
void ForEachPiece(const Norm& norm, const RowRun& run, size_t row, const F& f) {
  ForEachPiece(norm, run, row, 0, run.d, f);
}

// The sum of a row, to which its pieces are added in order (section 3). Element j of a block is
// added to lane j mod kLanes. At the end of a block the lanes fold as a tree. A block that is not
// full counts as padded with +0: a lane of products may become -0 without it, but not the sum of
// the first block and +0.
template <class Real>
class RowSum {
 public:
  // add(lane, j) is a lane with the term of the piece's element j added to it.
  template <class Add>
  void AddPiece(const Piece& piece, const Add& add) {
    for (size_t j = 0; j < piece.size; ++j) lane_[j % kLanes] = add(lane_[j % kLanes], j);
    if (piece.EndsBlock()) FoldLanes();
  }

  Real Total() const { return total_; }

 private:
  void FoldLanes() {
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) lane_[l] += lane_[l + half];
    }
    total_ += lane_[0];
    std::fill(std::begin(lane_), std::end(lane_), Real{0});
  }

  Real total_ = 0;
  Real lane_[kLanes] = {};
};

// ------------------------------------------------------------------------------------- forward

// Section 10: a row in f32 whose part of the elements is rotated, by the operations of `rotate`.
// rotate(a, b, c, s) changes the elements a and b of a pair, whose row of the tables has c and s.
template <class Rotate>
void RotatePairs(const Norm& norm, const RowRun& run, size_t row, float* values,
                 const Rotate& rotate) {
  float* const part = values + (norm.rotary_part == RMSNORM_ROTARY_END ? run.d - norm.rotated : 0);
  const size_t pairs = norm.rotated / 2;
  const bool halves = norm.rotary_pairs == RMSNORM_ROTARY_HALVES;
  const auto number = [&](Operand table, size_t i) {
    const rmsnorm_dtype dtype = norm.dtype[table];
    float value;
    ReadElements(dtype, run.Row<char>(table, row) + i * ElementSize(dtype), 1, &value);
    return value;
  };
  for (size_t i = 0; i < pairs; ++i) {
    rotate(part[halves ? i : 2 * i], part[halves ? i + pairs : 2 * i + 1], number(kCos, i),
           number(kSin, i));
  }
}

// The inverse RMS of a row, and whether it multiplies in binary64.
struct Inverse {
  double r;
  bool cold;
};

// Section 3, the sum of squares of what read(piece, h) gives. In binary64 the square is exact, so
// that fma and multiply-then-add agree.
template <class Real, class Read>
Real SumSquares(const Norm& norm, const RowRun& run, size_t row, const Read& read) {
  RowSum<Real> sum;
  ForEachPiece(norm, run, row, [&](const Piece& piece) {
    float h[kPiece];
    read(piece, h);
    sum.AddPiece(piece, [&](Real lane, size_t j) {
      const Real value = h[j];
      return Fma(value, value, lane);
    });
  });
  return sum.Total();
}

void ReadX(const Piece& piece, float* x) { piece.Read(kX, x); }

// Sections 4 and 6, from the sum to the inverse RMS r, by inverse_rms.h. cold_sum() is the sum in
// binary64.
template <class ColdSum>
Inverse InverseOf(const Norm& norm, float sum, const ColdSum& cold_sum) {
  const float under_root = UnderRoot(norm.root, sum);
  if (IsSafe(under_root)) return {InverseRms(norm.root, under_root), false};
  return {InverseRms(norm.root, UnderRoot(norm.root, cold_sum())), true};
}

// Section 5. The product with r is rounded to f32 once, then to x's type where the rounding order
// says so; then come the weight and the bias, which may be null.
RMSNORM_NOINLINE void Scale(const Norm& norm, const Inverse& inverse, rmsnorm_dtype x_dtype,
                            const float* weight, const float* bias, size_t size, float* h) {
  float r = static_cast<float>(inverse.r);
  bool cold = inverse.cold;
  if (norm.rounding == RMSNORM_ROUND_INVERSE) {
    RoundValues(x_dtype, &r, 1);
    cold = false;
  }
  for (size_t j = 0; j < size; ++j) {
    h[j] = cold ? static_cast<float>(double{h[j]} * inverse.r) : h[j] * r;
  }
  if (norm.rounding != RMSNORM_ROUND_AFTER_WEIGHT) RoundValues(x_dtype, h, size);
  for (size_t j = 0; j < size; ++j) {
    h[j] = bias != nullptr ? Fma(h[j], weight[j], bias[j]) : h[j] * weight[j];
  }
}

// 2^n, a normal number.
float PowerOfTwo(int n) { return FromBits(static_cast<uint32_t>(n + 127) << 23); }

// Section 8: multiplies by the activation of the gate. activation.h has the constants.
RMSNORM_NOINLINE void MultiplyByGate(const Piece& piece, float* h) {
  float gate[kPiece];
  piece.Read(kGate, gate);
  for (size_t j = 0; j < piece.size; ++j) {
    if (std::isnan(gate[j]) || piece.norm.activation == RMSNORM_ACTIVATION_NONE) {
      h[j] *= gate[j];
      continue;
    }
    const float z = std::max(gate[j], kSmallestGate);
    const float t = -std::min(z, kLargestGate);
    const float k = std::nearbyint(t * kInverseOfLn2);
    float s = Fma(-k, kUpperLn2, t);
    s = Fma(-k, kLowerLn2, s);
    float polynomial = kExpCoefficients[0];
    for (size_t i = 1; i < std::size(kExpCoefficients); ++i) {
      polynomial = Fma(polynomial, s, kExpCoefficients[i]);
    }
    const float e = Fma(polynomial, s * s, s);
    const int m = std::max(static_cast<int>(k), 0);
    const int a = m / 2;
    const float f = PowerOfTwo(-a);
    const float g = PowerOfTwo(a - m);
    const float v = PowerOfTwo(static_cast<int>(k) - m);
    const float b = Fma(e, v, f * g) + v;
    const float numerator = piece.norm.activation == RMSNORM_ACTIVATION_SILU ? z : 1.0f;
    h[j] *= (numerator / b * f) * g;
  }
}

void Multiply(float factor, float* values, size_t count) {
  for (size_t j = 0; j < count; ++j) values[j] *= factor;
}

// Whether h, the input of the norm, was rounded to the residual's type, which then counts as x's.
bool IsSumRounded(const Norm& norm, const RowRun& run) {
  return run.Has(kResidual) && !norm.norm_unrounded;
}

// A row of a forward call.
class ForwardRow {
 public:
  ForwardRow(const Norm& norm, const RowRun& run, size_t row)
      : norm_(norm),
        run_(run),
        row_(row),
        x_dtype_(norm.dtype[IsSumRounded(norm, run) ? kResidual : kX]) {}

  // The sum of squares of h.
  template <class Real>
  Real Sum() const {
    return SumSquares<Real>(norm_, run_, row_,
                            [this](const Piece& piece, float* h) { ReadH(piece, h); });
  }

  // Writes every output.
  void Normalise() {
    if (run_.Has(kPostNormWeight)) {
      post_norm_ = InverseOf(norm_, SumSquares<float>(norm_, run_, row_, ReadX),
                             [&] { return SumSquares<double>(norm_, run_, row_, ReadX); });
    }
    const bool is_scaled = run_.Has(kY) || run_.Has(kQ);
    const bool norm_wanted = is_scaled || run_.Has(kRstd);
    if (norm_wanted || run_.Has(kSumsOut)) inverse_ = FindInverse(norm_wanted);
    if (run_.Has(kRstd)) *run_.Row<float>(kRstd, row_) = static_cast<float>(inverse_.r);
    if (run_.Has(kCos)) return WriteRotated();
    for (size_t begin = 0; begin < run_.d; begin += norm_.group) {
      if (run_.Has(kQ)) FindSteps(begin);
      ForEachPiece(norm_, run_, row_, begin, begin + norm_.group, [&](const Piece& piece) {
        float h[kPiece];
        ReadH(piece, h);
        if (run_.Has(kResidualOut)) piece.Write(kResidualOut, h);
        if (!is_scaled) return;
        MakeOutput(piece, h);
        if (run_.Has(kY)) piece.Write(kY, h);
        if (run_.Has(kQ)) Quantise(piece, h);
      });
    }
  }

 private:
  // Reads h: x itself, or x changed in this order.
  RMSNORM_NOINLINE void ReadH(const Piece& piece, float* h) const {
    const rmsnorm_dtype dtype = norm_.dtype[kX];
    piece.Read(kX, h);
    if (run_.Has(kPostNormWeight)) {
      Scale(norm_, post_norm_, dtype, piece.F32(kPostNormWeight), nullptr, piece.size, h);
      RoundValues(dtype, h, piece.size);
    }
    if (norm_.factor != 1.0f) {
      Multiply(norm_.factor, h, piece.size);
      RoundValues(dtype, h, piece.size);
    }
    if (norm_.gate_placement == RMSNORM_GATE_BEFORE) {
      MultiplyByGate(piece, h);
      if (norm_.gate_rounding == RMSNORM_GATE_ROUNDED) RoundValues(dtype, h, piece.size);
    }
    if (!run_.Has(kResidual)) return;
    float residual[kPiece];
    piece.Read(kResidual, residual);
    for (size_t j = 0; j < piece.size; ++j) h[j] = residual[j] + h[j];
    const bool is_rounded = IsSumRounded(norm_, run_);
    if (is_rounded) RoundValues(x_dtype_, h, piece.size);
    if (norm_.residual_factor == 1.0f) return;
    Multiply(norm_.residual_factor, h, piece.size);
    if (is_rounded) RoundValues(x_dtype_, h, piece.size);
  }

  // Turns h into m of section 5.
  void MakeM(const Piece& piece, float* h) const {
    Scale(norm_, inverse_, x_dtype_, piece.F32(kWeight),
          run_.Has(kBias) ? piece.F32(kBias) : nullptr, piece.size, h);
  }

  // Section 10. The pairs of a row may be of different pieces, so all of m is made first.
  RMSNORM_NOINLINE void WriteRotated() const {
    float m[kBlock];
    ForEachPiece(norm_, run_, row_, [&](const Piece& piece) {
      ReadH(piece, m + piece.begin);
      MakeM(piece, m + piece.begin);
    });
    const rmsnorm_dtype dtype = norm_.dtype[kY];
    if (norm_.rotary_rounding != RMSNORM_ROTARY_ROUND_NONE) RoundValues(dtype, m, run_.d);
    const bool round_each = norm_.rotary_rounding == RMSNORM_ROTARY_ROUND_EACH;
    const auto rounded = [=](float value) {
      if (round_each) RoundValues(dtype, &value, 1);
      return value;
    };
    RotatePairs(norm_, run_, row_, m, [&](float& a, float& b, float c, float s) {
      c = rounded(c);
      s = rounded(s);
      const float ac = rounded(a * c);
      const float bs = rounded(b * s);
      const float bc = rounded(b * c);
      const float as = rounded(a * s);
      a = ac - bs;
      b = bc + as;
    });
    ForEachPiece(norm_, run_, row_, [&](const Piece& piece) { piece.Write(kY, m + piece.begin); });
  }

  // Turns h into y, rounded to y's type, or to x's without a y.
  void MakeOutput(const Piece& piece, float* h) const {
    MakeM(piece, h);
    if (run_.Has(kGate) && norm_.gate_placement == RMSNORM_GATE_AFTER) {
      if (norm_.gate_rounding == RMSNORM_GATE_ROUNDED) RoundValues(x_dtype_, h, piece.size);
      MultiplyByGate(piece, h);
    }
    RoundValues(run_.Has(kY) ? norm_.dtype[kY] : x_dtype_, h, piece.size);
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

  // Finds the step and the zero point of the group from `begin` on, and writes them.
  void FindSteps(size_t begin) {
    QuantisedRange range;
    ForEachPiece(norm_, run_, row_, begin, begin + norm_.group, [&](const Piece& piece) {
      float h[kPiece];
      ReadH(piece, h);
      MakeOutput(piece, h);
      for (size_t j = 0; j < piece.size; ++j) range.Add(h[j]);
    });
    steps_ = WriteSteps(run_, row_, begin / norm_.group, range);
  }

  void Quantise(const Piece& piece, const float* v) const {
    int8_t* q = run_.Row<int8_t>(kQ, row_) + piece.begin;
    for (size_t j = 0; j < piece.size; ++j) {
      const float integer = steps_.none ? 0 : std::nearbyint(v[j] * steps_.inverse) + steps_.zero;
      q[j] = static_cast<int8_t>(std::clamp(integer, kSmallestInteger, kLargestInteger));
    }
  }

  const Norm& norm_;
  const RowRun& run_;
  const size_t row_;
  const rmsnorm_dtype x_dtype_;  // "x's type" in the rounding orders
  Inverse post_norm_ = {};
  Inverse inverse_ = {};
  QuantisedSteps steps_ = {};  // of the group
};

void Forward(const Norm& norm, const RowRun& run) {
  for (size_t row = 0; row < run.count; ++row) ForwardRow(norm, run, row).Normalise();
}

void AddOffset(rmsnorm_dtype dtype, const void* from, size_t d, float offset, float* column) {
  ReadElements(dtype, from, d, column);
  for (size_t j = 0; j < d; ++j) column[j] = offset + column[j];
}

// ------------------------------------------------------------------------------------ backward
//
// Sections 10 and 12 to 14. Gradients pass through the unrounded values in every rounding order: a
// cast counts as the identity. A saved 1 / RMS is used without a check. With eps inside it spares
// the sum of squares, and tells whether forward was in binary64.
//
//   g = dy * w'                     the gradient of x * r
//   c = sum of g * x                over the lanes and blocks of the sum of squares
//   dx = r * (g - (x * scale_x) * mean)      from the terms r, scale_x and mean
//   dw = sum over rows of (dy * x) * r
//   db = sum over rows of dy

// Section 12, step 1: c, by fma.
template <class Real>
Real DotOfRow(const Norm& norm, const RowRun& run, size_t row) {
  RowSum<Real> sum;
  ForEachPiece(norm, run, row, [&](const Piece& piece) {
    float x[kPiece];
    float dy[kPiece];
    piece.Read(kX, x);
    piece.Read(kDy, dy);
    const float* weight = piece.F32(kWeight);
    sum.AddPiece(piece, [&](Real lane, size_t j) {
      const Real g = static_cast<Real>(dy[j]) * static_cast<Real>(weight[j]);
      return Fma(g, static_cast<Real>(x[j]), lane);
    });
  });
  return sum.Total();
}

template <class Real>
Sums<Real> SumsOfRow(const Norm& norm, const RowRun& run, size_t row) {
  const bool squares = NeedsSquares(norm.root, run.Has(kRstd));
  return {squares ? SumSquares<Real>(norm, run, row, ReadX) : 0, DotOfRow<Real>(norm, run, row)};
}

// Section 13: dw and db add to sums in f32, with one rounding for each row, and take the rows of a
// block in rising order. The product and the sum are in Real.
template <class Real>
void AddToDw(const Piece& piece, const float* x, const float* dy, Real r) {
  float* dw = piece.F32(kDw);
  const bool start = piece.run.start_sums && piece.row == 0;
  for (size_t j = 0; j < piece.size; ++j) {
    const Real product = static_cast<Real>(dy[j]) * static_cast<Real>(x[j]);
    dw[j] = static_cast<float>(Fma(product, r, static_cast<Real>(start ? 0 : dw[j])));
  }
}

RMSNORM_NOINLINE void AddRow(const Norm& norm, const RowRun& run, size_t row) {
  const bool start = run.start_sums && row == 0;
  ForEachPiece(norm, run, row, [&](const Piece& piece) {
    float dy[kPiece];
    piece.Read(kDy, dy);
    float* db = piece.F32(kDb);
    for (size_t j = 0; j < piece.size; ++j) db[j] = (start ? 0 : db[j]) + dy[j];
  });
}

// Section 12, step 3: dx is rounded to f32 once, then added to the values in its memory, then
// multiplied by the factor of the residual, then rounded to its type.
template <class Real>
void WriteDx(const Piece& piece, const float* x, const float* dy, const Terms<Real>& terms) {
  const float* weight = piece.F32(kWeight);
  float dx[kPiece];
  if (piece.norm.add_to_dx) piece.Read(kDx, dx);
  for (size_t j = 0; j < piece.size; ++j) {
    const Real g = static_cast<Real>(dy[j]) * static_cast<Real>(weight[j]);
    const Real mean_term =
        terms.only_g ? 0 : (static_cast<Real>(x[j]) * terms.scale_x) * terms.mean;
    const float gradient = static_cast<float>(terms.r * (g - mean_term));
    dx[j] = piece.norm.add_to_dx ? dx[j] + gradient : gradient;
  }
  Multiply(piece.norm.residual_factor, dx, piece.size);
  piece.Write(kDx, dx);
}

// Step 2 leads from the sums to the terms r, scale_x and mean, by gradient_terms.h.
RMSNORM_NOINLINE void BackwardRow(const Norm& norm, const RowRun& run, size_t row) {
  const float* rstd = run.Has(kRstd) ? run.Row<float>(kRstd, row) : nullptr;
  const HotTerms hot = MakeHotTerms(norm.root, SumsOfRow<float>(norm, run, row), rstd);
  Terms<double> cold = {};
  if (hot.cold != Cold::kNothing) {
    cold = MakeColdTerms(norm.root, SumsOfRow<double>(norm, run, row), rstd);
  }
  ForEachPiece(norm, run, row, [&](const Piece& piece) {
    float x[kPiece];
    float dy[kPiece];
    piece.Read(kX, x);
    piece.Read(kDy, dy);
    if (run.Has(kDw)) {
      if (hot.cold == Cold::kAll) {
        AddToDw(piece, x, dy, cold.r);
      } else {
        AddToDw(piece, x, dy, hot.terms.r);
      }
    }
    if (run.Has(kDx)) {
      if (hot.cold == Cold::kNothing) {
        WriteDx(piece, x, dy, hot.terms);
      } else {
        WriteDx(piece, x, dy, cold);
      }
    }
  });
}

using RowFunction = void (*)(const Norm& norm, const RowRun& run, size_t row);

// Section 10: the rotation takes the gradient back to m in f32, which then counts as dy. Calls
// f(norm, run, row) with it. Not inlined, so that other rows leave the stack alone.
RMSNORM_NOINLINE void CallWithGradientByM(const Norm& norm, const RowRun& run, size_t row,
                                          RowFunction f) {
  float dy[kBlock];
  ReadElements(norm.dtype[kDy], run.Row<char>(kDy, row), run.d, dy);
  RotatePairs(norm, run, row, dy, [](float& a, float& b, float c, float s) {
    const float back = a * c + b * s;
    b = b * c - a * s;
    a = back;
  });
  Norm of_m = norm;
  of_m.dtype[kDy] = RMSNORM_F32;
  RowRun one = run.From(row, 1);
  one.Set(kDy, dy, 0);
  f(of_m, one, 0);
}

// Row by row, since dx may replace dy.
void ForEachRowOfDy(const Norm& norm, const RowRun& run, RowFunction f) {
  for (size_t row = 0; row < run.count; ++row) {
    if (run.Has(kCos)) {
      CallWithGradientByM(norm, run, row, f);
    } else {
      f(norm, run, row);
    }
  }
}

void AddRows(const Norm& norm, const RowRun& run) { ForEachRowOfDy(norm, run, AddRow); }

void Backward(const Norm& norm, const RowRun& run) { ForEachRowOfDy(norm, run, BackwardRow); }

// Section 13: the sums of the blocks of rows add up in rising order, then onto the values in the
// gradient's memory. The total is rounded to the gradient's type.
void AddBlocks(const float* sums, size_t stride, size_t blocks, size_t d, bool add,
               rmsnorm_dtype dtype, void* to) {
  char* elements = static_cast<char*>(to);
  for (size_t begin = 0; begin < d; begin += kPiece) {
    const size_t size = std::min(kPiece, d - begin);
    char* const at = elements + begin * ElementSize(dtype);
    float total[kPiece];
    std::copy_n(sums + begin, size, total);
    for (size_t block = 1; block < blocks; ++block) {
      for (size_t j = 0; j < size; ++j) total[j] += sums[block * stride + begin + j];
    }
    if (add) {
      float before[kPiece];
      ReadElements(dtype, at, size, before);
      for (size_t j = 0; j < size; ++j) total[j] = before[j] + total[j];
    }
    WriteElements(dtype, total, size, at);
  }
}

void Narrow(rmsnorm_dtype dtype, const float* from, size_t d, void* to) {
  WriteElements(dtype, from, d, to);
}

}  // namespace

const KernelTable kReferenceTable = {
    "reference", {3000, 8000, 2500}, AddOffset, Forward, Backward, AddRows, AddBlocks,
    Narrow,      /*leaves=*/nullptr,
};

}  // namespace rmsnorm::internal
