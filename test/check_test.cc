// SPDX-License-Identifier: Apache-2.0
// `rmsnorm check` sees errors, reports them, and repeats them with the simplest possible case. The
// linker puts the functions below in place of some of the library's (--wrap), so a test can spoil
// their results.
#include "check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cases/float_control.h"
#include "cases/list.h"
#include "cases/random_case.h"
#include "run_command.h"
#include "targets.h"
#include "user_error.h"

namespace rmsnorm::test {
namespace {

using cases::Case;
using Operands = rmsnorm_operands;

// Cases run on the reference by this name, which distinguishes them from the calls for expected
// results.
const char kSpoilt[] = "REFERENCE";

// Spoils each call.
std::function<void(const Operands&)> sabotage;
int spoilt_calls = 0;

rmsnorm_status Spoil(rmsnorm_status status, const Operands* operands,
                     const rmsnorm_context* context) {
  const bool is_spoilt = context != nullptr && context->target != nullptr &&
                         std::strcmp(context->target, kSpoilt) == 0;
  if (is_spoilt && status == RMSNORM_OK) {
    ++spoilt_calls;
    sabotage(*operands);
  }
  return status;
}

}  // namespace
}  // namespace rmsnorm::test

extern "C" {
rmsnorm_status __real_rmsnorm_forward(const rmsnorm_operands* operands,
                                      const rmsnorm_options* options,
                                      const rmsnorm_context* context) noexcept;
rmsnorm_status __wrap_rmsnorm_forward(const rmsnorm_operands* operands,
                                      const rmsnorm_options* options,
                                      const rmsnorm_context* context) noexcept;
rmsnorm_status __real_rmsnorm_backward(const rmsnorm_operands* operands,
                                       const rmsnorm_options* options,
                                       const rmsnorm_context* context) noexcept;
rmsnorm_status __wrap_rmsnorm_backward(const rmsnorm_operands* operands,
                                       const rmsnorm_options* options,
                                       const rmsnorm_context* context) noexcept;
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

namespace rmsnorm::test {
namespace {

// ----------------------------------------------------------------------------- faults it sees

using Wrong = std::function<void(const Operands&)>;

// Changes a byte that may lie between rows, which AddressSanitizer considers inaccessible.
__attribute__((no_sanitize("address"))) void FlipBit(const rmsnorm_view* view, ptrdiff_t byte) {
  static_cast<char*>(internal::DataOf(*view))[byte] ^= 1;
}

// The fault that the runner finds in a case.
std::string Fault(const std::string& text, const Wrong& wrong) {
  sabotage = wrong;
  spoilt_calls = 0;
  cases::Runner runner;
  return cases::FaultOf(runner, cases::ParseCalls(text), kSpoilt);
}

void ExpectFault(const std::string& begin, const std::string& text, const Wrong& wrong) {
  const std::string fault = Fault(text, wrong);
  EXPECT_EQ(0u, fault.find(begin)) << text << ": '" << fault << "' does not begin with " << begin;
}

float* Floats(const rmsnorm_view* view) { return static_cast<float*>(internal::DataOf(*view)); }
void Step(float& element) { element = std::nextafter(element, 1e30f); }

// The views of a call by the names of operands.
const rmsnorm_view* ViewOf(const Operands& call, const std::string& name) {
  for (int i = 0; i < internal::kOperands; ++i) {
    const auto o = static_cast<cases::Operand>(i);
    if (name == internal::kOperandRules[o].name) return internal::ViewIn(call, o);
  }
  return nullptr;
}

// Every operand, three rows of 7 elements with gaps of 5, and elements per row with gaps of 1.
const std::string kForward =
    "forward,residual=f32,bias=f32,residual_out=f32,rstd=f32,sums_out=f64,gate=f32,"
    "post_norm_weight=f32,q=i8,scale=f32,zero=i8,rows=3,d=7,x_gap=5,"
    "residual_gap=5,y_gap=5,residual_out_gap=5,rstd_gap=1,sums_out_gap=1";
const std::string kBackward =
    "backward,db=f32,rstd=f32,rows=3,d=7,x_gap=5,dy_gap=5,dx_gap=5,rstd_gap=1";

TEST(Case, PassesWhatIsRight) {
  for (const std::string& text : {kForward, kBackward}) {
    EXPECT_EQ("", Fault(text, [](const Operands&) {}));
    EXPECT_EQ(1, spoilt_calls);
  }
}

// One bit of any element of any output, any byte next to an output's rows, and any byte of an
// input.
TEST(Case, SeesEveryBitOfEveryOperand) {
  for (const std::string& text : {kForward, kBackward}) {
    const Case c = cases::Parse(text);
    internal::ForEachOperand(c.Given(), [&](cases::Operand o) {
      const std::string name = internal::kOperandRules[o].name;
      const size_t rows = RowsOf(c, o);
      const size_t d = RowLengthOf(c, o);
      const size_t step = d + c.operand[o].gap;
      const size_t bytes = internal::ElementSize(c.operand[o].dtype);
      std::vector<size_t> elements;
      for (size_t row = 0; row < rows; ++row) {
        for (size_t j = 0; j < d; ++j) {
          elements.push_back(row * step + j);
          const std::string where =
              "[" + std::to_string(row) + ", " + std::to_string(j) + "] is 0x";
          ExpectFault(c.IsOutput(o) ? name + where : name + " was written", text,
                      [&](const Operands& call) {
                        char* const data =
                            static_cast<char*>(internal::DataOf(*ViewOf(call, name)));
                        data[(row * step + j) * bytes] ^= 1;
                      });
        }
      }
      const auto end = static_cast<ptrdiff_t>(rows * step);
      for (ptrdiff_t at = -20; at < end + 20; ++at) {
        if (std::count(elements.begin(), elements.end(), static_cast<size_t>(at)) != 0) continue;
        const ptrdiff_t byte = at * static_cast<ptrdiff_t>(bytes);
        ExpectFault(name + ": byte " + std::to_string(byte) + " ", text,
                    [&](const Operands& call) { FlipBit(ViewOf(call, name), byte); });
      }
    });
  }
}

TEST(Case, ShowsTheBits) {
  ExpectFault("y[0, 0] is 0x00000000, not 0x", "forward,weight=none,rows=1,d=1,eps=0,divisor=1",
              [](const Operands& call) { Floats(call.y)[0] = 0; });
}

TEST(Case, TellsZerosApart) {
  ExpectFault("y[0, 0] is 0x", "forward,rows=1,d=1,x_values=zero",
              [](const Operands& call) { *Floats(call.y) = -*Floats(call.y); });
}

// Equal NaNs do not hide a wrong byte elsewhere.
TEST(Case, TakesTwoNansAsEqual) {
  const uint32_t another = 0xFFC12345u;
  for (const std::string& text : {std::string("forward,rows=1,d=1,x_values=nan"),
                                  std::string("backward,rows=1,d=1,x_values=nan")}) {
    const auto change = [&](const Operands& call) {
      for (const char* name : {"y", "dx", "dw"}) {
        if (ViewOf(call, name) == nullptr) continue;
        float* const element = Floats(ViewOf(call, name));
        ASSERT_TRUE(std::isnan(*element));
        std::memcpy(element, &another, sizeof another);
      }
    };
    EXPECT_EQ("", Fault(text, change));
    ExpectFault("x was written", text, [&](const Operands& call) {
      change(call);
      *Floats(call.x) = 1;
    });
    ExpectFault(text[0] == 'f' ? "y[0, 0] is 0x7f800000, not 0x7f" : "dx[0, 0] is 0x7f800000", text,
                [&](const Operands& call) {
                  *Floats(text[0] == 'f' ? call.y : call.dx) =
                      std::numeric_limits<float>::infinity();
                });
  }
}

// Outputs that replace inputs, rows in every order, and operands in one buffer.
TEST(Case, LiesAsItSays) {
  const auto expect_place = [](const std::string& text, const Wrong& right,
                               const std::string& fault, const Wrong& wrong) {
    EXPECT_EQ("", Fault(text, right)) << text;
    ExpectFault(fault, text, wrong);
  };
  expect_place(
      "forward,x=f16,y=bf16,rows=2,d=9,x_gap=1,y_in_place=1",
      [](const Operands& call) {
        EXPECT_EQ(call.x->data, call.y->data);
        EXPECT_EQ(10, call.y->stride[0]);
      },
      "y: byte 18 ", [](const Operands& call) { FlipBit(call.y, 18); });
  expect_place(
      "backward,rows=2,d=9,dx_in_place=1,dx_add=1,dy_order=falling",
      [](const Operands& call) {
        EXPECT_EQ(call.dx->data, call.dy->data);
        EXPECT_EQ(-9, call.dy->stride[0]);
        EXPECT_EQ(1u, call.add_to);
      },
      "dx[1, 0] is", [](const Operands& call) { Step(Floats(call.dx)[-9]); });
  expect_place(
      "forward,rows=2x3,d=4,interleaved=1,x_gap=1",
      [](const Operands& call) {
        EXPECT_EQ(Floats(call.y), Floats(call.x) + 4);
        EXPECT_EQ(9, call.x->stride[1]);
      },
      "x: byte 32 ", [](const Operands& call) { FlipBit(call.x, 32); });
  const std::vector<std::pair<std::string, std::vector<ptrdiff_t>>> orders = {
      {"rising", {15, 5}},  {"falling", {-15, -5}}, {"transposed", {5, 10}}, {"zigzag", {20, -5}},
      {"repeated", {0, 0}}, {"again", {0, 5}},      {"windows", {3, 1}}};
  for (const auto& [order, stride] : orders) {
    EXPECT_EQ("", Fault("forward,rows=2x3,d=4,x_gap=1,x_order=" + order,
                        [&, strides = stride](const Operands& call) {
                          EXPECT_EQ(strides,
                                    std::vector<ptrdiff_t>(call.x->stride, call.x->stride + 2));
                        }))
        << order;
  }
  Fault("forward,rows=2,d=4,x_shift=3,y_shift=5", [](const Operands& call) {
    EXPECT_EQ(12u, reinterpret_cast<uintptr_t>(call.x->data) % 64);
    EXPECT_EQ(20u, reinterpret_cast<uintptr_t>(call.y->data) % 64);
  });
}

TEST(CaseDeathTest, EndsAtAGuardPage) {
  for (const char* name : {"x", "weight", "y"}) {
    const auto touch = [&](const std::string& guard, ptrdiff_t element) {
      EXPECT_DEATH(Fault("forward,rows=3,d=7,guard=" + guard,
                         [&](const Operands& call) {
                           volatile float sink = Floats(ViewOf(call, name))[element];
                           (void)sink;
                         }),
                   "");
    };
    touch("after", name == std::string("weight") ? 7 : 21);
    touch("before", -1);
  }
}

// Rows that share one row of the weight, the bias or their gradients: each expected result comes
// from one call for the sharing rows.
TEST(Case, SeesWhichRowsShare) {
  struct Sharing {
    std::string per;
    std::vector<size_t> shape;
    std::string first_wrong;  // if all rows share one
  };
  for (const Sharing& sharing :
       {Sharing{"head", {3, 7}, "1"}, Sharing{"group", {2, 1, 7}, "3"},
        Sharing{"row", {2, 3, 7}, "1"}, Sharing{"alternate", {2, 1, 7}, "3"},
        Sharing{"first", {2, 1, 7}, "3"}}) {
    for (const std::string name : {"weight", "bias"}) {
      const std::string text = "forward,bias=f32,rows=2x3,d=7," + name + "_per=" + sharing.per;
      EXPECT_EQ("", Fault(text, [&](const Operands& call) {
                  const rmsnorm_view& view = *ViewOf(call, name);
                  EXPECT_EQ(sharing.shape, std::vector<size_t>(view.shape, view.shape + view.ndim));
                }));
      ExpectFault("y[" + sharing.first_wrong + ", 0] is 0x", text, [&](const Operands& call) {
        const rmsnorm_view one = rmsnorm_vector(ViewOf(call, name)->data, RMSNORM_F32, 7);
        Operands operands = call;
        (name == "weight" ? operands.weight : operands.bias) = &one;
        EXPECT_EQ(RMSNORM_OK, __real_rmsnorm_forward(&operands, nullptr, nullptr));
      });
    }
    for (const std::string name : {"dw", "db"}) {
      const std::string text = "backward,db=f32,rows=2x3,d=7," +
                               (name == "dw" ? "weight_per=" + sharing.per + "," : "") + name +
                               "_per=" + sharing.per;
      EXPECT_EQ("", Fault(text, [](const Operands&) {}));
      ExpectFault(name + "[1, 2] is 0x", text, [&](const Operands& call) {
        const rmsnorm_view& view = *ViewOf(call, name);
        EXPECT_EQ(sharing.shape, std::vector<size_t>(view.shape, view.shape + view.ndim));
        Step(Floats(&view)[7 + 2]);
      });
    }
  }
}

// Replaces a complete call by one that leaves something out.
TEST(Case, SeesWhatWasLeftOut) {
  const auto expect = [](const std::string& fault, const std::string& text,
                         const std::function<void(Operands&)>& leave_out) {
    ExpectFault(fault, text, [&](const Operands& call) {
      Operands operands = call;
      leave_out(operands);
      EXPECT_EQ(RMSNORM_OK, text[0] == 'b' ? __real_rmsnorm_backward(&operands, nullptr, nullptr)
                                           : __real_rmsnorm_forward(&operands, nullptr, nullptr));
    });
  };
  expect("y[0, 0] is 0x", "forward,bias=f32,rows=3,d=7", [](Operands& o) { o.bias = nullptr; });
  expect("y[0, 0] is 0x", "forward,rows=3,d=7", [](Operands& o) { o.weight = nullptr; });
  for (const std::string name : {"dx", "dw", "db"}) {
    expect(name + "[0, 0] is 0x", "backward,db=f32,rows=3,d=7," + name + "_add=1",
           [](Operands& o) { o.add_to = 0; });
  }
}

// Numbers per row that are given, next to numbers computed from the rows.
TEST(Case, GivesNumbersOfRows) {
  float own = 0;
  Fault("backward,rstd=f32,rows=3,d=7", [&](const Operands& call) { own = Floats(call.rstd)[1]; });
  EXPECT_GT(own, 0);
  EXPECT_EQ("",
            Fault("backward,rstd=f32,rstd_values=special,rows=3,d=7", [&](const Operands& call) {
              EXPECT_EQ(0, Floats(call.rstd)[0]);
              EXPECT_EQ(own, Floats(call.rstd)[1]);
              EXPECT_EQ(-1, Floats(call.rstd)[2]);
            }));
  double sum = 0;
  Fault("forward,sums=f64,sums_out=f64,rows=3,d=7", [&](const Operands& call) {
    sum = static_cast<const double*>(call.sums->data)[1];
    EXPECT_EQ(sum, static_cast<const double*>(call.sums_out->data)[1]);
  });
  EXPECT_GT(sum, 0);
}

TEST(Case, SaysWhatTheLibraryRefuses) {
  const Wrong nothing = [](const Operands&) {};
  ExpectFault("the reference refused: ", "forward,rows=1,d=1,eps=-1", nothing);
  ExpectFault("the reference refused: ", "backward,weight=none,rows=1,d=1,weight_offset=1",
              nothing);
}

TEST(Case, SeesWhoLosesTheFloatingPointState) {
  ExpectFault("the caller's floating-point state", "forward,rows=1,d=1", [](const Operands&) {
    cases::Random random(1);
    cases::SetControl(cases::RandomControl(random));
  });
}

// -------------------------------------------------------------------------------- its reports

TEST(Checker, CountsEveryCaseOnEveryTarget) {
  sabotage = [](const Operands&) {};
  spoilt_calls = 0;
  std::ostringstream out;
  tools::Checker checker(3, {kSpoilt, kSpoilt}, out);
  cases::Runner runner;
  for (const std::string& text : {kForward, kBackward, kForward}) {
    checker.Check(cases::ParseCalls(text), runner);
  }
  EXPECT_EQ(0, checker.Finish());
  EXPECT_EQ("6 passed, 0 failed\n", out.str());
  EXPECT_EQ(6, spoilt_calls);
}

// Reports the simplest case that fails: here a row with an element 3, and more than two rows.
TEST(Checker, RepeatsAFailureSimply) {
  sabotage = [](const Operands& call) {
    const rmsnorm_view& y = *call.y;
    if (call.bias == nullptr || y.shape[1] < 4 || y.shape[0] < 3) return;
    Step(Floats(&y)[2 * y.stride[0] + 3]);
  };
  std::ostringstream out;
  tools::Checker checker(1, {kSpoilt}, out);
  cases::Runner runner;
  const Case failing = cases::Parse(
      "forward,x=bf16,weight=f16,bias=bf16,y=f32,rstd=f32,rows=23,d=300,x_gap=3,y_shift=7,"
      "x_order=zigzag,x_values=mixed,rounding=before_weight,weight_offset=1,threads=3,seed=17");
  checker.Check({failing}, runner);
  EXPECT_EQ(1, checker.Finish());
  const std::string end =
      "\n  rmsnorm check --target REFERENCE --case "
      "forward,x=f32,weight=none,bias=f32,y=f32,rows=3,d=4\n0 passed, 1 failed\n";
  EXPECT_EQ(0u, out.str().find("FAILED on REFERENCE: y[2, 3] is 0x")) << out.str();
  EXPECT_NE(std::string::npos, out.str().find(end)) << out.str();
}

// -------------------------------------------------------------------------------------- texts

// Every field, with a value other than its default.
TEST(Text, HasEveryField) {
  for (const cases::Field& field : cases::Fields()) {
    SCOPED_TRACE(field.name);
    const Case plain;
    Case c;
    const auto differs = [&](const char* value) {
      return field.read(c, value) && field.write(c) != field.write(plain);
    };
    const std::vector<const char*> values = {"bf16",      "falling", "special", "head", "module",
                                             "outside",   "threads", "before",  "2x3",  "0.125",
                                             "12",        "sigmoid", "rounded", "1",    "inverse",
                                             "unrounded", "streamed"};
    const auto value = std::find_if(values.begin(), values.end(), differs);
    ASSERT_NE(values.end(), value);
    const std::string text = "," + field.name + "=" + *value + ",";
    EXPECT_NE(std::string::npos, (cases::Text(c) + ",").find(text)) << cases::Text(c);
  }
}

TEST(Text, SaysWhatACaseIs) {
  const std::string text =
      "forward,x=bf16,residual=f32,weight=none,residual_out=f32,y=f16,rows=6x2,d=3,call=module,"
      "x_values=low_edge,x_shift=4,x_gap=7,x_order=falling,residual_out_in_place=1,eps=0.125,"
      "eps_placement=floor,rounding=inverse,residual_rounding=unrounded,divisor=9.5,"
      "threads=10,executor=shuffled,state=99,seed=11";
  const Case c = cases::Parse(text);
  EXPECT_EQ(text, cases::Text(c));
  EXPECT_FALSE(c.backward);
  EXPECT_EQ(RMSNORM_BF16, c.operand[internal::kX].dtype);
  EXPECT_EQ(0, c.operand[internal::kWeight].dtype);
  EXPECT_EQ((std::vector<size_t>{6, 2}), c.rows);
  EXPECT_EQ(3u, c.d);
  EXPECT_EQ(cases::Function::kModule, c.function);
  EXPECT_EQ(cases::Values::kLowEdge, c.operand[internal::kX].values);
  EXPECT_EQ(4u, c.operand[internal::kX].shift);
  EXPECT_EQ(7u, c.operand[internal::kX].gap);
  EXPECT_EQ(cases::Order::kFalling, c.operand[internal::kX].order);
  EXPECT_TRUE(c.operand[internal::kResidualOut].in_place);
  EXPECT_EQ(0.125f, c.options.eps);
  EXPECT_EQ(RMSNORM_EPS_FLOOR, c.options.eps_placement);
  EXPECT_EQ(RMSNORM_ROUND_INVERSE, c.options.rounding);
  EXPECT_EQ(RMSNORM_RESIDUAL_UNROUNDED, c.options.residual_rounding);
  EXPECT_EQ(9.5f, c.options.divisor);
  EXPECT_EQ(10, c.threads);
  EXPECT_EQ(cases::Executor::kShuffled, c.executor);
  EXPECT_EQ(99u, c.state);
  EXPECT_EQ(11u, c.seed);
  EXPECT_TRUE(cases::Parse("forward,rows=one,d=1").rows.empty());
  const Case gradients = cases::Parse("backward,db=f16,dw_add=1,db_per=row,rows=2x3,d=1");
  EXPECT_TRUE(gradients.operand[internal::kDw].add);
  EXPECT_FALSE(gradients.operand[internal::kDb].add);
  EXPECT_EQ(cases::Per::kRow, gradients.operand[internal::kDb].per);
}

// ------------------------------------------------------------------------------------- lists

std::vector<std::string> Expanded(const std::string& text) {
  const cases::List list(text);
  std::vector<std::string> expanded;
  list.ForEach([&](const cases::Calls& calls) {
    const std::string case_text = cases::Text(calls);
    expanded.push_back(case_text.substr(case_text.find("rows=")));
  });
  EXPECT_EQ(expanded.size(), list.size());
  return expanded;
}

TEST(List, Multiplies) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ((Texts{"rows=1,d=3", "rows=1,d=4", "rows=2,d=3", "rows=2,d=4"}),
            Expanded("# rows\nforward,rows=1|2,\n  d=3..4  # and elements\n\n"));
  // Values in turn depend on the fields before; the fields after have the same value.
  EXPECT_EQ((Texts{"rows=1,d=5", "rows=1,d=5,threads=2", "rows=2,d=6", "rows=2,d=6,threads=2",
                   "rows=3,d=5", "rows=3,d=5,threads=2"}),
            Expanded("forward,rows=1..3,d=5/6,threads=1|2"));
  // The second field with values in turn changes after the first has gone through its values.
  EXPECT_EQ((Texts{"rows=1,d=5", "rows=2,d=6", "rows=3,d=5,seed=1", "rows=4,d=6,seed=1"}),
            Expanded("$N=1..4\nforward,rows=$N,d=5/6,seed=0/1"));
  EXPECT_EQ((Texts{"rows=1,d=5,x_gap=1,y_gap=1", "rows=1,d=5,x_gap=2,y_gap=2"}),
            Expanded("forward,rows=1,d=5,x_gap+y_gap=1|2"));
  for (const char* wrong : {"sideways,d=1", "forward,d", "forward,size=1", "forward,d=",
                            "forward,d=x", "forward,d=1,y_per=row", "forward,x=f16,y_in_place=1"}) {
    EXPECT_THROW(Expanded(wrong), tools::UserError) << wrong;
  }
}

TEST(List, CoversWhatItShould) {
  using Types = std::vector<rmsnorm_dtype>;  // the types that choose a kernel
  std::map<Types, std::set<size_t>> lengths;
  std::map<Types, std::set<cases::Values>> values;
  std::set<std::pair<Types, rmsnorm_dtype>> weights;
  std::set<std::pair<Types, cases::Function>> functions;
  std::set<std::tuple<Types, int32_t, int32_t>> options;
  std::map<Types, std::set<int>> threads;
  const auto see = [&](const Case& c) {
    using namespace internal;
    Types types = {c.backward, c.operand[kX].dtype};
    for (const Operand o : {kResidual, kDy, kY, kDx}) types.push_back(c.operand[o].dtype);
    lengths[types].insert(c.d);
    values[types].insert(c.operand[kX].values);
    weights.insert({types, c.operand[kWeight].dtype});
    functions.insert({types, c.function});
    options.insert({types, c.options.eps_placement, c.options.rounding});
    if (c.RowCount() * c.d > 4 * 32768) threads[types].insert(c.threads);
  };
  const cases::List list(cases::kCheckedCases);
  size_t number = 0;
  list.ForEach([&](const cases::Calls& calls) {
    for (const Case& c : calls) see(c);
    if (++number % 101 == 0) {
      EXPECT_EQ(cases::Text(calls), cases::Text(cases::ParseCalls(cases::Text(calls))));
    }
  });
  EXPECT_GT(number, 100000u);
  size_t combinations = 0;
  for (const auto& [types, all] : lengths) {
    const bool backward = types[0] != 0;
    const bool has_output = types[4] != 0 || types[5] != 0;
    const bool usual = !backward || types[5] == types[3];
    if (!has_output || !usual) continue;
    ++combinations;
    SCOPED_TRACE(testing::PrintToString(types));
    for (size_t d = 1; d <= 300; ++d) EXPECT_EQ(1u, all.count(d)) << d;
    for (const size_t d : {511u, 512u, 513u, 1000u, 4095u, 4096u, 4097u, 8193u, 16385u}) {
      EXPECT_EQ(1u, all.count(d)) << d;
    }
    EXPECT_GE(values[types].size(), 14u);
    for (const rmsnorm_dtype weight : {0, 1, 2, 3}) EXPECT_EQ(1u, weights.count({types, weight}));
    for (const auto function : {cases::Function::kPlain, cases::Function::kModule}) {
      EXPECT_EQ(1u, functions.count({types, function}));
    }
    for (const int32_t placement : {0, 1, 2}) {
      for (const int32_t rounding : {0, 1, 2}) {
        if (backward && rounding != 0) continue;  // it changes no gradient
        EXPECT_EQ(1u, options.count({types, placement, rounding}));
      }
    }
    EXPECT_GE(threads[types].size(), 1u);
  }
  EXPECT_EQ(9u + 27u + 9u, combinations);
}

// Random cases make sense, are not refused, and have every field except the values of outputs.
TEST(RandomCase, IsLegal) {
  sabotage = [](const Operands&) {};
  cases::Runner runner;
  std::set<std::string> texts;
  std::map<std::string, std::set<std::string>> seen;
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    const Case c = cases::RandomCase(seed);
    const std::string text = cases::Text(c);
    ASSERT_EQ(text, cases::Text(cases::Parse(text)));
    ASSERT_EQ("", cases::FaultOf(runner, {c}, kReference)) << text;
    texts.insert(text);
    for (const cases::Field& field : cases::Fields()) seen[field.name].insert(field.write(c));
  }
  EXPECT_EQ(2000u, texts.size());
  for (const char* output : {"y_values", "residual_out_values", "sums_out_values", "q_values",
                             "scale_values", "zero_values"}) {
    seen.erase(output);
  }
  for (const auto& [name, values] : seen) EXPECT_GE(values.size(), 2u) << name;
}

// ------------------------------------------------------------------------------- the command

std::string LastLine(const std::string& text) {
  const size_t end = text.rfind('\n', text.size() - 2);
  return text.substr(end + 1);
}

TEST(CheckCommand, ChecksACaseOnEveryTarget) {
  for (const char* text :
       {"forward,rows=3,d=100,x_values=mixed", "backward,rows=40,d=100,x_values=mixed"}) {
    const Outcome outcome = RunCommand({"check", "--case", text});
    ExpectSuccess(outcome);
    const size_t targets = SupportedTargets().size();
    EXPECT_EQ(LastLine(outcome.out), std::to_string(targets) + " passed, 0 failed\n");
  }
}

TEST(CheckCommand, ChecksTheTargetsAskedFor) {
  for (const std::string& target : SupportedTargets()) {
    const Outcome outcome = RunCommand({"check", "--target", target, "--target", "Reference",
                                        "--case", "forward,x=bf16,weight=f16,y=f32,rows=3,d=100"});
    ExpectSuccess(outcome);
    EXPECT_EQ(outcome.out, "targets: " + target + " reference; cases: 1\n2 passed, 0 failed\n");
  }
}

TEST(CheckCommand, FailsWithStatus1) {
  const Outcome outcome =
      RunCommand({"check", "--target", "reference", "--case", "forward,rows=1,d=1,eps=-1"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(LastLine(outcome.out), "0 passed, 1 failed\n");
}

TEST(CheckCommand, RefusesWrongUseInOneLine) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--target", "frobnicate"}, "--target: 'frobnicate'"},
      {{"--target", "frobnicate", "--case", "forward,rows=1,d=1"}, "'frobnicate'"},
      {{"--target"}, "--target"},
      {{"--frobnicate"}, "--frobnicate"},
      {{"frobnicate"}, "frobnicate"},
      {{"--case"}, "--case"},
  };
  for (const auto& [arguments, problem] : wrong) {
    std::vector<std::string> all = {"check"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    SCOPED_TRACE(all.back());
    ExpectUserError(RunCommand(all), problem);
  }
  ExpectUserError(RunCommand({"check", "--case", "forward,rows=1,d=1,size=2"}),
                  "--case: unknown name 'size'");
}

TEST(Text, IsRefusedWhereItHasNoMeaning) {
  const std::pair<std::string, std::string> wrong[] = {
      {"sideways,rows=1,d=1", "'sideways' is neither"},
      {"forward", "'rows' is missing"},
      {"forward,rows=1", "'d' is missing"},
      {"forward,rows=0,d=1", "rows and d"},
      {"forward,rows=1,d=0", "rows and d"},
      {"forward,rows=1,d=-1", "'-1' is no value for 'd'"},
      {"forward,rows=1,d=1x", "'1x' is no value for 'd'"},
      {"forward,rows=1,d=", "'' is no value for 'd'"},
      {"forward,rows=2x,d=1", "'2x' is no value for 'rows'"},
      {"forward,rows=,d=1", "'' is no value for 'rows'"},
      {"forward,rows=1,d=1,d=2", "'d' is given twice"},
      {"forward,rows=1,d=1,rstd", "'rstd' is not NAME=VALUE"},
      {"forward,rows=1,d=1,rstd=2", "'2' is no value for 'rstd'"},
      {"forward,rows=1,d=1,x=none", "x is missing"},
      {"forward,rows=1,d=1,y=f64", "y has no such type"},
      {"forward,rows=1,d=1,rstd=f16", "rstd has no such type"},
      {"forward,rows=1,d=1,eps=1e", "'1e' is no value for 'eps'"},
      {"forward,rows=1,d=1,eps=", "'' is no value for 'eps'"},
      {"forward,rows=1,d=1,rounding=up", "'up' is no value for 'rounding'"},
      {"forward,rows=99999999999999999999,d=1", "'rows'"},
      {"forward,rows=1,d=18446744073709551615", "2^28"},
      {"forward,rows=65536,d=65536", "2^28"},
      {"forward,rows=1x1x1x1x1x1x1x1,d=1", "dimensions"},
      {"forward,rows=2,d=1,x_gap=18446744073709551615", "2^25"},
      {"forward,rows=65536,d=1,x_gap=65536", "2^28"},
      {"backward,rows=1,d=1,dx_shift=268435457", "2^25"},
      {"forward,rows=1,d=1,x=f16,y_in_place=1", "y_in_place"},
      {"forward,rows=1,d=1,x_order=repeated,y_in_place=1", "y_in_place"},
      {"forward,rows=1,d=1,y_gap=1,y_in_place=1", "y_in_place"},
      {"forward,rows=1,d=1,residual_out=f32,residual_out_in_place=1", "there is no residual"},
      {"forward,rows=1,d=1,y_order=again", "y_order"},
      {"forward,rows=1,d=1,y_values=tiny", "y has no values"},
      {"forward,rows=1,d=1,residual_shift=1", "there is none"},
      {"forward,rows=1,d=1,bias_per=row", "there is none"},
      {"forward,rows=1,d=1,weight=none,weight_per=row", "there is none"},
      {"forward,rows=1,d=1,weight_per=column", "'column' is no value"},
      {"forward,rows=1,d=1,weight_per=row,call=module", "a module's weight_per"},
      {"forward,rows=1,d=1,dy=f32", "forward takes no dy"},
      {"backward,rows=1,d=1,y=f16", "backward takes no y"},
      {"backward,rows=1,d=1,dy=none", "dy is missing"},
      {"backward,rows=1,d=1,dx=none,dx_add=1", "there is none"},
      {"backward,rows=1,d=1,db_per=row", "there is none"},
      {"backward,rows=2,d=1,weight_per=row", "dw_per is weight_per"},
      {"backward,rows=1,d=1,call=several", "several"},
      {"forward,rows=one,d=1,call=several", "several"},
      {"forward,rows=1,d=1,gate=f32,call=rows", "no such operands"},
      {"forward,rows=2,d=1,bias=f32,bias_per=row,call=rows", "share a bias"},
      {"forward,rows=1,d=1,y=f16,call=rows", "one type"},
      {"forward,rows=1,d=1,residual=f16,residual_out=f32,call=rows", "one type"},
      {"forward,rows=1,d=1,x_gap=1,call=rows", "dense"},
      {"forward,rows=1,d=1,x_shift=1,guard=after", "guard"},
      {"forward,rows=1,d=1,y_gap=1,interleaved=1", "interleaved"},
      {"forward,rows=1,d=1,x_order=repeated,interleaved=1", "interleaved"},
  };
  for (const auto& [text, problem] : wrong) {
    try {
      cases::Parse(text);
      ADD_FAILURE() << text;
    } catch (const tools::UserError& error) {
      EXPECT_NE(std::string::npos, std::string(error.what()).find(problem))
          << text << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test
