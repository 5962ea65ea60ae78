// SPDX-License-Identifier: Apache-2.0
// Exact results of whole calls with broadcast operands, by a program that shares no code with this
// library: every target meets every bit.
//
// The environment variable RMSNORM_DATA names the folder of family.safetensors. test/data/README.md
// describes the file.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "targets.h"
#include "tensor.h"
#include "tensor_files.h"
#include "with_threads.h"

namespace rmsnorm::test {
namespace {

// A call in the notation of the file: the operation, its options and the names of its tensors.
struct Case {
  std::string name;
  std::map<std::string, std::string> words;

  bool Has(const std::string& key) const { return words.count(key) != 0; }
};

template <class T>
T Choice(const std::string& value, const std::map<std::string, T>& choices) {
  return choices.at(value);
}

Options OptionsOf(const Case& c) {
  const std::set<std::string> others = {
      "op",       "x",     "weight", "bias",         "residual",    "post-weight", "z",     "dy",
      "dw-in",    "db-in", "y",      "residual-out", "inverse-rms", "q",           "scale", "zero",
      "quantise", "dx",    "dw",     "db",           "silu",        "sigmoid"};
  Options options;
  for (const auto& [key, value] : c.words) {
    if (key == "eps") {
      options.eps = std::stof(value);
    } else if (key == "eps-placement") {
      options.eps_placement = Choice<EpsPlacement>(value, {{"inside", EpsPlacement::inside},
                                                           {"outside", EpsPlacement::outside},
                                                           {"floor", EpsPlacement::floor}});
    } else if (key == "rounding") {
      options.rounding = Choice<Rounding>(value, {{"scale-then-cast", Rounding::after_weight},
                                                  {"cast-then-scale", Rounding::before_weight},
                                                  {"inverse-rounded", Rounding::inverse}});
    } else if (key == "residual-rounding") {
      options.residual_rounding = Choice<ResidualRounding>(
          value, {{"yes", ResidualRounding::rounded}, {"no", ResidualRounding::unrounded}});
    } else if (key == "weight-offset") {
      options.weight_offset = std::stof(value);
    } else if (key == "divisor") {
      options.divisor = std::stof(value);
    } else if (key == "factor") {
      options.factor = std::stof(value);
    } else if (key == "activation") {
      options.activation =
          Choice<Activation>(value, {{"silu", Activation::silu}, {"sigmoid", Activation::sigmoid}});
    } else if (key == "gate-placement") {
      options.gate_placement = Choice<GatePlacement>(
          value, {{"after", GatePlacement::after}, {"before", GatePlacement::before}});
    } else if (key == "gate-rounding") {
      options.gate_rounding = Choice<GateRounding>(
          value, {{"no", GateRounding::unrounded}, {"yes", GateRounding::rounded}});
    } else if (others.count(key) == 0) {
      throw std::runtime_error("unknown word " + key);
    }
  }
  return options;
}

// The tensors of a case, each empty if the case lacks that role. A new first dimension repeats
// them, unless it is 1: inputs with a stride of 0, results in separate memory.
class CaseTensors {
 public:
  CaseTensors(const std::map<std::string, StoredTensor>& tensors, const Case& c, size_t repeats)
      : tensors_(tensors), case_(c), repeats_(repeats) {}

  ConstView Input(const std::string& role) const {
    if (!case_.Has(role)) return {};
    const StoredTensor& tensor = Stored(role);
    const SizeList shape = RepeatedShape(role);
    std::vector<ptrdiff_t> stride(shape.size(), 1);
    for (size_t i = shape.size() - 1; i > 0; --i) {
      stride[i - 1] = stride[i] * static_cast<ptrdiff_t>(shape[i]);
    }
    if (repeats_ > 1) stride[0] = 0;
    return {tensor.data.data(), DtypeOf(tensor), shape.size(), shape.data(), stride.data()};
  }

  // Broadcasts along the first dimension.
  ConstView Broadcast(const std::string& role) const {
    if (!case_.Has(role)) return {};
    const StoredTensor& tensor = Stored(role);
    return {tensor.data.data(), DtypeOf(tensor), tensor.shape.size(), tensor.shape.data()};
  }

  // Starts with the data of the tensor `before`, if there is one.
  View Output(const std::string& role, const std::string& before = {}) {
    if (!case_.Has(role)) return {};
    const StoredTensor& expected = Stored(role);
    std::string data;
    data.reserve(kAligned);
    for (size_t i = 0; i < repeats_; ++i) {
      data += case_.Has(before) ? Stored(before).data
                                : std::string(expected.data.size(), static_cast<char>(kWiped));
    }
    std::string& result = results_[role] = std::move(data);
    const SizeList shape = RepeatedShape(role);
    return {result.data(), DtypeOf(expected), shape.size(), shape.data()};
  }

  testing::AssertionResult AreResultsMet() const {
    for (const auto& [role, result] : results_) {
      const StoredTensor& expected = Stored(role);
      const rmsnorm_dtype dtype = DtypeOfName(expected.dtype);
      const size_t size = expected.data.size();
      for (size_t i = 0; i < repeats_; ++i) {
        const testing::AssertionResult same =
            dtype == RMSNORM_I8 ? SameIntegers(expected.data, result.substr(i * size, size))
                                : SameBits(dtype, expected.data.data(), result.data() + i * size,
                                           size / rmsnorm_dtype_size(dtype));
        if (!same) {
          return testing::AssertionFailure() << role << ", repeat " << i << ": " << same.message();
        }
      }
    }
    return testing::AssertionSuccess();
  }

 private:
  static testing::AssertionResult SameIntegers(const std::string& expected,
                                               const std::string& actual) {
    for (size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == actual[i]) continue;
      return testing::AssertionFailure()
             << "integer " << i << " is " << static_cast<int>(static_cast<int8_t>(actual[i]))
             << ", not " << static_cast<int>(static_cast<int8_t>(expected[i]));
    }
    return testing::AssertionSuccess();
  }

  static Dtype DtypeOf(const StoredTensor& tensor) {
    return static_cast<Dtype>(DtypeOfName(tensor.dtype));
  }

  const StoredTensor& Stored(const std::string& role) const {
    return tensors_.at(case_.words.at(role));
  }

  SizeList RepeatedShape(const std::string& role) const {
    SizeList shape = Stored(role).shape;
    if (repeats_ == 1) return shape;
    // Per-row tensors have no last dimension; per-column tensors may lack the first dimensions.
    const bool per_row = role == "inverse-rms" || role == "scale" || role == "zero";
    const size_t ndim = Stored("x").shape.size() - (per_row ? 1 : 0);
    shape.insert(shape.begin(), ndim - shape.size(), 1);
    shape.insert(shape.begin(), repeats_);
    return shape;
  }

  const std::map<std::string, StoredTensor>& tensors_;
  const Case& case_;
  size_t repeats_;
  std::map<std::string, std::string> results_;  // one per role
};

void RunForward(CaseTensors& tensors, const Options& options, const Context& context) {
  ForwardOperands operands;
  operands.x = tensors.Input("x");
  operands.residual = tensors.Input("residual");
  operands.weight = tensors.Broadcast("weight");
  operands.bias = tensors.Broadcast("bias");
  operands.post_norm_weight = tensors.Broadcast("post-weight");
  operands.gate = tensors.Input("z");
  operands.y = tensors.Output("y");
  operands.residual_out = tensors.Output("residual-out");
  operands.rstd = tensors.Output("inverse-rms");
  operands.q = tensors.Output("q");
  operands.scale = tensors.Output("scale");
  operands.zero = tensors.Output("zero");
  forward(operands, options, context);
}

// An activation alone: the gate of a norm of ones, whose RMS is 1, the floor.
void RunActivations(CaseTensors& tensors, const Context& context) {
  Options options;
  options.eps_placement = EpsPlacement::floor;
  options.eps = 1.0f;
  options.divisor = 1e20f;
  const ConstView gate = tensors.Input("z");
  rmsnorm_view x = *gate.get();
  const std::vector<float> ones(x.shape[x.ndim - 1], 1.0f);
  x.data = const_cast<float*>(ones.data());
  ForwardOperands operands;
  operands.x = ConstView(x);
  operands.gate = gate;
  operands.y = tensors.Output("silu");
  forward(operands, options, context);
  operands.y = tensors.Output("sigmoid");
  options.activation = Activation::sigmoid;
  forward(operands, options, context);
}

// dw and db are sums over the rows that share a row of the weight, so each repeat has separate
// ones.
void RunBackward(CaseTensors& tensors, const Case& c, Options options, const Context& context) {
  // Some cases have an offset without a weight: it has no effect there, but is an error here.
  if (!c.Has("weight")) options.weight_offset = 0;
  BackwardOperands operands;
  operands.dy = tensors.Input("dy");
  operands.x = tensors.Input("x");
  operands.weight = tensors.Input("weight");
  operands.dx = tensors.Output("dx");
  operands.dw = tensors.Output("dw", "dw-in");
  operands.db = tensors.Output("db", "db-in");
  operands.add_to_dw = c.Has("dw-in");
  operands.add_to_db = c.Has("db-in");
  backward(operands, options, context);
}

class FamilyTest : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    const char* const folder = std::getenv("RMSNORM_DATA");
    ASSERT_NE(folder, nullptr) << "RMSNORM_DATA must name the folder of family.safetensors";
    std::ifstream stream(std::string(folder) + "/family.safetensors", std::ios::binary);
    ASSERT_TRUE(stream) << folder;
    const std::string file{std::istreambuf_iterator<char>(stream), {}};
    tensors_ = ReadSafetensors(file);

    for (const auto& [name, text] : ReadMetadata(file)) {
      Case c{name, {}};
      std::istringstream words(text);
      for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        c.words[word.substr(0, equals)] = word.substr(equals + 1);
      }
      if (c.words.at("op") == "activation") c.words["x"] = c.words.at("z");  // for the shape
      (c.words.at("op") == "backward" ? backward_ : forward_).push_back(std::move(c));
    }
    ASSERT_FALSE(forward_.empty());
    ASSERT_FALSE(backward_.empty());
    std::printf("%zu cases of forward, %zu of backward\n", forward_.size(), backward_.size());
  }

  // Calls run(case, tensors, context) with each number of threads.
  template <class Run>
  static void ExpectResults(const std::vector<Case>& cases, const Run& run) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.name);
      const StoredTensor& x = tensors_.at(c.words.at("x"));
      const size_t d = x.shape.back();
      const size_t rows = x.data.size() / rmsnorm_dtype_size(DtypeOfName(x.dtype)) / d;
      RunWithThreads(GetParam(), rows, d, [&](const Context& context, size_t repeats) {
        CaseTensors tensors(tensors_, c, repeats);
        ASSERT_NO_THROW(run(c, tensors, context));
        ASSERT_TRUE(tensors.AreResultsMet());
      });
      if (HasFatalFailure()) return;
    }
  }

  static std::map<std::string, StoredTensor> tensors_;
  static std::vector<Case> forward_;
  static std::vector<Case> backward_;
};
std::map<std::string, StoredTensor> FamilyTest::tensors_;
std::vector<Case> FamilyTest::forward_;
std::vector<Case> FamilyTest::backward_;

TEST_P(FamilyTest, EveryBitOfForwardIsMet) {
  ExpectResults(forward_, [](const Case& c, CaseTensors& tensors, const Context& context) {
    if (c.words.at("op") == "activation") {
      RunActivations(tensors, context);
    } else {
      RunForward(tensors, OptionsOf(c), context);
    }
  });
}

TEST_P(FamilyTest, EveryBitOfBackwardIsMet) {
  ExpectResults(backward_, [](const Case& c, CaseTensors& tensors, const Context& context) {
    RunBackward(tensors, c, OptionsOf(c), context);
  });
}

INSTANTIATE_TEST_SUITE_P(Targets, FamilyTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
