// SPDX-License-Identifier: Apache-2.0
// An option's value as text: in cases, and in what is said about a norm.
#ifndef RMSNORM_TOOLS_OPTION_VALUE_H_
#define RMSNORM_TOOLS_OPTION_VALUE_H_

#include <charconv>
#include <string>

#include "../lib/options.h"

namespace rmsnorm::tools {

// The shortest decimal that gives an f32 number back, in every locale.
inline std::string ShortestDecimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general);
  return {text, end.ptr};
}

// The word or the number of an option.
inline std::string OptionValue(const rmsnorm_options& options, internal::Option option) {
  if (internal::IsNumber(option)) {
    return ShortestDecimal(internal::ValueIn<float>(options, option));
  }
  const auto word = internal::ValueIn<int32_t>(options, option);
  return internal::kOptionRules[option].words[word];
}

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_OPTION_VALUE_H_
