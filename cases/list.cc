// SPDX-License-Identifier: Apache-2.0
#include "list.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "text.h"
#include "values.h"

namespace rmsnorm::cases {

std::vector<std::string> LinesOf(const std::string& list) {
  std::vector<std::string> lines;
  std::vector<std::pair<std::string, std::string>> names;
  std::string whole;
  for (std::string line : Split(list, '\n')) {
    line.resize(std::min(line.find('#'), line.size()));
    line.resize(line.find_last_not_of(" \r") + 1);
    line.erase(0, line.find_first_not_of(' '));
    whole += line;
    if (whole.empty() || whole.back() == ',' || whole.back() == ';') continue;
    for (const auto& [name, meaning] : names) {
      for (size_t at; (at = whole.find(name)) != std::string::npos;) {
        whole.replace(at, name.size(), meaning);
      }
    }
    std::string text = std::exchange(whole, {});
    const size_t equals = text.find('=');
    if (text[0] == '$') {
      names.emplace_back(text.substr(0, equals), text.substr(equals + 1));
      if (names.back().second.find(names.back().first) != std::string::npos) {
        throw UserError("'" + text + "' is not $NAME=TEXT without the name in the text");
      }
    } else {
      lines.push_back(std::move(text));
    }
  }
  if (!whole.empty()) throw UserError("'" + whole + "' goes on, but the list ends");
  return lines;
}

std::string ReadText(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  if (!text) throw UserError(path + " cannot be read, or is empty");
  return text.str();
}

List::List(const std::string& list) {
  std::string group;
  for (std::string& text : LinesOf(list)) {
    if (text[0] == '[' && text.back() == ']') {
      group = text.substr(1, text.size() - 2);
      continue;
    }
    text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
    Line line;
    line.group = group;
    for (const std::string& call : Split(text, ';')) {
      const std::vector<std::string> parts = Split(call, ',');
      const size_t number = line.start.size();
      line.start.emplace_back(IsBackward(parts.empty() ? "" : parts[0]));
      line.start.back().seed = static_cast<unsigned>(number);
      for (size_t i = 1; i < parts.size(); ++i) {
        line.axes.push_back(ParseAxis(number, parts[i]));
        const Axis& axis = line.axes.back();
        if (axis.in_turn && line.size() < axis.values.size()) {
          throw UserError("'" + parts[i] + "' has " + std::to_string(axis.values.size()) +
                          " values for " + std::to_string(line.size()) + " cases");
        }
      }
    }
    lines_.push_back(std::move(line));
  }
}

List::Axis List::ParseAxis(size_t call, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) throw UserError("'" + text + "' is not NAME=VALUES");
  Axis axis = {call, FindFields(text.substr(0, equals)), {}, false};
  const std::string values = text.substr(equals + 1);
  axis.in_turn = values.find('/') != std::string::npos;
  for (const std::string& value : Split(values, axis.in_turn ? '/' : '|')) {
    const size_t dots = value.find("..");
    if (dots == std::string::npos) {
      axis.values.push_back(value);
      continue;
    }
    int first;
    int last;
    if (!ReadNumber(value.substr(0, dots), first) || !ReadNumber(value.substr(dots + 2), last)) {
      throw UserError("'" + value + "' is not FIRST..LAST");
    }
    for (int i = first; i <= last; ++i) axis.values.push_back(std::to_string(i));
  }
  if (axis.values.empty()) throw UserError("'" + text + "' has no values");
  return axis;
}

size_t List::Line::size() const {
  size_t size = 1;
  for (const Axis& axis : axes) size *= axis.in_turn ? 1 : axis.values.size();
  return size;
}

size_t List::size() const {
  size_t size = 0;
  for (const Line& line : lines_) size += line.size();
  return size;
}

void List::ForEach(const std::function<void(const Calls&)>& visit) const {
  ForEach([&](const std::string& /*group*/, const Calls& calls) { visit(calls); });
}

void List::ForEach(const std::function<void(const std::string& group, const Calls&)>& visit) const {
  for (const Line& line : lines_) {
    Calls calls = line.start;
    std::vector<size_t> set(line.axes.size(), SIZE_MAX);
    for (size_t number = 0; number < line.size(); ++number) {
      size_t below = line.size();  // number of cases per combination of the fields so far
      std::vector<size_t> index(line.axes.size());
      for (size_t i = 0; i < line.axes.size(); ++i) {
        const Axis& axis = line.axes[i];
        const size_t values = axis.values.size();
        if (axis.in_turn) {
          const size_t combination = number / below;
          const size_t first = Random(combination / values << 8 | i).Below(values);
          index[i] = (first + combination) % values;
        } else {
          below /= values;
          index[i] = number / below % values;
        }
        if (index[i] == set[i]) continue;
        set[i] = index[i];
        const std::vector<std::string> each = Split(axis.values[index[i]], ':');
        for (size_t k = 0; k < axis.fields.size(); ++k) {
          const std::string value =
              each.size() == axis.fields.size() ? each[k] : axis.values[index[i]];
          if (!axis.fields[k]->read(calls[axis.call], value)) {
            throw UserError("'" + value + "' is no value for '" + axis.fields[k]->name + "'");
          }
        }
      }
      RequireMeaning(calls);
      visit(line.group, calls);
    }
  }
}

}  // namespace rmsnorm::cases
