// SPDX-License-Identifier: Apache-2.0
// Operands that are left out, or used in another place.
#include <algorithm>
#include <cmath>

#include "../../lib/element.h"
#include "step_list.h"

namespace rmsnorm::identify {
namespace {

using internal::kBias;
using internal::kGate;
using internal::kPostNormWeight;
using internal::kResidual;
using internal::kWeight;
using internal::kX;
using internal::Operand;

}  // namespace

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

}  // namespace rmsnorm::identify
