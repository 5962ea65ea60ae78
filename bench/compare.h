// SPDX-License-Identifier: Apache-2.0
// Whether the results of a contender are right. Both functions take two cases that differ in their
// results alone, and name the first element that is wrong; empty where none is.
#ifndef RMSNORM_BENCH_COMPARE_H_
#define RMSNORM_BENCH_COMPARE_H_

#include <string>

#include "peers/peer.h"

namespace rmsnorm::bench {

// The library's results, bit for bit.
std::string FindDifference(const rmsnorm_peer_case& actual, const rmsnorm_peer_case& expected);

// Another library's, to within the roundings that compare.cc counts. A NaN is wrong.
std::string FindBeyondTolerance(const rmsnorm_peer_case& actual, const rmsnorm_peer_case& expected);

// LayerNorm in binary64, rounded once.
void LayerNorm(const rmsnorm_peer_case& what);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_COMPARE_H_
