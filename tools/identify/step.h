// SPDX-License-Identifier: Apache-2.0
// What an implementation may do that the library has no option for: roundings in between, operands
// that it leaves out, and mistakes. A step is a function on the operands of a call of the library
// or on its results.
#ifndef RMSNORM_TOOLS_IDENTIFY_STEP_H_
#define RMSNORM_TOOLS_IDENTIFY_STEP_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../../lib/operands.h"
#include "matrix.h"

namespace rmsnorm::identify {

// A call of rmsnorm_forward() with y as its only output.
struct NormCall {
  std::optional<Matrix> operand[internal::kOperands];  // the inputs, and residual_out to compare
  std::vector<double> sums;                            // if not empty, used instead of x's own
  rmsnorm_options options = rmsnorm_default_options();
  rmsnorm_dtype y_dtype = RMSNORM_F32;

  bool Has(internal::Operand o) const { return operand[o].has_value(); }
  const Matrix& x() const { return *operand[internal::kX]; }
};

// y of a call, and residual_out, by the library. Throws std::runtime_error if it refuses the call.
Matrix ComputeY(const NormCall& call);
Matrix ComputeResidualOut(const NormCall& call);

// The sum of the residual and x of a call, times the factor of its options, rounded to a type.
Matrix SumWithResidual(const NormCall& call, rmsnorm_dtype dtype);

// The sums of the squares of x in binary64.
std::vector<double> SumsOfSquares(const Matrix& x);

enum class StepKind {
  kOption,   // the library has an option for it, or nothing changes
  kVariant,  // some systems do this on purpose
  kMistake
};

struct Step {
  StepKind kind;
  std::string words;  // a clause such as "the mean is subtracted from x"; empty for an option
  // Computes y, and leaves the options that the library was called with in the call. Returns
  // nothing where the step does not fit the options.
  std::function<std::optional<Matrix>(NormCall& call)> compute;
};

// Numbers of an implementation that steps depend on.
struct StepNumbers {
  std::vector<float> offsets = {0, 1};  // of the weight
  std::vector<float> times = {1};       // y is multiplied by one of them
  float plus = 0;                       // and added to this
  size_t divisor = 0;                   // of the sum of squares, if not 0
};

// The steps that can change the results of calls with these operands, or with some of their rows.
// The first one changes nothing.
std::vector<Step> StepsFor(const NormCall& call, const StepNumbers& numbers = {});

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_STEP_H_
