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
#include "targets-inl.h"
#include "tile-inl.h"

#if !RMSNORM_NATIVE_BF16
RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ the way of a run

HWY_INLINE const BackwardLeaves& LeavesOf(const Norm& norm) {
  return *norm.kernels->leaves->backward;
}

// How the rows of a run go from their operands to their gradients, found once for all of them. The
// leaves are null for rows of several types, which go through tiles. Loops over rows copy it: they
// keep its fields in registers, as a load after the stores of the row before takes long.
struct BackwardWay {
  HWY_INLINE BackwardWay() {}

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

HWY_INLINE BackwardWay FindBackwardWay(const Norm& norm, const Run& run) {
  BackwardWay way;
  way.squares = NeedsSquares(norm.root, run.Has(kRstd));
  way.x = RowsOf<const char>(run, kX);
  way.dy = RowsOf<const char>(run, kDy);
  way.weight = run.Row<float>(kWeight, 0);
  way.d = run.d;
  way.element_size = ElementSize(norm.dtype[kX]);
  if (!norm.one_type) return way;
  const Dx dx = !run.Has(kDx)    ? Dx::kNone
                : norm.add_to_dx ? Dx::kAdd
                : norm.stream    ? Dx::kStream
                                 : Dx::kStore;
  const BackwardLeaves& leaves = LeavesOf(norm);
  const int type = DtypeIndex(norm.dtype[kX]);
  const bool dw = run.Has(kDw);
  way.dot = leaves.dot[type][way.squares];
  way.apply = leaves.apply[type][static_cast<int>(dx)][dw];
  if (dx == Dx::kStore) way.apply_two = leaves.apply_two[type][dw];
  return way;
}

// ------------------------------------------------------------------ sums of rows

HWY_INLINE const float* RstdOf(const Run& run, size_t row) {
  return run.Has(kRstd) ? run.Row<float>(kRstd, row) : nullptr;
}

template <class Real>
struct TiledSums {
  Real squares;  // 0 where it is not needed
  Real dot;      // c
};

// The sums of a row of any types, in f32 or in binary64.
template <class Real>
HWY_NOINLINE TiledSums<Real> SumByTiles(const Norm& norm, const Run& run, size_t row,
                                        bool squares) {
  HWY_ALIGN float x[kTile];
  HWY_ALIGN float dy[kTile];
  HWY_ALIGN float last_weight[kTile];
  TiledLanes<Real> square_lanes;
  TiledLanes<Real> dot_lanes;
  TiledSums<Real> total = {0, 0};
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

HWY_INLINE RowSums SumRow(const Norm& norm, const Run& run, const BackwardWay& way, size_t row) {
  if (HWY_UNLIKELY(way.dot == nullptr)) {
    const TiledSums<float> sums = SumByTiles<float>(norm, run, row, way.squares);
    return {sums.squares, sums.dot};
  }
  const char* const x = way.x[row];
  const char* const dy = way.dy[row];
  RowSums total = {0, 0};
  for (size_t begin = 0; begin < way.d; begin += kBlock) {
    const size_t n = std::min(kBlock, way.d - begin);
    const size_t skipped = begin * way.element_size;
    const FoldedDots block = way.dot(x + skipped, dy + skipped, way.weight + begin, n);
    total.dot += FoldOne(hn::Load(FourTag(), block.dot));
    if (way.squares) total.squares += FoldOne(hn::Load(FourTag(), block.squares));
  }
  return total;
}

// ------------------------------------------------------------------ terms

// The terms of four rows, by the operations of MakeHotTerms(). Eps as a floor is not among them.
struct FourTerms {
  HWY_ALIGN float r[4];
  HWY_ALIGN float scale_x[4];
  HWY_ALIGN float mean[4];
  bool safe;  // whether all four are; if not, the terms are meaningless

  HWY_INLINE Terms<float> TermsAt(size_t i) const { return {r[i], scale_x[i], mean[i]}; }
};

// The sums of a row of one block.
HWY_INLINE FoldedDots DotRow(const BackwardWay& way, size_t row) {
  return way.dot(way.x[row], way.dy[row], way.weight, way.d);
}

// Makes the terms of four rows of one block and one type.
HWY_INLINE void MakeFourTerms(const Norm& norm, const Run& run, const BackwardWay& way, size_t row,
                              FourTerms& terms) {
  const FourTag tag;
  const bool outside = norm.root.eps_placement == RMSNORM_EPS_OUTSIDE;
  const FoldedDots a = DotRow(way, row);
  const FoldedDots b = DotRow(way, row + 1);
  const FoldedDots c = DotRow(way, row + 2);
  const FoldedDots e = DotRow(way, row + 3);
  // The sum of the first block is added to +0, which turns a -0 into +0. Squares give none.
  const Four dot = hn::Add(hn::Zero(tag), FoldFour(hn::Load(tag, a.dot), hn::Load(tag, b.dot),
                                                   hn::Load(tag, c.dot), hn::Load(tag, e.dot)));
  const Four one = hn::Set(tag, 1.0f);
  const Four inverse_divisor = hn::Set(tag, norm.root.inverse_divisor);
  const Four largest = hn::Set(tag, kLargestSafe);
  Four r = one;
  if (run.Has(kRstd)) {
    if (HWY_LIKELY(run.stride[kRstd] == sizeof(float))) {
      r = hn::LoadU(tag, run.Row<float>(kRstd, row));
    } else {
      HWY_ALIGN float rstd[4];
      for (size_t i = 0; i < 4; ++i) rstd[i] = *run.Row<float>(kRstd, row + i);
      r = hn::Load(tag, rstd);
    }
  }
  Four root = one;
  auto safe =
      hn::And(hn::Ge(r, hn::Set(tag, kSmallestInverse)), hn::Le(r, hn::Set(tag, kLargestInverse)));
  if (way.squares) {
    const Four eps = hn::Set(tag, norm.root.eps);
    const Four sums = FoldFour(hn::Load(tag, a.squares), hn::Load(tag, b.squares),
                               hn::Load(tag, c.squares), hn::Load(tag, e.squares));
    const Four under_root =
        outside ? hn::Mul(sums, inverse_divisor) : hn::MulAdd(sums, inverse_divisor, eps);
    safe = hn::And(hn::Ge(under_root, hn::Set(tag, kSmallestSafe)), hn::Le(under_root, largest));
    root = hn::Sqrt(under_root);
    if (!run.Has(kRstd)) r = hn::Div(one, outside ? hn::Add(root, eps) : root);
  }
  Four mean = hn::Mul(hn::Mul(dot, r), inverse_divisor);
  if (outside) mean = hn::Div(mean, root);
  hn::Store(r, tag, terms.r);
  hn::Store(outside ? one : r, tag, terms.scale_x);
  hn::Store(mean, tag, terms.mean);
  terms.safe = hn::AllTrue(tag, hn::And(safe, hn::Le(hn::Abs(mean), largest)));
}

HWY_INLINE HotTerms HotTermsOfRow(const Norm& norm, const Run& run, const BackwardWay& way,
                                  size_t row) {
  return MakeHotTerms(norm.root, SumRow(norm, run, way, row), RstdOf(run, row));
}

// The terms in binary64 of a row with something cold. If its r is NaN the other terms do not
// matter.
inline HWY_NOINLINE RowTerms ColdTermsOfRow(const Norm& norm, const Run& run, size_t row,
                                            const HotTerms& hot) {
  const float hot_r = hot.terms.r;
  if (std::isnan(hot_r)) return {{hot_r, 0, 0}, hot_r, hot.cold, false};
  const float* const rstd = RstdOf(run, row);
  const TiledSums<double> sums =
      SumByTiles<double>(norm, run, row, NeedsSquares(norm.root, rstd != nullptr));
  const double under_root = UnderRoot(norm.root, sums.squares);
  const double r = rstd != nullptr ? *rstd : InverseRms(norm.root, under_root);
  return {MakeTerms(norm.root, r, under_root, sums.dot), hot_r, hot.cold,
          IsOnlyG(norm.root, under_root)};
}

HWY_INLINE RowTerms AnyTermsOfRow(const Norm& norm, const Run& run, size_t row,
                                  const HotTerms& hot) {
  return hot.cold == Cold::kNothing ? Widened(hot) : ColdTermsOfRow(norm, run, row, hot);
}

// ------------------------------------------------------------------ rows by tiles

// Adds to a tile of dw. The sums are made in binary64 and rounded to f32.
inline HWY_NOINLINE void AddWideTerms(double row_r, const float* x, const float* dy, size_t n,
                                      float* sums) {
  const F64Tag wide;
  const HalfTag half;
  const F64Vec r = hn::Set(wide, row_r);
  for (size_t j = 0; j < n; j += kN64) {
    const F64Vec sum =
        hn::MulAdd(hn::Mul(LoadAs(wide, dy + j), LoadAs(wide, x + j)), r, LoadAs(wide, sums + j));
    hn::Store(hn::DemoteTo(half, sum), half, sums + j);
  }
}

// Makes a tile of dx in binary64 and rounds it to f32.
inline HWY_NOINLINE void WideGradient(const Terms<double>& terms, const float* x, const float* dy,
                                      const float* weight, size_t n, float* dx) {
  const F64Tag wide;
  const HalfTag half;
  const F64Vec r = hn::Set(wide, terms.r);
  const F64Vec scale_x = hn::Set(wide, terms.scale_x);
  const F64Vec mean = hn::Set(wide, terms.mean);
  for (size_t j = 0; j < n; j += kN64) {
    const F64Vec g = hn::Mul(LoadAs(wide, dy + j), LoadAs(wide, weight + j));
    const F64Vec gradient =
        hn::Mul(r, hn::Sub(g, hn::Mul(hn::Mul(LoadAs(wide, x + j), scale_x), mean)));
    hn::Store(hn::DemoteTo(half, gradient), half, dx + j);
  }
}

// Fills a tile with sums to add to: with zeros if they start here.
HWY_INLINE void WidenSums(const Leaves& leaves, bool start, const float* sums, size_t n,
                          float* tile) {
  if (start) {
    std::fill_n(tile, kTile, 0.0f);
  } else {
    leaves.widen[kF32](sums, n, tile);
  }
}

// Writes the gradients of a row with any types and terms. dx may replace dy, so a tile's dw is done
// before its dx is written.
inline HWY_NOINLINE void ApplyByTiles(const Norm& norm, const Run& run, size_t row,
                                      const RowTerms& terms) {
  HWY_ALIGN float x[kTile];
  HWY_ALIGN float dy[kTile];
  HWY_ALIGN float weight[kTile];
  HWY_ALIGN float dx[kTile];
  const Leaves& leaves = *norm.kernels->leaves;
  const auto& apply = leaves.backward->apply[kF32];
  Run tile(1, kTile);  // a row of f32
  tile.start_sums = run.start_sums && row == 0;
  tile.Set(kX, x, 0);
  tile.Set(kDy, dy, 0);
  tile.Set(kDx, dx, 0);
  for (size_t begin = 0; begin < run.d; begin += kTile) {
    const size_t n = std::min(kTile, run.d - begin);
    tile.d = n;
    ReadTile(norm, run, kX, row, begin, n, x);
    ReadTile(norm, run, kDy, row, begin, n, dy);
    if (run.Has(kDw)) {
      float* const dw = run.Row<float>(kDw, 0) + begin;
      if (terms.cold == Cold::kAll) {
        HWY_ALIGN float sums[kTile];
        WidenSums(leaves, tile.start_sums, dw, n, sums);
        AddWideTerms(terms.terms.r, x, dy, n, sums);
        leaves.narrow[kF32](sums, n, dw);
      } else {
        tile.Set(kDw, dw, 0);
        apply[static_cast<int>(Dx::kNone)][1](tile, 0, {terms.r, 0, 0});
      }
    }
    if (!run.Has(kDx)) continue;
    if (terms.only_g) std::fill_n(x, kTile, 0.0f);
    if (terms.cold == Cold::kNothing) {
      tile.Set(kWeight, run.Row<float>(kWeight, 0) + begin, 0);
      apply[static_cast<int>(Dx::kStore)][0](tile, 0, Narrowed(terms.terms));
    } else {
      ReadTile(norm, run, kWeight, 0, begin, n, weight);
      WideGradient(terms.terms, x, dy, weight, n, dx);
    }
    if (norm.add_to_dx) {
      ReadTile(norm, run, kDx, row, begin, n, x);
      AddTile(x, n, dx);
    }
    WriteTile(norm, run, kDx, row, begin, n, dx);
  }
}

// ------------------------------------------------------------------ the way of each call

HWY_INLINE bool IsPlain(const HotTerms& hot) { return hot.cold == Cold::kNothing && !hot.only_g; }

HWY_INLINE void BackwardRow(const Norm& norm, const Run& run, const BackwardWay& way, size_t row) {
  const HotTerms hot = HotTermsOfRow(norm, run, way, row);
  if (HWY_LIKELY(way.apply != nullptr && IsPlain(hot))) {
    way.apply(run, row, hot.terms);
  } else {
    ApplyByTiles(norm, run, row, AnyTermsOfRow(norm, run, row, hot));
  }
}

inline HWY_NOINLINE void BackwardOneByOne(const Norm& norm, const Run& run, size_t begin,
                                          size_t end) {
  const BackwardWay way = FindBackwardWay(norm, run);
  for (size_t row = begin; row < end; ++row) BackwardRow(norm, run, way, row);
}

// Four rows at a time. The next four are summed before these are worked on, so that the two
// overlap, as in NormaliseShortRows().
HWY_INLINE size_t BackwardByFours(const Norm& norm, const Run& run, const BackwardWay& way) {
  FourTerms now;
  FourTerms next;
  MakeFourTerms(norm, run, way, 0, next);
  size_t row = 0;
  for (; row + 4 <= run.count; row += 4) {
    now = next;
    if (row + 8 <= run.count) MakeFourTerms(norm, run, way, row + 4, next);
    if (HWY_UNLIKELY(!now.safe)) {
      BackwardOneByOne(norm, run, row, row + 4);
    } else if (HWY_LIKELY(way.apply_two != nullptr)) {
      way.apply_two(run, row, now.TermsAt(0), now.TermsAt(1));
      way.apply_two(run, row + 2, now.TermsAt(2), now.TermsAt(3));
    } else {
      for (size_t i = 0; i < 4; ++i) way.apply(run, row + i, now.TermsAt(i));
    }
  }
  return row;
}

// Rows that are not short, two at a time.
HWY_INLINE size_t BackwardByTwos(const Norm& norm, const Run& run, const BackwardWay& way) {
  size_t row = 0;
  for (; row + 2 <= run.count; row += 2) {
    const HotTerms a = HotTermsOfRow(norm, run, way, row);
    const HotTerms b = HotTermsOfRow(norm, run, way, row + 1);
    if (HWY_LIKELY(IsPlain(a) && IsPlain(b))) {
      way.apply_two(run, row, a.terms, b.terms);
    } else {
      BackwardOneByOne(norm, run, row, row + 2);
    }
  }
  return row;
}

// Whether rows are faster one by one: rows of f32 on AVX-512 with 257 to 4095 elements. Two such
// rows leave L1 with dx, the weight and dw, and many of them are faster alone than by fours. Rows
// of 16 bits, rows on AVX2 and longer rows gain from groups.
HWY_INLINE bool PrefersSingleRows(const Norm& norm, const Run& run) {
  return kN >= 16 && norm.dtype[kX] == RMSNORM_F32 && run.d > 256 && run.d < kBlock;
}

// Works through groups of rows. Returns the index of the first row that is in no group.
inline HWY_NOINLINE size_t BackwardGroups(const Norm& norm, const Run& run) {
  if (PrefersSingleRows(norm, run)) return 0;
  const BackwardWay way = FindBackwardWay(norm, run);
  if (run.count >= 4 && IsShort(norm, run) && way.apply != nullptr && !norm.stream &&
      norm.root.eps_placement != RMSNORM_EPS_FLOOR) {
    return BackwardByFours(norm, run, way);
  }
  return way.apply_two != nullptr ? BackwardByTwos(norm, run, way) : 0;
}

// Whether rows stay in registers: rows of training, for which forward saved 1 / RMS.
HWY_INLINE bool IsHeld(const Norm& norm, const Run& run) {
  return kHoldsRows && run.d <= kLongestHeld && norm.one_type && run.Has(kDx) && run.Has(kDw) &&
         run.Has(kRstd) && !norm.add_to_dx && norm.root.eps_placement == RMSNORM_EPS_INSIDE;
}

void BackwardKernel(const Norm& norm, const Run& run) {
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
  if (norm.stream) hwy::FlushStream();  // before another thread may read dx
}

// The tile of db's sums stays in L1 from row to row.
void AddRowsKernel(const Norm& norm, const Run& run) {
  HWY_ALIGN float dy[kTile];
  HWY_ALIGN float sums[kTile];
  const Leaves& leaves = *norm.kernels->leaves;
  for (size_t begin = 0; begin < run.d; begin += kTile) {
    const size_t n = std::min(kTile, run.d - begin);
    float* const db = run.Row<float>(kDb, 0) + begin;
    WidenSums(leaves, run.start_sums, db, n, sums);
    for (size_t row = 0; row < run.count; ++row) {
      ReadTile(norm, run, kDy, row, begin, n, dy);
      AddTile(dy, n, sums);
    }
    leaves.narrow[kF32](sums, n, db);
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // !RMSNORM_NATIVE_BF16

#endif  // RMSNORM_LIB_KERNELS_BACKWARD_DRIVERS_INL_H_
