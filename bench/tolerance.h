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
// The residual add: h = residual + x is rounded by each once, so two roundings of the type are
// between two residuals. y is as forward's of the reference's residual, and in f16 and bf16 two
// roundings more: another may take the norm of the sum before it rounds it, where each h is off by
// one, and so r by as much at most.
//
// The gradients. g = dy w, c = sum(g x), and r is given; dx = r g - x r^3 c / D. What is between
// the reference's and another's is counted relative to A = r |g| and B = |x| r^3 sum|g x| / D, as
// the two terms of dx may cancel each other:
//   r. Another may compute it again: (0.51 d + 16) u as above without the products. It stands once
//   in the first term and three times in the second.
//   c. Any sum of d products is off by d u sum|g x|, and by 1 u for that of g; the reference's by
//   (d / 128 + d / 4096 + 10) u, with the rounding of g.
//   Products, the division by D and the difference: in any order at most 3 in the first term and 8
//   in the second, for each of the two.
// Together less than (0.51 d + 22) u A + (2.55 d + 76) u B. In f16 and bf16 the reference rounds dx
// and so does the other: twice |dx|. The other may also round g, where A and, by c, B have one
// each, n = x r, twice in B, and the second term, once more in B.
//
// dw is a sum over R rows. Each term is off by r's error, 2 u of the other's products and 1 u of
// the reference's. The sums are off by R u for any order, and (R / 16 + 16) u for the reference's
// blocks of rows, by a sum S of |dy x r|: less than (0.51 d + 1.07 R + 36) u S together. In f16 and
// bf16 the other may round n and dy n in each term, twice in S, and dw itself.
//
// The one tells a dx without its second term, or one that is LayerNorm's and so has the mean of g
// taken off: with the numbers of tensors.h they are off by 0.5 r |x| and 0.25 r, where B is about
// 0.5 r |x|.
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
#include <vector>

namespace rmsnorm::bench {

// Each says which element of some dense rows is the first beyond that, or a NaN, and by how much;
// empty where none is. The rows are numbered from first_row. No expected element is a NaN.
std::string FindElementBeyondTolerance(Dtype dtype, size_t first_row, size_t rows, size_t d,
                                       const uint8_t* actual, const uint8_t* expected);

// For y and for the residual of a residual add.
std::string FindElementBeyondAddTolerance(Dtype dtype, size_t first_row, size_t rows, size_t d,
                                          const uint8_t* actual, const uint8_t* expected);
std::string FindElementBeyondSumTolerance(Dtype dtype, size_t first_row, size_t rows, size_t d,
                                          const uint8_t* actual, const uint8_t* expected);

// For gradients, with all but dw of one type.
class GradientTolerance {
 public:
  // Of all rows. The weight has d elements.
  GradientTolerance(Dtype dtype, size_t rows, size_t d, const uint8_t* weight);

  // To be called for all rows, each once.
  std::string FindDxBeyond(size_t first_row, size_t rows, const uint8_t* dy, const uint8_t* x,
                           const float* rstd, const uint8_t* actual, const uint8_t* expected);
  // After that.
  std::string FindDwBeyond(const float* actual, const float* expected) const;

 private:
  const Dtype dtype_;
  const size_t rows_;
  const size_t d_;
  std::vector<float> weight_;
  std::vector<double> dw_terms_;  // S
};

// For LayerNorm, with its weight and bias as f32.
std::string FindElementBeyondLayerNormTolerance(Dtype dtype, size_t first_row, size_t rows,
                                                size_t d, const float* weight, const float* bias,
                                                const uint8_t* actual, const uint8_t* expected);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_TOLERANCE_H_
