// SPDX-License-Identifier: Apache-2.0
// A call of the library whose operands are tensors in files.
#ifndef RMSNORM_TOOLS_FILE_CALL_H_
#define RMSNORM_TOOLS_FILE_CALL_H_

#include <cstddef>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "../lib/options.h"

namespace rmsnorm::tools {

using internal::Operand;
using internal::Role;

// An operand that lies in a file. Its role, shape and type, and what it may be in the place of,
// stand in the library's table of operands.
struct FileOperand {
  Operand operand;
  const char* flag;        // without the dashes it is the name of an output's tensor
  const char* help;        // null where no flag names a file: the tensor goes into another's file
  Operand like = operand;  // an output: what it takes its shape and type from
  const char* dtype_flag = nullptr;  // an output: names another type
  const char* needs = nullptr;       // a flag without which this one means nothing
};

// A function of the library as a command on files.
struct FileCommand {
  const char* name;
  const char* help;
  rmsnorm_status (*call)(const rmsnorm_operands*, const rmsnorm_options*, const rmsnorm_context*);
  Role internal::OperandRule::*role;  // what the function does with an operand
  std::vector<FileOperand> operands;

  // An operand that the function does not take gives the shape and the type of an output.
  bool IsOutput(Operand operand) const {
    return internal::kOperandRules[operand].*role == Role::kOutput;
  }
};

// What the command line asks for.
struct FileCall {
  std::optional<std::string> location[internal::kOperands];  // FILE[:TENSOR]
  std::optional<Dtype> dtype[internal::kOperands];  // of outputs that are not to have their own
  rmsnorm_options options = rmsnorm_default_options();
  rmsnorm_context context = rmsnorm_default_context();
  size_t groups = 1;  // of the last dimension of x; each is a row
};

// Throws UserError for what the user can mend, and Error for what the library refuses. All outputs
// are whole and on the disk before the first takes its place.
void Run(const FileCommand& command, const FileCall& call);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_FILE_CALL_H_
