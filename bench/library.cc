// SPDX-License-Identifier: Apache-2.0
// Builds of the library as contenders.
#include <dlfcn.h>

#include <algorithm>
#include <rmsnorm/rmsnorm.hpp>

#include "cases/prepared_call.h"
#include "contender.h"

namespace rmsnorm::bench {
namespace {

using cases::Functions;
using cases::PreparedCall;

template <class Function>
void Find(void* library, const char* name, Function& function, bool is_needed = true) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && is_needed) {
    throw std::runtime_error(std::string("has no function ") + name + "()");
  }
}

Functions Load(const std::string& file) try {
  // One build must not call the functions of another. AddressSanitizer forbids RTLD_DEEPBIND.
  const bool is_sanitized = dlsym(RTLD_DEFAULT, "__asan_init") != nullptr;
  void* const library = LoadLibrary(file, is_sanitized ? 0 : RTLD_DEEPBIND);
  Functions functions;
#define RMSNORM_FIND(name) Find(library, "rmsnorm_" #name, functions.name);
  RMSNORM_FIND(error_message)
  RMSNORM_FIND(forward)
  RMSNORM_FIND(backward)
  RMSNORM_FIND(forward_all)
  RMSNORM_FIND(module_create)
  RMSNORM_FIND(module_destroy)
  RMSNORM_FIND(module_set_weight)
  RMSNORM_FIND(module_set_bias)
  RMSNORM_FIND(module_set_post_norm_weight)
  RMSNORM_FIND(module_forward)
  RMSNORM_FIND(module_backward)
  RMSNORM_FIND(module_norm_rows)
  RMSNORM_FIND(module_add_norm_rows)
  RMSNORM_FIND(module_backward_rows)
#undef RMSNORM_FIND
  // Older builds may have no prepared calls.
  Find(library, "rmsnorm_prepare", functions.prepare, false);
  Find(library, "rmsnorm_prepare_backward", functions.prepare_backward, false);
  Find(library, "rmsnorm_run", functions.run, false);
  Find(library, "rmsnorm_prepared_destroy", functions.prepared_destroy, false);
  return functions;
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--older " + file + ": " + error.what());
}

class Build final : public Contender {
 public:
  Build(std::string name, Kind kind, const Functions& functions)
      : Contender(std::move(name), kind), functions_(functions) {}

  Prepared Prepare(const Tensors& tensors, const char* target) const override {
    auto state = std::make_unique<State>(State{functions_, {}});
    const cases::Calls& calls = tensors.values().calls;
    const std::vector<cases::CallOperands>& operands = tensors.operands();
    const rmsnorm_context context = cases::ContextOf(calls[0], target);
    const auto add = [&](const cases::Calls& some, const std::vector<cases::CallOperands>& its) {
      try {
        state->calls.push_back(std::make_unique<PreparedCall>(some, its, context, functions_));
      } catch (const Error& error) {
        throw Refusal(error.what());
      }
    };
    if (kind() != Kind::kApart) add(calls, operands);
    for (size_t i = 0; kind() == Kind::kApart && i < calls.size(); ++i)
      add({calls[i]}, {operands[i]});
    void (*const run)(void*) = state->calls.size() == 1 ? RunOne : RunAll;
    return {run, state.release(), [](void* all) { delete static_cast<State*>(all); }};
  }

 private:
  struct State {
    const Functions& functions;
    std::vector<std::unique_ptr<PreparedCall>> calls;

    void Run(const PreparedCall& call) const {
      if (call.Run() != RMSNORM_OK) throw Refusal(functions.error_message());
    }
  };
  static void RunOne(void* state) {
    const State& self = *static_cast<State*>(state);
    self.Run(*self.calls[0]);
  }
  static void RunAll(void* state) {
    const State& self = *static_cast<State*>(state);
    for (const auto& call : self.calls) self.Run(*call);
  }

  const Functions functions_;
};

}  // namespace

std::unique_ptr<Contender> Library() {
  return std::make_unique<Build>("library", Kind::kLibrary, Functions());
}

std::unique_ptr<Contender> Apart() {
  return std::make_unique<Build>("apart", Kind::kApart, Functions());
}

std::unique_ptr<Contender> Older(const std::string& file) {
  return std::make_unique<Build>("older", Kind::kLibrary, Load(file));
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

}  // namespace rmsnorm::bench
