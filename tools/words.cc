// SPDX-License-Identifier: Apache-2.0
#include "words.h"

#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cases/number_text.h"
#include "cases/targets.h"
#include "cases/user_error.h"

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

std::string PathOf(const CLI::App& command) {
  return command.get_parent() == nullptr ? command.get_name()
                                         : PathOf(*command.get_parent()) + " " + command.get_name();
}

}  // namespace

// Names of files and tensors may hold anything, such as characters that hide or turn around what
// follows. A JSON string without its quotes escapes these. It escapes quotes and backslashes, too,
// which stay as they are, since some messages hold a line for a shell.
std::string OneLine(std::string text) {
  using nlohmann::json;
  constexpr size_t kLongest = 1000;  // names in files may be of any length
  if (text.size() > kLongest) {
    text.replace(kLongest / 2, text.size() - kLongest, " ... ");
  }
  const std::string quoted = json(text).dump(-1, ' ', true, json::error_handler_t::replace);
  std::string line;
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    if (quoted[i] == '\\' && (quoted[i + 1] == '"' || quoted[i + 1] == '\\')) ++i;
    line += quoted[i];
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

CLI::Validator OneOf(const std::vector<std::string>& words) {
  const auto check = [words](const std::string& given) -> std::string {
    if (std::find(words.begin(), words.end(), given) != words.end()) return "";
    return "'" + given + "' is not " + AnyOf(words) + DidYouMean(given, words);
  };
  return {check, "{" + CLI::detail::join(words, ",") + "}"};
}

CLI::Validator Target(bool may_be_all) {
  const auto find = [may_be_all](std::string& name) -> std::string {
    if (may_be_all && name == "all") return "";
    const char* exact;
    if (rmsnorm_find_target(name.c_str(), &exact) == RMSNORM_OK) {
      name = exact;
      return "";
    }
    const std::string problem = rmsnorm_error_message();  // begins with "target: "
    return problem.substr(problem.find(": ") + 2) + DidYouMean(name, cases::SupportedTargets());
  };
  return {find, ""};
}

CLI::Validator FileName() {
  const auto check = [](const std::string& name) -> std::string {
    return name.empty() ? "'' names no file" : "";
  };
  return {check, ""};
}

CLI::Option* AddInteger(CLI::App& command, const std::string& name, int32_t& value, int32_t least,
                        int32_t most, const std::string& help) {
  const auto set = [&value, name, least, most](const std::string& text) {
    int32_t number;
    if (!cases::ReadNumber(text, number) || number < least || number > most) {
      throw cases::UserError(name + ": '" + text + "' is not an integer from " +
                             std::to_string(least) + " to " + std::to_string(most));
    }
    value = number;
  };
  return command.add_option_function<std::string>(name, set, help)
      ->type_name("N")
      ->default_str(std::to_string(value));
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::string UnknownWord(const CLI::App& command, const std::string& word) {
  const CLI::App* const app = command.get_parent();
  const bool is_option = word.substr(0, 1) == "-";
  const std::string problem = (is_option        ? "unknown option '"
                               : app == nullptr ? "unknown command '"
                                                : "unexpected argument '") +
                              word + "'";
  std::vector<std::string> owners;  // other commands with this option
  for (const CLI::App* const other : CommandsOf(app == nullptr ? command : *app)) {
    const bool has_it =
        is_option && other->get_option_no_throw(word.substr(0, word.find('='))) != nullptr;
    if (has_it) owners.push_back(PathOf(*other));
  }
  if (!owners.empty())
    return problem + " of " + PathOf(command) + "; it belongs to " + AnyOf(owners);

  std::vector<std::string> words;
  for (const CLI::App* const other : CommandsOf(command)) words.push_back(other->get_name());
  for (const CLI::Option* const option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  const std::string hint = DidYouMean(word, words);
  return problem + (hint.empty() ? "; see " + PathOf(command) + " --help" : hint);
}

}  // namespace rmsnorm::tools
