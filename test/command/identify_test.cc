// SPDX-License-Identifier: Apache-2.0
// rmsnorm identify and rmsnorm probe, and what they are made of.
// test/library/numbers/migration_test.cc asks it about other systems.
#include "identify/identify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <sstream>

#include "cases/case.h"
#include "identify/options_text.h"
#include "identify/probe.h"
#include "identify/text.h"
#include "little_endian.h"
#include "run_command.h"

namespace rmsnorm::test {
namespace {

using namespace identify;
using namespace internal;

// A call on the first rows of the probe.
NormCall ProbeCall(rmsnorm_dtype dtype, size_t d, OperandSet others,
                   size_t rows = OrdinaryProbeRows()) {
  const Probe probe = MakeProbe(d, dtype);
  const auto take = [&](const std::vector<float>& values) {
    return Rounded({values.begin(), values.begin() + static_cast<ptrdiff_t>(rows * d)}, dtype, rows,
                   d);
  };
  NormCall call;
  call.y_dtype = dtype;
  call.operand[kX] = take(probe.x);
  call.operand[kWeight] = Rounded(probe.weight, dtype, 1, d);
  if ((others & SetOf(kResidual)) != 0) call.operand[kResidual] = take(probe.residual);
  if ((others & SetOf(kGate)) != 0) call.operand[kGate] = take(probe.gate);
  return call;
}

Answer Ask(const NormCall& call, const Matrix& y) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_view views[kOperands];
  const auto set = [&](Operand o, const Matrix& matrix) {
    views[o] = o == kWeight ? rmsnorm_vector(matrix.bytes.data(), matrix.dtype, matrix.d)
                            : rmsnorm_rows(matrix.bytes.data(), matrix.dtype, matrix.rows, matrix.d,
                                           static_cast<ptrdiff_t>(matrix.d));
    SetViewIn(operands, o, &views[o]);
  };
  for (const Operand o : {kX, kWeight, kResidual, kGate}) {
    if (call.Has(o)) set(o, *call.operand[o]);
  }
  set(kY, y);
  return Identify(operands, {});
}

constexpr size_t kLength = 108;  // no multiple of a vector

TEST(Identify, NamesTheOptionsOfThisLibrary) {
  const OperandSet none = 0, residual = SetOf(kResidual), gate = SetOf(kGate);
  const std::pair<OperandSet, const char*> cases[] = {
      {none, "eps=1e-06"},
      {none, "eps=0"},
      {none, "eps=1e-12,rounding=before_weight"},
      {none, "eps=1e-05,rounding=inverse,weight_offset=1"},
      {none, "eps=0.001,eps_placement=outside"},
      {none, "eps=3e-05,eps_placement=floor"},
      {none, "eps=2e-06,rounding=before_weight"},  // not among the usual ones
      {none, "eps=0.01,eps_placement=floor,divisor=1"},
      {residual, "eps=1e-05,rounding=before_weight"},
      {residual, "eps=1e-06,residual_rounding=unrounded"},
      {gate, "eps=1e-06,activation=sigmoid"},
      {gate, "eps=1e-06,rounding=before_weight,gate_placement=before"},
      {gate, "eps=1e-06,rounding=before_weight,gate_rounding=rounded"},
  };
  for (const rmsnorm_dtype dtype : {RMSNORM_BF16, RMSNORM_F16}) {
    for (const auto& [others, text] : cases) {
      SCOPED_TRACE(std::string(rmsnorm_dtype_name(dtype)) + " " + text);
      NormCall call = ProbeCall(dtype, kLength, others);
      call.options = cases::Parse("forward,x+y=f32,rows=1,d=1," + std::string(text)).options;
      const Answer answer = Ask(call, ComputeY(call));
      EXPECT_EQ(Fit::kExact, answer.fit);
      EXPECT_EQ("", answer.best.step);
      EXPECT_EQ(text, OptionsText(answer.best.options));
    }
  }
}

// Whether an answer has a step, or says that the data do not show it. Where the gate is silu, no
// row of the probe has ties.
bool Names(const Answer& answer, const std::string& step) {
  if (answer.best.step == step) return true;
  return std::any_of(answer.ambiguities.begin(), answer.ambiguities.end(), [&](const auto& open) {
    return open.name == "step" && std::count(open.values.begin(), open.values.end(), step) > 0;
  });
}

// Each step with the first options that it fits.
TEST(Identify, TellsEachStepFromTheOthers) {
  const char* const options[] = {"eps=1e-05", "eps=1e-05,rounding=before_weight",
                                 "eps=1e-05,weight_offset=1", "eps=1e-05,eps_placement=outside"};
  std::set<std::string> named;  // a residual and a gate add steps
  for (const rmsnorm_dtype dtype : {RMSNORM_BF16, RMSNORM_F32}) {
    for (const OperandSet others : {OperandSet{0}, SetOf(kResidual), SetOf(kGate)}) {
      const NormCall base = ProbeCall(dtype, kLength, others);
      for (const Step& step : StepsFor(base)) {
        const std::string name = std::string(rmsnorm_dtype_name(dtype)) + ", " + step.words;
        if (step.kind == StepKind::kOption || named.count(name) != 0) continue;
        for (const char* const text : options) {
          NormCall call = base;
          call.options = cases::Parse("forward,x+y=f32,rows=1,d=1," + std::string(text)).options;
          const std::optional<Matrix> y = step.compute(call);
          if (!y) continue;
          const Answer answer = Ask(base, *y);
          EXPECT_TRUE(Names(answer, step.words))
              << name << ", " << text << ": " << Sentence(answer);
          named.insert(name);
          break;
        }
      }
    }
  }
  EXPECT_GT(named.size(), 100u);
}

// ------------------------------------------------------------------------------------ commands

class IdentifyCommand : public testing::Test {
 protected:
  Outcome Run(const std::string& line) const {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    const auto here = std::filesystem::current_path();
    std::filesystem::current_path(directory_.File(""));
    const Outcome outcome = RunCommand(words);
    std::filesystem::current_path(here);
    return outcome;
  }

  // Makes a file; returns its name.
  std::string Make(const std::string& name, const std::string& bytes) const {
    WriteFile(directory_.File(name), bytes);
    return name;
  }

  // Makes a .safetensors file of one tensor, the y of a call.
  void MakeY(const NormCall& call) const {
    Matrix y = ComputeY(call);
    const size_t size = rmsnorm_dtype_size(y.dtype);
    tools::ConvertByteOrder(y.bytes.data(), y.rows * y.d, size);
    MakeSafetensors("y.safetensors", size == 2 ? "BF16" : "F32",
                    std::to_string(y.rows) + "," + std::to_string(y.d),
                    {y.bytes.data(), y.bytes.size()});
  }

  void MakeSafetensors(const std::string& name, const std::string& dtype, const std::string& shape,
                       const std::string& data) const {
    const std::string header = "{\"y\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape +
                               "],\"data_offsets\":[0," + std::to_string(data.size()) + "]}}";
    Make(name, tools::LittleEndian(header.size(), 8) + header + data);
  }

  const TemporaryDirectory directory_;

  // Expects an error on one line.
  void ExpectError(const std::string& line, const std::string& error) const {
    const Outcome outcome = Run(line);
    EXPECT_EQ(2, outcome.status) << line;
    EXPECT_EQ("", outcome.out) << line;
    EXPECT_EQ("rmsnorm: " + error + "\n", outcome.err) << line;
  }
};

const std::string kGiven = " --input p.safetensors:x --weight p.safetensors:weight";

TEST_F(IdentifyCommand, NamesANorm) {
  ASSERT_EQ(0, Run("probe --output p.safetensors --d 64 --dtype bf16").status);
  NormCall call = ProbeCall(RMSNORM_BF16, 64, 0, ProbeRows());
  call.options.rounding = RMSNORM_ROUND_BEFORE_WEIGHT;
  call.options.eps = 1e-6f;
  MakeY(call);
  const Outcome named = Run("identify" + kGiven + " --output y.safetensors");
  EXPECT_EQ(0, named.status);
  EXPECT_EQ("", named.err);
  for (const char* const text :
       {"y is the RMSNorm of x: eps 1e-06 inside the root, rounded to bf16 before the weight. "
        "Every "
        "element is equal.",
        "options.rounding = rmsnorm::Rounding::before_weight;",
        "options.rounding = RMSNORM_ROUND_BEFORE_WEIGHT;",
        "rmsnorm.rms_norm(x, weight, eps=1e-06, rounding=\"before_weight\")",
        "transformers Llama, Qwen3, DeepSeek-V3"}) {
    EXPECT_NE(std::string::npos, named.out.find(text)) << text << "\n" << named.out;
  }
}

TEST_F(IdentifyCommand, FailsWhereNoNormFitsOrOneWithAMistake) {
  ASSERT_EQ(0, Run("probe --output p.safetensors --d 64").status);
  const Outcome none = Run("identify" + kGiven + " --output p.safetensors:gate");
  EXPECT_EQ(1, none.status);
  EXPECT_EQ(0u, none.out.find("y is no norm that is known here.")) << none.out;
  // The weight is given, and not used.
  NormCall call = ProbeCall(RMSNORM_F32, 64, 0, ProbeRows());
  call.operand[kWeight].reset();
  MakeY(call);
  const Outcome mistake = Run("identify" + kGiven + " --output y.safetensors");
  EXPECT_EQ(1, mistake.status);
  EXPECT_NE(std::string::npos, mistake.out.find("the weight is not used")) << mistake.out;
  EXPECT_EQ(std::string::npos, mistake.out.find("C++")) << mistake.out;
}

TEST_F(IdentifyCommand, RefusesWhatDoesNotGoTogether) {
  ASSERT_EQ(0, Run("probe --output p.safetensors --d 64").status);
  ExpectError("probe --output p.npy",
              "--output: the file of several tensors must end in .safetensors");
  ExpectError("identify --input p.safetensors:x --output p.safetensors:weight",
              "--output: 1 dimensions, but --input has 2");
  ExpectError("identify --input p.safetensors:weight", "--output is required");
  ExpectError("identify --input p.safetensors:x --output none.npy",
              "cannot read none.npy: No such file or directory");
  const std::string identify = "identify --input p.safetensors:x --output p.safetensors:x ";
  for (const char* const eps : {"-1", "nan", "inf", "x", "1e-60"}) {
    ExpectError(identify + "--eps " + eps,
                "--eps: '" + std::string(eps) + "' is not a finite 32-bit number from 0 up");
  }
  ExpectUserError(RunCommand({"identify", "--input", "x.npy", "--output", "y.npy", "--bias", ""}),
                  "--bias: '' names no file");
  ExpectError("probe --output p.safetensors --d 15",
              "--d: '15' is not an integer from 16 to 1048576");
  ExpectError("probe --output none/p.safetensors",
              "cannot write none/p.safetensors: No such file or directory");
}

TEST_F(IdentifyCommand, RefusesMalformedFiles) {
  const auto npy = [](const std::string& descr, const std::string& order,
                      const std::string& shape) {
    const std::string header =
        "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + "}";
    return std::string("\x93NUMPY\1") + '\0' + tools::LittleEndian(header.size(), 2) + header +
           std::string("\0\0\x40\x40\0\0\x80\x40", 8);  // 3 and 4
  };
  ASSERT_EQ(
      1, Run("identify --input " + Make("x.npy", npy("<f4", "False", "(1, 2)")) + " --output x.npy")
             .status);
  const std::pair<std::string, std::string> arrays[] = {
      {"", "not a .npy file"},
      {npy("<f4", "False", "(1, 2)").substr(0, 20), "truncated .npy header"},
      {npy("<f4", "False", "(2)"), "malformed .npy header"},
      {npy("<f8", "False", "(1,)"), "dtype '<f8' is not supported: only '<f4' and '<f2' are"},
      {npy("<f4", "True", "(1, 2)"), "Fortran order is not supported: only C order is"},
      {npy("<f4", "False", "(3,)"), "shape [3] of f32 needs 12 bytes, the file holds 8"},
  };
  for (const auto& [bytes, problem] : arrays) {
    Make("x.npy", bytes);
    ExpectError("identify --output x.npy --input x.npy", "x.npy: " + problem);
  }
  const auto tensors = [](const std::string& header) {
    return tools::LittleEndian(header.size(), 8) + header + std::string(8, '\0');
  };
  const std::string y = "\"y\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
  const std::string z = "\"z\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}";
  const std::pair<std::string, std::string> files[] = {
      {"", "too short for a .safetensors file"},
      {tools::LittleEndian(3, 8) + "{}", "the header length 3 is beyond the file's end"},
      {tensors("[]"), "the header is not a JSON object"},
      {tensors("{"), "the header is not valid JSON (byte 2)"},
      {tensors("{" + y + "," + y + "}"), "the header names 'y' twice"},
      {tensors("{" + y + "," + z + "}"),
       "tensor 'z': starts at byte 0 of the data, the tensor before it ends at 8"},
      {tensors("{" + y + "}") + "x", "the tensors end at byte 8 of 9 bytes of data"},
      {tensors("{" + z + "}"),
       "tensor 'z': dtype 'I64' is not supported: only F32, F16 and BF16 are"},
  };
  for (const auto& [bytes, problem] : files) {
    Make("y.safetensors", bytes);
    ExpectError("identify --output y.safetensors --input y.safetensors",
                "y.safetensors: " + problem);
  }
  MakeSafetensors("y.safetensors", "F32", "3", std::string(8, '\0'));
  ExpectError("identify --output y.safetensors --input y.safetensors",
              "y.safetensors: tensor 'y': shape [3] of F32 needs 12 bytes, its offsets hold 8");
  MakeSafetensors("y.safetensors", "F32", "2", std::string(8, '\0'));
  ExpectError("identify --output y.safetensors:x --input y.safetensors:x",
              "y.safetensors: no tensor 'x'; the file holds 'y'");
}

}  // namespace
}  // namespace rmsnorm::test
