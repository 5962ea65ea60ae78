// SPDX-License-Identifier: Apache-2.0
// Every argument of a public call is checked here, once; the layers below trust what they get.
#ifndef RMSNORM_LIB_CHECKS_H_
#define RMSNORM_LIB_CHECKS_H_

#include <rmsnorm/rmsnorm.h>

#include "options.h"
#include "overlap.h"

namespace rmsnorm::internal {

// Copies a caller's struct, of any size, over the defaults, and checks it. Null stands for the
// defaults. `changed` receives the ChangedOptions().
rmsnorm_status ReadOptions(const rmsnorm_options* given, rmsnorm_options& options,
                           OptionSet& changed);

// Checks a caller's context, all but the target. `context` is the caller's or the default one, or
// `copy` if the caller's has another size.
rmsnorm_status ReadContext(const rmsnorm_context* given, rmsnorm_context& copy,
                           const rmsnorm_context*& context);

// The operands of a call, checked.
struct Operands : Views {
  Extent extent[kOperands];  // of the given operands
  OperandSet outputs;        // of the given operands
  OperandSet like_x;         // those with the type, the shape and the strides of x
  uint32_t add_to;
  size_t rows;
  size_t d;
};

// A call, checked.
struct CheckedCall {
  Operands operands;
  rmsnorm_options options;
  OptionSet changed_options;
  const rmsnorm_module* module;  // or null
  OperandSet own;                // what the module adds to the operands
};

// Checks a call by a module or, where that is null, by `options`.
rmsnorm_status CheckCall(Operation operation, const rmsnorm_module* module,
                         const rmsnorm_operands* operands, const rmsnorm_options* options,
                         CheckedCall& call);

// Checks that an argument has the only type that it may have, or for 0 one of f32, f16 and bf16.
rmsnorm_status CheckDtype(const char* argument, rmsnorm_dtype only, rmsnorm_dtype dtype);

// Checks the operands of an operation: which there are, each by itself, that their shapes and types
// fit, and that no output shares memory with another operand unless it takes that operand's place.
// `own` is what a module adds to them; `group` is the option.
rmsnorm_status CheckOperands(Operation operation, const rmsnorm_operands* given, OperandSet own,
                             int32_t group, Operands& operands);

// Checks that no output of a checked call shares memory with an operand of another. An error names
// the first call that does so with an earlier one, and the first of these.
rmsnorm_status CheckCallsApart(const CheckedCall* calls, size_t count);

// Checks that a group divides rows of d elements; 0 is all of a row.
rmsnorm_status CheckGroup(int32_t group, size_t d);

// Checks a view of d elements in one dimension by the rule of an operand.
rmsnorm_status CheckVector(Operand operand, const rmsnorm_view* view, size_t d);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CHECKS_H_
