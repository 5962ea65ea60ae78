// SPDX-License-Identifier: Apache-2.0
// The command `rmsnorm`.
#include <rmsnorm/rmsnorm.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>

#include "cases/user_error.h"
#include "command.h"
#include "words.h"

namespace rmsnorm::tools {
namespace {

int Fail(const std::string& problem) {
  std::cerr << "rmsnorm: " + OneLine(problem) + "\n";
  return kUserError;
}

// Allocates nothing.
int FailWithoutMemory() {
  std::fputs("rmsnorm: out of memory\n", stderr);
  return kUserError;
}

// An unknown word comes first, since other errors follow from it: a misspelt --output leaves none.
std::string ProblemOf(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> commands = app.get_subcommands();
  const CLI::App& command = commands.empty() ? app : *commands.front();
  for (const CLI::App* const place : {&app, &command}) {
    const std::vector<std::string> unknown = place->remaining();
    if (!unknown.empty() && !place->get_allow_extras()) return UnknownWord(*place, unknown.front());
  }
  if (commands.empty()) return "a command is missing; see rmsnorm --help";
  return error.what();
}

int Run(int argc, char** argv) {
  CLI::App app("RMSNorm for CPUs: the same bits on every CPU, for any number of threads",
               "rmsnorm");
  app.set_version_flag("--version", std::string("rmsnorm ") + rmsnorm_version());
  app.require_subcommand(1);
  int status = kSuccess;
  AddInfo(app, status);
  AddCheck(app, status);
  AddIdentify(app, status);
#ifdef RMSNORM_HAVE_BENCH
  AddBench(app, status);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    status = app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    return Fail(ProblemOf(app, error));
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
    } catch (const rmsnorm::cases::UserError& error) {
      return Fail(error.message());
    } catch (const std::exception& error) {
      return Fail(error.what());
    }
  } catch (const std::bad_alloc&) {  // also while a message is made
    return FailWithoutMemory();
  }
}
