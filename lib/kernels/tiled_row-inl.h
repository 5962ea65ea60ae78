// SPDX-License-Identifier: Apache-2.0
// A row of forward through tiles of f32, which serves every combination of types and operands. It
// has the bits of reference.cc.

#if defined(RMSNORM_LIB_KERNELS_TILED_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_TILED_ROW_INL_H_
#undef RMSNORM_LIB_KERNELS_TILED_ROW_INL_H_
#else
#define RMSNORM_LIB_KERNELS_TILED_ROW_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "../element.h"
#include "../inverse_rms.h"
#include "rotary-inl.h"
#include "tile-inl.h"

#if !RMSNORM_NATIVE_BF16
RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ steps on a tile

// Multiplies by r, in binary64 if kCold, and rounds to a dtype. Then multiplies by the weight and
// adds the bias, either of which may be null.
template <bool kCold>
HWY_NOINLINE void ScaleTile(double r, rmsnorm_dtype dtype, const float* HWY_RESTRICT weight,
                            const float* HWY_RESTRICT bias, size_t n, float* HWY_RESTRICT tile) {
  const F32Tag tag;
  const HalfTag half;
  for (size_t j = 0; j < n; j += kN) {
    F32Vec value;
    if constexpr (kCold) {
      const F64Vec rs = hn::Set(F64Tag(), r);
      value = hn::Combine(tag, hn::DemoteTo(half, hn::Mul(LoadAs(F64Tag(), tile + j + kN64), rs)),
                          hn::DemoteTo(half, hn::Mul(LoadAs(F64Tag(), tile + j), rs)));
    } else {
      value = hn::Mul(hn::Load(tag, tile + j), hn::Set(tag, static_cast<float>(r)));
    }
    if (dtype == RMSNORM_F16) value = Round<F16>(value);
    if (dtype == RMSNORM_BF16) value = Round<BF16>(PlainNaN(value));
    if (weight != nullptr) {
      const F32Vec w = LoadBits(tag, weight + j, n - j);
      value = bias == nullptr ? hn::Mul(value, w)
                              : hn::MulAdd(value, w, LoadBits(tag, bias + j, n - j));
    }
    hn::Store(value, tag, tile + j);
  }
}

inline float RoundTo(rmsnorm_dtype dtype, float value) {
  return dtype == RMSNORM_F16    ? ToF32(CastTo<F16>(value))
         : dtype == RMSNORM_BF16 ? ToF32(CastTo<BF16>(value))
                                 : value;
}

// ------------------------------------------------------------------ a row

// Calls f(begin of a block, its size) for the blocks of d elements.
template <class F>
HWY_INLINE void ForEachBlock(size_t d, const F& f) {
  for (size_t begin = 0; begin < d; begin += kBlock) f(begin, std::min(kBlock, d - begin));
}

// The inverse RMS of a row. `cold` says that it multiplies in binary64.
struct Inverse {
  double r;
  bool cold;
};

// A row with any types and operands, block by block. All of a block is read before any of it is
// written, as an output may replace an input. The tile of a block takes 16 KiB of stack, so the
// other operands come in pieces of kTile elements.
class TiledRow {
 public:
  // `source` is kX, or kResidualOut where that already holds the input of the norm.
  TiledRow(const Norm& norm, const RowRun& run, Operand source, size_t row)
      : norm_(norm),
        run_(run),
        source_(source),
        row_(row),
        steps_(source == kX ? StepsOf(norm, run) : 0),
        x_dtype_(run.Has(kResidual) && !norm.norm_unrounded ? norm.dtype[kResidual]
                                                            : norm.dtype[kX]) {}

  void WriteOutputs() {
    if (source_ == kX && run_.Has(kPostNormWeight)) {
      post_norm_ = InverseOf(SumOfSource(), [this] {
        return ColdSumOfTiles(
            [this](size_t begin, size_t n) { ReadTile(norm_, run_, kX, row_, begin, n, tile_); });
      });
    }
    const Inverse inverse = FindInverse();
    if (run_.Has(kRstd)) *run_.Row<float>(kRstd, row_) = static_cast<float>(inverse.r);
    // All of a row has one step, known once the row has been made: it is made again for its
    // outputs.
    const bool by_row = run_.Has(kQ) && norm_.group == run_.d;
    const QuantisedSteps steps = by_row ? FindSteps(inverse) : QuantisedSteps{};
    ForEachBlock(run_.d, [&](size_t begin, size_t n) {
      ReadH(begin, n);
      if (source_ == kX && run_.Has(kResidualOut)) {
        WriteTile(norm_, run_, kResidualOut, row_, begin, n, tile_);
      }
      if (!run_.Has(kY) && !run_.Has(kQ)) return;
      MakeOutput(inverse, begin, n);
      if (run_.Has(kY)) WriteTile(norm_, run_, kY, row_, begin, n, tile_);
      if (by_row) {
        leaves_.quantise[kF32](tile_, n, steps, run_.Row<int8_t>(kQ, row_) + begin);
      } else if (run_.Has(kQ)) {
        QuantiseGroups(begin, n);
      }
    });
  }

 private:
  // The steps that make h, the input of the norm, from x. ReadH() takes them in this order. Without
  // a step x is h.
  enum Step : unsigned { kPostNorm = 1, kFactor = 2, kGateBefore = 4, kAddResidual = 8 };
  HWY_INLINE static unsigned StepsOf(const Norm& norm, const RowRun& run) {
    return (run.Has(kPostNormWeight) ? kPostNorm : 0u) | (norm.factor != 1.0f ? kFactor : 0u) |
           (norm.gate_placement == RMSNORM_GATE_BEFORE ? kGateBefore : 0u) |
           (run.Has(kResidual) ? kAddResidual : 0u);
  }

  // Reads an operand's part of a block piece by piece, and calls f(begin of the piece, its size).
  template <class F>
  void ForEachPiece(Operand operand, size_t begin, size_t n, const F& f) {
    for (size_t j = 0; j < n; j += kTile) {
      const size_t size = std::min(kTile, n - j);
      ReadTile(norm_, run_, operand, row_, begin + j, size, piece_);
      f(j, size);
    }
  }

  // ---------------------------------------------------------------- 1 / RMS

  float SumOfSource() const {
    const int type = DtypeIndex(norm_.dtype[source_]);
    return leaves_.sum[type](run_.Row<char>(source_, row_), nullptr, nullptr, run_.d);
  }

  float SumOfInput() {
    if (steps_ == 0) return SumOfSource();
    float total = 0;
    ForEachBlock(run_.d, [&](size_t begin, size_t n) {
      ReadH(begin, n);
      total += leaves_.sum[kF32](tile_, nullptr, nullptr, n);
    });
    return total;
  }

  // The sum of the squares of the tiles that make(begin, n) makes.
  template <class Make>
  double ColdSumOfTiles(const Make& make) {
    double total = 0;
    ForEachBlock(run_.d, [&](size_t begin, size_t n) {
      make(begin, n);
      TiledLanes<double> lanes;
      lanes.AddSquares(tile_, n);
      total += lanes.Fold();
    });
    return total;
  }

  template <class ColdSum>
  Inverse InverseOf(float sum, const ColdSum& cold_sum) const {
    const float under_root = UnderRoot(norm_.root, sum);
    // The sum of a row with a NaN is NaN in both precisions.
    if (IsSafe(under_root) || std::isnan(under_root)) {
      return {InverseRms(norm_.root, under_root), false};
    }
    return {InverseRms(norm_.root, UnderRoot(norm_.root, cold_sum())), true};
  }

  // Writes the sum that is handed out, too.
  Inverse FindInverse() {
    const bool is_wanted = run_.Has(kY) || run_.Has(kQ) || run_.Has(kRstd);
    if (!is_wanted && !run_.Has(kSumsOut)) return {};
    const double* const given = run_.Has(kSums) ? run_.Row<double>(kSums, row_) : nullptr;
    const float sum = given != nullptr ? static_cast<float>(*given) : SumOfInput();
    const auto cold_sum = [&] {
      if (given != nullptr) return *given;
      return ColdSumOfTiles([this](size_t begin, size_t n) { ReadH(begin, n); });
    };
    if (run_.Has(kSumsOut)) {
      const bool is_hot = IsSafeSum(sum, norm_.root.divisor) || std::isnan(sum);
      *run_.Row<double>(kSumsOut, row_) = is_hot ? double{sum} : cold_sum();
    }
    return is_wanted ? InverseOf(sum, cold_sum) : Inverse{};
  }

  // ---------------------------------------------------------------- a block

  // Reads h, the input of the norm, into the tile.
  void ReadH(size_t begin, size_t n) {
    if (begin == begin_) return;
    begin_ = begin;
    ReadTile(norm_, run_, source_, row_, begin, n, tile_);
    if (steps_ == 0) return;
    const rmsnorm_dtype dtype = norm_.dtype[kX];
    if ((steps_ & kPostNorm) != 0) {
      Scale(post_norm_, dtype, run_.Row<float>(kPostNormWeight, row_) + begin, nullptr, n);
      RoundTile(dtype, n, tile_);
    }
    if ((steps_ & kFactor) != 0) {
      ScaleTile<false>(norm_.factor, dtype, nullptr, nullptr, n, tile_);
    }
    if ((steps_ & kGateBefore) != 0) {
      ApplyGate(begin, n);
      if (norm_.gate_rounding == RMSNORM_GATE_ROUNDED) RoundTile(dtype, n, tile_);
    }
    if ((steps_ & kAddResidual) != 0) {
      ForEachPiece(kResidual, begin, n,
                   [this](size_t j, size_t size) { AddTile(piece_, size, tile_ + j); });
      const rmsnorm_dtype sum_dtype = norm_.norm_unrounded ? RMSNORM_F32 : x_dtype_;
      RoundTile(sum_dtype, n, tile_);
      if (norm_.residual_factor != 1.0f) {
        ScaleTile<false>(norm_.residual_factor, sum_dtype, nullptr, nullptr, n, tile_);
      }
    }
    // A sum takes zeros beyond the end. An infinite factor has made them NaN.
    for (size_t j = n; j % kLanes != 0; ++j) tile_[j] = 0;
  }

  // Turns the tile from the input of the norm into y. Its rounding to y's type is left to
  // WriteTile() where there are no integers.
  void MakeOutput(const Inverse& inverse, size_t begin, size_t n) {
    begin_ = ~size_t{0};
    const float* const bias = run_.Has(kBias) ? run_.Row<float>(kBias, row_) + begin : nullptr;
    Scale(inverse, x_dtype_, run_.Row<float>(kWeight, row_) + begin, bias, n);
    if (run_.Has(kGate) && norm_.gate_placement == RMSNORM_GATE_AFTER) {
      if (norm_.gate_rounding == RMSNORM_GATE_ROUNDED) RoundTile(x_dtype_, n, tile_);
      ApplyGate(begin, n);
    }
    if (run_.Has(kQ)) RoundTile(run_.Has(kY) ? norm_.dtype[kY] : x_dtype_, n, tile_);
    if (run_.Has(kCos)) Rotate();
  }

  // The tile holds all of a row that is rotated.
  void Rotate() {
    const rmsnorm_dtype y = norm_.dtype[kY];
    const bool round_each = norm_.rotary_rounding == RMSNORM_ROTARY_ROUND_EACH;
    if (norm_.rotary_rounding != RMSNORM_ROTARY_ROUND_NONE) RoundTile(y, run_.d, tile_);
    RotateRow(norm_, run_, row_, Turn::kForward, round_each ? y : RMSNORM_F32, tile_);
  }

  // Scales the tile by the rounding order of a norm of elements of x_dtype.
  void Scale(const Inverse& inverse, rmsnorm_dtype x_dtype, const float* weight, const float* bias,
             size_t n) {
    const rmsnorm_dtype dtype =
        norm_.rounding == RMSNORM_ROUND_AFTER_WEIGHT ? RMSNORM_F32 : x_dtype;
    if (norm_.rounding == RMSNORM_ROUND_INVERSE) {
      const float r = RoundTo(x_dtype, static_cast<float>(inverse.r));
      ScaleTile<false>(r, dtype, weight, bias, n, tile_);
    } else {
      (inverse.cold ? ScaleTile<true> : ScaleTile<false>)(inverse.r, dtype, weight, bias, n, tile_);
    }
  }

  void ApplyGate(size_t begin, size_t n) {
    ForEachPiece(kGate, begin, n, [this](size_t j, size_t size) {
      if (norm_.activation == RMSNORM_ACTIVATION_NONE) {
        return ScaleTile<false>(1, RMSNORM_F32, piece_, nullptr, size, tile_ + j);
      }
      leaves_.gate_tile[kF32](norm_.activation, tile_ + j, piece_, size, tile_ + j);
    });
  }

  QuantisedSteps FindSteps(const Inverse& inverse) {
    QuantisedRange range;
    ForEachBlock(run_.d, [&](size_t begin, size_t n) {
      ReadH(begin, n);
      MakeOutput(inverse, begin, n);
      leaves_.add_tile_to_range(tile_, n, range);
    });
    return WriteSteps(run_, row_, 0, range);
  }

  // Writes the steps and the integers of the groups in the tile. No group crosses a block.
  void QuantiseGroups(size_t begin, size_t n) {
    for (size_t j = 0; j < n; j += norm_.group) {
      QuantisedRange range;
      leaves_.add_tile_to_range(tile_ + j, norm_.group, range);
      const QuantisedSteps steps = WriteSteps(run_, row_, (begin + j) / norm_.group, range);
      leaves_.quantise[kF32](tile_ + j, norm_.group, steps, run_.Row<int8_t>(kQ, row_) + begin + j);
    }
  }

  const Norm& norm_;
  const RowRun& run_;
  const Operand source_;
  const size_t row_;
  const unsigned steps_;
  const rmsnorm_dtype x_dtype_;  // the type of the input of the norm, in the rounding orders
  const Leaves& leaves_ = *norm_.kernels->leaves;
  Inverse post_norm_ = {};
  size_t begin_ = ~size_t{0};  // of the block whose input of the norm is in the tile
  HWY_ALIGN float tile_[kBlock];
  HWY_ALIGN float piece_[kTile];  // of the residual or the gate
};

inline HWY_NOINLINE void ForwardByTiles(const Norm& norm, const RowRun& run, Operand source,
                                        size_t row) {
  TiledRow(norm, run, source, row).WriteOutputs();
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // !RMSNORM_NATIVE_BF16

#endif  // RMSNORM_LIB_KERNELS_TILED_ROW_INL_H_
