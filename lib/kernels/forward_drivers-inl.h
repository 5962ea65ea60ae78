// SPDX-License-Identifier: Apache-2.0
// Forward without element types. Each run chooses once between fused leaves and tiles. Everything
// has the bits of reference.cc.

#if defined(RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_
#undef RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_
#else
#define RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstdint>

#include "forward-inl.h"
#include "targets-inl.h"
#include "tiled_row-inl.h"

#if !RMSNORM_NATIVE_BF16
RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ the way of a run

// The most f32 values of a row that one pass leaves on the stack for the next. Rows with a gate
// before the norm, as in Mamba-2 and its families, have up to 8192 elements.
constexpr size_t kMostKept = 2 * kBlock;

// Writes y and the integers of a row, or the integers alone. Without y the values stay on the
// stack, in the bytes of kSize floats. Where they do not fit, each block is made twice, for the
// range and for the integers.
template <size_t kSize>
HWY_NOINLINE void QuantiseRow(const Norm& norm, const RowRun& run, Operand source, size_t row,
                              float r) {
  const Leaves& leaves = *norm.kernels->leaves;
  const int type = DtypeIndex(norm.dtype[kX]);
  const size_t size = ElementSize(norm.dtype[kX]);
  const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  HWY_ALIGN char kept[kSize * sizeof(float)];
  char* const first = run.Has(kY) ? run.Row<char>(kY, row) : kept;
  const bool fit = run.Has(kY) || run.d * size <= sizeof kept;
  const auto values = [&](size_t begin) { return fit ? first + begin * size : first; };
  QuantisedRange range;
  const auto make = [&](size_t begin, size_t n) {
    leaves.scale_to_range[type](cast, run.Row<char>(source, row) + begin * size,
                                run.Row<float>(kWeight, row) + begin, n, r, values(begin), range);
  };
  ForEachBlock(run.d, make);
  const QuantisedSteps steps = WriteSteps(run, row, 0, range);
  ForEachBlock(run.d, [&](size_t begin, size_t n) {
    if (!fit) make(begin, n);
    leaves.quantise[type](values(begin), n, steps, run.Row<int8_t>(kQ, row) + begin);
  });
}

// A SumLeaf whose x is the sum itself, from another call.
inline float ReadSum(const void* sum, const void* /*residual*/, void* /*residual_out*/,
                     size_t /*d*/) {
  return static_cast<float>(*static_cast<const double*>(sum));
}

// The operands that the leaves of every run serve, and the outputs of a row of integers. Tiles
// serve all others.
constexpr OperandSet kUsual = SetOf(kX) | SetOf(kResidual) | SetOf(kWeight) | SetOf(kSums) |
                              SetOf(kResidualOut) | SetOf(kY) | SetOf(kRstd);
constexpr OperandSet kQuantised = SetOf(kQ) | SetOf(kScale) | SetOf(kZero);

// The input of the norm for rows of one type: x, or residual_out once it is written.
HWY_INLINE Operand InputOf(const RowRun& run) { return run.Has(kResidual) ? kResidualOut : kX; }

// How the rows of one type in a run go from their operands to their outputs, found once for all of
// them. Loops over rows copy it: they keep its fields in registers, as a load after the stores of
// the row before takes long.
struct ForwardWay {
  HWY_INLINE ForwardWay() {}

  // The sum of squares.
  SumLeaf sum;
  RowsOf<const char> summed;  // x, residual_out or sums
  RowsOf<const char> residual;
  RowsOf<char> residual_out;
  size_t d;

  // Then the outputs, by `write` or, where that is null, by `scale`.
  ScaleLeaf scale;
  RowLeaf write = nullptr;
  RowsOf<const char> scaled;  // the input of the norm
  RowsOf<char> y;
  const float* weight;
  bool fetch_next;  // the next row of the input is worth fetching

  HWY_INLINE float SumOfRow(size_t row) const {
    return sum(summed[row], residual[row], residual_out[row], d);
  }

  HWY_INLINE void ScaleOneRow(size_t row, size_t count, float r) const {
    const bool more = row + 1 < count;
    scale(scaled[row], weight, d, r, y[row], scaled[row + (more && fetch_next)], more);
  }
};

// kIsUsual says that the run has operands of kUsual alone.
template <bool kIsUsual>
HWY_INLINE ForwardWay FindForwardWay(const Norm& norm, const RowRun& run) {
  const Leaves& leaves = *norm.kernels->leaves;
  const int type = DtypeIndex(norm.dtype[kX]);
  const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  ForwardWay way;
  way.d = run.d;
  way.y = RowsOf<char>(run, kY);
  way.weight = run.Row<float>(kWeight, 0);
  way.scale = leaves.scale[type][cast][norm.stream];
  if (HWY_UNLIKELY(run.Has(kResidual))) {
    way.sum = leaves.add_and_sum[type];
    way.summed = RowsOf<const char>(run, kX);
    way.residual = RowsOf<const char>(run, kResidual);
    way.residual_out = RowsOf<char>(run, kResidualOut);
    way.scaled = RowsOf<const char>(run, kResidualOut);
    // The next row of residual_out is worth it past the caches alone.
    way.fetch_next = norm.stream;
  } else {
    way.sum = HWY_UNLIKELY(run.Has(kSums)) ? ReadSum : leaves.sum[type];
    way.summed = RowsOf<const char>(run, HWY_UNLIKELY(run.Has(kSums)) ? kSums : kX);
    way.scaled = RowsOf<const char>(run, kX);
    way.fetch_next = true;
  }
  if (kIsUsual) return way;
  if (run.Has(kPostNormWeight)) way.sum = leaves.sum[type];
  if (run.Has(kBias)) way.write = leaves.scale_biased[type];
  if (run.Has(kGate)) way.write = leaves.scale_gated[type];
  if (run.Has(kQ)) {
    way.write = norm.group < run.d ? leaves.quantise_groups[type]
                : run.d <= kBlock  ? QuantiseRow<kBlock>
                                   : QuantiseRow<kMostKept>;
  }
  return way;
}

// ------------------------------------------------------------------ loops over rows

// Writes the outputs of a row from its f32 sum. Rows that need binary64 go through tiles.
HWY_INLINE void WriteBySum(const Norm& norm, const RowRun& run, const ForwardWay& way, size_t row,
                           size_t count, float sum) {
  const float under_root = UnderRoot(norm.root, sum);
  if (HWY_UNLIKELY(!IsSafe(under_root))) return ForwardByTiles(norm, run, InputOf(run), row);
  const float r = InverseRms(norm.root, under_root);
  if (run.Has(kRstd)) *run.Row<float>(kRstd, row) = r;
  if (HWY_LIKELY(way.write == nullptr)) {
    way.ScaleOneRow(row, count, r);
  } else {
    way.write(norm, run, InputOf(run), row, r);
  }
}

// Makes residual_out = residual + norm(x) for a row, and returns its sum of squares. In 16 bits
// norm(x) is rounded in between, and a tile keeps it.
inline HWY_NOINLINE float AddPostNorm(const Norm& norm, const RowRun& run, size_t row, float r) {
  const Leaves& leaves = *norm.kernels->leaves;
  const float* const weight = run.Row<float>(kPostNormWeight, 0);
  if (norm.dtype[kX] == RMSNORM_F32) {
    return leaves.add_norm(run.Row<float>(kX, row), r, weight, run.Row<float>(kResidual, row),
                           run.Row<float>(kResidualOut, row), run.d);
  }
  const int type = DtypeIndex(norm.dtype[kX]);
  const ScaleLeaf scale = leaves.scale[type][norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT][false];
  const size_t next = std::min(row + 1, run.count - 1);
  HWY_ALIGN uint16_t tile[kBlock];
  float sum = 0;
  ForEachBlock(run.d, [&](size_t begin, size_t n) {
    scale(run.Row<uint16_t>(kX, row) + begin, weight + begin, n, r, tile,
          run.Row<uint16_t>(kX, next) + begin, false);
    sum += leaves.add_and_sum[type](tile, run.Row<uint16_t>(kResidual, row) + begin,
                                    run.Row<uint16_t>(kResidualOut, row) + begin, n);
  });
  return sum;
}

// Row by row, from `begin` on. kOneRow is for one row of a usual run, which needs none of the
// loop's preparations.
template <bool kOneRow>
HWY_NOINLINE void ForwardOneByOne(const Norm& norm, const RowRun& run, size_t begin) {
  const ForwardWay way = FindForwardWay<kOneRow>(norm, run);
  const size_t count = kOneRow ? 1 : run.count;
  for (size_t row = kOneRow ? 0 : begin; row < count; ++row) {
    float sum = way.SumOfRow(row);
    if (!kOneRow && run.Has(kPostNormWeight)) {
      const float under_root = UnderRoot(norm.root, sum);
      if (HWY_UNLIKELY(!IsSafe(under_root))) {
        ForwardByTiles(norm, run, kX, row);
        continue;
      }
      sum = AddPostNorm(norm, run, row, InverseRms(norm.root, under_root));
      if (!run.Has(kY)) continue;
    }
    WriteBySum(norm, run, way, row, count, sum);
  }
}

// Writes the outputs of four rows, which share a root, two divisions and the loads of the weight.
HWY_INLINE void WriteFourBySums(const Norm& norm, const RowRun& run, const ForwardWay& way,
                                ScaleFourLeaf scale_four, size_t row, const float* sums) {
  const FourInverses inverses = InvertFour(norm.root, hn::LoadU(FourTag(), sums));
  if (HWY_UNLIKELY(!inverses.safe)) {
    for (size_t i = 0; i < 4; ++i) WriteBySum(norm, run, way, row + i, run.count, sums[i]);
    return;
  }
  HWY_ALIGN float r[4];
  hn::Store(inverses.r, FourTag(), r);
  scale_four(run, InputOf(run), row, r);
  for (size_t i = 0; run.Has(kRstd) && i < 4; ++i) *run.Row<float>(kRstd, row + i) = r[i];
}

// Four rows at a time, and the rest one by one. Short rows with a residual are summed in steps that
// stay in L1 until y is written.
inline HWY_NOINLINE void ForwardByFours(const Norm& norm, const RowRun& run) {
  const Leaves& leaves = *norm.kernels->leaves;
  const ForwardWay way = FindForwardWay<true>(norm, run);
  const int type = DtypeIndex(norm.dtype[kX]);
  const ScaleFourLeaf scale_four =
      leaves.scale_four[type][norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT];
  const bool adds = run.Has(kResidual);
  const size_t step = adds ? std::clamp<size_t>(kAddTile / run.d / 4 * 4, 4, kAddTileRows) : 4;
  float sums[kAddTileRows];
  size_t begin = 0;
  while (begin + 4 <= run.count) {
    const size_t count = std::min(step, (run.count - begin) / 4 * 4);
    if (adds) {
      leaves.add_and_sum_fours[type](run, begin, count, sums);
    } else {
      for (size_t i = 0; i < 4; ++i) sums[i] = way.SumOfRow(begin + i);
    }
    for (size_t i = 0; i < count; i += 4) {
      WriteFourBySums(norm, run, way, scale_four, begin + i, sums + i);
    }
    begin += count;
  }
  if (begin < run.count) ForwardOneByOne<false>(norm, run, begin);
}

// The rows that a RowsLeaf has left from `row` on. A group at which it stopped goes through tiles
// here, where the leaf's own tile is no longer on the stack; fewer rows than a group go one by one.
inline HWY_NOINLINE void ForwardLeftRows(const Norm& norm, const RowRun& run, RowsLeaf leaf,
                                         size_t group, size_t row) {
  while (row + group <= run.count) {
    for (size_t i = 0; i < group; ++i) ForwardByTiles(norm, run, InputOf(run), row++);
    if (row + group <= run.count) row = leaf(norm, run, row);
  }
  if (row < run.count) ForwardOneByOne<false>(norm, run, row);
}

inline HWY_NOINLINE void ForwardByRowsLeaf(const Norm& norm, const RowRun& run, RowsLeaf leaf,
                                           size_t group) {
  const size_t row = leaf(norm, run, 0);
  if (HWY_UNLIKELY(row < run.count)) ForwardLeftRows(norm, run, leaf, group, row);
}

// A RowsLeaf for rows of up to kSize elements with a gate before the norm. The input of the norm is
// kept in y where that is f32 and not x, and else in a tile. The smaller tile is no faster: rows of
// a block have 16 KiB of scratch on the stack, too.
template <size_t kSize>
HWY_NOINLINE size_t ForwardGatedTiles(const Norm& norm, const RowRun& run, size_t begin) {
  const Leaves& leaves = *norm.kernels->leaves;
  const int type = DtypeIndex(norm.dtype[kX]);
  const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  const bool in_y = type == kF32 && run.data[kY] != run.data[kX];
  HWY_ALIGN float tile[kSize];
  for (size_t row = begin; row < run.count; ++row) {
    float* const input = in_y ? run.Row<float>(kY, row) : tile;
    leaves.gate_tile[type](norm.activation, run.Row<char>(kX, row), run.Row<char>(kGate, row),
                           run.d, input);
    const float under_root = UnderRoot(norm.root, leaves.sum[kF32](input, nullptr, nullptr, run.d));
    if (HWY_UNLIKELY(!IsSafe(under_root))) return row;
    const float r = InverseRms(norm.root, under_root);
    if (run.Has(kRstd)) *run.Row<float>(kRstd, row) = r;
    leaves.scale_tile[type](cast, input, run.Row<float>(kWeight, row), run.d, r,
                            run.Row<char>(kY, row));
  }
  return run.count;
}

// The most rows, and the most bytes of x, that a RotatedLeaf gets at once: x and y stay in L1.
constexpr size_t kRotatedRows = 32;
constexpr size_t kRotatedBytes = 8192;

// Finds 1 / RMS of up to `most` rows from `row` on, and returns of how many: none where f32 does
// not hold the first one.
HWY_INLINE size_t InvertRows(const Norm& norm, const RowRun& run, size_t row, size_t most,
                             float* r) {
  const SumLeaf sum = norm.kernels->leaves->sum[DtypeIndex(norm.dtype[kX])];
  const size_t fours = std::min(most, run.count - row) / 4 * 4;
  for (size_t i = 0; i < std::max<size_t>(fours, 1); ++i) {
    r[i] = sum(run.Row<char>(kX, row + i), nullptr, nullptr, run.d);
  }
  size_t count = 0;
  for (; count < fours; count += 4) {
    const FourInverses inverses = InvertFour(norm.root, hn::LoadU(FourTag(), r + count));
    if (HWY_UNLIKELY(!inverses.safe)) break;
    hn::StoreU(inverses.r, FourTag(), r + count);
  }
  if (count > 0) return count;
  const float under_root = UnderRoot(norm.root, r[0]);
  if (HWY_UNLIKELY(!IsSafe(under_root))) return 0;
  r[0] = InverseRms(norm.root, under_root);
  return 1;
}

// A RowsLeaf for rows of which a Rotation holds all pairs.
inline HWY_NOINLINE size_t ForwardRotatedRows(const Norm& norm, const RowRun& run, size_t begin) {
  const Leaves& leaves = *norm.kernels->leaves;
  const int type = DtypeIndex(norm.dtype[kX]);
  const size_t size = ElementSize(norm.dtype[kX]);
  const bool round_each = norm.rotary_rounding == RMSNORM_ROTARY_ROUND_EACH;
  const RotatedLeaf rotate = leaves.rotate_scaled[type][round_each];
  const ScaleLeaf scale = leaves.scale[type][norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT][false];
  // What is not rotated lies on one side of the part.
  const size_t rest = BeginOfRotated(norm, run.d) > 0 ? 0 : norm.rotated;
  const bool is_shared = run.stride[kCos] == 0 && run.stride[kSin] == 0;
  const size_t most =
      is_shared ? std::min(std::max<size_t>(kRotatedBytes / (run.d * size), 4), kRotatedRows) : 1;
  Rotation rotation;
  float smallest_r = 0;
  float r[kRotatedRows];
  for (size_t row = begin; row < run.count;) {
    const size_t count = InvertRows(norm, run, row, most, r);
    if (HWY_UNLIKELY(count == 0)) return row;
    if (row == begin || !is_shared) {
      rotation.Read(norm, run, row, 0, norm.rotated / 2, Turn::kForward,
                    round_each ? norm.dtype[kY] : RMSNORM_F32);
      smallest_r = rotation.SmallestNormal(norm, run);
    }
    bool normal = true;
    for (size_t i = 0; i < count; ++i) normal = normal && r[i] >= smallest_r;
    rotate(norm, run, rotation.cos(), rotation.sin(), row, count, r, normal);
    for (size_t i = 0; i < count; ++i, ++row) {
      if (run.Has(kRstd)) *run.Row<float>(kRstd, row) = r[i];
      if (norm.rotated == run.d) continue;
      const char* const x = run.Row<char>(kX, row) + rest * size;
      scale(x, run.Row<float>(kWeight, row) + rest, run.d - norm.rotated, r[i],
            run.Row<char>(kY, row) + rest * size, x, false);
    }
  }
  return run.count;
}

// ------------------------------------------------------------------ steps before the norm

// A row at which a loop stopped, as f32 does not hold it, and the operand from which it goes on.
struct StoppedAt {
  size_t row;
  Operand source;
};

// Rows whose x is multiplied by a gate without an activation, or whose sum with the residual is
// multiplied by a factor. The tile keeps a post-norm.
inline HWY_NOINLINE StoppedAt ForwardSteps(const Norm& norm, const RowRun& run, size_t begin) {
  const Leaves& leaves = *norm.kernels->leaves;
  const int type = DtypeIndex(norm.dtype[kX]);
  const size_t size = ElementSize(norm.dtype[kX]);
  const ScaleLeaf scale = leaves.scale[type][norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT][false];
  const bool post_norm = run.Has(kPostNormWeight);
  HWY_ALIGN char tile[kBlock * sizeof(float)];
  for (size_t row = begin; row < run.count; ++row) {
    float r = 1;
    if (post_norm) {
      const float sum = leaves.sum[type](run.Row<char>(kX, row), nullptr, nullptr, run.d);
      const float under_root = UnderRoot(norm.root, sum);
      if (HWY_UNLIKELY(!IsSafe(under_root))) return {row, kX};
      r = InverseRms(norm.root, under_root);
    }
    float sum = 0;
    ForEachBlock(run.d, [&](size_t from, size_t n) {
      const auto part = [&](Operand operand) { return run.Row<char>(operand, row) + from * size; };
      const char* x = part(kX);
      if (post_norm) {
        scale(x, run.Row<float>(kPostNormWeight, row) + from, n, r, tile, x, false);
        x = tile;
      }
      leaves.add_step[type](x, run.Has(kGate) ? part(kGate) : nullptr, part(kResidual),
                            norm.residual_factor, n, part(kResidualOut));
      sum += leaves.sum[type](part(kResidualOut), nullptr, nullptr, n);
    });
    if (!run.Has(kY)) continue;
    const float under_root = UnderRoot(norm.root, sum);
    if (HWY_UNLIKELY(!IsSafe(under_root))) return {row, kResidualOut};
    r = InverseRms(norm.root, under_root);
    if (run.Has(kRstd)) *run.Row<float>(kRstd, row) = r;
    if (run.Has(kBias)) {
      leaves.scale_biased[type](norm, run, kResidualOut, row, r);
    } else {
      const char* const h = run.Row<char>(kResidualOut, row);
      scale(h, run.Row<float>(kWeight, row), run.d, r, run.Row<char>(kY, row), h, false);
    }
  }
  return {run.count, kX};
}

// A row at which the loop stops goes through tiles here, where the loop's are no longer on the
// stack.
inline HWY_NOINLINE void ForwardBySteps(const Norm& norm, const RowRun& run) {
  for (size_t row = 0; row < run.count; ++row) {
    const StoppedAt stopped = ForwardSteps(norm, run, row);
    row = stopped.row;
    if (row < run.count) ForwardByTiles(norm, run, stopped.source, row);
  }
}

// ------------------------------------------------------------------ the loop of a run

// Whether there are leaves for the residual of a run.
HWY_INLINE bool HasResidualLeaves(const Norm& norm, const RowRun& run) {
  return run.Has(kResidualOut) && (!norm.norm_unrounded || norm.dtype[kResidual] == RMSNORM_F32);
}

// Rows with operands or options that few runs have, and rows without leaves.
inline HWY_NOINLINE void ForwardOtherRows(const Norm& norm, const RowRun& run) {
  const OperandSet others = run.given & ~kUsual;
  const OperandSet unbiased = others & ~SetOf(kBias);
  const bool before = norm.gate_placement == RMSNORM_GATE_BEFORE;
  const bool adds = run.Has(kResidual) && HasResidualLeaves(norm, run);
  const bool normed = run.Has(kY) || !run.Has(kRstd);  // these leaves write no rstd without y
  if (norm.has_leaves && !run.Has(kSums) && (!run.Has(kResidual) || adds)) {
    const bool post_norm = unbiased == SetOf(kPostNormWeight) && run.Has(kResidual) && normed;
    const bool biased = others == SetOf(kBias) && run.Has(kY);
    const bool gated = others == SetOf(kGate) && run.Has(kY);
    const bool quantised = run.Has(kQ) && (others & ~kQuantised) == 0;
    if (others == kRotation && norm.rotated / 2 <= Rotation::kMostPairs) {
      const bool is_held = HasHeldRotatedRows(norm, run);
      const RowsLeaf leaf = is_held
                                ? norm.kernels->leaves->held_rotated_rows[run.d / (2 * kPair) - 1]
                                : ForwardRotatedRows;
      return ForwardByRowsLeaf(norm, run, leaf, 1);
    }
    if (post_norm || biased || (gated && !before) || quantised) {
      return ForwardOneByOne<false>(norm, run, 0);
    }
    const bool input_is_product =
        !run.Has(kResidual) && norm.gate_rounding == RMSNORM_GATE_UNROUNDED;
    if (gated && input_is_product && run.d <= kMostKept) {
      const RowsLeaf leaf =
          run.d <= kBlock ? ForwardGatedTiles<kBlock> : ForwardGatedTiles<kMostKept>;
      return ForwardByRowsLeaf(norm, run, leaf, 1);
    }
  }
  const bool is_product_rounded =
      norm.gate_rounding == RMSNORM_GATE_ROUNDED || norm.dtype[kX] == RMSNORM_F32;
  const bool multiplied =
      run.Has(kGate) && before && is_product_rounded && norm.activation == RMSNORM_ACTIVATION_NONE;
  const OperandSet steps = unbiased & (SetOf(kGate) | SetOf(kPostNormWeight));
  if (norm.has_step_leaves && adds && normed && steps != 0 && steps == unbiased &&
      (multiplied || !run.Has(kGate))) {
    return ForwardBySteps(norm, run);
  }
  for (size_t row = 0; row < run.count; ++row) ForwardByTiles(norm, run, kX, row);
}

// The loops are not inlined, so that one short row does not wait for what the others keep on the
// stack.
HWY_INLINE void ForwardRows(const Norm& norm, const RowRun& run) {
  const bool adds = run.Has(kResidual);
  const bool usual = norm.has_leaves && (run.given & ~kUsual) == 0 && run.Has(kY) &&
                     (!adds || HasResidualLeaves(norm, run));
  if (HWY_UNLIKELY(!usual)) return ForwardOtherRows(norm, run);
  const Leaves& leaves = *norm.kernels->leaves;
  const bool has_sums = run.Has(kSums);
  if (HasHeldRows(norm, run) && !has_sums) {
    return ForwardByRowsLeaf(norm, run, leaves.held_rows[adds][(run.d - 1) / kPair], 1);
  }
  if (run.count == 1) return ForwardOneByOne<true>(norm, run, 0);
  if (run.count >= 4) {
    const bool is_short = IsShort(norm, run);
    if (adds || has_sums) {
      if (is_short && !norm.stream) return ForwardByFours(norm, run);
    } else if (norm.stream ? run.d <= kLanes : is_short) {
      // Past the caches short rows of more than kLanes elements are faster one by one.
      const size_t length = run.d == kShortLengths[1]                   ? 1
                            : run.d == kShortLengths[2] && !norm.stream ? 2
                                                                        : 0;
      const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
      return ForwardByRowsLeaf(norm, run,
                               leaves.short_rows[DtypeIndex(norm.dtype[kX])][cast][length], 4);
    } else if (run.d >= kLongRow && !norm.stream) {
      return ForwardByFours(norm, run);
    }
  }
  ForwardOneByOne<false>(norm, run, 0);
}

inline HWY_NOINLINE void ForwardPastCaches(const Norm& norm, const RowRun& run) {
  ForwardRows(norm, run);
  hwy::FlushStream();  // before another thread may read y
}

inline void ForwardKernel(const Norm& norm, const RowRun& run) {
  if (HWY_UNLIKELY(norm.stream)) return ForwardPastCaches(norm, run);
  ForwardRows(norm, run);
}

// ------------------------------------------------------------------ weights and their gradients

inline void AddOffsetKernel(rmsnorm_dtype dtype, const void* from, size_t d, float offset,
                            float* column) {
  kLeaves.add_offset[DtypeIndex(dtype)](from, d, offset, column);
}

inline void AddBlocksKernel(const float* sums, size_t stride, size_t blocks, size_t d, bool add,
                            rmsnorm_dtype dtype, void* to) {
  // One pass instead of four, for one block of rows in f32.
  if (blocks == 1 && add && dtype == RMSNORM_F32) {
    return AddTile(sums, d, static_cast<float*>(to));
  }
  HWY_ALIGN float total[kTile];
  HWY_ALIGN float before[kTile];
  for (size_t begin = 0; begin < d; begin += kTile) {
    const size_t n = std::min(kTile, d - begin);
    char* const at = static_cast<char*>(to) + begin * ElementSize(dtype);
    FillTile<float>(sums + begin, n, total);
    for (size_t block = 1; block < blocks; ++block) {
      AddTile(sums + block * stride + begin, n, total);
    }
    if (add) {
      kLeaves.widen[DtypeIndex(dtype)](at, n, before);
      AddTile(before, n, total);
    }
    kLeaves.narrow[DtypeIndex(dtype)](total, n, at);
  }
}

inline void NarrowKernel(rmsnorm_dtype dtype, const float* from, size_t d, void* to) {
  HWY_ALIGN float tile[kTile];
  for (size_t begin = 0; begin < d; begin += kTile) {
    const size_t n = std::min(kTile, d - begin);
    FillTile<float>(from + begin, n, tile);
    kLeaves.narrow[DtypeIndex(dtype)](tile, n, static_cast<char*>(to) + begin * ElementSize(dtype));
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // RMSNORM_NATIVE_BF16

#endif  // RMSNORM_LIB_KERNELS_FORWARD_DRIVERS_INL_H_
