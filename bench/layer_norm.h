// SPDX-License-Identifier: Apache-2.0
// LayerNorm with the library's care and conversions, to compare RMSNorm's speed with. It is no part
// of the library: its bits may differ between targets.
#ifndef RMSNORM_BENCH_LAYER_NORM_H_
#define RMSNORM_BENCH_LAYER_NORM_H_

#include <cstddef>
#include <rmsnorm/rmsnorm.hpp>

#include "buffer.h"

namespace rmsnorm::bench {

// What a kernel needs beside the rows.
struct LayerNormParameters {
  size_t d;
  const float* weight;
  const float* bias;
  float eps;
};
using LayerNormKernel = void (*)(const LayerNormParameters& parameters, const void* x, void* y,
                                 size_t rows, bool stream);

// y = (x - mean) / sqrt(variance + eps) * weight + bias for each row, in f32, with the variance
// that divides by d. x, y, the weight and the bias are of one type, f32 or bf16.
class LayerNorm {
 public:
  // Prepares the d elements of the weight and of the bias, which need not outlive the call. The
  // target is named as in rmsnorm_context, null for the library's own choice; "reference" is plain
  // loops. Throws rmsnorm::Error for another type and where the library refuses the target.
  LayerNorm(Dtype dtype, size_t d, const void* weight, const void* bias, float eps,
            const char* target);
  LayerNorm(const LayerNorm&) = delete;  // the parameters point into the buffers
  LayerNorm& operator=(const LayerNorm&) = delete;

  // Normalises dense rows on the calling thread. y shares no byte with x.
  void Forward(const void* x, void* y, size_t rows) const { Forward(x, y, rows, Streams(rows)); }

  // The same for a part of the rows: whether y is written past the caches depends on all of them.
  void Forward(const void* x, void* y, size_t rows, bool stream) const;

  // Whether the library writes this many rows past the caches.
  bool Streams(size_t rows) const;

 private:
  const Dtype dtype_;
  Buffer weight_;
  Buffer bias_;
  const LayerNormParameters parameters_;
  const LayerNormKernel kernel_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_LAYER_NORM_H_
