// SPDX-License-Identifier: Apache-2.0
// Runs a backward case of `rmsnorm check` and compares what comes out, all through the public
// interface.
#ifndef RMSNORM_TOOLS_BACKWARD_CHECK_H_
#define RMSNORM_TOOLS_BACKWARD_CHECK_H_

#include <optional>
#include <string>

#include "backward_case.h"
#include "guarded_rows.h"

namespace rmsnorm::tools {

// The arguments of a case, and its results on the target `reference` in their simplest form: one
// plain call on dense rows, apart, by one thread.
class BackwardCheck {
 public:
  // Throws rmsnorm::Error if the library refuses the case.
  explicit BackwardCheck(const BackwardCase& backward_case);

  // What a target makes of the case.
  struct Results {
    GuardedRows x;
    GuardedRows dy;  // as it was left; in place, dx is apart from it and begins as its copy
    std::optional<GuardedRows> weight;
    GuardedRows rstd;
    GuardedRows dx;
    GuardedRows dw;
  };

  // Runs the case as it is described on a target. Throws rmsnorm::Error if the library refuses it.
  Results Run(const char* target) const;

  // Says what is wrong with results, naming the first wrong element; empty where nothing is.
  std::string FindFault(const Results& results) const;

 private:
  bool HasDx() const { return case_.outputs != Outputs::kDw; }
  bool HasDw() const { return case_.outputs != Outputs::kDx; }
  uint32_t Flags() const;

  // Inverse RMS as the case has them. Throws rmsnorm::Error if the library refuses it.
  void FillRstd(const rmsnorm_view& dense_x);

  BackwardCase case_;
  GuardedRows x_;
  GuardedRows dy_;
  std::optional<GuardedRows> weight_;
  GuardedRows rstd_;
  GuardedRows old_dx_;  // what is added to
  GuardedRows old_dw_;
  GuardedRows expected_dx_;
  GuardedRows expected_dw_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_BACKWARD_CHECK_H_
