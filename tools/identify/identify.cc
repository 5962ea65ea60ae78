// SPDX-License-Identifier: Apache-2.0
#include "identify.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <stdexcept>

#include "options_text.h"

namespace rmsnorm::identify {
namespace {

using internal::kGate;
using internal::kOperandRules;
using internal::kOperands;
using internal::kOptionRules;
using internal::kResidual;
using internal::kWeight;
using internal::kX;
using internal::Operand;
using internal::Option;
using internal::Role;

// The eps of models and frameworks (doc/migration.md), and the machine epsilons.
constexpr float kUsualEps[] = {1e-6f, 1e-5f, 0,        1e-12f,     1e-10f,
                               1e-8f, 1e-7f, 0x1p-23f, 1.5625e-7f, 1e-4f,
                               1e-3f, 1e-2f, 0x1p-52f, 0x1p-10f,   0x1p-7f};

// The elements that all hypotheses together compute in the first round.
constexpr double kElementsToTry = 2e8;
// The hypotheses that the second round compares in all rows.
constexpr size_t kBest = 64;

// What an implementation was given and what it returned.
struct Observation {
  NormCall call;
  Matrix y;

  Observation Of(const std::vector<size_t>& rows) const {
    Observation part = *this;
    for (std::optional<Matrix>& operand : part.call.operand) {
      if (operand) operand = TakeRows(*operand, rows);
    }
    part.y = TakeRows(y, rows);
    return part;
  }
};

// Lets the library check the operands, by a call that writes its results elsewhere.
void CheckOperands(const rmsnorm_operands& operands) {
  if (operands.x == nullptr || operands.y == nullptr) {
    throw std::runtime_error("x and y are required");
  }
  rmsnorm_operands copy = operands;
  rmsnorm_view views[kOperands];
  std::vector<char> memory[kOperands];
  for (int i = 0; i < kOperands; ++i) {
    const auto o = static_cast<Operand>(i);
    const rmsnorm_view* const view = internal::ViewIn(operands, o);
    if (view == nullptr || kOperandRules[i].forward != Role::kOutput) continue;
    if (view->ndim < 1 || view->ndim > RMSNORM_MAX_DIMS) continue;  // the library refuses it
    memory[o].resize(internal::ElementsOf(*view) * internal::ElementSize(view->dtype) + 1);
    views[o] = rmsnorm_tensor(memory[o].data(), view->dtype, view->ndim, view->shape, nullptr);
    internal::SetViewIn(copy, o, &views[o]);
  }
  if (rmsnorm_forward(&copy, nullptr, nullptr) != RMSNORM_OK) {
    throw std::runtime_error(rmsnorm_error_message());
  }
}

Observation Observe(const rmsnorm_operands& operands) {
  Observation seen;
  for (int i = 0; i < kOperands; ++i) {
    const auto o = static_cast<Operand>(i);
    const rmsnorm_view* const view = internal::ViewIn(operands, o);
    if (view == nullptr || kOperandRules[i].forward == Role::kOutput) continue;
    seen.call.operand[i] = ReadRows(*view, *operands.x);
  }
  seen.y = ReadRows(*operands.y, *operands.x);
  // A result in f32 may hold numbers of a narrower type, which the norm was rounded to.
  for (const rmsnorm_dtype narrow : {RMSNORM_BF16, RMSNORM_F16}) {
    if (seen.y.dtype == RMSNORM_F32 && Holds(narrow, seen.y)) {
      seen.y = Rounded(ValuesOf(seen.y), narrow, seen.y.rows, seen.y.d);
    }
  }
  seen.call.y_dtype = seen.y.dtype;
  return seen;
}

// What is unusual about a row, if anything.
enum RowKind { kOrdinary, kZeros, kNan, kInfinity, kOverflow, kUnderflow, kRowKinds };
constexpr const char* kRowKindNames[] = {"",
                                         "of zeros",
                                         "with a NaN",
                                         "with an infinity",
                                         "whose squares overflow f32",
                                         "whose squares are too small for f32"};

std::vector<RowKind> KindsOf(const NormCall& call) {
  const Matrix h = call.Has(kResidual) ? SumWithResidual(call, RMSNORM_F32) : call.x();
  const std::vector<float> values = ValuesOf(h);
  const std::vector<double> sums = SumsOfSquares(h);
  std::vector<RowKind> kinds;
  for (size_t row = 0; row < h.rows; ++row) {
    bool has_infinity = false, has_nan = false;
    for (size_t i = row * h.d; i < (row + 1) * h.d; ++i) {
      has_infinity = has_infinity || std::isinf(values[i]);
      has_nan = has_nan || std::isnan(values[i]);
    }
    kinds.push_back(has_nan                                           ? kNan
                    : has_infinity                                    ? kInfinity
                    : sums[row] == 0                                  ? kZeros
                    : sums[row] > static_cast<double>(FLT_MAX)        ? kOverflow
                    : sums[row] < 0x1p-100 * static_cast<double>(h.d) ? kUnderflow
                                                                      : kOrdinary);
  }
  return kinds;
}

// At most `count` rows, from the smallest to the largest sum of squares.
std::vector<size_t> Spread(const NormCall& call, size_t count) {
  const std::vector<double> sums = SumsOfSquares(call.x());
  std::vector<size_t> rows(sums.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = i;
  if (rows.size() <= count) return rows;
  std::sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return sums[a] < sums[b]; });
  std::vector<size_t> spread;
  for (size_t i = 0; i < count; ++i) {
    spread.push_back(rows[i * (rows.size() - 1) / std::max<size_t>(count - 1, 1)]);
  }
  return spread;
}

// The number with few decimal digits.
float Shortened(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*e", digits - 1, value);
  return std::strtof(text, nullptr);
}

// The default factor, and other factors of x that would explain y. In a row, y is a sum of two
// vectors with some coefficients: the weight times the residual, and the weight times x.
std::vector<float> FactorsToTry(const Observation& seen) {
  std::vector<float> factors = {rmsnorm_default_options().factor};
  const NormCall& call = seen.call;
  if (!call.Has(kResidual) || call.Has(kGate) || call.Has(internal::kPostNormWeight)) {
    return factors;
  }
  const size_t rows = call.x().rows, d = call.x().d;
  const std::vector<float> x = ValuesOf(call.x()), residual = ValuesOf(*call.operand[kResidual]),
                           y = ValuesOf(seen.y);
  std::vector<float> w(d, 1.0f);
  if (call.Has(kWeight)) w = ValuesOf(*call.operand[kWeight]);
  for (const double offset : {0.0, 1.0}) {
    std::vector<double> of_rows;
    for (size_t row = 0; row < rows; ++row) {
      double rr = 0, rx = 0, xx = 0, ry = 0, xy = 0;
      for (size_t i = row * d; i < (row + 1) * d; ++i) {
        const double weight = offset + static_cast<double>(w[i % w.size()]);
        const double a = weight * static_cast<double>(residual[i]);
        const double b = weight * static_cast<double>(x[i]);
        rr += a * a, rx += a * b, xx += b * b;
        ry += a * static_cast<double>(y[i]), xy += b * static_cast<double>(y[i]);
      }
      const double factor = (xy * rr - ry * rx) / (ry * xx - xy * rx);
      if (std::isfinite(factor)) of_rows.push_back(factor);
    }
    if (of_rows.empty()) continue;
    std::sort(of_rows.begin(), of_rows.end());
    const double factor = of_rows[of_rows.size() / 2];
    const double spread = of_rows[of_rows.size() * 3 / 4] - of_rows[of_rows.size() / 4];
    constexpr double kError = 0.02;
    if (spread > kError * std::fabs(factor) || std::fabs(factor - 1) < kError) continue;
    for (const int digits : {2, 3, 8}) {
      const float shortened = Shortened(factor, digits);
      // Usually the digits agree, and each factor multiplies the options.
      if (std::find(factors.begin(), factors.end(), shortened) == factors.end()) {
        factors.push_back(shortened);
      }
    }
  }
  return factors;
}

// The eps that would explain y with a factor, for each placement, with an offset of the weight of 0
// or 1. y gives the inverse RMS of the smallest row, and the inverse RMS gives eps.
std::vector<float> EstimatedEps(const Observation& seen, float factor) {
  std::vector<float> estimates;
  if (seen.call.Has(kGate)) return estimates;
  NormCall plain = seen.call;
  plain.options.factor = factor;
  if (plain.Has(kResidual)) plain.operand[kX] = SumWithResidual(plain, RMSNORM_F32);
  const Matrix& h = plain.x();
  const std::vector<double> sums = SumsOfSquares(h);
  const auto smallest =
      static_cast<size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
  const std::vector<float> x = ValuesOf(TakeRows(h, {smallest}));
  const std::vector<float> y = ValuesOf(TakeRows(seen.y, {smallest}));
  std::vector<float> w(h.d, 1.0f);
  if (plain.Has(kWeight)) w = ValuesOf(TakeRows(*plain.operand[kWeight], {smallest}));
  for (const double offset : {0.0, 1.0}) {
    double product = 0, square = 0;
    for (size_t i = 0; i < h.d; ++i) {
      const double unscaled = static_cast<double>(x[i]) * (offset + static_cast<double>(w[i]));
      product += unscaled * static_cast<double>(y[i]);
      square += unscaled * unscaled;
    }
    const double root = square / product;  // 1 / r
    const double mean = sums[smallest] / static_cast<double>(h.d);
    for (const double eps : {root * root - mean, root - std::sqrt(mean), root}) {
      // Less than this could be an error of r.
      if (!(eps > 0 && (eps > root * 0x1p-8 || eps > root * root * 0x1p-8) && eps < 1)) continue;
      for (const int digits : {1, 2}) estimates.push_back(Shortened(eps, digits));
    }
  }
  return estimates;
}

std::vector<float> EpsToTry(const Observation& seen, const std::vector<float>& given,
                            const std::vector<float>& factors) {
  std::vector<float> all = given;
  all.insert(all.end(), std::begin(kUsualEps), std::end(kUsualEps));
  const size_t known = all.size();
  for (const float factor : factors) {
    const std::vector<float> estimated = EstimatedEps(seen, factor);
    all.insert(all.end(), estimated.begin(), estimated.end());
  }
  std::vector<float> distinct;
  for (size_t i = 0; i < all.size(); ++i) {
    // An estimate this near a known value is that value.
    const float apart = i < known ? 0 : 0.03f * all[i];
    const auto is_same = [&](float eps) { return std::fabs(eps - all[i]) <= apart; };
    if (std::none_of(distinct.begin(), distinct.end(), is_same)) distinct.push_back(all[i]);
  }
  return distinct;
}

bool IsPossible(const rmsnorm_options&) { return true; }

// Replaces each of the options by one for each value of an option, as far as that is possible.
template <class Value>
void Vary(std::vector<rmsnorm_options>& all, Option option, const std::vector<Value>& values,
          bool (*is_possible)(const rmsnorm_options&) = IsPossible) {
  std::vector<rmsnorm_options> varied;
  for (rmsnorm_options options : all) {
    for (const Value value : values) {
      internal::SetValueIn(options, option, value);
      if (is_possible(options)) varied.push_back(options);
    }
  }
  all = varied;
}

// The numbers of all words of an option.
std::vector<int32_t> WordsOf(Option option) {
  std::vector<int32_t> words;
  for (int32_t i = 0; kOptionRules[option].words[i] != nullptr; ++i) words.push_back(i);
  return words;
}

// Every combination of options that can matter for these operands, the usual ones first.
std::vector<rmsnorm_options> OptionsToTry(const NormCall& call, const std::vector<float>& eps,
                                          const std::vector<float>& factors) {
  std::vector<rmsnorm_options> all = {rmsnorm_default_options()};
  const auto vary = [&all](Option option, auto... is_possible) {
    Vary(all, option, WordsOf(option), is_possible...);
  };
  const bool rounds = call.x().dtype != RMSNORM_F32 ||
                      (call.Has(kResidual) && call.operand[kResidual]->dtype != RMSNORM_F32);
  Vary(all, internal::kEps, eps);
  Vary(all, internal::kFactor, factors);
  vary(internal::kEpsPlacement, [](const rmsnorm_options& options) {
    return options.eps_placement == RMSNORM_EPS_INSIDE || options.eps != 0;
  });
  if (rounds) vary(internal::kRounding);
  if (call.Has(kWeight)) Vary(all, internal::kWeightOffset, std::vector<float>{0, 1});
  if (rounds && call.Has(kResidual)) vary(internal::kResidualRounding);
  if (call.Has(kGate)) {
    vary(internal::kActivation);
    if (!call.Has(kResidual)) vary(internal::kGatePlacement);
    if (rounds) {
      vary(internal::kGateRounding, [](const rmsnorm_options& options) {
        return options.gate_rounding == RMSNORM_GATE_UNROUNDED ||
               options.gate_placement == RMSNORM_GATE_AFTER;
      });
    }
  }
  return all;
}

// A hypothesis before its step, with its place in the order from simple to far-fetched.
struct Candidate {
  const Step* step;
  const rmsnorm_options* options;
  size_t order;
  Distance distance;
  rmsnorm_options used;  // by the call of the library
};

// Computes y for a candidate. Returns nothing where the step does not fit the options.
std::optional<Matrix> ResultOf(const Observation& seen, Candidate& candidate) {
  NormCall call = seen.call;
  call.options = *candidate.options;
  std::optional<Matrix> y = candidate.step->compute(call);
  candidate.used = call.options;
  return y;
}

// Compares a candidate with what was seen, up to `most` bits. Returns false where the step does not
// fit the options.
bool Try(const Observation& seen, Candidate& candidate, uint64_t most = UINT64_MAX) {
  const std::optional<Matrix> y = ResultOf(seen, candidate);
  if (y) candidate.distance = DistanceOf(*y, seen.y, most);
  return y.has_value();
}

bool IsNearer(const Candidate& a, const Candidate& b) {
  return a.distance.bits != b.distance.bits ? a.distance.bits < b.distance.bits : a.order < b.order;
}

// The kBest nearest candidates, in no order. Most are far away already in a few rows.
std::vector<Candidate> Nearest(const Observation& sample, const std::vector<Step>& steps,
                               const std::vector<rmsnorm_options>& options) {
  const Observation few = sample.Of(Spread(sample.call, 3));
  std::vector<Candidate> nearest;  // a heap with the farthest one first
  size_t order = 0;
  for (const Step& step : steps) {
    for (const rmsnorm_options& tried : options) {
      Candidate candidate = {&step, &tried, order++, {}, {}};
      const bool is_full = nearest.size() == kBest;
      const uint64_t most = is_full ? nearest.front().distance.bits : UINT64_MAX;
      if (!Try(few, candidate, most) || candidate.distance.bits > most) continue;
      Try(sample, candidate, most);
      if (candidate.distance.bits > most) continue;
      if (is_full) {
        std::pop_heap(nearest.begin(), nearest.end(), IsNearer);
        nearest.pop_back();
      }
      nearest.push_back(candidate);
      std::push_heap(nearest.begin(), nearest.end(), IsNearer);
    }
  }
  return nearest;
}

// The relative error that another order of adding d squares leaves in the inverse RMS of a row, in
// units in the last place of f32: each addition rounds, but random errors cancel.
double SumError(size_t d) { return 16 + static_cast<double>(d) / 64; }

// Whether the elements are within a number of ulp of the largest one of their row. The sum of a
// post-norm and the residual can cancel, which leaves the error of the post-norm in a small
// element.
bool IsNearInRows(const Matrix& a, const Matrix& b, double ulps) {
  const std::vector<float> p = ValuesOf(a), q = ValuesOf(b);
  for (size_t row = 0; row < a.rows; ++row) {
    double largest = 0, error = 0;
    for (size_t i = row * a.d; i < (row + 1) * a.d; ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(q[i])));
      error = std::max(error, std::fabs(static_cast<double>(p[i]) - static_cast<double>(q[i])));
    }
    if (!(error <= ulps * 0x1p-23 * largest)) return false;
  }
  return true;
}

// Whether errors of the sums explain the distance of a candidate.
bool IsClose(const Observation& seen, Candidate& candidate) {
  const Distance& distance = candidate.distance;
  const double error = SumError(seen.y.d);
  if (seen.y.dtype == RMSNORM_F32) {
    return distance.worst <= 2 * error ||
           (seen.call.Has(internal::kPostNormWeight) &&
            IsNearInRows(seen.y, *ResultOf(seen, candidate), 2 * error));
  }
  // An error of e ulp of f32 rounds a share of 2 e ulp of the narrow type to the next number. A
  // rounding in between doubles the share, and moves the result by one more.
  const bool rounds_between = candidate.used.rounding != RMSNORM_ROUND_AFTER_WEIGHT ||
                              candidate.used.gate_rounding != RMSNORM_GATE_UNROUNDED;
  const double ulp = seen.y.dtype == RMSNORM_F16 ? 0x1p-13 : 0x1p-16;  // of f32 in the narrow type
  const double allowed = 2 * error * ulp * (rounds_between ? 2 : 1);
  return distance.worst <= (rounds_between ? 2u : 1u) &&
         1 - distance.Equal() <= allowed + 2 / static_cast<double>(distance.elements);
}

// Whether results at this distance may come from the same norm as those at the best distance. Exact
// results may still be one of several: in 16 bits, few elements show another order of a sum.
bool IsAsGood(const Distance& distance, const Distance& best) {
  return distance.MeanBits() <= 2 * best.MeanBits() + 1.5 / static_cast<double>(best.elements);
}

bool IsEqual(const rmsnorm_options& a, const rmsnorm_options& b, Option option) {
  return internal::ValueIn<uint32_t>(a, option) == internal::ValueIn<uint32_t>(b, option);
}

std::string CureOf(Option option) {
  switch (option) {
    case internal::kEps:
    case internal::kEpsPlacement:
      return "rows with an RMS near eps and near its root";
    case internal::kRounding:
    case internal::kResidualRounding:
    case internal::kGateRounding:
      return "more rows in f16 or bf16";
    default:
      return "other rows";
  }
}

// What the data leave open: values that fit as well where nothing else changes.
std::vector<Ambiguity> AmbiguitiesOf(const std::vector<Candidate>& good, const Candidate& best) {
  std::vector<Ambiguity> found;
  for (int i = 0; i < internal::kOptions; ++i) {
    const auto option = static_cast<Option>(i);
    Ambiguity ambiguity = {kOptionRules[i].name, {OptionValue(best.used, option)}, CureOf(option)};
    for (const Candidate& candidate : good) {
      bool differs_here_alone = candidate.step->words == best.step->words;
      for (int j = 0; j < internal::kOptions; ++j) {
        const bool is_equal = IsEqual(candidate.used, best.used, static_cast<Option>(j));
        if (is_equal == (i == j)) differs_here_alone = false;
      }
      if (differs_here_alone) ambiguity.values.push_back(OptionValue(candidate.used, option));
    }
    if (ambiguity.values.size() > 1) found.push_back(ambiguity);
  }
  Ambiguity steps = {"step",
                     {best.step->words.empty() ? "nothing else" : best.step->words},
                     "other rows and another weight"};
  for (const Candidate& candidate : good) {
    if (candidate.options == best.options && candidate.step->words != best.step->words) {
      steps.values.push_back(candidate.step->words);
    }
  }
  if (steps.values.size() > 1) found.push_back(steps);
  return found;
}

// "5 of 43 rows differ: 3, 8, 11, ..."
std::string CountOfRows(const std::vector<size_t>& rows, size_t of, const std::string& what) {
  constexpr size_t kMostNamed = 3;
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(rows.size(), kMostNamed); ++i) {
    named.push_back(std::to_string(rows[i]));
  }
  const std::string end = rows.size() > kMostNamed ? ", ..." : ".";
  return std::to_string(rows.size()) + " of " + std::to_string(of) + " rows " + what + ": " +
         Joined(named, ", ") + end;
}

// Which rows differ, if most are equal. `numbers` are the rows in the tensors that were given.
std::optional<std::string> DescribeRows(const Observation& seen, const Matrix& expected,
                                        const std::vector<size_t>& numbers) {
  std::vector<size_t> differing;
  for (size_t row = 0; row < seen.y.rows; ++row) {
    const Distance distance = DistanceOf(TakeRows(expected, {row}), TakeRows(seen.y, {row}));
    if (distance.equal != distance.elements) differing.push_back(numbers[row]);
  }
  if (differing.empty() || differing.size() > seen.y.rows / 2) return {};
  return CountOfRows(differing, seen.y.rows, differing.size() == 1 ? "differs" : "differ");
}

// Where y is wrong: columns, rows, or the size of each row.
std::string DescribeErrors(const Observation& seen, const Matrix& expected,
                           const std::vector<size_t>& numbers) {
  const std::vector<float> y = ValuesOf(seen.y), e = ValuesOf(expected);
  const size_t rows = seen.y.rows, d = seen.y.d;
  const double tolerance = seen.y.dtype == RMSNORM_BF16 ? 0x1p-6 : 0x1p-9;
  const auto is_wrong = [&](size_t i) {
    return !(std::fabs(y[i] - e[i]) <= static_cast<float>(tolerance) * std::fabs(e[i]));
  };
  float largest = 0;
  for (const float value : y) largest = std::max(largest, std::fabs(value));
  size_t first = d, last = 0, wrong = 0;
  std::vector<size_t> wrong_rows;
  bool is_limited = true;  // the wrong elements are as large as any
  double least = HUGE_VAL, most = -HUGE_VAL;
  bool is_scaled = true;
  for (size_t row = 0; row < rows; ++row) {
    size_t wrong_here = 0;
    double product = 0, square = 0;
    for (size_t j = 0; j < d; ++j) {
      const size_t i = row * d + j;
      product += static_cast<double>(y[i]) * static_cast<double>(e[i]);
      square += static_cast<double>(e[i]) * static_cast<double>(e[i]);
      if (!is_wrong(i)) continue;
      ++wrong_here;
      is_limited = is_limited && std::fabs(y[i]) == largest;
      first = std::min(first, j);
      last = std::max(last, j);
    }
    wrong += wrong_here;
    if (wrong_here > 0) wrong_rows.push_back(numbers[row]);
    const double factor = product / square;
    least = std::min(least, factor);
    most = std::max(most, factor);
    for (size_t i = row * d; i < (row + 1) * d && is_scaled; ++i) {
      const double scaled = factor * static_cast<double>(e[i]);
      is_scaled =
          std::fabs(static_cast<double>(y[i]) - scaled) <= 2 * tolerance * std::fabs(scaled);
    }
  }
  if (wrong == 0) {
    const std::optional<std::string> few = DescribeRows(seen, expected, numbers);
    return "Every element is near this norm, but rounded differently." + (few ? " " + *few : "");
  }
  if (is_limited && wrong > 1 && wrong < rows * d) {
    return "The wrong elements are all " + ShortestDecimal(largest) + " in size: y is limited.";
  }
  char text[200];
  if (is_scaled) {
    std::snprintf(text, sizeof text,
                  "Each row is this norm times a factor, from %.6g to %.6g: look at the sum, the "
                  "divisor and eps.",
                  least, most);
  } else if (last - first + 1 <= d / 2) {
    std::snprintf(text, sizeof text, "Only elements %zu to %zu of rows are wrong.", first, last);
  } else if (wrong_rows.size() < rows) {
    return CountOfRows(wrong_rows, rows, wrong_rows.size() == 1 ? "is wrong" : "are wrong");
  } else {
    std::snprintf(text, sizeof text, "%zu of %zu elements are wrong.", wrong, rows * d);
  }
  return text;
}

// What became of special rows, compared with the library by the options of the best hypothesis.
std::vector<std::string> DescribeSpecialRows(const Observation& seen,
                                             const std::vector<RowKind>& kinds,
                                             const Candidate& best) {
  std::vector<std::string> notes, as_here;
  for (int kind = kOrdinary + 1; kind < kRowKinds; ++kind) {
    std::vector<size_t> rows;
    for (size_t row = 0; row < kinds.size(); ++row) {
      if (kinds[row] == kind) rows.push_back(row);
    }
    if (rows.empty()) continue;
    const Observation part = seen.Of(rows);
    Candidate here = best;
    if (Try(part, here) && here.distance.worst <= 2 * SumError(part.y.d)) {
      as_here.emplace_back(kRowKindNames[kind]);
      continue;
    }
    std::string note = std::string("Rows ") + kRowKindNames[kind];
    const std::vector<float> y = ValuesOf(part.y);
    const auto all = [&](auto holds) { return std::all_of(y.begin(), y.end(), holds); };
    note += all([](float v) { return v == 0; })          ? " become zeros"
            : all([](float v) { return std::isnan(v); }) ? " become NaN"
            : all([](float v) { return std::isinf(v); }) ? " become infinite"
                                                         : " become something else";
    notes.push_back(note + ", unlike in this library.");
  }
  if (!as_here.empty()) {
    notes.push_back("As in this library are rows " + Joined(as_here, ", ") + ".");
  }
  return notes;
}

std::string DescribeResidualOut(const rmsnorm_operands& operands, const NormCall& call) {
  const Matrix given = ReadRows(*operands.residual_out, *operands.x);
  const Distance distance = DistanceOf(SumWithResidual(call, given.dtype), given);
  const float factor = internal::FactorOf(call.options);
  const std::string sum = "residual + " + (factor == 1 ? "" : ShortestDecimal(factor) + " ") + "x";
  if (distance.equal == distance.elements) return "residual_out is " + sum + " in every element.";
  return "residual_out differs from " + sum + " in " +
         std::to_string(distance.elements - distance.equal) + " of " +
         std::to_string(distance.elements) + " elements.";
}

Hypothesis HypothesisOf(const Candidate& candidate) {
  return {candidate.used, candidate.step->kind, candidate.step->words, candidate.distance};
}

}  // namespace

Answer Identify(const rmsnorm_operands& operands, const std::vector<float>& eps) {
  CheckOperands(operands);
  const Observation whole = Observe(operands);
  const std::vector<RowKind> kinds = KindsOf(whole.call);
  std::vector<size_t> ordinary;
  for (size_t row = 0; row < kinds.size(); ++row) {
    if (kinds[row] == kOrdinary) ordinary.push_back(row);
  }
  if (ordinary.empty()) {
    throw std::runtime_error(
        "x: each row holds zeros, NaN, infinity or squares that f32 cannot add");
  }
  const Observation seen = whole.Of(ordinary);

  const std::vector<float> factors = FactorsToTry(seen);
  const std::vector<rmsnorm_options> options =
      OptionsToTry(seen.call, EpsToTry(seen, eps, factors), factors);
  const std::vector<Step> steps = StepsFor(seen.call);
  const double each = kElementsToTry / static_cast<double>(options.size() * steps.size());
  const auto sampled_rows = static_cast<size_t>(each / static_cast<double>(seen.y.d));
  const Observation sample = seen.Of(Spread(seen.call, std::max<size_t>(sampled_rows, 6)));

  std::vector<Candidate> candidates = Nearest(sample, steps, options);
  for (Candidate& candidate : candidates) Try(seen, candidate);
  std::sort(candidates.begin(), candidates.end(), IsNearer);

  std::vector<Candidate> good;
  for (const Candidate& candidate : candidates) {
    if (IsAsGood(candidate.distance, candidates.front().distance)) good.push_back(candidate);
  }
  // Of equally good candidates, the simplest.
  Candidate best =
      *std::min_element(good.begin(), good.end(), [](const Candidate& a, const Candidate& b) {
        if (a.step->kind != b.step->kind) return a.step->kind < b.step->kind;
        const size_t p = GivenOptions(a.used).size(), q = GivenOptions(b.used).size();
        return p != q ? p < q : a.order < b.order;
      });

  Answer answer;
  answer.best = HypothesisOf(best);
  const bool is_exact = best.distance.equal == best.distance.elements;
  answer.fit = is_exact ? Fit::kExact : IsClose(seen, best) ? Fit::kClose : Fit::kNone;
  constexpr size_t kOthers = 4;
  for (const Candidate& candidate : candidates) {
    const auto has_same_step = [&](const Hypothesis& other) {
      return !other.step.empty() && other.step == candidate.step->words;
    };
    const bool is_new = std::none_of(answer.others.begin(), answer.others.end(), has_same_step);
    const bool is_best = candidate.order == best.order;
    const bool is_told_apart =
        answer.fit == Fit::kNone || !IsAsGood(candidate.distance, candidates.front().distance);
    if (answer.others.size() < kOthers && is_new && is_told_apart && !is_best) {
      answer.others.push_back(HypothesisOf(candidate));
    }
  }
  if (answer.fit != Fit::kNone) {
    answer.ambiguities = AmbiguitiesOf(good, best);
    const std::optional<std::string> few = DescribeRows(seen, *ResultOf(seen, best), ordinary);
    answer.notes = DescribeSpecialRows(whole, kinds, best);
    if (few) answer.notes.insert(answer.notes.begin(), *few);
  }
  if (operands.residual_out != nullptr) {
    NormCall call = whole.call;
    call.options = best.used;
    answer.notes.push_back(DescribeResidualOut(operands, call));
  }
  if (answer.fit == Fit::kNone) {
    answer.notes.push_back(DescribeErrors(seen, *ResultOf(seen, best), ordinary));
  }
  answer.call = seen.call;
  answer.rows = kinds.size();
  return answer;
}

}  // namespace rmsnorm::identify
