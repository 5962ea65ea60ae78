// SPDX-License-Identifier: Apache-2.0
// Cases drawn at random.
#ifndef RMSNORM_TOOLS_CASES_RANDOM_CASE_H_
#define RMSNORM_TOOLS_CASES_RANDOM_CASE_H_

#include "case.h"

namespace rmsnorm::cases {

// A case for what no one thought of: any function with any operands, types, layouts, values and
// options, in work for one thread; in little work where the library splits it all the same.
Case RandomCase(unsigned seed);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_TOOLS_CASES_RANDOM_CASE_H_
