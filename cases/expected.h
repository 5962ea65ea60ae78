// SPDX-License-Identifier: Apache-2.0
// What each element of each result of a case should be, in binary64 and from the formulas of
// doc/definition.md. It shares no code with lib/, and adds up in another order. Each step of a
// computation makes three things:
// - the exact value, without any rounding;
// - the range that certainly holds the reference's result. Only the bound of an inverse RMS, twice
//   with a post-norm, and the ulps of an activation make it wider than one number, and the errors
//   of gradients. A result that later steps use is checked, and then taken as given: what follows
//   from it must be exact;
// - the error bound of definition 16.
#ifndef RMSNORM_CASES_EXPECTED_H_
#define RMSNORM_CASES_EXPECTED_H_

#include <functional>
#include <string>
#include <vector>

#include "problem.h"
#include "range.h"

namespace rmsnorm::cases {

// The largest relative error of a rounding to f32.
constexpr double kUnit = 0x1p-24;

// Who computes. The bounds of others allow sums in any order, values that are rounded to the
// coarsest type of rows after every operation, and estimates of reciprocals; they have no ranges.
// The norm of a residual_out with an inexact term is the norm of the one that they wrote.
enum class Arithmetic { kReference, kAny };

struct ExpectedElement {
  // For q in steps of the scale, with the results for scale and zero.
  double exact = 0;
  // Of terms that may cancel each other: the bound is relative to it where the result is smaller.
  // Infinite where there is no bound: where an operation leaves the range of its type.
  double size = 0;
  Range range;
};

// A row of a result.
struct ExpectedRow {
  Operand operand;
  size_t row;
  std::vector<ExpectedElement> elements;
  rmsnorm_dtype dtype;  // of the ulp
  Arithmetic arithmetic;
  double bound;  // in the unit of an error

  // The distance of a result from the exact value, in ulp of the larger of the result and the size;
  // for q in steps. Of others it is in units of 2^-24 of the larger of the exact value and the
  // size; for q from half a step on. 0 where there is no bound. A NaN is infinitely wrong.
  double Error(size_t j, double result) const;
};

// An element of a result that was computed.
using Results = std::function<double(Operand o, size_t row, size_t j)>;
Results ResultsOf(const Problem& problem);

// Calls visit for each row of each result, until it returns false. With `every` it visits the
// results of forward in each nth row and the last one only.
void ForEachExpectedRow(const Case& c, const Problem& problem, Arithmetic arithmetic,
                        const Results& results,
                        const std::function<bool(const ExpectedRow&)>& visit, size_t every = 1);

// Describes the first result of the reference that is outside its range or beyond its bound. The
// text is empty if there is none. No bound holds for strewn operands, a divisor below 1 or an eps
// above 2^100.
std::string FormulaFault(const Case& c, const Problem& problem);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_EXPECTED_H_
