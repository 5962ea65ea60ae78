// SPDX-License-Identifier: Apache-2.0
// The kernels of the backward pass, compiled for each target. Each gives the bits of its namesake
// in reference_backward.cc.

#if defined(RMSNORM_LIB_KERNELS_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#undef RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
#endif

#include "../gradient_terms.h"
#include "cold-inl.h"
#include "forward-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

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
template <bool kSquares, bool kAll, size_t kCount, class X, class Y>
HWY_INLINE void AddProducts(Lanes<kCount>& dot, Lanes<kCount>& squares, const X* x, const Y* dy,
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
template <bool kSquares, size_t kFirst, size_t kStep, class X, class Y>
HWY_INLINE auto DotPass(const X* HWY_RESTRICT x, const Y* HWY_RESTRICT dy,
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

// A block's lanes, folded to four.
struct FoldedDots {
  Four dot;
  Four squares;
};

template <bool kSquares, class X, class Y>
HWY_NOINLINE FoldedDots DotBlock(const X* x, const Y* dy, const float* weight, size_t size) {
  const F32Tag tag;
  const auto lanes = DotPass<kSquares, 0, 1>(x, dy, weight, size);
  const Pair dot = FoldToPair(lanes.dot);
  if constexpr (!kSquares) {
    return {FoldToFour(tag, hn::Add(dot.lower, dot.upper)), hn::Zero(FourTag())};
  }
  const Pair squares = FoldToPair(lanes.squares);
  return {FoldToFour(tag, hn::Add(dot.lower, dot.upper)),
          FoldToFour(tag, hn::Add(squares.lower, squares.upper))};
}

// The same of a row that is one block.
template <bool kSquares, class X, class Y>
HWY_INLINE FoldedDots DotBlock(const Norm& norm, const GradientRows& rows, size_t row) {
  return DotBlock<kSquares>(rows.Input<X>(row), rows.Gradient<Y>(row), norm.weight, norm.d);
}

template <bool kSquares, class X, class Y>
HWY_INLINE RowSums SumRow(const Norm& norm, const X* x, const Y* dy) {
  RowSums total = {0, 0};
  for (size_t begin = 0; begin < norm.d; begin += kBlock) {
    const FoldedDots block = DotBlock<kSquares>(x + begin, dy + begin, norm.weight + begin,
                                                std::min(kBlock, norm.d - begin));
    total.dot += FoldOne(block.dot);
    if constexpr (kSquares) total.squares += FoldOne(block.squares);
  }
  return total;
}

template <class X, class Y>
HWY_NOINLINE RowSums SumRow(const Norm& norm, const GradientRows& rows, size_t row) {
  const X* x = rows.Input<X>(row);
  const Y* dy = rows.Gradient<Y>(row);
  return NeedsSquares(norm, rows.rstd) ? SumRow<true>(norm, x, dy) : SumRow<false>(norm, x, dy);
}

// The sums of four rows.
template <bool kSquares, class X, class Y>
HWY_INLINE FoldedDots SumFourRows(const Norm& norm, const GradientRows& rows, size_t row) {
  if (norm.d > kBlock) {
    HWY_ALIGN float dot[4];
    HWY_ALIGN float squares[4];
    for (size_t i = 0; i < 4; ++i) {
      const RowSums sums =
          SumRow<kSquares>(norm, rows.Input<X>(row + i), rows.Gradient<Y>(row + i));
      dot[i] = sums.dot;
      squares[i] = sums.squares;
    }
    return {hn::Load(FourTag(), dot), hn::Load(FourTag(), squares)};
  }
  const FoldedDots a = DotBlock<kSquares, X, Y>(norm, rows, row);
  const FoldedDots b = DotBlock<kSquares, X, Y>(norm, rows, row + 1);
  const FoldedDots c = DotBlock<kSquares, X, Y>(norm, rows, row + 2);
  const FoldedDots e = DotBlock<kSquares, X, Y>(norm, rows, row + 3);
  // The sum of the first block is added to +0, which turns a -0 into +0. Squares give none.
  const Four zero = hn::Zero(FourTag());
  return {hn::Add(zero, FoldFour(a.dot, b.dot, c.dot, e.dot)),
          kSquares ? FoldFour(a.squares, b.squares, c.squares, e.squares) : zero};
}

// ------------------------------------------------------------------ terms

// The terms of four rows, by the operations of MakeHotTerms().
struct FourTerms {
  HWY_ALIGN float r[4];
  HWY_ALIGN float k[4];
  HWY_ALIGN float q[4];
  bool safe;  // whether all four are; if not, the terms are meaningless

  HWY_INLINE Terms<float> Row(size_t i) const { return {r[i], k[i], q[i]}; }
};

template <class X, class Y>
HWY_INLINE void MakeFourTerms(const Norm& norm, const GradientRows& rows, size_t row,
                              FourTerms& terms) {
  const FourTag tag;
  const bool needs_squares = NeedsSquares(norm, rows.rstd);
  const FoldedDots sums = needs_squares ? SumFourRows<true, X, Y>(norm, rows, row)
                                        : SumFourRows<false, X, Y>(norm, rows, row);
  const Four one = hn::Set(tag, 1.0f);
  const Four eps = hn::Set(tag, norm.eps);
  const Four divisor = hn::Set(tag, norm.divisor);
  const Four largest = hn::Set(tag, kLargestSafe);
  Four r = rows.rstd != nullptr ? hn::LoadU(tag, rows.rstd + row) : one;
  Four root = one;
  auto safe =
      hn::And(hn::Ge(r, hn::Set(tag, kSmallestInverse)), hn::Le(r, hn::Set(tag, kLargestInverse)));
  if (needs_squares) {
    const Four mean = hn::Div(sums.squares, divisor);
    const Four under_root = norm.eps_outside ? mean : hn::Add(mean, eps);
    safe = hn::And(hn::Ge(under_root, hn::Set(tag, kSmallestSafe)), hn::Le(under_root, largest));
    root = hn::Sqrt(under_root);
    if (rows.rstd == nullptr) r = hn::Div(one, norm.eps_outside ? hn::Add(root, eps) : root);
  }
  const Four q = hn::Div(hn::Mul(sums.dot, r), norm.eps_outside ? hn::Mul(divisor, root) : divisor);
  hn::Store(r, tag, terms.r);
  hn::Store(norm.eps_outside ? one : r, tag, terms.k);
  hn::Store(q, tag, terms.q);
  terms.safe = hn::AllTrue(tag, hn::And(safe, hn::Le(hn::Abs(q), largest)));
}

template <class X, class Y>
HWY_INLINE HotTerms TermsOfRow(const Norm& norm, const GradientRows& rows, size_t row) {
  return MakeHotTerms(norm, SumRow<X, Y>(norm, rows, row),
                      rows.rstd != nullptr ? rows.rstd + row : nullptr);
}

// ------------------------------------------------------------------ gradients

// Where the sums of dw before a row are: in dw, or for the first one of them at zeros.
struct SumsBefore {
  HWY_INLINE SumsBefore(const GradientRows& rows, size_t row)
      : from(rows.start_dw && row == 0 ? kZeros : rows.dw),
        mask(rows.start_dw && row == 0 ? 0 : ~size_t{0}) {}

  HWY_INLINE const float* At(size_t j) const { return from + (j & mask); }

  alignas(kCacheLine) static constexpr float kZeros[kPair] = {};
  const float* from;
  size_t mask;
};

// What is done with dx: nothing, it is written, added to what is there, or written past the caches.
enum class Dx { kNone, kStore, kAdd, kStream };

// A row with its terms. dx may be dy. Its NaNs need no care on the way to bf16: a row whose x, dy
// or weight holds one has no terms in f32, and those that dx held had no payload bits to carry.
template <Dx kDx, bool kDw, class X, class Y, class Z>
struct GradientRow {
  HWY_INLINE GradientRow(const GradientRows& rows, size_t row, const Terms<float>& terms)
      : x(rows.Input<X>(row)),
        dy(rows.Gradient<Y>(row)),
        dx(kDx == Dx::kNone ? nullptr : rows.Output<Z>(row)),
        r(hn::Set(F32Tag(), terms.r)),
        k(hn::Set(F32Tag(), terms.k)),
        q(hn::Set(F32Tag(), terms.q)) {}

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
    if constexpr (kDw) AddToWeight(xs, dys, sum);
    if constexpr (kDx == Dx::kNone) return sum;
    const Pair gradient = Gradient(xs, dys, weight);
    if constexpr (kDx == Dx::kAdd) return Add(Load(dx + j), gradient);
    return gradient;
  }

  HWY_INLINE void StoreAt(size_t j, Pair gradient) const {
    if constexpr (kDx == Dx::kStream) {
      Stream(gradient, dx + j);
    } else if constexpr (kDx != Dx::kNone) {
      Store(gradient, dx + j);
    }
  }

  // Its elements from `begin` up to `end`, fewer than kPair.
  HWY_INLINE void Few(size_t begin, size_t end, const float* weight, const SumsBefore& before,
                      float* dw) const {
    const size_t n = end - begin;
    const Pair xs = LoadFirst(x + begin, n);
    const Pair dys = LoadFirst(dy + begin, n);
    if constexpr (kDw) {
      Pair sum = LoadFirst(before.At(begin), n);
      AddToWeight(xs, dys, sum);
      StoreFirst(sum, dw + begin, n);
    }
    if constexpr (kDx != Dx::kNone) {
      Pair gradient = Gradient(xs, dys, LoadFirst(weight + begin, n));
      if constexpr (kDx == Dx::kAdd) gradient = Add(LoadFirst(dx + begin, n), gradient);
      StoreFirst(gradient, dx + begin, n);
    }
  }

  const X* x;
  const Y* dy;
  Z* dx;
  F32Vec r;
  F32Vec k;
  F32Vec q;
};

// What is not needed is not loaded.
template <Dx kDx>
HWY_INLINE Pair LoadGradientWeight(const float* weight) {
  return LoadWeight<kDx != Dx::kNone>(weight, 0);
}
template <bool kDw>
HWY_INLINE Pair LoadSum(const SumsBefore& before, size_t j) {
  return LoadWeight<kDw>(kDw ? before.At(j) : nullptr, 0);
}
template <bool kDw>
HWY_INLINE void StoreSum(Pair sum, float* dw, size_t j) {
  if constexpr (kDw) Store(sum, dw + j);
}

template <Dx kDx, bool kDw, class X, class Y, class Z>
HWY_NOINLINE void ApplyRow(const Norm& norm, const GradientRows& rows, size_t index,
                           const Terms<float>& terms) {
  const size_t d = norm.d;
  const float* HWY_RESTRICT weight = norm.weight;
  float* HWY_RESTRICT dw = rows.dw;
  const GradientRow<kDx, kDw, X, Y, Z> row(rows, index, terms);
  const SumsBefore before(rows, index);
  const size_t next = std::min(index + 1, rows.count - 1);
  const X* const next_x = rows.Input<X>(next);
  const Y* const next_dy = rows.Gradient<Y>(next);

  size_t j = 0;
  if constexpr (kDx == Dx::kStream) {  // stores past the caches must be aligned
    j = std::min(d, -reinterpret_cast<uintptr_t>(row.dx) % sizeof(F32Vec) / sizeof(Z));
    if (j > 0) row.Few(0, j, weight, before, dw);
  }
  for (; j + kPair <= d; j += kPair) {
    if constexpr (kDx == Dx::kStream) {
      for (size_t i = 0; i < kPair; i += kCacheLine / sizeof(X)) PrefetchToL2(next_x + j + i);
      for (size_t i = 0; i < kPair; i += kCacheLine / sizeof(Y)) PrefetchToL2(next_dy + j + i);
    }
    Pair sum = LoadSum<kDw>(before, j);
    row.StoreAt(j, row.At(j, LoadGradientWeight<kDx>(weight + j), sum));
    StoreSum<kDw>(sum, dw, j);
  }
  if (j < d) row.Few(j, d, weight, before, dw);
}

// Two rows, each load of the weight, and each load and store of dw's sums, shared: 512 x 4096 in
// f32 takes three quarters of the time. Four such rows, with x, dy and dx the same distance from a
// page's begin, would be twelve streams into the same eight lines of L1.
template <bool kDw, class X, class Y>
HWY_NOINLINE void ApplyTwoRows(const Norm& norm, const GradientRows& rows, size_t index,
                               const Terms<float>& a_terms, const Terms<float>& b_terms) {
  using Row = GradientRow<Dx::kStore, kDw, X, Y, Y>;
  const size_t d = norm.d;
  const float* HWY_RESTRICT weight = norm.weight;
  float* HWY_RESTRICT dw = rows.dw;
  const SumsBefore before(rows, index);
  const Row a(rows, index, a_terms);
  const Row b(rows, index + 1, b_terms);
  size_t j = 0;
  for (; j + kPair <= d; j += kPair) {
    const Pair w = Load(weight + j);
    Pair sum = LoadSum<kDw>(before, j);
    const Pair a_dx = a.At(j, w, sum);
    const Pair b_dx = b.At(j, w, sum);
    StoreBoth(a_dx, a.dx + j, b_dx, b.dx + j);
    StoreSum<kDw>(sum, dw, j);
  }
  if (j < d) {
    a.Few(j, d, weight, before, dw);
    b.Few(j, d, weight, SumsBefore(rows, index + 1), dw);
  }
}

// The functions for what is asked of some rows, found once for all of them.
struct Apply {
  void (*row)(const Norm&, const GradientRows&, size_t, const Terms<float>&);
  void (*two)(const Norm&, const GradientRows&, size_t, const Terms<float>&,
              const Terms<float>&);  // or null
};

// The usual calls alone have a function for two rows, as functions are what makes the library
// large.
template <bool kDw, class X, class Y, class Z>
HWY_INLINE Apply FindApply(const GradientRows& rows) {
  if (rows.stream) return {&ApplyRow<Dx::kStream, kDw, X, Y, Z>, nullptr};
  if (rows.add_dx) return {&ApplyRow<Dx::kAdd, kDw, X, Y, Z>, nullptr};
  if constexpr (std::is_same_v<Y, Z>) {
    return {&ApplyRow<Dx::kStore, kDw, X, Y, Z>, &ApplyTwoRows<kDw, X, Y>};
  } else {
    return {&ApplyRow<Dx::kStore, kDw, X, Y, Z>, nullptr};
  }
}

template <class X, class Y, class Z>
HWY_INLINE Apply FindApply(const GradientRows& rows) {
  if (rows.dx == nullptr) return {&ApplyRow<Dx::kNone, true, X, Y, Y>, nullptr};
  return rows.dw != nullptr ? FindApply<true, X, Y, Z>(rows) : FindApply<false, X, Y, Z>(rows);
}

// ------------------------------------------------------------------ kernels

// The terms of a row of which something is cold. Where its r is NaN the others do not matter.
template <class X, class Y>
HWY_NOINLINE RowTerms ColdRowTerms(const Norm& norm, const GradientRows& rows, size_t row,
                                   const HotTerms& hot) {
  if (std::isnan(hot.terms.r)) return {{}, hot.terms.r, hot.cold};
  return {ColdTerms<X, Y>(norm, rows, row), hot.terms.r, hot.cold};
}

// A row by such terms. One whose r is NaN gives nothing but NaN. A dx in the place of dy is written
// after dw has been added to.
template <class X, class Y, class Z>
HWY_NOINLINE void ApplyColdRow(const Norm& norm, const GradientRows& rows, size_t row,
                               const RowTerms& terms) {
  if (std::isnan(terms.r)) {
    if (rows.dx != nullptr) FillWithNaN(rows.Output<Z>(row), norm.d);
    if (rows.dw != nullptr) FillWithNaN(rows.dw, norm.d);
  } else if (terms.cold == Cold::kDx && rows.dw != nullptr) {
    ApplyRow<Dx::kNone, true, X, Y, Y>(norm, rows, row, {terms.r, 0, 0});
    GradientRows without_dw = rows;
    without_dw.dw = nullptr;
    ColdGradient<X, Y, Z>(norm, terms.terms, without_dw, row);
  } else {
    ColdGradient<X, Y, Z>(norm, terms.terms, rows, row);
  }
}

template <class X, class Y, class Z>
HWY_NOINLINE void BackwardRow(const Norm& norm, const GradientRows& rows, size_t row,
                              const Apply& apply) {
  const HotTerms hot = TermsOfRow<X, Y>(norm, rows, row);
  if (HWY_LIKELY(hot.cold == Cold::kNothing)) {
    apply.row(norm, rows, row, hot.terms);
  } else {
    ApplyColdRow<X, Y, Z>(norm, rows, row, ColdRowTerms<X, Y>(norm, rows, row, hot));
  }
}

// Four rows at a time, and the next four summed before these are worked on, so that the two
// overlap: as in NormaliseShortRows().
template <class X, class Y, class Z>
HWY_INLINE size_t BackwardByFours(const Norm& norm, const GradientRows& rows, const Apply& apply) {
  FourTerms now;
  FourTerms next;
  MakeFourTerms<X, Y>(norm, rows, 0, next);
  size_t row = 0;
  for (; row + 4 <= rows.count; row += 4) {
    now = next;
    if (row + 8 <= rows.count) MakeFourTerms<X, Y>(norm, rows, row + 4, next);
    if (HWY_UNLIKELY(!now.safe)) {
      for (size_t i = row; i < row + 4; ++i) BackwardRow<X, Y, Z>(norm, rows, i, apply);
    } else if (HWY_LIKELY(apply.two != nullptr)) {
      apply.two(norm, rows, row, now.Row(0), now.Row(1));
      apply.two(norm, rows, row + 2, now.Row(2), now.Row(3));
    } else {
      for (size_t i = 0; i < 4; ++i) apply.row(norm, rows, row + i, now.Row(i));
    }
  }
  return row;
}

// Two rows at a time: those that are not short.
template <class X, class Y, class Z>
HWY_INLINE size_t BackwardByTwos(const Norm& norm, const GradientRows& rows, const Apply& apply) {
  size_t row = 0;
  for (; row + 2 <= rows.count; row += 2) {
    const HotTerms a = TermsOfRow<X, Y>(norm, rows, row);
    const HotTerms b = TermsOfRow<X, Y>(norm, rows, row + 1);
    if (HWY_LIKELY(a.cold == Cold::kNothing && b.cold == Cold::kNothing)) {
      apply.two(norm, rows, row, a.terms, b.terms);
    } else {
      BackwardRow<X, Y, Z>(norm, rows, row, apply);
      BackwardRow<X, Y, Z>(norm, rows, row + 1, apply);
    }
  }
  return row;
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
HWY_INLINE float SumHeldRow(const Norm& norm, const GradientRows& rows, size_t row) {
  const size_t d = norm.d;
  const Lanes<kCount> g = Mul(LoadRow<kWhole, kCount>(rows.Gradient<float>(row), d),
                              LoadRow<kWhole, kCount>(norm.weight, d));
  return 0.0f + Sum(Mul(g, LoadRow<kWhole, kCount>(rows.Input<float>(row), d)));
}

// The sums of dw of up to 128 f32 elements take a quarter of the registers of AVX-512, and stay
// there from row to row. One row is summed while the one before it waits for its terms: 4096 x 128
// takes 1.98 times memcpy's time instead of 2.88. (Where x and dy stay in registers, too, from the
// sum to the store, there are none left for the sum of the next row: 2.08.)
//
// The rows from `begin` on, up to one that is not safe: returns its index, or the number of rows.
// It copies what it is given as NormaliseSafeRows() does, and for the same reasons.
template <size_t kPairs, bool kWhole, Dx kDx>
HWY_NOINLINE size_t BackwardSafeRows(const Norm& given_norm, const GradientRows& given_rows,
                                     size_t begin) {
  Norm norm = given_norm;
  const GradientRows rows = given_rows;
  constexpr size_t kCount = kHeldPairs<kPairs>;
  AssumeHeld<kPairs, kWhole>(norm);
  const size_t d = norm.d;
  const bool start = rows.start_dw && begin == 0;
  Lanes<kCount> sums = start ? ZeroLanes<kCount>() : LoadRow<kWhole, kCount>(rows.dw, d);
  size_t i = begin;
  float c = SumHeldRow<kWhole, kCount>(norm, rows, i);
  for (; i < rows.count; ++i) {
    const float next = i + 1 < rows.count ? SumHeldRow<kWhole, kCount>(norm, rows, i + 1) : c;
    const HotTerms hot = MakeHotTerms(norm, {0, c}, rows.rstd + i);
    if (HWY_UNLIKELY(hot.cold != Cold::kNothing)) break;
    const GradientRow<kDx, true, float, float, float> row(rows, i, hot.terms);
    // All of it before the first store, which loads might else have to wait for.
    const Lanes<kCount> x = LoadRow<kWhole, kCount>(row.x, d);
    const Lanes<kCount> dy = LoadRow<kWhole, kCount>(row.dy, d);
    ApplyHeldRow<kWhole>(0, d, x, dy, norm.weight, row, sums);
    c = next;
  }
  StoreRow<kWhole, false>(sums, rows.dw, d);
  return i;
}

template <size_t kPairs>
HWY_INLINE void BackwardHeldRows(const Norm& norm, const GradientRows& rows) {
  const bool whole = IsWhole<kPairs>(norm);
  const bool stream = rows.stream && AreAligned(rows.dx, rows.dx_stride);
  const Apply apply = FindApply<float, float, float>(rows);
  for (size_t i = 0; i < rows.count; ++i) {
    i = !whole   ? BackwardSafeRows<kPairs, false, Dx::kStore>(norm, rows, i)
        : stream ? BackwardSafeRows<kPairs, true, Dx::kStream>(norm, rows, i)
                 : BackwardSafeRows<kPairs, true, Dx::kStore>(norm, rows, i);
    if (i < rows.count) BackwardRow<float, float, float>(norm, rows, i, apply);
  }
  if (stream) hwy::FlushStream();
}

// The pairs that such rows take, or 0: those of training, to which the forward pass left an inverse
// RMS each.
HWY_INLINE size_t HeldPairs(const Norm& norm, const GradientRows& rows) {
  const bool held = rows.dx != nullptr && rows.dw != nullptr && rows.rstd != nullptr &&
                    !rows.add_dx && !norm.eps_outside;
  return held ? HeldPairs(norm) : 0;
}

// ------------------------------------------------------------------ the way of each call

template <class X, class Y, class Z = Y>
void BackwardRows(const Norm& norm, const GradientRows& rows) {
  if constexpr (kFitsRegisters<X> && std::is_same_v<X, Y> && std::is_same_v<Y, Z>) {
    switch (HeldPairs(norm, rows)) {
      case 1:
        return BackwardHeldRows<1>(norm, rows);
      case 2:
        return BackwardHeldRows<2>(norm, rows);
      case 3:
        return BackwardHeldRows<3>(norm, rows);
      case 4:
        return BackwardHeldRows<4>(norm, rows);
    }
  }
  const Apply apply = FindApply<X, Y, Z>(rows);
  size_t row = 0;
  const bool is_short = norm.d * sizeof(X) <= kShortRowBytes;
  if (rows.count >= 4 && is_short && !rows.stream) {
    row = BackwardByFours<X, Y, Z>(norm, rows, apply);
  } else if (apply.two != nullptr) {
    row = BackwardByTwos<X, Y, Z>(norm, rows, apply);
  }
  for (; row < rows.count; ++row) BackwardRow<X, Y, Z>(norm, rows, row, apply);
  if (rows.stream) hwy::FlushStream();  // before another thread may read dx
}

template <class X, class Y>
RowSums SumsOfBlock(const Norm& norm, const GradientRows& rows) {
  return SumRow<X, Y>(norm, rows, 0);
}

template <class X, class Y>
void TermsOfRows(const Norm& norm, const GradientRows& rows, RowTerms* terms) {
  for (size_t row = 0; row < rows.count; ++row) {
    const HotTerms hot = TermsOfRow<X, Y>(norm, rows, row);
    terms[row] =
        hot.cold == Cold::kNothing ? Widened(hot.terms) : ColdRowTerms<X, Y>(norm, rows, row, hot);
  }
}

template <class X, class Y, class Z = Y>
void BackwardColumns(const Norm& norm, const GradientRows& rows, const RowTerms* terms) {
  const Apply apply = FindApply<X, Y, Z>(rows);
  for (size_t row = 0; row < rows.count; ++row) {
    if (HWY_LIKELY(terms[row].cold == Cold::kNothing)) {
      apply.row(norm, rows, row, Narrowed(terms[row].terms));
    } else {
      ApplyColdRow<X, Y, Z>(norm, rows, row, terms[row]);
    }
  }
  if (rows.stream) hwy::FlushStream();
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_BACKWARD_INL_H_
