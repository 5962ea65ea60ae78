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
  rmsnorm_view PlaceRows(const GuardedBuffer& buffer, rmsnorm_dtype dtype, size_t rows, size_t d,
                         int byte = kOrdinary) const {
    return rmsnorm_rows(Place(buffer, rows * d * rmsnorm_dtype_size(dtype), byte), dtype, rows, d,
                        static_cast<ptrdiff_t>(d));
  }
  rmsnorm_view PlaceVector(const GuardedBuffer& buffer, rmsnorm_dtype dtype, size_t d) const {
    return rmsnorm_tensor(Place(buffer, d * rmsnorm_dtype_size(dtype), kOrdinary), dtype, 1, &d,
                          nullptr);
  }

  const std::string target_ = std::get<0>(GetParam());
  const GuardedBuffer x_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer dy_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer dx_{kMostRows * kLongest * sizeof(float)};
  const GuardedBuffer weight_{kLongest * sizeof(float)};
  const GuardedBuffer dw_{kLongest * sizeof(float)};
  const GuardedBuffer rstd_{kMostRows * sizeof(float)};
};

TEST_P(BackwardGuardPageTest, EveryTypeAndLength) {
  SizeList sizes = {1000, 4095, 4096, 4097, 8191, 8193, kLongest};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  for (const size_t d : sizes) {
    for (const size_t rows : {size_t{1}, kMostRows}) {
      for (const rmsnorm_dtype x_dtype : kDtypes) {
        for (const rmsnorm_dtype dtype : kDtypes) {
          for (const int byte : {kOrdinary, kNan}) {
            const rmsnorm_view x = PlaceRows(x_, x_dtype, rows, d, byte);
            const rmsnorm_view dy = PlaceRows(dy_, dtype, rows, d);
            const rmsnorm_view dx = PlaceRows(dx_, dtype, rows, d);
            const rmsnorm_view weight = PlaceVector(weight_, x_dtype, d);
            const rmsnorm_view dw = PlaceVector(dw_, dtype, d);
            const float* const rstd =
                static_cast<float*>(Place(rstd_, rows * sizeof(float), kOrdinary));
            Options options;
            options.target = target_.c_str();
            options.threads = 1;
            ASSERT_EQ(RMSNORM_OK, rmsnorm_backward(&dy, &x, &weight, d % 2 == 0 ? rstd : nullptr,
                                                   &dx, &dw, d % 3 == 0 ? 3 : 0, &options));
            ASSERT_EQ(RMSNORM_OK, rmsnorm_backward(&dy, &x, nullptr, nullptr, &dx, nullptr,
                                                   d % 2 == 0 ? 3 : 0, &options));
            ASSERT_EQ(RMSNORM_OK,
                      rmsnorm_backward(&dy, &x, &weight, rstd, nullptr, &dw, 0, &options));
            ASSERT_EQ(RMSNORM_OK,
                      rmsnorm_backward(&dy, &x, &weight, rstd, &dy, nullptr, 0, &options));
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
