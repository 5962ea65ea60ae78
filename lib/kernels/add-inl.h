// SPDX-License-Identifier: Apache-2.0
// The kernels of the residual add, compiled for each target. Each gives the bits of its namesake in
// reference.cc.

#if defined(RMSNORM_LIB_KERNELS_ADD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_ADD_INL_H_
#undef RMSNORM_LIB_KERNELS_ADD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_ADD_INL_H_
#endif

#include "../addend_rows.h"
#include "forward-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// Sums to be squared: added up as they are read, and written on the way. Each element is read
// before it is written, so that `sum` may be `residual`.
template <class X, class R, class S>
struct Added {
  HWY_INLINE Added operator+(size_t j) const { return {x + j, residual + j, sum + j}; }

  const X* x;
  const R* residual;
  S* sum;
};

// Even and odd elements are cheaper to widen, to add and to round than lower and upper ones.
template <>
constexpr bool kSplitsByParity<Added<BF16, BF16, BF16>> = true;

// Even and odd elements rounded to bf16 and put back in order. RoundToBF16() loses no NaN of such
// sums, as their payloads end where bf16 does.
HWY_INLINE hn::Vec<PackedTag> NarrowByParity(Pair value) {
  const auto even = hn::ShiftRight<16>(RoundToBF16(value.lower));
  const auto odd = hn::And(RoundToBF16(value.upper), hn::Set(U32Tag(), 0xFFFF0000u));
  return hn::BitCast(PackedTag(), hn::Or(even, odd));
}

HWY_INLINE Pair AddByParity(Added<BF16, BF16, BF16> at) {
  const PackedTag tag;
  return Add(SplitByParity(hn::LoadU(tag, Bits(at.residual))),
             SplitByParity(hn::LoadU(tag, Bits(at.x))));
}

template <class X, class R, class S>
HWY_INLINE Pair LoadForSum(Added<X, R, S> at) {
  if constexpr (kSplitsByParity<Added<X, R, S>>) {
    const auto sum = NarrowByParity(AddByParity(at));
    hn::StoreU(sum, PackedTag(), Bits(at.sum));
    return SplitByParity(sum);
  } else {
    const Pair sum = Add(Load(at.residual), Load(at.x));
    Store(sum, at.sum);
    return {Round<S>(sum.lower), Round<S>(sum.upper)};
  }
}

#if RMSNORM_NATIVE_BF16
// Two pairs share a test for zeros.
HWY_INLINE Lanes<2> LoadTwoForSum(Added<BF16, BF16, BF16> at) {
  const PackedTag tag;
  const Added<BF16, BF16, BF16> next = at + kPair;
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

template <class X, class R, class S>
HWY_INLINE Pair LoadFirst(Added<X, R, S> at, size_t n) {
  const Pair sum = Add(LoadFirst(at.residual, n), LoadFirst(at.x, n));
  if constexpr (kSplitsByParity<Added<X, R, S>>) {
    const auto packed = Narrow(BF16(), sum);
    StoreBits(PackedTag(), packed, Bits(at.sum), n);
    return SplitByParity(packed);
  } else {
    StoreFirst(sum, at.sum, n);
    return {Round<S>(sum.lower), Round<S>(sum.upper)};
  }
}

// A function of its own, as there are up to eight calls in a block. Its arguments are pointers, as
// those fit registers: beside an Added in memory a row of 65 takes two thirds of the time.
template <class X, class R, class S>
HWY_NOINLINE Pair AddFirst(const X* x, const R* residual, S* sum, size_t n) {
  return LoadFirst(Added<X, R, S>{x, residual, sum}, n);
}
template <class X, class R, class S>
HWY_INLINE Pair LoadFirstForSum(Added<X, R, S> at, size_t n) {
  return n == kPair ? LoadForSum(at) : AddFirst(at.x, at.residual, at.sum, n);
}

// One block. Its arguments are pointers for the same reason.
template <class X, class R, class S>
HWY_NOINLINE FoldedBlock AddBlock(const X* x, const R* residual, S* sum, size_t size) {
  return SumBlock(Added<X, R, S>{x, residual, sum}, size);
}

template <class X, class R, class S>
void AddRows(const AddendRows& rows, double* squares) {
  using Source = Added<X, R, S>;
  size_t row = 0;
  if (rows.d <= kBlock) {
    for (; row + 4 <= rows.count; row += 4) {
      FourBlocks<Source> blocks;
      for (size_t i = 0; i < 4; ++i) {
        blocks.Set(i, AddBlock(rows.Input<X>(row + i), rows.Residual<R>(row + i),
                               rows.Sum<S>(row + i), rows.d));
      }
      HWY_ALIGN float sums[4];
      hn::Store(blocks.Sums(), FourTag(), sums);
      for (size_t i = 0; i < 4; ++i) squares[row + i] = sums[i];
    }
  }
  for (; row < rows.count; ++row) {
    float total = 0;
    for (size_t begin = 0; begin < rows.d; begin += kBlock) {
      total +=
          FoldBlock<Source>(AddBlock(rows.Input<X>(row) + begin, rows.Residual<R>(row) + begin,
                                     rows.Sum<S>(row) + begin, std::min(kBlock, rows.d - begin)));
    }
    squares[row] = total;
  }
}

// ------------------------------------------------------------------ one pass, in registers

// Rows that are added up as they are read first. 4096 x 128 takes 1.5 times memcpy's time, and by
// tiles 2.2.
struct AddedRows {
  using Given = AddendRows;
  HWY_INLINE Added<float, float, float> First(size_t row) const {
    return {rows.Input<float>(row), rows.Residual<float>(row), rows.Sum<float>(row)};
  }
  AddendRows rows;
};

template <size_t kPairs>
void AddForwardRows(const Norm& norm, const AddendRows& addends, const Rows& rows) {
  NormaliseHeldRows<kPairs, AddedRows>(norm, rows, addends);
  if (rows.stream) hwy::FlushStream();  // before another thread may read y
}

HWY_INLINE AddForwardKernel OnePassKernel(const Norm& norm) {
  if constexpr (kFitsRegisters<float>) {
    switch (HeldPairs(norm)) {
      case 1:
        return AddForwardRows<1>;
      case 2:
        return AddForwardRows<2>;
      case 3:
        return AddForwardRows<3>;
      case 4:
        return AddForwardRows<4>;
    }
  }
  return nullptr;
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ADD_INL_H_
