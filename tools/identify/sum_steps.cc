// SPDX-License-Identifier: Apache-2.0
// What replaces the root of the mean of squares: other sums, divisors and places of eps.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "../../lib/element.h"
#include "step_list.h"

namespace rmsnorm::identify {
namespace {

using internal::DivisorOf;
using internal::kResidual;
using internal::kX;

// A row of x as f32, and the options of the call.
struct Row {
  const float* x;
  size_t d;
  const rmsnorm_options& options;

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
      plain->sums.push_back(f(Row{&values[row * x.d], x.d, call.options}));
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

// The sum of squares whose every partial sum is rounded to a type.
double NarrowSum(const Row& row, rmsnorm_dtype dtype) {
  float sum = 0;
  for (size_t i = 0; i < row.d; ++i) {
    sum = RoundedTo(dtype, sum + RoundedTo(dtype, row.x[i] * row.x[i]));
  }
  return static_cast<double>(sum);
}

// Where a sum may end too early: after the last whole vector of n elements, or after a share of d.
std::set<size_t> EndsOfSums(size_t d) {
  std::set<size_t> ends;
  for (const size_t n : {4u, 8u, 16u, 32u, 64u, 128u}) ends.insert(d / n * n);
  for (const size_t n : {2u, 4u, 8u, 16u}) ends.insert(d / n);
  ends.erase(0);
  ends.erase(d);
  return ends;
}

// The same norm of x without its mean.
std::optional<NormCall> Centered(const NormCall& call) {
  std::optional<NormCall> plain = WithoutResidual(call);
  if (!plain || call.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
  const size_t rows = plain->x().rows, d = plain->x().d;
  std::vector<float> x = ValuesOf(plain->x());
  for (size_t row = 0; row < rows; ++row) {
    float* const first = &x[row * d];
    const double mean = Row{first, d, call.options}.Mean();
    for (size_t i = 0; i < d; ++i) {
      first[i] = static_cast<float>(static_cast<double>(first[i]) - mean);
    }
  }
  plain->operand[kX] = Rounded(x, RMSNORM_F32, rows, d);
  return plain;
}

// Norms that subtract the mean of x.
void AddMeans(const NormCall& call, StepList& list) {
  const auto d = static_cast<double>(call.x().d);
  for (const bool is_unbiased : {false, true}) {
    if (is_unbiased && call.x().d < 3) continue;
    const std::string which = is_unbiased ? "the variance, divided by d - 1," : "the variance";
    const double correction = is_unbiased ? d / (d - 1) : 1;
    list.Mistake(which + " replaces the mean of the squares", WithSums([correction](const Row& r) {
                   const double mean = r.Mean();
                   double sum = 0;
                   for (size_t i = 0; i < r.d; ++i) {
                     const double apart = static_cast<double>(r.x[i]) - mean;
                     sum += apart * apart;
                   }
                   return sum * correction;
                 }));
    list.Mistake("the mean is subtracted from x: a LayerNorm" +
                     std::string(is_unbiased ? " whose variance is divided by d - 1" : ""),
                 [correction](const NormCall& c) -> Result {
                   std::optional<NormCall> centered = Centered(c);
                   if (!centered) return {};
                   centered->sums = SumsOfSquares(centered->x());
                   for (double& sum : centered->sums) sum *= correction;
                   return ComputeY(*centered);
                 });
  }
  list.Mistake("the mean is subtracted from x, but not in the RMS",
               [](const NormCall& c) -> Result {
                 std::optional<NormCall> centered = Centered(c);
                 if (!centered) return {};
                 centered->sums = SumsOfSquares(WithoutResidual(c)->x());
                 return ComputeY(*centered);
               });
}

}  // namespace

void AddSums(const NormCall& call, StepList& list) {
  const size_t d = call.x().d;
  if (d > 1) {
    list.Mistake("the last element is left out of the sum of squares",
                 WithSums([](const Row& r) { return r.SumOfSquares(0, r.d - 1); }));
    list.Mistake("the first element is left out of the sum of squares",
                 WithSums([](const Row& r) { return r.SumOfSquares(1, r.d); }));
  }
  for (const size_t end : EndsOfSums(d)) {
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
  AddMeans(call, list);
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
  list.Mistake("x is multiplied by the RMS", WithSumsAndEps([](const Row& r, double eps) {
                 return r.Divisor() / (r.SumOfSquares(0, r.d) / r.Divisor() + eps);
               }));
  list.Mistake("eps is added to 1 / RMS instead", WithSumsAndEps([](const Row& r, double eps) {
                 const double mean = r.SumOfSquares(0, r.d) / r.Divisor();
                 const double inverse = 1 / std::sqrt(mean) + eps;
                 return r.Divisor() / (inverse * inverse);
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

void AddDivisors(const NormCall& call, size_t divisor, StepList& list) {
  const size_t d = call.x().d;
  list.Option([](NormCall& c) -> Result {
    c.options.divisor = 1;
    return ComputeY(c);
  });
  size_t power = 1;
  while (power < d) power *= 2;
  std::set<size_t> known = {0, 1, d};
  const auto divide = [&](const std::string& words, size_t number) {
    if (!known.insert(number).second) return;
    list.Mistake("the sum of squares is divided by " + words, [number](NormCall& c) -> Result {
      c.options.divisor = static_cast<float>(number);
      return ComputeY(c);
    });
  };
  divide("d - 1", d - 1);
  divide("d + 1", d + 1);
  if (power > d) divide("the next power of two", power);
  for (const size_t n : {8u, 16u, 32u, 64u, 128u}) {
    divide("d rounded up to a multiple of " + std::to_string(n), (d + n - 1) / n * n);
  }
  divide(std::to_string(divisor), divisor);
}

}  // namespace rmsnorm::identify
