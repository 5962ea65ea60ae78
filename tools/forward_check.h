// SPDX-License-Identifier: Apache-2.0
// Runs a case of `rmsnorm check` and compares what comes out, all through the public interface.
#ifndef RMSNORM_TOOLS_FORWARD_CHECK_H_
#define RMSNORM_TOOLS_FORWARD_CHECK_H_

#include <optional>
#include <string>

#include "forward_case.h"
#include "guarded_rows.h"

namespace rmsnorm::tools {

// The arguments of a case, and its results on the target `reference` in their simplest form: one
// plain call on dense rows, apart, by one thread.
class ForwardCheck {
 public:
  // Throws rmsnorm::Error if the library refuses the case.
  explicit ForwardCheck(const ForwardCase& forward_case);

  // What a target makes of the case.
  struct Results {
    GuardedRows x;  // as it was left, or y where that is computed in place
    std::optional<GuardedRows> weight;
    std::optional<GuardedRows> residual;  // as it was left, or residual_out where that is in place
    std::optional<GuardedRows> residual_out;
    GuardedRows y;
    GuardedRows rstd;
    GuardedRows sums;
  };

  // Runs the case as it is described on a target. Throws rmsnorm::Error if the library refuses it.
  Results Run(const char* target) const;

  // Says what is wrong with results, naming the first wrong element; empty where nothing is.
  std::string FindFault(const Results& results) const;

 private:
  ForwardCase case_;
  GuardedRows x_;
  std::optional<GuardedRows> weight_;
  std::optional<GuardedRows> residual_;
  std::optional<GuardedRows> expected_residual_out_;
  GuardedRows expected_y_;
  GuardedRows expected_rstd_;
  GuardedRows expected_sums_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_FORWARD_CHECK_H_
