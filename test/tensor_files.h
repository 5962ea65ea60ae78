// SPDX-License-Identifier: Apache-2.0
// Valid and invalid bytes of tensor files, made and read without the command's own code.
#ifndef RMSNORM_TEST_TENSOR_FILES_H_
#define RMSNORM_TEST_TENSOR_FILES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace rmsnorm::test {

// The elements of `values` as they lie in memory.
template <class T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

inline std::string LittleEndian(uint64_t value, int size) {
  std::string bytes;
  for (int i = 0; i < size; ++i) bytes += static_cast<char>(value >> 8 * i);
  return bytes;
}

// Elements as they lie in a file, made of those in memory, or the other way round.
inline std::string InFileOrder(std::string elements, size_t size) {
  if (Bytes<uint16_t>({1})[0] == 1) return elements;
  for (size_t i = 0; i < elements.size(); i += size) {
    std::reverse(&elements[i], &elements[i] + size);
  }
  return elements;
}

// A .npy file of any version with any header, not padded.
inline std::string Npy(const std::string& header, const std::string& data, int version = 1) {
  return std::string("\x93NUMPY") + static_cast<char>(version) + '\0' +
         LittleEndian(header.size(), version == 1 ? 2 : 4) + header + data;
}

inline std::string NpyHeader(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

// A .safetensors file with any header, not padded.
inline std::string Safetensors(const std::string& header, const std::string& data) {
  return LittleEndian(header.size(), 8) + header + data;
}

// The header's text for one tensor.
inline std::string Entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, size_t begin, size_t end) {
  return "\"" + name + "\": {\"dtype\": \"" + dtype + "\", \"shape\": " + shape +
         ", \"data_offsets\": [" + std::to_string(begin) + ", " + std::to_string(end) + "]}";
}

// Numbers around 0 without a pattern; they depend on the seed.
inline std::vector<float> Numbers(size_t count, uint32_t seed = 1) {
  std::vector<float> numbers(count);
  uint32_t state = seed;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-30f;
  }
  return numbers;
}

// Text of this capacity is on the heap, and aligned. libc++ keeps short text at an odd address.
constexpr size_t kAligned = 64;

struct StoredTensor {
  std::string dtype;  // in the file's notation
  std::vector<size_t> shape;
  std::string data;  // as it lies in memory
  size_t begin = 0;  // offset of its data in the file
};

// The numbers of a tensor, which may lie at an odd address in a copy of it.
inline char* AlignedData(StoredTensor& tensor) {
  tensor.data.reserve(kAligned);
  return tensor.data.data();
}

// The dtype for a .safetensors name.
inline rmsnorm_dtype DtypeOfName(const std::string& name) {
  if (name == "F32") return RMSNORM_F32;
  if (name == "F16") return RMSNORM_F16;
  if (name == "BF16") return RMSNORM_BF16;
  if (name == "F64") return RMSNORM_F64;
  if (name == "I8") return RMSNORM_I8;
  throw std::runtime_error("unknown dtype " + name);
}

// The size of an element with a .safetensors name, which ends in its bits.
inline size_t SizeOfName(const std::string& name) {
  return std::stoul(name.substr(name.find_first_of("0123456789"))) / 8;
}

// The elements of a tensor as they lie in a file.
inline std::string FileData(const StoredTensor& tensor) {
  return InFileOrder(tensor.data, SizeOfName(tensor.dtype));
}

// All tensors of a well-formed .safetensors file.
std::map<std::string, StoredTensor> ReadSafetensors(const std::string& file);

// The metadata of such a file.
std::map<std::string, std::string> ReadMetadata(const std::string& file);

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_TENSOR_FILES_H_
