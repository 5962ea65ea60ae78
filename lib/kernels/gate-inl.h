// SPDX-License-Identifier: Apache-2.0
// Activations in registers, and the leaves of rows of one type with a gate after the norm, compiled
// for each target.

#if defined(RMSNORM_LIB_KERNELS_GATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_GATE_INL_H_
#undef RMSNORM_LIB_KERNELS_GATE_INL_H_
#else
#define RMSNORM_LIB_KERNELS_GATE_INL_H_
#endif

#include <cstdint>
#include <iterator>

#include "../activation.h"
#include "forward-inl.h"
#include "tile-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

using I32Tag = hn::Rebind<int32_t, F32Tag>;

// 2^n, a normal number.
HWY_INLINE F32Vec PowerOfTwo(hn::Vec<I32Tag> n) {
  return hn::BitCast(F32Tag(), hn::ShiftLeft<23>(hn::Add(n, hn::Set(I32Tag(), 127))));
}

// By the operations of activation.h. A NaN stays one, as e is. The empty asm hides from the
// compiler that a gate was of f16: LLVM 19 else compares it as that, element by element.
HWY_INLINE F32Vec Activate(bool silu, F32Vec gate) {
#if HWY_ARCH_X86
  asm("" : "+v"(gate.raw));
#endif
  const F32Tag tag;
  const I32Tag integers;
  const F32Vec smallest = hn::Set(tag, kSmallestGate);
  const F32Vec largest = hn::Set(tag, kLargestGate);
  const F32Vec z = hn::IfThenElse(hn::Lt(gate, smallest), smallest, gate);
  const F32Vec t = hn::Neg(hn::IfThenElse(hn::Gt(z, largest), largest, z));
  const F32Vec rounded = hn::Round(hn::Mul(t, hn::Set(tag, kInverseOfLn2)));
  F32Vec s = hn::NegMulAdd(rounded, hn::Set(tag, kUpperLn2), t);
  s = hn::NegMulAdd(rounded, hn::Set(tag, kLowerLn2), s);
  F32Vec polynomial = hn::Set(tag, kExpCoefficients[0]);
  for (size_t i = 1; i < std::size(kExpCoefficients); ++i) {
    polynomial = hn::MulAdd(polynomial, s, hn::Set(tag, kExpCoefficients[i]));
  }
  const F32Vec e = hn::MulAdd(polynomial, hn::Mul(s, s), s);
  const auto k = hn::ConvertTo(integers, rounded);
  const auto m = hn::Max(k, hn::Zero(integers));
  const auto a = hn::ShiftRight<1>(m);
  const F32Vec f = PowerOfTwo(hn::Sub(hn::Zero(integers), a));
  const F32Vec g = PowerOfTwo(hn::Sub(a, m));
  const F32Vec v = PowerOfTwo(hn::Sub(k, m));
  const F32Vec b = hn::Add(hn::MulAdd(e, v, hn::Mul(f, g)), v);
  return hn::Mul(hn::Mul(hn::Div(silu ? z : hn::Set(tag, 1.0f), b), f), g);
}

// Whole pairs.
template <class T>
HWY_NOINLINE void ScaleGatedPairs(const Norm& norm, const T* x, const T* gate, const float* weight,
                                  size_t d, float r, T* y) {
  const bool cast = norm.rounding == RMSNORM_CAST_THEN_SCALE;
  const bool round_first = norm.gate_rounding == RMSNORM_GATE_ROUNDED_TO_X;
  const bool silu = norm.activation == RMSNORM_SILU;
  const F32Vec rs = hn::Set(F32Tag(), r);
  for (size_t j = 0; j < d; j += kPair) {
    Pair m = ScaledOrCast<T>(cast, Load(x + j), rs, Load(weight + j));
    if (round_first) m = Rounded<T>(m);
    const Pair gates = Load(gate + j);
    // A NaN of the gate may have a payload that rounding would carry into the sign.
    Store(PlainNaN({hn::Mul(m.lower, Activate(silu, gates.lower)),
                    hn::Mul(m.upper, Activate(silu, gates.upper))}),
          y + j);
  }
}

// y may be x.
template <class T>
HWY_NOINLINE void ScaleGatedRow(const Norm& norm, const Run& run, Operand source, size_t row,
                                float r) {
  ByPairs<T>(ScaleGatedPairs<T>, norm, run.Row<const T>(source, row), run.Row<const T>(kGate, row),
             run.Row<const float>(kWeight, 0), run.d, r, run.Row<T>(kY, row));
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_GATE_INL_H_
