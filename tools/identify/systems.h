// SPDX-License-Identifier: Apache-2.0
// The systems whose norms are known, from the tables of doc/migration.md.
#ifndef RMSNORM_TOOLS_IDENTIFY_SYSTEMS_H_
#define RMSNORM_TOOLS_IDENTIFY_SYSTEMS_H_

#include <map>
#include <string>
#include <vector>

namespace rmsnorm::identify {

// A row of a table: the text of each column.
using TableRow = std::map<std::string, std::string>;

// The rows of a page's tables that have a column "name". Throws std::runtime_error if a row has not
// as many cells as its table.
std::vector<TableRow> ReadTables(const std::string& page);

// The page, as it was when the program was built.
const std::vector<TableRow>& Systems();

}  // namespace rmsnorm::identify

#endif  // RMSNORM_TOOLS_IDENTIFY_SYSTEMS_H_
