// SPDX-License-Identifier: Apache-2.0
// Checks the results of a contender. Both functions take two cases that differ only in their
// results. They name the first wrong element; the text is empty if all are right.
#ifndef RMSNORM_BENCH_COMPARE_H_
#define RMSNORM_BENCH_COMPARE_H_

#include <string>

#include "peers/peer.h"

namespace rmsnorm::bench {

// For the library: compares bit for bit.
std::string FindDifference(const rmsnorm_peer_case& actual, const rmsnorm_peer_case& expected);

// For other libraries: allows the roundings that compare.cc counts. A NaN is wrong.
std::string FindBeyondTolerance(const rmsnorm_peer_case& actual, const rmsnorm_peer_case& expected);

// Computes LayerNorm in binary64, rounded once.
void LayerNorm(const rmsnorm_peer_case& what);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_COMPARE_H_
