// SPDX-License-Identifier: Apache-2.0
// Text of users: their mistakes, and numbers and options as text. Numbers are the same in every
// locale. A text is a number only as a whole: without white space, in the range of the type, and
// for integers in decimal digits.
#ifndef RMSNORM_CASES_TEXT_H_
#define RMSNORM_CASES_TEXT_H_

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <system_error>

#include "../lib/options.h"

namespace rmsnorm::cases {

// A mistake that the user can fix. main() prints it as one line and exits with kUserError.
class UserError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads an integer. Returns false if the text is none.
template <class Integer>
bool ReadNumber(const std::string& text, Integer& value) {
  const char* const end = text.data() + text.size();
  const auto [parsed_to, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && parsed_to == end;
}

// Reads f32 directly: through double, it would round twice. Returns false if the text is no number,
// and false with ERANGE in errno if f32 has only an infinity or a zero for it. "inf" and "nan" are
// numbers.
inline bool ReadNumber(const std::string& text, float& value) {
  char* end;
  errno = 0;
  value = std::strtof(text.c_str(), &end);
  if (text.empty() || std::isspace(static_cast<unsigned char>(text[0])) != 0 ||
      end != text.c_str() + text.size()) {
    errno = EINVAL;
    return false;
  }
  const bool is_subnormal = value != 0 && value < 1 && value > -1;
  return errno != ERANGE || is_subnormal;
}

// The shortest decimal that gives an f32 number back.
inline std::string ShortestDecimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general);
  return {text, end.ptr};
}

// The word, the number or the integer of an option.
inline std::string OptionValue(const rmsnorm_options& options, internal::Option option) {
  if (internal::IsNumber(option)) {
    return ShortestDecimal(internal::ValueIn<float>(options, option));
  }
  const auto integer = internal::ValueIn<int32_t>(options, option);
  if (internal::IsInteger(option)) return std::to_string(integer);
  return internal::kOptionRules[option].words[integer];
}

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_TEXT_H_
