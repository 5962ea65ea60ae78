// SPDX-License-Identifier: Apache-2.0
// Which results are written past the caches. Calls are planned and not made, so their operands need
// addresses alone.
#include <gtest/gtest.h>

#include <deque>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../../../lib/calls.h"
#include "../../../lib/module.h"
#include "cases/layout.h"

namespace rmsnorm::internal {
namespace {

// Whether each call of a line, all planned together, writes its result past the caches.
std::vector<bool> ArePastCaches(const std::string& line) {
  const cases::Calls calls = cases::ParseCalls(line);
  rmsnorm_context given = rmsnorm_default_context();
  given.stores = calls[0].stores;
  CallContext context;
  EXPECT_EQ(RMSNORM_OK, FindContext(nullptr, &given, context));
  std::deque<cases::CallOperands> operands;
  std::vector<CheckedCall> checked(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    // Calls and their operands lie far apart.
    uint8_t* blocks[kOperands];
    for (size_t o = 0; o < kOperands; ++o) {
      blocks[o] = reinterpret_cast<uint8_t*>(((i + 1) * kOperands + o) << 32);
    }
    operands.push_back(cases::OperandsAt(calls[i], cases::Layout(calls[i]), blocks));
    const rmsnorm_operands all = operands.back().Get();
    EXPECT_EQ(RMSNORM_OK, CheckCall(calls[i].backward ? Operation::kBackward : Operation::kForward,
                                    nullptr, &all, nullptr, checked[i]))
        << rmsnorm_error_message();
  }
  Scratch scratch(nullptr, 0);
  std::vector<Plan> plans(calls.size() + kMostBackwardPlans);
  if (calls[0].backward) {
    PlanBackward(checked[0], context, scratch, plans.data());
  } else {
    PlanTogether(checked.data(), calls.size(), context, scratch, plans.data());
  }
  std::vector<bool> past;
  for (size_t i = 0; i < calls.size(); ++i) past.push_back(plans[i].norm.stream);
  return past;
}

TEST(Stores, Table) {
  const std::string forward = "forward,weight=none,";
  const std::string backward = "backward,weight=none,rows=4096,d=4096,";
  const std::string added = forward + "rows=4096,d=4096,residual_out_in_place=1,x=bf16,";
  const std::pair<std::string, bool> lines[] = {
      // The size of y, 64 MiB or a row less, and the length of its rows.
      {forward + "x+y=f32,rows=4096,d=4096", true},
      {forward + "x+y=f32,rows=4095,d=4096", false},
      {forward + "x+y=f16,rows=8192,d=4096", true},
      {forward + "x+y=f16,rows=8191,d=4096", false},
      {forward + "x+y=bf16,rows=8192,d=4096", true},
      {forward + "x+y=bf16,rows=8191,d=4096", false},
      {forward + "x+y=f32,rows=16640,d=1024", true},
      {forward + "x+y=f32,rows=16656,d=1023", false},
      {forward + "x+y=bf16,rows=16640,d=2048", true},
      {forward + "x+y=bf16,rows=16648,d=2047", false},
      // Its own type counts, and not x's.
      {forward + "x=f32,y=f16,rows=4096,d=4096", false},
      {forward + "x=f16,y=f32,rows=4096,d=4096", true},
      // A context decides, but where y replaces x.
      {forward + "x+y=f32,rows=4096,d=4096,stores=cached", false},
      {forward + "x+y=f32,rows=1,d=64,stores=streamed", true},
      {forward + "x+y=f32,rows=4096,d=4096,y_in_place=1", false},
      {forward + "x+y=f32,rows=4096,d=4096,y_in_place=1,stores=streamed", false},
      // The sum with a residual does not count.
      {added + "residual+residual_out=f32,y=bf16", false},
      {added + "residual+residual_out=f32,y=f32", true},
      {added + "residual+residual_out=f32,y=none", false},
      // dx, unless it is added to or replaces dy.
      {backward + "dx=none", false},
      {backward + "dx=f32", true},
      {backward + "dx=f32,stores=cached", false},
      {backward + "dx_add=1", false},
      {backward + "dx_in_place=1", false},
  };
  for (const auto& [line, is_past] : lines) EXPECT_EQ(is_past, ArePastCaches(line)[0]) << line;
  const std::string few = forward + "rows=1024,d=4096", many = forward + "rows=4096,d=4096";
  EXPECT_EQ(std::vector<bool>({false, true, false}), ArePastCaches(few + ";" + many + ";" + few));
}

// Calls by pointers that skip the plan do not write past the caches: their results are smaller.
TEST(Stores, DirectRowsAreFew) {
  rmsnorm_module* module;
  ASSERT_EQ(RMSNORM_OK,
            rmsnorm_module_create(&module, size_t{1} << 20, RMSNORM_F32, nullptr, nullptr));
  EXPECT_EQ(15U, MostDirectRows(Operation::kBackward, *module));
  rmsnorm_module_destroy(module);
}

}  // namespace
}  // namespace rmsnorm::internal
