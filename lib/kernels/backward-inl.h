// SPDX-License-Identifier: Apache-2.0
// The loops over elements of the backward pass, compiled for each target. They give the bits of
// reference.cc. AVX3_DL has of its own only those that write bf16.

#if defined(RMSNORM_LIB_KERNELS_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#undef RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#endif

#include "../gradient_terms.h"
#include "../thresholds.h"
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

// LastFetch() of a row of dx. The next row begins at its end, except in columns of rows.
HWY_INLINE size_t LastFetchOfDx(const Run& run) {
  const bool row_follows = run.stride[kDx] == static_cast<ptrdiff_t>(run.d * sizeof(float));
  return LastFetch(row_follows, run.d, kPair);
}

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
  [[maybe_unused]] const T* const next_x = run.Row<T>(kX, next);
  [[maybe_unused]] const T* const next_dy = run.Row<T>(kDy, next);
  const bool fetch = kMayFetch<T> && kWay == Dx::kStore && next != index;
  const size_t last_fetch = LastFetchOfDx(run);

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
    if (fetch) FetchForStores(row.dx, j, kPair, last_fetch);
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
  const bool fetch = kMayFetch<T> && index + 2 < run.count;
  const size_t last_fetch = LastFetchOfDx(run);
  size_t j = 0;
  for (; j + kPair <= d; j += kPair) {
    if (fetch) {
      FetchForStores(a.dx, j, kPair, last_fetch);
      FetchForStores(b.dx, j, kPair, last_fetch);
    }
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

// ------------------------------------------------------------------ sums in registers

template <size_t kCount>
HWY_INLINE Lanes<kCount> Mul(const Lanes<kCount>& a, const Lanes<kCount>& b) {
  if constexpr (kCount == 1) {
    return {Mul(a.pair, b.pair)};
  } else {
    return {Mul(a.first, b.first), Mul(a.second, b.second)};
  }
}

// The n elements from j on. Stores and loads of the weight between them, as registers are few. A
// branch on each store: code of its own for stores past the caches would be 33 KB for 1 %.
template <bool kWhole, size_t kCount, class Row>
HWY_INLINE void ApplyHeldRow(size_t j, size_t n, const Lanes<kCount>& x, const Lanes<kCount>& dy,
                             const float* weight, const Row& row, bool stream,
                             Lanes<kCount>& sums) {
  if constexpr (kCount == 1) {
    const Pair w = LoadRow<kWhole, 1>(weight + j, n).pair;
    const Pair gradient = row.At(j, x.pair, dy.pair, w, sums.pair);
    if constexpr (kWhole) {
      if (HWY_UNLIKELY(stream)) {
        Stream(gradient, row.dx + j);
      } else {
        Store(gradient, row.dx + j);
      }
    } else {
      StoreFirst(gradient, row.dx + j, n);
    }
  } else {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (n <= kHalf) {
      return ApplyHeldRow<kWhole>(j, n, x.first, dy.first, weight, row, stream, sums.first);
    }
    ApplyHeldRow<true>(j, kHalf, x.first, dy.first, weight, row, stream, sums.first);
    ApplyHeldRow<kWhole>(j + kHalf, n - kHalf, x.second, dy.second, weight, row, stream,
                         sums.second);
  }
}

// c of a row. A lane's only product is not added to +0 first, but their sum is: that makes the same
// zeros.
template <bool kWhole, size_t kCount, class T>
HWY_INLINE float SumHeldRow(const T* x, const T* dy, const float* weight, size_t d) {
  // The weight first, as its load has a branch: clang 14 moves the elements one by one of a vector
  // of f16 that is loaded before a branch and widened after it.
  const Lanes<kCount> w = LoadRow<kWhole, kCount>(weight, d);
  const Lanes<kCount> g = Mul(LoadRow<kWhole, kCount>(dy, d), w);
  return 0.0f + Sum(Mul(g, LoadRow<kWhole, kCount>(x, d)));
}

// The sums of dw of up to 128 elements take a quarter of the registers of AVX-512, and stay there
// from row to row. One row is summed while the one before it waits for its terms: 4096 x 128 in f32
// takes 1.98 times memcpy's time instead of 2.88, and in 16 bits 0.9 of what it takes by fours.
// (Where x and dy stay in registers, too, from the sum to the store, there are none left for the
// sum of the next row: 2.08.)
//
// The rows from `begin` on, up to one that is not safe: returns its index, or the number of rows.
// Of the root it takes single fields, for the reason that NormaliseRowsInRegisters() gives.
template <size_t kPairs, bool kWhole, class T>
HWY_NOINLINE size_t ApplySafeRows(const Norm& norm, const Run& run, size_t begin) {
  constexpr size_t kCount = kHeldPairs<kPairs>;
  const bool stream = kWhole && norm.stream && AreAligned(run, kDx);
  Root root = {};  // with eps inside
  root.inverse_divisor = norm.root.inverse_divisor;
  size_t d = run.d;
  AssumeHeld<kPairs, kWhole>(d);
  const size_t count = run.count;
  // Those of row i.
  RowsOf<const T> x(run, kX);
  RowsOf<const T> dy(run, kDy);
  RowsOf<T> dx(run, kDx);
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
    const HotTerms hot = MakeHotTerms(root, {0, c}, rstd[0]);
    if (HWY_UNLIKELY(hot.cold != Cold::kNothing)) break;
    const GradientRow<Dx::kStore, true, T> row(x[0], dy[0], dx[0], hot.terms);
    // All of it before the first store, which loads might else have to wait for.
    const Lanes<kCount> xs = LoadRow<kWhole, kCount>(row.x, d);
    const Lanes<kCount> dys = LoadRow<kWhole, kCount>(row.dy, d);
    // On AVX2 4096 x 64 takes 0.8 of the time so; on AVX-512 32 x 64 to 4096 x 128 0.9 to 1.09.
    if (kMayFetch<T> && kN < 16 && !stream && i + 1 < count) {
      FetchForStores(row.dx, 0, d, ~size_t{0});
    }
    ApplyHeldRow<kWhole>(0, d, xs, dys, weight, row, stream, sums);
    c = next;
    x.data += x.stride;
    dy.data += dy.stride;
    dx.data += dx.stride;
    rstd.data += rstd.stride;
  }
  StoreRow<kWhole, false>(sums, dw, d);
  return i;
}

template <size_t kPairs, class T>
size_t ApplyHeldRows(const Norm& norm, const Run& run, size_t begin) {
  return run.d == kPairs * kPair ? ApplySafeRows<kPairs, true, T>(norm, run, begin)
                                 : ApplySafeRows<kPairs, false, T>(norm, run, begin);
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
  if constexpr (kHoldsRows) {
    leaves.held_rows[type][0] = &ApplyHeldRows<1, T>;
    leaves.held_rows[type][1] = &ApplyHeldRows<2, T>;
    leaves.held_rows[type][2] = &ApplyHeldRows<3, T>;
    leaves.held_rows[type][3] = &ApplyHeldRows<4, T>;
  }
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
  return leaves;
}
constexpr BackwardLeaves kBackwardLeaves = MakeBackwardLeaves();

#endif  // RMSNORM_NATIVE_BF16

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
