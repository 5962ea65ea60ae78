// SPDX-License-Identifier: Apache-2.0
// Random calls of every operation, each drawn from a seed of its own. The reference does a call
// serially in the default floating-point state; then each target does it on any threads, by any
// executor, for a caller in any floating-point state, and must give the same status and the same
// memory. The reference itself is held to what must be so, and to oracles in binary64.
#include <getopt.h>
#include <sanitizer/asan_interface.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "call_oracle.h"
#include "cases/float_control.h"
#include "guarded_buffer.h"
#include "progress.h"
#include "random_call.h"
#include "targets.h"

// What a sanitizer finds is the end of the program.
#pragma weak __sanitizer_set_death_callback
extern "C" const char* __ubsan_default_options();
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:print_stacktrace=1"; }
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }

namespace rmsnorm::test {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kPoison = true;
#elif defined(__has_feature)
constexpr bool kPoison = __has_feature(address_sanitizer);
#else
constexpr bool kPoison = false;
#endif

using Memory = std::vector<unsigned char>;

using cases::Control, cases::kDefaultControl, cases::RandomControl, cases::SetControl;

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ------------------------------------------------------------------ how a call is run

// The caller's executor: the parts in reverse, in any order, or each on a thread of its own; in
// some floating-point state, which each part must leave as it was.
struct Executor {
  enum { kNone, kReverse, kShuffled, kThreads } kind = kNone;
  uint32_t seed = 0;
  uint32_t control = kDefaultControl;
  std::atomic<bool> state_was_kept{true};

  static void Run(void* context, size_t count, rmsnorm_task task, void* state) {
    static_cast<Executor*>(context)->Run(count, task, state);
  }
  void Run(size_t count, rmsnorm_task task, void* state) {
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
    Random random(seed);
    for (size_t i = count; kind == kShuffled && i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(i)]);
    }
    const auto run = [&](size_t part) {
      const uint32_t usual = Control();
      SetControl(control);
      const uint32_t before = Control();  // what the CPU takes of it
      task(state, part);
      if (Control() != before) state_was_kept = false;
      SetControl(usual);
    };
    if (kind != kThreads) {
      for (const size_t part : order) run(part);
      return;
    }
    std::vector<std::thread> threads;
    for (const size_t part : order) threads.emplace_back(run, part);
    for (std::thread& thread : threads) thread.join();
  }
};

struct Setting {
  std::string target = kReference;
  int32_t threads = 1;
  uint32_t control = kDefaultControl;
  Executor executor;
  bool null_options = false;
  bool null_context = false;
  bool by_modules_context = false;  // the context is the module's, rather than the call's
};

void DrawSetting(Random& random, const Call& call, const std::string& target, Setting& setting) {
  setting.target = target;
  setting.threads = static_cast<int32_t>(random.Below(6));
  if (random.Below(2) == 0) setting.control = RandomControl(random);
  const decltype(Executor::kind) kinds[] = {Executor::kNone, Executor::kReverse,
                                            Executor::kShuffled, Executor::kThreads};
  setting.executor.kind = kinds[random.Below(4)];
  setting.executor.seed = random.Bits();
  setting.executor.control = random.Below(2) == 0 ? setting.control : RandomControl(random);
  setting.null_options = true;
  setting.null_context = call.null_context;
  setting.by_modules_context = call.legal && random.Below(2) == 0;
}

// A struct that begins with its size, as the library may read it: what is beyond that size, or
// beyond what the struct has, is no default.
struct Sized {
  template <class Struct>
  Sized(const Struct& known, unsigned char beyond) {
    uint32_t size;
    std::memcpy(bytes, &known, sizeof known);
    std::memcpy(&size, bytes, sizeof size);
    if (size < sizeof known) {
      const size_t kept = std::max<size_t>(size, sizeof size);
      std::memset(bytes + kept, 0x5A, sizeof known - kept);
    } else if (size > sizeof known && size <= sizeof bytes) {
      bytes[size - 1] = beyond;
    }
  }
  template <class Struct>
  const Struct* As() const {
    return reinterpret_cast<const Struct*>(bytes);
  }

  alignas(8) unsigned char bytes[4096] = {};
};

// A call's operands in `base`, and its options, as it is given them.
struct Arguments {
  Arguments(const Call& call, int index, const Setting& setting, unsigned char* base)
      : norm(call.norm[index]),
        own_options(norm.options, call.beyond),
        own_operands(ViewOperands(call, index, base), call.beyond),
        options(setting.null_options && norm.null_options ? nullptr
                                                          : own_options.As<rmsnorm_options>()),
        operands(own_operands.As<rmsnorm_operands>()) {}

  rmsnorm_operands ViewOperands(const Call& call, int index, unsigned char* base) {
    rmsnorm_operands all = rmsnorm_no_operands();
    all.size = norm.operands_size;
    all.add_to = norm.add_to;
    for (int id = 0; id < kOperands; ++id) {
      const Operand& operand = call.operands[index * kOperands + id];
      view[id] = operand.view;
      view[id].data = operand.null_data ? nullptr : base + operand.offset;
      const rmsnorm_view* const pointer =
          operand.given && !call.IsOfModule(index * kOperands + id) ? &view[id] : nullptr;
      std::memcpy(reinterpret_cast<char*>(&all) + kOperandRules[id].offset, &pointer,
                  sizeof pointer);
      data[id] = operand.given ? view[id].data : nullptr;
    }
    if (call.operands[index * kOperands + kWeight].given) weight = &view[kWeight];
    return all;
  }

  const Norm& norm;
  rmsnorm_view view[kOperands];
  void* data[kOperands];
  const rmsnorm_view* weight = nullptr;  // for a module
  const Sized own_options;
  const Sized own_operands;
  const rmsnorm_options* options;
  const rmsnorm_operands* operands;
};

class Module {
 public:
  Module() = default;
  ~Module() { rmsnorm_module_destroy(module_); }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  rmsnorm_status Make(const Arguments& arguments, const rmsnorm_context* context) {
    const Norm& norm = arguments.norm;
    const rmsnorm_status status = rmsnorm_module_create(&module_, norm.module_d, norm.module_dtype,
                                                        arguments.options, context);
    if (status != RMSNORM_OK || arguments.weight == nullptr) return status;
    return rmsnorm_module_set_weight(module_, arguments.weight);
  }
  const rmsnorm_module* get() const { return module_; }

 private:
  rmsnorm_module* module_ = nullptr;
};

rmsnorm_status RunModule(const Call& call, const Arguments& arguments,
                         const rmsnorm_context* context, const rmsnorm_context* of_module) {
  Module module;
  if (const rmsnorm_status status = module.Make(arguments, of_module); status != RMSNORM_OK) {
    return status;
  }
  const rmsnorm_dtype dtype = arguments.view[kX].dtype;
  const size_t rows = arguments.view[kX].shape[0];
  void* const* data = arguments.data;
  switch (call.operation) {
    case kModuleForward:
      return rmsnorm_module_forward(module.get(), arguments.operands, context);
    case kModuleBackward:
      return rmsnorm_module_backward(module.get(), arguments.operands, context);
    case kForwardRows:
      return rmsnorm_module_forward_rows(module.get(), dtype, rows, data[kX], data[kY]);
    case kAddForwardRows:
      return rmsnorm_module_add_forward_rows(module.get(), dtype, rows, data[kX], data[kResidual],
                                             data[kResidualOut], data[kY]);
    default:
      return rmsnorm_module_backward_rows(module.get(), dtype, rows, data[kDy], data[kX],
                                          static_cast<const float*>(data[kRstd]), data[kDx],
                                          data[kDw]);
  }
}

rmsnorm_status RunAll(const Call& call, const Arguments* arguments,
                      const rmsnorm_context* context) {
  Module modules[kMostNorms];
  rmsnorm_call calls[kMostNorms];
  for (int i = 0; i < kMostNorms; ++i) {
    calls[i] = {nullptr, arguments[i].operands, arguments[i].options};
    if (!call.norm[i].by_module) continue;
    const rmsnorm_status status = modules[i].Make(arguments[i], nullptr);
    if (status != RMSNORM_OK) return status;
    calls[i].module = modules[i].get();
    calls[i].options = nullptr;
  }
  return rmsnorm_forward_all(calls, kMostNorms, context);
}

// The call on operands in `base`. Nothing here is a number of floating point.
rmsnorm_status Run(const Call& call, Setting& setting, unsigned char* base) {
  const Arguments arguments[kMostNorms] = {{call, 0, setting, base}, {call, 1, setting, base}};
  rmsnorm_context own = call.context;
  if (own.target == nullptr) own.target = setting.target.c_str();
  if (own.threads >= 0) own.threads = setting.threads;
  if (setting.executor.kind != Executor::kNone) {
    own.parallel_for = Executor::Run;
    own.parallel_context = &setting.executor;
  }
  const Sized sized(own, call.beyond);
  const rmsnorm_context* context = setting.null_context ? nullptr : sized.As<rmsnorm_context>();

  SetControl(setting.control);
  const uint32_t before = Control();
  rmsnorm_status status;
  if (call.operation == kForward) {
    status = rmsnorm_forward(arguments->operands, arguments->options, context);
  } else if (call.operation == kBackward) {
    status = rmsnorm_backward(arguments->operands, arguments->options, context);
  } else if (call.operation == kForwardAll) {
    status = RunAll(call, arguments, context);
  } else {
    // Dense rows come without a context.
    const bool by_modules = setting.by_modules_context || call.Is().dense != 0;
    status =
        RunModule(call, *arguments, by_modules ? nullptr : context, by_modules ? context : nullptr);
  }
  const uint32_t after = Control();
  SetControl(kDefaultControl);
  if (after != before) throw Fault("the caller's floating-point state was not put back");
  if (!setting.executor.state_was_kept) throw Fault("a part left another floating-point state");
  if (status != RMSNORM_OK && rmsnorm_error_message()[0] == '\0')
    throw Fault("there is no message");
  return status;
}

// ------------------------------------------------------------------ what must be so

// Marks the bytes of the outputs of a call that was accepted. By definition they share no byte with
// each other nor with another operand, of the other norm too, that they are not exactly in the
// place of.
Memory MarkOutputs(const Call& call) {
  Memory all(call.memory.size());
  for (int output = 0; output < kAllOperands; ++output) {
    if (!call.operands[output].given || !call.IsOutput(output)) continue;
    const std::vector<ptrdiff_t> offsets = RowOffsets(call.operands[output]);
    const size_t bytes = RowBytes(call.operands[output]);
    Memory own(all.size());
    for (const ptrdiff_t offset : offsets) {
      if (std::memchr(&own[0] + offset, 1, bytes) != nullptr) {
        throw Fault(call.NameOf(output) + ": rows overlap, and were accepted");
      }
      std::memset(&own[0] + offset, 1, bytes);
      std::memset(&all[0] + offset, 1, bytes);
    }
    for (int other = 0; other < kAllOperands; ++other) {
      const Operand& operand = call.operands[other];
      if (other == output || !operand.given || call.IsOfModule(other)) continue;
      const std::vector<ptrdiff_t> places = RowOffsets(operand);
      const bool is_in_place = places == offsets && RowBytes(operand) == bytes;
      if (PlaceOf(output) == other && is_in_place) continue;
      for (const ptrdiff_t place : places) {
        if (std::memchr(&own[0] + place, 1, RowBytes(operand)) != nullptr) {
          throw Fault(call.NameOf(output) + ": overlaps " + call.NameOf(other) +
                      ", and was accepted");
        }
      }
    }
  }
  return all;
}

bool SameNumber(const unsigned char* expected, const unsigned char* actual) {
  double e;
  double a;
  std::memcpy(&e, expected, sizeof e);
  std::memcpy(&a, actual, sizeof a);
  return std::memcmp(expected, actual, sizeof e) == 0 || (std::isnan(e) && std::isnan(a));
}

// The memory after a call must be the expected one, but that two NaNs in an output are equal.
void RequireSame(const Call& call, const Memory& expected, const unsigned char* memory) {
  if (std::memcmp(expected.data(), memory, expected.size()) == 0) return;
  Memory actual(memory, memory + expected.size());
  for (int id = 0; id < kAllOperands; ++id) {
    const Operand& operand = call.operands[id];
    if (!operand.given || !call.IsOutput(id)) continue;
    const std::vector<ptrdiff_t> offsets = RowOffsets(operand);
    for (size_t row = 0; row < offsets.size(); ++row) {
      const unsigned char* const e = expected.data() + offsets[row];
      unsigned char* const a = actual.data() + offsets[row];
      const std::string where = call.NameOf(id) + ", row " + std::to_string(row);
      if (operand.view.dtype == RMSNORM_F64) {
        if (!SameNumber(e, a)) throw Fault(where);
      } else {
        const testing::AssertionResult same =
            SameBits(operand.view.dtype, e, a, RowLength(operand));
        if (!same) throw Fault(where + ": " + same.message());
      }
      std::memcpy(a, e, RowBytes(operand));
    }
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] != expected[i]) throw Fault("byte " + std::to_string(i) + " was written to");
  }
}

// ------------------------------------------------------------------ one call

std::string Text(const Call& call) {
  std::ostringstream text;
  text << call.Is().name << (call.at_end ? ", before" : ", after") << " a guard page\n";
  for (int id = 0; id < kAllOperands; ++id) {
    const Operand& o = call.operands[id];
    if (!o.given) continue;
    const char* const type = rmsnorm_dtype_name(o.view.dtype);
    text << "  " << call.NameOf(id) << (call.IsOfModule(id) ? " of the module" : "") << ": "
         << (type != nullptr ? type : "?") << ", shape";
    const int ndim = std::clamp(o.view.ndim, 0, RMSNORM_MAX_DIMS);
    for (int i = 0; i < ndim; ++i) text << ' ' << o.view.shape[i];
    text << ", strides";
    for (int i = 0; i < ndim; ++i) text << ' ' << o.view.stride[i];
    text << ", at byte " << o.offset << (o.null_data ? " (null)" : "") << '\n';
  }
  for (int i = 0; i < call.norms; ++i) {
    const Norm& norm = call.norm[i];
    const rmsnorm_options& options = norm.options;
    text << std::hexfloat << "  eps " << options.eps << ", placed " << options.eps_placement
         << ", rounding " << options.rounding << ", of the residual " << options.residual_rounding
         << ", offset " << options.weight_offset << ", divisor " << options.divisor << ", added to "
         << norm.add_to << ", sizes " << options.size << ' ' << norm.operands_size;
    if (norm.by_module) {
      text << ", module of " << norm.module_d << " of type " << norm.module_dtype;
    }
    text << (i + 1 < call.norms ? "\n" : "");
  }
  return text.str();
}

std::string Text(const Setting& setting) {
  std::ostringstream text;
  text << "target " << setting.target << ", threads " << setting.threads << ", state " << std::hex
       << setting.control << ", executor " << setting.executor.kind << " in state "
       << setting.executor.control << (setting.null_context ? ", no context" : "")
       << (setting.by_modules_context ? ", the module's context" : "");
  return text.str();
}

// Runs a call on a copy of its memory in `buffer`, whose surroundings cannot be touched, and what
// is of no operand neither where AddressSanitizer looks on. Gives the memory after it.
rmsnorm_status RunGuarded(const Call& call, Setting& setting, const GuardedBuffer& buffer,
                          Memory& after) {
  const size_t size = call.memory.size();
  auto* const base =
      static_cast<unsigned char*>(call.at_end ? buffer.AtEnd(size) : buffer.AtBegin());
  std::memcpy(base, call.memory.data(), size);
  if (kPoison && call.legal) {
    ASAN_POISON_MEMORY_REGION(base, size);
    for (const Operand& operand : call.operands) {
      if (!operand.given) continue;
      for (const ptrdiff_t offset : RowOffsets(operand)) {
        ASAN_UNPOISON_MEMORY_REGION(base + offset, RowBytes(operand));
      }
    }
  }
  const rmsnorm_status status = Run(call, setting, base);
  ASAN_UNPOISON_MEMORY_REGION(base, size);
  after.assign(base, base + size);
  return status;
}

struct Counts {
  size_t calls[kOperationCount] = {};
  size_t refused[kOperationCount] = {};
};

void TestCall(uint32_t seed, const std::vector<std::string>& targets, const GuardedBuffer& buffer,
              bool verbose, Counts& counts) {
  CallDrawer drawer(seed);
  const Call call = drawer.Draw();
  if (verbose) std::printf("%s\n", Text(call).c_str());
  std::string how = "the reference";
  try {
    Setting serial;
    Memory expected;
    const rmsnorm_status status = RunGuarded(call, serial, buffer, expected);
    ++counts.calls[call.operation];
    if (status != RMSNORM_OK) {
      ++counts.refused[call.operation];
      if (call.legal) throw Fault(std::string("was refused: ") + rmsnorm_error_message());
      if (expected != call.memory) throw Fault("a refused call wrote to memory");
    } else {
      const Memory outputs = MarkOutputs(call);
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i] == 0 && expected[i] != call.memory[i]) {
          throw Fault("byte " + std::to_string(i) + " is of no output, and was written to");
        }
      }
      if (drawer.random().Below(4) == 0) {
        for (int i = 0; i < call.norms; ++i) {
          const auto within = IsWithinBounds({call, i, call.memory.data(), expected.data()});
          if (!within) throw Fault(call.NameOf(i * kOperands) + ": " + within.message());
        }
      }
    }
    Memory actual;
    for (const std::string& target : targets) {
      Setting setting;
      DrawSetting(drawer.random(), call, target, setting);
      how = Text(setting);
      if (verbose) std::printf("  %s\n", how.c_str());
      std::fflush(stdout);
      if (const rmsnorm_status own = RunGuarded(call, setting, buffer, actual); own != status) {
        throw Fault("status " + std::to_string(own) + " instead of " + std::to_string(status));
      }
      RequireSame(call, expected, actual.data());
    }
  } catch (const Fault& fault) {
    throw Fault(Text(call) + "\n  " + how + ": " + fault.what());
  }
}

// ------------------------------------------------------------------ many calls

// The line that repeats the call now running. A handler of a signal prints it.
char repeat[64];

void PrintRepeat() {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, repeat, std::strlen(repeat));
}

void HandleSignal(int signal) {
  const char* const name = signal == SIGFPE    ? "SIGFPE: "
                           : signal == SIGALRM ? "no end within a minute: "
                                               : "a signal: ";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, name, std::strlen(name));
  PrintRepeat();
  _exit(1);
}

void CatchSignals() {
  std::signal(SIGALRM, HandleSignal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(PrintRepeat);  // its own handlers say more
    return;
  }
  for (const int signal : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV}) {
    std::signal(signal, HandleSignal);
  }
}

[[noreturn]] void FailUsage() {
  std::fputs("usage: call_fuzz [--seconds S] [--seed N] [--calls N]\n", stderr);
  std::exit(2);
}

uint64_t Number(const char* text) {
  char* end;
  const unsigned long long number = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') FailUsage();
  return number;
}

int Main(int argc, char** argv) {
  uint64_t seconds = 60;
  uint64_t calls = UINT64_MAX;
  auto seed = static_cast<uint32_t>(std::random_device()());
  const option options[] = {{"seconds", required_argument, nullptr, 's'},
                            {"seed", required_argument, nullptr, 'n'},
                            {"calls", required_argument, nullptr, 'c'},
                            {nullptr, 0, nullptr, 0}};
  for (int given; (given = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    switch (given) {
      case 's':
        seconds = Number(optarg);
        break;
      case 'n':
        seed = static_cast<uint32_t>(Number(optarg));
        break;
      case 'c':
        calls = Number(optarg);
        seconds = UINT32_MAX;
        break;
      default:
        FailUsage();
    }
  }
  if (optind != argc) FailUsage();

  CatchSignals();
  const std::vector<std::string> targets = SupportedTargets();
  const GuardedBuffer buffer(size_t{8} << 20);
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const auto seconds_since = [begin] {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin).count());
  };
  Counts counts;
  uint64_t done = 0;
  {
    tools::Progress progress(calls < UINT64_MAX ? calls : seconds);
    for (; done < calls && seconds_since() < seconds; ++done) {
      progress.Update(calls < UINT64_MAX ? done : seconds_since());
      const uint32_t own_seed = seed + static_cast<uint32_t>(done);
      std::snprintf(repeat, sizeof repeat, "call_fuzz --seed %u --calls 1\n", own_seed);
      alarm(60);
      try {
        TestCall(own_seed, targets, buffer, calls == 1, counts);
      } catch (const Fault& fault) {
        std::fprintf(stderr, "%s\n%s", fault.what(), repeat);
        return 1;
      }
    }
  }
  std::printf("%llu calls from seed %u:", static_cast<unsigned long long>(done), seed);
  for (size_t i = 0; i < kOperationCount; ++i) {
    std::printf("%s %s %zu (%zu refused)", i == 0 ? "" : ",", kOperations[i].name, counts.calls[i],
                counts.refused[i]);
  }
  std::printf("\n");
  return 0;
}

}  // namespace
}  // namespace rmsnorm::test

int main(int argc, char** argv) {
  // OpenMP reads its environment before main(). By default its threads spin while they wait for
  // their next part, which takes nine tenths of the time here.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);
  }
  return rmsnorm::test::Main(argc, argv);
}
