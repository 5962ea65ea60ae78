// SPDX-License-Identifier: Apache-2.0
// What messages are made of: names on one line, lists of words, and the word that a misspelt one
// may stand for.
#ifndef RMSNORM_TOOLS_WORDS_H_
#define RMSNORM_TOOLS_WORDS_H_

#include <string>
#include <vector>

namespace rmsnorm::tools {

// Returns `text` on one line of ASCII, without the middle of a long one.
std::string OneLine(std::string text);

// "a, b or c"
std::string AnyOf(const std::vector<std::string>& words);

// Returns "; did you mean X?" for the nearest of `words`, or an empty text if none is near.
std::string DidYouMean(const std::string& given, const std::vector<std::string>& words);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_WORDS_H_
