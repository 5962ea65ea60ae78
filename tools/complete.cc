// SPDX-License-Identifier: Apache-2.0
#include "complete.h"

#include <iostream>

#include "cases/targets.h"
#include "words.h"

namespace rmsnorm::tools {
namespace {

bool StartsWith(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

// Prints words that begin with the last word on the command line.
class Candidates {
 public:
  explicit Candidates(const std::string& begun) : begun_(begun) {}

  void Print(const std::string& word, const std::string& description) const {
    if (StartsWith(word, begun_)) std::cout << word << "\t" << description << "\n";
  }

  // The values of an option, after `before` on the command line. The option's type, as its help
  // shows it, says what its values are: "TEXT:{f32,f16}", "FILE[:TENSOR]", "TARGET,...".
  void PrintValues(const CLI::Option& option, std::string before) const {
    const std::string type = option.get_type_name();
    if (StartsWith(type, "FILE")) {
      std::cout << ":files\n";
      return;
    }
    std::vector<std::string> words;
    if (StartsWith(type, "TARGET")) words = cases::SupportedTargets();
    const bool is_list = type.find(",...") != std::string::npos;
    if (is_list && !words.empty()) words.emplace_back("all");
    const size_t begin = type.find('{');
    if (begin != std::string::npos) {
      words = CLI::detail::split(type.substr(begin + 1, type.find('}') - begin - 1), ',');
    }
    const size_t comma = begun_.rfind(',');
    if (is_list && comma != std::string::npos) before = begun_.substr(0, comma + 1);
    for (const std::string& word : words) Print(before + word, "");
  }

 private:
  const std::string& begun_;
};

// The option that a word names, if the word after it is its value.
const CLI::Option* FindOptionWithValue(const CLI::App& command, const std::string& word) {
  if (!StartsWith(word, "-")) return nullptr;
  const CLI::Option* const option = command.get_option_no_throw(word);
  return option == nullptr || option->get_items_expected_max() == 0 ? nullptr : option;
}

}  // namespace

void Complete(const CLI::App& app, std::vector<std::string> words) {
  if (words.empty()) words.emplace_back();
  const Candidates candidates(words.back());
  const CLI::App* command = &app;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (const CLI::Option* const option = FindOptionWithValue(*command, words[i])) {
      if (i + 2 == words.size()) return candidates.PrintValues(*option, "");
      ++i;
      continue;
    }
    for (const CLI::App* const named : CommandsOf(*command)) {
      if (named->get_name() == words[i]) command = named;
    }
  }
  const size_t equals = words.back().find('=');
  if (equals != std::string::npos) {
    const std::string name = words.back().substr(0, equals);
    const CLI::Option* const option = FindOptionWithValue(*command, name);
    if (option != nullptr) candidates.PrintValues(*option, name + "=");
    return;
  }
  for (const CLI::App* const named : CommandsOf(*command)) {
    candidates.Print(named->get_name(), named->get_description());
  }
  for (const CLI::Option* const option : command->get_options()) {
    if (option->get_positional()) candidates.PrintValues(*option, "");
    for (const std::string& name : option->get_lnames()) {
      candidates.Print("--" + name, option->get_description());
    }
  }
}

}  // namespace rmsnorm::tools
