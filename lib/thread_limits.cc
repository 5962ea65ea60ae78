// SPDX-License-Identifier: Apache-2.0
// https://docs.kernel.org/admin-guide/cgroup-v2.html and
// https://docs.kernel.org/scheduler/sched-bwc.html describe the files.
#include "thread_limits.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace rmsnorm::internal {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

File Open(const std::string& path) { return File(std::fopen(path.c_str(), "r")); }

// Reads a file of one number or two.
void Read(const std::string& path, double& first, double* second = nullptr) {
  const File file = Open(path);
  if (file == nullptr || std::fscanf(file.get(), "%lf", &first) != 1 || second == nullptr) return;
  if (std::fscanf(file.get(), "%lf", second) != 1) *second = 0;
}

// The CPUs of one group. Version 2 has a file with quota and period, or "max", and version 1 a file
// for each, where a quota of -1 is none.
int CpusOfGroup(const std::string& folder) {
  double quota = 0;
  double period = 0;
  Read(folder + "/cpu.max", quota, &period);
  if (quota == 0) {
    Read(folder + "/cpu.cfs_quota_us", quota);
    Read(folder + "/cpu.cfs_period_us", period);
  }
  const double cpus = quota / period;
  // No quota, or texts such as "inf".
  if (!(quota > 0 && cpus > 0 && cpus < INT_MAX)) return INT_MAX;
  return std::max(static_cast<int>(cpus), 1);
}

}  // namespace

int CpusOfQuota(const std::string& root) {
  int least = INT_MAX;
  const File groups = Open(root + "/proc/self/cgroup");
  char text[4096];  // longer than a path
  while (groups != nullptr && std::fgets(text, sizeof text, groups.get()) != nullptr) {
    // "0::GROUP" in version 2, and "NUMBER:CONTROLLERS:GROUP" in version 1.
    std::string line = text;
    line.resize(std::min(line.find('\n'), line.size()));
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_version_2 = controllers == ",,";
    if (!is_version_2 && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string mounted = root + (is_version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu");
    // From the process's own group up. A container may see its group as the root, but with the name
    // that it has outside.
    std::string group = line.substr(second + 1);
    while (!group.empty()) {
      least = std::min(least, CpusOfGroup(mounted + group));
      group.resize(std::min(group.rfind('/'), group.size() - 1));
    }
    least = std::min(least, CpusOfGroup(mounted));
  }
  return least;
}

bool IsChosen(const char* omp_num_threads, int threads) {
  return omp_num_threads != nullptr && std::strtol(omp_num_threads, nullptr, 10) == threads;
}

}  // namespace rmsnorm::internal
