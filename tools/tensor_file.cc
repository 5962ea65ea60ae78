// SPDX-License-Identifier: Apache-2.0
#include "tensor_file.h"

#include <string_view>
#include <utility>

#include "npy.h"
#include "safetensors.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

constexpr std::string_view kNpyEnding = ".npy";
constexpr std::string_view kSafetensorsEnding = ".safetensors";

bool EndsWith(std::string_view text, std::string_view ending) {
  return text.size() > ending.size() && text.substr(text.size() - ending.size()) == ending;
}

Tensor ParseFile(const TensorLocation& location, const InputFile& file) {
  try {
    if (location.format == FileFormat::kNpy) return ParseNpy(file);
    return ParseSafetensors(file, location.name);
  } catch (const UserError& error) {
    throw UserError(location.path + ": " + error.what());
  }
}

}  // namespace

TensorLocation ParseLocation(const std::string& text) {
  if (EndsWith(text, kSafetensorsEnding)) return {text, FileFormat::kSafetensors, {}};
  if (EndsWith(text, kNpyEnding)) return {text, FileFormat::kNpy, {}};
  const std::string separator = std::string(kSafetensorsEnding) + ":";
  // A JSON string has a bare quote at its ends only, so that the last separator before one begins
  // it, unless that quote is the end of the text.
  size_t found = text.rfind(separator + '"', text.size() - separator.size() - 2);
  std::optional<std::string> name;
  if (found != std::string::npos) name = ParseJsonString(text.substr(found + separator.size()));
  if (!name) {
    found = text.rfind(separator);
    if (found == std::string::npos) {
      throw UserError(text + ": the name must end in .npy, .safetensors or .safetensors:TENSOR");
    }
    name = text.substr(found + separator.size());
    if (name->empty()) throw UserError(text + ": no tensor name after the colon");
  }
  return {text.substr(0, found + kSafetensorsEnding.size()), FileFormat::kSafetensors, name};
}

InputTensor::InputTensor(const TensorLocation& location)
    : file_(location.path), tensor_(ParseFile(location, file_)) {}

const void* InputTensor::Elements(size_t first, size_t count) {
  const size_t size = ElementSize(info().dtype);
  elements_.resize(count * size);
  file_.Read(tensor_.begin + first * size, elements_.size(), elements_.data());
  return elements_.data();
}

TensorLocation ParseOutputLocation(const std::string& text, const std::string& name) {
  TensorLocation location = ParseLocation(text);
  if (!location.name) location.name = name;
  return location;
}

std::string FileHeader(const std::vector<OutputTensor>& tensors) {
  const TensorLocation& location = tensors.front().location;
  try {
    if (location.format == FileFormat::kNpy) {
      if (tensors.size() > 1) throw UserError("a .npy file holds one tensor");
      return NpyHeader(tensors.front().info);
    }
    std::vector<std::pair<std::string, TensorInfo>> named;
    for (const OutputTensor& tensor : tensors)
      named.emplace_back(*tensor.location.name, tensor.info);
    return SafetensorsHeader(named);
  } catch (const UserError& error) {
    throw UserError(location.path + ": " + error.what());
  }
}

}  // namespace rmsnorm::tools
