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
// clang-format off
#define RMSNORM_CASES_FUNCTIONS(Use)                                                            \
  Use(error_message) Use(forward) Use(backward) Use(forward_all) Use(module_create)             \
  Use(module_destroy) Use(module_set_weight) Use(module_set_bias)                               \
  Use(module_set_post_norm_weight) Use(module_forward) Use(module_backward)                     \
  Use(module_norm_rows) Use(module_add_norm_rows) Use(module_backward_rows) Use(prepare)        \
  Use(prepare_backward) Use(run) Use(prepared_destroy)
// clang-format on
struct Functions {
#define RMSNORM_CASES_MEMBER(name) decltype(&rmsnorm_##name) name = rmsnorm_##name;
  RMSNORM_CASES_FUNCTIONS(RMSNORM_CASES_MEMBER)
#undef RMSNORM_CASES_MEMBER
};

// The context of a line's calls, without their executor.
rmsnorm_context ContextOf(const Case& first, const char* target);

// A module's call by pointers to dense rows: the rows of x, and of the operands that are given.
rmsnorm_status RunRows(const Functions& functions, const rmsnorm_module* module,
                       const rmsnorm_operands& operands, size_t rows,
                       const rmsnorm_context* context) noexcept;

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

  const Functions functions_;
  const rmsnorm_context context_;
  const Function function_;
  const bool backward_;
  const size_t rows_;  // for functions for dense rows

  const rmsnorm_context* own_context_ = nullptr;  // of the call; null for the context of a module
  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<rmsnorm_call> calls_;
  std::unique_ptr<rmsnorm_prepared, decltype(&rmsnorm_prepared_destroy)> prepared_;
};

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_PREPARED_CALL_H_
