// SPDX-License-Identifier: Apache-2.0
// Compares every target with the reference
// - for every d from 1 to 4,200, and for lengths and numbers of rows around the sizes that change
//   how a call is computed (lib/thresholds.h, lib/reference.h);
// - for every f16 and bf16 pattern in each operand;
// - for every pair of 24 special numbers in each step of an element.
// In the last two, the oracle also checks the reference. An argument N takes every Nth case only.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "cases/list.h"
#include "cases/number_text.h"
#include "cases/targets.h"
#include "check.h"
#include "oracle.h"

namespace {

using namespace rmsnorm;

constexpr char kSizes[] = R"(
$T=f32|f16|bf16
$ROUNDINGS=after_weight/before_weight/inverse
$PLACES=inside/outside/floor

# Every length. Fields with "/" come last: they take turns over all fields before them.
forward,x=$T,y=$T,d=1..4200,rows=1/3/5,weight=f32/f16/bf16/none,rounding=$ROUNDINGS,
  x_values=normal/mixed,rstd=f32/none,call=plain/module
forward,x+residual+residual_out+y=$T,d=1..4200,rows=1/3,weight=f32/bf16/none,rounding=$ROUNDINGS,
  residual_rounding=rounded/unrounded,x_values=mixed/normal
forward,x+gate+y=$T,d=1..4200,rows=1/3,post_norm_weight=none/f32,q=i8,scale=f32,
  gate_rounding=unrounded/rounded,activation=silu/sigmoid,x_values=normal/mixed
backward,x+dy+dx=$T,d=1..4200,rows=1/3/5,weight=f32/none,dw=f32/bf16,db=none/f32,rstd=f32/none,
  eps_placement=$PLACES,x_values=normal/finite

# Lengths around each threshold of a row, with few rows: kernels work through groups of rows.
$SHORT=127|128|129|511|512|513|1023|1024|1025|2047|2048|2049
$LONG=3071|3072|3073|4095|4096|4097|8191|8192|8193|32767|32768|32769
forward,x+y=$T,d=$SHORT|$LONG,rows=1|2|3|4|5,weight=f32/bf16/none,rounding=$ROUNDINGS,
  x_values=normal/mixed,threads=1/3
forward,x+residual+residual_out+y=$T,d=$SHORT|$LONG,rows=1|3|5,rounding=$ROUNDINGS,threads=1/3
backward,x+dy+dx=$T,dw=f32,d=$SHORT|$LONG,rows=1|3|5,rstd=f32/none,eps_placement=$PLACES,threads=1/3
# Numbers of rows around the steps of the addition, and around the blocks of dw and db.
$ROWS=15|16|17|31|32|33|63|64|65|127|128|129|1007|1008|1009|1023|1024|1025
forward,x+residual+residual_out+y=$T,d=7|32|64,rows=$ROWS,threads=1/3
backward,x+dy+dx=$T,dw=f32,db=bf16,d=7|32|64,rows=$ROWS,threads=1/3
)";

// "$16" is a type of 16 bits, "$T" any type, and "$IN_TURN" any type, without more cases. With
// "$ONE" the inverse RMS is 1 unless numbers are huge, so that a later step sees each number as it
// is: in f32 with eps inside, and in binary64 with the floor. With "$FLOOR", dx is r * g: a NaN
// does not spread over its row.
constexpr char kNames[] = R"(
$16=f16|bf16
$T=f32|f16|bf16
$IN_TURN=f32/f16/bf16
$ROUNDINGS=after_weight|before_weight|inverse
$ORDERS=after_weight/before_weight/inverse
$PLACEMENTS=inside|outside|floor
$ONE=eps=1,divisor=8e37,rstd=f32,eps_placement=inside/floor
$FLOOR=eps=1,divisor=8e37,eps_placement=floor
)";

// Every pattern in an operand with the rows of x.
constexpr char kPatternsOfRows[] = R"(
forward,x=$16,y=$T,$SHAPE,x_values=every,rounding=$ROUNDINGS,eps_placement=$PLACEMENTS,rstd=f32,
  divisor=8e37/0,eps=1/1e-5/0,weight=none/f32/bf16
forward,x=$16,y=$T,$SHAPE,x_values=every,rounding=$ROUNDINGS,weight_offset=0/1,
  weight+bias=$IN_TURN,bias_values=normal/zero,$ONE

# A sum with zeros is the pattern itself, and the sum with itself its double.
$SUMS=residual_rounding=rounded|unrounded,y=$IN_TURN,weight=none/f32,rounding=$ORDERS,$ONE
forward,x=$16,residual+residual_out=$T,$SHAPE,x_values=every,residual_values=zero|normal|tiny,$SUMS
forward,x=$T,residual+residual_out=$16,$SHAPE,x_values=zero|normal|tiny,residual_values=every,$SUMS
forward,x=$16,residual=$16,$SHAPE,x_values+residual_values=every,$SUMS
forward,x=$T,residual+residual_out=$16,weight+y=none,$SHAPE,residual_values=every,
  x_values=normal|zero

forward,x=$16,y=$T,$SHAPE,x_values=every,gate_placement=after|before,gate=$IN_TURN,
  activation=silu/sigmoid,rounding=$ORDERS,$ONE
forward,x=$T,gate=$16,$SHAPE,gate_values=every,rounding=$ROUNDINGS,activation=silu|sigmoid,
  gate_rounding=unrounded|rounded,y=$IN_TURN,x_values=floor/normal,$ONE
forward,x=$T,gate=$16,$SHAPE,gate_values=every,gate_placement=before,activation=silu|sigmoid,
  x_values=floor|normal,y=$IN_TURN,rounding=$ORDERS,$ONE
forward,x+gate=$16,y=$T,$SHAPE,x_values+gate_values=every,gate_placement=after|before,$ONE

forward,x=$16,y=$T,$SHAPE,x_values=every,rounding=$ROUNDINGS,factor=1|0.22,rstd=f32,
  eps_placement=inside/outside/floor,eps=1e-5/0,post_norm_weight=f32/bf16
forward,x=$16,weight+y=none,residual+residual_out=$T,$SHAPE,x_values=every,residual_values=zero,
  factor=0.22|-3|1e30|0x1p-149

forward,x=$16,weight=none,y=none|f32|f16|bf16,q=i8,scale=f32,zero=i8|none,$SHAPE,x_values=every,
  rounding=$ORDERS,eps=1/0,divisor=8e37/0,rstd=f32
forward,x=f32|bf16,gate=$16,y=none|bf16,q=i8,scale=f32,zero=i8|none,$SHAPE,x_values=floor,
  gate_values=every,$ONE
forward,x=$16,residual+residual_out=$16,y=none,q=i8,scale=f32,zero=i8|none,$SHAPE,
  residual_values=every,residual_rounding=rounded|unrounded,x_values=zero,$ONE
forward,x=$16,weight+y=none,sums_out=f64,$SHAPE,x_values=every,divisor=0|1|100.5
forward,x=$16,weight=none,y=$T,sums=f64,$SHAPE,x_values=every,sums_values=normal|special,$ONE

backward,x=$16,dy=$T,dw=none,$SHAPE,x_values=every,rstd=f32|none,eps_placement=$PLACEMENTS,
  weight=f32/none,dx=$IN_TURN,eps=1e-5/0
backward,x=$T,dy=$16,dw=none,$SHAPE,dy_values=every,rstd=f32|none,eps_placement=$PLACEMENTS,
  weight=f32/none,dx=$IN_TURN,eps=1e-5/0
backward,x+dy=$16,dw=none,$SHAPE,x_values+dy_values=every,rstd=f32|none,dx=$IN_TURN,$FLOOR
backward,x+dy=$T,dx=$16,dw=none,$SHAPE,dx_add=1,dx_values=every,rstd=f32/none
)";

// Every pattern in an operand with columns: in one row, or in a row for each row of x.
constexpr char kPatternsOfColumns[] = R"(
$WEIGHT=weight=$16,weight_values=every
$BIAS=bias=$16,bias_values=every
$POST=post_norm_weight=$16,post_norm_weight_values=every
$SCALED=rounding=$ROUNDINGS,x_values=floor/normal,y=$IN_TURN,$ONE
forward,x=$T,$WEIGHT,rows=1,d=65536,weight_offset=0|1|-0.25,$SCALED
forward,x=$T,$WEIGHT,rows=256,d=256,weight_per=row,weight_offset=0|1,$SCALED
forward,x=$T,$BIAS,rows=1,d=65536,$SCALED,weight=none/f32/bf16
forward,x=$T,$BIAS,rows=256,d=256,bias_per=row,$SCALED,weight=none/f32/bf16
forward,x=$T,weight+bias=$16,weight_values+bias_values=every,rows=1,d=65536,$SCALED
forward,x=$T,$POST,rows=1,d=65536,weight=none,$SCALED,residual+residual_out=$IN_TURN,
  residual_values=normal/zero
forward,x=$T,$POST,rows=256,d=256,post_norm_weight_per=row,weight=none,$SCALED
forward,x=$T,$WEIGHT,rows=1,d=65536,gate_rounding=unrounded|rounded,$SCALED,gate=$IN_TURN
forward,x=f32|bf16,$WEIGHT,y=none,q=i8,scale=f32,zero=i8|none,rows=256,d=256,weight_per=row,
  x_values=floor,$ONE

backward,x=$T,dy=$T,$WEIGHT,rows=2,d=65536,dx+dw=$IN_TURN,rstd=f32/none,$FLOOR
backward,x=$T,dy=$T,$WEIGHT,rows=256,d=256,weight_per+dw_per=row,eps_placement=$PLACEMENTS,
  rstd=f32/none,dx+dw=$IN_TURN
# A gradient is added to every pattern.
backward,x+dy=$T,dx=none,dw=$16,rows=2,d=65536,dw_add=1,dw_values=every,db=$IN_TURN,rstd=f32/none
backward,x+dy=$T,dx+dw=none,db=$16,rows=2,d=65536,db_add=1,db_values=every
# Every pattern of dy is a gradient.
backward,x=$T,dy=$16,dx=none,rows=256,d=256,dy_values=every,weight_per+dw_per+db_per=row,
  weight+dw=$IN_TURN,rstd=f32/none,db=f32/bf16/f16
)";

// Every pair of the 24 special numbers in each step of an element, and every triple where a step
// has three operands. Sums over a row or over blocks of rows, and the scale of integers, get
// special numbers, but not every pair.
constexpr char kPairs[] = R"(
$ALL=rows=24,d=576
# A row for each pair, where one element of a row would hide the others.
$ALONE=rows=576,d=1
forward,x=$T,weight=$T,y=$T,$ALL,x_values=outer,weight_values=inner,rounding=$ROUNDINGS,
  weight_offset=0/1,$ONE
forward,x=$T,weight=$T,bias=$T,$ALL,x_values=outer,weight_values=middle,bias_values=inner,
  rounding=$ROUNDINGS,weight_offset=0/1,y=$IN_TURN,$ONE
forward,x=$T,weight=$T,gate=$T,$ALL,x_values=outer,weight_values=middle,gate_values=inner,
  activation=silu|sigmoid,gate_rounding=unrounded|rounded,y=$IN_TURN,rounding=$ORDERS,$ONE
forward,x=$T,gate=$T,y=$T,$ALONE,x_values=middle,gate_values=inner,gate_placement=before,
  activation=silu|sigmoid,rounding=$ORDERS,$ONE

$OFFSETS=1|-1|0.1|-1.5|0x1p-149|-0x1p-133|0x1p-24|65504|-0x1.fep127|0x1.fffffep127
forward,x=$T,weight=$T,y=$T,rows=1,d=24,x_values=floor,weight_values=inner,weight_offset=$OFFSETS,
  rounding=$ORDERS,$ONE
$FACTORS=-1|0.1|-1.5|0x1p-149|-0x1p-133|0x1p-24|65504|-0x1.fep127|0x1.fffffep127
forward,x=$T,residual+residual_out=$T,weight+y=none,rows=1,d=576,x_values=middle,
  residual_values=inner,factor=$FACTORS
forward,x=$T,y=$T,rows=24,d=1,x_values=inner,factor=$FACTORS,$ONE
$EPS=0|0x1p-149|0x1p-126|0x1p-101|1e-5|1|0x1p100
forward,x=$T,weight=none,y=$T,rows=24,d=1,x_values=inner,eps=$EPS,eps_placement=$PLACEMENTS,
  divisor=1|100.5|0x1p126,rstd=f32/none,rounding=$ORDERS

forward,x=$T,residual+residual_out=$T,weight+y=none,$ALL,x_values=outer,residual_values=inner
forward,x=$T,residual+residual_out=$T,y=$T,$ALONE,x_values=middle,residual_values=inner,
  residual_rounding=rounded|unrounded,rounding=$ORDERS,$ONE
forward,x=$T,post_norm_weight=$T,residual+residual_out=$T,weight+y=none,$ALL,x_values=outer,
  post_norm_weight_values=middle,residual_values=inner,weight_offset=0,rounding=$ORDERS,$ONE
# The sum of a row is given.
forward,x=$T,weight=none,y=$T,sums=f64,rows=24,d=24,x_values=inner,sums_values=special,
  eps_placement=$PLACEMENTS,eps=0|1e-5,divisor=1,rounding=$ORDERS
# Integers of rows of one number, and of several.
$INTEGERS=y=none,q=i8,scale=f32,zero=i8|none,x_values=floor,weight_per=row,weight_values=inner
forward,x=$T,weight=$T,$ALONE,$INTEGERS,$ONE
forward,x=$T,weight=$T,rows=24,d=2..20,$INTEGERS,$ONE

backward,x=$T,dy=$T,weight=$T,dw=none,$ALL,x_values=outer,dy_values=middle,weight_values=inner,
  weight_offset=0/1,dx=$IN_TURN,$FLOOR
backward,x=$T,dy=$T,weight=$T,$ALONE,x_values=middle,dy_values=inner,weight_per+dw_per+db_per=row,
  rstd=f32|none,eps_placement=$PLACEMENTS,eps=1e-5/0,dx+dw+db=$IN_TURN
# Each pair with each special inverse RMS.
backward,x=$T,dy=$T,weight=$T,$ALL,x_values=middle,dy_values=inner,weight_per+dw_per=row,rstd=f32,
  rstd_values=special,dx+dw=$IN_TURN,$FLOOR
# Gradients are added to existing ones.
backward,x=f32,dy=$T,weight=none,dx=$T,dw=none,$ALL,dy_values=middle,dx_add=1,dx_values=inner,$FLOOR
backward,x=f32,dy=$T,weight+dx=none,dw+db=$T,rows=1,d=576,x_values=floor,dy_values=middle,
  dw_add+db_add=1,dw_values+db_values=inner,$FLOOR
# Two rows are added: with every d from 24 to 47, each number meets each other one.
backward,x=f32,dy=$T,weight+dx=none,dw+db=$T,rows=2,d=24..47,x_values=floor,dy_values=inner,$FLOOR
)";

struct Part {
  std::string name;
  cases::List list;
  bool has_oracle;
};

std::vector<Part> Parts() {
  const auto list = [](const std::string& lines) { return cases::List(kNames + lines); };
  std::vector<Part> parts;
  for (const std::string shape : {"rows=65536,d=1", "rows=4096,d=16", "rows=16,d=4096"}) {
    parts.push_back(
        {"every pattern, " + shape, list("$SHAPE=" + shape + "\n" + kPatternsOfRows), true});
  }
  parts.push_back({"every pattern of a column", list(kPatternsOfColumns), true});
  parts.push_back({"every pair of special numbers", list(kPairs), true});
  parts.push_back({"every length", cases::List(kSizes), false});
  return parts;
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t every = 1;
  if (argc > 2 || (argc == 2 && !cases::ReadNumber(argv[1], every)) || every == 0) {
    std::cerr << "usage: exhaustive_cases [N]\n";
    return 2;
  }
  int status = 0;
  for (const Part& part : Parts()) {
    const size_t count = (part.list.size() + every - 1) / every;
    std::cout << part.name << ": " << count << " cases" << std::endl;
    tools::Checker checker(count, cases::SupportedTargets(), std::cout);
    cases::Runner runner;
    size_t index = 0;
    size_t elements = 0;
    size_t faults = 0;
    test::Worst worst;
    part.list.ForEach([&](const cases::Calls& calls) {
      if (index++ % every != 0) return;
      checker.Check(calls, runner);
      elements += calls[0].RowCount() * calls[0].d;
      if (!part.has_oracle) return;
      runner.Set(calls);  // a failure sets others
      const std::string fault = test::FaultOf(calls[0], runner.problem(), worst);
      if (fault.empty()) return;
      ++faults;
      std::cout << "The reference is wrong: " << fault << "\n  " << cases::Text(calls) << std::endl;
    });
    std::cout << elements << " elements; ";
    if (part.has_oracle) std::cout << faults << " outside the oracle's ranges; ";
    if (checker.Finish() != 0 || faults != 0) status = 1;
  }
  return status;
}
