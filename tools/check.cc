// SPDX-License-Identifier: Apache-2.0
// rmsnorm check: every target against the reference, bit for bit.
#include "check.h"

#include <iostream>
#include <memory>
#include <optional>

#include "backward_check.h"
#include "case_text.h"
#include "command.h"
#include "forward_check.h"
#include "progress.h"
#include "targets.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

// Each kind of case has a class that takes it, runs it on a target and finds faults in the results.
ForwardCheck MakeCheck(const ForwardCase& forward_case) { return ForwardCheck(forward_case); }
BackwardCheck MakeCheck(const BackwardCase& backward_case) { return BackwardCheck(backward_case); }

// Runs a case on a target and says what is wrong with it; empty where nothing is.
template <class Check>
std::string Fault(const Check& check, const std::string& target) {
  try {
    return check.FindFault(check.Run(target.c_str()));
  } catch (const Error& error) {
    return std::string("refused: ") + error.what();
  }
}

// Counts checks, and reports those that failed.
class Tally {
 public:
  Tally(size_t cases, std::ostream& out)
      : cases_(cases), out_(out), progress_(std::in_place, cases) {}

  template <class AnyCase>
  void Add(const AnyCase& c, const std::string& target, const std::string& fault) {
    if (fault.empty()) {
      ++passed_;
      return;
    }
    ++failed_;
    progress_.reset();  // its line is in the way of these
    out_ << "FAILED on " << target << ": " << fault << "\n"
         << "  rmsnorm check --target " << target << " --case " << Text(c) << std::endl;
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

template <class AnyCase>
void CheckOnTargets(const AnyCase& c, const std::vector<std::string>& targets, Tally& tally) {
  try {
    const auto check = MakeCheck(c);
    for (const std::string& target : targets) tally.Add(c, target, Fault(check, target));
  } catch (const Error& error) {  // the reference takes the case to be wrong
    tally.Add(c, "reference", std::string("refused: ") + error.what());
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const ForwardCase& c : ForwardCases()) cases.emplace_back(c);
  for (const BackwardCase& c : BackwardCases()) cases.emplace_back(c);
  return cases;
}

struct CheckOptions {
  std::vector<std::string> targets;
  std::string one_case;
};

int RunCheck(const CheckOptions& options) {
  const std::vector<std::string> targets =
      options.targets.empty() ? SupportedTargets() : FindTargets(options.targets);
  const std::vector<Case> cases =
      options.one_case.empty() ? AllCases() : std::vector{ParseCase(options.one_case)};
  std::cout << "targets:";
  for (const std::string& target : targets) std::cout << " " << target;
  std::cout << "; cases: " << cases.size() << std::endl;
  return CheckCases(cases, targets, std::cout);
}

}  // namespace

Case ParseCase(const std::string& text) {
  const std::string kind = KindOfCase(text);
  if (kind == kForwardKind) return ParseForwardCase(text);
  if (kind == kBackwardKind) return ParseBackwardCase(text);
  throw UserError("case: '" + text + "' begins neither with 'forward,' nor with 'backward,'");
}

int CheckCases(const std::vector<Case>& cases, const std::vector<std::string>& targets,
               std::ostream& out) {
  Tally tally(cases.size(), out);
  for (const Case& any_case : cases) {
    std::visit([&](const auto& c) { CheckOnTargets(c, targets, tally); }, any_case);
    tally.CaseDone();
  }
  return tally.Finish();
}

void AddCheck(CLI::App& app, int& status) {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* const command = app.add_subcommand("check",
                                               "Check that every target gives the reference's "
                                               "bits, forward and backward; exits with 1 where "
                                               "one does not");
  command
      ->add_option("--target", options->targets,
                   "Check this target only; may be given more than once")
      ->type_name("NAME")
      ->expected(1)
      ->take_all();
  command->add_option("--case", options->one_case, "Check this case only, as a failure names it")
      ->type_name("CASE");
  command->callback([options, &status] { status = RunCheck(*options); });
}

}  // namespace rmsnorm::tools
