// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <cstdio>

#include "status.h"

namespace rmsnorm::internal {
namespace {

constexpr Option At(int i) { return static_cast<Option>(i); }

// A short text without memory of the heap.
struct Text {
  char data[128];
};

// "after_weight (0), before_weight (1) or inverse (2)"
Text WordsOf(const OptionRule& rule) {
  Text text = {""};
  size_t at = 0;
  for (int i = 0; rule.words[i] != nullptr; ++i) {
    const bool is_last = rule.words[i + 1] == nullptr;
    const char* const separator = i == 0 ? "" : is_last ? " or " : ", ";
    at += static_cast<size_t>(std::snprintf(text.data + at, sizeof text.data - at, "%s%s (%d)",
                                            separator, rule.words[i], i));
  }
  return text;
}

// The value of an option, a word where it is one.
Text ValueText(const rmsnorm_options& options, Option option) {
  Text text;
  if (IsNumber(option)) {
    std::snprintf(text.data, sizeof text.data, "%g",
                  static_cast<double>(ValueIn<float>(options, option)));
  } else {
    std::snprintf(text.data, sizeof text.data, "%s",
                  kOptionRules[option].words[ValueIn<int32_t>(options, option)]);
  }
  return text;
}

rmsnorm_status CheckOption(const rmsnorm_options& options, Option option) {
  const OptionRule& rule = kOptionRules[option];
  if (IsNumber(option)) {
    const float value = ValueIn<float>(options, option);
    if (rule.accepts(value)) return RMSNORM_OK;
    return Fail(RMSNORM_ERROR_OPTION, "options: %s is %g; it must be %s", rule.name,
                static_cast<double>(value), rule.range);
  }
  const int32_t value = ValueIn<int32_t>(options, option);
  for (int32_t i = 0; rule.words[i] != nullptr; ++i) {
    if (value == i) return RMSNORM_OK;
  }
  return Fail(RMSNORM_ERROR_OPTION, "options: %s is unknown (%d); it must be %s", rule.name, value,
              WordsOf(rule).data);
}

// What a message calls a missing operand.
const char* NameOfMissing(OperandSet needs) { return kOperandRules[__builtin_ctz(needs)].name; }

}  // namespace

rmsnorm_status CheckOptions(const rmsnorm_options& options) {
  for (int i = 0; i < kOptions; ++i) RMSNORM_RETURN_IF_ERROR(CheckOption(options, At(i)));
  return RMSNORM_OK;
}

rmsnorm_status CheckOptionsFit(Operation operation, const rmsnorm_options& options,
                               OptionSet changed, const Views& operands, bool own_weight) {
  const OperandSet given = operands.given | (own_weight ? SetOf(kWeight) : 0);
  for (; changed != 0; changed &= changed - 1) {
    const Option option = At(__builtin_ctz(changed));
    const OptionRule& rule = kOptionRules[option];
    const bool is_needed = rule.needed_by == 0 || (rule.needed_by & given) != 0;
    if (rule.needs != 0 && is_needed && (rule.needs & given) == 0) {
      return Fail(RMSNORM_ERROR_OPTION, "options: %s is %s, but there is no %s", rule.name,
                  ValueText(options, option).data, NameOfMissing(rule.needs));
    }
    if (operation == Operation::kBackward && rule.gradient == Gradient::kRefused) {
      return Fail(RMSNORM_ERROR_OPTION, "options: %s is %s; rmsnorm_backward() takes the default",
                  rule.name, ValueText(options, option).data);
    }
  }
  if (options.gate_placement == RMSNORM_GATE_AFTER) return RMSNORM_OK;
  if (operands.Has(kResidual)) {
    return Fail(RMSNORM_ERROR_OPERAND, "gate: before the norm it excludes a residual");
  }
  if (!IsDefault(options, kGateRounding)) {
    return Fail(RMSNORM_ERROR_OPTION,
                "options: gate_rounding is %s; it needs a gate after the norm",
                ValueText(options, kGateRounding).data);
  }
  return RMSNORM_OK;
}

}  // namespace rmsnorm::internal

rmsnorm_options rmsnorm_default_options() noexcept {
  rmsnorm_options options = {};
  options.size = sizeof options;
  options.eps = 1e-5f;
  return options;
}
