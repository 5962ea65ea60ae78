// SPDX-License-Identifier: Apache-2.0
// Compares every target with the reference for every d from 1 to 4,200, and for lengths and numbers
// of rows around the sizes that change how a call is computed (lib/thresholds.h, lib/reference.h).
// An argument N takes every Nth case only.
#include <cstdlib>
#include <iostream>
#include <string>

#include "cases/list.h"
#include "check.h"
#include "targets.h"

namespace {

constexpr char kList[] = R"(
$T=f32|f16|bf16
$ROUNDINGS=after_weight/before_weight/inverse
$PLACES=inside/outside/floor

# Every length.
forward,x=$T,weight=f32/f16/bf16/none,y=$T,d=1..4200,rows=1/3/5,rounding=$ROUNDINGS,
  x_values=normal/mixed,rstd=f32/none,call=plain/module
forward,x+residual+residual_out+y=$T,weight=f32/bf16/none,d=1..4200,rows=1/3,rounding=$ROUNDINGS,
  residual_rounding=rounded/unrounded,x_values=mixed/normal
forward,x+gate+y=$T,post_norm_weight=none/f32,d=1..4200,rows=1/3,q=i8,scale=f32,
  gate_rounding=unrounded/rounded,activation=silu/sigmoid,x_values=normal/mixed
backward,x+dy+dx=$T,weight=f32/none,dw=f32/bf16,db=none/f32,d=1..4200,rows=1/3/5,rstd=f32/none,
  eps_placement=$PLACES,x_values=normal/finite

# Lengths around each threshold of a row, with few rows: kernels work through groups of rows.
$SHORT=127|128|129|511|512|513|1023|1024|1025|2047|2048|2049
$LONG=3071|3072|3073|4095|4096|4097|8191|8192|8193|32767|32768|32769
forward,x+y=$T,weight=f32/bf16/none,d=$SHORT|$LONG,rows=1|2|3|4|5,rounding=$ROUNDINGS,
  x_values=normal/mixed,threads=1/3
forward,x+residual+residual_out+y=$T,d=$SHORT|$LONG,rows=1|3|5,rounding=$ROUNDINGS,threads=1/3
backward,x+dy+dx=$T,dw=f32,d=$SHORT|$LONG,rows=1|3|5,rstd=f32/none,eps_placement=$PLACES,threads=1/3
# Numbers of rows around the steps of the addition, and around the blocks of dw and db.
$ROWS=15|16|17|31|32|33|63|64|65|127|128|129|1007|1008|1009|1023|1024|1025
forward,x+residual+residual_out+y=$T,d=7|32|64,rows=$ROWS,threads=1/3
backward,x+dy+dx=$T,dw=f32,db=bf16,d=7|32|64,rows=$ROWS,threads=1/3
)";

}  // namespace

int main(int argc, char** argv) {
  const size_t every = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1;
  if (every == 0) {
    std::cerr << "usage: exhaustive_cases [N]\n";
    return 2;
  }
  using namespace rmsnorm;
  const cases::List list(kList);
  const size_t count = (list.size() + every - 1) / every;
  std::cout << count << " cases" << std::endl;
  tools::Checker checker(count, tools::SupportedTargets(), std::cout);
  cases::Runner runner;
  size_t index = 0;
  list.ForEach([&](const cases::Calls& calls) {
    if (index++ % every == 0) checker.Check(calls, runner);
  });
  return checker.Finish();
}
