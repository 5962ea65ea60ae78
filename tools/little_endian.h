// SPDX-License-Identifier: Apache-2.0
// Numbers as both file formats store them: the lowest byte first.
#ifndef RMSNORM_TOOLS_LITTLE_ENDIAN_H_
#define RMSNORM_TOOLS_LITTLE_ENDIAN_H_

#include <algorithm>
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

// Turns elements in a file's order of bytes into the CPU's, or back.
inline void ConvertByteOrder(char* elements, size_t count, size_t size) {
  const uint16_t one = 1;
  if (*reinterpret_cast<const unsigned char*>(&one) == 1) return;
  for (size_t i = 0; i < count; ++i) std::reverse(elements + i * size, elements + (i + 1) * size);
}

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_LITTLE_ENDIAN_H_
