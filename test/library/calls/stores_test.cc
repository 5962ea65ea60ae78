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
constexpr rmsnorm_dtype kF32 = RMSNORM_F32, kF16 = RMSNORM_F16, kBf16 = RMSNORM_BF16;

// An operand of dense rows: its type, its bytes, and the operand whose place it takes.
struct Given {
  Operand operand;
  rmsnorm_dtype dtype;
  size_t bytes;
  Operand place = operand;
};

struct Line {
  bool is_past;
  std::vector<Given> operands;
  size_t d = 4096;
  rmsnorm_stores stores = RMSNORM_STORES_BY_SIZE;
  uint32_t add_to = 0;
};

// Whether each of these calls, planned together in the context of the first, writes its result past
// the caches.
std::vector<bool> ArePastCaches(const std::vector<Line>& lines) {
  rmsnorm_context given = rmsnorm_default_context();
  given.stores = lines[0].stores;
  CallContext context;
  EXPECT_EQ(RMSNORM_OK, FindContext(nullptr, &given, context));
  std::vector<CheckedCall> calls(lines.size());
  std::vector<rmsnorm_view> views(lines.size() * kOperands);
  bool is_backward = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.add_to = lines[i].add_to;
    for (const auto& [operand, dtype, bytes, place] : lines[i].operands) {
      // Places of calls and of their operands lie far apart.
      const size_t address = ((i + 1) * kOperands + static_cast<size_t>(place)) << 32;
      const size_t d = lines[i].d;
      rmsnorm_view& view = views[i * kOperands + static_cast<size_t>(operand)];
      view = rmsnorm_rows(reinterpret_cast<void*>(address), dtype, bytes / ElementSize(dtype) / d,
                          d, static_cast<ptrdiff_t>(d));
      SetViewIn(operands, operand, &view);
    }
    is_backward = operands.dy != nullptr;
    EXPECT_EQ(RMSNORM_OK, CheckCall(is_backward ? Operation::kBackward : Operation::kForward,
                                    nullptr, &operands, nullptr, calls[i]))
        << rmsnorm_error_message();
  }
  Scratch scratch(nullptr, 0);
  std::vector<Plan> plans(calls.size() + kMostBackwardPlans);
  if (is_backward) {
    PlanBackward(calls[0], context, scratch, plans.data());
  } else {
    PlanTogether(calls.data(), calls.size(), context, scratch, plans.data());
  }
  std::vector<bool> past;
  for (size_t i = 0; i < calls.size(); ++i) past.push_back(plans[i].norm.stream);
  return past;
}

// A norm of `bytes` of y.
Line Norm(bool is_past, rmsnorm_dtype dtype, size_t bytes, size_t d,
          rmsnorm_stores stores = RMSNORM_STORES_BY_SIZE) {
  return {is_past, {{kX, dtype, bytes}, {kY, dtype, bytes}}, d, stores};
}

TEST(Stores, Table) {
  constexpr rmsnorm_stores kStreamed = RMSNORM_STORES_STREAMED, kCached = RMSNORM_STORES_CACHED;
  constexpr size_t kLarge = 64 * kMiB, kHalf = 32 * kMiB, kRow = 4096 * sizeof(float);
  const Given x = {kX, kF32, kLarge}, dy = {kDy, kF32, kLarge}, dx = {kDx, kF32, kLarge};
  const Given y_in_place = {kY, kF32, kLarge, kX}, dx_in_place = {kDx, kF32, kLarge, kDy};
  const Given dw = {kDw, kF32, kRow}, small_x = {kX, kBf16, kHalf};
  const Given residual = {kResidual, kF32, kLarge};
  const Given residual_out = {kResidualOut, kF32, kLarge, kResidual};
  const Line lines[] = {
      // The size of y, and the length of its rows.
      Norm(true, kF32, kLarge, 4096),
      Norm(false, kF32, kLarge - kRow, 4096),
      Norm(true, kF16, kLarge, 4096),
      Norm(false, kF16, kLarge - kRow / 2, 4096),
      Norm(true, kBf16, kLarge, 4096),
      Norm(false, kBf16, kLarge - kRow / 2, 4096),
      Norm(true, kF32, kLarge + kMiB, 1024),
      Norm(false, kF32, kLarge + kMiB, 1023),
      Norm(true, kBf16, kLarge + kMiB, 2048),
      Norm(false, kBf16, kLarge + kMiB, 2047),
      // Its own type counts, and not x's.
      {false, {x, {kY, kF16, kHalf}}},
      {true, {{kX, kF16, kHalf}, {kY, kF32, kLarge}}},
      // A context decides, but where y replaces x.
      Norm(false, kF32, kLarge, 4096, kCached),
      Norm(true, kF32, 256, 64, kStreamed),
      {false, {x, y_in_place}},
      {false, {x, y_in_place}, 4096, kStreamed},
      // The sum with a residual does not count.
      {false, {small_x, residual, residual_out, {kY, kBf16, kHalf}}},
      {true, {small_x, residual, residual_out, {kY, kF32, kLarge}}},
      {false, {small_x, residual, residual_out}},
      // dx, unless it is added to or replaces dy.
      {false, {x, dy, dw}},
      {true, {x, dy, dw, dx}},
      {false, {x, dy, dw, dx}, 4096, kCached},
      {false, {x, dy, dw, dx}, 4096, RMSNORM_STORES_BY_SIZE, RMSNORM_ADD_TO_DX},
      {false, {x, dy, dw, dx_in_place}},
  };
  for (const Line& line : lines) {
    EXPECT_EQ(line.is_past, ArePastCaches({line})[0]) << &line - lines;
  }
  const Line q = Norm(true, kF32, kLarge, 4096), k = Norm(false, kF32, 16 * kMiB, 4096);
  EXPECT_EQ(std::vector<bool>({false, true, false}), ArePastCaches({k, q, k}));
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
