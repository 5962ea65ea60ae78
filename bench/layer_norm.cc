// SPDX-License-Identifier: Apache-2.0
// The kernels of layer_norm-inl.h, compiled once for each of the library's targets, and the choice
// among them.
#include "kernels/highway_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layer_norm.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include <hwy/highway.h>

#include "layer_norm.h"

#ifndef RMSNORM_BENCH_LAYER_NORM_TABLE_
#define RMSNORM_BENCH_LAYER_NORM_TABLE_
namespace rmsnorm::bench {
struct LayerNormTable {
  const char* target;
  LayerNormKernel f32;
  LayerNormKernel bf16;
};
}  // namespace rmsnorm::bench
#endif  // RMSNORM_BENCH_LAYER_NORM_TABLE_

// As in the library, nothing is made of a baseline pass without fma.
#if HWY_NATIVE_FMA
#include "layer_norm-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::bench::HWY_NAMESPACE {
extern const LayerNormTable kTable;
const LayerNormTable kTable = {RMSNORM_TARGET_NAME, LayerNormRows<float>, LayerNormRows<BF16>};
}  // namespace rmsnorm::bench::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // HWY_NATIVE_FMA

#if HWY_ONCE
#include <cmath>
#include <string>

#include "cache.h"
#include "element.h"
#include "float_environment.h"

namespace rmsnorm::bench {
namespace {

using internal::BF16;
using internal::CastTo;
using internal::DefaultFloatEnvironment;
using internal::ToF32;

// For CPUs that have none of the targets.
template <class T>
void PlainRows(const LayerNormParameters& parameters, const void* x_data, void* y_data, size_t rows,
               bool) {
  const size_t d = parameters.d;
  for (size_t row = 0; row < rows; ++row) {
    const T* x = static_cast<const T*>(x_data) + row * d;
    T* y = static_cast<T*>(y_data) + row * d;
    double sum = 0;
    for (size_t j = 0; j < d; ++j) sum += double{ToF32(x[j])};
    const double mean = sum / static_cast<double>(d);
    double squares = 0;
    for (size_t j = 0; j < d; ++j) {
      const double v = double{ToF32(x[j])} - mean;
      squares += v * v;
    }
    const double r = 1 / std::sqrt(squares / static_cast<double>(d) + double{parameters.eps});
    for (size_t j = 0; j < d; ++j) {
      const float n = static_cast<float>((double{ToF32(x[j])} - mean) * r);
      y[j] = CastTo<T>(n * parameters.weight[j] + parameters.bias[j]);
    }
  }
}

constexpr LayerNormTable kPlainTable = {"reference", PlainRows<float>, PlainRows<BF16>};

// In any order: they are looked up by Highway's names.
const LayerNormTable* const kTables[] = {
    &kPlainTable,
#if HWY_TARGETS & HWY_AVX3_DL
    &N_AVX3_DL::kTable,
#endif
#if HWY_TARGETS & HWY_AVX3
    &N_AVX3::kTable,
#endif
#if HWY_TARGETS & HWY_AVX2
    &N_AVX2::kTable,
#endif
#if HWY_TARGETS & RMSNORM_HWY_NEON
    &RMSNORM_N_NEON::kTable,
#endif
};

// The library knows the names, and which of its targets this CPU runs.
LayerNormKernel FindKernel(Dtype dtype, const char* name) {
  if (dtype == Dtype::f16) throw Error(RMSNORM_ERROR_DTYPE, "LayerNorm: no kernel for f16");
  const char* exact_name;
  check(rmsnorm_find_target(name, &exact_name));
  for (const LayerNormTable* table : kTables) {
    if (std::string(table->target) == exact_name) {
      return dtype == Dtype::f32 ? table->f32 : table->bf16;
    }
  }
  throw Error(RMSNORM_ERROR_TARGET, "LayerNorm: not compiled for this target");
}

size_t ElementSize(Dtype dtype) { return rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype)); }

const float* Prepare(Dtype dtype, const void* from, size_t d, Buffer& buffer) {
  float* const to = reinterpret_cast<float*>(buffer.data());
  for (size_t j = 0; j < d; ++j) {
    to[j] = dtype == Dtype::f32 ? static_cast<const float*>(from)[j]
                                : ToF32(static_cast<const BF16*>(from)[j]);
  }
  return to;
}

}  // namespace

LayerNorm::LayerNorm(Dtype dtype, size_t d, const void* weight, const void* bias, float eps,
                     const char* target)
    : dtype_(dtype),
      weight_(d * sizeof(float)),
      bias_(d * sizeof(float)),
      parameters_{d, Prepare(dtype, weight, d, weight_), Prepare(dtype, bias, d, bias_), eps},
      kernel_(FindKernel(dtype, target)) {}

void LayerNorm::Forward(const void* x, void* y, size_t rows, bool stream) const {
  const DefaultFloatEnvironment environment;
  kernel_(parameters_, x, y, rows, stream);
}

bool LayerNorm::Streams(size_t rows) const {
  return 2 * rows * parameters_.d * ElementSize(dtype_) > internal::LastLevelCache();
}

}  // namespace rmsnorm::bench
#endif  // HWY_ONCE
