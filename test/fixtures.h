// SPDX-License-Identifier: Apache-2.0
// What tests share: rows in calls of the library, comparisons of rows, and contexts: the targets
// that this CPU runs, and an executor of the caller.
#ifndef RMSNORM_TEST_FIXTURES_H_
#define RMSNORM_TEST_FIXTURES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "cases/float_control.h"
#include "cases/rounding.h"
#include "cases/run.h"
#include "cases/values.h"

namespace rmsnorm::test {

using cases::Decode, cases::Encode, cases::Get, cases::Reinterpret, cases::Set;
using cases::Random, cases::Rows, cases::Values;

using Sizes = std::vector<size_t>;

constexpr rmsnorm_dtype kDtypes[] = {RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16};

inline rmsnorm_view ViewOf(const Rows& rows) {
  return rmsnorm_rows(rows.row(0), rows.dtype(), rows.count(), rows.d(),
                      static_cast<ptrdiff_t>(rows.d()));
}
// The elements of all rows as one vector.
inline rmsnorm_view VectorOf(const Rows& rows) {
  return rmsnorm_vector(rows.row(0), rows.dtype(), rows.count() * rows.d());
}

// A norm of rows; the weight may be null.
inline ForwardOperands NormOperands(const Rows& x, const Rows* weight, const Rows& y) {
  ForwardOperands operands;
  operands.x = ConstView(ViewOf(x));
  if (weight != nullptr) operands.weight = ConstView(VectorOf(*weight));
  operands.y = View(ViewOf(y));
  return operands;
}

inline Rows Draw(Random& random, Values values, rmsnorm_dtype dtype, size_t count, size_t d) {
  Rows rows(dtype, count, d);
  cases::Fill(random, values, 0, rows);
  return rows;
}

// Whether the elements have the same bits. Two NaNs count as equal, since CPUs make different ones.
inline testing::AssertionResult SameBits(const Rows& expected, const Rows& actual) {
  const std::string difference = cases::FirstDifference(expected, actual);
  if (difference.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << rmsnorm_dtype_name(expected.dtype()) << " element " << difference;
}

// Runs in a floating-point state, which must stay, and goes back to the default.
template <class Run>
void RunInState(uint32_t control, const Run& run) {
  cases::SetControl(control);
  const uint32_t before = cases::Control();  // the bits that the CPU keeps
  run();
  const uint32_t after = cases::Control();
  cases::SetControl(cases::kDefaultControl);
  EXPECT_EQ(before, after) << "another floating-point state";
}

// --------------------------------------------------------------------------------------- contexts

using cases::SupportedTargets;

constexpr const char* kReference = "reference";

// A context with this target; its name must outlive the context.
inline Context OnTarget(const std::string& target, int32_t threads = 0) {
  Context context;
  context.target = target.c_str();
  context.threads = threads;
  return context;
}

// Names the instances of a test that has a target as its parameter.
inline std::string Name(const testing::TestParamInfo<std::string>& target) { return target.param; }

// Counts calls and parts, and runs the last part first.
struct CountingExecutor {
  int calls = 0;
  size_t most_parts = 0;

  // The context must not outlive this object.
  void SetIn(Context& context) {
    context.parallel_context = this;
    context.parallel_for = [](void* own, size_t count, rmsnorm_task task, void* state) {
      CountingExecutor& executor = *static_cast<CountingExecutor*>(own);
      ++executor.calls;
      executor.most_parts = std::max(executor.most_parts, count);
      for (size_t i = count; i-- > 0;) task(state, i);
    };
  }
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FIXTURES_H_
