// SPDX-License-Identifier: Apache-2.0
// The LayerNorm that RMSNorm's speed is compared with, against the formula in binary64.
#include "layer_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "guarded_buffer.h"
#include "layer_norm_error.h"
#include "random_rows.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

using bench::LayerNorm;

constexpr float kEps = 1e-5f;
constexpr rmsnorm_dtype kTypes[] = {RMSNORM_F32, RMSNORM_BF16};

enum class Kind {
  kNormal,
  kLargeMean,      // 1e4 deviations; bf16 rounds most of such a row to one number
  kMediumMean,     // a hundred, which leaves bf16 some of the deviations
  kConstant,       // other than zero
  kOutlierFirst,   // a pivot 50 deviations off: the row is summed again
  kOutlierAtMean,  // the same with a large mean
  kMassive,        // two elements of hundreds
  kZero,
};
constexpr size_t kKinds = 8;

Kind KindOf(size_t row) { return static_cast<Kind>(row % kKinds); }

void Fill(Random& random, Tensor& x) {
  for (size_t row = 0; row < x.rows(); ++row) {
    const Kind kind = KindOf(row);
    const double mean = kind == Kind::kLargeMean || kind == Kind::kOutlierAtMean ? 1e4
                        : kind == Kind::kMediumMean || kind == Kind::kConstant   ? -100.3
                                                                                 : 0;
    const bool varies = kind != Kind::kConstant && kind != Kind::kZero;
    for (size_t j = 0; j < x.d(); ++j) x.set(row, j, mean + (varies ? random.Normal() : 0.0));
    if (kind == Kind::kOutlierFirst || kind == Kind::kOutlierAtMean) x.set(row, 0, mean - 50);
    if (kind == Kind::kMassive) {
      x.set(row, random.Below(x.d()), 480);
      x.set(row, random.Below(x.d()), -1200);
    }
  }
}

// Weights around 1 and biases around 0.
void FillParameters(Random& random, Tensor& weight, Tensor& bias) {
  for (size_t j = 0; j < weight.d(); ++j) {
    weight.set(0, j, 1 + random.Normal() / 2);
    bias.set(0, j, random.Normal());
  }
}

// A row's exact moments, and how far the result may lie from them.
class Oracle {
 public:
  Oracle(const Tensor& x, size_t row) {
    const size_t d = x.d();
    x_.resize(d);
    for (size_t j = 0; j < d; ++j) x_[j] = x.get(row, j);
    for (int pass = 0; pass < 2; ++pass) {  // the second corrects the first one's rounding
      double sum = 0;
      for (const double value : x_) sum += value - mean_;
      mean_ += sum / static_cast<double>(d);
    }
    double squares = 0;
    for (const double value : x_) squares += (value - mean_) * (value - mean_);
    const double variance = squares / static_cast<double>(d);
    const double under_root = variance + double{kEps};
    root_ = std::sqrt(under_root);

    const double m = bench::LayerNormRoundings(d);
    const double mu = mean_ - x_[0];
    const double again = kU * std::fabs(mean_) + (m + 2) * kU * std::sqrt(variance + mu * mu);
    // Near the limit either may be.
    const double limit = bench::kMostSquaredMean * under_root;
    double square = 0;
    if (mu * mu < 1.01 * limit) square = mu * mu;
    if (mu * mu > 0.99 * limit) square = std::max(square, again * again);
    error_ = bench::FindNormalisedError(m, (variance + square) / under_root);
  }

  // Whether y[j] is within the bound.
  bool Accepts(double y, size_t j, double weight, double bias, rmsnorm_dtype dtype) const {
    const double n = (x_[j] - mean_) / root_;
    const double exact = n * weight + bias;
    const double n_bound = error_.relative * std::fabs(n) + error_.absolute;
    const double y_bound = std::fabs(weight) * n_bound + kU * std::fabs(exact);
    const double rounding = dtype == RMSNORM_BF16 ? bench::kBF16Unit * std::fabs(exact) : 0;
    return std::fabs(y - exact) <= bench::kProductsOfErrors * (y_bound + rounding) + 0x1p-126;
  }

 private:
  static constexpr double kU = bench::kF32Unit;

  std::vector<double> x_;
  double mean_ = 0;
  double root_;
  bench::NormalisedError error_;
};

class LayerNormTest : public testing::TestWithParam<std::string> {
 protected:
  // Compares all of y, written through the caches and past them, and that nothing else was written.
  void Check(const Tensor& x, const Tensor& weight, const Tensor& bias, size_t y_offset) {
    const LayerNorm norm(static_cast<Dtype>(x.dtype()), x.d(), weight.data(), bias.data(), kEps,
                         GetParam().c_str());
    std::vector<Oracle> oracles;
    for (size_t row = 0; row < x.rows(); ++row) oracles.emplace_back(x, row);
    for (const bool stream : {false, true}) {
      Tensor y(x.dtype(), x.rows(), x.d(), y_offset);
      norm.Forward(x.data(), y.data(), x.rows(), stream);
      ASSERT_TRUE(y.IsPaddingWiped());
      for (size_t row = 0; row < x.rows(); ++row) {
        const bool constant = KindOf(row) == Kind::kConstant || KindOf(row) == Kind::kZero;
        for (size_t j = 0; j < x.d(); ++j) {
          const double b = bias.get(0, j);
          const bool right =
              constant ? y.get(row, j) == b
                       : oracles[row].Accepts(y.get(row, j), j, weight.get(0, j), b, x.dtype());
          ASSERT_TRUE(right) << rmsnorm_dtype_name(x.dtype()) << " d " << x.d() << " row " << row
                             << " element " << j << ": " << y.get(row, j)
                             << (stream ? ", streamed" : "");
        }
      }
    }
  }

  Random random_{11};
};

TEST_P(LayerNormTest, IsWithinTheBound) {
  SizeList sizes = {1000, 2880, 4096, 5000, 16384, 40000};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  for (const rmsnorm_dtype dtype : kTypes) {
    for (const size_t d : sizes) {
      Tensor x(dtype, 2 * kKinds + 3, d, d % 5);
      Tensor weight(dtype, 1, d, d % 3);
      Tensor bias(dtype, 1, d, d % 7);
      Fill(random_, x);
      FillParameters(random_, weight, bias);
      Check(x, weight, bias, d % 32);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(LayerNormTest, EveryAlignmentAndNumberOfRows) {
  for (const rmsnorm_dtype dtype : kTypes) {
    for (size_t offset = 0; offset < 64; ++offset) {
      const size_t d = 128 + offset % 3 * 37;
      Tensor x(dtype, 1 + offset % 13, d, offset % 32);
      Tensor weight(dtype, 1, d);
      Tensor bias(dtype, 1, d);
      Fill(random_, x);
      FillParameters(random_, weight, bias);
      Check(x, weight, bias, offset);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(LayerNormTest, TouchesNoOtherMemory) {
  for (const rmsnorm_dtype dtype : kTypes) {
    for (size_t d = 1; d <= 300; ++d) {
      Tensor x(dtype, 5, d);
      Tensor weight(dtype, 1, d);
      Tensor bias(dtype, 1, d);
      Fill(random_, x);
      FillParameters(random_, weight, bias);
      const LayerNorm norm(static_cast<Dtype>(dtype), d, weight.data(), bias.data(), kEps,
                           GetParam().c_str());
      const size_t bytes = x.rows() * d * rmsnorm_dtype_size(dtype);
      const GuardedBuffer guarded_x(bytes);
      const GuardedBuffer guarded_y(bytes);
      for (const bool stream : {false, true}) {
        std::memcpy(guarded_x.AtEnd(bytes), x.data(), bytes);
        norm.Forward(guarded_x.AtEnd(bytes), guarded_y.AtEnd(bytes), x.rows(), stream);
        std::memcpy(guarded_x.AtBegin(), x.data(), bytes);
        norm.Forward(guarded_x.AtBegin(), guarded_y.AtBegin(), x.rows(), stream);
      }
    }
  }
}

TEST_P(LayerNormTest, NanStaysInItsRow) {
  constexpr size_t kRows = 9;
  for (const rmsnorm_dtype dtype : kTypes) {
    for (const size_t d : SizeList{5, 128, 2880}) {
      Tensor x(dtype, kRows, d);
      Tensor weight(dtype, 1, d);
      Tensor bias(dtype, 1, d);
      FillNormal(random_, x);
      FillParameters(random_, weight, bias);
      x.set(2, d - 1, std::numeric_limits<double>::quiet_NaN());
      x.set(7, 0, std::numeric_limits<double>::infinity());
      const LayerNorm norm(static_cast<Dtype>(dtype), d, weight.data(), bias.data(), kEps,
                           GetParam().c_str());
      Tensor y(dtype, kRows, d);
      norm.Forward(x.data(), y.data(), kRows);
      for (size_t row = 0; row < kRows; ++row) {
        for (size_t j = 0; j < d; ++j) {
          ASSERT_EQ(std::isnan(y.get(row, j)), row == 2 || row == 7) << "row " << row;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, LayerNormTest, testing::ValuesIn(SupportedTargets()), Name);

TEST(LayerNormArguments, AreTheLibrarys) {
  const std::vector<float> ones(4, 1.0f);
  const auto make = [&](Dtype dtype, const char* target) {
    const LayerNorm norm(dtype, ones.size(), ones.data(), ones.data(), kEps, target);
    return norm.Streams(1);
  };
  EXPECT_FALSE(make(Dtype::f32, nullptr));
  EXPECT_THROW(make(Dtype::f16, nullptr), Error);
  EXPECT_THROW(make(Dtype::f32, "no such target"), Error);
}

TEST(LayerNormArguments, StreamsBeyondTheLastCache) {
  const std::vector<float> ones(4, 1.0f);
  const LayerNorm norm(Dtype::f32, ones.size(), ones.data(), ones.data(), kEps, nullptr);
  EXPECT_TRUE(norm.Streams(size_t{1} << 32));
}

}  // namespace
}  // namespace rmsnorm::test
