// SPDX-License-Identifier: Apache-2.0
// Random calls, each from a separate seed. Most are random cases of `rmsnorm check`: every target
// must give the reference's bits, and the reference must agree with the formulas in binary64. In
// the other calls, operands are strewn over memory, so most must be refused. The reference must
// obey the rules of refusal and overlap, and each target must give the reference's status and
// memory.
#ifdef _WIN32
#include <process.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases/expected.h"
#include "cases/guarded_memory.h"
#include "cases/number_text.h"
#include "cases/random_case.h"
#include "cases/run.h"
#include "cases/shrink.h"
#include "on_target.h"
#include "strewn_call.h"

// A sanitizer's finding ends the program.
#pragma weak __sanitizer_set_death_callback
extern "C" void __sanitizer_set_death_callback(void (*callback)(void));
extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace rmsnorm::test {
namespace {

using Memory = std::vector<uint8_t>;

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string NameOf(Operand o) { return kOperandRules[o].name; }

// ------------------------------------------------------------------ strewn calls

bool IsOutput(const StrewnCall& call, Operand o) {
  return call.c.RoleOf(o) == cases::Role::kOutput;
}

// A module copies what it holds before the call.
bool IsOfModule(const StrewnCall& call, Operand o) {
  return cases::IsByModule(call.c) && (cases::HeldByModule(call.c) & cases::SetOf(o)) != 0;
}

// The operands that a call of this size and kind reads.
cases::OperandSet Seen(const StrewnCall& call) {
  cases::OperandSet seen = 0;
  internal::ForEachOperand(call.operands.given, [&](Operand o) {
    if (kOperandRules[o].offset < call.operands.size) seen |= cases::SetOf(o);
  });
  return seen;
}

// Marks the bytes of the outputs of an accepted call. By definition, they share no byte with each
// other, nor with any other operand unless they replace it exactly.
Memory MarkOutputs(const StrewnCall& call) {
  const bool is_several = call.c.function == cases::Function::kSeveral;
  Memory all(call.memory.size());
  internal::ForEachOperand(Seen(call), [&](Operand output) {
    if (!IsOutput(call, output)) return;
    const std::vector<ptrdiff_t> offsets = RowsAt(call, output);
    const size_t bytes = RowBytes(output, call.operands.view[output]);
    Memory own(all.size());
    for (const ptrdiff_t offset : offsets) {
      if (std::memchr(&own[0] + offset, 1, bytes) != nullptr) {
        throw Fault(NameOf(output) + ": rows overlap, and were accepted");
      }
      std::memset(&own[0] + offset, 1, bytes);
      std::memset(&all[0] + offset, 1, bytes);
    }
    internal::ForEachOperand(Seen(call), [&](Operand other) {
      if (other == output || IsOfModule(call, other)) return;
      const std::vector<ptrdiff_t> places = RowsAt(call, other);
      const size_t other_bytes = RowBytes(other, call.operands.view[other]);
      const bool may_replace = kOperandRules[output].in_place_of == other && other_bytes == bytes;
      if (may_replace && places == offsets) return;
      for (size_t row = 0; row < places.size(); ++row) {
        // With several calls, one may be in place and the others separate.
        if (may_replace && is_several && places[row] == offsets[row]) continue;
        if (std::memchr(&own[0] + places[row], 1, other_bytes) != nullptr) {
          throw Fault(NameOf(output) + ": overlaps " + NameOf(other) + ", and was accepted");
        }
      }
    });
  });
  return all;
}

// Makes the call on a copy of its memory between inaccessible pages.
rmsnorm_status Run(const StrewnCall& call, const std::string& target, bool at_end,
                   cases::GuardedMemory& memory, Memory& after) {
  const size_t size = call.memory.size();
  uint8_t* const base = at_end ? memory.Before(size) : memory.After(size);
  std::memcpy(base, call.memory.data(), size);
  cases::CallOperands operands = call.operands;
  internal::ForEachOperand(operands.given, [&](Operand o) {
    operands.view[o].data = call.null_data[o] ? nullptr : base + call.offset[o];
  });
  const rmsnorm_status status = cases::MakeCalls({call.c}, {operands}, target.c_str());
  if (status != RMSNORM_OK && rmsnorm_error_message()[0] == '\0') {
    throw Fault("there is no message");
  }
  after.assign(base, base + size);
  return status;
}

// Gives all NaNs in outputs the same bits: two of them count as equal.
void UnifyNans(const StrewnCall& call, Memory& memory) {
  internal::ForEachOperand(Seen(call), [&](Operand o) {
    if (!IsOutput(call, o)) return;
    const rmsnorm_view& view = call.operands.view[o];
    const size_t element = internal::ElementSize(view.dtype);
    for (const ptrdiff_t row : RowsAt(call, o)) {
      for (uint8_t* at = &memory[0] + row; at < &memory[0] + row + RowBytes(o, view);
           at += element) {
        if (cases::FormatOf(view.dtype).IsNan(cases::LoadBits(view.dtype, at))) {
          std::memset(at, 0xFF, element);
        }
      }
    }
  });
}

// Returns whether the call was refused.
bool TestStrewn(uint32_t seed, const std::vector<std::string>& targets) {
  static cases::GuardedMemory memory;
  const StrewnCall call = StrewnDrawer(seed).Draw(seed);
  const bool at_end = seed % 2 == 0;
  Memory expected;
  StrewnCall plain = call;  // on one thread, in the default state
  plain.c.state = 0;
  plain.c.executor = cases::Executor::kNone;
  const rmsnorm_status status = Run(plain, kReference, at_end, memory, expected);
  if (status != RMSNORM_OK) {
    if (expected != call.memory) throw Fault("a refused call wrote to memory");
  } else {
    const Memory outputs = MarkOutputs(call);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] == 0 && expected[i] != call.memory[i]) {
        throw Fault("byte " + std::to_string(i) + " is of no output, and was written to");
      }
    }
    UnifyNans(call, expected);
  }
  for (const std::string& target : targets) {
    Memory actual;
    if (const rmsnorm_status own = Run(call, target, at_end, memory, actual); own != status) {
      throw Fault("status " + std::to_string(own) + " on " + target + " instead of " +
                  std::to_string(status));
    }
    if (status == RMSNORM_OK) UnifyNans(call, actual);
    if (actual != expected) {
      const auto wrong = std::mismatch(actual.begin(), actual.end(), expected.begin()).first;
      throw Fault("byte " + std::to_string(wrong - actual.begin()) + " differs on " + target);
    }
  }
  return status != RMSNORM_OK;
}

// ------------------------------------------------------------------ cases

void TestCase(uint32_t seed, const std::vector<std::string>& targets, cases::Runner& runner) {
  const Case c = cases::RandomCase(seed);
  for (const std::string& target : targets) {
    const std::string fault = cases::FaultOf(runner, {c}, target);
    if (fault.empty()) continue;
    const cases::Calls simplest = cases::Shrink(runner, {c}, target);
    throw Fault(fault + "\n  rmsnorm check --target " + target + " --case " +
                cases::Text(simplest) + "\n");
  }
  if (seed % 4 != 0) return;
  const std::string fault = cases::FormulaFault(c, runner.problem());
  if (!fault.empty()) throw Fault(fault + "\n  rmsnorm check --formula --case " + cases::Text(c));
}

// ------------------------------------------------------------------ many calls

// The line that repeats the current call. A signal handler prints it.
char repeat[64];

void WriteError(const char* text) {
  // Windows counts in `unsigned`.
  const auto length = static_cast<unsigned>(std::strlen(text));
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text, length);
}

void PrintRepeat() { WriteError(repeat); }

void HandleSignal(int signal) {
  WriteError(signal == SIGFPE ? "SIGFPE: " : "a signal: ");
  PrintRepeat();
  _exit(1);
}

// Ends the program if it takes longer than a minute until the next call. Windows has no alarm.
void StartMinute() {
#ifdef SIGALRM
  std::signal(SIGALRM, [](int) {
    WriteError("no end within a minute: ");
    PrintRepeat();
    _exit(1);
  });
  alarm(60);
#endif
}

void CatchSignals() {
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(PrintRepeat);  // its own handlers print more
    return;
  }
  for (const int signal : {SIGABRT, SIGFPE, SIGILL, SIGSEGV}) std::signal(signal, HandleSignal);
#ifdef SIGBUS
  std::signal(SIGBUS, HandleSignal);
#endif
}

int Main(int argc, char** argv) {
  std::map<std::string, uint64_t> numbers = {
      {"--seconds", 60}, {"--calls", UINT64_MAX}, {"--seed", std::random_device()()}};
  for (int i = 1; i < argc; i += 2) {
    const auto number = numbers.find(argv[i]);
    if (i + 1 == argc || number == numbers.end() ||
        !cases::ReadNumber(argv[i + 1], number->second)) {
      std::fputs("usage: call_fuzz [--seconds S] [--seed N] [--calls N]\n", stderr);
      return 2;
    }
  }
  const uint64_t calls = numbers["--calls"];
  const uint64_t seconds = calls < UINT64_MAX ? UINT32_MAX : numbers["--seconds"];
  const auto seed = static_cast<uint32_t>(numbers["--seed"]);

  CatchSignals();
  const std::vector<std::string> targets = SupportedTargets();
  cases::Runner runner;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto seconds_since = [begin] {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin).count());
  };
  uint64_t strewn = 0;
  uint64_t refused = 0;
  uint64_t done = 0;
  for (; done < calls && seconds_since() < seconds; ++done) {
    const uint32_t own_seed = seed + static_cast<uint32_t>(done);
    std::snprintf(repeat, sizeof repeat, "call_fuzz --seed %u --calls 1\n", own_seed);
    StartMinute();
    try {
      if (own_seed % 4 == 1) {
        ++strewn;
        refused += TestStrewn(own_seed, targets) ? 1 : 0;
      } else {
        TestCase(own_seed, targets, runner);
      }
    } catch (const std::runtime_error& fault) {
      std::fprintf(stderr, "%s\n%s", fault.what(), repeat);
      return 1;
    }
  }
  using Count = unsigned long long;
  std::printf("%llu calls from seed %u: %llu strewn, of which %llu were refused\n",
              static_cast<Count>(done), seed, static_cast<Count>(strewn),
              static_cast<Count>(refused));
  return 0;
}

}  // namespace
}  // namespace rmsnorm::test

int main(int argc, char** argv) {
  // OpenMP reads its environment before main(). By default its threads spin while they wait for
  // their next part, which would take nine tenths of the time here.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
#ifdef _WIN32
    _putenv_s("OMP_WAIT_POLICY", "passive");
    return static_cast<int>(_spawnv(_P_WAIT, _pgmptr, argv));
#else
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);
#endif
  }
  return rmsnorm::test::Main(argc, argv);
}
