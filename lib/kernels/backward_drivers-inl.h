// SPDX-License-Identifier: Apache-2.0
// Backward without element types. Rows of one type go to their leaves where f32 suffices, and every
// other row goes through tiles. Everything has the bits of reference.cc.

#if defined(RMSNORM_LIB_KERNELS_BACKWARD_DRIVERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_BACKWARD_DRIVERS_INL_H_
#undef RMSNORM_LIB_KERNELS_BACKWARD_DRIVERS_INL_H_
#else
#define RMSNORM_LIB_KERNELS_BACKWARD_DRIVERS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>

#include "../gradient_terms.h"
#include "backward-inl.h"
#include "rotary-inl.h"
#include "targets-inl.h"
#include "tile-inl.h"

#if !RMSNORM_NATIVE_BF16
RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ the way of a run

HWY_INLINE const BackwardLeaves& LeavesOf(const Norm& norm) {
  return *norm.kernels->leaves->backward;
}

// Whether there are leaves for a run. Tiles serve all others.
HWY_INLINE bool HasLeaves(const Norm& norm, const RowRun& run) {
  constexpr OperandSet kServed =
      SetOf(kX) | SetOf(kDy) | SetOf(kWeight) | SetOf(kRstd) | SetOf(kDx) | SetOf(kDw);
  return norm.has_backward_leaves && (run.given & ~kServed) == 0;
}

// How the rows of a run go from their operands to their gradients, found once for all of them. The
// leaves are null for rows that go through tiles. Loops over rows copy it: they
// keep its fields in registers, as a load after the stores of the row before takes long.
struct BackwardWay {
  HWY_INLINE BackwardWay(const Norm& norm, const RowRun& run)
      : squares(NeedsSquares(norm.root, run.Has(kRstd))),
        x(run, kX),
        dy(run, kDy),
        weight(run.Row<float>(kWeight, 0)),
        d(run.d),
        element_size(ElementSize(norm.dtype[kX])) {
    if (!HasLeaves(norm, run)) return;
    const Dx dx = !run.Has(kDx)    ? Dx::kNone
                  : norm.add_to_dx ? Dx::kAdd
                  : norm.stream    ? Dx::kStream
                                   : Dx::kStore;
    const BackwardLeaves& leaves = LeavesOf(norm);
    const int type = DtypeIndex(norm.dtype[kX]);
    const bool dw = run.Has(kDw);
    dot = leaves.dot[type][squares];
    apply = leaves.apply[type][static_cast<int>(dx)][dw];
    if (dx == Dx::kStore) apply_two = leaves.apply_two[type][dw];
  }

  // First the sums.
  DotLeaf dot = nullptr;
  bool squares;  // the sum of squares is needed
  RowsOf<const char> x;
  RowsOf<const char> dy;
  const float* weight;
  size_t d;
  size_t element_size;

  // Then the gradients.
  ApplyLeaf apply = nullptr;
  ApplyTwoLeaf apply_two = nullptr;  // null where there is none for this dx
};

// ------------------------------------------------------------------ sums of rows

HWY_INLINE const float* RstdOf(const RowRun& run, size_t row) {
  return run.Has(kRstd) ? run.Row<float>(kRstd, row) : nullptr;
}

// Sums a row of any types, in f32 or in binary64.
template <class Real>
HWY_NOINLINE Sums<Real> SumByTiles(const Norm& norm, const RowRun& run, size_t row) {
  const bool squares = NeedsSquares(norm.root, run.Has(kRstd));
  HWY_ALIGN float x[kTile];
  HWY_ALIGN float dy[kTile];
  HWY_ALIGN float last_weight[kTile];
  TiledLanes<Real> square_lanes;
  TiledLanes<Real> dot_lanes;
  Sums<Real> total = {0, 0};
  for (size_t begin = 0; begin < run.d; begin += kTile) {
    const size_t n = std::min(kTile, run.d - begin);
    const float* weight = run.Row<float>(kWeight, 0) + begin;
    if (n % kLanes != 0) {
      ReadTile(norm, run, kWeight, 0, begin, n, last_weight);
      weight = last_weight;
    }
    ReadTile(norm, run, kX, row, begin, n, x);
    ReadTile(norm, run, kDy, row, begin, n, dy);
    if (squares) square_lanes.AddSquares(x, n);
    dot_lanes.AddProducts(x, dy, weight, n);
    if ((begin + kTile) % kBlock == 0 || begin + kTile >= run.d) {
      if (squares) total.squares += square_lanes.Fold();
      total.dot += dot_lanes.Fold();
    }
  }
  return total;
}

HWY_INLINE Sums<float> SumRow(const Norm& norm, const RowRun& run, const BackwardWay& way,
                              size_t row) {
  if (HWY_UNLIKELY(way.dot == nullptr)) return SumByTiles<float>(norm, run, row);
  const char* const x = way.x[row];
  const char* const dy = way.dy[row];
  Sums<float> total = {0, 0};
  for (size_t begin = 0; begin < way.d; begin += kBlock) {
    const size_t n = std::min(kBlock, way.d - begin);
    const size_t skipped = begin * way.element_size;
    const FoldedDots block = way.dot(x + skipped, dy + skipped, way.weight + begin, n);
    total.dot += FoldOne(hn::Load(FourTag(), block.dot));
    if (way.squares) total.squares += FoldOne(hn::Load(FourTag(), block.squares));
  }
  return total;
}

HWY_INLINE HotTerms HotTermsOfRow(const Norm& norm, const RowRun& run, const BackwardWay& way,
                                  size_t row) {
  return MakeHotTerms(norm.root, SumRow(norm, run, way, row), RstdOf(run, row));
}

// Sums a row of one block.
HWY_INLINE FoldedDots DotRow(const BackwardWay& way, size_t row) {
  return way.dot(way.x[row], way.dy[row], way.weight, way.d);
}

// Makes the terms of four rows of one block and one type, by the operations of MakeHotTerms(). The
// rows share a root and the divisions. Returns whether f32 suffices for all four. Eps is not a
// floor here.
HWY_INLINE bool MakeFourTerms(const Norm& norm, const RowRun& run, const BackwardWay& way,
                              size_t row, Terms<float>* terms) {
  const FourTag tag;
  const bool outside = norm.root.eps_placement == RMSNORM_EPS_OUTSIDE;
  const Four one = hn::Set(tag, 1.0f);
  const Four inverse_divisor = hn::Set(tag, norm.root.inverse_divisor);
  HWY_ALIGN float r_of[4];
  HWY_ALIGN float mean_of[4];
  const FoldedDots sums[4] = {DotRow(way, row), DotRow(way, row + 1), DotRow(way, row + 2),
                              DotRow(way, row + 3)};
  for (size_t i = 0; run.Has(kRstd) && i < 4; ++i) r_of[i] = *run.Row<float>(kRstd, row + i);
  Four r = run.Has(kRstd) ? hn::Load(tag, r_of) : one;
  Four s = one;
  auto safe = AreWithin(r, kSmallestInverse, kLargestInverse);
  if (way.squares) {
    const Four squares = FoldFour(hn::Load(tag, sums[0].squares), hn::Load(tag, sums[1].squares),
                                  hn::Load(tag, sums[2].squares), hn::Load(tag, sums[3].squares));
    const Four eps = hn::Set(tag, norm.root.eps);
    const Four under_root =
        outside ? hn::Mul(squares, inverse_divisor) : hn::MulAdd(squares, inverse_divisor, eps);
    safe = AreWithin(under_root, kSmallestSafe, kLargestSafe);
    s = hn::Sqrt(under_root);
    if (!run.Has(kRstd)) r = hn::Div(one, outside ? hn::Add(s, eps) : s);
  }
  // The sum of the first block is added to +0, which turns a -0 into +0. Squares give none.
  const Four dot =
      hn::Add(hn::Zero(tag), FoldFour(hn::Load(tag, sums[0].dot), hn::Load(tag, sums[1].dot),
                                      hn::Load(tag, sums[2].dot), hn::Load(tag, sums[3].dot)));
  Four mean = hn::Mul(hn::Mul(dot, r), inverse_divisor);
  if (outside) mean = hn::Div(mean, s);
  safe = hn::And(safe, AreWithin(hn::Abs(mean), 0, kLargestSafe));
  hn::Store(r, tag, r_of);
  hn::Store(mean, tag, mean_of);
  for (size_t i = 0; i < 4; ++i) terms[i] = {r_of[i], outside ? 1 : r_of[i], mean_of[i], false};
  return hn::AllTrue(tag, safe);
}

// ------------------------------------------------------------------ rows by tiles

// Makes the gradients of a tile in binary64 and rounds them to f32: adds to the sums of dw unless
// they are null, and turns dy into dx.
inline HWY_NOINLINE void WideGradients(const Terms<double>& terms, const float* x,
                                       const float* weight, size_t n, float* sums, float* dy) {
  const F64Tag wide;
  const HalfTag half;
  const F64Vec r = hn::Set(wide, terms.r);
  const F64Vec scale_x = hn::Set(wide, terms.scale_x);
  const F64Vec mean = hn::Set(wide, terms.mean);
  for (size_t j = 0; j < n; j += kN64) {
    const F64Vec xs = LoadAs(wide, x + j);
    const F64Vec dys = LoadAs(wide, dy + j);
    if (sums != nullptr) {
      const F64Vec sum = hn::MulAdd(hn::Mul(dys, xs), r, LoadAs(wide, sums + j));
      hn::Store(hn::DemoteTo(half, sum), half, sums + j);
    }
    const F64Vec g = hn::Mul(dys, LoadAs(wide, weight + j));
    const F64Vec second = terms.only_g ? hn::Zero(wide) : hn::Mul(hn::Mul(xs, scale_x), mean);
    hn::Store(hn::DemoteTo(half, hn::Mul(r, hn::Sub(g, second))), half, dy + j);
  }
}

// Reads the sums that a row adds to into a tile: zeros if they start here.
HWY_INLINE void ReadSums(const Norm& norm, const RowRun& run, Operand sums, size_t row,
                         size_t begin, size_t n, float* tile) {
  if (run.start_sums && row == 0) {
    std::fill_n(tile, kTile, 0.0f);
  } else {
    ReadTile(norm, run, sums, row, begin, n, tile);
  }
}

// Writes the gradients of a row with any types from its terms. The terms in binary64 count where
// something is cold. dx may replace dy, so a tile's dw is done before its dx.
inline HWY_NOINLINE void ApplyByTiles(const Norm& norm, const RowRun& run, size_t row,
                                      const HotTerms& hot, const Terms<double>& cold) {
  HWY_ALIGN float x[kTile];
  HWY_ALIGN float dy[kTile];  // and then dx
  HWY_ALIGN float weight[kTile];
  HWY_ALIGN float sums[kTile];
  const auto& apply = LeavesOf(norm).apply[kF32];
  const bool cold_dw = hot.cold == Cold::kAll && run.Has(kDw);
  RowRun tile(1, kTile);  // a row of f32
  tile.start_sums = run.start_sums && row == 0;
  tile.Set(kX, x, 0);
  tile.Set(kDy, dy, 0);
  tile.Set(kDx, dy, 0);
  for (size_t begin = 0; begin < run.d; begin += kTile) {
    const size_t n = std::min(kTile, run.d - begin);
    tile.d = n;
    ReadTile(norm, run, kX, row, begin, n, x);
    ReadTile(norm, run, kDy, row, begin, n, dy);
    if (run.Has(kDw) && !cold_dw) {
      tile.Set(kDw, run.Row<float>(kDw, 0) + begin, 0);
      apply[static_cast<int>(Dx::kNone)][1](tile, 0, hot.terms);
    }
    if (hot.cold != Cold::kNothing) {
      ReadTile(norm, run, kWeight, row, begin, n, weight);
      if (cold_dw) ReadSums(norm, run, kDw, row, begin, n, sums);
      WideGradients(cold, x, weight, n, cold_dw ? sums : nullptr, dy);
      if (cold_dw) WriteTile(norm, run, kDw, row, begin, n, sums);
    } else if (run.Has(kDx)) {
      if (hot.terms.only_g) std::fill_n(x, kTile, 0.0f);
      tile.Set(kWeight, run.Row<float>(kWeight, 0) + begin, 0);
      apply[static_cast<int>(Dx::kStore)][0](tile, 0, hot.terms);
    }
    if (!run.Has(kDx)) continue;
    if (norm.add_to_dx) {
      ReadTile(norm, run, kDx, row, begin, n, x);
      AddTile(x, n, dy);
    }
    if (norm.residual_factor != 1.0f) MultiplyTile(norm.residual_factor, n, dy);
    WriteTile(norm, run, kDx, row, begin, n, dy);
  }
}

// Works through a row by tiles: sums it again where something is cold, and then writes its
// gradients. The tiles of one step have left the stack before the other step begins.
inline HWY_NOINLINE void BackwardByTiles(const Norm& norm, const RowRun& run, size_t row,
                                         const HotTerms& hot) {
  // If r is NaN, the other terms do not matter.
  Terms<double> cold = {hot.terms.r, 0, 0, false};
  if (hot.cold != Cold::kNothing && !std::isnan(hot.terms.r)) {
    cold = MakeColdTerms(norm.root, SumByTiles<double>(norm, run, row), RstdOf(run, row));
  }
  ApplyByTiles(norm, run, row, hot, cold);
}

// ------------------------------------------------------------------ loops over rows

// Says whether the leaves serve a row.
HWY_INLINE bool IsPlain(const HotTerms& hot) {
  return hot.cold == Cold::kNothing && !hot.terms.only_g;
}

inline HWY_NOINLINE void BackwardOneByOne(const Norm& norm, const RowRun& run, size_t begin,
                                          size_t end) {
  const BackwardWay way(norm, run);
  for (size_t row = begin; row < end; ++row) {
    const HotTerms hot = HotTermsOfRow(norm, run, way, row);
    if (HWY_LIKELY(way.apply != nullptr && IsPlain(hot))) {
      way.apply(run, row, hot.terms);
    } else {
      BackwardByTiles(norm, run, row, hot);
    }
  }
}

// Does the same as MakeFourTerms() for two rows of any length.
HWY_INLINE bool MakeTwoTerms(const Norm& norm, const RowRun& run, const BackwardWay& way,
                             size_t row, Terms<float>* terms) {
  const HotTerms a = HotTermsOfRow(norm, run, way, row);
  const HotTerms b = HotTermsOfRow(norm, run, way, row + 1);
  terms[0] = a.terms;
  terms[1] = b.terms;
  return IsPlain(a) && IsPlain(b);
}

// Works through groups of four short rows, or of two other rows. The next group of short rows is
// summed before this one is worked on, so that the two overlap, as in NormaliseShortRows(). Returns
// the index of the first row that is in no group.
inline HWY_NOINLINE size_t BackwardGroups(const Norm& norm, const RowRun& run) {
  // Rows of f32 on AVX-512 with 257 to 4095 elements are faster one by one. Two such rows leave L1
  // with dx, the weight and dw, and many of them are faster alone than by fours. Rows of 16 bits,
  // rows on AVX2 and longer rows gain from groups.
  if (kN >= 16 && norm.dtype[kX] == RMSNORM_F32 && run.d > 256 && run.d < kBlock) return 0;
  const BackwardWay way(norm, run);
  const bool fours = run.count >= 4 && IsShort(norm, run) && way.apply != nullptr && !norm.stream &&
                     norm.root.eps_placement != RMSNORM_EPS_FLOOR;
  if (!fours && way.apply_two == nullptr) return 0;
  const size_t group = fours ? 4 : 2;
  const size_t end = run.count / group * group;
  Terms<float> terms[8];  // row i's are at i % 8
  bool plain[8];          // of a group, at its first row
  size_t summed = 0;
  for (size_t row = 0; row < end; row += group) {
    const size_t to_sum = std::min(row + (fours ? 8 : 2), end);
    for (; summed < to_sum; summed += group) {
      const size_t at = summed % 8;
      plain[at] = fours ? MakeFourTerms(norm, run, way, summed, terms + at)
                        : MakeTwoTerms(norm, run, way, summed, terms + at);
    }
    const Terms<float>* const now = terms + row % 8;
    if (HWY_UNLIKELY(!plain[row % 8])) {
      BackwardOneByOne(norm, run, row, row + group);
    } else if (HWY_LIKELY(way.apply_two != nullptr)) {
      for (size_t i = 0; i < group; i += 2) {
        way.apply_two(run, row + i, now[i], now[i + 1]);
      }
    } else {
      for (size_t i = 0; i < group; ++i) way.apply(run, row + i, now[i]);
    }
  }
  return end;
}

// Whether rows stay in registers: rows of training, for which forward saved 1 / RMS.
HWY_INLINE bool IsHeld(const Norm& norm, const RowRun& run) {
  return kHoldsRows && run.d <= kLongestHeld && HasLeaves(norm, run) && run.Has(kDx) &&
         run.Has(kDw) && run.Has(kRstd) && !norm.add_to_dx &&
         norm.root.eps_placement == RMSNORM_EPS_INSIDE;
}

HWY_INLINE void BackwardRows(const Norm& norm, const RowRun& run) {
  size_t row = 0;
  if (IsHeld(norm, run)) {
    const int type = DtypeIndex(norm.dtype[kX]);
    const auto held_rows = LeavesOf(norm).held_rows[type][(run.d - 1) / kPair];
    for (; row < run.count; ++row) {
      row = held_rows(norm, run, row);
      if (row < run.count) BackwardOneByOne(norm, run, row, row + 1);
    }
  } else {
    if (run.count > 1) row = BackwardGroups(norm, run);
    if (row < run.count) BackwardOneByOne(norm, run, row, run.count);
  }
}

// Rows with rotary positions: dy is rotated back, and is then a row of f32.
inline HWY_NOINLINE void BackwardRotated(const Norm& norm, const RowRun& run, Kernel backward) {
  HWY_ALIGN float dy[kBlock];
  Norm of_m = norm;
  of_m.dtype[kDy] = RMSNORM_F32;
  of_m.has_backward_leaves = norm.has_backward_leaves && norm.dtype[kX] == RMSNORM_F32;
  for (size_t row = 0; row < run.count; ++row) {
    ReadTile(norm, run, kDy, row, 0, run.d, dy);
    RotateRow(norm, run, row, Turn::kBack, RMSNORM_F32, dy);
    RowRun one = run.From(row, 1);
    one.given &= ~kRotation;
    one.Set(kDy, dy, 0);
    backward(of_m, one);
  }
}

void BackwardKernel(const Norm& norm, const RowRun& run) {
  if (run.Has(kCos)) {
    BackwardRotated(norm, run, BackwardRows);
  } else {
    BackwardRows(norm, run);
  }
  if (norm.stream) hwy::FlushStream();  // before another thread may read dx
}

// The tile of db's sums stays in L1 from row to row.
HWY_INLINE void AddRows(const Norm& norm, const RowRun& run) {
  HWY_ALIGN float dy[kTile];
  HWY_ALIGN float sums[kTile];
  for (size_t begin = 0; begin < run.d; begin += kTile) {
    const size_t n = std::min(kTile, run.d - begin);
    ReadSums(norm, run, kDb, 0, begin, n, sums);
    for (size_t row = 0; row < run.count; ++row) {
      ReadTile(norm, run, kDy, row, begin, n, dy);
      AddTile(dy, n, sums);
    }
    WriteTile(norm, run, kDb, 0, begin, n, sums);
  }
}

void AddRowsKernel(const Norm& norm, const RowRun& run) {
  run.Has(kCos) ? BackwardRotated(norm, run, AddRows) : AddRows(norm, run);
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // !RMSNORM_NATIVE_BF16

#endif  // RMSNORM_LIB_KERNELS_BACKWARD_DRIVERS_INL_H_
