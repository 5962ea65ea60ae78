// SPDX-License-Identifier: Apache-2.0
// Runs the calls of a line and describes their faults.
#ifndef RMSNORM_CASES_RUN_H_
#define RMSNORM_CASES_RUN_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "case.h"
#include "layout.h"
#include "problem.h"

namespace rmsnorm::cases {

class PlacedCase;
class SmallStack;

// Runs lines, one after the other.
class Runner {
 public:
  // `small_stack`: a call that uses more stack than the library promises is a fault. Not on
  // Windows.
  explicit Runner(bool small_stack = false);
  ~Runner();

  // Makes the values and the reference results of calls, unless the calls before have the same.
  // Throws rmsnorm::Error if the library refuses one. One call may have `known` values and results,
  // such as recorded ones. A runner has either such calls or others.
  void Set(const Calls& calls, const Problem* known = nullptr);

  // The values and results of the first call.
  const Problem& problem() const;

  // Makes the calls on a target and describes the first wrong element, or the refusal; the text is
  // empty if all is right.
  std::string Run(const std::string& target);

  // The same in steps, for tests that make the calls in another way. Fill() writes the memory of
  // the operands as before the calls; it is the same memory for calls that differ in their seeds.
  std::vector<CallOperands> Fill();
  std::string FindFault();

 private:
  Calls calls_;
  std::vector<std::unique_ptr<PlacedCase>> placed_;
  std::unique_ptr<SmallStack> small_stack_;
};

// The exact names of the targets that this CPU runs, best first, the reference last.
inline std::vector<std::string> SupportedTargets() {
  std::vector<std::string> targets;
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    const char* exact_name;
    if (rmsnorm_find_target(rmsnorm_target_name(i), &exact_name) == RMSNORM_OK) {
      targets.emplace_back(exact_name);
    }
  }
  return targets;
}

// ---------------------------------------------------------------------------------- ways to check

// Describes the fault of a line, which may be a refusal; the text is empty if there is none.
using FindFault = std::function<std::string(Runner&, const Calls&, const std::string& target)>;

// Compares the target with the reference, bit by bit. A strewn call may be refused, by both in the
// same words; where it is not, its outputs must share no byte with other operands.
std::string FaultOf(Runner& runner, const Calls& calls, const std::string& target);

// Compares the results of the reference, whose bits all targets have, with the formulas
// (FormulaFault() of expected.h). It needs neither the runner nor the target.
std::string FaultByFormula(Runner& runner, const Calls& calls, const std::string& target);

// The simplest calls found that fail on a target as these do, by what finds their fault. It leaves
// calls out, and makes fields smaller or leaves them out, one by one.
Calls Shrink(Runner& runner, const Calls& failing, const std::string& target,
             const FindFault& find_fault = FaultOf);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_RUN_H_
