// SPDX-License-Identifier: Apache-2.0
// A call of several steps beside separate calls of one step each.
#ifndef RMSNORM_CASES_APART_H_
#define RMSNORM_CASES_APART_H_

#include <string>

#include "case.h"
#include "run.h"

namespace rmsnorm::cases {

// Whether separate calls can compute the results of a case of the line that has several steps.
bool HasSeparateCalls(const Calls& calls);

// Compares the results of each case that has separate calls with theirs, bit by bit. Both come from
// the reference, whatever the target: the others have its bits. The text describes a difference or
// a refusal, or is empty.
std::string FaultApart(Runner& runner, const Calls& calls, const std::string& target);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_APART_H_
