// SPDX-License-Identifier: Apache-2.0
// The backward pass reads and writes no byte outside its arguments: each lies directly after, and
// then directly before, a page that cannot be touched.
#include <gtest/gtest.h>

#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "guarded_buffer.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kMostRows = 9;
constexpr size_t kLongest = 8200;

// Bytes that make a number of 0.01 to 1.1 in any type, and a NaN, which takes the cold path.
constexpr int kOrdinary = 0x3C;
constexpr int kNan = 0xFF;

// The target, and whether the guard page is before the arguments.
class BackwardGuardPageTest : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  void* Place(const GuardedBuffer& buffer, size_t bytes, int byte) const {
    void* const data = std::get<1>(GetParam()) ? buffer.AtBegin() : buffer.AtEnd(bytes);
    return std::memset(data, byte, bytes);
  }
  View PlaceRows(const GuardedBuffer& buffer, rmsnorm_dtype dtype, size_t rows, size_t d,
                 int byte = kOrdinary) const {
    void* const data = Place(buffer, rows * d * rmsnorm_dtype_size(dtype), byte);
    return {data, static_cast<Dtype>(dtype), {rows, d}};
  }

  void Backward(const BackwardOperands& operands) const {
    backward(operands, {}, OnTarget(target_, 1));
  }

  const std::string target_ = std::get<0>(GetParam());
  const GuardedBuffer x_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer dy_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer dx_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer weight_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer dw_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer db_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer rstd_{kMostRows * sizeof(float)};
};

// All rows share a weight, or each has one of its own.
TEST_P(BackwardGuardPageTest, EveryTypeAndLength) {
  SizeList sizes = {1000, 4095, 4096, 4097, 8191, 8193, kLongest};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  for (const size_t d : sizes) {
    for (const size_t rows : {size_t{1}, kMostRows}) {
      const size_t weights = d % 4 == 3 ? rows : 1;
      for (const rmsnorm_dtype x_dtype : kDtypes) {
        for (const rmsnorm_dtype dtype : kDtypes) {
          for (const int byte : {kOrdinary, kNan}) {
            BackwardOperands operands;
            operands.x = PlaceRows(x_, x_dtype, rows, d, byte);
            operands.dy = PlaceRows(dy_, dtype, rows, d);
            const View dw = PlaceRows(dw_, dtype, weights, d);
            const View db = PlaceRows(db_, x_dtype, weights, d);
            const ConstView weight = PlaceRows(weight_, x_dtype, weights, d);
            const ConstView rstd(
                static_cast<const float*>(Place(rstd_, rows * sizeof(float), kOrdinary)), rows);

            operands.dx = PlaceRows(dx_, kDtypes[d % 3], rows, d);
            operands.add_to_dx = d % 2 == 0;
            Backward(operands);
            operands.dx = PlaceRows(dx_, dtype, rows, d);
            operands.weight = weight;
            if (d % 2 == 0) operands.rstd = rstd;
            operands.dw = dw;
            operands.db = db;
            operands.add_to_dx = operands.add_to_dw = operands.add_to_db = d % 3 == 0;
            Backward(operands);
            operands.add_to_dx = operands.add_to_dw = operands.add_to_db = false;
            operands.rstd = rstd;
            operands.dx = {};
            Backward(operands);
            operands.dw = operands.db = {};
            operands.dx = View(*operands.dy.get());
            Backward(operands);
          }
        }
      }
    }
  }
}

std::string NameOfTargetAndSide(const testing::TestParamInfo<std::tuple<std::string, bool>>& test) {
  const auto& [target, at_begin] = test.param;
  return target + (at_begin ? "_begin" : "_end");
}

INSTANTIATE_TEST_SUITE_P(Targets, BackwardGuardPageTest,
                         testing::Combine(testing::ValuesIn(SupportedTargets()), testing::Bool()),
                         NameOfTargetAndSide);

}  // namespace
}  // namespace rmsnorm::test
