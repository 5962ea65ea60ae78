// SPDX-License-Identifier: Apache-2.0
// How far the results of a contender other than the library may lie from what is expected.
//
// Another library's RMSNorm, from the reference's:
//
// In f32, with u = 2^-24. A sum of d squares in any order is off by d u at most, as all its terms
// are positive; mean and eps add 2 u; the root halves these and adds 1 u, its reciprocal 1 u, the
// products with x and the weight 2 u, and an estimate in the reciprocal's place may take 4 u more:
// (d / 2 + 9) u. The reference is within (d / 256 + d / 8192 + 8) u, by the bound in rmsnorm.h, and
// 2 u for the products. Together less than (0.51 d + 20) u, relative to y. That still tells a
// forgotten eps of 1e-5 (half of that, relative to a y of about 1) where d is 64.
//
// In f16 and bf16 three roundings of the type come on top: the reference's, the other's, and one
// more where n = x / RMS is rounded before it meets the weight. Each is half a unit in the last
// place; their products take less than 0.1 of one.
//
// LayerNorm, from its loops in binary64: layer_norm_error.h bounds the error of the one, and the
// loops round n, n weight and y once each. n weight is taken from the expected y, so that the row
// is not looked at: V^2 / U is that of a row just not summed again, where that of most is a tenth.
#ifndef RMSNORM_BENCH_TOLERANCE_H_
#define RMSNORM_BENCH_TOLERANCE_H_

#include <cstddef>
#include <cstdint>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

namespace rmsnorm::bench {

// Each says which element of some dense rows is the first beyond that, or a NaN, and by how much;
// empty where none is. The rows are numbered from first_row. No expected element is a NaN.
std::string FindElementBeyondTolerance(Dtype dtype, size_t first_row, size_t rows, size_t d,
                                       const uint8_t* actual, const uint8_t* expected);

// For LayerNorm, with its weight and bias as f32.
std::string FindElementBeyondLayerNormTolerance(Dtype dtype, size_t first_row, size_t rows,
                                                size_t d, const float* weight, const float* bias,
                                                const uint8_t* actual, const uint8_t* expected);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_TOLERANCE_H_
