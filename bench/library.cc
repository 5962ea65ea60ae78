// SPDX-License-Identifier: Apache-2.0
// Builds of the library as contenders.
#include <dlfcn.h>

#include <algorithm>
#include <rmsnorm/rmsnorm.hpp>
#include <type_traits>

#include "cases/prepared_call.h"
#include "contender.h"

namespace rmsnorm::bench {
namespace {

using cases::Functions;
using cases::PreparedCall;

Functions Load(const std::string& file) try {
  // One build must not call the functions of another. AddressSanitizer forbids RTLD_DEEPBIND.
  const bool is_sanitized = dlsym(RTLD_DEFAULT, "__asan_init") != nullptr;
  void* const library = LoadLibrary(file, is_sanitized ? 0 : RTLD_DEEPBIND);
  Functions functions;
  const auto find = [library](const char* name, auto& function, bool is_needed = true) {
    const std::string full_name = std::string("rmsnorm_") + name;
    function = reinterpret_cast<std::decay_t<decltype(function)>>(
        FindFunction(library, full_name, is_needed));
  };
  find("error_message", functions.error_message);
  find("forward", functions.forward);
  find("backward", functions.backward);
  find("forward_all", functions.forward_all);
  find("module_create", functions.module_create);
  find("module_destroy", functions.module_destroy);
  find("module_set_weight", functions.module_set_weight);
  find("module_set_bias", functions.module_set_bias);
  find("module_set_post_norm_weight", functions.module_set_post_norm_weight);
  find("module_forward", functions.module_forward);
  find("module_backward", functions.module_backward);
  find("module_norm_rows", functions.module_norm_rows);
  find("module_add_norm_rows", functions.module_add_norm_rows);
  find("module_backward_rows", functions.module_backward_rows);
  // Older builds may have no prepared calls.
  find("prepare", functions.prepare, false);
  find("prepare_backward", functions.prepare_backward, false);
  find("run", functions.run, false);
  find("prepared_destroy", functions.prepared_destroy, false);
  return functions;
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--older " + file + ": " + error.what());
}

class Build final : public Contender {
 public:
  Build(std::string name, Kind kind, const Functions& functions)
      : Contender(std::move(name), kind), functions_(functions) {}

  TimedCall Prepare(const Tensors& tensors, const char* target) const override {
    auto state = std::make_unique<State>(State{functions_, {}});
    const cases::Calls& calls = tensors.values().calls;
    const cases::CallOperands* const operands = tensors.operands().data();
    const rmsnorm_context context = cases::ContextOf(calls[0], target);
    const size_t at_once = kind() == Kind::kApart ? 1 : calls.size();
    try {
      for (size_t i = 0; i < calls.size(); i += at_once) {
        const cases::Calls some(&calls[i], &calls[i] + at_once);
        const std::vector<cases::CallOperands> its(operands + i, operands + i + at_once);
        state->calls.push_back(std::make_unique<PreparedCall>(some, its, context, functions_));
      }
    } catch (const Error& error) {
      throw Refusal(error.what());
    }
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
  // Without a loop, which counts in the shortest rows.
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
