// SPDX-License-Identifier: Apache-2.0
#include "contest.h"

#include <dlfcn.h>

#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <cstring>
#include <rmsnorm/rmsnorm.hpp>

#include "cases/expected.h"
#include "cases/prepared_call.h"

// peers/plain.cc is compiled for several CPUs, each without and with -ffast-math.
extern "C" {
#ifdef __x86_64__
const rmsnorm_peer* rmsnorm_plain_v3();
const rmsnorm_peer* rmsnorm_plain_v3_fast();
const rmsnorm_peer* rmsnorm_plain_v4();
const rmsnorm_peer* rmsnorm_plain_v4_fast();
#else
const rmsnorm_peer* rmsnorm_plain_base();
const rmsnorm_peer* rmsnorm_plain_base_fast();
#endif
}

namespace rmsnorm::bench {

using cases::Case;
using internal::Operand;

// -------------------------------------------------------------------------------------- contenders

namespace {

using cases::Functions;
using cases::PreparedCall;

// The calls of a cell by one build of the library.
struct BuildCalls {
  const Functions& functions;
  std::vector<std::unique_ptr<PreparedCall>> calls;

  void Run(const PreparedCall& call) const {
    if (call.Run() != RMSNORM_OK) throw Refusal(functions.error_message());
  }
  // Without a loop, which counts in the shortest rows.
  static void RunOne(void* state) {
    const BuildCalls& self = *static_cast<BuildCalls*>(state);
    self.Run(*self.calls[0]);
  }
  static void RunAll(void* state) {
    const BuildCalls& self = *static_cast<BuildCalls*>(state);
    for (const auto& call : self.calls) self.Run(*call);
  }
};

Contender Build(const char* name, Kind kind, const Functions& functions, bool prepares = false) {
  const auto shared = std::make_shared<Functions>(functions);
  return {name, kind, [=](const Tensors& tensors, const char* target) -> TimedCall {
            auto state = std::make_unique<BuildCalls>(BuildCalls{*shared, {}});
            const cases::Calls& calls = tensors.values().calls;
            const cases::CallOperands* const operands = tensors.operands().data();
            const rmsnorm_context context = cases::ContextOf(calls[0], target);
            const size_t at_once = kind == Kind::kApart ? 1 : calls.size();
            try {
              for (size_t i = 0; i < calls.size(); i += at_once) {
                cases::Calls some(&calls[i], &calls[i] + at_once);
                if (prepares) {
                  for (cases::Case& c : some) c.function = cases::Function::kPrepared;
                }
                const std::vector<cases::CallOperands> its(operands + i, operands + i + at_once);
                state->calls.push_back(std::make_unique<PreparedCall>(some, its, context, *shared));
              }
            } catch (const Error& error) {
              throw Refusal(error.what());
            }
            const auto run = state->calls.size() == 1 ? BuildCalls::RunOne : BuildCalls::RunAll;
            return {run, state.release(), [](void* all) { delete static_cast<BuildCalls*>(all); }};
          }};
}

// Throws std::runtime_error with the reason if the file cannot be loaded.
void* LoadLibrary(const std::string& file, int more_flags = 0) {
  // Without a slash, dlopen() would search the directories of installed libraries.
  const std::string path = file.find('/') == std::string::npos ? "./" + file : file;
  // A library linked with -ffast-math changes the floating-point state of the thread that loads it.
  std::fenv_t before;
  std::fegetenv(&before);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | more_flags);
  std::fesetenv(&before);
  if (library == nullptr) {
    const std::string why = dlerror();  // often begins with the path
    const size_t rest = why.rfind(path + ": ", 0) == 0 ? path.size() + 2 : 0;
    throw std::runtime_error("cannot be loaded: " + why.substr(rest));
  }
  return library;
}

// Throws std::runtime_error if the library lacks a function.
template <class Function>
void Find(void* library, const std::string& name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name.c_str()));
  if (function == nullptr) throw std::runtime_error("has no function " + name + "()");
}

Contender Peer(const rmsnorm_peer& functions, Kind kind) {
  return {functions.name, kind, [=](const Tensors& tensors, const char* /*target*/) -> TimedCall {
            const char* why = nullptr;
            void* const state = functions.prepare(&tensors.peer_case(), &why);
            if (state == nullptr) throw Refusal(why != nullptr ? why : "it does not say why");
            return {functions.run, state, functions.release};
          }};
}

}  // namespace

Contender Library() { return Build("library", Kind::kLibrary, Functions()); }

Contender Prepared() { return Build("prepared", Kind::kLibrary, Functions(), true); }

Contender Apart() { return Build("apart", Kind::kApart, Functions()); }

Contender Older(const std::string& file) try {
  // One build must not call the functions of another. AddressSanitizer forbids RTLD_DEEPBIND.
  const bool is_sanitized = dlsym(RTLD_DEFAULT, "__asan_init") != nullptr;
  void* const library = LoadLibrary(file, is_sanitized ? 0 : RTLD_DEEPBIND);
  Functions functions;
#define RMSNORM_FIND(name) Find(library, "rmsnorm_" #name, functions.name);
  RMSNORM_CASES_FUNCTIONS(RMSNORM_FIND)
#undef RMSNORM_FIND
  return Build(kOlder, Kind::kLibrary, functions);
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--older " + file + ": " + error.what());
}

// Counts the parts that an executor gets. OpenMP gets as many, except for small work if its
// parallel regions take more than 0.75 us.
size_t CountParts(const rmsnorm_peer_case& what, const char* target) {
  size_t parts = 1;
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = what.threads;
  context.target = target;
  context.parallel_context = &parts;
  context.parallel_for = [](void* counter, size_t count, rmsnorm_task task, void* state) {
    size_t& most = *static_cast<size_t*>(counter);
    most = std::max(most, count);
    for (size_t i = 0; i < count; ++i) task(state, i);
  };
  const rmsnorm_status status =
      what.backward != 0 ? rmsnorm_backward(what.calls->operands, what.calls->options, &context)
                         : rmsnorm_forward_all(what.calls, what.count, &context);
  if (status != RMSNORM_OK) throw Refusal(rmsnorm_error_message());
  return parts;
}

Contenders PlainLoops() {
  std::vector<const rmsnorm_peer*> loops;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
      __builtin_cpu_supports("fma") != 0) {
    loops = {rmsnorm_plain_v3(), rmsnorm_plain_v3_fast()};
    if (__builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
        __builtin_cpu_supports("avx512vl") != 0) {
      loops.insert(loops.end(), {rmsnorm_plain_v4(), rmsnorm_plain_v4_fast()});
    }
  }
#else
  loops = {rmsnorm_plain_base(), rmsnorm_plain_base_fast()};
#endif
  Contenders contenders;
  for (const rmsnorm_peer* const one : loops) contenders.push_back(Peer(*one, Kind::kPlain));
  return contenders;
}

Contender LoadPeer(const std::string& file) try {
  decltype(&rmsnorm_peer_get) get;
  Find(LoadLibrary(file), "rmsnorm_peer_get", get);
  const rmsnorm_peer& functions = *get();
  if (functions.version != RMSNORM_PEER_VERSION) {
    throw std::runtime_error("is made for version " + std::to_string(functions.version) +
                             " of bench/peers/peer.h, not " + std::to_string(RMSNORM_PEER_VERSION));
  }
  return Peer(functions, Kind::kPeer);
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--peer " + file + ": " + error.what());
}

// ---------------------------------------------------------------------------------------- contest

namespace {

// A small cell is timed in many places in memory, one after another: in some places, 1 x 4096 in
// f32 takes half as long again, round after round. Larger cells (by the bytes of x) cover many
// places anyway.
constexpr size_t kPlaces = 32;
constexpr size_t kMaxBytesInPlaces = 512 * 1024;

// Whether the bounds of other contenders hold: for ordinary rows.
bool HasBounds(const Case& c) {
  return std::all_of(std::begin(c.operand), std::end(c.operand), [](const auto& operand) {
    return operand.values == cases::Values::kNormal || operand.values == cases::Values::kPositive;
  });
}

// A result's name, with the number of its call where there are several.
std::string NameOf(const Tensors& tensors, size_t call, Operand o) {
  const bool is_one = tensors.values().calls.size() == 1;
  return (is_one ? "" : "calls[" + std::to_string(call) + "].") + internal::kOperandRules[o].name;
}

// For the library: names the first element that has not the reference's bits, or is empty.
std::string FindDifference(const Tensors& tensors) {
  std::string fault;
  for (size_t call = 0; call < tensors.values().calls.size(); ++call) {
    const Case& c = tensors.values().calls[call];
    internal::ForEachOperand(c.Given(), [&](Operand o) {
      if (!c.IsOutput(o) || !fault.empty()) return;
      const cases::Rows& wanted = tensors.values().problems[call].after(o);
      cases::Rows got(wanted.dtype(), wanted.count(), wanted.d());
      tensors.Read(call, o, got);
      const std::string difference = cases::FirstDifference(wanted, got);
      if (!difference.empty()) fault = NameOf(tensors, call, o) + difference;
    });
  }
  return fault;
}

// The most elements that are all compared. Exact values of more take longer than the rounds.
constexpr size_t kMostExact = size_t{1} << 20;

// For others: names the first element beyond its error bound, or is empty. Of many elements it
// compares every nth row. n is odd, so the sample has rows at each place of a group.
std::string FindBeyondBounds(const Tensors& tensors) {
  std::string fault;
  for (size_t call = 0; call < tensors.values().calls.size(); ++call) {
    const Case& c = tensors.values().calls[call];
    const cases::Results results = [&](Operand o, size_t row, size_t j) {
      const rmsnorm_dtype dtype = c.operand[o].dtype;
      const uint8_t* const element = tensors.row(call, o, row) + j * internal::ElementSize(dtype);
      return cases::Decode(dtype, cases::LoadBits(dtype, element));
    };
    const auto is_right = [&](const cases::ExpectedRow& row) {
      if (row.bound == cases::kInfinity) throw Refusal("there is no bound for its error");
      for (size_t j = 0; j < row.elements.size(); ++j) {
        const double result = results(row.operand, row.row, j);
        const double error = row.Error(j, result);
        if (error <= row.bound) continue;
        char text[120];
        std::snprintf(text, sizeof text,
                      "[%zu, %zu] is %.9g, not %.9g: off by %.2g units where %.2g are allowed",
                      row.row, j, result, row.elements[j].exact, error, row.bound);
        fault = NameOf(tensors, call, row.operand) + text;
        return false;
      }
      return true;
    };
    ForEachExpectedRow(c, tensors.values().problems[call], cases::Arithmetic::kAny, results,
                       is_right, c.RowCount() * c.d / kMostExact | 1);
    if (!fault.empty()) break;
  }
  return fault;
}

}  // namespace

Contest::Contest(const Cell& cell, const Contenders& contenders)
    : cell_(cell), contenders_(contenders), calls_(cell.calls), apart_(cell.apart) {
  const size_t bytes = cell_.x_bytes();
  for (size_t i = 0; i < (bytes <= kMaxBytesInPlaces ? kPlaces : 1); ++i) {
    places_.push_back(std::make_unique<Place>(calls_, apart_, bytes));
    Prepare(*places_.back());
  }
  parts_ = CountParts(places_.front()->tensors.peer_case(), cell_.target.c_str());
}

void Contest::Prepare(Place& place) {
  for (const Contender& contender : contenders_) {
    std::unique_ptr<TimedCall>& call = place.timed_calls.emplace_back();
    const std::string& name = contender.name;
    const bool has_exact_bits = contender.kind == Kind::kLibrary || contender.kind == Kind::kApart;
    Tensors& tensors = contender.kind == Kind::kApart ? place.apart : place.tensors;
    if (tensors.operands().empty() || IsUntimed(name)) continue;
    tensors.Reset();
    try {
      if (!has_exact_bits && !std::all_of(cell_.calls.begin(), cell_.calls.end(), HasBounds)) {
        throw Refusal("there is no bound for its error");
      }
      call = std::make_unique<TimedCall>(contender.prepare(tensors, cell_.target.c_str()));
      call->Run();
      const std::string fault =
          has_exact_bits ? FindDifference(tensors) : FindBeyondBounds(tensors);
      if (!fault.empty()) untimed_.push_back({name, true, fault});
    } catch (const Refusal& refusal) {
      if (&contender == &contenders_.front()) throw;
      untimed_.push_back({name, false, refusal.what()});
    }
  }
}

bool Contest::IsUntimed(const std::string& name) const {
  return std::any_of(untimed_.begin(), untimed_.end(),
                     [&](const Untimed& one) { return one.name == name; });
}

void Contest::Memcpy() const {
  Place& place = *places_[place_];
  const size_t bytes = place.from.bytes();
  const size_t parts = std::clamp<size_t>(bytes, 1, parts_);
  if (parts == 1) {
    std::memcpy(place.to.data(), place.from.data(), bytes);
    return;
  }
  RunOnThreads(parts, [&](size_t part) {
    const size_t begin = bytes * part / parts;
    std::memcpy(place.to.data() + begin, place.from.data() + begin,
                bytes * (part + 1) / parts - begin);
  });
}

std::vector<Turn> Contest::Turns() {
  std::vector<Turn> turns;
  for (size_t i = 0; i < contenders_.size(); ++i) {
    const std::string& name = contenders_[i].name;
    const Kind kind = contenders_[i].kind;
    if (places_.front()->timed_calls[i] == nullptr || IsUntimed(name)) continue;
    const auto repeat = [this, i, kind](size_t times) {
      const Place& place = *places_[place_];
      const TimedCall& call = *place.timed_calls[i];
      const Reader& reader = kind == Kind::kApart ? place.apart_reader : place.reader;
      for (size_t time = 0; time < times; ++time) {
        call.Run();
        if (cell_.reads) sum_ += reader.Read(parts_);
      }
    };
    // The threads of a peer, and of a library by another compiler, stay awake for a while after a
    // call.
    turns.push_back({name, repeat, kind == Kind::kPeer || name == kOlder ? name : ""});
    if (i > 0) continue;
    turns.push_back({kMemcpy, [this](size_t times) {
                       for (size_t time = 0; time < times; ++time) {
                         Memcpy();
                         if (cell_.reads) sum_ += places_[place_]->to_reader.Read(parts_);
                       }
                     }});
  }
  return turns;
}

}  // namespace rmsnorm::bench
