// SPDX-License-Identifier: Apache-2.0
// What a case computes, apart from where its operands lie and who does the work.
#ifndef RMSNORM_TOOLS_CASES_PROBLEM_H_
#define RMSNORM_TOOLS_CASES_PROBLEM_H_

#include <rmsnorm/rmsnorm.h>

#include "case.h"
#include "values.h"

namespace rmsnorm::cases {

// The operands of a call, as views that the caller fills.
struct CallOperands {
  rmsnorm_view view[internal::kOperands];
  OperandSet given = 0;
  uint32_t add_to = 0;
  uint32_t size = sizeof(rmsnorm_operands);

  void Set(Operand o, const rmsnorm_view& its_view) {
    view[o] = its_view;
    given |= SetOf(o);
  }
  // Valid as long as this.
  rmsnorm_operands Get() const;
};

// The values of a case and its results on the target `reference` in their simplest form: plain
// calls on dense rows, apart, by one thread, each on rows that share those of weight and bias.
class Problem {
 public:
  // Throws rmsnorm::Error if the library refuses the case.
  explicit Problem(const Case& c);

  // Of an input, and of an output that is added to or in the place of an input. Of another output
  // there are no rows.
  const Rows& before(Operand o) const { return before_[o]; }
  // Of an output.
  const Rows& after(Operand o) const { return after_[o]; }

 private:
  void MakeInputs(const Case& c);
  void MakePerRow(const Case& c, Operand o);
  void Compute(const Case& c, OperandSet outputs, OperandSet columns);
  void ComputeShared(const Case& c, OperandSet outputs, const std::vector<size_t>& rows);

  Rows before_[internal::kOperands];
  Rows after_[internal::kOperands];
};

// Whether two cases have the same values and results. Lists have them next to each other, so that
// they are made once.
bool IsSameProblem(const Case& a, const Case& b);

// Bytes from the first row of an operand in memory to each row, and from there to the end.
struct Spans {
  std::vector<ptrdiff_t> stride;  // elements, for each dimension
  ptrdiff_t first;                // bytes from the lowest row to the first one
  size_t bytes;                   // from the lowest row to the end of the highest one
};
Spans SpansOf(Order order, const std::vector<size_t>& leading, size_t length, size_t gap,
              size_t element);

// Bytes from the first row to each, in C order.
std::vector<ptrdiff_t> RowOffsets(const std::vector<size_t>& leading,
                                  const std::vector<ptrdiff_t>& stride, size_t element);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_TOOLS_CASES_PROBLEM_H_
