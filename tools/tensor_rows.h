// SPDX-License-Identifier: Apache-2.0
// The tensors of files as what the library works on: the rows of x, taken some at a time, and a
// weight or a bias that broadcasts to them.
#ifndef RMSNORM_TOOLS_TENSOR_ROWS_H_
#define RMSNORM_TOOLS_TENSOR_ROWS_H_

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "tensor_file.h"

namespace rmsnorm::tools {

// The shape of x. A file may have more dimensions than a view: dimensions of 1 are left out, and
// neighbours along which each broadcast tensor has all of x's rows, or shares one, are merged.
struct RowShape {
  std::vector<size_t> leading;  // at least one dimension
  size_t d;
  size_t rows;
};

// Rows of x that lie one after the other: some of one leading dimension, with one index of each
// dimension before it and all of those behind it.
struct Chunk {
  size_t first;                // the rows of x before it
  size_t rows;                 // how many it has
  std::vector<size_t> begin;   // in each leading dimension
  std::vector<size_t> extent;  // the same
};

// A weight or a bias of shape [d], or with leading dimensions that are those of x or 1; or none.
class Columns {
 public:
  // `option` is for messages. `location` is empty for none. Throws UserError for what cannot be
  // read.
  Columns(const std::string& option, const std::string& location);

  // What the gradient by it is: of its shape and type, or of shape [d] and f32 where there is none.
  TensorInfo GradientInfo(size_t d) const;
  // All of it in such a type.
  View GradientView(void* elements, Dtype dtype, size_t d) const;
  // The part for a chunk, valid until the next call; empty where there is none.
  ConstView ViewFor(const Chunk& chunk, size_t d);

 private:
  friend RowShape ShapeOfRows(const TensorInfo& x, std::initializer_list<Columns*> columns);
  void Fit(const TensorInfo& x);

  std::string option_;
  std::optional<InputTensor> tensor_;
  std::vector<size_t>
      leading_;  // for each in RowShape::leading the same or 1; empty without tensor
};

// The shape of the rows of --input with all that broadcasts to them. Throws UserError for a shape
// without rows or with rows of no elements, and for columns that do not fit.
RowShape ShapeOfRows(const TensorInfo& x, std::initializer_list<Columns*> columns);

// Throws UserError, naming the option, for a tensor that has another shape than x.
void CheckShape(const std::string& option, const TensorInfo& tensor, const TensorInfo& x);

// Views of a chunk of a tensor that has the shape of x.
ConstView ViewOfChunk(InputTensor& tensor, const Chunk& chunk, size_t d);
View ViewOfChunk(void* elements, Dtype dtype, const Chunk& chunk, size_t d);

// How many rows of this type one call of the library gets at most.
size_t RowsInChunk(const RowShape& shape, Dtype dtype);

// Calls work(chunk) for chunks of at most so many rows, in order until all rows have been there,
// and shows a bar where that takes long. Without rows there is still one call, so that options and
// target are checked.
void ForEachChunk(const RowShape& shape, size_t most_rows,
                  const std::function<void(const Chunk&)>& work);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_TENSOR_ROWS_H_
