// SPDX-License-Identifier: Apache-2.0
// RMSNorm, its gradients and LayerNorm as people write them by hand: plain loops, sums in f32,
// conversions spelled out, and -O3. They are what speed is compared with, and no more than that:
// the bits are the compiler's.
#ifndef RMSNORM_BENCH_PLAIN_LOOPS_H_
#define RMSNORM_BENCH_PLAIN_LOOPS_H_

#include <cstddef>
#include <rmsnorm/rmsnorm.hpp>

namespace rmsnorm::bench {

// Dense rows; x, the weight, the bias and y are of one type.
void PlainForward(Dtype dtype, const void* x, const void* weight, void* y, size_t rows, size_t d,
                  float eps);
void PlainLayerNorm(Dtype dtype, const void* x, const void* weight, const void* bias, void* y,
                    size_t rows, size_t d, float eps);

// residual += x, and y is the norm of that.
void PlainAddForward(Dtype dtype, const void* x, void* residual, const void* weight, void* y,
                     size_t rows, size_t d, float eps);

// dx, and in dw the sums over these rows. rstd holds 1 / RMS of each row.
void PlainBackward(Dtype dtype, const void* dy, const void* x, const void* weight,
                   const float* rstd, void* dx, float* dw, size_t rows, size_t d);

// Adds the sums over the rows of other threads, one after another, to those of the first.
void PlainAddSums(const float* others, size_t count, float* dw, size_t d);

// Rounds numbers to a type.
void PlainConvert(const float* from, Dtype dtype, void* to, size_t count);

// The numbers of a type as f32.
void PlainWiden(Dtype dtype, const void* from, float* to, size_t count);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_PLAIN_LOOPS_H_
