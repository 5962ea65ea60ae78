// SPDX-License-Identifier: Apache-2.0
// Counts the threads that this program starts, whoever starts them.
#ifndef RMSNORM_TEST_THREAD_COUNTER_H_
#define RMSNORM_TEST_THREAD_COUNTER_H_

namespace rmsnorm::test {

// Since the program began.
int ThreadsStarted();

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_THREAD_COUNTER_H_
