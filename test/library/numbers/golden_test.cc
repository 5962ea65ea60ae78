// SPDX-License-Identifier: Apache-2.0
// Exact results by programs that share no code with this library: every target gives every bit.
// test/data/README.md describes the files.
#include "golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "on_target.h"

namespace rmsnorm::test {
namespace {

using cases::Split;
using Words = std::map<std::string, std::string>;

// The results y.OPTION.D.X.W.Y of contract.safetensors.
std::vector<Golden> ReadContract(const Tensors& tensors) {
  const std::map<std::string, std::pair<std::string, std::string>> options = {
      {"default", {"x", ""}},
      {"llama", {"x", ",rounding=before_weight"}},
      {"gemma", {"x", ",eps=1e-6,weight_offset=1"}},
      {"outside", {"x", ",eps=1e-6,eps_placement=outside"}},
      {"divisor", {"x", ",divisor=100.5"}},
      {"eps0", {"x0", ",eps=0"}},
      {"big", {"big", ""}},
      {"tiny", {"tiny", ",eps=0"}}};
  std::vector<Golden> all;
  for (const auto& [name, y] : tensors) {
    const std::vector<std::string> parts = Split(name, '.');
    if (parts[0] != "y") continue;
    const auto& [x, text] = options.at(parts[1]);
    const std::string types = "." + parts[2] + "." + parts[3];
    const Tensor& weight = tensors.at("w" + types + "." + parts[4]);
    all.push_back(MakeGolden(
        name, false, {{"x", &tensors.at(x + types)}, {"weight", &weight}, {"y", &y}}, text));
  }
  return all;
}

// A call of family.safetensors. Operands and options have the names of the library, but for a few.
Golden ReadFamilyCall(const std::string& name, const Words& words, const Tensors& tensors) {
  const Words names = {{"post-weight", "post_norm_weight"}, {"z", "gate"}, {"inverse-rms", "rstd"}};
  const Words values = {{"scale-then-cast", "after_weight"},
                        {"cast-then-scale", "before_weight"},
                        {"inverse-rounded", "inverse"},
                        {"yes", "rounded"},
                        {"no", "unrounded"}};
  const bool backward = words.at("op") == "backward";
  Operands operands;
  std::string options;
  for (const auto& [key, value] : words) {
    std::string field = names.count(key) != 0 ? names.at(key) : key;
    std::replace(field.begin(), field.end(), '-', '_');
    if (tensors.count(value) != 0) {
      operands[field] = &tensors.at(value);
    } else if (key != "op" && key != "quantise") {  // scale and zero say how q is quantised
      // Some gradients have an offset without a weight, where it has no effect. The library refuses
      // it there.
      if (key == "weight-offset" && backward && words.count("weight") == 0) continue;
      options += "," + field + "=" + (values.count(value) != 0 ? values.at(value) : value);
    }
  }
  return MakeGolden(name, backward, operands, options);
}

// The calls in the metadata of family.safetensors. An activation alone becomes the gate of a norm
// of ones, whose RMS is 1, the floor.
std::vector<Golden> ReadFamily(const Words& metadata, Tensors& tensors) {
  std::vector<Golden> all;
  for (const auto& [name, text] : metadata) {
    Words words;
    for (const std::string& word : Split(text, ' ')) {
      words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    }
    if (words.at("op") != "activation") {
      all.push_back(ReadFamilyCall(name, words, tensors));
      continue;
    }
    const std::vector<size_t> shape = tensors.at(words.at("z")).shape;
    Tensor& ones = tensors["ones"] = {shape, Rows(RMSNORM_F32, shape.back(), 1)};
    for (size_t i = 0; i < shape.back(); ++i) ones.rows.set_bits(i, 0, 0x3F800000);
    for (const std::string activation : {"silu", "sigmoid"}) {
      const Words call = {{"op", "forward"},    {"x", "ones"},
                          {"z", words.at("z")}, {"y", words.at(activation)},
                          {"divisor", "1e20"},  {"eps-placement", "floor"},
                          {"eps", "1"},         {"activation", activation}};
      all.push_back(ReadFamilyCall(name + "." + activation, call, tensors));
    }
  }
  return all;
}

testing::AssertionResult HasTheBits(const Golden& golden, const std::string& target) {
  for (const auto& [o, result] : ResultsOf(golden, target)) {
    const Rows& expected = golden.tensor[o]->rows;
    for (size_t i = 0; i < result.count(); ++i) {
      if (IsSame(result, expected, i)) continue;
      return testing::AssertionFailure()
             << golden.name << ", " << cases::Text(golden.c) << ": " << kOperandRules[o].name << "["
             << i << "] is 0x" << std::hex << result.bits(i, 0) << ", not 0x"
             << expected.bits(i, 0);
    }
  }
  return testing::AssertionSuccess();
}

class EveryBit : public testing::TestWithParam<std::string> {};

TEST_P(EveryBit, IsMetForAllTypesAndLengths) {
  const Tensors tensors = ReadTensors(Read("RMSNORM_DATA", "/contract.safetensors"));
  const std::vector<Golden> all = ReadContract(tensors);
  EXPECT_GE(all.size(), 6u * 20u);  // each length has three types of x with six to eight options
  for (const Golden& golden : all) ASSERT_TRUE(HasTheBits(golden, GetParam()));
}

void CheckFamily(const std::string& file, const std::string& target) {
  Tensors tensors = ReadTensors(file);
  const std::vector<Golden> all = ReadFamily(ReadMetadata(file), tensors);
  size_t backward = 0;
  for (const Golden& golden : all) {
    backward += golden.c.backward ? 1 : 0;
    ASSERT_TRUE(HasTheBits(golden, target));
  }
  EXPECT_GT(backward, 0u);
  EXPECT_GT(all.size(), backward);
  std::printf("%zu cases of forward, %zu of backward\n", all.size() - backward, backward);
}

TEST_P(EveryBit, IsMetForAllOperandsAndOptions) {
  CheckFamily(Read("RMSNORM_DATA", "/family.safetensors"), GetParam());
}

// The vectors of a release, which the reference made: RMSNORM_VECTORS names their file.
bool HaveVectors() { return std::getenv("RMSNORM_VECTORS") != nullptr; }

TEST_P(EveryBit, IsMetForTheVectors) {
  if (!HaveVectors()) GTEST_SKIP() << "for the test golden_vectors";
  CheckFamily(Read("RMSNORM_VECTORS"), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Targets, EveryBit, testing::ValuesIn(SupportedTargets()), Name);

TEST(Vectors, HaveEveryOperandTypeAndOption) {
  if (!HaveVectors()) GTEST_SKIP() << "for the test golden_vectors";
  const std::string file = Read("RMSNORM_VECTORS");
  Tensors tensors = ReadTensors(file);
  std::map<std::string, std::set<std::string>> seen;  // the values of each field
  for (const Golden& golden : ReadFamily(ReadMetadata(file), tensors)) {
    for (const cases::Field& field : cases::Fields()) {
      seen[field.name].insert(field.write(golden.c));
    }
  }
  for (const OperandRule& rule : kOperandRules) {
    for (const rmsnorm_dtype dtype : {RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16}) {
      const char* const name = rmsnorm_dtype_name(rule.dtype == 0 ? dtype : rule.dtype);
      EXPECT_EQ(1u, seen[rule.name].count(name)) << rule.name << "=" << name;
    }
  }
  for (const OptionRule& rule : kOptionRules) {
    EXPECT_GE(seen[rule.name].size(), 2u) << rule.name;
    for (const char* const* word = rule.words; *word != nullptr; ++word) {
      EXPECT_EQ(1u, seen[rule.name].count(*word)) << rule.name << "=" << *word;
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test
