// SPDX-License-Identifier: Apache-2.0
#include "matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../../lib/element.h"
#include "../../lib/operands.h"

namespace rmsnorm::identify {
namespace {

using internal::BF16;
using internal::CastTo;
using internal::ElementSize;
using internal::F16;
using internal::ToF32;

constexpr size_t kAtOnce = 32;  // elements compared before DistanceOf() may stop

// Calls f with a value of the C++ type of a dtype.
template <class F>
auto WithType(rmsnorm_dtype dtype, const F& f) {
  return dtype == RMSNORM_F32 ? f(float{}) : dtype == RMSNORM_F16 ? f(F16{}) : f(BF16{});
}

// Numbers in the order of the floating-point numbers; the numbers of neighbours differ by 1.
int32_t OrderOf(float value) {
  const uint32_t bits = internal::BitsOf(value);
  const auto magnitude = static_cast<int32_t>(bits & 0x7FFFFFFFu);
  return bits >> 31 != 0 ? -magnitude : magnitude;
}
int32_t Order16(uint16_t bits) {
  const int32_t magnitude = bits & 0x7FFF;
  return bits >> 15 != 0 ? -magnitude : magnitude;
}
int32_t OrderOf(F16 value) { return Order16(value.bits); }
int32_t OrderOf(BF16 value) { return Order16(value.bits); }

// The order of the infinity of a type. NaNs are beyond it.
constexpr int32_t InfinityOf(float) { return 0x7F800000; }
constexpr int32_t InfinityOf(F16) { return 0x7C00; }
constexpr int32_t InfinityOf(BF16) { return 0x7F80; }

// The binary digits of a number, by the exponent of the float of its half: that fits int32_t, and
// every CPU converts vectors of int32_t.
uint32_t BitLength(uint32_t number) {
  const auto half = static_cast<float>(static_cast<int32_t>(number >> 1));
  return std::max(internal::BitsOf(half) >> 23, 126u) - 126 + (number != 0 ? 1 : 0);
}

template <class T>
uint32_t UlpsBetween(T a, T b) {
  const int32_t p = OrderOf(a), q = OrderOf(b);
  const bool is_p_nan = std::abs(p) > InfinityOf(T{}), is_q_nan = std::abs(q) > InfinityOf(T{});
  const auto apart = static_cast<uint32_t>(std::max(p, q)) - static_cast<uint32_t>(std::min(p, q));
  const uint32_t of_nans = is_p_nan && is_q_nan ? 0 : Distance::kFar;
  return is_p_nan || is_q_nan ? of_nans : apart;
}

// Compares at most kAtOnce elements. A third of the time of `identify` goes here. Compilers make
// vectors of these two loops, as long as they have no branches.
template <class T>
void AddDistance(const T* a, const T* b, size_t count, Distance& distance) {
  uint32_t ulps[kAtOnce];
  for (size_t i = 0; i < count; ++i) ulps[i] = UlpsBetween(a[i], b[i]);
  uint32_t equal = 0, worst = 0, bits = 0;
  for (size_t i = 0; i < count; ++i) {
    equal += ulps[i] == 0 ? 1 : 0;
    worst = ulps[i] > worst ? ulps[i] : worst;
    bits += BitLength(ulps[i]);
  }
  distance.elements += count;
  distance.equal += equal;
  distance.worst = std::max(distance.worst, worst);
  distance.bits += bits;
}

// The elements from the start of a tensor to the row that belongs to a row of x.
ptrdiff_t OffsetOf(const rmsnorm_view& tensor, const rmsnorm_view& x, size_t row) {
  ptrdiff_t offset = 0;
  for (int i = x.ndim - 2, j = tensor.ndim - 2; i >= 0; --i, --j) {
    const size_t index = row % x.shape[i];
    row /= x.shape[i];
    if (j >= 0 && tensor.shape[j] != 1) offset += static_cast<ptrdiff_t>(index) * tensor.stride[j];
  }
  return offset;
}

}  // namespace

Matrix EmptyMatrix(rmsnorm_dtype dtype, size_t rows, size_t d) {
  return {dtype, rows, d, std::vector<char>(rows * d * ElementSize(dtype))};
}

Matrix ReadRows(const rmsnorm_view& tensor, const rmsnorm_view& x) {
  const size_t d = x.shape[x.ndim - 1];
  size_t rows = 1;
  bool is_shared = true;
  for (int i = 0; i + 1 < x.ndim; ++i) rows *= x.shape[i];
  for (int i = 0; i + 1 < tensor.ndim; ++i) is_shared = is_shared && tensor.shape[i] == 1;
  Matrix matrix = EmptyMatrix(tensor.dtype, is_shared && &tensor != &x ? 1 : rows, d);
  const size_t size = ElementSize(tensor.dtype);
  for (size_t row = 0; row < matrix.rows; ++row) {
    const char* const from = static_cast<const char*>(tensor.data) +
                             OffsetOf(tensor, x, row) * static_cast<ptrdiff_t>(size);
    std::memcpy(&matrix.bytes[row * d * size], from, d * size);
  }
  return matrix;
}

Matrix TakeRows(const Matrix& matrix, const std::vector<size_t>& rows) {
  if (matrix.rows == 1) return matrix;
  Matrix taken = EmptyMatrix(matrix.dtype, rows.size(), matrix.d);
  const size_t size = matrix.d * ElementSize(matrix.dtype);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(&taken.bytes[i * size], &matrix.bytes[rows[i] * size], size);
  }
  return taken;
}

Matrix Repeated(const Matrix& row, size_t rows) {
  Matrix matrix = EmptyMatrix(row.dtype, rows, row.d);
  for (size_t i = 0; i < rows; ++i) {
    std::memcpy(&matrix.bytes[i * row.bytes.size()], row.bytes.data(), row.bytes.size());
  }
  return matrix;
}

std::vector<float> ValuesOf(const Matrix& matrix) {
  std::vector<float> values(matrix.count());
  WithType(matrix.dtype, [&](auto type) {
    decltype(type) element;
    for (size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&element, &matrix.bytes[i * sizeof element], sizeof element);
      values[i] = ToF32(element);
    }
  });
  return values;
}

Matrix Rounded(const std::vector<float>& values, rmsnorm_dtype dtype, size_t rows, size_t d) {
  Matrix matrix = EmptyMatrix(dtype, rows, d);
  WithType(dtype, [&](auto type) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto element = CastTo<decltype(type)>(values[i]);
      std::memcpy(&matrix.bytes[i * sizeof element], &element, sizeof element);
    }
  });
  return matrix;
}

float RoundedTo(rmsnorm_dtype dtype, float value) {
  return WithType(dtype, [&](auto type) { return ToF32(CastTo<decltype(type)>(value)); });
}

bool Holds(rmsnorm_dtype dtype, const Matrix& matrix) {
  const std::vector<float> values = ValuesOf(matrix);
  return std::all_of(values.begin(), values.end(), [&](float value) {
    return value != value || RoundedTo(dtype, value) == value;
  });
}

Distance DistanceOf(const Matrix& a, const Matrix& b, uint64_t most) {
  Distance distance;
  WithType(a.dtype, [&](auto type) {
    const auto* const p = reinterpret_cast<const decltype(type)*>(a.bytes.data());
    const auto* const q = reinterpret_cast<const decltype(type)*>(b.bytes.data());
    for (size_t i = 0; i < a.count() && distance.bits <= most; i += kAtOnce) {
      AddDistance(p + i, q + i, std::min(kAtOnce, a.count() - i), distance);
    }
  });
  return distance;
}

}  // namespace rmsnorm::identify
