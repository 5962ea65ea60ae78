// SPDX-License-Identifier: Apache-2.0
// An independent computation of the results of a case, in binary64 and from the formulas. It shares
// no code with lib/, and adds up in another order.
//
// Forward: each step turns a range that certainly holds its operand into the range of its result.
// Sums, products and casts are rounded as doc/definition.md says. They are monotonic, so they do
// not widen a range. The bound of an inverse RMS, twice with a post-norm, and the 2 ulp of an
// activation do. Where a range contains the middle between two numbers of a type, a cast widens it
// to an ulp of that type. An inverse RMS that the call stores is checked, and then taken as given:
// what follows from it must be exact.
//
// Backward: the closed form of the gradients, and a bound for its distance.
#ifndef RMSNORM_TEST_ORACLE_H_
#define RMSNORM_TEST_ORACLE_H_

#include <string>

#include "cases/problem.h"

namespace rmsnorm::test {

// The largest distance of a result from the middle of its range, for each output: 1 is at the end
// of the range. Only of ranges of several ulp in f32, and of cases without 16-bit types, whose
// casts make ranges wide.
struct Worst {
  double of[internal::kOperands] = {};
};

// Describes the first result of a case that is outside of its range; the text is empty if there is
// none. Needs a divisor of at least 1 and an eps of at most 2^100. The bound of gradients also
// needs eps, weight offset and divisor of an ordinary size, and an rstd of the rows. It holds for
// finite gradients.
std::string FaultOf(const cases::Case& c, const cases::Problem& problem, Worst& worst);

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_ORACLE_H_
