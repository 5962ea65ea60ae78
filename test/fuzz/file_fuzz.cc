// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .npy or .safetensors file: a UserError refuses them, or the tensor lies within the
// file and stays the same after it is written and read.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "cases/user_error.h"
#include "input_file.h"
#include "npy.h"
#include "safetensors.h"
#include "tensor.h"

using rmsnorm::tools::InputFile;
using rmsnorm::tools::Tensor;

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// A file in memory with these bytes.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : fd_(memfd_create("file_fuzz", MFD_CLOEXEC)) {
    Require(write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~MemoryFile() { close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

struct Parsed {
  Tensor tensor;
  std::string data;
};

template <class Parse>
Parsed ParseBytes(const std::string& bytes, const Parse& parse) {
  const MemoryFile memory(bytes);
  const InputFile file(memory.path());
  const Tensor tensor = parse(file);
  const std::string data = file.Read(tensor.begin, ByteSize(tensor.info));
  Require(tensor.begin <= bytes.size() && data.size() == ByteSize(tensor.info));
  return {tensor, data};
}

void RequireSame(const Parsed& a, const Parsed& b) {
  Require(a.tensor.info.dtype == b.tensor.info.dtype);
  Require(a.tensor.info.shape == b.tensor.info.shape);
  Require(a.data == b.data);
}

void TestNpy(const std::string& bytes) {
  const Parsed parsed = ParseBytes(bytes, rmsnorm::tools::ParseNpy);
  RequireSame(parsed,
              ParseBytes(NpyHeader(parsed.tensor.info) + parsed.data, rmsnorm::tools::ParseNpy));
}

void TestSafetensors(const std::string& bytes) {
  using rmsnorm::tools::ParseSafetensors;
  const Parsed parsed =
      ParseBytes(bytes, [](const InputFile& file) { return ParseSafetensors(file, ""); });
  const std::string header = rmsnorm::tools::SafetensorsHeader({{"x", parsed.tensor.info}});
  RequireSame(parsed, ParseBytes(header + parsed.data, [](const InputFile& file) {
                return ParseSafetensors(file, "x");
              }));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const auto test : {TestNpy, TestSafetensors}) {
    try {
      test(bytes);
    } catch (const rmsnorm::cases::UserError&) {
      // Most inputs are refused.
    }
  }
  return 0;
}
