// SPDX-License-Identifier: Apache-2.0
// Apart from the header, as a test takes eight seconds more to compile with the JSON library.
#include "tensor_files.h"

#include <nlohmann/json.hpp>

namespace rmsnorm::test {

std::map<std::string, StoredTensor> ReadSafetensors(const std::string& file) {
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof length);
  const auto header = nlohmann::json::parse(file.substr(sizeof length, length));
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::vector<size_t> offsets = entry.at("data_offsets");
    tensors[name] = {entry.at("dtype"), entry.at("shape"),
                     file.substr(sizeof length + length + offsets[0], offsets[1] - offsets[0])};
  }
  return tensors;
}

}  // namespace rmsnorm::test
