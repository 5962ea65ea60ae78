// SPDX-License-Identifier: Apache-2.0
// Random calls, each from a separate seed. Most are random cases of `rmsnorm check`: every target
// must give the reference's bits, and the reference must agree with the formulas in binary64. In
// the other calls, operands are strewn over memory, so most must be refused: the library must obey
// the rules of overlap, write nothing when it refuses, and else give these bits, too.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases/case.h"
#include "cases/expected.h"
#include "cases/layout.h"
#include "cases/run.h"
#include "cases/text.h"
#include "contexts.h"
#include "rows.h"

// A sanitizer's finding ends the program.
#pragma weak __sanitizer_set_death_callback
extern "C" void __sanitizer_set_death_callback(void (*callback)(void));
extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace rmsnorm::test {
namespace {

using cases::Case, internal::Operand;

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ------------------------------------------------------------------ strewn calls

// Places the operands of a case anywhere in a small piece of memory, where they may share bytes.
class Strewer {
 public:
  Strewer(const Case& c, Random& random) : c_(c), random_(random) {
    // Any operand fits by itself.
    const size_t largest = sizeof(double) * c.RowCount() * c.d;
    size_ = std::max(8 * (64 + random.Below(448)), largest);
    layout_.block[internal::kX] = {size_, 0xA5};
    internal::ForEachOperand(c.Given(), [&](Operand o) { Place(o); });
  }

  const cases::Layout& layout() const { return layout_; }

 private:
  ptrdiff_t Around(size_t distance) {  // from -distance to distance
    return static_cast<ptrdiff_t>(random_.Below(2 * distance + 1)) -
           static_cast<ptrdiff_t>(distance);
  }

  void Place(Operand o) {
    const size_t size = internal::ElementSize(c_.operand[o].dtype);
    const std::vector<size_t> leading = cases::LeadingOf(c_, o);
    const size_t row_bytes = cases::RowLengthOf(c_, o) * size;
    cases::Layout::Place& place = layout_.place[o];
    const cases::Layout::Place& before = layout_.place[before_];
    const auto dense = cases::SpansOf({}, leading, cases::RowLengthOf(c_, o), size).stride;
    place = {internal::kX, 0, dense, cases::RowOffsets(leading, dense, size)};
    for (int tries = 0; tries < 20; ++tries) {
      std::vector<ptrdiff_t> stride = dense;
      const bool is_alike = before.stride.size() == stride.size() && random_.OneIn(3);
      for (size_t i = 0; c_.function != cases::Function::kRows && i < stride.size(); ++i) {
        if (is_alike) stride[i] = before.stride[i];
        if (random_.OneIn(4)) stride[i] = Around(60);
        if (random_.OneIn(4)) stride[i] = stride[i] * Around(3) + Around(2);
      }
      const auto offsets = cases::RowOffsets(leading, stride, size);
      const auto [low, high] = std::minmax_element(offsets.begin(), offsets.end());
      auto first = static_cast<ptrdiff_t>(random_.Below(size_ / size) * size);
      if (random_.OneIn(2)) first = static_cast<ptrdiff_t>(before.first);
      if (random_.OneIn(4)) first += Around(40) * static_cast<ptrdiff_t>(size);
      if (first % static_cast<ptrdiff_t>(size) != 0 || first + *low < 0 ||
          static_cast<size_t>(first + *high) + row_bytes > size_) {
        continue;
      }
      place = {internal::kX, static_cast<size_t>(first), stride, offsets};
      break;
    }
    before_ = o;
  }

  const Case& c_;
  Random& random_;
  size_t size_;
  cases::Layout layout_;
  Operand before_ = internal::kX;
};

// By definition, outputs share no byte with each other, nor with any other operand unless they
// replace it exactly. A module copies what it holds before the call.
void RequireApart(const Case& c, const cases::Layout& layout) {
  const bool is_several = c.function == cases::Function::kSeveral;
  const auto bytes_of = [&](Operand o) {
    return cases::RowLengthOf(c, o) * internal::ElementSize(c.operand[o].dtype);
  };
  const auto name_of = [](Operand o) { return std::string(internal::kOperandRules[o].name); };
  internal::ForEachOperand(c.Given(), [&](Operand output) {
    if (!c.IsOutput(output)) return;
    std::vector<uint8_t> own(layout.block[internal::kX].bytes);
    const cases::Layout::Place& place = layout.place[output];
    for (const ptrdiff_t offset : place.offset) {
      uint8_t* const row = &own[place.first] + offset;
      if (std::memchr(row, 1, bytes_of(output)) != nullptr) {
        throw Fault(name_of(output) + ": rows overlap, and were accepted");
      }
      std::memset(row, 1, bytes_of(output));
    }
    const cases::OperandSet held = cases::IsByModule(c) ? cases::HeldByModule(c) : 0;
    internal::ForEachOperand(c.Given() & ~held & ~cases::SetOf(output), [&](Operand other) {
      const cases::Layout::Place& its = layout.place[other];
      const bool may_replace = internal::kOperandRules[output].in_place_of == other &&
                               bytes_of(output) == bytes_of(other) && its.first == place.first;
      if (may_replace && its.offset == place.offset) return;
      for (size_t row = 0; row < its.offset.size(); ++row) {
        // With several calls, one may be in place and the others separate.
        if (may_replace && is_several && its.offset[row] == place.offset[row]) continue;
        if (std::memchr(&own[its.first] + its.offset[row], 1, bytes_of(other)) != nullptr) {
          throw Fault(name_of(output) + ": overlaps " + name_of(other) + ", and was accepted");
        }
      }
    });
  });
}

// Returns whether the call was refused.
bool TestStrewn(uint32_t seed, const std::vector<std::string>& targets, cases::Runner& runner) {
  Random random(seed);
  Case c = cases::RandomCase(seed);
  // Few elements make overlaps likely.
  c.d = 1 + random.Below(12);
  if (c.options.group != 0) {
    c.options.group = 8;
    c.d = 8 + 8 * random.Below(2);
  }
  if (c.Has(internal::kCos)) {
    c.d = std::max<size_t>(c.d, 2);
    c.rotated = std::min(c.rotated, c.d / 2 * 2);
  }
  for (size_t& size : c.rows) size = std::min<size_t>(size, 1 + random.Below(4));
  while (c.rows.size() > 3) c.rows.pop_back();
  for (cases::OperandCase& own : c.operand) own.in_place = false;  // it may come so
  c.interleaved = false;
  const Strewer strewer(c, random);
  const cases::Layout& layout = strewer.layout();

  std::vector<uint8_t> memory(layout.block[internal::kX].bytes);
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.Bits());
  cases::AllRows before;
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    if (c.IsOutput(o) && !c.operand[o].add) return;
    const cases::Layout::Place& place = layout.place[o];
    before[o] = Rows(c.operand[o].dtype, place.offset.size(), cases::RowLengthOf(c, o));
    for (size_t row = 0; row < place.offset.size(); ++row) {
      std::memcpy(before[o].row(row), &memory[place.first] + place.offset[row],
                  before[o].row_bytes());
    }
  });
  runner.Set(c, cases::Problem(c, std::move(before)), &layout);
  const std::string refusal = runner.Run(kReference);
  const bool is_refused = refusal.rfind("refused: ", 0) == 0;
  if (!is_refused) RequireApart(c, layout);
  for (const std::string& target : targets) {
    const std::string fault = runner.Run(target);
    if (fault != (is_refused ? refusal : "")) throw Fault(fault + " on " + target);
  }
  return is_refused;
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
  cases::Runner strewn_runner;
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
        refused += TestStrewn(own_seed, targets, strewn_runner) ? 1 : 0;
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

int main(int argc, char** argv) { return rmsnorm::test::Main(argc, argv); }
