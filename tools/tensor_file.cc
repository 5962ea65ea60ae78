// SPDX-License-Identifier: Apache-2.0
#include "tensor_file.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "cases/user_error.h"
#include "little_endian.h"
#include "npy.h"
#include "safetensors.h"

namespace rmsnorm::tools {
namespace {

constexpr std::string_view kNpyEnding = ".npy";
constexpr std::string_view kSafetensorsEnding = ".safetensors";

bool EndsWith(std::string_view text, std::string_view ending) {
  return text.size() > ending.size() && text.substr(text.size() - ending.size()) == ending;
}

Tensor ParseFile(const TensorLocation& location, const InputFile& file) {
  try {
    return location.format == FileFormat::kNpy ? ParseNpy(file)
                                               : ParseSafetensors(file, location.name);
  } catch (const cases::UserError& error) {
    throw cases::UserError(location.path + ": " + error.message());
  }
}

}  // namespace

TensorLocation ParseLocation(const std::string& text) {
  std::vector<TensorLocation> readings;  // the longest path first
  if (EndsWith(text, kNpyEnding)) readings.push_back({text, FileFormat::kNpy, ""});
  if (EndsWith(text, kSafetensorsEnding)) readings.push_back({text, FileFormat::kSafetensors, ""});
  const std::string separator = std::string(kSafetensorsEnding) + ":";
  for (size_t end = text.size(); end > 0;) {
    const size_t found = text.rfind(separator, end - 1);
    if (found == std::string::npos) break;
    const size_t colon = found + kSafetensorsEnding.size();
    readings.push_back({text.substr(0, colon), FileFormat::kSafetensors, text.substr(colon + 1)});
    end = found;
  }
  if (readings.empty()) {
    throw cases::UserError(text +
                           ": the name must end in .npy, .safetensors or .safetensors:TENSOR");
  }
  const auto exists = [](const TensorLocation& reading) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::u8path(reading.path), ignored);
  };
  auto chosen = std::find_if(readings.begin(), readings.end(), exists);
  if (chosen == readings.end()) chosen = readings.begin();
  if (chosen->name.empty() && chosen->path != text) {
    throw cases::UserError(text + ": no tensor name after the colon");
  }
  return *chosen;
}

InputTensor::InputTensor(const TensorLocation& location)
    : file_(location.path), tensor_(ParseFile(location, file_)) {}

char* InputTensor::Elements(size_t first, size_t count) {
  const size_t size = ElementSize(info().dtype);
  elements_.resize(count * size);
  file_.Read(tensor_.begin + first * size, elements_.size(), elements_.data());
  ConvertByteOrder(elements_.data(), count, size);
  return elements_.data();
}

}  // namespace rmsnorm::tools
