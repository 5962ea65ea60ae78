// SPDX-License-Identifier: Apache-2.0
// The sizes that decide how a call is split and where it keeps its scratch. None of them changes a
// bit of a result; the sizes that do stand in reference.h.
#ifndef RMSNORM_LIB_THRESHOLDS_H_
#define RMSNORM_LIB_THRESHOLDS_H_

#include <cstddef>

namespace rmsnorm::internal {

// `usual`, or `low` in a build for fuzzing (Meson's option `low_thresholds`), where small calls
// must take every path.
constexpr size_t Threshold([[maybe_unused]] size_t usual, [[maybe_unused]] size_t low) {
#ifdef RMSNORM_LOW_THRESHOLDS
  return low;
#else
  return usual;
#endif
}

// Picoseconds of work below which a part is not worth a thread. A region of OpenMP takes 0.65
// to 2.8 us (doc/design.md, "OpenMP").
constexpr size_t kLeastOfPart = Threshold(3000000, 4000);

// Elements of a step of add_norm for short rows, unless four rows have more, and its rows.
// The rows of x, residual and y in a step fit L1.
constexpr size_t kAddTile = Threshold(2048, 256);
constexpr size_t kAddTileRows = Threshold(64, 4);

// Floats of scratch that a call keeps on the stack rather than on the heap: its weight and bias,
// and the sums of dw and db.
constexpr size_t kScratchOnStack = Threshold(4096, 64);

// Up to this many norms in one call, such as the norms of q and k, are checked and planned on the
// stack.
constexpr size_t kCallsOnStack = Threshold(2, 1);

// Up to this many calls made at once are compared with each other. For more, what lies together is
// found first (doc/design.md, "Overlaps between calls").
constexpr size_t kFewCalls = Threshold(8, 1);

// A row of at most kShortRowBytes of x is short: four rows of x and y then fit L1 with the weight.
// A row of at least kLongRow elements is long: one row with its weight fills L1.
constexpr size_t kShortRowBytes = Threshold(2048, 256);
constexpr size_t kLongRow = Threshold(8192, 256);

// A row of at least this many elements of f32, alone in its call, fills L1 with its y and weight.
constexpr size_t kRowPastL1 = Threshold(3072, 64);

// While a row of 16 bits of at most this length is computed, the next one is fetched into L1:
// memory is idle then. A longer row, its y and the weight do not fit L1 together.
constexpr size_t kLongestFetched = Threshold(4096, 64);

// Elements of a slab: some rows of each group that has a row of the weight. The rows of x and y in
// a slab fit L2.
constexpr size_t kSlab = Threshold(32768, 256);

// y and dx of at least kLeastStreamed bytes, in rows of at least kLeastStreamedRow bytes, are
// written past the caches unless the context says otherwise (doc/design.md, "Stores past the
// caches").
constexpr size_t kLeastStreamed = Threshold(size_t{64} << 20, 4096);
constexpr size_t kLeastStreamedRow = Threshold(4096, 256);

// A row of at least this many elements is worth a first step that aligns y.
constexpr size_t kAlignedRow = Threshold(512, 16);

// Whether lines of f32 are fetched into L1 shortly before they are stored to. Stores of a Xeon wait
// for their lines; AMD's CPUs gain nothing or lose (doc/data/changes.csv,
// "Fetches, and stores past the caches").
extern const bool kFetchesForStores;

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_THRESHOLDS_H_
