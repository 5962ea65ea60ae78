// SPDX-License-Identifier: Apache-2.0
// An option's value as text: in cases, and in what is said about a norm.
#ifndef RMSNORM_CASES_OPTION_VALUE_H_
#define RMSNORM_CASES_OPTION_VALUE_H_

#include <string>

#include "../lib/options.h"
#include "number_text.h"

namespace rmsnorm::cases {

// The word, the number or the integer of an option.
inline std::string OptionValue(const rmsnorm_options& options, internal::Option option) {
  if (internal::IsNumber(option)) {
    return ShortestDecimal(internal::ValueIn<float>(options, option));
  }
  const auto integer = internal::ValueIn<int32_t>(options, option);
  if (internal::IsInteger(option)) return std::to_string(integer);
  return internal::kOptionRules[option].words[integer];
}

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_OPTION_VALUE_H_
