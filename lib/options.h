// SPDX-License-Identifier: Apache-2.0
// The table of options: name, place, values, default, what each needs, which values fused leaves
// serve, and whether gradients depend on it. The checks, a module's description and the tools use
// it. A field of rmsnorm_options or an entry of Option without a line here does not compile.
#ifndef RMSNORM_LIB_OPTIONS_H_
#define RMSNORM_LIB_OPTIONS_H_

#include <cmath>
#include <cstring>

#include "exact_arithmetic.h"
#include "operands.h"
#include "portable.h"

namespace rmsnorm::internal {

// In the order of the fields of rmsnorm_options.
enum Option : int {
  kEps,
  kEpsPlacement,
  kRounding,
  kResidualRounding,
  kWeightOffset,
  kDivisor,
  kFactor,
  kActivation,
  kGatePlacement,
  kGateRounding,
  kGroup,
  kResidualFactor,
  kRotaryPairs,
  kRotaryPart,
  kRotaryRounding,
  kOptions
};

enum class Gradient {
  kDepends,  // backward takes the option and computes with it
  kSame,     // backward takes the option, and the gradients do not depend on it
  kRefused   // backward takes the default alone
};

inline bool IsEps(float value) { return value >= 0.0f && !std::isinf(value); }
inline bool IsDivisor(float value) {
  return value == 0.0f || (value > 0.0f && std::isnormal(value) && std::isnormal(1 / value));
}
inline bool IsFinite(float value) { return std::isfinite(value); }
inline bool IsGroup(int32_t value) {
  return value == 0 || (8 <= value && value <= 4096 && (value & (value - 1)) == 0);
}

// The numbers that an option accepts.
struct Numbers {
  bool (*accept)(float);
  const char* range;
  float same_as_zero;  // a number that means the same as 0
};
constexpr Numbers kEpsNumbers = {IsEps, "finite and not negative", 0};
constexpr Numbers kOffsets = {IsFinite, "finite", 0};
constexpr Numbers kDivisors = {IsDivisor, "from 2^-126 to 2^126, or the default, d", 0};
constexpr Numbers kFactors = {IsFinite, "finite", 1};

// The integers that an option accepts.
struct Integers {
  bool (*accept)(int32_t);
  const char* range;
};
constexpr Integers kGroups = {IsGroup, "a power of two from 8 to 4096, or the default, d"};

// An option is a number, one of a few words, which stand for 0, 1, ..., or an integer. Its default
// is 0, or the first word, except for eps.
struct OptionRule {
  const char* name;
  size_t offset;           // of its field in rmsnorm_options
  const Numbers* numbers;  // null for words and integers
  const char* words[4];    // ends with a null; none for numbers and integers
  uint32_t leaves;         // the values that fused leaves serve; bit i is word i
  Gradient gradient;
  // A value other than the default requires one of these operands, of those that the operation
  // takes.
  OperandSet needs = 0;
  OperandSet needed_by = 0;            // in calls with one of these, or in all calls if empty
  const Integers* integers = nullptr;  // null for numbers and words
};

// Tiles serve every value. Leaves serve any number or integer, or the default alone.
constexpr uint32_t kAnyNumber = ~uint32_t{0};
constexpr uint32_t kDefaultAlone = 1;

constexpr OperandSet kAnyWeight = SetOf(kWeight) | SetOf(kPostNormWeight);
constexpr OperandSet kScaled = SetOf(kY) | SetOf(kQ) | SetOf(kDx) | SetOf(kDw);

#define FIELD(name) #name, offsetof(rmsnorm_options, name)
constexpr OptionRule kOptionRules[kOptions] = {
    {FIELD(eps), &kEpsNumbers, {}, kAnyNumber, Gradient::kDepends},
    {FIELD(eps_placement), nullptr, {"inside", "outside", "floor"}, 0b111, Gradient::kDepends},
    {FIELD(rounding), nullptr, {"after_weight", "before_weight", "inverse"}, 0b11, Gradient::kSame},
    {FIELD(residual_rounding), nullptr, {"rounded", "unrounded"}, 0b11, Gradient::kSame},
    {FIELD(weight_offset), &kOffsets, {}, kAnyNumber, Gradient::kDepends, kAnyWeight, kScaled},
    {FIELD(divisor), &kDivisors, {}, kAnyNumber, Gradient::kDepends},
    {FIELD(factor), &kFactors, {}, kDefaultAlone, Gradient::kRefused},
    {FIELD(activation),
     nullptr,
     {"silu", "sigmoid", "none"},
     0b011,
     Gradient::kRefused,
     SetOf(kGate)},
    {FIELD(gate_placement), nullptr, {"after", "before"}, 0b11, Gradient::kRefused, SetOf(kGate)},
    {FIELD(gate_rounding),
     nullptr,
     {"unrounded", "rounded"},
     0b11,
     Gradient::kRefused,
     SetOf(kGate)},
    {FIELD(group), nullptr, {}, kAnyNumber, Gradient::kRefused, SetOf(kQ), kScaled, &kGroups},
    {FIELD(residual_factor), &kFactors, {}, kDefaultAlone, Gradient::kDepends, SetOf(kResidual)},
    {FIELD(rotary_pairs), nullptr, {"halves", "neighbours"}, 0b11, Gradient::kDepends, SetOf(kCos)},
    {FIELD(rotary_part), nullptr, {"start", "end"}, 0b11, Gradient::kDepends, SetOf(kCos)},
    {FIELD(rotary_rounding),
     nullptr,
     {"each", "norm", "none"},
     0b111,
     Gradient::kSame,
     SetOf(kCos)},
};
#undef FIELD

static_assert(sizeof(rmsnorm_options) == offsetof(rmsnorm_options, eps) + kOptions * sizeof(float),
              "a field of rmsnorm_options is not in enum Option");
static_assert(AreInOrder(kOptionRules, offsetof(rmsnorm_options, eps), sizeof(float)),
              "an option has no line in kOptionRules, or not in its place");

// The operands of which a call with a value other than the default requires one.
constexpr OperandSet NeedsIn(Operation operation, const OptionRule& rule) {
  return rule.needs & ~RolesIn(operation).absent;
}

constexpr bool IsNumber(Option option) { return kOptionRules[option].numbers != nullptr; }
constexpr bool IsInteger(Option option) { return kOptionRules[option].integers != nullptr; }

// Reads and writes a field; a number as float, a word or an integer as int32_t.
template <class Value>
Value ValueIn(const rmsnorm_options& options, Option option) {
  Value value;
  std::memcpy(&value, reinterpret_cast<const char*>(&options) + kOptionRules[option].offset,
              sizeof value);
  return value;
}
template <class Value>
void SetValueIn(rmsnorm_options& options, Option option, Value value) {
  static_assert(sizeof value == sizeof(float));
  std::memcpy(reinterpret_cast<char*>(&options) + kOptionRules[option].offset, &value,
              sizeof value);
}

// The number of an option's word, or -1.
inline int32_t WordOf(Option option, const char* word) {
  for (int32_t i = 0; kOptionRules[option].words[i] != nullptr; ++i) {
    if (std::strcmp(kOptionRules[option].words[i], word) == 0) return i;
  }
  return -1;
}

// A set of options: bit i stands for option i.
using OptionSet = uint32_t;

constexpr OptionSet SetOf(Option option) { return OptionSet{1} << option; }

constexpr Option FirstOption(OptionSet set) { return static_cast<Option>(LowestBit(set)); }

inline bool IsDefault(const rmsnorm_options& options, Option option) {
  if (!IsNumber(option)) return ValueIn<int32_t>(options, option) == 0;
  const float value = ValueIn<float>(options, option);
  return value == 0.0f || value == kOptionRules[option].numbers->same_as_zero;
}

// The options that differ from their defaults, except for eps, which goes with every call.
inline OptionSet ChangedOptions(const rmsnorm_options& options) {
  OptionSet changed = 0;
  for (int i = kEps + 1; i < kOptions; ++i) {
    const auto option = static_cast<Option>(i);
    if (!IsDefault(options, option)) changed |= SetOf(option);
  }
  return changed;
}

// Whether fused leaves serve only some values of an option.
constexpr bool IsLimited(const OptionRule& rule) {
  int words = 0;
  while (rule.words[words] != nullptr) ++words;
  return rule.leaves != (words == 0 ? kAnyNumber : (uint32_t{1} << words) - 1);
}

// The limited options that the results of an operation depend on.
constexpr OptionSet LimitedIn(Operation operation) {
  OptionSet set = 0;
  for (int i = 0; i < kOptions; ++i) {
    const OptionRule& rule = kOptionRules[i];
    const bool matters = operation == Operation::kForward || rule.gradient == Gradient::kDepends;
    if (matters && IsLimited(rule)) set |= SetOf(static_cast<Option>(i));
  }
  return set;
}
static_assert(!IsLimited(kOptionRules[kEps]), "ChangedOptions() leaves it out");

// Whether fused leaves serve the values of options; `changed` are the ChangedOptions().
template <Operation kOperation>
bool LeavesServe(const rmsnorm_options& options, OptionSet changed) {
  constexpr OptionSet kLimited = LimitedIn(kOperation);
  for (OptionSet rest = changed & kLimited; rest != 0; rest &= rest - 1) {
    const Option option = FirstOption(rest);
    if (IsNumber(option) || IsInteger(option)) return false;
    if ((kOptionRules[option].leaves >> ValueIn<int32_t>(options, option) & 1) == 0) return false;
  }
  return true;
}

// The factors and the divisor that options ask for.
constexpr float FactorOr1(float factor) { return factor != 0.0f ? factor : 1.0f; }
inline float DivisorOf(const rmsnorm_options& options, size_t d) {
  return options.divisor != 0.0f ? options.divisor : static_cast<float>(d);
}

// What is added to the values of an operand of kColumnsInF32; -0 leaves them as they are.
inline float OffsetOf(const rmsnorm_options& options, Operand operand) {
  return operand == kBias ? -0.0f : options.weight_offset;
}

// Checks the values of options. `changed` are the ChangedOptions(): a default needs no check.
rmsnorm_status CheckOptions(const rmsnorm_options& options, OptionSet changed);

// Checks that options go together with the operation and its operands. `changed` are the
// ChangedOptions(). `own` is what a module adds to the operands.
rmsnorm_status CheckOptionsFit(Operation operation, const rmsnorm_options& options,
                               OptionSet changed, const Views& operands, OperandSet own);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_OPTIONS_H_
