// SPDX-License-Identifier: Apache-2.0
// The tables of doc/migration.md: with the options of a row, the library gives the results of the
// system of that row; with other options, it does not.
//
// The environment variable RMSNORM_DATA names the folder of the systems' results, which make.py
// there describes.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "golden.h"
#include "identify/identify.h"
#include "identify/options_text.h"
#include "identify/systems.h"
#include "on_target.h"

namespace rmsnorm::test {
namespace {

using Words = identify::TableRow;

// A row of the tables for one length and type of x, with the inputs and results of its system.
struct System : Golden {
  bool in_two_phases = false;  // the sums of residual + x scale residual_out
};

// The columns have the names of the options.
System ReadSystem(Words row, const std::string& d, const std::string& x_type,
                  const Tensors& tensors) {
  const std::string key = "." + d + "." + x_type;
  const std::string name = row["name"] + key;
  Operands operands = {{"x", &tensors.at("x" + key)}, {"y", &tensors.at("y." + name)}};
  if (row["weight"] != "none") {
    operands["weight"] = &tensors.at("w." + d + "." + (row["weight"] == "f32" ? "f32" : x_type));
  }
  if (row["post_norm"] == "yes") operands["post_norm_weight"] = &tensors.at("p" + key);
  if (!row["activation"].empty()) operands["gate"] = &tensors.at("z" + key);
  if (!row["residual_rounding"].empty()) {
    operands["residual"] = &tensors.at("r" + key);
    operands["residual_out"] = &tensors.at("sum." + name);
  }
  const bool in_two_phases = row["residual_rounding"] == "two phases";
  if (in_two_phases) row["residual_rounding"] = "unrounded";
  std::string options;
  for (const OptionRule& option : kOptionRules) {
    const std::string& value = row[option.name];
    if (!value.empty()) options += std::string(",") + option.name + "=" + value;
  }
  const System system = {MakeGolden(name, false, operands, options), in_two_phases};
  if (system.TypeOf(kY) != (row["y"] == "f32" ? RMSNORM_F32 : system.TypeOf(kX))) {
    throw std::runtime_error(name + ": wrong type of y");
  }
  return system;
}

Results Compute(const System& system) {
  const std::string target = SupportedTargets()[0];
  if (!system.in_two_phases) return ResultsOf(system, target);
  Golden add = system;
  for (const Operand o : {kWeight, kY}) add.c.operand[o].dtype = 0;
  add.c.operand[kSumsOut].dtype = RMSNORM_F64;
  Results results = ResultsOf(add, target);
  const Tensor stream = {{}, results.at(kResidualOut)};
  const Tensor sums = {{}, results.at(kSumsOut)};
  Golden scale = system;
  for (const Operand o : {kResidual, kResidualOut}) scale.c.operand[o].dtype = 0;
  scale.c.operand[kSums].dtype = RMSNORM_F64;
  scale.tensor[kX] = &stream;
  scale.tensor[kSums] = &sums;
  results[kY] = ResultsOf(scale, target).at(kY);
  return results;
}

// The relative difference that two computations of a row in f32 may have: this library's bound on
// the inverse RMS (rmsnorm.h; the rows are short), plus the system's. The system adds d squares in
// any order: d roundings, halved by the root, and four for mean, eps, root and reciprocal. Both
// have three more: two products and offset + weight.
double Float32Bound(size_t d) {
  const double k = std::ceil(static_cast<double>(d) / 128);
  const double ours = (k + 7) / 2 + 4 + 3;
  const double theirs = static_cast<double>(d) / 2 + 4 + 3;
  return (ours + theirs) * 0x1p-24;
}

// The same for a call. A gate adds this library's 2 units in the last place, 4 of the system (exp,
// sum, quotient and product), and its product. Before the norm, it adds them in the element and in
// the RMS. The error of a post-norm enters the RMS of the sum.
double Float32Bound(const Case& c) {
  constexpr double kGateBound = 14 * 0x1p-24;
  double bound = Float32Bound(c.d);
  if (c.Has(kGate)) bound += kGateBound;
  if (c.Has(kGate) && c.options.gate_placement == RMSNORM_GATE_BEFORE) bound += kGateBound;
  if (c.Has(kPostNormWeight)) bound *= 2;
  return bound;
}

// The difference that an element of the sum may have. If a post-norm comes before the addition: the
// difference of that norm's element, plus one unit in the last place of the sum. Otherwise the sums
// are equal.
double SumBound(const System& system, size_t i) {
  if (!system.c.Has(kPostNormWeight)) return 0;
  const rmsnorm_dtype dtype = system.TypeOf(kResidualOut);
  const double sum = ValueOf(system.tensor[kResidualOut]->rows, i);
  const double added = sum - ValueOf(system.tensor[kResidual]->rows, i);
  const double bound =
      dtype == RMSNORM_F32 ? Float32Bound(system.c.d) * std::fabs(added) : 2 * Ulp(dtype, added);
  return bound + Ulp(dtype, sum);
}

// The type to which n is rounded before the weight, or would be in another rounding order.
rmsnorm_dtype TypeOfN(const System& system) {
  const bool is_sum =
      system.c.Has(kResidual) && system.c.options.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
  return system.TypeOf(is_sum ? kResidual : kX);
}

// Two such results round to different 16-bit numbers if one of them is that close to the middle
// between two numbers. For f16 and d = 100 the bound is a 120th of a unit in the last place, so
// this happens to a 60th of all results, and to twice as many if n is rounded before the weight. A
// different rounding order changes at least a seventh of them.
constexpr double kMostRoundedApart = 1.0 / 20;

// Whether y is the system's result. It may differ by one unit in the last place of 16 bits, one
// more if n was rounded first, and one more if n times the weight was. In f32 it must be within the
// relative bound, plus one unit of n if that was rounded to 16 bits. Few elements may be rounded
// apart. If a post-norm rounds an element of the sum apart, its element of y moves as far.
testing::AssertionResult IsWhatTheSystemGave(const System& system, const Rows& y) {
  const Case& c = system.c;
  const rmsnorm_dtype dtype = y.dtype();
  const bool rounds_n =
      TypeOfN(system) != RMSNORM_F32 && c.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT;
  const int most =
      1 + (rounds_n ? 1 : 0) + (c.options.gate_rounding == RMSNORM_GATE_ROUNDED ? 1 : 0);
  size_t rounded_apart = 0;
  for (size_t i = 0; i < y.count(); ++i) {
    const double expected = ValueOf(system.tensor[kY]->rows, i);
    const double difference = std::fabs(ValueOf(y, i) - expected);
    if (difference == 0) continue;
    double bound = SumBound(system, i);
    if (bound != 0) bound *= std::fabs(expected / ValueOf(system.tensor[kResidualOut]->rows, i));
    double apart = 0;  // how far apart two roundings may be
    if (dtype != RMSNORM_F32) {
      apart = most * Ulp(dtype, expected);
    } else {
      bound += Float32Bound(c) * std::fabs(expected);
      if (rounds_n) {
        const double w = c.Has(kWeight) ? static_cast<double>(c.options.weight_offset) +
                                              ValueOf(system.tensor[kWeight]->rows, i % c.d)
                                        : 1;
        apart = Ulp(TypeOfN(system), expected / w) * std::fabs(w);
      }
    }
    if (!(difference <= bound + apart)) {
      return testing::AssertionFailure()
             << system.name << ": element " << i << " is " << ValueOf(y, i) << ", not " << expected;
    }
    if (dtype != RMSNORM_F32 || difference > bound) ++rounded_apart;
  }
  if (static_cast<double>(rounded_apart) > kMostRoundedApart * static_cast<double>(y.count())) {
    return testing::AssertionFailure() << system.name << ": " << rounded_apart << " of "
                                       << y.count() << " elements are rounded to another number";
  }
  return testing::AssertionSuccess();
}

// Whether a cell such as "f16, bf16" names a type.
bool NamesType(const std::string& cell, const std::string& type) {
  return (", " + cell + ",").find(" " + type + ",") != std::string::npos;
}

class Migration : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tensors_ = ReadTensors(Read("RMSNORM_DATA", "/vectors.safetensors"));
    for (const Words& row : identify::Systems()) {
      const std::string types = row.count("x") == 0 ? "f32, f16, bf16" : row.at("x");
      for (const char* type : {"f32", "f16", "bf16"}) {
        if (!NamesType(types, type)) continue;
        for (const char* d : {"64", "100"}) {
          systems_.push_back(ReadSystem(row, d, type, tensors_));
        }
      }
    }
  }

  static Tensors tensors_;
  static std::vector<System> systems_;
};
Tensors Migration::tensors_;
std::vector<System> Migration::systems_;

TEST_F(Migration, EveryResultOfASystemHasARow) {
  std::set<std::string> in_tables, in_file;
  for (const System& system : systems_) in_tables.insert("y." + system.name);
  for (const auto& [name, tensor] : tensors_) {
    if (name[0] == 'y') in_file.insert(name);
  }
  EXPECT_EQ(in_file, in_tables);
  EXPECT_FALSE(in_file.empty());
}

TEST_F(Migration, TheOptionsOfARowGiveTheResultsOfItsSystem) {
  for (const System& system : systems_) {
    const Results results = Compute(system);
    EXPECT_TRUE(IsWhatTheSystemGave(system, results.at(kY)));
    if (!system.c.Has(kResidualOut)) continue;
    const Rows& sum = results.at(kResidualOut);
    const Rows& expected = system.tensor[kResidualOut]->rows;
    if (!system.c.Has(kPostNormWeight)) {
      EXPECT_EQ(0u, ElementsApart(sum, expected)) << system.name;
    }
    for (size_t i = 0; i < sum.count(); ++i) {
      ASSERT_NEAR(ValueOf(sum, i), ValueOf(expected, i), SumBound(system, i)) << system.name;
    }
  }
}

// A system with another option, or without an operand. The results show the change, or are the
// same: a rounding to f32 changes nothing.
struct Change {
  std::string name;
  System system;
  bool is_seen;
};

std::vector<Change> ChangesOf(const System& system) {
  const Case& c = system.c;
  const rmsnorm_options& options = c.options;
  std::vector<Change> changes;
  const auto change = [&](const char* name, bool is_seen = true) -> System& {
    changes.push_back({name, system, is_seen});
    return changes.back().system;
  };
  const auto change_option = [&](const char* name, bool is_seen = true) -> rmsnorm_options& {
    return change(name, is_seen).c.options;
  };
  change_option("eps").eps *= 2;
  change_option("eps_placement").eps_placement = 1 - options.eps_placement;
  if (c.Has(kWeight)) change_option("weight_offset").weight_offset = 1 - options.weight_offset;
  if (c.Has(kWeight) || options.rounding == RMSNORM_ROUND_INVERSE) {
    const bool is_after = options.rounding == RMSNORM_ROUND_AFTER_WEIGHT;
    change_option("rounding", TypeOfN(system) != RMSNORM_F32).rounding =
        is_after ? RMSNORM_ROUND_BEFORE_WEIGHT : RMSNORM_ROUND_AFTER_WEIGHT;
  }
  if (c.Has(kResidual) && !system.in_two_phases) {
    change_option("residual_rounding", system.TypeOf(kResidual) != RMSNORM_F32).residual_rounding =
        1 - options.residual_rounding;
  }
  if (c.Has(kGate)) {
    change_option("activation").activation = 1 - options.activation;
    rmsnorm_options& placed = change_option("gate_placement");
    placed.gate_placement = 1 - options.gate_placement;
    placed.gate_rounding = RMSNORM_GATE_UNROUNDED;
  }
  if (c.Has(kGate) && options.gate_placement == RMSNORM_GATE_AFTER) {
    change_option("gate_rounding", system.TypeOf(kX) != RMSNORM_F32).gate_rounding =
        1 - options.gate_rounding;
  }
  if (c.Has(kPostNormWeight)) change("no post-norm").c.operand[kPostNormWeight].dtype = 0;
  if (options.factor != 0) change_option("factor").factor = 1;
  if (system.in_two_phases && system.TypeOf(kResidual) != RMSNORM_F32) {
    change("one call").in_two_phases = false;
  }
  return changes;
}

TEST_F(Migration, AnotherOptionIsSeen) {
  std::set<std::string> seen;
  for (const System& system : systems_) {
    const Rows y = Compute(system).at(kY);
    for (const Change& change : ChangesOf(system)) {
      SCOPED_TRACE(system.name + ", " + change.name);
      const Rows other = Compute(change.system).at(kY);
      if (change.is_seen) {
        EXPECT_FALSE(IsWhatTheSystemGave(system, other));
        seen.insert(change.name);
      } else {
        EXPECT_EQ(0u, ElementsApart(y, other));
      }
    }
  }
  EXPECT_EQ(11u, seen.size());
}

// Rounding the sum changes its RMS so little that only the number of different elements shows it.
TEST_F(Migration, OneCallWithARoundedResidualDiffersFromTwoPhases) {
  size_t in_one_call = 0, in_two_phases = 0;
  for (const System& system : systems_) {
    if (!system.in_two_phases || system.TypeOf(kResidual) == RMSNORM_F32) continue;
    System one_call = system;
    one_call.in_two_phases = false;
    one_call.c.options.residual_rounding = RMSNORM_RESIDUAL_ROUNDED;
    const Rows& y = system.tensor[kY]->rows;
    in_one_call += ElementsApart(y, Compute(one_call).at(kY));
    in_two_phases += ElementsApart(y, Compute(system).at(kY));
  }
  EXPECT_GT(in_one_call, 10 * in_two_phases);
}

rmsnorm_operands OperandsOf(const System& system, rmsnorm_view* views) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  ForEachOperand(system.c.Given(), [&](Operand o) {
    std::vector<size_t> shape = cases::LeadingOf(system.c, o);
    shape.push_back(system.c.d);
    const Rows& rows = system.tensor[o]->rows;
    views[o] = rmsnorm_tensor(rows.row(0), rows.dtype(), static_cast<int32_t>(shape.size()),
                              shape.data(), nullptr);
    SetViewIn(operands, o, &views[o]);
  });
  return operands;
}

// Whether an answer has the value of an option, or says that the data do not show it.
bool Names(const identify::Answer& answer, const rmsnorm_options& options, Option option) {
  const std::string value = identify::OptionValue(options, option);
  if (identify::OptionValue(answer.best.options, option) == value) return true;
  return std::any_of(answer.ambiguities.begin(), answer.ambiguities.end(), [&](const auto& open) {
    return open.name == kOptionRules[option].name &&
           std::count(open.values.begin(), open.values.end(), value) > 0;
  });
}

// From the results of a system alone.
TEST_F(Migration, IdentifyNamesTheOptionsOfARow) {
  size_t named = 0;
  for (const System& system : systems_) {
    SCOPED_TRACE(system.name);
    rmsnorm_view views[kOperands];
    const identify::Answer answer = identify::Identify(OperandsOf(system, views), {});
    EXPECT_NE(identify::Fit::kNone, answer.fit)
        << identify::OptionsText(answer.best.options) << answer.best.step;
    if (system.in_two_phases) continue;
    EXPECT_EQ(identify::StepKind::kOption, answer.best.kind) << answer.best.step;
    const bool is_wide = TypeOfN(system) == RMSNORM_F32;
    for (int i = 0; i < kOptions; ++i) {
      const auto option = static_cast<Option>(i);
      const bool rounds =
          option == kRounding || option == kResidualRounding || option == kGateRounding;
      if (is_wide && rounds) continue;
      EXPECT_TRUE(Names(answer, system.c.options, option))
          << kOptionRules[i].name << ": " << identify::OptionsText(answer.best.options);
    }
    ++named;
  }
  EXPECT_GT(named, 150u);
}

}  // namespace
}  // namespace rmsnorm::test
