// SPDX-License-Identifier: Apache-2.0
// The kernels of the backward pass, compiled for each target: leaves, and then the drivers, which
// have no element types. They give the bits of reference.cc.
//
// Rows of one type have leaves of their own where f32 suffices. Every other row goes through tiles.
// AVX3_DL has no drivers, and of its own only the leaves that write bf16.

#if defined(RMSNORM_LIB_KERNELS_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#undef RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>

#include "../gradient_terms.h"
#include "../thresholds.h"
#include "backward_leaves.h"
#include "rows-inl.h"
#include "tile-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ gradients

// Where the sums of dw before a row are: in dw, or for the first one of them at zeros.
struct SumsBefore {
  HWY_INLINE SumsBefore(const Run& run, size_t row)
      : from(run.start_sums && row == 0 ? kZeros : run.Row<float>(kDw, 0)),
        mask(run.start_sums && row == 0 ? 0 : ~size_t{0}) {}

  HWY_INLINE const float* At(size_t j) const { return from + (j & mask); }

  alignas(kCacheLine) static constexpr float kZeros[kPair] = {};
  const float* from;
  size_t mask;
};

// A row with its terms. dx may be dy. Its NaNs need no care on the way to bf16: a row whose x, dy
// or weight holds one has no terms in f32, and those that dx held had no payload bits to carry.
template <Dx kWay, bool kAddDw, class T>
struct GradientRow {
  HWY_INLINE GradientRow(const T* row_x, const T* row_dy, T* row_dx, const Terms<float>& terms)
      : x(row_x),
        dy(row_dy),
        dx(row_dx),
        r(hn::Set(F32Tag(), terms.r)),
        k(hn::Set(F32Tag(), terms.k)),
        q(hn::Set(F32Tag(), terms.q)) {}
  HWY_INLINE GradientRow(const Run& run, size_t row, const Terms<float>& terms)
      : GradientRow(run.Row<T>(kX, row), run.Row<T>(kDy, row),
                    kWay == Dx::kNone ? nullptr : run.Row<T>(kDx, row), terms) {}

  HWY_INLINE F32Vec Gradient(F32Vec xs, F32Vec dys, F32Vec weight) const {
    const F32Vec g = hn::Mul(dys, weight);
    return hn::Mul(r, hn::Sub(g, hn::Mul(hn::Mul(xs, k), q)));
  }
  HWY_INLINE Pair Gradient(Pair xs, Pair dys, Pair weight) const {
    return {Gradient(xs.lower, dys.lower, weight.lower),
            Gradient(xs.upper, dys.upper, weight.upper)};
  }

  HWY_INLINE void AddToWeight(Pair xs, Pair dys, Pair& sum) const {
    sum.lower = hn::MulAdd(hn::Mul(dys.lower, xs.lower), r, sum.lower);
    sum.upper = hn::MulAdd(hn::Mul(dys.upper, xs.upper), r, sum.upper);
  }

  // dx at j, and dw's term added to the sum.
  HWY_INLINE Pair At(size_t j, Pair weight, Pair& sum) const {
    return At(j, Load(x + j), Load(dy + j), weight, sum);
  }
  HWY_INLINE Pair At(size_t j, Pair xs, Pair dys, Pair weight, Pair& sum) const {
    if constexpr (kAddDw) AddToWeight(xs, dys, sum);
    if constexpr (kWay == Dx::kNone) return sum;
    const Pair gradient = Gradient(xs, dys, weight);
    if constexpr (kWay == Dx::kAdd) return Add(Load(dx + j), gradient);
    return gradient;
  }

  HWY_INLINE void StoreAt(size_t j, Pair gradient) const {
    if constexpr (kWay == Dx::kStream) {
      Stream(gradient, dx + j);
    } else if constexpr (kWay != Dx::kNone) {
      Store(gradient, dx + j);
    }
  }

  // Its elements from `begin` up to `end`, fewer than kPair.
  HWY_INLINE void Few(size_t begin, size_t end, const float* weight, const SumsBefore& before,
                      float* dw) const {
    const size_t n = end - begin;
    const Pair xs = LoadFirst(x + begin, n);
    const Pair dys = LoadFirst(dy + begin, n);
    if constexpr (kAddDw) {
      Pair sum = LoadFirst(before.At(begin), n);
      AddToWeight(xs, dys, sum);
      StoreFirst(sum, dw + begin, n);
    }
    if constexpr (kWay != Dx::kNone) {
      Pair gradient = Gradient(xs, dys, LoadFirst(weight + begin, n));
      if constexpr (kWay == Dx::kAdd) gradient = Add(LoadFirst(dx + begin, n), gradient);
      StoreFirst(gradient, dx + begin, n);
    }
  }

  const T* x;
  const T* dy;
  T* dx;
  F32Vec r;
  F32Vec k;
  F32Vec q;
};

// What is not wanted is not loaded.
template <bool kWanted>
HWY_INLINE Pair LoadIf(const float* from, size_t j) {
  if constexpr (kWanted) return Load(from + j);
  return {hn::Zero(F32Tag()), hn::Zero(F32Tag())};
}
template <bool kAddDw>
HWY_INLINE Pair LoadSum(const SumsBefore& before, size_t j) {
  return LoadIf<kAddDw>(kAddDw ? before.At(j) : nullptr, 0);
}
template <bool kAddDw>
HWY_INLINE void StoreSum(Pair sum, float* dw, size_t j) {
  if constexpr (kAddDw) Store(sum, dw + j);
}

template <Dx kWay, bool kAddDw, class T>
HWY_NOINLINE void ApplyRow(const Run& run, size_t index, const Terms<float>& terms) {
  const size_t d = run.d;
  const float* HWY_RESTRICT weight = run.Row<float>(kWeight, 0);
  float* HWY_RESTRICT dw = run.Row<float>(kDw, 0);
  const GradientRow<kWay, kAddDw, T> row(run, index, terms);
  const SumsBefore before(run, index);
  const size_t next = std::min(index + 1, run.count - 1);
  const T* const next_x = run.Row<T>(kX, next);
  const T* const next_dy = run.Row<T>(kDy, next);

  size_t j = 0;
  if constexpr (kWay == Dx::kStream) {  // stores past the caches must be aligned
    j = std::min(d, -reinterpret_cast<uintptr_t>(row.dx) % sizeof(F32Vec) / sizeof(T));
    if (j > 0) row.Few(0, j, weight, before, dw);
  }
  for (; j + kPair <= d; j += kPair) {
    if constexpr (kWay == Dx::kStream) {
      for (size_t i = 0; i < kPair; i += kCacheLine / sizeof(T)) {
        PrefetchToL2(next_x + j + i);
        PrefetchToL2(next_dy + j + i);
      }
    }
    Pair sum = LoadSum<kAddDw>(before, j);
    row.StoreAt(j, row.At(j, LoadIf<kWay != Dx::kNone>(weight, j), sum));
    StoreSum<kAddDw>(sum, dw, j);
  }
  if (j < d) row.Few(j, d, weight, before, dw);
}

// Two rows, each load of the weight, and each load and store of dw's sums, shared: 512 x 4096 in
// f32 takes three quarters of the time. Four such rows, with x, dy and dx the same distance from a
// page's begin, would be twelve streams into the same eight lines of L1.
template <bool kAddDw, class T>
HWY_NOINLINE void ApplyTwoRows(const Run& run, size_t index, const Terms<float>& a_terms,
                               const Terms<float>& b_terms) {
  using Row = GradientRow<Dx::kStore, kAddDw, T>;
  const size_t d = run.d;
  const float* HWY_RESTRICT weight = run.Row<float>(kWeight, 0);
  float* HWY_RESTRICT dw = run.Row<float>(kDw, 0);
  const SumsBefore before(run, index);
  const Row a(run, index, a_terms);
  const Row b(run, index + 1, b_terms);
  size_t j = 0;
  for (; j + kPair <= d; j += kPair) {
    const Pair w = Load(weight + j);
    Pair sum = LoadSum<kAddDw>(before, j);
    const Pair a_dx = a.At(j, w, sum);
    const Pair b_dx = b.At(j, w, sum);
    StoreBoth(a_dx, a.dx + j, b_dx, b.dx + j);
    StoreSum<kAddDw>(sum, dw, j);
  }
  if (j < d) {
    a.Few(j, d, weight, before, dw);
    b.Few(j, d, weight, SumsBefore(run, index + 1), dw);
  }
}

// Puts the functions of a type that write dx into the table.
template <class T>
constexpr void SetApplyLeaves(rmsnorm_dtype dtype, BackwardLeaves& leaves) {
  const int type = DtypeIndex(dtype);
  const ApplyLeaf apply[kDxWays - 1][2] = {
      {&ApplyRow<Dx::kStore, false, T>, &ApplyRow<Dx::kStore, true, T>},
      {&ApplyRow<Dx::kAdd, false, T>, &ApplyRow<Dx::kAdd, true, T>},
      {&ApplyRow<Dx::kStream, false, T>, &ApplyRow<Dx::kStream, true, T>}};
  for (int dw = 0; dw < 2; ++dw) {
    for (int way = 1; way < kDxWays; ++way) leaves.apply[type][way][dw] = apply[way - 1][dw];
  }
  leaves.apply_two[type][0] = &ApplyTwoRows<false, T>;
  leaves.apply_two[type][1] = &ApplyTwoRows<true, T>;
}

#if RMSNORM_NATIVE_BF16

constexpr BackwardLeaves MakeBackwardLeaves() {
  BackwardLeaves leaves = N_AVX3::kBackwardLeaves;
  SetApplyLeaves<BF16>(RMSNORM_BF16, leaves);
  return leaves;
}
constexpr BackwardLeaves kBackwardLeaves = MakeBackwardLeaves();

#else

// ------------------------------------------------------------------ c and the sum of squares

// Passes over a block, each for its share of neighbouring lanes: as for the sum of squares alone,
// but AVX2, with 16 registers, takes four where there are two sums.
template <bool kSquares>
constexpr size_t kDotPasses = kN >= 16   ? 1
                              : kSquares ? 4
                                         : 2;

template <size_t kCount>
struct DotLanes {
  Lanes<kCount> dot;
  Lanes<kCount> squares;
};

// Adds the products of n <= kCount * kPair elements, as if zeros followed them; kAll says that
// there are so many.
template <bool kSquares, bool kAll, size_t kCount, class T>
HWY_INLINE void AddProducts(Lanes<kCount>& dot, Lanes<kCount>& squares, const T* x, const T* dy,
                            const float* weight, size_t n) {
  if constexpr (kCount == 1) {
    // Not a choice of each load: of that clang 14 makes loads of single elements.
    if (!kAll && n == kPair) return AddProducts<kSquares, true>(dot, squares, x, dy, weight, n);
    const Pair w = kAll ? Load(weight) : LoadFirst(weight, n);
    const Pair dys = kAll ? Load(dy) : LoadFirst(dy, n);
    const Pair xs = kAll ? Load(x) : LoadFirst(x, n);
    dot.pair.lower = hn::MulAdd(hn::Mul(dys.lower, w.lower), xs.lower, dot.pair.lower);
    dot.pair.upper = hn::MulAdd(hn::Mul(dys.upper, w.upper), xs.upper, dot.pair.upper);
    if constexpr (kSquares) AddSquares(squares.pair, xs);
  } else {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (!kAll && n <= kHalf) {
      AddProducts<kSquares, false>(dot.first, squares.first, x, dy, weight, n);
    } else {
      AddProducts<kSquares, true>(dot.first, squares.first, x, dy, weight, kHalf);
      AddProducts<kSquares, kAll>(dot.second, squares.second, x + kHalf, dy + kHalf, weight + kHalf,
                                  n - kHalf);
    }
  }
}

// The lanes of pass kFirst and of each kStep-th pass after it, folded. Of a block of `size`
// elements.
template <bool kSquares, size_t kFirst, size_t kStep, class T>
HWY_INLINE auto DotPass(const T* HWY_RESTRICT x, const T* HWY_RESTRICT dy,
                        const float* HWY_RESTRICT weight, size_t size) {
  constexpr size_t kCount = kLanes / kDotPasses<kSquares> / kPair;
  if constexpr (kStep < kDotPasses<kSquares>) {
    const auto a = DotPass<kSquares, kFirst, 2 * kStep>(x, dy, weight, size);
    const auto b = DotPass<kSquares, kFirst + kStep, 2 * kStep>(x, dy, weight, size);
    return DotLanes<kCount>{Add(a.dot, b.dot), Add(a.squares, b.squares)};
  } else {
    DotLanes<kCount> lanes = {ZeroLanes<kCount>(), ZeroLanes<kCount>()};
    constexpr size_t kPassSize = kCount * kPair;
    size_t j = kFirst * kPassSize;
    for (; j + kPassSize <= size; j += kLanes) {
      AddProducts<kSquares, true>(lanes.dot, lanes.squares, x + j, dy + j, weight + j, kPassSize);
    }
    if (j < size) {
      AddProducts<kSquares, false>(lanes.dot, lanes.squares, x + j, dy + j, weight + j, size - j);
    }
    return lanes;
  }
}

template <bool kSquares, class T>
HWY_NOINLINE FoldedDots DotBlock(const void* x, const void* dy, const float* weight, size_t n) {
  const F32Tag tag;
  const auto lanes =
      DotPass<kSquares, 0, 1>(static_cast<const T*>(x), static_cast<const T*>(dy), weight, n);
  FoldedDots dots;
  const Pair dot = FoldToPair(lanes.dot);
  hn::Store(FoldToFour(tag, hn::Add(dot.lower, dot.upper)), FourTag(), dots.dot);
  Four squares = hn::Zero(FourTag());
  if constexpr (kSquares) {
    const Pair pair = FoldToPair(lanes.squares);
    squares = FoldToFour(tag, hn::Add(pair.lower, pair.upper));
  }
  hn::Store(squares, FourTag(), dots.squares);
  return dots;
}

// ------------------------------------------------------------------ sums in registers

template <size_t kCount>
HWY_INLINE Lanes<kCount> Mul(const Lanes<kCount>& a, const Lanes<kCount>& b) {
  if constexpr (kCount == 1) {
    return {{hn::Mul(a.pair.lower, b.pair.lower), hn::Mul(a.pair.upper, b.pair.upper)}};
  } else {
    return {Mul(a.first, b.first), Mul(a.second, b.second)};
  }
}

// The n elements from j on. Stores and loads of the weight between them, as registers are few.
template <bool kWhole, size_t kCount, class Row>
HWY_INLINE void ApplyHeldRow(size_t j, size_t n, const Lanes<kCount>& x, const Lanes<kCount>& dy,
                             const float* weight, const Row& row, Lanes<kCount>& sums) {
  if constexpr (kCount == 1) {
    const Pair w = LoadRow<kWhole, 1>(weight + j, n).pair;
    const Pair gradient = row.At(j, x.pair, dy.pair, w, sums.pair);
    if constexpr (kWhole) {
      row.StoreAt(j, gradient);
    } else {
      StoreFirst(gradient, row.dx + j, n);
    }
  } else {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (n <= kHalf) {
      return ApplyHeldRow<kWhole>(j, n, x.first, dy.first, weight, row, sums.first);
    }
    ApplyHeldRow<true>(j, kHalf, x.first, dy.first, weight, row, sums.first);
    ApplyHeldRow<kWhole>(j + kHalf, n - kHalf, x.second, dy.second, weight, row, sums.second);
  }
}

// c of a row. A lane's only product is not added to +0 first, but their sum is: that makes the same
// zeros.
template <bool kWhole, size_t kCount>
HWY_INLINE float SumHeldRow(const float* x, const float* dy, const float* weight, size_t d) {
  const Lanes<kCount> g = Mul(LoadRow<kWhole, kCount>(dy, d), LoadRow<kWhole, kCount>(weight, d));
  return 0.0f + Sum(Mul(g, LoadRow<kWhole, kCount>(x, d)));
}

// The sums of dw of up to 128 f32 elements take a quarter of the registers of AVX-512, and stay
// there from row to row. One row is summed while the one before it waits for its terms: 4096 x 128
// takes 1.98 times memcpy's time instead of 2.88. (Where x and dy stay in registers, too, from the
// sum to the store, there are none left for the sum of the next row: 2.08.)
//
// The rows from `begin` on, up to one that is not safe: returns its index, or the number of rows.
// Of the norm it takes single fields, for the reason that NormaliseRowsInRegisters() gives.
template <size_t kPairs, bool kWhole, Dx kWay>
HWY_NOINLINE size_t ApplySafeRows(const Norm& given_norm, const Run& run, size_t begin) {
  constexpr size_t kCount = kHeldPairs<kPairs>;
  Norm norm = {};  // with eps inside the root
  norm.divisor = given_norm.divisor;
  size_t d = run.d;
  AssumeHeld<kPairs, kWhole>(d, norm.divisor);
  const size_t count = run.count;
  // Those of row i.
  RowsOf<const float> x(run, kX);
  RowsOf<const float> dy(run, kDy);
  RowsOf<float> dx(run, kDx);
  RowsOf<const float> rstd(run, kRstd);
  x.data += static_cast<ptrdiff_t>(begin) * x.stride;
  dy.data += static_cast<ptrdiff_t>(begin) * dy.stride;
  dx.data += static_cast<ptrdiff_t>(begin) * dx.stride;
  rstd.data += static_cast<ptrdiff_t>(begin) * rstd.stride;
  const float* const weight = run.Row<float>(kWeight, 0);
  float* const dw = run.Row<float>(kDw, 0);
  Lanes<kCount> sums =
      run.start_sums && begin == 0 ? ZeroLanes<kCount>() : LoadRow<kWhole, kCount>(dw, d);
  size_t i = begin;
  float c = SumHeldRow<kWhole, kCount>(x[0], dy[0], weight, d);
  for (; i < count; ++i) {
    const float next = i + 1 < count ? SumHeldRow<kWhole, kCount>(x[1], dy[1], weight, d) : c;
    const HotTerms hot = MakeHotTerms(norm, {0, c}, rstd[0]);
    if (HWY_UNLIKELY(hot.cold != Cold::kNothing)) break;
    const GradientRow<kWay, true, float> row(x[0], dy[0], dx[0], hot.terms);
    // All of it before the first store, which loads might else have to wait for.
    const Lanes<kCount> xs = LoadRow<kWhole, kCount>(row.x, d);
    const Lanes<kCount> dys = LoadRow<kWhole, kCount>(row.dy, d);
    ApplyHeldRow<kWhole>(0, d, xs, dys, weight, row, sums);
    c = next;
    x.data += x.stride;
    dy.data += dy.stride;
    dx.data += dx.stride;
    rstd.data += rstd.stride;
  }
  StoreRow<kWhole, false>(sums, dw, d);
  return i;
}

template <size_t kPairs>
size_t ApplyHeldRows(const Norm& norm, const Run& run, size_t begin) {
  if (!IsWhole<kPairs>(norm, run.d)) {
    return ApplySafeRows<kPairs, false, Dx::kStore>(norm, run, begin);
  }
  return norm.stream && AreAligned(run, kDx)
             ? ApplySafeRows<kPairs, true, Dx::kStream>(norm, run, begin)
             : ApplySafeRows<kPairs, true, Dx::kStore>(norm, run, begin);
}

// ------------------------------------------------------------------ the table

template <class T>
constexpr void SetLeaves(rmsnorm_dtype dtype, BackwardLeaves& leaves) {
  const int type = DtypeIndex(dtype);
  leaves.dot[type][0] = &DotBlock<false, T>;
  leaves.dot[type][1] = &DotBlock<true, T>;
  leaves.apply[type][static_cast<int>(Dx::kNone)][1] = &ApplyRow<Dx::kNone, true, T>;
  SetApplyLeaves<T>(dtype, leaves);
}

constexpr BackwardLeaves MakeBackwardLeaves() {
  BackwardLeaves leaves = {};
  SetLeaves<float>(RMSNORM_F32, leaves);
  SetLeaves<F16>(RMSNORM_F16, leaves);
  SetLeaves<BF16>(RMSNORM_BF16, leaves);
  if constexpr (kFitsRegisters<float>) {
    leaves.held_rows[0] = &ApplyHeldRows<1>;
    leaves.held_rows[1] = &ApplyHeldRows<2>;
    leaves.held_rows[2] = &ApplyHeldRows<3>;
    leaves.held_rows[3] = &ApplyHeldRows<4>;
  }
  return leaves;
}
constexpr BackwardLeaves kBackwardLeaves = MakeBackwardLeaves();

// ------------------------------------------------------------------ sums of rows

HWY_INLINE const BackwardLeaves& LeavesOf(const Norm& norm) {
  return *norm.kernels->leaves->backward;
}

// What is done with the rows of a call, found once for all of them. The leaves are those of rows of
// one type, and else null.
struct Ways {
  bool squares;  // whether their sum is needed
  DotLeaf dot;
  ApplyLeaf row;
  ApplyTwoLeaf two;  // or null
};

HWY_INLINE Ways FindWays(const Norm& norm, const Run& run) {
  const bool squares = NeedsSquares(norm, run.Has(kRstd));
  if (!norm.one_type) return {squares, nullptr, nullptr, nullptr};
  const Dx way = !run.Has(kDx)    ? Dx::kNone
                 : norm.add_to_dx ? Dx::kAdd
                 : norm.stream    ? Dx::kStream
                                  : Dx::kStore;
  const BackwardLeaves& leaves = LeavesOf(norm);
  const int type = DtypeIndex(norm.dtype[kX]);
  const bool dw = run.Has(kDw);
  return {squares, leaves.dot[type][squares], leaves.apply[type][static_cast<int>(way)][dw],
          way == Dx::kStore ? leaves.apply_two[type][dw] : nullptr};
}

HWY_INLINE const float* RstdOf(const Run& run, size_t row) {
  return run.Has(kRstd) ? run.Row<float>(kRstd, row) : nullptr;
}

// The sums of n columns of a row, at most a block.
inline HWY_NOINLINE FoldedDots DotTiles(const Norm& norm, const Run& run, size_t row, size_t begin,
                                        size_t n, bool squares) {
  HWY_ALIGN float x[kBlock];
  HWY_ALIGN float dy[kBlock];
  ReadTile(norm, run, kX, row, begin, n, x);
  ReadTile(norm, run, kDy, row, begin, n, dy);
  return LeavesOf(norm).dot[kF32][squares](x, dy, run.Row<float>(kWeight, 0) + begin, n);
}

HWY_INLINE RowSums SumRow(const Norm& norm, const Run& run, size_t row, const Ways& ways) {
  const size_t size = ElementSize(norm.dtype[kX]);
  const char* const x = run.Row<char>(kX, row);
  const char* const dy = run.Row<char>(kDy, row);
  const float* const weight = run.Row<float>(kWeight, 0);
  RowSums total = {0, 0};
  for (size_t begin = 0; begin < run.d; begin += kBlock) {
    const size_t n = std::min(kBlock, run.d - begin);
    const FoldedDots block = HWY_LIKELY(ways.dot != nullptr)
                                 ? ways.dot(x + begin * size, dy + begin * size, weight + begin, n)
                                 : DotTiles(norm, run, row, begin, n, ways.squares);
    total.dot += FoldOne(hn::Load(FourTag(), block.dot));
    if (ways.squares) total.squares += FoldOne(hn::Load(FourTag(), block.squares));
  }
  return total;
}

// ------------------------------------------------------------------ terms

// The terms of four rows, by the operations of MakeHotTerms(), but with eps as a floor.
struct FourTerms {
  HWY_ALIGN float r[4];
  HWY_ALIGN float k[4];
  HWY_ALIGN float q[4];
  bool safe;  // whether all four are; if not, the terms are meaningless

  HWY_INLINE Terms<float> Row(size_t i) const { return {r[i], k[i], q[i]}; }
};

// Of a row of one block.
HWY_INLINE FoldedDots DotRow(const Run& run, size_t row, DotLeaf dot) {
  return dot(run.Row<char>(kX, row), run.Row<char>(kDy, row), run.Row<float>(kWeight, 0), run.d);
}

// Of rows of one block and one type.
HWY_INLINE void MakeFourTerms(const Norm& norm, const Run& run, size_t row, const Ways& ways,
                              FourTerms& terms) {
  const FourTag tag;
  const bool outside = norm.eps_placement == RMSNORM_EPS_OUTSIDE;
  const FoldedDots a = DotRow(run, row, ways.dot);
  const FoldedDots b = DotRow(run, row + 1, ways.dot);
  const FoldedDots c = DotRow(run, row + 2, ways.dot);
  const FoldedDots e = DotRow(run, row + 3, ways.dot);
  // The sum of the first block is added to +0, which turns a -0 into +0. Squares give none.
  const Four dot = hn::Add(hn::Zero(tag), FoldFour(hn::Load(tag, a.dot), hn::Load(tag, b.dot),
                                                   hn::Load(tag, c.dot), hn::Load(tag, e.dot)));
  const Four one = hn::Set(tag, 1.0f);
  const Four divisor = hn::Set(tag, norm.divisor);
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
  if (ways.squares) {
    const Four eps = hn::Set(tag, norm.eps);
    const Four sums = FoldFour(hn::Load(tag, a.squares), hn::Load(tag, b.squares),
                               hn::Load(tag, c.squares), hn::Load(tag, e.squares));
    const Four mean = hn::Div(sums, divisor);
    const Four under_root = outside ? mean : hn::Add(mean, eps);
    safe = hn::And(hn::Ge(under_root, hn::Set(tag, kSmallestSafe)), hn::Le(under_root, largest));
    root = hn::Sqrt(under_root);
    if (!run.Has(kRstd)) r = hn::Div(one, outside ? hn::Add(root, eps) : root);
  }
  const Four q = hn::Div(hn::Mul(dot, r), outside ? hn::Mul(divisor, root) : divisor);
  hn::Store(r, tag, terms.r);
  hn::Store(outside ? one : r, tag, terms.k);
  hn::Store(q, tag, terms.q);
  terms.safe = hn::AllTrue(tag, hn::And(safe, hn::Le(hn::Abs(q), largest)));
}

inline HWY_NOINLINE HotTerms HotTermsOfRow(const Norm& norm, const Run& run, size_t row,
                                           const Ways& ways) {
  return MakeHotTerms(norm, SumRow(norm, run, row, ways), RstdOf(run, row));
}

// The terms in binary64 of a row of which something is cold. Where its r is NaN the others do not
// matter.
inline HWY_NOINLINE RowTerms ColdTermsOfRow(const Norm& norm, const Run& run, size_t row,
                                            const HotTerms& hot) {
  const float hot_r = hot.terms.r;
  if (std::isnan(hot_r)) return {{hot_r, 0, 0}, hot_r, hot.cold, false};
  const float* const rstd = RstdOf(run, row);
  const bool needs_squares = NeedsSquares(norm, rstd != nullptr);
  HWY_ALIGN float x[kBlock];
  HWY_ALIGN float dy[kBlock];
  HWY_ALIGN float weight[kBlock];
  double squares = 0;
  double c = 0;
  for (size_t begin = 0; begin < run.d; begin += kBlock) {
    const size_t n = std::min(kBlock, run.d - begin);
    ReadTile(norm, run, kX, row, begin, n, x);
    if (needs_squares) squares += SumWideBlock<true>(x, x, x, n);
    ReadTile(norm, run, kDy, row, begin, n, dy);
    ReadTile(norm, run, kWeight, 0, begin, n, weight);
    c += SumWideBlock<false>(x, dy, weight, n);
  }
  const double under_root = UnderRoot(norm, squares);
  const double r = rstd != nullptr ? *rstd : InverseRms(norm, under_root);
  return {MakeTerms(norm, r, under_root, c), hot_r, hot.cold, IsOnlyG(norm, under_root)};
}

HWY_INLINE RowTerms AnyTermsOfRow(const Norm& norm, const Run& run, size_t row,
                                  const HotTerms& hot) {
  return hot.cold == Cold::kNothing ? Widened(hot) : ColdTermsOfRow(norm, run, row, hot);
}

// ------------------------------------------------------------------ rows by tiles

// Adds to a tile of dw in binary64, rounded to f32.
inline HWY_NOINLINE void AddWideTerms(double row_r, const float* x, const float* dy, size_t n,
                                      float* sums) {
  const HalfTag half;
  const F64Vec r = hn::Set(F64Tag(), row_r);
  for (size_t j = 0; j < n; j += kN64) {
    const F64Vec sum =
        hn::MulAdd(hn::Mul(LoadWide(dy + j), LoadWide(x + j)), r, LoadWide(sums + j));
    hn::Store(hn::DemoteTo(half, sum), half, sums + j);
  }
}

// A tile of dx in binary64, rounded to f32.
inline HWY_NOINLINE void WideGradient(const Terms<double>& terms, const float* x, const float* dy,
                                      const float* weight, size_t n, float* dx) {
  const HalfTag half;
  const F64Vec r = hn::Set(F64Tag(), terms.r);
  const F64Vec k = hn::Set(F64Tag(), terms.k);
  const F64Vec q = hn::Set(F64Tag(), terms.q);
  for (size_t j = 0; j < n; j += kN64) {
    const F64Vec g = hn::Mul(LoadWide(dy + j), LoadWide(weight + j));
    const F64Vec gradient = hn::Mul(r, hn::Sub(g, hn::Mul(hn::Mul(LoadWide(x + j), k), q)));
    hn::Store(hn::DemoteTo(half, gradient), half, dx + j);
  }
}

// Sums of f32 to add to, in a tile: all +0 if they start here.
HWY_INLINE void WidenSums(const Leaves& leaves, bool start, const float* sums, size_t n,
                          float* tile) {
  if (start) {
    std::fill_n(tile, kTile, 0.0f);
  } else {
    leaves.widen[kF32](sums, n, tile);
  }
}

// A row of any types by terms of any kind. dx may be in the place of dy: a tile's dw is done before
// its dx is written.
inline HWY_NOINLINE void ApplyByTiles(const Norm& norm, const Run& run, size_t row,
                                      const RowTerms& terms) {
  HWY_ALIGN float x[kTile];
  HWY_ALIGN float dy[kTile];
  HWY_ALIGN float weight[kTile];
  HWY_ALIGN float dx[kTile];
  const Leaves& leaves = *norm.kernels->leaves;
  const auto& apply = leaves.backward->apply[kF32];
  Run tile = run;  // a row of f32
  tile.count = 1;
  tile.start_sums = run.start_sums && row == 0;
  tile.data[kX] = reinterpret_cast<char*>(x);
  tile.data[kDy] = reinterpret_cast<char*>(dy);
  tile.data[kDx] = reinterpret_cast<char*>(dx);
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
        tile.data[kDw] = reinterpret_cast<char*>(dw);
        apply[static_cast<int>(Dx::kNone)][1](tile, 0, {terms.r, 0, 0});
      }
    }
    if (!run.Has(kDx)) continue;
    if (terms.only_g) std::fill_n(x, kTile, 0.0f);
    if (terms.cold == Cold::kNothing) {
      tile.data[kWeight] = run.data[kWeight] + begin * sizeof(float);
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

inline HWY_NOINLINE void BackwardRow(const Norm& norm, const Run& run, size_t row,
                                     const Ways& ways) {
  const HotTerms hot = HotTermsOfRow(norm, run, row, ways);
  if (HWY_LIKELY(ways.row != nullptr && IsPlain(hot))) {
    ways.row(run, row, hot.terms);
  } else {
    ApplyByTiles(norm, run, row, AnyTermsOfRow(norm, run, row, hot));
  }
}

// Four rows at a time, and the next four summed before these are worked on, so that the two
// overlap: as in the leaf NormaliseShortRows().
HWY_INLINE size_t BackwardByFours(const Norm& norm, const Run& run, const Ways& ways) {
  FourTerms now;
  FourTerms next;
  MakeFourTerms(norm, run, 0, ways, next);
  size_t row = 0;
  for (; row + 4 <= run.count; row += 4) {
    now = next;
    if (row + 8 <= run.count) MakeFourTerms(norm, run, row + 4, ways, next);
    if (HWY_UNLIKELY(!now.safe)) {
      for (size_t i = row; i < row + 4; ++i) BackwardRow(norm, run, i, ways);
    } else if (HWY_LIKELY(ways.two != nullptr)) {
      ways.two(run, row, now.Row(0), now.Row(1));
      ways.two(run, row + 2, now.Row(2), now.Row(3));
    } else {
      for (size_t i = 0; i < 4; ++i) ways.row(run, row + i, now.Row(i));
    }
  }
  return row;
}

// Two rows at a time: those that are not short.
HWY_INLINE size_t BackwardByTwos(const Norm& norm, const Run& run, const Ways& ways) {
  size_t row = 0;
  for (; row + 2 <= run.count; row += 2) {
    const HotTerms a = HotTermsOfRow(norm, run, row, ways);
    const HotTerms b = HotTermsOfRow(norm, run, row + 1, ways);
    if (HWY_LIKELY(IsPlain(a) && IsPlain(b))) {
      ways.two(run, row, a.terms, b.terms);
    } else {
      BackwardRow(norm, run, row, ways);
      BackwardRow(norm, run, row + 1, ways);
    }
  }
  return row;
}

// Rows by groups: returns the index of the first one that is in none.
inline HWY_NOINLINE size_t BackwardGroups(const Norm& norm, const Run& run, const Ways& ways) {
  if (run.count >= 4 && IsShort(norm, run) && ways.row != nullptr && !norm.stream &&
      norm.eps_placement != RMSNORM_EPS_FLOOR) {
    return BackwardByFours(norm, run, ways);
  }
  return ways.two != nullptr ? BackwardByTwos(norm, run, ways) : 0;
}

// Whether rows are held in registers: those of training, to which the forward pass left an inverse
// RMS each.
HWY_INLINE bool IsHeld(const Norm& norm, const Run& run) {
  return kFitsRegisters<float> && run.d <= kLanes && norm.one_type &&
         norm.dtype[kX] == RMSNORM_F32 && run.Has(kDx) && run.Has(kDw) && run.Has(kRstd) &&
         !norm.add_to_dx && norm.eps_placement == RMSNORM_EPS_INSIDE;
}

void BackwardRows(const Norm& norm, const Run& run) {
  size_t row = 0;
  if (IsHeld(norm, run)) {
    const auto held_rows = LeavesOf(norm).held_rows[(run.d - 1) / kPair];
    for (; row < run.count; ++row) {
      row = held_rows(norm, run, row);
      if (row < run.count) BackwardRow(norm, run, row, FindWays(norm, run));
    }
  } else {
    const Ways ways = FindWays(norm, run);
    if (run.count > 1) row = BackwardGroups(norm, run, ways);
    for (; row < run.count; ++row) BackwardRow(norm, run, row, ways);
  }
  if (norm.stream) hwy::FlushStream();  // before another thread may read dx
}

RowSums BackwardSums(const Norm& norm, const Run& run) {
  return SumRow(norm, run, 0, FindWays(norm, run));
}

void BackwardTerms(const Norm& norm, const Run& run, RowTerms* terms) {
  const Ways ways = FindWays(norm, run);
  for (size_t row = 0; row < run.count; ++row) {
    terms[row] = AnyTermsOfRow(norm, run, row, HotTermsOfRow(norm, run, row, ways));
  }
}

void BackwardColumns(const Norm& norm, const Run& run, const RowTerms* terms) {
  const Ways ways = FindWays(norm, run);
  for (size_t row = 0; row < run.count; ++row) {
    const bool plain = terms[row].cold == Cold::kNothing && !terms[row].only_g;
    if (HWY_LIKELY(ways.row != nullptr && plain)) {
      ways.row(run, row, Narrowed(terms[row].terms));
    } else {
      ApplyByTiles(norm, run, row, terms[row]);
    }
  }
  if (norm.stream) hwy::FlushStream();
}

// A tile of db's sums stays in L1 from row to row.
void AddRowsToSums(const Norm& norm, const Run& run) {
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

#endif  // RMSNORM_NATIVE_BF16

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
