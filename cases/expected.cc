// SPDX-License-Identifier: Apache-2.0
#include "expected.h"

#include <rmsnorm/rmsnorm.hpp>
#include <sstream>

#include "expected_backward.h"
#include "expected_quantised.h"
#include "run.h"

namespace rmsnorm::cases {

double ExpectedRow::Error(size_t j, double result) const {
  const auto& [exact, size, range] = elements[j];
  const bool is_integer = dtype == RMSNORM_I8;
  const double most = is_integer ? kInfinity : PowerOfTwo(FormatOf(dtype).max_exponent());
  if (!(size < kInfinity) || !(std::fabs(exact) < most)) return 0;
  if (!std::isfinite(result)) return kInfinity;
  const double error = std::fabs(result - exact);
  if (arithmetic == Arithmetic::kAny) {
    const double smallest = is_integer ? 0 : PowerOfTwo(FormatOf(dtype).min_exponent());
    const double above = std::max(error - (is_integer ? 0.5 : 0), 0.0);
    return above == 0 ? 0 : above / (kUnit * std::max({std::fabs(exact), size, smallest}));
  }
  if (is_integer) return error;
  return error / Ulp(dtype, std::max(std::fabs(result), size));
}

Results ResultsOf(const Problem& problem) {
  return [&problem](Operand o, size_t row, size_t j) { return Get(problem.after(o), row, j); };
}

void ForEachExpectedRow(const Case& c, const Problem& problem, Arithmetic arithmetic,
                        const Results& results,
                        const std::function<bool(const ExpectedRow&)>& visit, size_t every) {
  if (c.RowCount() == 0) return;
  if (c.backward) return Backward(c, problem, arithmetic, results, visit).Make();
  QuantisedForward forward(c, problem, arithmetic, results, visit);
  const size_t last = c.RowCount() - 1;
  for (size_t row = 0; forward.goes_on() && row < last; row += every) forward.MakeRow(row);
  if (forward.goes_on()) forward.MakeRow(last);
}

std::string FormulaFault(const Case& c, const Problem& problem) {
  if (c.strewn || (c.options.divisor != 0 && c.options.divisor < 1) || c.options.eps > 0x1p100f) {
    return "";
  }
  std::ostringstream fault;
  fault.precision(17);
  const Results results = ResultsOf(problem);
  ForEachExpectedRow(c, problem, Arithmetic::kReference, results, [&](const ExpectedRow& row) {
    for (size_t j = 0; j < row.elements.size(); ++j) {
      const double result = results(row.operand, row.row, j);
      const ExpectedElement& element = row.elements[j];
      const bool is_in_range = element.range.Has(result);
      const double error = row.Error(j, result);
      if (is_in_range && error <= row.bound) continue;
      fault << kOperandRules[row.operand].name << "[" << row.row << ", " << j << "] is " << result;
      if (is_in_range) {
        fault << ", not " << element.exact << ": an error of " << error
              << (row.dtype == RMSNORM_I8 ? " steps" : " ulp") << ", with a bound of " << row.bound;
      } else {
        fault << ", not between " << element.range.low << " and " << element.range.high
              << (element.range.may_be_nan ? ", nor NaN" : "");
      }
      return false;
    }
    return true;
  });
  return fault.str();
}

std::string FaultByFormula(Runner& /*runner*/, const Calls& calls,
                           const std::string& /*target*/) try {
  for (const Case& c : calls) {
    const std::string fault = FormulaFault(c, Problem(c));
    if (!fault.empty()) return fault;
  }
  return {};
} catch (const Error& error) {
  return std::string("refused: ") + error.what();
}

}  // namespace rmsnorm::cases
