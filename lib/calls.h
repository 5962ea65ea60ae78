// SPDX-License-Identifier: Apache-2.0
// Calls from what was given to what runs, for the entry points and the module's.
#ifndef RMSNORM_LIB_CALLS_H_
#define RMSNORM_LIB_CALLS_H_

#include "checks.h"
#include "columns.h"
#include "spread.h"
#include "walk.h"

namespace rmsnorm::internal {

// A gradient by columns adds up over so many rows at least, in so many blocks at most.
constexpr size_t kMinRowsPerBlock = 16;
constexpr size_t kMaxBlocks = 64;

// A call of either operation, checked.
struct Call {
  Operands operands;
  rmsnorm_options options;
  const float* own_weight;  // of a module, prepared; null where it is the operands'
};

// Checks a call by a module, or else by `options`.
rmsnorm_status CheckCall(Operation operation, const rmsnorm_module* module,
                         const rmsnorm_operands* operands, const rmsnorm_options* options,
                         Call& call);

// Where a call runs: in the context that is given or, where that is null, in the module's.
struct Place {
  rmsnorm_context context;
  const KernelTable* kernels;
};
rmsnorm_status FindPlace(const rmsnorm_module* module, const rmsnorm_context* given, Place& place);

// The prepared weight of a call: a module's, that of the operands, or ones. AddWeight() adds what
// room it takes to the scratch, and PrepareWeight() writes it there.
void AddWeight(const Call& call, WeightScratch& scratch);
rmsnorm_view PrepareWeight(const Call& call, const KernelTable& kernels, WeightScratch& scratch);
rmsnorm_status NoMemoryForWeight(size_t d);

// Bytes of all operands that have the shape of x.
size_t RowBytes(const Operands& operands);

// rmsnorm_forward() and rmsnorm_backward(), by a module or, where that is null, by `options`.
rmsnorm_status CallForward(const rmsnorm_module* module, const rmsnorm_operands* operands,
                           const rmsnorm_options* options, const rmsnorm_context* context);
rmsnorm_status CallBackward(const rmsnorm_module* module, const rmsnorm_operands* operands,
                            const rmsnorm_options* options, const rmsnorm_context* context);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CALLS_H_
