// SPDX-License-Identifier: Apache-2.0
// No target reads or writes a byte outside its arguments: each lies directly after, and then
// directly before, a page that cannot be touched.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "guarded_buffer.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kMostRows = 9;
constexpr size_t kLongest = 16385;

enum class Side { kBegin, kEnd };

// The target, and the side on which the guard page is.
class GuardPageTest : public testing::TestWithParam<std::tuple<std::string, Side>> {
 protected:
  GuardPageTest()
      : x_(kMostRows * kLongest * sizeof(float)),
        weight_(kLongest * sizeof(float)),
        bias_(kLongest * sizeof(float)),
        y_(kMostRows * kLongest * sizeof(float)),
        rstd_(kMostRows * sizeof(float)),
        sums_(kMostRows * sizeof(double)) {}

  template <class T>
  T* Place(const GuardedBuffer& buffer, size_t bytes) const {
    const Side side = std::get<1>(GetParam());
    return static_cast<T*>(side == Side::kBegin ? buffer.AtBegin() : buffer.AtEnd(bytes));
  }

  // Dense rows beside the guard page, every byte of them `byte`.
  View PlaceRows(const GuardedBuffer& buffer, rmsnorm_dtype dtype, size_t rows, size_t d,
                 int byte) const {
    const size_t bytes = rows * d * rmsnorm_dtype_size(dtype);
    void* const data = std::memset(Place<void>(buffer, bytes), byte, bytes);
    return {data, static_cast<Dtype>(dtype), {rows, d}};
  }

  View PlaceColumns(const GuardedBuffer& buffer, rmsnorm_dtype dtype, size_t d) const {
    const size_t bytes = d * rmsnorm_dtype_size(dtype);
    void* const data = std::memset(Place<void>(buffer, bytes), kOrdinary, bytes);
    return {data, static_cast<Dtype>(dtype), {d}};
  }

  template <class T>
  View PlaceNumbers(const GuardedBuffer& buffer, size_t rows) const {
    return {Place<T>(buffer, rows * sizeof(T)), rows};
  }

  void Forward(const ForwardOperands& operands, const Options& options = {}) const {
    forward(operands, options, OnTarget(target_, 1));
  }

  // Bytes that make a number of 0.01 to 1.1 in any type, and a NaN, which takes the cold path.
  static constexpr int kOrdinary = 0x3C;
  static constexpr int kNan = 0xFF;

  const std::string target_ = std::get<0>(GetParam());
  const GuardedBuffer x_;
  const GuardedBuffer weight_;
  const GuardedBuffer bias_;
  const GuardedBuffer y_;
  const GuardedBuffer rstd_;
  const GuardedBuffer sums_;
};

std::string NameOfTargetAndSide(const testing::TestParamInfo<std::tuple<std::string, Side>>& test) {
  const auto& [target, side] = test.param;
  return target + (side == Side::kBegin ? "_begin" : "_end");
}

std::vector<size_t> Sizes() {
  std::vector<size_t> sizes = {1000, 4095, 4096, 4097, 8191, 8193, kLongest};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  return sizes;
}

TEST_P(GuardPageTest, Forward) {
  for (const size_t d : Sizes()) {
    for (const size_t rows : {size_t{1}, kMostRows}) {
      for (const rmsnorm_dtype x_dtype : kDtypes) {
        for (const int byte : {kOrdinary, kNan}) {
          ForwardOperands operands;
          operands.x = PlaceRows(x_, x_dtype, rows, d, byte);
          operands.rstd = PlaceNumbers<float>(rstd_, rows);
          for (const rmsnorm_dtype y_dtype : kDtypes) {
            operands.y = PlaceRows(y_, y_dtype, rows, d, kOrdinary);
            operands.weight = operands.bias = {};
            Forward(operands);
            for (const rmsnorm_dtype weight_dtype : kDtypes) {
              operands.weight = PlaceColumns(weight_, weight_dtype, d);
              if (d % 2 == 0) operands.bias = PlaceColumns(bias_, weight_dtype, d);
              Options options;
              options.rounding = static_cast<Rounding>(d % 3);
              Forward(operands, options);
            }
          }
        }
      }
    }
  }
}

TEST_P(GuardPageTest, InPlace) {
  for (const size_t d : Sizes()) {
    for (const size_t rows : {size_t{1}, kMostRows}) {
      for (const rmsnorm_dtype dtype : kDtypes) {
        ForwardOperands operands;
        operands.x = operands.y = PlaceRows(x_, dtype, rows, d, kOrdinary);
        Forward(operands);
      }
    }
  }
}

TEST_P(GuardPageTest, TwoPhases) {
  for (const size_t d : Sizes()) {
    for (const size_t rows : {size_t{1}, kMostRows}) {
      for (const rmsnorm_dtype x_dtype : kDtypes) {
        for (const int byte : {kOrdinary, kNan}) {
          ForwardOperands operands;
          operands.x = PlaceRows(x_, x_dtype, rows, d, byte);
          operands.sums_out = PlaceNumbers<double>(sums_, rows);
          Forward(operands);
          operands.sums = std::exchange(operands.sums_out, {});
          for (const rmsnorm_dtype y_dtype : kDtypes) {
            operands.y = PlaceRows(y_, y_dtype, rows, d, kOrdinary);
            operands.weight = PlaceColumns(weight_, RMSNORM_F32, d);
            operands.rstd = PlaceNumbers<float>(rstd_, rows);
            Forward(operands);
          }
        }
      }
    }
  }
}

// A weight and a bias for each row.
TEST_P(GuardPageTest, ColumnsOfEachRow) {
  const GuardedBuffer weight(kMostRows * kLongest * sizeof(float));
  const GuardedBuffer bias(kMostRows * kLongest * sizeof(float));
  for (const size_t d : Sizes()) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      ForwardOperands operands;
      operands.x = PlaceRows(x_, dtype, kMostRows, d, kOrdinary);
      operands.weight = PlaceRows(weight, dtype, kMostRows, d, kOrdinary);
      operands.bias = PlaceRows(bias, dtype, kMostRows, d, kOrdinary);
      operands.y = PlaceRows(y_, dtype, kMostRows, d, kOrdinary);
      Forward(operands);
    }
  }
}

TEST_P(GuardPageTest, Module) {
  for (const size_t d : Sizes()) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      RmsNorm norm(d, Options(), static_cast<Dtype>(dtype), OnTarget(target_, 1));
      for (const rmsnorm_dtype weight_dtype : kDtypes) {
        const View weight = PlaceColumns(weight_, weight_dtype, d);
        norm.set_weight(weight);
        norm.get_weight(weight);
      }
      ForwardOperands operands;
      operands.x = PlaceRows(x_, dtype, kMostRows, d, kOrdinary);
      operands.y = PlaceRows(y_, dtype, kMostRows, d, kOrdinary);
      operands.rstd = PlaceNumbers<float>(rstd_, kMostRows);
      norm.forward(operands);
    }
  }
}

// Dense rows by pointer and count.
TEST_P(GuardPageTest, RowsOfAModule) {
  for (const size_t d : Sizes()) {
    RmsNorm norm(d, Options(), Dtype::f32, OnTarget(target_, 1));
    for (const size_t rows : {size_t{1}, kMostRows}) {
      const auto* const x =
          static_cast<float*>(PlaceRows(x_, RMSNORM_F32, rows, d, kOrdinary).get()->data);
      auto* const y =
          static_cast<float*>(PlaceRows(y_, RMSNORM_F32, rows, d, kOrdinary).get()->data);
      auto* const dw = static_cast<float*>(PlaceColumns(weight_, RMSNORM_F32, d).get()->data);
      auto* const rstd = Place<float>(rstd_, rows * sizeof(float));
      std::fill_n(rstd, rows, 1.0f);
      norm.forward(x, y, rows);
      norm.backward(y, x, rstd, y, dw, rows);
      const GuardedBuffer residual(rows * d * sizeof(float));
      auto* const out =
          static_cast<float*>(PlaceRows(residual, RMSNORM_F32, rows, d, kOrdinary).get()->data);
      norm.add_forward(x, out, out, y, rows);
    }
  }
}

// The guard itself: without it every test above would pass.
TEST(GuardedBufferDeathTest, CrashesBesideTheBuffer) {
  const GuardedBuffer buffer(100);
  volatile char* const begin = static_cast<char*>(buffer.AtBegin());
  volatile char* const end = static_cast<char*>(buffer.AtEnd(0));
  EXPECT_EXIT((void)begin[-1], testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT((void)end[0], testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(end[0] = 1, testing::KilledBySignal(SIGSEGV), "");
}

INSTANTIATE_TEST_SUITE_P(Targets, GuardPageTest,
                         testing::Combine(testing::ValuesIn(SupportedTargets()),
                                          testing::Values(Side::kBegin, Side::kEnd)),
                         NameOfTargetAndSide);

}  // namespace
}  // namespace rmsnorm::test
