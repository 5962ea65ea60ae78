// SPDX-License-Identifier: Apache-2.0
// `rmsnorm apply` on stored tensors: the exact bits of the definition (contract.safetensors), and
// the results of PyTorch and transformers for real activations and weights (expected.safetensors).
//
// The environment variable RMSNORM_DATA names the folder of the files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "file_command.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

Words Parts(const std::string& text, char separator) {
  Words parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

class ApplyData : public FileCommandTest {
 protected:
  static std::string Data(const std::string& name) {
    const char* const folder = std::getenv("RMSNORM_DATA");
    if (folder == nullptr) throw std::runtime_error("RMSNORM_DATA is not set");
    return std::string(folder) + "/" + name;
  }

  static const StoredTensor& Stored(const std::string& file, const std::string& name) {
    static std::map<std::string, std::map<std::string, StoredTensor>> files;
    auto [found, is_new] = files.try_emplace(file);
    if (is_new) found->second = ReadSafetensors(ReadFile(Data(file)));
    return found->second.at(name);
  }

  // The outputs of `apply`, whose options are one line. There, "@name" is a tensor of
  // inputs.safetensors, and "FILE@name" a tensor of another file.
  std::map<std::string, StoredTensor> Apply(const std::string& line,
                                            const Environment& environment = {}) const {
    Words words = {"apply", "--output", "y.safetensors"};
    for (std::string word : Parts(line, ' ')) {
      const size_t at = word.find('@');
      if (at != std::string::npos) {
        const std::string file = at == 0 ? "inputs" : word.substr(0, at);
        word = Data(file + ".safetensors:" + word.substr(at + 1));
      }
      words.push_back(word);
    }
    ExpectSuccess(Run(words, {}, environment));
    return ReadSafetensors(ReadFile(File("y.safetensors")));
  }

  static uint32_t BitsOf(const StoredTensor& tensor, size_t index) {
    return LoadBits(DtypeOfName(tensor.dtype), tensor.data.data(), index);
  }
  static double Value(const StoredTensor& tensor, size_t index) {
    return Decode(FormatOf(DtypeOfName(tensor.dtype)), BitsOf(tensor, index));
  }
};

// The tensors "y.OPTION.D.X.W.Y", each on one of this CPU's targets: contract_test.cc tests all of
// them on each target, with any number of threads.
TEST_F(ApplyData, MeetsEveryBitOfTheContract) {
  const std::map<std::string, std::string> options = {
      {"default", "@x"},
      {"llama", "@x --rounding before_weight"},
      {"gemma", "@x --eps 1e-6 --weight-offset 1"},
      {"outside", "@x --eps 1e-6 --eps-placement outside"},
      {"divisor", "@x --divisor 100.5"},
      {"eps0", "@x0 --eps 0"},
      {"big", "@big"},
      {"tiny", "@tiny --eps 0"}};
  const std::string info = RunCommand({"info"}).out;
  const std::string key = "supported targets: ";
  const size_t begin = info.find(key) + key.size();
  const Words targets = Parts(info.substr(begin, info.find('\n', begin) - begin), ' ');
  EXPECT_EQ(targets.back(), "reference");
  size_t compared = 0;
  for (const auto& [name, expected] : ReadSafetensors(ReadFile(Data("contract.safetensors")))) {
    const Words parts = Parts(name, '.');
    if (parts[0] != "y") continue;
    const std::string types = "." + parts[2] + "." + parts[3];
    std::string line = "--input contract" + options.at(parts[1]);
    line.insert(std::min(line.find(' ', 8), line.size()), types);
    line += " --weight contract@w" + types + "." + parts[4] + " --dtype ";
    for (const char c : parts[5]) line += static_cast<char>(std::tolower(c));
    SCOPED_TRACE(name + " " + line);
    const std::string& target = targets[++compared % targets.size()];
    const StoredTensor y = Apply(line, {{"RMSNORM_TARGET", target}}).at("output");
    ASSERT_EQ(y.dtype, expected.dtype);
    ASSERT_EQ(y.shape, expected.shape);
    EXPECT_TRUE(
        SameBits(DtypeOfName(y.dtype), expected.data.data(), y.data.data(), Product(y.shape)));
  }
  EXPECT_GE(compared, 6u * 20u);
}

// PyTorch sums in another order, so r may differ by an ulp or two, and each product rounds once
// more.
constexpr int64_t kFewUlp = 4;

struct Type {
  std::string tag;  // in the names of the tensors
  rmsnorm_dtype code;
};

class ApplyExpected : public ApplyData, public testing::WithParamInterface<Type> {
 protected:
  const StoredTensor& Expected(const std::string& name) const {
    return Stored("expected.safetensors", name + "." + GetParam().tag);
  }
  // A "T" after a dot stands for the type.
  StoredTensor Output(std::string line) const {
    for (size_t at; (at = line.find(".T")) != std::string::npos;) {
      line.replace(at + 1, 1, GetParam().tag);
    }
    return Apply(line).at("output");
  }
};

TEST_P(ApplyExpected, AsOthersComputedIt) {
  struct Case {
    const char* name;
    const char* line;
    int64_t narrow;  // the allowed error of f16 and bf16 in ulp
  };
  for (const Case& c :
       {Case{"torch_rms_norm", "--input @x.T --weight @weight.T", 1},
        Case{"torch_rms_norm_no_weight", "--input @x.T", 1},
        Case{"llama", "--input @x.T --weight @weight.T --rounding before_weight", 2},
        Case{"residual_llama",
             "--input expected@residual_out.T --weight @weight.T --rounding before_weight", 2},
        Case{"residual_llama",
             "--input @x.T --residual @residual.T --weight @weight.T --rounding before_weight", 2},
        Case{"deepseek_v3", "--input @x.T --weight @weight.T --rounding before_weight --eps 1e-6",
             2},
        Case{"t5", "--input @x.T --weight @weight.T --rounding before_weight --eps 1e-6", 2},
        Case{"gemma", "--input @x.T --weight @weight.T --weight-offset 1 --eps 1e-6", 1},
        Case{"eps_outside", "--input @x.T --weight @weight.T --eps 1e-6 --eps-placement outside",
             1}}) {
    SCOPED_TRACE(c.line);
    const StoredTensor actual = Output(c.line);
    const StoredTensor& expected = Expected(c.name);
    ASSERT_EQ(actual.dtype, expected.dtype);
    ASSERT_EQ(actual.shape, expected.shape);
    int64_t worst = 0;
    for (size_t i = 0; i < Product(actual.shape); ++i) {
      ASSERT_TRUE(std::isfinite(Value(actual, i)) && std::isfinite(Value(expected, i)));
      worst = std::max(worst, UlpsBetween(GetParam().code, BitsOf(actual, i), BitsOf(expected, i)));
    }
    EXPECT_LE(worst, GetParam().code == RMSNORM_F32 ? kFewUlp : c.narrow);
  }
}

// The sum is rounded once, so its bits are PyTorch's. y has the bits of the norm of the stored sum.
TEST_P(ApplyExpected, TheSumOfAResidual) {
  const std::string norm = " --weight @weight.T --rounding before_weight";
  const StoredTensor y =
      Output("--input @x.T --residual @residual.T --residual-output sum.safetensors" + norm);
  const StoredTensor sum = ReadSafetensors(ReadFile(File("sum.safetensors"))).at("residual_output");
  EXPECT_EQ(sum.dtype, Expected("residual_out").dtype);
  EXPECT_EQ(sum.shape, Expected("residual_out").shape);
  EXPECT_EQ(sum.data, Expected("residual_out").data);
  EXPECT_EQ(y.data, Output("--input expected@residual_out.T" + norm).data);
}

// Weight and y are f32; but n was rounded to the type of x first, so y may differ by an ulp of that
// type.
TEST_P(ApplyExpected, LlamaWithAWeightInF32) {
  const StoredTensor actual =
      Output("--input @x.T --weight @weight.f32 --rounding before_weight --dtype f32");
  const StoredTensor& expected = Expected("llama_weight_f32");
  const StoredTensor& weight = Stored("inputs.safetensors", "weight.f32");
  ASSERT_EQ(actual.dtype, "F32");
  ASSERT_EQ(expected.dtype, "F32");
  ASSERT_EQ(actual.shape, expected.shape);
  double worst = 0;
  for (size_t i = 0; i < Product(actual.shape); ++i) {
    const double w = Value(weight, i % weight.shape[0]);
    const double y = Value(expected, i);
    double allowed = kFewUlp * Ulp(RMSNORM_F32, y);
    if (GetParam().code != RMSNORM_F32) {
      allowed = Ulp(GetParam().code, y / w) * std::fabs(w) + Ulp(RMSNORM_F32, y);
    }
    worst = std::max(worst, std::fabs(Value(actual, i) - y) / allowed);
  }
  EXPECT_LE(worst, 1);
}

// The relative error of r is at most ((k + 7 + b) / 2 + 4) 2^-24, where k = 4 and b = 0 for d = 512
// (doc/definition.md, section 15). The products with x and with the weight round once each in f32.
// The last rounding is to y's type; in f32 it is the rounding of the product with the weight.
TEST_P(ApplyExpected, IsWithinTheBoundOfTheExactValue) {
  constexpr double kBound = ((4 + 7) / 2.0 + 4 + 2) * 0x1p-24;
  const StoredTensor actual = Output("--input @x.T --weight @weight.T");
  const StoredTensor& exact = Expected("exact_f64");
  ASSERT_EQ(exact.dtype, "F64");
  ASSERT_EQ(actual.shape, exact.shape);
  double worst = 0;
  for (size_t i = 0; i < Product(actual.shape); ++i) {
    double y;
    std::memcpy(&y, &exact.data[8 * i], sizeof y);
    const double half_ulp = GetParam().code == RMSNORM_F32 ? 0 : Ulp(GetParam().code, y) / 2;
    worst = std::max(worst, std::fabs(Value(actual, i) - y) / (half_ulp + kBound * std::fabs(y)));
  }
  EXPECT_LE(worst, 1);
}

// A checkpoint holds the weight, and .npy files hold x.
TEST_P(ApplyExpected, OtherFilesHoldTheSame) {
  EXPECT_EQ(Output("--input @x.T --weight tiny-llama@model.layers.0.input_layernorm.weight").data,
            Output("--input @x.T --weight @weight.bf16").data);
  if (GetParam().code == RMSNORM_BF16) return;
  EXPECT_EQ(Output("--weight @weight.T --input " + Data("x_" + GetParam().tag + ".npy")).data,
            Output("--weight @weight.T --input @x.T").data);
}

INSTANTIATE_TEST_SUITE_P(Types, ApplyExpected,
                         testing::Values(Type{"f32", RMSNORM_F32}, Type{"f16", RMSNORM_F16},
                                         Type{"bf16", RMSNORM_BF16}),
                         [](const auto& type) { return type.param.tag; });

}  // namespace
}  // namespace rmsnorm::test
