// SPDX-License-Identifier: Apache-2.0
// What the commands that work on files share of their command lines.
#ifndef RMSNORM_TOOLS_NORM_OPTIONS_H_
#define RMSNORM_TOOLS_NORM_OPTIONS_H_

#include <cstdint>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "command.h"

namespace rmsnorm::tools {

// An option that names a tensor in a file, FILE[:TENSOR].
CLI::Option* AddLocation(CLI::App& command, const std::string& name, std::string& value,
                         const std::string& help);

// What the help says of such options at its end.
extern const char kLocationFooter[];

// An option whose values are words.
CLI::Option* AddChoice(CLI::App& command, const std::string& name,
                       const std::map<std::string, std::int32_t>& choices, std::int32_t& value,
                       const std::string& help);

// An option that names an element type; `value` becomes its Dtype.
CLI::Option* AddDtype(CLI::App& command, const std::string& name, std::int32_t& value,
                      const std::string& help);

// The options that norm and gradient have in common. `weight` is the option that names the weight.
void AddNormOptions(CLI::App& command, CLI::Option* weight, Options& options);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_NORM_OPTIONS_H_
