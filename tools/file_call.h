// SPDX-License-Identifier: Apache-2.0
// A call of the library whose operands are tensors in files.
#ifndef RMSNORM_TOOLS_FILE_CALL_H_
#define RMSNORM_TOOLS_FILE_CALL_H_

#include <cstddef>
#include <map>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "../lib/options.h"

namespace rmsnorm::tools {

using internal::Operand;
using internal::Role;

// The flag for an option of the library: "--weight-offset".
std::string FlagOf(internal::Option option);

// A message of the library for users of a command: flags in place of the names of operands, which
// `flags` has, and of options.
std::string InFlags(std::map<std::string, std::string> flags, const std::string& message);

// An operand in a file. The library's table of operands gives its role, shape and type, and the
// operand that it may replace.
struct FileOperand {
  Operand operand;
  const char* flag;        // without its dashes, an output's default tensor name
  const char* help;        // null without a flag: the tensor goes into another tensor's file
  Operand like = operand;  // an output has this operand's shape and type
  const char* dtype_flag = nullptr;  // a flag that sets an output's type
  const char* needs = nullptr;       // a flag that this one requires
};

// A function of the library as a command on files.
struct FileCommand {
  const char* name;
  const char* help;
  rmsnorm_status (*call)(const rmsnorm_operands*, const rmsnorm_options*, const rmsnorm_context*);
  Role internal::OperandRule::*role;  // the role of an operand in this function
  std::vector<FileOperand> operands;

  // The file of an operand that the function does not take gives an output its shape and type.
  bool IsOutput(Operand operand) const {
    return internal::kOperandRules[operand].*role == Role::kOutput;
  }
};

// The arguments on the command line.
struct FileCall {
  std::optional<std::string> location[internal::kOperands];  // FILE[:TENSOR]
  std::optional<Dtype> dtype[internal::kOperands];  // the type of an output, if not the default
  rmsnorm_options options = rmsnorm_default_options();
  rmsnorm_context context = rmsnorm_default_context();
};

// Throws UserError for mistakes of the user, in the words of the command line. All outputs are
// complete on disk before the first one replaces a file.
void Run(const FileCommand& command, const FileCall& call);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_FILE_CALL_H_
