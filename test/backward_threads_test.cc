// SPDX-License-Identifier: Apache-2.0
// Neither the number of threads nor who runs them changes a bit of the gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <vector>

#include "gradients.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

// An executor of the caller that starts a thread for each part, last part first.
class Executor {
 public:
  void SetIn(Context& context) {
    context.parallel_for = &Executor::ParallelFor;
    context.parallel_context = this;
  }
  size_t most_parts() const { return most_parts_; }

 private:
  static void ParallelFor(void* context, size_t count, rmsnorm_task task, void* state) {
    Executor& executor = *static_cast<Executor*>(context);
    executor.most_parts_ = std::max(executor.most_parts_, count);
    std::vector<std::thread> threads;
    for (size_t i = count; i-- > 0;) threads.emplace_back(task, state, i);
    for (std::thread& thread : threads) thread.join();
  }

  size_t most_parts_ = 0;
};

struct Shape {
  size_t rows;
  size_t d;
};

class BackwardThreadsTest : public testing::TestWithParam<std::string> {
 protected:
  // The same call on the calling thread and in any number of parts.
  void Compare(const GradientInputs& inputs, const Options& options = {}) {
    const GradientResults serial = ComputeGradients(inputs, options, OnTarget(target_, 1));
    for (const int threads : {2, 3, 4, 5, 6, 7, 8}) {
      SCOPED_TRACE(testing::Message()
                   << inputs.x.rows() << " x " << inputs.x.d() << ", " << threads << " threads");
      Context context = OnTarget(target_, threads);
      EXPECT_TRUE(SameBits(serial, ComputeGradients(inputs, options, context)));
      Executor executor;
      executor.SetIn(context);
      EXPECT_TRUE(SameBits(serial, ComputeGradients(inputs, options, context)));
      // db alone goes to threads by whole blocks of rows.
      if (inputs.dx || inputs.dw) {
        EXPECT_EQ(static_cast<size_t>(threads), executor.most_parts());
      }
    }
  }

  GradientInputs Draw(rmsnorm_dtype x, rmsnorm_dtype dy, const Shape& shape, bool special) {
    GradientInputs inputs = {
        Tensor(x, shape.rows, shape.d, 3, 5), Tensor(dy, shape.rows, shape.d, 1, 2),
        Tensor(RMSNORM_BF16, 1, shape.d),     {},
        Tensor(dy, shape.rows, shape.d),      Tensor(RMSNORM_F32, 1, shape.d),
        Tensor(RMSNORM_F16, 1, shape.d)};
    if (special) {
      FillFinite(random_, inputs.x, random_.Below(9));
      FillFinite(random_, inputs.dy, random_.Below(9));
    } else {
      FillNormal(random_, inputs.x);
      FillNormal(random_, inputs.dy);
    }
    FillTameWeight(random_, *inputs.weight);
    return inputs;
  }

  const std::string target_ = GetParam();
  Random random_{61};
};

// Many rows, whole blocks of them to each thread; few rows, columns to each; and what lies between:
// blocks of rows that do not spread evenly.
constexpr Shape kShapes[] = {{1031, 512}, {4096, 33}, {1, 200'077}, {2, 70'000}, {3, 50'001},
                             {16, 8193},  {17, 8192}, {33, 5000},   {100, 1400}, {1024, 130}};

TEST_P(BackwardThreadsTest, EveryShapeAndNumberOfThreads) {
  for (const Shape& shape : kShapes) {
    for (const bool special : {false, true}) {
      Options options;
      options.eps_placement = special ? EpsPlacement::outside : EpsPlacement::inside;
      ASSERT_NO_FATAL_FAILURE(Compare(Draw(RMSNORM_F32, RMSNORM_BF16, shape, special), options));
    }
  }
}

TEST_P(BackwardThreadsTest, EveryKindOfCall) {
  for (const Shape& shape : {Shape{1031, 300}, Shape{3, 50'001}, Shape{40, 4000}}) {
    GradientInputs inputs = Draw(RMSNORM_F16, RMSNORM_F32, shape, true);
    FillNormal(random_, *inputs.dx);
    FillNormal(random_, *inputs.dw);
    FillNormal(random_, *inputs.db);
    for (uint32_t add_to = 0; add_to < 8; ++add_to) {
      inputs.add_to = add_to;
      ASSERT_NO_FATAL_FAILURE(Compare(inputs));
    }
    inputs.rstd = InverseRmsOf(inputs.x, {});
    ASSERT_NO_FATAL_FAILURE(Compare(inputs));
    for (unsigned some = 1; some < 7; ++some) {
      GradientInputs fewer = inputs;
      if ((some & 1) == 0) fewer.dx.reset();
      if ((some & 2) == 0) fewer.dw.reset();
      if ((some & 4) == 0) fewer.db.reset();
      ASSERT_NO_FATAL_FAILURE(Compare(fewer));
    }
    inputs.in_place = true;
    inputs.dx = inputs.dy;
    ASSERT_NO_FATAL_FAILURE(Compare(inputs));
  }
}

// Weights and biases that some rows share: from few groups of many rows, in many blocks each, to a
// row of dw and db for each row of x.
TEST_P(BackwardThreadsTest, RowsShareWeightsAndBiases) {
  struct Shared {
    SizeList leading;
    SizeList weight;
    SizeList bias;
    size_t d;
  };
  for (const Shared& shape :
       {Shared{{1200, 3}, {3}, {1200, 1}, 64}, Shared{{7, 5, 9}, {5, 1}, {7, 5, 9}, 700},
        Shared{{2, 3}, {2, 1}, {3}, 50'001}, Shared{{4, 100}, {4, 100}, {4, 1}, 500},
        Shared{{40, 5, 1, 2, 1, 2, 1}, {5, 1, 1, 1, 2, 1}, {2, 1, 1, 1}, 300}}) {
    GradientInputs inputs =
        Draw(RMSNORM_BF16, RMSNORM_F32, {Product(shape.leading), shape.d}, false);
    inputs.leading = shape.leading;
    inputs.weight_leading = shape.weight;
    inputs.bias_leading = shape.bias;
    inputs.weight.emplace(RMSNORM_F32, Product(shape.weight), shape.d);
    FillNormal(random_, *inputs.weight);
    inputs.dw.emplace(RMSNORM_BF16, Product(shape.weight), shape.d, 1, 2);
    inputs.db.emplace(RMSNORM_F32, Product(shape.bias), shape.d, 2, 1);
    FillNormal(random_, *inputs.dw);
    FillNormal(random_, *inputs.db);
    for (const int add_to : {0, RMSNORM_ADD_TO_DW | RMSNORM_ADD_TO_DB}) {
      inputs.add_to = static_cast<uint32_t>(add_to);
      ASSERT_NO_FATAL_FAILURE(Compare(inputs));
    }
    inputs.weight.reset();
    inputs.dx.reset();
    ASSERT_NO_FATAL_FAILURE(Compare(inputs));
  }
}

TEST_P(BackwardThreadsTest, SmallWorkStaysSerial) {
  Context context = OnTarget(target_, 8);
  Executor executor;
  executor.SetIn(context);
  ComputeGradients(Draw(RMSNORM_F32, RMSNORM_F32, {20, 512}, false), {}, context);
  EXPECT_EQ(0u, executor.most_parts());
}

// Rows that are not one run in memory, and walk differently through x, dy and dx: as dense rows.
TEST_P(BackwardThreadsTest, StridesOfManyDimensions) {
  const size_t shape[] = {3, 2, 7, 5, 300};
  const size_t rows = 3 * 2 * 7 * 5;
  const size_t d = 300;
  const ptrdiff_t x_stride[] = {-2 * 7 * 5 * 301, 7 * 5 * 301, 0, 301, 1};
  const ptrdiff_t dy_stride[] = {300, 7 * 5 * 3 * 300, 5 * 3 * 300, 3 * 300, 1};
  const ptrdiff_t dx_stride[] = {7 * 5 * 2 * 310, 310, 5 * 2 * 310, 2 * 310, 1};
  std::vector<float> x(3 * 2 * 7 * 5 * 301);
  std::vector<float> dy(rows * d);
  std::vector<float> dx(rows * 310, 0.5f);
  for (float& value : x) value = static_cast<float>(random_.Normal());
  for (float& value : dy) value = static_cast<float>(random_.Normal());
  const float* const x_begin = x.data() + 2 * 2 * 7 * 5 * 301;

  // The same rows one after the other.
  std::vector<float> dense_x;
  std::vector<float> dense_dy;
  std::vector<ptrdiff_t> dx_at;
  for (size_t row = 0; row < rows; ++row) {
    ptrdiff_t x_at = 0;
    ptrdiff_t dy_at = 0;
    ptrdiff_t at = 0;
    size_t rest = row;
    for (int i = 3; i >= 0; --i) {
      const ptrdiff_t index = static_cast<ptrdiff_t>(rest % shape[i]);
      rest /= shape[i];
      x_at += index * x_stride[i];
      dy_at += index * dy_stride[i];
      at += index * dx_stride[i];
    }
    dense_x.insert(dense_x.end(), x_begin + x_at, x_begin + x_at + d);
    dense_dy.insert(dense_dy.end(), dy.data() + dy_at, dy.data() + dy_at + d);
    dx_at.push_back(at);
  }
  std::vector<float> dense_dx(rows * d);
  std::vector<float> dense_dw(d);
  BackwardOperands operands;
  operands.dy = {dense_dy.data(), rows, d};
  operands.x = {dense_x.data(), rows, d};
  operands.dx = {dense_dx.data(), rows, d};
  operands.dw = {dense_dw.data(), d};
  backward(operands, {}, OnTarget(target_, 1));
  std::vector<float> expected = dx;
  for (size_t row = 0; row < rows; ++row) {
    std::copy_n(&dense_dx[row * d], d, expected.begin() + dx_at[row]);
  }

  operands.dy = {dy.data(), Dtype::f32, 5, shape, dy_stride};
  operands.x = {x_begin, Dtype::f32, 5, shape, x_stride};
  for (const int threads : {1, 2, 3, 8}) {
    std::vector<float> actual = dx;
    std::vector<float> dw(d);
    operands.dx = {actual.data(), Dtype::f32, 5, shape, dx_stride};
    operands.dw = {dw.data(), d};
    backward(operands, {}, OnTarget(target_, threads));
    ASSERT_TRUE(SameBits(RMSNORM_F32, expected.data(), actual.data(), actual.size())) << threads;
    ASSERT_TRUE(SameBits(RMSNORM_F32, dense_dw.data(), dw.data(), d)) << threads;
  }
}

// dx of a row does not depend on the rows around it.
TEST_P(BackwardThreadsTest, RowsDoNotDependOnTheirBatch) {
  const Context context = OnTarget(target_, 1);
  const GradientInputs whole = Draw(RMSNORM_BF16, RMSNORM_BF16, {23, 300}, true);
  const GradientResults expected = ComputeGradients(whole, {}, context);
  for (size_t begin = 0; begin < 23; ++begin) {
    for (size_t count = 1; begin + count <= 23; ++count) {
      GradientInputs part = Draw(RMSNORM_BF16, RMSNORM_BF16, {count, 300}, true);
      part.weight = whole.weight;
      for (size_t row = 0; row < count; ++row) {
        std::memcpy(part.x.Row(row), whole.x.Row(begin + row), 600);
        std::memcpy(part.dy.Row(row), whole.dy.Row(begin + row), 600);
      }
      const GradientResults results = ComputeGradients(part, {}, context);
      for (size_t row = 0; row < count; ++row) {
        ASSERT_TRUE(
            SameBits(RMSNORM_BF16, expected.dx->Row(begin + row), results.dx->Row(row), 300));
      }
    }
  }
}

TEST_P(BackwardThreadsTest, CallsFromManyThreadsAtOnce) {
  const GradientInputs inputs = Draw(RMSNORM_F32, RMSNORM_F32, {300, 300}, false);
  const GradientResults serial = ComputeGradients(inputs, {}, OnTarget(target_, 1));
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 5; ++repeat) {
        if (!SameBits(serial, ComputeGradients(inputs, {}, OnTarget(target_, i % 3)))) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(0, wrong);
}

INSTANTIATE_TEST_SUITE_P(Targets, BackwardThreadsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
