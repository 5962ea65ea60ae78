// SPDX-License-Identifier: Apache-2.0
// The tables of doc/migration.md: with the options of a row, the library gives the results of the
// system of that row; with other options, it does not.
//
// The environment variable RMSNORM_VECTORS names the file of the systems' results.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases/rounding.h"
#include "cases/vectors.h"

namespace rmsnorm::test {
namespace {

using namespace internal;  // kX and the other operands
using cases::AllRows;
using cases::Case;
using cases::Problem;
using cases::Rows;
using Words = std::map<std::string, std::string>;  // a row of a table, by its columns

// The rows of the tables of doc/migration.md.
std::vector<Words> Systems() {
  const std::filesystem::path vectors = std::getenv("RMSNORM_VECTORS");
  std::ifstream page(vectors.parent_path() / "../../../doc/migration.md");
  std::vector<std::string> columns;
  std::vector<Words> rows;
  for (std::string line; std::getline(page, line);) {
    std::vector<std::string> cells;
    const std::regex cell(R"(\| ?(`?)([^|]*?)\1 ?(?=\|))");
    for (std::sregex_iterator i(line.begin(), line.end(), cell), end; i != end; ++i) {
      cells.push_back((*i)[2]);
    }
    if (cells.empty()) columns.clear();
    if (cells.empty() || line[1] == '-') continue;
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    if (cells.size() != columns.size()) throw std::runtime_error("not the table's shape: " + line);
    Words row;
    for (size_t i = 0; i < cells.size(); ++i) row[columns[i]] = cells[i];
    if (row.count("name") != 0) rows.push_back(row);
  }
  return rows;
}

// A case of the file. One row of the tables needs two calls, which no line of a case says: the sums
// of residual + x scale residual_out.
struct System : cases::Recorded {
  bool in_two_phases = false;

  rmsnorm_dtype TypeOf(Operand o) const { return c.operand[o].dtype; }
  const Rows& RowsOf(Operand o) const {
    return c.IsOutput(o) ? problem.after(o) : problem.before(o);
  }
};

// The name of a row, which begins the name of a case.
std::string NameOf(const std::string& case_name) {
  return case_name.substr(0, case_name.find('.'));
}

// What the library gives for the inputs of a system.
struct Computed {
  Rows y;
  Rows residual_out;
};

Computed Compute(const System& system) {
  AllRows before;
  ForEachOperand(system.c.Given(), [&](Operand o) { before[o] = system.problem.before(o); });
  if (!system.in_two_phases) {
    const Problem problem(system.c, before);
    return {problem.after(kY), problem.after(kResidualOut)};
  }
  Case add = system.c;
  for (const Operand o : {kWeight, kY}) add.operand[o].dtype = 0;
  add.operand[kSumsOut].dtype = RMSNORM_F64;
  const Problem first(add, before);
  Case scale = system.c;
  for (const Operand o : {kResidual, kResidualOut}) scale.operand[o].dtype = 0;
  scale.operand[kSums].dtype = RMSNORM_F64;
  before[kX] = first.after(kResidualOut);
  before[kSums] = first.after(kSumsOut);
  return {Problem(scale, before).after(kY), first.after(kResidualOut)};
}

bool HaveSameBits(const Rows& a, const Rows& b) {
  return std::memcmp(a.row(0), b.row(0), a.count() * a.row_bytes()) == 0;
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

// The type to which n is rounded before the weight, or would be in another rounding order.
rmsnorm_dtype TypeOfN(const System& system) {
  const bool is_sum =
      system.c.Has(kResidual) && system.c.options.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
  return system.TypeOf(is_sum ? kResidual : kX);
}

// Whether y and the sum are the system's results: the same bits, if a rounding to 16 bits hides the
// order of a sum of squares. Otherwise y is within the relative bound. So is the addend of a sum
// after a post-norm, and an element of y moves as far as its element of the sum.
testing::AssertionResult IsWhatTheSystemGave(const System& system, const Computed& computed) {
  const Case& c = system.c;
  const auto fail = [&] { return testing::AssertionFailure() << system.name << ": "; };
  const bool has_sum = c.Has(kResidualOut);
  const Rows& y = system.RowsOf(kY);
  const Rows& sum = system.RowsOf(kResidualOut);
  const bool sum_is_exact = !c.Has(kPostNormWeight) || sum.dtype() != RMSNORM_F32;
  if (has_sum && sum_is_exact && !HaveSameBits(computed.residual_out, sum)) {
    return fail() << "another residual_out";
  }
  if (y.dtype() != RMSNORM_F32 ||
      (TypeOfN(system) != RMSNORM_F32 && c.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT)) {
    return HaveSameBits(computed.y, y) ? testing::AssertionSuccess() : fail() << "another y";
  }
  for (size_t i = 0; i < y.count() * y.d(); ++i) {
    const auto value = [&](const Rows& rows) { return cases::Get(rows, i / y.d(), i % y.d()); };
    double bound = Float32Bound(c);  // relative
    if (has_sum && !sum_is_exact) {
      const double added = value(sum) - value(system.RowsOf(kResidual));
      const double of_sum = Float32Bound(c.d) * std::fabs(added) + 0x1p-23 * std::fabs(value(sum));
      if (!(std::fabs(value(computed.residual_out) - value(sum)) <= of_sum)) {
        return fail() << "element " << i << " of residual_out is " << value(computed.residual_out)
                      << ", not " << value(sum);
      }
      bound += of_sum / std::fabs(value(sum));
    }
    if (!(std::fabs(value(computed.y) - value(y)) <= bound * std::fabs(value(y)))) {
      return fail() << "element " << i << " is " << value(computed.y) << ", not " << value(y);
    }
  }
  return testing::AssertionSuccess();
}

// The case that a row describes for a type and a length.
std::string LineOf(Words row, const std::string& type, const std::string& d) {
  const std::string& weight = row["weight"];
  std::string line = "forward,rows=6,d=" + d + ",x=" + type + ",y=";
  line += row["y"] == "f32" ? "f32" : type;
  line += ",weight=" + (weight == "none" || weight == "f32" ? weight : type);
  if (row["post_norm"] == "yes") line += ",post_norm_weight=" + type;
  if (!row["activation"].empty()) line += ",gate=" + type;
  if (!row["residual_rounding"].empty()) line += ",residual+residual_out=" + type;
  if (row["residual_rounding"] == "two phases") row["residual_rounding"] = "unrounded";
  for (const OptionRule& option : kOptionRules) {
    const std::string& value = row[option.name];
    if (!value.empty()) line += std::string(",") + option.name + "=" + value;
  }
  return cases::Text(cases::Parse(line));
}

// Whether a cell such as "f16, bf16" names a type.
bool NamesType(const std::string& cell, const std::string& type) {
  return (", " + cell + ",").find(" " + type + ",") != std::string::npos;
}

class Migration : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::set<std::string> two_phases;
    for (const Words& row : Systems()) {
      const auto found = row.find("residual_rounding");
      if (found->second == "two phases") two_phases.insert(row.at("name"));
    }
    for (cases::Recorded& recorded : cases::ReadVectors(std::getenv("RMSNORM_VECTORS"))) {
      const bool in_two_phases = two_phases.count(NameOf(recorded.name)) != 0;
      systems_.push_back({std::move(recorded), in_two_phases});
    }
  }

  static std::vector<System> systems_;
};
std::vector<System> Migration::systems_;

TEST_F(Migration, EveryResultOfASystemHasARow) {
  std::multiset<std::string> in_tables, in_file;
  for (const Words& row : Systems()) {
    const std::string types = row.count("x") == 0 ? "f32, f16, bf16" : row.at("x");
    for (const char* type : {"f32", "f16", "bf16"}) {
      if (!NamesType(types, type)) continue;
      for (const char* d : {"64", "100"})
        in_tables.insert(row.at("name") + " " + LineOf(row, type, d));
    }
  }
  for (const System& system : systems_) {
    in_file.insert(NameOf(system.name) + " " + cases::Text(system.c));
  }
  EXPECT_EQ(in_file, in_tables);
}

TEST_F(Migration, TheOptionsOfARowGiveTheResultsOfItsSystem) {
  for (const System& system : systems_) EXPECT_TRUE(IsWhatTheSystemGave(system, Compute(system)));
}

// With another option, or without an operand, the results show the change, unless it is a rounding
// of what has 16 bits to f32.
TEST_F(Migration, AnotherOptionIsSeen) {
  std::set<std::string> seen;
  for (const System& system : systems_) {
    const Case& c = system.c;
    const bool x_is_narrow = system.TypeOf(kX) != RMSNORM_F32;
    const auto change = [&](const char* name, bool is_seen, const auto& make) {
      System other = system;
      make(other);
      EXPECT_EQ(is_seen, !IsWhatTheSystemGave(system, Compute(other)))
          << system.name << " " << name;
      if (is_seen) seen.insert(name);
    };
    for (int i = 0; i < kOptions; ++i) {
      const auto option = static_cast<Option>(i);
      const OptionRule& rule = kOptionRules[option];
      const bool has_effect =
          option == kRounding ? c.Has(kWeight) || c.options.rounding == RMSNORM_ROUND_INVERSE
          : option == kResidualRounding ? c.Has(kResidual) && !system.in_two_phases
          : option == kGateRounding     ? c.options.gate_placement == RMSNORM_GATE_AFTER
          : option == kFactor           ? c.options.factor != 0
                                        : true;
      if (!has_effect || (rule.needs != 0 && (rule.needs & c.Given()) == 0)) continue;
      const bool rounds =
          option == kRounding || option == kResidualRounding || option == kGateRounding;
      change(rule.name, !rounds || x_is_narrow, [&](System& other) {
        rmsnorm_options& o = other.c.options;
        if (IsNumber(option)) {
          const float value = ValueIn<float>(o, option);
          SetValueIn(o, option, value == 0 ? 0.5f : 2 * value);
        } else {
          SetValueIn(o, option, int32_t{ValueIn<int32_t>(o, option) == 0});
        }
        if (option == kGatePlacement) o.gate_rounding = RMSNORM_GATE_UNROUNDED;
      });
    }
    if (c.Has(kPostNormWeight)) {
      change("no post-norm", true, [](System& s) { s.c.operand[kPostNormWeight].dtype = 0; });
    }
    for (const int32_t rounding : {RMSNORM_RESIDUAL_UNROUNDED, RMSNORM_RESIDUAL_ROUNDED}) {
      if (!system.in_two_phases) continue;
      change(rounding == RMSNORM_RESIDUAL_ROUNDED ? "rounded, one call" : "one call", x_is_narrow,
             [=](System& s) {
               s.in_two_phases = false;
               s.c.options.residual_rounding = rounding;
             });
    }
  }
  EXPECT_EQ(size_t{kOptions} + 3, seen.size());
}

}  // namespace
}  // namespace rmsnorm::test
