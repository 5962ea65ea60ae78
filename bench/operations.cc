// SPDX-License-Identifier: Apache-2.0
#include "operations.h"

#include <regex>

#include "cases/prepared_call.h"
#include "cases/text.h"

namespace rmsnorm::bench {

using cases::Case;
using cases::UserError;
using internal::Operand;

namespace {

// Nothing if a division has a remainder. Throws UserError for a factor, divisor or product that is
// no number from 1 to 2^28.
std::optional<std::string> ReplaceNames(const std::string& line, const std::string& type,
                                        const Shape& shape) {
  constexpr size_t kMost = size_t{1} << 28;
  static const std::regex name(R"(\$(?:T|([RD])((?:[*/]\d*)*)))"), step(R"(([*/])(\d*))");
  std::string text, rest = line;
  for (std::smatch found; std::regex_search(rest, found, name); rest = found.suffix().str()) {
    text += found.prefix().str();
    size_t number = found[1] == "R" ? shape.rows : shape.d;
    const std::string steps = found[2];
    for (std::sregex_iterator one(steps.begin(), steps.end(), step), end; one != end; ++one) {
      const bool divides = (*one)[1] == "/";
      size_t by;
      if (!cases::ReadNumber((*one)[2], by) || by == 0 || by > kMost ||
          (!divides && number > kMost / by)) {
        throw UserError("--call: '" + found.str() + "' has no value from 1 to 2^28");
      }
      if (divides && number % by != 0) return {};
      number = divides ? number / by : number * by;
    }
    text += found[1].matched ? std::to_string(number) : type;
  }
  return text + rest;
}

std::vector<Case> ParseCalls(const std::string& line, int threads) try {
  std::vector<Case> calls = cases::ParseCalls(line);
  static const std::regex for_check("[,+](threads|executor|guard|state|strewn)[+=]");
  if (std::smatch name; std::regex_search(line, name, for_check)) {
    throw UserError("--call: '" + name.str(1) + "' is for `rmsnorm check`" +
                    (name[1] == "threads" ? "; here it is --threads" : ""));
  }
  for (Case& c : calls) {
    if (c.function == cases::Function::kSeveral) {
      throw UserError("--call: call=several is for `rmsnorm check`; put a ';' between calls");
    }
    c.threads = threads;
  }
  cases::RequireAccepted(calls);
  return calls;
} catch (const UserError& error) {
  const std::string text = error.what();
  if (text.rfind("--case", 0) != 0) throw;
  throw UserError("--call" + text.substr(6));
}

}  // namespace

const std::vector<Operation>& Operations() {
  // An odd seed gives a module its own context, as in an inference engine.
  static const std::vector<Operation> operations = {
      {"norm", "a module's norm of dense rows",
       "forward,x+weight+y=$T,rows=$R,d=$D,call=rows,seed=1"},
      {"add_norm", "the same of residual + x, which replaces the residual",
       "forward,x+weight+residual+residual_out+y=$T,residual_out_in_place=1,rows=$R,d=$D,call=rows,"
       "seed=1"},
      // Numbers without signs: in sums of these no terms cancel, and a lost term is seen.
      {"backward", "dx, and dw in f32, from a saved inverse RMS",
       "backward,x+weight+dy+dx=$T,rstd+dw=f32,x_values+weight_values+dy_values=positive,"
       "rows=$R,d=$D,call=rows,seed=1"},
      {"post_norm", "residual += norm(x), and the norm of the sum",
       "forward,x+weight+post_norm_weight+residual+residual_out+y=$T,residual_out_in_place=1,"
       "rows=$R,d=$D,call=rows,seed=1",
       "forward,x+weight+y=$T,rows=$R,d=$D,call=rows,seed=1;"
       "forward,x+weight+residual+residual_out+y=$T,residual_out_in_place=1,rows=$R,d=$D,"
       "call=rows,seed=1"},
      {"gate_after", "norm(x) * silu(gate)",
       "forward,x+weight+gate+y=$T,rows=$R,d=$D,call=module,seed=1"},
      {"gate_before", "norm(x * silu(gate)) of groups of 512",
       "forward,x+weight+gate+y=$T,gate_placement=before,rows=$Rx$D/512,d=512,weight_per=head"},
      {"int8", "a norm, and the same quantised",
       "forward,x+weight+y=$T,q=i8,scale=f32,rows=$R,d=$D,call=module,seed=1"},
      {"int8_alone", "the quantised norm alone",
       "forward,x+weight=$T,y=none,q=i8,scale=f32,rows=$R,d=$D,call=module,seed=1"},
      {"int8_32", "the same by groups of 32",
       "forward,x+weight=$T,y=none,q=i8,scale=f32,rows=$R,d=$D/32*32,group=32,call=module,seed=1"},
      {"int8_64", "the same by groups of 64",
       "forward,x+weight=$T,y=none,q=i8,scale=f32,rows=$R,d=$D/64*64,group=64,call=module,seed=1"},
      {"int8_128", "the same by groups of 128",
       "forward,x+weight=$T,y=none,q=i8,scale=f32,rows=$R,d=$D/128*128,group=128,call=module,"
       "seed=1"},
      {"q_and_k", "the norms of 32 heads of q and 8 of k, in rows of 48 heads",
       "forward,x+weight+y=$T,rows=$Rx32,d=$D/48,x_skip+y_skip=16,call=module,seed=1;"
       "forward,x+weight+y=$T,rows=$Rx8,d=$D/48,x_skip+y_skip=40,call=module,seed=1"},
      {"rotary", "the same with rotary positions, a row of the tables for each 48 heads",
       "forward,x+weight+cos+sin+y=$T,rows=$Rx32,d=$D/48,x_skip+y_skip=16,cos_per+sin_per=group,"
       "call=module,seed=1;"
       "forward,x+weight+cos+sin+y=$T,rows=$Rx8,d=$D/48,x_skip+y_skip=40,cos_per+sin_per=group,"
       "call=module,seed=1"},
      {"latent", "the norms of 1536 and of 512 elements, in rows of 2112",
       "forward,x+weight+y=$T,rows=$R,d=$D/2112*1536,x_gap+y_gap=$D/2112*576,call=module,seed=1;"
       "forward,x+weight+y=$T,rows=$R,d=$D/2112*512,x_gap+y_gap=$D/2112*1600,call=module,seed=1"}};
  return operations;
}

size_t Cell::bytes_of(internal::OperandSet operands) const {
  size_t bytes = 0;
  for (const Case& c : calls) {
    internal::ForEachOperand(c.Given() & operands, [&](Operand o) {
      if (!internal::kOperandRules[o].HasShapeOfX()) return;
      bytes += c.RowCount() * c.d * internal::ElementSize(c.operand[o].dtype);
    });
  }
  return bytes;
}

std::optional<Cell> MakeCell(const Operation& operation, const std::string& type,
                             const Shape& shape, int threads, const std::string& target,
                             bool reads) {
  const std::optional<std::string> line = ReplaceNames(operation.line, type, shape);
  if (!line) return {};
  Cell cell = {operation.name, type, shape, threads, target, ParseCalls(*line, threads), {},
               reads,          {}};
  if (!operation.apart.empty()) {
    for (const std::string& call : cases::Split(*ReplaceNames(operation.apart, type, shape), ';')) {
      cell.apart.push_back(ParseCalls(call, threads).front());
    }
  } else if (cell.calls.size() > 1) {
    cell.apart = cell.calls;
  }
  cell.name = *line;
  if (operation.name == kCall) {
    const Case& first = cell.calls.front();
    cell.type = rmsnorm_dtype_name(first.operand[internal::kX].dtype);
    cell.shape = {first.RowCount(), first.d};
  } else {
    cell.name = operation.name + "/" + type + "/" + std::to_string(shape.rows) + "x" +
                std::to_string(shape.d);
  }
  cell.name += "/threads:" + std::to_string(threads) + "/target:" + target + (reads ? "/read" : "");
  return cell;
}

}  // namespace rmsnorm::bench
