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
  // The rows of x computed one at a time, into memory that is otherwise as `memory` before.
  std::vector<float> RowByRow(const rmsnorm_view& x, const Tensor& weight, const rmsnorm_view& y,
                              const std::vector<float>& memory, std::vector<float>& rstd) const {
    std::vector<float> expected = memory;
    const ptrdiff_t y_start = static_cast<const float*>(y.data) - memory.data();
    const size_t d = x.shape[x.ndim - 1];
    std::vector<ptrdiff_t> targets;
    ForEachRow(y, [&](ptrdiff_t offset) { targets.push_back(y_start + offset); });
    rstd.resize(targets.size());
    size_t row = 0;
    ForEachRow(x, [&](ptrdiff_t offset) {
      std::vector<float> result(d);
      ForwardOperands operands;
      operands.x = {static_cast<const float*>(x.data) + offset, d};
      operands.weight = ConstView(weight.vector());
      operands.y = {result.data(), d};
      operands.rstd = {&rstd[row], 1};
      forward(operands, {}, context_);
      std::memcpy(&expected[static_cast<size_t>(targets[row])], result.data(), d * sizeof(float));
      ++row;
    });
    return expected;
  }

  // Runs forward from x to y, which is a view of `memory`, and compares all of the memory.
  void ExpectRows(const rmsnorm_view& x, const rmsnorm_view& y, std::vector<float>& memory) {
    const size_t ndim = static_cast<size_t>(x.ndim);
    Tensor weight(RMSNORM_F32, 1, x.shape[ndim - 1]);
    FillWeight(random_, weight);
    std::vector<float> expected_rstd;
    const std::vector<float> expected = RowByRow(x, weight, y, memory, expected_rstd);
    std::vector<float> rstd(expected_rstd.size());
    ForwardOperands operands;
    operands.x = ConstView(x);
    operands.weight = ConstView(weight.vector());
    operands.y = View(y);
    const size_t one = 1;
    operands.rstd = ndim == 1 ? View(rstd.data(), Dtype::f32, 1, &one)
                              : View(rstd.data(), Dtype::f32, ndim - 1, x.shape);
    forward(operands, {}, context_);
    EXPECT_TRUE(SameBits(expected, memory));
    EXPECT_TRUE(SameBits(expected_rstd, rstd));
  }

  std::vector<float> RandomMemory(size_t size) {
    std::vector<float> memory(size);
    for (float& value : memory) value = static_cast<float>(random_.Normal());
    return memory;
  }

  const std::string target_ = GetParam();
  const Context context_ = OnTarget(target_);
  Random random_{91};
};

rmsnorm_view MakeView(float* data, const std::vector<size_t>& shape,
                      const std::vector<ptrdiff_t>& stride = {}) {
  return rmsnorm_tensor(data, RMSNORM_F32, static_cast<int32_t>(shape.size()), shape.data(),
                        stride.empty() ? nullptr : stride.data());
}

TEST_P(ViewsTest, OneToEightDimensions) {
  const size_t shape[] = {2, 1, 3, 2, 2, 3, 2, 70};
  for (size_t ndim = 1; ndim <= 8; ++ndim) {
    const std::vector<size_t> last(shape + 8 - ndim, shape + 8);
    std::vector<float> x = RandomMemory(144 * 70);
    std::vector<float> y = RandomMemory(x.size());
    ExpectRows(MakeView(x.data(), last), MakeView(y.data(), last), y);
  }
}

// Padding after every dimension, of another size in y: no two dimensions walk as one.
TEST_P(ViewsTest, EightDimensionsThatDoNotMerge) {
  const std::vector<size_t> shape = {2, 2, 3, 2, 2, 3, 2, 17};
  std::vector<ptrdiff_t> x_stride(8, 1);
  std::vector<ptrdiff_t> y_stride(8, 1);
  for (size_t i = 7; i-- > 0;) {
    const ptrdiff_t size = static_cast<ptrdiff_t>(shape[i + 1]);
    x_stride[i] = (size + 1) * x_stride[i + 1];
    y_stride[i] = (size + 2) * y_stride[i + 1];
  }
  std::vector<float> x = RandomMemory(2 * static_cast<size_t>(x_stride[0]));
  std::vector<float> y = RandomMemory(2 * static_cast<size_t>(y_stride[0]));
  ExpectRows(MakeView(x.data(), shape, x_stride), MakeView(y.data(), shape, y_stride), y);
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
      ForwardOperands first;
      first.x = ConstView(x_view);
      first.sums_out = {sums.data(), {3, 4}};
      forward(first, {}, context_);
      std::vector<float> rstd(12);
      ForwardOperands second;
      second.x = ConstView(x_view);
      second.sums = {sums.data(), {3, 4}};
      second.y = View(y_view);
      second.rstd = {rstd.data(), {3, 4}};
      forward(second, {}, context_);
      EXPECT_TRUE(y.IsPaddingWiped());

      Tensor expected(y_dtype, 12, d, 3, 10);
      std::vector<float> expected_rstd(12);
      forward(NormOperands(x, nullptr, expected, &expected_rstd), {}, context_);
      EXPECT_TRUE(SameBits(expected, y));
      for (size_t row = 0; row < 12; ++row) {
        // Groups of four rows in reverse order.
        const size_t from = (2 - row / 4) * 4 + row % 4;
        EXPECT_TRUE(SameBits(RMSNORM_F32, &expected_rstd[from], &rstd[row], 1));
      }
    }
  }
}

// What is one per row lies as freely as rows do: with gaps, backwards, in another order; a given
// sum may stand for several rows.
TEST_P(ViewsTest, OnePerRow) {
  const size_t rows = 12;
  Tensor x(RMSNORM_F32, rows, 70);
  FillMixed(random_, x);
  Tensor dense(RMSNORM_F32, rows, 70);
  std::vector<float> dense_rstd(rows);
  std::vector<double> dense_sums(rows);
  ForwardOperands operands = NormOperands(x, nullptr, dense, &dense_rstd);
  operands.sums_out = {dense_sums.data(), rows};
  forward(operands, {}, context_);

  const Tensor wiped_y(RMSNORM_F32, rows, 70);
  const std::vector<float> wiped_rstd(40, -1.0f);
  const std::vector<double> wiped_sums(40, -1.0);
  // Three by four rows; where the first of them is, and the strides.
  struct Place {
    size_t first;
    std::initializer_list<ptrdiff_t> stride;
  };
  for (const Place& rstd_at : {Place{1, {12, 3}}, Place{39, {-12, -2}}, Place{2, {1, 9}}}) {
    for (const Place& sums_at : {Place{0, {8, 1}}, Place{30, {2, -10}}}) {
      const auto at = [](const Place& place, size_t row) {
        const ptrdiff_t offset = static_cast<ptrdiff_t>(row / 4) * place.stride.begin()[0] +
                                 static_cast<ptrdiff_t>(row % 4) * place.stride.begin()[1];
        return static_cast<size_t>(static_cast<ptrdiff_t>(place.first) + offset);
      };
      std::vector<float> expected_rstd = wiped_rstd;
      std::vector<double> expected_sums = wiped_sums;
      for (size_t row = 0; row < rows; ++row) {
        expected_rstd[at(rstd_at, row)] = dense_rstd[row];
        expected_sums[at(sums_at, row)] = dense_sums[row];
      }
      std::vector<float> rstd = wiped_rstd;
      std::vector<double> sums = wiped_sums;
      ForwardOperands first;
      first.x = ConstView(x.view({3, 4}));
      first.sums_out = {sums.data() + sums_at.first, {3, 4}, sums_at.stride};
      forward(first, {}, context_);
      EXPECT_TRUE(SameBits(expected_sums, sums));

      Tensor y = wiped_y;
      ForwardOperands second = first;
      second.sums = first.sums_out;
      second.sums_out = {};
      second.y = View(y.view({3, 4}));
      second.rstd = {rstd.data() + rstd_at.first, {3, 4}, rstd_at.stride};
      forward(second, {}, context_);
      EXPECT_TRUE(SameBits(expected_rstd, rstd));
      EXPECT_TRUE(SameBits(dense, y));
    }
  }

  // Every row is scaled by the sum of the first.
  Tensor y = wiped_y;
  operands = NormOperands(x, nullptr, y);
  operands.sums = {dense_sums.data(), {rows}, {0}};
  forward(operands, {}, context_);
  Tensor expected = wiped_y;
  const std::vector<double> sums(rows, dense_sums[0]);
  operands = NormOperands(x, nullptr, expected);
  operands.sums = {sums.data(), rows};
  forward(operands, {}, context_);
  EXPECT_TRUE(SameBits(expected, y));
}

INSTANTIATE_TEST_SUITE_P(Targets, ViewsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
