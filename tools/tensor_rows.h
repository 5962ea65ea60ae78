// SPDX-License-Identifier: Apache-2.0
// The tensors of files as what the library works on: rows, taken some at a time, and a weight.
#ifndef RMSNORM_TOOLS_TENSOR_ROWS_H_
#define RMSNORM_TOOLS_TENSOR_ROWS_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "tensor_file.h"

namespace rmsnorm::tools {

// Rows of the last axis.
struct RowShape {
  size_t rows;
  size_t d;
};

// Throws UserError, naming the option, for a shape without rows or with rows of no elements.
RowShape ShapeOfRows(const std::string& option, const TensorInfo& info);

// `count` rows from `first` on; valid until the next call for the same tensor.
ConstView ViewOfRows(InputTensor& tensor, size_t d, size_t first, size_t count);

// A weight for rows of d elements, or none.
class Weight {
 public:
  // `location` is empty for none. Throws UserError for what cannot be read.
  explicit Weight(const std::string& location);

  // Each is none without a weight. View() throws UserError for any shape but [d].
  std::optional<Dtype> dtype() const;
  std::optional<ConstView> View(size_t d);

 private:
  std::optional<InputTensor> tensor_;
};

// How many rows of this type one call of the library gets.
size_t RowsInChunk(const RowShape& shape, Dtype dtype);

// Calls work(first, count) for each chunk of the rows in turn, and shows a bar where that takes
// long. Without rows there is still one call, so that options and target are checked.
void ForEachChunk(size_t rows, size_t chunk_rows, const std::function<void(size_t, size_t)>& work);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_TENSOR_ROWS_H_
