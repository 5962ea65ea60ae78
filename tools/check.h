// SPDX-License-Identifier: Apache-2.0
// The work of `rmsnorm check`, apart from its command line.
#ifndef RMSNORM_TOOLS_CHECK_H_
#define RMSNORM_TOOLS_CHECK_H_

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "cases/run.h"
#include "progress.h"

namespace rmsnorm::tools {

// Checks cases on targets, and counts.
class Checker {
 public:
  // There are to be so many cases.
  Checker(size_t cases, const std::vector<std::string>& targets, std::ostream& out);

  // Checks one. Writes two lines for each failure: what is wrong, and a command that repeats the
  // simplest case found that fails, too. It does so before the end of the process where that is
  // what happens, as beside a guard page.
  void Check(const cases::Case& c);

  // Writes a line that counts, and returns the status to exit with.
  int Finish();

 private:
  void Report(const cases::Case& c, const std::string& target, const std::string& fault);

  const size_t cases_;
  const std::vector<std::string> targets_;
  std::ostream& out_;
  cases::Runner runner_;
  std::optional<Progress> progress_;
  size_t done_ = 0;
  size_t passed_ = 0;
  size_t failed_ = 0;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CHECK_H_
