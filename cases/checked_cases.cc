// SPDX-License-Identifier: Apache-2.0
#include "list.h"

namespace rmsnorm::cases {

const char kCheckedCases[] = R"(
$T=f32|f16|bf16
$ROUNDINGS=after_weight/before_weight/inverse
# Lengths on both sides of a vector, of a half and a whole set of lanes, and of a block.
$EDGES=1|15|33|64|100|127|128|129|300
$LONG=511|512|513|1000|2880|4095|4096|4097|8193|16385

# ------------------------------------------------------------------------------------- forward

# Every combination of types, and every length up to 300: groups of rows and the remaining rows.
forward,x=$T,weight=f32|f16|bf16|none,y=$T,d=1..300,rows=5/9,rounding=$ROUNDINGS,
  x_values=mixed/normal,rstd=f32,sums=none/f64,call=plain|module
# Around blocks of lanes and of 4,096.
forward,x=$T,weight=f32|f16|bf16|none,y=$T,d=$LONG,rows=2/5,rounding=$ROUNDINGS,
  x_values=normal/mixed,rstd=f32,sums=none/f64,call=plain|module
# The first of two phases, and sums beside y.
forward,x=$T,y=none,d=1..300,rows=5/9,x_values=mixed,sums_out=f64
forward,x=$T,y=$T,d=$EDGES|4097,rows=9,x_values=mixed,sums_out=f64,sums=none/f64,rstd=none/f32
# Sums that do not belong to the rows.
forward,x=$T,y=$T,d=$EDGES,rows=23,sums=f64,sums_values=special,x_values=mixed/normal,
  rounding=$ROUNDINGS,eps_placement=inside|outside|floor,rstd=f32/none
# Kimi-K2: rows of 7,168, and the 1,536 and 512 elements of a row of 2,112 for its attention norms.
forward,x=$T,y=$T,d=7168,rows=1|5,weight=f32/f16/bf16,rounding=$ROUNDINGS,x_values=normal/mixed,
  rstd=f32,call=plain|module
forward,x=$T,y=$T,residual+residual_out=$T,d=7168,rows=1|5,rounding=$ROUNDINGS,
  residual_rounding=rounded/unrounded,residual_out_in_place=0|1
forward,x+y=$T,weight=f32/f16/bf16,d=1536,x_gap=576,rows=7,x_values=mixed,rounding=$ROUNDINGS,
  y_in_place=0|1,call=plain|several
forward,x+y=$T,weight=f32/f16/bf16,d=512,x_gap=1600,rows=7,x_values=mixed,rounding=$ROUNDINGS,
  y_in_place=0|1,call=plain|several

# Dense rows of a module, y in place and elsewhere.
forward,x+y=$T,weight=f32|f16|bf16|none,d=1..300,rows=1/5,rounding=$ROUNDINGS,
  x_values=mixed/normal,call=rows,rstd=none/f32,y_in_place=0|1
forward,x+y=$T,weight=f32|bf16,d=$LONG,rows=1/4,rounding=$ROUNDINGS,
  x_values=normal/mixed,call=rows,y_in_place=0|1
forward,x+y+residual+residual_out=$T,weight=f32|f16|bf16|none,d=$EDGES|1000|4097|8193,
  rows=1|5,rounding=$ROUNDINGS,residual_rounding=rounded/unrounded,
  x_values=mixed/normal,call=plain|rows,y_in_place=0|1,residual_out_in_place=0|1
# A residual stream whose type differs from x's, and the inverse RMS.
forward,x+y=$T,residual+residual_out=f32|f16|bf16,d=$EDGES|1000|4097,rows=1|5,
  weight=f32/none/bf16,rounding=$ROUNDINGS,residual_rounding=rounded/unrounded,rstd=f32/none,
  x_values=normal/mixed,call=rows,residual_out_in_place=0/1

# Every option.
forward,x+y=$T,weight=$T,d=1|64|128|300|5000,rows=1|2|7,x_shift=0/1,rounding=$ROUNDINGS,
  eps_placement=inside|outside|floor,eps=1e-5/0.5/1e-6,weight_offset=0/1,divisor=0/100.5,
  x_values=normal/mixed,call=rows,y_in_place=0|1
forward,x+y+residual+residual_out=$T,weight=$T,d=1|64|128|300|5000,rows=1|2|7,x_shift=0/1,
  rounding=$ROUNDINGS,eps_placement=inside|outside|floor,eps=1e-5/0.5/1e-6,weight_offset=0/1,
  divisor=0/100.5,x_values=normal/mixed,call=rows,y_in_place=0|1,residual_out_in_place=0|1

# Special rows anywhere among others, with lengths that are constants in kernels and lengths around
# them: rows occupy one to four pairs of registers, completely or partly.
$PAIRS=d=1|31|32|33|64|65|80|96|97|127|128,rows=1..6
forward,x+y=$T,rstd=f32,$PAIRS,weight=f32/none,x_values=scattered,y_shift=0/16/0/1,y_gap=0/16/3/0,
  eps_placement=inside/inside/outside/floor,eps=1e-5/1e-5/1e-5/1,divisor=0/0/0/0/100.5,
  stores=cached/streamed,seed=1..8
forward,x+residual+residual_out+y=$T,rstd=f32,$PAIRS,weight=f32/none,
  x_values+residual_values=scattered,residual_rounding=rounded/rounded/rounded/unrounded,
  residual_out_in_place=0/1,y_shift=0/16/0/1,stores=cached/streamed,seed=1..8
backward,x+dy=f32,dw=f32,$PAIRS,dx=f32/f32/f32/none,rstd=f32/f32/f32/none,
  x_values=scattered/finite,dy_values=normal/scattered/huge/zero,stores=cached/streamed,
  eps_placement=inside/inside/inside/outside/floor,eps=1e-5/1e-5/1e-5/1e-5/1,
  call=plain|rows,seed=1..8
backward,x+dy+dx=$T,rstd+dw=f32,$PAIRS,stores=cached/streamed,dw_add=1,seed=1|2

# Numbers of rows around the group sizes for short rows.
forward,x=$T,y=$T,rows=1..20,d=1|7|16|32|63|64|65|96|127|128|129|192|256|300|512,
  weight=f32/f16/bf16/none,x_values=mixed/normal,rstd=f32
forward,x=$T,y=$T,rows=1..9,d=4096|8192,weight=f32/f16/bf16/none

# x, y and the weight each at every place in a cache line.
forward,x=$T,y=$T,weight=f32,d=1|33|128|200,rows=2/3,x_values=mixed,x_shift=0..31,y_shift=0..31
forward,x=$T,weight=$T,y=$T,d=15|33|100|128|300|4097,rows=3,weight_shift=0..31
forward,x+y=f32,d=$EDGES,rows=3,x_values=mixed,y_in_place=1,x_shift=0..15
forward,x=f16|bf16,y=f16|bf16,d=$EDGES,rows=3,x_values=mixed,y_in_place=1,x_shift=0..31

# Rows of one to eight dimensions, in every order, with gaps.
forward,x=$T,y=$T,d=1|15|33|64|70|128|300,
  x_order=rising|falling|transposed|zigzag|repeated|again|windows,
  rows=9/2x3/3x1x3/one/2x1x3x2x1x2x2,weight=f32/f16/bf16/none,rstd=f32,sums_out=none/f64/none,
  x_values=mixed/normal,x_gap=0|1|64,rstd_order=falling/zigzag/transposed,rstd_gap=0/2,
  y_order=rising|falling|transposed|zigzag,y_gap=0|3
forward,x+y=f32,d=$EDGES|4097,rows=9/2x3x2,weight=f32/none,x_values=mixed,rstd=f32,y_in_place=1,
  x_order=rising|falling|transposed|zigzag,x_gap=0|1|64,call=plain|module
forward,x=f16|bf16,y=f16|bf16,d=$EDGES|4097,rows=9/2x3x2,weight=f32/none,x_values=mixed,rstd=f32,
  y_in_place=1,x_order=rising|falling|transposed|zigzag,x_gap=0|1|64,call=plain|module
# Operands with one element per row.
forward,x=$T,y=$T,d=70,rows=3x4,x_values=mixed,rstd=f32,sums=f64,sums_out=none/f64,
  sums_order=rising|falling|transposed|zigzag|repeated|again,sums_gap=0|3,
  rstd_order=rising|falling|transposed|zigzag,rstd_gap=0|2
# Some heads of each token: 32 of 48, say.
forward,x+y=$T,weight=$T,d=$EDGES,rows=5x3/2x3x4,x_skip=0|2,y_skip=1|0,
  x_order=rising|falling|zigzag,x_values=mixed,call=plain/module
backward,x=$T,dy+dx=$T,d=1|64|129|300,rows=5x3/2x3x4,x_skip=0/2,dy_skip=1|0,dx_skip=0/3,
  dy_order=rising|transposed,x_values=finite
# Slices of one buffer: rows of x, y and a residual side by side.
forward,x=$T,y=$T,d=$EDGES,rows=7/2x3x2,x_values=mixed,interleaved=1,
  x_order=rising|falling|transposed|zigzag,x_gap=0|5
forward,x=$T,residual+residual_out=$T,y=$T,d=15|64|300,rows=7/2x3x2,interleaved=1,
  residual_out_in_place=0|1,x_order=rising|falling|zigzag,x_gap=0|5

# Each option with each rounding order.
forward,x=$T,y=$T,d=1|2|33|64|100|128|300|4097,
  rounding=after_weight|before_weight|inverse,
  eps_placement=inside|outside|floor,eps=0|1e-6|1,divisor=0|0.5|100.5|1e-3|1e30,
  rows=5/9,weight=f32/f16/bf16/none,x_values=normal/mixed,rstd=f32,call=plain/module,sums=none/f64
forward,x=$T,weight=$T,y=$T,d=$EDGES|4097|8193,
  rounding=after_weight|before_weight|inverse,
  weight_offset=1|-0.25|1e-40,rows=5,x_values=normal/mixed,call=plain/module/plain

# Rows of every kind, alone and next to each other, and rows around the floor.
forward,x=$T,y=$T,d=$EDGES,
  x_values=massive|wide|huge|tiny|subnormal|zero|low_edge|high_edge|floor|nan|infinity|bits,
  eps_placement=inside|outside|floor,eps=0|1e-5|1,rows=5,rounding=$ROUNDINGS,
  weight=f32/f16/bf16/none,rstd=f32,call=plain/module,sums=none/f64,divisor=0/0/0/1
forward,x=$T,y=$T,d=$EDGES|4097|8193,x_values=mixed,
  eps_placement=inside|outside|floor,eps=0|1e-5|1,rows=23,rounding=$ROUNDINGS,
  weight=f32/f16/bf16/none,rstd=f32,call=plain/module,sums=none/f64
# Weights and biases outside the usual range.
forward,x=$T,weight+bias=$T,y=$T,d=$EDGES|4097,x_values=normal|mixed,
  rounding=after_weight|before_weight|inverse,rows=14,
  weight_values+bias_values=special,weight_offset=0/1,call=plain/module/plain,sums=none/f64
forward,x=$T,weight=$T,y=$T,d=$EDGES|4097,x_values=normal|mixed,
  rounding=after_weight|before_weight|inverse,rows=14,
  weight_values=special,weight_offset=0/1,call=plain/module/plain,sums=none/f64

# A bias of each type, with every length, number of rows and alignment.
forward,x=$T,bias=$T,y=$T,d=1..300,rows=5/9,rounding=$ROUNDINGS,x_values=normal/mixed,
  weight=f32/none/bf16,bias_values=normal/special,call=plain/module,sums=none/f64
forward,x=$T,bias=$T,y=$T,d=$LONG,rows=2,rounding=$ROUNDINGS,weight=f32/none
forward,x=$T,bias=$T,y=$T,rows=1..20,d=33|128|300,rounding=$ROUNDINGS,weight=f32/none
forward,x=$T,bias=$T,y=$T,d=33|200|300,rows=3,rounding=$ROUNDINGS,bias_shift=0..31
# Modules that hold a bias, a post-norm weight or both; and, where the seed is 2, the weight alone.
forward,x+y=$T,bias=$T,d=1..300|$LONG,rows=1/5,weight=f32/none/bf16,rounding=$ROUNDINGS,
  x_values=mixed/normal,bias_values=special/normal,call=rows,y_in_place=0/1
forward,x+y=$T,post_norm_weight=$T,d=$EDGES|1000|4097|8193,rows=1|5,bias=none/f32/f16,
  residual+residual_out=none/f32/f16/bf16,rounding=$ROUNDINGS,eps_placement=inside/outside/floor,
  weight=f32/none/bf16,factor=0/0.22,x_values=mixed/normal,rstd=none/f32,call=rows,y_in_place=0/1
forward,x+y+residual+residual_out=$T,post_norm_weight=$T,d=$EDGES|1000|4097,rows=1|5,
  bias=none/bf16,residual_rounding=rounded/unrounded,weight_offset=0/1,rounding=$ROUNDINGS,
  x_values=mixed/normal,call=rows|module,y_in_place=0/1,residual_out_in_place=0|1
forward,x+y=$T,bias=$T,d=$EDGES,rows=5,post_norm_weight=f32/none/bf16,
  residual+residual_out=f32/none,call=module|several,seed=0|2

# Weights and biases that some rows share.
forward,x=$T,weight=$T,y=$T,d=1|33|63|64|65|128|4097,weight_per=head|group|row|alternate|first,
  rows=4x5/3x1/1x2/12/2x3x4/2x1x2x1x2x1x3,rounding=$ROUNDINGS,x_values=mixed,weight_offset=0/1,
  x_order=rising/falling,weight_gap=0/3,rstd=f32
forward,x=$T,weight+bias=$T,y=$T,d=1|33|63|64|65|128|4097,
  weight_per=tensor|head|group|row|alternate,bias_per=tensor|head|group|row|alternate,
  rows=4x5/3x1/1x2/12/2x3x4/2x1x2x1x2x1x3,rounding=$ROUNDINGS,x_values=mixed,weight_offset=0/1,
  x_order=rising/falling/transposed,bias_gap=0/3,sums=none/none/f64

# A residual of each type, normalised rounded and unrounded: lengths, numbers of rows, alignments
# and kinds of values.
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  d=1..300,rows=5/9,rounding=$ROUNDINGS,x_values+residual_values=mixed/normal,
  weight=f32/f16/bf16/none,bias=none/none/bf16,rstd=f32/none,sums_out=none/f64,call=plain/module,
  residual_out_in_place=0|1
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  d=$LONG,rows=2/5,rounding=$ROUNDINGS,x_values+residual_values=normal/mixed,rstd=f32,
  residual_out_in_place=0|1
forward,x+y=f32,residual+residual_out=$T,residual_rounding=rounded|unrounded,
  d=$EDGES|4097,rows=5/9,rounding=$ROUNDINGS,x_values+residual_values=mixed,
  residual_out_in_place=0|1,y_in_place=1,x_gap=0|3
forward,x=f16|bf16,residual+residual_out=$T,y=f16|bf16,
  residual_rounding=rounded|unrounded,
  d=$EDGES|4097,rows=5/9,rounding=$ROUNDINGS,x_values+residual_values=mixed,
  residual_out_in_place=0|1,y_in_place=1,x_gap=0|3
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  rows=1..20,d=1|16|33|64|65|127|128|256|300|512,rounding=$ROUNDINGS,
  x_values=normal/mixed,residual_values=mixed/normal
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  d=33|128|200|600,rows=2/3,x_shift=0..31
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  d=33|128|200|600,rows=2/3,residual_shift=0..31,residual_out_in_place=0|1
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  d=33|128|200|600,rows=2/3,residual_out_shift=0..31,residual_out_gap=0|3
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  d=33|128|200|600,rows=2/3,y_shift=0..31
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  x_values+residual_values=massive|wide|huge|tiny|subnormal|zero|low_edge|high_edge|floor|nan|infinity|bits,
  d=1|63|128|300,eps=0/1e-5,rows=5,rounding=$ROUNDINGS,rstd=f32,
  eps_placement=inside/outside/floor,divisor=0/0/100.5/1e30,weight_offset=0/1
# x and residual with rows of different kinds.
forward,x=$T,residual+residual_out=$T,y=$T,residual_rounding=rounded|unrounded,
  x_values=huge|zero|infinity|floor|bits|mixed,residual_values=huge|tiny|infinity|nan|bits,
  d=1|63|128|300,eps=0/1e-5,rows=13,rounding=$ROUNDINGS,rstd=f32
# Every subset of the results, down to the addition alone.
forward,x=$T,residual+residual_out=$T,residual_rounding=rounded|unrounded,
  d=1|64|200|4097,y=f32|f16|bf16|none,rstd=f32|none,sums_out=f64|none,rows=7,
  x_values+residual_values=mixed,residual_out_in_place=0|1
forward,x=$T,residual=$T,residual_rounding=rounded|unrounded,
  d=1|64|200|4097,y=$T,rstd=f32|none,sums_out=f64|none,rows=7,x_values+residual_values=mixed
forward,x=$T,residual=$T,residual_rounding=rounded|unrounded,
  d=1|64|200|4097,y=none,rstd=f32,sums_out=f64|none,rows=7,x_values+residual_values=mixed
# Residual rows of many dimensions; some rows share weights and biases.
forward,x=$T,residual+residual_out=$T,y=$T,d=1|64|70|300,
  weight_per=tensor|head|group|row|alternate,bias_per=tensor|head|row|alternate,
  rows=3x2x4/2x9/2x1x2x1x2x1x3,bias=f32/bf16,rounding=$ROUNDINGS,
  residual_rounding=rounded/unrounded,residual_order=rising/falling/again/repeated,
  x_order=zigzag/rising,residual_out_order=rising/transposed/zigzag

# The stages before the norm: a post-norm whose weight has one row for all rows or one for each, a
# factor, and a gate.
forward,x=$T,post_norm_weight=$T,d=1..300|$LONG,y=f32/f16/bf16,rows=5/9,weight=f32/f16/bf16/none,
  rounding=$ROUNDINGS,factor=0/0.22,x_values=mixed/normal,bias=none/f32,rstd=f32,
  eps_placement=inside/outside/floor,call=plain|module,y_shift=0/3
forward,x=$T,post_norm_weight=$T,residual+residual_out=$T,y=$T,d=$EDGES|4097,rows=5/9,
  rounding=$ROUNDINGS,factor=0/0.22,residual_rounding=rounded/unrounded,
  x_values+residual_values=mixed/normal,weight_offset=0/1,residual_out_in_place=0|1
forward,x=$T,post_norm_weight+weight=$T,y=$T,d=1|33|128|4097,rows=4x5/2x3x4/12,
  post_norm_weight_per=tensor|head|row|alternate,weight_per=head/tensor/row,x_values=mixed,
  x_order=rising/falling,post_norm_weight_gap=0/3
forward,x=$T,y=$T,d=1..300|$LONG,rows=5/9,factor=0.22|-3|1e30,sums_out=f64/none,
  rounding=$ROUNDINGS,x_values=mixed/normal,rstd=f32
forward,x=$T,residual+residual_out=$T,y=$T,d=$EDGES|4097,rows=5/9,factor=0.22|-3,
  rounding=$ROUNDINGS,residual_rounding=rounded/unrounded,x_values=mixed/normal
forward,x+gate+y=$T,weight=$T,d=33|128|4097,gate_placement=after|before,
  weight_per=tensor|head|group|row|alternate,rows=4x5/2x3x4/12,y_in_place=0|1,
  gate_values=mixed/normal,x_values=mixed
forward,x=$T,gate=$T,d=1..300|$LONG,y=f32/f16/bf16,rows=5/9,gate_placement=before,
  activation=silu/sigmoid,weight=f32/none/bf16,rounding=$ROUNDINGS,factor=0/0.22,
  x_values=mixed/normal,gate_values=normal/mixed,rstd=f32,sums_out=f64/none
forward,x+gate+y=$T,d=1..300|$LONG,rows=5/9,gate_placement=before,activation=silu/sigmoid,
  weight=f32/none/bf16,rounding=$ROUNDINGS,x_values=mixed/normal,rstd=f32/none,call=plain|module
forward,x=$T,gate=$T,y=none,d=1|64|300|4097,rows=9,gate_placement=before,sums_out=f64,
  rstd=f32/none,x_values=mixed
forward,x=$T,gate=$T,y=$T,sums=f64,d=1|64|300|4097,rows=9,gate_placement=before,x_values=normal
# The stages after the norm: a gate with every kind of values, and quantised outputs with and
# without y.
forward,x=$T,gate=$T,d=1..300|$LONG,y=f32/f16/bf16,rows=5/9,
  gate_rounding=unrounded|rounded,activation=silu/sigmoid,weight=f32/none/bf16,bias=none/f16,
  rounding=$ROUNDINGS,x_values=normal/mixed,gate_values=normal/mixed
forward,x+gate+y=$T,d=1..300|$LONG,rows=5/9,gate_rounding=unrounded|rounded,
  activation=silu/sigmoid,weight=f32/none/bf16,rounding=$ROUNDINGS,x_values=normal/mixed,
  rstd=f32/none,call=plain|module
forward,x=$T,gate=$T,y=$T,d=1|64|300,rows=5,activation=silu|sigmoid,gate_placement=after|before,
  gate_values=massive|wide|huge|tiny|subnormal|zero|low_edge|high_edge|floor|nan|infinity|bits
forward,x=$T,gate=$T,residual+residual_out=$T,y=$T,d=$EDGES|4097,rows=5/9,
  residual_rounding=rounded/unrounded,gate_rounding=unrounded/rounded,
  rounding=$ROUNDINGS,x_values+gate_values=mixed/normal
forward,x=$T,y=f32|f16|bf16|none,q=i8,scale=f32,zero=i8|none,d=1..300|$LONG,rows=5/9,
  weight=f32/none/bf16,bias=none/f16,gate=none/none/f32,rounding=$ROUNDINGS,x_values=mixed/normal,
  call=plain|module,q_shift=0/7
forward,x=$T,y=none,q=i8,scale=f32,zero=i8|none,d=1|64|300,rows=5,weight=$T,
  x_values=massive|wide|huge|tiny|subnormal|zero|low_edge|high_edge|floor|nan|infinity|bits,
  weight_values=normal|special,eps=1e-5/0
forward,x=$T,y=none,q=i8,scale=f32,d=8192|16384,rows=3,weight=f32,x_values=mixed,zero=i8/none
forward,x=$T,residual+residual_out=$T,q=i8,scale=f32,zero=i8|none,d=$EDGES|4097,rows=9,y=f32/none,
  residual_rounding=rounded/unrounded,x_values=mixed
# All stages, with every alignment.
$ALL=residual+residual_out=bf16,post_norm_weight=f32,gate=f16,q=i8,scale=f32,zero=i8
forward,x=$T,y=$T,$ALL,d=1|33|70|300,rows=9/2x3/3x1x3/2x1x3x2x1x2x2,x_values=mixed,
  x_order=rising|falling|transposed|zigzag|again,gate_order=zigzag/rising/repeated/windows,
  q_order=rising|transposed|zigzag,q_gap=0/3,scale_order=rising/falling,scale_gap=0/2,
  zero_order=falling/rising,zero_gap=3/0
forward,x+y=$T,$ALL,d=$EDGES|4097|9000,rows=9,x_values=mixed,y_in_place=1,
  residual_out_in_place=0|1,x_gap=0|3,threads=1/5
forward,x=$T,y=$T,$ALL,d=33|128|600,rows=3,x_shift=0/5,gate_shift=0..31
forward,x=$T,y=$T,$ALL,d=33|128|600,rows=3,q_shift=0..63
forward,x=$T,y=$T,$ALL,rows=1..20,d=1|64|128|300,x_values=mixed
forward,x=$T,y=$T,$ALL,d=$EDGES,rows=7/2x3x2,interleaved=1,x_order=rising|falling|zigzag,x_gap=0|5
forward,x=$T,y=$T,$ALL,d=1..300|4096|4097|8193,rows=1/9,guard=before|after
forward,x=$T,y=$T,$ALL,rows=67/1x67,d=4097,x_values=mixed,threads=2|3|8,executor=none/threads,
  call=plain/module/several
forward,x+y=$T,rows=1|2,post_norm_weight=f32/none,gate=f16/none,q=i8,scale=f32,zero=i8/none,
  d=163917,x_values=normal/mixed,threads=2|3,executor=none/threads
forward,x=$T,y=$T,$ALL,d=1|64|300|4097,rows=13,x_values=mixed,state=1..10

# Work for one to eight threads: rows that do not divide evenly, and one row for all threads.
$MANY=0|2|3|4|5|6|7|8
forward,x=$T,y=$T,rows=67/1x67,d=4097,rstd=f32,x_values=mixed,weight=f32/f16/bf16,
  threads=$MANY,executor=none|threads,call=plain/module/several
forward,x=$T,y=$T,rows=1031,d=512,x_values=mixed,weight=f32/f16/bf16,sums=none/f64,rstd=f32,
  threads=$MANY,executor=none/reverse/threads
forward,x+y=bf16,rows=1031,d=512,x_values=mixed,rstd=f32,y_in_place=1,threads=2|7,
  executor=none|threads
forward,x+y=$T,rows=1031/67,d=512/4097,x_values=mixed,call=rows,y_in_place=0/1,threads=$MANY,
  executor=none/reverse/threads
forward,x+residual+residual_out+y=$T,rows=1031/67,d=512/4097,x_values=mixed,call=rows,
  residual_out_in_place=0/1,threads=$MANY,executor=none/threads
forward,x+y=$T,rows=1|2,d=70001/163917,x_values=normal|tiny|nan|infinity|huge,rstd=f32,
  sums=none/f64/none,weight=f32/f16/bf16,threads=2|3|5,executor=none/threads
forward,x=$T,y=$T,rows=1/2,d=163917,rstd=f32,weight=f32/f16/bf16,threads=2|3,executor=none|threads
forward,x=$T,y=none,rows=1,d=163917,x_values=normal|tiny|nan|infinity|huge,sums_out=f64,
  threads=2|3|5,executor=none/threads
forward,x+y=$T,weight=$T,rows=40x33,d=129,weight_per=head|group|row|alternate,bias=none/bf16,
  threads=2|3|5,executor=none/threads
# Groups that the library processes in slabs.
forward,x+y=f32,weight=f32,weight_per=head|group|alternate,gate=f32|none,rows=5x37x4x3,d=100,
  x_order=rising|zigzag,y_order=rising|falling,threads=1/2
forward,x=$T,weight+bias=f32|bf16,y=$T,rows=3x8/1x2,d=4098/35001,weight_per=head|group|row,
  bias_per=row/head/tensor,x_order=rising/falling,threads=2|5,executor=none/threads
forward,x=$T,y=$T,weight+bias=f32,rows=5x1x3x1x7x3x3,d=700,x_order=zigzag/again,
  weight_per=alternate,bias_per=head/alternate,threads=2|5|8,executor=reverse
forward,x=$T,residual+residual_out=$T,y=$T,rows=67,d=4097,
  residual_rounding=rounded/unrounded,x_values+residual_values=mixed,rstd=f32,
  threads=2|3|4,executor=none/threads,residual_out_in_place=0|1
forward,x=$T,residual+residual_out=$T,y=$T,rows=1031,d=512,
  residual_rounding=unrounded/rounded,x_values+residual_values=mixed,
  threads=3,executor=none/threads
forward,x+residual+residual_out+y=$T,rows=1,d=400001/400002,
  residual_rounding=rounded|unrounded,x_values+residual_values=normal|tiny|huge|nan,
  rstd=f32,threads=5|6,executor=none/threads,residual_out_in_place=0|1
forward,x=$T,residual+residual_out=$T,y=$T,rows=1,d=400001,
  residual_rounding=rounded/unrounded,x_values+residual_values=normal/tiny/huge/nan,
  rstd=f32,threads=5,executor=none|threads
# Rows longer than one block of a sum.
forward,x+y=bf16,rows=1,d=33566725,eps_placement=outside,rstd=f32,threads=3,executor=threads,
  x_shift=3,y_in_place=1
# Several norms in one call.
forward,x=$T,y=$T,rows=1|2|9|4x5,d=$EDGES,weight=f32/f16/none,x_values=mixed,rstd=f32/none,
  x_gap=0/3,call=several,threads=1/3
forward,x=$T,residual+residual_out=$T,y=$T,rows=9|4x5,d=$EDGES,x_values=mixed,bias=none/f16,
  weight_per=tensor/row/head,bias_per=tensor,y_gap=0/3,sums_out=none/f64,call=several,threads=1/3

# Norms of two shapes, types and weights in one call: q and k, and the two latents of an attention.
forward,x+y=$T,weight=$T,rows=9x4|6x4,d=64|128,x_skip=2,y_skip=2;
  forward,x+y=$T,weight=$T,rows=9x2,d=64|128|33,x_skip=4,call=plain|module
forward,x+y=bf16,weight=bf16,rows=1|33,d=1536,x_gap=576,threads=1/3,executor=none/threads;
  forward,x=bf16|f32,weight=f32,y=bf16,rows=1|33,d=512,x_gap=1600,call=plain|module,x_values=mixed
forward,x+y=$T,rows=5,d=$EDGES,y_in_place=1,threads=2/3,executor=reverse/threads,state=0/7;
  forward,x=f16,residual+residual_out=f32,weight=none,rows=3x2,d=300,rounding=$ROUNDINGS;
  forward,x+gate=bf16,q=i8,scale=f32,rows=2,d=4097,call=module/several

# Prepared calls, half of them by a module.
forward,x+y=$T,weight=bf16,rows=3|1000,d=64|500,seed=0/1,call=prepared,threads=1/3,
  executor=none/threads;
  forward,x=bf16,gate=f32,y=$T,rows=1x2,d=128|300,seed=0/1,call=prepared
forward,x=$T,y=$T,d=1..300|$LONG,weight=f32/f16/bf16/none,rows=5/9,call=prepared,seed=0/1,
  rounding=$ROUNDINGS,x_values=mixed/normal,rstd=none/f32,bias=none/f16,threads=1/3
forward,x=$T,y=$T,$ALL,d=$EDGES|4097,rows=9/2x3x3,call=prepared,seed=0/1,x_values=mixed,
  x_order=rising|zigzag,residual_out_in_place=0/1,threads=1/5,executor=none/threads
backward,x=$T,dy+dx=$T,d=$EDGES|1000|4097,rows=1|5|300,weight=f32/none/bf16,dw=f32/bf16,db=none/f32,
  call=prepared,seed=0/1,rstd=f32/none,x_values=normal/finite,dx_add=0/1,dw_add=1/0,
  threads=1/3/5,executor=none/none/reverse,eps_placement=inside/outside/floor
# The floating-point state in which a call is prepared and run.
forward,x+y=$T,weight=f32|f16|bf16,bias=none/f32,d=7|300,rows=13,x_values=mixed,
  weight_values=special,eps+weight_offset=1e-40|0.1,divisor=1.2e-38|0.1,call=prepared,seed=0/1,
  state=1..10
backward,x+dy+dx=$T,weight=f32|f16|bf16,dw=f32,db=f32/none,d=7|300,rows=13,x_values=finite,
  weight_values=special,eps+weight_offset=1e-40|0.1,divisor=1.2e-38|0.1,call=prepared,seed=0/1,
  state=1..10

# Stores past the caches: every length, rows that start anywhere, y in place, repeated rows, the
# addition to a residual, and rows of special values beside others.
forward,x=$T,y=$T,d=1..300,weight=f32/f16/bf16/none,rows=3/17,stores=streamed,rounding=$ROUNDINGS,
  x_values=normal/mixed,y_shift=0/3,y_gap=0/1,call=plain/module
forward,x+y=$T,weight=$T,d=$LONG,rows=1|9,stores=streamed|cached,rounding=$ROUNDINGS,
  x_values=normal/mixed,y_in_place=0|1,call=plain/rows
forward,x=$T,y=$T,d=64|100|128|300|4097,rows=20,x_order=repeated/again/windows,stores=streamed
forward,x+y=$T,residual+residual_out=$T,d=$EDGES|4097|8193,rows=1|23,stores=streamed,
  residual_rounding=rounded/unrounded,residual_out_in_place=0|1,y_in_place=0/1,
  x_values+residual_values=mixed/normal
forward,x=$T,y=$T,d=$EDGES|512|4097,rows=23,stores=streamed,x_values=nan|infinity|tiny|huge|mixed
backward,x=$T,dy+dx=$T,d=1..300,rows=3/17,stores=streamed,x_values=finite/normal,dx_add=0/1,
  dx_shift=0/3,dw=f32/none,rstd=f32|none,call=plain/module
backward,x+dy+dx=$T,dw=f32,d=$LONG,rows=1|9,stores=streamed|cached,dx_in_place=0|1,call=plain/rows,
  rstd=f32|none

# More bytes than most last-level caches hold, which may be written by other instructions; rows that
# start at a cache line, and rows that start anywhere.
forward,x+y=$T,rows=4100,d=4128,threads=2
forward,x+y=f32|bf16,rows=4100,d=4099,threads=2
forward,x=bf16,y=f32,rows=4100,d=4099,threads=2
forward,x+residual+residual_out+y=f32|bf16,rows=2100,d=4099,threads=2,
  residual_rounding=rounded/unrounded

# No reads or writes outside an operand: each lies between inaccessible pages.
$LENGTHS=1..300|1000|4095|4096|4097|8191|8193|16385
forward,x=$T,weight=$T,y=$T,d=$LENGTHS,rows=1/9,rounding=$ROUNDINGS,x_values=normal/normal/nan,
  bias=none/f32/f16/bf16,rstd=f32,call=plain/module,sums_out=none/f64,guard=before|after
forward,x=$T,y=$T,weight=none,d=$LENGTHS,rows=1/9,x_values=normal/nan,sums=f64,rstd=f32,
  guard=before|after
forward,x+y=$T,d=$LENGTHS,rows=1/9,x_values=normal/nan,y_in_place=1,call=plain|rows,
  guard=before|after
forward,x+y+residual+residual_out=$T,d=$LENGTHS,rows=1/9,call=rows,guard=before|after
forward,x+y=$T,weight+bias=$T,d=$LENGTHS,rows=9,weight_per+bias_per=row,guard=before|after
forward,x=$T,residual+residual_out=$T,y=$T,d=$LENGTHS,rows=1/9,
  residual_rounding=rounded/unrounded,x_values=normal/nan,rstd=f32,
  guard=before|after,residual_out_in_place=0|1

# A caller in any floating-point state; an executor's parts in others. Subnormal options, options
# that round, and sums of a long row that are subnormal until the divisor scales them.
forward,x=$T,residual+residual_out=f32|none,y=$T,d=1|64|300|4097,rows=13,x_values=mixed,
  rounding=$ROUNDINGS,weight_values=special,call=plain/module/several,state=1..20
forward,x=$T,y=$T,weight=f32|f16|bf16,d=7|100|260,rows=18,x_values=mixed,weight_values=special,
  bias=none/f32,rstd=f32,eps=1e-5/0/1e-38,weight_offset=0/0.1,rounding=$ROUNDINGS,
  sums=none/f64/none,sums_out=f64/none,state=1..10
forward,x=$T,y=$T,residual+residual_out=f32|none,d=64|128|300,rows=20,x_values=mixed,
  weight_values=special,eps+weight_offset=1e-40,divisor=1.2e-38,call=plain/module/several,
  residual_rounding=rounded/unrounded,state=1..10
forward,x+y=$T,d=1|64|128|300,rows=1|13,x_values=mixed,weight_values=special,
  eps+weight_offset=1e-40|0.1,divisor=1.2e-38|0.1,call=rows,y_in_place=0/1,state=1..10
forward,x+residual+residual_out+y=$T,d=1|64|128|300,rows=1|13,x_values=mixed,weight_values=special,
  eps+weight_offset=1e-40|0.1,divisor=1.2e-38|0.1,call=rows,state=1..10
forward,x+y=$T,rows=800,d=128,x_values=mixed,threads=3,executor=none|threads,
  call=plain|module|several|rows,state=1..10
forward,x+residual+residual_out+y=$T,rows=800,d=128,x_values=mixed,threads=3,executor=none|threads,
  residual_rounding=rounded/unrounded,call=plain|module|several|rows,state=1..10
forward,x+y=$T,rows=1|2,d=98381,x_values=normal|tiny|nan,eps=1e-40,rstd=f32,sums_out=none/f64,
  threads=3,executor=none|threads,call=plain/module,state=1..10
forward,x+y=f32,rows=1,d=262144,x_values=tiny,eps=0,divisor=2e-38,threads=3,executor=none|threads,
  call=plain|rows,state=1..10
forward,x+residual+residual_out+y=f32,residual_values=zero,rows=1,d=400000,x_values=tiny,eps=0,
  divisor=2e-38,threads=5,executor=none|threads,call=plain|rows,state=1..10

# ------------------------------------------------------------------------------------- backward

# All combinations of types, with one block of rows and with several, added to and overwritten.
backward,x=$T,weight=f32|f16|bf16|none,dy=$T,dx=$T,dw=$T,d=5|70,rows=3|40,
  db=f32/f16/bf16/none,dx_add+dw_add=0|1,call=plain/module
backward,x=$T,weight=f32|f16|bf16|none,dy=$T,dx=$T,dw=$T,d=4097,rows=3,
  db=f32/f16/bf16/none,dx_add+dw_add=0/1,call=plain/module

# Every length up to 300: groups of rows and the remaining rows; each gradient alone. The kernels
# depend on the types of x, dy and dx, so the other types alternate.
$FINITE=finite/normal
$PLACES=inside/outside/floor
backward,x=$T,dy+dx=$T,d=1..300,rows=5/9,weight=f32/f16/bf16/none,eps_placement=$PLACES,
  x_values=$FINITE,dw=f32/f16/bf16/none,db=none/none/f32/f16/bf16,rstd=f32|none,
  eps=1e-5/0/1,divisor=0/0/100.5,call=plain|module
backward,x=f32,dy=f16|bf16,dx=f32,d=1..300,rows=5/9,weight=f32/f16/bf16/none,
  eps_placement=$PLACES,x_values=$FINITE,dw=f32/f16/bf16/none,rstd=f32|none,call=plain/module
backward,x=$T,dy=$T,dx=none,d=1..300,rows=5/9,weight=f32/none,eps_placement=$PLACES,
  x_values=$FINITE,dw=f32/f16/bf16,db=none/none/f32,rstd=f32|none,call=plain/module
backward,x=$T,dy=$T,dx=none,dw=none,db=$T,d=1..300,rows=5/9/40,db_add=0/1
backward,x=$T,dy+dx=$T,d=$LONG,rows=3/6,weight=f32/f16/bf16/none,eps_placement=$PLACES,
  x_values=$FINITE,dw=f32/f16/bf16/none,db=none/f32,rstd=f32|none,call=plain/module
backward,x=$T,dy=$T,dx=none,d=$LONG,rows=3/6,dw=f32/f16/bf16,x_values=$FINITE,rstd=f32|none
# Each gradient with every subset of the others, added to and overwritten.
backward,x=$T,dy+dx=$T,d=15|64|300|4097,rows=9/40,dw=f32|none,db=f32|none,dx_add=0|1,
  x_values=finite,dy_values=normal/finite
backward,x=$T,dy=$T,dx=none,dw=f32,d=15|64|300|4097,rows=9/40,db=bf16,dw_add=0|1,db_add=0|1,
  x_values=finite

# Dense rows of a module, dx in place and elsewhere.
backward,x+dy+dx=$T,dw=f32,weight=f32|f16|bf16|none,d=1..300,rows=1/12,x_values=$FINITE,
  rstd=f32|none,call=rows,dx_in_place=0|1
backward,x+dy+dx=$T,dw=f32,weight=$T,d=1|64|128|300|5000,rows=1|2|7,x_shift=0/1,
  eps_placement=inside|outside|floor,eps=1e-5/0.5/1e-6,weight_offset=0/1,divisor=0/100.5,
  rstd=f32|none,call=rows,dx_in_place=0|1
backward,x+dy+dx=$T,dw=none,d=$LONG,rows=1/3,rstd=f32|none,call=rows,dx_in_place=0|1
backward,x+dy=$T,dw=f32,dx=none,d=$EDGES,rows=1/40,rstd=f32/none,call=rows

# Numbers of rows around the group sizes and around the blocks for the sums dw and db, up to more
# than the largest number of blocks.
$BLOCKS=31|32|33|47|48|49|64|65|100|257|1007|1008|1009|1023|1024|1025|1500
backward,x=$T,dy+dx=$T,rows=1..20,d=1|5|33|64|70,eps_placement=inside|outside|floor,
  weight=f32/f16/bf16/none,dw=f32/f16/bf16,db=none/f32/f16/bf16,dw_add=0/1,rstd=none/f32
backward,x=$T,dy+dx=$T,rows=$BLOCKS,d=1|5|33|64|70,eps_placement=$PLACES,
  weight=f32/f16/bf16/none,dw=f32/f16/bf16,db=none/f32/f16/bf16,dw_add=0/1,rstd=none/f32

# Each tensor with every alignment in a cache line.
backward,x=$T,dy+dx=$T,d=15|100|300,rows=3,db=f32,x_shift=0..31
backward,x=$T,dy+dx=$T,d=15|100|300,rows=3,db=f32,dy_shift=0..31,dx_in_place=0|1
backward,x=$T,dy+dx=$T,d=15|100|300,rows=3,db=f32,dx_shift=0..31
backward,x=$T,dy+dx=$T,d=15|100|300,rows=3,weight=f32/f16/bf16,weight_shift=0..31
backward,x=$T,dy+dx=$T,d=15|100|300,rows=3,dw=f32/f16/bf16,dw_shift=0..31
backward,x=$T,dy+dx=$T,d=15|100|300,rows=3,db=f32/f16/bf16,db_shift=0..31
backward,x=f32,dy=f16|bf16,dx=f32,d=15|100|300,rows=3,dx_shift=0..31

# Rows of one to eight dimensions in every order, with gaps; dx in place; one buffer for all.
backward,x=$T,dy+dx=$T,d=1|15|33|70|128|300,
  x_order=rising|falling|transposed|zigzag|repeated|again|windows,
  rows=9/2x3/3x1x3/one/2x1x3x2x1x2x2,dy_order=rising/falling/zigzag/repeated/again,
  dy_gap=0/2,weight=f32/none,dw=f32/f16,db=none/bf16,rstd=f32,x_values=finite,
  dx_add=0/1,x_gap=0|1|64,rstd_order=rising/falling/transposed/repeated,
  dx_order=rising|falling|transposed|zigzag,dx_gap=0/3
backward,x=$T,dy+dx=$T,d=4097,x_order=falling|transposed|zigzag|again,rows=2x3/3x1x3,
  dy_order=rising/falling/zigzag/repeated/again,dy_gap=0/2,weight=f32/none,dw=f32/f16
backward,x=$T,dy+dx=$T,d=$EDGES|4097,rows=9/2x3x2,weight=f32/none,dw=f32/none,x_values=finite,
  dx_add=0|1,dx_in_place=1,dy_order=rising|falling|transposed|zigzag,dy_gap=0|1|64,x_gap=0/3
backward,x=$T,dy=f16,dx=bf16,d=$EDGES,rows=9,x_values=finite,dx_add=0|1,dx_in_place=1
backward,x=$T,dy=bf16,dx=f16,d=$EDGES,rows=9,x_values=finite,dx_add=0|1,dx_in_place=1
backward,x=$T,dy=$T,dx=$T,d=$EDGES,rows=7/2x3x2,interleaved=1,
  x_order=rising|falling|transposed|zigzag,x_gap=0|5

# Every option, with and without the inverse RMS.
backward,x=$T,dy+dx=$T,d=$EDGES|4097,rstd=f32|none,eps_placement=inside|outside|floor,eps=0|1e-6|1,
  rows=5/23,weight=f32/f16/bf16/none,dw=f32/f16/bf16,db=none/f32,x_values=normal/finite,
  rounding=$ROUNDINGS,call=plain/module
backward,x=$T,dy+dx=$T,d=$EDGES|4097,rstd=f32|none,eps_placement=inside|outside|floor,
  divisor=0.5|1|3|16384|1e-3,rows=5/23,weight=f32/none,dw=f32/bf16,x_values=normal/finite
backward,x=$T,dy+dx=$T,d=$EDGES|4097,rstd=f32|none,
  eps_placement=inside|outside|floor,weight_offset=1|-0.25,rows=5,weight=f32/f16/bf16,dw=f32/bf16,
  call=plain/module

# Rows of x, of dy and of both outside the usual range, alone and next to each other, and such
# weights.
$KINDS=massive|wide|huge|tiny|subnormal|zero|low_edge|high_edge|floor|nan|infinity|bits|mixed|finite
backward,x=$T,dy+dx=$T,d=1|33|128|300,x_values+dy_values=$KINDS,
  eps_placement=inside|outside|floor,eps=0|1e-5|1,rstd=f32|none,rows=5/23,weight=f32/f16/bf16/none,
  dw=f32/f16/bf16,db=none/f32
backward,x=$T,dy+dx=$T,d=1|33|128|300,x_values=$KINDS,eps_placement=inside|outside|floor,
  rstd=f32,rstd_values=normal|special,eps=0/1e-5/1,rows=5/23,weight=f32/f16/bf16/none,
  dw=f32/f16/bf16,db=none/f32
backward,x=$T,dy+dx=$T,d=1|33|128|300,dy_values=$KINDS,eps_placement=inside|outside|floor,
  rstd=none/f32,rstd_values=normal,eps=0/1e-5/1,rows=5/23,weight=f32/f16/bf16/none,
  dw=f32/f16/bf16,db=none/f32
backward,x=$T,dy+dx=$T,weight=$T,weight_values=special,d=1|33|128|300,x_values=normal|tiny|mixed,
  eps_placement=inside|outside|floor,rows=5/23,dw=f32/f16/bf16,db=none/f32,rstd=none/f32
backward,x=$T,dy+dx=$T,x_values=finite,dy_values=finite,d=$EDGES|4097,rows=23,
  dx_add=1,dx_values=mixed|special,dw_add=1,dw_values=normal/special

# Kimi-K2.
backward,x=$T,dy+dx=$T,d=7168,rows=5/40,rstd=f32|none,x_values=normal/finite,dw=f32/bf16
backward,x=$T,dy+dx=$T,d=1536,x_gap=576,dx_gap=576,rows=40,rstd=f32|none,dw=f32/bf16
backward,x=$T,dy+dx=$T,d=512,x_gap=1600,dx_gap=1600,rows=40,rstd=f32|none,dw=f32/bf16

# Work for several threads: enough blocks of rows for all, too few blocks, and fewer rows than
# threads.
backward,x=$T,dy+dx=$T,d=90001,rows=1|2,x_values+dy_values=$FINITE,dw=f32/none/bf16,
  db=none/f32,threads=2|5,executor=none/threads
backward,x=$T,dy+dx=$T,d=33000/4500,rows=3/16/20,x_values+dy_values=$FINITE,dw=f32/none/bf16,
  db=none/f32,rstd=none/f32,threads=2|3|4|5|8,executor=none/threads
backward,x=$T,dy+dx=$T,d=2500/900,rows=36/100/350,x_values+dy_values=$FINITE,dw=f32/none/bf16,
  db=none/f32,dx_add=0/1,threads=0|2|3|4|5|6|7|8,executor=none/threads/reverse
backward,x=$T,dy=$T,dx=none,d=80/257,rows=1030/4096/1030,x_values+dy_values=$FINITE,dw=f32/bf16,
  db=none/f32,dw_add=0/1,threads=2|3|5|8,executor=none/threads
backward,x=$T,dy=$T,dx=none,dw=none,db=f32,d=80/4097,rows=1030/40,threads=2|3|8,executor=threads
backward,x=$T,dy+dx=$T,d=300,rows=1031,x_values+dy_values=finite,dw=f32/none/f32,db=f32/none,
  dx_add=0/1,rstd=none/f32,threads=2|5|8,executor=none/threads,dx_in_place=0|1

# Gradients by a weight and a bias that some rows share, for one thread and for several.
backward,x=$T,dy+dx=$T,weight+dw+db=f32|f16|bf16,
  weight_per+dw_per=tensor|head|group|row|alternate,db_per=tensor|head|group|row|alternate,
  rows=3x5/40x2/1x2/2x3x4/2x1x2x1x20x1x3,d=1|33|64|127|130,x_values=finite,dw_add=0/1,
  dx_add=0/1,rstd=none/f32,x_order=rising/falling,weight_gap=0/2,dw_gap=0/3,db_gap=0/1
backward,x=$T,dy+dx=$T,dw+db=f32|bf16,weight=none,dw_per=head|group|row,db_per=row|head|group,
  rows=3x5/40x2,d=33|130
backward,x+dy+dx=$T,weight+dw+db=f32,weight_per+dw_per=tensor|head|group|row|alternate,
  db_per=tensor/head/group/row/alternate/row,rows=40x33,d=129,threads=2|3|5,executor=none/threads
backward,x+dy+dx=$T,weight+dw+db=f32,weight_per+dw_per=tensor|head|group|row,
  db_per=head/row/alternate,rows=3x8/1x2/2x3,d=4098/35001/50001/4098,threads=2|5,
  executor=none/threads
backward,x=bf16,dy+dx=f32,weight+dw+db=f32,weight_per+dw_per=head|alternate,
  db_per=group|alternate,rows=1200x3/40x5x1x2x1x2x1,d=64/300,dw_add=0/1,
  threads=2|3|8,executor=none/threads

# More bytes than most last-level caches hold, which may be written by other instructions; one row
# in 16 or 32 starts at a cache line.
backward,x=$T,dy+dx=f32|bf16,rows=1700,d=4099,threads=2

# No reads or writes outside an operand: each lies between inaccessible pages.
backward,x=$T,dy+dx=$T,d=1..300|1000|4095|4096|4097|8191|8193,rows=1/9,x_values=normal/nan,
  weight=f32/none/bf16,dw+db=f32/f16/bf16,dx_add=0/1,dw_add+db_add=0/0/1,rstd=none/f32,
  guard=before|after
backward,x=$T,dy=$T,dx=none,d=1..300|1000|4095|4096|4097,rows=1/9,dw=f32/f16/bf16,rstd=f32/none,
  x_values=normal/nan,guard=before|after
backward,x=$T,dy+dx=$T,d=1..300|1000|4095|4096|4097,rows=9,weight+dw=f32/f16/bf16,
  weight_per+dw_per=row/head,db=f32,db_per=row,guard=before|after,dx_in_place=0|1
backward,x=$T,dy+dx=$T,dw=none,weight=none,d=1..300|4097,rows=1/9,rstd=f32,dx_in_place=1,
  guard=before|after
backward,x+dy+dx=$T,dw=f32,d=1..300|4097,rows=1/9,rstd=f32/none,call=rows,guard=before|after

# A caller in any floating-point state.
backward,x=$T,dy+dx=$T,d=1|64|300|4097,rows=13/40,x_values=mixed,dw=f32/bf16,
  db=none/f32,call=plain/module,state=1..20
backward,x=$T,dy+dx=$T,d=64|128|300,rows=20,x_values=mixed,weight_values=special,
  eps+weight_offset=1e-40,divisor=1.2e-38,rstd=none/f32,call=plain/module,state=1..10
backward,x+dy+dx=$T,dw=f32,d=1|64|128|300,rows=1|13,x_values=mixed,weight_values=special,
  eps+weight_offset=1e-40|0.1,divisor=1.2e-38|0.1,rstd=none/f32,call=rows,state=1..10
backward,x+dy+dx=$T,dw=f32,rows=800,d=128,x_values=finite,threads=3,executor=none|threads,
  call=plain|module|rows,state=1..10
backward,x+dy+dx+dw=$T,rows=1|2,d=98381,x_values=normal|tiny|nan,eps=1e-40,threads=3,
  executor=none|threads,call=plain/module,state=1..10
backward,x+dy+dx+dw=f32,rows=1,d=262144,x_values=tiny,eps=0,divisor=2e-38,threads=3,
  executor=none|threads,call=plain|rows,state=1..10
)";

}  // namespace rmsnorm::cases
