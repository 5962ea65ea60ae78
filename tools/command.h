// SPDX-License-Identifier: Apache-2.0
// What the commands share. Each command adds itself to the application with its options and, when
// it is the one that was asked for, sets the status that main() exits with.
#ifndef RMSNORM_TOOLS_COMMAND_H_
#define RMSNORM_TOOLS_COMMAND_H_

#include <CLI/CLI.hpp>

namespace rmsnorm::tools {

// Exit statuses.
constexpr int kSuccess = 0;
constexpr int kCheckFailed = 1;
constexpr int kUserError = 2;

void AddInfo(CLI::App& app, int& status);
void AddCheck(CLI::App& app, int& status);
void AddFileCommands(CLI::App& app, int& status);  // apply and backward
void AddBench(CLI::App& app, int& status);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_COMMAND_H_
