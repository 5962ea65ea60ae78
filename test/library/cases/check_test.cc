// SPDX-License-Identifier: Apache-2.0
// `rmsnorm check` notices faults, reports them, and repeats them with the simplest possible case.
// The linker puts the functions below in place of some of the library's (--wrap), so a test can
// spoil their results.
#include "check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
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

#include "cases/apart.h"
#include "cases/expected.h"
#include "cases/float_control.h"
#include "cases/list.h"
#include "cases/prepared_call.h"
#include "cases/random_case.h"
#include "cases/user_error.h"
#include "on_target.h"

namespace rmsnorm::test {
namespace {

using cases::Case;
using internal::kOperandRules;
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
int spoilt_calls = 0;

rmsnorm_status Spoil(rmsnorm_status status, const Operands* operands, const Context* context) {
  if (context != nullptr && context->target != nullptr && status == RMSNORM_OK &&
      std::strcmp(context->target, spoilt_target) == 0) {
    ++spoilt_calls;
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

// The fault that the runner finds in a line.
std::string Fault(const std::string& line, const Sabotage& change) {
  sabotage = change;
  spoilt_calls = 0;
  cases::Runner runner;
  return cases::FaultOf(runner, cases::ParseCalls(line), kSpoilt);
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
    EXPECT_EQ(1, spoilt_calls);
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
  ExpectFault("y[0, 0] is 0x00000000, not 0x", "forward,weight=none,rows=1,d=1,eps=0,divisor=1",
              [](Operands call) { Floats(call.y)[0] = 0; });
  ExpectFault("call 1: y[1, 2] is 0x", "forward,rows=2,d=3;forward,rows=2,d=3",
              [](Operands call) { Step(Floats(call.y)[5]); });
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

TEST(Check, Refusals) {
  ExpectFault("the reference refused: ", "forward,rows=1,d=1,eps=-1", Keep);
  ExpectFault("the reference refused: ", "backward,weight=none,rows=1,d=1,weight_offset=1", Keep);
  cases::Runner runner;
  EXPECT_EQ(0u, cases::FaultOf(runner, cases::ParseCalls(kForward), "none").find("refused: "));
}

// Any result of the reference that is off by a little more than its range or its bound.
TEST(Formula, WrongResults) {
  const std::string forward =
      "forward,weight+bias=bf16,residual+residual_out+post_norm_weight+rstd="
      "f32,sums_out=f64,rows=3,d=70";
  const struct {
    std::string line, name;
    double factor;
  } wrong[] = {
      {forward, "residual_out", 1 + 0x1p-18},
      {forward, "sums_out", 1 + 0x1p-18},
      {forward, "rstd", 1 + 0x1p-18},
      {"forward,gate=f32,rows=3,d=70", "y", 1 + 0x1p-19},
      {"forward,rstd=f32,rows=3,d=70", "y", 1 + 0x1p-23},  // exact after rstd
      {"forward,q=i8,scale=f32,rows=3,d=70", "scale", 1 + 0x1p-23},
      {"backward,db=f32,rows=3,d=70", "dx", 1 + 0x1p-18},
      {"backward,db=f32,rows=3,d=70", "dw", 1 + 0x1p-16},
      {"backward,db=f32,rows=3,d=70", "db", 1 + 0x1p-16},
  };
  spoilt_target = kReference;
  for (const auto& [line, name, factor] : wrong) {
    cases::Runner runner;
    const cases::Calls calls = cases::ParseCalls(line);
    sabotage = Keep;
    EXPECT_EQ("", cases::FaultByFormula(runner, calls, kReference)) << line;
    sabotage = [&, output = name, by = factor](const Operands& call) {
      const rmsnorm_view* const view = ViewOf(call, output);
      if (view == nullptr) return;  // another call for the values of a case
      if (view->dtype == RMSNORM_F64) {
        *static_cast<double*>(internal::DataOf(*view)) *= by;
      } else {
        *Floats(view) *= static_cast<float>(by);
      }
    };
    EXPECT_EQ(0u, cases::FaultByFormula(runner, calls, kReference).find(name + "[0, 0] is "))
        << line << " " << name;
  }
  spoilt_target = kSpoilt;
}

// ---------------------------------------------------------------------------- operands

// The views of a correct call.
std::map<std::string, rmsnorm_view> Views(const std::string& line) {
  std::map<std::string, rmsnorm_view> views;
  ExpectFault("", line, [&](const Operands& call) {
    for (const auto& rule : kOperandRules) {
      const rmsnorm_view* const view = ViewOf(call, rule.name);
      if (view != nullptr) views[rule.name] = *view;
    }
  });
  return views;
}

TEST(Operands, Layouts) {
  // The operand, its shape and its strides.
  const std::pair<std::string, std::string> lines[] = {
      {"forward,rows=2x3,d=4,x_gap=1,x_order=falling", "x 2x3x4 -15x-5x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=transposed", "x 2x3x4 5x10x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=zigzag", "x 2x3x4 20x-5x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=repeated", "x 2x3x4 0x0x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=again", "x 2x3x4 0x5x1"},
      {"forward,rows=2x3,d=4,x_gap=1,x_order=windows", "x 2x3x4 3x1x1"},
      {"forward,rows=2x3,d=4,x_skip=2", "x 2x3x4 20x4x1"},
      {"forward,rows=2x3,d=4,x_gap=1,interleaved=1", "x 2x3x4 27x9x1"},
      {"backward,rows=2,d=9,dx_in_place=1,dx_add=1,dy_order=falling", "dx 2x9 -9x1"},
      {"forward,rows=one,d=4", "y 4 1"},
      {"forward,rows=2x3,d=7,weight_per=head", "weight 3x7 7x1"},
      {"forward,rows=2x3,d=7,weight_per=group", "weight 2x1x7 7x-12345x1"},
      {"forward,rows=2x3,d=7,weight_per=row", "weight 2x3x7 21x7x1"},
      {"forward,bias=f32,rows=2x3,d=7,bias_per=alternate", "bias 2x1x7 7x-12345x1"},
      {"backward,db=f32,rows=2x3,d=7,db_per=row", "db 2x3x7 21x7x1"},
  };
  for (const auto& [line, layout] : lines) {
    const std::string operand = layout.substr(0, layout.find(' '));
    const rmsnorm_view view = Views(line)[operand];
    std::ostringstream text;
    text << operand << ' ';
    for (int i = 0; i < view.ndim; ++i) text << (i == 0 ? "" : "x") << view.shape[i];
    for (int i = 0; i < view.ndim; ++i) text << (i == 0 ? ' ' : 'x') << view.stride[i];
    EXPECT_EQ(layout, text.str()) << line;
  }
  auto views = Views("forward,rows=2,d=4,x_shift=3,y_shift=5");
  EXPECT_EQ(12u, reinterpret_cast<uintptr_t>(views["x"].data) % 64);
  EXPECT_EQ(20u, reinterpret_cast<uintptr_t>(views["y"].data) % 64);
  views = Views("forward,rows=2,d=4,x_gap=1,y_in_place=1");
  EXPECT_EQ(views["x"].data, views["y"].data);
  views = Views("forward,rows=2,d=4,x_gap=1,interleaved=1");
  EXPECT_EQ(Floats(&views["x"]) + 4, Floats(&views["y"]));
}

// Sums that are given are those of the rows.
TEST(Operands, Sums) {
  ExpectFault("", "forward,sums=f64,sums_out=f64,rows=3,d=7", [](const Operands& call) {
    const double sum = static_cast<const double*>(call.sums->data)[1];
    EXPECT_GT(sum, 0);
    EXPECT_EQ(sum, static_cast<const double*>(call.sums_out->data)[1]);
  });
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
          "FAILED on REFERENCE: signal 11\n  rmsnorm check --target REFERENCE --case " + line);
    }
  }
}

// ----------------------------------------------------------------------- separate calls

// One bit of any result of a call with several steps.
TEST(Apart, WrongStep) {
  const auto fault = [](const std::string& line, const Sabotage& change) {
    sabotage = change;
    spoilt_target = kReference;
    cases::Runner runner;
    const std::string text = cases::FaultApart(runner, cases::ParseCalls(line), kReference);
    spoilt_target = kSpoilt;
    return text;
  };
  for (const std::string line :
       {"forward,x=bf16,residual+residual_out=f16,gate+weight+post_norm_weight=f32,rows=3,d=7,"
        "factor=0.22,rstd+scale=f32,sums_out=f64,q+zero=i8",
        "backward,x=bf16,dx=f16,dw=bf16,rows=3,d=7,dx_add=1,rounding=inverse"}) {
    EXPECT_EQ("", fault(line, Keep));
    const Case c = cases::Parse(line);
    internal::ForEachOperand(c.Given(), [&](cases::Operand o) {
      if (!c.IsOutput(o)) return;
      const std::string name = kOperandRules[o].name;
      const std::string found = fault(line, [&](const Operands& call) {
        const bool is_whole = c.backward ? call.dx != nullptr && call.dw != nullptr
                                         : call.gate != nullptr && call.residual != nullptr;
        if (is_whole) FlipBit(ViewOf(call, name), 0);
      });
      EXPECT_EQ(0u, found.find(name + "[0, 0] is 0x")) << name << ": " << found;
    });
  }
  EXPECT_FALSE(cases::HasSeparateCalls(cases::ParseCalls("forward,rows=1,d=1,rstd=f32")));
}

// ------------------------------------------------------------------------------- lines

void ExpectRoundTrip(const cases::Calls& calls) {
  const std::string text = cases::Text(calls);
  const cases::Calls parsed = cases::ParseCalls(text);
  ASSERT_EQ(calls.size(), parsed.size()) << text;
  for (size_t i = 0; i < calls.size(); ++i) {
    for (const cases::Field& field : cases::Fields()) {
      ASSERT_EQ(field.write(calls[i]), field.write(parsed[i])) << text << ": " << field.name;
    }
  }
  ASSERT_EQ(text, cases::Text(parsed));
}

// The list means what its lines say, and every combination of types that chooses a kernel has every
// length, kind of value and option.
TEST(CheckedCases, RoundTripAndCoverage) {
  using namespace internal;
  std::map<std::string, std::map<std::string, std::set<std::string>>> seen;
  size_t number = 0;
  const cases::List list(cases::kCheckedCases);
  list.ForEach([&](const cases::Calls& calls) {
    if (++number % 101 == 0) ExpectRoundTrip(calls);
    for (const Case& c : calls) {
      const bool is_usual =
          c.backward ? c.Has(kDx) && c.operand[kDx].dtype == c.operand[kDy].dtype : c.Has(kY);
      if (!is_usual) continue;
      std::string types = c.backward ? "backward" : "forward";
      for (const char* name : {"x", "residual", "dy", "y"}) {
        types += "," + cases::FindField(name).write(c);
      }
      for (const char* name : {"d", "call", "weight", "x_values", "eps_placement", "rounding"}) {
        seen[types][name].insert(cases::FindField(name).write(c));
      }
      if (c.RowCount() * c.d > 4 * 32768) seen[types]["threads"].insert("several");
    }
  });
  EXPECT_EQ(list.size(), number);
  EXPECT_GT(number, 100000u);
  EXPECT_EQ(9u + 27u + 9u, seen.size());
  for (auto& [types, values] : seen) {
    const bool is_backward = types[0] == 'b';  // no rounding changes a gradient
    for (int d = 1; d <= 300; ++d)
      EXPECT_EQ(1u, values["d"].count(std::to_string(d))) << types << d;
    for (const char* d : {"511", "512", "513", "1000", "4095", "4096", "4097", "8193", "16385"}) {
      EXPECT_EQ(1u, values["d"].count(d)) << types << d;
    }
    EXPECT_EQ(4u, values["weight"].size()) << types;
    EXPECT_EQ(1u, values["call"].count("plain") * values["call"].count("module")) << types;
    EXPECT_EQ(1u, values["threads"].size()) << types;
    EXPECT_GE(values["x_values"].size(), 14u) << types;
    EXPECT_EQ(3u, values["eps_placement"].size()) << types;
    EXPECT_GE(values["rounding"].size(), is_backward ? 1u : 3u) << types;
  }
}

// Random cases are legal and have every field except the values of outputs.
TEST(RandomCase, RoundTripAndEveryField) {
  cases::Runner runner;
  std::map<std::string, std::set<std::string>> seen;
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    const Case c = cases::RandomCase(seed);
    ASSERT_NO_FATAL_FAILURE(ExpectRoundTrip({c}));
    ASSERT_EQ("", cases::FaultOf(runner, {c}, kReference)) << cases::Text(c);
    for (const cases::Field& field : cases::Fields()) seen[field.name].insert(field.write(c));
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
rows and d: forward,rows=0,d=1 forward,rows=1,d=18446744073709551615 forward,rows=65536,d=65536
rows has too many dimensions: forward,rows=1x1x1x1x1x1x1x1,d=1
more than 2^28: forward,rows=65536,d=1,x_gap=65536 forward,rows=4x4,d=4,x_skip=33554432
no such type: ,y=f64 ,rstd=f16
y_in_place: ,x=f16,y_in_place=1 ,x_order=repeated,y_in_place=1 ,y_gap=1,y_in_place=1
but there is none: ,residual_shift=1 ,bias_per=row backward,rows=1,d=1,dx=none,dx_add=1
dw_per is weight_per: backward,rows=2,d=1,weight_per=row
several: backward,rows=1,d=1,call=several forward,rows=one,d=1,call=several
call=rows: ,gate=f32,call=rows ,residual=f32,call=rows ,y=f16,call=rows ,x_gap=1,call=rows
interleaved rows: ,y_gap=1,interleaved=1 ,x_order=repeated,interleaved=1
calls made at once: ;backward,rows=1,d=1 ;forward,rows=1,d=1,call=rows
either all calls: ;forward,rows=1,d=1,call=prepared
threads, executor, stores and state: ;forward,rows=1,d=1,threads=2)";

TEST(Line, Refusals) {
  for (const std::string& row : cases::Split(kRefusals, '\n')) {
    const std::string problem = row.substr(0, row.find(": "));
    for (std::string line : cases::Split(row.substr(problem.size() + 2), ' ')) {
      if (line[0] == ',' || line[0] == ';') line = "forward,rows=1,d=1" + line;
      try {
        cases::ParseCalls(line);
        ADD_FAILURE() << line;
      } catch (const cases::UserError& error) {
        EXPECT_NE(std::string::npos, std::string(error.what()).find(problem))
            << line << ": " << error.what();
      }
    }
  }
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

TEST(List, Refusals) {
  for (const char* wrong :
       {"sideways,d=1", "forward,d", "forward,d=", "forward,d=x", "forward,d=1,y_per=row", "[norm",
        "forward,=1", "forward,x+=f32", "forward,rows=1|2,d=1/2/3,seed=1|2"}) {
    EXPECT_THROW(cases::List(wrong).ForEach([](const cases::Calls&) {}), cases::UserError) << wrong;
  }
}

// ------------------------------------------------------------------------------- values

// The bits of an operand, row by row.
std::vector<uint64_t> BitsOf(const cases::Problem& problem, internal::Operand o) {
  const cases::Rows& rows = problem.before(o);
  std::vector<uint64_t> bits;
  for (size_t row = 0; row < rows.count(); ++row) {
    for (size_t j = 0; j < rows.d(); ++j) bits.push_back(rows.bits(row, j));
  }
  return bits;
}

TEST(Values, EveryPatternAndTriple) {
  using namespace internal;
  const cases::Problem patterns(cases::Parse("forward,x=bf16,x_values=every,rows=16,d=4096"));
  const auto bits = BitsOf(patterns, kX);
  for (size_t i = 0; i < 65536; ++i) ASSERT_EQ(i, bits.at(i));
  const cases::Problem floats(
      cases::Parse("forward,x=f32,x_values=every,rows=1,d=65536,seed=16256"));
  EXPECT_EQ(0x3F80FFFFu, BitsOf(floats, kX).back());
  const cases::Problem loops(
      cases::Parse("forward,x+residual+gate=bf16,x_values=outer,residual_values=middle,"
                   "gate_values=inner,rows=24,d=576"));
  const auto x = BitsOf(loops, kX), residual = BitsOf(loops, kResidual),
             gate = BitsOf(loops, kGate);
  std::set<std::vector<uint64_t>> triples;
  for (size_t i = 0; i < x.size(); ++i) triples.insert({x[i], residual[i], gate[i]});
  EXPECT_EQ(size_t{24 * 24 * 24}, triples.size());
}

}  // namespace
}  // namespace rmsnorm::test
