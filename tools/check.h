// SPDX-License-Identifier: Apache-2.0
// The work of `rmsnorm check`, apart from its command line.
#ifndef RMSNORM_TOOLS_CHECK_H_
#define RMSNORM_TOOLS_CHECK_H_

#include <functional>
#include <iosfwd>
#include <mutex>
#include <string>
#include <vector>

#include "cases/run.h"
#include "cases/vectors.h"

namespace rmsnorm::tools {

// Checks cases on targets and counts the results. Several threads may check at once, each with its
// own runner.
class Checker {
 public:
  // `cases` is the expected number of cases, of which a terminal shows the percentage that is done.
  // `flag` of the command is the one that compares cases by `find_fault`.
  Checker(size_t cases, const std::vector<std::string>& targets, std::ostream& out,
          cases::FindFault find_fault = cases::FaultOf, std::string flag = "");

  // Checks the calls of a line. For each failure it writes two lines: the fault, and a command that
  // repeats the simplest failing case it finds. If the case ends the process (at a guard page, for
  // example), the lines come before the end.
  void Check(const cases::Calls& calls, cases::Runner& runner);

  // Compares the targets with the recorded results of a case of a file. The command that repeats a
  // failure names both.
  void Check(const cases::Recorded& recorded, const std::string& path, cases::Runner& runner);

  // Writes a line with the counts, and returns the exit status.
  int Finish();

  // What is said of a target: the command that checks it, its fault, or both for a fault.
  using OnTarget = std::function<std::string(const std::string& target)>;
  using Describe = std::function<std::string(const std::string& target, const std::string& fault)>;

 private:
  void CheckTargets(const OnTarget& command, const OnTarget& find_fault, const Describe& describe);
  void ClearPercentage() const;

  const size_t cases_;
  const bool is_terminal_;
  const std::vector<std::string> targets_;
  std::ostream& out_;
  const cases::FindFault find_fault_;
  const std::string flag_;
  std::mutex mutex_;  // guards the members below
  size_t done_ = 0;
  size_t passed_ = 0;
  size_t failed_ = 0;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CHECK_H_
