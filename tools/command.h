// SPDX-License-Identifier: Apache-2.0
// Shared by all commands. Each command adds itself and its options to the application; the command
// that the user named sets the exit status of main().
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
void AddIdentify(CLI::App& app, int& status);  // identify and probe
void AddBench(CLI::App& app, int& status);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_COMMAND_H_
