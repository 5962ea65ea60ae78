// SPDX-License-Identifier: Apache-2.0
// `rmsnorm check` notices faults, reports them, and repeats them with the simplest possible case.
// The linker puts the functions below in place of some of the library's (--wrap), so a test can
// spoil their results.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cases/case.h"
#include "cases/float_control.h"
#include "cases/layout.h"
#include "cases/list.h"
#include "cases/run.h"
#include "cases/text.h"
#include "command.h"
#include "fixtures.h"

namespace rmsnorm::test {
namespace {

using cases::Case, cases::kOperandRules;
using Operands = rmsnorm_operands;
using Context = rmsnorm_context;

// Cases run on the reference by this name, which distinguishes them from the calls for expected
// results.
const char kSpoilt[] = "REFERENCE";
const char* spoilt_target = kSpoilt;

// Spoils each call, which has this context.
using Sabotage = std::function<void(Operands)>;
Sabotage sabotage;
const Context* spoilt_context = nullptr;

rmsnorm_status Spoil(rmsnorm_status status, const Operands* operands, const Context* context) {
  if (context != nullptr && context->target != nullptr && status == RMSNORM_OK &&
      std::strcmp(context->target, spoilt_target) == 0) {
    spoilt_context = context;
    sabotage(*operands);
  }
  return status;
}

}  // namespace
}  // namespace rmsnorm::test

extern "C" {
decltype(rmsnorm_forward) __real_rmsnorm_forward, __wrap_rmsnorm_forward;
decltype(rmsnorm_backward) __real_rmsnorm_backward, __wrap_rmsnorm_backward;
decltype(rmsnorm_forward_all) __real_rmsnorm_forward_all, __wrap_rmsnorm_forward_all;
}

rmsnorm_status __wrap_rmsnorm_forward(const rmsnorm_operands* operands,
                                      const rmsnorm_options* options,
                                      const rmsnorm_context* context) noexcept {
  return rmsnorm::test::Spoil(__real_rmsnorm_forward(operands, options, context), operands,
                              context);
}

rmsnorm_status __wrap_rmsnorm_backward(const rmsnorm_operands* operands,
                                       const rmsnorm_options* options,
                                       const rmsnorm_context* context) noexcept {
  return rmsnorm::test::Spoil(__real_rmsnorm_backward(operands, options, context), operands,
                              context);
}

// Spoils the last call.
rmsnorm_status __wrap_rmsnorm_forward_all(const rmsnorm_call* calls, size_t count,
                                          const rmsnorm_context* context) noexcept {
  return rmsnorm::test::Spoil(__real_rmsnorm_forward_all(calls, count, context),
                              calls[count - 1].operands, context);
}

namespace rmsnorm::test {
namespace {

void Keep(Operands) {}

// The fault that is found in a line.
std::string Fault(const std::string& line, const Sabotage& change,
                  const cases::FindFault& find_fault = cases::FaultOf) {
  sabotage = change;
  cases::Runner runner;
  return find_fault(runner, cases::ParseCalls(line), spoilt_target);
}

void ExpectFault(const std::string& begin, const std::string& line, const Sabotage& change) {
  const std::string fault = Fault(line, change);
  EXPECT_EQ(begin, fault.substr(0, begin.size())) << line;
  EXPECT_EQ(begin.empty(), fault.empty()) << line << ": " << fault;
}

const rmsnorm_view* ViewOf(const Operands& call, const std::string& name) {
  int o = 0;
  while (name != kOperandRules[o].name) ++o;
  return internal::ViewIn(call, static_cast<cases::Operand>(o));
}

float* Floats(const rmsnorm_view* view) { return static_cast<float*>(internal::DataOf(*view)); }
void Step(float& element) { element = std::nextafter(element, 1e30f); }

// Changes a byte that may lie between rows, which AddressSanitizer considers inaccessible.
__attribute__((no_sanitize("address"))) void FlipBit(const rmsnorm_view* view, ptrdiff_t byte) {
  static_cast<char*>(internal::DataOf(*view))[byte] ^= 1;
}

// ---------------------------------------------------------------------------------- faults

// Every operand, with gaps between its rows.
const std::string kForward =
    "forward,residual+bias+residual_out+rstd+gate+post_norm_weight+scale=f32,sums_out=f64,"
    "q+zero=i8,rows=3,d=7,x_gap+residual_gap+y_gap+residual_out_gap=5,rstd_gap+sums_out_gap=1";
const std::string kBackward = "backward,db+rstd=f32,rows=3,d=7,x_gap+dy_gap+dx_gap=5,rstd_gap=1";

// One bit of any element of an output, of any byte next to its rows, and of any input.
TEST(Check, EveryByteOfEveryOperand) {
  for (const std::string& line : {kForward, kBackward}) {
    ExpectFault("", line, Keep);
    const Case c = cases::Parse(line);
    internal::ForEachOperand(c.Given(), [&](cases::Operand o) {
      const std::string name = kOperandRules[o].name;
      const auto d = static_cast<ptrdiff_t>(RowLengthOf(c, o));
      const auto step = d + static_cast<ptrdiff_t>(c.operand[o].gap);
      const auto size = static_cast<ptrdiff_t>(internal::ElementSize(c.operand[o].dtype));
      const auto rows = static_cast<ptrdiff_t>(RowsOf(c, o));
      for (ptrdiff_t at = -20; at < rows * step + 20; ++at) {
        const bool is_element = at >= 0 && at < rows * step && at % step < d;
        const std::string place =
            "[" + std::to_string(at / step) + ", " + std::to_string(at % step) + "] is 0x";
        ExpectFault(!is_element     ? name + ": byte " + std::to_string(at * size) + " "
                    : c.IsOutput(o) ? name + place
                                    : name + " was written",
                    line, [&](const Operands& call) { FlipBit(ViewOf(call, name), at * size); });
      }
    });
  }
}

TEST(Check, KindsOfFaults) {
  ExpectFault("call 1: y[1, 2] is 0x", "forward,rows=2,d=3;forward,rows=2,d=3",
              [](Operands call) { Step(Floats(call.y)[5]); });
  ExpectFault("the reference refused: ", "forward,rows=1,d=1,eps=-1", Keep);
  // Zeros of both signs differ. NaNs do not, and hide no wrong byte elsewhere.
  ExpectFault("y[0, 0] is 0x", "forward,rows=1,d=1,x_values=zero",
              [](Operands call) { *Floats(call.y) *= -1; });
  for (const std::string way : {"forward", "backward"}) {
    const std::string line = way + ",rows=1,d=1,x_values=nan";
    const auto flip = [](const Operands& call) {
      for (const rmsnorm_view* view : {call.y, call.dx, call.dw}) {
        if (view != nullptr) FlipBit(view, 0);
      }
    };
    ExpectFault("", line, flip);
    ExpectFault("x was written", line, [=](Operands call) { flip(call), *Floats(call.x) = 1; });
    const float infinity = std::numeric_limits<float>::infinity();
    ExpectFault(way == "forward" ? "y[0, 0] is 0x7f800000, not" : "dx[0, 0] is 0x7f800000, not",
                line, [=](Operands call) { *Floats(call.y ? call.y : call.dx) = infinity; });
  }
  // A place that two operands share has the output's bits.
  ExpectFault("y: byte 18 ", "forward,x=f16,y=bf16,rows=2,d=9,x_gap=1,y_in_place=1",
              [](Operands call) { FlipBit(call.y, 18); });
  ExpectFault("dx[1, 0] is", "backward,rows=2,d=9,dx_in_place=1,dx_add=1,dy_order=falling",
              [](Operands call) { Step(Floats(call.dx)[-9]); });
  ExpectFault("x: byte 32 ", "forward,rows=2x3,d=4,interleaved=1,x_gap=1",
              [](Operands call) { FlipBit(call.x, 32); });
}

TEST(Check, FloatingPointState) {
  // A task that an executor can run.
  const auto change = [](void* /*state*/, size_t /*part*/) {
    cases::Random random(1);
    cases::SetControl(cases::RandomControl(random));
  };
  const auto execute = [](rmsnorm_task task) {
    spoilt_context->parallel_for(spoilt_context->parallel_context, 1, task, nullptr);
  };
  const std::string line = "forward,rows=1,d=1,executor=reverse";
  ExpectFault("the caller's floating-point state", line, [=](Operands) { change(nullptr, 0); });
  ExpectFault("a part left another", line, [=](Operands) { execute(change); });
  ExpectFault("an executor was called in another", line, [=](Operands) {
    change(nullptr, 0);
    execute([](void*, size_t) {});
    cases::SetControl(cases::kDefaultControl);
  });
}

// The formulas notice a wrong bit in each result of the reference that is beyond range or bound.
TEST(Check, ResultsOfTheReference) {
  const std::pair<std::string, std::string> checks[] = {
      // A case; and its wrong operands, each with the bit.
      {"forward,weight+bias=bf16,residual+residual_out+post_norm_weight+rstd=f32,sums_out=f64,"
       "rows=3,d=70",
       "residual_out:6 sums_out:35 rstd:6"},
      {"forward,gate=f32,rows=3,d=70", "y:5"},
      {"forward,rstd=f32,rows=3,d=70", "y:1"},  // exact after rstd
      {"forward,q=i8,scale=f32,zero=i8,rows=3,d=70", "scale:1 zero:0 q:0"},
      {"backward,db=f32,rows=3,d=70", "dx:6 dw:8 db:8"},
  };
  spoilt_target = kReference;
  for (const auto& [line, wrong] : checks) {
    EXPECT_EQ("", Fault(line, Keep, cases::FaultByFormula)) << line;
    for (const std::string& one : cases::Split(wrong, ' ')) {
      const std::string name = one.substr(0, one.find(':'));
      const int bit = std::stoi(one.substr(name.size() + 1));
      const auto spoil = [&](const Operands& call) {
        const rmsnorm_view* const view = ViewOf(call, name);
        if (view == nullptr) return;
        cases::Rows element(view->dtype, 1, 1);
        std::memcpy(element.row(0), view->data, element.row_bytes());
        element.set_bits(0, 0, element.bits(0, 0) ^ uint64_t{1} << bit);
        std::memcpy(internal::DataOf(*view), element.row(0), element.row_bytes());
      };
      const std::string fault = Fault(line, spoil, cases::FaultByFormula);
      EXPECT_EQ(0u, fault.find(name + "[0, 0] is ")) << line << " " << name << ": " << fault;
    }
  }
  spoilt_target = kSpoilt;
}

// ---------------------------------------------------------------------------- operands

TEST(Operands, Layouts) {
  // The operand, its place in bytes after that of x, its shape and its strides.
  const std::pair<std::string, std::string> lines[] = {
      {"forward,rows=2x3,d=4,x_gap=1,x_order=falling", "x 0 2x3x4 -15x-5x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=transposed", "x 0 2x3x4 5x10x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=zigzag", "x 0 2x3x4 20x-5x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=repeated", "x 0 2x3x4 0x0x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=again", "x 0 2x3x4 0x5x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=windows", "x 0 2x3x4 3x1x1"},
      {"forward,rows=2x3,d=4,x_skip=2", "x 0 2x3x4 20x4x1"},
      {"forward,rows=2x3,d=4,x_gap=1,interleaved=1", "y 16 2x3x4 27x9x1"},
      {"forward,rows=2,d=4,x_gap=1,y_in_place=1", "y 0 2x4 5x1"},
      {"forward,rows=one,d=4", "x 0 4 1"},
      {"forward,rows=2x3,d=7,weight_per=head,weight_shift=5", "weight 20 3x7 7x1"},
      {"forward,rows=2x3,d=7,weight_per=group", "weight 0 2x1x7 7x7x1"},
      {"forward,bias=f32,rows=2x3,d=7,bias_per=alternate", "bias 0 2x1x7 7x7x1"},
      {"backward,db=f32,rows=2x3,d=7,db_per=row", "db 0 2x3x7 21x7x1"},
  };
  for (const auto& [line, expected] : lines) {
    const Case c = cases::Parse(line);
    const cases::Layout layout(c);
    uint8_t memory[1024];
    uint8_t* blocks[internal::kOperands];
    for (uint8_t*& block : blocks) block = memory;
    const auto operands = cases::OperandsAt(c, layout, blocks);
    const Operands call = operands.Get();
    const std::string operand = expected.substr(0, expected.find(' '));
    const rmsnorm_view& view = *ViewOf(call, operand);
    std::ostringstream text;
    text << operand << ' '
         << static_cast<const char*>(view.data) - static_cast<const char*>(call.x->data);
    for (int i = 0; i < view.ndim; ++i) text << (i == 0 ? ' ' : 'x') << view.shape[i];
    for (int i = 0; i < view.ndim; ++i) text << (i == 0 ? ' ' : 'x') << view.stride[i];
    EXPECT_EQ(expected, text.str()) << line;
  }
}

// Strewn operands share bytes or not. Calls that are refused wrote nothing; of the others, a wrong
// element is noticed.
TEST(Operands, Strewn) {
  size_t overlap = 0, accepted = 0, noticed = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const std::string line = "forward,rows=2x2,d=3,strewn=1,seed=" + std::to_string(seed);
    const Case c = cases::Parse(line);
    overlap += cases::OverlapIn(c, cases::Layout(c)).empty() ? 0 : 1;
    bool is_accepted = false;
    const std::string fault = Fault(line, [&](const Operands& call) {
      is_accepted = true;
      Step(Floats(call.y)[0]);
    });
    accepted += is_accepted ? 1 : 0;
    noticed += fault.find("y[0, 0] is 0x") == 0 ? 1 : 0;
    EXPECT_EQ(is_accepted, !fault.empty()) << line << fault;
  }
  EXPECT_GT(overlap, 50u);
  EXPECT_GT(accepted, 50u);
  EXPECT_GT(noticed, 50u);
}

// ----------------------------------------------------------------------------- reports

// Reports the simplest line that fails: here a row with an element 3, and more than two rows.
TEST(Checker, Shrinks) {
  sabotage = [](const Operands& call) {
    const rmsnorm_view& y = *call.y;
    if (call.bias == nullptr || y.shape[1] < 4 || y.shape[0] < 3) return;
    Step(Floats(&y)[2 * y.stride[0] + 3]);
  };
  const std::string line =
      "forward,x+bias=bf16,weight=f16,y+rstd=f32,rows=23,d=300,x_gap=3,y_shift=7,x_order=zigzag,"
      "x_values=mixed,rounding=before_weight,weight_offset=1,seed=17";
  for (const std::string& failing : {line + ",threads=3", "forward,rows=1,d=1;" + line}) {
    std::ostringstream out;
    tools::Checker checker(1, {kSpoilt}, out);
    cases::Runner runner;
    checker.Check(cases::ParseCalls(failing), runner);
    EXPECT_EQ(1, checker.Finish());
    const std::string end =
        "\n  rmsnorm check --target REFERENCE --case "
        "forward,x=f32,weight=none,bias=f32,y=f32,rows=3,d=4\n0 passed, 1 failed\n";
    EXPECT_EQ(0u, out.str().find("FAILED on REFERENCE: y[2, 3] is 0x")) << out.str();
    EXPECT_NE(std::string::npos, out.str().find(end)) << out.str();
  }
}

// An element beside an operand at a guard page ends the process, which names the line.
TEST(CheckerDeathTest, LineOfACrash) {
  for (const std::string name : {"x", "weight", "y"}) {
    for (const std::string guard : {"after", "before"}) {
      const std::string line = "forward,x=f32,weight=f32,y=f32,rows=3,d=7,guard=" + guard;
      const ptrdiff_t end = name == "weight" ? 7 : 21;
      sabotage = [&](const Operands& call) {
        volatile float sink = Floats(ViewOf(call, name))[guard == "after" ? end : -1];
        (void)sink;
      };
      EXPECT_EXIT(
          {
            dup2(2, 1);
            tools::Checker checker(1, {kSpoilt}, std::cout);
            cases::Runner runner;
            checker.Check(cases::ParseCalls(line), runner);
          },
          testing::ExitedWithCode(1),
          "FAILED on REFERENCE: .+\n  rmsnorm check --target REFERENCE --case " + line);
    }
  }
}

// ------------------------------------------------------------------------------- lines

// With each type of x, forward and backward have every function, every type of every operand, and
// every word of every option, or two numbers. Every combination of types that chooses a kernel has
// every short length.
TEST(CheckedCases, EveryFunctionTypeOptionAndLength) {
  using namespace internal;
  // By the direction, the type of x, and the operand, option or function: -1.
  std::map<std::array<int, 3>, std::set<int>> seen;
  std::map<std::string, std::set<size_t>> lengths;
  cases::List(cases::kCheckedCases).ForEach([&](const cases::Calls& calls) {
    for (const Case& c : calls) {
      const bool is_usual =
          c.backward ? c.Has(kDx) && c.operand[kDx].dtype == c.operand[kDy].dtype : c.Has(kY);
      std::string types = c.backward ? "backward" : "forward";
      for (const auto o : {kX, kResidual, kDy, kY}) types += std::to_string(c.operand[o].dtype);
      if (is_usual && c.d <= 300) lengths[types].insert(c.d);
      const auto see = [&](int what, int value) {
        seen[{c.backward, c.operand[kX].dtype, what}].insert(value);
      };
      see(-1, static_cast<int>(c.function));
      ForEachOperand(c.Given(), [&](Operand o) { see(o, c.operand[o].dtype); });
      for (int i = 0; i < kOptions; ++i) {
        see(kOperands + i, ValueIn<int32_t>(c.options, static_cast<Option>(i)));
      }
    }
  });
  for (const bool backward : {false, true}) {
    for (const int x : {RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16}) {
      const auto expect = [&](size_t values, int what, const char* name) {
        const size_t found = seen[{backward, x, what}].size();
        EXPECT_LE(values, found) << (backward ? "backward,x=" : "forward,x=")
                                 << rmsnorm_dtype_name(x) << ' ' << name;
      };
      expect(backward ? 4 : 5, -1, "call");  // rmsnorm_forward_all() has no backward
      for (int o = kX + 1; o < kOperands; ++o) {
        const OperandRule& rule = kOperandRules[o];
        const Role role = backward ? rule.backward : rule.forward;
        if (role != Role::kAbsent) expect(rule.dtype != 0 ? 1 : 3, o, rule.name);
      }
      for (int i = 0; i < kOptions; ++i) {
        const OptionRule& rule = kOptionRules[i];
        if (backward && rule.gradient == Gradient::kRefused) continue;
        expect(rule.words[0] != nullptr && rule.words[2] != nullptr ? 3 : 2, kOperands + i,
               rule.name);
      }
    }
  }
  EXPECT_EQ(9u + 27u + 9u, lengths.size());
  for (const auto& [types, all] : lengths) EXPECT_EQ(300u, all.size()) << types;
}

// Random cases are legal and have every field except the values of outputs; their text says all.
TEST(RandomCase, RoundTripAndEveryField) {
  cases::Runner runner;
  std::map<std::string, std::set<std::string>> seen;
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    const Case c = cases::RandomCase(seed);
    const Case parsed = cases::Parse(cases::Text(c));
    ASSERT_EQ("", cases::FaultOf(runner, {c}, kReference)) << cases::Text(c);
    for (const cases::Field& field : cases::Fields()) {
      ASSERT_EQ(field.write(c), field.write(parsed)) << cases::Text(c) << ": " << field.name;
      seen[field.name].insert(field.write(c));
    }
  }
  for (int i = 0; i < internal::kDx; ++i) {
    if (kOperandRules[i].forward == internal::Role::kOutput && i != internal::kRstd) {
      seen.erase(kOperandRules[i].name + std::string("_values"));
    }
  }
  for (const auto& [name, values] : seen) EXPECT_GE(values.size(), 2u) << name;
}

// What is said of each line: "problem: line line". What begins with a comma or a semicolon follows
// a line that is right.
const char kRefusals[] = R"('sideways' is neither: sideways,rows=1,d=1
is missing: forward forward,d=1 forward,rows=1 ,x=none backward,rows=1,d=1,dy=none
is given twice: ,d=2 ,x+x=f16
is not NAME=VALUE: ,rstd
unknown name: ,size=2 ,x+size=f16 ,=1 ,x+=f16
ends with a: , ,;forward,rows=1,d=1 ;
no value for 'd': forward,rows=1,d=-1 forward,rows=1,d=1x forward,rows=1,d=
no value for 'rows': forward,rows=2x,d=1 forward,rows=99999999999999999999,d=1
no value for 'eps': ,eps=1e ,eps=1e-60
d must not be 0: forward,rows=1,d=0
rows and d: forward,rows=1,d=18446744073709551615 forward,rows=65536,d=65536
rows has too many dimensions: forward,rows=1x1x1x1x1x1x1x1,d=1
more than 2^28: forward,rows=65536,d=1,x_gap=65536 forward,rows=4x4,d=4,x_skip=33554432
no such type: ,y=f64 ,rstd=f16
y_in_place: ,x=f16,y_in_place=1 ,x_order=repeated,y_in_place=1 ,y_gap=1,y_in_place=1
but there is none: ,residual_shift=1 ,bias_per=row backward,rows=1,d=1,dx=none,dx_add=1
dw_per is weight_per: backward,rows=2,d=1,weight_per=row
several: backward,rows=1,d=1,call=several forward,rows=one,d=1,call=several
lie apart: ,y_order=falling,call=several ,interleaved=1,call=several
a module has a weight: ,weight=none,post_norm_weight=f32,weight_offset=1,call=module
call=rows: ,gate=f32,call=rows ,residual=f32,call=rows ,y=f16,call=rows ,x_gap=1,call=rows
interleaved rows: ,y_gap=1,interleaved=1 ,x_order=repeated,interleaved=1
strewn leaves no choice: ,strewn=1,y_gap=1 ,strewn=1,x_values=tiny ,strewn=1,y_in_place=1
strewn needs rows: ,strewn=1,interleaved=1 forward,rows=0,d=1,strewn=1
calls made at once: ;backward,rows=1,d=1 ;forward,rows=1,d=1,call=rows ,strewn=1;forward,rows=1,d=1
either all calls: ;forward,rows=1,d=1,call=prepared
threads, executor, stores and state: ;forward,rows=1,d=1,threads=2)";

// The same of lists.
const char kListRefusals[] = R"('sideways' is neither: sideways,d=1
'd' is not NAME=VALUES: forward,d
'd=' has no values: forward,d=
'x' is no value for 'd': forward,d=x
unknown name: forward,d=1,y_per=row forward,=1 forward,x+=f32
is neither: [norm
goes on, but the list ends: forward,rows=1,d=1, forward,rows=1,d=1;
is not $NAME=TEXT: $T $T=f$T
has 3 values for 2 cases: forward,rows=1|2,d=1/2/3,seed=1|2)";

template <class Read>
void ExpectRefusals(const std::string& table, const Read& read) {
  for (const std::string& row : cases::Split(table, '\n')) {
    const std::string problem = row.substr(0, row.find(": "));
    for (std::string line : cases::Split(row.substr(problem.size() + 2), ' ')) {
      if (line[0] == ',' || line[0] == ';') line = "forward,rows=1,d=1" + line;
      try {
        read(line);
        ADD_FAILURE() << line;
      } catch (const cases::UserError& error) {
        EXPECT_NE(std::string::npos, std::string(error.what()).find(problem))
            << line << ": " << error.what();
      }
    }
  }
}

TEST(Lines, Refusals) {
  ExpectRefusals(kRefusals, [](const std::string& line) { cases::ParseCalls(line); });
  ExpectRefusals(kListRefusals, [](const std::string& line) {
    cases::List(line).ForEach([](const cases::Calls&) {});
  });
  EXPECT_THROW(cases::ParseCalls(""), cases::UserError);
}

TEST(List, Multiplies) {
  const auto lines = [](const std::string& list) {
    std::string all;
    cases::List(list).ForEach([&](const cases::Calls& calls) {
      const std::string line = cases::Text(calls);
      all += line.substr(line.find("rows=")) + " ";
    });
    return all;
  };
  EXPECT_EQ("rows=1,d=3 rows=1,d=4 rows=2,d=3 rows=2,d=4 ",
            lines("# rows\n[group]\n$R=1|2\nforward,rows=$R,\n  d=3..4  # and elements\n\n"));
  EXPECT_EQ(
      "rows=1,d=5,x_gap=1,y_gap=1 rows=1,d=5,x_gap=2,y_gap=2 "
      "rows=2x3,d=4,x_gap=1,y_gap=1 rows=2x3,d=4,x_gap=2,y_gap=2 ",
      lines("forward,rows+d=1:5|2x3:4,x_gap+y_gap=1|2"));
  const std::string d = ",d=5;forward,x=f32,weight=f32,y=f32,rows=3,d=";
  EXPECT_EQ("rows=1" + d + "7 rows=1" + d + "8 rows=2" + d + "7 rows=2" + d + "8 ",
            lines("forward,rows=1|2,d=5;\n  forward,rows=3,d=7|8"));
}

TEST(Values, EveryPatternAndTriple) {
  // The bits of x, row by row.
  const auto bits_of = [](const std::string& fields) {
    const cases::Problem problem(cases::Parse("forward," + fields));
    const cases::Rows& x = problem.before(internal::kX);
    std::vector<uint64_t> bits;
    for (size_t i = 0; i < x.count() * x.d(); ++i) bits.push_back(x.bits(i / x.d(), i % x.d()));
    return bits;
  };
  const auto every = bits_of("x=bf16,x_values=every,rows=16,d=4096");
  for (size_t i = 0; i < 65536; ++i) ASSERT_EQ(i, every.at(i));
  EXPECT_EQ(0x3F80FFFFu, bits_of("x=f32,x_values=every,rows=1,d=65536,seed=16256").back());
  const auto outer = bits_of("x=bf16,x_values=outer,rows=24,d=576");
  const auto middle = bits_of("x=bf16,x_values=middle,rows=24,d=576");
  const auto inner = bits_of("x=bf16,x_values=inner,rows=24,d=576");
  std::set<std::vector<uint64_t>> triples;
  for (size_t i = 0; i < outer.size(); ++i) triples.insert({outer[i], middle[i], inner[i]});
  EXPECT_EQ(size_t{24 * 24 * 24}, triples.size());
}

}  // namespace
}  // namespace rmsnorm::test
