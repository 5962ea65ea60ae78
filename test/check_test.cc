// SPDX-License-Identifier: Apache-2.0
// `rmsnorm check`: that it sees what is wrong, says so, and repeats it. The linker puts the
// functions below in place of some of the library's (--wrap), so that a test can spoil what they
// computed.
#include "check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "run_command.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

using Operands = rmsnorm_operands;

// What happens to a call of each function, the second one unless said otherwise: those before
// compute what is expected.
struct Sabotage {
  std::function<void(const Operands&)> forward;
  std::function<void(const Operands&)> backward;
  int call = 2;
  int forward_calls = 0;
  int backward_calls = 0;
};
Sabotage sabotage;

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
  using rmsnorm::test::sabotage;
  const rmsnorm_status status = __real_rmsnorm_forward(operands, options, context);
  if (++sabotage.forward_calls == sabotage.call && sabotage.forward) sabotage.forward(*operands);
  return status;
}

rmsnorm_status __wrap_rmsnorm_backward(const rmsnorm_operands* operands,
                                       const rmsnorm_options* options,
                                       const rmsnorm_context* context) noexcept {
  using rmsnorm::test::sabotage;
  const rmsnorm_status status = __real_rmsnorm_backward(operands, options, context);
  if (++sabotage.backward_calls == sabotage.call && sabotage.backward) sabotage.backward(*operands);
  return status;
}

namespace rmsnorm::test {
namespace {

using tools::BackwardCall;
using tools::BackwardCase;
using tools::CallKind;
using tools::Case;
using tools::ForwardCase;
using tools::GivenRstd;
using tools::ParseBackwardCase;
using tools::ParseCase;
using tools::ParseForwardCase;
using tools::Per;
using tools::Values;

// ------------------------------------------------------------------------------ what is found

struct Report {
  int status;
  std::string text;
};

Report Check(const std::string& text, const Sabotage& wrong) {
  sabotage = wrong;
  std::ostringstream out;
  const int status = tools::CheckCases({ParseCase(text)}, {"reference"}, out);
  return {status, out.str()};
}

Report CheckForward(const std::string& text, std::function<void(const Operands&)> wrong,
                    int call = 2) {
  Sabotage of_forward;
  of_forward.forward = std::move(wrong);
  of_forward.call = call;
  return Check(text, of_forward);
}

void ExpectFailure(const Report& report, const std::string& fault, const std::string& text) {
  EXPECT_EQ(report.status, 1);
  EXPECT_EQ(report.text.rfind("FAILED on reference: " + fault, 0), 0u) << report.text;
  const std::string end =
      "\n  rmsnorm check --target reference --case " + text + "\n0 passed, 1 failed\n";
  ASSERT_GE(report.text.size(), end.size());
  EXPECT_EQ(report.text.substr(report.text.size() - end.size()), end);
}

// Three rows of f32, 7 elements each and 12 from one to the next.
const std::string kPadded = "forward,x=f32,weight=f32,y=f32,rows=3,d=7,x_gap=5,y_gap=5,rstd=1";

// The same of gradients.
const std::string kGradientTypes = "backward,x=f32,weight=f32,dy=f32,dx=f32,dw=f32";
const std::string kGradientSizes = kGradientTypes + ",rows=3,d=7";
const std::string kGradients = kGradientSizes + ",x_gap=5,dy_gap=5,dx_gap=5";
const std::string kInPlaceGradients = kGradientSizes + ",x_gap=5,dy_gap=5,in_place=1";

const std::string kOnlyDx = "backward,x=f32,weight=f32,dy=f32,dx=f32,dw=none,rows=3,d=7";
const std::string kOnlyDw = "backward,x=f32,weight=f32,dy=f32,dx=none,dw=f32,rows=3,d=7";
const std::string kOnlyDb = "backward,x=f32,weight=f32,dy=f32,dx=none,dw=none,db=f32,rows=3,d=7";

float* Floats(const rmsnorm_view* view) { return static_cast<float*>(view->data); }
float* Y(const Operands& call) { return Floats(call.y); }

TEST(Check, PassesWhatIsRight) {
  const Report report = CheckForward(kPadded, [](const Operands&) {});
  EXPECT_EQ(report.status, 0);
  EXPECT_EQ(report.text, "1 passed, 0 failed\n");
  EXPECT_EQ(sabotage.forward_calls, 2);
}

TEST(Check, SeesOneWrongBit) {
  for (const int row : {0, 1, 2}) {
    for (const int j : {0, 6}) {
      const Report report = CheckForward(kPadded, [=](const Operands& call) {
        float& element = Y(call)[12 * row + j];
        element = std::nextafter(element, 0.0f);
      });
      ExpectFailure(report, "y[" + std::to_string(row) + ", " + std::to_string(j) + "] is 0x",
                    kPadded);
    }
  }
}

TEST(Check, ShowsTheBits) {
  const Report report = CheckForward("forward,x=f32,weight=none,y=f32,rows=1,d=1,eps=0,divisor=1",
                                     [](const Operands& call) {
                                       Y(call)[0] = 0;
                                     });
  EXPECT_EQ(report.text.rfind("FAILED on reference: y[0, 0] is 0x00000000, not 0x", 0), 0u)
      << report.text;
}

TEST(Check, TellsZerosApart) {
  const std::string zeros = "forward,x=f32,weight=f32,y=f32,rows=1,d=1,values=zero";
  const Report report = CheckForward(zeros, [](const Operands& call) { *Y(call) = -*Y(call); });
  ExpectFailure(report, "y[0, 0] is 0x", zeros);
}

TEST(Check, TakesTwoNansAsEqual) {
  const std::string nans = "forward,x=f32,weight=f32,y=f32,rows=1,d=1,values=nan";
  const Report report = CheckForward(nans, [](const Operands& call) {
    ASSERT_TRUE(std::isnan(*Y(call)));
    const uint32_t another = 0xFFC12345u;
    std::memcpy(Y(call), &another, sizeof another);
  });
  EXPECT_EQ(report.text, "1 passed, 0 failed\n");
}

TEST(Check, TellsNanFromInfinity) {
  const std::string nans = "forward,x=f32,weight=f32,y=f32,rows=1,d=1,values=nan";
  const Report report = CheckForward(
      nans, [](const Operands& call) { *Y(call) = std::numeric_limits<float>::infinity(); });
  ExpectFailure(report, "y[0, 0] is 0x7f800000, not 0x7f", nans);
}

TEST(Check, SeesWritesOutsideTheRows) {
  // Before the first row, in both gaps, and after the last one.
  for (const int position : {-1, -16, 7, 11, 12 + 7, 24 - 1, 24 + 7, 24 + 7 + 16}) {
    const Report report = CheckForward(kPadded, [=](const Operands& call) {
      Y(call)[position] = 1;
    });
    ExpectFailure(report, "y: byte " + std::to_string(4 * position) + " ", kPadded);
  }
}

TEST(Check, SeesWritesOutsideRowsInFallingOrder) {
  const std::string falling = "forward,x=f32,weight=f32,y=f32,rows=3,d=7,x_gap=5,y_gap=5,falling=1";
  for (const int position : {-24 - 1, -24 + 7, -12 - 1, -1, 7}) {
    const Report report = CheckForward(falling, [=](const Operands& call) {
      Y(call)[position] = 1;
    });
    ExpectFailure(report, "y: byte " + std::to_string(4 * position) + " ", falling);
  }
}

TEST(Check, SeesWritesBesideRowsInPlace) {
  const std::string in_place = "forward,x=f16,weight=f32,y=bf16,rows=2,d=9,x_gap=1,in_place=1";
  const Report report = CheckForward(in_place, [](const Operands& call) {
    EXPECT_EQ(call.x->data, call.y->data);
    static_cast<uint16_t*>(call.y->data)[9] = 0;
  });
  ExpectFailure(report, "y: byte 18 ", in_place);
}

TEST(Check, SeesWrongInverseRms) {
  const Report report =
      CheckForward(kPadded, [](const Operands& call) { Floats(call.rstd)[1] = 3; });
  ExpectFailure(report, "rstd[0, 1] is 0x40400000, not 0x", kPadded);
}

TEST(Check, SeesWritesOutsideTheInverseRms) {
  const Report report =
      CheckForward(kPadded, [](const Operands& call) { Floats(call.rstd)[3] = 3; });
  ExpectFailure(report, "rstd: byte 12 ", kPadded);
}

TEST(Check, SeesWrongSums) {
  const std::string two_phases = "forward,x=bf16,weight=f32,y=bf16,rows=3,d=7,call=two_phases";
  const Report report = CheckForward(two_phases, [](const Operands& call) {
    // The bits of y hide a difference this small.
    double& sum = static_cast<double*>(call.sums_out->data)[2];
    sum = std::nextafter(sum, 0.0);
  });
  ExpectFailure(report, "sums[0, 2] is 0x", two_phases);
  EXPECT_EQ(sabotage.forward_calls, 3);
}

TEST(Check, SeesThatAnInputWasWritten) {
  ExpectFailure(CheckForward(kPadded, [](const Operands& call) { Floats(call.x)[0] += 1; }),
                "x was written", kPadded);
  ExpectFailure(CheckForward(kPadded, [](const Operands& call) { Floats(call.weight)[0] += 1; }),
                "the weight was written", kPadded);
}

TEST(Check, SeesWhatIsWrongWithAResidual) {
  // One row of 7 elements; residual_out is apart or in place.
  const std::string apart = "forward,x=f32,weight=f32,y=f32,rows=1,d=7,residual=f32";
  const std::string in_place = apart + ",residual_in_place=1";
  const auto toggle = [](float& element) { element = std::nextafter(element, 0.0f); };
  for (const std::string& text : {apart, in_place}) {
    EXPECT_EQ(CheckForward(text, [](const Operands&) {}).status, 0);
    EXPECT_EQ(sabotage.forward_calls, 2);
    ExpectFailure(CheckForward(text, [&](const Operands& call) { toggle(Y(call)[6]); }),
                  "y[0, 6] is 0x", text);
    ExpectFailure(
        CheckForward(text, [&](const Operands& call) { toggle(Floats(call.residual_out)[6]); }),
        "residual_out[0, 6] is 0x", text);
    ExpectFailure(
        CheckForward(text, [&](const Operands& call) { Floats(call.residual_out)[7] = 1; }),
        "residual_out: byte 28 ", text);
    ExpectFailure(CheckForward(text, [&](const Operands& call) { toggle(Floats(call.x)[0]); }),
                  "x was written", text);
  }
  ExpectFailure(
      CheckForward(apart, [&](const Operands& call) { toggle(Floats(call.residual)[0]); }),
      "the residual was written", apart);
  const Report report = CheckForward(in_place, [](const Operands& call) {
    EXPECT_EQ(call.residual->data, call.residual_out->data);
  });
  EXPECT_EQ(report.status, 0);
}

TEST(Check, SeesWhatIsWrongWithABias) {
  const std::string text = "forward,x=f32,weight=f32,bias=f32,y=f32,rows=3,d=7";
  EXPECT_EQ(CheckForward(text, [](const Operands& call) { ASSERT_NE(call.bias, nullptr); }).status,
            0);
  ExpectFailure(CheckForward(text, [](const Operands& call) { Floats(call.bias)[6] += 1; }),
                "the bias was written", text);
  // A call without it, in the place of one that has it.
  const auto repeat_without_bias = [](const Operands& call) {
    Operands operands = call;
    operands.bias = nullptr;
    EXPECT_EQ(RMSNORM_OK, __real_rmsnorm_forward(&operands, nullptr, nullptr));
  };
  ExpectFailure(CheckForward(text, repeat_without_bias), "y[0, 0] is 0x", text);
}

// Six rows, of three heads in each of two groups. What is expected of each comes from a call of its
// own.
TEST(Check, SeesWhichRowsShareThoseOfWeightAndBias) {
  struct Sharing {
    std::string per;
    std::vector<size_t> shape;
    std::string first_wrong;  // where all rows share one
  };
  for (const Sharing& sharing : {Sharing{"head", {3, 7}, "1"}, Sharing{"group", {2, 1, 7}, "3"},
                                 Sharing{"row", {2, 3, 7}, "1"}}) {
    for (const auto tensor : {&Operands::weight, &Operands::bias}) {
      const std::string text = "forward,x=f32,weight=f32,bias=f32,y=f32,rows=6,d=7,heads=3," +
                               std::string(tensor == &Operands::bias ? "bias" : "weight") +
                               "_per=" + sharing.per;
      const Report right = CheckForward(
          text,
          [&](const Operands& call) {
            const rmsnorm_view& view = *(call.*tensor);
            EXPECT_EQ(std::vector<size_t>(view.shape, view.shape + view.ndim), sharing.shape);
          },
          7);
      EXPECT_EQ(right.text, "1 passed, 0 failed\n");
      EXPECT_EQ(sabotage.forward_calls, 7);
      const Report wrong = CheckForward(
          text,
          [&](const Operands& call) {
            const rmsnorm_view one = rmsnorm_vector((call.*tensor)->data, RMSNORM_F32, 7);
            Operands operands = call;
            operands.*tensor = &one;
            EXPECT_EQ(RMSNORM_OK, __real_rmsnorm_forward(&operands, nullptr, nullptr));
          },
          7);
      ExpectFailure(wrong, "y[" + sharing.first_wrong + ", 0] is 0x",
                    tools::Text(ParseForwardCase(text)));
    }
  }
}

TEST(Check, ReportsWhatTheLibraryRefuses) {
  const std::string refused = "forward,x=f32,weight=f32,y=f32,rows=1,d=1,eps=-1";
  ExpectFailure(CheckForward(refused, [](const Operands&) {}), "refused: ", refused);
}

TEST(Check, CountsEveryCaseOnEveryTarget) {
  sabotage = {};
  std::ostringstream out;
  const std::vector<Case> cases = {ParseCase(kPadded), ParseCase(kGradients), ParseCase(kPadded)};
  EXPECT_EQ(tools::CheckCases(cases, {"reference", "reference"}, out), 0);
  EXPECT_EQ(out.str(), "6 passed, 0 failed\n");
}

// ----------------------------------------------------------------- what is found of gradients

Report CheckBackward(const std::string& text, std::function<void(const Operands&)> wrong,
                     int call = 2) {
  Sabotage of_backward;
  of_backward.backward = std::move(wrong);
  of_backward.call = call;
  return Check(text, of_backward);
}

float* Dx(const Operands& call) { return static_cast<float*>(call.dx->data); }
float* Dw(const Operands& call) { return static_cast<float*>(call.dw->data); }

void Step(float& element) { element = std::nextafter(element, 1e30f); }

TEST(CheckBackward, PassesWhatIsRight) {
  const Report report = CheckBackward(kGradients, [](const Operands&) {});
  EXPECT_EQ(report.status, 0);
  EXPECT_EQ(report.text, "1 passed, 0 failed\n");
  EXPECT_EQ(sabotage.backward_calls, 2);
}

TEST(CheckBackward, SeesOneWrongBitOfDx) {
  for (const int row : {0, 1, 2}) {
    for (const int j : {0, 6}) {
      const Report report =
          CheckBackward(kGradients, [=](const Operands& call) { Step(Dx(call)[12 * row + j]); });
      ExpectFailure(report, "dx[" + std::to_string(row) + ", " + std::to_string(j) + "] is 0x",
                    kGradients);
    }
  }
}

TEST(CheckBackward, SeesOneWrongBitOfDw) {
  for (const int j : {0, 3, 6}) {
    const Report report =
        CheckBackward(kGradients, [=](const Operands& call) { Step(Dw(call)[j]); });
    ExpectFailure(report, "dw[0, " + std::to_string(j) + "] is 0x", kGradients);
  }
}

TEST(CheckBackward, SeesWritesOutsideTheOutputs) {
  for (const int position : {-1, -16, 7, 11, 12 + 7, 24 - 1, 24 + 7, 24 + 7 + 16}) {
    const Report report =
        CheckBackward(kGradients, [=](const Operands& call) { Dx(call)[position] = 1; });
    ExpectFailure(report, "dx: byte " + std::to_string(4 * position) + " ", kGradients);
  }
  for (const int position : {-1, -16, 7, 7 + 16}) {
    const Report report =
        CheckBackward(kGradients, [=](const Operands& call) { Dw(call)[position] = 1; });
    ExpectFailure(report, "dw: byte " + std::to_string(4 * position) + " ", kGradients);
  }
}

TEST(CheckBackward, SeesThatAnInputWasWritten) {
  const std::string text = kGradients + ",rstd=saved";
  const auto expect = [&text](const std::string& fault,
                              const std::function<float*(const Operands&)>& written) {
    ExpectFailure(CheckBackward(text, [&](const Operands& call) { *written(call) = 1; }), fault,
                  text);
  };
  expect("x was written", [](const Operands& call) { return Floats(call.x); });
  expect("x was written", [](const Operands& call) { return Floats(call.x) + 7; });
  expect("dy was written", [](const Operands& call) { return Floats(call.dy) + 1; });
  expect("the weight was written", [](const Operands& call) { return Floats(call.weight); });
  expect("rstd was written", [](const Operands& call) { return Floats(call.rstd) + 2; });
}

TEST(CheckBackward, InPlaceTakesDyAsItWas) {
  const std::string& text = kInPlaceGradients;
  const Report right =
      CheckBackward(text, [](const Operands& call) { EXPECT_EQ(call.dx->data, call.dy->data); });
  EXPECT_EQ(right.text, "1 passed, 0 failed\n");
  ExpectFailure(CheckBackward(text, [](const Operands& call) { Step(Dx(call)[12]); }),
                "dx[1, 0] is 0x", text);
  ExpectFailure(CheckBackward(text, [](const Operands& call) { Dx(call)[11] = 0; }), "dx: byte 44 ",
                text);
}

// The sum is of what was there before, which is not what an output holds where nothing is added.
TEST(CheckBackward, AddsToWhatIsThere) {
  const std::string text = kGradients + ",add_dx=1,add_dw=1";
  const std::string in_place = kInPlaceGradients + ",add_dx=1";
  EXPECT_EQ(CheckBackward(text, [](const Operands& call) { EXPECT_EQ(call.add_to, 3u); }).text,
            "1 passed, 0 failed\n");
  EXPECT_EQ(CheckBackward(in_place, [](const Operands& call) { EXPECT_EQ(call.add_to, 1u); }).text,
            "1 passed, 0 failed\n");
  // A call that does not add, in the place of one that does.
  const auto repeat_without_adding = [](const Operands& call) {
    Operands operands = call;
    operands.add_to = 0;
    EXPECT_EQ(RMSNORM_OK, __real_rmsnorm_backward(&operands, nullptr, nullptr));
  };
  ExpectFailure(CheckBackward(text, repeat_without_adding), "dx[0, 0] is 0x", text);
  const std::string dw_alone = kOnlyDw + ",add_dw=1";
  ExpectFailure(CheckBackward(dw_alone, repeat_without_adding), "dw[0, 0] is 0x", dw_alone);
  const std::string db_alone = kOnlyDb + ",add_db=1";
  ExpectFailure(CheckBackward(db_alone, repeat_without_adding), "db[0, 0] is 0x", db_alone);
}

TEST(CheckBackward, AsksForTheOutputsThatTheCaseNames) {
  struct Output {
    std::string name;
    std::string text;
    const rmsnorm_view* Operands::*view;
    int elements;
  };
  const Output outputs[] = {{"dx", kOnlyDx, &Operands::dx, 21},
                            {"dw", kOnlyDw, &Operands::dw, 7},
                            {"db", kOnlyDb, &Operands::db, 7}};
  for (const Output& output : outputs) {
    SCOPED_TRACE(output.text);
    const Report right = CheckBackward(output.text, [&](const Operands& call) {
      for (const Output& other : outputs) {
        EXPECT_EQ(call.*other.view != nullptr, other.name == output.name) << other.name;
      }
    });
    EXPECT_EQ(right.text, "1 passed, 0 failed\n");
    const auto step = [&](const Operands& call) { Step(Floats(call.*output.view)[0]); };
    ExpectFailure(CheckBackward(output.text, step), output.name + "[0, 0] is 0x", output.text);
    const auto write_behind = [&](const Operands& call) {
      Floats(call.*output.view)[output.elements] = 1;
    };
    ExpectFailure(CheckBackward(output.text, write_behind),
                  output.name + ": byte " + std::to_string(4 * output.elements) + " ", output.text);
  }
}

// Six rows, of three heads in each of two groups. What is expected comes from a call for each row
// of the weight, and one for each of the bias.
TEST(CheckBackward, SeesWhichRowsShareThoseOfWeightAndBias) {
  struct Sharing {
    std::string per;
    std::vector<size_t> shape;
    int rows;
  };
  for (const Sharing& sharing :
       {Sharing{"head", {3, 7}, 3}, Sharing{"group", {2, 1, 7}, 2}, Sharing{"row", {2, 3, 7}, 6}}) {
    const std::string six = kGradientTypes + ",db=f32,rows=6,d=7,heads=3,";
    const int call = sharing.rows + 2;
    const auto expect = [&](const std::string& text, const rmsnorm_view* Operands::*gradient,
                            const std::string& name) {
      SCOPED_TRACE(text);
      const Report right = CheckBackward(
          text,
          [&](const Operands& operands) {
            const rmsnorm_view& view = *(operands.*gradient);
            EXPECT_EQ(std::vector<size_t>(view.shape, view.shape + view.ndim), sharing.shape);
          },
          call);
      EXPECT_EQ(right.text, "1 passed, 0 failed\n");
      EXPECT_EQ(sabotage.backward_calls, call);
      const Report wrong = CheckBackward(
          text, [&](const Operands& operands) { Step(Floats(operands.*gradient)[7 + 2]); }, call);
      ExpectFailure(wrong, name + "[1, 2] is 0x", text);
    };
    expect(six + "weight_per=" + sharing.per, &Operands::dw, "dw");
    expect(six + "bias_per=" + sharing.per, &Operands::db, "db");
    // dx sees rows of the weight.
    const std::string text = six + "weight_per=" + sharing.per;
    const Report wrong = CheckBackward(
        text,
        [&](const Operands& operands) {
          const rmsnorm_view one = rmsnorm_vector(operands.weight->data, RMSNORM_F32, 7);
          Operands shared = operands;
          shared.weight = &one;
          shared.dw = nullptr;
          EXPECT_EQ(RMSNORM_OK, __real_rmsnorm_backward(&shared, nullptr, nullptr));
        },
        call);
    ExpectFailure(wrong, sharing.per == "group" ? "dx[3, 0] is 0x" : "dx[1, 0] is 0x", text);
  }
}

// A result that depends on rstd differs where another one is given.
TEST(CheckBackward, GivesTheInverseRmsThatTheCaseNames) {
  float saved = 0;
  EXPECT_EQ(
      CheckBackward(kGradients, [](const Operands& call) { EXPECT_EQ(call.rstd, nullptr); }).text,
      "1 passed, 0 failed\n");
  CheckBackward(kGradients + ",rstd=saved",
                [&](const Operands& call) { saved = Floats(call.rstd)[1]; });
  EXPECT_GT(saved, 0);
  // Of the rows every other one has a special value, the first of them 0.
  EXPECT_EQ(CheckBackward(kGradients + ",rstd=special",
                          [&](const Operands& call) {
                            EXPECT_EQ(Floats(call.rstd)[0], 0);
                            EXPECT_EQ(Floats(call.rstd)[1], saved);
                            EXPECT_EQ(Floats(call.rstd)[2], -1);
                          })
                .text,
            "1 passed, 0 failed\n");
}

TEST(CheckBackward, TakesTwoNansAsEqual) {
  const std::string nans = kGradientTypes + ",rows=1,d=1,values=nan";
  const Report report = CheckBackward(nans, [](const Operands& call) {
    const uint32_t another = 0xFFC12345u;
    for (float* element : {Dx(call), Dw(call)}) {
      ASSERT_TRUE(std::isnan(*element));
      std::memcpy(element, &another, sizeof another);
    }
  });
  EXPECT_EQ(report.text, "1 passed, 0 failed\n");
}

TEST(CheckBackward, ReportsWhatTheLibraryRefuses) {
  const std::string refused =
      "backward,x=f32,weight=none,dy=f32,dx=f32,dw=f32,rows=1,d=1,weight_offset=1";
  ExpectFailure(CheckBackward(refused, [](const Operands&) {}), "refused: ", refused);
}

// -------------------------------------------------------------------------------------- cases

TEST(CheckCase, ReadsAndWritesEveryField) {
  const std::string text =
      "forward,x=bf16,weight=f16,bias=f32,y=f16,rows=6,d=3,heads=2,weight_per=head,bias_per=group,"
      "call=two_phases,x_shift=4,weight_shift=5,bias_shift=12,y_shift=6,x_gap=7,y_gap=8,falling=1,"
      "rstd=1,eps=0.125,eps_placement=floor,rounding=inverse_rounded,weight_offset=-2,divisor=9.5,"
      "threads=10,executor=1,values=low_edge,special_weight=1,seed=11";
  const ForwardCase c = ParseForwardCase(text);
  EXPECT_EQ(tools::Text(c), text);
  EXPECT_EQ(c.x, Dtype::bf16);
  EXPECT_EQ(c.weight, Dtype::f16);
  EXPECT_EQ(c.bias, Dtype::f32);
  EXPECT_EQ(c.y, Dtype::f16);
  EXPECT_EQ(c.rows, 6u);
  EXPECT_EQ(c.d, 3u);
  EXPECT_EQ(c.heads, 2u);
  EXPECT_EQ(c.weight_per, Per::kHead);
  EXPECT_EQ(c.bias_per, Per::kGroup);
  EXPECT_EQ(c.call, CallKind::kTwoPhases);
  EXPECT_EQ(c.x_shift, 4u);
  EXPECT_EQ(c.weight_shift, 5u);
  EXPECT_EQ(c.bias_shift, 12u);
  EXPECT_EQ(c.y_shift, 6u);
  EXPECT_EQ(c.x_gap, 7u);
  EXPECT_EQ(c.y_gap, 8u);
  EXPECT_TRUE(c.falling);
  EXPECT_TRUE(c.rstd);
  EXPECT_EQ(c.options.eps, 0.125f);
  EXPECT_EQ(c.options.eps_placement, EpsPlacement::floor);
  EXPECT_EQ(c.options.rounding, Rounding::inverse_rounded);
  EXPECT_EQ(c.options.weight_offset, -2.0f);
  EXPECT_EQ(c.options.divisor, 9.5f);
  EXPECT_EQ(c.threads, 10);
  EXPECT_TRUE(c.executor);
  EXPECT_EQ(c.values, Values::kLowEdge);
  EXPECT_TRUE(c.special_weight);
  EXPECT_EQ(c.seed, 11u);
  EXPECT_EQ(ParseForwardCase("forward,rows=1,d=1,weight=none").weight, std::nullopt);
  EXPECT_EQ(ParseForwardCase("forward,rows=1,d=1,weight_per=row").weight_per, Per::kRow);
  EXPECT_EQ(ParseForwardCase("forward,rows=1,d=1,weight_per=tensor").weight_per, Per::kTensor);
  EXPECT_TRUE(ParseForwardCase("forward,rows=1,d=1,repeated=1").repeated);
  EXPECT_TRUE(ParseForwardCase("forward,rows=1,d=1,in_place=1").in_place);

  const std::string added =
      "forward,x=bf16,weight=none,y=f16,rows=2,d=3,residual=f32,residual_shift=4,residual_gap=5,"
      "residual_in_place=1,residual_rounding=norm_then_cast,eps_placement=outside,"
      "rounding=cast_then_scale";
  const ForwardCase with_residual = ParseForwardCase(added);
  EXPECT_EQ(tools::Text(with_residual), added);
  EXPECT_EQ(with_residual.residual, Dtype::f32);
  EXPECT_EQ(with_residual.residual_shift, 4u);
  EXPECT_EQ(with_residual.residual_gap, 5u);
  EXPECT_TRUE(with_residual.residual_in_place);
  EXPECT_EQ(with_residual.options.residual_rounding, ResidualRounding::norm_then_cast);
  EXPECT_EQ(with_residual.options.eps_placement, EpsPlacement::outside);
  EXPECT_EQ(with_residual.options.rounding, Rounding::cast_then_scale);
}

TEST(CheckCase, TextsOfTheListAreRead) {
  for (const ForwardCase& c : tools::ForwardCases()) {
    const std::string text = tools::Text(c);
    EXPECT_EQ(tools::Text(ParseForwardCase(text)), text);
  }
}

TEST(CheckCase, ReadsAndWritesEveryFieldOfBackward) {
  const std::string text =
      "backward,x=bf16,weight=none,dy=f16,dx=f32,dw=bf16,db=f16,rows=6,d=3,heads=2,weight_per=row,"
      "bias_per=head,x_shift=4,weight_shift=5,dy_shift=6,dx_shift=7,dw_shift=8,db_shift=13,x_gap=9,"
      "dy_gap=10,dx_gap=11,falling=1,add_dx=1,add_dw=1,add_db=1,rstd=special,dy_values=finite,"
      "eps=0.125,eps_placement=outside,rounding=cast_then_scale,weight_offset=-2,divisor=9.5,"
      "threads=10,executor=1,values=low_edge,special_weight=1,seed=12";
  const BackwardCase c = ParseBackwardCase(text);
  EXPECT_EQ(tools::Text(c), text);
  EXPECT_EQ(c.x, Dtype::bf16);
  EXPECT_EQ(c.weight, std::nullopt);
  EXPECT_EQ(c.dy, Dtype::f16);
  EXPECT_EQ(c.dx, Dtype::f32);
  EXPECT_EQ(c.dw, Dtype::bf16);
  EXPECT_EQ(c.db, Dtype::f16);
  EXPECT_EQ(c.rows, 6u);
  EXPECT_EQ(c.d, 3u);
  EXPECT_EQ(c.heads, 2u);
  EXPECT_EQ(c.weight_per, Per::kRow);
  EXPECT_EQ(c.bias_per, Per::kHead);
  EXPECT_EQ(c.x_shift, 4u);
  EXPECT_EQ(c.weight_shift, 5u);
  EXPECT_EQ(c.dy_shift, 6u);
  EXPECT_EQ(c.dx_shift, 7u);
  EXPECT_EQ(c.dw_shift, 8u);
  EXPECT_EQ(c.db_shift, 13u);
  EXPECT_EQ(c.x_gap, 9u);
  EXPECT_EQ(c.dy_gap, 10u);
  EXPECT_EQ(c.dx_gap, 11u);
  EXPECT_TRUE(c.falling);
  EXPECT_TRUE(c.add_dx);
  EXPECT_TRUE(c.add_dw);
  EXPECT_TRUE(c.add_db);
  EXPECT_EQ(c.rstd, GivenRstd::kSpecial);
  EXPECT_EQ(c.dy_values, Values::kFinite);
  EXPECT_EQ(c.options.eps, 0.125f);
  EXPECT_EQ(c.options.eps_placement, EpsPlacement::outside);
  EXPECT_EQ(c.options.rounding, Rounding::cast_then_scale);
  EXPECT_EQ(c.options.weight_offset, -2.0f);
  EXPECT_EQ(c.options.divisor, 9.5f);
  EXPECT_EQ(c.threads, 10);
  EXPECT_TRUE(c.executor);
  EXPECT_EQ(c.values, Values::kLowEdge);
  EXPECT_TRUE(c.special_weight);
  EXPECT_EQ(c.seed, 12u);
  EXPECT_EQ(ParseBackwardCase("backward,rows=1,d=1,call=module").call, BackwardCall::kModule);
  EXPECT_EQ(ParseBackwardCase("backward,rows=1,d=1,dx=none").dx, std::nullopt);
  EXPECT_EQ(ParseBackwardCase("backward,rows=1,d=1,dw=none").dw, std::nullopt);
  EXPECT_TRUE(ParseBackwardCase("backward,rows=1,d=1,x_repeated=1").x_repeated);
  EXPECT_TRUE(ParseBackwardCase("backward,rows=1,d=1,dy_repeated=1").dy_repeated);
  EXPECT_TRUE(ParseBackwardCase("backward,rows=1,d=1,in_place=1").in_place);
}

TEST(CheckCase, TextsOfTheBackwardListAreRead) {
  for (const BackwardCase& c : tools::BackwardCases()) {
    const std::string text = tools::Text(c);
    EXPECT_EQ(tools::Text(ParseBackwardCase(text)), text);
  }
}

TEST(CheckCase, TheBackwardListCoversWhatItShould) {
  using Kernel = std::pair<Dtype, Dtype>;  // the types of x and dy choose it
  std::set<std::tuple<Dtype, std::optional<Dtype>, Dtype, Dtype, Dtype>> types;
  std::map<Kernel, std::set<size_t>> sizes;
  std::map<Kernel, std::set<size_t>> rows;
  // Which gradients, in place, and what is added to.
  std::set<std::tuple<Kernel, bool, bool, bool, bool, bool, bool>> outputs;
  std::set<std::tuple<Kernel, Values>> values;
  std::set<std::tuple<Kernel, Values>> dy_values;
  std::set<std::tuple<Kernel, GivenRstd, EpsPlacement>> rstds;
  std::set<std::tuple<Kernel, BackwardCall>> calls;
  std::set<std::tuple<Kernel, Per, Per>> sharing;
  std::set<std::tuple<Kernel, bool, int>> threads;  // of large cases, by executor
  std::set<size_t> shifts[6];
  for (const BackwardCase& c : tools::BackwardCases()) {
    const Kernel kernel = {c.x, c.dy};
    if (c.dx && c.dw) types.insert({c.x, c.weight, c.dy, *c.dx, *c.dw});
    sizes[kernel].insert(c.d);
    if (c.dw) rows[kernel].insert(c.rows);
    outputs.insert({kernel, c.dx.has_value(), c.dw.has_value(), c.db.has_value(), c.in_place,
                    c.add_dx, c.add_dw});
    values.insert({kernel, c.values});
    dy_values.insert({kernel, c.dy_values});
    rstds.insert({kernel, c.rstd, c.options.eps_placement});
    calls.insert({kernel, c.call});
    if (c.weight && c.dw && c.db) sharing.insert({kernel, c.weight_per, c.bias_per});
    if (c.rows * c.d > 5 * 16384) threads.insert({kernel, c.executor, c.threads});
    const size_t shift[] = {c.x_shift,  c.weight_shift, c.dy_shift,
                            c.dx_shift, c.dw_shift,     c.db_shift};
    for (size_t i = 0; i < std::size(shift); ++i) shifts[i].insert(shift[i]);
  }
  EXPECT_EQ(types.size(), 27u * 4 * 3);
  EXPECT_EQ(sizes.size(), 9u);
  for (const auto& [kernel, lengths] : sizes) {
    for (size_t d = 1; d <= 300; ++d) EXPECT_EQ(lengths.count(d), 1u) << d;
    for (const size_t d : {511u, 512u, 513u, 4095u, 4096u, 4097u, 8193u, 16385u, 90001u}) {
      EXPECT_EQ(lengths.count(d), 1u) << d;
    }
  }
  for (const auto& [kernel, numbers] : rows) {
    for (size_t n = 1; n <= 20; ++n) EXPECT_EQ(numbers.count(n), 1u) << n;
    for (const size_t n : {32u, 33u, 1008u, 1009u, 1024u, 1025u, 1500u}) {
      EXPECT_EQ(numbers.count(n), 1u) << n;
    }
  }
  // With and without db: dx in place or not, added to or not; with dw, added to or not; and dw
  // alone.
  EXPECT_EQ(outputs.size(), 9u * 2 * (4 + 4 * 2 + 2));
  EXPECT_EQ(values.size(), 9u * 12);
  EXPECT_EQ(dy_values.size(), 9u * 12);
  EXPECT_EQ(rstds.size(), 9u * 3 * 3);
  EXPECT_EQ(calls.size(), 9u * 2);
  EXPECT_EQ(sharing.size(), 9u * 4 * 4);
  EXPECT_EQ(threads.size(), 9u * 2 * 6);  // OpenMP's choice, and 1 to 5
  for (const std::set<size_t>& places : shifts) EXPECT_GE(places.size(), 32u);
}

TEST(CheckCase, TheListCoversWhatItShould) {
  using Types = std::tuple<Dtype, std::optional<Dtype>, Dtype>;
  std::map<Types, std::set<size_t>> sizes;
  std::set<Types> in_place;
  std::set<std::tuple<Types, Values>> values;
  std::set<std::tuple<Types, CallKind>> calls;
  std::set<std::tuple<Types, EpsPlacement, Rounding>> options;
  std::set<int> threads;
  std::set<int> executor_threads;
  std::set<size_t> x_shifts;
  std::set<size_t> y_shifts;
  std::set<size_t> weight_shifts;
  std::set<size_t> bias_shifts;
  // With a bias: by its type and those of x and y.
  std::map<Types, std::set<size_t>> biased_sizes;
  std::set<std::tuple<Types, Values>> biased_values;
  std::set<std::tuple<Types, Rounding, CallKind>> biased_calls;
  std::set<std::tuple<Dtype, Dtype, bool, Per, Per>> sharing;  // by x, y and whether there is one
  // With a residual: the types of x, the residual and y, and whether the norm is of the rounded
  // sum.
  std::map<std::tuple<Types, ResidualRounding>, std::set<size_t>> added_sizes;
  std::set<std::tuple<Types, ResidualRounding, Values>> added_values;
  std::set<std::tuple<bool, bool, Rounding, CallKind>> added_in_place;
  for (const ForwardCase& c : tools::ForwardCases()) {
    if (c.weight) {
      sharing.insert({c.x, c.y, c.bias.has_value(), c.weight_per, c.bias_per});
    }
    bias_shifts.insert(c.bias_shift);
    if (c.bias) {
      const Types biased = {c.x, c.bias, c.y};
      biased_sizes[biased].insert(c.d);
      biased_values.insert({biased, c.values});
      biased_calls.insert({biased, c.options.rounding, c.call});
      continue;
    }
    if (c.residual) {
      const Types added = {c.x, c.residual, c.y};
      const ResidualRounding rounding = c.options.residual_rounding;
      added_sizes[{added, rounding}].insert(c.d);
      added_values.insert({added, rounding, c.values});
      added_in_place.insert({c.in_place, c.residual_in_place, c.options.rounding, c.call});
      continue;
    }
    const Types types = {c.x, c.weight, c.y};
    sizes[types].insert(c.d);
    if (c.in_place) in_place.insert(types);
    values.insert({types, c.values});
    calls.insert({types, c.call});
    options.insert({types, c.options.eps_placement, c.options.rounding});
    if (c.rows * c.d > 8 * 32768) (c.executor ? executor_threads : threads).insert(c.threads);
    x_shifts.insert(c.x_shift);
    y_shifts.insert(c.y_shift);
    weight_shifts.insert(c.weight_shift);
  }
  EXPECT_EQ(biased_sizes.size(), 27u);
  for (const auto& [types, lengths] : biased_sizes) {
    for (size_t d = 1; d <= 300; ++d) EXPECT_EQ(lengths.count(d), 1u) << d;
  }
  EXPECT_EQ(biased_values.size(), 27u * 11);
  EXPECT_EQ(biased_calls.size(), 27u * 3 * 3);
  EXPECT_EQ(sharing.size(), 9u * (4 + 4 * 4));

  EXPECT_EQ(added_sizes.size(), 27u * 2);
  for (const auto& [types, lengths] : added_sizes) {
    for (size_t d = 1; d <= 300; ++d) EXPECT_EQ(lengths.count(d), 1u) << d;
  }
  EXPECT_EQ(added_values.size(), 27u * 2 * 11);
  EXPECT_EQ(added_in_place.size(), 2u * 2 * 3 * 2);

  EXPECT_EQ(sizes.size(), 36u);  // 27, and 9 without a weight
  for (const auto& [types, lengths] : sizes) {
    for (size_t d = 1; d <= 300; ++d) EXPECT_EQ(lengths.count(d), 1u) << d;
    for (const size_t d : {511u, 512u, 513u, 1000u, 2880u, 4095u, 4096u, 4097u, 8193u, 16385u}) {
      EXPECT_EQ(lengths.count(d), 1u) << d;
    }
  }
  EXPECT_EQ(in_place.size(), 4u * (1 + 4));  // f32 on f32, and f16 or bf16 on either
  EXPECT_EQ(values.size(), 36u * 11);
  EXPECT_EQ(calls.size(), 36u * 3);
  EXPECT_EQ(options.size(), 36u * 3 * 3);
  EXPECT_EQ(threads.size(), 9u);  // OpenMP's choice, and 1 to 8
  EXPECT_EQ(executor_threads.size(), 9u);
  EXPECT_GE(x_shifts.size(), 32u);
  EXPECT_GE(y_shifts.size(), 32u);
  EXPECT_GE(weight_shifts.size(), 32u);
  EXPECT_GE(bias_shifts.size(), 32u);
}

// ------------------------------------------------------------------------------- the command

std::string LastLine(const std::string& text) {
  const size_t end = text.rfind('\n', text.size() - 2);
  return text.substr(end + 1);
}

TEST(CheckCommand, ChecksACaseOnEveryTarget) {
  for (const char* text :
       {"forward,rows=3,d=100,values=mixed", "backward,rows=40,d=100,values=mixed"}) {
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
      {{"--target", "frobnicate"}, "'frobnicate'"},
      {{"--target", "frobnicate", "--case", "forward,rows=1,d=1"}, "'frobnicate'"},
      {{"--target"}, "--target"},
      {{"--frobnicate"}, "--frobnicate"},
      {{"frobnicate"}, "frobnicate"},
      {{"--case"}, "--case"},
      {{"--case", "sideways,rows=1,d=1"}, "'sideways,rows=1,d=1' begins neither with"},
      {{"--case", "forward"}, "'rows' is missing"},
      {{"--case", "forward,rows=1"}, "'d' is missing"},
      {{"--case", "forward,rows=0,d=1"}, "rows and d"},
      {{"--case", "forward,rows=1,d=0"}, "rows and d"},
      {{"--case", "forward,rows=1,d=-1"}, "'-1' is no value for 'd'"},
      {{"--case", "forward,rows=1,d=1x"}, "'1x' is no value for 'd'"},
      {{"--case", "forward,rows=1,d="}, "'' is no value for 'd'"},
      {{"--case", "forward,rows=1,d=1,d=2"}, "'d' is given twice"},
      {{"--case", "forward,rows=1,d=1,size=2"}, "'size'"},
      {{"--case", "forward,rows=1,d=1,rstd"}, "'rstd' is not NAME=VALUE"},
      {{"--case", "forward,rows=1,d=1,rstd=2"}, "'2' is no value for 'rstd'"},
      {{"--case", "forward,rows=1,d=1,x=none"}, "'none' is no value for 'x'"},
      {{"--case", "forward,rows=1,d=1,eps=1e"}, "'1e' is no value for 'eps'"},
      {{"--case", "forward,rows=1,d=1,eps="}, "'' is no value for 'eps'"},
      {{"--case", "forward,rows=99999999999999999999,d=1"}, "'rows'"},
      {{"--case", "forward,rows=1,d=18446744073709551615"}, "2^28"},
      {{"--case", "forward,rows=65536,d=65536"}, "2^28"},
      {{"--case", "forward,rows=2,d=1,x_gap=18446744073709551615"}, "2^28"},
      {{"--case", "forward,rows=1,d=1,x=f16,in_place=1"}, "in_place"},
      {{"--case", "forward,rows=1,d=1,repeated=1,in_place=1"}, "in_place"},
      {{"--case", "forward,rows=1,d=1,y_gap=1,in_place=1"}, "in_place"},
      {{"--case", "forward,rows=1,d=1,repeated=1,x_gap=1"}, "repeated"},
      {{"--case", "forward,rows=2,d=1,residual=f32,residual_gap=18446744073709551615"}, "2^28"},
      {{"--case", "forward,rows=1,d=1,residual=f32,call=two_phases"}, "residual"},
      {{"--case", "forward,rows=1,d=1,residual_shift=1"}, "residual"},
      {{"--case", "forward,rows=1,d=1,residual_gap=1"}, "residual"},
      {{"--case", "forward,rows=1,d=1,residual_in_place=1"}, "residual"},
      {{"--case", "forward,rows=1,d=1,residual_rounding=norm_then_cast"}, "residual"},
      {{"--case", "forward,rows=1,d=1,eps_placement=beside"}, "'beside' is no value"},
      {{"--case", "forward,rows=1,d=1,rounding=up"}, "'up' is no value for 'rounding'"},
      {{"--case", "forward,rows=1,d=1,bias_shift=1"}, "no bias"},
      {{"--case", "forward,rows=1,d=1,bias_per=row"}, "no bias"},
      {{"--case", "forward,rows=1,d=1,weight=none,weight_per=row"}, "no weight"},
      {{"--case", "forward,rows=1,d=1,weight_per=column"}, "'column' is no value"},
      {{"--case", "forward,rows=1,d=1,weight_per=row,call=module"}, "a module's weight_per"},
      {{"--case", "forward,rows=4,d=1,heads=3"}, "multiple of heads"},
      {{"--case", "forward,rows=4,d=1,heads=0"}, "multiple of heads"},
      {{"--case", "backward"}, "'rows' is missing"},
      {{"--case", "backward,rows=1,d=0"}, "rows and d"},
      {{"--case", "backward,rows=1,d=1,y=f16"}, "'y'"},
      {{"--case", "backward,rows=1,d=1,dy=none"}, "'none' is no value for 'dy'"},
      {{"--case", "backward,rows=1,d=1,rstd=1"}, "'1' is no value for 'rstd'"},
      {{"--case", "backward,rows=1,d=1,dx=y"}, "'y' is no value for 'dx'"},
      {{"--case", "backward,rows=1,d=1,dx=none,add_dx=1"}, "no dx"},
      {{"--case", "backward,rows=1,d=1,dx=none,dx_gap=1"}, "no dx"},
      {{"--case", "backward,rows=1,d=1,dw=none,add_dw=1"}, "no dw"},
      {{"--case", "backward,rows=1,d=1,add_db=1"}, "no db"},
      {{"--case", "backward,rows=1,d=1,bias_per=row"}, "no db"},
      {{"--case", "backward,rows=1,d=1,weight=none,dw=none,weight_per=row"}, "no weight or dw"},
      {{"--case", "backward,rows=1,d=1,weight_per=row,call=module"}, "a module's weight_per"},
      {{"--case", "backward,rows=4,d=1,heads=3"}, "multiple of heads"},
      {{"--case", "backward,rows=1,d=1,call=two_phases"}, "'two_phases' is no value for 'call'"},
      {{"--case", "backward,rows=65536,d=65536"}, "2^28"},
      {{"--case", "backward,rows=1,d=1,dx_shift=268435457"}, "2^28"},
      {{"--case", "backward,rows=1,d=1,dx=none,in_place=1"}, "no dx"},
      {{"--case", "backward,rows=1,d=1,dx=f16,in_place=1"}, "in_place"},
      {{"--case", "backward,rows=1,d=1,dy_repeated=1,in_place=1"}, "in_place"},
      {{"--case", "backward,rows=1,d=1,dx_gap=1,in_place=1"}, "in_place"},
      {{"--case", "backward,rows=1,d=1,x_repeated=1,x_gap=1"}, "x_repeated"},
      {{"--case", "backward,rows=1,d=1,dy_repeated=1,dy_gap=1"}, "dy_repeated"},
  };
  for (const auto& [arguments, problem] : wrong) {
    std::vector<std::string> all = {"check"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    SCOPED_TRACE(all.back());
    ExpectUserError(RunCommand(all), problem);
  }
}

}  // namespace
}  // namespace rmsnorm::test
