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

// The arguments of a case, and its results on the target `reference` in their simplest form: plain
// calls on dense rows, apart, by one thread, each on the rows that share one of the weight or of
// the bias.
class BackwardCheck {
 public:
  // Throws rmsnorm::Error if the library refuses the case.
  explicit BackwardCheck(const BackwardCase& backward_case);

  struct Tensors {
    GuardedRows x;
    GuardedRows dy;
    std::optional<GuardedRows> weight;
    GuardedRows rstd;
    std::optional<GuardedRows> dx;
    std::optional<GuardedRows> dw;
    std::optional<GuardedRows> db;
  };

  // Runs the case as it is described on a target and returns the inputs, as they were left, and the
  // outputs. In place, dx is apart from dy and begins as its copy. Throws rmsnorm::Error if the
  // library refuses the case.
  Tensors Run(const char* target) const;

  // Says what is wrong with results, naming the first wrong element; empty where nothing is.
  std::string FindFault(const Tensors& results) const;

 private:
  // The inputs, and outputs without gaps that hold what is added to.
  static Tensors MakeTensors(const BackwardCase& c);

  // What is expected of the rows with one row of the weight and of dw, or with one of db.
  void ComputeDxAndDw(size_t shared_row);
  void ComputeDb(size_t shared_row);

  BackwardCase case_;
  Tensors before_;
  Tensors expected_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_BACKWARD_CHECK_H_
