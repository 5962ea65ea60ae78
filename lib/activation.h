// SPDX-License-Identifier: Apache-2.0
// The activations of a gate, silu and sigmoid, as the reference and the kernels of every target
// compute them: operation by operation in f32, without a table.
//
// With t = -z, exp(t) = (1 + e) * 2^k, where e is a polynomial in s = t - k * ln 2. The denominator
// b = 1 + exp(t) is taken times 2^-m, where m = max(k, 0), as exp(t) can be above FLT_MAX: f and g
// are powers of two whose product is 2^-m, each of which is a normal number.
#ifndef RMSNORM_LIB_ACTIVATION_H_
#define RMSNORM_LIB_ACTIVATION_H_

namespace rmsnorm::internal {

// z is at least the smallest, below which silu is -0 and sigmoid is 0, and -t at most the largest,
// above which exp(t) is lost beside 1.
constexpr float kSmallestGate = -110.0f;
constexpr float kLargestGate = 87.0f;

constexpr float kInverseOfLn2 = 0x1.715476p+0f;
// ln 2 in two parts: k * kUpperLn2 has few bits, so that t - k * kUpperLn2 is nearly exact.
constexpr float kUpperLn2 = 0x1.62e430p-1f;
constexpr float kLowerLn2 = -0x1.05c610p-29f;

// e = s + s^2 * (c2 + c3 * s + ... + c7 * s^5), c7 first. Within 9.8e-11 of exp(s) - 1, relative to
// exp(s).
constexpr float kExpCoefficients[] = {0x1.9dfb8p-13f, 0x1.6d4cb8p-10f, 0x1.11130ep-7f,
                                      0x1.5554e8p-5f, 0x1.555554p-3f,  0x1p-1f};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_ACTIVATION_H_
