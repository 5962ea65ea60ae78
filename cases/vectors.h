// SPDX-License-Identifier: Apache-2.0
// Recorded bits: the cases of a file, with the values of their operands. doc/vectors.md describes
// the format.
#ifndef RMSNORM_CASES_VECTORS_H_
#define RMSNORM_CASES_VECTORS_H_

#include <string>
#include <vector>

#include "case.h"
#include "problem.h"

namespace rmsnorm::cases {

struct Recorded {
  std::string name;
  Case c;
  Problem problem;
};

// The cases in the order of the file. Throws UserError, with the path, if the file cannot be read
// or breaks the format.
std::vector<Recorded> ReadVectors(const std::string& path);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_VECTORS_H_
