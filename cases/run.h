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

// Makes calls on a target, or on the process's target if that is null, and returns the status; on a
// thread with the small stack, if there is one. Throws std::runtime_error if a floating-point state
// was not restored, or if the calls use too much stack.
rmsnorm_status MakeCalls(const Calls& calls, const std::vector<CallOperands>& operands,
                         const char* target, SmallStack* small_stack = nullptr);

// Runs lines, one after the other.
class Runner {
 public:
  // `small_stack`: a call that uses more stack than the library promises is a fault. Not on
  // Windows.
  explicit Runner(bool small_stack = false);
  ~Runner();

  // Makes the values and the reference results of calls, unless the calls before have the same.
  // Throws rmsnorm::Error if the library refuses one.
  void Set(const Calls& calls);

  // Takes the values and results of a case from elsewhere, and perhaps the places of its operands.
  // A runner has either such cases or others.
  void Set(const Case& c, const Problem& problem, const Layout* layout = nullptr);

  // Of the first call.
  const Problem& problem() const;

  // Makes the calls on a target and describes the first wrong element, or the refusal; the text is
  // empty if all is right.
  std::string Run(const std::string& target);

 private:
  Calls calls_;
  std::vector<std::unique_ptr<PlacedCase>> placed_;
  std::unique_ptr<SmallStack> small_stack_;
};

// Checks the calls of a line on one target. The text describes the fault, which may be a refusal,
// or is empty.
std::string FaultOf(Runner& runner, const Calls& calls, const std::string& target);

using FindFault = std::function<std::string(Runner&, const Calls&, const std::string& target)>;

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_RUN_H_
