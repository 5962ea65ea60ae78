// SPDX-License-Identifier: Apache-2.0
// The sum of squares of elements, by the lanes and the tree of reference.cc.
//
//   Source  a pointer to elements, or Added (add-inl.h)
//   kCount  pairs of vectors in a tree of lanes

#if defined(RMSNORM_LIB_KERNELS_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_SQUARES_INL_H_
#undef RMSNORM_LIB_KERNELS_SQUARES_INL_H_
#else
#define RMSNORM_LIB_KERNELS_SQUARES_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "../reference.h"
#include "elements-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// A block's 128 lanes are 8 registers of AVX-512, enough to hide the latency of fma. Narrower
// targets have too few registers and make two passes over a block, each for 64 neighbouring lanes,
// so that the passes touch different cache lines.
constexpr size_t kPasses = kN >= 16 ? 1 : 2;
constexpr size_t kPassLanes = kLanes / kPasses;
constexpr size_t kPassPairs = kPassLanes / kPair;

// Whether a source takes one pass where two are usual. Some of its sums then lie in memory, which
// costs less than going over its operands twice.
template <class Source>
constexpr bool kTakesOnePass = false;

// Whether the pairs of a source have the even elements in `lower` and the odd ones in `upper`.
template <class Source>
constexpr bool kSplitsByParity = std::is_same_v<Source, const BF16*>;

HWY_INLINE Pair SplitByParity(hn::Vec<PackedTag> packed) {
  const U32Tag tag;
  const auto bits = hn::BitCast(tag, packed);
  return {hn::BitCast(F32Tag(), hn::ShiftLeft<16>(bits)),
          hn::BitCast(F32Tag(), hn::And(bits, hn::Set(tag, 0xFFFF0000u)))};
}

// The next pair to sum. A pointer loads its elements. Another source makes them, and may store
// them.
template <class X, class Some>
HWY_INLINE Pair MakeForSum(const X* from, Some some) {
  if constexpr (kSplitsByParity<const X*>) {
    return SplitByParity(LoadBits(from, some));
  } else {
    return Load(from, some);
  }
}

// The lanes of kCount pairs of vectors, in order. In a pair of 2 kN elements `lower` holds the
// first kN and `upper` the others. bf16 splits cheaper into even and odd elements; that changes
// where a lane is, not what is added to it. Lanes are a tree of named members, as gcc 12 keeps
// arrays of vectors in memory.
template <size_t kCount>
struct Lanes {
  Lanes<kCount / 2> first;
  Lanes<kCount / 2> second;
};
template <>
struct Lanes<1> {
  Pair pair;
};

template <size_t kCount>
HWY_INLINE Lanes<kCount> ZeroLanes() {
  if constexpr (kCount == 1) {
    return {{hn::Zero(F32Tag()), hn::Zero(F32Tag())}};
  } else {
    return {ZeroLanes<kCount / 2>(), ZeroLanes<kCount / 2>()};
  }
}

// Two pairs to sum. A source may have a better way to make them.
template <class Source>
HWY_INLINE Lanes<2> MakeTwoForSum(Source x) {
  return {{MakeForSum(x, All())}, {MakeForSum(x + kPair, All())}};
}

// f of each pair of a tree of lanes, with the same pairs of others. f is a lambda with
// RMSNORM_LAMBDA.
template <class F, size_t kCount, class... Others>
HWY_INLINE Lanes<kCount> MapLanes(const F& f, const Lanes<kCount>& lanes, const Others&... others) {
  if constexpr (kCount == 1) {
    return {f(lanes.pair, others.pair...)};
  } else {
    return {MapLanes(f, lanes.first, others.first...), MapLanes(f, lanes.second, others.second...)};
  }
}

template <size_t kCount>
HWY_INLINE Lanes<kCount> Add(const Lanes<kCount>& a, const Lanes<kCount>& b) {
  return MapLanes([](Pair p, Pair q) RMSNORM_LAMBDA { return Add(p, q); }, a, b);
}

template <size_t kCount>
HWY_INLINE Lanes<kCount> Mul(const Lanes<kCount>& a, const Lanes<kCount>& b) {
  return MapLanes([](Pair p, Pair q) RMSNORM_LAMBDA { return Mul(p, q); }, a, b);
}

// The squares of kCount * kPair elements. Adding them to +0 would give the same bits.
template <size_t kCount, class Source>
HWY_INLINE Lanes<kCount> Squares(Source x) {
  if constexpr (kCount == 2) {
    const Lanes<2> v = MakeTwoForSum(x);
    return {{Mul(v.first.pair, v.first.pair)}, {Mul(v.second.pair, v.second.pair)}};
  } else {
    return {Squares<kCount / 2>(x), Squares<kCount / 2>(x + kCount / 2 * kPair)};
  }
}

HWY_INLINE void AddSquares(Pair& sum, Pair v) {
  sum.lower = hn::MulAdd(v.lower, v.lower, sum.lower);
  sum.upper = hn::MulAdd(v.upper, v.upper, sum.upper);
}

// Adds the squares of kCount * kPair elements.
template <size_t kCount, class Source>
HWY_INLINE void AddSquares(Lanes<kCount>& lanes, Source x) {
  if constexpr (kCount == 1) {
    AddSquares(lanes.pair, MakeForSum(x, All()));
  } else if constexpr (kCount == 2) {
    const Lanes<2> v = MakeTwoForSum(x);
    AddSquares(lanes.first.pair, v.first.pair);
    AddSquares(lanes.second.pair, v.second.pair);
  } else {
    AddSquares(lanes.first, x);
    AddSquares(lanes.second, x + kCount / 2 * kPair);
  }
}

// Whether a source makes the elements after its last whole pair by a call. The call is then made
// first, before there are sums that it would have to save.
template <class Source>
constexpr bool kLoadsTailFirst = false;

// Adds the squares of n <= kCount * kPair elements, as if zeros followed them. `tail` holds the
// elements after the last whole pair if kLoadsTailFirst.
template <size_t kCount, class Source>
HWY_INLINE void AddFirstSquares(Lanes<kCount>& lanes, Source x, size_t n, const Pair& tail) {
  if constexpr (kCount > 1) {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (n <= kHalf) {
      AddFirstSquares(lanes.first, x, n, tail);
    } else {
      AddSquares(lanes.first, x);
      AddFirstSquares(lanes.second, x + kHalf, n - kHalf, tail);
    }
  } else if constexpr (kLoadsTailFirst<Source>) {
    AddSquares(lanes.pair, n == kPair ? MakeForSum(x, All()) : tail);
  } else {
    AddSquares(lanes.pair, MakeForSum(x, First{n}));
  }
}

// Returns the squares of one pass: of every kLanes elements the first kCount * kPair. `size`
// elements may be read.
template <size_t kCount, class Source>
HWY_INLINE Lanes<kCount> SumPass(Source x, size_t size) {
  Pair tail = {hn::Zero(F32Tag()), hn::Zero(F32Tag())};
  if constexpr (kLoadsTailFirst<Source>) {
    const size_t in_tail = size % kPair;
    if (in_tail != 0 && size % kLanes < kCount * kPair) {
      tail = MakeForSum(x + (size - in_tail), First{in_tail});
    }
  }
  const bool first = size >= kCount * kPair;
  // Not assigned later: gcc would compile the implicit constructor for the baseline of arm64.
  Lanes<kCount> lanes = first ? Squares<kCount>(x) : ZeroLanes<kCount>();
  size_t j = first ? kLanes : 0;
  for (; j + kCount * kPair <= size; j += kLanes) AddSquares(lanes, x + j);
  if (j < size) AddFirstSquares(lanes, x + j, size - j, tail);
  return lanes;
}

// Lane l += lane l + size / 2, until one pair is left.
template <size_t kCount>
HWY_INLINE Pair FoldToPair(const Lanes<kCount>& lanes) {
  if constexpr (kCount == 1) {
    return lanes.pair;
  } else {
    return FoldToPair(Add(lanes.first, lanes.second));
  }
}

using FourTag = hn::FixedTag<float, 4>;
using Four = hn::Vec<FourTag>;

// Lane l += lane l + size / 2, and so on until four are left.
template <class D>
HWY_INLINE Four FoldToFour(D, hn::Vec<D> sum) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return FoldToFour(half, hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum)));
  } else {
    return sum;
  }
}

template <class Source>
HWY_INLINE Pair SumBlockToPair(Source x, size_t size) {
  // The other half of the lanes would add +0 to sums that are not negative, which changes no bit.
  constexpr size_t kHalf = kLanes / 2;
  if (size <= kHalf) return FoldToPair(SumPass<kHalf / kPair>(x, size));
  if constexpr (kPasses == 1 || kTakesOnePass<Source>) {
    return FoldToPair(SumPass<kLanes / kPair>(x, size));
  } else {
    return FoldToPair(
        Add(SumPass<kPassPairs>(x, size), SumPass<kPassPairs>(x + kHalf, size - kHalf)));
  }
}

// A pair of lanes folded to four, in the order of their elements.
template <class Source>
HWY_INLINE Four FoldPairToFour(Pair pair) {
  const F32Tag tag;
  if constexpr (kSplitsByParity<Source>) {
    const Four even = FoldToFour(tag, pair.lower);
    const Four odd = FoldToFour(tag, pair.upper);
    const FourTag four;
    return hn::Add(hn::InterleaveLower(four, even, odd), hn::InterleaveUpper(four, even, odd));
  } else {
    return FoldToFour(tag, hn::Add(pair.lower, pair.upper));
  }
}

// The lanes of a block of `size` elements, folded to four.
template <class Source>
HWY_INLINE Four SumBlock(Source x, size_t size) {
  return FoldPairToFour<Source>(SumBlockToPair(x, size));
}

// Says which lanes are from `smallest` to `largest`.
HWY_INLINE auto AreWithin(Four values, float smallest, float largest) {
  const FourTag tag;
  return hn::And(hn::Ge(values, hn::Set(tag, smallest)), hn::Le(values, hn::Set(tag, largest)));
}

// The last two steps of the tree for four blocks at once: sum i belongs to block i.
HWY_INLINE Four FoldFour(Four a, Four b, Four c, Four d) {
  const FourTag tag;
  const Four ab = hn::Add(hn::ConcatLowerLower(tag, b, a), hn::ConcatUpperUpper(tag, b, a));
  const Four cd = hn::Add(hn::ConcatLowerLower(tag, d, c), hn::ConcatUpperUpper(tag, d, c));
  return hn::Add(hn::ConcatEven(tag, cd, ab), hn::ConcatOdd(tag, cd, ab));
}

HWY_INLINE float FoldOne(Four sum) {
  sum = hn::Add(sum, hn::Shuffle1032(sum));
  return hn::GetLane(hn::Add(sum, hn::Shuffle2301(sum)));
}

template <class Source>
HWY_INLINE float SumBlocks(Source x, size_t d) {
  float total = 0;
  for (size_t begin = 0; begin < d; begin += kBlock) {
    total += FoldOne(SumBlock(x + begin, std::min(kBlock, d - begin)));
  }
  return total;
}

// A SumLeaf of x alone.
template <class T>
HWY_NOINLINE float SumSquaresOfRow(const void* x, const void* /*residual*/, void* /*residual_out*/,
                                   size_t d) {
  return SumBlocks(static_cast<const T*>(x), d);
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_SQUARES_INL_H_
