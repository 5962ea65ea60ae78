// SPDX-License-Identifier: Apache-2.0
// The texts that describe the cases of `rmsnorm check`: a word for the kind of case, and its fields
// as NAME=VALUE, with commas between.
#ifndef RMSNORM_TOOLS_CASE_TEXT_H_
#define RMSNORM_TOOLS_CASE_TEXT_H_

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include "case_shape.h"
#include "case_values.h"
#include "user_error.h"

namespace rmsnorm::tools {

// ----------------------------------------------------------------- types of fields

// The names of an enumeration's values.
template <class T>
using Names = std::initializer_list<std::pair<const char*, T>>;

template <class T>
std::string WriteName(T value, const Names<T>& names) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return {};
}

template <class T>
bool ReadName(const std::string& text, T& value, const Names<T>& names) {
  for (const auto& [name, named] : names) {
    if (text == name) {
      value = named;
      return true;
    }
  }
  return false;
}

// How a type of field is written, and read back. A case with fields of a type of its own adds
// functions for it to the namespace, where its file alone sees them.
std::string WriteField(Dtype value);
std::string WriteField(std::optional<Dtype> value);
std::string WriteField(EpsPlacement value);
std::string WriteField(Rounding value);
std::string WriteField(ResidualRounding value);
std::string WriteField(Per value);
std::string WriteField(Values value);
std::string WriteField(bool value);
std::string WriteField(float value);
template <class Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
std::string WriteField(Integer value) {
  return std::to_string(value);
}

bool ReadField(const std::string& text, Dtype& value);
bool ReadField(const std::string& text, std::optional<Dtype>& value);
bool ReadField(const std::string& text, EpsPlacement& value);
bool ReadField(const std::string& text, Rounding& value);
bool ReadField(const std::string& text, ResidualRounding& value);
bool ReadField(const std::string& text, Per& value);
bool ReadField(const std::string& text, Values& value);
bool ReadField(const std::string& text, bool& value);
bool ReadField(const std::string& text, float& value);
template <class Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
bool ReadField(const std::string& text, Integer& value) {
  const char* const end = text.data() + text.size();
  const auto [parsed_to, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && parsed_to == end;
}

// --------------------------------------------------------------------- whole cases

// The first word of a text.
std::string KindOfCase(const std::string& text);

using FieldTexts = std::map<std::string, std::string>;

// What follows the first word, taken apart. Throws UserError for what is not NAME=VALUE, for a name
// given twice, and if rows or d is missing.
FieldTexts SplitFields(const std::string& text);

// The text of a case. Fields that have their default value are left out, but for those named in
// `always`. visit_fields(c, visit) calls visit(name, field) for each field of a case.
template <class Case, class VisitFields>
std::string WriteCase(const std::string& kind, const Case& c,
                      std::initializer_list<std::string> always, const VisitFields& visit_fields) {
  FieldTexts defaults;
  const Case plain;
  visit_fields(plain,
               [&](const char* name, const auto& value) { defaults[name] = WriteField(value); });
  std::string text = kind;
  visit_fields(c, [&](const char* name, const auto& value) {
    const std::string written = WriteField(value);
    const bool is_kept = written != defaults.at(name) ||
                         std::find(always.begin(), always.end(), name) != always.end();
    if (is_kept) text += std::string(",") + name + "=" + written;
  });
  return text;
}

// The case that a text describes. Throws UserError if there is none.
template <class Case, class VisitFields>
Case ReadCase(const std::string& text, const VisitFields& visit_fields) {
  FieldTexts given = SplitFields(text);
  Case c;
  visit_fields(c, [&](const char* name, auto& value) {
    const auto found = given.find(name);
    if (found == given.end()) return;
    if (!ReadField(found->second, value)) {
      throw UserError("case: '" + found->second + "' is no value for '" + name + "'");
    }
    given.erase(found);
  });
  if (!given.empty()) throw UserError("case: unknown name '" + given.begin()->first + "'");
  return c;
}

// Throws UserError where there is no row or element, and where a case would take more memory than
// it is worth: all its rows with their gaps, or what lies before them.
void RequireSizes(size_t rows, size_t d, std::initializer_list<size_t> gaps,
                  std::initializer_list<size_t> shifts);

// Throws UserError where the rows are not those of whole groups of heads.
void RequireHeads(size_t rows, size_t heads);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CASE_TEXT_H_
