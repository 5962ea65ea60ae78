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
#include <cstring>
#include <filesystem>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "../../lib/options.h"
#include "run_command.h"
#include "tensor_files.h"

namespace rmsnorm::test {

using Words = std::vector<std::string>;
using Sizes = std::vector<size_t>;
using internal::Operand;

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
  tensor.data = Bytes(numbers);
  if (tensor.dtype == "F32") return tensor;
  // Magnitudes from 1/4 to 4.
  const uint32_t quarter = tensor.dtype == "F16" ? 0x3400 : 0x3E80;
  const uint32_t count = tensor.dtype == "F16" ? 0x1000 : 0x200;
  std::vector<uint16_t> narrow;
  for (const float number : numbers) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    narrow.push_back(static_cast<uint16_t>((bits >> 16 & 0x8000) | (quarter + bits / 16 % count)));
  }
  tensor.data = Bytes(narrow);
  return tensor;
}

// A parsed line; its tensors are in files.
struct Line {
  Words words;
  std::map<std::string, std::string> values;    // by flag
  std::map<std::string, StoredTensor> inputs;   // by flag
  std::map<std::string, StoredTensor> outputs;  // by flag; the library computes them
};

// The flag of an output, of the input with its shape and type, and of its type.
struct OutputFlags {
  const char* flag;
  Operand operand;
  const char* like;
  const char* dtype;
};
constexpr OutputFlags kOutputFlags[] = {
    {"--output", internal::kY, "--input", "--dtype"},
    {"--residual-output", internal::kResidualOut, "--residual", ""},
    {"--grad-input", internal::kDx, "--grad", ""},
    {"--grad-weight", internal::kDw, "--weight", "--grad-weight-dtype"},
    {"--grad-bias", internal::kDb, "--bias", "--grad-bias-dtype"}};

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
    for (const OutputFlags& output : kOutputFlags) {
      const auto found = line.values.find(output.flag);
      if (found == line.values.end()) continue;
      const std::string path = Split(found->second, output.flag).first;
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
    const auto value = [&](const std::string& flag, const std::string& otherwise) {
      return line.values.count(flag) > 0 ? line.values.at(flag) : otherwise;
    };
    rmsnorm_options options = rmsnorm_default_options();
    for (int i = 0; i < internal::kOptions; ++i) {
      const auto option = static_cast<internal::Option>(i);
      std::string flag = std::string("--") + internal::kOptionRules[i].name;
      std::replace(flag.begin(), flag.end(), '_', '-');
      const std::string given = value(flag, "");
      if (given.empty()) continue;
      if (internal::IsNumber(option)) {
        internal::SetValueIn(options, option, std::stof(given));
      } else {
        internal::SetValueIn(options, option, internal::WordOf(option, given.c_str()));
      }
    }

    const bool is_backward = line.words[0] == "backward";
    const Sizes x = line.inputs.at("--input").shape;
    const Sizes rows(x.begin(), x.end() - 1);
    rmsnorm_view views[internal::kOperands];
    rmsnorm_operands operands = rmsnorm_no_operands();
    const auto set = [&](Operand operand, StoredTensor& tensor) {
      const internal::OperandRule& rule = internal::kOperandRules[operand];
      const internal::Role role = is_backward ? rule.backward : rule.forward;
      if (role == internal::Role::kAbsent) return;  // it gives a gradient its shape and type
      Sizes shape = rule.shape == internal::Shape::kPerRow ? rows : tensor.shape;
      if (shape.empty()) shape.push_back(1);
      views[operand] = rmsnorm_tensor(AlignedData(tensor), DtypeOfName(tensor.dtype),
                                      static_cast<int32_t>(shape.size()), shape.data(), nullptr);
      internal::SetViewIn(operands, operand, &views[operand]);
    };
    const auto make = [&](const std::string& flag, Operand operand, const std::string& dtype,
                          const Sizes& shape) {
      const size_t size = Product(shape) * rmsnorm_dtype_size(DtypeOfName(dtype));
      set(operand, line.outputs[flag] = {dtype, shape, std::string(size, '\0')});
    };
    const std::pair<const char*, Operand> inputs[] = {
        {"--input", internal::kX},
        {"--weight", internal::kWeight},
        {"--bias", internal::kBias},
        {"--residual", internal::kResidual},
        {"--post-norm-weight", internal::kPostNormWeight},
        {"--gate", internal::kGate},
        {"--grad", internal::kDy},
        {"--rstd", internal::kRstd}};
    for (const auto& [flag, operand] : inputs) {
      const auto found = line.inputs.find(flag);
      if (found != line.inputs.end()) set(operand, found->second);
    }
    for (const OutputFlags& output : kOutputFlags) {
      if (line.values.count(output.flag) == 0) continue;
      const auto like = line.inputs.find(output.like);
      const bool is_like = like != line.inputs.end();
      make(output.flag, output.operand,
           Upper(value(output.dtype, is_like ? like->second.dtype : "f32")),
           is_like ? like->second.shape : Sizes{x.back()});
    }
    // The file of the output contains these as well.
    const std::string quantisation = value("--quantize", "");
    if (!quantisation.empty()) {
      make("--q", internal::kQ, "I8", x);
      make("--scale", internal::kScale, "F32", rows);
      if (quantisation == "int8-asymmetric") make("--zero", internal::kZero, "I8", rows);
      for (const char* flag : {"--q", "--scale", "--zero"}) {
        line.values[flag] = Split(line.values.at("--output"), "--output").first;
      }
    }
    check(is_backward ? rmsnorm_backward(&operands, &options, nullptr)
                      : rmsnorm_forward(&operands, &options, nullptr));
  }
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FILE_COMMAND_H_
