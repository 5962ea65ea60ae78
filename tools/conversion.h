// SPDX-License-Identifier: Apache-2.0
// How to convert a tensor that the command does not read. The texts end in a line for a shell,
// which runs NumPy, and are empty where there is no such line.
#ifndef RMSNORM_TOOLS_CONVERSION_H_
#define RMSNORM_TOOLS_CONVERSION_H_

#include <cstddef>
#include <string>
#include <vector>

namespace rmsnorm::tools {

// For a .npy file whose header has this type.
std::string NpyConversion(const std::string& path, const std::string& descr);

// For a tensor of a .safetensors file, whose data begins at `begin`.
std::string SafetensorsConversion(const std::string& path, const std::string& dtype,
                                  const std::vector<size_t>& shape, size_t begin);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CONVERSION_H_
