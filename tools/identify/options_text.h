// SPDX-License-Identifier: Apache-2.0
// Options in the notation of cases.
#ifndef RMSNORM_TOOLS_IDENTIFY_OPTIONS_TEXT_H_
#define RMSNORM_TOOLS_IDENTIFY_OPTIONS_TEXT_H_

#include <string>
#include <vector>

#include "../../lib/options.h"

namespace rmsnorm::identify {

// "f32", "f16" or "bf16".
const char* TypeName(rmsnorm_dtype dtype);

// The shortest decimal that gives an f32 number.
std::string Number(float value);

// The word or the number of an option.
std::string ValueText(const rmsnorm_options& options, internal::Option option);

// eps, and the options that differ from their defaults.
std::vector<internal::Option> GivenOptions(const rmsnorm_options& options);

// Such as "eps=1e-06,rounding=before_weight".
std::string OptionsText(const rmsnorm_options& options);

std::string Joined(const std::vector<std::string>& parts, const std::string& separator);

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_OPTIONS_TEXT_H_
