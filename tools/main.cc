// SPDX-License-Identifier: Apache-2.0
// The command `rmsnorm`.
#include <rmsnorm/rmsnorm.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "command.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

// The middle of a longer message is left out: names in files may be of any length.
constexpr size_t kMaxMessage = 1000;

// Returns `text` on one line of ASCII: names of files and tensors may hold anything, such as
// characters that hide or turn around what follows. A JSON string without its quotes does that.
std::string OneLine(std::string text) {
  using nlohmann::json;
  if (text.size() > kMaxMessage) {
    text.replace(kMaxMessage / 2, text.size() - kMaxMessage, " ... ");
  }
  const std::string quoted = json(text).dump(-1, ' ', true, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

int Fail(const std::string& problem) {
  std::cerr << "rmsnorm: " + OneLine(problem) + "\n";
  return kUserError;
}

// Allocates nothing.
int FailWithoutMemory() {
  std::fputs("rmsnorm: out of memory\n", stderr);
  return kUserError;
}

int Run(int argc, char** argv) {
  CLI::App app("RMSNorm for CPUs: the same bits on every CPU, for any number of threads",
               "rmsnorm");
  app.set_version_flag("--version", std::string("rmsnorm ") + rmsnorm_version());
  app.require_subcommand(1);
  int status = kSuccess;
  AddInfo(app, status);
  AddCheck(app, status);
  AddFileCommands(app, status);
#ifdef RMSNORM_HAVE_BENCH
  AddBench(app, status);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    status = app.exit(help_or_version);
  } catch (const CLI::RequiredError& error) {
    // After an unknown command, "a command is missing" would mislead.
    const std::vector<std::string> unknown = app.remaining();
    if (app.get_subcommands().empty() && !unknown.empty()) {
      return Fail("unknown command or option '" + unknown.front() + "'; see rmsnorm --help");
    }
    return Fail(error.what());
  }
  std::cout.flush();
  if (!std::cout) return Fail("cannot write to standard output");
  return status;
}

}  // namespace
}  // namespace rmsnorm::tools

int main(int argc, char** argv) {
  using namespace rmsnorm::tools;
  try {
    try {
      return Run(argc, argv);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::length_error&) {  // larger than a vector can be
      return FailWithoutMemory();
    } catch (const UserError& error) {
      return Fail(error.message());
    } catch (const std::exception& error) {
      return Fail(error.what());
    }
  } catch (const std::bad_alloc&) {  // also while a message is made
    return FailWithoutMemory();
  }
}
