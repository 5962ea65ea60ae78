// SPDX-License-Identifier: Apache-2.0
// The tables of doc/migration.md: with a row's options, the library gives the results of the row's
// system; with other options, it does not.
//
// The environment variable RMSNORM_MIGRATION_TABLE names the table, and RMSNORM_DATA the folder of
// the systems' results; make.py there describes the file.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "slow_float.h"
#include "tensor.h"
#include "tensor_files.h"

namespace rmsnorm::test {
namespace {

std::string ReadWhole(const char* variable, const std::string& name = "") {
  const char* const path = std::getenv(variable);
  if (path == nullptr) throw std::runtime_error(std::string(variable) + " is not set");
  std::ifstream file(path + name, std::ios::binary);
  if (!file) throw std::runtime_error(path + name + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

// --------------------------------------------------------------------------------- the tables

// The text of a cell without the blanks and backquotes around it.
std::string Trimmed(const std::string& cell) {
  const size_t begin = cell.find_first_not_of(" `");
  if (begin == std::string::npos) return "";
  return cell.substr(begin, cell.find_last_not_of(" `") + 1 - begin);
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::istringstream stream(text);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(Trimmed(part));
  return parts;
}

// A row: column names and the text of their cells, which is empty for columns of other tables.
class Row {
 public:
  std::string& operator[](const std::string& column) { return cells_[column]; }
  std::string at(const std::string& column) const {
    const auto cell = cells_.find(column);
    return cell == cells_.end() ? "" : cell->second;
  }

 private:
  std::map<std::string, std::string> cells_;
};

// The rows of all tables of a page that have a column `name`.
std::vector<Row> ReadTables(const std::string& page) {
  std::vector<std::string> columns;
  std::vector<Row> rows;
  std::istringstream stream(page);
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line[0] != '|') {
      columns.clear();
      continue;
    }
    if (line[1] == '-') continue;
    const std::vector<std::string> cells = Split(line, '|');
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    if (cells.size() != columns.size()) throw std::runtime_error("not the table's shape: " + line);
    Row row;
    for (size_t i = 0; i < cells.size(); ++i) row[columns[i]] = cells[i];
    if (!row.at("name").empty()) rows.push_back(row);
  }
  return rows;
}

// The inverse of rmsnorm_dtype_name().
rmsnorm_dtype DtypeOfTag(const std::string& tag) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    if (tag == rmsnorm_dtype_name(dtype)) return dtype;
  }
  throw std::runtime_error("unknown type " + tag);
}

float Number(const std::string& cell) {
  size_t length;
  const float number = std::stof(cell, &length);
  if (length != cell.size()) throw std::runtime_error("not a number: " + cell);
  return number;
}

Options OptionsOf(const Row& row) {
  const std::map<std::string, EpsPlacement> placements = {{"", EpsPlacement::inside},
                                                          {"inside", EpsPlacement::inside},
                                                          {"outside", EpsPlacement::outside},
                                                          {"floor", EpsPlacement::floor}};
  const std::map<std::string, Rounding> roundings = {{"after_weight", Rounding::after_weight},
                                                     {"before_weight", Rounding::before_weight},
                                                     {"inverse", Rounding::inverse}};
  const std::map<std::string, ResidualRounding> residual_roundings = {
      {"", ResidualRounding::rounded},
      {"rounded", ResidualRounding::rounded},
      {"unrounded", ResidualRounding::unrounded},
      {"two phases", ResidualRounding::unrounded}};
  const std::map<std::string, Activation> activations = {
      {"", Activation::silu}, {"silu", Activation::silu}, {"sigmoid", Activation::sigmoid}};
  const std::map<std::string, GatePlacement> gate_placements = {{"", GatePlacement::after},
                                                                {"after", GatePlacement::after},
                                                                {"before", GatePlacement::before}};
  const std::map<std::string, GateRounding> gate_roundings = {
      {"", GateRounding::unrounded},
      {"unrounded", GateRounding::unrounded},
      {"rounded", GateRounding::rounded}};
  Options options;
  options.eps = Number(row.at("eps"));
  options.eps_placement = placements.at(row.at("eps_placement"));
  options.rounding = roundings.at(row.at("rounding"));
  options.residual_rounding = residual_roundings.at(row.at("residual_rounding"));
  options.weight_offset = Number(row.at("weight_offset"));
  if (!row.at("factor").empty()) options.factor = Number(row.at("factor"));
  options.activation = activations.at(row.at("activation"));
  options.gate_placement = gate_placements.at(row.at("gate_placement"));
  options.gate_rounding = gate_roundings.at(row.at("gate_rounding"));
  return options;
}

// ----------------------------------------------------------------- the systems' inputs and results

// Element counts of the rows in the file.
const std::vector<std::string> kSizes = {"64", "100"};

rmsnorm_dtype DtypeOf(const StoredTensor& tensor) { return DtypeOfName(tensor.dtype); }

double ValueOf(const StoredTensor& tensor, size_t i) {
  return Decode(FormatOf(DtypeOf(tensor)), LoadBits(DtypeOf(tensor), tensor.data.data(), i));
}

// A row of a table, for one length and type of x.
struct Case {
  std::string name;
  Options options;
  const StoredTensor* x;
  const StoredTensor* weight;            // null if absent
  const StoredTensor* post_norm_weight;  // null if absent
  const StoredTensor* gate;              // null if absent
  const StoredTensor* residual;          // null if absent
  rmsnorm_dtype y_dtype;                 // from the table
  const StoredTensor* y;                 // the system's result
  const StoredTensor* sum;               // its residual stream, or null
  bool in_two_phases;                    // the sums of residual + x scale residual_out

  size_t d() const { return y->shape.back(); }
  // The type to which n is rounded before the weight, or would be in another rounding order.
  rmsnorm_dtype TypeOfN() const {
    const bool is_sum =
        residual != nullptr && options.residual_rounding == ResidualRounding::rounded;
    return DtypeOf(is_sum ? *residual : *x);
  }
  bool MayRoundN() const { return TypeOfN() != RMSNORM_F32; }
  bool RoundsN() const { return MayRoundN() && options.rounding != Rounding::after_weight; }
};

struct Result {
  std::string y;
  std::string sum;
};

// The library's results for a case with these options.
Result Compute(const Case& c, const Options& options) {
  const auto view = [&c](const void* data, rmsnorm_dtype dtype) {
    const std::vector<size_t>& shape = c.y->shape;
    return View(
        rmsnorm_tensor(data, dtype, static_cast<int32_t>(shape.size()), shape.data(), nullptr));
  };
  const size_t count = c.x->data.size() / rmsnorm_dtype_size(DtypeOf(*c.x));
  Result result;
  result.y.resize(count * rmsnorm_dtype_size(c.y_dtype));
  ForwardOperands operands;
  operands.x = view(c.x->data.data(), DtypeOf(*c.x));
  operands.y = view(result.y.data(), c.y_dtype);
  const auto vector = [&c](const StoredTensor& tensor) {
    return ConstView(rmsnorm_vector(tensor.data.data(), DtypeOf(tensor), c.d()));
  };
  if (c.weight != nullptr) operands.weight = vector(*c.weight);
  if (c.post_norm_weight != nullptr) operands.post_norm_weight = vector(*c.post_norm_weight);
  if (c.gate != nullptr) operands.gate = view(c.gate->data.data(), DtypeOf(*c.gate));
  if (c.residual != nullptr) {
    result.sum.resize(c.residual->data.size());
    operands.residual = view(c.residual->data.data(), DtypeOf(*c.residual));
    operands.residual_out = view(result.sum.data(), DtypeOf(*c.residual));
  }
  if (c.in_two_phases) {
    std::vector<double> sums(count / c.d());
    ForwardOperands first;
    std::swap(first.x, operands.x);
    std::swap(first.residual, operands.residual);
    std::swap(first.residual_out, operands.residual_out);
    first.sums_out = {sums.data(), sums.size()};
    forward(first, options);
    operands.x = first.residual_out;
    operands.sums = first.sums_out;
    forward(operands, options);
    return result;
  }
  forward(operands, options);
  return result;
}

// -------------------------------------------------------------------------------- the comparison

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

// The same for a case. A gate adds this library's 2 units in the last place, 4 of the system (exp,
// sum, quotient and product), and its product. Before the norm, it adds them in the element and in
// the RMS. The error of a post-norm enters the RMS of the sum.
double Float32Bound(const Case& c) {
  constexpr double kGate = 14 * 0x1p-24;
  double bound = Float32Bound(c.d());
  if (c.gate != nullptr) bound += kGate;
  if (c.gate != nullptr && c.options.gate_placement == GatePlacement::before) bound += kGate;
  if (c.post_norm_weight != nullptr) bound *= 2;
  return bound;
}

// The difference that an element of the sum may have. If a post-norm comes before the addition: the
// difference of that norm's element, plus one unit in the last place of the sum. Otherwise the sums
// are equal.
double SumBound(const Case& c, size_t i) {
  if (c.post_norm_weight == nullptr) return 0;
  const rmsnorm_dtype dtype = DtypeOf(*c.sum);
  const double sum = ValueOf(*c.sum, i);
  const double added = sum - ValueOf(*c.residual, i);
  return (dtype == RMSNORM_F32 ? Float32Bound(c.d()) * std::fabs(added) : 2 * Ulp(dtype, added)) +
         Ulp(dtype, sum);
}

// Two such results round to different 16-bit numbers if one of them is that close to the middle
// between two numbers. For f16 and d = 100 the bound is a 120th of a unit in the last place, so
// this happens to a 60th of all results, and to twice as many if n is rounded before the weight. A
// different rounding order changes at least a seventh of them.
constexpr double kMostRoundedApart = 1.0 / 20;

// Whether `actual` is the system's result. It may differ by one unit in the last place of 16 bits,
// one more if n was rounded first, and one more if n times the weight was. In f32 it must be within
// the bounds, plus one unit of n if that was rounded to 16 bits. Few elements may be rounded apart.
// If a post-norm rounds an element of the sum apart, its element of y moves as far.
testing::AssertionResult IsWhatTheSystemGave(const Case& c, const std::string& actual) {
  const rmsnorm_dtype dtype = DtypeOf(*c.y);
  const size_t count = c.y->data.size() / rmsnorm_dtype_size(dtype);
  size_t rounded_apart = 0;
  for (size_t i = 0; i < count; ++i) {
    const double expected = ValueOf(*c.y, i);
    const uint32_t bits = LoadBits(dtype, actual.data(), i);
    const double value = Decode(FormatOf(dtype), bits);
    const double of_sum = c.post_norm_weight != nullptr
                              ? SumBound(c, i) * std::fabs(expected / ValueOf(*c.sum, i))
                              : 0;
    bool is_near, is_same;
    if (dtype == RMSNORM_F32) {
      const double difference = std::fabs(value - expected);
      const double bound = Float32Bound(c) * std::fabs(expected) + of_sum;
      double unit_of_n = 0;
      if (c.RoundsN()) {
        const double w =
            c.weight != nullptr ? c.options.weight_offset + ValueOf(*c.weight, i % c.d()) : 1;
        unit_of_n = Ulp(c.TypeOfN(), expected / w) * std::fabs(w);
      }
      is_same = difference <= bound;
      is_near = difference <= bound + unit_of_n;
    } else {
      const int64_t ulps = UlpsBetween(dtype, bits, LoadBits(dtype, c.y->data.data(), i));
      const int most =
          1 + (c.RoundsN() ? 1 : 0) + (c.options.gate_rounding == GateRounding::rounded ? 1 : 0);
      is_same = ulps == 0;
      is_near = ulps <= most || std::fabs(value - expected) <= of_sum + most * Ulp(dtype, expected);
    }
    if (!is_near) {
      return testing::AssertionFailure()
             << "element " << i << " of " << count << " is " << value << ", not " << expected;
    }
    if (!is_same) ++rounded_apart;
  }
  if (static_cast<double>(rounded_apart) > kMostRoundedApart * static_cast<double>(count)) {
    return testing::AssertionFailure()
           << rounded_apart << " of " << count << " elements are rounded to another number";
  }
  return testing::AssertionSuccess();
}

class MigrationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tensors_ = ReadSafetensors(ReadWhole("RMSNORM_DATA", "/vectors.safetensors"));
    for (const Row& row : ReadTables(ReadWhole("RMSNORM_MIGRATION_TABLE"))) {
      const std::string x = row.at("x").empty() ? "f32, f16, bf16" : row.at("x");
      for (const std::string& x_type : Split(x, ',')) {
        for (const std::string& d : kSizes) AddCase(row, d, x_type);
      }
    }
  }

  static std::map<std::string, StoredTensor> tensors_;
  static std::vector<Case> cases_;

 private:
  static void AddCase(const Row& row, const std::string& d, const std::string& x_type) {
    const auto type_of = [&](const char* column) {
      const std::string type = row.at(column);
      return type.empty() || type == "as x" ? x_type : type;
    };
    const std::string key = "." + d + "." + x_type;
    const std::string name = row.at("name") + key;
    const bool has_weight = row.at("weight") != "none";
    const bool has_post_norm = row.at("post_norm") == "yes";
    const bool has_gate = !row.at("activation").empty();
    const bool has_residual = !row.at("residual_rounding").empty();
    cases_.push_back({name, OptionsOf(row), &tensors_.at("x" + key),
                      has_weight ? &tensors_.at("w." + d + "." + type_of("weight")) : nullptr,
                      has_post_norm ? &tensors_.at("p" + key) : nullptr,
                      has_gate ? &tensors_.at("z" + key) : nullptr,
                      has_residual ? &tensors_.at("r" + key) : nullptr, DtypeOfTag(type_of("y")),
                      &tensors_.at("y." + name),
                      has_residual ? &tensors_.at("sum." + name) : nullptr,
                      row.at("residual_rounding") == "two phases"});
  }
};
std::map<std::string, StoredTensor> MigrationTest::tensors_;
std::vector<Case> MigrationTest::cases_;

TEST_F(MigrationTest, EveryResultOfASystemHasItsRow) {
  std::set<std::string> in_table, in_file;
  for (const Case& c : cases_) in_table.insert("y." + c.name);
  for (const auto& [name, tensor] : tensors_) {
    if (name[0] == 'y') in_file.insert(name);
  }
  EXPECT_EQ(in_file, in_table);
  EXPECT_FALSE(in_file.empty());
}

TEST_F(MigrationTest, TheTableSaysWhatTheSystemGives) {
  for (const Case& c : cases_) {
    SCOPED_TRACE(c.name);
    ASSERT_EQ(DtypeOf(*c.y), c.y_dtype);
    const Result result = Compute(c, c.options);
    EXPECT_TRUE(IsWhatTheSystemGave(c, result.y));
    if (c.sum != nullptr && c.post_norm_weight == nullptr) {
      EXPECT_EQ(result.sum, c.sum->data);  // one addition, rounded once: the same bits
    } else if (c.sum != nullptr) {
      const rmsnorm_dtype dtype = DtypeOf(*c.sum);
      for (size_t i = 0; i < result.sum.size() / rmsnorm_dtype_size(dtype); ++i) {
        const double sum = Decode(FormatOf(dtype), LoadBits(dtype, result.sum.data(), i));
        EXPECT_NEAR(sum, ValueOf(*c.sum, i), SumBound(c, i)) << "element " << i;
      }
    }
  }
}

TEST_F(MigrationTest, AnotherEpsIsSeen) {
  for (const Case& c : cases_) {
    Options options = c.options;
    options.eps *= 2;
    EXPECT_FALSE(IsWhatTheSystemGave(c, Compute(c, options).y)) << c.name;
  }
}

TEST_F(MigrationTest, AnotherPlacementOfEpsIsSeen) {
  for (const Case& c : cases_) {
    Options options = c.options;
    options.eps_placement = options.eps_placement == EpsPlacement::inside ? EpsPlacement::outside
                                                                          : EpsPlacement::inside;
    EXPECT_FALSE(IsWhatTheSystemGave(c, Compute(c, options).y)) << c.name;
  }
}

TEST_F(MigrationTest, AnotherWeightOffsetIsSeen) {
  for (const Case& c : cases_) {
    if (c.weight == nullptr) continue;
    Options options = c.options;
    options.weight_offset = 1 - options.weight_offset;
    EXPECT_FALSE(IsWhatTheSystemGave(c, Compute(c, options).y)) << c.name;
  }
}

// The orders are equal if n has 24 bits, and if there is neither a weight nor a rounded inverse.
TEST_F(MigrationTest, AnotherRoundingOrderIsSeen) {
  for (const Case& c : cases_) {
    if (c.weight == nullptr && c.options.rounding != Rounding::inverse) continue;
    Options options = c.options;
    options.rounding = options.rounding == Rounding::after_weight ? Rounding::before_weight
                                                                  : Rounding::after_weight;
    const Result result = Compute(c, options);
    if (c.MayRoundN()) {
      EXPECT_FALSE(IsWhatTheSystemGave(c, result.y)) << c.name;
    } else {
      EXPECT_EQ(Compute(c, c.options).y, result.y) << c.name;
    }
  }
}

// Both orders are equal if the residual is f32.
TEST_F(MigrationTest, AnotherRoundingOfTheResidualIsSeen) {
  size_t residuals = 0;
  for (const Case& c : cases_) {
    if (c.residual == nullptr) continue;
    if (c.in_two_phases) continue;
    ++residuals;
    Options options = c.options;
    options.residual_rounding = options.residual_rounding == ResidualRounding::rounded
                                    ? ResidualRounding::unrounded
                                    : ResidualRounding::rounded;
    const Result result = Compute(c, options);
    if (DtypeOf(*c.residual) != RMSNORM_F32) {
      EXPECT_FALSE(IsWhatTheSystemGave(c, result.y)) << c.name;
    } else {
      EXPECT_EQ(Compute(c, c.options).y, result.y) << c.name;
    }
  }
  EXPECT_GT(residuals, 0u);
}

// In f32 the gate's rounding to x's type changes nothing.
TEST_F(MigrationTest, AnotherGateIsSeen) {
  size_t gates = 0;
  for (const Case& c : cases_) {
    if (c.gate == nullptr) continue;
    ++gates;
    const bool is_before = c.options.gate_placement == GatePlacement::before;
    Options options = c.options;
    options.activation =
        options.activation == Activation::silu ? Activation::sigmoid : Activation::silu;
    EXPECT_FALSE(IsWhatTheSystemGave(c, Compute(c, options).y)) << c.name;
    options = c.options;
    options.gate_placement = is_before ? GatePlacement::after : GatePlacement::before;
    options.gate_rounding = GateRounding::unrounded;
    EXPECT_FALSE(IsWhatTheSystemGave(c, Compute(c, options).y)) << c.name;
    if (is_before) continue;
    options = c.options;
    options.gate_rounding = options.gate_rounding == GateRounding::rounded ? GateRounding::unrounded
                                                                           : GateRounding::rounded;
    const Result result = Compute(c, options);
    if (DtypeOf(*c.x) != RMSNORM_F32) {
      EXPECT_FALSE(IsWhatTheSystemGave(c, result.y)) << c.name;
    } else {
      EXPECT_EQ(Compute(c, c.options).y, result.y) << c.name;
    }
  }
  EXPECT_GT(gates, 0u);
}

TEST_F(MigrationTest, AMissingPostNormAndAnotherFactorAreSeen) {
  size_t post_norms = 0, factors = 0;
  for (const Case& c : cases_) {
    Case without = c;
    if (c.post_norm_weight != nullptr) {
      ++post_norms;
      without.post_norm_weight = nullptr;
    } else if (c.options.factor != 0) {
      ++factors;
      without.options.factor = 1;
    } else {
      continue;
    }
    EXPECT_FALSE(IsWhatTheSystemGave(c, Compute(without, without.options).y)) << c.name;
  }
  EXPECT_GT(post_norms, 0u);
  EXPECT_GT(factors, 0u);
}

size_t ElementsApart(const Case& c, const std::string& actual) {
  const size_t size = rmsnorm_dtype_size(c.y_dtype);
  size_t apart = 0;
  for (size_t i = 0; i < actual.size(); i += size) {
    apart += actual.compare(i, size, c.y->data, i, size) != 0 ? 1 : 0;
  }
  return apart;
}

// One call scales the sum whose RMS it computes. The unrounded sum is a visible difference. The RMS
// of the rounded sum differs so little that only the number of different elements shows it.
TEST_F(MigrationTest, OneCallInPlaceOfTwoPhasesIsSeen) {
  size_t in_one_call = 0, in_two_phases = 0;
  for (const Case& c : cases_) {
    if (!c.in_two_phases || DtypeOf(*c.residual) == RMSNORM_F32) continue;
    Case one_call = c;
    one_call.in_two_phases = false;
    Options options = c.options;
    EXPECT_FALSE(IsWhatTheSystemGave(c, Compute(one_call, options).y)) << c.name;
    options.residual_rounding = ResidualRounding::rounded;
    in_one_call += ElementsApart(c, Compute(one_call, options).y);
    in_two_phases += ElementsApart(c, Compute(c, c.options).y);
  }
  EXPECT_GT(in_one_call, 10 * in_two_phases);
}

}  // namespace
}  // namespace rmsnorm::test
