// SPDX-License-Identifier: Apache-2.0
// Rows wherever they lie: any number of dimensions, any strides, slices, repeats, in place.
#include <gtest/gtest.h>

#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "random_rows.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

// Calls visit(offset of the row in elements) for each row of a view in C order.
template <class Visit>
void ForEachRow(const rmsnorm_view& view, const Visit& visit) {
  size_t rows = 1;
  for (int i = 0; i + 1 < view.ndim; ++i) rows *= view.shape[i];
  for (size_t row = 0; row < rows; ++row) {
    ptrdiff_t offset = 0;
    size_t rest = row;
    for (int i = view.ndim - 2; i >= 0; --i) {
      offset += static_cast<ptrdiff_t>(rest % view.shape[i]) * view.stride[i];
      rest /= view.shape[i];
    }
    visit(offset);
  }
}

class ViewsTest : public testing::TestWithParam<std::string> {
 protected:
  ViewsTest() { options_.target = target_.c_str(); }

  // The rows of x computed one at a time, into memory that is otherwise as `memory` before.
  std::vector<float> RowByRow(const rmsnorm_view& x, const rmsnorm_view* weight,
                              const rmsnorm_view& y, const std::vector<float>& memory,
                              std::vector<float>& rstd) const {
    std::vector<float> expected = memory;
    const ptrdiff_t y_start = static_cast<const float*>(y.data) - memory.data();
    const size_t d = x.shape[x.ndim - 1];
    std::vector<ptrdiff_t> targets;
    ForEachRow(y, [&](ptrdiff_t offset) { targets.push_back(y_start + offset); });
    rstd.resize(targets.size());
    size_t row = 0;
    ForEachRow(x, [&](ptrdiff_t offset) {
      const rmsnorm_view one =
          rmsnorm_tensor(static_cast<const float*>(x.data) + offset, RMSNORM_F32, 1, &d, nullptr);
      std::vector<float> result(d);
      const rmsnorm_view out = rmsnorm_tensor(result.data(), RMSNORM_F32, 1, &d, nullptr);
      EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&one, weight, &out, &rstd[row], &options_));
      std::memcpy(&expected[static_cast<size_t>(targets[row])], result.data(), d * sizeof(float));
      ++row;
    });
    return expected;
  }

  // Runs forward from x to y, which is a view of `memory`, and compares all of the memory.
  void ExpectRows(const rmsnorm_view& x, const rmsnorm_view& y, std::vector<float>& memory) {
    const size_t d = x.shape[x.ndim - 1];
    Tensor weight(RMSNORM_F32, 1, d);
    FillWeight(random_, weight);
    const rmsnorm_view w = weight.vector();
    std::vector<float> expected_rstd;
    const std::vector<float> expected = RowByRow(x, &w, y, memory, expected_rstd);
    std::vector<float> rstd(expected_rstd.size());
    ASSERT_EQ(RMSNORM_OK, rmsnorm_forward(&x, &w, &y, rstd.data(), &options_))
        << rmsnorm_error_message();
    EXPECT_TRUE(SameBits(RMSNORM_F32, expected.data(), memory.data(), memory.size()));
    EXPECT_TRUE(SameBits(RMSNORM_F32, expected_rstd.data(), rstd.data(), rstd.size()));
  }

  std::vector<float> RandomMemory(size_t size) {
    std::vector<float> memory(size);
    for (float& value : memory) value = static_cast<float>(random_.Normal());
    return memory;
  }

  const std::string target_ = GetParam();
  Options options_;
  Random random_{91};
};

rmsnorm_view MakeView(float* data, const std::vector<size_t>& shape,
                      const std::vector<ptrdiff_t>& stride = {}) {
  return rmsnorm_tensor(data, RMSNORM_F32, static_cast<int32_t>(shape.size()), shape.data(),
                        stride.empty() ? nullptr : stride.data());
}

TEST_P(ViewsTest, OneToFiveDimensions) {
  const size_t shape[] = {2, 3, 4, 5, 70};
  for (size_t ndim = 1; ndim <= 5; ++ndim) {
    const std::vector<size_t> last(shape + 5 - ndim, shape + 5);
    std::vector<float> x = RandomMemory(2 * 3 * 4 * 5 * 70);
    std::vector<float> y = RandomMemory(x.size());
    ExpectRows(MakeView(x.data(), last), MakeView(y.data(), last), y);
  }
}

// Padding after every dimension, of another size in y: no two dimensions walk as one.
TEST_P(ViewsTest, FiveDimensionsThatDoNotMerge) {
  const std::vector<size_t> shape = {2, 3, 4, 5, 17};
  std::vector<float> x = RandomMemory(2 * 4 * 5 * 6 * 18);
  std::vector<float> y = RandomMemory(2 * 5 * 6 * 7 * 19);
  ExpectRows(MakeView(x.data(), shape, {4 * 5 * 6 * 18, 5 * 6 * 18, 6 * 18, 18, 1}),
             MakeView(y.data(), shape, {5 * 6 * 7 * 19, 6 * 7 * 19, 7 * 19, 19, 1}), y);
}

TEST_P(ViewsTest, RowsWithPadding) {
  for (const ptrdiff_t x_stride : {70, 71, 100}) {
    for (const ptrdiff_t y_stride : {70, 73, 128}) {
      std::vector<float> x = RandomMemory(9 * 128);
      std::vector<float> y = RandomMemory(9 * 128);
      ExpectRows(MakeView(x.data(), {9, 70}, {x_stride, 1}),
                 MakeView(y.data(), {9, 70}, {y_stride, 1}), y);
    }
  }
}

// q and k of a buffer [tokens, (q heads + k heads + v heads) * d], each normalised where it lies.
TEST_P(ViewsTest, SlicesOfAFusedBuffer) {
  const size_t tokens = 5;
  const size_t q_heads = 4;
  const size_t kv_heads = 2;
  const size_t d = 64;
  const ptrdiff_t token = static_cast<ptrdiff_t>((q_heads + 2 * kv_heads) * d);
  std::vector<float> qkv = RandomMemory(tokens * static_cast<size_t>(token));
  const rmsnorm_view q = MakeView(qkv.data(), {tokens, q_heads, d}, {token, d, 1});
  const rmsnorm_view k = MakeView(qkv.data() + q_heads * d, {tokens, kv_heads, d}, {token, d, 1});
  ExpectRows(q, q, qkv);
  ExpectRows(k, k, qkv);
}

// From the k slice to the v slice of the same buffer: interleaved, but no byte is shared.
TEST_P(ViewsTest, InterleavedInputAndOutput) {
  std::vector<float> memory = RandomMemory(6 * 3 * 40);
  const rmsnorm_view x = MakeView(memory.data() + 40, {6, 40}, {120, 1});
  ExpectRows(x, MakeView(memory.data() + 80, {6, 40}, {120, 1}), memory);
  ExpectRows(x, MakeView(memory.data(), {6, 40}, {120, 1}), memory);
}

TEST_P(ViewsTest, InPlace) {
  std::vector<float> memory = RandomMemory(4 * 5 * 100);
  const rmsnorm_view dense = MakeView(memory.data(), {4, 5, 100});
  ExpectRows(dense, dense, memory);
  const rmsnorm_view padded = MakeView(memory.data() + 3, {4, 3, 90}, {500, 101, 1});
  ExpectRows(padded, padded, memory);
}

TEST_P(ViewsTest, RepeatedRows) {
  std::vector<float> x = RandomMemory(3 * 50);
  std::vector<float> y(7 * 3 * 50);
  ExpectRows(MakeView(x.data(), {7, 50}, {0, 1}), MakeView(y.data(), {7, 50}), y);
  ExpectRows(MakeView(x.data(), {7, 3, 50}, {0, 50, 1}), MakeView(y.data(), {7, 3, 50}), y);
  ExpectRows(MakeView(x.data(), {3, 7, 50}, {50, 0, 1}), MakeView(y.data(), {3, 7, 50}), y);
}

// Rows that overlap each other, as windows over a signal do.
TEST_P(ViewsTest, OverlappingInputRows) {
  std::vector<float> x = RandomMemory(100);
  std::vector<float> y(60 * 40);
  ExpectRows(MakeView(x.data(), {60, 40}, {1, 1}), MakeView(y.data(), {60, 40}), y);
}

TEST_P(ViewsTest, NegativeStrides) {
  std::vector<float> x = RandomMemory(4 * 5 * 60);
  std::vector<float> y(x.size());
  float* const last_x = x.data() + 19 * 60;
  ExpectRows(MakeView(last_x, {20, 60}, {-60, 1}), MakeView(y.data(), {20, 60}), y);
  ExpectRows(MakeView(x.data(), {20, 60}), MakeView(y.data() + 19 * 60, {20, 60}, {-60, 1}), y);
  ExpectRows(MakeView(x.data() + 15 * 60, {4, 5, 60}, {-5 * 60, 60, 1}),
             MakeView(y.data() + 4 * 60, {4, 5, 60}, {5 * 60, -60, 1}), y);
  const rmsnorm_view reversed = MakeView(last_x, {20, 60}, {-60, 1});
  ExpectRows(reversed, reversed, x);
}

TEST_P(ViewsTest, TransposedLeadingDimensions) {
  std::vector<float> x = RandomMemory(6 * 7 * 33);
  std::vector<float> y(x.size());
  ExpectRows(MakeView(x.data(), {6, 7, 33}), MakeView(y.data(), {6, 7, 33}, {33, 6 * 33, 1}), y);
  ExpectRows(MakeView(x.data(), {6, 7, 33}, {33, 6 * 33, 1}), MakeView(y.data(), {6, 7, 33}), y);
}

// The stride of a dimension of one element is never used, so any will do.
TEST_P(ViewsTest, StridesOfSingleElements) {
  std::vector<float> x = RandomMemory(3 * 30);
  std::vector<float> y(x.size());
  ExpectRows(MakeView(x.data(), {1, 3, 30}, {-12345, 30, 1}),
             MakeView(y.data(), {1, 3, 30}, {0, 30, 1}), y);
  ExpectRows(MakeView(x.data(), {90, 1}, {1, 77}), MakeView(y.data(), {90, 1}, {1, -5}), y);
}

// The two phases and other types walk the rows the same way.
TEST_P(ViewsTest, PhasesAndShortTypes) {
  const size_t d = 70;
  const std::vector<size_t> shape = {3, 4, d};
  const std::vector<ptrdiff_t> stride = {-4 * 80, 80, 1};
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype y_dtype : kDtypes) {
      Tensor x(x_dtype, 12, d, 1, 10);
      FillMixed(random_, x);
      Tensor y(y_dtype, 12, d, 3, 10);
      const rmsnorm_view x_view = rmsnorm_tensor(x.Row(8), x_dtype, 3, shape.data(), stride.data());
      const rmsnorm_view y_view = rmsnorm_tensor(y.Row(8), y_dtype, 3, shape.data(), stride.data());
      std::vector<double> sums(12);
      std::vector<float> rstd(12);
      sum_squares(ConstView(x_view), sums.data(), options_);
      scale(ConstView(x_view), sums.data(), nullptr, View(y_view), options_, rstd.data());
      EXPECT_TRUE(y.IsPaddingWiped());

      Tensor expected(y_dtype, 12, d, 3, 10);
      std::vector<float> expected_rstd(12);
      forward(ConstView(x.view()), nullptr, View(expected.view()), options_, expected_rstd.data());
      EXPECT_TRUE(SameBits(expected, y));
      for (size_t row = 0; row < 12; ++row) {
        // Groups of four rows in reverse order.
        const size_t from = (2 - row / 4) * 4 + row % 4;
        EXPECT_TRUE(SameBits(RMSNORM_F32, &expected_rstd[from], &rstd[row], 1));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ViewsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
