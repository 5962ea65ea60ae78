// SPDX-License-Identifier: Apache-2.0
// The entry points of modules, apart from calls by pointers.
#include <algorithm>
#include <charconv>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "calls.h"
#include "checks.h"
#include "float_environment.h"
#include "module.h"
#include "options.h"
#include "plan.h"
#include "status.h"

using namespace rmsnorm::internal;

namespace {

// The text that "%g" prints, but with a point in every locale.
std::string Text(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, 6);
  return std::string(text, end.ptr);
}

std::string Describe(size_t d, rmsnorm_dtype dtype, const rmsnorm_options& options,
                     const rmsnorm_context& context) {
  std::string text = "RmsNorm(" + std::to_string(d) + ", eps=" + Text(options.eps) + ", " +
                     rmsnorm_dtype_name(dtype);
  for (int i = kEps + 1; i < kOptions; ++i) {
    const Option option = static_cast<Option>(i);
    if (IsDefault(options, option)) continue;
    const OptionRule& rule = kOptionRules[option];
    text += std::string(", ") + rule.name + "=";
    const auto integer = ValueIn<int32_t>(options, option);
    text += IsNumber(option)    ? Text(ValueIn<float>(options, option))
            : IsInteger(option) ? std::to_string(integer)
                                : rule.words[integer];
  }
  if (context.threads != 0) text += ", threads=" + std::to_string(context.threads);
  if (context.parallel_for != nullptr) text += ", parallel_for";
  if (context.target != nullptr) text += std::string(", target=") + context.target;
  return text + ")";
}

// Makes the module hold a weight or a bias, whose floats the caller then writes. Throws
// std::bad_alloc, and then changes nothing.
void Hold(rmsnorm_module& module, Operand operand) {
  const int column = operand - kWeight;
  if ((module.held & SetOf(operand)) != 0) return;
  if (module.floats[column] == nullptr) module.floats[column] = MakeFloats(module.d);
  module.columns[column] = rmsnorm_vector(module.floats[column].get(), RMSNORM_F32, module.d);
  module.held |= SetOf(operand);
}

// Updates the limits that depend on what the module holds.
void SetMostDirectRows(rmsnorm_module& module) {
  for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
    module.most_direct_rows[static_cast<int>(operation)] = MostDirectRows(operation, module);
  }
}

// Writes offset + value for each value of a vector, rounded to the module's type first.
void FillColumnRounded(const rmsnorm_module& module, const rmsnorm_view& from, float offset,
                       float* column) {
  constexpr size_t kPiece = 256;
  const KernelTable& kernels = *module.kernels;
  float rounded[kPiece];  // of the module's type, which may be narrower
  for (size_t j = 0; j < module.d; j += kPiece) {
    const size_t n = std::min(kPiece, module.d - j);
    const char* const data = static_cast<const char*>(from.data) + j * ElementSize(from.dtype);
    kernels.add_offset(from.dtype, data, n, -0.0f, column + j);
    kernels.narrow(module.dtype, column + j, n, rounded);
    kernels.add_offset(module.dtype, rounded, n, offset, column + j);
  }
}

void FillWeight(rmsnorm_module& module) {
  module.kernels->add_offset(RMSNORM_F32, module.weight.get(), module.d,
                             OffsetOf(module.options, kWeight), module.floats[0].get());
}

rmsnorm_status NullModule() { return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null"); }

// Sets a bias or a post-norm weight, or removes it where the view is null.
rmsnorm_status SetColumn(rmsnorm_module* module, Operand operand, const rmsnorm_view* view) {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  Floats& floats = module->floats[operand - kWeight];
  if (view == nullptr) {
    module->held &= ~SetOf(operand);  // its memory stays, since prepared calls read it
  } else {
    RMSNORM_RETURN_IF_ERROR(CheckVector(operand, view, module->d));
    try {
      Hold(*module, operand);
    } catch (const std::bad_alloc&) {
      return Fail(RMSNORM_ERROR_MEMORY, "%s: no memory for %zu elements",
                  kOperandRules[operand].name, module->d);
    }
    FillColumnRounded(*module, *view, OffsetOf(module->options, operand), floats.get());
  }
  SetMostDirectRows(*module);
  return RMSNORM_OK;
}

}  // namespace

rmsnorm_status rmsnorm_module_create(rmsnorm_module** module, size_t d, rmsnorm_dtype dtype,
                                     const rmsnorm_options* options,
                                     const rmsnorm_context* context) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  *module = nullptr;
  rmsnorm_options own_options;
  OptionSet changed;
  CallContext call_context;
  RMSNORM_RETURN_IF_ERROR(ReadOptions(options, own_options, changed));
  if (d == 0) return Fail(RMSNORM_ERROR_SHAPE, "d: 0; it must be at least 1");
  RMSNORM_RETURN_IF_ERROR(CheckGroup(own_options.group, d));
  RMSNORM_RETURN_IF_ERROR(CheckDtype("dtype", 0, dtype));
  RMSNORM_RETURN_IF_ERROR(FindContext(nullptr, context, call_context));
  try {
    std::unique_ptr<rmsnorm_module> made(new rmsnorm_module);
    made->weight = MakeFloats(d);
    made->d = d;
    made->held = 0;
    Hold(*made, kWeight);
    made->dtype = dtype;
    made->options = own_options;
    made->changed_options = changed;
    made->context = *call_context.context;
    made->kernels = call_context.kernels;
    made->has_usual_target = call_context.context->target == nullptr;
    for (int i = 0; i < 3; ++i) {
      MakeNorm(*call_context.kernels, own_options, changed, d, RMSNORM_F32 + i, made->norm[i]);
    }
    SetMostDirectRows(*made);
    made->description = Describe(d, dtype, own_options, *call_context.context);
    *module = made.release();
  } catch (const std::exception&) {
    return Fail(RMSNORM_ERROR_MEMORY, "d: no memory for a weight of %zu elements", d);
  }
  (*module)->context.target = nullptr;  // the caller's text, which need not stay
  return rmsnorm_module_reset_weight(*module);
}

void rmsnorm_module_destroy(rmsnorm_module* module) noexcept { delete module; }

rmsnorm_status rmsnorm_module_set_weight(rmsnorm_module* module,
                                         const rmsnorm_view* weight) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  RMSNORM_RETURN_IF_ERROR(CheckVector(kWeight, weight, module->d));
  FillColumnRounded(*module, *weight, -0.0f, module->weight.get());
  FillWeight(*module);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_get_weight(const rmsnorm_module* module,
                                         const rmsnorm_view* weight) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  RMSNORM_RETURN_IF_ERROR(CheckVector(kWeight, weight, module->d));
  module->kernels->narrow(weight->dtype, module->weight.get(), module->d, DataOf(*weight));
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_reset_weight(rmsnorm_module* module) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  for (size_t j = 0; j < module->d; ++j) module->weight[j] = 1.0f;
  FillWeight(*module);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_set_bias(rmsnorm_module* module, const rmsnorm_view* bias) noexcept {
  return SetColumn(module, kBias, bias);
}

rmsnorm_status rmsnorm_module_set_post_norm_weight(rmsnorm_module* module,
                                                   const rmsnorm_view* post_norm_weight) noexcept {
  return SetColumn(module, kPostNormWeight, post_norm_weight);
}

size_t rmsnorm_module_d(const rmsnorm_module* module) noexcept {
  return module != nullptr ? module->d : 0;
}

rmsnorm_dtype rmsnorm_module_dtype(const rmsnorm_module* module) noexcept {
  return module != nullptr ? module->dtype : 0;
}

const rmsnorm_options* rmsnorm_module_options(const rmsnorm_module* module) noexcept {
  return module != nullptr ? &module->options : nullptr;
}

const char* rmsnorm_module_describe(const rmsnorm_module* module) noexcept {
  return module != nullptr ? module->description.c_str() : "";
}

rmsnorm_status rmsnorm_module_forward(const rmsnorm_module* module,
                                      const rmsnorm_operands* operands,
                                      const rmsnorm_context* context) noexcept {
  if (module == nullptr) return NullModule();
  return RunCall(Operation::kForward, module, operands, nullptr, context);
}

rmsnorm_status rmsnorm_module_backward(const rmsnorm_module* module,
                                       const rmsnorm_operands* operands,
                                       const rmsnorm_context* context) noexcept {
  if (module == nullptr) return NullModule();
  return RunCall(Operation::kBackward, module, operands, nullptr, context);
}
