// SPDX-License-Identifier: Apache-2.0
// Finds the norm that another implementation computes. It tries every combination of the library's
// usual options, alone and with each step of step.h, and ranks them by how far their results are
// from the implementation's.
#ifndef RMSNORM_TOOLS_IDENTIFY_IDENTIFY_H_
#define RMSNORM_TOOLS_IDENTIFY_IDENTIFY_H_

#include <string>
#include <vector>

#include "step.h"

namespace rmsnorm::identify {

struct Hypothesis {
  rmsnorm_options options;  // that the library is called with
  StepKind kind;
  std::string step;  // what else happens; may be empty
  Distance distance;
};

// Values of an option, or steps, that give results as near as the best hypothesis.
struct Ambiguity {
  std::string name;                 // an option or "step"
  std::vector<std::string> values;  // the best hypothesis's value first
  std::string cure;                 // the data that could tell them apart
};

enum class Fit {
  kExact,  // every element is equal
  kClose,  // as near as sums in another order can be
  kNone
};

struct Answer {
  Fit fit;
  Hypothesis best;
  bool is_near = true;             // whether most elements are those of the best hypothesis
  std::string residual_out;        // what is wrong with it, as a clause, or empty
  std::string mistake;             // of y and of residual_out, where a norm fits
  std::vector<Hypothesis> others;  // the nearest ones that differ from the best, nearest first
  std::vector<Ambiguity> ambiguities;
  std::vector<std::string> notes;  // sentences on special rows, the sum and where errors lie
  NormCall call;                   // the operands that were compared, without special rows
  size_t rows;                     // of x, special ones included
};

// Which norm gives y, and residual_out if there is one, from the other operands. `eps` are values
// to try beside the usual ones. Throws std::runtime_error with the library's message if the
// operands do not go together, and if there is no row to compare.
Answer Identify(const rmsnorm_operands& operands, const std::vector<float>& eps);

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_IDENTIFY_H_
