// SPDX-License-Identifier: Apache-2.0
// Prepared calls: what they keep and what they read. Several norms at once, prepared or not: they
// run in one parallel region. The bits of each form of call are compared by `rmsnorm check`, and
// arguments_test.cc has the refused arguments.
#include <gtest/gtest.h>

#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "executor.h"
#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kD = 300;

class PreparedTest : public testing::Test {
 protected:
  Rows Draw(size_t rows) { return test::Draw(random_, Values::kNormal, RMSNORM_F32, rows, kD); }

  Random random_{5};
};

TEST_F(PreparedTest, OperandsAreReadByTheRun) {
  Rows x = Draw(7);
  Rows residual = Draw(7);
  Rows gate = Draw(7);
  Rows weight = Draw(1);
  Rows bias = Draw(1);
  Rows y(RMSNORM_F32, 7, kD);
  ForwardOperands operands = NormOperands(x, &weight, y);
  operands.residual = ConstView(ViewOf(residual));
  operands.gate = ConstView(ViewOf(gate));
  operands.bias = ConstView(VectorOf(bias));
  Prepared norm(operands);
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (Rows* const rows : {&x, &residual, &gate, &weight, &bias}) {
      cases::Fill(random_, Values::kNormal, 0, *rows);
    }
    norm();
    Rows expected(RMSNORM_F32, 7, kD);
    ForwardOperands now = operands;
    now.y = View(ViewOf(expected));
    forward(now);
    EXPECT_TRUE(SameBits(expected, y));
  }
}

// A weight for each head, which lies apart from the next, in a run of two plans.
TEST_F(PreparedTest, GradientsOfAWeightByHead) {
  Rows x = Draw(6);
  Rows dy = Draw(6);
  std::vector<float> weight(2 * (kD + 5));
  Rows dx(RMSNORM_F32, 6, kD);
  Rows db(RMSNORM_F32, 1, kD);
  const size_t shape[] = {3, 2, kD};
  const ptrdiff_t apart[] = {kD + 5, 1};
  BackwardOperands operands;
  operands.x = ConstView(rmsnorm_tensor(x.row(0), RMSNORM_F32, 3, shape, nullptr));
  operands.dy = ConstView(rmsnorm_tensor(dy.row(0), RMSNORM_F32, 3, shape, nullptr));
  operands.weight = ConstView(rmsnorm_tensor(weight.data(), RMSNORM_F32, 2, shape + 1, apart));
  operands.dx = View(rmsnorm_tensor(dx.row(0), RMSNORM_F32, 3, shape, nullptr));
  operands.db = View(VectorOf(db));
  Prepared gradients(operands);
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (float& value : weight) value += 1 + static_cast<float>(&value - weight.data());
    gradients();
    Rows expected(RMSNORM_F32, 6, kD);
    BackwardOperands now = operands;
    now.dx = View(rmsnorm_tensor(expected.row(0), RMSNORM_F32, 3, shape, nullptr));
    backward(now);
    EXPECT_TRUE(SameBits(expected, dx));
  }
}

// Sums start anew in each run, or continue from the gradient where the call adds to it.
TEST_F(PreparedTest, RepeatedGradients) {
  for (const size_t rows : Sizes{5, 300}) {
    Rows x = Draw(rows);
    Rows dy = Draw(rows);
    Rows dx(RMSNORM_F32, rows, kD);
    Rows dw(RMSNORM_F32, 1, kD);
    Rows db = Draw(1);
    BackwardOperands operands;
    operands.x = ConstView(ViewOf(x));
    operands.dy = ConstView(ViewOf(dy));
    operands.dx = View(ViewOf(dx));
    operands.dw = View(VectorOf(dw));
    operands.db = View(VectorOf(db));
    operands.add_to_db = true;
    Context context;
    context.threads = 3;
    Prepared gradients(operands, {}, context);
    for (int repeat = 0; repeat < 3; ++repeat) {
      cases::Fill(random_, Values::kNormal, 0, dy);
      Rows expected_dx = dx;
      Rows expected_dw = dw;
      Rows expected_db = db;
      BackwardOperands now = operands;
      now.dx = View(ViewOf(expected_dx));
      now.dw = View(VectorOf(expected_dw));
      now.db = View(VectorOf(expected_db));
      backward(now);
      gradients();
      EXPECT_TRUE(SameBits(expected_dx, dx));
      EXPECT_TRUE(SameBits(expected_dw, dw));
      EXPECT_TRUE(SameBits(expected_db, db));
    }
  }
}

// A module's weight may be set again.
TEST_F(PreparedTest, NewWeightOfAModule) {
  const Rows x = Draw(3);
  Rows y(RMSNORM_F32, 3, kD);
  Rows expected(RMSNORM_F32, 3, kD);
  RmsNorm module(kD);
  Prepared norm(module, NormOperands(x, nullptr, y));
  for (int repeat = 0; repeat < 2; ++repeat) {
    module.set_weight(ConstView(VectorOf(Draw(1))));
    norm();
    module.forward(NormOperands(x, nullptr, expected));
    EXPECT_TRUE(SameBits(expected, y));
  }
}

// A single prepared call by a module runs in its context. Several calls use none of theirs.
TEST_F(PreparedTest, ContextOfAModule) {
  CountingExecutor executor;
  Context own;
  own.threads = 4;
  executor.SetIn(own);
  const RmsNorm module(kD, {}, Dtype::f32, own);
  std::vector<Rows> matrices = {Draw(1000), Draw(1000)};
  rmsnorm_view view[2];
  rmsnorm_operands operands[2];
  rmsnorm_call calls[2];
  for (size_t i = 0; i < 2; ++i) {
    view[i] = ViewOf(matrices[i]);
    operands[i] = rmsnorm_no_operands();
    operands[i].x = operands[i].y = &view[i];
    calls[i] = {module.get(), &operands[i], nullptr};
  }
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

TEST_F(PreparedTest, NoCallsOrRows) {
  Prepared({})();
  std::vector<float> dw = {1, 2, 3, 4};
  std::vector<float> db = dw;
  const std::vector<float> before = dw;
  BackwardOperands operands;
  operands.x = operands.dy = ConstView(static_cast<const float*>(nullptr), 0, 4);
  operands.dw = {dw.data(), 4};
  operands.db = {db.data(), 4};
  Prepared zeros(operands);
  EXPECT_EQ(before, dw);
  EXPECT_EQ(before, db);
  zeros();
  EXPECT_EQ(std::vector<float>(4, 0.0f), dw);
  EXPECT_EQ(std::vector<float>(4, 0.0f), db);
}

TEST_F(PreparedTest, Move) {
  const Rows x = Draw(2);
  Rows y(RMSNORM_F32, 2, kD);
  Prepared first(NormOperands(x, nullptr, y));
  Prepared second = std::move(first);
  first = Prepared({});
  second();
  first = std::move(second);
  Prepared& same = first;
  first = std::move(same);
  first();
  EXPECT_NE(0, Get(y, 1, 1));
  const Prepared third = std::move(first);
  EXPECT_THROW(first(), Error);
}

#ifdef _OPENMP
// A call that was prepared for several threads stays on its thread inside a parallel region.
TEST_F(PreparedTest, ParallelRegion) {
  const Rows x = Draw(2000);
  std::vector<Rows> y(2, Rows(RMSNORM_F32, 2000, kD));
  Rows expected(RMSNORM_F32, 2000, kD);
  forward(NormOperands(x, nullptr, expected));
  Context context;
  context.threads = 4;
  Prepared norms[] = {Prepared(NormOperands(x, nullptr, y[0]), {}, context),
                      Prepared(NormOperands(x, nullptr, y[1]), {}, context)};
#pragma omp parallel num_threads(2)
  norms[omp_get_thread_num()]();
  for (const Rows& rows : y) EXPECT_TRUE(SameBits(expected, rows));
}
#endif

// ----------------------------------------------------------------------------------- several norms

class SeveralParts : public testing::TestWithParam<std::string> {
 protected:
  // Normalises each matrix in place, in one call for all, and compares with separate calls. The
  // executor must be called once, with four parts, if the work is large, and not at all if not.
  void ExpectParts(const std::vector<Rows>& x, bool is_large) {
    const std::string target = GetParam();
    std::vector<Rows> expected = x;
    std::vector<Rows> actual = x;
    std::vector<Call> calls(x.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      calls[i].operands = NormOperands(actual[i], nullptr, actual[i]);
      calls[i].options.eps = 0.01f * static_cast<float>(i);
      forward(NormOperands(expected[i], nullptr, expected[i]), calls[i].options,
              OnTarget(target, 1));
    }
    CountingExecutor executor;
    Context context = OnTarget(target, 4);
    executor.SetIn(context);
    Prepared prepared(calls.data(), calls.size(), context);
    EXPECT_EQ(0, executor.calls);
    for (const bool is_prepared : {false, true}) {
      for (size_t i = 0; i < calls.size(); ++i) {
        std::memcpy(actual[i].row(0), x[i].row(0), x[i].count() * x[i].row_bytes());
      }
      executor = {};
      is_prepared ? prepared() : forward_all(calls.data(), calls.size(), context);
      for (size_t i = 0; i < calls.size(); ++i) {
        EXPECT_TRUE(SameBits(expected[i], actual[i])) << "matrix " << i;
      }
      // The reference is so slow that it splits even little work.
      if (!is_large && target == kReference) continue;
      EXPECT_EQ(is_large ? 1 : 0, executor.calls);
      EXPECT_EQ(is_large ? 4u : 0u, executor.most_parts);
    }
  }

  Rows Draw(rmsnorm_dtype dtype, size_t rows, size_t d) {
    return test::Draw(random_, Values::kMixed, dtype, rows, d);
  }

  Random random_{97};
};

TEST_P(SeveralParts, FewRows) {
  ExpectParts({Draw(RMSNORM_BF16, 8, 128), Draw(RMSNORM_F32, 2, 128)}, false);
}

TEST_P(SeveralParts, ManyRows) {
  ExpectParts({Draw(RMSNORM_BF16, 2400, 128), Draw(RMSNORM_BF16, 600, 128)}, true);
}

// Each call alone is too short for a second thread.
TEST_P(SeveralParts, ManyShortCalls) {
  std::vector<Rows> matrices;
  for (size_t i = 0; i < 50; ++i) matrices.push_back(Draw(kDtypes[i % 3], 20, 100 + 10 * i));
  ExpectParts(matrices, true);
}

TEST_P(SeveralParts, LongRowsBesideShortOnes) {
  ExpectParts(
      {Draw(RMSNORM_F32, 1, 200'000), Draw(RMSNORM_BF16, 2000, 64), Draw(RMSNORM_F16, 2, 100'000)},
      true);
}

INSTANTIATE_TEST_SUITE_P(Targets, SeveralParts, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
