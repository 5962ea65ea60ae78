// SPDX-License-Identifier: Apache-2.0
// What a module holds.
#ifndef RMSNORM_LIB_MODULE_H_
#define RMSNORM_LIB_MODULE_H_

#include <string>

#include "floats.h"
#include "kernel_table.h"
#include "options.h"

struct rmsnorm_module {
  size_t d;
  rmsnorm_dtype dtype;
  rmsnorm_options options;
  rmsnorm::internal::OptionSet changed_options;
  rmsnorm_context context;  // its target is `kernels`
  const rmsnorm::internal::KernelTable* kernels;
  bool has_usual_target;                // its creator named no target
  size_t most_direct_rows[2];           // of each Operation, from MostDirectRows()
  rmsnorm::internal::OperandSet held;   // the weight, and those of kColumnsInF32 that were set
  rmsnorm_view columns[3];              // of those, as a RowRun has them
  rmsnorm::internal::Norm norm[3];      // for dense rows of each type, f32 first
  rmsnorm::internal::Floats weight;     // rounded to dtype
  rmsnorm::internal::Floats floats[3];  // of `columns`
  std::string description;

  const rmsnorm::internal::Norm& NormOf(rmsnorm_dtype type) const {
    return norm[type - RMSNORM_F32];
  }
  const rmsnorm_view& ColumnOf(rmsnorm::internal::Operand operand) const {
    return columns[operand - rmsnorm::internal::kWeight];
  }
  // What the module adds to the operands of a call. Gradients do not depend on a bias.
  rmsnorm::internal::OperandSet OwnIn(rmsnorm::internal::Operation operation) const {
    const bool is_forward = operation == rmsnorm::internal::Operation::kForward;
    return is_forward ? held : held & ~rmsnorm::internal::SetOf(rmsnorm::internal::kBias);
  }
};

namespace rmsnorm::internal {

// The most rows of a call by pointers that is made without views (module_rows.cc); 0 where the
// operation refuses what the module holds, or its options without the operands that such calls
// lack. More rows may be worth several parts, and backward then has several blocks of rows.
size_t MostDirectRows(Operation operation, const rmsnorm_module& module);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_MODULE_H_
