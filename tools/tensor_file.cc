// SPDX-License-Identifier: Apache-2.0
#include "tensor_file.h"

#include <string_view>

#include "command.h"
#include "npy.h"
#include "safetensors.h"

namespace rmsnorm::tools {
namespace {

constexpr std::string_view kNpyEnding = ".npy";
constexpr std::string_view kSafetensorsEnding = ".safetensors";

bool EndsWith(std::string_view text, std::string_view ending) {
  return text.size() > ending.size() && text.substr(text.size() - ending.size()) == ending;
}

Tensor ParseFile(const TensorLocation& location, std::string_view bytes) {
  try {
    if (location.format == FileFormat::kNpy) return ParseNpy(bytes);
    return ParseSafetensors(bytes, location.name);
  } catch (const UserError& error) {
    throw UserError(location.path + ": " + error.what());
  }
}

}  // namespace

TensorLocation ParseLocation(const std::string& text) {
  const size_t named = text.rfind(std::string(kSafetensorsEnding) + ":");
  if (named != std::string::npos) {
    const size_t colon = named + kSafetensorsEnding.size();
    if (colon + 1 == text.size()) throw UserError(text + ": no tensor name after the colon");
    return {text.substr(0, colon), FileFormat::kSafetensors, text.substr(colon + 1)};
  }
  if (EndsWith(text, kSafetensorsEnding)) return {text, FileFormat::kSafetensors, ""};
  if (EndsWith(text, kNpyEnding)) return {text, FileFormat::kNpy, ""};
  throw UserError(text + ": the name must end in .npy, .safetensors or .safetensors:TENSOR");
}

InputTensor::InputTensor(const TensorLocation& location)
    : file_(location.path), tensor_(ParseFile(location, file_.bytes())) {}

std::string FileHeader(const TensorLocation& location, const TensorInfo& info) {
  try {
    if (location.format == FileFormat::kNpy) return NpyHeader(info);
    return SafetensorsHeader(location.name.empty() ? "output" : location.name, info);
  } catch (const UserError& error) {
    throw UserError(location.path + ": " + error.what());
  }
}

}  // namespace rmsnorm::tools
