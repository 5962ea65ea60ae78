// SPDX-License-Identifier: Apache-2.0
#include "identify.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <list>
#include <stdexcept>

#include "estimates.h"
#include "options_text.h"
#include "step_list.h"

namespace rmsnorm::identify {
namespace {

using internal::kGate;
using internal::kOperandRules;
using internal::kOperands;
using internal::kOptionRules;
using internal::kResidual;
using internal::kResidualOut;
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
    rmsnorm_dtype dtype = view->dtype;
    const bool is_float = dtype == RMSNORM_F32 || dtype == RMSNORM_F16 || dtype == RMSNORM_BF16;
    // A sum in another type is a mistake that the answer names.
    if (o == kResidualOut && operands.residual != nullptr && is_float) {
      dtype = operands.residual->dtype;
    }
    memory[o].resize(internal::ElementsOf(*view) * internal::ElementSize(dtype) + 1);
    views[o] = rmsnorm_tensor(memory[o].data(), dtype, view->ndim, view->shape, nullptr);
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
    if (view == nullptr) continue;
    if (kOperandRules[i].forward == Role::kOutput && o != kResidualOut) continue;
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

// The numbers of all words of an option.
std::vector<int32_t> WordsOf(Option option) {
  std::vector<int32_t> words;
  for (int32_t i = 0; kOptionRules[option].words[i] != nullptr; ++i) words.push_back(i);
  return words;
}

// The numbers that hypotheses take.
struct Numbers {
  std::vector<float> eps, factors = {rmsnorm_default_options().factor};
  StepNumbers of_steps;
};

// Adds the numbers that an estimate may stand for, unless it may be one of them already.
void AddNumbers(std::vector<float>& numbers, const Estimate& estimate) {
  const auto may_be = [&](float known) { return estimate.MayBe(static_cast<double>(known)); };
  if (std::any_of(numbers.begin(), numbers.end(), may_be)) return;
  const std::vector<float> like = NumbersLike(estimate);
  numbers.insert(numbers.end(), like.begin(), like.end());
}

// Adds eps, and a factor of y or a divisor, which explain the same scales with another eps.
void AddScale(const ScaleEstimate& scale, size_t d, const std::vector<float>& known_eps,
              Numbers& numbers) {
  const auto add_eps = [&](const Estimate& eps) {
    if (eps.value > 0 && eps.value < 1) AddNumbers(numbers.eps, eps);
  };
  const double times = scale.times.value, square = times * times;
  if (times == 1) return add_eps(scale.eps);
  const double divisor = square * static_cast<double>(d);
  const double error = 2 * divisor * scale.times.error / std::fabs(times);
  const double per_eps = scale.placement == RMSNORM_EPS_INSIDE ? square : times;
  const Estimate eps = {scale.eps.value / per_eps, scale.eps.error / per_eps};
  const auto is_usual = [&](const Estimate& estimate) {
    return estimate.value == 0 || std::any_of(known_eps.begin(), known_eps.end(), [&](float known) {
             return estimate.MayBe(static_cast<double>(known));
           });
  };
  const std::vector<float> like = NumbersLike(scale.times);
  const bool is_short = ShortestDecimal(like.front()).size() < 6;
  const bool is_divisor = times > 0 && error < 0.25 &&
                          std::fabs(divisor - std::round(divisor)) <= error &&
                          (is_usual(eps) != is_usual(scale.eps) ? is_usual(eps) : !is_short);
  if (is_divisor) {
    numbers.of_steps.divisor = static_cast<size_t>(std::lround(divisor));
    add_eps(eps);
  } else {
    std::vector<float>& all = numbers.of_steps.times;
    all.insert(all.end(), {like.front(), like.back()});
    // A root of d that is forgotten, for example.
    const double root = std::copysign(std::sqrt(std::round(square)), times);
    if (root != std::round(root) && scale.times.MayBe(root)) all[1] = static_cast<float>(root);
    add_eps(scale.eps);
  }
}

// The usual eps, those given, and what the results show.
Numbers NumbersToTry(const Observation& seen, const std::vector<float>& given,
                     const Step& nothing) {
  Numbers numbers;
  numbers.eps = given;
  numbers.eps.insert(numbers.eps.end(), std::begin(kUsualEps), std::end(kUsualEps));
  const std::vector<float> known = numbers.eps;
  const Coefficients found = CoefficientsOf(seen);
  constexpr double kLikeOne = 0.005;
  if (found.factor && std::fabs(found.factor->value - 1) > kLikeOne) {
    AddNumbers(numbers.factors, *found.factor);
  }
  std::vector<float>& all_offsets = numbers.of_steps.offsets;
  std::vector<float> offsets = all_offsets;
  if (found.offset) {
    AddNumbers(all_offsets, *found.offset);
    const auto nearest = [&](float a, float b) {
      return std::fabs(static_cast<double>(a) - found.offset->value) <
             std::fabs(static_cast<double>(b) - found.offset->value);
    };
    offsets = {*std::min_element(all_offsets.begin(), all_offsets.end(), nearest)};
  }
  constexpr double kLeastPlus = 1e-4;
  if (found.plus && std::fabs(found.plus->value) > kLeastPlus) {
    numbers.of_steps.plus = NumbersLike(*found.plus).front();
  }
  rmsnorm_options options = rmsnorm_default_options();
  options.activation = found.activation;
  options.factor = numbers.factors[numbers.factors.size() > 1 ? 1 : 0];
  for (const float offset : offsets) {
    options.weight_offset = seen.call.Has(kWeight) ? offset : 0;
    for (const int32_t placement : WordsOf(internal::kGatePlacement)) {
      options.gate_placement = placement;
      if (placement != 0 && (!seen.call.Has(kGate) || seen.call.Has(kResidual))) continue;
      for (const ScaleEstimate& scale :
           ScaleEstimatesOf(seen, nothing, options, numbers.of_steps.plus)) {
        AddScale(scale, seen.y.d, known, numbers);
      }
    }
  }
  return numbers;
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

// Every combination of options that can matter for these operands, the usual ones first.
std::vector<rmsnorm_options> OptionsToTry(const NormCall& call, const Numbers& numbers) {
  std::vector<rmsnorm_options> all = {rmsnorm_default_options()};
  const auto vary = [&all](Option option, auto... is_possible) {
    Vary(all, option, WordsOf(option), is_possible...);
  };
  const bool rounds = call.x().dtype != RMSNORM_F32 ||
                      (call.Has(kResidual) && call.operand[kResidual]->dtype != RMSNORM_F32);
  Vary(all, internal::kEps, numbers.eps);
  Vary(all, internal::kFactor, numbers.factors);
  vary(internal::kEpsPlacement, [](const rmsnorm_options& options) {
    return options.eps_placement == RMSNORM_EPS_INSIDE || options.eps != 0;
  });
  if (rounds) vary(internal::kRounding);
  if (call.Has(kWeight)) Vary(all, internal::kWeightOffset, numbers.of_steps.offsets);
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

bool IsExact(const Distance& distance) { return distance.equal == distance.elements; }

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

// Adds the nearest candidates with the eps that the rows show for their own steps. `storage` holds
// their options.
void AddOtherEps(const Observation& seen, const Numbers& numbers,
                 std::vector<Candidate>& candidates, std::list<rmsnorm_options>& storage) {
  constexpr size_t kRefined = 8;
  std::vector<Candidate> refined;
  for (const Candidate& candidate : candidates) {
    const auto is_same = [&](const Candidate& other) {
      rmsnorm_options options = *other.options;
      options.eps = candidate.options->eps;
      options.eps_placement = candidate.options->eps_placement;
      return other.step == candidate.step &&
             OptionsText(options) == OptionsText(*candidate.options);
    };
    if (refined.size() == kRefined) break;
    if (std::none_of(refined.begin(), refined.end(), is_same)) refined.push_back(candidate);
  }
  for (Candidate candidate : refined) {
    for (const ScaleEstimate& scale :
         ScaleEstimatesOf(seen, *candidate.step, *candidate.options, 0)) {
      std::vector<float> all = numbers.eps;
      if (scale.eps.value > 0 && scale.eps.value < 1) AddNumbers(all, scale.eps);
      for (size_t i = numbers.eps.size(); i < all.size(); ++i) {
        storage.push_back(*candidate.options);
        storage.back().eps = all[i];
        storage.back().eps_placement = scale.placement;
        candidate.options = &storage.back();
        candidate.order = SIZE_MAX / 2 + storage.size();  // behind all others
        if (Try(seen, candidate)) candidates.push_back(candidate);
      }
    }
  }
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

// Whether the rows of y in f32 are smaller than expected more often than another order of a sum
// makes them. Inverse roots by Newton's method are never too large.
bool HasSmallRows(const Observation& seen, const Candidate& candidate, const Matrix& expected) {
  const std::vector<float> y = ValuesOf(seen.y), e = ValuesOf(expected);
  const NormCall& call = seen.call;
  const std::vector<double> sums =
      SumsOfSquares(call.Has(kResidual) ? SumWithResidual(call, RMSNORM_F32) : call.x());
  const auto d = static_cast<double>(seen.y.d);
  double sum = 0, square = 0;  // of the relative errors in ulp, and of those above 0
  size_t rows = 0, larger = 0;
  for (size_t row = 0; row < seen.y.rows; ++row) {
    // Rows that are small against eps have the same scale, so one error.
    if (sums[row] < d * static_cast<double>(candidate.used.eps)) continue;
    double product = 0, size = 0;
    for (size_t i = row * seen.y.d; i < (row + 1) * seen.y.d; ++i) {
      const auto exact = static_cast<double>(e[i]);
      product += (static_cast<double>(y[i]) - exact) * exact;
      size += exact * exact;
    }
    const double error = product / size * 0x1p23;
    sum += error;
    ++rows;
    if (error < 0.02) continue;
    square += error * error;
    ++larger;
  }
  constexpr size_t kFew = 10;
  if (rows < kFew) return false;
  // The sums of good implementations have errors of both signs.
  const double usual = larger == 0 ? 0 : std::sqrt(square / static_cast<double>(larger));
  constexpr double kOfRounding = 0.4, kUnlikely = 4;
  return sum < -kUnlikely * std::max(usual, kOfRounding) * std::sqrt(static_cast<double>(rows));
}

// Whether errors of the sums explain the distance of a candidate. `adds` says that it may add a
// number to y.
bool IsClose(const Observation& seen, Candidate& candidate, bool adds) {
  const Distance& distance = candidate.distance;
  const double error = SumError(seen.y.d);
  if (seen.y.dtype == RMSNORM_F32) {
    const bool can_cancel = seen.call.Has(internal::kPostNormWeight) || adds;
    const Matrix expected = *ResultOf(seen, candidate);
    if (HasSmallRows(seen, candidate, expected)) return false;
    return distance.worst <= 2 * error || (can_cancel && IsNearInRows(seen.y, expected, 2 * error));
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
      // Estimates of one number differ in digits that the data do not settle.
      const auto value = [&](const Candidate& c) {
        return internal::ValueIn<float>(c.used, option);
      };
      if (internal::IsNumber(option) &&
          std::fabs(value(candidate) - value(best)) <= 0.002f * std::fabs(value(best))) {
        continue;
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

struct Errors {
  std::string words;     // a sentence
  bool is_near = false;  // whether at least half of the elements are right
};

// Where y is wrong: columns, rows, or the size of each row.
Errors ErrorsOf(const Observation& seen, const Candidate& best, const Matrix& expected,
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
  if (wrong == 0 && seen.y.dtype == RMSNORM_F32 && HasSmallRows(seen, best, expected)) {
    return {"Rows are smaller than by this norm, as an imprecise 1 / RMS makes them.", true};
  }
  if (wrong == 0) {
    const std::optional<std::string> few = DescribeRows(seen, expected, numbers);
    return {"Every element is near this norm, but rounded differently." + (few ? " " + *few : ""),
            true};
  }
  const bool is_near = 2 * wrong <= rows * d;
  if (is_limited && wrong > 1 && wrong < rows * d) {
    return {"The wrong elements are all " + ShortestDecimal(largest) + " in size: y is limited.",
            is_near};
  }
  char text[200];
  if (is_scaled) {
    std::snprintf(text, sizeof text,
                  "Each row is the RMSNorm of x times a factor, from %.6g to %.6g: look at the "
                  "sum, the divisor and eps.",
                  least, most);
  } else if (last - first + 1 <= d / 2) {
    std::snprintf(text, sizeof text, "Only elements %zu to %zu of rows are wrong.", first, last);
  } else if (wrong_rows.size() < rows) {
    return {CountOfRows(wrong_rows, rows, wrong_rows.size() == 1 ? "is wrong" : "are wrong"),
            is_near};
  } else {
    std::snprintf(text, sizeof text, "%zu of %zu elements are wrong.", wrong, rows * d);
  }
  return {text, is_near};
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

// What is wrong with residual_out of a call, as a clause. Nothing if it is the sum.
std::string MistakeOfResidualOut(const NormCall& call, const Matrix& y) {
  const Matrix& given = *call.operand[kResidualOut];
  const Matrix& residual = *call.operand[kResidual];
  const Matrix expected = ComputeResidualOut(call);
  const rmsnorm_dtype type = given.dtype;
  const auto is_given = [&](const std::vector<float>& values) {
    return IsExact(DistanceOf(Rounded(values, type, given.rows, given.d), given));
  };
  if (type == expected.dtype && IsExact(DistanceOf(expected, given))) return "";
  NormCall wide = call;
  wide.operand[kResidual] = Rounded(ValuesOf(residual), RMSNORM_F32, residual.rows, residual.d);
  const std::vector<float> sum = ValuesOf(ComputeResidualOut(wide));
  if (type != residual.dtype && is_given(sum)) {
    return std::string("residual_out is ") + rmsnorm_dtype_name(type) + " instead of " +
           rmsnorm_dtype_name(residual.dtype);
  }
  // A factor or a norm of x may round otherwise.
  if (type == RMSNORM_F32 &&
      (internal::FactorOf(call.options) != 1 || call.Has(internal::kPostNormWeight)) &&
      IsNearInRows(given, expected, 2 * SumError(given.d))) {
    return "";
  }
  if (is_given(ValuesOf(y))) return "residual_out is y";
  for (const rmsnorm_dtype narrow : {RMSNORM_BF16, RMSNORM_F16}) {
    const std::string name = rmsnorm_dtype_name(narrow);
    const auto changed = [&](auto f) {
      std::vector<float> values = sum;
      for (float& value : values) value = f(narrow, value);
      return values;
    };
    if (is_given(changed(CutOff))) return "residual_out is cut off to " + name;
    if (is_given(changed(RoundedTo))) return "residual_out is rounded to " + name;
    if (is_given(changed(WithTiesAway))) {
      return "residual_out is rounded to " + name + " with ties away from zero";
    }
  }
  if (const auto shares = SharesOf(call, given)) {
    const auto [a, b] = *shares;
    const std::vector<float> x = ValuesOf(call.x());
    std::vector<float> values = ValuesOf(residual);
    for (size_t i = 0; i < values.size(); ++i) values[i] = a * values[i] + b * x[i];
    const auto term = [](float share, const std::string& name) {
      return (share == 1 ? "" : ShortestDecimal(share) + " ") + name;
    };
    const std::string sign = b < 0 ? " - " : " + ";
    if (is_given(values)) {
      return "residual_out is " + (b == 0   ? term(a, "residual") + " alone"
                                   : a == 0 ? term(b, "x") + " alone"
                                            : term(a, "residual") + sign + term(std::fabs(b), "x"));
    }
  }
  size_t differing = 0;
  const std::vector<float> p = ValuesOf(given), q = ValuesOf(expected);
  for (size_t i = 0; i < p.size(); ++i) differing += p[i] == q[i] ? 0 : 1;
  return "residual_out is wrong in " + std::to_string(differing) + " of " +
         std::to_string(p.size()) + " elements";
}

// "residual + 0.22 x", or with the norm of x.
std::string SumInWords(const NormCall& call) {
  const float factor = internal::FactorOf(call.options);
  return "residual + " + (factor == 1 ? "" : ShortestDecimal(factor) + " ") +
         (call.Has(internal::kPostNormWeight) ? "the norm of x" : "x");
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

  const Step nothing = {StepKind::kOption, "", [](const NormCall& c) { return ComputeY(c); }};
  const Numbers numbers = NumbersToTry(seen, eps, nothing);
  const std::vector<rmsnorm_options> options = OptionsToTry(seen.call, numbers);
  const std::vector<Step> steps = StepsFor(seen.call, numbers.of_steps);
  const double each = kElementsToTry / static_cast<double>(options.size() * steps.size());
  const auto sampled_rows = static_cast<size_t>(each / static_cast<double>(seen.y.d));
  const Observation sample = seen.Of(Spread(seen.call, std::max<size_t>(sampled_rows, 6)));

  std::vector<Candidate> candidates = Nearest(sample, steps, options);
  for (Candidate& candidate : candidates) Try(seen, candidate);
  std::sort(candidates.begin(), candidates.end(), IsNearer);
  std::list<rmsnorm_options> other_options;
  if (!IsExact(candidates.front().distance)) {
    AddOtherEps(seen, numbers, candidates, other_options);
    std::sort(candidates.begin(), candidates.end(), IsNearer);
  }

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
  answer.fit = IsExact(best.distance)                            ? Fit::kExact
               : IsClose(seen, best, numbers.of_steps.plus != 0) ? Fit::kClose
                                                                 : Fit::kNone;
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
  std::vector<std::string> mistakes;
  if (best.step->kind == StepKind::kMistake) mistakes.push_back(best.step->words);
  if (operands.residual_out != nullptr) {
    NormCall call = seen.call;
    call.options = best.used;
    const std::string mistake = MistakeOfResidualOut(call, seen.y);
    call = whole.call;
    call.options = best.used;
    if (!mistake.empty()) {
      answer.residual_out = mistake;
      mistakes.push_back(mistake);
    } else if (MistakeOfResidualOut(call, whole.y).empty()) {
      answer.notes.push_back("residual_out is " + SumInWords(call) + " in every element.");
    } else {
      answer.notes.push_back("residual_out differs from " + SumInWords(call) +
                             " in special rows alone.");
    }
  }
  if (answer.fit == Fit::kNone) {
    const Errors errors = ErrorsOf(seen, best, *ResultOf(seen, best), ordinary);
    answer.is_near = errors.is_near;
    if (!answer.is_near) answer.others.clear();
    if (!answer.residual_out.empty()) answer.notes.push_back(answer.residual_out + ".");
    answer.notes.emplace_back("Another eps than those tried may fit: name it with eps=.");
    answer.notes.push_back(errors.words);
  } else {
    answer.mistake = Joined(mistakes, ", ");
  }
  answer.call = seen.call;
  answer.rows = kinds.size();
  return answer;
}

}  // namespace rmsnorm::identify
