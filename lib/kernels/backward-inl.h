// SPDX-License-Identifier: Apache-2.0
// The leaves of backward for rows of one type, which also serve f32 tiles of other types. They have
// the bits of reference.cc.
//
//   T         the type of the elements
//   kWay      what happens to dx
//   kAddDw    dw's sums are added to
//   kSquares  the sum of squares is needed beside c
//   kPairs    pairs of vectors that a row in registers takes (rows-inl.h)
//   kWhole    such a row fills its pairs

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

// The sums of dw before a row: in dw, or zeros before the first row of sums that start.
struct SumsBefore {
  HWY_INLINE SumsBefore(const RowRun& run, size_t row)
      : from(run.start_sums && row == 0 ? kZeros : run.Row<float>(kDw, 0)),
        mask(run.start_sums && row == 0 ? 0 : ~size_t{0}) {}

  HWY_INLINE const float* From(size_t j) const { return from + (j & mask); }

  alignas(kCacheLine) static constexpr float kZeros[kPair] = {};
  const float* from;
  size_t mask;
};

// A row with its terms. dx may be dy. NaNs need no care on the way to bf16. A row with a NaN in x,
// dy or the weight has no terms in f32. A NaN in dx has no payload bits to carry.
template <Dx kWay, bool kAddDw, class T>
struct GradientRow {
  HWY_INLINE GradientRow(const T* row_x, const T* row_dy, T* row_dx, const Terms<float>& terms)
      : x(row_x),
        dy(row_dy),
        dx(row_dx),
        r(hn::Set(F32Tag(), terms.r)),
        scale_x(hn::Set(F32Tag(), terms.scale_x)),
        mean(hn::Set(F32Tag(), terms.mean)) {}
  HWY_INLINE GradientRow(const RowRun& run, size_t row, const Terms<float>& terms)
      : GradientRow(run.Row<T>(kX, row), run.Row<T>(kDy, row),
                    kWay == Dx::kNone ? nullptr : run.Row<T>(kDx, row), terms) {}

  HWY_INLINE F32Vec Gradient(F32Vec xs, F32Vec dys, F32Vec weight) const {
    const F32Vec g = hn::Mul(dys, weight);
    return hn::Mul(r, hn::Sub(g, hn::Mul(hn::Mul(xs, scale_x), mean)));
  }
  // dx at j, with dw's term added to the sum.
  template <class Some>
  HWY_INLINE Pair GradientAt(size_t j, Some some, Pair xs, Pair dys, Pair weight, Pair& sum) const {
    if constexpr (kAddDw) {
      sum.lower = hn::MulAdd(hn::Mul(dys.lower, xs.lower), r, sum.lower);
      sum.upper = hn::MulAdd(hn::Mul(dys.upper, xs.upper), r, sum.upper);
    }
    if constexpr (kWay == Dx::kNone) return sum;
    const Pair gradient = {Gradient(xs.lower, dys.lower, weight.lower),
                           Gradient(xs.upper, dys.upper, weight.upper)};
    if constexpr (kWay == Dx::kAdd) return Add(Load(dx + j, some), gradient);
    return gradient;
  }

  const T* x;
  const T* dy;
  T* dx;
  F32Vec r;
  F32Vec scale_x;
  F32Vec mean;
};

// Writes the gradients of one row or of two. Two rows share each load of the weight, and each load
// and store of dw's sums. Four rows would be twelve streams, which map to the same lines of L1 if
// all rows lie the same distance from the start of a page.
template <Dx kWay, bool kAddDw, bool kTwo, class T>
HWY_INLINE void ApplyRows(const RowRun& run, size_t index, const Terms<float>& a_terms,
                          const Terms<float>& b_terms) {
  static_assert(!kTwo || kWay == Dx::kStore);
  const size_t d = run.d;
  const float* HWY_RESTRICT weight = run.Row<float>(kWeight, 0);
  float* HWY_RESTRICT dw = run.Row<float>(kDw, 0);
  const SumsBefore before(run, index);
  const GradientRow<kWay, kAddDw, T> a(run, index, a_terms);
  const GradientRow<kWay, kAddDw, T> b(run, index + kTwo, b_terms);
  const size_t last = index + kTwo;
  const size_t next = std::min(last + 1, run.count - 1);
  [[maybe_unused]] const T* const next_x = run.Row<T>(kX, next);
  [[maybe_unused]] const T* const next_dy = run.Row<T>(kDy, next);
  const bool fetch = kMayFetch<T> && kFetchesForStores && kWay == Dx::kStore && next != last;
  // A fetch may go on into the next row if that begins at this row's end.
  const bool row_follows = run.stride[kDx] == static_cast<ptrdiff_t>(d * sizeof(float));
  const size_t last_fetch = LastFetch(row_follows, d, kPair);
  const Pair zero = {hn::Zero(F32Tag()), hn::Zero(F32Tag())};

  const auto apply = [&](size_t j, auto some) RMSNORM_LAMBDA {
    constexpr bool kAll = std::is_same_v<decltype(some), All>;
    if constexpr (kAll && kWay == Dx::kStream) {
      for (size_t i = 0; i < kPair; i += kCacheLine / sizeof(T)) {
        PrefetchToL2(next_x + j + i);
        PrefetchToL2(next_dy + j + i);
      }
    }
    if (kAll && fetch) {
      FetchForStores(a.dx, j, kPair, last_fetch);            // GCOVR_EXCL_LINE
      if (kTwo) FetchForStores(b.dx, j, kPair, last_fetch);  // GCOVR_EXCL_LINE
    }
    const Pair w = kWay == Dx::kNone ? zero : Load(weight + j, some);
    Pair sum = kAddDw ? Load(before.From(j), some) : zero;
    const Pair a_dx = a.GradientAt(j, some, Load(a.x + j, some), Load(a.dy + j, some), w, sum);
    if constexpr (kTwo) {
      const Pair b_dx = b.GradientAt(j, some, Load(b.x + j, some), Load(b.dy + j, some), w, sum);
      if constexpr (kN >= 16 && kAll && std::is_same_v<T, float>) {
        StoreInOrder(a_dx, a.dx + j);
        StoreInOrder(b_dx, b.dx + j);
      } else if constexpr (kN >= 16) {
        StoreBoth(a_dx, a.dx + j, some, b_dx, b.dx + j, some);
      } else {  // registers are few
        Store(a_dx, a.dx + j, some);
        Store(b_dx, b.dx + j, some);
      }
    } else if constexpr (kAll && kWay == Dx::kStream) {
      Stream(a_dx, a.dx + j);
    } else if constexpr (kWay != Dx::kNone) {
      Store(a_dx, a.dx + j, some);
    }
    if constexpr (kAddDw) Store(sum, dw + j, some);
  };
  size_t head = 0;
  if constexpr (kWay == Dx::kStream) {  // stores past the caches must be aligned
    head = std::min(d, -reinterpret_cast<uintptr_t>(a.dx) % sizeof(F32Vec) / sizeof(T));
    if (head > 0) apply(0, First{head});
  }
  ForEachPair(head, d, apply);
}

// This is an ApplyLeaf.
template <Dx kWay, bool kAddDw, class T>
HWY_NOINLINE void ApplyRow(const RowRun& run, size_t index, const Terms<float>& terms) {
  ApplyRows<kWay, kAddDw, false, T>(run, index, terms, terms);
}

// This is an ApplyTwoLeaf.
template <bool kAddDw, class T>
HWY_NOINLINE void ApplyTwoRows(const RowRun& run, size_t index, const Terms<float>& a_terms,
                               const Terms<float>& b_terms) {
  ApplyRows<Dx::kStore, kAddDw, true, T>(run, index, a_terms, b_terms);
}

// ------------------------------------------------------------------ sums in registers

// Writes the gradients of the n elements from j on, with loads of the weight between the stores, as
// registers are few. `stream` is a branch on each store: a second copy of the code would be large
// and gain little.
template <bool kWhole, size_t kCount, class Row>
HWY_INLINE void ApplyHeldRow(size_t j, size_t n, const Lanes<kCount>& x, const Lanes<kCount>& dy,
                             const float* weight, const Row& row, bool stream,
                             Lanes<kCount>& sums) {
  if constexpr (kCount > 1) {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (n <= kHalf) {
      return ApplyHeldRow<kWhole>(j, n, x.first, dy.first, weight, row, stream, sums.first);
    }
    ApplyHeldRow<true>(j, kHalf, x.first, dy.first, weight, row, stream, sums.first);
    ApplyHeldRow<kWhole>(j + kHalf, n - kHalf, x.second, dy.second, weight, row, stream,
                         sums.second);
  } else {
    const Pair w = LoadRow<kWhole, 1>(weight + j, n).pair;
    const Pair gradient = row.GradientAt(j, All(), x.pair, dy.pair, w, sums.pair);
    if constexpr (!kWhole) {
      Store(gradient, row.dx + j, First{n});
    } else if (HWY_UNLIKELY(stream)) {
      Stream(gradient, row.dx + j);
    } else {
      Store(gradient, row.dx + j);
    }
  }
}

// c of a row. A lane's only product is not first added to +0, but their sum is, which makes the
// same zeros.
template <bool kWhole, size_t kCount, class T>
HWY_INLINE float SumHeldRow(const T* x, const T* dy, const float* weight, size_t d) {
  // The weight comes first, as its load has a branch: clang 14 takes a vector of f16 apart if a
  // branch lies between its load and its widening.
  const Lanes<kCount> w = LoadRow<kWhole, kCount>(weight, d);
  const Lanes<kCount> g = Mul(LoadRow<kWhole, kCount>(dy, d), w);
  return 0.0f + SumOfLanes(Mul(g, LoadRow<kWhole, kCount>(x, d)));
}

// A RowsLeaf. The sums of dw of up to 128 elements take a quarter of the registers of AVX-512, and
// stay there from row to row. One row is summed while the row before it waits for its terms. x and
// dy are read twice: if they stayed in registers, none would be left for the next row's sum. The
// fields of the root are copied one by one, as in NormaliseRowsInRegisters().
template <size_t kPairs, bool kWhole, class T>
HWY_NOINLINE size_t ApplySafeRows(const Norm& norm, const RowRun& run, size_t begin) {
  constexpr size_t kCount = kHeldPairs<kPairs>;
  const bool stream = kWhole && norm.stream && AreAligned(run, kDx);
  Root root = {};  // with eps inside
  root.inverse_divisor = norm.root.inverse_divisor;
  size_t d = run.d;
  AssumeHeld<kPairs, kWhole>(d);
  const size_t count = run.count;
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
    // The address of a local is not null. Otherwise clang 14 computes a root and a division before
    // the loop, for rows without 1 / RMS.
    const float r = *rstd[0];
    const HotTerms hot = MakeHotTerms(root, {0, c}, &r);
    if (HWY_UNLIKELY(hot.cold != Cold::kNothing)) break;
    const GradientRow<Dx::kStore, true, T> row(x[0], dy[0], dx[0], hot.terms);
    // All loads come before the first store, as they might wait for it.
    const Lanes<kCount> xs = LoadRow<kWhole, kCount>(row.x, d);
    const Lanes<kCount> dys = LoadRow<kWhole, kCount>(row.dy, d);
    // It pays on AVX2. AVX-512 gains in some calls and loses in others.
    if (kMayFetch<T> && kFetchesForStores && kN < 16 && !stream && i + 1 < count) {
      FetchForStores(row.dx, 0, d, ~size_t{0});  // GCOVR_EXCL_LINE
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
size_t ApplyHeldRows(const Norm& norm, const RowRun& run, size_t begin) {
  return run.d == kPairs * kPair ? ApplySafeRows<kPairs, true, T>(norm, run, begin)
                                 : ApplySafeRows<kPairs, false, T>(norm, run, begin);
}

// ------------------------------------------------------------------ c and the sum of squares

// Passes over a block, each for a share of neighbouring lanes, as for the sum of squares alone.
// With two sums AVX2 has registers for a quarter of the lanes.
template <bool kSquares>
constexpr size_t kDotPasses = kN >= 16   ? 1
                              : kSquares ? 4
                                         : 2;

template <size_t kCount>
struct DotLanes {
  Lanes<kCount> dot;
  Lanes<kCount> squares;
};

// Adds the products of n <= kCount * kPair elements, as if zeros followed them. kAll says that n is
// kCount * kPair.
template <bool kSquares, bool kAll, size_t kCount, class T>
HWY_INLINE void AddProducts(Lanes<kCount>& dot, Lanes<kCount>& squares, const T* x, const T* dy,
                            const float* weight, size_t n) {
  if constexpr (kCount == 1) {
    // One branch for all loads: with one for each, clang 14 loads element by element.
    if (!kAll && n == kPair) return AddProducts<kSquares, true>(dot, squares, x, dy, weight, n);
    const Pair w = kAll ? Load(weight) : Load(weight, First{n});
    const Pair dys = kAll ? Load(dy) : Load(dy, First{n});
    const Pair xs = kAll ? Load(x) : Load(x, First{n});
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

// Returns the folded lanes of pass kFirst and of every kStep-th pass after it, for a block of
// `size` elements.
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
  const auto lanes =
      DotPass<kSquares, 0, 1>(static_cast<const T*>(x), static_cast<const T*>(dy), weight, n);
  FoldedDots dots = {};
  hn::Store(FoldPairToFour<const float*>(FoldToPair(lanes.dot)), FourTag(), dots.dot);
  if constexpr (kSquares) {
    hn::Store(FoldPairToFour<const float*>(FoldToPair(lanes.squares)), FourTag(), dots.squares);
  }
  return dots;
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
