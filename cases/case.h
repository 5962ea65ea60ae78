// SPDX-License-Identifier: Apache-2.0
// A case: one call of the library, described in full by a line of text such as
// "forward,x=bf16,weight=f32,y=f16,rows=5,d=300,x_shift=3,x_values=tiny". Every field of an operand
// begins with the operand's name, so the library's table of operands is the only list of them.
// "x+y=f16" gives two fields one value. A line may describe several forward calls that are made at
// once, with semicolons between them.
#ifndef RMSNORM_CASES_CASE_H_
#define RMSNORM_CASES_CASE_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "../lib/options.h"

namespace rmsnorm::cases {

using internal::kOperandRules;
using internal::kOperands;
using internal::Leading;
using internal::Length;
using internal::Operand;
using internal::OperandRule;
using internal::OperandSet;
using internal::Role;
using internal::SetOf;

// The functions under test; all give the same bits.
enum class Function {
  kPlain,    // rmsnorm_forward() or rmsnorm_backward()
  kModule,   // a module, in the call's context or, if the seed is odd, the module's
  kRows,     // the module's functions for dense rows
  kSeveral,  // rmsnorm_forward_all(), the rows in two pieces, one of them perhaps by a module
  kPrepared  // rmsnorm_run(); if the seed is odd, of a call by a module
};

// The values of rows.
enum class Values {
  kNormal,     // magnitudes around 1
  kMassive,    // the same with some in the hundreds, as in large language models
  kWide,       // magnitudes over 60 binary orders, or all that f16 has
  kHuge,       // near the largest finite number
  kTiny,       // squares that vanish in f32
  kSubnormal,  // subnormal numbers of the type
  kZero,       // zeros of both signs
  kLowEdge,    // mean squares on both sides of 2^-100, below which f32 is too small
  kHighEdge,   // sums of squares on both sides of f32's range
  kFloor,      // an RMS of 1, or of the number next to 1
  kNan,        // as kNormal, with one NaN
  kInfinity,   // as kNormal, with one infinity
  kBits,       // any bits, NaNs of any payload among them
  kMixed,      // each of the above in turn, so that neighbouring rows differ
  kFinite,     // kMixed up to kFloor: in sums over rows, a NaN hides the other rows
  kSpecial,    // as kNormal, every third element a hard one; for rstd and sums, unusual values
  kPositive,   // as kNormal, without signs: the terms of sums do not cancel
  kScattered,  // each row of any of the kinds up to kInfinity, most of them kNormal
  kAdverse,    // rows whose sums of squares round in one direction, of six kinds in turn
  kEvery,      // every 16-bit pattern in turn, over all rows; in f32 below the seed
  // The 24 numbers of SpecialNumbers(), as in three loops over all rows: kInner steps with each
  // element, kMiddle after 24 elements, kOuter after 24 * 24. So rows=24,d=576 holds every triple.
  kInner,
  kMiddle,
  kOuter
};

// The order of an operand's rows in memory.
enum class Order {
  kRising,      // C order
  kFalling,     // the last row first: negative strides
  kTransposed,  // the first dimension innermost
  kZigzag,      // every other dimension falling, with gaps, so that no two merge into one loop
  kRepeated,    // all rows are the same memory: strides of 0
  kAgain,       // the first dimension repeats the others
  kWindows      // each row begins one element after the previous one
};

// Whether rows overlap in memory.
inline bool IsShared(Order order) { return order >= Order::kRepeated; }

// The leading dimensions of a weight, a bias or their gradients.
enum class Per {
  kTensor,     // none
  kHead,       // the last of x's
  kGroup,      // all of x's, the last of them 1
  kRow,        // all of x's
  kAlternate,  // all of x's, every other one 1
  kFirst       // all of x's, all but the first 1
};

// The side of each operand's memory that borders on an inaccessible page.
enum class Guard { kNone, kBefore, kAfter };

// What runs the parts of a call: OpenMP, or the caller's executor.
enum class Executor { kNone, kReverse, kShuffled, kThreads };

struct OperandCase {
  rmsnorm_dtype dtype = 0;          // 0 where the call does not have the operand
  Values values = Values::kNormal;  // of an input, or of a gradient before the call adds to it.
                                    // Normal rstd and sums are computed from the rows
  Per per = Per::kTensor;
  size_t shift = 0;  // elements from the start of a cache line to the lowest element
  size_t gap = 0;    // elements between rows
  size_t skip = 0;   // rows left out after each run of the innermost leading dimension
  Order order = Order::kRising;
  bool in_place = false;  // shares memory and layout with the input that the table names
  bool add = false;       // the call adds the gradient to the values in memory
};

struct Case {
  explicit Case(bool is_backward = false);

  bool backward;
  Function function = Function::kPlain;
  std::vector<size_t> rows = {1};  // the leading dimensions of x
  size_t d = 1;
  size_t rotated = 0;  // elements of a row that cos and sin rotate; 0: the even number up to d
  OperandCase operand[kOperands];
  rmsnorm_options options = rmsnorm_default_options();
  int threads = 1;
  Executor executor = Executor::kNone;
  rmsnorm_stores stores = RMSNORM_STORES_BY_SIZE;
  unsigned state = 0;  // seed of the floating-point states of caller and executor; 0: default
  Guard guard = Guard::kNone;  // overrides every shift
  bool interleaved = false;    // all operands with rows share one buffer, row beside row, in the
                               // order and with the gap of x
  bool strewn = false;         // operands of random bytes lie anywhere in a small piece of memory,
                               // where they may share bytes: the library may refuse the call
  unsigned seed = 0;

  bool Has(Operand o) const { return operand[o].dtype != 0; }
  Role RoleOf(Operand o) const;
  bool IsOutput(Operand o) const { return Has(o) && RoleOf(o) == Role::kOutput; }
  OperandSet Given() const;
  size_t RowCount() const;
};

// The calls of a line. The first one has their threads, executor, stores and state.
using Calls = std::vector<Case>;

// Whether the whole case is a call by a module.
bool IsByModule(const Case& c);

// The operands that a module of the case holds: the weight, and the bias and the post-norm weight,
// where they have one dimension. With half of the seeds, 2 and 3 among them, the last two stay
// operands of functions that take these.
OperandSet HeldByModule(const Case& c);

// The leading dimensions of an operand, the number of its rows, and their length. For an operand
// with one element per row of x, each row has one element.
std::vector<size_t> LeadingOf(const Case& c, Operand o);
size_t RowsOf(const Case& c, Operand o);
size_t RowLengthOf(const Case& c, Operand o);

// The shape of an operand, and the same as a view has it, which has at least one dimension.
std::vector<size_t> TensorShapeOf(const Case& c, Operand o);
std::vector<size_t> ShapeOf(const Case& c, Operand o);

// The row of an operand that belongs to a row of x.
size_t SharedRow(const Case& c, Operand o, size_t row);

// A field of a case: its name, a function that writes it, and one that reads it, which returns
// false if the text is invalid.
struct Field {
  std::string name;
  std::function<std::string(const Case&)> write;
  std::function<bool(Case&, const std::string&)> read;
  // The texts that random cases draw from; none for sizes, the seed, and what decides whether the
  // library accepts the call.
  std::vector<std::string> drawn;
};
const std::vector<Field>& Fields();

// Throws UserError if there is no such field.
const Field& FindField(const std::string& name);

// The fields of "x+y": text before a "=". Throws UserError if there is no such field.
std::vector<const Field*> FindFields(const std::string& names);

// Sets the fields of "x+y=f16", and returns them. Throws UserError if there is no such field or
// value.
std::vector<const Field*> SetFields(Case& c, const std::string& text);

// Whether the first word of a line means backward. Throws UserError for any word but "forward" and
// "backward".
bool IsBackward(const std::string& word);

// The text of the call that has this number in its line, or of a line. It omits fields with their
// default value, except types and sizes.
std::string Text(const Case& c, size_t number = 0);
std::string Text(const Calls& calls);

// The case, or the calls of a line, that a text describes. Where no seed is given, the calls of a
// line have their numbers 0, 1, 2, ... as seeds. Throws UserError if the text is invalid.
Case Parse(const std::string& text, size_t number = 0);
Calls ParseCalls(const std::string& line);

// Throws UserError for cases that make no sense even before the library sees them. The library
// refuses the other bad cases.
void RequireMeaning(const Case& c);
void RequireMeaning(const Calls& calls);
bool HasMeaning(const Calls& calls);

// A case for bugs that no list foresees: any function with any operands, types, layouts, values and
// options. The work is enough for one thread; a build that splits tiny calls splits it, too. One in
// four is strewn.
Case RandomCase(unsigned seed);

std::vector<std::string> Split(const std::string& text, char separator);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_CASE_H_
