// SPDX-License-Identifier: Apache-2.0
#include "contender.h"

#include <dlfcn.h>

#include <algorithm>
#include <cfenv>
#include <rmsnorm/rmsnorm.hpp>

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

}  // namespace rmsnorm::bench
