// SPDX-License-Identifier: Apache-2.0
// The table of options: name, place, values, default, what each needs, and whether gradients depend
// on it. The checks, a module's description and the tools go by it. A field of rmsnorm_options
// without a line here does not compile.
#ifndef RMSNORM_LIB_OPTIONS_H_
#define RMSNORM_LIB_OPTIONS_H_

#include <cmath>
#include <cstring>

#include "operands.h"

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
  kOptions
};

enum class Gradient {
  kDepends,  // backward takes the option and computes with it
  kSame,     // backward takes the option, and the gradients do not depend on it
  kRefused   // backward takes the default alone
};

// An option is a number or one of a few words, which stand for 0, 1, ... Its default is 0, or the
// first word, except for eps.
struct OptionRule {
  const char* name;
  const char* words[4];    // null for a number; ends with a null
  bool (*accepts)(float);  // of a number
  const char* range;       // the numbers that it accepts
  float same_as_zero;      // a number that means the same as 0
  Gradient gradient;
  OperandSet needs;      // other than the default, it needs one of these
  OperandSet needed_by;  // and that only where one of these is given; empty: always
};

inline bool IsEps(float value) { return value >= 0.0f && !std::isinf(value); }
inline bool IsDivisor(float value) {
  return value == 0.0f || (value > 0.0f && std::isnormal(value) && std::isnormal(1 / value));
}
inline bool IsFinite(float value) { return std::isfinite(value); }

constexpr OperandSet kAnyWeight = SetOf(kWeight) | SetOf(kPostNormWeight);
constexpr OperandSet kScaled = SetOf(kY) | SetOf(kQ) | SetOf(kDx) | SetOf(kDw);

constexpr OptionRule kOptionRules[kOptions] = {
    {"eps", {}, IsEps, "finite and not negative", 0, Gradient::kDepends, 0, 0},
    {"eps_placement", {"inside", "outside", "floor"}, nullptr, "", 0, Gradient::kDepends, 0, 0},
    {"rounding",
     {"after_weight", "before_weight", "inverse"},
     nullptr,
     "",
     0,
     Gradient::kSame,
     0,
     0},
    {"residual_rounding", {"rounded", "unrounded"}, nullptr, "", 0, Gradient::kSame, 0, 0},
    {"weight_offset", {}, IsFinite, "finite", 0, Gradient::kDepends, kAnyWeight, kScaled},
    {"divisor", {}, IsDivisor, "from 2^-126 to 2^126, or 0 for d", 0, Gradient::kDepends, 0, 0},
    {"factor", {}, IsFinite, "finite", 1, Gradient::kRefused, 0, 0},
    {"activation", {"silu", "sigmoid"}, nullptr, "", 0, Gradient::kRefused, SetOf(kGate), 0},
    {"gate_placement", {"after", "before"}, nullptr, "", 0, Gradient::kRefused, SetOf(kGate), 0},
    {"gate_rounding",
     {"unrounded", "rounded"},
     nullptr,
     "",
     0,
     Gradient::kRefused,
     SetOf(kGate),
     0},
};

constexpr bool IsNumber(Option option) { return kOptionRules[option].words[0] == nullptr; }

// Options are fields of 4 bytes after the size.
constexpr size_t OffsetOf(Option option) {
  return offsetof(rmsnorm_options, eps) + sizeof(float) * static_cast<size_t>(option);
}
static_assert(OffsetOf(kEps) == offsetof(rmsnorm_options, eps));
static_assert(OffsetOf(kEpsPlacement) == offsetof(rmsnorm_options, eps_placement));
static_assert(OffsetOf(kRounding) == offsetof(rmsnorm_options, rounding));
static_assert(OffsetOf(kResidualRounding) == offsetof(rmsnorm_options, residual_rounding));
static_assert(OffsetOf(kWeightOffset) == offsetof(rmsnorm_options, weight_offset));
static_assert(OffsetOf(kDivisor) == offsetof(rmsnorm_options, divisor));
static_assert(OffsetOf(kFactor) == offsetof(rmsnorm_options, factor));
static_assert(OffsetOf(kActivation) == offsetof(rmsnorm_options, activation));
static_assert(OffsetOf(kGatePlacement) == offsetof(rmsnorm_options, gate_placement));
static_assert(OffsetOf(kGateRounding) == offsetof(rmsnorm_options, gate_rounding));
static_assert(OffsetOf(kOptions) == sizeof(rmsnorm_options), "an option has no line in the table");

// Reads and writes a field; a number as float, a word as int32_t.
template <class Value>
Value ValueIn(const rmsnorm_options& options, Option option) {
  Value value;
  std::memcpy(&value, reinterpret_cast<const char*>(&options) + OffsetOf(option), sizeof value);
  return value;
}
template <class Value>
void SetValueIn(rmsnorm_options& options, Option option, Value value) {
  static_assert(sizeof value == sizeof(float));
  std::memcpy(reinterpret_cast<char*>(&options) + OffsetOf(option), &value, sizeof value);
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

inline bool IsDefault(const rmsnorm_options& options, Option option) {
  if (!IsNumber(option)) return ValueIn<int32_t>(options, option) == 0;
  const float value = ValueIn<float>(options, option);
  return value == 0.0f || value == kOptionRules[option].same_as_zero;
}

// The options that do not have their defaults.
inline OptionSet ChangedOptions(const rmsnorm_options& options) {
  OptionSet changed = 0;
  for (int i = 0; i < kOptions; ++i) {
    const Option option = static_cast<Option>(i);
    if (!IsDefault(options, option)) changed |= SetOf(option);
  }
  return changed;
}

// The factor and the divisor that options ask for.
inline float FactorOf(const rmsnorm_options& options) {
  return options.factor != 0.0f ? options.factor : 1.0f;
}
inline float DivisorOf(const rmsnorm_options& options, size_t d) {
  return options.divisor != 0.0f ? options.divisor : static_cast<float>(d);
}

// Checks the values of all options.
rmsnorm_status CheckOptions(const rmsnorm_options& options);

// Checks that options go together with the operation and its operands. `changed` are the
// ChangedOptions(). `own_weight`: the call brings a weight that is not among the operands.
rmsnorm_status CheckOptionsFit(Operation operation, const rmsnorm_options& options,
                               OptionSet changed, const Views& operands, bool own_weight);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_OPTIONS_H_
