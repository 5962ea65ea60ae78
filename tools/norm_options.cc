// SPDX-License-Identifier: Apache-2.0
#include "norm_options.h"

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "user_error.h"

namespace rmsnorm::tools {
namespace {

// Straight to f32: a detour over double would round twice.
float ParseFloat(const std::string& option, const std::string& text) {
  char* end;
  errno = 0;
  const float value = std::strtof(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(value)) {
    throw UserError(option + ": '" + text + "' is not a finite 32-bit number");
  }
  if (value == 0 && errno == ERANGE) {
    throw UserError(option + ": " + text + " is too small for a 32-bit number");
  }
  return value;
}

}  // namespace

const char kLocationFooter[] =
    "In FILE[:TENSOR] the longest FILE that exists is taken. The tensor's name may be left out "
    "where the file holds one tensor; .npy files have no names.";

CLI::Option* AddLocation(CLI::App& command, const std::string& name, std::string& value,
                         const std::string& help) {
  return command.add_option(name, value, help)->type_name("FILE[:TENSOR]");
}

CLI::Option* AddDtype(CLI::App& command, const std::string& name, std::optional<Dtype>& value,
                      const std::string& help) {
  return AddChoice(command, name, {{"f32", Dtype::f32}, {"f16", Dtype::f16}, {"bf16", Dtype::bf16}},
                   value, help);
}

void AddNormOptions(CLI::App& command, CLI::Option* weight, Options& options, Context& context) {
  command
      .add_option_function<std::string>(
          "--eps",
          [&options](const std::string& text) {
            options.eps = ParseFloat("--eps", text);
            if (options.eps < 0) throw UserError("--eps: " + text + " is negative");
          },
          "Added to the mean square or to its root, or the least the root may be")
      ->type_name("NUMBER")
      ->default_str("1e-5");
  AddChoice(command, "--eps-placement",
            {{"inside", EpsPlacement::inside},
             {"outside", EpsPlacement::outside},
             {"floor", EpsPlacement::floor}},
            options.eps_placement,
            "Whether eps is added inside the root (default) or outside it, or is the root's floor "
            "(L2 norms, with a divisor of 1)");
  command
      .add_option_function<std::string>(
          "--weight-offset",
          [&options](const std::string& text) {
            options.weight_offset = ParseFloat("--weight-offset", text);
          },
          "Added to the weight: 1 for Gemma")
      ->type_name("NUMBER")
      ->default_str("0")
      ->needs(weight);
  command
      .add_option_function<std::string>(
          "--divisor",
          [&options](const std::string& text) {
            options.divisor = ParseFloat("--divisor", text);
            if (options.divisor <= 0) throw UserError("--divisor: " + text + " is not positive");
          },
          "What the sum of squares is divided by; default: the row's length")
      ->type_name("NUMBER");
  command.add_option("--threads", context.threads, "At most so many threads; 0: as OpenMP chooses")
      ->check(CLI::Range(std::numeric_limits<std::int32_t>::max()))
      ->capture_default_str();
}

}  // namespace rmsnorm::tools
