// SPDX-License-Identifier: Apache-2.0
// From the largest and the smallest value of a row to the step and the zero point of its quantised
// output. Shared by the reference and by the kernels of every target.
#ifndef RMSNORM_LIB_QUANTISED_H_
#define RMSNORM_LIB_QUANTISED_H_

#include <algorithm>
#include <cmath>
#include <limits>

namespace rmsnorm::internal {

constexpr float kSmallestInteger = -128;
constexpr float kLargestInteger = 127;

// q = rint(v * inverse) + zero, clamped; or 0 for all of a row.
struct QuantisedSteps {
  float scale;
  float inverse;
  float zero;
  bool none;  // q is 0, as the row is too small or not finite
};

// The range of the values of a row, and 0.
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
    constexpr float kSmallestWidth = 0x1p-100f;
    const float width = has_zero ? high - low : std::max(high, -low);
    const float steps = has_zero ? 255.0f : 127.0f;
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

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_QUANTISED_H_
