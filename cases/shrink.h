// SPDX-License-Identifier: Apache-2.0
// Makes a failing case simpler.
#ifndef RMSNORM_CASES_SHRINK_H_
#define RMSNORM_CASES_SHRINK_H_

#include <string>

#include "case.h"
#include "run.h"

namespace rmsnorm::cases {

// The simplest calls found that fail on a target as these do, by what finds their fault. It leaves
// calls out, and makes fields smaller or leaves them out, one by one.
Calls Shrink(Runner& runner, const Calls& failing, const std::string& target,
             const FindFault& find_fault = FaultOf);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_SHRINK_H_
