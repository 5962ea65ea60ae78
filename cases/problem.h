// SPDX-License-Identifier: Apache-2.0
// The results of a case, which do not depend on where its operands lie or on who does the work.
#ifndef RMSNORM_CASES_PROBLEM_H_
#define RMSNORM_CASES_PROBLEM_H_

#include <rmsnorm/rmsnorm.h>

#include <utility>

#include "case.h"
#include "values.h"

namespace rmsnorm::cases {

// The operands of a call, as views that the caller fills.
struct CallOperands {
  rmsnorm_view view[kOperands] = {};
  OperandSet given = 0;
  uint32_t add_to = 0;
  uint32_t size = sizeof(rmsnorm_operands);

  void Set(Operand o, const rmsnorm_view& its_view) {
    view[o] = its_view;
    given |= SetOf(o);
  }
  // Valid as long as this object.
  rmsnorm_operands Get() const;
};

// The rows of each operand, empty where a case does not have it.
struct AllRows {
  Rows of_operand[kOperands];

  Rows& operator[](Operand o) { return of_operand[o]; }
  const Rows& operator[](Operand o) const { return of_operand[o]; }
};

// The values of a case, and its results on the target `reference`. The calls are as plain as can
// be: dense rows, separate operands, one thread, and one row of the weight and the bias each.
class Problem {
 public:
  // Throws rmsnorm::Error if the library refuses the case.
  explicit Problem(const Case& c);

  // Given values and results, such as recorded ones.
  Problem(AllRows before, AllRows after) : before_(std::move(before)), after_(std::move(after)) {}

  // The values of an input, or of an output that is added to or that replaces an input. Empty for
  // other outputs.
  const Rows& before(Operand o) const { return before_[o]; }
  // The values of an output.
  const Rows& after(Operand o) const { return after_[o]; }

 private:
  void MakeInputs(const Case& c);
  void ReadStrewnInputs(const Case& c);
  void MakePerRow(const Case& c, Operand o);
  void Compute(const Case& c);
  void Compute(const Case& c, OperandSet outputs, OperandSet columns);
  void ComputeShared(const Case& c, OperandSet outputs, const std::vector<size_t>& rows);

  AllRows before_;
  AllRows after_;
};

// Whether two cases have the same values and results. Lists have such cases next to each other, so
// that each problem is computed once.
bool IsSameProblem(const Case& a, const Case& b);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_PROBLEM_H_
