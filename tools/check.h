// SPDX-License-Identifier: Apache-2.0
// The work of `rmsnorm check`, apart from its command line.
#ifndef RMSNORM_TOOLS_CHECK_H_
#define RMSNORM_TOOLS_CHECK_H_

#include <iosfwd>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cases/run.h"
#include "progress.h"

namespace rmsnorm::tools {

// Checks cases on targets, and counts. Several threads may check at once, each with its own runner.
class Checker {
 public:
  // There are to be so many cases.
  Checker(size_t cases, const std::vector<std::string>& targets, std::ostream& out);

  // Checks one. Writes two lines for each failure: what is wrong, and a command that repeats the
  // simplest case found that fails, too. It does so before the end of the process where that is
  // what happens, as beside a guard page.
  void Check(const cases::Case& c, cases::Runner& runner);

  // Writes a line that counts, and returns the status to exit with.
  int Finish();

 private:
  void Report(const cases::Case& c, const std::string& target, const std::string& fault,
              cases::Runner& runner);

  const size_t cases_;
  const std::vector<std::string> targets_;
  std::ostream& out_;
  std::mutex mutex_;  // for what follows
  std::optional<Progress> progress_;
  size_t done_ = 0;
  size_t passed_ = 0;
  size_t failed_ = 0;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CHECK_H_
