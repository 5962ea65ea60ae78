// SPDX-License-Identifier: Apache-2.0
// Counts the allocations of this program, whoever makes them.
#ifndef RMSNORM_TEST_ALLOCATION_COUNTER_H_
#define RMSNORM_TEST_ALLOCATION_COUNTER_H_

namespace rmsnorm::test {

// The number of calls of malloc() and its relatives since the program started; operator new uses
// them.
int Allocations();

// Whether allocations of more than the usual alignment fail from now on.
void FailAligned(bool fail);

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_ALLOCATION_COUNTER_H_
