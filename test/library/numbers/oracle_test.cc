// SPDX-License-Identifier: Apache-2.0
// The reference's results are within the ranges of the oracle in binary64, for lists of cases. The
// other targets have its bits: `rmsnorm check`.
#include "oracle.h"

#include <gtest/gtest.h>

#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "cases/list.h"
#include "error_bounds.h"
#include "exact.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

using internal::kRstd;

// "$T" and "$OPTIONS" mean the same in each list.
constexpr char kNames[] = R"(
$T=f32|f16|bf16
$ROUNDINGS=after_weight/before_weight/inverse
$PLACEMENTS=inside|outside|floor
)";

struct Named {
  const char* name;
  const char* list;
};

constexpr Named kLists[] = {
    {"AdverseRows", R"(
forward,x=$T,weight=f32,y=$T,rstd=f32|none,rows=6,x_values=adverse,d=1|2|3|7|64|127|128|129|255,
  eps_placement=$PLACEMENTS,rounding=after_weight|before_weight|inverse,eps=0/1e-6/1e-5/0.5,
  divisor=0|100.5,weight_offset=0/1,bias=none/f32
forward,x=$T,weight=f32,y=$T,rstd=f32/none,rows=6,x_values=adverse/normal/massive,
  d=1000|2880|4095|4096|4097|8193|16385,eps_placement=$PLACEMENTS,
  rounding=after_weight|before_weight|inverse,eps=0
forward,x=f32,rstd=f32,y=none,rows=6,d=300000,x_values=adverse,eps_placement=$PLACEMENTS
)"},
    // Zeros, subnormal and huge numbers, NaN and infinity, and rows around the safe range.
    {"SpecialRows", R"(
forward,x=$T,weight=f32,y=$T,rstd=f32|none,rows=26,x_values=mixed,d=1|2|31|64|129|1000,
  eps=0|1e-30|1e-5,eps_placement=$PLACEMENTS,rounding=$ROUNDINGS,bias=none/bf16
forward,x=$T,weight=$T,y=$T,rows=5,d=100,weight_values=special,x_values=normal|zero|special,
  rounding=$ROUNDINGS,weight_offset=0/1
forward,x=$T,weight+bias=f32|bf16,y=$T,rows=5,d=100,weight_values=normal/special,
  bias_values=special,x_values=normal|zero|special,rounding=$ROUNDINGS,weight_offset=0/1
forward,x=f32|bf16,y=f32,rstd=f32|none,rows=40,d=1|4|100|200,eps=0,x_values=low_edge|high_edge|bits,
  eps_placement=$PLACEMENTS
)"},
    // The inverse RMS is exactly 1 or 8, from the floor: every later rounding must be exact.
    {"ExactInverses", R"(
$EXACT=eps_placement=floor,eps=1/0.125,divisor=1e20,d=7|300,rows=9,x_values=mixed,
  rounding=after_weight|before_weight|inverse
forward,x=$T,weight=$T,y=$T,$EXACT,weight_offset=0/1,weight_values=normal/special
forward,x=$T,weight+bias=$T,y=$T,$EXACT,weight_offset=0/1,weight_values=normal/special,
  bias_values=special/normal
)"},
    {"SumsOfSquares", R"(
forward,x=$T,y=none,sums_out=f64,rows=26,x_values=mixed,d=1|2|31|64|129|1000|4097|8193,
  divisor=0/1/100.5
forward,x=f32,y=none,sums_out=f64,rows=6,x_values=adverse,d=1|128|4096|4097|16385
forward,x=$T,residual=$T,y=none,sums_out=f64,rows=13,x_values=mixed,d=3|1000,
  residual_rounding=rounded|unrounded
forward,x=$T,y=$T,sums=f64,rstd=f32/none,rows=24,d=2|31|300,sums_values=normal|special,
  x_values=normal/mixed,eps_placement=$PLACEMENTS,eps=0/1e-5,rounding=$ROUNDINGS
)"},
    // The steps around the norm: post-norm, factor, gate, residual.
    {"Steps", R"(
$STEPS=post_norm_weight=f32|none,factor=0|0.22,d=2|7|130|4097,rows=4,weight=none/f32/bf16,
  bias=none/none/f32,rounding=$ROUNDINGS,eps=1e-5/0,eps_placement=inside/outside/floor
$GATE=gate=$T,activation=silu/sigmoid,gate_values=normal/mixed
forward,x=$T,y=$T,$STEPS,x_values=massive/mixed,rstd=f32/none
forward,x=$T,y=$T,$STEPS,$GATE,gate_placement=before,x_values=massive/tiny
forward,x=$T,y=$T,$STEPS,$GATE,gate_rounding=unrounded|rounded,x_values=massive/huge
forward,x=$T,residual+residual_out=$T,y=f32/f16/bf16,$STEPS,x_values=massive/mixed/subnormal,
  residual_values=normal/mixed,residual_rounding=rounded|unrounded,rstd=none/f32
forward,x=$T,residual+residual_out=f32/f16/bf16,y=$T,$STEPS,$GATE,gate_rounding=unrounded/rounded,
  residual_rounding=rounded|unrounded,x_values=massive/mixed
)"},
    {"QuantisedOutputs", R"(
forward,x=$T,weight=f32,weight_per=row,weight_values=mixed/massive,y=$T|none,q=i8,scale=f32,
  zero=i8|none,rows=39,d=2|31|300|4100,x_values=floor,eps_placement=floor,eps=1,divisor=1e20
forward,x=$T,weight=f32/none,y=$T|none,q=i8,scale=f32,zero=i8|none,rows=13,d=1|2|31|300|4100,
  x_values=mixed/massive,gate=none/f32,rounding=$ROUNDINGS,rstd=f32/none
forward,x=bf16,residual+residual_out=$T,y=none,q=i8,scale=f32,zero=i8|none,rows=7,d=31|300,
  residual_rounding=rounded|unrounded,x_values=massive/mixed,rstd=f32
)"},
    {"Gradients", R"(
backward,x=$T,dy=$T,weight=f32,dx=f32/f16/bf16,dw=bf16/f32/f16,db=f16/bf16/f32,rows=20,
  d=1|2|3|64|127|129|300|4097,x_values=normal/massive,dy_values=massive/normal,
  eps_placement=$PLACEMENTS,eps=1e-5|0.5,divisor=0|100.5,weight_offset=0|1,rstd=none/f32,
  dx_add=0/1,dw_add=1/0,db_add=0/0/1
)"},
    // Rows in binary64 whose gradients fit f32, and products whose sum does not.
    {"GradientsOfRowsInBinary64", R"(
backward,x+dy+weight+dx+dw+db=f32,rows=20,d=200,eps=0,eps_placement=$PLACEMENTS,rstd=none|f32,
  x_values=tiny|low_edge|high_edge|huge,dy_values=normal|wide
backward,x+dy+dx=f32,dw=none,rows=20,d=200,rstd=none|f32,x_values=normal|massive,dy_values=huge
backward,x+dy+dx+dw+db=f32,rows=20,d=200,eps_placement=$PLACEMENTS,x_values=zero
)"},
    {"GradientsOfManyRows", R"(
backward,x+dy+weight+dx+dw+db=f32,rows=5000,d=7
)"},
    // Weights and biases with one row for all rows of x, for some of them, and for each.
    {"GradientsOfSharedRows", R"(
backward,x+weight+dx+dw=f32,dy=bf16,db=f32,rows=5x3x20,d=33,
  weight_per+dw_per=tensor|head|group|row|alternate|first,
  db_per=tensor|head|group|row|alternate|first
)"},
};

class OracleTest : public testing::TestWithParam<Named> {};

// Prints the worst distance from the middle of a range, as a share of the bound.
TEST_P(OracleTest, HoldsEveryResult) {
  Worst worst;
  const cases::List list(std::string(kNames) + GetParam().list);
  size_t faults = 0;
  list.ForEach([&](const cases::Calls& calls) {
    if (faults == 3) return;
    const std::string fault = FaultOf(calls[0], cases::Problem(calls[0]), worst);
    if (fault.empty()) return;
    ADD_FAILURE() << cases::Text(calls) << ": " << fault;
    ++faults;
  });
  for (int i = 0; i < internal::kOperands; ++i) {
    if (worst.of[i] == 0) continue;
    std::printf("%s: at most %.3f of the bound\n", internal::kOperandRules[i].name, worst.of[i]);
  }
  std::printf("%zu cases\n", list.size());
}

INSTANTIATE_TEST_SUITE_P(Lists, OracleTest, testing::ValuesIn(kLists),
                         [](const auto& list) { return std::string(list.param.name); });

// The bound is useful only if rows come near it.
TEST(Bound, IsNotMuchWiderThanWhatAdversariesReach) {
  const cases::Case c =
      cases::Parse("forward,x+rstd=f32,y=none,rows=6,d=4096,x_values=adverse,eps=0");
  Worst worst;
  EXPECT_EQ("", FaultOf(c, cases::Problem(c), worst));
  EXPECT_GT(worst.of[kRstd], 0.5);
}

// The parts of a row are on different devices. Their sums add up in binary64, and round to f32.
TEST(Sums, OfPartsGiveTheNormOfTheWholeRow) {
  Random random(33);
  for (const Values values : {Values::kNormal, Values::kMassive, Values::kHuge, Values::kTiny}) {
    for (const size_t d : std::vector<size_t>{6, 300, 4092, 12000}) {
      const Rows x = Draw(random, values, RMSNORM_F32, 1, d);
      Sum exact;
      for (size_t j = 0; j < d; ++j) exact.Add(Get(x, 0, j) * Get(x, 0, j));
      Options options;
      options.divisor = static_cast<float>(d);
      const double exact_rms =
          std::sqrt(exact.Get() / static_cast<double>(d) + double{options.eps});
      for (const size_t parts : std::vector<size_t>{2, 3, 6}) {
        double sum = 0;
        for (size_t part = 0; part < parts; ++part) {
          double sum_of_part;
          ForwardOperands first;
          first.x = {reinterpret_cast<const float*>(x.row(0)) + part * (d / parts), d / parts};
          first.sums_out = {&sum_of_part, 1};
          forward(first, options);
          sum += sum_of_part;
        }
        float rstd;
        ForwardOperands second;
        second.x = ConstView(ViewOf(x));
        second.sums = {&sum, 1};
        second.rstd = {&rstd, 1};
        forward(second, options);
        const double theta = InverseRmsTheta(d / parts, RMSNORM_EPS_INSIDE) + kUnit / 2;
        EXPECT_NEAR(double{rstd} * exact_rms, 1, std::expm1(theta)) << d << " " << parts;
      }
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test
