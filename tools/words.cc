// SPDX-License-Identifier: Apache-2.0
#include "words.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rmsnorm::tools {
namespace {

// The words of an option's name as a user may spell them: "--Residual_output=y" means
// "residual-output".
std::string Simplified(const std::string& word) {
  std::string simple = word.substr(0, word.find('='));
  simple.erase(0, simple.find_first_not_of('-'));
  for (char& c : simple) {
    if ('A' <= c && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  return simple;
}

// The number of letters to insert, remove, replace or swap with a neighbour to make `b` of `a`.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> of(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        of[i][j] = i + j;
        continue;
      }
      const size_t replaced = of[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      of[i][j] = std::min({of[i - 1][j] + 1, of[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        of[i][j] = std::min(of[i][j], of[i - 2][j - 2] + 1);
      }
    }
  }
  return of[a.size()][b.size()];
}

bool IsNear(const std::string& a, const std::string& b) {
  const size_t shorter = std::min(a.size(), b.size());
  if (shorter >= 2 && a.compare(0, shorter, b, 0, shorter) == 0) return true;
  return Distance(a, b) <= std::max<size_t>(1, std::max(a.size(), b.size()) / 3);
}

}  // namespace

// Words of a command line may hold anything, such as characters that hide or turn around what
// follows.
std::string OneLine(std::string text) {
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

std::string AnyOf(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) {
    text += (i + 1 < words.size() ? ", " : " or ") + words[i];
  }
  return text;
}

std::string DidYouMean(const std::string& given, const std::vector<std::string>& words) {
  constexpr size_t kLongest = 40;  // above any of the words, and little work
  const std::string simple = Simplified(given);
  if (simple.empty() || simple.size() > kLongest) return "";
  const std::string* nearest = nullptr;
  size_t least = SIZE_MAX;
  for (const std::string& word : words) {
    const std::string other = Simplified(word);
    const size_t distance = Distance(simple, other);
    if (distance >= least || !IsNear(simple, other)) continue;
    nearest = &word;
    least = distance;
  }
  return nearest == nullptr ? "" : "; did you mean " + *nearest + "?";
}

}  // namespace rmsnorm::tools
