// SPDX-License-Identifier: Apache-2.0
// Direct calls of the backward kernels, for what calls of the library rarely reach. The prepared
// weight and the sums of dw and db, which are the library's own memory, lie at inaccessible pages.
// dx is written past the caches, which otherwise takes more rows than the last cache holds.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cases/guarded_memory.h"
#include "gradients.h"
#include "kernel_call.h"
#include "reference.h"
#include "targets.h"
#include "walk.h"

namespace rmsnorm::test {
namespace {

using internal::kDb;
using internal::kDw;
using internal::kDx;
using internal::kDy;
using internal::kRstd;
using internal::kWeight;

constexpr size_t kLongest = 8200;

struct Sums {
  Tensor dx;
  std::vector<float> dw;
};

class BackwardKernelsTest : public testing::TestWithParam<std::string> {
 protected:
  std::vector<float> DrawWeight(size_t d) {
    std::vector<float> weight(d);
    for (float& w : weight) w = static_cast<float>(1 + random_.Normal() / 2);
    return weight;
  }

  // Memory at the end or at the start of a buffer, filled with the bytes of a NaN.
  static float* Place(cases::GuardedMemory& guard, size_t d, bool at_begin) {
    const size_t bytes = d * sizeof(float);
    void* const memory = at_begin ? guard.After(bytes) : guard.Before(bytes);
    return static_cast<float*>(std::memset(memory, 0xFF, bytes));
  }

  // The gradients of some rows, with the weight and dw next to guard pages.
  Sums Run(const KernelTable& table, const Tensor& x, const Tensor& dy, Tensor dx,
           const std::vector<float>& weight, bool at_begin, bool stream) {
    const size_t d = weight.size();
    float* const dw = Place(dw_, d, at_begin);
    KernelCall call(table, x);
    call.norm.stream = stream;
    call.Set(kDy, dy);
    call.Set(kDx, dx);
    call.Share(kWeight, static_cast<float*>(std::memcpy(Place(weight_, d, at_begin), weight.data(),
                                                        d * sizeof(float))));
    call.Share(kDw, dw);
    call.run.start_sums = true;
    table.backward(call.norm, call.run);
    return {std::move(dx), {dw, dw + d}};
  }

  const KernelTable& reference_ = FindTable(kReference);
  const KernelTable& table_ = FindTable(GetParam());
  cases::GuardedMemory weight_;
  cases::GuardedMemory dw_;
  Random random_{103};
};

SizeList Sizes() {
  SizeList sizes = {1000, 4095, 4096, 4097, 8191, 8192, 8193, kLongest};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  return sizes;
}

TEST_P(BackwardKernelsTest, AnyWayAndNoByteBesideTheirMemory) {
  for (unsigned types = 0; types < 27; ++types) {
    const rmsnorm_dtype x_dtype = kDtypes[types % 3];
    const rmsnorm_dtype dy_dtype = kDtypes[types / 3 % 3];
    const rmsnorm_dtype dx_dtype = kDtypes[types / 9];
    for (const size_t d : Sizes()) {
      // Types that never mix in one loop are tested with some lengths only.
      if (dx_dtype != dy_dtype && d % 7 != types % 7) continue;
      Tensor x(x_dtype, 6, d, d % 5);
      Tensor dy(dy_dtype, 6, d, d % 3);
      FillFinite(random_, x, d);
      FillNormal(random_, dy);
      const std::vector<float> weight = DrawWeight(d);
      for (const bool stream : {false, true}) {
        // dx begins at every place relative to a cache line, at some length, and each row begins at
        // a different place.
        const Tensor dx(dx_dtype, 6, d, d % 32, d % 7);
        const bool at_begin = d % 2 == 0;
        const Sums expected = Run(reference_, x, dy, dx, weight, at_begin, false);
        const Sums actual = Run(table_, x, dy, dx, weight, at_begin, stream);
        ASSERT_TRUE(expected.dx.IsPaddingWiped());
        ASSERT_TRUE(SameBits(expected.dx, actual.dx))
            << rmsnorm_dtype_name(x_dtype) << " and " << rmsnorm_dtype_name(dy_dtype) << " d " << d
            << ", past the caches " << stream;
        ASSERT_TRUE(SameBits(expected.dw, actual.dw))
            << "dw, d " << d << ", past the caches " << stream;
      }
    }
  }
}

// Computes db by the definition: adds rows in order to +0 or to the existing values.
TEST_P(BackwardKernelsTest, RowsAddUpToDb) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : Sizes()) {
      const size_t rows = 1 + d % 7;
      Tensor dy(dtype, rows, d, d % 32, d % 5);
      FillMixed(random_, dy);
      for (size_t j = 0; j < d; j += 3) dy.set(0, j, -0.0);
      for (const bool start : {false, true}) {
        float* const db = Place(dw_, d, d % 2 == 0);
        std::vector<float> expected(d);
        for (size_t j = 0; j < d; ++j) {
          if (!start) db[j] = expected[j] = static_cast<float>(random_.Normal());
          for (size_t row = 0; row < rows; ++row) {
            expected[j] += static_cast<float>(dy.get(row, j));
          }
        }
        KernelCall call(table_, dy);  // x is not read
        call.run.given &= ~internal::SetOf(internal::kX);
        call.Set(kDy, dy);
        call.Share(kDb, db);
        call.run.start_sums = start;
        table_.add_rows(call.norm, call.run);
        ASSERT_TRUE(SameBits(RMSNORM_F32, expected.data(), db, d))
            << rmsnorm_dtype_name(dtype) << ", " << rows << " x " << d;
      }
    }
  }
}

// A row of zeros, each with the opposite sign of x: all products are -0, and so is a sum that does
// not start from +0.
void FillOpposite(const Tensor& x, Tensor& dy, size_t row) {
  for (size_t j = 0; j < x.d(); ++j) dy.set_bits(row, j, ~x.bits(row, j) & 0x80000000);
}

// Rows with lengths that have separate loops. Most calls compute what training needs. Special rows
// take turns at every place.
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
        const bool special_x = special && !one_in(4);  // otherwise the products overflow
        const RowKind any = kFiniteKinds[random_.Below(std::size(kFiniteKinds))];
        FillRow(random_, special_x ? any : RowKind::kNormal, x, row);
        FillRow(random_, special && one_in(2) ? RowKind::kHuge : RowKind::kNormal, dy, row);
        if (special && one_in(4)) FillOpposite(x, dy, row);
      }
      const std::vector<float> weight = one_in(4) ? std::vector<float>(d, 1) : DrawWeight(d);
      const std::vector<float> saved = InverseRmsOf(x, {});
      Tensor rstd(RMSNORM_F32, count, 1, 0, i % 2);
      for (size_t row = 0; row < count; ++row) rstd.set(row, 0, double{saved[row]});
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
      const rmsnorm_eps_placement placement = one_in(16)  ? RMSNORM_EPS_OUTSIDE
                                              : one_in(8) ? RMSNORM_EPS_FLOOR
                                                          : RMSNORM_EPS_INSIDE;
      const bool other_divisor = one_in(16);
      const auto run = [&](const KernelTable& table) {
        std::vector<Tensor> outputs = {in_place ? dy : dx, dw};
        KernelCall call(table, x);
        call.norm.root.eps_placement = placement;
        if (placement == RMSNORM_EPS_FLOOR) call.norm.root.eps = 1;  // some rows are below it
        if (other_divisor) call.SetDivisor(call.norm.root.divisor + 3);
        call.norm.add_to_dx = add_dx;
        call.norm.stream = stream;
        call.Set(kDy, in_place ? outputs[0] : dy);
        if (!without_dx) call.Set(kDx, outputs[0]);
        if (!without_rstd) call.Set(kRstd, rstd);
        call.Share(kWeight, weight.data());
        if (!without_dw) call.Share(kDw, static_cast<const float*>(outputs[1].data()));
        call.run.start_sums = start_dw;
        table.backward(call.norm, call.run);
        return outputs;
      };
      const std::vector<Tensor> expected = run(reference_);
      const std::vector<Tensor> actual = run(table_);
      ASSERT_TRUE(SameBits(expected[0], actual[0])) << "dx, d " << d << ", case " << i;
      ASSERT_TRUE(SameBits(expected[1], actual[1])) << "dw, d " << d << ", case " << i;
    }
  }
}

// The sum of blocks: any number and length, at any address.
TEST_P(BackwardKernelsTest, StoreSums) {
  for (size_t d = 1; d <= 150; ++d) {
    for (const size_t blocks : SizeList{1, 2, 5, 64}) {
      const size_t stride = d + d % 3;
      // Only d elements of the last row exist.
      const size_t bytes = ((blocks - 1) * stride + d) * sizeof(float);
      cases::GuardedMemory guard;
      float* const sums = reinterpret_cast<float*>(guard.Before(bytes));
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
          reference_.add_blocks(sums, stride, blocks, d, add, dtype, expected.data());
          table_.add_blocks(sums, stride, blocks, d, add, dtype, actual.data());
          ASSERT_TRUE(SameBits(expected, actual)) << d << " in " << blocks << " blocks";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BackwardKernelsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
