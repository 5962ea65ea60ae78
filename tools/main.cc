// SPDX-License-Identifier: Apache-2.0
// The command `rmsnorm`.
#include <rmsnorm/rmsnorm.h>

#include <exception>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "command.h"

namespace rmsnorm::tools {
namespace {

// `text` on one line of valid UTF-8: names of files and tensors may hold anything. A JSON string
// without its quotes does that.
std::string OneLine(const std::string& text) {
  using nlohmann::json;
  const std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

int Fail(const std::string& problem) {
  std::cerr << "rmsnorm: " + OneLine(problem) + "\n";
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
  using rmsnorm::tools::Fail;
  try {
    return rmsnorm::tools::Run(argc, argv);
  } catch (const std::bad_alloc&) {
    return Fail("out of memory");
  } catch (const std::length_error&) {  // larger than a vector can be
    return Fail("out of memory");
  } catch (const std::exception& error) {
    return Fail(error.what());
  }
}
