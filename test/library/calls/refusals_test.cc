// SPDX-License-Identifier: Apache-2.0
// Refused arguments: the status, a message that begins with the argument's name, and no write.
// Unusual but valid arguments. Structs of other versions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "argument_call.h"
#include "cases/list.h"

namespace rmsnorm::test {
namespace {

using cases::OperandSet, cases::Split;
using internal::kOptionRules, internal::OperandRule, internal::OptionRule;

// ---------------------------------------------------------------------------- lines of arguments

// A line has five columns. The first has words that choose entry points; without a word, it means
// all entry points that make a call. Then come fields of the case, the spoilt arguments, the status
// and the start of the message. In a message, "*" stands for anything, "@" for the spoilt operand
// or option, and "%" for the last value. "!" marks its end.
//
// "a|b" makes one line for each value. A line applies to the calls that have the operands it names.
//
// A spoilt argument is a name with new values of its parts. The name is "operands", "options",
// "context", an operand, or "place": the operand that the last one may replace. With "+" between
// them or at the end, all that a call has of several operands are spoilt at once.
//
// In a view, "data" is null, "top", an operand's name or a distance in bytes, and "shape" makes it
// dense. In numbers, "r" is the length of the operand's rows, and "e" the bytes of an element.
//
// The size of a struct is a number, beyond its known bytes with "+", or ends it "before" or "after"
// the spoilt option; "byte" counts from its end, and is not zero.
const char kLines[] = R"(
$ROWS=residual|dy|gate|residual_out|y|q|dx
$COLUMNS=weight|bias|post_norm_weight|dw|db
$PAIRS=cos|sin
$PER_ROW=sums|rstd|sums_out|scale|zero
$EACH=x|$ROWS|$COLUMNS|$PAIRS|$PER_ROW
$FLOATS=x|residual|dy|gate|residual_out|y|dx|$COLUMNS|$PAIRS
$FORWARD_INPUTS=x|residual|gate|weight|bias|post_norm_weight|$PAIRS|sums
$FORWARD_OUTPUTS=residual_out|y|q|rstd|sums_out|scale|zero
$BACKWARD_INPUTS=x|dy|weight|$PAIRS|rstd
$BACKWARD_OUTPUTS=dx|dw|db
$NUMBERS=eps|weight_offset|divisor|factor|residual_factor
$ROTARY=rotary_pairs|rotary_part|rotary_rounding
$WORDS=eps_placement|rounding|residual_rounding|activation|gate_placement|gate_rounding|$ROTARY
$INTEGERS=group

; ; ; OK
; ; operands null= ; NULL ; operands: the pointer is null

# The set of operands. A full module holds all that it can.
$NO_RESIDUAL=residual=none,residual_out=none
call forward ; ; dy|$BACKWARD_OUTPUTS given=1 ; OPERAND ; @: rmsnorm_forward() does not take it
call backward ; ; residual|gate|bias|post_norm_weight|sums|residual_out|y|q|sums_out|scale|zero given=1 ; OPERAND ; @: rmsnorm_backward() does not take it
module ; ; weight given=1 ; OPERAND ; weight: the module has its own
full ; ; weight|bias|post_norm_weight given=1 ; OPERAND ; @: the module has its own
full ; $NO_RESIDUAL ; sums given=1 ; OPERAND ; sums: excludes post_norm_weight
full_backward ; ; ; OPERAND ; post_norm_weight: rmsnorm_backward() does not take it
; ; operands add_to=8|9|2147483648|4294967295 ; OPERAND ; add_to: 0x* holds an unknown flag
backward ; dx=f32|none,dw=f32,db=f32|none ; operands add_to=0|1|2|3|4|5|6|7 ; OK
; ; x|dy given=0 ; NULL ; @: the view is null
; ; weight|bias|post_norm_weight|gate|residual_out|sums|rstd|sums_out|zero|dx|dw|db given=0 ; OK
call forward ; ; y given=0 ; OK
$NO_INTEGERS=q=none,scale=none,zero=none
call forward ; y=none,$NO_INTEGERS,rstd=none,sums_out=none,residual_out=none ; ; NULL ; y: the view is null
backward ; dx=none,dw=none,db=none ; ; NULL ; dx: the view is null
residual ; ; residual given=0 ; OPERAND ; residual_out: there is no residual
; scale=none ; q given=0 ; OPERAND ; zero: there is no q
; zero=none ; q given=0 ; OPERAND ; scale: there is no q
; zero=none ; scale given=0 ; OPERAND ; q: there is no scale
residual ; post_norm_weight=none ; sums given=1 ; OPERAND ; sums: excludes residual
sums ; ; post_norm_weight given=1 ; OPERAND ; sums: excludes post_norm_weight

rotated ; ; residual|gate given=1 ; OPERAND ; cos: excludes @
rotated ; scale=f32 ; q given=1 ; OPERAND ; cos: excludes q
rotary ; ; cos given=0 ; OPERAND ; sin: there is no cos
rotary ; ; sin given=0 ; OPERAND ; cos: there is no sin
rotated ; ; y given=0 ; OPERAND ; cos: there is no y

# A view alone.
$MAX=9223372036854775807
$MIN=-9223372036854775808
; ; $EACH data=null ; NULL ; @: data is null
short ; ; $EACH data=null ; NULL ; @: data is null
; ; $EACH dtype=0|6|-1|2147483647|-2147483648 ; DTYPE ; @: unknown dtype %
; ; $FLOATS+ dtype=f16|bf16 ; OK
; ; $FLOATS dtype=f64|i8 ; DTYPE ; @: %* it must be f32, f16 or bf16
; ; sums|sums_out dtype=f32|f16|bf16|i8 ; DTYPE ; @: %* it must be f64
; ; rstd|scale dtype=f16|bf16|f64|i8 ; DTYPE ; @: %* it must be f32
; ; q|zero dtype=f32|f16|bf16|f64 ; DTYPE ; @: %* it must be i8
; ; residual_out dtype=f16|bf16 residual dtype=f32 ; DTYPE ; residual_out: * the type of residual, %
; ; residual_out dtype=f32|bf16 residual dtype=f16 ; DTYPE ; residual_out: * the type of residual, %
; ; residual_out dtype=f32|f16 residual dtype=bf16 ; DTYPE ; residual_out: * the type of residual, %
; ; $EACH ndim=0|-1|9|2147483647|-2147483648 ; SHAPE ; @: % dimensions; 1 to 8 are possible
; d=0,rows=2x3|0x3 ; ; SHAPE ; x: the last dimension, d, is 0
; ; x|$ROWS|$COLUMNS shape2=0 ; SHAPE ; @: the last dimension, d, is 0
; ; $PAIRS shape2=0 ; SHAPE ; @: the last dimension is 0
; ; x|$ROWS|$COLUMNS|$PAIRS stride2=0|2|-1|$MAX ; LAYOUT ; @: stride * in the last dimension* it must be contiguous (1)!
; ; $FLOATS|rstd|scale data=1|2|3 ; LAYOUT ; @: * is not aligned
; ; $FLOATS dtype=f16|bf16 data=1 ; LAYOUT ; @: * is not aligned
; ; sums|sums_out data=1|2|3|4|5|6|7 ; LAYOUT ; @: * is not aligned

# More bytes, or rows, than an address can count; and ranges that are smaller than the address space
# but exceed it above or below the data.
; ; $EACH stride0|stride1=$MAX|$MIN|$MAX/e|$MIN/e ; LAYOUT ; @: spans more bytes than an address
; ; $EACH stride0=9223372036854771711/e data=top ; LAYOUT ; @: spans more bytes than an address
; ; $EACH stride0=-9223372036854771711/e ; LAYOUT ; @: spans more bytes than an address
; ; x shape0|shape1|shape2=-1|$MAX ; LAYOUT ; x: spans more bytes than an address
; ; x shape=4294967296x4294967296x8|4294967296x536870912x8 stride0=0 stride1=0 ; LAYOUT ; x: spans more bytes

# The shape of an operand relative to the shape of x.
; ; $ROWS shape=1x3x8|3x3x8 ; SHAPE ; @: *x has 2 in dimension 0!
; ; $ROWS shape=2x1x8|2x4x8|6x8|1x2x3x8|48 ; SHAPE ; @: *x has 3
; ; $ROWS shape=2x3x7|2x3x9 ; SHAPE ; @: *x has 8
; ; $PER_ROW shape=0x3|1x3|3x3 ; SHAPE ; @: *x has 2
; ; $PER_ROW shape=2x0|2x2|2x4 ; SHAPE ; @: *x has 3
; ; $PER_ROW shape=6|2x3x1|1x2x3 ; SHAPE ; @: *dimensions
; ; $COLUMNS shape=7|9|2x3x7|2x3x9 ; SHAPE ; @: *for rows of 8
; ; $COLUMNS shape=0x8|2x8|4x8|1x0x8|1x2x8|1x4x8 ; SHAPE ;
  @: *x has 3 in dimension 1; it must be that or 1!
; ; $COLUMNS shape=0x1x8|3x1x8|0x3x8|3x3x8 ; SHAPE ; @: *x has 2
; ; $COLUMNS shape=1x1x1x8|1x2x3x8 ; SHAPE ; @: 4 dimensions, but x has 3
; ; $PAIRS shape=5|2x3x5 ; SHAPE ; @: 5 elements in its last dimension; rows of 8 have 4 pairs!
; ; $PAIRS shape=2x4|1x2x4 ; SHAPE ; @: *x has 3
; ; $PAIRS shape=0x1x4|3x3x4 ; SHAPE ; @: *x has 2
; ; $PAIRS shape=1x1x1x4 ; SHAPE ; @: 4 dimensions, but x has 3
; ; sin shape=3|2x3x1 ; SHAPE ; sin: * elements in its last dimension, but cos has 4!
; ; cos shape=4|1x4|3x4|2x1x4|2x3x4 sin shape=4|1x4|3x4|2x1x4|2x3x4 ; OK
; ; cos+sin shape=1|2x1x3 ; OK
rotary ; d=4097,rows=one ; ; SHAPE ; cos: it rotates rows of at most 4096 elements, and x has 4097!
$SHAPES=8|1x8|3x8|1x1x8|1x3x8|2x1x8|2x3x8
; ; weight shape=$SHAPES bias shape=$SHAPES ; OK
; ; bias|post_norm_weight shape=$SHAPES ; OK
; ; dw+weight shape=$SHAPES db shape=$SHAPES ; OK
# The gradient by a weight has the weight's shape, apart from leading dimensions of 1. Without a
# weight, every shape of a gradient by a bias is valid.
; ; weight shape=8|1x8|1x1x8 dw shape=8|1x8|1x1x8 ; OK
; ; weight shape=8 dw shape=3x8|2x1x8|2x3x8 ; SHAPE ; dw: *weight
; ; weight shape=3x8 dw shape=8|2x1x8|2x3x8 ; SHAPE ; dw: *weight
; ; weight shape=2x1x8 dw shape=8|3x8|2x3x8 ; SHAPE ; dw: *weight
; ; weight shape=2x3x8 dw shape=8|3x8|2x1x8 ; SHAPE ; dw: *weight
; weight=none ; dw shape=$SHAPES ; OK
# One row: operands with one element per row have one element, and there is nothing to broadcast
# over.
; rows=one ; ; OK
; rows=one ; $ROWS|$COLUMNS shape=1x8 ; SHAPE ; @: 2 dimensions, but x has 1
; rows=one ; $PER_ROW shape=2|0|1x1 ; SHAPE ; @: it must be one element, as x is one row
# Columns in calls with few operands.
$FEW=gate=none,bias=none,post_norm_weight=none,sums_out=none,q=none,scale=none,zero=none
plain residual ; $FEW,weight_per=tensor ; weight shape=7|9|1|2x3x7 ; SHAPE ; weight: *for rows of 8
plain residual ; $FEW,weight_per=tensor ; weight stride0=0|2 ; LAYOUT ; weight: stride
$NO_DB=db=none,weight_per=tensor,dw_per=tensor
plain backward ; $NO_DB ; weight+dw shape=7|9|1|2x3x7 ; SHAPE ; weight: *for rows of 8
plain backward ; $NO_DB ; dw shape=7|9|1|2x3x7 ; SHAPE ; dw: *for rows of 8
backward ; $NO_DB ; dw stride0=0|2 ; LAYOUT ; dw: stride
backward ; $NO_DB ; dw dtype=f64|i8 ; DTYPE ; dw: %* it must be f32, f16 or bf16
# A module knows its d.
module ; d=7|9 ; ; SHAPE ; x: * 8

# The strides of an output must separate its rows: the rows may not repeat, overlap, share a place
# as (0, 2) and (1, 0), or lie between two others. Rows of an input may.
$SHARED=3rx0|0x1r|0x0|2rx1r|-2rx1r|1rx1r
call forward ; ; $FORWARD_OUTPUTS stride=$SHARED ; LAYOUT ; @: its strides do not tell rows apart
call backward ; ; $BACKWARD_OUTPUTS stride=$SHARED ; LAYOUT ; @: its strides do not tell rows apart
call forward ; ; $FORWARD_INPUTS stride=$SHARED ; OK
call backward ; ; $BACKWARD_INPUTS stride=$SHARED ; OK
; ; $EACH stride=3rx1r|3rx-1r|-3rx1r|1rx2r|1rx-2r ; OK
; ; y|residual_out|q|dx|dw|db stride1=1|7|-7 ; LAYOUT ; @: its strides do not tell rows apart
; ; place stride1=0 residual_out|y|dx as=place ; LAYOUT ; @: its strides do not tell rows apart
plain ; d=1 ; y stride=3x2 ; LAYOUT ;
  y: its strides do not tell rows apart (12 bytes from one index to the next, but each spans 20)

# In place means the same data, strides and element size.
; ; y as=x ; OK
; ; residual_out as=residual ; OK
; ; dx as=dy ; OK
; ; place stride=24x8|40x10|-24x-8|8x16 residual_out|y|dx as=place ; OK
; ; y+residual_out as=place ; OK
; ; place dtype=f16|bf16 y|dx as=place dtype=f16|bf16 ; OK
; ; residual_out|y|dx as=place stride=27x9|32x8|24x-8 ; OVERLAP ; @: overlaps *in place means the same data
; ; y|dx as=place dtype=bf16 ; OVERLAP ; @: overlaps *in place means the same data
; ; y|dx as=place dtype=bf16 stride=48x16 ; OVERLAP ; @: overlaps *in place means the same data
# Inputs may share bytes. If two inputs are one tensor, an output that replaces one of them overlaps
# the other.
call forward ; ; $FORWARD_INPUTS+ data=x ; OK
call backward ; ; $BACKWARD_INPUTS+ data=x ; OK
residual ; ; residual+y as=x ; OVERLAP ; y: overlaps residual
; ; residual+residual_out as=x ; OVERLAP ; residual_out: overlaps x
; ; dy+dx as=x ; OVERLAP ; dx: overlaps x
# With strides in bytes, separate rows overlap, and the message says so. It does not where a step of
# that many bytes would be narrower than a row.
; ; x stride=96x32 y as=x data=128 ; OVERLAP ; y: overlaps x *; strides count elements, not bytes
; ; x stride=93x31 y as=x data=124 ; OVERLAP ; y: overlaps x *strides and element size!
; ; x stride2=4 ; LAYOUT ; x: stride 4 *; strides count elements

# No rows along one of the leading dimensions, and null data.
$EMPTY=rows=0x3|2x0|0|0x18446744073709551615|18446744073709551615x18446744073709551615x0,
  weight_per=tensor,bias_per=tensor,post_norm_weight_per=tensor,dw_per=tensor,db_per=tensor
; $EMPTY ; x|$ROWS|$PER_ROW+ data=null ; OK
; $EMPTY ; $EACH dtype=9 ; DTYPE ; @: unknown dtype
options ; $EMPTY,eps=-1 ; ; OPTION ; options: eps

# Options.
options ; ; options $NUMBERS=nan|inf|-inf ; OPTION ; options: @ is
options ; ; options $WORDS=-1|3|2147483647|-2147483648 ; OPTION ; options: @ is unknown
options ; ; options residual_rounding|gate_placement|gate_rounding|rotary_pairs|rotary_part=2 ; OPTION ; options: @ is
options ; eps=-1e-45|-1 ; ; OPTION ; options: eps
options ; eps=0|-0|1e-45|3.4028235e38 ; ; OK
options ; divisor=-1e-45|-8|1e-45|1.1754942e-38|8.50706e37|3.4e38 ; ; OPTION ; options: divisor
options ; divisor=-0|1.17549435e-38|8.507059e37 ; ; OK
forward options ; factor=0|-1|1e-45|3.4028235e38 ; ; OK
create options ; factor=0|-1|1e-45|3.4028235e38 ; ; OK
backward options ; factor=0|-0|1 ; ; OK
backward options ; factor=-1|1e-45|3.4028235e38 ; ; OPTION ; options: factor
options ; ; options rounding=3 ; OPTION ;
  options: rounding is unknown (3); it must be after_weight (0), before_weight (1) or inverse (2)
options ; eps_placement=inside|outside|floor ; ; OK
options ; rounding=after_weight|before_weight|inverse ; ; OK
options ; residual_rounding=rounded|unrounded ; ; OK
# A factor of the residual needs a residual, and backward takes none.
residual options ; residual_factor=0|-1|1e-45|3.4028235e38 ; ; OK
create options ; residual_factor=0|-1|1e-45|3.4028235e38 ; ; OK
backward options ; residual_factor=0|-1|1e-45|3.4028235e38 ; ; OK
options forward ; residual=none,residual_out=none,residual_factor=0|-0|1 ; ; OK
options forward ; residual=none,residual_out=none,residual_factor=0.5 ; ; OPTION ;
  options: residual_factor is 0.5, but there is no residual!
# Gate options need a gate, and backward takes none.
$ANY_GATE=gate_placement=after|before,gate_rounding=unrounded|rounded
options forward ; gate=none,activation=sigmoid,$ANY_GATE ; ; OPTION ; options: activation is sigmoid, but
options backward ; activation=sigmoid|none,$ANY_GATE ; ; OPTION ;
  options: activation is *; rmsnorm_backward() takes the default!
options forward ; gate=none,gate_placement=before,gate_rounding=unrounded|rounded ; ; OPTION ;
  options: gate_placement is before, but
options backward ; gate_placement=before,gate_rounding=unrounded|rounded ; ; OPTION ;
  options: gate_placement is before; rmsnorm_backward() takes the default!
options forward ; gate=none,gate_rounding=rounded ; ; OPTION ; options: gate_rounding is rounded, but
options backward ; gate_rounding=rounded ; ; OPTION ;
  options: gate_rounding is rounded; rmsnorm_backward() takes the default!
options forward ; gate=none ; ; OK
options forward ; activation=silu|sigmoid|none,$ANY_GATE ; ; OK
options sums|residual ; activation=none,gate_placement=before,gate_rounding=unrounded|rounded ; ; OK
# A group divides the row, and needs q where there is y.
options ; ; options group=-8|1|4|7|12|8192|2147483647 ; OPTION ;
  options: group is %; it must be a power of two from 8 to 4096, or the default, d!
options ; ; options group=16|4096 ; OPTION ; options: group is %; it does not divide rows of 8!
call forward options ; q=none,scale=none,zero=none,group=8 ; ; OPTION ; options: group is 8, but there is no q!
call forward options ; q=none,scale=none,zero=none,y=none,group=8 ; ; OK
backward options ; group=8 ; ; OPTION ; options: group is 8; rmsnorm_backward() takes the default!
call forward options ; group=8 ; ; OK
call forward options ; group=8 ; scale|zero shape=2x3 ; SHAPE ; @: 2 dimensions, but x has 3!
call forward options ; group=8 ; scale|zero shape=2x3x2 ; SHAPE ; @: 2 elements in its last dimension; it must be d / group, 1!
call forward options ; group=8 ; scale|zero shape=2x3x0 ; SHAPE ; @: the last dimension is 0!
call forward options ; group=8 ; scale|zero shape=2x1x1 ; SHAPE ; @: 1 in dimension 1, but x has 3
call forward options ; d=64,group=8 ; scale|zero stride2=2 ; LAYOUT ; @: stride 2 in the last dimension
call forward options ; rows=one,group=8 ; ; OK
# The options of rotary positions need the tables.
rotary options ; rotary_pairs=halves|neighbours,rotary_part=start|end,rotary_rounding=each|norm|none ; ; OK
options call ; cos=none,sin=none,rotary_pairs=neighbours ; ; OPTION ;
  options: rotary_pairs is neighbours, but there is no cos!
options call ; cos=none,sin=none,rotary_part=end ; ; OPTION ; options: rotary_part is end, but there is no cos!
options call ; cos=none,sin=none,rotary_rounding=none ; ; OPTION ; options: rotary_rounding is none, but
# An offset needs a weight if an output depends on the weight; a post-norm has one.
options ; weight_offset=1|-1e-45 ; ; OK
$BARE=weight=none,post_norm_weight=none,bias=none
plain ; $BARE,weight_offset=-1e-45 ; ; OPTION ;
  options: weight_offset is -1.4013e-45, but there is no weight
plain ; $BARE,weight_offset=1 ; ; OPTION ; options: weight_offset is 1, but there is no weight
plain forward ; $BARE,weight_offset=1,y=none ; ; OPTION ; options: weight_offset is 1
plain residual ; weight=none,weight_offset=1|-1e-45 ; ; OK
plain forward ; $BARE,weight_offset=1|-1e-45,y=none,q=none,scale=none,zero=none ; ; OK
plain backward ; weight=none,weight_offset=1,dx=none,dw=f32,db=none ; ; OPTION ; options: w
plain backward ; weight=none,weight_offset=1,dx=none,dw=none ; ; OK
plain ; $BARE,weight_offset=-0 ; ; OK

beside ; ; ; OPERAND ; options: the module has its own

# The vectors that a module receives or returns.
weight ; ; weight given=0 ; NULL ; weight: the view is null
removable ; ; $EACH given=0 ; OK
held ; ; $EACH data=null ; NULL ; @: data is null
held ; ; $EACH dtype=0|6|-1|f64 ; DTYPE ; @:
held ; ; $EACH ndim=0|-1|9 ; SHAPE ; @:
held ; ; $EACH shape=1x8|0|7|9 ; SHAPE ; @:
held ; ; $EACH stride0=2 ; LAYOUT ; @:
held ; ; $EACH data=2 ; LAYOUT ; @:

# Functions for dense rows, which take pointers; d is 8, and x has the number of rows.
rows ; rows=0|1|16|17 ; ; OK
rows ; rows=0 ; x|$ROWS|$PER_ROW+ data=null ; OK
rows ; ; x|residual|residual_out|y|dy data=null ; NULL ; @: data is null
rows ; ; $FLOATS data=1 ; LAYOUT ; @: * is not aligned
rows ; ; rstd data=2 ; LAYOUT ; rstd: * is not aligned
rows ; ; x dtype=0|6|-1|2147483647|-2147483648|f64|i8 ; DTYPE ; x:
rows ; ; residual dtype=0|6|-1|2147483647|-2147483648|f64|i8 ; DTYPE ; residual:
rows ; ; x shape0=-1|2305843009213693951|2305843009213693952 ; LAYOUT ; x: spans more
# Their module may have options for operands that these calls do not have.
rows ; activation=sigmoid|none ; ; OPTION ; options: activation is
rows ; gate_placement=before ; ; OPTION ; options: gate_placement is before
rows ; group=8 ; ; OPTION ; options: group is 8
rows ; rotary_pairs=neighbours ; ; OPTION ; options: rotary_pairs is neighbours, but there is no cos!

# Contexts.
context ; threads=-1|-2147483648 ; ; OPTION ; context: threads
context ; threads=2147483647 ; ; OK
context ; ; context stores=-1|3 ; OPTION ; context: stores
context ; ; context stores=0|1|2 ; OK
context ; ; context reserved=-1|1 ; OPTION ; context: reserved
context ; ; context target=PDP11 ; TARGET ; target:

# Structs of other versions of the library. One that ends before a field has its default. Beyond the
# known bytes all must be zero.
$WRONG=size=0|1|2|3|5|2147483648|4294967295
$GROWN=size=+8|+64|+256
; ; operands $WRONG ; STRUCT_SIZE ; operands: size is
options ; ; options $WRONG ; STRUCT_SIZE ; options: size is
context ; ; context $WRONG ; STRUCT_SIZE ; context: size is
; ; operands $GROWN ; OK
options ; ; options $GROWN ; OK
context ; ; context $GROWN ; OK
; ; operands $GROWN byte=1|2|3|4|5|6|7|8 ; STRUCT_SIZE ; operands: size is
options ; ; options $GROWN byte=1|2|3|4|5|6|7|8 ; STRUCT_SIZE ; options: size is
context ; ; context $GROWN byte=1|2|3|4|5|6|7|8 ; STRUCT_SIZE ; context: size is
; ; operands add_to=4294967295 size=4 ; NULL ; x: the view is null
options ; ; options $NUMBERS=nan size=before ; OK
options ; ; options $NUMBERS=nan size=after ; OPTION ; options: @ is
options ; ; options $WORDS|$INTEGERS=-1 size=before ; OK
options ; ; options $WORDS|$INTEGERS=-1 size=after ; OPTION ; options: @ is
context ; threads=-1 ; context size=4 ; OK
context ; threads=-1 ; context size=8 ; OPTION ; context: threads
context ; ; context target=PDP11 size=24 ; OK
context ; ; context target=PDP11 size=32 ; TARGET ; target:
)";

// A spoilt argument, its part, and the new value.
struct Spoilt {
  std::string name;
  std::string part;
  std::string value;
};

struct Line {
  std::vector<std::string> words;
  std::string fields;
  std::vector<Spoilt> spoilt;
  rmsnorm_status status;
  std::string message;
};

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

Line ParseLine(const std::string& text) {
  static const std::vector<std::string> statuses =
      Words("OK NULL STRUCT_SIZE DTYPE SHAPE LAYOUT OVERLAP OPTION OPERAND TARGET MEMORY DEVICE");
  std::vector<std::string> columns = Split(text, ';');
  // A message may have semicolons.
  for (; columns.size() > 5; columns.pop_back()) *(columns.end() - 2) += ";" + columns.back();
  columns.resize(5);
  const auto status = std::find(statuses.begin(), statuses.end(), Words(columns[3]).at(0));
  if (status == statuses.end()) throw std::runtime_error("no status: " + text);
  Line line = {
      Words(columns[0]), "", {}, static_cast<rmsnorm_status>(status - statuses.begin()), ""};
  if (line.words.empty()) line.words = {"call"};
  for (const std::string& fields : Words(columns[1])) line.fields += fields;
  std::string name;
  for (const std::string& word : Words(columns[2])) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      name = word;
    } else {
      line.spoilt.push_back({name, word.substr(0, equals), word.substr(equals + 1)});
    }
  }
  for (const std::string& word : Words(columns[4])) {
    line.message += (line.message.empty() ? "" : " ") + word;
  }
  return line;
}

// Adds a line for each choice among values or names.
void Expand(const std::string& text, std::vector<Line>& lines) {
  const size_t bar = text.find('|');
  if (bar == std::string::npos) return lines.push_back(ParseLine(text));
  const size_t begin = text.find_last_of(" ,=;", bar) + 1;
  const size_t end = text.find_first_of(" ,=;", bar);
  std::string choices = text.substr(begin, end - begin);
  if (choices.back() == '+') {
    std::replace(choices.begin(), choices.end(), '|', '+');
    choices.pop_back();
  }
  for (const std::string& choice : Split(choices, '|')) {
    Expand(text.substr(0, begin) + choice + text.substr(end), lines);
  }
}

// The number of the line with this name in a table, or of its lines.
template <class Rule, size_t kRules>
int LineOf(const Rule (&rules)[kRules], const std::string& name) {
  int i = 0;
  while (i < static_cast<int>(kRules) && name != rules[i].name) ++i;
  return i;
}

// A number in the notation of the lines.
ptrdiff_t Number(const ArgumentCall& call, Operand o, const std::string& text) {
  size_t digits;
  const ptrdiff_t number = std::stoll(text, &digits);
  const size_t element = rmsnorm_dtype_size(call.operands.view[o].dtype);
  return text.substr(digits) == "r"    ? number * static_cast<ptrdiff_t>(RowLengthOf(call.c, o))
         : text.substr(digits) == "/e" ? number / static_cast<ptrdiff_t>(element)
                                       : number;
}

void SpoilOperand(ArgumentCall& call, Operand o, const std::string& part,
                  const std::string& value) {
  rmsnorm_view& view = call[o];
  std::vector<ptrdiff_t> numbers;
  if (part == "shape" || part == "stride") {
    for (const std::string& one : Split(value, 'x')) numbers.push_back(Number(call, o, one));
  }
  const int other = value == "place" ? kOperandRules[o].in_place_of : LineOf(kOperandRules, value);
  if (part == "given") {
    value == "1" ? call.Give(o, cases::ShapeOf(call.c, o)) : call.Remove(o);
  } else if (part == "as") {
    view = call[static_cast<Operand>(other)];
  } else if (part == "data") {
    view.data = value == "null"      ? nullptr
                : value == "top"     ? reinterpret_cast<const void*>(UINTPTR_MAX - 4095)
                : other != kOperands ? call[static_cast<Operand>(other)].data
                                     : static_cast<const char*>(view.data) + Number(call, o, value);
  } else if (part == "dtype") {
    const bool is_known = cases::FindField(kOperandRules[o].name).read(call.c, value);
    view.dtype = is_known ? call.c.operand[o].dtype : std::stoi(value);
  } else if (part == "ndim") {
    // Builds the view through the interface, which must not write beyond its eight dimensions.
    const std::vector<size_t> shape(9, 1);
    view = rmsnorm_tensor(view.data, view.dtype, std::stoi(value), shape.data(), nullptr);
  } else if (part == "shape") {
    call.Give(o, {numbers.begin(), numbers.end()});
  } else if (part == "stride") {
    std::copy(numbers.begin(), numbers.end(), view.stride);
  } else if (part.find("shape") == 0) {
    view.shape[part[5] - '0'] = static_cast<size_t>(Number(call, o, value));
  } else {
    view.stride[part.at(6) - '0'] = Number(call, o, value);
  }
}

void SpoilStruct(ArgumentCall& call, const Line& line, const Spoilt& spoilt) {
  const auto& [name, part, value] = spoilt;
  Version& version = name == "operands"  ? call.operands_version
                     : name == "options" ? call.options_version
                                         : call.context_version;
  const auto option = static_cast<internal::Option>(LineOf(kOptionRules, part));
  if (option != internal::kOptions && internal::IsNumber(option)) {
    internal::SetValueIn(call.c.options, option, std::stof(value));
  } else if (option != internal::kOptions) {
    internal::SetValueIn(call.c.options, option, std::stoi(value));
  } else if (part == "size" && (value == "before" || value == "after")) {
    const auto offset =
        static_cast<uint32_t>(kOptionRules[LineOf(kOptionRules, line.spoilt[0].part)].offset);
    version.size = value == "before" ? offset : offset + sizeof(float);
  } else if (part == "size") {
    version.size = static_cast<uint32_t>(std::stoul(value) + (value[0] == '+' ? version.size : 0));
  } else if (part == "byte") {
    version.spoilt_byte = version.size - std::stoul(value);
  } else if (part == "null") {
    call.no_operands = true;
  } else if (part == "add_to") {
    call.operands.add_to = static_cast<uint32_t>(std::stoul(value));
  } else if (part == "target") {
    call.context.target = value.c_str();
  } else {
    (part == "stores" ? call.context.stores : call.context.reserved) = std::stoi(value);
  }
}

// The operands of a call that a spoilt argument names. Throws for an unknown name.
OperandSet NamedIn(const ArgumentCall& call, const Spoilt& spoilt) {
  OperandSet named = 0;
  for (const std::string& name : Split(spoilt.name, '+')) {
    const auto o = static_cast<Operand>(LineOf(kOperandRules, name));
    if (o == kOperands) throw std::runtime_error("no operand: " + name);
    if (call.Has(o) || (spoilt.part == "given" && spoilt.value == "1")) named |= cases::SetOf(o);
  }
  return named;
}

// Returns whether the call has all spoilt operands, or receives them.
bool Spoil(ArgumentCall& call, const Line& line) {
  for (const Spoilt& given : line.spoilt) {
    if (given.name == "operands" || given.name == "options" || given.name == "context") {
      SpoilStruct(call, line, given);  // keeps the text of a target
      continue;
    }
    Spoilt spoilt = given;
    if (spoilt.name == "place") {
      const Operand last = static_cast<Operand>(LineOf(kOperandRules, line.spoilt.back().name));
      spoilt.name = kOperandRules[kOperandRules[last].in_place_of].name;
    }
    const OperandSet named = NamedIn(call, spoilt);
    if (named == 0) return false;
    internal::ForEachOperand(named,
                             [&](Operand o) { SpoilOperand(call, o, spoilt.part, spoilt.value); });
  }
  return true;
}

// The start of a line's message, which "*" may interrupt.
std::string Pattern(const Line& line) {
  std::string pattern = line.message;
  const auto replace = [&](char sign, const std::string& meaning) {
    const size_t at = pattern.find(sign);
    if (at != std::string::npos) pattern.replace(at, 1, meaning);
  };
  if (line.spoilt.empty()) return pattern;
  const Spoilt& last = line.spoilt.back();
  replace('@', last.name == "options" ? line.spoilt[0].part : last.name);
  replace('%', last.value);
  return pattern;
}

// Returns the number of calls to which a line applies.
size_t TestLine(const Line& line) {
  size_t calls = 0;
  for (const EntryPoint& entry : EntryPoints()) {
    if (!HasWords(entry, line.words)) continue;
    SCOPED_TRACE(entry.words);
    ArgumentCall call(entry, line.fields);
    if (!Spoil(call, line)) continue;
    ++calls;
    if (line.status == RMSNORM_OK) {
      call.ExpectAccepted();
    } else {
      const std::string message = call.ExpectRefused(line.status);
      EXPECT_TRUE(Begins(message, Pattern(line))) << message << " is not " << Pattern(line);
    }
  }
  return calls;
}

TEST(Refusals, Table) {
  std::set<std::string> spoilt;
  for (const std::string& text : cases::LinesOf(kLines)) {
    SCOPED_TRACE(text);
    std::vector<Line> lines;
    Expand(text, lines);
    size_t calls = 0;
    for (const Line& line : lines) {
      calls += TestLine(line);
      for (const Spoilt& one : line.spoilt) spoilt.insert({one.name, one.part});
    }
    EXPECT_GT(calls, 0u);
  }
  for (const OperandRule& rule : kOperandRules) EXPECT_EQ(1u, spoilt.count(rule.name));
  for (const OptionRule& rule : kOptionRules) EXPECT_EQ(1u, spoilt.count(rule.name));
}

// A struct that ends before an operand has neither this nor the later ones.
TEST(Refusals, SmallerOperands) {
  for (const std::string kind : {"residual", "sums", "backward"}) {
    SCOPED_TRACE(kind);
    size_t accepted = 0;
    for (int i = 0; i < kOperands; ++i) {
      const std::string fields = kind == "backward" ? "" : "q=none,scale=none,zero=none";
      ArgumentCall cut(Find({"plain", kind}), fields);
      cut.operands_version.size = static_cast<uint32_t>(kOperandRules[i].offset);
      ArgumentCall fewer(Find({"plain", kind}), fields);
      fewer.operands.given &= cases::SetOf(static_cast<Operand>(i)) - 1;
      const rmsnorm_status status = fewer.Run();
      EXPECT_EQ(status, cut.Run()) << kOperandRules[i].name;
      EXPECT_TRUE(fewer.Bytes() == cut.Bytes()) << kOperandRules[i].name;
      accepted += status == RMSNORM_OK ? 1 : 0;
    }
    EXPECT_GT(accepted, 1u);
  }
}

// ------------------------------------------------------------------------------- null pointers

void ExpectError(rmsnorm_status expected, const std::string& begin, rmsnorm_status status) {
  EXPECT_EQ(expected, status);
  EXPECT_TRUE(Begins(rmsnorm_error_message(), begin)) << rmsnorm_error_message();
}

// A null module: see Cpp.Errors.
TEST(Refusals, NullPointers) {
  constexpr rmsnorm_dtype kF32 = RMSNORM_F32;
  float number = 0;
  const rmsnorm_view view = rmsnorm_vector(&number, kF32, 1);
  rmsnorm_prepared* const unset = reinterpret_cast<rmsnorm_prepared*>(&number);
  rmsnorm_prepared* prepared = unset;
  rmsnorm_prepared* gradients = unset;
  const struct {
    const char* argument;
    std::function<rmsnorm_status()> call;
  } calls[] = {
      {"module", [] { return rmsnorm_module_create(nullptr, kD, kF32, nullptr, nullptr); }},
      {"calls", [] { return rmsnorm_forward_all(nullptr, 1, nullptr); }},
      {"prepared", [] { return rmsnorm_prepare(nullptr, nullptr, 0, nullptr); }},
      {"calls", [&] { return rmsnorm_prepare(&prepared, nullptr, 1, nullptr); }},
      {"prepared", [] { return rmsnorm_prepare_backward(nullptr, nullptr, nullptr); }},
      {"call", [&] { return rmsnorm_prepare_backward(&gradients, nullptr, nullptr); }},
      {"prepared", [] { return rmsnorm_run(nullptr); }},
      {"exact_name", [] { return rmsnorm_find_target("reference", nullptr); }},
      {"x", [&] { return rmsnorm_norm(nullptr, nullptr, &view, nullptr); }},
      {"y", [&] { return rmsnorm_norm(&view, nullptr, nullptr, nullptr); }}};
  for (const auto& [argument, call] : calls) {
    const char* exact;
    rmsnorm_find_target("PDP11", &exact);  // sets a different message
    ExpectError(RMSNORM_ERROR_NULL, argument + std::string(": "), call());
  }
  EXPECT_EQ(nullptr, prepared);
  EXPECT_EQ(nullptr, gradients);
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward_all(nullptr, 0, nullptr));
  rmsnorm_prepared_destroy(nullptr);
  rmsnorm_module_destroy(nullptr);
  EXPECT_EQ(0u, rmsnorm_module_d(nullptr));
  EXPECT_EQ(0, rmsnorm_module_dtype(nullptr));
  EXPECT_EQ(nullptr, rmsnorm_module_options(nullptr));
  EXPECT_STREQ("", rmsnorm_module_describe(nullptr));
}

// ------------------------------------------------------------------------------------- module

TEST(Module, WrongTypeOrLength) {
  const auto expect_refused = [](rmsnorm_status status, const std::string& name, size_t d,
                                 rmsnorm_dtype dtype) {
    rmsnorm_module* module = reinterpret_cast<rmsnorm_module*>(&module);
    ExpectError(status, name, rmsnorm_module_create(&module, d, dtype, nullptr, nullptr));
    EXPECT_EQ(nullptr, module);
  };
  for (const int32_t dtype : {0, int32_t{RMSNORM_F64}, 6, -1, INT32_MIN}) {
    expect_refused(RMSNORM_ERROR_DTYPE, "dtype: ", kD, dtype);
  }
  expect_refused(RMSNORM_ERROR_DTYPE, "dtype: f64; it must be f32, f16 or bf16", kD, RMSNORM_F64);
  expect_refused(RMSNORM_ERROR_DTYPE, "dtype: unknown dtype 6; it must be f32", kD, 6);
  expect_refused(RMSNORM_ERROR_SHAPE, "d: ", 0, RMSNORM_F32);
  for (const size_t d : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 8}) {
    expect_refused(RMSNORM_ERROR_MEMORY, "d: ", d, RMSNORM_F32);
  }
}

// ------------------------------------------------------------------------------------- memory

// Rows so long that no memory holds their sums: the call fails before it writes anything. The views
// span addresses that are never touched.
TEST(Memory, LongRows) {
  const size_t d = SIZE_MAX / 64;
  char* const low = reinterpret_cast<char*>(4096);
  const rmsnorm_view x = rmsnorm_vector(low, RMSNORM_BF16, d);
  const rmsnorm_view other = rmsnorm_vector(low + 8 * d, RMSNORM_BF16, d);
  constexpr rmsnorm_status kMemory = RMSNORM_ERROR_MEMORY;
  rmsnorm_operands operands = rmsnorm_no_operands();
  const rmsnorm_call call = {nullptr, &operands, nullptr};
  rmsnorm_prepared* prepared = nullptr;
  operands.x = operands.dy = &x;
  operands.dw = &other;
  ExpectError(kMemory, "x: ", rmsnorm_backward(&operands, nullptr, nullptr));
  ExpectError(kMemory, "prepared: ", rmsnorm_prepare_backward(&prepared, &call, nullptr));
  operands = rmsnorm_no_operands();
  operands.x = operands.weight = &x;
  operands.y = &other;
  ExpectError(kMemory, "x: ", rmsnorm_forward(&operands, nullptr, nullptr));
  ExpectError(kMemory, "prepared: ", rmsnorm_prepare(&prepared, &call, 1, nullptr));
  EXPECT_EQ(nullptr, prepared);
}

// A wrong count, such as -1, is refused before a call is read.
TEST(Memory, ManyCalls) {
  const rmsnorm_call call = {};
  for (const size_t count : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / sizeof call, SIZE_MAX / 4096}) {
    const std::string message = "calls: no memory for " + std::to_string(count) + " of them!";
    rmsnorm_prepared* prepared = nullptr;
    ExpectError(RMSNORM_ERROR_MEMORY, message, rmsnorm_forward_all(&call, count, nullptr));
    ExpectError(RMSNORM_ERROR_MEMORY, message, rmsnorm_prepare(&prepared, &call, count, nullptr));
    EXPECT_EQ(nullptr, prepared);
  }
}

}  // namespace
}  // namespace rmsnorm::test
