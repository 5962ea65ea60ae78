// SPDX-License-Identifier: Apache-2.0
#include "systems.h"

#include <sstream>
#include <stdexcept>

#include "migration_page.h"

namespace rmsnorm::identify {
namespace {

// The text of a table's cell without the blanks around it, or the backquotes around all of it.
std::string Trimmed(const std::string& cell) {
  const size_t begin = cell.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  const std::string text = cell.substr(begin, cell.find_last_not_of(' ') + 1 - begin);
  const bool is_quoted = text.size() > 1 && text[0] == '`' && text.find('`', 1) == text.size() - 1;
  return is_quoted ? text.substr(1, text.size() - 2) : text;
}

std::vector<std::string> CellsOf(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream stream(line);
  for (std::string cell; std::getline(stream, cell, '|');) cells.push_back(Trimmed(cell));
  return cells;
}

}  // namespace

std::vector<TableRow> ReadTables(const std::string& page) {
  std::vector<std::string> columns;
  std::vector<TableRow> rows;
  std::istringstream stream(page);
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line[0] != '|') columns.clear();
    if (line.empty() || line[0] != '|' || line[1] == '-') continue;
    const std::vector<std::string> cells = CellsOf(line);
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    if (cells.size() != columns.size()) throw std::runtime_error("not the table's shape: " + line);
    TableRow row;
    for (size_t i = 0; i < cells.size(); ++i) row[columns[i]] = cells[i];
    if (row.count("name") != 0) rows.push_back(row);
  }
  return rows;
}

const std::vector<TableRow>& Systems() {
  static const std::vector<TableRow> systems = ReadTables(kMigrationPage);
  return systems;
}

}  // namespace rmsnorm::identify
