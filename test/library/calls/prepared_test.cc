// SPDX-License-Identifier: Apache-2.0
// Prepared calls: what they keep and what they read. The bits of each form of call are compared by
// `rmsnorm check`, threads_test.cc has their threads and refusals_test.cc the refused arguments.
#include <gtest/gtest.h>

#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "contexts.h"
#include "line_calls.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kD = 300;

// Neither operands nor what gradients are added to are read before the run, and sums start anew.
TEST(Prepared, OperandsAreReadByTheRun) {
  const cases::List list(R"(
forward,residual+gate+weight+bias+post_norm_weight=f32,rows=7,d=300,call=prepared
forward,x=bf16,weight+bias=f16,sums=f64,rows=2x3,d=300,weight_per=head,bias_per=row,call=prepared
backward,weight_per=head,weight_gap=5,dw=none,db=f32,rows=3x2,d=300,call=prepared
backward,db=f32,db_add=1,rows=5|300,d=300,threads=3,call=prepared
backward,x+dy=bf16,weight+dw=f16,weight_per+dw_per=head,rstd=f32,dw_add=1,rows=40x2,d=300,call=prepared
)");
  list.ForEach([](const cases::Calls& calls) {
    LineCalls line(calls);
    const cases::PreparedCall prepared = line.Prepare(cases::ContextOf(calls[0], nullptr));
    for (unsigned seed = 0; seed < 3; ++seed) {
      line.Fill(seed);
      EXPECT_EQ(RMSNORM_OK, prepared.Run());
      EXPECT_EQ("", line.Fault()) << cases::Text(calls);
    }
  });
}

// A module's weight may be set again.
TEST(Prepared, NewWeightOfAModule) {
  Random random(5);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, 3, kD);
  Rows y(RMSNORM_F32, 3, kD);
  Rows expected(RMSNORM_F32, 3, kD);
  RmsNorm module(kD);
  Prepared norm(module, NormOperands(x, nullptr, y));
  for (int repeat = 0; repeat < 2; ++repeat) {
    module.set_weight(ConstView(VectorOf(Draw(random, Values::kNormal, RMSNORM_F32, 1, kD))));
    norm();
    module.forward(NormOperands(x, nullptr, expected));
    EXPECT_TRUE(SameBits(expected, y));
  }
}

// A single prepared call by a module runs in its context. Several calls use none of theirs.
TEST(Prepared, ContextOfAModule) {
  CountingExecutor executor;
  Context own;
  own.threads = 4;
  executor.SetIn(own);
  const RmsNorm module(kD, {}, Dtype::f32, own);
  const Rows rows[] = {Rows(RMSNORM_F32, 1000, kD), Rows(RMSNORM_F32, 1000, kD)};
  const ForwardOperands forwards[] = {NormOperands(rows[0], nullptr, rows[0]),
                                      NormOperands(rows[1], nullptr, rows[1])};
  const rmsnorm_operands operands[] = {forwards[0].get(), forwards[1].get()};
  const rmsnorm_call calls[] = {{module.get(), &operands[0], nullptr},
                                {module.get(), &operands[1], nullptr}};
  check(rmsnorm_forward_all(calls, 2, nullptr));
  EXPECT_EQ(0, executor.calls);
  for (const size_t count : Sizes{2, 1}) {
    rmsnorm_prepared* prepared;
    check(rmsnorm_prepare(&prepared, calls, count, nullptr));
    check(rmsnorm_run(prepared));
    rmsnorm_prepared_destroy(prepared);
    EXPECT_EQ(count == 1 ? 1 : 0, executor.calls);
  }
}

TEST(Prepared, Move) {
  Random random(5);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, 2, kD);
  Rows y(RMSNORM_F32, 2, kD);
  Prepared first(NormOperands(x, nullptr, y));
  Prepared second = std::move(first);
  first = Prepared({});  // no calls
  first();
  second();
  first = std::move(second);
  Prepared& same = first;
  first = std::move(same);
  first();
  EXPECT_NE(0, Get(y, 1, 1));
  const Prepared third = std::move(first);
  EXPECT_THROW(first(), Error);
}

}  // namespace
}  // namespace rmsnorm::test
