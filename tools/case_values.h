// SPDX-License-Identifier: Apache-2.0
// What the inputs of a case of `rmsnorm check` hold.
#ifndef RMSNORM_TOOLS_CASE_VALUES_H_
#define RMSNORM_TOOLS_CASE_VALUES_H_

#include <random>

#include "guarded_rows.h"

namespace rmsnorm::tools {

// What rows hold.
enum class Values {
  kNormal,     // magnitudes around 1
  kWide,       // magnitudes over 60 binary orders, or all of f16's
  kHuge,       // near the largest finite number
  kTiny,       // squares that vanish in f32
  kSubnormal,  // subnormal numbers of the type
  kZero,       // zeros of both signs
  kNan,        // as kNormal, with one NaN
  kInfinity,   // as kNormal, with one infinity
  kLowEdge,    // mean squares on both sides of 2^-100, below which f32 does not do
  kHighEdge,   // sums of squares on both sides of f32's range
  kMixed,      // each of the above in turn, so that neighbouring rows differ
  kFinite      // the same without NaN and infinity, which would hide the others in sums over rows
};

using Random = std::mt19937;

// Kinds that are taken in turn begin with number `first`.
void FillRows(Random& random, Values values, GuardedRows& rows, size_t first = 0);

// Rows of numbers around 0, for a weight or a bias; `special` puts NaN, infinities, zeros and
// extreme numbers among them.
void FillWeight(Random& random, bool special, GuardedRows& weight);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CASE_VALUES_H_
