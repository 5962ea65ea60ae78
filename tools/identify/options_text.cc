// SPDX-License-Identifier: Apache-2.0
#include "options_text.h"

#include <cstdio>
#include <cstdlib>

namespace rmsnorm::identify {

using internal::kOptionRules;
using internal::Option;

const char* TypeName(rmsnorm_dtype dtype) {
  return dtype == RMSNORM_F16 ? "f16" : dtype == RMSNORM_BF16 ? "bf16" : "f32";
}

std::string Number(float value) {
  char text[32];
  for (int digits = 1; digits <= 9; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, static_cast<double>(value));
    if (std::strtof(text, nullptr) == value) break;
  }
  return text;
}

std::string ValueText(const rmsnorm_options& options, Option option) {
  return internal::IsNumber(option)
             ? Number(internal::ValueIn<float>(options, option))
             : kOptionRules[option].words[internal::ValueIn<int32_t>(options, option)];
}

std::vector<Option> GivenOptions(const rmsnorm_options& options) {
  std::vector<Option> given;
  for (int i = 0; i < internal::kOptions; ++i) {
    const auto option = static_cast<Option>(i);
    if (option == internal::kEps || !internal::IsDefault(options, option)) given.push_back(option);
  }
  return given;
}

std::string OptionsText(const rmsnorm_options& options) {
  std::vector<std::string> fields;
  for (const Option option : GivenOptions(options)) {
    fields.push_back(std::string(kOptionRules[option].name) + "=" + ValueText(options, option));
  }
  return Joined(fields, ",");
}

std::string Joined(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

}  // namespace rmsnorm::identify
