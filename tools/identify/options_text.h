// SPDX-License-Identifier: Apache-2.0
// Options in the notation of cases.
#ifndef RMSNORM_TOOLS_IDENTIFY_OPTIONS_TEXT_H_
#define RMSNORM_TOOLS_IDENTIFY_OPTIONS_TEXT_H_

#include <string>
#include <vector>

#include "../../cases/option_value.h"

namespace rmsnorm::identify {

using cases::OptionValue;
using cases::ShortestDecimal;

// eps, and the options that differ from their defaults.
std::vector<internal::Option> GivenOptions(const rmsnorm_options& options);

// Such as "eps=1e-06,rounding=before_weight".
std::string OptionsText(const rmsnorm_options& options);

std::string Joined(const std::vector<std::string>& parts, const std::string& separator);

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_OPTIONS_TEXT_H_
