// SPDX-License-Identifier: Apache-2.0
// `rmsnorm complete WORD...`: what the scripts in completions/ call. The help does not list it.
#ifndef RMSNORM_TOOLS_COMPLETE_H_
#define RMSNORM_TOOLS_COMPLETE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace rmsnorm::tools {

// Prints what the last of some words of a command line may become, by the options of `app`. Each
// line is a word and, after a tab, its description. A line ":files" stands for names of files.
void Complete(const CLI::App& app, std::vector<std::string> words);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_COMPLETE_H_
