// SPDX-License-Identifier: Apache-2.0
#include "step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "../../lib/element.h"
#include "options_text.h"

namespace rmsnorm::identify {
namespace {

using internal::DivisorOf;
using internal::kBias;
using internal::kGate;
using internal::kOperandRules;
using internal::kOperands;
using internal::kPostNormWeight;
using internal::kResidual;
using internal::kResidualOut;
using internal::kSums;
using internal::kWeight;
using internal::kX;
using internal::kY;
using internal::Operand;
using internal::Shape;

using Result = std::optional<Matrix>;

void CallLibrary(const NormCall& call, Operand output, Matrix& result) {
  rmsnorm_view views[kOperands];
  rmsnorm_operands operands = rmsnorm_no_operands();
  const auto set = [&](Operand o, const Matrix& matrix) {
    const bool is_shared = matrix.rows == 1 && kOperandRules[o].shape == Shape::kColumns;
    views[o] = is_shared ? rmsnorm_vector(matrix.bytes.data(), matrix.dtype, matrix.d)
                         : rmsnorm_rows(matrix.bytes.data(), matrix.dtype, matrix.rows, matrix.d,
                                        static_cast<ptrdiff_t>(matrix.d));
    internal::SetViewIn(operands, o, &views[o]);
  };
  for (int i = 0; i < kOperands; ++i) {
    if (call.operand[i]) set(static_cast<Operand>(i), *call.operand[i]);
  }
  if (!call.sums.empty()) {
    views[kSums] = rmsnorm_vector(call.sums.data(), RMSNORM_F64, call.sums.size());
    operands.sums = &views[kSums];
  }
  set(output, result);
  rmsnorm_context context = {};
  context.size = sizeof context;
  context.threads = 1;  // the calls are short
  if (rmsnorm_forward(&operands, &call.options, &context) != RMSNORM_OK) {
    throw std::runtime_error(rmsnorm_error_message());
  }
}

// The same norm of the sum of x and the residual, as a call without a residual. Nothing where the
// library takes no sums of squares, or would round to another type then.
std::optional<NormCall> WithoutResidual(const NormCall& call) {
  if (call.Has(kPostNormWeight)) return {};
  if (call.Has(kGate) && call.options.gate_placement == RMSNORM_GATE_BEFORE) return {};
  NormCall plain = call;
  if (!call.Has(kResidual)) return plain;
  const bool is_rounded = call.options.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
  if (!is_rounded && call.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
  plain.operand[kX] =
      SumWithResidual(call, is_rounded ? call.operand[kResidual]->dtype : RMSNORM_F32);
  plain.operand[kResidual].reset();
  plain.options.residual_rounding = RMSNORM_RESIDUAL_ROUNDED;
  return plain;
}

// A row of x as f32, and the options of the call.
struct Row {
  const float* x;
  size_t d;
  const rmsnorm_options& options;
  rmsnorm_dtype dtype;  // of x

  double SumOfSquares(size_t first, size_t end) const {
    double sum = 0;
    for (size_t i = first; i < end; ++i) sum += static_cast<double>(x[i]) * x[i];
    return sum;
  }
  double Mean() const { return std::accumulate(x, x + d, 0.0) / static_cast<double>(d); }
  double Divisor() const { return static_cast<double>(DivisorOf(options, d)); }
};

// A step that replaces the sums of squares by f(row).
template <class F>
auto WithSums(const F& f) {
  return [f](const NormCall& call) -> Result {
    std::optional<NormCall> plain = WithoutResidual(call);
    if (!plain) return {};
    const Matrix& x = plain->x();
    const std::vector<float> values = ValuesOf(x);
    for (size_t row = 0; row < x.rows; ++row) {
      plain->sums.push_back(f(Row{&values[row * x.d], x.d, call.options, x.dtype}));
    }
    return ComputeY(*plain);
  };
}

// The same where f(row, eps) adds eps.
template <class F>
auto WithSumsAndEps(const F& f) {
  return [f](const NormCall& call) -> Result {
    if (call.options.eps_placement != RMSNORM_EPS_INSIDE) return {};
    const double eps = static_cast<double>(call.options.eps);
    NormCall without_eps = call;
    without_eps.options.eps = 0;
    return WithSums([&](const Row& row) { return f(row, eps); })(without_eps);
  };
}

// A step that replaces an operand by f(value) of its elements, rounded to a type.
template <class F>
auto WithValues(Operand operand, rmsnorm_dtype dtype, const F& f) {
  return [=](NormCall& call) -> Result {
    const Matrix& given = *call.operand[operand];
    std::vector<float> values = ValuesOf(given);
    std::transform(values.begin(), values.end(), values.begin(), f);
    call.operand[operand] = Rounded(values, dtype, given.rows, given.d);
    return ComputeY(call);
  };
}

// A step that computes y in f32 and rounds it by f(value).
template <class F>
auto WithCast(const F& f) {
  return [f](NormCall& call) -> Result {
    NormCall wide = call;
    wide.y_dtype = RMSNORM_F32;
    std::vector<float> y = ValuesOf(ComputeY(wide));
    std::transform(y.begin(), y.end(), y.begin(), f);
    return Rounded(y, call.y_dtype, call.x().rows, call.x().d);
  };
}

// n * (offset + weight) in f32.
std::vector<float> Weighted(std::vector<float> n, const NormCall& call) {
  if (!call.Has(kWeight)) return n;
  const std::vector<float> w = ValuesOf(*call.operand[kWeight]);
  for (size_t i = 0; i < n.size(); ++i) n[i] *= call.options.weight_offset + w[i % w.size()];
  return n;
}

Matrix Scaled(const Matrix& n, const NormCall& call) {
  return Rounded(Weighted(ValuesOf(n), call), call.y_dtype, n.rows, n.d);
}

// A step that computes n by f(x, mean of squares, eps), and rounds n to the type of x if the
// options say so.
template <class F>
auto WithNorm(const F& f) {
  return [f](const NormCall& call) -> Result {
    if (call.options.eps_placement != RMSNORM_EPS_INSIDE) return {};
    const std::optional<NormCall> plain = WithoutResidual(call);
    if (!plain || call.options.rounding == RMSNORM_ROUND_INVERSE) return {};
    const Matrix& x = plain->x();
    const std::vector<double> sums = SumsOfSquares(x);
    const auto divisor = static_cast<double>(DivisorOf(call.options, x.d));
    std::vector<float> n = ValuesOf(x);
    for (size_t row = 0; row < x.rows; ++row)
      f(&n[row * x.d], x.d, sums[row] / divisor, call.options.eps);
    const bool is_rounded = call.options.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
    return Scaled(Rounded(n, is_rounded ? x.dtype : RMSNORM_F32, x.rows, x.d), call);
  };
}

float RootOf(double mean, float eps) {
  return static_cast<float>(std::sqrt(mean + static_cast<double>(eps)));
}

// y where each operation rounds to a type, by a division or by a multiplication.
Matrix InNarrowSteps(const NormCall& call, rmsnorm_dtype narrow, bool divides) {
  const auto round = [narrow](float value) { return RoundedTo(narrow, value); };
  const Matrix& x = call.x();
  std::vector<float> n = ValuesOf(x);
  for (size_t row = 0; row < x.rows; ++row) {
    float* const values = &n[row * x.d];
    double sum = 0;
    for (size_t i = 0; i < x.d; ++i) sum += static_cast<double>(round(values[i] * values[i]));
    const float mean = round(static_cast<float>(sum / static_cast<double>(x.d)));
    const float root = std::sqrt(round(mean + call.options.eps));
    const float factor = round(divides ? root : 1 / root);
    for (size_t i = 0; i < x.d; ++i)
      values[i] = round(divides ? values[i] / factor : values[i] * factor);
  }
  return Scaled(Rounded(n, narrow, x.rows, x.d), call);
}

// The sum of squares whose every partial sum is rounded to a type.
double NarrowSum(const Row& row, rmsnorm_dtype dtype) {
  float sum = 0;
  for (size_t i = 0; i < row.d; ++i) {
    sum = RoundedTo(dtype, sum + RoundedTo(dtype, row.x[i] * row.x[i]));
  }
  return static_cast<double>(sum);
}

float Truncated(float value) { return internal::FromBits(internal::BitsOf(value) & 0xFFFF0000u); }
float RoundedUp(float value) {
  return Truncated(internal::FromBits(internal::BitsOf(value) + 0x8000u));
}

// A row as several rows, each with its part of the weight.
Result InGroups(NormCall& call, size_t groups) {
  const size_t rows = call.x().rows;
  for (std::optional<Matrix>& operand : call.operand) {
    if (!operand) continue;
    if (operand->rows < rows) *operand = Repeated(*operand, rows);
    operand->rows *= groups;
    operand->d /= groups;
  }
  Matrix y = ComputeY(call);
  y.rows /= groups;
  y.d *= groups;
  return y;
}

// "x", "the weight".
std::string NameOf(Operand o) { return std::string(o == kX ? "" : "the ") + kOperandRules[o].name; }

class StepList {
 public:
  template <class F>
  void Option(const F& compute) {
    steps_.push_back({StepKind::kOption, "", compute});
  }
  template <class F>
  void Variant(const std::string& words, const F& compute) {
    steps_.push_back({StepKind::kVariant, words, compute});
  }
  template <class F>
  void Mistake(const std::string& words, const F& compute) {
    steps_.push_back({StepKind::kMistake, words, compute});
  }
  std::vector<Step> Take() { return std::move(steps_); }

 private:
  std::vector<Step> steps_;
};

void AddRoundings(const NormCall& call, StepList& list) {
  for (const rmsnorm_dtype narrow : {RMSNORM_BF16, RMSNORM_F16}) {
    const std::string name = rmsnorm_dtype_name(narrow);
    const auto keep = [](float value) { return value; };
    for (const Operand o : {kX, kWeight}) {
      if (!call.Has(o) || Holds(narrow, *call.operand[o])) continue;
      const std::string words = NameOf(o) + " is rounded to " + name;
      list.Variant(words + " first", WithValues(o, narrow, keep));
      if (o != kX || call.x().dtype != RMSNORM_F32 || call.Has(kResidual)) continue;
      list.Variant(words + " first, and so is the norm before the weight", [=](NormCall& c) {
        c.options.rounding = RMSNORM_ROUND_BEFORE_WEIGHT;
        return WithValues(o, narrow, keep)(c);
      });
    }
    const bool is_held = call.x().dtype == RMSNORM_F32 && Holds(narrow, call.x());
    if (is_held && !call.Has(kResidual)) {
      list.Variant(
          "the norm is rounded to " + name + ", the type of the numbers in x, before the weight",
          [=](NormCall& c) {
            c.options.rounding = RMSNORM_ROUND_BEFORE_WEIGHT;
            return WithValues(kX, narrow, keep)(c);
          });
    }
    const bool in_weight = call.Has(kWeight) && Holds(narrow, *call.operand[kWeight]);
    if (in_weight) {
      list.Variant("1 + weight is rounded to " + name, [=](NormCall& c) -> Result {
        if (c.options.weight_offset != 1) return {};
        c.options.weight_offset = 0;
        return WithValues(kWeight, RMSNORM_F32,
                          [=](float w) { return RoundedTo(narrow, 1 + w); })(c);
      });
    }
    const bool is_simple = !call.Has(kBias) && !call.Has(kGate);
    if (in_weight && is_simple && call.x().dtype != narrow) {
      list.Variant("the norm is rounded to " + name + " before the weight",
                   [=](NormCall& c) -> Result {
                     if (c.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
                     NormCall plain = c;
                     plain.operand[kWeight].reset();
                     plain.options.weight_offset = 0;
                     plain.y_dtype = narrow;
                     return Scaled(ComputeY(plain), c);
                   });
    }
  }
  if (call.y_dtype == RMSNORM_BF16) {
    list.Mistake("the result is cut off to bf16 instead of rounded", WithCast(Truncated));
    list.Mistake("the result is rounded to bf16 with ties away from zero", WithCast(RoundedUp));
  }
}

// Roundings of what is computed for a row.
void AddRowRoundings(const NormCall& call, StepList& list) {
  if (call.Has(kBias) || call.Has(kGate)) return;
  for (const rmsnorm_dtype narrow : {RMSNORM_BF16, RMSNORM_F16}) {
    const std::string name = rmsnorm_dtype_name(narrow);
    list.Variant("x is divided by the RMS, which is rounded to " + name,
                 WithNorm([narrow](float* x, size_t d, double mean, float eps) {
                   const float root = RoundedTo(narrow, RootOf(mean, eps));
                   for (size_t i = 0; i < d; ++i) x[i] /= root;
                 }));
    list.Variant("1 / RMS is rounded to " + name,
                 WithNorm([narrow](float* x, size_t d, double mean, float eps) {
                   const float inverse = RoundedTo(narrow, 1 / RootOf(mean, eps));
                   for (size_t i = 0; i < d; ++i) x[i] *= inverse;
                 }));
    for (const bool divides : {true, false}) {
      list.Variant(
          "every operation rounds to " + name + (divides ? ", and x is divided by the RMS" : ""),
          [narrow, divides](const NormCall& c) -> Result {
            if (c.options.eps_placement != RMSNORM_EPS_INSIDE) return {};
            if (c.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
            const std::optional<NormCall> plain = WithoutResidual(c);
            return plain ? InNarrowSteps(*plain, narrow, divides) : Result();
          });
    }
  }
}

void AddOperands(const NormCall& call, StepList& list) {
  for (const Operand o : {kResidual, kGate, kWeight, kBias, kPostNormWeight}) {
    if (!call.Has(o)) continue;
    list.Mistake(NameOf(o) + " is not used", [o](NormCall& c) -> Result {
      c.operand[o].reset();
      if (!c.Has(kWeight) && !c.Has(kPostNormWeight) && c.options.weight_offset != 0) return {};
      const bool gated = c.options.activation != 0 || c.options.gate_placement != 0 ||
                         c.options.gate_rounding != 0;
      return gated && !c.Has(kGate) ? Result() : ComputeY(c);
    });
  }
  if (call.Has(kWeight)) {
    list.Mistake("the weight is multiplied twice",
                 WithValues(kWeight, RMSNORM_F32, [](float w) { return w * w; }));
    const std::vector<float> weight = ValuesOf(*call.operand[kWeight]);
    if (*std::min_element(weight.begin(), weight.end()) < 0) {
      list.Mistake("the magnitudes of the weight are used",
                   WithValues(kWeight, RMSNORM_F32, [](float w) { return std::fabs(w); }));
    }
    for (const bool is_rounded : {false, true}) {
      if (is_rounded && call.x().dtype == RMSNORM_F32) continue;
      const std::string words = "x is multiplied by the weight before the norm";
      list.Mistake(words + (is_rounded ? ", and rounded" : ""),
                   [is_rounded](const NormCall& c) -> Result {
                     std::optional<NormCall> plain = WithoutResidual(c);
                     if (!plain) return {};
                     const Matrix& x = plain->x();
                     const rmsnorm_dtype dtype = is_rounded ? x.dtype : RMSNORM_F32;
                     plain->operand[kX] = Rounded(Weighted(ValuesOf(x), c), dtype, x.rows, x.d);
                     plain->operand[kWeight].reset();
                     plain->options.weight_offset = 0;
                     return ComputeY(*plain);
                   });
    }
  }
  if (call.Has(kGate) && !call.Has(kResidual)) {
    list.Mistake("the gate has no activation", [](NormCall& c) -> Result {
      if (c.options.activation != 0 || c.options.gate_placement == RMSNORM_GATE_BEFORE) return {};
      const std::vector<float> gate = ValuesOf(*c.operand[kGate]);
      NormCall plain = c;
      plain.operand[kGate].reset();
      plain.options.gate_rounding = RMSNORM_GATE_UNROUNDED;
      const bool is_rounded = c.options.gate_rounding == RMSNORM_GATE_ROUNDED;
      plain.y_dtype = is_rounded ? c.x().dtype : RMSNORM_F32;
      std::vector<float> y = ValuesOf(ComputeY(plain));
      for (size_t i = 0; i < y.size(); ++i) y[i] *= gate[i];
      return Rounded(y, c.y_dtype, c.x().rows, c.x().d);
    });
  }
  if (call.Has(kResidual)) {
    const auto with_sums_of = [](const Matrix& x, const NormCall& c) -> Result {
      std::optional<NormCall> plain = WithoutResidual(c);
      if (!plain) return {};
      plain->sums = SumsOfSquares(x);
      return ComputeY(*plain);
    };
    list.Variant("the sum is scaled by the RMS that it had before it was rounded",
                 [=](const NormCall& c) -> Result {
                   if (c.options.residual_rounding != RMSNORM_RESIDUAL_ROUNDED) return {};
                   return with_sums_of(SumWithResidual(c, RMSNORM_F32), c);
                 });
    list.Mistake("the RMS is that of x without the residual",
                 [=](const NormCall& c) { return with_sums_of(c.x(), c); });
    list.Mistake("the residual is added to the norm", [](NormCall& c) -> Result {
      NormCall norm = c;
      norm.operand[kResidual].reset();
      norm.options.residual_rounding = RMSNORM_RESIDUAL_ROUNDED;
      norm.y_dtype = c.x().dtype;
      c.operand[kX] = ComputeY(norm);
      return SumWithResidual(c, c.y_dtype);
    });
  }
}

void AddSums(const NormCall& call, StepList& list) {
  const size_t d = call.x().d;
  if (d > 1) {
    list.Mistake("the last element is left out of the sum of squares",
                 WithSums([](const Row& r) { return r.SumOfSquares(0, r.d - 1); }));
    list.Mistake("the first element is left out of the sum of squares",
                 WithSums([](const Row& r) { return r.SumOfSquares(1, r.d); }));
  }
  size_t before = d;
  for (const size_t n : {4u, 8u, 16u, 32u, 64u, 128u}) {
    const size_t end = d / n * n;  // where a loop over vectors of n elements ends
    if (end == before || end == 0) continue;
    before = end;
    const std::string words =
        "the elements from " + std::to_string(end) + " on are left out of the ";
    list.Mistake(words + "sum of squares",
                 WithSums([end](const Row& r) { return r.SumOfSquares(0, end); }));
    list.Mistake(words + "mean of the squares", WithSums([end](const Row& r) {
                   return r.SumOfSquares(0, end) / static_cast<double>(end) * r.Divisor();
                 }));
  }
  for (const rmsnorm_dtype narrow : {RMSNORM_BF16, RMSNORM_F16}) {
    const std::string name = rmsnorm_dtype_name(narrow);
    list.Mistake("the squares are rounded to " + name, WithSums([narrow](const Row& r) {
                   double sum = 0;
                   for (size_t i = 0; i < r.d; ++i) {
                     sum += static_cast<double>(RoundedTo(narrow, r.x[i] * r.x[i]));
                   }
                   return sum;
                 }));
    list.Mistake("the squares are added in " + name,
                 WithSums([narrow](const Row& r) { return NarrowSum(r, narrow); }));
    list.Mistake("the sum of squares is rounded to " + name, WithSums([narrow](const Row& r) {
                   const double sum = r.SumOfSquares(0, r.d);
                   return static_cast<double>(RoundedTo(narrow, static_cast<float>(sum)));
                 }));
    list.Mistake("the mean of the squares is rounded to " + name, WithSums([narrow](const Row& r) {
                   const double mean = r.SumOfSquares(0, r.d) / r.Divisor();
                   return static_cast<double>(RoundedTo(narrow, static_cast<float>(mean))) *
                          r.Divisor();
                 }));
  }
  list.Mistake("the variance replaces the mean of the squares", WithSums([](const Row& r) {
                 const double mean = r.Mean();
                 double sum = 0;
                 for (size_t i = 0; i < r.d; ++i) {
                   sum +=
                       (static_cast<double>(r.x[i]) - mean) * (static_cast<double>(r.x[i]) - mean);
                 }
                 return sum;
               }));
  list.Mistake("the mean is subtracted from x: a LayerNorm", [](const NormCall& c) -> Result {
    std::optional<NormCall> plain = WithoutResidual(c);
    if (!plain || c.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
    const size_t rows = plain->x().rows, length = plain->x().d;
    std::vector<float> x = ValuesOf(plain->x());
    for (size_t row = 0; row < rows; ++row) {
      float* const first = &x[row * length];
      const double mean = Row{first, length, c.options, plain->x().dtype}.Mean();
      for (size_t i = 0; i < length; ++i) {
        first[i] = static_cast<float>(static_cast<double>(first[i]) - mean);
      }
    }
    plain->operand[kX] = Rounded(x, RMSNORM_F32, rows, length);
    return ComputeY(*plain);
  });
  list.Mistake("the mean of the magnitudes replaces the RMS", WithSums([](const Row& r) {
                 double sum = 0;
                 for (size_t i = 0; i < r.d; ++i) sum += std::fabs(static_cast<double>(r.x[i]));
                 return sum * sum / r.Divisor();
               }));
  list.Mistake("the largest magnitude replaces the RMS", WithSums([](const Row& r) {
                 double most = 0;
                 for (size_t i = 0; i < r.d; ++i) {
                   most = std::max(most, std::fabs(static_cast<double>(r.x[i])));
                 }
                 return most * most * r.Divisor();
               }));
  list.Mistake("the root is left out", WithSumsAndEps([](const Row& r, double eps) {
                 const double u = r.SumOfSquares(0, r.d) / r.Divisor() + eps;
                 return u * u * r.Divisor();
               }));
  list.Mistake("eps is added both inside and outside the root", [](const NormCall& c) -> Result {
    if (c.options.eps_placement != RMSNORM_EPS_OUTSIDE || c.options.eps == 0) return {};
    return WithSums([](const Row& r) {
      return r.SumOfSquares(0, r.d) + static_cast<double>(r.options.eps) * r.Divisor();
    })(c);
  });
  list.Mistake(
      "eps is added to the sum of squares before the division",
      WithSumsAndEps([](const Row& r, double eps) { return r.SumOfSquares(0, r.d) + eps; }));
  if (!call.Has(kResidual)) {
    const std::vector<double> sums = SumsOfSquares(call.x());
    const double mean =
        std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(sums.size());
    list.Mistake("one RMS is used for all rows", WithSums([mean](const Row&) { return mean; }));
  }
}

void AddDivisors(const NormCall& call, StepList& list) {
  const size_t d = call.x().d;
  list.Option([](NormCall& c) -> Result {
    c.options.divisor = 1;
    return ComputeY(c);
  });
  size_t power = 1;
  while (power < d) power *= 2;
  const auto divide = [&list](const std::string& words, size_t divisor) {
    list.Mistake(words, [divisor](NormCall& c) -> Result {
      c.options.divisor = static_cast<float>(divisor);
      return ComputeY(c);
    });
  };
  if (d > 2) divide("the sum of squares is divided by d - 1", d - 1);
  divide("the sum of squares is divided by d + 1", d + 1);
  if (power > d + 1) divide("the sum of squares is divided by the next power of two", power);
  for (const size_t n : {8u, 16u, 32u, 64u, 128u}) {
    const size_t padded = (d + n - 1) / n * n;
    if (padded == d || padded == power || padded == d + 1) continue;
    divide("the sum of squares is divided by d rounded up to a multiple of " + std::to_string(n),
           padded);
  }
}

void AddGroups(const NormCall& call, StepList& list) {
  constexpr size_t kShortest = 16;
  const size_t d = call.x().d;
  for (size_t groups = 2; d / groups >= kShortest; ++groups) {
    const size_t length = d / groups;
    const bool is_usual = groups <= 8 || length % 32 == 0 || length % 80 == 0;
    if (d % groups != 0 || !is_usual) continue;
    list.Variant("each row is normalised in " + std::to_string(groups) + " groups of " +
                     std::to_string(length) + " elements",
                 [groups](NormCall& c) { return InGroups(c, groups); });
  }
}

}  // namespace

Matrix ComputeY(const NormCall& call) {
  Matrix y = EmptyMatrix(call.y_dtype, call.x().rows, call.x().d);
  CallLibrary(call, kY, y);
  return y;
}

Matrix SumWithResidual(const NormCall& call, rmsnorm_dtype dtype) {
  NormCall add;
  add.operand[kX] = call.x();
  const Matrix& residual = *call.operand[kResidual];
  add.operand[kResidual] = Rounded(ValuesOf(residual), RMSNORM_F32, residual.rows, residual.d);
  Matrix sum = EmptyMatrix(RMSNORM_F32, call.x().rows, call.x().d);
  CallLibrary(add, kResidualOut, sum);
  return Rounded(ValuesOf(sum), dtype, sum.rows, sum.d);
}

std::vector<double> SumsOfSquares(const Matrix& x) {
  const std::vector<float> values = ValuesOf(x);
  const rmsnorm_options options = rmsnorm_default_options();
  std::vector<double> sums(x.rows);
  for (size_t row = 0; row < x.rows; ++row) {
    sums[row] = Row{&values[row * x.d], x.d, options, x.dtype}.SumOfSquares(0, x.d);
  }
  return sums;
}

std::vector<Step> StepsFor(const NormCall& call) {
  StepList list;
  list.Option([](NormCall& c) -> Result { return ComputeY(c); });
  AddDivisors(call, list);
  AddRoundings(call, list);
  AddRowRoundings(call, list);
  AddOperands(call, list);
  AddSums(call, list);
  AddGroups(call, list);
  return list.Take();
}

}  // namespace rmsnorm::identify
