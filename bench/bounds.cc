// SPDX-License-Identifier: Apache-2.0
// Bounds for the difference between another library's results and the reference's, with u = 2^-24:
//
// An inverse RMS r is off by (0.51 d + 18) u. A sum of d squares in any order is off by at most d
// u, since all its terms are positive, mean and eps by 2 u, and the root halves these. The other 16
// u are for the root, its reciprocal (4 u if estimated), the products and the reference's own error
// of (d / 256 + d / 8192 + 10) u. At d = 64, for y of about 1, a forgotten eps of 1e-5 is still
// twice this bound.
//
// Each term of a gradient contains r one to three times, and a sum of d products: (2.55 d + 76) u.
// A sum over R rows adds (1.07 R + 36) u. Terms may cancel each other, so these bounds are relative
// to the sum of their sizes: r |g| + |x| r^3 mean|g x| for dx, sum|dy x r| for dw.
//
// In f16 and bf16 the reference and the other library both round the result, half a unit in the
// last place each. The other library may round intermediate values too: n = x r; the sum of
// residual and x, after its norm; g and n in each term of a gradient. So y has 3.1 such roundings,
// 5.2 after the addition of a residual, the sum itself 2.1, and a gradient 6.3.
//
// Post-norm: the residual adds the error of the first norm n to its own, so its bounds are relative
// to |residual| + |n|: (0.51 d + 20) u and 3.1 roundings. The second norm is compared with the norm
// of the residual that the other library wrote, in binary64: as after an addition.
//
// Gates: silu(z) = z / (1 + exp(-z)) is off by 20 u. Vector libraries give the exponential to 4
// units in the last place, 8 u; the sum adds u, a division by an estimate 4 u, the product with the
// norm 2 u, and the reference is off by 2 units, 4 u; 1 u is left. Silu and its other factor may be
// rounded before they are multiplied, 2.1 roundings more. A gate before the norm passes both on to
// the root mean square, and so counts twice: 40 u and 4.2 roundings more.
//
// Int8: v is off as y is, before the reference rounds it: by (0.51 d + 18) u and 2.1 roundings. The
// largest of a row may be off in the other direction, and the division and products add 4 u. So q
// is off from v * 127 / a, in binary64, by half an integer and twice that error: in f32, q differs
// from the reference's only where that is near a half, and by one. The scale is off as y is, with
// 2 u for its division.
#include "bounds.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "../lib/element.h"
#include "cases/values.h"

namespace rmsnorm::bench {

using cases::Case;
using internal::Operand;
using internal::OperandSet;
using internal::SetOf;

namespace {

double ValueOf(rmsnorm_dtype dtype, const uint8_t* element) {
  if (dtype == RMSNORM_I8) return static_cast<int8_t>(*element);
  const auto bits = static_cast<uint32_t>(cases::LoadBits(dtype, element));
  if (dtype == RMSNORM_F32) return internal::FromBits(bits);
  const auto short_bits = static_cast<uint16_t>(bits);
  return dtype == RMSNORM_F16 ? internal::ToF32(internal::F16{short_bits})
                              : internal::ToF32(internal::BF16{short_bits});
}

using Wide = std::vector<double>;

Wide WideRow(rmsnorm_dtype dtype, const uint8_t* row, size_t d) {
  Wide wide(d);
  const size_t size = internal::ElementSize(dtype);
  for (size_t j = 0; j < d; ++j) wide[j] = ValueOf(dtype, row + j * size);
  return wide;
}

Wide WideRow(const cases::Rows& rows, size_t row) {
  return WideRow(rows.dtype(), rows.row(row), rows.d());
}

// A norm in binary64.
Wide NormOf(const Wide& x, const Wide& weight, double eps) {
  double mean = 0;
  for (const double value : x) mean += value * value / static_cast<double>(x.size());
  const double r = 1 / std::sqrt(mean + eps);
  Wide norm(x.size());
  for (size_t j = 0; j < x.size(); ++j) norm[j] = x[j] * r * weight[j];
  return norm;
}

// The allowed error of a result relative to a size: roundings of f32, plus roundings of the
// coarsest type of rows.
struct Tolerance {
  double f32_roundings;
  double roundings;
};

// The values that a row should have, and by how much each may be off.
struct Bounds {
  Wide values;
  Wide most;
};

// The bounds of one call.
class CallBounds {
 public:
  CallBounds(const Tensors& tensors, size_t call)
      : tensors_(tensors),
        call_(call),
        c_(tensors.values().calls[call]),
        problem_(tensors.values().problems[call]) {
    internal::ForEachOperand(c_.Given(), [&](Operand o) {
      if (internal::kOperandRules[o].shape != internal::Shape::kRows) return;
      const rmsnorm_dtype dtype = c_.operand[o].dtype;
      half_unit_ = std::max(half_unit_, dtype == RMSNORM_F16    ? 0x1p-11
                                        : dtype == RMSNORM_BF16 ? 0x1p-8
                                                                : 0);
      // Below 2^-14 a rounding to f16 is up to 2^-25; an intermediate one may be multiplied by a
      // weight below 6.
      if (dtype == RMSNORM_F16) absolute_ = 0x1p-22;
    });
    if (c_.Has(internal::kGate)) {
      const double times = c_.options.gate_placement == RMSNORM_GATE_BEFORE ? 2 : 1;
      norm_.f32_roundings += times * 20;
      norm_.roundings += times * 2.1;
    }
    if (c_.Has(internal::kResidual)) norm_.roundings += 2.1;
  }

  Bounds Of(Operand o, size_t row) {
    const Wide values = WideRow(problem_.after(o), row);
    switch (o) {
      case internal::kResidualOut:
        return c_.Has(internal::kPostNormWeight) ? OfPostNorm(row, values)
                                                 : Relative(values, values, {2.1, 2.1});
      case internal::kQ:
        return OfInt8(row);
      case internal::kScale:
        return Relative(values, values, {norm_.f32_roundings + 2, norm_.roundings});
      case internal::kDx:
        return Relative(values, SizesOfDx(row), {2.55 * length_ + 76, 6.3});
      case internal::kDw: {
        const double rows = static_cast<double>(c_.RowCount());
        return Relative(values, SizesOfDw(), {0.51 * length_ + 1.07 * rows + 36, 6.3});
      }
      default: {  // kY
        if (!c_.Has(internal::kPostNormWeight)) return Relative(values, values, norm_);
        const Wide residual = WideRow(c_.operand[internal::kResidualOut].dtype,
                                      tensors_.row(call_, internal::kResidualOut, row), c_.d);
        const Wide norm = NormOf(residual, Columns(internal::kWeight, row), eps_);
        return Relative(norm, norm, norm_);
      }
    }
  }

 private:
  Bounds Relative(const Wide& values, Wide sizes, Tolerance tolerance) const {
    for (double& size : sizes) {
      size =
          (tolerance.f32_roundings * 0x1p-24 + tolerance.roundings * half_unit_) * std::fabs(size) +
          absolute_;
    }
    return {values, std::move(sizes)};
  }

  Wide Columns(Operand o, size_t row) const {
    if (!c_.Has(o)) return Wide(c_.d, 1.0);
    return WideRow(problem_.before(o), cases::SharedRow(c_, o, row));
  }

  Bounds OfPostNorm(size_t row, const Wide& values) const {
    Wide sizes = NormOf(WideRow(problem_.before(internal::kX), row),
                        Columns(internal::kPostNormWeight, row), eps_);
    for (size_t j = 0; j < c_.d; ++j) sizes[j] = std::fabs(sizes[j]) + std::fabs(values[j]);
    return Relative(values, sizes, {0.51 * length_ + 20, 3.1});
  }

  Bounds OfInt8(size_t row) const {
    Wide values =
        NormOf(WideRow(problem_.before(internal::kX), row), Columns(internal::kWeight, row), eps_);
    double largest = 0;
    for (const double value : values) largest = std::max(largest, std::fabs(value));
    for (double& value : values) value *= 127 / largest;
    Bounds bounds = Relative(values, values, {2 * norm_.f32_roundings + 4, 4.2});
    for (double& most : bounds.most) most += 0.5 + absolute_ * (127 / largest - 1);
    return bounds;
  }

  struct RowOfGradients {
    Wide dy, x, weight;
    double r;
  };
  RowOfGradients Gradients(size_t row) const {
    return {WideRow(problem_.before(internal::kDy), row),
            WideRow(problem_.before(internal::kX), row), Columns(internal::kWeight, row),
            WideRow(problem_.before(internal::kRstd), row)[0]};
  }

  Wide SizesOfDx(size_t row) const {
    const auto [dy, x, weight, r] = Gradients(row);
    double mean = 0;
    for (size_t j = 0; j < c_.d; ++j) mean += std::fabs(dy[j] * weight[j] * x[j]) / length_;
    Wide sizes(c_.d);
    for (size_t j = 0; j < c_.d; ++j) {
      sizes[j] = r * (std::fabs(dy[j] * weight[j]) + std::fabs(x[j]) * r * r * mean);
    }
    return sizes;
  }

  Wide SizesOfDw() const {
    Wide sizes(c_.d);
    for (size_t row = 0; row < c_.RowCount(); ++row) {
      const auto [dy, x, weight, r] = Gradients(row);
      for (size_t j = 0; j < c_.d; ++j) sizes[j] += std::fabs(dy[j] * x[j] * r);
    }
    return sizes;
  }

  const Tensors& tensors_;
  const size_t call_;
  const Case& c_;
  const cases::Problem& problem_;
  const double length_ = static_cast<double>(c_.d);
  const double eps_ = double{c_.options.eps};
  double half_unit_ = 0;
  double absolute_ = 0;
  Tolerance norm_ = {0.51 * length_ + 18, 3.1};
};

std::string Where(const Tensors& tensors, size_t call, Operand o, size_t row, size_t j) {
  const bool is_one = tensors.values().calls.size() == 1;
  return (is_one ? "" : "calls[" + std::to_string(call) + "].") + internal::kOperandRules[o].name +
         ": row " + std::to_string(row) + ", element " + std::to_string(j);
}

// Calls visit(call, operand, row, row's bytes, expected row's bytes) for each row of a result that
// does not have the expected bits, until that returns a text.
template <class Visit>
std::string FindInRows(const Tensors& tensors, const Visit& visit) {
  std::string fault;
  for (size_t call = 0; call < tensors.values().calls.size(); ++call) {
    const Case& c = tensors.values().calls[call];
    internal::ForEachOperand(c.Given(), [&](Operand o) {
      if (!c.IsOutput(o)) return;
      const cases::Rows& rows = tensors.values().problems[call].after(o);
      for (size_t row = 0; row < rows.count() && fault.empty(); ++row) {
        const uint8_t* const actual = tensors.row(call, o, row);
        if (std::memcmp(actual, rows.row(row), rows.row_bytes()) == 0) continue;
        fault = visit(call, o, row, actual, rows);
      }
    });
  }
  return fault;
}

}  // namespace

std::string FindDifference(const Tensors& tensors) {
  return FindInRows(tensors, [&](size_t call, Operand o, size_t row, const uint8_t* actual,
                                 const cases::Rows& rows) {
    const uint8_t* const end = actual + rows.row_bytes();
    const ptrdiff_t byte = std::mismatch(actual, end, rows.row(row)).first - actual;
    const size_t j = static_cast<size_t>(byte) / internal::ElementSize(rows.dtype());
    return Where(tensors, call, o, row, j) + " differs from the reference";
  });
}

std::string FindBeyondBounds(const Tensors& tensors) {
  std::vector<CallBounds> all;
  for (size_t call = 0; call < tensors.values().calls.size(); ++call) {
    all.emplace_back(tensors, call);
  }
  return FindInRows(tensors, [&](size_t call, Operand o, size_t row, const uint8_t* bytes,
                                 const cases::Rows& rows) {
    const Wide actual = WideRow(rows.dtype(), bytes, rows.d());
    const Bounds bounds = all[call].Of(o, row);
    for (size_t j = 0; j < rows.d(); ++j) {
      const double difference = std::fabs(actual[j] - bounds.values[j]);
      if (difference <= bounds.most[j] || actual[j] == bounds.values[j]) continue;
      char text[120];
      std::snprintf(text, sizeof text, " is %.9g, not %.9g: off by %.2g where %.2g is allowed",
                    actual[j], bounds.values[j], difference, bounds.most[j]);
      return Where(tensors, call, o, row, j) + text;
    }
    return std::string();
  });
}

bool HasBounds(const Case& c) {
  using namespace internal;
  // For ordinary rows, and where no other option is used.
  for (const auto& operand : c.operand) {
    const bool is_usual =
        operand.values == cases::Values::kNormal || operand.values == cases::Values::kPositive;
    if (!is_usual) return false;
  }
  rmsnorm_options usual = rmsnorm_default_options();
  usual.eps = c.options.eps;
  usual.gate_placement = c.options.gate_placement;
  if (std::memcmp(&usual, &c.options, sizeof usual) != 0) return false;
  const auto has_only = [&](OperandSet set) { return (c.Given() & ~set) == 0; };
  const OperandSet norm = SetOf(kX) | SetOf(kWeight) | SetOf(kY);
  const OperandSet sum = norm | SetOf(kResidual) | SetOf(kResidualOut);
  const OperandSet gradients =
      SetOf(kX) | SetOf(kWeight) | SetOf(kDy) | SetOf(kRstd) | SetOf(kDx) | SetOf(kDw);
  if (c.backward) {
    return has_only(gradients) && c.Has(kRstd) && c.operand[kWeight].per == cases::Per::kTensor &&
           c.operand[kDw].per == cases::Per::kTensor && !c.operand[kDx].add && !c.operand[kDw].add;
  }
  return has_only(sum) || has_only(norm | SetOf(kGate)) ||
         has_only(norm | SetOf(kQ) | SetOf(kScale)) ||
         (has_only(sum | SetOf(kPostNormWeight)) && c.Has(kResidualOut));
}

}  // namespace rmsnorm::bench
