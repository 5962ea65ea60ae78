// SPDX-License-Identifier: Apache-2.0
// Reads .safetensors files.
#ifndef RMSNORM_TEST_TENSOR_FILES_H_
#define RMSNORM_TEST_TENSOR_FILES_H_

#include <rmsnorm/rmsnorm.h>

#include <map>
#include <string>
#include <vector>

namespace rmsnorm::test {

struct StoredTensor {
  rmsnorm_dtype dtype;
  std::vector<size_t> shape;
  std::string data;  // in the CPU's order of bytes
};

// All tensors of a well-formed .safetensors file.
std::map<std::string, StoredTensor> ReadSafetensors(const std::string& file);

// The metadata of such a file.
std::map<std::string, std::string> ReadMetadata(const std::string& file);

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_TENSOR_FILES_H_
