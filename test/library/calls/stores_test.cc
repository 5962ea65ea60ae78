// SPDX-License-Identifier: Apache-2.0
// Which results are written past the caches. Calls are planned and not made, so their operands need
// addresses alone.
#include <gtest/gtest.h>

#include <cstddef>
#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "../../../lib/calls.h"
#include "../../../lib/module.h"

namespace rmsnorm::internal {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Dense rows of d elements with this many bytes. Operand number i lies far from all others.
rmsnorm_view RowsOf(size_t i, rmsnorm_dtype dtype, size_t bytes, size_t d) {
  return rmsnorm_rows(reinterpret_cast<void*>((i + 1) << 32), dtype, bytes / ElementSize(dtype) / d,
                      d, static_cast<ptrdiff_t>(d));
}

rmsnorm_context ContextWith(rmsnorm_stores stores) {
  rmsnorm_context context = rmsnorm_default_context();
  context.stores = stores;
  return context;
}

// Whether each of these calls, planned together, writes its result past the caches.
std::vector<bool> ArePastCaches(Operation operation, const std::vector<rmsnorm_operands>& calls,
                                rmsnorm_stores stores) {
  const rmsnorm_context given = ContextWith(stores);
  CallContext context;
  EXPECT_EQ(RMSNORM_OK, FindContext(nullptr, &given, context));
  std::vector<CheckedCall> checked(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(RMSNORM_OK, CheckCall(operation, nullptr, &calls[i], nullptr, checked[i]))
        << rmsnorm_error_message();
  }
  Scratch scratch(nullptr, 0);
  std::vector<Plan> plans(calls.size() + kMostBackwardPlans);
  if (operation == Operation::kForward) {
    PlanTogether(checked.data(), calls.size(), context, scratch, plans.data());
  } else {
    PlanBackward(checked[0], context, scratch, plans.data());
  }
  std::vector<bool> past;
  for (size_t i = 0; i < calls.size(); ++i) past.push_back(plans[i].norm.stream);
  return past;
}

// The same of a norm of x to y.
bool IsNormPastCaches(const rmsnorm_view& x, const rmsnorm_view& y,
                      rmsnorm_stores stores = RMSNORM_STORES_BY_SIZE) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = &x;
  operands.y = &y;
  return ArePastCaches(Operation::kForward, {operands}, stores)[0];
}

// A norm of `bytes` of y in rows of d.
bool IsNormPastCaches(rmsnorm_dtype dtype, size_t bytes, size_t d,
                      rmsnorm_stores stores = RMSNORM_STORES_BY_SIZE) {
  return IsNormPastCaches(RowsOf(0, dtype, bytes, d), RowsOf(1, dtype, bytes, d), stores);
}

TEST(Stores, SizeOfY) {
  for (const rmsnorm_dtype dtype : {RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16}) {
    const size_t row = 4096 * ElementSize(dtype);
    EXPECT_TRUE(IsNormPastCaches(dtype, 64 * kMiB, 4096));
    EXPECT_FALSE(IsNormPastCaches(dtype, 64 * kMiB - row, 4096));
  }
}

TEST(Stores, LengthOfRows) {
  EXPECT_TRUE(IsNormPastCaches(RMSNORM_F32, 65 * kMiB, 1024));
  EXPECT_FALSE(IsNormPastCaches(RMSNORM_F32, 65 * kMiB, 1023));
  EXPECT_TRUE(IsNormPastCaches(RMSNORM_BF16, 65 * kMiB, 2048));
  EXPECT_FALSE(IsNormPastCaches(RMSNORM_BF16, 65 * kMiB, 2047));
}

TEST(Stores, TypeOfYCounts) {
  const rmsnorm_view large = RowsOf(0, RMSNORM_F32, 64 * kMiB, 4096);
  const rmsnorm_view small = RowsOf(1, RMSNORM_F16, 32 * kMiB, 4096);
  EXPECT_FALSE(IsNormPastCaches(large, small));
  EXPECT_TRUE(IsNormPastCaches(small, large));
}

TEST(Stores, ContextDecides) {
  EXPECT_FALSE(IsNormPastCaches(RMSNORM_F32, 64 * kMiB, 4096, RMSNORM_STORES_CACHED));
  EXPECT_TRUE(IsNormPastCaches(RMSNORM_F32, 256, 64, RMSNORM_STORES_STREAMED));
}

TEST(Stores, YInPlaceOfX) {
  const rmsnorm_view x = RowsOf(0, RMSNORM_F32, 64 * kMiB, 4096);
  EXPECT_FALSE(IsNormPastCaches(x, x));
  EXPECT_FALSE(IsNormPastCaches(x, x, RMSNORM_STORES_STREAMED));
}

// The sum has 64 MiB, y half as much.
TEST(Stores, ResidualDoesNotCount) {
  const rmsnorm_view x = RowsOf(0, RMSNORM_BF16, 32 * kMiB, 4096);
  const rmsnorm_view residual = RowsOf(1, RMSNORM_F32, 64 * kMiB, 4096);
  const rmsnorm_view y = RowsOf(2, RMSNORM_BF16, 32 * kMiB, 4096);
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = &x;
  operands.residual = operands.residual_out = &residual;
  operands.y = &y;
  const auto is_past = [&]() -> bool {
    return ArePastCaches(Operation::kForward, {operands}, RMSNORM_STORES_BY_SIZE)[0];
  };
  EXPECT_FALSE(is_past());
  const rmsnorm_view large = RowsOf(2, RMSNORM_F32, 64 * kMiB, 4096);
  operands.y = &large;
  EXPECT_TRUE(is_past());
  operands.y = nullptr;
  EXPECT_FALSE(is_past());
}

TEST(Stores, EachNormOfSeveral) {
  const rmsnorm_view q = RowsOf(0, RMSNORM_F32, 64 * kMiB, 4096);
  const rmsnorm_view q_out = RowsOf(1, RMSNORM_F32, 64 * kMiB, 4096);
  const rmsnorm_view k = RowsOf(2, RMSNORM_F32, 16 * kMiB, 4096);
  const rmsnorm_view k_out = RowsOf(3, RMSNORM_F32, 16 * kMiB, 4096);
  rmsnorm_operands of_q = rmsnorm_no_operands(), of_k = rmsnorm_no_operands();
  of_q.x = &q;
  of_q.y = &q_out;
  of_k.x = &k;
  of_k.y = &k_out;
  EXPECT_EQ(std::vector<bool>({false, true, false}),
            ArePastCaches(Operation::kForward, {of_k, of_q, of_k}, RMSNORM_STORES_BY_SIZE));
}

TEST(Stores, Dx) {
  const rmsnorm_view x = RowsOf(0, RMSNORM_F32, 64 * kMiB, 4096);
  const rmsnorm_view dy = RowsOf(1, RMSNORM_F32, 64 * kMiB, 4096);
  const rmsnorm_view dx = RowsOf(2, RMSNORM_F32, 64 * kMiB, 4096);
  std::vector<float> sums(4096);
  const rmsnorm_view dw = rmsnorm_vector(sums.data(), RMSNORM_F32, 4096);
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = &x;
  operands.dy = &dy;
  operands.dw = &dw;
  const auto is_past = [&](rmsnorm_stores stores = RMSNORM_STORES_BY_SIZE) -> bool {
    return ArePastCaches(Operation::kBackward, {operands}, stores)[0];
  };
  EXPECT_FALSE(is_past());
  operands.dx = &dx;
  EXPECT_TRUE(is_past());
  EXPECT_FALSE(is_past(RMSNORM_STORES_CACHED));
  operands.add_to = RMSNORM_ADD_TO_DX;
  EXPECT_FALSE(is_past());
  operands.add_to = 0;
  operands.dx = &dy;
  EXPECT_FALSE(is_past());
}

// Calls by pointers that skip the plan do not write past the caches: their results are smaller.
TEST(Stores, DirectRowsAreFew) {
  rmsnorm_module* module;
  ASSERT_EQ(RMSNORM_OK, rmsnorm_module_create(&module, kMiB, RMSNORM_F32, nullptr, nullptr));
  EXPECT_EQ(15U, MostDirectRows(Operation::kBackward, *module));
  rmsnorm_module_destroy(module);
}

}  // namespace
}  // namespace rmsnorm::internal
