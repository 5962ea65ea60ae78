// SPDX-License-Identifier: Apache-2.0
// The entry points of modules, apart from calls by pointers.
#include <charconv>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "calls.h"
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
    text += IsNumber(option) ? Text(ValueIn<float>(options, option))
                             : rule.words[ValueIn<int32_t>(options, option)];
  }
  if (context.threads != 0) text += ", threads=" + std::to_string(context.threads);
  if (context.parallel_for != nullptr) text += ", parallel_for";
  if (context.target != nullptr) text += std::string(", target=") + context.target;
  return text + ")";
}

void PrepareOwnWeight(rmsnorm_module& module) {
  module.kernels->prepare(RMSNORM_F32, module.weight.get(), module.d, module.options.weight_offset,
                          module.prepared.get());
}

rmsnorm_status NullModule() { return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null"); }

}  // namespace

rmsnorm_status rmsnorm_module_create(rmsnorm_module** module, size_t d, rmsnorm_dtype dtype,
                                     const rmsnorm_options* options,
                                     const rmsnorm_context* context) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  *module = nullptr;
  rmsnorm_options own_options;
  Place place;
  RMSNORM_RETURN_IF_ERROR(ReadOptions(options, own_options));
  if (d == 0) return Fail(RMSNORM_ERROR_SHAPE, "d: 0; it must be at least 1");
  RMSNORM_RETURN_IF_ERROR(CheckDtype("dtype", 0, dtype));
  RMSNORM_RETURN_IF_ERROR(FindPlace(nullptr, context, place));
  try {
    std::unique_ptr<rmsnorm_module> made(new rmsnorm_module);
    made->weight = MakeFloats(d);
    made->prepared = MakeFloats(d);
    made->prepared_view = rmsnorm_vector(made->prepared.get(), RMSNORM_F32, d);
    made->d = d;
    made->dtype = dtype;
    made->options = own_options;
    made->changed_options = ChangedOptions(own_options);
    made->context = place.context;
    made->kernels = place.kernels;
    for (int i = 0; i < 3; ++i) {
      MakeNorm(*place.kernels, own_options, d, RMSNORM_F32 + i, made->norm[i]);
    }
    for (const Operation operation : {Operation::kForward, Operation::kBackward}) {
      made->most_direct_rows[static_cast<int>(operation)] = MostDirectRows(operation, *made);
    }
    made->description = Describe(d, dtype, own_options, place.context);
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
  const KernelTable& kernels = *module->kernels;
  const size_t d = module->d;
  RMSNORM_RETURN_IF_ERROR(CheckVector(kWeight, weight, d));
  // To f32, to the module's type and back; an offset of -0 changes nothing.
  float* const own = module->weight.get();
  float* const rounded = module->prepared.get();
  kernels.prepare(weight->dtype, weight->data, d, -0.0f, own);
  kernels.store_sums(own, 0, 1, d, false, module->dtype, rounded);
  kernels.prepare(module->dtype, rounded, d, -0.0f, own);
  PrepareOwnWeight(*module);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_get_weight(const rmsnorm_module* module,
                                         const rmsnorm_view* weight) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  RMSNORM_RETURN_IF_ERROR(CheckVector(kWeight, weight, module->d));
  module->kernels->store_sums(module->weight.get(), 0, 1, module->d, false, weight->dtype,
                              DataOf(*weight));
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_reset_weight(rmsnorm_module* module) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  for (size_t j = 0; j < module->d; ++j) module->weight[j] = 1.0f;
  PrepareOwnWeight(*module);
  return RMSNORM_OK;
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
