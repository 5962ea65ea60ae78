// SPDX-License-Identifier: Apache-2.0
// The only file that knows of OpenMP.
#include "spread.h"

#include <algorithm>
#include <thread>

#include "column_sums.h"
#include "thread_limits.h"
#include "thresholds.h"
#include "waits.h"

// Microsoft's first OpenMP is 2.0, which has no limit on threads.
#if defined(_OPENMP) && _OPENMP >= 200805
#define RMSNORM_HAVE_OPENMP 1
#else
#define RMSNORM_HAVE_OPENMP 0
#endif

#if RMSNORM_HAVE_OPENMP
#include <omp.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <new>
#ifndef _WIN32
#include <pthread.h>
#endif
#endif

namespace rmsnorm::internal {
namespace {

// ------------------------------------------------------------------ parts to threads

using PartTask = void (*)(const void* state, size_t part, size_t parts);

// The parts as an executor gets them.
struct Parts {
  PartTask task;
  const void* state;
  size_t count;
};

void RunPart(void* state, size_t part) {
  const DefaultFloatEnvironment environment;
  const Parts& parts = *static_cast<const Parts*>(state);
  parts.task(parts.state, part, parts.count);
}

void RunInTurn(Parts& parts) {
  for (size_t part = 0; part < parts.count; ++part) RunPart(&parts, part);
}

#if RMSNORM_HAVE_OPENMP
// What a fork leaves behind: the threads that a call has got from OpenMP, and any thread that is
// starting its runtime. In the child, libgomp would wait for the former forever, and LLVM's runtime
// for a lock of the latter, so the child does without OpenMP.
std::atomic<bool> used_threads{false};
std::atomic<int> starting{0};
std::atomic<bool> lost_threads{false};

#ifndef _WIN32
// At load: the lock of a static in a function could be taken while another thread forks, and would
// stay so in the child.
// GCOVR_EXCL_START: children of the tests end by _exit() and write no counts.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { lost_threads = used_threads || starting != 0; });
// GCOVR_EXCL_STOP
#endif

// Before any other function of OpenMP: LLVM's runtime starts when it is first called.
void StartOpenMp() {
  static std::atomic<bool> is_started{false};
  if (is_started) return;
  ++starting;
  omp_get_max_threads();
  is_started = true;
  --starting;
}

using Clock = std::chrono::steady_clock;

Waits waits;
#endif

void RunWithOpenMp(Parts& parts) {
#if RMSNORM_HAVE_OPENMP
  // A prepared call may have been planned outside of a parallel region, or before a fork.
  if (lost_threads || omp_in_parallel()) return RunInTurn(parts);
  const Clock::time_point begin = Clock::now();
  if (waits.ShouldStay()) {
    RunInTurn(parts);
    return waits.Stayed(Clock::now() - begin);
  }
  if (!used_threads) used_threads = true;
  Waits::Nanoseconds worked{0};
  int threads = 1;
  // The runtime may give fewer threads than asked for. LLVM's allocates for a `parallel for`.
  // Several parts for each thread, taken as threads become free, take longer where rows lie in the
  // cache of a core, and gain nothing for long rows beside other load.
#pragma omp parallel num_threads(int(parts.count))
  {
    const bool is_caller = omp_get_thread_num() == 0;
    const Clock::time_point start = is_caller ? Clock::now() : begin;
    for (size_t part = static_cast<size_t>(omp_get_thread_num()); part < parts.count;
         part += static_cast<size_t>(omp_get_num_threads())) {
      RunPart(&parts, part);
    }
    if (is_caller) {
      worked = Clock::now() - start;
      threads = omp_get_num_threads();
    }
  }
  waits.Report(threads, worked, Clock::now() - begin);
#else
  RunInTurn(parts);
#endif
}

// Runs task(state, part, parts) once for each part below `parts`.
void RunParts(DefaultFloatEnvironment& environment, const rmsnorm_context& context, size_t parts,
              PartTask task, const void* state) {
  if (parts <= 1) return task(state, 0, 1);
  Parts all = {task, state, parts};
  environment.Leave();
  if (context.parallel_for != nullptr) {
    context.parallel_for(context.parallel_context, parts, RunPart, &all);
  } else {
    RunWithOpenMp(all);
  }
  environment.Enter();
}

#if RMSNORM_HAVE_OPENMP
// Idempotent, without the lock of a static (see `registered`).
int Quota() {
  constexpr int kUnknown = 0;
  static std::atomic<int> known{kUnknown};
  int quota = known.load(std::memory_order_relaxed);
  if (quota != kUnknown) return quota;
  quota = INT_MAX;
  // OpenMP itself does not tell its default from the same number in the variable.
  if (!IsChosen(std::getenv("OMP_NUM_THREADS"), omp_get_num_procs())) {
    try {
      quota = CpusOfQuota("");
    } catch (const std::bad_alloc&) {  // GCOVR_EXCL_LINE: no test makes this allocation fail.
    }
  }
  known.store(quota, std::memory_order_relaxed);
  return quota;
}

int UsualThreads() { return WithinQuota(omp_get_max_threads(), Quota(), omp_get_num_procs); }
#endif

// How many parts work may have, however large it is; at least 1.
size_t MostParts(const rmsnorm_context& context) {
  int threads = context.threads;
  if (context.parallel_for != nullptr) {
    if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  } else {
#if RMSNORM_HAVE_OPENMP
    if (lost_threads) return 1;
    StartOpenMp();
    if (omp_in_parallel()) return 1;
    threads = MostThreads(threads, UsualThreads(), omp_get_thread_limit(), omp_get_num_procs);
#else
    return 1;
#endif
  }
  return static_cast<size_t>(std::max(threads, 1));
}

// How many parts share work of this estimate, which has `units` units.
size_t PartsOfWork(size_t picoseconds, size_t units, const rmsnorm_context& context) {
  // Asking OpenMP takes longer than a short row.
  if (picoseconds < 2 * kLeastOfPart || units <= 1 || context.threads == 1) return 1;
  return std::min({picoseconds / kLeastOfPart, units, MostParts(context)});
}

// Part i of `parts` even ones holds the items PartBegin(i) up to PartBegin(i + 1).
size_t PartBegin(size_t items, size_t part, size_t parts) {
  return part * (items / parts) + std::min(part, items % parts);
}

// ------------------------------------------------------------------ plans to parts

struct Plans {
  const Plan* plan;
  size_t count;
  size_t shares;  // of all plans
};

// Runs the units from `begin` up to `end`.
void RunUnits(const Plan& plan, size_t begin, size_t end) {
  // A single block of rows adds up in the gradient itself, which the run holds.
  const bool is_all = plan.is_run && begin == 0 && end == plan.Units();
  if (is_all && (!plan.HasSums() || (end == 1 && plan.sums.at == SumsAt::kGradient))) {
    return plan.kernel(plan.norm, plan.run);
  }
  if (plan.HasSums()) {
    for (size_t unit = begin; unit < end; ++unit) RunBlockOfRows(plan, unit);
    return;
  }
  while (begin < end) {
    const RowRun run = plan.RunFrom(begin, end);
    plan.kernel(plan.norm, run);
    begin += run.count;
  }
}

// A unit counts as many shares as a row has elements, so that a long row counts more than a short
// one. The units of a plan with sums count alike.
size_t SharesOfUnit(const Plan& plan) { return plan.HasSums() ? 1 : plan.d; }

// Runs every unit whose first share belongs to this part. Units are numbered through all plans: of
// a plan with 3 rows of 4 elements and one with 2 rows of 6, the second of three parts has shares 8
// to 15, which are the last row of the first plan and the first row of the second.
void RunPartOfPlans(const void* state, size_t part, size_t parts) {
  const Plans& plans = *static_cast<const Plans*>(state);
  const size_t begin = PartBegin(plans.shares, part, parts);
  const size_t end = PartBegin(plans.shares, part + 1, parts);
  size_t before = 0;  // shares of the plans before
  for (size_t i = 0; i < plans.count; ++i) {
    const Plan& plan = plans.plan[i];
    const size_t units = plan.Units();
    const size_t of_unit = SharesOfUnit(plan);
    const auto first_unit = [&](size_t share) {
      return share <= before ? 0 : std::min(units, (share - before - 1) / of_unit + 1);
    };
    RunUnits(plan, first_unit(begin), first_unit(end));
    before += units * of_unit;
  }
}

void RunPartOfTotals(const void* state, size_t part, size_t parts) {
  const Plan& plan = *static_cast<const Plan*>(state);
  const size_t units = UnitsOfTotals(plan);
  StoreTotals(plan, PartBegin(units, part, parts), PartBegin(units, part + 1, parts));
}

}  // namespace

size_t PartsOf(const Plan* plans, size_t count, const rmsnorm_context& context) {
  size_t picoseconds = 0;
  size_t units = 0;
  for (size_t i = 0; i < count; ++i) {
    picoseconds += plans[i].picoseconds;
    units += plans[i].Units();
  }
  return PartsOfWork(picoseconds, units, context);
}

void RunOnThisThread(const Plan& plan) { RunUnits(plan, 0, plan.Units()); }

void RunInParts(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                const Plan* plans, size_t count) {
  Plans all = {plans, count, 0};
  for (size_t i = 0; i < count; ++i) all.shares += plans[i].Units() * SharesOfUnit(plans[i]);
  RunParts(environment, context, plans->parts, RunPartOfPlans, &all);
  const Plan& last = plans[count - 1];
  const size_t totals = UnitsOfTotals(last);
  if (totals == 0) return;
  const size_t picoseconds =
      PicosecondsOf(*last.norm.kernels, RMSNORM_F32, 0, last.Units() * last.d / 2);
  RunParts(environment, context, PartsOfWork(picoseconds, totals, context), RunPartOfTotals, &last);
}

}  // namespace rmsnorm::internal

int32_t rmsnorm_max_threads() noexcept {
#if RMSNORM_HAVE_OPENMP
  if (!rmsnorm::internal::lost_threads) {
    rmsnorm::internal::StartOpenMp();
    return std::min(rmsnorm::internal::UsualThreads(), omp_get_thread_limit());
  }
#endif
  return 1;  // GCOVR_EXCL_LINE: with OpenMP, in a child alone.
}

int32_t rmsnorm_has_openmp() noexcept {
#if RMSNORM_HAVE_OPENMP
  return 1;
#else
  return 0;
#endif
}
