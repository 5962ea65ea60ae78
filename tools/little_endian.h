// SPDX-License-Identifier: Apache-2.0
// Integers as both file formats store them.
#ifndef RMSNORM_TOOLS_LITTLE_ENDIAN_H_
#define RMSNORM_TOOLS_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rmsnorm::tools {

// `bytes` is at most 8 long.
inline uint64_t ReadLittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

inline std::string LittleEndian(uint64_t value, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  return bytes;
}

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_LITTLE_ENDIAN_H_
