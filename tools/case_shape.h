// SPDX-License-Identifier: Apache-2.0
// Which rows of a case of `rmsnorm check` share a row of a weight or of a bias. The rows are those
// of `heads` heads in each of some groups.
#ifndef RMSNORM_TOOLS_CASE_SHAPE_H_
#define RMSNORM_TOOLS_CASE_SHAPE_H_

#include <cstddef>
#include <vector>

namespace rmsnorm::tools {

// What has a row of the weight or of the bias of its own.
enum class Per { kTensor, kHead, kGroup, kRow };

// The leading dimensions of x. One head is no dimension.
inline std::vector<size_t> LeadingOfRows(size_t rows, size_t heads) {
  if (heads == 1) return {rows};
  return {rows / heads, heads};
}

// Those of the weight or of the bias.
inline std::vector<size_t> LeadingOf(Per per, size_t rows, size_t heads) {
  if (per == Per::kTensor) return {};
  if (per == Per::kHead) return {heads};
  if (per == Per::kGroup && heads > 1) return {rows / heads, 1};
  return LeadingOfRows(rows, heads);
}

// Which row of it goes with a row of x.
inline size_t SharedRow(Per per, size_t row, size_t heads) {
  switch (per) {
    case Per::kTensor:
      break;
    case Per::kHead:
      return row % heads;
    case Per::kGroup:
      return row / heads;
    case Per::kRow:
      return row;
  }
  return 0;
}

// How many rows it has.
inline size_t SharedRows(Per per, size_t rows, size_t heads) {
  return SharedRow(per, rows - 1, heads) + 1;
}

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CASE_SHAPE_H_
