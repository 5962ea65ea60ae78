// SPDX-License-Identifier: Apache-2.0
// How many threads a call may use: by control groups, by OpenMP's numbers, and as asked for.
#ifndef RMSNORM_LIB_THREAD_LIMITS_H_
#define RMSNORM_LIB_THREAD_LIMITS_H_

#include <algorithm>
#include <string>

namespace rmsnorm::internal {

// How many CPUs Linux's control groups let this process use at a time: whole ones, at least 1, and
// INT_MAX where nothing limits it. Reads proc/self/cgroup and sys/fs/cgroup in the directory
// `root`, with the limits of all groups above the process's own. Throws std::bad_alloc.
int CpusOfQuota(const std::string& root);

// Whether the text of OMP_NUM_THREADS (null where it is not set) begins with this number.
bool IsChosen(const char* omp_num_threads, int threads);

// The threads of a call that does not say how many, where OpenMP's number is `of_openmp`. More
// threads than the quota has CPUs would use it up while they wait for each other. But a number that
// is not OpenMP's default, the number of CPUs, has been chosen, and stays. cpus() asks the system.
template <class Cpus>
int WithinQuota(int of_openmp, int quota, const Cpus& cpus) {
  return of_openmp > quota && of_openmp == cpus() ? quota : of_openmp;
}

// The most threads of a call that asks for some number (0: the usual one): no more than the usual
// number or the CPUs, whichever is larger, and never more than OpenMP's limit.
template <class Cpus>
int MostThreads(int asked, int usual, int limit, const Cpus& cpus) {
  if (asked == 0) asked = usual;
  if (asked > usual) asked = std::min(asked, std::max(usual, cpus()));
  return std::min(asked, limit);
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_THREAD_LIMITS_H_
