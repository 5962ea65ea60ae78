// SPDX-License-Identifier: Apache-2.0
// Rows of an element type chosen at run time, at any place relative to a cache line, and
// comparisons of bits.
#ifndef RMSNORM_TEST_TENSOR_H_
#define RMSNORM_TEST_TENSOR_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "slow_float.h"

namespace rmsnorm::test {

using SizeList = std::vector<size_t>;

constexpr rmsnorm_dtype kDtypes[] = {RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16};

// The byte that marks unwritten memory: no computation here produces it by chance.
constexpr unsigned char kWiped = 0xA5;

// The sizes are compile-time constants, since this reads every element in every test.
inline uint32_t LoadBits(rmsnorm_dtype dtype, const void* data, size_t index) {
  if (dtype == RMSNORM_F32) {
    uint32_t bits;
    std::memcpy(&bits, static_cast<const char*>(data) + index * sizeof bits, sizeof bits);
    return bits;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(data) + index * sizeof bits, sizeof bits);
  return bits;
}

inline void StoreBits(rmsnorm_dtype dtype, void* data, size_t index, uint32_t bits) {
  if (dtype == RMSNORM_F32) {
    std::memcpy(static_cast<char*>(data) + index * sizeof bits, &bits, sizeof bits);
  } else {
    const uint16_t narrow = static_cast<uint16_t>(bits);
    std::memcpy(static_cast<char*>(data) + index * sizeof narrow, &narrow, sizeof narrow);
  }
}

inline std::string Hex(uint32_t bits) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%X", bits);
  return text;
}

// Whether `count` elements have the same bits. Two NaNs count as equal, since CPUs make different
// ones.
inline testing::AssertionResult SameBits(rmsnorm_dtype dtype, const void* expected,
                                         const void* actual, size_t count) {
  // Without elements, the pointers may be null.
  if (count == 0 || std::memcmp(expected, actual, count * rmsnorm_dtype_size(dtype)) == 0) {
    return testing::AssertionSuccess();
  }
  const Format format = FormatOf(dtype);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t e = LoadBits(dtype, expected, i);
    const uint32_t a = LoadBits(dtype, actual, i);
    const double e_value = Decode(format, e);
    const double a_value = Decode(format, a);
    if (e == a || (std::isnan(e_value) && std::isnan(a_value))) continue;
    return testing::AssertionFailure()
           << rmsnorm_dtype_name(dtype) << " element " << i << " of " << count << " is " << a_value
           << " (" << Hex(a) << "), not " << e_value << " (" << Hex(e) << ")";
  }
  return testing::AssertionSuccess();
}

// The same for host numbers, such as one per row.
template <class T>
testing::AssertionResult SameBits(const std::vector<T>& expected, const std::vector<T>& actual) {
  if (expected.size() != actual.size()) {
    return testing::AssertionFailure() << actual.size() << " numbers, not " << expected.size();
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &actual[i], sizeof(T)) == 0) continue;
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    return testing::AssertionFailure() << "number " << i << " of " << expected.size() << " is "
                                       << actual[i] << ", not " << expected[i];
  }
  return testing::AssertionSuccess();
}

class Tensor {
 public:
  // Rows `d` + `padding` elements apart, the first one `offset` elements past a cache line's start.
  Tensor(rmsnorm_dtype dtype, size_t rows, size_t d, size_t offset = 0, size_t padding = 0)
      : dtype_(dtype),
        rows_(rows),
        d_(d),
        offset_(offset),
        stride_(d + padding),
        lines_((offset + rows * stride_) * rmsnorm_dtype_size(dtype) / sizeof(Line) + 2) {
    Wipe();
  }

  // Sets every byte, including those around and between the rows.
  void Wipe() { std::memset(lines_.data(), kWiped, lines_.size() * sizeof(Line)); }

  rmsnorm_dtype dtype() const { return dtype_; }
  size_t rows() const { return rows_; }
  size_t d() const { return d_; }
  // Treats the memory as elements of another type of the same size.
  void Reinterpret(rmsnorm_dtype dtype) { dtype_ = dtype; }

  void* data() { return Row(0); }
  const void* data() const { return Row(0); }
  void* Row(size_t row) {
    const size_t element_size = static_cast<size_t>(FormatOf(dtype_).bits) / 8;
    return reinterpret_cast<char*>(lines_.data()) + (offset_ + row * stride_) * element_size;
  }
  const void* Row(size_t row) const { return const_cast<Tensor*>(this)->Row(row); }

  rmsnorm_view view() const {
    return rmsnorm_rows(data(), dtype_, rows_, d_, static_cast<ptrdiff_t>(stride_));
  }
  // The first row as a tensor of one dimension, such as a weight.
  rmsnorm_view vector() const { return rmsnorm_vector(data(), dtype_, d_); }
  // The rows in these leading dimensions, in C order.
  rmsnorm_view view(const SizeList& leading) const {
    SizeList shape = leading;
    shape.push_back(d_);
    std::vector<ptrdiff_t> stride(shape.size(), 1);
    ptrdiff_t step = static_cast<ptrdiff_t>(stride_);
    for (size_t i = leading.size(); i-- > 0;) {
      stride[i] = step;
      step *= static_cast<ptrdiff_t>(leading[i]);
    }
    return rmsnorm_tensor(data(), dtype_, static_cast<int32_t>(shape.size()), shape.data(),
                          stride.data());
  }

  uint32_t bits(size_t row, size_t j) const { return LoadBits(dtype_, Row(row), j); }
  double get(size_t row, size_t j) const { return Decode(FormatOf(dtype_), bits(row, j)); }
  void set_bits(size_t row, size_t j, uint32_t bits) { StoreBits(dtype_, Row(row), j, bits); }
  // Rounds to the type.
  void set(size_t row, size_t j, double value) {
    set_bits(row, j, Encode(FormatOf(dtype_), value));
  }

  // Compares all elements, and all bytes around and between the rows.
  friend testing::AssertionResult SameBits(const Tensor& expected, const Tensor& actual) {
    const size_t size = expected.lines_.size() * sizeof(Line);
    if (expected.dtype_ != actual.dtype_ || size != actual.lines_.size() * sizeof(Line)) {
      return testing::AssertionFailure() << "the tensors differ in type or size";
    }
    return SameBits(expected.dtype_, expected.lines_.data(), actual.lines_.data(),
                    size / rmsnorm_dtype_size(expected.dtype_));
  }

  // Whether all bytes around and between the rows are as Wipe() left them.
  bool IsPaddingWiped() const {
    Tensor rows_wiped = *this;
    for (size_t row = 0; row < rows_; ++row) {
      std::memset(rows_wiped.Row(row), kWiped, d_ * rmsnorm_dtype_size(dtype_));
    }
    Tensor wiped = *this;
    wiped.Wipe();
    return std::memcmp(wiped.lines_.data(), rows_wiped.lines_.data(),
                       lines_.size() * sizeof(Line)) == 0;
  }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };

  rmsnorm_dtype dtype_;
  size_t rows_;
  size_t d_;
  size_t offset_;
  size_t stride_;
  std::vector<Line> lines_;
};

// The operands of a plain norm. `weight` and `rstd`, which has one element per row, may be null.
inline ForwardOperands NormOperands(const Tensor& x, const Tensor* weight, Tensor& y,
                                    std::vector<float>* rstd = nullptr) {
  ForwardOperands operands;
  operands.x = ConstView(x.view());
  if (weight != nullptr) operands.weight = ConstView(weight->vector());
  operands.y = View(y.view());
  if (rstd != nullptr) operands.rstd = {rstd->data(), rstd->size()};
  return operands;
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_TENSOR_H_
