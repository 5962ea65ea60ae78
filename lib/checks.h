// SPDX-License-Identifier: Apache-2.0
// Every argument of a public call is checked here, once; the layers below trust what they get.
#ifndef RMSNORM_LIB_CHECKS_H_
#define RMSNORM_LIB_CHECKS_H_

#include <rmsnorm/rmsnorm.h>

#include "overlap.h"

namespace rmsnorm::internal {

// Copy a caller's struct, of whatever size it is, over the defaults, and check all of it but the
// target. Null stands for the defaults.
rmsnorm_status ReadOptions(const rmsnorm_options* given, rmsnorm_options& options);
rmsnorm_status ReadContext(const rmsnorm_context* given, rmsnorm_context& context);

// A call, checked.
struct Call {
  Operands operands;
  rmsnorm_options options;
  const rmsnorm_module* module;  // or null
};

// Checks a call by a module or, where that is null, by `options`.
rmsnorm_status CheckCall(Operation operation, const rmsnorm_module* module,
                         const rmsnorm_operands* operands, const rmsnorm_options* options,
                         Call& call);

// Checks the operands of an operation: which there are, each by itself, that their shapes and types
// fit, and that no output shares memory with another operand but in its place. `own_weight` is of a
// call that brings a weight of its own.
rmsnorm_status CheckOperands(Operation operation, const rmsnorm_operands* given, bool own_weight,
                             Operands& operands);

// Checks that the outputs of one call share no memory with the operands of the other.
rmsnorm_status CheckApart(const Operands& call, const Operands& other, size_t other_index);

// Checks that options and operands go together: an offset with a weight, where an output depends on
// it; a way to gate with a gate. `own_weight` is of a call that brings a weight of its own.
rmsnorm_status CheckOptionsFit(Operation operation, const rmsnorm_options& options,
                               const Operands& operands, bool own_weight);

// Checks a view of d elements in one dimension by the rule of an operand.
rmsnorm_status CheckVector(Operand operand, const rmsnorm_view* view, size_t d);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CHECKS_H_
