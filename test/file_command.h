// SPDX-License-Identifier: Apache-2.0
// Commands on files as lines of text, and their expected outputs.
//
// A line is the part of a command line after `rmsnorm`; it runs in a separate directory. A word
// such as "bf16[3,100]" stands for a file with a tensor of that type and shape; its numbers depend
// on the flag before it. The file is a .npy file, or a .safetensors file for bf16 and after "st.".
#ifndef RMSNORM_TEST_FILE_COMMAND_H_
#define RMSNORM_TEST_FILE_COMMAND_H_

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "../lib/options.h"
#include "run_command.h"
#include "slow_float.h"
#include "tensor_files.h"

namespace rmsnorm::test {

using Words = std::vector<std::string>;
using Sizes = std::vector<size_t>;

inline std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

inline size_t Product(const Sizes& shape) {
  size_t product = 1;
  for (const size_t dimension : shape) product *= dimension;
  return product;
}

// "3,100".
inline std::string Listed(const Sizes& shape) {
  std::string text;
  for (const size_t dimension : shape)
    text += (text.empty() ? "" : ",") + std::to_string(dimension);
  return text;
}

inline std::string NpyOf(const StoredTensor& tensor) {
  const std::string comma = tensor.shape.empty() ? "" : ",";
  return Npy(
      NpyHeader(tensor.dtype == "F32" ? "<f4" : "<f2", "(" + Listed(tensor.shape) + comma + ")"),
      FileData(tensor));
}

// The file that numpy writes, except for the spaces in a shape.
inline std::string NumpyFile(const StoredTensor& tensor) {
  std::string shape;
  for (const size_t dimension : tensor.shape) {
    shape += (shape.empty() ? "" : ", ") + std::to_string(dimension);
  }
  if (tensor.shape.size() == 1) shape += ",";
  std::string header = NpyHeader(tensor.dtype == "F32" ? "<f4" : "<f2", "(" + shape + ")");
  header.resize((header.size() + 10 + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  return Npy(header + "\n", FileData(tensor));
}

// A .safetensors file whose tensor "t" has an odd address, after a tensor of one byte.
inline std::string SafetensorsOf(const StoredTensor& tensor) {
  return Safetensors(
      "{" + Entry("pad", "U8", "[1]", 0, 1) + "," +
          Entry("t", tensor.dtype, "[" + Listed(tensor.shape) + "]", 1, 1 + tensor.data.size()) +
          "}",
      "!" + FileData(tensor));
}

inline uint32_t Seed(const std::string& flag) {
  uint32_t seed = 0;
  for (const char c : flag) seed = seed * 31 + static_cast<unsigned char>(c);
  return seed;
}

// The tensor for a word such as "f16[2,3]".
inline StoredTensor TensorOf(const std::string& word, uint32_t seed) {
  const size_t bracket = word.find('[');
  StoredTensor tensor = {Upper(word.substr(0, bracket)), {}, ""};
  std::istringstream sizes(word.substr(bracket + 1));
  for (size_t size; sizes >> size; sizes.ignore()) tensor.shape.push_back(size);
  const std::vector<float> numbers = Numbers(Product(tensor.shape), seed);
  if (tensor.dtype == "F32") {
    tensor.data = Bytes(numbers);
    return tensor;
  }
  for (const float number : numbers) {
    const uint32_t bits = Encode(FormatOf(DtypeOfName(tensor.dtype)), number);
    tensor.data += Bytes<uint16_t>({static_cast<uint16_t>(bits)});
  }
  return tensor;
}

// A parsed line; its tensors are in files.
struct Line {
  Words words;
  std::map<std::string, std::string> values;    // by flag
  std::map<std::string, StoredTensor> inputs;   // by flag
  std::map<std::string, StoredTensor> outputs;  // by flag; the library computes them
};

class FileCommandTest : public DirectoryTest {
 protected:
  // Runs the words as a command in the directory.
  Outcome Run(const Words& words, const Prepare& prepare = {},
              const Environment& environment = {}) const {
    return RunCommand(words, environment, prepare, File(""));
  }

  Line Read(const std::string& text) const {
    Line line;
    std::istringstream words(text);
    for (std::string word; words >> word; line.words.push_back(word)) {
      if (line.words.empty()) continue;
      const std::string flag = line.words.back();
      const bool is_tensor = word.back() == ']';
      if (is_tensor) {
        const bool is_safetensors = word[0] == 's' || word[0] == 'b';
        const StoredTensor tensor = TensorOf(word.substr(word[0] == 's' ? 3 : 0), Seed(flag));
        const std::string name = flag.substr(2) + (is_safetensors ? ".safetensors" : ".npy");
        Make(name, is_safetensors ? SafetensorsOf(tensor) : NpyOf(tensor));
        word = name + (is_safetensors ? ":t" : "");
        line.inputs[flag] = tensor;
      }
      line.values[flag] = word;
    }
    return line;
  }

  // Expects the library's results, and no other output. Returns the data of all outputs.
  std::string ExpectRight(const std::string& text, const Prepare& prepare = {}) const {
    SCOPED_TRACE(text);
    Line line = Read(text);
    Compute(line);
    std::set<std::string> names;
    for (const std::string& name : directory_.Names()) names.insert(name);
    ExpectSuccess(Run(line.words, prepare));
    std::map<std::string, size_t> tensors;  // the number of tensors per file
    std::string all;
    for (const auto& [flag, expected] : line.outputs) {
      const auto [path, name] = Split(line.values.at(flag), flag);
      SCOPED_TRACE(flag + " " + path + " " + name);
      ++tensors[path];
      all += expected.data;
      const std::string file = ReadFile(File(path));
      if (path.back() == 'y') {
        EXPECT_TRUE(file == NumpyFile(expected)) << file.substr(0, 128);
        continue;
      }
      EXPECT_EQ(static_cast<unsigned char>(file[0]) % 8, 0) << "the header is not padded";
      const auto stored = ReadSafetensors(file);
      if (stored.count(name) == 0) {
        ADD_FAILURE() << "no such tensor";
        continue;
      }
      const StoredTensor& actual = stored.at(name);
      EXPECT_EQ(actual.dtype, expected.dtype);
      EXPECT_EQ(actual.shape, expected.shape);
      EXPECT_TRUE(actual.data == expected.data);
      EXPECT_EQ(actual.begin % rmsnorm_dtype_size(DtypeOfName(actual.dtype)), 0u);
    }
    for (const auto& [path, count] : tensors) {
      names.insert(path);
      if (path.back() == 's') {
        EXPECT_EQ(ReadSafetensors(ReadFile(File(path))).size(), count);
      }
    }
    EXPECT_EQ(directory_.Names(), Words(names.begin(), names.end()));
    for (const auto& [path, count] : tensors) std::filesystem::remove(File(path));
    return all;
  }

  // Expects that the line changes nothing in the directory, which already contains its outputs.
  void ExpectRefused(const std::string& text, const std::string& problem,
                     const Prepare& prepare = {}, const Environment& environment = {}) const {
    SCOPED_TRACE(text);
    const Line line = Read(text);
    for (const char* flag : kOutputs) {
      const auto found = line.values.find(flag);
      if (found == line.values.end()) continue;
      const std::string path = Split(found->second, flag).first;
      if (path.find('/') == std::string::npos && !std::filesystem::exists(File(path))) {
        Make(path, "as it was");
      }
    }
    const auto before = Contents();
    const Outcome outcome = Run(line.words, prepare, environment);
    ExpectUserError(outcome, problem);
    EXPECT_EQ(outcome.err.find("options:"), std::string::npos) << outcome.err;
    for (const internal::OptionRule& rule : internal::kOptionRules) {
      const std::string name = rule.name;
      if (name.find('_') == std::string::npos) continue;
      EXPECT_EQ(outcome.err.find(name), std::string::npos) << "the library's name: " << outcome.err;
    }
    EXPECT_TRUE(Contents() == before);
  }

  // All regular files of the directory and their contents.
  std::map<std::string, std::string> Contents() const {
    std::map<std::string, std::string> contents;
    for (const std::string& name : directory_.Names()) {
      contents[name] = std::filesystem::is_regular_file(File(name)) &&
                               std::filesystem::file_size(File(name)) < 1000000000
                           ? ReadFile(File(name))
                           : "";
    }
    return contents;
  }

 private:
  static constexpr const char* kOutputs[] = {"--output", "--residual-output", "--grad-input",
                                             "--grad-weight", "--grad-bias"};

  // The path and the tensor name of an output.
  static std::pair<std::string, std::string> Split(const std::string& location, std::string flag) {
    const size_t colon = location.find(".safetensors:");
    if (colon != std::string::npos)
      return {location.substr(0, colon + 12), location.substr(colon + 13)};
    for (char& c : flag) c = c == '-' ? '_' : c;
    return {location, flag.substr(2)};
  }

  // Computes the outputs with one call of the library.
  static void Compute(Line& line) {
    const auto value = [&](const char* flag, const std::string& otherwise) {
      return line.values.count(flag) > 0 ? line.values.at(flag) : otherwise;
    };
    Options options;
    options.eps = std::stof(value("--eps", "1e-5"));
    options.weight_offset = std::stof(value("--weight-offset", "0"));
    options.divisor = std::stof(value("--divisor", "0"));
    const std::map<std::string, EpsPlacement> placements = {{"inside", EpsPlacement::inside},
                                                            {"outside", EpsPlacement::outside},
                                                            {"floor", EpsPlacement::floor}};
    options.eps_placement = placements.at(value("--eps-placement", "inside"));
    const std::map<std::string, Rounding> roundings = {{"after_weight", Rounding::after_weight},
                                                       {"before_weight", Rounding::before_weight},
                                                       {"inverse", Rounding::inverse}};
    options.rounding = roundings.at(value("--rounding", "after_weight"));
    if (value("--residual-rounding", "") == "unrounded") {
      options.residual_rounding = ResidualRounding::unrounded;
    }
    options.factor = std::stof(value("--factor", "0"));
    if (value("--activation", "") == "sigmoid") options.activation = Activation::sigmoid;
    if (value("--gate-placement", "") == "before") options.gate_placement = GatePlacement::before;
    if (value("--gate-rounding", "") == "rounded") options.gate_rounding = GateRounding::rounded;

    StoredTensor& x = line.inputs.at("--input");
    const size_t groups = std::stoul(value("--groups", "1"));
    const size_t length = x.shape.back();
    const auto view = [=](StoredTensor* tensor) -> View {
      if (tensor == nullptr) return {};
      Sizes shape = tensor->shape;
      if (groups > 1 && shape.back() == length) {
        shape.back() /= groups;
        shape.insert(shape.end() - 1, groups);
      }
      return View(AlignedData(*tensor), static_cast<Dtype>(DtypeOfName(tensor->dtype)),
                  shape.size(), shape.data());
    };
    const auto input = [&](const char* flag) -> StoredTensor* {
      const auto found = line.inputs.find(flag);
      return found == line.inputs.end() ? nullptr : &found->second;
    };
    const auto output = [&](const char* flag, const char* like, const char* dtype) -> View {
      if (line.values.count(flag) == 0) return {};
      const StoredTensor* const from = input(like);
      StoredTensor tensor = {from ? from->dtype : "F32", from ? from->shape : Sizes{x.shape.back()},
                             ""};
      tensor.dtype = Upper(value(dtype, tensor.dtype));
      tensor.data.resize(Product(tensor.shape) * rmsnorm_dtype_size(DtypeOfName(tensor.dtype)));
      return view(&(line.outputs[flag] = std::move(tensor)));
    };
    if (line.words[0] == "apply") {
      ForwardOperands operands;
      operands.x = view(&x);
      operands.weight = view(input("--weight"));
      operands.bias = view(input("--bias"));
      operands.residual = view(input("--residual"));
      operands.post_norm_weight = view(input("--post-norm-weight"));
      operands.gate = view(input("--gate"));
      operands.y = output("--output", "--input", "--dtype");
      operands.residual_out = output("--residual-output", "--residual", "");
      // The file of the output contains these as well.
      Sizes rows(x.shape.begin(), x.shape.end() - 1);
      if (groups > 1) rows.push_back(groups);
      const auto beside = [&](const char* flag, const std::string& dtype, const Sizes& shape) {
        const size_t size = Product(shape) * rmsnorm_dtype_size(DtypeOfName(dtype));
        line.values[flag] = Split(line.values.at("--output"), "--output").first;
        return &(line.outputs[flag] = {dtype, shape, std::string(size, '\0')});
      };
      const auto per_row = [&](StoredTensor* tensor) {
        const Sizes shape = rows.empty() ? Sizes{1} : rows;
        return View(AlignedData(*tensor), static_cast<Dtype>(DtypeOfName(tensor->dtype)),
                    shape.size(), shape.data());
      };
      if (line.values.count("--quantize") > 0) {
        operands.q = view(beside("--q", "I8", x.shape));
        operands.scale = per_row(beside("--scale", "F32", rows));
        if (line.values.at("--quantize") == "int8-asymmetric") {
          operands.zero = per_row(beside("--zero", "I8", rows));
        }
      }
      if (std::count(line.words.begin(), line.words.end(), "--quantized-only") > 0) {
        operands.y = {};
        line.outputs.erase("--output");
      }
      return forward(operands, options);
    }
    BackwardOperands operands;
    operands.x = view(&x);
    operands.dy = view(input("--grad"));
    operands.weight = view(input("--weight"));
    if (StoredTensor* const rstd = input("--rstd")) {
      Sizes leading(x.shape.begin(), x.shape.end() - 1);
      if (leading.empty()) leading.push_back(1);
      operands.rstd = ConstView(AlignedData(*rstd), Dtype::f32, leading.size(), leading.data());
    }
    operands.dx = output("--grad-input", "--grad", "");
    operands.dw = output("--grad-weight", "--weight", "--grad-weight-dtype");
    operands.db = output("--grad-bias", "--bias", "--grad-bias-dtype");
    backward(operands, options);
  }
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FILE_COMMAND_H_
