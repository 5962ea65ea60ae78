// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include "status.h"

namespace rmsnorm::internal {
namespace {

// "after_weight (0), before_weight (1) or inverse (2)"
ShortText WordsOf(const OptionRule& rule) {
  ShortText text;
  for (int i = 0; rule.words[i] != nullptr; ++i) {
    const bool is_last = rule.words[i + 1] == nullptr;
    text.Add("%s%s (%d)", i == 0 ? "" : is_last ? " or " : ", ", rule.words[i], i);
  }
  return text;
}

// The value of an option, a word where it is one.
ShortText ValueText(const rmsnorm_options& options, Option option) {
  const auto integer = ValueIn<int32_t>(options, option);
  if (IsInteger(option)) return ShortText().Add("%d", integer);
  if (!IsNumber(option)) return ShortText().Add("%s", kOptionRules[option].words[integer]);
  return ShortText().Add("%g", static_cast<double>(ValueIn<float>(options, option)));
}

}  // namespace

rmsnorm_status CheckOptions(const rmsnorm_options& options, OptionSet changed) {
  for (OptionSet rest = changed | SetOf(kEps); rest != 0; rest &= rest - 1) {
    const Option option = FirstOption(rest);
    const OptionRule& rule = kOptionRules[option];
    const auto value = ValueIn<int32_t>(options, option);
    if (IsNumber(option) || IsInteger(option)) {
      const bool is_valid = IsNumber(option) ? rule.numbers->accept(ValueIn<float>(options, option))
                                             : rule.integers->accept(value);
      if (is_valid) continue;
      return Fail(RMSNORM_ERROR_OPTION, "options: %s is %s; it must be %s", rule.name,
                  ValueText(options, option).c_str(),
                  IsNumber(option) ? rule.numbers->range : rule.integers->range);
    }
    int32_t word = 0;
    while (word != value && rule.words[word] != nullptr) ++word;
    if (rule.words[word] != nullptr) continue;
    return Fail(RMSNORM_ERROR_OPTION, "options: %s is unknown (%d); it must be %s", rule.name,
                value, WordsOf(rule).c_str());
  }
  return RMSNORM_OK;
}

rmsnorm_status CheckOptionsFit(Operation operation, const rmsnorm_options& options,
                               OptionSet changed, const Views& operands, OperandSet own) {
  const OperandSet given = operands.given | own;
  for (; changed != 0; changed &= changed - 1) {
    const Option option = FirstOption(changed);
    const OptionRule& rule = kOptionRules[option];
    const bool is_needed = rule.needed_by == 0 || (rule.needed_by & given) != 0;
    const OperandSet needs = NeedsIn(operation, rule);
    if (needs != 0 && is_needed && (needs & given) == 0) {
      return Fail(RMSNORM_ERROR_OPTION, "options: %s is %s, but there is no %s", rule.name,
                  ValueText(options, option).c_str(), kOperandRules[FirstOf(needs)].name);
    }
    if (operation == Operation::kBackward && rule.gradient == Gradient::kRefused) {
      return Fail(RMSNORM_ERROR_OPTION, "options: %s is %s; rmsnorm_backward() takes the default",
                  rule.name, ValueText(options, option).c_str());
    }
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
