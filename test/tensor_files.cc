// SPDX-License-Identifier: Apache-2.0
// A separate file: including the JSON library would add eight seconds to the compilation of each
// test.
#include "tensor_files.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

namespace rmsnorm::test {
namespace {

uint64_t HeaderLength(const std::string& file) {
  uint64_t length = 0;
  for (size_t i = sizeof length; i-- > 0;) length = length << 8 | static_cast<uint8_t>(file[i]);
  return length;
}

nlohmann::json Header(const std::string& file) {
  return nlohmann::json::parse(file.substr(sizeof(uint64_t), HeaderLength(file)));
}

rmsnorm_dtype DtypeOf(const std::string& name) {
  static const std::map<std::string, rmsnorm_dtype> kDtypes = {{"F32", RMSNORM_F32},
                                                               {"F16", RMSNORM_F16},
                                                               {"BF16", RMSNORM_BF16},
                                                               {"F64", RMSNORM_F64},
                                                               {"I8", RMSNORM_I8}};
  return kDtypes.at(name);
}

// Turns elements with the lowest byte first into those of the CPU.
void ConvertByteOrder(std::string& data, size_t size) {
  const uint16_t one = 1;
  if (*reinterpret_cast<const unsigned char*>(&one) == 1) return;
  for (size_t i = 0; i < data.size(); i += size) std::reverse(&data[i], &data[i] + size);
}

}  // namespace

std::map<std::string, StoredTensor> ReadSafetensors(const std::string& file) {
  const nlohmann::json header = Header(file);
  const size_t data = sizeof(uint64_t) + HeaderLength(file);
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::vector<size_t> offsets = entry.at("data_offsets");
    StoredTensor& tensor =
        tensors[name] = {DtypeOf(entry.at("dtype")), entry.at("shape"),
                         file.substr(data + offsets[0], offsets[1] - offsets[0])};
    ConvertByteOrder(tensor.data, rmsnorm_dtype_size(tensor.dtype));
  }
  return tensors;
}

std::map<std::string, std::string> ReadMetadata(const std::string& file) {
  return Header(file).at("__metadata__");
}

}  // namespace rmsnorm::test
