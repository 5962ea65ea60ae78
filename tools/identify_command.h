// SPDX-License-Identifier: Apache-2.0
// The work of `rmsnorm identify` and `rmsnorm probe`, apart from their command lines.
#ifndef RMSNORM_TOOLS_IDENTIFY_COMMAND_H_
#define RMSNORM_TOOLS_IDENTIFY_COMMAND_H_

#include <cstdint>
#include <string>
#include <vector>

#include "../lib/operands.h"

namespace rmsnorm::tools {

struct IdentifyFlag {
  internal::Operand operand;
  const char* flag;
  const char* help;
  bool is_required = false;
};

constexpr IdentifyFlag kIdentifyFlags[] = {
    {internal::kX, "--input", "What the implementation was given: f32, f16 or bf16, of any shape",
     true},
    {internal::kWeight, "--weight", "Its weight, of any shape that a weight may have"},
    {internal::kBias, "--bias", "Its bias"},
    {internal::kPostNormWeight, "--post-norm-weight", "The weight of a norm of x before the sum"},
    {internal::kGate, "--gate", "Its gate, of the shape of x"},
    {internal::kResidual, "--residual", "The residual that it adds to x, of the shape of x"},
    {internal::kY, "--output", "What it gave back, of the shape of x", true},
    {internal::kResidualOut, "--residual-output", "Its sum of the residual and x"},
};

struct IdentifyOptions {
  std::string location[internal::kOperands];  // empty: none
  std::vector<float> eps;
};

// Returns the exit status.
int IdentifyFiles(const IdentifyOptions& options);

struct ProbeOptions {
  std::string output;
  int32_t d = 4096;
  std::string dtype = "f32";
};

void WriteProbe(const ProbeOptions& options);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_IDENTIFY_COMMAND_H_
