// SPDX-License-Identifier: Apache-2.0
// Rows on which norms differ, to be given to an implementation that shall be identified.
#ifndef RMSNORM_TOOLS_IDENTIFY_PROBE_H_
#define RMSNORM_TOOLS_IDENTIFY_PROBE_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <vector>

namespace rmsnorm::identify {

// Tensors in f32 that hold numbers of a type.
struct Probe {
  std::vector<float> x, residual, gate;  // [rows, d]
  std::vector<float> weight;             // [d]
};

size_t ProbeRows();

// The rows whose squares f32 can add, which are the first ones.
size_t OrdinaryProbeRows();

// The probe for rows of d elements of f32, f16 or bf16. The same arguments give the same numbers.
Probe MakeProbe(size_t d, rmsnorm_dtype dtype);

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_PROBE_H_
