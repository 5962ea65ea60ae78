// SPDX-License-Identifier: Apache-2.0
// The leaves of the residual add, and of a post-norm before it, for rows of one type. T is that
// type.

#if defined(RMSNORM_LIB_KERNELS_ADD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_ADD_INL_H_
#undef RMSNORM_LIB_KERNELS_ADD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_ADD_INL_H_
#endif

#include "forward-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// A source for SumBlock(): MakeForSum() adds the residual, writes the sum and returns it. Each
// element is read before it is written, so `sum` may be `residual`.
template <class T>
struct Added {
  HWY_INLINE Added operator+(size_t j) const { return {x + j, residual + j, sum + j}; }

  const T* x;
  const T* residual;
  T* sum;
};

// Even and odd elements are cheaper to widen, add and round than lower and upper ones.
template <>
constexpr bool kSplitsByParity<Added<BF16>> = true;

// Rounds even and odd elements to bf16 and puts them back in order. RoundToBF16() keeps the NaNs of
// such sums, as their payloads end where bf16 does.
HWY_INLINE hn::Vec<PackedTag> NarrowByParity(Pair value) {
  const auto even = hn::ShiftRight<16>(RoundToBF16(value.lower));
  const auto odd = hn::And(RoundToBF16(value.upper), hn::Set(U32Tag(), 0xFFFF0000u));
  return hn::BitCast(PackedTag(), hn::Or(even, odd));
}

HWY_INLINE Pair AddByParity(Added<BF16> at) {
  return Add(MakeForSum(at.residual, All()), MakeForSum(at.x, All()));
}

// Stores half a pair rounded to f16, and widens it again. Without the hint clang 14
// narrows twice, into memory and into a register.
HWY_INLINE F32Vec StoreAndWiden(F32Vec value, F16* to) {
  U16Vec bits = NarrowHalf(F16(), value);
  RMSNORM_HIDE_ORIGIN(bits.raw);
  hn::StoreU(bits, U16Tag(), Bits(to));
  return Widen(F16(), bits);
}

template <class T>
HWY_INLINE Pair MakeForSum(Added<T> at, All) {
  if constexpr (kSplitsByParity<Added<T>>) {
    const auto sum = NarrowByParity(AddByParity(at));
    hn::StoreU(sum, PackedTag(), Bits(at.sum));
    return SplitByParity(sum);
  } else {
    const Pair sum = Add(Load(at.residual), Load(at.x));
    if constexpr (std::is_same_v<T, F16>) {
      return {StoreAndWiden(sum.lower, at.sum), StoreAndWiden(sum.upper, at.sum + kN)};
    } else {
      Store(sum, at.sum);
      return sum;
    }
  }
}

#if RMSNORM_NATIVE_BF16
// Two pairs share one test for zeros.
HWY_INLINE Lanes<2> MakeTwoForSum(Added<BF16> at) {
  const PackedTag tag;
  const Added<BF16> next = at + kPair;
  const Pair a = AddByParity(at);
  const Pair b = AddByParity(next);
  NativeBF16 a_bits = InterleaveHalves(NativeNarrow(a.lower, a.upper));
  NativeBF16 b_bits = InterleaveHalves(NativeNarrow(b.lower, b.upper));
  if (HWY_UNLIKELY(HasZero(a_bits, b_bits))) {
    a_bits = NarrowByParity(a);
    b_bits = NarrowByParity(b);
  }
  hn::StoreU(a_bits, tag, Bits(at.sum));
  hn::StoreU(b_bits, tag, Bits(next.sum));
  return {{SplitByParity(a_bits)}, {SplitByParity(b_bits)}};
}
#endif

// Not inlined, as a block has a call in each of its passes. The arguments are pointers, which fit
// registers: with an Added in memory a row of 65 takes two thirds longer.
template <class T>
HWY_NOINLINE Pair AddFirst(const T* x, const T* residual, T* sum, size_t n) {
  const Pair added = Add(Load(residual, First{n}), Load(x, First{n}));
  if constexpr (kSplitsByParity<Added<T>>) {
    const auto packed = Narrow(BF16(), added);
    StoreBits(PackedTag(), packed, Bits(sum), n);
    return SplitByParity(packed);
  } else {
    Store(added, sum, First{n});
    return Rounded<T>(added);
  }
}
template <class T>
HWY_INLINE Pair MakeForSum(Added<T> at, First some) {
  return AddFirst(at.x, at.residual, at.sum, some.n);
}
template <class T>
constexpr bool kLoadsTailFirst<Added<T>> = true;

// A SumLeaf that adds the residual.
template <class T>
HWY_NOINLINE float AddRow(const void* x, const void* residual, void* residual_out, size_t d) {
  return SumBlocks(Added<T>{static_cast<const T*>(x), static_cast<const T*>(residual),
                            static_cast<T*>(residual_out)},
                   d);
}

// The arguments are pointers for the same reason as in AddFirst().
template <class T>
HWY_NOINLINE Four AddBlock(const T* x, const T* residual, T* sum, size_t size) {
  return SumBlock(Added<T>{x, residual, sum}, size);
}

template <class T>
HWY_NOINLINE void AddRowsByFours(const RowRun& run, size_t begin, size_t count, float* sums) {
  const RowsOf<const T> x(run, kX);
  const RowsOf<const T> residual(run, kResidual);
  const RowsOf<T> sum(run, kResidualOut);
  const size_t d = run.d;
  for (size_t row = begin; row < begin + count; row += 4, sums += 4) {
    FourBlocks blocks;
    for (size_t i = 0; i < 4; ++i) {
      blocks.Put(i, AddBlock(x[row + i], residual[row + i], sum[row + i], d));
    }
    hn::StoreU(blocks.FoldAll(), FourTag(), sums);
  }
}

// ------------------------------------------------------------------ with a gate or a factor

// Leaves::add_step. The sum of squares is a second pass: in one pass this code would be as long as
// that of AddRow().
template <class T>
HWY_NOINLINE void AddStep(const void* x_data, const void* gate_data, const void* residual_data,
                          float factor, size_t n, void* residual_out) {
  const T* const x = static_cast<const T*>(x_data);
  const T* const gate = static_cast<const T*>(gate_data);
  const T* const residual = static_cast<const T*>(residual_data);
  T* const sum = static_cast<T*>(residual_out);
  const bool gated = gate != nullptr;
  const bool times = factor != 1.0f;
  const F32Vec factors = hn::Set(F32Tag(), factor);
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    Pair h = Load(x + j, some);
    if (gated) h = Rounded<T>(Mul(h, Load(gate + j, some)));
    h = Add(Load(residual + j, some), h);
    if (times) h = Mul(Rounded<T>(h), {factors, factors});
    Store(h, sum + j, some);
  });
}

// ------------------------------------------------------------------ after a post-norm

// A source for SumBlock(), as Added<float>, that adds x * r * weight.
struct NormAdded {
  HWY_INLINE NormAdded operator+(size_t j) const {
    return {x + j, weight + j, residual + j, sum + j, r};
  }

  const float* x;
  const float* weight;
  const float* residual;
  float* sum;
  F32Vec r;
};

template <>
constexpr bool kTakesOnePass<NormAdded> = kN >= 8;

template <class Some>
HWY_INLINE Pair StoreNormAdded(const NormAdded& at, Some some) {
  const Pair normed = Scaled<float>(false, Load(at.x, some), at.r, Load(at.weight, some));
  const Pair sum = Add(Load(at.residual, some), normed);
  Store(sum, at.sum, some);
  return sum;
}

HWY_INLINE Pair MakeForSum(NormAdded at, All some) { return StoreNormAdded(at, some); }
HWY_INLINE Pair MakeForSum(NormAdded at, First some) { return StoreNormAdded(at, some); }

inline HWY_NOINLINE float AddNormOfRow(const float* x, float r, const float* weight,
                                       const float* residual, float* residual_out, size_t d) {
  return SumBlocks(NormAdded{x, weight, residual, residual_out, hn::Set(F32Tag(), r)}, d);
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ADD_INL_H_
