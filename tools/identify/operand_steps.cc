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
using internal::kResidualOut;
using internal::kWeight;
using internal::kX;
using internal::Operand;

// y where x is multiplied by the weight before the norm, and rounded to a type.
Result WeightFirst(const NormCall& call, rmsnorm_dtype dtype) {
  std::optional<NormCall> plain = WithoutResidual(call);
  if (!plain) return {};
  const Matrix& x = plain->x();
  plain->operand[kX] = Rounded(Weighted(ValuesOf(x), call), dtype, x.rows, x.d);
  plain->operand[kWeight].reset();
  plain->options.weight_offset = 0;
  return ComputeY(*plain);
}

// A step where element j has the weight of element index(j), if that is another one.
template <class F>
auto WithWeightAt(const F& index) {
  return [index](NormCall& call) -> Result {
    const Matrix& given = *call.operand[kWeight];
    const std::vector<float> weight = ValuesOf(given);
    std::vector<float> moved = weight;
    for (size_t i = 0; i < moved.size(); ++i) {
      moved[i] = weight[i - i % given.d + index(i % given.d)];
    }
    if (moved == weight) return {};
    call.operand[kWeight] = Rounded(moved, given.dtype, given.rows, given.d);
    return ComputeY(call);
  };
}

void AddPlacesOfTheWeight(size_t d, StepList& list) {
  list.Mistake("the weight is read from its end",
               WithWeightAt([d](size_t j) { return d - 1 - j; }));
  list.Mistake("each element has the weight of the next one",
               WithWeightAt([d](size_t j) { return (j + 1) % d; }));
  list.Mistake("each element has the weight of the one before",
               WithWeightAt([d](size_t j) { return (j + d - 1) % d; }));
  for (const size_t groups : UsualGroups(d)) {
    const size_t length = d / groups;
    const std::string shape = std::to_string(groups) + " x " + std::to_string(length);
    list.Mistake("the weight is that of rows of " + shape + " elements, transposed",
                 WithWeightAt([=](size_t j) { return j % groups * length + j / groups; }));
    list.Mistake("the weight is transposed from rows of " + shape + " elements",
                 WithWeightAt([=](size_t j) { return j % length * groups + j / length; }));
    list.Mistake("the first " + std::to_string(length) + " elements of the weight are repeated",
                 WithWeightAt([=](size_t j) { return j % length; }));
  }
}

// A step that reads the bits of an operand of f16 as bf16, or of bf16 as f16.
auto WithOtherType(Operand o) {
  return [o](NormCall& call) {
    rmsnorm_dtype& dtype = call.operand[o]->dtype;
    dtype = dtype == RMSNORM_F16 ? RMSNORM_BF16 : RMSNORM_F16;
    return ComputeY(call);
  };
}

// A step that multiplies the norm by f(value) of the gate instead of silu.
template <class F>
auto WithActivation(const F& f) {
  return [f](const NormCall& call) -> Result {
    if (call.options.activation != 0) return {};
    if (call.options.gate_placement == RMSNORM_GATE_BEFORE) return {};
    const std::vector<float> gate = ValuesOf(*call.operand[kGate]);
    NormCall plain = call;
    plain.operand[kGate].reset();
    plain.options.gate_rounding = RMSNORM_GATE_UNROUNDED;
    const bool is_rounded = call.options.gate_rounding == RMSNORM_GATE_ROUNDED;
    plain.y_dtype = is_rounded ? call.x().dtype : RMSNORM_F32;
    std::vector<float> y = ValuesOf(ComputeY(plain));
    for (size_t i = 0; i < y.size(); ++i) y[i] *= f(gate[i]);
    return Rounded(y, call.y_dtype, call.x().rows, call.x().d);
  };
}

float Gelu(float value) {
  const auto v = static_cast<double>(value);
  return static_cast<float>(0.5 * v * (1 + std::erf(v * std::sqrt(0.5))));
}

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
    const rmsnorm_dtype type = call.x().dtype;
    list.Mistake("x is multiplied by the weight before the norm",
                 [](const NormCall& c) { return WeightFirst(c, RMSNORM_F32); });
    if (type != RMSNORM_F32) {
      list.Mistake("x is multiplied by the weight before the norm, and rounded",
                   [type](const NormCall& c) { return WeightFirst(c, type); });
      list.Variant("x is multiplied by 1 + weight before the norm, both rounded",
                   [type](NormCall& c) -> Result {
                     if (c.options.weight_offset != 1) return {};
                     c.options.weight_offset = 0;
                     NormCall added = c;
                     Matrix& w = *added.operand[kWeight];
                     std::vector<float> values = ValuesOf(w);
                     for (float& value : values) value += 1;
                     w = Rounded(values, w.dtype, w.rows, w.d);
                     return WeightFirst(added, type);
                   });
    }
    AddPlacesOfTheWeight(call.x().d, list);
  }
  for (const Operand o : {kX, kWeight}) {
    if (!call.Has(o) || call.operand[o]->dtype == RMSNORM_F32) continue;
    const char* const other = call.operand[o]->dtype == RMSNORM_F16 ? "bf16" : "f16";
    list.Mistake("the bits of " + NameOf(o) + " are read as " + other, WithOtherType(o));
  }
  if (!call.Has(kGate) && !call.Has(kResidual)) {
    list.Mistake("the norm is applied twice", [](const NormCall& c) {
      NormCall second = c;
      second.operand[kX] = ComputeY(c);
      return ComputeY(second);
    });
  }
  if (call.Has(kGate) && !call.Has(kResidual)) {
    list.Mistake("the gate has no activation", WithActivation([](float z) { return z; }));
    list.Mistake("gelu replaces the activation of the gate", WithActivation(Gelu));
    list.Mistake("relu replaces the activation of the gate",
                 WithActivation([](float z) { return std::max(z, 0.0f); }));
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
    NormCall usual = call;
    usual.options = rmsnorm_default_options();
    if (call.Has(kResidualOut) && !call.Has(kPostNormWeight) &&
        ComputeResidualOut(usual).bytes != call.operand[kResidualOut]->bytes) {
      list.Mistake("y is the norm of residual_out", [](const NormCall& c) -> Result {
        if (c.options.residual_rounding != RMSNORM_RESIDUAL_ROUNDED) return {};
        if (internal::FactorOf(c.options) != 1) return {};
        NormCall plain = c;
        plain.operand[kX] = c.operand[kResidualOut];
        plain.operand[kResidual].reset();
        return ComputeY(plain);
      });
    }
    list.Mistake("the RMS is that of x without the residual",
                 [=](const NormCall& c) { return with_sums_of(c.x(), c); });
    list.Mistake("the residual is added to the norm", [](NormCall& c) -> Result {
      if (internal::FactorOf(c.options) != 1) return {};
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
