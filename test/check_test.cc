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

// The arguments of a call that has just been made.
struct Forward {
  const rmsnorm_view* x;
  const rmsnorm_view* weight;
  const rmsnorm_view* y;
  float* rstd;
};

struct AddForward {
  const rmsnorm_view* x;
  const rmsnorm_view* residual;
  const rmsnorm_view* residual_out;
  const rmsnorm_view* y;
};

struct Backward {
  const rmsnorm_view* dy;
  const rmsnorm_view* x;
  const rmsnorm_view* weight;
  const float* rstd;
  const rmsnorm_view* dx;
  const rmsnorm_view* dw;
  uint32_t flags;
};

// What happens to the second call of each function: the first one computes what is expected.
struct Sabotage {
  std::function<void(const Forward&)> forward;
  std::function<void(double* sums)> sum_squares;
  std::function<void(const AddForward&)> add_forward;
  std::function<void(const Backward&)> backward;
  int forward_calls = 0;
  int add_forward_calls = 0;
  int sum_squares_calls = 0;
  int backward_calls = 0;
};
Sabotage sabotage;

}  // namespace
}  // namespace rmsnorm::test

extern "C" {
rmsnorm_status __real_rmsnorm_forward(const rmsnorm_view* x, const rmsnorm_view* weight,
                                      const rmsnorm_view* y, float* rstd,
                                      const rmsnorm_options* options) noexcept;
rmsnorm_status __wrap_rmsnorm_forward(const rmsnorm_view* x, const rmsnorm_view* weight,
                                      const rmsnorm_view* y, float* rstd,
                                      const rmsnorm_options* options) noexcept;
rmsnorm_status __real_rmsnorm_add_forward(const rmsnorm_view* x, const rmsnorm_view* residual,
                                          const rmsnorm_view* weight,
                                          const rmsnorm_view* residual_out, const rmsnorm_view* y,
                                          float* rstd, const rmsnorm_options* options) noexcept;
rmsnorm_status __wrap_rmsnorm_add_forward(const rmsnorm_view* x, const rmsnorm_view* residual,
                                          const rmsnorm_view* weight,
                                          const rmsnorm_view* residual_out, const rmsnorm_view* y,
                                          float* rstd, const rmsnorm_options* options) noexcept;
rmsnorm_status __real_rmsnorm_sum_squares(const rmsnorm_view* x, double* sums,
                                          const rmsnorm_options* options) noexcept;
rmsnorm_status __wrap_rmsnorm_sum_squares(const rmsnorm_view* x, double* sums,
                                          const rmsnorm_options* options) noexcept;
rmsnorm_status __real_rmsnorm_backward(const rmsnorm_view* dy, const rmsnorm_view* x,
                                       const rmsnorm_view* weight, const float* rstd,
                                       const rmsnorm_view* dx, const rmsnorm_view* dw,
                                       uint32_t flags, const rmsnorm_options* options) noexcept;
rmsnorm_status __wrap_rmsnorm_backward(const rmsnorm_view* dy, const rmsnorm_view* x,
                                       const rmsnorm_view* weight, const float* rstd,
                                       const rmsnorm_view* dx, const rmsnorm_view* dw,
                                       uint32_t flags, const rmsnorm_options* options) noexcept;
}

rmsnorm_status __wrap_rmsnorm_forward(const rmsnorm_view* x, const rmsnorm_view* weight,
                                      const rmsnorm_view* y, float* rstd,
                                      const rmsnorm_options* options) noexcept {
  using rmsnorm::test::sabotage;
  const rmsnorm_status status = __real_rmsnorm_forward(x, weight, y, rstd, options);
  if (++sabotage.forward_calls == 2 && sabotage.forward) sabotage.forward({x, weight, y, rstd});
  return status;
}

rmsnorm_status __wrap_rmsnorm_add_forward(const rmsnorm_view* x, const rmsnorm_view* residual,
                                          const rmsnorm_view* weight,
                                          const rmsnorm_view* residual_out, const rmsnorm_view* y,
                                          float* rstd, const rmsnorm_options* options) noexcept {
  using rmsnorm::test::sabotage;
  const rmsnorm_status status =
      __real_rmsnorm_add_forward(x, residual, weight, residual_out, y, rstd, options);
  if (++sabotage.add_forward_calls == 2 && sabotage.add_forward) {
    sabotage.add_forward({x, residual, residual_out, y});
  }
  return status;
}

rmsnorm_status __wrap_rmsnorm_sum_squares(const rmsnorm_view* x, double* sums,
                                          const rmsnorm_options* options) noexcept {
  using rmsnorm::test::sabotage;
  const rmsnorm_status status = __real_rmsnorm_sum_squares(x, sums, options);
  if (++sabotage.sum_squares_calls == 2 && sabotage.sum_squares) sabotage.sum_squares(sums);
  return status;
}

rmsnorm_status __wrap_rmsnorm_backward(const rmsnorm_view* dy, const rmsnorm_view* x,
                                       const rmsnorm_view* weight, const float* rstd,
                                       const rmsnorm_view* dx, const rmsnorm_view* dw,
                                       uint32_t flags, const rmsnorm_options* options) noexcept {
  using rmsnorm::test::sabotage;
  const rmsnorm_status status =
      __real_rmsnorm_backward(dy, x, weight, rstd, dx, dw, flags, options);
  if (++sabotage.backward_calls == 2 && sabotage.backward) {
    sabotage.backward({dy, x, weight, rstd, dx, dw, flags});
  }
  return status;
}

namespace rmsnorm::test {
namespace {

using tools::BackwardCall;
using tools::BackwardCase;
using tools::Call;
using tools::Case;
using tools::ForwardCase;
using tools::GivenRstd;
using tools::Outputs;
using tools::ParseBackwardCase;
using tools::ParseCase;
using tools::ParseForwardCase;
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

Report CheckForward(const std::string& forward_case, std::function<void(const Forward&)> wrong) {
  Sabotage sabotage_of_forward;
  sabotage_of_forward.forward = std::move(wrong);
  return Check(forward_case, sabotage_of_forward);
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
const std::string kGradientSizes = "backward,x=f32,weight=f32,dy=f32,dw=f32,rows=3,d=7";
const std::string kGradients = kGradientSizes + ",x_gap=5,dy_gap=5,dx_gap=5";
const std::string kInPlaceGradients = kGradientSizes + ",x_gap=5,dy_gap=5,in_place=1";

float* Y(const Forward& call) { return static_cast<float*>(call.y->data); }

TEST(Check, PassesWhatIsRight) {
  const Report report = CheckForward(kPadded, [](const Forward&) {});
  EXPECT_EQ(report.status, 0);
  EXPECT_EQ(report.text, "1 passed, 0 failed\n");
  EXPECT_EQ(sabotage.forward_calls, 2);
}

TEST(Check, SeesOneWrongBit) {
  for (const int row : {0, 1, 2}) {
    for (const int j : {0, 6}) {
      const Report report = CheckForward(kPadded, [=](const Forward& call) {
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
                                     [](const Forward& call) {
                                       Y(call)[0] = 0;
                                     });
  EXPECT_EQ(report.text.rfind("FAILED on reference: y[0, 0] is 0x00000000, not 0x", 0), 0u)
      << report.text;
}

TEST(Check, TellsZerosApart) {
  const std::string zeros = "forward,x=f32,weight=f32,y=f32,rows=1,d=1,values=zero";
  const Report report = CheckForward(zeros, [](const Forward& call) { *Y(call) = -*Y(call); });
  ExpectFailure(report, "y[0, 0] is 0x", zeros);
}

TEST(Check, TakesTwoNansAsEqual) {
  const std::string nans = "forward,x=f32,weight=f32,y=f32,rows=1,d=1,values=nan";
  const Report report = CheckForward(nans, [](const Forward& call) {
    ASSERT_TRUE(std::isnan(*Y(call)));
    const uint32_t another = 0xFFC12345u;
    std::memcpy(Y(call), &another, sizeof another);
  });
  EXPECT_EQ(report.text, "1 passed, 0 failed\n");
}

TEST(Check, TellsNanFromInfinity) {
  const std::string nans = "forward,x=f32,weight=f32,y=f32,rows=1,d=1,values=nan";
  const Report report = CheckForward(
      nans, [](const Forward& call) { *Y(call) = std::numeric_limits<float>::infinity(); });
  ExpectFailure(report, "y[0, 0] is 0x7f800000, not 0x7f", nans);
}

TEST(Check, SeesWritesOutsideTheRows) {
  // Before the first row, in both gaps, and after the last one.
  for (const int position : {-1, -16, 7, 11, 12 + 7, 24 - 1, 24 + 7, 24 + 7 + 16}) {
    const Report report = CheckForward(kPadded, [=](const Forward& call) {
      Y(call)[position] = 1;
    });
    ExpectFailure(report, "y: byte " + std::to_string(4 * position) + " ", kPadded);
  }
}

TEST(Check, SeesWritesOutsideRowsInFallingOrder) {
  const std::string falling = "forward,x=f32,weight=f32,y=f32,rows=3,d=7,x_gap=5,y_gap=5,falling=1";
  for (const int position : {-24 - 1, -24 + 7, -12 - 1, -1, 7}) {
    const Report report = CheckForward(falling, [=](const Forward& call) {
      Y(call)[position] = 1;
    });
    ExpectFailure(report, "y: byte " + std::to_string(4 * position) + " ", falling);
  }
}

TEST(Check, SeesWritesBesideRowsInPlace) {
  const std::string in_place = "forward,x=f16,weight=f32,y=bf16,rows=2,d=9,x_gap=1,in_place=1";
  const Report report = CheckForward(in_place, [](const Forward& call) {
    EXPECT_EQ(call.x->data, call.y->data);
    static_cast<uint16_t*>(call.y->data)[9] = 0;
  });
  ExpectFailure(report, "y: byte 18 ", in_place);
}

TEST(Check, SeesWrongInverseRms) {
  const Report report = CheckForward(kPadded, [](const Forward& call) { call.rstd[1] = 3; });
  ExpectFailure(report, "rstd[0, 1] is 0x40400000, not 0x", kPadded);
}

TEST(Check, SeesWritesOutsideTheInverseRms) {
  const Report report = CheckForward(kPadded, [](const Forward& call) { call.rstd[3] = 3; });
  ExpectFailure(report, "rstd: byte 12 ", kPadded);
}

TEST(Check, SeesWrongSums) {
  Sabotage wrong;
  wrong.sum_squares = [](double* sums) {
    // The bits of y hide a difference this small.
    sums[2] = std::nextafter(sums[2], 0.0);
  };
  const std::string two_phases = "forward,x=bf16,weight=f32,y=bf16,rows=3,d=7,call=two_phases";
  ExpectFailure(Check(two_phases, wrong), "sums[0, 2] is 0x", two_phases);
}

TEST(Check, SeesThatAnInputWasWritten) {
  ExpectFailure(
      CheckForward(kPadded, [](const Forward& call) { static_cast<float*>(call.x->data)[0] += 1; }),
      "x was written", kPadded);
  ExpectFailure(
      CheckForward(kPadded,
                   [](const Forward& call) { static_cast<float*>(call.weight->data)[0] += 1; }),
      "the weight was written", kPadded);
}

TEST(Check, SeesWhatIsWrongWithAResidual) {
  // One row of 7 elements; residual_out is apart or in place.
  const std::string apart = "forward,x=f32,weight=f32,y=f32,rows=1,d=7,residual=f32";
  const std::string in_place = apart + ",residual_in_place=1";
  const auto check = [](const std::string& text, std::function<void(const AddForward&)> wrong) {
    Sabotage of_add;
    of_add.add_forward = std::move(wrong);
    return Check(text, of_add);
  };
  const auto floats = [](const rmsnorm_view* view) { return static_cast<float*>(view->data); };
  const auto toggle = [](float& element) { element = std::nextafter(element, 0.0f); };
  for (const std::string& text : {apart, in_place}) {
    EXPECT_EQ(check(text, [](const AddForward&) {}).status, 0);
    EXPECT_EQ(sabotage.add_forward_calls, 2);
    EXPECT_EQ(sabotage.forward_calls, 0);
    ExpectFailure(check(text, [&](const AddForward& call) { toggle(floats(call.y)[6]); }),
                  "y[0, 6] is 0x", text);
    ExpectFailure(
        check(text, [&](const AddForward& call) { toggle(floats(call.residual_out)[6]); }),
        "residual_out[0, 6] is 0x", text);
    ExpectFailure(check(text, [&](const AddForward& call) { floats(call.residual_out)[7] = 1; }),
                  "residual_out: byte 28 ", text);
    ExpectFailure(check(text, [&](const AddForward& call) { toggle(floats(call.x)[0]); }),
                  "x was written", text);
  }
  ExpectFailure(check(apart, [&](const AddForward& call) { toggle(floats(call.residual)[0]); }),
                "the residual was written", apart);
  EXPECT_EQ(
      check(in_place,
            [](const AddForward& call) { EXPECT_EQ(call.residual->data, call.residual_out->data); })
          .status,
      0);
}

TEST(Check, ReportsWhatTheLibraryRefuses) {
  const std::string refused = "forward,x=f32,weight=f32,y=f32,rows=1,d=1,eps=-1";
  ExpectFailure(CheckForward(refused, [](const Forward&) {}), "refused: ", refused);
}

TEST(Check, CountsEveryCaseOnEveryTarget) {
  sabotage = {};
  std::ostringstream out;
  const std::vector<Case> cases = {ParseCase(kPadded), ParseCase(kGradients), ParseCase(kPadded)};
  EXPECT_EQ(tools::CheckCases(cases, {"reference", "reference"}, out), 0);
  EXPECT_EQ(out.str(), "6 passed, 0 failed\n");
}

// ----------------------------------------------------------------- what is found of gradients

Report CheckBackward(const std::string& text, std::function<void(const Backward&)> wrong) {
  Sabotage sabotage_of_backward;
  sabotage_of_backward.backward = std::move(wrong);
  return Check(text, sabotage_of_backward);
}

float* Dx(const Backward& call) { return static_cast<float*>(call.dx->data); }
float* Dw(const Backward& call) { return static_cast<float*>(call.dw->data); }

void Step(float& element) { element = std::nextafter(element, 1e30f); }

TEST(CheckBackward, PassesWhatIsRight) {
  const Report report = CheckBackward(kGradients, [](const Backward&) {});
  EXPECT_EQ(report.status, 0);
  EXPECT_EQ(report.text, "1 passed, 0 failed\n");
  EXPECT_EQ(sabotage.backward_calls, 2);
}

TEST(CheckBackward, SeesOneWrongBitOfDx) {
  for (const int row : {0, 1, 2}) {
    for (const int j : {0, 6}) {
      const Report report =
          CheckBackward(kGradients, [=](const Backward& call) { Step(Dx(call)[12 * row + j]); });
      ExpectFailure(report, "dx[" + std::to_string(row) + ", " + std::to_string(j) + "] is 0x",
                    kGradients);
    }
  }
}

TEST(CheckBackward, SeesOneWrongBitOfDw) {
  for (const int j : {0, 3, 6}) {
    const Report report =
        CheckBackward(kGradients, [=](const Backward& call) { Step(Dw(call)[j]); });
    ExpectFailure(report, "dw[0, " + std::to_string(j) + "] is 0x", kGradients);
  }
}

TEST(CheckBackward, SeesWritesOutsideTheOutputs) {
  for (const int position : {-1, -16, 7, 11, 12 + 7, 24 - 1, 24 + 7, 24 + 7 + 16}) {
    const Report report =
        CheckBackward(kGradients, [=](const Backward& call) { Dx(call)[position] = 1; });
    ExpectFailure(report, "dx: byte " + std::to_string(4 * position) + " ", kGradients);
  }
  for (const int position : {-1, -16, 7, 7 + 16}) {
    const Report report =
        CheckBackward(kGradients, [=](const Backward& call) { Dw(call)[position] = 1; });
    ExpectFailure(report, "dw: byte " + std::to_string(4 * position) + " ", kGradients);
  }
}

TEST(CheckBackward, SeesThatAnInputWasWritten) {
  const std::string text = kGradients + ",rstd=saved";
  const auto expect = [&text](const std::string& fault,
                              const std::function<float*(const Backward&)>& written) {
    ExpectFailure(CheckBackward(text, [&](const Backward& call) { *written(call) = 1; }), fault,
                  text);
  };
  const auto data = [](const rmsnorm_view* view) { return static_cast<float*>(view->data); };
  expect("x was written", [&](const Backward& call) { return data(call.x); });
  expect("x was written", [&](const Backward& call) { return data(call.x) + 7; });
  expect("dy was written", [&](const Backward& call) { return data(call.dy) + 1; });
  expect("the weight was written", [&](const Backward& call) { return data(call.weight); });
  expect("rstd was written",
         [](const Backward& call) { return const_cast<float*>(call.rstd) + 2; });
}

TEST(CheckBackward, InPlaceTakesDyAsItWas) {
  const std::string& text = kInPlaceGradients;
  const Report right =
      CheckBackward(text, [](const Backward& call) { EXPECT_EQ(call.dx->data, call.dy->data); });
  EXPECT_EQ(right.text, "1 passed, 0 failed\n");
  ExpectFailure(CheckBackward(text, [](const Backward& call) { Step(Dx(call)[12]); }),
                "dx[1, 0] is 0x", text);
  ExpectFailure(CheckBackward(text, [](const Backward& call) { Dx(call)[11] = 0; }), "dx: byte 44 ",
                text);
}

// The sum is of what was there before, which is not what an output holds where nothing is added.
TEST(CheckBackward, AddsToWhatIsThere) {
  const std::string text = kGradients + ",add_dx=1,add_dw=1";
  const std::string in_place = kInPlaceGradients + ",add_dx=1";
  EXPECT_EQ(CheckBackward(text, [](const Backward& call) { EXPECT_EQ(call.flags, 3u); }).text,
            "1 passed, 0 failed\n");
  EXPECT_EQ(CheckBackward(in_place, [](const Backward& call) { EXPECT_EQ(call.flags, 1u); }).text,
            "1 passed, 0 failed\n");
  // A call that does not add, in the place of one that does.
  const auto repeat_without_flags = [](const Backward& call) {
    EXPECT_EQ(RMSNORM_OK, __real_rmsnorm_backward(call.dy, call.x, call.weight, call.rstd, call.dx,
                                                  call.dw, 0, nullptr));
  };
  ExpectFailure(CheckBackward(text, repeat_without_flags), "dx[0, 0] is 0x", text);
  const std::string dw_alone = kGradientSizes + ",outputs=dw,add_dw=1";
  ExpectFailure(CheckBackward(dw_alone, repeat_without_flags), "dw[0, 0] is 0x", dw_alone);
}

TEST(CheckBackward, AsksForTheOutputsThatTheCaseNames) {
  const std::string dx = kGradientSizes + ",outputs=dx";
  const std::string dw = kGradientSizes + ",outputs=dw";
  EXPECT_EQ(CheckBackward(dx,
                          [](const Backward& call) {
                            EXPECT_EQ(call.dw, nullptr);
                            EXPECT_NE(call.dx, nullptr);
                          })
                .text,
            "1 passed, 0 failed\n");
  EXPECT_EQ(CheckBackward(dw,
                          [](const Backward& call) {
                            EXPECT_EQ(call.dx, nullptr);
                            EXPECT_NE(call.dw, nullptr);
                          })
                .text,
            "1 passed, 0 failed\n");
  ExpectFailure(CheckBackward(dx, [](const Backward& call) { Step(Dx(call)[0]); }),
                "dx[0, 0] is 0x", dx);
  ExpectFailure(CheckBackward(dw, [](const Backward& call) { Step(Dw(call)[0]); }),
                "dw[0, 0] is 0x", dw);
}

// A result that depends on rstd differs where another one is given.
TEST(CheckBackward, GivesTheInverseRmsThatTheCaseNames) {
  float saved = 0;
  EXPECT_EQ(
      CheckBackward(kGradients, [](const Backward& call) { EXPECT_EQ(call.rstd, nullptr); }).text,
      "1 passed, 0 failed\n");
  CheckBackward(kGradients + ",rstd=saved", [&](const Backward& call) { saved = call.rstd[1]; });
  EXPECT_GT(saved, 0);
  // Of the rows every other one has a special value, the first of them 0.
  EXPECT_EQ(CheckBackward(kGradients + ",rstd=special",
                          [&](const Backward& call) {
                            EXPECT_EQ(call.rstd[0], 0);
                            EXPECT_EQ(call.rstd[1], saved);
                            EXPECT_EQ(call.rstd[2], -1);
                          })
                .text,
            "1 passed, 0 failed\n");
}

TEST(CheckBackward, TakesTwoNansAsEqual) {
  const std::string nans = "backward,x=f32,weight=f32,dy=f32,dw=f32,rows=1,d=1,values=nan";
  const Report report = CheckBackward(nans, [](const Backward& call) {
    const uint32_t another = 0xFFC12345u;
    for (float* element : {Dx(call), Dw(call)}) {
      ASSERT_TRUE(std::isnan(*element));
      std::memcpy(element, &another, sizeof another);
    }
  });
  EXPECT_EQ(report.text, "1 passed, 0 failed\n");
}

TEST(CheckBackward, ReportsWhatTheLibraryRefuses) {
  const std::string refused = "backward,x=f32,weight=none,dy=f32,dw=f32,rows=1,d=1,weight_offset=1";
  ExpectFailure(CheckBackward(refused, [](const Backward&) {}), "refused: ", refused);
}

// -------------------------------------------------------------------------------------- cases

TEST(CheckCase, ReadsAndWritesEveryField) {
  const std::string text =
      "forward,x=bf16,weight=none,y=f16,rows=2,d=3,call=two_phases,x_shift=4,weight_shift=5,y_"
      "shift=6,"
      "x_gap=7,y_gap=8,falling=1,eps=0.125,eps_outside=1,cast_then_scale=1,weight_offset=-2,"
      "divisor=9.5,rstd=1,threads=10,executor=1,values=low_edge,special_weight=1,seed=11";
  const ForwardCase c = ParseForwardCase(text);
  EXPECT_EQ(tools::Text(c), text);
  EXPECT_EQ(c.x, Dtype::bf16);
  EXPECT_EQ(c.weight, std::nullopt);
  EXPECT_EQ(c.y, Dtype::f16);
  EXPECT_EQ(c.rows, 2u);
  EXPECT_EQ(c.d, 3u);
  EXPECT_EQ(c.call, Call::kTwoPhases);
  EXPECT_EQ(c.x_shift, 4u);
  EXPECT_EQ(c.weight_shift, 5u);
  EXPECT_EQ(c.y_shift, 6u);
  EXPECT_EQ(c.x_gap, 7u);
  EXPECT_EQ(c.y_gap, 8u);
  EXPECT_TRUE(c.falling);
  EXPECT_EQ(c.eps, 0.125f);
  EXPECT_TRUE(c.eps_outside);
  EXPECT_TRUE(c.cast_then_scale);
  EXPECT_EQ(c.weight_offset, -2.0f);
  EXPECT_EQ(c.divisor, 9.5f);
  EXPECT_TRUE(c.rstd);
  EXPECT_EQ(c.threads, 10);
  EXPECT_TRUE(c.executor);
  EXPECT_EQ(c.values, Values::kLowEdge);
  EXPECT_TRUE(c.special_weight);
  EXPECT_EQ(c.seed, 11u);
  EXPECT_TRUE(ParseForwardCase("forward,rows=1,d=1,repeated=1").repeated);
  EXPECT_TRUE(ParseForwardCase("forward,rows=1,d=1,in_place=1").in_place);

  const std::string added =
      "forward,x=bf16,weight=none,y=f16,rows=2,d=3,residual=f32,residual_shift=4,residual_gap=5,"
      "residual_in_place=1,norm_then_cast=1";
  const ForwardCase with_residual = ParseForwardCase(added);
  EXPECT_EQ(tools::Text(with_residual), added);
  EXPECT_EQ(with_residual.residual, Dtype::f32);
  EXPECT_EQ(with_residual.residual_shift, 4u);
  EXPECT_EQ(with_residual.residual_gap, 5u);
  EXPECT_TRUE(with_residual.residual_in_place);
  EXPECT_TRUE(with_residual.norm_then_cast);
}

TEST(CheckCase, TextsOfTheListAreRead) {
  for (const ForwardCase& c : tools::ForwardCases()) {
    const std::string text = tools::Text(c);
    EXPECT_EQ(tools::Text(ParseForwardCase(text)), text);
  }
}

TEST(CheckCase, ReadsAndWritesEveryFieldOfBackward) {
  const std::string text =
      "backward,x=bf16,weight=none,dy=f16,dw=bf16,rows=2,d=3,call=module,outputs=dx,dx_f32=1,"
      "x_shift=4,"
      "weight_shift=5,dy_shift=6,dx_shift=7,dw_shift=8,x_gap=9,dy_gap=10,dx_gap=11,falling=1,"
      "add_dx=1,add_dw=1,eps=0.125,eps_outside=1,cast_then_scale=1,weight_offset=-2,divisor=9.5,"
      "rstd=special,threads=10,executor=1,values=low_edge,dy_values=finite,special_weight=1,"
      "seed=12";
  const BackwardCase c = ParseBackwardCase(text);
  EXPECT_EQ(tools::Text(c), text);
  EXPECT_EQ(c.x, Dtype::bf16);
  EXPECT_EQ(c.weight, std::nullopt);
  EXPECT_EQ(c.dy, Dtype::f16);
  EXPECT_EQ(c.dw, Dtype::bf16);
  EXPECT_EQ(c.rows, 2u);
  EXPECT_EQ(c.d, 3u);
  EXPECT_EQ(c.call, BackwardCall::kModule);
  EXPECT_EQ(c.outputs, Outputs::kDx);
  EXPECT_TRUE(c.dx_f32);
  EXPECT_EQ(c.x_shift, 4u);
  EXPECT_EQ(c.weight_shift, 5u);
  EXPECT_EQ(c.dy_shift, 6u);
  EXPECT_EQ(c.dx_shift, 7u);
  EXPECT_EQ(c.dw_shift, 8u);
  EXPECT_EQ(c.x_gap, 9u);
  EXPECT_EQ(c.dy_gap, 10u);
  EXPECT_EQ(c.dx_gap, 11u);
  EXPECT_TRUE(c.falling);
  EXPECT_TRUE(c.add_dx);
  EXPECT_TRUE(c.add_dw);
  EXPECT_EQ(c.eps, 0.125f);
  EXPECT_TRUE(c.eps_outside);
  EXPECT_TRUE(c.cast_then_scale);
  EXPECT_EQ(c.weight_offset, -2.0f);
  EXPECT_EQ(c.divisor, 9.5f);
  EXPECT_EQ(c.rstd, GivenRstd::kSpecial);
  EXPECT_EQ(c.threads, 10);
  EXPECT_TRUE(c.executor);
  EXPECT_EQ(c.values, Values::kLowEdge);
  EXPECT_EQ(c.dy_values, Values::kFinite);
  EXPECT_TRUE(c.special_weight);
  EXPECT_EQ(c.seed, 12u);
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
  std::set<std::tuple<Dtype, std::optional<Dtype>, Dtype, Dtype>> types;
  std::map<Kernel, std::set<size_t>> sizes;
  std::map<Kernel, std::set<size_t>> rows;
  std::set<std::tuple<Kernel, Outputs, bool, bool, bool>> outputs;  // in place, what is added to
  std::set<std::tuple<Kernel, Values>> values;
  std::set<std::tuple<Kernel, Values>> dy_values;
  std::set<std::tuple<Kernel, GivenRstd, bool>> rstds;  // eps outside
  std::set<std::tuple<Kernel, BackwardCall>> calls;
  std::set<std::tuple<Kernel, bool, int>> threads;  // of large cases, by executor
  std::set<size_t> shifts[5];
  for (const BackwardCase& c : tools::BackwardCases()) {
    const Kernel kernel = {c.x, c.dy};
    types.insert({c.x, c.weight, c.dy, c.dw});
    sizes[kernel].insert(c.d);
    if (c.outputs != Outputs::kDx) rows[kernel].insert(c.rows);
    outputs.insert({kernel, c.outputs, c.in_place, c.add_dx && c.outputs != Outputs::kDw,
                    c.add_dw && c.outputs != Outputs::kDx});
    values.insert({kernel, c.values});
    dy_values.insert({kernel, c.dy_values});
    rstds.insert({kernel, c.rstd, c.eps_outside});
    calls.insert({kernel, c.call});
    if (c.rows * c.d > 5 * 16384) threads.insert({kernel, c.executor, c.threads});
    const size_t shift[] = {c.x_shift, c.weight_shift, c.dy_shift, c.dx_shift, c.dw_shift};
    for (size_t i = 0; i < 5; ++i) shifts[i].insert(shift[i]);
  }
  EXPECT_EQ(types.size(), 27u * 4);
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
  // dx in place or not, added to or not; with dw, added to or not; and dw alone.
  EXPECT_EQ(outputs.size(), 9u * (4 + 4 * 2 + 2));
  EXPECT_EQ(values.size(), 9u * 12);
  EXPECT_EQ(dy_values.size(), 9u * 12);
  EXPECT_EQ(rstds.size(), 9u * 3 * 2);
  EXPECT_EQ(calls.size(), 9u * 2);
  EXPECT_EQ(threads.size(), 9u * 2 * 6);  // OpenMP's choice, and 1 to 5
  for (const std::set<size_t>& places : shifts) EXPECT_GE(places.size(), 32u);
}

TEST(CheckCase, TheListCoversWhatItShould) {
  using Types = std::tuple<Dtype, std::optional<Dtype>, Dtype>;
  std::map<Types, std::set<size_t>> sizes;
  std::set<Types> in_place;
  std::set<std::tuple<Types, Values>> values;
  std::set<std::tuple<Types, Call>> calls;
  std::set<int> threads;
  std::set<int> executor_threads;
  std::set<size_t> x_shifts;
  std::set<size_t> y_shifts;
  std::set<size_t> weight_shifts;
  // With a residual: the types of x, the residual and y, and whether the norm is of the rounded
  // sum.
  std::map<std::tuple<Types, bool>, std::set<size_t>> added_sizes;
  std::set<std::tuple<Types, bool, Values>> added_values;
  std::set<std::tuple<bool, bool, bool, Call>> added_in_place;
  for (const ForwardCase& c : tools::ForwardCases()) {
    if (c.residual) {
      const Types added_types = {c.x, c.residual, c.y};
      added_sizes[{added_types, c.norm_then_cast}].insert(c.d);
      added_values.insert({added_types, c.norm_then_cast, c.values});
      added_in_place.insert({c.in_place, c.residual_in_place, c.cast_then_scale, c.call});
      continue;
    }
    const Types types = {c.x, c.weight, c.y};
    sizes[types].insert(c.d);
    if (c.in_place) in_place.insert(types);
    values.insert({types, c.values});
    calls.insert({types, c.call});
    if (c.rows * c.d > 8 * 32768) (c.executor ? executor_threads : threads).insert(c.threads);
    x_shifts.insert(c.x_shift);
    y_shifts.insert(c.y_shift);
    weight_shifts.insert(c.weight_shift);
  }
  EXPECT_EQ(added_sizes.size(), 5u * 3 * 2);
  for (const auto& [types, lengths] : added_sizes) {
    for (size_t d = 1; d <= 300; ++d) EXPECT_EQ(lengths.count(d), 1u) << d;
  }
  EXPECT_EQ(added_values.size(), 5u * 3 * 2 * 11);
  EXPECT_EQ(added_in_place.size(), 2u * 2 * 2 * 2);

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
  EXPECT_EQ(threads.size(), 9u);  // OpenMP's choice, and 1 to 8
  EXPECT_EQ(executor_threads.size(), 9u);
  EXPECT_GE(x_shifts.size(), 32u);
  EXPECT_GE(y_shifts.size(), 32u);
  EXPECT_GE(weight_shifts.size(), 32u);
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
      {{"--case", "forward,rows=1,d=1,norm_then_cast=1"}, "residual"},
      {{"--case", "backward"}, "'rows' is missing"},
      {{"--case", "backward,rows=1,d=0"}, "rows and d"},
      {{"--case", "backward,rows=1,d=1,y=f16"}, "'y'"},
      {{"--case", "backward,rows=1,d=1,dw=none"}, "'none' is no value for 'dw'"},
      {{"--case", "backward,rows=1,d=1,rstd=1"}, "'1' is no value for 'rstd'"},
      {{"--case", "backward,rows=1,d=1,outputs=y"}, "'y' is no value for 'outputs'"},
      {{"--case", "backward,rows=1,d=1,call=two_phases"}, "'two_phases' is no value for 'call'"},
      {{"--case", "backward,rows=65536,d=65536"}, "2^28"},
      {{"--case", "backward,rows=1,d=1,dx_shift=268435457"}, "2^28"},
      {{"--case", "backward,rows=1,d=1,outputs=dw,in_place=1"}, "in_place"},
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
