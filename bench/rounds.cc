// SPDX-License-Identifier: Apache-2.0
#include "rounds.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace rmsnorm::bench {
namespace {

// A timing lasts at least this long. It makes two errors negligible: the time to read the clock
// (tens of nanoseconds), and data of other contenders in a cache shared with other cores, which one
// warm-up run does not remove. With a timing of one call, f16 512 x 4096 measured 14 % longer.
constexpr double kMinSeconds = 500e-6;

// Rounds take this time in total. Slow cells take longer, because of the minimum number of rounds.
constexpr double kSecondsPerCell = 0.5;
constexpr size_t kMinRounds = 9;
constexpr size_t kMaxRounds = 101;

// Shorter work may find its rows in the caches, and runs once before it is timed. Data of another
// contender in the caches can double its time: RMSNorm of 512 x 4096 in bf16 takes 0.19 ms after
// memcpy and 0.35 ms after plain loops.
constexpr double kMaxSecondsInCaches = 2e-3;

// Reads the third field of each thread's stat. It follows the name in brackets, which may contain
// brackets as well.
bool OthersRun() {
  std::error_code no_proc;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", no_proc)) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::ifstream file(task.path() / "stat");
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    if (stat.find(") R", stat.rfind(')')) != std::string::npos) return true;
  }
  return false;
}

// Waits until no other thread of the process runs: idle threads look for more work before they
// sleep, libgomp's for some milliseconds and libomp's for 200. Gives up after a second and returns
// false.
bool WaitUntilOthersSleep() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(1);
  while (OthersRun()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

// How often to repeat a contender, and the time for that.
struct Pace {
  size_t times;
  double seconds;

  // Whether a warm-up run removes the cache contents of the previous contender.
  bool warms_up() const { return times > 1 || seconds < kMaxSecondsInCaches; }
};

// Times contenders one after another.
class Stopwatch {
 public:
  explicit Stopwatch(const std::function<double()>& clock) : clock_(clock) {}

  // Finds the pace of a contender, after a first run.
  Pace FindPace(const Turn& turn) {
    Seconds(turn, 1, false);
    for (size_t times = 1;;) {
      const double seconds = Seconds(turn, times, times > 1);
      if (seconds >= kMinSeconds) return {times, seconds};
      // Grows a little faster than needed, but by at most a factor of ten: a short run has too few
      // cycles to extrapolate from.
      const double growth = seconds > 0 ? 1.2 * kMinSeconds / seconds : 10.0;
      times = static_cast<size_t>(static_cast<double>(times) * std::clamp(growth, 1.5, 10.0)) + 1;
    }
  }

  // Seconds for `times` repetitions of the work.
  double Seconds(const Turn& turn, size_t times, bool warms_up) {
    if (pool_ != turn.pool) {
      pool_ = turn.pool;
      // Threads that never sleep (OMP_WAIT_POLICY=active) cost a single wait.
      others_sleep_ = others_sleep_ && WaitUntilOthersSleep();
      warms_up = true;
    }
    if (warms_up) turn.repeat(1);
    const double start = clock_();
    turn.repeat(times);
    return clock_() - start;
  }

 private:
  const std::function<double()>& clock_;
  std::string pool_;
  bool others_sleep_ = WaitUntilOthersSleep();
};

}  // namespace

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Spread SpreadOf(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  const size_t last = numbers.size() - 1;
  return {numbers[last / 4], numbers[last / 2], numbers[last - last / 4]};
}

std::vector<std::vector<double>> TimeInRounds(const std::vector<Turn>& turns,
                                              const std::function<void()>& next_round,
                                              const std::function<double()>& clock) {
  Stopwatch stopwatch(clock);
  std::vector<Pace> paces;
  std::vector<std::vector<double>> seconds(turns.size());
  for (const Turn& turn : turns) paces.push_back(stopwatch.FindPace(turn));

  // Each round has a different order, since a turn finds the data of the previous one in the
  // caches: always after PyTorch, forward of 512 x 4096 in f32 took 1.5 times as long.
  std::vector<size_t> order(turns.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random;
  size_t rounds = kMinRounds;
  const double start = clock();
  for (size_t round = 0; round < rounds; ++round) {
    next_round();
    // Of two turns each comes first equally often: few rounds drawn at random favour one of them.
    if (round % 2 == 0) {
      std::shuffle(order.begin(), order.end(), random);
    } else {
      std::reverse(order.begin(), order.end());
    }
    for (const size_t i : order) {
      const Pace& pace = paces[i];
      const double taken = stopwatch.Seconds(turns[i], pace.times, pace.warms_up());
      seconds[i].push_back(taken / static_cast<double>(pace.times));
    }
    // An odd number of rounds has a median.
    const bool goes_on = round + 1 == rounds && clock() - start < kSecondsPerCell;
    if (goes_on && rounds < kMaxRounds) rounds += 2;
  }
  return seconds;
}

// ---------------------------------------------------------------------------------------- threads

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
