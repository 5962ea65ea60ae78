// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_LIB_CPU_QUOTA_H_
#define RMSNORM_LIB_CPU_QUOTA_H_

#include <string>

namespace rmsnorm::internal {

// How many CPUs Linux's control groups let this process use at a time: whole ones, at least 1, and
// INT_MAX where nothing limits it. Reads proc/self/cgroup and sys/fs/cgroup in the directory
// `root`, with the limits of all groups above the process's own. Throws std::bad_alloc.
int CpusOfQuota(const std::string& root);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CPU_QUOTA_H_
