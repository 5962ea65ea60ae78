// SPDX-License-Identifier: Apache-2.0
// Numbers as text, in every locale. A text is a number only as a whole: without white space, in the
// range of the type, and for integers in decimal digits.
#ifndef RMSNORM_CASES_NUMBER_TEXT_H_
#define RMSNORM_CASES_NUMBER_TEXT_H_

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string>
#include <system_error>

namespace rmsnorm::cases {

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

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_NUMBER_TEXT_H_
