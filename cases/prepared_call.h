// SPDX-License-Identifier: Apache-2.0
// Calls whose modules, views and options are made once, and that are then made many times.
#ifndef RMSNORM_CASES_PREPARED_CALL_H_
#define RMSNORM_CASES_PREPARED_CALL_H_

#include <rmsnorm/rmsnorm.h>

#include <memory>
#include <vector>

#include "case.h"
#include "problem.h"

namespace rmsnorm::cases {

// The functions of one build of the library: by default of the one that is linked.
struct Functions {
  decltype(&rmsnorm_error_message) error_message = rmsnorm_error_message;
  decltype(&rmsnorm_forward) forward = rmsnorm_forward;
  decltype(&rmsnorm_backward) backward = rmsnorm_backward;
  decltype(&rmsnorm_forward_all) forward_all = rmsnorm_forward_all;
  decltype(&rmsnorm_module_create) module_create = rmsnorm_module_create;
  decltype(&rmsnorm_module_destroy) module_destroy = rmsnorm_module_destroy;
  decltype(&rmsnorm_module_set_weight) module_set_weight = rmsnorm_module_set_weight;
  decltype(&rmsnorm_module_set_bias) module_set_bias = rmsnorm_module_set_bias;
  decltype(&rmsnorm_module_set_post_norm_weight) module_set_post_norm_weight =
      rmsnorm_module_set_post_norm_weight;
  decltype(&rmsnorm_module_forward) module_forward = rmsnorm_module_forward;
  decltype(&rmsnorm_module_backward) module_backward = rmsnorm_module_backward;
  decltype(&rmsnorm_module_norm_rows) module_norm_rows = rmsnorm_module_norm_rows;
  decltype(&rmsnorm_module_add_norm_rows) module_add_norm_rows = rmsnorm_module_add_norm_rows;
  decltype(&rmsnorm_module_backward_rows) module_backward_rows = rmsnorm_module_backward_rows;
  decltype(&rmsnorm_prepare) prepare = rmsnorm_prepare;
  decltype(&rmsnorm_prepare_backward) prepare_backward = rmsnorm_prepare_backward;
  decltype(&rmsnorm_run) run = rmsnorm_run;
  decltype(&rmsnorm_prepared_destroy) prepared_destroy = rmsnorm_prepared_destroy;
};

// The context of a line's calls, without their executor.
rmsnorm_context ContextOf(const Case& first, const char* target);

// Throws UserError, in the library's words, if the library refuses the calls.
void RequireAccepted(const Calls& calls);

class PreparedCall {
 public:
  // The memory of the operands, the target and the executor outlive the object. Throws
  // rmsnorm::Error if the library refuses a module, or a call that it prepares.
  PreparedCall(const Calls& calls, const std::vector<CallOperands>& operands,
               const rmsnorm_context& context, const Functions& functions = {});
  PreparedCall(const PreparedCall&) = delete;  // structs point to each other
  PreparedCall& operator=(const PreparedCall&) = delete;

  // One call of the library, and nothing else.
  rmsnorm_status Run() const noexcept;

 private:
  // One norm, or one backward call.
  struct Part {
    std::unique_ptr<rmsnorm_module, decltype(&rmsnorm_module_destroy)> module;
    CallOperands views;  // without the operands that the module holds
    rmsnorm_operands operands;
    rmsnorm_options options;
  };

  void Add(const Case& c, const CallOperands& operands, bool with_module, bool in_own_context);
  void Prepare();
  rmsnorm_status RunRows() const noexcept;

  const Functions functions_;
  const rmsnorm_context context_;
  const Function function_;
  const bool backward_;
  // The arguments of functions for dense rows.
  const size_t rows_;
  const CallOperands dense_;

  const rmsnorm_context* own_context_ = nullptr;  // of the call; null for the context of a module
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<rmsnorm_call> calls_;
  std::unique_ptr<rmsnorm_prepared, decltype(&rmsnorm_prepared_destroy)> prepared_;
};

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_PREPARED_CALL_H_
