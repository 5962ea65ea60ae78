// SPDX-License-Identifier: Apache-2.0
// The kernels of the backward pass called directly, for what a call of the library does not reach
// at once: the library's own memory, the prepared weight and the sums of dw, beside pages that
// cannot be touched; dx written past the caches, which otherwise takes more rows than the last
// cache holds; and the two steps into which work for many threads is split.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "gradient_rows.h"
#include "gradients.h"
#include "guarded_buffer.h"
#include "rows.h"
#include "target.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

using internal::DtypeIndex;
using internal::GradientRows;
using internal::GradientTable;
using internal::KernelTable;
using internal::Norm;
using internal::RowTerms;

constexpr size_t kLongest = 8200;

const GradientTable& FindTable(const char* target) {
  const KernelTable* table = nullptr;
  EXPECT_EQ(RMSNORM_OK, internal::FindKernels(target, table));
  return *table->gradient;
}

struct Sums {
  Tensor dx;
  std::vector<float> dw;
};

enum class How { kPlain, kStreamed, kTwoSteps };

class BackwardKernelsTest : public testing::TestWithParam<std::string> {
 protected:
  void* Place(const GuardedBuffer& guard, size_t bytes, bool at_begin) const {
    return at_begin ? guard.AtBegin() : guard.AtEnd(bytes);
  }

  // The gradients of some rows, with the weight and dw at the end, or at the begin, of their
  // memory.
  Sums Run(const GradientTable& table, const Tensor& x, const Tensor& dy, Tensor dx,
           const std::vector<float>& weight, bool at_begin, How how) const {
    const size_t d = weight.size();
    const size_t bytes = d * sizeof(float);
    Norm norm = {};
    norm.d = d;
    norm.weight = static_cast<const float*>(
        std::memcpy(Place(weight_, bytes, at_begin), weight.data(), bytes));
    norm.eps = 1e-5f;
    norm.divisor = static_cast<float>(d);
    GradientRows rows = {};
    rows.count = x.rows();
    rows.x = x.data();
    rows.x_stride = x.view().stride[0];
    rows.dy = dy.data();
    rows.dy_stride = dy.view().stride[0];
    rows.dx = dx.data();
    rows.dx_stride = dx.view().stride[0];
    rows.stream = how == How::kStreamed;
    // NaN, which must not reach the sums.
    rows.dw = static_cast<float*>(std::memset(Place(dw_, bytes, at_begin), 0xFF, bytes));
    rows.start_dw = true;
    const int x_type = DtypeIndex(x.dtype());
    const int dy_type = DtypeIndex(dy.dtype());
    if (how == How::kTwoSteps) {
      std::vector<RowTerms> terms(x.rows());
      table.terms[x_type][dy_type](norm, rows, terms.data());
      // In two runs of columns, of which one has rows that begin anywhere.
      const size_t first = d / 3;
      Columns(table, norm, rows, 0, first, x, dy, terms);
      Columns(table, norm, rows, first, d, x, dy, terms);
    } else {
      table.rows[x_type][dy_type](norm, rows);
    }
    return {dx, {rows.dw, rows.dw + d}};
  }

  const GradientTable& reference_ = FindTable(kReference);
  const GradientTable& table_ = FindTable(GetParam().c_str());
  const GuardedBuffer weight_{kLongest * sizeof(float)};
  const GuardedBuffer dw_{kLongest * sizeof(float)};
  Random random_{103};

 private:
  static void Columns(const GradientTable& table, Norm norm, GradientRows rows, size_t begin,
                      size_t end, const Tensor& x, const Tensor& dy,
                      const std::vector<RowTerms>& terms) {
    if (begin == end) return;
    norm.d = end - begin;
    norm.weight += begin;
    rows.x = static_cast<const char*>(rows.x) + begin * rmsnorm_dtype_size(x.dtype());
    rows.dy = static_cast<const char*>(rows.dy) + begin * rmsnorm_dtype_size(dy.dtype());
    rows.dx = static_cast<char*>(rows.dx) + begin * rmsnorm_dtype_size(dy.dtype());
    rows.dw += begin;
    table.columns[DtypeIndex(x.dtype())][DtypeIndex(dy.dtype())](norm, rows, terms.data());
  }
};

TEST_P(BackwardKernelsTest, AnyWayAndNoByteBesideTheirMemory) {
  SizeList sizes = {1000, 4095, 4096, 4097, 8191, 8192, 8193, kLongest};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype dy_dtype : kDtypes) {
      for (const size_t d : sizes) {
        Tensor x(x_dtype, 6, d, d % 5);
        Tensor dy(dy_dtype, 6, d, d % 3);
        FillFinite(random_, x, d);
        FillNormal(random_, dy);
        std::vector<float> weight(d);
        for (float& w : weight) w = static_cast<float>(1 + random_.Normal() / 2);
        for (const How how : {How::kPlain, How::kStreamed, How::kTwoSteps}) {
          // Every place of dx relative to a cache line comes with some length, and each row has
          // another.
          const Tensor dx(dy_dtype, 6, d, d % 32, d % 7);
          const bool at_begin = d % 2 == 0;
          const Sums expected = Run(reference_, x, dy, dx, weight, at_begin, How::kPlain);
          const Sums actual = Run(table_, x, dy, dx, weight, at_begin, how);
          ASSERT_TRUE(expected.dx.IsPaddingWiped());
          ASSERT_TRUE(SameBits(expected.dx, actual.dx))
              << rmsnorm_dtype_name(x_dtype) << " and " << rmsnorm_dtype_name(dy_dtype) << " d "
              << d << ", way " << static_cast<int>(how);
          ASSERT_TRUE(SameBits(RMSNORM_F32, expected.dw.data(), actual.dw.data(), d))
              << "dw, d " << d << ", way " << static_cast<int>(how);
        }
      }
    }
  }
}

// A row of zeros, each with the other sign than x has: their products are all -0, and so is a sum
// that does not begin with +0.
void FillOpposite(const Tensor& x, Tensor& dy, size_t row) {
  for (size_t j = 0; j < x.d(); ++j) dy.set_bits(row, j, ~x.bits(row, j) & 0x80000000);
}

// Rows of lengths that have loops of their own, asked mostly what training asks; with others than
// normal ones at every place.
TEST_P(BackwardKernelsTest, KnownLengths) {
  constexpr size_t kRows = 6;
  const auto one_in = [this](size_t n) { return random_.Below(n) == 0; };
  for (const size_t d : SizeList{1, 31, 32, 33, 64, 65, 80, 96, 97, 127, 128}) {
    for (unsigned i = 0; i < 4u << kRows; ++i) {
      const size_t count = 1 + random_.Below(kRows);
      Tensor x(RMSNORM_F32, count, d);
      Tensor dy(RMSNORM_F32, count, d, 0, i % 3);
      for (size_t row = 0; row < count; ++row) {
        const bool special = (i >> row & 1) != 0;
        const bool special_x = special && !one_in(4);  // else it is the products that overflow
        const RowKind any = kFiniteKinds[random_.Below(std::size(kFiniteKinds))];
        FillRow(random_, special_x ? any : RowKind::kNormal, x, row);
        FillRow(random_, special && one_in(2) ? RowKind::kHuge : RowKind::kNormal, dy, row);
        if (special && one_in(4)) FillOpposite(x, dy, row);
      }
      std::vector<float> weight(d, 1);
      if (!one_in(4)) {
        for (float& w : weight) w = static_cast<float>(1 + random_.Normal() / 2);
      }
      std::vector<float> rstd = InverseRmsOf(x, {});
      Tensor dx(RMSNORM_F32, count, d, one_in(2) ? 0 : i % 32, one_in(2) ? 0 : i % 5);
      FillNormal(random_, dx);
      Tensor dw(RMSNORM_F32, 1, d, i % 7);
      FillNormal(random_, dw);
      const bool in_place = one_in(4);
      const bool without_dx = one_in(16);
      const bool without_dw = one_in(16) && !without_dx;
      const bool add_dx = one_in(8) && !in_place;
      const bool stream = one_in(3) && !in_place && !add_dx && !without_dx;
      const bool start_dw = one_in(2);
      const bool without_rstd = one_in(16);
      const bool eps_outside = one_in(16);
      const bool other_divisor = one_in(16);
      const auto run = [&](const GradientTable& table) {
        Norm norm = {};
        norm.d = d;
        norm.weight = weight.data();
        norm.eps = 1e-5f;
        norm.eps_outside = eps_outside;
        norm.divisor = static_cast<float>(other_divisor ? d + 3 : d);
        std::vector<Tensor> outputs = {in_place ? dy : dx, dw};
        GradientRows rows = {};
        rows.count = count;
        rows.x = x.data();
        rows.x_stride = x.view().stride[0];
        rows.dy = in_place ? outputs[0].data() : dy.data();
        rows.dy_stride = dy.view().stride[0];
        rows.dx = without_dx ? nullptr : outputs[0].data();
        rows.dx_stride = outputs[0].view().stride[0];
        rows.rstd = without_rstd ? nullptr : rstd.data();
        rows.dw = without_dw ? nullptr : static_cast<float*>(outputs[1].data());
        rows.start_dw = start_dw;
        rows.add_dx = add_dx;
        rows.stream = stream;
        table.rows[0][0](norm, rows);
        return outputs;
      };
      const std::vector<Tensor> expected = run(reference_);
      const std::vector<Tensor> actual = run(table_);
      ASSERT_TRUE(SameBits(expected[0], actual[0])) << "dx, d " << d << ", case " << i;
      ASSERT_TRUE(SameBits(expected[1], actual[1])) << "dw, d " << d << ", case " << i;
    }
  }
}

// The sum of blocks, of any number and length, at any place.
TEST_P(BackwardKernelsTest, Finish) {
  for (size_t d = 1; d <= 150; ++d) {
    for (const size_t blocks : SizeList{1, 2, 5, 64}) {
      const size_t stride = d + d % 3;
      // Of the last row only d elements are there.
      const size_t bytes = ((blocks - 1) * stride + d) * sizeof(float);
      const GuardedBuffer guard(bytes);
      float* const sums = static_cast<float*>(guard.AtEnd(bytes));
      for (size_t i = 0; i < bytes / sizeof(float); ++i) {
        const uint32_t nan = 0x7FFFFFFF;
        sums[i] = static_cast<float>(random_.Normal());
        if (random_.Below(50) == 0) std::memcpy(sums + i, &nan, sizeof nan);
      }
      for (const rmsnorm_dtype dtype : kDtypes) {
        for (const bool add : {false, true}) {
          Tensor expected(dtype, 1, d, d % 32);
          FillNormal(random_, expected);
          Tensor actual = expected;
          const int type = DtypeIndex(dtype);
          reference_.finish[type](sums, stride, blocks, d, add, expected.data());
          table_.finish[type](sums, stride, blocks, d, add, actual.data());
          ASSERT_TRUE(SameBits(expected, actual)) << d << " in " << blocks << " blocks";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BackwardKernelsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
