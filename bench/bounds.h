// SPDX-License-Identifier: Apache-2.0
// Checks the results of a contender. The functions that look for a fault name the first wrong
// element; the text is empty if all are right.
#ifndef RMSNORM_BENCH_BOUNDS_H_
#define RMSNORM_BENCH_BOUNDS_H_

#include <string>

#include "tensors.h"

namespace rmsnorm::bench {

// For the library: compares bit for bit.
std::string FindDifference(const Tensors& tensors);

// For others: allows the roundings that bounds.cc counts. A NaN is wrong. There must be bounds.
std::string FindBeyondBounds(const Tensors& tensors);

// Whether bounds.cc has bounds for a call.
bool HasBounds(const cases::Case& c);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_BOUNDS_H_
