// SPDX-License-Identifier: Apache-2.0
// What the files of steps share, and what each of them adds to the list.
#ifndef RMSNORM_TOOLS_IDENTIFY_STEP_LIST_H_
#define RMSNORM_TOOLS_IDENTIFY_STEP_LIST_H_

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../lib/options.h"
#include "step.h"

namespace rmsnorm::identify {

using Result = std::optional<Matrix>;

class StepList {
 public:
  template <class F>
  void Option(const F& compute) {
    steps_.push_back({StepKind::kOption, "", compute});
  }
  template <class F>
  void Variant(const std::string& words, const F& compute) {
    steps_.push_back({StepKind::kVariant, words, compute});
  }
  template <class F>
  void Mistake(const std::string& words, const F& compute) {
    steps_.push_back({StepKind::kMistake, words, compute});
  }
  std::vector<Step> Take() { return std::move(steps_); }

 private:
  std::vector<Step> steps_;
};

// The steps of operand_steps.cc, rounding_steps.cc and sum_steps.cc for a call.
void AddOperands(const NormCall& call, StepList& list);
void AddRoundings(const NormCall& call, const StepNumbers& numbers, StepList& list);
void AddRowRoundings(const NormCall& call, StepList& list);
void AddSums(const NormCall& call, StepList& list);
void AddDivisors(const NormCall& call, size_t divisor, StepList& list);

// The same norm of the sum of x and the residual, as a call without a residual. Nothing where the
// library takes no sums of squares, or would round to another type then.
std::optional<NormCall> WithoutResidual(const NormCall& call);

// n * (offset + weight) in f32.
std::vector<float> Weighted(std::vector<float> n, const NormCall& call);

// The numbers of groups of a row that models have, such as the heads of q and k.
std::vector<size_t> UsualGroups(size_t d);

// "x", "the weight".
std::string NameOf(internal::Operand o);

// The number in f32 cut off to a type, and rounded to it with ties away from zero.
float CutOff(rmsnorm_dtype narrow, float value);
float WithTiesAway(rmsnorm_dtype narrow, float value);

// A step that replaces an operand by f(value) of its elements, rounded to a type.
template <class F>
auto WithValues(internal::Operand operand, rmsnorm_dtype dtype, const F& f) {
  return [=](NormCall& call) -> Result {
    const Matrix& given = *call.operand[operand];
    std::vector<float> values = ValuesOf(given);
    std::transform(values.begin(), values.end(), values.begin(), f);
    call.operand[operand] = Rounded(values, dtype, given.rows, given.d);
    return ComputeY(call);
  };
}

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_STEP_LIST_H_
