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
// A part of a row that has its own norm is a row here, and d its length.
//
// Post-norm: the residual adds the error of the first norm n to its own, so its bounds are relative
// to |residual| + |n|: (0.51 d + 20) u and 3.1 roundings. The second norm is compared
// with the norm of the residual that the other library wrote, in binary64: as after add_norm.
//
// Gates: silu(z) = z / (1 + exp(-z)) is off by 20 u. Vector libraries give the exponential to 4
// units in the last place, 8 u; the sum adds u, a division by an estimate 4 u, the product with the
// norm 2 u, and the reference is off by 2 units, 4 u; 1 u is left. Silu and its other factor may be
// rounded before they are multiplied, 2.1 roundings more. A gate before the norm passes both on to
// the root mean square, and so counts twice: 40 u and 4.2 roundings more.
//
// Int8: v is off as y is, before the reference rounds it: by (0.51 d + 18) u and 2.1 roundings. The
// largest of a row may be off in the other direction, and the division and products add 4 u. So q
// is off from v * 127 / a, in binary64, by half an integer and twice that error: in f32, q differs
// from the reference's only where that is near a half, and by one. The scale is off as y is, with
// 2 u for its division.
//
// LayerNorm: the mean is off by at most d u mean|x|, and the inputs here have a mean below 1 and a
// deviation of about 1: (1.6 d + 40) u of |y - bias| + |weight| + |bias|.
#include "compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>
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
  if (dtype == Dtype::i8) {
    const int8_t* const integers = static_cast<const int8_t*>(data) + row * d;
    return {integers, integers + d};
  }
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

// The values that a row should have, and by how much each may be off.
struct Bounds {
  std::vector<double> values;
  std::vector<double> most;
};

// Below 2^-14 a rounding to f16 is up to 2^-25; an intermediate one may be multiplied by a weight
// below 6.
double AbsoluteTolerance(Dtype dtype) { return dtype == Dtype::f16 ? 0x1p-22 : 0; }

// Bounds relative to `sizes`, one for each value.
Bounds BoundsOf(std::vector<double> values, const std::vector<double>& sizes, Tolerance tolerance,
                Dtype dtype) {
  Bounds bounds = {std::move(values), sizes};
  for (double& most : bounds.most) {
    most = tolerance.Of(dtype) * std::fabs(most) + AbsoluteTolerance(dtype);
  }
  return bounds;
}

// An element that the operation leaves alone is a NaN in both.
std::string FindBeyond(const Result& result, Dtype result_dtype,
                       const std::function<Bounds(size_t row)>& bounds_of) {
  for (size_t row = 0; row < result.rows; ++row) {
    const std::vector<float> actual = WideRow(result_dtype, result.actual, row, result.d);
    const Bounds bounds = bounds_of(row);
    for (size_t j = 0; j < result.d; ++j) {
      const double value = bounds.values[j];
      const double difference = std::fabs(double{actual[j]} - value);
      if (difference <= bounds.most[j] || (std::isnan(actual[j]) && std::isnan(value))) continue;
      char text[120];
      std::snprintf(text, sizeof text, " is %.9g, not %.9g: off by %.2g where %.2g is allowed",
                    double{actual[j]}, value, difference, bounds.most[j]);
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

  std::vector<double> OfDx(size_t row) {
    const std::vector<float> dy = WideRow(DtypeOf(what_), what_.dy, row, what_.d);
    const std::vector<float> x = WideRow(DtypeOf(what_), what_.x, row, what_.d);
    const double r = double{what_.rstd[row]};
    double mean = 0;
    for (size_t j = 0; j < what_.d; ++j) {
      mean += std::fabs(double{dy[j]} * double{weight_[j]} * double{x[j]}) /
              static_cast<double>(what_.d);
      dw_[j] += std::fabs(double{dy[j]} * double{x[j]} * r);
    }
    std::vector<double> sizes(what_.d);
    for (size_t j = 0; j < what_.d; ++j) {
      sizes[j] = r * (std::fabs(double{dy[j]} * double{weight_[j]}) +
                      std::fabs(double{x[j]}) * r * r * mean);
    }
    return sizes;
  }
  // Call this after all rows of dx.
  const std::vector<double>& OfDw() const { return dw_; }

 private:
  const rmsnorm_peer_case what_;
  const std::vector<float> weight_;
  std::vector<double> dw_;
};

// A norm in binary64.
std::vector<double> NormOf(const std::vector<float>& x, const std::vector<float>& weight,
                           float eps) {
  double mean = 0;
  for (const float value : x) mean += double{value} * double{value} / static_cast<double>(x.size());
  const double r = 1 / std::sqrt(mean + double{eps});
  std::vector<double> norm(x.size());
  for (size_t j = 0; j < x.size(); ++j) norm[j] = double{x[j]} * r * double{weight[j]};
  return norm;
}

// The length of the longest part of a row that has its own norm.
size_t LengthOfNorm(const rmsnorm_peer_case& what) {
  switch (what.operation) {
    case RMSNORM_PEER_LATENT:
      return what.d / RMSNORM_PEER_LATENT_ROW * RMSNORM_PEER_LATENT_Q;
    case RMSNORM_PEER_Q_AND_K:
      return what.d / RMSNORM_PEER_HEADS;
    case RMSNORM_PEER_GATE_BEFORE:
      return RMSNORM_PEER_GROUP;
    default:
      return what.d;
  }
}

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
  const double d = static_cast<double>(LengthOfNorm(actual));
  const double rows = static_cast<double>(actual.rows);
  const double of_norm = 0.51 * d + 18;
  const std::vector<float> weight = WideRow(dtype, actual.weight, 0, actual.d);
  const auto row_of = [&](const void* data, size_t row) {
    return WideRow(dtype, data, row, actual.d);
  };

  const auto residual = [&](const Result& result, size_t row) {
    const std::vector<float> wide = row_of(result.expected, row);
    const std::vector<double> values(wide.begin(), wide.end());
    if (actual.operation == RMSNORM_PEER_ADD_NORM) {
      return BoundsOf(values, values, {dtype == Dtype::f32 ? 2.1 : 0, 2.1}, dtype);
    }
    std::vector<double> sizes =
        NormOf(row_of(actual.x, row), row_of(actual.post_norm_weight, 0), actual.eps);
    for (size_t j = 0; j < actual.d; ++j) sizes[j] = std::fabs(sizes[j]) + std::fabs(values[j]);
    return BoundsOf(values, sizes, {of_norm + 2, 3.1}, dtype);
  };
  const auto y_of_post_norm = [&](size_t row) {
    const std::vector<double> norm = NormOf(row_of(actual.residual, row), weight, actual.eps);
    return BoundsOf(norm, norm, {of_norm, 5.2}, dtype);
  };
  const auto q = [&](size_t row) {
    Bounds bounds = {NormOf(row_of(actual.x, row), weight, actual.eps), {}};
    double largest = 0;
    for (const double value : bounds.values) largest = std::max(largest, std::fabs(value));
    for (double& value : bounds.values) {
      value *= 127 / largest;
      bounds.most.push_back(0.5 + Tolerance{2 * of_norm + 4, 4.2}.Of(dtype) * std::fabs(value) +
                            AbsoluteTolerance(dtype) * 127 / largest);
    }
    return bounds;
  };
  const auto layer_norm = [&](const std::vector<double>& values) {
    const std::vector<float> bias = row_of(actual.bias, 0);
    std::vector<double> sizes(actual.d);
    for (size_t j = 0; j < actual.d; ++j) {
      sizes[j] = std::fabs(values[j] - double{bias[j]}) + std::fabs(double{weight[j]}) +
                 std::fabs(double{bias[j]});
    }
    return BoundsOf(values, sizes, {1.6 * d + 40, 3.1}, dtype);
  };

  GradientSizes gradients(actual);
  for (const Result& result : ResultsOf(actual, expected)) {
    const std::string name = result.name;
    const Dtype result_dtype = name == "q"                       ? Dtype::i8
                               : name == "dw" || name == "scale" ? Dtype::f32
                                                                 : dtype;
    const auto bounds_of = [&](size_t row) {
      if (name == "residual") return residual(result, row);
      if (name == "q") return q(row);
      if (name == "y" && actual.operation == RMSNORM_PEER_POST_NORM) return y_of_post_norm(row);
      const std::vector<float> wide = WideRow(result_dtype, result.expected, row, result.d);
      const std::vector<double> values(wide.begin(), wide.end());
      if (name == "dx") {
        return BoundsOf(values, gradients.OfDx(row), {2.55 * d + 76, 6.3}, dtype);
      }
      if (name == "dw") {
        return BoundsOf(values, gradients.OfDw(), {0.51 * d + 1.07 * rows + 36, 6.3}, dtype);
      }
      if (name == "scale") return BoundsOf(values, values, {of_norm + 2, 3.1}, dtype);
      switch (actual.operation) {
        case RMSNORM_PEER_LAYERNORM:
          return layer_norm(values);
        case RMSNORM_PEER_ADD_NORM:
          return BoundsOf(values, values, {of_norm, 5.2}, dtype);
        case RMSNORM_PEER_GATE_AFTER:
          return BoundsOf(values, values, {of_norm + 20, 5.2}, dtype);
        case RMSNORM_PEER_GATE_BEFORE:
          return BoundsOf(values, values, {of_norm + 40, 7.3}, dtype);
        default:
          return BoundsOf(values, values, {of_norm, 3.1}, dtype);
      }
    };
    std::string fault = FindBeyond(result, result_dtype, bounds_of);
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
