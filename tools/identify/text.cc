// SPDX-License-Identifier: Apache-2.0
#include "text.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "options_text.h"
#include "systems.h"

namespace rmsnorm::identify {
namespace {

using internal::kGate;
using internal::kOptionRules;
using internal::kPostNormWeight;
using internal::kResidual;
using internal::kWeight;
using internal::kX;
using internal::Option;

const char* WordIn(const rmsnorm_options& options, Option option) {
  return kOptionRules[option].words[internal::ValueIn<int32_t>(options, option)];
}

// The names of the words in C, in the order of kOptionRules.
const char* CNameOf(Option option, int32_t word) {
  static constexpr const char* kNames[internal::kOptions][3] = {
      {},
      {"RMSNORM_EPS_INSIDE", "RMSNORM_EPS_OUTSIDE", "RMSNORM_EPS_FLOOR"},
      {"RMSNORM_ROUND_AFTER_WEIGHT", "RMSNORM_ROUND_BEFORE_WEIGHT", "RMSNORM_ROUND_INVERSE"},
      {"RMSNORM_RESIDUAL_ROUNDED", "RMSNORM_RESIDUAL_UNROUNDED"},
      {},
      {},
      {},
      {"RMSNORM_ACTIVATION_SILU", "RMSNORM_ACTIVATION_SIGMOID"},
      {"RMSNORM_GATE_AFTER", "RMSNORM_GATE_BEFORE"},
      {"RMSNORM_GATE_UNROUNDED", "RMSNORM_GATE_ROUNDED"}};
  return kNames[option][word];
}

// "residual_rounding" becomes "ResidualRounding", the name of the enumeration in C++.
std::string EnumName(const std::string& option) {
  std::string name;
  bool is_first = true;
  for (const char c : option) {
    if (c != '_') name += is_first ? static_cast<char>(std::toupper(c)) : c;
    is_first = c == '_';
  }
  return name;
}

std::string FloatLiteral(const std::string& number) {
  return number + (number.find_first_of(".e") == std::string::npos ? ".0f" : "f");
}

std::string InC(const rmsnorm_options& options, bool is_cpp) {
  std::string text =
      is_cpp ? "rmsnorm::Options options;" : "rmsnorm_options options = rmsnorm_default_options();";
  for (const Option option : GivenOptions(options)) {
    const std::string name = kOptionRules[option].name;
    const std::string value = OptionValue(options, option);
    text += " options." + name + " = ";
    if (internal::IsNumber(option)) {
      text += FloatLiteral(value);
    } else if (is_cpp) {
      text += "rmsnorm::" + EnumName(name) + "::" + value;
    } else {
      text += CNameOf(option, internal::ValueIn<int32_t>(options, option));
    }
    text += ";";
  }
  return text;
}

std::string InPython(const Answer& answer) {
  std::string text = "rmsnorm.rms_norm(x";
  text += answer.call.Has(kWeight) ? ", weight" : ", None";
  for (const internal::Operand o : {internal::kBias, kPostNormWeight, kResidual, kGate}) {
    const std::string name = internal::kOperandRules[o].name;
    if (answer.call.Has(o)) text += ", " + name + "=" + name;
  }
  for (const Option option : GivenOptions(answer.best.options)) {
    const std::string value = OptionValue(answer.best.options, option);
    text += std::string(", ") + kOptionRules[option].name + "=";
    text += internal::IsNumber(option) ? value : "\"" + value + "\"";
  }
  return text + ")";
}

std::string EpsClause(const rmsnorm_options& options) {
  const std::string eps = "eps " + ShortestDecimal(options.eps);
  if (options.eps == 0) return "no eps";
  switch (options.eps_placement) {
    case RMSNORM_EPS_OUTSIDE:
      return eps + " added to the RMS";
    case RMSNORM_EPS_FLOOR:
      return eps + " as the least RMS";
    default:
      return eps + " inside the root";
  }
}

// The type that n is rounded to before the weight.
rmsnorm_dtype InnerType(const Answer& answer) {
  const bool is_sum = answer.call.Has(kResidual) &&
                      answer.best.options.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
  return answer.call.operand[is_sum ? kResidual : kX]->dtype;
}

// The clauses of the options that matter for these operands.
std::vector<std::string> Clauses(const Answer& answer) {
  const rmsnorm_options& options = answer.best.options;
  const NormCall& call = answer.call;
  std::vector<std::string> clauses;
  if (options.weight_offset != 0) {
    clauses.push_back(ShortestDecimal(options.weight_offset) + " added to the weight");
  }
  clauses.push_back(EpsClause(options));
  if (options.divisor == 1) clauses.push_back("the sum of squares not divided");
  if (InnerType(answer) != RMSNORM_F32) {
    const std::string type = rmsnorm_dtype_name(InnerType(answer));
    switch (options.rounding) {
      case RMSNORM_ROUND_BEFORE_WEIGHT:
        clauses.push_back("rounded to " + type + " before the weight");
        break;
      case RMSNORM_ROUND_INVERSE:
        clauses.push_back("1 / RMS and the norm rounded to " + type + " before the weight");
        break;
      default:
        clauses.push_back("rounded once, after the weight");
    }
  }
  if (call.Has(kResidual)) {
    const bool is_rounded = options.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
    clauses.push_back(call.operand[kResidual]->dtype == RMSNORM_F32 ? "of the sum"
                      : is_rounded                                  ? "of the rounded sum"
                                   : "of the sum before it is rounded");
    if (internal::FactorOf(options) != 1) {
      clauses.push_back(ShortestDecimal(options.factor) + " x added to the residual");
    }
  }
  if (call.Has(kGate)) {
    clauses.push_back(std::string(WordIn(options, internal::kActivation)) + " of the gate " +
                      WordIn(options, internal::kGatePlacement) + " the norm");
    if (options.gate_rounding == RMSNORM_GATE_ROUNDED) {
      clauses.push_back("the norm rounded before the gate");
    }
  }
  if (!answer.best.step.empty()) clauses.push_back(answer.best.step);
  if (!answer.residual_out.empty()) clauses.push_back(answer.residual_out);
  return clauses;
}

// The share without rounding up to 100 %.
std::string Percent(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%.3f", std::min(100 * share, share < 1 ? 99.999 : 100.0));
  return text;
}

std::string Worst(const Distance& distance) {
  return distance.worst > 9999 ? "far" : std::to_string(distance.worst);
}

std::string HypothesisLine(const Hypothesis& hypothesis) {
  char line[64];
  std::snprintf(line, sizeof line, "  %8s  %6s  ", Percent(hypothesis.distance.Equal()).c_str(),
                Worst(hypothesis.distance).c_str());
  std::string text = line + OptionsText(hypothesis.options);
  if (!hypothesis.step.empty()) text += "; " + hypothesis.step;
  return text + "\n";
}

// The text of a cell; empty where the table does not have the column.
std::string CellOf(const TableRow& row, const std::string& column) {
  const auto found = row.find(column);
  return found == row.end() ? "" : found->second;
}

// Whether a cell of the tables, which may be empty, holds an option.
bool Matches(const TableRow& row, const rmsnorm_options& options, Option option) {
  const std::string cell = CellOf(row, kOptionRules[option].name);
  if (cell.empty()) return internal::IsDefault(options, option);
  if (!internal::IsNumber(option)) return cell == WordIn(options, option);
  const float value = internal::ValueIn<float>(options, option);
  return std::strtof(cell.c_str(), nullptr) == value;
}

// The options that change nothing where all is f32.
constexpr internal::OptionSet kRoundings = SetOf(internal::kRounding) |
                                           SetOf(internal::kResidualRounding) |
                                           SetOf(internal::kGateRounding);

bool IsLike(const TableRow& row, const Answer& answer) {
  const auto cell = [&row](const char* column) { return CellOf(row, column); };
  const NormCall& call = answer.call;
  const rmsnorm_dtype x_type = call.x().dtype;
  if (!cell("x").empty() && cell("x").find(rmsnorm_dtype_name(x_type)) == std::string::npos)
    return false;
  if ((cell("weight") == "none") == call.Has(kWeight)) return false;
  if (call.Has(kWeight)) {
    const rmsnorm_dtype expected = cell("weight") == "f32" ? RMSNORM_F32 : x_type;
    if (call.operand[kWeight]->dtype != expected) return false;
  }
  if (call.y_dtype != (cell("y") == "f32" ? RMSNORM_F32 : x_type)) return false;
  if ((cell("post_norm") == "yes") != call.Has(kPostNormWeight)) return false;
  if (cell("activation").empty() == call.Has(kGate)) return false;
  if (cell("residual_rounding").empty() == call.Has(kResidual)) return false;
  internal::OptionSet ignored = SetOf(internal::kEps);
  if (InnerType(answer) == RMSNORM_F32) ignored |= kRoundings;
  for (int i = 0; i < internal::kOptions; ++i) {
    const auto option = static_cast<Option>(i);
    if ((ignored & SetOf(option)) != 0) continue;
    if (!Matches(row, answer.best.options, option)) return false;
  }
  return true;
}

}  // namespace

std::string Sentence(const Answer& answer) {
  const std::string norm =
      "the RMSNorm of x" + std::string(answer.call.Has(kWeight) ? "" : " without a weight");
  const std::string clauses = Joined(Clauses(answer), ", ");
  switch (answer.fit) {
    case Fit::kExact:
      return "y is " + norm + ": " + clauses + ". Every element is equal.";
    case Fit::kClose:
      return "y is " + norm + ": " + clauses + ". " + Percent(answer.best.distance.Equal()) +
             " % of the elements are equal, the others at most " + Worst(answer.best.distance) +
             " ulp off, as sums in another order are.";
    default:
      return "y is no norm that is known here. " +
             (answer.is_near ? "The nearest one is " + norm + ": " + clauses + "."
                             : "None is near.");
  }
}

std::vector<std::string> SystemsLike(const Answer& answer) {
  std::vector<std::string> same_eps, other_eps;
  if (answer.fit == Fit::kNone || answer.best.kind != StepKind::kOption) return same_eps;
  if (!answer.mistake.empty()) return same_eps;
  std::string before;  // the system of the last row without "the same"
  for (const TableRow& row : Systems()) {
    const std::string& name = row.at("what you have");
    if (name.compare(0, 8, "the same") != 0) before = name;
    const std::string full = name == before ? name : before + name.substr(8);
    if (!IsLike(row, answer)) continue;
    const bool same = Matches(row, answer.best.options, internal::kEps);
    (same ? same_eps : other_eps).push_back(same ? full : full + " (eps " + row.at("eps") + ")");
  }
  same_eps.insert(same_eps.end(), other_eps.begin(), other_eps.end());
  return same_eps;
}

std::string Text(const Answer& answer) {
  std::ostringstream text;
  text << Sentence(answer) << "\n";
  if (answer.is_near) {
    text << "\n  equal, %   worst  hypothesis (" << answer.best.distance.elements << " elements)\n"
         << HypothesisLine(answer.best);
  }
  for (const Hypothesis& other : answer.others) text << HypothesisLine(other);
  if (!answer.notes.empty()) text << "\n" << Joined(answer.notes, "\n") << "\n";
  if (!answer.ambiguities.empty()) {
    text << "\nThese data cannot tell apart:\n";
    for (const Ambiguity& ambiguity : answer.ambiguities) {
      text << "  " << ambiguity.name << ": " << Joined(ambiguity.values, " or ") << "; "
           << ambiguity.cure << " could\n";
    }
  }
  if (answer.fit == Fit::kNone || !answer.mistake.empty()) return text.str();
  const bool is_variant = answer.best.kind == StepKind::kVariant;
  if (is_variant) text << "\nBeside this step, the options are:";
  text << "\nC++     " << InC(answer.best.options, true) << "\nC       "
       << InC(answer.best.options, false) << "\nPython  " << InPython(answer) << "\n";
  const std::vector<std::string> systems = SystemsLike(answer);
  if (!systems.empty()) text << "\nSystems that compute so:\n  " << Joined(systems, "\n  ") << "\n";
  return text.str();
}

}  // namespace rmsnorm::identify
