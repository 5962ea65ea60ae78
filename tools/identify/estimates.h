// SPDX-License-Identifier: Apache-2.0
// Numbers of a norm, estimated from its results.
#ifndef RMSNORM_TOOLS_IDENTIFY_ESTIMATES_H_
#define RMSNORM_TOOLS_IDENTIFY_ESTIMATES_H_

#include <optional>
#include <utility>
#include <vector>

#include "step.h"

namespace rmsnorm::identify {

// What an implementation was given and what it returned.
struct Observation {
  NormCall call;
  Matrix y;

  Observation Of(const std::vector<size_t>& rows) const;
};

// A number that is hardly further from the true value than `error`.
struct Estimate {
  double value = 0;
  double error = 0;

  bool MayBe(double other) const { return value - error <= other && other <= value + error; }
};

// The numbers that an estimate may stand for: the shortest decimal, numbers of bf16 and f16, and
// the value itself, simple ones first.
std::vector<float> NumbersLike(const Estimate& estimate);

// The numbers in y = (offset + weight) * norm(residual + factor * x) + plus. One that rows do not
// agree on is absent.
struct Coefficients {
  std::optional<Estimate> factor, offset, plus;
  int32_t activation = 0;  // the nearest one, of a gate
};
Coefficients CoefficientsOf(const Observation& seen);

// One explanation of the scales of the rows of y: they are times / sqrt(u + eps), or the same for
// another placement of eps, where u is the mean of the squares.
struct ScaleEstimate {
  rmsnorm_eps_placement placement;
  Estimate eps;    // 0 if the rows do not show one
  Estimate times;  // 1 if the rows do not show another one
  double misfit;   // of the rows, in multiples of what their roundings explain
};

// The explanations of y - plus for a step with some options, of which eps does not matter.
std::vector<ScaleEstimate> ScaleEstimatesOf(const Observation& seen, const Step& step,
                                            rmsnorm_options options, float plus);

// a and b in residual_out = a * residual + b * x.
std::optional<std::pair<float, float>> SharesOf(const NormCall& call, const Matrix& residual_out);

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_ESTIMATES_H_
