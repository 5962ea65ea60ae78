// SPDX-License-Identifier: Apache-2.0
// rmsnorm identify: which norm gave a tensor in a file. rmsnorm probe: tensors that show it.
#include "identify_command.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>

#include "cases/user_error.h"
#include "command.h"
#include "identify/identify.h"
#include "identify/probe.h"
#include "identify/text.h"
#include "little_endian.h"
#include "safetensors.h"
#include "tensor_file.h"

namespace rmsnorm::tools {
namespace {

// A message of the library with flags in place of the names of operands.
std::string InFlags(const std::map<std::string, std::string>& flags, const std::string& message) {
  constexpr char kLettersOfNames[] = "abcdefghijklmnopqrstuvwxyz_0123456789";
  std::string text;
  for (size_t begin = 0; begin < message.size();) {
    const size_t after_word = message.find_first_not_of(kLettersOfNames, begin);
    const std::string word = message.substr(begin, after_word - begin);
    const auto flag = flags.find(word);
    text += flag == flags.end() ? word : flag->second;
    if (after_word == std::string::npos) break;
    begin = std::min(message.find_first_of(kLettersOfNames, after_word), message.size());
    text += message.substr(after_word, begin - after_word);
  }
  return text;
}

}  // namespace

int IdentifyFiles(const IdentifyOptions& options) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_view views[internal::kOperands];
  std::vector<std::unique_ptr<InputTensor>> tensors;
  std::map<std::string, std::string> flags;
  for (const IdentifyFlag& flag : kIdentifyFlags) {
    flags[internal::kOperandRules[flag.operand].name] = flag.flag;
    if (options.location[flag.operand].empty()) continue;
    const TensorLocation location = ParseLocation(options.location[flag.operand]);
    InputTensor& tensor = *tensors.emplace_back(std::make_unique<InputTensor>(location));
    const TensorInfo& info = tensor.info();
    size_t count = 1;
    for (const size_t size : info.shape) count *= size;
    views[flag.operand] =
        rmsnorm_tensor(tensor.Elements(0, count), static_cast<rmsnorm_dtype>(info.dtype),
                       static_cast<int32_t>(info.shape.size()), info.shape.data(), nullptr);
    internal::SetViewIn(operands, flag.operand, &views[flag.operand]);
  }
  try {
    const identify::Answer answer = identify::Identify(operands, options.eps);
    std::cout << identify::Text(answer);
    const bool is_norm = answer.fit != identify::Fit::kNone && answer.mistake.empty();
    return is_norm ? kSuccess : kCheckFailed;
  } catch (const std::runtime_error& refused) {
    throw cases::UserError(InFlags(flags, refused.what()));
  }
}

void WriteProbe(const ProbeOptions& options) {
  const TensorLocation location = ParseLocation(options.output);
  if (location.format != FileFormat::kSafetensors || !location.name.empty()) {
    throw cases::UserError("--output: the file of several tensors must end in .safetensors");
  }
  const Dtype dtype = kDtypes.at(options.dtype);
  const auto type = static_cast<rmsnorm_dtype>(dtype);
  const auto d = static_cast<size_t>(options.d);
  const identify::Probe probe = identify::MakeProbe(d, type);
  const std::pair<const char*, const std::vector<float>*> tensors[] = {
      {"x", &probe.x},
      {"residual", &probe.residual},
      {"gate", &probe.gate},
      {"weight", &probe.weight}};
  std::vector<std::pair<std::string, TensorInfo>> named;
  for (const auto& [name, values] : tensors) {
    const size_t rows = values->size() / d;
    const bool is_weight = values == &probe.weight;
    named.emplace_back(name, TensorInfo{dtype, is_weight ? std::vector{d} : std::vector{rows, d}});
  }
  std::ofstream file(std::filesystem::u8path(location.path), std::ios::binary);
  file << SafetensorsHeader(named);
  for (const auto& [name, values] : tensors) {
    identify::Matrix matrix = identify::Rounded(*values, type, 1, values->size());
    ConvertByteOrder(matrix.bytes.data(), values->size(), ElementSize(dtype));
    file.write(matrix.bytes.data(), static_cast<std::streamsize>(matrix.bytes.size()));
  }
  file.close();
  if (!file) throw cases::UserError("cannot write " + location.path + ": " + std::strerror(errno));
}

}  // namespace rmsnorm::tools
