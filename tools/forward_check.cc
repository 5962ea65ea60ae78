// SPDX-License-Identifier: Apache-2.0
#include "forward_check.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

namespace rmsnorm::tools {
namespace {

// ------------------------------------------------------------------------------------ inputs

using Random = std::mt19937;

int RandomInt(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// A number of either sign with a magnitude from 2^low up to 2^(high + 1), or as near as the format
// has.
uint64_t RandomNumber(Random& random, Format format, int low, int high) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent =
      RandomInt(random, std::clamp(low, 1 - bias, bias), std::clamp(high, 1 - bias, bias));
  const uint64_t bits = random();
  const uint64_t mantissa = bits & ((uint64_t{1} << format.mantissa_bits) - 1);
  const uint64_t sign = bits >> 31 != 0 ? format.sign() : 0;
  return sign | static_cast<uint64_t>(exponent + bias) << format.mantissa_bits | mantissa;
}

uint64_t RandomZero(Random& random, Format format) { return random() % 2 != 0 ? format.sign() : 0; }

uint64_t RandomSubnormal(Random& random, Format format) {
  return RandomZero(random, format) | random() % (uint64_t{1} << format.mantissa_bits);
}

// All payload bits set: the one that a rounding add carries over into a zero.
uint64_t WidestNan(Format format) { return format.sign() - 1; }

uint64_t RandomElement(Random& random, Format format, Values values) {
  const int max_exponent = (1 << (format.exponent_bits - 1)) - 1;
  switch (values) {
    case Values::kWide:
      return RandomNumber(random, format, -30, 30);
    case Values::kHuge:
      return RandomNumber(random, format, max_exponent - 1, max_exponent);
    case Values::kTiny:
      return RandomNumber(random, format, -80, -70);
    case Values::kSubnormal:
      return RandomSubnormal(random, format);
    case Values::kZero:
      return RandomZero(random, format);
    case Values::kLowEdge:
      return RandomNumber(random, format, -51, -50);
    case Values::kHighEdge:
      return RandomNumber(random, format, 58, 63);
    default:
      return RandomNumber(random, format, -4, 1);
  }
}

void FillRow(Random& random, Values values, GuardedRows& x, size_t row) {
  const Format format = x.format();
  const size_t d = x.layout().d;
  for (size_t j = 0; j < d; ++j) x.set_bits(row, j, RandomElement(random, format, values));
  const size_t somewhere = random() % d;
  if (values == Values::kNan) x.set_bits(row, somewhere, WidestNan(format));
  if (values == Values::kInfinity) {
    x.set_bits(row, somewhere, format.infinity() | RandomZero(random, format));
  }
}

void FillX(Random& random, Values values, GuardedRows& x) {
  for (size_t row = 0; row < x.layout().rows; ++row) {
    const Values here = values == Values::kMixed
                            ? static_cast<Values>(row % static_cast<size_t>(Values::kMixed))
                            : values;
    FillRow(random, here, x, row);
  }
}

void FillWeight(Random& random, bool special, GuardedRows& weight) {
  const Format format = weight.format();
  const uint64_t specials[] = {WidestNan(format),          WidestNan(format) | format.sign(),
                               format.infinity(),          format.infinity() | format.sign(),
                               RandomZero(random, format), RandomSubnormal(random, format),
                               format.infinity() - 1};  // the largest finite number
  for (size_t j = 0; j < weight.layout().d; ++j) {
    weight.set_bits(0, j, RandomNumber(random, format, -2, 0));
    if (special && j % 3 == 0) weight.set_bits(0, j, specials[j / 3 % std::size(specials)]);
  }
}

// ------------------------------------------------------------------------------------- calls

Layout LayoutOfX(const ForwardCase& c) {
  return {c.rows, c.d, c.x_shift, c.x_gap, c.falling, c.repeated};
}

Layout LayoutOfResidual(const ForwardCase& c) {
  return {c.rows, c.d, c.residual_shift, c.residual_gap, c.falling, false};
}

Layout LayoutOfResidualOut(const ForwardCase& c) {
  return c.residual_in_place ? LayoutOfResidual(c)
                             : Layout{c.rows, c.d, c.y_shift, c.y_gap, c.falling, false};
}

Layout LayoutOfY(const ForwardCase& c) {
  return c.in_place ? LayoutOfX(c) : Layout{c.rows, c.d, c.y_shift, c.y_gap, c.falling, false};
}

GuardedRows Output(Format format, const Layout& layout) {
  return GuardedRows(format, layout, GuardedRows::kAroundOutput);
}

GuardedRows OnePerRow(Format format, size_t rows) { return Output(format, {1, rows}); }

float* Floats(GuardedRows& rows) { return reinterpret_cast<float*>(rows.row(0)); }
double* Doubles(GuardedRows& rows) { return reinterpret_cast<double*>(rows.row(0)); }

void CopyRows(const GuardedRows& from, GuardedRows& to) {
  for (size_t row = 0; row < from.layout().rows; ++row) {
    std::memcpy(to.row(row), from.row(row), from.layout().d * from.format().size());
  }
}

// A view with one dimension, which a weight must be.
rmsnorm_view WeightView(GuardedRows& weight, Dtype dtype) {
  const size_t d = weight.layout().d;
  return rmsnorm_tensor(weight.row(0), static_cast<rmsnorm_dtype>(dtype), 1, &d, nullptr);
}

// An executor whose parts are all under way at once, the last one started first.
void RunOnThreads(void* /*context*/, size_t count, rmsnorm_task task, void* state) {
  std::vector<std::thread> threads;
  for (size_t i = count; i-- > 0;) threads.emplace_back(task, state, i);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

ForwardCheck::ForwardCheck(const ForwardCase& forward_case)
    : case_(forward_case),
      x_(FormatOf(case_.x), LayoutOfX(case_), GuardedRows::kAroundInput),
      expected_y_(Output(FormatOf(case_.y), {case_.rows, case_.d})),
      expected_rstd_(OnePerRow(kF32, case_.rows)),
      expected_sums_(OnePerRow(kF64, case_.rows)) {
  Random random(case_.seed);
  FillX(random, case_.values, x_);
  if (case_.weight) {
    weight_.emplace(FormatOf(*case_.weight), Layout{1, case_.d, case_.weight_shift},
                    GuardedRows::kAroundInput);
    FillWeight(random, case_.special_weight, *weight_);
  }

  GuardedRows dense_x(x_.format(), {case_.rows, case_.d}, GuardedRows::kAroundInput);
  CopyRows(x_, dense_x);
  rmsnorm_options options = LibraryOptions("reference");
  options.threads = 1;
  options.parallel_for = nullptr;
  const rmsnorm_view x = dense_x.view(case_.x);
  const rmsnorm_view y = expected_y_.view(case_.y);
  const rmsnorm_view weight = weight_ ? WeightView(*weight_, *case_.weight) : rmsnorm_view{};
  const rmsnorm_view* const weight_or_null = weight_ ? &weight : nullptr;
  if (case_.residual) {
    const Format format = FormatOf(*case_.residual);
    residual_.emplace(format, LayoutOfResidual(case_), GuardedRows::kAroundInput);
    FillX(random, case_.values, *residual_);
    expected_residual_out_.emplace(Output(format, {case_.rows, case_.d}));
    GuardedRows dense_residual(format, {case_.rows, case_.d}, GuardedRows::kAroundInput);
    CopyRows(*residual_, dense_residual);
    const rmsnorm_view residual = dense_residual.view(*case_.residual);
    const rmsnorm_view residual_out = expected_residual_out_->view(*case_.residual);
    check(rmsnorm_add_forward(&x, &residual, weight_or_null, &residual_out, &y,
                              Floats(expected_rstd_), &options));
    return;
  }
  check(rmsnorm_forward(&x, weight_or_null, &y, Floats(expected_rstd_), &options));
  check(rmsnorm_sum_squares(&x, Doubles(expected_sums_), &options));
}

rmsnorm_options ForwardCheck::LibraryOptions(const char* target) const {
  rmsnorm_options options = rmsnorm_default_options();
  options.eps = case_.eps;
  options.eps_placement = case_.eps_outside ? RMSNORM_EPS_OUTSIDE : RMSNORM_EPS_INSIDE;
  options.rounding = case_.cast_then_scale ? RMSNORM_CAST_THEN_SCALE : RMSNORM_SCALE_THEN_CAST;
  options.residual_rounding =
      case_.norm_then_cast ? RMSNORM_NORM_THEN_CAST : RMSNORM_CAST_THEN_NORM;
  options.weight_offset = case_.weight_offset;
  options.divisor = case_.divisor;
  options.threads = case_.threads;
  options.parallel_for = case_.executor ? RunOnThreads : nullptr;
  options.target = target;
  return options;
}

ForwardCheck::Results ForwardCheck::Run(const char* target) const {
  Results results = {x_,
                     weight_,
                     residual_,
                     std::nullopt,
                     Output(FormatOf(case_.y), LayoutOfY(case_)),
                     OnePerRow(kF32, case_.rows),
                     OnePerRow(kF64, case_.rows)};
  if (case_.in_place) CopyRows(x_, results.y);
  rmsnorm_view residual = {};
  rmsnorm_view residual_out = {};
  if (case_.residual) {
    results.residual_out.emplace(Output(FormatOf(*case_.residual), LayoutOfResidualOut(case_)));
    residual_out = results.residual_out->view(*case_.residual);
    residual = results.residual->view(*case_.residual);
    if (case_.residual_in_place) {
      CopyRows(*residual_, *results.residual_out);
      residual = residual_out;
    }
  }

  const rmsnorm_options options = LibraryOptions(target);
  const rmsnorm_view x = case_.in_place ? results.y.view(case_.x) : results.x.view(case_.x);
  const rmsnorm_view y = results.y.view(case_.y);
  float* const rstd = case_.rstd ? Floats(results.rstd) : nullptr;
  rmsnorm_view weight_view = {};
  const rmsnorm_view* weight = nullptr;
  if (case_.weight) {
    weight_view = WeightView(*results.weight, *case_.weight);
    weight = &weight_view;
  }

  switch (case_.call) {
    case Call::kForward:
      if (case_.residual) {
        check(rmsnorm_add_forward(&x, &residual, weight, &residual_out, &y, rstd, &options));
      } else {
        check(rmsnorm_forward(&x, weight, &y, rstd, &options));
      }
      break;
    case Call::kModule: {
      Options module_options;
      static_cast<rmsnorm_options&>(module_options) = options;
      RmsNorm module(case_.d, module_options, case_.weight.value_or(case_.x));
      if (weight != nullptr) module.set_weight(ConstView(*weight));
      if (case_.residual) {
        module.add_forward(ConstView(x), ConstView(residual), View(residual_out), View(y), rstd);
      } else {
        module.forward(ConstView(x), View(y), rstd);
      }
      break;
    }
    case Call::kTwoPhases: {
      double* const sums = Doubles(results.sums);
      check(rmsnorm_sum_squares(&x, sums, &options));
      check(rmsnorm_scale(&x, sums, weight, &y, rstd, &options));
      break;
    }
  }
  return results;
}

std::string ForwardCheck::FindFault(const Results& results) const {
  struct Part {
    const char* name;
    const GuardedRows& expected;
    const GuardedRows& actual;
    bool computed;
  };
  const Part parts[] = {
      {"y", expected_y_, results.y, true},
      {"rstd", expected_rstd_, results.rstd, case_.rstd},
      {"sums", expected_sums_, results.sums, case_.call == Call::kTwoPhases},
  };
  for (const Part& part : parts) {
    const std::string difference =
        part.computed ? FindDifference(part.expected, part.actual) : std::string();
    if (!difference.empty()) return part.name + difference;
    const std::string broken = part.actual.FindBrokenCanary();
    if (!broken.empty()) return std::string(part.name) + ": " + broken;
  }
  if (results.residual_out) {
    const std::string difference = FindDifference(*expected_residual_out_, *results.residual_out);
    if (!difference.empty()) return "residual_out" + difference;
    const std::string broken = results.residual_out->FindBrokenCanary();
    if (!broken.empty()) return "residual_out: " + broken;
    if (!(*results.residual == *residual_)) return "the residual was written";
  }
  if (!(results.x == x_)) return "x was written";
  if (weight_ && !(*results.weight == *weight_)) return "the weight was written";
  return {};
}

}  // namespace rmsnorm::tools
