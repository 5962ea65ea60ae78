// SPDX-License-Identifier: Apache-2.0
// Counts all threads that start in this program.
#ifndef RMSNORM_TEST_THREAD_COUNTER_H_
#define RMSNORM_TEST_THREAD_COUNTER_H_

namespace rmsnorm::test {

// The number of threads since the program started.
int ThreadsStarted();

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_THREAD_COUNTER_H_
