// SPDX-License-Identifier: Apache-2.0
// RMSNorm and LayerNorm as people write them by hand: plain loops, sums in f32, conversions spelled
// out, and -O3. They are what speed is compared with, and no more than that: the bits are the
// compiler's.
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

// Rounds numbers to a type.
void PlainConvert(const float* from, Dtype dtype, void* to, size_t count);

// The numbers of a type as f32.
void PlainWiden(Dtype dtype, const void* from, float* to, size_t count);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_PLAIN_LOOPS_H_
