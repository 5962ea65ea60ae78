// SPDX-License-Identifier: Apache-2.0
#include "tolerance.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "layer_norm_error.h"
#include "plain_loops.h"

namespace rmsnorm::bench {
namespace {

struct Tolerance {
  double relative;
  double absolute;
};

Tolerance ToleranceFor(Dtype dtype, size_t d) {
  const double f32 = (0.51 * static_cast<double>(d) + 20) * 0x1p-24;
  switch (dtype) {
    case Dtype::f16:
      // Below 2^-14 a rounding is 2^-25; one of the three is multiplied by the weight, less than 6.
      return {f32 + 3.1 * 0x1p-11, 0x1p-22};
    case Dtype::bf16:
      return {f32 + 3.1 * 0x1p-8, 0};
    default:
      return {f32, 0};
  }
}

// `allowed` takes the element's index in its row and its expected value.
template <class Allowed>
std::string FindElementBeyond(Dtype dtype, size_t first_row, size_t rows, size_t d,
                              const uint8_t* actual, const uint8_t* expected,
                              const Allowed& allowed) {
  const size_t row_bytes = d * rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  std::vector<float> actual_row(d);
  std::vector<float> expected_row(d);
  for (size_t row = 0; row < rows; ++row) {
    PlainWiden(dtype, actual + row * row_bytes, actual_row.data(), d);
    PlainWiden(dtype, expected + row * row_bytes, expected_row.data(), d);
    for (size_t j = 0; j < d; ++j) {
      const double difference = std::fabs(double{actual_row[j]} - double{expected_row[j]});
      const double most = allowed(j, double{expected_row[j]});
      if (difference <= most) continue;
      char text[200];
      std::snprintf(text, sizeof text,
                    "row %zu, element %zu is %.9g, not %.9g: off by %.2g where %.2g is allowed",
                    first_row + row, j, double{actual_row[j]}, double{expected_row[j]}, difference,
                    most);
      return text;
    }
  }
  return {};
}

}  // namespace

std::string FindElementBeyondTolerance(Dtype dtype, size_t first_row, size_t rows, size_t d,
                                       const uint8_t* actual, const uint8_t* expected) {
  const Tolerance tolerance = ToleranceFor(dtype, d);
  return FindElementBeyond(dtype, first_row, rows, d, actual, expected,
                           [&tolerance](size_t /*j*/, double y) {
                             return tolerance.relative * std::fabs(y) + tolerance.absolute;
                           });
}

std::string FindElementBeyondLayerNormTolerance(Dtype dtype, size_t first_row, size_t rows,
                                                size_t d, const float* weight, const float* bias,
                                                const uint8_t* actual, const uint8_t* expected) {
  const NormalisedError error =
      FindNormalisedError(LayerNormRoundings(d), 1 + kProductsOfErrors * kMostSquaredMean);
  const double rounding = 2 * (kF32Unit + (dtype == Dtype::bf16 ? kBF16Unit : 0));
  return FindElementBeyond(dtype, first_row, rows, d, actual, expected, [&](size_t j, double y) {
    const double scaled = std::fabs(y - double{bias[j]});  // n weight
    return kProductsOfErrors *
               ((error.relative + 2 * kF32Unit) * scaled +
                error.absolute * std::fabs(double{weight[j]}) + rounding * std::fabs(y)) +
           0x1p-125;
  });
}

}  // namespace rmsnorm::bench
