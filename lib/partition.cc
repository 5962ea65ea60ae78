// SPDX-License-Identifier: Apache-2.0
// The only file that knows of OpenMP.
#include "partition.h"

#include <algorithm>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace rmsnorm::internal {
namespace {

// Elements for which waking another thread pays.
constexpr size_t kMinElementsPerPart = 32768;

struct Parts {
  const Job& job;
  size_t count;
};

// Part i holds the rows floor(i rows / count) up to floor((i + 1) rows / count), without the
// product's overflow.
size_t FirstRow(const Parts& parts, size_t part) {
  const size_t even = parts.job.rows / parts.count;
  const size_t left = parts.job.rows % parts.count;
  return part * even + std::min(part, left);
}

void RunPart(void* state, size_t part) {
  const Parts& parts = *static_cast<const Parts*>(state);
  RunRows(parts.job, FirstRow(parts, part), FirstRow(parts, part + 1));
}

void RunWithOpenMp(Parts& parts) {
#ifdef _OPENMP
  // The runtime may give fewer threads than asked for.
#pragma omp parallel num_threads(static_cast <int>(parts.count))
  for (size_t part = static_cast<size_t>(omp_get_thread_num()); part < parts.count;
       part += static_cast<size_t>(omp_get_num_threads())) {
    RunPart(&parts, part);
  }
#else
  RunPart(&parts, 0);
#endif
}

}  // namespace

void RunJob(const Job& job, const Threading& threading) {
  // Small work is decided on first, as even asking OpenMP costs more than a short row.
  size_t count = std::min(job.rows, job.rows * job.norm.d / kMinElementsPerPart);
  if (count > 1 && threading.threads != 1) {
    int threads = threading.threads;
    if (threading.parallel_for != nullptr) {
      if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
    } else {
#ifdef _OPENMP
      if (omp_in_parallel()) threads = 1;
#endif
      if (threads == 0 || rmsnorm_has_openmp() == 0) threads = rmsnorm_max_threads();
    }
    count = std::min(count, static_cast<size_t>(std::max(threads, 1)));
    if (count > 1) {
      Parts parts = {job, count};
      if (threading.parallel_for != nullptr) {
        threading.parallel_for(threading.parallel_context, count, RunPart, &parts);
      } else {
        RunWithOpenMp(parts);
      }
      return;
    }
  }
  RunRows(job, 0, job.rows);
}

}  // namespace rmsnorm::internal

int32_t rmsnorm_max_threads() noexcept {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

int32_t rmsnorm_has_openmp() noexcept {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}
