// SPDX-License-Identifier: Apache-2.0
#include "threads.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace rmsnorm::bench {
namespace {

bool OpenMpBinds() {
#ifdef _OPENMP
  return omp_get_proc_bind() != omp_proc_bind_false;
#else
  return false;
#endif
}

// The CPUs of a set: the first CPU of each core, then the second of each, and so on.
std::vector<int> SpreadOverCores(const cpu_set_t& set) {
  std::map<std::string, int> seen;  // number of CPUs so far, by the CPU list of the core
  std::vector<std::pair<int, int>> ordered;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    std::string core = std::to_string(cpu);  // if the system does not say
    std::ifstream("/sys/devices/system/cpu/cpu" + core + "/topology/thread_siblings_list") >> core;
    ordered.emplace_back(seen[core]++, cpu);
  }
  std::sort(ordered.begin(), ordered.end());
  std::vector<int> cpus;
  cpus.reserve(ordered.size());
  for (const auto& [rank, cpu] : ordered) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

void RunOnThreads(size_t count, const std::function<void(size_t)>& function) {
  if (count == 1) return function(0);  // entering OpenMP costs more than a small call
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(count))
#endif
  for (size_t i = 0; i < count; ++i) function(i);
}

BoundThreads::BoundThreads(int threads) : threads_(threads) {
  if (OpenMpBinds() || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  bound_ = true;
  const std::vector<int> cpus = SpreadOverCores(before_);
  RunOnThreads(static_cast<size_t>(threads), [&cpus](size_t thread) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus[thread % cpus.size()], &one);
    sched_setaffinity(0, sizeof one, &one);
  });
}

BoundThreads::~BoundThreads() {
  if (!bound_) return;
  RunOnThreads(static_cast<size_t>(threads_),
               [this](size_t /*thread*/) { sched_setaffinity(0, sizeof before_, &before_); });
}

}  // namespace rmsnorm::bench
