// SPDX-License-Identifier: Apache-2.0
// Text from outside in a message.
#ifndef RMSNORM_TOOLS_ONE_LINE_H_
#define RMSNORM_TOOLS_ONE_LINE_H_

#include <string>

namespace rmsnorm::tools {

// Returns `text` on one line of ASCII, without the middle of a long one. Words of a command line
// may hold anything, such as characters that hide or turn around what follows.
inline std::string OneLine(std::string text) {
  constexpr size_t kLongest = 1000;
  if (text.size() > kLongest) {
    text.replace(kLongest / 2, text.size() - kLongest, " ... ");
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (' ' <= c && c <= '~') {
      line += c;
    } else {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return line;
}

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_ONE_LINE_H_
