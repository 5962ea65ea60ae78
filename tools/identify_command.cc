// SPDX-License-Identifier: Apache-2.0
// rmsnorm identify: which norm gave a tensor in a file. rmsnorm probe: tensors that show it.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>

#include "cases/number_text.h"
#include "cases/user_error.h"
#include "command.h"
#include "identify/identify.h"
#include "identify/probe.h"
#include "identify/text.h"
#include "little_endian.h"
#include "safetensors.h"
#include "tensor_file.h"
#include "words.h"

namespace rmsnorm::tools {
namespace {

struct IdentifyFlag {
  internal::Operand operand;
  const char* flag;
  const char* help;
  bool is_required = false;
};

constexpr IdentifyFlag kIdentifyFlags[] = {
    {internal::kX, "--input", "What the implementation was given: f32, f16 or bf16, of any shape",
     true},
    {internal::kWeight, "--weight", "Its weight, of any shape that a weight may have"},
    {internal::kBias, "--bias", "Its bias"},
    {internal::kPostNormWeight, "--post-norm-weight", "The weight of a norm of x before the sum"},
    {internal::kGate, "--gate", "Its gate, of the shape of x"},
    {internal::kResidual, "--residual", "The residual that it adds to x, of the shape of x"},
    {internal::kY, "--output", "What it gave back, of the shape of x", true},
    {internal::kResidualOut, "--residual-output", "Its sum of the residual and x"},
};

struct IdentifyOptions {
  std::string location[internal::kOperands];  // empty: none
  std::vector<float> eps;
};

// What is wrong with the text of an eps; empty if nothing is.
std::string ProblemOfEps(const std::string& text) {
  float eps;
  const bool is_right = cases::ReadNumber(text, eps) && eps >= 0 && std::isfinite(eps);
  return is_right ? "" : "'" + text + "' is not a finite 32-bit number from 0 up";
}

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

struct ProbeOptions {
  std::string output;
  int32_t d = 4096;
  std::string dtype = "f32";
};

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

}  // namespace

void AddIdentify(CLI::App& app, int& status) {
  CLI::App& identify =
      *app.add_subcommand("identify", "Tell which norm computed a tensor in a file");
  const auto options = std::make_shared<IdentifyOptions>();
  for (const IdentifyFlag& flag : kIdentifyFlags) {
    identify.add_option(flag.flag, options->location[flag.operand], flag.help)
        ->type_name("FILE[:TENSOR]")
        ->check(FileName())
        ->required(flag.is_required);
  }
  identify.get_option("--residual-output")->needs(identify.get_option("--residual"));
  identify.add_option("--eps", options->eps, "Values to try beside the usual ones")
      ->type_name("NUMBER")
      ->delimiter(',')
      ->check(CLI::Validator(ProblemOfEps, ""));
  identify.footer("The exit status is 1 if no norm fits, or if the one that fits has a mistake.");
  identify.callback([options, &status] { status = IdentifyFiles(*options); });

  CLI::App& probe =
      *app.add_subcommand("probe", "Write tensors on which norms differ, for rmsnorm identify");
  const auto written = std::make_shared<ProbeOptions>();
  probe
      .add_option("--output", written->output,
                  "The .safetensors file to make or replace, with x, residual, gate and weight")
      ->type_name("FILE")
      ->check(FileName())
      ->required();
  AddInteger(probe, "--d", written->d, 16, 1 << 20, "Elements of a row");
  probe.add_option("--dtype", written->dtype, "The type of all tensors")
      ->check(OneOf(kDtypes))
      ->capture_default_str();
  probe.callback([written, &status] {
    WriteProbe(*written);
    status = kSuccess;
  });
}

}  // namespace rmsnorm::tools
