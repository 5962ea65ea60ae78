// SPDX-License-Identifier: Apache-2.0
// A case: one call of the library, described in full by a line of text such as
// "forward,x=bf16,weight=f32,y=f16,rows=5,d=300,x_shift=3,x_values=tiny". All that a case says of
// an operand is said by fields that begin with the operand's name, so that the library's own table
// of operands is the only list of them.
#ifndef RMSNORM_TOOLS_CASES_CASE_H_
#define RMSNORM_TOOLS_CASES_CASE_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "../../lib/options.h"

namespace rmsnorm::cases {

using internal::Operand;
using internal::OperandRule;
using internal::OperandSet;
using internal::Role;
using internal::SetOf;
using internal::Shape;

// The functions that do the work; all give the same bits.
enum class Function {
  kPlain,   // rmsnorm_forward() or rmsnorm_backward()
  kModule,  // the same by a module, in the call's context or, where the seed is odd, the module's
  kRows,    // the module's functions for dense rows
  kSeveral  // rmsnorm_forward_all(), the rows in two pieces, of which a module may do one
};

// What rows hold.
enum class Values {
  kNormal,     // magnitudes around 1
  kMassive,    // the same with some of hundreds, as large language models have
  kWide,       // magnitudes over 60 binary orders, or all of f16's
  kHuge,       // near the largest finite number
  kTiny,       // squares that vanish in f32
  kSubnormal,  // subnormal numbers of the type
  kZero,       // zeros of both signs
  kLowEdge,    // mean squares on both sides of 2^-100, below which f32 does not do
  kHighEdge,   // sums of squares on both sides of f32's range
  kFloor,      // an RMS of 1, or of the number beside 1
  kNan,        // as kNormal, with one NaN
  kInfinity,   // as kNormal, with one infinity
  kBits,       // any bits, NaNs of any payload among them
  kMixed,      // each of the above in turn, so that neighbouring rows differ
  kFinite,     // the same up to kFloor: a NaN hides the other rows in sums over rows
  kSpecial     // as kNormal, every third element a hard one; or other numbers for a row
};

// The order of an operand's rows in memory.
enum class Order {
  kRising,      // C order
  kFalling,     // the last row first: negative strides
  kTransposed,  // the first dimension innermost
  kZigzag,      // every other dimension falling, with room between, so that no two are one loop
  kRepeated,    // all rows are one: strides of 0
  kAgain,       // the first dimension repeats the others
  kWindows      // each row begins one element behind the one before
};

// The leading dimensions of a weight, a bias or their gradients.
enum class Per {
  kTensor,    // none
  kHead,      // the last of x's
  kGroup,     // all of x's, the last of them 1
  kRow,       // all of x's
  kAlternate  // all of x's, every other one 1
};

// Which side of each operand's memory is next to a page that cannot be touched.
enum class Guard { kNone, kBefore, kAfter };

// What runs the parts of a call: OpenMP, or the caller's executor.
enum class Executor { kNone, kReverse, kShuffled, kThreads };

struct OperandCase {
  rmsnorm_dtype dtype = 0;          // 0 where the call does not have the operand
  Values values = Values::kNormal;  // of an input, and of a gradient that is added to. Normal rstd
                                    // and sums belong to the rows
  Per per = Per::kTensor;
  size_t shift = 0;  // elements from the start of a cache line to the first in memory
  size_t gap = 0;    // elements between rows
  Order order = Order::kRising;
  bool in_place = false;  // it has the place and the layout of the input in the table
  bool add = false;       // a gradient is added to the values in its memory
};

struct Case {
  explicit Case(bool is_backward = false);

  bool backward;
  Function function = Function::kPlain;
  std::vector<size_t> rows = {1};  // the leading dimensions of x
  size_t d = 1;
  OperandCase operand[internal::kOperands];
  rmsnorm_options options = rmsnorm_default_options();
  int threads = 1;
  Executor executor = Executor::kNone;
  unsigned state = 0;  // draws the caller's floating-point state and an executor's; 0 for the usual
  Guard guard = Guard::kNone;  // it leaves no choice of shifts
  bool interleaved = false;    // the rows of all operands that have rows lie in one buffer, side by
                               // side, in the order and with the gap of x
  unsigned seed = 0;

  bool Has(Operand o) const { return operand[o].dtype != 0; }
  Role RoleOf(Operand o) const;
  bool IsOutput(Operand o) const { return Has(o) && RoleOf(o) == Role::kOutput; }
  OperandSet Given() const;
  size_t RowCount() const;
};

// The leading dimensions of an operand, the number of its rows, and their length. An operand with
// an element for each row of x has rows of one element.
std::vector<size_t> LeadingOf(const Case& c, Operand o);
size_t RowsOf(const Case& c, Operand o);
size_t RowLengthOf(const Case& c, Operand o);

// Which row of an operand goes with a row of x.
size_t SharedRow(const Case& c, Operand o, size_t row);

// A field of a case: its name, its text in a case, and how a text is read; false where it is none.
struct Field {
  std::string name;
  std::function<std::string(const Case&)> write;
  std::function<bool(Case&, const std::string&)> read;
};
const std::vector<Field>& Fields();

// Throws UserError if there is no such field.
const Field& FindField(const std::string& name);

// Whether the first word of a line stands for backward. Throws UserError if it is neither.
bool IsBackward(const std::string& word);

// The text of a case. Fields with their default value are left out, except for types and sizes.
std::string Text(const Case& c);

// The case that a text describes. Throws UserError if there is none.
Case Parse(const std::string& text);

// Throws UserError for cases that make no sense before the library sees them. The library refuses
// the others.
void RequireMeaning(const Case& c);

std::vector<std::string> Split(const std::string& text, char separator);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_TOOLS_CASES_CASE_H_
