// SPDX-License-Identifier: Apache-2.0
// No target reads or writes a byte outside its arguments: each lies directly after, and then
// directly before, a page that cannot be touched.
#include <gtest/gtest.h>

#include <csignal>
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
constexpr size_t kLongest = 16385;

enum class Side { kBegin, kEnd };

// The target, and the side on which the guard page is.
class GuardPageTest : public testing::TestWithParam<std::tuple<std::string, Side>> {
 protected:
  GuardPageTest()
      : x_(kMostRows * kLongest * sizeof(float)),
        weight_(kLongest * sizeof(float)),
        y_(kMostRows * kLongest * sizeof(float)),
        rstd_(kMostRows * sizeof(float)),
        sums_(kMostRows * sizeof(double)) {}

  template <class T>
  T* Place(const GuardedBuffer& buffer, size_t bytes) const {
    const Side side = std::get<1>(GetParam());
    return static_cast<T*>(side == Side::kBegin ? buffer.AtBegin() : buffer.AtEnd(bytes));
  }

  // A view of dense rows beside the guard page.
  rmsnorm_view PlaceRows(const GuardedBuffer& buffer, rmsnorm_dtype dtype, size_t rows,
                         size_t d) const {
    return rmsnorm_rows(Place<void>(buffer, rows * d * rmsnorm_dtype_size(dtype)), dtype, rows, d,
                        static_cast<ptrdiff_t>(d));
  }

  // Dense rows beside the guard page, every byte of them `byte`.
  rmsnorm_view PlaceX(rmsnorm_dtype dtype, size_t rows, size_t d, int byte) const {
    const rmsnorm_view x = PlaceRows(x_, dtype, rows, d);
    std::memset(x.data, byte, rows * d * rmsnorm_dtype_size(dtype));
    return x;
  }

  rmsnorm_view PlaceWeight(rmsnorm_dtype dtype, size_t d) const {
    const size_t bytes = d * rmsnorm_dtype_size(dtype);
    void* const data = Place<void>(weight_, bytes);
    std::memset(data, kOrdinary, bytes);
    return rmsnorm_tensor(data, dtype, 1, &d, nullptr);
  }

  Options Defaults() const {
    Options options;
    options.target = target_.c_str();
    options.threads = 1;
    return options;
  }

  // Bytes that make a number of 0.01 to 1.1 in any type, and a NaN, which takes the cold path.
  static constexpr int kOrdinary = 0x3C;
  static constexpr int kNan = 0xFF;

  const std::string target_ = std::get<0>(GetParam());
  const GuardedBuffer x_;
  const GuardedBuffer weight_;
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
          const rmsnorm_view x = PlaceX(x_dtype, rows, d, byte);
          for (const rmsnorm_dtype y_dtype : kDtypes) {
            const rmsnorm_view y = PlaceRows(y_, y_dtype, rows, d);
            const Options options = Defaults();
            float* const rstd = Place<float>(rstd_, rows * sizeof(float));
            ASSERT_EQ(RMSNORM_OK, rmsnorm_forward(&x, nullptr, &y, rstd, &options));
            for (const rmsnorm_dtype weight_dtype : kDtypes) {
              const rmsnorm_view weight = PlaceWeight(weight_dtype, d);
              ASSERT_EQ(RMSNORM_OK, rmsnorm_forward(&x, &weight, &y, rstd, &options));
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
        const rmsnorm_view x = PlaceX(dtype, rows, d, kOrdinary);
        const Options options = Defaults();
        ASSERT_EQ(RMSNORM_OK, rmsnorm_forward(&x, nullptr, &x, nullptr, &options));
      }
    }
  }
}

TEST_P(GuardPageTest, TwoPhases) {
  for (const size_t d : Sizes()) {
    for (const size_t rows : {size_t{1}, kMostRows}) {
      for (const rmsnorm_dtype x_dtype : kDtypes) {
        for (const int byte : {kOrdinary, kNan}) {
          const rmsnorm_view x = PlaceX(x_dtype, rows, d, byte);
          const Options options = Defaults();
          double* const sums = Place<double>(sums_, rows * sizeof(double));
          ASSERT_EQ(RMSNORM_OK, rmsnorm_sum_squares(&x, sums, &options));
          for (const rmsnorm_dtype y_dtype : kDtypes) {
            const rmsnorm_view y = PlaceRows(y_, y_dtype, rows, d);
            const rmsnorm_view weight = PlaceWeight(RMSNORM_F32, d);
            float* const rstd = Place<float>(rstd_, rows * sizeof(float));
            ASSERT_EQ(RMSNORM_OK, rmsnorm_scale(&x, sums, &weight, &y, rstd, &options));
          }
        }
      }
    }
  }
}

TEST_P(GuardPageTest, Module) {
  for (const size_t d : Sizes()) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      RmsNorm norm(d, Defaults(), static_cast<Dtype>(dtype));
      for (const rmsnorm_dtype weight_dtype : kDtypes) {
        const rmsnorm_view weight = PlaceWeight(weight_dtype, d);
        norm.set_weight(ConstView(weight));
        norm.get_weight(View(weight));
      }
      const rmsnorm_view x = PlaceX(dtype, kMostRows, d, kOrdinary);
      const rmsnorm_view y = PlaceRows(y_, dtype, kMostRows, d);
      norm.forward(ConstView(x), View(y), Place<float>(rstd_, kMostRows * sizeof(float)));
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
