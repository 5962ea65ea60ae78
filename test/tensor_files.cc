// SPDX-License-Identifier: Apache-2.0
// A separate file: including the JSON library would add eight seconds to the compilation of each
// test.
#include "tensor_files.h"

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

}  // namespace

std::map<std::string, StoredTensor> ReadSafetensors(const std::string& file) {
  const nlohmann::json header = Header(file);
  const size_t data = sizeof(uint64_t) + HeaderLength(file);
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::vector<size_t> offsets = entry.at("data_offsets");
    tensors[name] = {entry.at("dtype"), entry.at("shape"),
                     file.substr(data + offsets[0], offsets[1] - offsets[0]), data + offsets[0]};
    tensors[name].data = FileData(tensors[name]);
    tensors[name].data.reserve(kAligned);
  }
  return tensors;
}

std::map<std::string, std::string> ReadMetadata(const std::string& file) {
  return Header(file).at("__metadata__");
}

}  // namespace rmsnorm::test
