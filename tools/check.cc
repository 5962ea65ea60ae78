// SPDX-License-Identifier: Apache-2.0
// rmsnorm check: compares every target with the reference, bit for bit.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iostream>
#include <rmsnorm/rmsnorm.hpp>
#include <thread>

#include "cases/expected.h"
#include "cases/list.h"
#include "cases/prepared_call.h"
#include "cases/text.h"
#include "command.h"

#if defined(__has_feature)
#define RMSNORM_SANITIZER (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RMSNORM_SANITIZER 1
#else
#define RMSNORM_SANITIZER 0
#endif
#if RMSNORM_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

namespace rmsnorm::tools {
namespace {

std::string CommandOf(const cases::Calls& calls, const std::string& target,
                      const std::string& flag) {
  const std::string quote = calls.size() == 1 ? "" : "'";  // a shell ends a command at a semicolon
  return "  rmsnorm check " + (flag.empty() ? "--target " + target : flag) + " --case " + quote +
         cases::Text(calls) + quote + "\n";
}

// The work of a thread, for its signal handler.
thread_local const Checker::OnTarget* running_command = nullptr;
thread_local const std::string* running_target = nullptr;

// What stopped a thread interrupted the library, not the allocator, so this may allocate memory for
// a text.
void PrintEnd(const std::string& how) {
  if (running_command == nullptr) return;
  const std::string text = std::string("FAILED on ") + *running_target + ": " + how + "\n" +
                           (*running_command)(*running_target);
  [[maybe_unused]] const auto written =
      write(STDOUT_FILENO, text.data(), static_cast<unsigned>(text.size()));
}

[[maybe_unused]] void HandleSignal(int signal) {
  std::signal(signal, SIG_DFL);
  PrintEnd("signal " + std::to_string(signal));
  std::_Exit(kCheckFailed);
}

// Windows has handlers for each thread. A sanitizer's own print more.
void CatchCrashes() {
#if RMSNORM_SANITIZER
  __sanitizer_set_death_callback([] { PrintEnd("a sanitizer's finding"); });
#else
  for (const int signal : {SIGFPE, SIGILL, SIGSEGV}) std::signal(signal, HandleSignal);
#ifdef SIGBUS
  std::signal(SIGBUS, HandleSignal);
#endif
#endif
}

// Checks every nth of the listed and the random cases on every CPU. Each thread goes through all
// cases and checks its share in runs of 64: neighbouring cases often share the results of the
// reference.
void CheckAll(const cases::List& list, const CheckOptions& options, Checker& checker) {
  constexpr size_t kCasesAtOnce = 64;
  const auto every = static_cast<size_t>(options.every);
  std::atomic<size_t> next{0};
  const auto check_own = [&] {
    CatchCrashes();
    cases::Runner runner(options.small_stack);
    size_t own = next++;
    size_t index = 0;
    const auto is_own = [&] {
      const size_t number = index++;
      const size_t at = number / every / kCasesAtOnce;
      if (at > own) own = next++;
      return at == own && number % every == 0;
    };
    list.ForEach([&](const cases::Calls& calls) {
      if (is_own()) checker.Check(calls, runner);
    });
    for (int32_t i = 0; i < options.random; ++i) {
      if (!is_own()) continue;
      const unsigned seed = options.seed.value_or(1) + static_cast<unsigned>(i);
      checker.Check({cases::RandomCase(seed)}, runner);
    }
  };
  std::vector<std::future<void>> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) {
    threads.push_back(std::async(std::launch::async, check_own));
  }
  check_own();
  for (std::future<void>& thread : threads) thread.get();
}

void PrintTask(const std::vector<std::string>& targets, size_t cases) {
  std::cout << "targets:";
  for (const std::string& target : targets) std::cout << " " << target;
  std::cout << "; cases: " << cases << std::endl;
}

// Compares the targets with the recorded results of every nth case, or of the one that is named.
int CheckVectors(const CheckOptions& options, const std::vector<std::string>& targets) {
  std::vector<std::pair<std::string, cases::Recorded>> chosen;  // each with its file
  for (const std::string& path : options.vectors) {
    std::vector<cases::Recorded> all = cases::ReadVectors(path);
    for (size_t i = 0; i < all.size(); i += static_cast<size_t>(options.every)) {
      if (options.one_case && all[i].name != *options.one_case) continue;
      chosen.emplace_back(path, std::move(all[i]));
    }
  }
  if (chosen.empty()) {  // every file has a case
    throw cases::UserError("--case: no case of the vectors is called '" + *options.one_case + "'");
  }
  PrintTask(targets, chosen.size());
  Checker checker(chosen.size(), targets, std::cout);
  cases::Runner runner;
  for (const auto& [path, recorded] : chosen) checker.Check(recorded, path, runner);
  return checker.Finish();
}

}  // namespace

Checker::Checker(size_t cases, const std::vector<std::string>& targets, std::ostream& out,
                 cases::FindFault find_fault, std::string flag)
    : cases_(cases),
      is_terminal_(isatty(STDERR_FILENO) != 0),
      targets_(targets),
      out_(out),
      find_fault_(std::move(find_fault)),
      flag_(std::move(flag)) {
  CatchCrashes();
}

void Checker::Check(const cases::Calls& calls, cases::Runner& runner) {
  const auto command = [&](const std::string& target) { return CommandOf(calls, target, flag_); };
  const auto find_fault = [&](const std::string& target) {
    return find_fault_(runner, calls, target);
  };
  CheckTargets(command, find_fault, [&](const std::string& target, const std::string& fault) {
    // Shrinking takes time: only the first failures get it.
    constexpr size_t kMostShrunk = 10;
    if (failed_ > kMostShrunk) return fault + "\n" + command(target);
    const cases::Calls simplest = Shrink(runner, calls, target, find_fault_);
    const std::string its_fault = find_fault_(runner, simplest, target);
    if (its_fault.empty()) return fault + ", the first time alone\n" + command(target);
    return its_fault + "\n" + CommandOf(simplest, target, flag_);
  });
}

void Checker::Check(const cases::Recorded& recorded, const std::string& path,
                    cases::Runner& runner) {
  const auto command = [&](const std::string& target) {
    return "  rmsnorm check --target " + target + " --vectors " + path + " --case " +
           recorded.name + "\n";
  };
  const auto find_fault = [&](const std::string& target) {
    runner.Set({recorded.c}, &recorded.problem);
    return runner.Run(target);
  };
  CheckTargets(command, find_fault, [&](const std::string& target, const std::string& fault) {
    return fault + "\n" + command(target);
  });
}

void Checker::CheckTargets(const OnTarget& command, const OnTarget& find_fault,
                           const Describe& describe) {
  for (const std::string& target : targets_) {
    running_command = &command;
    running_target = &target;
    const std::string fault = find_fault(target);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fault.empty()) {
      ++passed_;
      continue;
    }
    ++failed_;
    ClearPercentage();  // its line would mix with these lines
    out_ << "FAILED on " << target << ": " << describe(target, fault) << std::flush;
  }
  running_command = nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t before = 100 * done_ / cases_;
  const size_t percent = 100 * ++done_ / cases_;
  if (is_terminal_ && percent != before) std::fprintf(stderr, "\r%3zu %%", percent);
}

void Checker::ClearPercentage() const {
  if (is_terminal_) std::fputs("\r     \r", stderr);
}

int Checker::Finish() {
  ClearPercentage();
  out_ << passed_ << " passed, " << failed_ << " failed" << std::endl;
  return failed_ == 0 ? kSuccess : kCheckFailed;
}

int RunCheck(CheckOptions options) try {
  if (options.list) options.random = 0;

  const std::vector<std::string> targets = options.formula ? std::vector<std::string>{"reference"}
                                           : options.targets.empty() ? cases::SupportedTargets()
                                                                     : options.targets;
  if (!options.vectors.empty()) return CheckVectors(options, targets);
  const auto every = static_cast<size_t>(options.every);
  const cases::List list(options.one_case || options.seed ? ""
                         : options.list                   ? cases::ReadText(*options.list)
                                                          : cases::kCheckedCases);
  const size_t all = list.size() + static_cast<size_t>(options.random);
  const size_t count = options.one_case ? 1 : (all + every - 1) / every;
  if (count == 0) throw cases::UserError("there is no case to check");
  cases::Calls one;
  if (options.one_case) {
    one = cases::ParseCalls(*options.one_case);
    if (!one[0].strewn) cases::RequireAccepted(one);
  } else {  // some of many cases run on the target of RMSNORM_TARGET
    const char* active;
    check(rmsnorm_find_target(nullptr, &active));
  }
  if (options.list) list.ForEach([](const cases::Calls&) {});  // refuses a wrong value first
  PrintTask(targets, count);
  Checker checker(count, targets, std::cout,
                  options.formula ? cases::FaultByFormula : cases::FaultOf,
                  options.formula       ? "--formula"
                  : options.small_stack ? "--small-stack"
                                        : "");
  if (!one.empty()) {
    cases::Runner runner(options.small_stack);
    checker.Check(one, runner);
  } else {
    CheckAll(list, options, checker);
  }
  return checker.Finish();
} catch (const cases::UserError& error) {
  if (!options.list) throw;
  throw cases::UserError("--list " + *options.list + ": " + error.what());
}

}  // namespace rmsnorm::tools
