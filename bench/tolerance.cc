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
  double operator()(size_t /*j*/, double expected) const {
    return relative * std::fabs(expected) + absolute;
  }
};

// Half a unit in the last place of a 16-bit type, relative to a number's binade; 0 for f32.
double UnitOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return 0x1p-11;
    case Dtype::bf16:
      return 0x1p-8;
    default:
      return 0;
  }
}

// Below 2^-14 a rounding to f16 is 2^-25. Results here come from up to five; one may be multiplied
// by a weight, less than 6.
double AbsoluteTolerance(Dtype dtype) { return dtype == Dtype::f16 ? 0x1p-22 : 0; }

// With so many roundings of the type.
Tolerance ToleranceFor(Dtype dtype, size_t d, double roundings) {
  const double f32 = (0.51 * static_cast<double>(d) + 20) * kF32Unit;
  return {f32 + roundings * UnitOf(dtype), AbsoluteTolerance(dtype)};
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
  return FindElementBeyond(dtype, first_row, rows, d, actual, expected,
                           ToleranceFor(dtype, d, 3.1));
}

std::string FindElementBeyondAddTolerance(Dtype dtype, size_t first_row, size_t rows, size_t d,
                                          const uint8_t* actual, const uint8_t* expected) {
  return FindElementBeyond(dtype, first_row, rows, d, actual, expected,
                           ToleranceFor(dtype, d, 5.2));
}

std::string FindElementBeyondSumTolerance(Dtype dtype, size_t first_row, size_t rows, size_t d,
                                          const uint8_t* actual, const uint8_t* expected) {
  const double unit = dtype == Dtype::f32 ? kF32Unit : UnitOf(dtype);
  return FindElementBeyond(dtype, first_row, rows, d, actual, expected,
                           Tolerance{2.1 * unit, dtype == Dtype::f16 ? 0x1p-24 : 0});
}

GradientTolerance::GradientTolerance(Dtype dtype, size_t rows, size_t d, const uint8_t* weight)
    : dtype_(dtype), rows_(rows), d_(d), weight_(d), dw_terms_(d) {
  PlainWiden(dtype, weight, weight_.data(), d);
}

std::string GradientTolerance::FindDxBeyond(size_t first_row, size_t rows, const uint8_t* dy,
                                            const uint8_t* x, const float* rstd,
                                            const uint8_t* actual, const uint8_t* expected) {
  const double d = static_cast<double>(d_);
  const double unit = UnitOf(dtype_);
  const double first = (0.51 * d + 22) * kF32Unit + 1.1 * unit;
  const double second = (2.55 * d + 76) * kF32Unit + 4.2 * unit;
  const size_t row_bytes = d_ * rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype_));
  std::vector<float> dy_row(d_);
  std::vector<float> x_row(d_);
  for (size_t row = 0; row < rows; ++row) {
    const size_t offset = row * row_bytes;
    PlainWiden(dtype_, dy + offset, dy_row.data(), d_);
    PlainWiden(dtype_, x + offset, x_row.data(), d_);
    const double r = rstd[row];
    double sum = 0;
    for (size_t j = 0; j < d_; ++j) {
      const double product = std::fabs(double{dy_row[j]} * double{x_row[j]});
      sum += product * std::fabs(double{weight_[j]});
      dw_terms_[j] += product * r;
    }
    const double mean = r * r * sum / d;
    std::string fault =
        FindElementBeyond(dtype_, first_row + row, 1, d_, actual + offset, expected + offset,
                          [&](size_t j, double dx) {
                            return r * (first * std::fabs(double{dy_row[j]} * double{weight_[j]}) +
                                        second * mean * std::fabs(double{x_row[j]})) +
                                   2.1 * unit * std::fabs(dx) + AbsoluteTolerance(dtype_);
                          });
    if (!fault.empty()) return fault;
  }
  return {};
}

std::string GradientTolerance::FindDwBeyond(const float* actual, const float* expected) const {
  const double unit = UnitOf(dtype_);
  const double terms =
      (0.51 * static_cast<double>(d_) + 1.07 * static_cast<double>(rows_) + 36) * kF32Unit +
      2.1 * unit;
  const std::string fault =
      FindElementBeyond(Dtype::f32, 0, 1, d_, reinterpret_cast<const uint8_t*>(actual),
                        reinterpret_cast<const uint8_t*>(expected), [&](size_t j, double dw) {
                          return terms * dw_terms_[j] + 1.1 * unit * std::fabs(dw) +
                                 static_cast<double>(rows_) * AbsoluteTolerance(dtype_);
                        });
  return fault.empty() ? fault : "dw: " + fault;
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
