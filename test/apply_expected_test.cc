// SPDX-License-Identifier: Apache-2.0
// `rmsnorm apply` on real activations and weights, against what PyTorch and transformers computed
// from them and against the formula in float64.
//
// The environment names the folder that holds the files: RMSNORM_DATA.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "run_command.h"
#include "slow_float.h"
#include "tensor_files.h"

namespace rmsnorm::test {
namespace {

// PyTorch sums in another order, so r may differ by an ulp or two, and each product rounds once
// more.
constexpr int64_t kFewUlp = 4;

// DESIGN's bound on the relative error of r for d = 512: ((k + 7 + b) / 2 + 4) 2^-24, k = 4 and b =
// 0. The product with x rounds once more in f32, and so does that with the weight.
constexpr double kExactBound = ((4 + 7) / 2.0 + 4 + 2) * 0x1p-24;

struct Type {
  std::string tag;  // in the names of the tensors
  rmsnorm_dtype code;
};

void PrintTo(const Type& type, std::ostream* out) { *out << type.tag; }

class ApplyDataTest : public testing::Test {
 protected:
  static std::string Data(const std::string& name) {
    const char* const folder = std::getenv("RMSNORM_DATA");
    if (folder == nullptr) throw std::runtime_error("RMSNORM_DATA is not set");
    return std::string(folder) + "/" + name;
  }

  static std::string Input(const std::string& name) { return Data("inputs.safetensors:" + name); }

  static const StoredTensor& Stored(const std::string& file, const std::string& name) {
    static std::map<std::string, std::map<std::string, StoredTensor>> files;
    auto [found, is_new] = files.try_emplace(file);
    if (is_new) found->second = ReadSafetensors(ReadFile(Data(file)));
    return found->second.at(name);
  }

  StoredTensor Apply(const std::string& input, const std::vector<std::string>& options) const {
    const std::string output = directory_.File("y.safetensors");
    std::vector<std::string> arguments = {"apply", "--input", input, "--output", output};
    arguments.insert(arguments.end(), options.begin(), options.end());
    ExpectSuccess(RunCommand(arguments));
    return ReadSafetensors(ReadFile(output)).at("output");
  }

  TemporaryDirectory directory_;
};

class ApplyExpectedTest : public ApplyDataTest, public testing::WithParamInterface<Type> {
 protected:
  std::string X() const { return Input("x." + GetParam().tag); }
  std::string Weight() const { return Input("weight." + GetParam().tag); }

  const StoredTensor& Expected(const std::string& name) const {
    return Stored("expected.safetensors", name + "." + GetParam().tag);
  }

  // Compares with the expected tensor `name`; `narrow` is the bound for f16 and bf16.
  void ExpectWithinUlp(const std::string& name, const StoredTensor& actual, int64_t narrow) const {
    const StoredTensor& expected = Expected(name);
    ASSERT_EQ(actual.dtype, expected.dtype);
    ASSERT_EQ(actual.shape, expected.shape);
    const rmsnorm_dtype code = GetParam().code;
    const int64_t allowed = code == RMSNORM_F32 ? kFewUlp : narrow;
    int64_t worst = 0;
    const size_t size = rmsnorm_dtype_size(code);
    for (size_t i = 0; i < actual.data.size(); i += size) {
      ASSERT_TRUE(std::isfinite(Value(actual, i / size)) &&
                  std::isfinite(Value(expected, i / size)));
      worst = std::max(worst, UlpsBetween(code, Bits(actual, i / size), Bits(expected, i / size)));
    }
    EXPECT_LE(worst, allowed) << name;
  }

  static uint32_t Bits(const StoredTensor& tensor, size_t index) {
    const size_t size = rmsnorm_dtype_size(DtypeOfName(tensor.dtype));
    uint32_t bits = 0;
    std::memcpy(&bits, &tensor.data.at(index * size), size);
    return bits;
  }

  static double Value(const StoredTensor& tensor, size_t index) {
    return Decode(FormatOf(DtypeOfName(tensor.dtype)), Bits(tensor, index));
  }
};

TEST_P(ApplyExpectedTest, TorchRmsNorm) {
  ExpectWithinUlp("torch_rms_norm", Apply(X(), {"--weight", Weight()}), 1);
}

TEST_P(ApplyExpectedTest, TorchRmsNormWithoutWeight) {
  ExpectWithinUlp("torch_rms_norm_no_weight", Apply(X(), {}), 1);
}

TEST_P(ApplyExpectedTest, Llama) {
  ExpectWithinUlp("llama", Apply(X(), {"--weight", Weight(), "--rounding", "cast-then-scale"}), 2);
}

TEST_P(ApplyExpectedTest, LlamaAfterAResidual) {
  const std::string sum = Data("expected.safetensors:residual_out." + GetParam().tag);
  ExpectWithinUlp("residual_llama",
                  Apply(sum, {"--weight", Weight(), "--rounding", "cast-then-scale"}), 2);
}

// Both outputs of the fused addition. The sum is rounded once: its bits are PyTorch's.
TEST_P(ApplyExpectedTest, LlamaWithAResidual) {
  const std::string sum = directory_.File("sum.safetensors");
  const StoredTensor y =
      Apply(X(), {"--residual", Input("residual." + GetParam().tag), "--residual-output", sum,
                  "--weight", Weight(), "--rounding", "cast-then-scale"});
  ExpectWithinUlp("residual_llama", y, 2);
  const StoredTensor written = ReadSafetensors(ReadFile(sum)).at("residual_output");
  EXPECT_EQ(written.dtype, Expected("residual_out").dtype);
  EXPECT_EQ(written.shape, Expected("residual_out").shape);
  EXPECT_EQ(written.data, Expected("residual_out").data);
  // The bits of the norm of the stored sum.
  EXPECT_EQ(y.data, Apply(sum, {"--weight", Weight(), "--rounding", "cast-then-scale"}).data);
}

TEST_P(ApplyExpectedTest, DeepSeekAndT5) {
  for (const char* name : {"deepseek_v3", "t5"}) {
    ExpectWithinUlp(
        name, Apply(X(), {"--weight", Weight(), "--rounding", "cast-then-scale", "--eps", "1e-6"}),
        2);
  }
}

TEST_P(ApplyExpectedTest, Gemma) {
  ExpectWithinUlp("gemma",
                  Apply(X(), {"--weight", Weight(), "--weight-offset", "1", "--eps", "1e-6"}), 1);
}

TEST_P(ApplyExpectedTest, EpsOutside) {
  ExpectWithinUlp("eps_outside",
                  Apply(X(), {"--weight", Weight(), "--eps", "1e-6", "--eps-placement", "outside"}),
                  1);
}

// The weight is f32, and so is y; but n was rounded to the type of x before, and shows an ulp of
// that.
TEST_P(ApplyExpectedTest, LlamaWithAWeightInF32) {
  const StoredTensor actual = Apply(
      X(), {"--weight", Input("weight.f32"), "--rounding", "cast-then-scale", "--dtype", "f32"});
  const StoredTensor& expected = Expected("llama_weight_f32");
  const StoredTensor weight = Stored("inputs.safetensors", "weight.f32");
  ASSERT_EQ(actual.dtype, "F32");
  ASSERT_EQ(expected.dtype, "F32");
  ASSERT_EQ(actual.shape, expected.shape);
  const size_t d = weight.shape[0];
  double worst = 0;
  for (size_t i = 0; i < actual.data.size() / 4; ++i) {
    const double w = Value(weight, i % d);
    const double y = Value(expected, i);
    double allowed = kFewUlp * Ulp(RMSNORM_F32, y);
    if (GetParam().code != RMSNORM_F32)
      allowed = Ulp(GetParam().code, y / w) * std::fabs(w) + Ulp(RMSNORM_F32, y);
    worst = std::max(worst, std::fabs(Value(actual, i) - y) / allowed);
  }
  EXPECT_LE(worst, 1);
}

TEST_P(ApplyExpectedTest, IsWithinTheBoundOfTheExactValue) {
  const StoredTensor actual = Apply(X(), {"--weight", Weight()});
  const StoredTensor& exact = Expected("exact_f64");
  ASSERT_EQ(exact.dtype, "F64");
  ASSERT_EQ(actual.shape, exact.shape);
  double worst = 0;
  for (size_t i = 0; i < exact.data.size() / 8; ++i) {
    double y;
    std::memcpy(&y, &exact.data[8 * i], sizeof y);
    // The last rounding is that of y's type; in f32 it is that of the product with the weight
    // itself.
    const double half_ulp = GetParam().code == RMSNORM_F32 ? 0 : Ulp(GetParam().code, y) / 2;
    const double allowed = half_ulp + kExactBound * std::fabs(y);
    worst = std::max(worst, std::fabs(Value(actual, i) - y) / allowed);
  }
  EXPECT_LE(worst, 1);
}

TEST_P(ApplyExpectedTest, CheckpointHoldsTheWeight) {
  const std::string checkpoint =
      Data("tiny-llama.safetensors:model.layers.0.input_layernorm.weight");
  EXPECT_EQ(Apply(X(), {"--weight", checkpoint}).data,
            Apply(X(), {"--weight", Input("weight.bf16")}).data);
}

TEST_F(ApplyDataTest, NpyFilesHoldTheSame) {
  for (const std::string& tag : {std::string("f32"), std::string("f16")}) {
    const std::vector<std::string> options = {"--weight", Input("weight." + tag)};
    EXPECT_EQ(Apply(Data("x_" + tag + ".npy"), options).data,
              Apply(Input("x." + tag), options).data);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ApplyExpectedTest,
                         testing::Values(Type{"f32", RMSNORM_F32}, Type{"f16", RMSNORM_F16},
                                         Type{"bf16", RMSNORM_BF16}),
                         [](const auto& type) { return type.param.tag; });

}  // namespace
}  // namespace rmsnorm::test
