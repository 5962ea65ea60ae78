// SPDX-License-Identifier: Apache-2.0
// The command `rmsnorm`.
#include <rmsnorm/rmsnorm.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <iostream>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cases/text.h"
#include "command.h"
#ifdef RMSNORM_HAVE_BENCH
#include "operations.h"
#endif

namespace rmsnorm::tools {
namespace {

// ------------------------------------------------------------------------------------- messages

// The message about a word that `command`, the application or one of its commands, does not know.
std::string UnknownWord(const CLI::App& command, const std::string& word) {
  const bool is_application = command.get_parent() == nullptr;
  const std::string problem = "unknown word '" + word + "'; ";
  if (is_application && (word == "identify" || word == "probe")) {
    return problem + "the Python package rmsnorm has it: python -m rmsnorm " + word;
  }
  return problem + "see " + (is_application ? "" : "rmsnorm ") + command.get_name() + " --help";
}

int Fail(const std::string& problem) {
  std::cerr << "rmsnorm: " + OneLine(problem) + "\n";
  return kUserError;
}

// An unknown word comes first, since other errors follow from it: a misspelt --case leaves none.
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

// -------------------------------------------------------------------------------------- options

// Checks that the value of an option names a target that this CPU runs, and replaces it by the
// target's exact name. With `may_be_all`, it accepts "all", too.
CLI::Validator Target(bool may_be_all) {
  const auto find = [may_be_all](std::string& name) -> std::string {
    if (may_be_all && name == "all") return "";
    const char* exact;
    if (rmsnorm_find_target(name.c_str(), &exact) == RMSNORM_OK) {
      name = exact;
      return "";
    }
    const std::string problem = rmsnorm_error_message();  // begins with "target: "
    return problem.substr(problem.find(": ") + 2);
  };
  return {find, ""};
}

// An empty value is a mistake, such as a variable that is not set, and not a missing option.
CLI::Validator NotEmpty() {
  const auto check = [](const std::string& value) { return value.empty() ? "it is empty" : ""; };
  return {check, ""};
}

// ------------------------------------------------------------------------------------- commands

void AddInfo(CLI::App& app, int& status) {
  CLI::App* const command =
      app.add_subcommand("info", "Show the version, the CPU, its targets and the threads");
  command->callback([&status] {
    PrintInfo();
    status = kSuccess;
  });
}

// Adds an option with a value; a vector has a value for each time that the option is given.
template <class Value>
CLI::Option* Add(CLI::App* command, const std::string& name, Value& value, const char* type,
                 const std::string& help) {
  return command->add_option(name, value, help)->type_name(type);
}
CLI::Option* Add(CLI::App* command, const std::string& name, std::vector<std::string>& values,
                 const char* type, const std::string& help) {
  CLI::Option* const option = command->add_option(name, values, help)->type_name(type);
  return option->expected(1)->take_all()->allow_extra_args(false);
}

void AddCheck(CLI::App& app, int& status) {
  const CLI::Range from_zero(0, std::numeric_limits<int32_t>::max());
  const CLI::Range from_one(1, std::numeric_limits<int32_t>::max());
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* const command = app.add_subcommand(
      "check",
      "Check that every target gives the reference's bits, forward and backward; exits with 1 "
      "where one does not");
  Add(command, "--target", options->targets, "TARGET",
      "Check this target only; may be given more than once")
      ->transform(Target(false));
  Add(command, "--case", options->one_case, "CASE", "Check this case only, as a failure names it")
      ->check(NotEmpty());
  Add(command, "--list", options->list, "FILE",
      "Check the cases of a file, one or many on each line")
      ->check(NotEmpty())
      ->excludes("--case");
  Add(command, "--every", options->every, "N", "Check every Nth case only, where time is short")
      ->check(from_one)
      ->excludes("--case");
  Add(command, "--random", options->random, "N", "Draw N cases beside the list; 20000 unless given")
      ->check(from_zero)
      ->excludes("--case")
      ->excludes("--list");
  Add(command, "--seed", options->seed, "N", "Draw the cases from this seed on, without the list")
      ->check(CLI::Range(0U, std::numeric_limits<unsigned>::max()))
      ->excludes("--case")
      ->excludes("--list");
  Add(command, "--vectors", options->vectors, "FILE",
      "Compare the targets with the results in this file instead, in which --case names a case; "
      "may be given more than once")
      ->check(NotEmpty())
      ->excludes("--list")
      ->excludes("--random")
      ->excludes("--seed");
  command
      ->add_flag("--formula", options->formula,
                 "Compare the reference with the formulas in binary64 and with its error bounds")
      ->excludes("--target")
      ->excludes("--vectors");
  command
      ->add_flag(
          "--small-stack", options->small_stack,
          "Make each call on a new thread, and check that it uses at most 48 KiB of its stack")
      ->excludes("--formula")
      ->excludes("--vectors");
  command->callback([options, &status] { status = RunCheck(*options); });
}

#ifdef RMSNORM_HAVE_BENCH

void AddBench(CLI::App& app, int& status) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* const command =
      app.add_subcommand("bench", "Time the library beside memcpy and others");
  std::vector<std::string> names;
  std::string operation_help;
  for (const bench::Operation& operation : bench::Operations()) {
    names.push_back(operation.name);
    operation_help +=
        "\n  " + operation.name + std::string(13 - operation.name.size(), ' ') + operation.help;
  }
  const auto add_list = [command](const char* name, std::vector<std::string>& list,
                                  const char* type, const char* help) {
    return Add(command, name, list, type, help)->delimiter(',')->capture_default_str();
  };
  add_list("--operations", options->operations, "NAME,...", "What to time")
      ->check(CLI::IsMember(names));
  Add(command, "--call", options->calls, "CASE",
      "A case of `rmsnorm check --case` to time instead, or several with ';' between them, made at "
      "once; repeatable")
      ->excludes("--operations");
  add_list("--shapes", options->shapes, "ROWSxD,...", "Rows and their length");
  add_list("--types", options->types, "TYPE,...", "Types of x, weight and y")
      ->check(CLI::IsMember(std::vector<std::string>{"f32", "f16", "bf16"}));
  add_list("--threads", options->threads, "N,...",
           "Numbers of threads; all: as many as OpenMP would use");
  add_list("--targets", options->targets, "TARGET,...",
           "Targets by name; all: each that this CPU runs")
      ->transform(Target(true));
  Add(command, "--peer", options->peers, "FILE",
      "A plug-in for another library, as bench/peers/peer.h describes; repeatable")
      ->check(NotEmpty());
  Add(command, "--older", options->older, "FILE", "Another build of librmsnorm.so to be timed, too")
      ->check(NotEmpty());
  command->add_flag("--prepared", options->prepared, "Time the library's prepared calls, too");
  command->add_flag("--read", options->reads,
                    "Read the results after each call, as the next operation would, and time both");
  command->footer(
      "All contenders have the same threads, each bound to a CPU, and are timed in turn in each of "
      "many rounds; the table has the medians. memcpy copies as many bytes as x has; plain is the "
      "fastest of some plain loops, compiled for several CPUs with and without -ffast-math; GB/s "
      "counts all rows that are read or written; \"times faster\" is plain's time in multiples of "
      "rmsnorm's. apart is the library with a call for each step, older an older build, and "
      "others are peers. A row is marked with * where the quartiles of one of its times are more "
      "than 1.5 apart. The last lines have the geometric mean of \"times faster\" for each type.\n"
      "Each result is checked before it is timed, the library's against the reference's bits and "
      "others to within a few roundings, of large shapes in some rows; exits with 1 where one is "
      "wrong.\n"
      "Operations:" +
      operation_help +
      "\nIn a CASE, $T, $R and $D are the type, the rows and d of --types and --shapes.\n"
      "Google Benchmark's flags work, too: --benchmark_out=FILE writes all figures as JSON, with "
      "quartiles, --benchmark_filter=REGEX takes some of the cells, --benchmark_repetitions=N "
      "repeats them.");
  command->allow_extras();
  command->callback([options, command, &status] {
    const std::vector<std::string> unknown = TakeHarnessFlags(command->remaining(), *options);
    if (!unknown.empty()) throw cases::UserError(UnknownWord(*command, unknown.front()));
    status = RunBench(*options);
  });
}

#endif

int Run(int argc, char** argv) {
  CLI::App app("RMSNorm for CPUs: the same bits on every CPU, for any number of threads",
               "rmsnorm");
  app.set_version_flag("--version", std::string("rmsnorm ") + rmsnorm_version());
  app.require_subcommand(1);
  int status = kSuccess;
  AddInfo(app, status);
  AddCheck(app, status);
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

int main(int argc, char** argv) try {
  return rmsnorm::tools::Run(argc, argv);
} catch (const std::bad_alloc&) {
  return rmsnorm::tools::Fail("out of memory");
} catch (const std::exception& error) {
  return rmsnorm::tools::Fail(error.what());
}
