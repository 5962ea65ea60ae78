// SPDX-License-Identifier: Apache-2.0
#include "options_text.h"

namespace rmsnorm::identify {

using internal::kOptionRules;
using internal::Option;

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
    fields.push_back(std::string(kOptionRules[option].name) + "=" + OptionValue(options, option));
  }
  return Joined(fields, ",");
}

std::string Joined(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

}  // namespace rmsnorm::identify
