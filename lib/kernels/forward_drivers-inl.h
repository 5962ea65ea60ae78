// SPDX-License-Identifier: Apache-2.0
// Forward without element types, compiled for each target: which rows go to which leaves, and what
// goes through tiles. Everything has the bits of reference.cc.

#if defined(RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_
#undef RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_
#else
#define RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "forward-inl.h"
#include "stages-inl.h"
#include "targets-inl.h"

#if !RMSNORM_NATIVE_BF16
RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ quantised output

// Some integers of a row, from their values.
HWY_INLINE void WriteIntegers(const Leaves& leaves, int type, const Run& run, size_t row,
                              size_t begin, size_t n, const QuantisedSteps& steps,
                              const void* values) {
  int8_t* const q = run.Row<int8_t>(kQ, row) + begin;
  if (steps.none) {
    std::memset(q, 0, n);
  } else {
    leaves.quantise[type](values, n, steps, q);
  }
}

HWY_INLINE void WriteSteps(const Run& run, size_t row, const QuantisedSteps& steps) {
  *run.Row<float>(kScale, row) = steps.scale;
  if (run.Has(kZero)) *run.Row<int8_t>(kZero, row) = static_cast<int8_t>(steps.zero);
}

// ------------------------------------------------------------------ rows through tiles

// A row of any types and operands, block by block. Nothing of a block is written before all of it
// has been read.
class TiledRow {
 public:
  // `source` is kX, or kResidualOut where that holds what is normalised.
  TiledRow(const Norm& norm, const Run& run, Operand source, size_t row)
      : norm_(norm),
        run_(run),
        source_(source),
        row_(row),
        is_made_(source == kX &&
                 (run.Has(kResidual) || run.Has(kPostNormWeight) || norm.factor != 1.0f ||
                  norm.gate_placement == RMSNORM_GATE_BEFORE)),
        x_dtype_(run.Has(kResidual) && !norm.norm_unrounded ? norm.dtype[kResidual]
                                                            : norm.dtype[kX]) {
    if (source == kX && run.Has(kPostNormWeight)) post_norm_ = InverseOfPostNorm();
  }

  // The f32 sum of squares.
  float Sum() {
    if (!is_made_) return SumOfElements();
    float total = 0;
    for (size_t begin = 0; begin < run_.d; begin += kBlock) {
      const size_t n = MakeTile(begin);
      total += leaves_.sum_squares[kF32](tile_, n);
    }
    return total;
  }

  // Writes every output. `known_sum` is the f32 sum of squares, or null.
  void Normalise(const float* known_sum) {
    const bool norm_wanted = run_.Has(kY) || run_.Has(kQ) || run_.Has(kRstd);
    Inverse inverse = {};
    if (norm_wanted || run_.Has(kSumsOut)) {
      const float sum = known_sum != nullptr ? *known_sum
                        : run_.Has(kSums)    ? static_cast<float>(*run_.Row<double>(kSums, row_))
                                             : Sum();
      // That of a row with a NaN is NaN in both precisions.
      if (run_.Has(kSumsOut)) {
        const bool use_f32 = IsSafeSum(sum, norm_.root.divisor) || std::isnan(sum);
        *run_.Row<double>(kSumsOut, row_) = use_f32 ? static_cast<double>(sum) : WideSum();
      }
      if (norm_wanted) inverse = InverseOf(sum, [this] { return WideSum(); });
      if (run_.Has(kRstd)) *run_.Row<float>(kRstd, row_) = static_cast<float>(inverse.r);
    }
    if (run_.Has(kQ)) {
      WriteQuantisedRow(inverse);
    } else {
      WriteRow(inverse);
    }
  }

 private:
  float SumOfElements() const {
    const int type = DtypeIndex(norm_.dtype[source_]);
    return leaves_.sum_squares[type](run_.Row<char>(source_, row_), run_.d);
  }

  template <class WideSum>
  Inverse InverseOf(float sum, const WideSum& wide_sum) const {
    const float under_root = UnderRoot(norm_.root, sum);
    if (IsSafe(under_root) || std::isnan(under_root)) {
      return {InverseRms(norm_.root, under_root), false};
    }
    return {InverseRms(norm_.root, UnderRoot(norm_.root, wide_sum())), true};
  }

  Inverse InverseOfPostNorm() {
    return InverseOf(SumOfElements(), [this] {
      return SumWide([this](size_t begin) {
        const size_t n = std::min(kBlock, run_.d - begin);
        ReadTile(norm_, run_, kX, row_, begin, n, tile_);
        return n;
      });
    });
  }

  // The sum in binary64 of the squares of the tiles that make_tile(begin) makes.
  template <class Make>
  double SumWide(const Make& make_tile) {
    double total = 0;
    for (size_t begin = 0; begin < run_.d; begin += kBlock) {
      const size_t n = make_tile(begin);
      total += SumWideBlock<true>(tile_, tile_, tile_, n);
    }
    return total;
  }

  // That of what is normalised, or as it is given.
  double WideSum() {
    if (run_.Has(kSums)) return *run_.Row<double>(kSums, row_);
    return SumWide([this](size_t begin) { return MakeTile(begin); });
  }

  // Makes the tile what is normalised in a block. Returns its elements.
  size_t MakeTile(size_t begin) {
    const size_t n = std::min(kBlock, run_.d - begin);
    if (begin == begin_) return n;
    begin_ = begin;
    ReadTile(norm_, run_, source_, row_, begin, n, tile_);
    if (!is_made_) return n;
    const rmsnorm_dtype dtype = norm_.dtype[kX];
    if (run_.Has(kPostNormWeight)) {
      ScaleTile(norm_, post_norm_, dtype, run_.Row<float>(kPostNormWeight, row_) + begin, nullptr,
                n, tile_);
      RoundTile(dtype, n, tile_);
    }
    if (norm_.factor != 1.0f) {
      MultiplyTile(norm_.factor, n, tile_);
      RoundTile(dtype, n, tile_);
    }
    if (norm_.gate_placement == RMSNORM_GATE_BEFORE) MultiplyByGate(begin, n);
    if (run_.Has(kResidual)) {
      ReadTile(norm_, run_, kResidual, row_, begin, n, other_);
      AddTile(other_, n, tile_);
      if (!norm_.norm_unrounded) RoundTile(x_dtype_, n, tile_);
    }
    // Beyond the end a sum takes zeros, which a factor that is not finite has made NaN.
    for (size_t j = n; j % kLanes != 0; ++j) tile_[j] = 0;
    return n;
  }

  void MultiplyByGate(size_t begin, size_t n) {
    ReadTile(norm_, run_, kGate, row_, begin, n, other_);
    GateTile(norm_.activation, other_, n, tile_);
  }

  // Turns the tile from what is normalised into y, before its rounding to a type.
  void MakeOutput(const Inverse& inverse, size_t begin, size_t n) {
    begin_ = ~size_t{0};
    const float* const bias = run_.Has(kBias) ? run_.Row<float>(kBias, row_) + begin : nullptr;
    ScaleTile(norm_, inverse, x_dtype_, run_.Row<float>(kWeight, row_) + begin, bias, n, tile_);
    if (run_.Has(kGate) && norm_.gate_placement == RMSNORM_GATE_AFTER) {
      if (norm_.gate_rounding == RMSNORM_GATE_ROUNDED) RoundTile(x_dtype_, n, tile_);
      MultiplyByGate(begin, n);
    }
  }

  void WriteResidual(size_t begin, size_t n) const {
    if (source_ == kX && run_.Has(kResidualOut)) {
      WriteTile(norm_, run_, kResidualOut, row_, begin, n, tile_);
    }
  }

  void WriteRow(const Inverse& inverse) {
    for (size_t begin = 0; begin < run_.d; begin += kBlock) {
      const size_t n = MakeTile(begin);
      WriteResidual(begin, n);
      if (!run_.Has(kY)) continue;
      MakeOutput(inverse, begin, n);
      WriteTile(norm_, run_, kY, row_, begin, n, tile_);
    }
  }

  // The steps are known once all of the row has been made. Then it is made again, but for the block
  // of a row that has only one.
  void WriteQuantisedRow(const Inverse& inverse) {
    const rmsnorm_dtype dtype = run_.Has(kY) ? norm_.dtype[kY] : x_dtype_;
    const bool one_block = run_.d <= kBlock;
    QuantisedRange range;
    for (size_t begin = 0; begin < run_.d; begin += kBlock) {
      const size_t n = MakeTile(begin);
      if (one_block) WriteResidual(begin, n);
      MakeOutput(inverse, begin, n);
      RoundTile(dtype, n, tile_);
      leaves_.add_to_range[kF32](tile_, n, range);
    }
    const QuantisedSteps steps = range.Steps(run_.Has(kZero));
    for (size_t begin = 0; begin < run_.d; begin += kBlock) {
      const size_t n = one_block ? run_.d : MakeTile(begin);
      if (!one_block) {
        WriteResidual(begin, n);
        MakeOutput(inverse, begin, n);
        RoundTile(dtype, n, tile_);
      }
      if (run_.Has(kY)) WriteTile(norm_, run_, kY, row_, begin, n, tile_);
      WriteIntegers(leaves_, kF32, run_, row_, begin, n, steps, tile_);
    }
    WriteSteps(run_, row_, steps);
  }

  const Norm& norm_;
  const Run& run_;
  const Operand source_;
  const size_t row_;
  const bool is_made_;           // what is normalised, from x and other operands
  const rmsnorm_dtype x_dtype_;  // of what is normalised, in the rounding orders
  const Leaves& leaves_ = *norm_.kernels->leaves;
  Inverse post_norm_ = {};
  size_t begin_ = ~size_t{0};  // of the block in the tile
  HWY_ALIGN float tile_[kBlock];
  HWY_ALIGN float other_[kBlock];  // the residual or the gate
};

inline HWY_NOINLINE void NormaliseByTiles(const Norm& norm, const Run& run, Operand source,
                                          size_t row, const float* known_sum) {
  TiledRow(norm, run, source, row).Normalise(known_sum);
}

inline HWY_NOINLINE void NormaliseRowsByTiles(const Norm& norm, const Run& run) {
  for (size_t row = 0; row < run.count; ++row) NormaliseByTiles(norm, run, kX, row, nullptr);
}

// ------------------------------------------------------------------ rows of one type
//
// With y, and without a bias. What is normalised is x, or residual_out once it has been written:
// the `source`. The ways below are functions of their own, so that one short row does not wait for
// what the others keep on the stack.

struct RowLeaves {
  HWY_INLINE explicit RowLeaves(const Norm& norm)
      : RowLeaves(*norm.kernels->leaves, DtypeIndex(norm.dtype[kX]),
                  norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT, norm.stream) {}
  HWY_INLINE RowLeaves(const Leaves& leaves, int type, bool cast, bool stream)
      : sum_squares(leaves.sum_squares[type]),
        add_row(leaves.add_row[type]),
        scale(leaves.scale[type][cast][stream]),
        scale_four(leaves.scale_four[type][cast]),
        short_rows(leaves.short_rows[type][cast]),
        past_caches(stream) {}

  float (*sum_squares)(const void* x, size_t d);
  float (*add_row)(const void* x, const void* residual, void* residual_out, size_t d);
  ScaleLeaf scale;
  ScaleFourLeaf scale_four;
  const RowsLeaf* short_rows;
  bool past_caches;
};

// Finds 1 / RMS of a row from the f32 sum of squares, and writes it where rstd is wanted. Returns
// false where f32 does not hold the row: then the row has been done through tiles.
HWY_INLINE bool InvertOrUseTiles(const Norm& norm, const Run& run, Operand source, size_t row,
                                 float sum, float& r) {
  const float under_root = UnderRoot(norm.root, sum);
  if (HWY_UNLIKELY(!IsSafe(under_root))) {
    NormaliseByTiles(norm, run, source, row, &sum);
    return false;
  }
  r = InverseRms(norm.root, under_root);
  if (run.Has(kRstd)) *run.Row<float>(kRstd, row) = r;
  return true;
}

// The next row of residual_out is fetched past the caches alone: with it 8 x 4096 in f16 takes 4 %
// longer, 512 x 2048 in bf16 3 % less.
HWY_INLINE void ScaleByInverse(const Run& run, const RowLeaves& leaves, Operand source, size_t row,
                               float r) {
  const bool more = row + 1 < run.count;
  const size_t next = row + (more && (source == kX || leaves.past_caches));
  leaves.scale(run.Row<char>(source, row), run.Row<float>(kWeight, row), run.d, r,
               run.Row<char>(kY, row), run.Row<char>(source, next), more);
}

// By the f32 sum of squares.
HWY_INLINE void ScaleBySum(const Norm& norm, const Run& run, const RowLeaves& leaves,
                           Operand source, size_t row, float sum) {
  float r;
  if (InvertOrUseTiles(norm, run, source, row, sum, r)) {
    ScaleByInverse(run, leaves, source, row, r);
  }
}

HWY_INLINE void NormaliseRow(const Norm& norm, const Run& run, const RowLeaves& leaves,
                             size_t row) {
  ScaleBySum(norm, run, leaves, kX, row, leaves.sum_squares(run.Row<char>(kX, row), run.d));
}

// Four rows, each load of the weight shared. Not so in short rows of f32, where loads and stores of
// a row alternate: the residual add takes 7 % less on AVX2 for 4096 x 128.
HWY_INLINE void ScaleFour(const Norm& norm, const Run& run, const RowLeaves& leaves, Operand source,
                          size_t row, const float* sums) {
  const FourInverses inverses = InvertFour(norm.root, hn::LoadU(FourTag(), sums));
  if (HWY_LIKELY(inverses.safe)) {
    HWY_ALIGN float r[4];
    hn::Store(inverses.r, FourTag(), r);
    if (norm.dtype[kX] == RMSNORM_F32 && run.d <= kLanes) {
      for (size_t i = 0; i < 4; ++i) ScaleByInverse(run, leaves, source, row + i, r[i]);
    } else {
      leaves.scale_four(run, source, row, r);
    }
    for (size_t i = 0; run.Has(kRstd) && i < 4; ++i) *run.Row<float>(kRstd, row + i) = r[i];
  } else {
    for (size_t i = 0; i < 4; ++i) ScaleBySum(norm, run, leaves, source, row + i, sums[i]);
  }
}

// Some rows by their f32 sums. Of short ones four share the time of a root and two divisions: the
// residual add takes 8 % less for 4096 x 128.
inline HWY_NOINLINE void ScaleBySums(const Norm& norm, const Run& run, Operand source, size_t begin,
                                     size_t count, const float* sums) {
  const RowLeaves leaves(norm);
  size_t i = 0;
  if (IsShort(norm, run) && !norm.stream) {
    for (; i + 4 <= count; i += 4) ScaleFour(norm, run, leaves, source, begin + i, sums + i);
  }
  for (; i < count; ++i) ScaleBySum(norm, run, leaves, source, begin + i, sums[i]);
}

inline HWY_NOINLINE void NormaliseByFours(const Norm& norm, const Run& run) {
  const RowLeaves leaves(norm);
  const size_t length = run.d == kShortLengths[1]                   ? 1
                        : run.d == kShortLengths[2] && !norm.stream ? 2
                                                                    : 0;
  const RowsLeaf leaf = leaves.short_rows[length];
  size_t row = leaf(norm, run, 0);
  while (row + 4 <= run.count) {
    for (size_t i = 0; i < 4; ++i) NormaliseRow(norm, run, leaves, row++);
    row = leaf(norm, run, row);
  }
  for (; row < run.count; ++row) NormaliseRow(norm, run, leaves, row);
}

// Long rows, four at a time: 64 x 16384 in f32 takes 1.67 times memcpy's time so, and 1.97 by one.
inline HWY_NOINLINE void NormaliseLongRows(const Norm& norm, const Run& run) {
  const RowLeaves leaves(norm);
  size_t row = 0;
  for (; row + 4 <= run.count; row += 4) {
    float sums[4];
    for (size_t i = 0; i < 4; ++i) {
      sums[i] = leaves.sum_squares(run.Row<char>(kX, row + i), run.d);
    }
    ScaleFour(norm, run, leaves, kX, row, sums);
  }
  for (; row < run.count; ++row) NormaliseRow(norm, run, leaves, row);
}

// One row without the loop of NormaliseRows(), which prepares more before its first sum: one row of
// 64 in bf16 takes 0.9 of the time.
inline HWY_NOINLINE void NormaliseOneRow(const Norm& norm, const Run& run) {
  NormaliseRow(norm, run, RowLeaves(norm), 0);
}

// The loop keeps what a row's sum needs in registers. A load that follows the stores of the row
// before takes long, and with such loads 32 x 2048 in f32 took 1.1 times as long.
inline HWY_NOINLINE void NormaliseRows(const Norm& norm, const Run& run) {
  const RowLeaves leaves(norm);
  const RowsOf<const char> x(run, kX);
  const RowsOf<char> y(run, kY);
  const float* const weight = run.Row<float>(kWeight, 0);
  const size_t count = run.count;
  const size_t d = run.d;
  for (size_t row = 0; row < count; ++row) {
    float r;
    if (InvertOrUseTiles(norm, run, kX, row, leaves.sum_squares(x[row], d), r)) {
      const bool more = row + 1 < count;
      leaves.scale(x[row], weight, d, r, y[row], x[row + more], more);
    }
  }
}

// Rows that stay in registers, from the first that was not safe on.
inline HWY_NOINLINE void NormaliseHeldFrom(const Norm& norm, const Run& run, RowsLeaf leaf,
                                           Operand source, size_t row) {
  while (row < run.count) {
    NormaliseByTiles(norm, run, source, row++, nullptr);
    if (row < run.count) row = leaf(norm, run, row);
  }
}

inline HWY_NOINLINE void NormaliseHeld(const Norm& norm, const Run& run) {
  const bool adds = run.Has(kResidual);
  const RowsLeaf leaf = norm.kernels->leaves->held_rows[adds][(run.d - 1) / kPair];
  const size_t row = leaf(norm, run, 0);
  if (HWY_LIKELY(row == run.count)) return;
  NormaliseHeldFrom(norm, run, leaf, adds ? kResidualOut : kX, row);
}

// Short rows by fours, in steps that stay in L1 from their sum to y, so that memory is passed
// through once. Returns how many rows are done: all but three at most.
inline HWY_NOINLINE size_t AddAndNormaliseFours(const Norm& norm, const Run& run,
                                                const RowLeaves& leaves) {
  const auto add_by_fours = norm.kernels->leaves->add_by_fours[DtypeIndex(norm.dtype[kX])];
  const size_t step = std::clamp<size_t>(kAddTile / run.d / 4 * 4, 4, kAddTileRows);
  float sums[kAddTileRows];
  size_t begin = 0;
  while (begin + 4 <= run.count) {
    const size_t count = std::min(step, (run.count - begin) / 4 * 4);
    add_by_fours(run, begin, count, sums);
    for (size_t i = 0; i < count; i += 4) {
      ScaleFour(norm, run, leaves, kResidualOut, begin + i, sums + i);
    }
    begin += count;
  }
  return begin;
}

HWY_INLINE void AddAndNormaliseRow(const Norm& norm, const Run& run, const RowLeaves& leaves,
                                   size_t row) {
  const float sum = leaves.add_row(run.Row<char>(kX, row), run.Row<char>(kResidual, row),
                                   run.Row<char>(kResidualOut, row), run.d);
  ScaleBySum(norm, run, leaves, kResidualOut, row, sum);
}

// As NormaliseOneRow().
inline HWY_NOINLINE void AddAndNormaliseOneRow(const Norm& norm, const Run& run) {
  AddAndNormaliseRow(norm, run, RowLeaves(norm), 0);
}

inline HWY_NOINLINE void AddAndNormaliseRows(const Norm& norm, const Run& run) {
  const RowLeaves leaves(norm);
  size_t row = 0;
  if (run.count >= 4 && IsShort(norm, run) && !norm.stream) {
    row = AddAndNormaliseFours(norm, run, leaves);
  }
  for (; row < run.count; ++row) AddAndNormaliseRow(norm, run, leaves, row);
}

// Rows that are normalised before they are added to the residual: a Gemma's boundary of layers.
inline HWY_NOINLINE void PostNormAndNormaliseRows(const Norm& norm, const Run& run) {
  const RowLeaves leaves(norm);
  const auto post_norm_add = norm.kernels->leaves->post_norm_add[DtypeIndex(norm.dtype[kX])];
  for (size_t row = 0; row < run.count; ++row) {
    const float under_root =
        UnderRoot(norm.root, leaves.sum_squares(run.Row<char>(kX, row), run.d));
    if (HWY_UNLIKELY(!IsSafe(under_root))) {
      NormaliseByTiles(norm, run, kX, row, nullptr);
      continue;
    }
    post_norm_add(norm, run, row, InverseRms(norm.root, under_root));
    if (!run.Has(kY)) continue;
    const float sum = leaves.sum_squares(run.Row<char>(kResidualOut, row), run.d);
    ScaleBySum(norm, run, leaves, kResidualOut, row, sum);
  }
}

// The f32 sum of squares of a row of x, or of residual_out, which is written here.
HWY_INLINE float AddOrSumRow(const Leaves& leaves, int type, const Run& run, size_t row) {
  if (!run.Has(kResidual)) return leaves.sum_squares[type](run.Row<char>(kX, row), run.d);
  return leaves.add_row[type](run.Row<char>(kX, row), run.Row<char>(kResidual, row),
                              run.Row<char>(kResidualOut, row), run.d);
}

// Rows of x, or of what it is added to, with a gate after the norm.
inline HWY_NOINLINE void NormaliseGatedRows(const Norm& norm, const Run& run) {
  const Leaves& leaves = *norm.kernels->leaves;
  const int type = DtypeIndex(norm.dtype[kX]);
  const Operand source = run.Has(kResidual) ? kResidualOut : kX;
  const auto scale = leaves.scale_gated[type];
  for (size_t row = 0; row < run.count; ++row) {
    float r;
    if (InvertOrUseTiles(norm, run, source, row, AddOrSumRow(leaves, type, run, row), r)) {
      scale(norm, run, source, row, r);
    }
  }
}

// The longest row with a gate before the norm that has all of what is normalised in a tile. Those
// of Mamba-2 and its families have up to 8192 elements; a longer row makes it twice.
constexpr size_t kGatedTile = 2 * kBlock;

inline HWY_NOINLINE void NormaliseRowsGatedBefore(const Norm& norm, const Run& run) {
  const Leaves& leaves = *norm.kernels->leaves;
  const int type = DtypeIndex(norm.dtype[kX]);
  const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  HWY_ALIGN float tile[kGatedTile];
  for (size_t row = 0; row < run.count; ++row) {
    leaves.gate_tile[type](norm.activation, run.Row<char>(kX, row), run.Row<char>(kGate, row),
                           run.d, tile);
    float r;
    if (InvertOrUseTiles(norm, run, kX, row, leaves.sum_squares[kF32](tile, run.d), r)) {
      leaves.scale_tile[type](cast, tile, run.Row<float>(kWeight, row), run.d, r,
                              run.Row<char>(kY, row));
    }
  }
}

// Rows of x, or of what it is added to, whose norm is quantised. The values to quantise are y.
// Without y they stay in a block; a row of several blocks makes its values twice, for the range and
// for the integers.
inline HWY_NOINLINE void NormaliseQuantisedRows(const Norm& norm, const Run& run) {
  const Leaves& leaves = *norm.kernels->leaves;
  const int type = DtypeIndex(norm.dtype[kX]);
  const size_t size = ElementSize(norm.dtype[kX]);
  const Operand source = run.Has(kResidual) ? kResidualOut : kX;
  const ScaleLeaf scale = leaves.scale[type][norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT][false];
  const bool keeps_values = run.Has(kY) || run.d <= kBlock;
  HWY_ALIGN char block[kBlock * sizeof(float)];
  for (size_t row = 0; row < run.count; ++row) {
    float r;
    if (!InvertOrUseTiles(norm, run, source, row, AddOrSumRow(leaves, type, run, row), r)) continue;
    const auto values = [&](size_t begin) {
      return run.Has(kY) ? run.Row<char>(kY, row) + begin * size : block;
    };
    const auto make = [&](size_t begin, size_t n) {
      const char* const from = run.Row<char>(source, row) + begin * size;
      scale(from, run.Row<float>(kWeight, row) + begin, n, r, values(begin), from, false);
    };
    QuantisedRange range;
    for (size_t begin = 0; begin < run.d; begin += kBlock) {
      const size_t n = std::min(kBlock, run.d - begin);
      make(begin, n);
      leaves.add_to_range[type](values(begin), n, range);
    }
    const QuantisedSteps steps = range.Steps(run.Has(kZero));
    for (size_t begin = 0; begin < run.d; begin += kBlock) {
      const size_t n = std::min(kBlock, run.d - begin);
      if (!keeps_values) make(begin, n);
      WriteIntegers(leaves, type, run, row, begin, n, steps, values(begin));
    }
    WriteSteps(run, row, steps);
  }
}

// By sums from another call.
inline HWY_NOINLINE void ScaleByGivenSums(const Norm& norm, const Run& run) {
  constexpr size_t kRows = 64;
  float sums[kRows];
  for (size_t begin = 0; begin < run.count; begin += kRows) {
    const size_t count = std::min(kRows, run.count - begin);
    for (size_t i = 0; i < count; ++i) {
      sums[i] = static_cast<float>(*run.Row<double>(kSums, begin + i));
    }
    ScaleBySums(norm, run, kX, begin, count, sums);
  }
}

// ------------------------------------------------------------------ the way of each call

// Whether there are leaves for the residual of a run.
HWY_INLINE bool HasResidualLeaves(const Norm& norm, const Run& run) {
  return run.Has(kResidualOut) && (!norm.norm_unrounded || norm.dtype[kResidual] == RMSNORM_F32);
}

// Rows with operands or options that only some rows of one type have leaves for.
inline HWY_NOINLINE void NormaliseOtherRows(const Norm& norm, const Run& run) {
  constexpr OperandSet kOthers =
      SetOf(kBias) | SetOf(kSumsOut) | SetOf(kPostNormWeight) | SetOf(kGate) | SetOf(kQ);
  const OperandSet others = run.given & kOthers;
  if (norm.has_leaves && !run.Has(kSums) && (!run.Has(kResidual) || HasResidualLeaves(norm, run))) {
    if (others == SetOf(kPostNormWeight) && run.Has(kResidual) &&
        (run.Has(kY) || !run.Has(kRstd))) {
      return PostNormAndNormaliseRows(norm, run);
    }
    if (others == SetOf(kGate) && run.Has(kY)) {
      if (norm.gate_placement == RMSNORM_GATE_AFTER) return NormaliseGatedRows(norm, run);
      if (run.d <= kGatedTile) return NormaliseRowsGatedBefore(norm, run);
    }
    if (others == SetOf(kQ)) return NormaliseQuantisedRows(norm, run);
  }
  NormaliseRowsByTiles(norm, run);
}

HWY_INLINE void ForwardRows(const Norm& norm, const Run& run) {
  // y alone, rstd, and what the rows are made of.
  constexpr OperandSet kUsual = SetOf(kX) | SetOf(kWeight) | SetOf(kResidual) |
                                SetOf(kResidualOut) | SetOf(kSums) | SetOf(kY) | SetOf(kRstd);
  const bool usual = norm.has_leaves && (run.given & ~kUsual) == 0 && run.Has(kY) &&
                     (!run.Has(kResidual) || HasResidualLeaves(norm, run));
  if (HWY_UNLIKELY(!usual)) return NormaliseOtherRows(norm, run);
  if (run.Has(kSums)) return ScaleByGivenSums(norm, run);
  if (kHoldsRowsOf<float> && norm.dtype[kX] == RMSNORM_F32 && run.d <= kLongestHeld) {
    return NormaliseHeld(norm, run);
  }
  if (run.count == 1) {
    return run.Has(kResidual) ? AddAndNormaliseOneRow(norm, run) : NormaliseOneRow(norm, run);
  }
  if (run.Has(kResidual)) return AddAndNormaliseRows(norm, run);
  if (run.count >= 4) {
    // Past the caches rows that are a little longer take 0.4 to 0.7 of the time one by one.
    if (norm.stream ? run.d <= kLanes : IsShort(norm, run)) return NormaliseByFours(norm, run);
    if (run.d >= kLongRow && !norm.stream) return NormaliseLongRows(norm, run);
  }
  NormaliseRows(norm, run);
}

inline HWY_NOINLINE void ForwardPastCaches(const Norm& norm, const Run& run) {
  ForwardRows(norm, run);
  hwy::FlushStream();  // before another thread may read y
}

inline void Forward(const Norm& norm, const Run& run) {
  if (HWY_UNLIKELY(norm.stream)) return ForwardPastCaches(norm, run);
  ForwardRows(norm, run);
}

// ------------------------------------------------------------------ weights and their gradients

inline void Prepare(rmsnorm_dtype dtype, const void* from, size_t d, float offset,
                    float* prepared) {
  kLeaves.prepare[DtypeIndex(dtype)](from, d, offset, prepared);
}

inline void StoreSums(const float* sums, size_t stride, size_t blocks, size_t d, bool add,
                      rmsnorm_dtype dtype, void* to) {
  // One pass instead of four: backward of 17 x 2048 takes 0.96 of the time, others 0.98.
  if (blocks == 1 && add && dtype == RMSNORM_F32) {
    return AddTile(sums, d, static_cast<float*>(to));
  }
  HWY_ALIGN float total[kTile];
  HWY_ALIGN float before[kTile];
  for (size_t begin = 0; begin < d; begin += kTile) {
    const size_t n = std::min(kTile, d - begin);
    char* const at = static_cast<char*>(to) + begin * ElementSize(dtype);
    // Whole vectors that are not added to are rounded from where they are.
    const float* rounded = sums + begin;
    if (blocks > 1 || add || n % kPair != 0) {
      FillTile<float>(sums + begin, n, total);
      rounded = total;
    }
    for (size_t block = 1; block < blocks; ++block) {
      AddTile(sums + block * stride + begin, n, total);
    }
    if (add) {
      kLeaves.widen[DtypeIndex(dtype)](at, n, before);
      AddTile(before, n, total);
    }
    kLeaves.narrow[DtypeIndex(dtype)](rounded, n, at);
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // RMSNORM_NATIVE_BF16

#endif  // RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_
