// SPDX-License-Identifier: Apache-2.0
#include "case.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "text.h"

namespace rmsnorm::cases {
namespace {

using internal::Option;
// The buffers of a case take a few times as many bytes.
constexpr size_t kMaxElements = size_t{1} << 28;

// The words of each enumeration, by its numbers.
using Words = std::vector<std::string>;
const Words kFlags = {"0", "1"};
const Words kDtypes = {"none", "f32", "f16", "bf16", "f64", "i8"};
const Words kFunctions = {"plain", "module", "rows", "several", "prepared"};
const Words kValues = {"normal",  "massive",  "wide",      "huge",    "tiny",     "subnormal",
                       "zero",    "low_edge", "high_edge", "floor",   "nan",      "infinity",
                       "bits",    "mixed",    "finite",    "special", "positive", "scattered",
                       "adverse", "every",    "inner",     "middle",  "outer"};
const Words kOrders = {"rising", "falling", "transposed", "zigzag", "repeated", "again", "windows"};
const Words kPers = {"tensor", "head", "group", "row", "alternate", "first"};
const Words kGuards = {"none", "before", "after"};
const Words kStores = {"by_size", "streamed", "cached"};
const Words kExecutors = {"none", "reverse", "shuffled", "threads"};

// One row without leading dimensions.
const char kOneRow[] = "one";

// Where a field lies in a case, or in the part of an operand.
template <class Value>
auto In(Value Case::*member) {
  return [=](auto& c) -> auto& { return c.*member; };
}
template <class Value>
auto In(int operand, Value OperandCase::*member) {
  return [=](auto& c) -> auto& { return c.operand[operand].*member; };
}

// The fields of a case, by how they are written. get(case) returns the value.
class FieldList {
 public:
  template <class Get>
  void AddWord(const std::string& name, const Words& words, const Get& get, bool is_drawn = true) {
    const auto write = [&words, get](const Case& c) {
      return words.at(static_cast<size_t>(get(c)));
    };
    const auto read = [&words, get](Case& c, const std::string& text) {
      const auto found = std::find(words.begin(), words.end(), text);
      using Value = std::decay_t<decltype(get(c))>;
      if (found != words.end()) get(c) = static_cast<Value>(found - words.begin());
      return found != words.end();
    };
    fields_.push_back({name, write, read, is_drawn ? words : Words()});
  }
  // Random cases draw a number below `count`.
  template <class Get>
  void AddNumber(const std::string& name, const Get& get, size_t count = 0) {
    const auto write = [get](const Case& c) { return std::to_string(get(c)); };
    const auto read = [get](Case& c, const std::string& text) { return ReadNumber(text, get(c)); };
    fields_.push_back({name, write, read, {}});
    for (size_t i = 0; i < count; ++i) fields_.back().drawn.push_back(std::to_string(i));
  }
  // Adds an option of the library, named by its line in the table.
  void AddOption(Option option) {
    const auto write = [option](const Case& c) { return OptionValue(c.options, option); };
    const auto read = [option](Case& c, const std::string& text) {
      const auto set = [&](auto value) {
        internal::SetValueIn(c.options, option, value);
        return true;
      };
      float number;
      int32_t integer;
      if (internal::IsNumber(option)) return ReadNumber(text, number) && set(number);
      if (internal::IsInteger(option)) return ReadNumber(text, integer) && set(integer);
      integer = internal::WordOf(option, text.c_str());
      return integer >= 0 && set(integer);
    };
    fields_.push_back({internal::kOptionRules[option].name, write, read, {}});
  }
  void AddRows() {
    const auto write = [](const Case& c) {
      std::string text;
      for (const size_t size : c.rows) text += (text.empty() ? "" : "x") + std::to_string(size);
      return text.empty() ? kOneRow : text;
    };
    const auto read = [](Case& c, const std::string& text) {
      c.rows.clear();
      if (text == kOneRow) return true;
      for (const std::string& size : Split(text, 'x')) {
        if (!ReadNumber(size, c.rows.emplace_back())) return false;
      }
      return !c.rows.empty() && text.back() != 'x';
    };
    fields_.push_back({"rows", write, read, {}});
  }

  std::vector<Field> Take() { return std::move(fields_); }

 private:
  std::vector<Field> fields_;
};

std::vector<Field> MakeFields() {
  FieldList list;
  for (int i = 0; i < kOperands; ++i) {
    list.AddWord(kOperandRules[i].name, kDtypes, In(i, &OperandCase::dtype), false);
  }
  list.AddRows();
  list.AddNumber("d", In(&Case::d));
  list.AddNumber("rotated", In(&Case::rotated));
  list.AddWord("call", kFunctions, In(&Case::function), false);
  for (int i = 0; i < kOperands; ++i) {
    const OperandRule& rule = kOperandRules[i];
    const std::string name = rule.name + std::string("_");
    list.AddWord(name + "values", kValues, In(i, &OperandCase::values));
    list.AddNumber(name + "shift", In(i, &OperandCase::shift), 64);
    list.AddNumber(name + "gap", In(i, &OperandCase::gap), 100);
    list.AddNumber(name + "skip", In(i, &OperandCase::skip), 4);
    list.AddWord(name + "order", kOrders, In(i, &OperandCase::order));
    if (rule.leading == Leading::kShared)
      list.AddWord(name + "per", kPers, In(i, &OperandCase::per));
    if (rule.in_place_of != i) {
      list.AddWord(name + "in_place", kFlags, In(i, &OperandCase::in_place));
    }
    if (i >= internal::kDx) list.AddWord(name + "add", kFlags, In(i, &OperandCase::add));
  }
  for (int i = 0; i < internal::kOptions; ++i) list.AddOption(static_cast<Option>(i));
  list.AddNumber("threads", In(&Case::threads), 6);
  list.AddWord("executor", kExecutors, In(&Case::executor));
  list.AddWord("stores", kStores, In(&Case::stores));
  list.AddNumber("state", In(&Case::state), 1000);
  list.AddWord("guard", kGuards, In(&Case::guard));
  list.AddWord("interleaved", kFlags, In(&Case::interleaved));
  list.AddWord("strewn", kFlags, In(&Case::strewn), false);
  list.AddNumber("seed", In(&Case::seed));
  return list.Take();
}

// The parts of the problem become one text only where it does not hold: a list has many cases.
template <class... Parts>
void Require(bool holds, const Parts&... parts) {
  if (!holds) throw UserError((std::string("--case: ") + ... + parts));
}

// Dense rows in C order.
bool IsPlainlyLaidOut(const OperandCase& own) {
  return own.gap == 0 && own.skip == 0 && own.order == Order::kRising;
}

void RequireOperand(const Case& c, Operand o) {
  const OperandCase& own = c.operand[o];
  const OperandRule& rule = kOperandRules[o];
  const char* const name = rule.name;
  const bool is_laid_out = own.shift == 0 && IsPlainlyLaidOut(own);
  if (!c.Has(o)) {
    const bool is_plain = own.values == Values::kNormal && own.per == Per::kTensor && is_laid_out &&
                          !own.in_place && !own.add;
    Require(is_plain, "it says how ", name, " is, but there is none");
    Require(c.RoleOf(o) != Role::kRequired, name, " is missing");
    return;
  }
  const bool is_output = c.IsOutput(o);
  Require(c.RoleOf(o) != Role::kAbsent, c.backward ? "backward" : "forward", " takes no ", name);
  Require(rule.dtype == 0 ? own.dtype <= RMSNORM_BF16 : own.dtype == rule.dtype, name,
          " has no such type");
  Require(!is_output || !IsShared(own.order), name, "_order leaves rows in one place");
  Require(!is_output || own.add || own.values == Values::kNormal, name, " has no values before");
  Require(own.values != Values::kEvery || own.dtype <= RMSNORM_BF16, name,
          "_values=every needs f32, f16 or bf16");
  Require(c.guard == Guard::kNone || own.shift == 0, "guard leaves no choice of ", name, "_shift");
  const bool has_runs =
      own.skip == 0 ||
      (LeadingOf(c, o).size() > 1 && own.order != Order::kRepeated && own.order != Order::kWindows);
  Require(has_runs, name, "_skip needs two leading dimensions of separate rows");
  Require(c.function != Function::kSeveral || !is_output || own.order == Order::kRising,
          "call=several: its pieces of ", name, " lie apart in C order");
  Require(!c.strewn || (is_laid_out && !own.in_place && own.values == Values::kNormal),
          "strewn leaves no choice of how ", name, " lies, nor of its values");
  if (own.in_place) {
    const OperandCase& other = c.operand[rule.in_place_of];
    const char* const other_name = kOperandRules[rule.in_place_of].name;
    Require(other.dtype != 0, name, "_in_place, but there is no ", other_name);
    Require(internal::ElementSize(own.dtype) == internal::ElementSize(other.dtype), name,
            "_in_place needs elements of the size of ", other_name);
    Require(!IsShared(other.order), name, "_in_place, but ", other_name, " is repeated");
    Require(is_laid_out, name, "_in_place leaves no choice of how it lies");
    Require(own.values == Values::kNormal, name, "_in_place leaves no choice of values");
  }
  if (c.interleaved && rule.HasShapeOfX()) {
    Require(o == internal::kX || is_laid_out, "interleaved rows of ", name, " lie as those of x");
    Require(!IsShared(own.order), "interleaved rows of ", name, " are not repeated");
  }
  if (c.function == Function::kRows && (internal::kColumnsInF32 & SetOf(o)) == 0) {
    Require(IsPlainlyLaidOut(own) && !own.add, "call=rows, so the rows of ", name, " are dense");
    const bool is_of_stream = o == internal::kResidual || o == internal::kResidualOut;
    const rmsnorm_dtype like = c.operand[is_of_stream ? internal::kResidual : internal::kX].dtype;
    Require(own.dtype == (rule.HasShapeOfX() ? like : RMSNORM_F32), "call=rows: ", name,
            ": rows have one type, the residual another, and dw is f32");
  }
}

// Only the arguments of these operands contain pointers. The module holds others.
void RequireRows(const Case& c) {
  using namespace internal;
  const OperandSet given = c.Given() & ~kColumnsInF32;
  const OperandSet without_rstd = given & ~SetOf(kRstd);
  const OperandSet norm = SetOf(kX) | SetOf(kY);
  const OperandSet stream = SetOf(kResidual) | SetOf(kResidualOut);
  const OperandSet gradient = SetOf(kX) | SetOf(kDy) | SetOf(kRstd) | SetOf(kDx) | SetOf(kDw);
  const OperandSet wrong =
      c.backward ? given & ~gradient : without_rstd ^ (norm | ((given & stream) != 0 ? stream : 0));
  ForEachOperand(wrong, [&](Operand o) {
    Require(false, "call=rows ", c.Has(o) ? "takes no " : "needs ", kOperandRules[o].name);
  });
  Require(!c.interleaved, "call=rows, so the rows are dense and not interleaved");
}

}  // namespace

Case::Case(bool is_backward) : backward(is_backward) {
  using namespace internal;
  for (const Operand o : {kX, kWeight}) operand[o].dtype = RMSNORM_F32;
  if (backward) {
    for (const Operand o : {kDy, kDx, kDw}) operand[o].dtype = RMSNORM_F32;
  } else {
    operand[kY].dtype = RMSNORM_F32;
  }
}

Role Case::RoleOf(Operand o) const {
  return backward ? kOperandRules[o].backward : kOperandRules[o].forward;
}

OperandSet Case::Given() const {
  OperandSet given = 0;
  for (int i = 0; i < kOperands; ++i) {
    if (operand[i].dtype != 0) given |= SetOf(static_cast<Operand>(i));
  }
  return given;
}

size_t Case::RowCount() const { return RowsOf(*this, internal::kX); }

bool IsByModule(const Case& c) {
  return c.function == Function::kModule || c.function == Function::kRows ||
         (c.function == Function::kPrepared && c.seed % 2 != 0);
}

OperandSet HeldByModule(const Case& c) {
  using namespace internal;
  OperandSet held = 0;
  if (!IsByModule(c) && c.function != Function::kSeveral) return held;
  const bool is_all = c.function == Function::kRows || c.seed / 2 % 2 == 0;
  ForEachOperand(is_all ? kColumnsInF32 : SetOf(kWeight), [&](Operand o) {
    if (c.operand[o].per == Per::kTensor) held |= SetOf(o);
  });
  return held;
}

std::vector<size_t> LeadingOf(const Case& c, Operand o) {
  if (kOperandRules[o].leading != Leading::kShared) return c.rows;
  const Per per = c.operand[o].per;
  if (per == Per::kTensor || c.rows.empty()) return {};
  if (per == Per::kHead) return {c.rows.back()};
  std::vector<size_t> leading = c.rows;
  if (per == Per::kGroup) leading.back() = 1;
  for (size_t i = 1; per == Per::kAlternate && i < leading.size(); i += 2) leading[i] = 1;
  for (size_t i = 1; per == Per::kFirst && i < leading.size(); ++i) leading[i] = 1;
  return leading;
}

size_t RowsOf(const Case& c, Operand o) {
  size_t rows = 1;
  for (const size_t size : LeadingOf(c, o)) rows *= size;
  return rows;
}

size_t RowLengthOf(const Case& c, Operand o) {
  if (kOperandRules[o].length == Length::kPairs) return (c.rotated != 0 ? c.rotated : c.d) / 2;
  return internal::RowLengthOf(o, c.d, c.options.group);
}

std::vector<size_t> TensorShapeOf(const Case& c, Operand o) {
  std::vector<size_t> shape = LeadingOf(c, o);
  if (internal::HasRowDimension(o, c.options.group)) shape.push_back(RowLengthOf(c, o));
  return shape;
}

std::vector<size_t> ShapeOf(const Case& c, Operand o) {
  std::vector<size_t> shape = TensorShapeOf(c, o);
  if (shape.empty()) shape.push_back(1);
  return shape;
}

size_t SharedRow(const Case& c, Operand o, size_t row) {
  const std::vector<size_t> own = LeadingOf(c, o);
  size_t shared = 0;
  size_t step = 1;
  for (size_t i = 1; i <= own.size(); ++i) {
    const size_t size = c.rows[c.rows.size() - i];
    if (own[own.size() - i] != 1) shared += row % size * step;
    step *= own[own.size() - i];
    row /= size;
  }
  return shared;
}

const std::vector<Field>& Fields() {
  static const std::vector<Field> fields = MakeFields();
  return fields;
}

const Field& FindField(const std::string& name) {
  for (const Field& field : Fields()) {
    if (field.name == name) return field;
  }
  throw UserError("--case: unknown name '" + name + "'");
}

std::vector<const Field*> FindFields(const std::string& names) {
  std::vector<const Field*> fields;
  for (const std::string& name : Split(names, '+')) fields.push_back(&FindField(name));
  if (names.empty() || names.back() == '+') FindField("");
  return fields;
}

std::vector<const Field*> SetFields(Case& c, const std::string& text) {
  const size_t equals = text.find('=');
  Require(equals != std::string::npos, "'", text, "' is not NAME=VALUE");
  const std::string value = text.substr(equals + 1);
  const std::vector<const Field*> fields = FindFields(text.substr(0, equals));
  for (const Field* const field : fields) {
    Require(field->read(c, value), "'", value, "' is no value for '", field->name, "'");
  }
  return fields;
}

bool IsBackward(const std::string& word) {
  Require(word == "forward" || word == "backward", "'", word,
          "' is neither 'forward' nor 'backward'");
  return word == "backward";
}

std::string Text(const Case& c, size_t number) {
  Case usual(c.backward);
  usual.seed = static_cast<unsigned>(number);
  std::string text = c.backward ? "backward" : "forward";
  for (const Field& field : Fields()) {
    const std::string written = field.write(c);
    const std::string default_text = field.write(usual);
    const bool is_size = field.name == "rows" || field.name == "d" || default_text == "f32";
    if (is_size || written != default_text) text += "," + field.name + "=" + written;
  }
  return text;
}

std::string Text(const Calls& calls) {
  std::string text;
  for (size_t i = 0; i < calls.size(); ++i) text += (i == 0 ? "" : ";") + Text(calls[i], i);
  return text;
}

Case Parse(const std::string& text, size_t number) {
  Require(text.empty() || text.back() != ',', "'", text, "' ends with a comma");
  const std::vector<std::string> parts = Split(text, ',');
  Case c(IsBackward(parts.empty() ? "" : parts[0]));
  c.seed = static_cast<unsigned>(number);
  std::set<std::string> names;
  for (size_t i = 1; i < parts.size(); ++i) {
    for (const Field* const field : SetFields(c, parts[i])) {
      Require(names.insert(field->name).second, "'", field->name, "' is given twice");
    }
  }
  for (const char* name : {"rows", "d"}) {
    Require(names.count(name) != 0, "'", name, "' is missing");
  }
  RequireMeaning(c);
  return c;
}

Calls ParseCalls(const std::string& line) {
  Require(line.empty() || line.back() != ';', "'", line, "' ends with a semicolon");
  Calls calls;
  for (const std::string& text : Split(line, ';')) calls.push_back(Parse(text, calls.size()));
  Require(!calls.empty(), "there is no call");
  RequireMeaning(calls);
  return calls;
}

void RequireMeaning(const Case& c) {
  Require(c.rows.size() < RMSNORM_MAX_DIMS, "rows has too many dimensions");
  Require(c.d != 0, "d must not be 0");
  size_t elements = 1;
  for (size_t size : c.rows) {
    size = std::max<size_t>(size, 1);
    Require(size <= kMaxElements / elements, "rows and d are more than 2^28 elements");
    elements *= size;
  }
  Require(c.d <= kMaxElements / elements, "rows and d are more than 2^28 elements");
  Require(c.rotated % 2 == 0, "rotated is odd");
  Require((c.Given() & internal::kRotation) == 0 || RowLengthOf(c, internal::kCos) > 0,
          "rows of 1 have no pairs to rotate");
  Require(c.rotated == 0 || c.Has(internal::kCos),
          "it says how much is rotated, but there is no cos");
  const size_t rows = elements;  // one or more
  for (int i = 0; i < kOperands; ++i) {
    const OperandCase& own = c.operand[i];
    const char* const name = kOperandRules[i].name;
    Require(own.shift <= kMaxElements / 8, name, "_shift is above 2^25 elements");
    Require(own.gap <= kMaxElements / 8, name, "_gap is above 2^25 elements");
    Require(own.gap <= kMaxElements / rows, name, "_gap makes more than 2^28 elements");
    Require(own.skip <= kMaxElements / rows / (c.d + own.gap), name,
            "_skip makes more than 2^28 elements");
  }
  for (int i = 0; i < kOperands; ++i) RequireOperand(c, static_cast<Operand>(i));
  Require(!c.strewn || (!c.interleaved && c.RowCount() > 0), "strewn needs rows that lie alone");
  if (c.function == Function::kRows) RequireRows(c);
  if (c.function == Function::kSeveral) {
    Require(!c.backward && !c.rows.empty(),
            "call=several: several calls are forward calls with a dimension");
    Require(!c.interleaved, "call=several: its pieces lie apart and are not interleaved");
  }
  const OperandCase& weight = c.operand[internal::kWeight];
  const OperandCase& dw = c.operand[internal::kDw];
  Require(weight.dtype == 0 || dw.dtype == 0 || weight.per == dw.per, "dw_per is weight_per");
  if (IsByModule(c) || c.function == Function::kSeveral) {
    Require(weight.dtype != 0 || c.options.weight_offset == 0,
            "a module has a weight, so weight_offset needs one");
  }
  if (IsByModule(c)) {
    Require(weight.per == Per::kTensor && dw.per == Per::kTensor,
            "a module's weight_per and dw_per are tensor");
    Require(c.function != Function::kRows ||
                (c.Given() & internal::kColumnsInF32 & ~HeldByModule(c)) == 0,
            "dense rows share a bias and a post_norm_weight");
  }
}

void RequireMeaning(const Calls& calls) {
  const Case usual;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Case& c = calls[i];
    RequireMeaning(c);
    if (calls.size() == 1) return;
    Require(!c.backward && c.function != Function::kRows && !c.strewn,
            "calls made at once are forward calls, and none is strewn or has call=rows");
    Require((c.function == Function::kPrepared) == (calls[0].function == Function::kPrepared),
            "either all calls made at once have call=prepared, or none");
    Require(i == 0 || (c.threads == usual.threads && c.executor == usual.executor &&
                       c.stores == usual.stores && c.state == usual.state),
            "the first call of a line has their threads, executor, stores and state");
  }
}

bool HasMeaning(const Calls& calls) try {
  RequireMeaning(calls);
  return true;
} catch (const UserError&) {
  return false;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace rmsnorm::cases
