// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .npy or .safetensors file: refused with a UserError, or a tensor that lies within
// the file and is the same again after it has been written.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "npy.h"
#include "safetensors.h"
#include "tensor.h"
#include "user_error.h"

using rmsnorm::tools::Tensor;

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

bool Same(const Tensor& a, const Tensor& b) {
  return a.info.dtype == b.info.dtype && a.info.shape == b.info.shape && a.data == b.data;
}

void RequireWithin(std::string_view file, const Tensor& tensor) {
  Require(tensor.data.data() >= file.data());
  Require(tensor.data.data() + tensor.data.size() <= file.data() + file.size());
  Require(tensor.data.size() == ByteSize(tensor.info));
}

void TestNpy(std::string_view file) {
  const Tensor tensor = rmsnorm::tools::ParseNpy(file);
  RequireWithin(file, tensor);
  const std::string again = NpyHeader(tensor.info) + std::string(tensor.data);
  Require(Same(tensor, rmsnorm::tools::ParseNpy(again)));
}

void TestSafetensors(std::string_view file) {
  const Tensor tensor = rmsnorm::tools::ParseSafetensors(file, std::nullopt);
  RequireWithin(file, tensor);
  const std::string again =
      rmsnorm::tools::SafetensorsHeader({{"x", tensor.info}}) + std::string(tensor.data);
  Require(Same(tensor, rmsnorm::tools::ParseSafetensors(again, "x")));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  for (const auto test : {TestNpy, TestSafetensors}) {
    try {
      test(file);
    } catch (const rmsnorm::tools::UserError&) {
      // Refused, as most inputs are.
    }
  }
  return 0;
}
