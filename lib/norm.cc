// SPDX-License-Identifier: Apache-2.0
#include "norm.h"

#include "options.h"

namespace rmsnorm::internal {

void MakeNorm(const KernelTable& kernels, const rmsnorm_options& options, size_t d, Norm& norm) {
  norm.kernels = &kernels;
  norm.root.eps = options.eps;
  norm.root.divisor = DivisorOf(options, d);
  norm.root.inverse_divisor = 1 / norm.root.divisor;
  norm.root.eps_placement = options.eps_placement;
  norm.rounding = options.rounding;
  norm.norm_unrounded = options.residual_rounding == RMSNORM_RESIDUAL_UNROUNDED;
  norm.factor = FactorOf(options);
  norm.activation = options.activation;
  norm.gate_placement = options.gate_placement;
  norm.gate_rounding = options.gate_rounding;
  norm.add_to_dx = false;
  norm.one_type = true;
  norm.has_leaves = options.rounding != RMSNORM_ROUND_INVERSE && norm.factor == 1.0f;
  norm.stream = false;
  for (rmsnorm_dtype& dtype : norm.dtype) dtype = RMSNORM_F32;
}

void MakeNormOfViews(const KernelTable& kernels, const rmsnorm_options& options, size_t d,
                     const Views& views, Norm& norm) {
  MakeNorm(kernels, options, d, norm);
  ForEachOperand(views.given, [&](Operand operand) {
    const OperandRule& rule = kOperandRules[operand];
    if (rule.shape == Shape::kColumns) return;
    norm.dtype[operand] = views[operand].dtype;
    const bool like_x = views[operand].dtype == views[kX].dtype;
    if (rule.shape == Shape::kRows && rule.dtype == 0 && !like_x) {
      norm.one_type = norm.has_leaves = false;
    }
  });
}

void MakeDenseNorm(const KernelTable& kernels, const rmsnorm_options& options, size_t d,
                   rmsnorm_dtype dtype, Norm& norm) {
  MakeNorm(kernels, options, d, norm);
  for (int i = 0; i < kOperands; ++i) {
    if (kOperandRules[i].shape == Shape::kRows) norm.dtype[i] = dtype;
  }
}

}  // namespace rmsnorm::internal
