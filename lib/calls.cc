// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <algorithm>

#include "module.h"
#include "options.h"
#include "status.h"
#include "target.h"

namespace rmsnorm::internal {

rmsnorm_status CheckCall(Operation operation, const rmsnorm_module* module,
                         const rmsnorm_operands* operands, const rmsnorm_options* options,
                         Call& call) {
  const bool by_module = module != nullptr;
  if (by_module && options != nullptr) {
    return Fail(RMSNORM_ERROR_OPERAND, "options: the module has its own");
  }
  call.own_weight = by_module ? module->prepared.get() : nullptr;
  if (by_module) {
    call.options = module->options;
  } else {
    RMSNORM_RETURN_IF_ERROR(ReadOptions(options, call.options));
  }
  RMSNORM_RETURN_IF_ERROR(CheckOperands(operation, operands, by_module, call.operands));
  RMSNORM_RETURN_IF_ERROR(CheckOptionsFit(operation, call.options, call.operands, by_module));
  if (!by_module || call.operands.d == module->d) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_SHAPE, "x: rows of %zu, but the module is for %zu", call.operands.d,
              module->d);
}

rmsnorm_status FindPlace(const rmsnorm_module* module, const rmsnorm_context* given, Place& place) {
  if (module != nullptr && given == nullptr) {
    place = {module->context, module->kernels};
    return RMSNORM_OK;
  }
  RMSNORM_RETURN_IF_ERROR(ReadContext(given, place.context));
  return FindKernels(place.context.target, place.kernels);
}

void AddWeight(const Call& call, WeightScratch& scratch) {
  if (call.operands.Has(kWeight)) {
    AddColumns(call.operands[kWeight], scratch);
  } else if (call.own_weight == nullptr) {
    scratch.Add(call.operands.d, sizeof(float));
  }
}

rmsnorm_view PrepareWeight(const Call& call, const KernelTable& kernels, WeightScratch& scratch) {
  const size_t d = call.operands.d;
  if (call.operands.Has(kWeight)) {
    return PrepareColumns(kernels, call.operands[kWeight], call.options.weight_offset, scratch);
  }
  if (call.own_weight != nullptr) return rmsnorm_vector(call.own_weight, RMSNORM_F32, d);
  float* const ones = scratch.Take<float>(d);
  std::fill_n(ones, d, 1.0f);
  return rmsnorm_vector(ones, RMSNORM_F32, d);
}

rmsnorm_status NoMemoryForWeight(size_t d) {
  return Fail(RMSNORM_ERROR_MEMORY, "weight: no memory for rows of %zu in f32", d);
}

size_t RowBytes(const Operands& operands) {
  size_t bytes_of_element = 0;
  ForEachOperand(operands.given, [&](Operand operand) {
    if (kOperandRules[operand].shape != Shape::kRows) return;
    bytes_of_element += ElementSize(operands[operand].dtype);
  });
  return operands.rows * operands.d * bytes_of_element;
}

}  // namespace rmsnorm::internal
