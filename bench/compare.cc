// SPDX-License-Identifier: Apache-2.0
// Bounds for the difference between another library's results and the reference's, with u = 2^-24:
//
// An inverse RMS r is off by (0.51 d + 18) u. A sum of d squares in any order is off by at most d
// u, since all its terms are positive, mean and eps by 2 u, and the root halves these. The other 16
// u are for the root, its reciprocal (4 u if estimated), the products and the reference's own error
// of (d / 256 + d / 8192 + 10) u. At d = 64, for y of about 1, a forgotten eps of 1e-5 is still
// twice this bound.
//
// Each term of a gradient contains r one to three times, and a sum of d products: (2.55 d + 76) u.
// A sum over R rows adds (1.07 R + 36) u. Terms may cancel each other, so these bounds are relative
// to the sum of their sizes: r |g| + |x| r^3 mean|g x| for dx, sum|dy x r| for dw.
//
// In f16 and bf16 the reference and the other library both round the result, half a unit in the
// last place each. The other library may round intermediate values too: n = x r; the sum of
// residual and x, after its norm; g and n in each term of a gradient. So y has 3.1 such roundings,
// 5.2 after add_norm, a residual 2.1, and a gradient 6.3.
//
// LayerNorm: the mean is off by at most d u mean|x|, and the inputs here have a mean below 1 and a
// deviation of about 1: (1.6 d + 40) u of |y - bias| + |weight| + |bias|.
#include "compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "tensors.h"

namespace rmsnorm::bench {
namespace {

Dtype DtypeOf(const rmsnorm_peer_case& what) { return static_cast<Dtype>(what.dtype); }
size_t ElementBytes(const rmsnorm_peer_case& what) {
  return rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(what.dtype));
}

// A result: rows of `d` elements.
struct Result {
  const char* name;
  const void* actual;
  const void* expected;
  size_t rows;
  size_t d;
  size_t element_bytes;
};

std::vector<Result> ResultsOf(const rmsnorm_peer_case& actual, const rmsnorm_peer_case& expected) {
  const size_t size = ElementBytes(actual);
  std::vector<Result> all = {
      {"y", actual.y, expected.y, actual.rows, actual.d, size},
      {"residual", actual.residual, expected.residual, actual.rows, actual.d, size},
      {"dx", actual.dx, expected.dx, actual.rows, actual.d, size},
      {"dw", actual.dw, expected.dw, 1, actual.d, sizeof(float)},
      {"q", actual.q, expected.q, actual.rows, actual.d, 1},
      {"scale", actual.scale, expected.scale, actual.rows, 1, sizeof(float)},
  };
  if (actual.operation == RMSNORM_PEER_SUM_SQUARES) {
    all.push_back({"sums", actual.sums, expected.sums, actual.rows, 1, sizeof(double)});
  }
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const Result& result) { return result.actual == nullptr; }),
            all.end());
  return all;
}

std::string Where(const Result& result, size_t row, size_t j) {
  return std::string(result.name) + ": row " + std::to_string(row) + ", element " +
         std::to_string(j);
}

std::vector<float> WideRow(Dtype dtype, const void* data, size_t row, size_t d) {
  std::vector<float> wide(d);
  const size_t row_bytes = d * rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  Convert(dtype, static_cast<const uint8_t*>(data) + row * row_bytes, Dtype::f32, wide.data(), d);
  return wide;
}

// The allowed error of a result relative to a size: roundings of f32, plus roundings of the
// result's type.
struct Tolerance {
  double f32_roundings;
  double roundings;

  double Of(Dtype dtype) const {
    const double half_unit = dtype == Dtype::f16 ? 0x1p-11 : dtype == Dtype::bf16 ? 0x1p-8 : 0;
    return f32_roundings * 0x1p-24 + roundings * half_unit;
  }
};

// `resize` turns a row of expected values into the sizes that `tolerance` is relative to.
std::string FindBeyond(const Result& result, Dtype result_dtype, Dtype dtype, Tolerance tolerance,
                       const std::function<void(size_t row, std::vector<double>& sizes)>& resize) {
  // Below 2^-14 a rounding to f16 is up to 2^-25; an intermediate one may be multiplied by a weight
  // below 6.
  const double absolute = dtype == Dtype::f16 ? 0x1p-22 : 0;
  for (size_t row = 0; row < result.rows; ++row) {
    const std::vector<float> actual = WideRow(result_dtype, result.actual, row, result.d);
    const std::vector<float> expected = WideRow(result_dtype, result.expected, row, result.d);
    std::vector<double> sizes(expected.begin(), expected.end());
    resize(row, sizes);
    for (size_t j = 0; j < result.d; ++j) {
      const double difference = std::fabs(double{actual[j]} - double{expected[j]});
      const double most = tolerance.Of(dtype) * std::fabs(sizes[j]) + absolute;
      if (difference <= most) continue;
      char text[120];
      std::snprintf(text, sizeof text, " is %.9g, not %.9g: off by %.2g where %.2g is allowed",
                    double{actual[j]}, double{expected[j]}, difference, most);
      return Where(result, row, j) + text;
    }
  }
  return {};
}

// The sizes of the terms of dx and dw.
class GradientSizes {
 public:
  explicit GradientSizes(const rmsnorm_peer_case& what)
      : what_(what), weight_(WideRow(DtypeOf(what), what.weight, 0, what.d)), dw_(what.d) {}

  void OfDx(size_t row, std::vector<double>& sizes) {
    const std::vector<float> dy = WideRow(DtypeOf(what_), what_.dy, row, what_.d);
    const std::vector<float> x = WideRow(DtypeOf(what_), what_.x, row, what_.d);
    const double r = double{what_.rstd[row]};
    double mean = 0;
    for (size_t j = 0; j < what_.d; ++j) {
      mean += std::fabs(double{dy[j]} * double{weight_[j]} * double{x[j]}) /
              static_cast<double>(what_.d);
      dw_[j] += std::fabs(double{dy[j]} * double{x[j]} * r);
    }
    for (size_t j = 0; j < what_.d; ++j) {
      sizes[j] = r * (std::fabs(double{dy[j]} * double{weight_[j]}) +
                      std::fabs(double{x[j]}) * r * r * mean);
    }
  }
  // Call this after all rows of dx.
  void OfDw(size_t /*row*/, std::vector<double>& sizes) const { sizes = dw_; }

 private:
  const rmsnorm_peer_case what_;
  const std::vector<float> weight_;
  std::vector<double> dw_;
};

}  // namespace

std::string FindDifference(const rmsnorm_peer_case& actual, const rmsnorm_peer_case& expected) {
  for (const Result& result : ResultsOf(actual, expected)) {
    const size_t bytes = result.rows * result.d * result.element_bytes;
    if (std::memcmp(result.actual, result.expected, bytes) == 0) continue;
    const uint8_t* const begin = static_cast<const uint8_t*>(result.actual);
    const uint8_t* const end = begin + bytes;
    const size_t element =
        static_cast<size_t>(
            std::mismatch(begin, end, static_cast<const uint8_t*>(result.expected)).first - begin) /
        result.element_bytes;
    return Where(result, element / result.d, element % result.d) + " differs from the reference";
  }
  return {};
}

std::string FindBeyondTolerance(const rmsnorm_peer_case& actual,
                                const rmsnorm_peer_case& expected) {
  const Dtype dtype = DtypeOf(actual);
  const double d = static_cast<double>(actual.d);
  const double rows = static_cast<double>(actual.rows);
  const auto as_expected = [](size_t, std::vector<double>&) {};
  GradientSizes gradients(actual);
  std::vector<float> weight = WideRow(dtype, actual.weight, 0, actual.d);
  std::vector<float> bias;
  if (actual.bias != nullptr) bias = WideRow(dtype, actual.bias, 0, actual.d);
  const auto layer_norm = [&](size_t, std::vector<double>& sizes) {
    for (size_t j = 0; j < actual.d; ++j) {
      sizes[j] = std::fabs(sizes[j] - double{bias[j]}) + std::fabs(double{weight[j]}) +
                 std::fabs(double{bias[j]});
    }
  };
  const auto find = [&](const Result& result) {
    const std::string name = result.name;
    if (name == "residual") {
      const double of_f32 = dtype == Dtype::f32 ? 2.1 : 0;
      return FindBeyond(result, dtype, dtype, {of_f32, 2.1}, as_expected);
    }
    if (name == "dx") {
      return FindBeyond(result, dtype, dtype, {2.55 * d + 76, 6.3},
                        [&](size_t row, auto& sizes) { gradients.OfDx(row, sizes); });
    }
    if (name == "dw") {
      return FindBeyond(result, Dtype::f32, dtype, {0.51 * d + 1.07 * rows + 36, 6.3},
                        [&](size_t row, auto& sizes) { gradients.OfDw(row, sizes); });
    }
    if (actual.operation == RMSNORM_PEER_LAYERNORM) {
      return FindBeyond(result, dtype, dtype, {1.6 * d + 40, 3.1}, layer_norm);
    }
    const double roundings = actual.operation == RMSNORM_PEER_ADD_NORM ? 5.2 : 3.1;
    return FindBeyond(result, dtype, dtype, {0.51 * d + 18, roundings}, as_expected);
  };
  for (const Result& result : ResultsOf(actual, expected)) {
    std::string fault = find(result);
    if (!fault.empty()) return fault;
  }
  return {};
}

void LayerNorm(const rmsnorm_peer_case& what) {
  const Dtype dtype = DtypeOf(what);
  const std::vector<float> weight = WideRow(dtype, what.weight, 0, what.d);
  const std::vector<float> bias = WideRow(dtype, what.bias, 0, what.d);
  for (size_t row = 0; row < what.rows; ++row) {
    std::vector<float> x = WideRow(dtype, what.x, row, what.d);
    double mean = 0;
    for (const float value : x) mean += double{value} / static_cast<double>(what.d);
    double variance = 0;
    for (const float value : x) {
      variance += (double{value} - mean) * (double{value} - mean) / static_cast<double>(what.d);
    }
    const double r = 1 / std::sqrt(variance + double{what.eps});
    for (size_t j = 0; j < what.d; ++j) {
      x[j] = static_cast<float>((double{x[j]} - mean) * r * double{weight[j]} + double{bias[j]});
    }
    Convert(Dtype::f32, x.data(), dtype,
            static_cast<uint8_t*>(what.y) + row * what.d * ElementBytes(what), what.d);
  }
}

}  // namespace rmsnorm::bench
