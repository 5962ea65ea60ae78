// SPDX-License-Identifier: Apache-2.0
// The gradients of RMSNorm as this library defines them, operation by operation. Every target gives
// these bits.
//
// All arithmetic is IEEE, as in reference.cc. Real is float. It is double on the cold path, for
// rows whose forward is computed in binary64, and for dx alone where c is not finite in f32. x, dy
// and the prepared weight w' are f32 and convert exactly; without a weight w' is 1. The gradients
// pass through the unrounded values in both rounding orders: a cast counts as the identity.
//
//   g = dy * w'                 the gradient of x * r
//   c = sum of g * x            over the lanes and blocks of the sum of squares
//   dx = r * (g - (x * r) * ((c * r) / D))          eps inside the root
//   dx = r * (g - x * ((c * r) / (D * s)))          eps outside; s = sqrt(sum / D)
//   dw = sum over rows of (dy * x) * r
//
// A saved 1 / RMS is taken as it is. With eps inside it spares the sum of squares, and says whether
// the forward was computed in binary64.
#include "reference_backward.h"

#include <cfloat>
#include <cmath>

#include "element.h"
#include "gradient_terms.h"
#include "reference.h"

#ifdef __FAST_MATH__
#error "-ffast-math changes results: build this library without it"
#endif
static_assert(FLT_EVAL_METHOD == 0, "f32 arithmetic must be done in f32");

namespace rmsnorm::internal {
namespace {

// Step 1. c, by fma. As g and x may have any sign, a lane may become -0; that is lost when the sum
// of the first block is added to +0, so padding a block with +0 would change nothing here either.
template <class Real, class X, class Y>
Real Dot(const Norm& norm, const X* x, const Y* dy) {
  return SumByLanes<Real>(norm.d, [=, weight = norm.weight](Real lane, size_t j) {
    const Real g = static_cast<Real>(ToF32(dy[j])) * static_cast<Real>(weight[j]);
    return std::fma(g, static_cast<Real>(ToF32(x[j])), lane);
  });
}

// Step 2, from the sums to the terms r, k and q, is in gradient_terms.h.

// Step 3. dx is rounded to f32 once, then added to what is there, then rounded to its type. dw adds
// to sums in f32, with one rounding for each row; they take the rows of a block in rising order.
template <class Real, class X, class Y, class Z>
[[gnu::noinline]] void Gradient(const Norm& norm, const Terms<Real>& terms,
                                const GradientRows& rows, size_t row) {
  const X* x = rows.Input<X>(row);
  const Y* dy = rows.Gradient<Y>(row);
  Z* dx = rows.dx != nullptr ? rows.Output<Z>(row) : nullptr;
  const bool start_dw = rows.start_dw && row == 0;
  for (size_t j = 0; j < norm.d; ++j) {
    const Real x_j = ToF32(x[j]);
    const Real dy_j = ToF32(dy[j]);
    if (rows.dw != nullptr) {
      const Real before = start_dw ? 0 : rows.dw[j];
      rows.dw[j] = static_cast<float>(std::fma(dy_j * x_j, terms.r, before));
    }
    if (dx != nullptr) {
      const Real g = dy_j * static_cast<Real>(norm.weight[j]);
      const Real mean_term = (x_j * terms.k) * terms.q;
      float gradient = static_cast<float>(terms.r * (g - mean_term));
      if (rows.add_dx) gradient = ToF32(dx[j]) + gradient;
      dx[j] = CastTo<Z>(gradient);
    }
  }
}

// Step 4. The sums of the blocks of rows add up in rising order, then to what is there; the total
// is rounded to the type of dw.
template <class W>
void StoreSum(const float* sums, size_t stride, size_t blocks, size_t d, bool add, void* dw) {
  W* to = static_cast<W*>(dw);
  for (size_t j = 0; j < d; ++j) {
    float total = sums[j];
    for (size_t block = 1; block < blocks; ++block) total += sums[block * stride + j];
    if (add) total = ToF32(to[j]) + total;
    to[j] = CastTo<W>(total);
  }
}

template <class X, class Y>
[[gnu::noinline]] RowSums HotSums(const Norm& norm, const GradientRows& rows, size_t row) {
  const X* x = rows.Input<X>(row);
  return {NeedsSquares(norm, rows.rstd) ? SumSquares<float>(x, norm.d) : 0,
          Dot<float>(norm, x, rows.Gradient<Y>(row))};
}

// Of one block, which is as a row of its own.
template <class X, class Y>
RowSums SumsOfBlock(const Norm& norm, const GradientRows& rows) {
  return HotSums<X, Y>(norm, rows, 0);
}

template <class X, class Y>
[[gnu::noinline]] Terms<double> ColdTerms(const Norm& norm, const GradientRows& rows, size_t row) {
  const X* x = rows.Input<X>(row);
  const double under_root =
      NeedsSquares(norm, rows.rstd) ? UnderRoot(norm, SumSquares<double>(x, norm.d)) : 0;
  const double r = rows.rstd != nullptr ? rows.rstd[row] : InverseRms(norm, under_root);
  return MakeTerms(norm, r, under_root, Dot<double>(norm, x, rows.Gradient<Y>(row)));
}

template <class X, class Y>
[[gnu::noinline]] void TermsOfRows(const Norm& norm, const GradientRows& rows, RowTerms* terms) {
  for (size_t row = 0; row < rows.count; ++row) {
    const HotTerms hot = MakeHotTerms(norm, HotSums<X, Y>(norm, rows, row),
                                      rows.rstd != nullptr ? rows.rstd + row : nullptr);
    terms[row] = hot.cold == Cold::kNothing
                     ? Widened(hot.terms)
                     : RowTerms{ColdTerms<X, Y>(norm, rows, row), hot.terms.r, hot.cold};
  }
}

template <class X, class Y, class Z = Y>
[[gnu::noinline]] void BackwardColumns(const Norm& norm, const GradientRows& rows,
                                       const RowTerms* terms) {
  for (size_t row = 0; row < rows.count; ++row) {
    const RowTerms& of_row = terms[row];
    if (of_row.cold == Cold::kNothing) {
      Gradient<float, X, Y, Z>(norm, Narrowed(of_row.terms), rows, row);
    } else if (of_row.cold == Cold::kAll) {
      Gradient<double, X, Y, Z>(norm, of_row.terms, rows, row);
    } else {  // dw before dx, which may be in the place of dy
      GradientRows only_dw = rows;
      only_dw.dx = nullptr;
      Gradient<float, X, Y, Z>(norm, {of_row.r, 0, 0}, only_dw, row);
      GradientRows only_dx = rows;
      only_dx.dw = nullptr;
      Gradient<double, X, Y, Z>(norm, of_row.terms, only_dx, row);
    }
  }
}

template <class X, class Y, class Z = Y>
void BackwardRows(const Norm& norm, const GradientRows& rows) {
  for (size_t row = 0; row < rows.count; ++row) {
    GradientRows one = rows;
    one.count = 1;
    one.x = rows.Input<X>(row);
    one.dy = rows.Gradient<Y>(row);
    if (rows.dx != nullptr) one.dx = rows.Output<Z>(row);
    if (rows.rstd != nullptr) one.rstd = rows.rstd + row;
    one.start_dw = rows.start_dw && row == 0;
    RowTerms terms;
    TermsOfRows<X, Y>(norm, one, &terms);
    BackwardColumns<X, Y, Z>(norm, one, &terms);
  }
}

}  // namespace

const GradientTable kGradientKernels = RMSNORM_GRADIENT_TABLE();

}  // namespace rmsnorm::internal
