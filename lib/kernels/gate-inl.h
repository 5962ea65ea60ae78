// SPDX-License-Identifier: Apache-2.0
// Activations in registers, and the leaves of rows of one type with a gate. T is that type.

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

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

using I32Tag = hn::Rebind<int32_t, F32Tag>;

// The larger and the smaller of two; b where either is a NaN.
HWY_INLINE F32Vec LargerOf(F32Vec a, F32Vec b) {
  return HWY_ARCH_X86 ? hn::Max(a, b) : hn::IfThenElse(hn::Lt(b, a), a, b);
}
HWY_INLINE F32Vec SmallerOf(F32Vec a, F32Vec b) {
  return HWY_ARCH_X86 ? hn::Min(a, b) : hn::IfThenElse(hn::Gt(b, a), a, b);
}

// The parts of exp(t) = (1 + e) * 2^k of an element. `k` has the bits of that integer in the place
// of an exponent.
struct Exponential {
  F32Vec z;
  F32Vec e;
  hn::Vec<I32Tag> k;
};

// The parts for four vectors. These go together, as the operations on one wait for each other.
struct FourExponentials {
  Exponential a;
  Exponential b;
  Exponential c;
  Exponential d;
};

// The parts before the polynomial in s, whose `sum` ends in the bits of k.
struct Reduced {
  F32Vec z;
  F32Vec sum;
  F32Vec s;
};

// Here t is -u. LLVM 19 must not know that a gate was of f16: it would compare f16 element by
// element.
HWY_INLINE Reduced Reduce(F32Vec gate) {
  RMSNORM_HIDE_ORIGIN(gate.raw);
  const F32Tag tag;
  const F32Vec z = LargerOf(hn::Set(tag, kSmallestGate), gate);
  const F32Vec u = SmallerOf(hn::Set(tag, kLargestGate), z);
  const F32Vec to_integer = hn::Set(tag, kToInteger);
  const F32Vec sum = hn::Add(hn::Mul(u, hn::Set(tag, -kInverseOfLn2)), to_integer);
  const F32Vec k = hn::Sub(sum, to_integer);
  const F32Vec s = hn::NegMulSub(k, hn::Set(tag, kUpperLn2), u);
  return {z, sum, hn::NegMulAdd(k, hn::Set(tag, kLowerLn2), s)};
}

HWY_INLINE Exponential ExponentialOf(const Reduced& reduced, F32Vec polynomial) {
  return {reduced.z, hn::MulAdd(polynomial, hn::Mul(reduced.s, reduced.s), reduced.s),
          hn::ShiftLeft<23>(hn::BitCast(I32Tag(), reduced.sum))};
}

HWY_INLINE FourExponentials Exponentiate(const Lanes<2>& gate) {
  const F32Tag tag;
  const Reduced a = Reduce(gate.first.pair.lower);
  const Reduced b = Reduce(gate.first.pair.upper);
  const Reduced c = Reduce(gate.second.pair.lower);
  const Reduced d = Reduce(gate.second.pair.upper);
  F32Vec p = hn::Set(tag, kExpCoefficients[0]);
  F32Vec q = p;
  F32Vec v = p;
  F32Vec w = p;
  for (size_t i = 1; i < std::size(kExpCoefficients); ++i) {
    const F32Vec coefficient = hn::Set(tag, kExpCoefficients[i]);
    p = hn::MulAdd(p, a.s, coefficient);
    q = hn::MulAdd(q, b.s, coefficient);
    v = hn::MulAdd(v, c.s, coefficient);
    w = hn::MulAdd(w, d.s, coefficient);
  }
  return {ExponentialOf(a, p), ExponentialOf(b, q), ExponentialOf(c, v), ExponentialOf(d, w)};
}

// A mask of all lanes or none.
HWY_INLINE hn::Mask<F32Tag> IsSilu(rmsnorm_activation activation) {
  return hn::FirstN(F32Tag(), activation == RMSNORM_ACTIVATION_SILU ? kN : 0);
}

HWY_INLINE F32Vec Numerator(hn::Mask<F32Tag> silu, const Exponential& exponential) {
  return hn::IfThenElse(silu, exponential.z, hn::Set(F32Tag(), 1.0f));
}

// Without the factors of activation.h. From this gate on they change no bit, as 2^k and the result
// are normal numbers.
constexpr float kSmallestDirectGate = -80.0f;
HWY_INLINE F32Vec ActivatedDirectly(hn::Mask<F32Tag> silu, const Exponential& exponential) {
  const F32Tag tag;
  const F32Vec one = hn::Set(tag, 1.0f);
  const F32Vec power = hn::BitCast(tag, hn::Add(hn::BitCast(I32Tag(), one), exponential.k));
  const F32Vec b = hn::Add(hn::MulAdd(exponential.e, power, one), power);
  return hn::Div(Numerator(silu, exponential), b);
}

// Two powers of two multiply to 2^-m: f = 2^-min(m, 100), and g. The product with f is exact, as
// its result is normal. f serves for the denominator as well, where anything below 2^-100 is lost.
HWY_INLINE F32Vec ActivatedByFactors(hn::Mask<F32Tag> silu, const Exponential& exponential) {
  const F32Tag tag;
  const I32Tag integers;
  const auto exponent_of_one = hn::BitCast(integers, hn::Set(tag, 1.0f));
  const auto k = exponential.k;
  const auto m = hn::Max(k, hn::Zero(integers));
  const auto first = hn::Min(m, hn::Set(integers, 100 << 23));
  const F32Vec f = hn::BitCast(tag, hn::Sub(exponent_of_one, first));
  const F32Vec g = hn::BitCast(tag, hn::Sub(hn::Add(exponent_of_one, first), m));
  const F32Vec v = hn::BitCast(tag, hn::Add(exponent_of_one, hn::Min(k, hn::Zero(integers))));
  const F32Vec b = hn::Add(hn::MulAdd(exponential.e, v, f), v);
  return hn::Mul(hn::Mul(hn::Div(Numerator(silu, exponential), b), f), g);
}

inline HWY_NOINLINE Lanes<2> ActivateByFactors(hn::Mask<F32Tag> silu, const Lanes<2>& gate) {
  const FourExponentials of = Exponentiate(gate);
  return {{{ActivatedByFactors(silu, of.a), ActivatedByFactors(silu, of.b)}},
          {{ActivatedByFactors(silu, of.c), ActivatedByFactors(silu, of.d)}}};
}

// Activates four vectors by the operations of activation.h, with fewer instructions where the bits
// are the same. A NaN stays one either way, since its e is NaN, so `smallest` leaves it out.
HWY_INLINE Lanes<2> Activate(hn::Mask<F32Tag> silu, const Lanes<2>& gate) {
  const F32Tag tag;
  const FourExponentials of = Exponentiate(gate);
  const F32Vec limit = hn::Set(tag, kSmallestDirectGate);
  const F32Vec smallest =
      SmallerOf(of.a.z, SmallerOf(of.b.z, SmallerOf(of.c.z, SmallerOf(of.d.z, limit))));
  if (HWY_UNLIKELY(!hn::AllTrue(tag, hn::Eq(smallest, limit)))) {
    return ActivateByFactors(silu, gate);
  }
  return {{{ActivatedDirectly(silu, of.a), ActivatedDirectly(silu, of.b)}},
          {{ActivatedDirectly(silu, of.c), ActivatedDirectly(silu, of.d)}}};
}

// A RowLeaf. y may be x. NaNs need no care on the way to bf16, as for a RowToScale.
template <class T>
HWY_NOINLINE void ScaleGatedRow(const Norm& norm, const RowRun& run, Operand source, size_t row,
                                float inverse_rms) {
  const T* const x = run.Row<T>(source, row);
  const T* const gate = run.Row<T>(kGate, row);
  const float* const weight = run.Row<float>(kWeight, row);
  T* const y = run.Row<T>(kY, row);
  const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  const bool round_first = norm.gate_rounding == RMSNORM_GATE_ROUNDED;
  const auto silu = IsSilu(norm.activation);
  const F32Vec r = hn::Set(F32Tag(), inverse_rms);
  ForEachTwoPairs(run.d, [&](size_t j, auto some, size_t k, auto others) RMSNORM_LAMBDA {
    const Lanes<2> factor = Activate(silu, {{Load(gate + j, some)}, {Load(gate + k, others)}});
    Pair m = Scaled<T>(cast, Load(x + j, some), r, Load(weight + j, some));
    Pair next = Scaled<T>(cast, Load(x + k, others), r, Load(weight + k, others));
    if (round_first) {
      m = Rounded<T>(m);
      next = Rounded<T>(next);
    }
    StoreBoth(Mul(m, factor.first.pair), y + j, some, Mul(next, factor.second.pair), y + k, others);
  });
}

// ------------------------------------------------------------------ before the norm

template <class T>
HWY_NOINLINE void FillGatedTile(rmsnorm_activation activation, const void* x_data,
                                const void* gate_data, size_t n, float* tile) {
  const T* const x = static_cast<const T*>(x_data);
  const T* const gate = static_cast<const T*>(gate_data);
  const auto silu = IsSilu(activation);
  ForEachTwoPairs(n, [&](size_t j, auto some, size_t k, auto others) RMSNORM_LAMBDA {
    const Lanes<2> factor = Activate(silu, {{Load(gate + j, some)}, {Load(gate + k, others)}});
    const Pair product = Mul(Load(x + j, some), factor.first.pair);
    const Pair next = Mul(Load(x + k, others), factor.second.pair);
    Store(product, tile + j, some);
    Store(next, tile + k, others);
  });
}

template <class T>
HWY_NOINLINE void ScaleTileTo(bool cast, const float* tile, const float* weight, size_t n,
                              float inverse_rms, void* y_data) {
  T* const y = static_cast<T*>(y_data);
  const F32Vec r = hn::Set(F32Tag(), inverse_rms);
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    Store(Scaled<T>(cast, Load(tile + j, some), r, Load(weight + j, some)), y + j, some);
  });
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_GATE_INL_H_
