// SPDX-License-Identifier: Apache-2.0
// Refused arguments: the status, a message that begins with the argument's name, and no write.
// Unusual but valid arguments. Statuses and their texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
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

// ---------------------------------------------------------------------------- lines of arguments

// A line has five columns. The first has words that choose entry points; without a word, it means
// all entry points that make a call. Then come fields of the case, the spoilt arguments, the status
// and the start of the message. In a message, "*" stands for anything, "@" for the spoilt operand
// or option, and "%" for the last value. "!" marks its end.
//
// "a|b" makes one line for each value. A line applies to the calls that have the operands it names.
//
// A spoilt argument is a name with new values of its parts. "&" separates spoilt arguments. The
// name is "operands", "options", "context", an operand, or a word for several:
// - "each": all operands of the call
// - "rows" (not x), "columns", "per_row": the operands of a shape
// - "floats": the operands of any type
// - "inputs", "outputs": the operands of a role
// - "replacing": the operands that may replace another
// - "place": the operand that each of these replaces
// - "absent": the operands that the function does not take
// - "numbers", "words": the options with such values; "end" is one past the last word
// A word spoils its operands or options in turn. With "+" after it, or between names, all are
// spoilt at once.
//
// In a view, "data" is null, "top", an operand's name or a distance in bytes, and "shape" makes it
// dense. In numbers, "r" is the length of the operand's rows, and "e" the bytes of an element.
const char kLines[] = R"(
; ; ; OK
; ; operands null=1 ; NULL ; operands: the pointer is null

# The set of operands. A full module holds all that it can.
$NO_RESIDUAL=residual=none,residual_out=none
; ; absent given=1 ; OPERAND ; @: rmsnorm_*ward() does not take it
module ; ; weight given=1 ; OPERAND ; weight: the module has its own
full ; ; weight|bias|post_norm_weight given=1 ; OPERAND ; @: the module has its own
full ; $NO_RESIDUAL ; sums given=1 ; OPERAND ; sums: excludes post_norm_weight
full_backward ; ; ; OPERAND ; post_norm_weight: rmsnorm_backward() does not take it
; ; operands add_to=8|9|2147483648|4294967295 ; OPERAND ; add_to: 0x* holds an unknown flag
backward ; dx=f32|none,dw=f32,db=f32|none ; operands add_to=0|1|2|3|4|5|6|7 ; OK
; ; x|dy given=0 ; NULL ; @: the view is null
; ; weight|bias|post_norm_weight|gate|residual_out|sums|y|rstd|sums_out|zero|dx|dw|db given=0 ; OK
$NO_INTEGERS=q=none,scale=none,zero=none
call forward ; y=none,$NO_INTEGERS,rstd=none,sums_out=none,residual_out=none ; ; NULL ; y: the view is null
backward ; dx=none,dw=none,db=none ; ; NULL ; dx: the view is null
residual ; ; residual given=0 ; OPERAND ; residual_out: there is no residual
; scale=none ; q given=0 ; OPERAND ; zero: there is no q
; zero=none ; q given=0 ; OPERAND ; scale: there is no q
; zero=none ; scale given=0 ; OPERAND ; q: there is no scale
residual ; post_norm_weight=none ; sums given=1 ; OPERAND ; sums: excludes residual
sums ; ; post_norm_weight given=1 ; OPERAND ; sums: excludes post_norm_weight

# A view alone.
$MAX=9223372036854775807
$MIN=-9223372036854775808
; ; each data=null ; NULL ; @: data is null
short ; ; each data=null ; NULL ; @: data is null
; ; each dtype=0|6|-1|2147483647|-2147483648 ; DTYPE ; @: unknown dtype %
; ; floats+ dtype=f16|bf16 ; OK
; ; floats dtype=f64|i8 ; DTYPE ; @: %* it must be f32, f16 or bf16
; ; sums|sums_out dtype=f32|f16|bf16|i8 ; DTYPE ; @: %* it must be f64
; ; rstd|scale dtype=f16|bf16|f64|i8 ; DTYPE ; @: %* it must be f32
; ; q|zero dtype=f32|f16|bf16|f64 ; DTYPE ; @: %* it must be i8
; ; residual_out dtype=f16|bf16 & residual dtype=f32 ; DTYPE ; @: * the type of residual, %
; ; residual_out dtype=f32|bf16 & residual dtype=f16 ; DTYPE ; @: * the type of residual, %
; ; residual_out dtype=f32|f16 & residual dtype=bf16 ; DTYPE ; @: * the type of residual, %
; ; each ndim=0|-1|9|2147483647|-2147483648 ; SHAPE ; @: % dimensions; 1 to 8 are possible
; d=0,rows=2x3|0x3 ; ; SHAPE ; x: the last dimension, d, is 0
; ; x|rows|columns shape2=0 ; SHAPE ; @: the last dimension, d, is 0
; ; x|rows|columns stride2=0|2|-1|$MAX ; LAYOUT ; @: stride * in the last dimension* it must be contiguous (1)!
; ; floats|rstd|scale data=1|2|3 ; LAYOUT ; @: * is not aligned
; ; floats dtype=f16|bf16 data=1 ; LAYOUT ; @: * is not aligned
; ; sums|sums_out data=1|2|3|4|5|6|7 ; LAYOUT ; @: * is not aligned

# More bytes, or rows, than an address can count; and ranges that are smaller than the address space
# but exceed it above or below the data.
; ; each stride0|stride1=$MAX|$MIN|$MAX/e|$MIN/e ; LAYOUT ; @: spans more bytes than an address
; ; each stride0=9223372036854771711/e data=top ; LAYOUT ; @: spans more bytes than an address
; ; each stride0=-9223372036854771711/e ; LAYOUT ; @: spans more bytes than an address
; ; x shape0|shape1|shape2=-1|$MAX ; LAYOUT ; x: spans more bytes than an address
; ; x shape=4294967296x4294967296x8|4294967296x536870912x8 stride0=0 stride1=0 ; LAYOUT ; x: spans more bytes

# The shape of an operand relative to the shape of x.
; ; rows shape=1x3x8|3x3x8 ; SHAPE ; @: *x has 2
; ; rows shape=2x1x8|2x4x8|6x8|1x2x3x8|48 ; SHAPE ; @: *x has 3
; ; rows shape=2x3x7|2x3x9 ; SHAPE ; @: *x has 8
; ; per_row shape=0x3|1x3|3x3 ; SHAPE ; @: *x has 2
; ; per_row shape=2x0|2x2|2x4 ; SHAPE ; @: *x has 3
; ; per_row shape=6|2x3x1|1x2x3 ; SHAPE ; @: *dimensions
; ; columns shape=7|9|2x3x7|2x3x9 ; SHAPE ; @: *for rows of 8
; ; columns shape=0x8|2x8|4x8|1x0x8|1x2x8|1x4x8 ; SHAPE ; @: *x has 3
; ; columns shape=0x1x8|3x1x8|0x3x8|3x3x8 ; SHAPE ; @: *x has 2
; ; columns shape=1x1x1x8|1x2x3x8 ; SHAPE ; @: 4 dimensions, but x has 3
$SHAPES=8|1x8|3x8|1x1x8|1x3x8|2x1x8|2x3x8
; ; weight shape=$SHAPES & bias shape=$SHAPES ; OK
; ; bias|post_norm_weight shape=$SHAPES ; OK
; ; dw+weight shape=$SHAPES & db shape=$SHAPES ; OK
module ; ; dw shape=$SHAPES & db shape=$SHAPES ; OK
# The gradient by a weight has the weight's shape, apart from leading dimensions of 1. Without a
# weight, every shape of a gradient by a bias is valid.
; ; weight shape=8|1x8|1x1x8 & dw shape=8|1x8|1x1x8 ; OK
; ; weight shape=8 & dw shape=3x8|2x1x8|2x3x8 ; SHAPE ; dw: *weight
; ; weight shape=3x8 & dw shape=8|2x1x8|2x3x8 ; SHAPE ; dw: *weight
; ; weight shape=2x1x8 & dw shape=8|3x8|2x3x8 ; SHAPE ; dw: *weight
; ; weight shape=2x3x8 & dw shape=8|3x8|2x1x8 ; SHAPE ; dw: *weight
; weight=none ; dw shape=$SHAPES ; OK
# One row: operands with one element per row have one element, and there is nothing to broadcast
# over.
; rows=one ; ; OK
; rows=one ; rows|columns shape=1x8 ; SHAPE ; @: 2 dimensions, but x has 1
; rows=one ; per_row shape=2|0|1x1 ; SHAPE ; @: it must be one element, as x is one row
# Columns in calls with few operands.
$FEW=gate=none,bias=none,post_norm_weight=none,sums_out=none,q=none,scale=none,zero=none
plain residual ; $FEW,weight_per=tensor ; weight shape=7|9|1|2x3x7 ; SHAPE ; weight: *for rows of 8
plain residual ; $FEW,weight_per=tensor ; weight stride0=0|2 ; LAYOUT ; weight: stride
$NO_DB=db=none,weight_per=tensor,dw_per=tensor
plain backward ; $NO_DB ; weight+dw|dw shape=7|9|1|2x3x7 ; SHAPE ; @: *for rows of 8
backward ; $NO_DB ; dw stride0=0|2 ; LAYOUT ; dw: stride
backward ; $NO_DB ; dw dtype=f64|i8 ; DTYPE ; dw: %* it must be f32, f16 or bf16
# A module knows its d.
module ; d=7|9 ; ; SHAPE ; x: * 8

# The strides of an output must separate its rows: the rows may not repeat, overlap, share a place
# as (0, 2) and (1, 0), or lie between two others. Rows of an input may.
$SHARED=3rx0|0x1r|0x0|2rx1r|-2rx1r|1rx1r
; ; outputs stride=$SHARED ; LAYOUT ; @: its strides do not tell rows apart
; ; inputs stride=$SHARED ; OK
; ; each stride=3rx1r|3rx-1r|-3rx1r|1rx2r|1rx-2r|3r+1x1r|1r+1x2r+3 ; OK
; ; y|residual_out|q|dx|dw|db stride1=1|7|-7 ; LAYOUT ; @: its strides do not tell rows apart
; ; place stride1=0 & replacing as=place ; LAYOUT ; @: its strides do not tell rows apart
plain ; d=1 ; y stride=3x2 ; LAYOUT ;
  y: its strides do not tell rows apart (12 bytes from one index to the next, but each spans 20)

# In place means the same data, strides and element size.
; ; y as=x ; OK
; ; residual_out as=residual ; OK
; ; dx as=dy ; OK
; ; place stride=24x8|40x10|-24x-8|8x16 & replacing as=place ; OK
; ; y+residual_out as=place ; OK
; ; place dtype=f16|bf16 & y|dx as=place dtype=f16|bf16 ; OK
; ; replacing as=place stride=27x9|32x8|24x-8 ; OVERLAP ; @: overlaps *in place means the same data
; ; y|dx as=place dtype=bf16 ; OVERLAP ; @: overlaps *in place means the same data
; ; y|dx as=place dtype=bf16 stride=48x16 ; OVERLAP ; @: overlaps *in place means the same data
# Inputs may share bytes. If two inputs are one tensor, an output that replaces one of them overlaps
# the other.
; ; inputs+ data=x ; OK
; ; residual+y as=x ; OVERLAP ; y: overlaps residual
; ; residual+residual_out as=x ; OVERLAP ; residual_out: overlaps x
; ; dy+dx as=x ; OVERLAP ; dx: overlaps x
# With strides in bytes, separate rows overlap, and the message says so. It does not where a step of
# that many bytes would be narrower than a row.
; ; x stride=96x32 & y as=x data=128 ; OVERLAP ; y: overlaps x *; strides count elements, not bytes
; ; x stride=93x31 & y as=x data=124 ; OVERLAP ; y: overlaps x *strides and element size!
; ; x stride2=4 ; LAYOUT ; x: stride 4 *; strides count elements

# No rows along one of the leading dimensions, and null data.
$EMPTY=rows=0x3|2x0|0|0x18446744073709551615|18446744073709551615x18446744073709551615x0,
  weight_per=tensor,bias_per=tensor,post_norm_weight_per=tensor,dw_per=tensor,db_per=tensor
; $EMPTY ; x+rows+per_row data=null ; OK
; $EMPTY ; each dtype=9 ; DTYPE ; @: unknown dtype
options ; $EMPTY,eps=-1 ; ; OPTION ; options: eps

# Options.
options ; ; numbers value=nan|inf|-inf ; OPTION ; options: @ is
options ; ; words value=-1|end|2147483647|-2147483648 ; OPTION ; options: @ is unknown
options ; eps=-1e-45|-1 ; ; OPTION ; options: eps
options ; eps=0|-0|1e-45|3.4028235e38 ; ; OK
options ; divisor=-1e-45|-8|1e-45|1.1754942e-38|8.50706e37|3.4e38 ; ; OPTION ;
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
# Gate options need a gate; before the norm, a gate excludes a residual and gate_rounding.
$ANY_GATE=gate_placement=after|before,gate_rounding=unrounded|rounded
options forward ; gate=none,activation=sigmoid,$ANY_GATE ; ; OPTION ; options: activation is sigmoid, but
options backward ; activation=sigmoid,$ANY_GATE ; ; OPTION ; options: activation is sigmoid, but
options forward ; gate=none,gate_placement=before,gate_rounding=unrounded|rounded ; ; OPTION ;
  options: gate_placement is before, but
options backward ; gate_placement=before,gate_rounding=unrounded|rounded ; ; OPTION ;
  options: gate_placement is before, but
options forward ; gate=none,gate_rounding=rounded ; ; OPTION ; options: gate_rounding is rounded, but
options backward ; gate_rounding=rounded ; ; OPTION ; options: gate_rounding is rounded, but
options forward ; gate=none ; ; OK
$ACT=activation=silu|sigmoid
options forward ; $ACT,gate_placement=after,gate_rounding=unrounded|rounded ; ; OK
options sums ; $ACT,gate_placement=before ; ; OK
options sums ; $ACT,gate_placement=before,gate_rounding=rounded ; ; OPTION ;
  options: gate_rounding is rounded; it needs
options residual ; $ACT,gate_placement=before,gate_rounding=unrounded|rounded ; ; OPERAND ;
  gate: before the norm
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
removable ; ; each given=0 ; OK
held ; ; each data=null ; NULL ; @: data is null
held ; ; each dtype=0|6|-1|f64 ; DTYPE ; @:
held ; ; each ndim=0|-1|9 ; SHAPE ; @:
held ; ; each shape=1x8|0|7|9 ; SHAPE ; @:
held ; ; each stride0=2 ; LAYOUT ; @:
held ; ; each data=2 ; LAYOUT ; @:

# Functions for dense rows, which take pointers; d is 8, and x has the number of rows.
rows ; rows=0|1|16|17 ; ; OK
rows ; rows=0 ; x+rows+per_row data=null ; OK
rows ; ; x|residual|residual_out|y|dy data=null ; NULL ; @: data is null
rows ; ; floats data=1 ; LAYOUT ; @: * is not aligned
rows ; ; rstd data=2 ; LAYOUT ; rstd: * is not aligned
rows ; ; x dtype=0|6|-1|2147483647|-2147483648|f64|i8 ; DTYPE ; x:
rows ; ; residual dtype=0|6|-1|2147483647|-2147483648|f64|i8 ; DTYPE ; residual:
rows ; ; x shape0=-1|2305843009213693951|2305843009213693952 ; LAYOUT ; x: spans more

# Contexts.
context ; threads=-1|-2147483648 ; ; OPTION ; context: threads
context ; threads=2147483647 ; ; OK
context ; ; context stores=-1|2 ; OPTION ; context: stores
context ; ; context stores=0|1 ; OK
context ; ; context reserved=-1|1 ; OPTION ; context: reserved
context ; ; context target=PDP11 ; TARGET ; target:
)";

// Operands or another argument, and new values of its parts.
struct Part {
  std::string target;
  std::vector<std::pair<std::string, std::string>> values;

  bool IsOfOptions() const { return target == "numbers" || target == "words"; }
  bool IsOfOperands() const {
    return target != "operands" && target != "options" && target != "context" && !IsOfOptions();
  }
};

struct Line {
  std::string text;
  std::vector<std::string> words;
  std::string fields;
  std::vector<Part> spoilt;
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
  columns.resize(5);
  const std::string status = Words(columns[3]).at(0);
  const auto found = std::find(statuses.begin(), statuses.end(), status);
  if (found == statuses.end()) throw std::runtime_error("no status: " + text);
  Line line = {
      text, Words(columns[0]), "", {}, static_cast<rmsnorm_status>(found - statuses.begin()), ""};
  if (line.words.empty()) line.words = {"call"};
  for (const std::string& fields : Words(columns[1])) line.fields += fields;
  for (const std::string& spoilt : Split(columns[2], '&')) {
    for (const std::string& word : Words(spoilt)) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        line.spoilt.push_back({word, {}});
      } else {
        line.spoilt.back().values.emplace_back(word.substr(0, equals), word.substr(equals + 1));
      }
    }
  }
  for (const std::string& word : Words(columns[4])) {
    line.message += (line.message.empty() ? "" : " ") + word;
  }
  return line;
}

// Adds a line for each choice among values.
void Expand(const std::string& text, std::vector<Line>& lines) {
  const size_t bar = text.find('|');
  if (bar == std::string::npos) return lines.push_back(ParseLine(text));
  const size_t begin = text.find_last_of(" ,=;", bar) + 1;
  const size_t end = text.find_first_of(" ,=;", bar);
  for (const std::string& choice : Split(text.substr(begin, end - begin), '|')) {
    Expand(text.substr(0, begin) + choice + text.substr(end), lines);
  }
}

Operand Named(const std::string& name) {
  int i = 0;
  while (i < kOperands && name != kOperandRules[i].name) ++i;
  return static_cast<Operand>(i);
}

// What a line spoils at once: operands, or an option.
struct Turn {
  OperandSet operands = 0;
  internal::Option option = internal::kOptions;

  std::string Name() const {
    if (option != internal::kOptions) return internal::kOptionRules[option].name;
    return operands != 0 ? kOperandRules[internal::FirstOf(operands)].name : "";
  }
};

// What a part spoils in turn. An operand may be named that is not there.
std::vector<Turn> Turns(const ArgumentCall& call, const Part& part) {
  const std::string& target = part.target;
  std::vector<Turn> turns;
  for (int i = 0; part.IsOfOptions() && i < internal::kOptions; ++i) {
    const auto option = static_cast<internal::Option>(i);
    if (internal::IsNumber(option) == (target == "numbers")) turns.push_back({0, option});
  }
  OperandSet all = 0;
  for (const std::string& name : Split(target, '+')) {
    const auto is_chosen = [&](Operand o) {
      const internal::OperandRule& rule = kOperandRules[o];
      if (name == rule.name) return true;
      if (name == "absent") return call.c.RoleOf(o) == Role::kAbsent;
      return call.Has(o) && (name == "each"      ? true
                             : name == "rows"    ? rule.shape == Shape::kRows && o != internal::kX
                             : name == "columns" ? rule.shape == Shape::kColumns
                             : name == "per_row" ? rule.shape == Shape::kPerRow
                             : name == "floats"  ? rule.dtype == 0
                             : name == "inputs"  ? !call.IsOutput(o)
                             : name == "outputs" ? call.IsOutput(o)
                                                 : name == "replacing" && rule.in_place_of != o);
    };
    for (int i = 0; i < kOperands; ++i) {
      if (is_chosen(static_cast<Operand>(i))) all |= cases::SetOf(static_cast<Operand>(i));
    }
  }
  if (target.find('+') != std::string::npos) return {{all}};
  internal::ForEachOperand(all, [&](Operand o) { turns.push_back({cases::SetOf(o)}); });
  return turns;
}

// A number in the notation of the lines.
ptrdiff_t Number(const ArgumentCall& call, Operand o, const std::string& text) {
  const size_t plus = text.find('+');
  if (plus != std::string::npos) {
    return Number(call, o, text.substr(0, plus)) + Number(call, o, text.substr(plus + 1));
  }
  size_t digits;
  const ptrdiff_t number = std::stoll(text, &digits);
  const size_t element = rmsnorm_dtype_size(call.operands.view[o].dtype);
  return text.substr(digits) == "r"    ? number * static_cast<ptrdiff_t>(RowLengthOf(call.c, o))
         : text.substr(digits) == "/e" ? number / static_cast<ptrdiff_t>(element)
                                       : number;
}

void SpoilOperand(ArgumentCall& call, Operand o, const std::string& field,
                  const std::string& value) {
  rmsnorm_view& view = call[o];
  std::vector<ptrdiff_t> numbers;
  if (field == "shape" || field == "stride") {
    for (const std::string& one : Split(value, 'x')) numbers.push_back(Number(call, o, one));
  }
  if (field == "given") {
    value == "1" ? call.Give(o, cases::ShapeOf(call.c, o)) : call.Remove(o);
  } else if (field == "as") {
    view = call[value == "place" ? kOperandRules[o].in_place_of : Named(value)];
  } else if (field == "data") {
    view.data = value == "null"  ? nullptr
                : value == "top" ? reinterpret_cast<const void*>(UINTPTR_MAX - 4095)
                : Named(value) != internal::kOperands
                    ? call[Named(value)].data
                    : static_cast<const char*>(view.data) + Number(call, o, value);
  } else if (field == "dtype") {
    const bool is_known = cases::FindField(kOperandRules[o].name).read(call.c, value);
    view.dtype = is_known ? call.c.operand[o].dtype : std::stoi(value);
  } else if (field == "ndim") {
    // Builds the view through the interface, which must not write beyond its eight dimensions.
    const std::vector<size_t> shape(9, 1);
    view = rmsnorm_tensor(view.data, view.dtype, std::stoi(value), shape.data(), nullptr);
  } else if (field == "shape") {
    call.Give(o, {numbers.begin(), numbers.end()});
  } else if (field == "stride") {
    std::copy(numbers.begin(), numbers.end(), view.stride);
  } else if (field.find("shape") == 0) {
    view.shape[field[5] - '0'] = static_cast<size_t>(Number(call, o, value));
  } else {
    view.stride[field.at(6) - '0'] = Number(call, o, value);
  }
}

void SpoilArgument(ArgumentCall& call, const std::string& field, const std::string& value) {
  if (field == "null") call.no_operands = true;
  if (field == "add_to") call.operands.add_to = static_cast<uint32_t>(std::stoul(value));
  if (field == "target") call.context.target = value.c_str();
  if (field == "stores") call.context.stores = std::stoi(value);
  if (field == "reserved") call.context.reserved = std::stoi(value);
  if (field == "rounding") call.c.options.rounding = std::stoi(value);
}

void SpoilOption(ArgumentCall& call, internal::Option option, const std::string& value) {
  if (internal::IsNumber(option)) {
    internal::SetValueIn(call.c.options, option, std::stof(value));
  } else if (value == "end") {
    int32_t end = 0;
    while (internal::kOptionRules[option].words[end] != nullptr) ++end;
    internal::SetValueIn(call.c.options, option, end);
  } else {
    internal::SetValueIn(call.c.options, option, std::stoi(value));
  }
}

// The part of a line that is spoilt in turn; null where none is.
const Part* TurningPart(const Line& line) {
  const auto part = std::find_if(line.spoilt.begin(), line.spoilt.end(), [](const Part& one) {
    return one.IsOfOptions() || (one.IsOfOperands() && one.target != "place");
  });
  return part == line.spoilt.end() ? nullptr : &*part;
}

// Returns whether the call has all spoilt operands, or receives them.
bool Spoil(ArgumentCall& call, const Line& line, const Turn& turn) {
  bool has_all = true;
  for (const Part& part : line.spoilt) {
    OperandSet operands = turn.operands;
    if (part.target == "place") {
      operands = cases::SetOf(kOperandRules[internal::FirstOf(operands)].in_place_of);
    } else if (part.IsOfOperands() && &part != TurningPart(line)) {
      operands = Turns(call, part).at(0).operands;
    }
    for (const auto& [field, value] : part.values) {
      if (part.IsOfOptions()) {
        SpoilOption(call, turn.option, value);
      } else if (!part.IsOfOperands()) {
        SpoilArgument(call, field, value);
      }
    }
    internal::ForEachOperand(part.IsOfOperands() ? operands : 0, [&](Operand o) {
      for (const auto& [field, value] : part.values) {
        has_all = has_all && (call.Has(o) || (field == "given" && value == "1"));
        if (has_all) SpoilOperand(call, o, field, value);
      }
    });
  }
  return has_all;
}

// Whether a message begins with a pattern, or is it, where a "!" follows.
bool Begins(const std::string& message, const std::string& pattern) {
  const bool is_whole = pattern.back() == '!';
  size_t at = 0;
  bool is_first = true;
  for (const std::string& part : Split(pattern.substr(0, pattern.size() - is_whole), '*')) {
    const size_t found = message.find(part, at);
    if (found == std::string::npos || (is_first && found != 0)) return false;
    at = found + part.size();
    is_first = false;
  }
  return !is_whole || at == message.size();
}

void TestLine(const Line& line) {
  size_t calls = 0;
  for (const EntryPoint& entry : EntryPoints()) {
    if (!HasWords(entry, line.words)) continue;
    SCOPED_TRACE(entry.words);
    const Part* const turning = TurningPart(line);
    const std::vector<Turn> turns = turning != nullptr
                                        ? Turns(ArgumentCall(entry, line.fields), *turning)
                                        : std::vector<Turn>{{}};
    for (const Turn& turn : turns) {
      ArgumentCall call(entry, line.fields);
      if (!Spoil(call, line, turn)) continue;
      ++calls;
      if (line.status == RMSNORM_OK) {
        call.ExpectAccepted();
        continue;
      }
      std::string pattern = line.message;
      const auto replace = [&](char sign, const std::string& meaning) {
        const size_t at = pattern.find(sign);
        if (at != std::string::npos) pattern.replace(at, 1, meaning);
      };
      replace('@', turn.Name());
      if (!line.spoilt.empty()) replace('%', line.spoilt.back().values.back().second);
      const std::string message = call.ExpectRefused(line.status);
      EXPECT_TRUE(Begins(message, pattern)) << message << " is not " << pattern;
    }
  }
  EXPECT_GT(calls, 0u) << "no call";
}

TEST(Refusals, Table) {
  std::vector<Line> lines;
  for (const std::string& text : cases::LinesOf(kLines)) Expand(text, lines);
  EXPECT_GT(lines.size(), 500u);
  for (const Line& line : lines) {
    SCOPED_TRACE(line.text);
    TestLine(line);
  }
}

// ------------------------------------------------------------------------------------ overlaps

bool Meet(const Row& a, const Row& b) { return a.begin < b.end && b.begin < a.end; }

bool AnyMeet(const std::vector<Row>& a, const std::vector<Row>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Row& row) {
    return std::any_of(b.begin(), b.end(), [&](const Row& other) { return Meet(row, other); });
  });
}

Row Whole(const std::vector<Row>& rows) {
  Row all = rows[0];
  for (const Row& row : rows) all = {std::min(all.begin, row.begin), std::max(all.end, row.end)};
  return all;
}

// Bytes from one index of the dimensions 2x3 to the next; zeros mean dense rows.
struct Steps {
  ptrdiff_t outer;
  ptrdiff_t inner;

  void Lay(rmsnorm_view& view) const {
    const auto element = static_cast<ptrdiff_t>(rmsnorm_dtype_size(view.dtype));
    if (outer == 0) return;
    view.stride[0] = outer / element;
    view.stride[1] = inner / element;
  }
};

// Moves an output past another operand, `every` elements at a time. The library accepts the output
// if the two share no byte, or if the output replaces the other operand. It may lie between rows of
// the other operand only if both have the same strides in bytes.
void SweepDistances(ArgumentCall& call, Operand output, Operand other, bool same_steps,
                    size_t every) {
  SCOPED_TRACE(std::string(kOperandRules[output].name) + " over " + kOperandRules[other].name);
  const bool may_replace = kOperandRules[output].in_place_of == other;
  const std::vector<Row> others = call.RowsOf(other);
  const size_t element = rmsnorm_dtype_size(call[output].dtype);
  const bool is_alike = same_steps && element == rmsnorm_dtype_size(call[other].dtype);
  const Row one = Whole(call.RowsOf(output));
  const Row all = Whole(others);
  const size_t span = std::max(one.end - one.begin, all.end - all.begin);
  const auto far = static_cast<ptrdiff_t>((span + 31) / 32 * 32);
  for (ptrdiff_t bytes = -far; bytes <= far; bytes += static_cast<ptrdiff_t>(every * element)) {
    SCOPED_TRACE(bytes);
    call[output].data = static_cast<const char*>(call[other].data) + bytes;
    const std::vector<Row> rows = call.RowsOf(output);
    const bool refused = AnyMeet(rows, others) || (!same_steps && Meet(Whole(rows), all));
    if (!refused || (may_replace && is_alike && bytes == 0)) {
      call.ExpectAccepted();
      continue;
    }
    const std::string message = call.ExpectRefused(RMSNORM_ERROR_OVERLAP);
    // The message may name either of two outputs first.
    const auto says = [&](Operand a, Operand b) {
      return Begins(message, kOperandRules[a].name + std::string(": overlaps ") +
                                 kOperandRules[b].name + " ");
    };
    EXPECT_TRUE(says(output, other) || (call.IsOutput(other) && says(other, output))) << message;
    EXPECT_EQ(may_replace, Begins(message, "*; in place means the same data, strides")) << message;
  }
}

// Each output of a call against each other operand.
TEST(Overlap, EveryDistance) {
  constexpr Steps kDense = {0, 0};
  constexpr Steps kWithRoom = {288, 96};
  struct Sweep {
    Steps output;
    Steps other;
    rmsnorm_dtype dtype;
    size_t every;
  };
  const Sweep sweeps[] = {{kWithRoom, kWithRoom, RMSNORM_F32, 1},
                          {kDense, kDense, RMSNORM_F32, 1},
                          {kWithRoom, kWithRoom, RMSNORM_F16, 1},
                          {kDense, kDense, RMSNORM_F16, 1},
                          {{144, 48}, kWithRoom, RMSNORM_F32, 4},
                          {{288, 32}, {288, 32}, RMSNORM_F32, 4},   // three heads of nine
                          {{96, 192}, {96, 192}, RMSNORM_F32, 4}};  // the first dimension innermost
  for (const EntryPoint& entry : EntryPoints()) {
    const bool takes_pointers = HasWords(entry, {"rows"});
    if (!HasWords(entry, {"call"}) && !takes_pointers) continue;
    SCOPED_TRACE(entry.words + ", " + entry.text);
    const bool is_plain = HasWords(entry, {"plain"});
    const OperandSet given = ArgumentCall(entry).operands.given;
    for (size_t i = takes_pointers ? 1 : 0; i < (is_plain ? std::size(sweeps) : 2); ++i) {
      const Sweep& sweep = sweeps[i];
      const bool same_steps = sweep.output.inner == sweep.other.inner;
      internal::ForEachOperand(given, [&](Operand output) {
        const bool has_types = kOperandRules[output].dtype == 0 && output != internal::kResidualOut;
        internal::ForEachOperand(given & ~cases::SetOf(output), [&](Operand other) {
          ArgumentCall call(entry);
          if (!call.IsOutput(output) || (sweep.dtype != RMSNORM_F32 && !has_types)) return;
          if (has_types && !takes_pointers) call[output].dtype = sweep.dtype;
          sweep.output.Lay(call[output]);
          sweep.other.Lay(call[other]);
          SweepDistances(call, output, other, same_steps, is_plain ? sweep.every : 4);
        });
      });
    }
  }
}

// Many calls at once are refused exactly where two of them are: where an output of one shares bytes
// with an operand of the other, and perhaps where it lies between its rows. In place applies only
// within one call. The message names the first call that overlaps an earlier one, and the first of
// these.
TEST(Overlap, BetweenManyCalls) {
  constexpr size_t kCalls = 12;
  constexpr size_t kHead = 4;
  cases::Random random(98);
  std::vector<float> memory(4000);
  rmsnorm_view x[kCalls];
  rmsnorm_view y[kCalls];
  rmsnorm_operands operands[kCalls];
  size_t accepted = 0;
  size_t refused = 0;
  const auto run = [&](const std::vector<size_t>& chosen) {
    std::vector<rmsnorm_call> calls;
    for (const size_t i : chosen) calls.push_back({nullptr, &operands[i], nullptr});
    return rmsnorm_forward_all(calls.data(), calls.size(), nullptr);
  };
  // Tests two calls, and returns the message for the same two among all.
  const auto message_of_two = [&](size_t first, size_t second) {
    bool must_refuse = false;
    bool may_refuse = false;
    for (const auto& [output, other] :
         {std::pair(y[first], y[second]), {y[first], x[second]}, {y[second], x[first]}}) {
      const std::vector<Row> a = RowsOf(internal::kY, output);
      const std::vector<Row> b = RowsOf(internal::kX, other);
      must_refuse |= AnyMeet(a, b);
      may_refuse |= Meet(Whole(a), Whole(b));
    }
    const rmsnorm_status status = run({first, second});
    EXPECT_TRUE(status == RMSNORM_OK ? !must_refuse : may_refuse) << first << " and " << second;

    if (status == RMSNORM_OK) return std::string();
    EXPECT_EQ(RMSNORM_ERROR_OVERLAP, status);
    const std::string text = rmsnorm_error_message();
    EXPECT_TRUE(Begins(text, "calls[*].y: overlaps calls[*].")) << text;
    std::string among_all;
    for (const char c : text) {
      among_all += c == '0'   ? std::to_string(first)
                   : c == '1' ? std::to_string(second)
                              : std::string{c};
    }
    return among_all;
  };
  for (int repeat = 0; repeat < 4000; ++repeat) {
    // The heads of a fused buffer, in two blocks of rows: in place, or from inputs that overlap.
    // Some are moved, or have another layout.
    const size_t shape[] = {2, 3, kHead};
    const auto row = static_cast<ptrdiff_t>(kHead * kCalls + random.Below(3));
    const ptrdiff_t stride[] = {row * 3 + static_cast<ptrdiff_t>(random.Below(2)), row, 1};
    for (size_t i = 0; i < kCalls; ++i) {
      const size_t block = random.Below(2) * 1000;
      float* const data = &memory[1000 + block + i * kHead];
      y[i] = rmsnorm_tensor(data, RMSNORM_F32, 3, shape, stride);
      if (random.OneIn(60)) y[i].data = data + random.Below(400);
      if (random.OneIn(60)) y[i].data = data + random.Below(2 * kHead) - kHead;
      if (random.OneIn(60)) y[i].shape[random.Below(2)] = 1;
      if (random.OneIn(60)) ++y[i].stride[0];
      const bool in_place = random.OneIn(2);
      if (in_place && random.OneIn(30)) y[i].data = &memory[3200 + random.Below(400)];
      x[i] = y[i];
      if (!in_place) {
        x[i].data = &memory[3200 + random.Below(400)];
        x[i].stride[0] = static_cast<ptrdiff_t>(random.Below(100));
        x[i].stride[1] = static_cast<ptrdiff_t>(random.Below(10));
      }
      operands[i] = rmsnorm_no_operands();
      operands[i].x = &x[i];
      operands[i].y = &y[i];
    }
    std::string expected;
    for (size_t i = 0; i < kCalls && expected.empty(); ++i) {
      for (size_t j = 0; j < i && expected.empty(); ++j) expected = message_of_two(j, i);
    }
    std::vector<size_t> all(kCalls);
    std::iota(all.begin(), all.end(), size_t{0});
    std::fill(memory.begin(), memory.end(), 1.5f);
    const rmsnorm_status status = run(all);
    EXPECT_EQ(expected.empty() ? RMSNORM_OK : RMSNORM_ERROR_OVERLAP, status);
    if (status != RMSNORM_OK) {
      EXPECT_EQ(expected, rmsnorm_error_message());
      EXPECT_EQ(std::vector<float>(memory.size(), 1.5f), memory) << "something was written";
    }
    ++(status == RMSNORM_OK ? accepted : refused);
  }
  EXPECT_GT(accepted, 500u);
  EXPECT_GT(refused, 500u);
}

// ------------------------------------------------------------------------------- null pointers

TEST(Refusals, NullPointers) {
  constexpr rmsnorm_dtype kF32 = RMSNORM_F32;
  float number = 0;
  float* const in = &number;
  const rmsnorm_view view = rmsnorm_vector(in, kF32, 1);
  const rmsnorm_operands none = rmsnorm_no_operands();
  rmsnorm_prepared* const unset = reinterpret_cast<rmsnorm_prepared*>(&number);
  rmsnorm_prepared* prepared = unset;
  rmsnorm_prepared* gradients = unset;
  rmsnorm_module* const null = nullptr;
  const struct {
    const char* argument;
    std::function<rmsnorm_status()> call;
  } calls[] = {
      {"module", [] { return rmsnorm_module_create(nullptr, kD, kF32, nullptr, nullptr); }},
      {"module", [&] { return rmsnorm_module_set_weight(null, &view); }},
      {"module", [&] { return rmsnorm_module_get_weight(null, &view); }},
      {"module", [&] { return rmsnorm_module_reset_weight(null); }},
      {"module", [&] { return rmsnorm_module_set_bias(null, &view); }},
      {"module", [&] { return rmsnorm_module_set_post_norm_weight(null, nullptr); }},
      {"module", [&] { return rmsnorm_module_forward(null, &none, nullptr); }},
      {"module", [&] { return rmsnorm_module_backward(null, &none, nullptr); }},
      {"module", [&] { return rmsnorm_module_norm_rows(null, kF32, 1, in, in, in, nullptr); }},
      {"module",
       [&] {
         return rmsnorm_module_add_norm_rows(null, kF32, kF32, 1, in, in, in, in, in, nullptr);
       }},
      {"module",
       [&] { return rmsnorm_module_backward_rows(null, kF32, 1, in, in, in, in, in, nullptr); }},
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
    EXPECT_EQ(RMSNORM_ERROR_NULL, call());
    EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find(std::string(argument) + ": "))
        << rmsnorm_error_message();
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
  rmsnorm_module* module;
  const auto expect_refused = [&](rmsnorm_status status, const std::string& name, size_t d,
                                  rmsnorm_dtype dtype) {
    module = reinterpret_cast<rmsnorm_module*>(&module);
    EXPECT_EQ(status, rmsnorm_module_create(&module, d, dtype, nullptr, nullptr));
    EXPECT_EQ(nullptr, module);
    EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find(name)) << rmsnorm_error_message();
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
  const auto expect_missing = [](const std::string& name, rmsnorm_status status) {
    EXPECT_EQ(RMSNORM_ERROR_MEMORY, status);
    EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find(name)) << rmsnorm_error_message();
  };
  rmsnorm_operands operands = rmsnorm_no_operands();
  const rmsnorm_call call = {nullptr, &operands, nullptr};
  rmsnorm_prepared* prepared = nullptr;
  operands.x = operands.dy = &x;
  operands.dw = &other;
  expect_missing("x: ", rmsnorm_backward(&operands, nullptr, nullptr));
  expect_missing("prepared: ", rmsnorm_prepare_backward(&prepared, &call, nullptr));
  operands = rmsnorm_no_operands();
  operands.x = operands.weight = &x;
  operands.y = &other;
  expect_missing("x: ", rmsnorm_forward(&operands, nullptr, nullptr));
  expect_missing("prepared: ", rmsnorm_prepare(&prepared, &call, 1, nullptr));
  EXPECT_EQ(nullptr, prepared);
}

// A wrong count, such as -1, is refused before a call is read.
TEST(Memory, ManyCalls) {
  const rmsnorm_call call = {};
  for (const size_t count : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / sizeof call, SIZE_MAX / 4096}) {
    const auto expect_refused = [count](rmsnorm_status status) {
      EXPECT_EQ(RMSNORM_ERROR_MEMORY, status);
      EXPECT_EQ("calls: no memory for " + std::to_string(count) + " of them",
                std::string(rmsnorm_error_message()));
    };
    expect_refused(rmsnorm_forward_all(&call, count, nullptr));
    rmsnorm_prepared* prepared = nullptr;
    expect_refused(rmsnorm_prepare(&prepared, &call, count, nullptr));
    EXPECT_EQ(nullptr, prepared);
  }
}

// ---------------------------------------------------------------------------- statuses, dtypes

TEST(Status, DistinctTexts) {
  std::set<std::string> texts = {""};
  for (rmsnorm_status status = RMSNORM_OK; status <= RMSNORM_ERROR_DEVICE; ++status) {
    EXPECT_TRUE(texts.insert(rmsnorm_status_text(status)).second) << status;
  }
  for (const rmsnorm_status unknown : {-1, RMSNORM_ERROR_DEVICE + 1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(0u, texts.count(rmsnorm_status_text(unknown))) << unknown;
  }
}

TEST(Status, MessageAfterASuccess) {
  const std::string message =
      ArgumentCall(Find({"plain", "residual"}), "eps=-1").ExpectRefused(RMSNORM_ERROR_OPTION);
  ArgumentCall(Find({"plain", "residual"})).ExpectAccepted();
  EXPECT_EQ(message, rmsnorm_error_message());
}

TEST(Dtype, SizesAndNames) {
  const struct {
    rmsnorm_dtype dtype;
    size_t size;
    const char* name;
  } known[] = {{RMSNORM_F32, 4, "f32"},
               {RMSNORM_F16, 2, "f16"},
               {RMSNORM_BF16, 2, "bf16"},
               {RMSNORM_F64, 8, "f64"},
               {RMSNORM_I8, 1, "i8"}};
  for (const auto& [dtype, size, name] : known) {
    EXPECT_EQ(size, rmsnorm_dtype_size(dtype));
    EXPECT_STREQ(name, rmsnorm_dtype_name(dtype));
  }
  for (const rmsnorm_dtype unknown : {0, 6, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(0u, rmsnorm_dtype_size(unknown));
    EXPECT_EQ(nullptr, rmsnorm_dtype_name(unknown));
  }
}

// ----------------------------------------------------------------------------------- short forms

// Short forms equal rmsnorm_forward() with the same operands.
TEST(ShortForms, EqualForward) {
  for (const EntryPoint& entry : EntryPoints()) {
    if (!HasWords(entry, {"short"})) continue;
    EntryPoint full = entry;
    full.run = [](const Arguments& a) { return rmsnorm_forward(a.operands, a.options, a.context); };
    for (const std::string fields : {"eps=2", "eps=2,weight=none"}) {
      ArgumentCall expected(full, fields);
      ArgumentCall actual(entry, fields);
      expected.ExpectAccepted();
      actual.ExpectAccepted();
      EXPECT_TRUE(expected.Bytes() == actual.Bytes()) << entry.text;
    }
  }
}

// ----------------------------------------------------------------------------------------- C++

void ExpectThrown(rmsnorm_status status, const std::function<void()>& run) {
  try {
    run();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(status, error.status());
    EXPECT_STREQ(rmsnorm_error_message(), error.what());
  }
}

TEST(Cpp, Errors) {
  float memory[4][kD] = {};
  const ConstView x(memory[0], kD);
  const View y(memory[1], kD);
  ForwardOperands operands;
  operands.x = x;
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { forward(operands); });
  operands.y = y;
  Options options;
  options.eps = -1;
  Context context;
  context.threads = -1;
  const RmsNorm module(kD);
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { forward(operands, options); });
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { forward(operands, {}, context); });
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { norm(x, {}, y, options); });
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { add_norm(x, x, {}, y, View(memory[2], kD), options); });
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { forward_all({{nullptr, operands, options}}); });
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { RmsNorm(kD, options); });
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { module.forward(operands, context); });
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { module.forward(ForwardOperands()); });
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { module.norm<float>(nullptr, memory[1]); });
  ExpectThrown(RMSNORM_ERROR_NULL,
               [&] { module.add_norm<float, float>(memory[0], nullptr, memory[1], memory[2]); });
  ExpectThrown(RMSNORM_ERROR_NULL,
               [&] { module.backward<float>(memory[0], memory[1], nullptr, nullptr, nullptr); });

  BackwardOperands gradients;
  gradients.x = x;
  gradients.dy = y;
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { backward(gradients); });
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { module.backward(gradients); });
  gradients.dx = y;
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { backward(gradients, options); });
  ExpectThrown(RMSNORM_ERROR_OPTION, [&] { module.backward(gradients, context); });
  gradients.weight = {memory[3], 1, kD};
  ExpectThrown(RMSNORM_ERROR_SHAPE, [&] { backward(gradients); });
}

TEST(Cpp, WrongShapes) {
  float value = 1;
  const View one(&value, 1);
  const int64_t sizes[] = {3, -2};
  const struct {
    ConstView view;
    const char* message;
  } wrong[] = {
      {ConstView(&value, {1, 1}, {1, 1, 1}), "x: 3 strides for 2 dimensions"},
      {ConstView(&value, {2, 16}, {32}), "x: 1 stride for 2 dimensions"},
      {ConstView(&value, {1}, {1, 1}), "x: 2 strides for 1 dimension"},
      {ConstView(&value, Dtype::f32, 0, sizes), "x: 0 dimensions; 1 to 8 are possible"},
      {ConstView(&value, std::initializer_list<Integer>{}), "x: 0 dimensions; 1 to 8"},
      {ConstView(&value, {1, 1, 1, 1, 1, 1, 1, 1, 1}), "x: 9 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, -1, sizes), "x: -1 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, 12, sizes), "x: 12 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, -1000, sizes), "x: -1000 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, int64_t{1} << 40, sizes),
       "x: 1099511627776 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, UINT64_MAX, sizes),
       "x: 18446744073709551615 dimensions; 1 to 8 are possible"},
      {ConstView(&value, -1), "x: -1 elements in dimension 0; a size is not negative"},
      {ConstView(&value, -3, 1), "x: -3 elements in dimension 0; a size is not negative"},
      {ConstView(&value, {0, -1, 1}), "x: -1 elements in dimension 1; a size is not negative"},
      {ConstView(&value, Dtype::f32, 2, sizes), "x: -2 elements in dimension 1"},
      {ConstView(rmsnorm_view{}), "x: "},
  };
  for (const auto& [view, message] : wrong) {
    EXPECT_FALSE(view.empty());
    try {
      norm(view, {}, one);
      ADD_FAILURE() << message;
    } catch (const Error& error) {
      EXPECT_TRUE(Begins(error.what(), message)) << error.what();
      EXPECT_EQ(view.get()->dtype != 0 ? RMSNORM_ERROR_SHAPE : RMSNORM_ERROR_DTYPE, error.status());
    }
  }
  EXPECT_TRUE(ConstView().empty());
  EXPECT_TRUE(View().empty());
  EXPECT_EQ(nullptr, View().get());
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { norm({}, {}, one); });
}

// Ten dimensions of two tensors: x[2][3][1][4][2][1][1][5][1][2] is dense, and the other one has
// gaps after dimension 4 and repeats dimension 0.
TEST(MergeDims, GapsAndRepeats) {
  size_t shape[] = {2, 3, 1, 4, 2, 1, 1, 5, 1, 2};
  ptrdiff_t x[] = {240, 80, 9, 20, 10, 7, 7, 2, 7, 1};
  ptrdiff_t other[] = {0, 96, 9, 24, 12, 7, 7, 2, 7, 1};
  ptrdiff_t* const stride[] = {x, other};
  ASSERT_EQ(3, rmsnorm_merge_dims(10, shape, stride, 2));
  EXPECT_EQ((std::vector<size_t>{2, 24, 10}), std::vector<size_t>(shape, shape + 3));
  EXPECT_EQ((std::vector<ptrdiff_t>{240, 10, 1}), std::vector<ptrdiff_t>(x, x + 3));
  EXPECT_EQ((std::vector<ptrdiff_t>{0, 12, 1}), std::vector<ptrdiff_t>(other, other + 3));
}

TEST(MergeDims, SizeOneRepeatedAndFallingRows) {
  size_t shape[] = {1, 2, 3, 1};
  ptrdiff_t repeated[] = {5, 0, 0, 3};
  ptrdiff_t falling[] = {5, -12, -4, 3};
  ptrdiff_t* const stride[] = {repeated, falling};
  ASSERT_EQ(1, rmsnorm_merge_dims(4, shape, stride, 2));
  EXPECT_EQ(6u, shape[0]);
  EXPECT_EQ(0, repeated[0]);
  EXPECT_EQ(-4, falling[0]);
  shape[0] = 1;
  EXPECT_EQ(0, rmsnorm_merge_dims(1, shape, stride, 2));
  EXPECT_EQ(0, rmsnorm_merge_dims(0, nullptr, stride, 1));
}

TEST(MergeDims, Overflow) {
  constexpr size_t kSize = size_t{1} << 33;
  size_t shape[] = {kSize, 2, kSize};
  ptrdiff_t repeated[] = {0, 0, 0};
  ptrdiff_t* const stride[] = {repeated};
  ASSERT_EQ(2, rmsnorm_merge_dims(3, shape, stride, 1));
  EXPECT_EQ(2 * kSize, shape[0]);
  EXPECT_EQ(kSize, shape[1]);
}

}  // namespace
}  // namespace rmsnorm::test
