// SPDX-License-Identifier: Apache-2.0
// rmsnorm check: every target against the reference, bit for bit.
#include "check.h"

#include <iostream>
#include <memory>
#include <optional>

#include "command.h"
#include "forward_check.h"
#include "progress.h"
#include "targets.h"

namespace rmsnorm::tools {
namespace {

// Runs a case on a target and says what is wrong with it; empty where nothing is.
std::string Fault(const ForwardCheck& forward_check, const std::string& target) {
  try {
    return forward_check.FindFault(forward_check.Run(target.c_str()));
  } catch (const Error& error) {
    return std::string("refused: ") + error.what();
  }
}

// Counts checks, and reports those that failed.
class Tally {
 public:
  Tally(size_t cases, std::ostream& out)
      : cases_(cases), out_(out), progress_(std::in_place, cases) {}

  void Add(const ForwardCase& forward_case, const std::string& target, const std::string& fault) {
    if (fault.empty()) {
      ++passed_;
      return;
    }
    ++failed_;
    progress_.reset();  // its line is in the way of these
    out_ << "FAILED on " << target << ": " << fault << "\n"
         << "  rmsnorm check --target " << target << " --case " << Text(forward_case) << std::endl;
    progress_.emplace(cases_);
  }

  void CaseDone() { progress_->Update(++done_); }

  int Finish() {
    progress_.reset();
    out_ << passed_ << " passed, " << failed_ << " failed" << std::endl;
    return failed_ == 0 ? kSuccess : kCheckFailed;
  }

 private:
  const size_t cases_;
  std::ostream& out_;
  std::optional<Progress> progress_;
  size_t done_ = 0;
  size_t passed_ = 0;
  size_t failed_ = 0;
};

struct CheckOptions {
  std::vector<std::string> targets;
  std::string forward_case;
};

int RunCheck(const CheckOptions& options) {
  const std::vector<std::string> targets =
      options.targets.empty() ? SupportedTargets() : FindTargets(options.targets);
  const std::vector<ForwardCase> cases = options.forward_case.empty()
                                             ? ForwardCases()
                                             : std::vector{ParseForwardCase(options.forward_case)};
  std::cout << "targets:";
  for (const std::string& target : targets) std::cout << " " << target;
  std::cout << "; cases: " << cases.size() << std::endl;
  return CheckForward(cases, targets, std::cout);
}

}  // namespace

int CheckForward(const std::vector<ForwardCase>& cases, const std::vector<std::string>& targets,
                 std::ostream& out) {
  Tally tally(cases.size(), out);
  for (const ForwardCase& forward_case : cases) {
    try {
      const ForwardCheck forward_check(forward_case);
      for (const std::string& target : targets) {
        tally.Add(forward_case, target, Fault(forward_check, target));
      }
    } catch (const Error& error) {  // the reference takes the case to be wrong
      tally.Add(forward_case, "reference", std::string("refused: ") + error.what());
    }
    tally.CaseDone();
  }
  return tally.Finish();
}

void AddCheck(CLI::App& app, int& status) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* const command = app.add_subcommand(
      "check",
      "Check that every target gives the reference's bits; exits with 1 where one does not");
  command
      ->add_option("--target", options->targets,
                   "Check this target only; may be given more than once")
      ->type_name("NAME")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--case", options->forward_case, "Check this case only, as a failure names it")
      ->type_name("CASE");
  command->callback([options, &status] { status = RunCheck(*options); });
}

}  // namespace rmsnorm::tools
