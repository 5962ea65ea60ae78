// SPDX-License-Identifier: Apache-2.0
// From the largest and the smallest value of a group to the step and the zero point of its
// quantised output. Shared by the reference and by the kernels of every target.
#ifndef RMSNORM_LIB_QUANTISED_H_
#define RMSNORM_LIB_QUANTISED_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernel_table.h"
#include "portable.h"

namespace rmsnorm::internal {

constexpr float kSmallestInteger = -128;
constexpr float kLargestInteger = 127;

constexpr float kSmallestWidth = 0x1p-100f;
constexpr float kSymmetricSteps = 127;
constexpr float kAsymmetricSteps = 255;

// q = rint(v * inverse) + zero, clamped; or 0 for all of a group.
struct QuantisedSteps {
  float scale;
  float inverse;
  float zero;
  bool none;  // q is 0, as the group is too small or not finite
};

// The range of the values of a group, and 0.
struct QuantisedRange {
  float low = 0;
  float high = 0;
  bool finite = true;

  void Add(float value) {
    if (!(std::fabs(value) <= std::numeric_limits<float>::max())) finite = false;
    low = std::min(low, value);
    high = std::max(high, value);
  }

  QuantisedSteps Steps(bool has_zero) const {
    const float width = has_zero ? high - low : std::max(high, -low);
    const float steps = has_zero ? kAsymmetricSteps : kSymmetricSteps;
    if (!finite || std::isinf(width)) {
      return {std::numeric_limits<float>::quiet_NaN(), 0, 0, true};
    }
    if (width < kSmallestWidth) return {0, 0, 0, true};
    const float inverse = steps / width;
    const float zero = has_zero ? std::clamp(std::nearbyint(kSmallestInteger - low * inverse),
                                             kSmallestInteger, kLargestInteger)
                                : 0;
    return {width / steps, inverse, zero, false};
  }
};

// Finds the steps of a group of a row from its range, and writes them.
RMSNORM_ALWAYS_INLINE QuantisedSteps WriteSteps(const RowRun& run, size_t row, size_t group,
                                                const QuantisedRange& range) {
  const QuantisedSteps steps = range.Steps(run.Has(kZero));
  run.Row<float>(kScale, row)[group] = steps.scale;
  if (run.Has(kZero)) run.Row<int8_t>(kZero, row)[group] = static_cast<int8_t>(steps.zero);
  return steps;
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_QUANTISED_H_
