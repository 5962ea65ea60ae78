// SPDX-License-Identifier: Apache-2.0
// What the commands that work on files share of their command lines.
#ifndef RMSNORM_TOOLS_NORM_OPTIONS_H_
#define RMSNORM_TOOLS_NORM_OPTIONS_H_

#include <map>
#include <optional>
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
template <class Value>
CLI::Option* AddChoice(CLI::App& command, const std::string& name,
                       const std::map<std::string, Value>& choices, Value& value,
                       const std::string& help) {
  return command
      .add_option_function<std::string>(
          name, [&value, choices](const std::string& text) { value = choices.at(text); }, help)
      ->check(CLI::IsMember(choices));
}

// An option that names an element type.
CLI::Option* AddDtype(CLI::App& command, const std::string& name, std::optional<Dtype>& value,
                      const std::string& help);

// The options that norm and gradient have in common. `weight` is the option that names the weight.
void AddNormOptions(CLI::App& command, CLI::Option* weight, Options& options, Context& context);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_NORM_OPTIONS_H_
