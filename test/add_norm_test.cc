// SPDX-License-Identifier: Apache-2.0
// On every target, add_norm gives the bits of a separate addition and a separate norm, for each
// type and option. `rmsnorm check` tests that targets agree for every layout.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "norms.h"
#include "random_rows.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

float AsFloat(const Tensor& tensor, size_t row, size_t j) {
  return static_cast<float>(tensor.get(row, j));  // this is exact
}

// Returns h = residual + x in f32.
Tensor Sum(const Tensor& x, const Tensor& residual) {
  Tensor sum(RMSNORM_F32, x.rows(), x.d());
  for (size_t row = 0; row < x.rows(); ++row) {
    for (size_t j = 0; j < x.d(); ++j) {
      const float h = AsFloat(residual, row, j) + AsFloat(x, row, j);
      sum.set_bits(row, j, std::isnan(h) ? 0x7FC00000 : LoadBits(RMSNORM_F32, &h, 0));
    }
  }
  return sum;
}

// Copies rows into another tensor, rounded to its type.
void CopyRows(const Tensor& from, Tensor& to) {
  for (size_t row = 0; row < from.rows(); ++row) {
    for (size_t j = 0; j < from.d(); ++j) to.set(row, j, from.get(row, j));
  }
}

Tensor Rounded(const Tensor& from, rmsnorm_dtype dtype) {
  Tensor to(dtype, from.rows(), from.d());
  CopyRows(from, to);
  return to;
}

// The norm of h in f32, if n is rounded to the type of x. It computes n first, and then the norm of
// n as x, with a sum of squares that makes 1 / RMS 1.
Tensor NormOfUnrounded(const NormInputs& norm, rmsnorm_dtype x_dtype, const Options& options,
                       const std::vector<float>& rstd, const Context& context) {
  NormInputs plain = {norm.x};
  plain.y.emplace(RMSNORM_F32, norm.x.rows(), norm.x.d());
  Options scale = options;
  scale.rounding = Rounding::after_weight;
  scale.weight_offset = 0;
  Tensor n = *ComputeNorm(plain, scale, context).y;
  if (options.rounding == Rounding::inverse) {
    for (size_t row = 0; row < n.rows(); ++row) {
      const double r = RoundTo(x_dtype, static_cast<double>(rstd[row * norm.step]));
      for (size_t j = 0; j < n.d(); ++j) n.set(row, j, norm.x.get(row, j) * r);
    }
  }
  NormInputs scaled = norm;
  scaled.x = Rounded(n, x_dtype);
  scaled.sums.assign(n.rows() * norm.step, static_cast<double>(n.d()));
  scaled.rstd = scaled.sums_out = false;
  scale = Options();
  scale.eps = 0;
  scale.weight_offset = options.weight_offset;
  return *ComputeNorm(scaled, scale, context).y;
}

// The results of separate calls: an addition, done here, and the norm by the reference.
NormResults Separate(const NormInputs& inputs, const Options& options) {
  const std::string reference = kReference;
  const Context context = OnTarget(reference, 1);
  const rmsnorm_dtype x_dtype = inputs.x.dtype();
  const Tensor sum = Sum(inputs.x, *inputs.residual);
  const bool unrounded = options.residual_rounding == ResidualRounding::unrounded;
  NormInputs norm = inputs;
  norm.x = unrounded ? sum : Rounded(sum, inputs.residual->dtype());
  norm.residual.reset();
  norm.residual_out.reset();
  norm.y_in_place = false;
  NormResults results = ComputeNorm(norm, options, context);
  if (unrounded && x_dtype != RMSNORM_F32 && options.rounding != Rounding::after_weight) {
    results.y = NormOfUnrounded(norm, x_dtype, options, results.rstd, context);
  }
  results.residual_out = inputs.residual_out;
  CopyRows(sum, *results.residual_out);
  return results;
}

// The types of x, the residual and y.
using Types = std::tuple<rmsnorm_dtype, rmsnorm_dtype, rmsnorm_dtype>;

std::string NameOfTypes(const testing::TestParamInfo<Types>& info) {
  const auto [x, residual, y] = info.param;
  return std::string(rmsnorm_dtype_name(x)) + "_" + rmsnorm_dtype_name(residual) + "_" +
         rmsnorm_dtype_name(y);
}

class AddNormTest : public testing::TestWithParam<Types> {
 protected:
  // Rows of every kind.
  NormInputs Draw(size_t rows, size_t d) {
    NormInputs inputs = {Tensor(x_dtype_, rows, d)};
    inputs.residual.emplace(residual_dtype_, rows, d);
    FillMixed(random_, inputs.x);
    FillMixed(random_, *inputs.residual);
    if (random_.Below(2) == 0) inputs.weight = DrawColumns(d);
    if (random_.Below(2) == 0) inputs.bias = DrawColumns(d);
    inputs.residual_out.emplace(residual_dtype_, rows, d);
    inputs.y.emplace(y_dtype_, rows, d);
    inputs.sums_out = random_.Below(2) == 0;
    return inputs;
  }

  Tensor DrawColumns(size_t d) {
    Tensor columns(kDtypes[random_.Below(3)], 1, d);
    FillWeight(random_, columns);
    return columns;
  }

  void Compare(const NormInputs& inputs, const Options& options) {
    const NormResults expected = Separate(inputs, options);
    for (const std::string& target : targets_) {
      SCOPED_TRACE(testing::Message() << target << ", " << inputs.x.rows() << " x " << inputs.x.d()
                                      << (inputs.bias ? ", bias" : "") << ", rounding "
                                      << static_cast<int>(options.rounding) << ", of the residual "
                                      << static_cast<int>(options.residual_rounding));
      ASSERT_TRUE(SameBits(expected, ComputeNorm(inputs, options, OnTarget(target, 1))));
    }
  }

  const rmsnorm_dtype x_dtype_ = std::get<0>(GetParam());
  const rmsnorm_dtype residual_dtype_ = std::get<1>(GetParam());
  const rmsnorm_dtype y_dtype_ = std::get<2>(GetParam());
  const std::vector<std::string> targets_ = SupportedTargets();
  Random random_{211};
};

std::vector<Options> AllRoundings() {
  std::vector<Options> all;
  for (const Rounding rounding :
       {Rounding::after_weight, Rounding::before_weight, Rounding::inverse}) {
    for (const auto of_residual : {ResidualRounding::rounded, ResidualRounding::unrounded}) {
      Options options;
      options.rounding = rounding;
      options.residual_rounding = of_residual;
      all.push_back(options);
    }
  }
  return all;
}

TEST_P(AddNormTest, IsAnAdditionAndANorm) {
  for (Options options : AllRoundings()) {
    for (const size_t d : SizeList{1, 33, 64, 300, 4097}) {
      for (const auto placement :
           {EpsPlacement::inside, EpsPlacement::outside, EpsPlacement::floor}) {
        NormInputs inputs = Draw(2 * kRowKinds, d);
        options.eps_placement = placement;
        options.weight_offset = inputs.weight ? 1.0f : 0.0f;
        options.divisor = random_.Below(2) == 0 ? 0.0f : 100.5f;
        ASSERT_NO_FATAL_FAILURE(Compare(inputs, options));
      }
    }
  }
}

// Sums that overflow f32 or the residual's type, that vanish, and that are zero.
TEST_P(AddNormTest, SpecialSums) {
  const double f32_max = std::numeric_limits<float>::max();
  const double largest = FormatOf(x_dtype_).max();
  const double residual_largest = FormatOf(residual_dtype_).max();
  const double smallest = std::ldexp(1.0, FormatOf(x_dtype_).min_exponent()) / 4;
  const double infinity = std::numeric_limits<double>::infinity();
  struct Pair {
    double x;
    double residual;
  };
  const Pair pairs[] = {
      {largest, residual_largest},  // overflows if both are f32, and in the residual
      {largest, -residual_largest},
      {-largest, residual_largest / 4},
      {smallest, smallest},
      {smallest, -smallest},
      {0.0, -0.0},
      {-0.0, -0.0},
      {infinity, 1},
      {infinity, -infinity},
      {1, std::nan("")},
      {std::nan(""), infinity},
      {std::min(largest, 3e38), f32_max > 1e38 ? 1e38 : 1}};
  for (Options options : AllRoundings()) {
    for (const float eps : {0.0f, 1e-5f}) {
      options.eps = eps;
      for (const size_t d : SizeList{1, 63, 64, 300}) {
        // One row consists of each pair alone; in another, the pair is one element among others.
        NormInputs inputs = Draw(2 * std::size(pairs), d);
        Random random(223);
        FillNormal(random, inputs.x);
        FillNormal(random, *inputs.residual);
        for (size_t i = 0; i < std::size(pairs); ++i) {
          for (size_t j = 0; j < d; ++j) {
            inputs.x.set(2 * i, j, pairs[i].x);
            inputs.residual->set(2 * i, j, pairs[i].residual);
          }
          inputs.x.set(2 * i + 1, d / 2, pairs[i].x);
          inputs.residual->set(2 * i + 1, d / 2, pairs[i].residual);
        }
        // NaNs of every payload.
        inputs.x.set_bits(18, 0, FormatOf(x_dtype_).sign() - 1);
        inputs.residual->set_bits(20, 0, FormatOf(residual_dtype_).sign() - 1);
        ASSERT_NO_FATAL_FAILURE(Compare(inputs, options));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, AddNormTest,
                         testing::Combine(testing::ValuesIn(kDtypes), testing::ValuesIn(kDtypes),
                                          testing::ValuesIn(kDtypes)),
                         NameOfTypes);

// --------------------------------------------------------------------------------------- gradient

// The loss sum(dy * y) + sum(dr * residual_out) of one row, as a function of the unrounded
// residual_out, in binary64.
double Loss(const std::vector<double>& h, const Tensor& weight, const Tensor& dy,
            const std::vector<double>& dr, double eps) {
  const size_t d = h.size();
  double squares = 0;
  for (const double value : h) squares += value * value;
  const double r = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
  double loss = 0;
  for (size_t j = 0; j < d; ++j) {
    loss += dy.get(0, j) * h[j] * r * weight.get(0, j) + dr[j] * h[j];
  }
  return loss;
}

// One call of backward adds the gradient of the norm to the gradient of the residual. Compares the
// sum with central differences by residual (or x, with the same result), for a stream in f32 and
// for one in bf16.
class AddBackwardTest : public testing::TestWithParam<std::string> {};

TEST_P(AddBackwardTest, GradientJoinsTheResiduals) {
  const std::string target = GetParam();
  const size_t d = 70;
  Random random(227);
  for (const rmsnorm_dtype stream : {RMSNORM_F32, RMSNORM_BF16}) {
    NormInputs inputs = {Tensor(RMSNORM_BF16, 1, d)};
    inputs.residual.emplace(stream, 1, d);
    inputs.residual_out.emplace(stream, 1, d);
    inputs.y.emplace(RMSNORM_BF16, 1, d);
    inputs.weight.emplace(RMSNORM_F32, 1, d);
    Tensor dy(RMSNORM_BF16, 1, d);
    for (Tensor* tensor : {&inputs.x, &*inputs.residual, &*inputs.weight, &dy}) {
      FillNormal(random, *tensor);
    }
    Options options;
    options.eps = 0.01f;
    const NormResults forward = ComputeNorm(inputs, options, OnTarget(target));

    Tensor gradient(stream, 1, d);  // of residual_out, and then of residual and x
    FillNormal(random, gradient);
    std::vector<double> dr(d);
    std::vector<double> h(d);
    for (size_t j = 0; j < d; ++j) {
      dr[j] = gradient.get(0, j);
      h[j] = forward.residual_out->get(0, j);
    }
    BackwardOperands operands;
    operands.dy = ConstView(dy.view());
    operands.x = ConstView(forward.residual_out->view());
    operands.weight = ConstView(inputs.weight->vector());
    operands.rstd = {forward.rstd.data(), 1};
    operands.dx = View(gradient.view());
    operands.add_to_dx = true;
    backward(operands, options, OnTarget(target));
    const double bound = stream == RMSNORM_F32 ? 1e-5 : 0x1p-8;
    for (size_t j = 0; j < d; ++j) {
      constexpr double kStep = 1e-4;
      std::vector<double> above = h;
      std::vector<double> below = h;
      above[j] += kStep;
      below[j] -= kStep;
      const double eps = double{options.eps};
      const double expected =
          (Loss(above, *inputs.weight, dy, dr, eps) - Loss(below, *inputs.weight, dy, dr, eps)) /
          (2 * kStep);
      ASSERT_NEAR(expected, gradient.get(0, j), bound * std::max(1.0, std::fabs(expected)))
          << rmsnorm_dtype_name(stream) << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, AddBackwardTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
