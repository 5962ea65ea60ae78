// SPDX-License-Identifier: Apache-2.0
// What messages are made of: names on one line, lists of words, and the word that a misspelt one
// may stand for.
#ifndef RMSNORM_TOOLS_WORDS_H_
#define RMSNORM_TOOLS_WORDS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rmsnorm::tools {

// Returns `text` on one line of ASCII, without the middle of a long one.
std::string OneLine(std::string text);

// "a, b or c"
std::string AnyOf(const std::vector<std::string>& words);

// Returns "; did you mean X?" for the nearest of `words`, or an empty text if none is near.
std::string DidYouMean(const std::string& given, const std::vector<std::string>& words);

// Checks that the value of an option is one of `words`. They are the validator's description, so
// the help lists them.
CLI::Validator OneOf(const std::vector<std::string>& words);
template <class Value>
CLI::Validator OneOf(const std::map<std::string, Value>& values) {
  std::vector<std::string> words;
  for (const auto& [word, value] : values) words.push_back(word);
  return OneOf(words);
}

// Checks that the value of an option names a target that this CPU runs, and replaces it by the
// target's exact name. With `may_be_all`, it accepts "all", too.
CLI::Validator Target(bool may_be_all);

// Checks that the value of an option is not empty, as the name of a file.
CLI::Validator FileName();

// Adds an option for an integer from `least` to `most`, in decimal digits. The help shows its
// default, `value`.
CLI::Option* AddInteger(CLI::App& command, const std::string& name, int32_t& value, int32_t least,
                        int32_t most, const std::string& help);

// The message about a word that `command`, the application or one of its commands, does not know.
std::string UnknownWord(const CLI::App& command, const std::string& word);

// The commands of an application.
std::vector<const CLI::App*> CommandsOf(const CLI::App& app);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_WORDS_H_
