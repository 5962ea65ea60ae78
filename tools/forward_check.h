// SPDX-License-Identifier: Apache-2.0
// Runs a case of `rmsnorm check` and compares what comes out, all through the public interface.
#ifndef RMSNORM_TOOLS_FORWARD_CHECK_H_
#define RMSNORM_TOOLS_FORWARD_CHECK_H_

#include <optional>
#include <string>

#include "forward_case.h"
#include "guarded_rows.h"

namespace rmsnorm::tools {

// The arguments of a case, and its results on the target `reference` in their simplest form: plain
// calls on dense rows, apart, by one thread, each on rows that share those of weight and bias.
class ForwardCheck {
 public:
  // Throws rmsnorm::Error if the library refuses the case.
  explicit ForwardCheck(const ForwardCase& forward_case);

  struct Tensors {
    GuardedRows x;
    std::optional<GuardedRows> weight;
    std::optional<GuardedRows> bias;
    std::optional<GuardedRows> residual;
    std::optional<GuardedRows> residual_out;
    GuardedRows y;
    GuardedRows rstd;
    GuardedRows sums;
  };

  // Runs the case as it is described on a target and returns the inputs, as they were left, and the
  // outputs. An input that an output has the place of is apart from it. Throws rmsnorm::Error if
  // the library refuses the case.
  Tensors Run(const char* target) const;

  // Says what is wrong with results, naming the first wrong element; empty where nothing is.
  std::string FindFault(const Tensors& results) const;

 private:
  // The inputs, and outputs without gaps that nothing has been written to.
  static Tensors MakeTensors(const ForwardCase& c);

  ForwardCase case_;
  Tensors expected_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_FORWARD_CHECK_H_
