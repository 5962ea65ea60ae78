// SPDX-License-Identifier: Apache-2.0
// Cases drawn at random.
#ifndef RMSNORM_CASES_RANDOM_CASE_H_
#define RMSNORM_CASES_RANDOM_CASE_H_

#include "case.h"

namespace rmsnorm::cases {

// A case for bugs that no list foresees: any function with any operands, types, layouts, values and
// options. The work is enough for one thread; a build that splits tiny calls splits it, too.
Case RandomCase(unsigned seed);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_RANDOM_CASE_H_
