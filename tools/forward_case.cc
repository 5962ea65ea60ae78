// SPDX-License-Identifier: Apache-2.0
#include "forward_case.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <sstream>
#include <system_error>
#include <utility>

#include "command.h"

namespace rmsnorm::tools {
namespace {

// A case's buffers take a few times this many bytes.
constexpr size_t kMaxElements = size_t{1} << 28;

// The names of an enumeration's values, in the texts of cases.
template <class T>
using Names = std::initializer_list<std::pair<const char*, T>>;

const Names<Call> kCalls = {
    {"forward", Call::kForward}, {"module", Call::kModule}, {"two_phases", Call::kTwoPhases}};
const Names<Dtype> kDtypes = {{"f32", Dtype::f32}, {"f16", Dtype::f16}, {"bf16", Dtype::bf16}};
const Names<std::optional<Dtype>> kWeights = {
    {"f32", Dtype::f32}, {"f16", Dtype::f16}, {"bf16", Dtype::bf16}, {"none", std::nullopt}};
const Names<Values> kValues = {{"normal", Values::kNormal},
                               {"wide", Values::kWide},
                               {"huge", Values::kHuge},
                               {"tiny", Values::kTiny},
                               {"subnormal", Values::kSubnormal},
                               {"zero", Values::kZero},
                               {"nan", Values::kNan},
                               {"infinity", Values::kInfinity},
                               {"low_edge", Values::kLowEdge},
                               {"high_edge", Values::kHighEdge},
                               {"mixed", Values::kMixed}};

template <class T>
std::string Write(T value, const Names<T>& names) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return {};
}

template <class T>
bool Read(const std::string& text, T& value, const Names<T>& names) {
  for (const auto& [name, named] : names) {
    if (text == name) {
      value = named;
      return true;
    }
  }
  return false;
}

// How a type of field is written, and read back.
std::string Write(Call value) { return Write(value, kCalls); }
std::string Write(Dtype value) { return Write(value, kDtypes); }
std::string Write(std::optional<Dtype> value) { return Write(value, kWeights); }
std::string Write(Values value) { return Write(value, kValues); }
std::string Write(bool value) { return value ? "1" : "0"; }
std::string Write(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));  // all its bits
  return text;
}
template <class Integer>
std::string Write(Integer value) {
  return std::to_string(value);
}

bool Read(const std::string& text, Call& value) { return Read(text, value, kCalls); }
bool Read(const std::string& text, Dtype& value) { return Read(text, value, kDtypes); }
bool Read(const std::string& text, std::optional<Dtype>& value) {
  return Read(text, value, kWeights);
}
bool Read(const std::string& text, Values& value) { return Read(text, value, kValues); }
bool Read(const std::string& text, bool& value) {
  value = text == "1";
  return value || text == "0";
}
bool Read(const std::string& text, float& value) {
  char* end;
  errno = 0;
  value = std::strtof(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}
template <class Integer>
bool Read(const std::string& text, Integer& value) {
  const char* const end = text.data() + text.size();
  const auto [parsed_to, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && parsed_to == end;
}

// Visits each field with its name in the text.
template <class Case, class Visitor>
void VisitFields(Case& c, const Visitor& visit) {
  visit("x", c.x);
  visit("weight", c.weight);
  visit("y", c.y);
  visit("rows", c.rows);
  visit("d", c.d);
  visit("call", c.call);
  visit("x_shift", c.x_shift);
  visit("weight_shift", c.weight_shift);
  visit("y_shift", c.y_shift);
  visit("x_gap", c.x_gap);
  visit("y_gap", c.y_gap);
  visit("falling", c.falling);
  visit("repeated", c.repeated);
  visit("in_place", c.in_place);
  visit("eps", c.eps);
  visit("eps_outside", c.eps_outside);
  visit("cast_then_scale", c.cast_then_scale);
  visit("weight_offset", c.weight_offset);
  visit("divisor", c.divisor);
  visit("rstd", c.rstd);
  visit("threads", c.threads);
  visit("executor", c.executor);
  visit("values", c.values);
  visit("special_weight", c.special_weight);
  visit("residual", c.residual);
  visit("residual_shift", c.residual_shift);
  visit("residual_gap", c.residual_gap);
  visit("residual_in_place", c.residual_in_place);
  visit("norm_then_cast", c.norm_then_cast);
  visit("seed", c.seed);
}

using Texts = std::map<std::string, std::string>;

Texts TextsOfFields(const ForwardCase& c) {
  Texts texts;
  VisitFields(c, [&](const char* name, const auto& value) { texts[name] = Write(value); });
  return texts;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// What the library would refuse is left to it. This is what makes no sense before that.
void RequireMeaning(const ForwardCase& c) {
  if (c.rows == 0 || c.d == 0) throw UserError("case: rows and d must not be 0");
  for (const size_t size : {c.rows, c.d, c.x_gap, c.y_gap, c.residual_gap, c.x_shift, c.y_shift,
                            c.weight_shift, c.residual_shift}) {
    if (size > kMaxElements) throw UserError("case: a size is above 2^28 elements");
  }
  if (c.d + c.x_gap + c.y_gap + c.residual_gap > kMaxElements / c.rows) {
    throw UserError("case: more than 2^28 elements");
  }
  if (c.in_place) {
    if (!CanBeInPlace(c)) throw UserError("case: in_place needs elements of the same size");
    if (c.repeated) throw UserError("case: rows that are repeated cannot be normalised in_place");
    if (c.y_shift != 0 || c.y_gap != 0) {
      throw UserError("case: in_place leaves no choice of y_shift and y_gap");
    }
  }
  if (c.residual) {
    if (c.call == Call::kTwoPhases) throw UserError("case: two_phases take no residual");
  } else if (c.residual_shift != 0 || c.residual_gap != 0 || c.residual_in_place ||
             c.norm_then_cast) {
    throw UserError("case: it says how, but there is no residual");
  }
  if (c.repeated && c.x_gap != 0) throw UserError("case: repeated leaves no choice of x_gap");
}

}  // namespace

bool CanBeInPlace(const ForwardCase& forward_case) {
  const auto size = [](Dtype dtype) {
    return rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  };
  return size(forward_case.x) == size(forward_case.y);
}

std::string Text(const ForwardCase& forward_case) {
  static const Texts defaults = TextsOfFields(ForwardCase());
  std::string text = "forward";
  VisitFields(forward_case, [&](const std::string& name, const auto& value) {
    const std::string written = Write(value);
    const bool always =
        name == "x" || name == "weight" || name == "y" || name == "rows" || name == "d";
    if (!always && written == defaults.at(name)) return;
    text += "," + name + "=" + written;
  });
  return text;
}

ForwardCase ParseForwardCase(const std::string& text) {
  const std::vector<std::string> parts = Split(text, ',');
  if (parts.empty() || parts[0] != "forward") {
    throw UserError("case: '" + text + "' does not begin with 'forward,'");
  }
  Texts given;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string::npos) throw UserError("case: '" + parts[i] + "' is not NAME=VALUE");
    const std::string name = parts[i].substr(0, equals);
    if (!given.emplace(name, parts[i].substr(equals + 1)).second) {
      throw UserError("case: '" + name + "' is given twice");
    }
  }
  for (const char* name : {"rows", "d"}) {
    if (given.count(name) == 0) throw UserError(std::string("case: '") + name + "' is missing");
  }

  ForwardCase c;
  VisitFields(c, [&](const char* name, auto& value) {
    const auto found = given.find(name);
    if (found == given.end()) return;
    if (!Read(found->second, value)) {
      throw UserError("case: '" + found->second + "' is no value for '" + name + "'");
    }
    given.erase(found);
  });
  if (!given.empty()) throw UserError("case: unknown name '" + given.begin()->first + "'");
  RequireMeaning(c);
  return c;
}

}  // namespace rmsnorm::tools
