// SPDX-License-Identifier: Apache-2.0
#include "tensor_rows.h"

#include <algorithm>

#include "progress.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

// Enough to keep the threads busy, little enough that the results are still in the cache when they
// are written to the file.
constexpr size_t kChunkBytes = size_t{4} << 20;

std::vector<size_t> WithLast(std::vector<size_t> leading, size_t d) {
  leading.push_back(d);
  return leading;
}

}  // namespace

Columns::Columns(const std::string& option, const std::string& location) : option_(option) {
  if (!location.empty()) tensor_.emplace(ParseLocation(location));
}

TensorInfo Columns::GradientInfo(size_t d) const {
  return tensor_ ? tensor_->info() : TensorInfo{Dtype::f32, {d}};
}

View Columns::GradientView(void* elements, Dtype dtype, size_t d) const {
  const std::vector<size_t> shape = WithLast(leading_, d);
  return View(elements, dtype, shape.size(), shape.data());
}

ConstView Columns::ViewFor(const Chunk& chunk, size_t d) {
  if (!tensor_) return {};
  size_t first = 0;
  size_t rows = 1;
  std::vector<size_t> shape;
  for (size_t i = 0; i < leading_.size(); ++i) {
    const bool is_shared = leading_[i] == 1;
    first = first * leading_[i] + (is_shared ? 0 : chunk.begin[i]);
    shape.push_back(is_shared ? 1 : chunk.extent[i]);
    rows *= shape.back();
  }
  shape.push_back(d);
  return ConstView(tensor_->Elements(first * d, rows * d), tensor_->info().dtype, shape.size(),
                   shape.data());
}

// Makes leading_ the dimensions that stand below each of x's.
void Columns::Fit(const TensorInfo& x) {
  const std::vector<size_t>& shape = tensor_->info().shape;
  if (shape.empty() || shape.back() != x.shape.back()) {
    throw UserError(option_ + ": shape " + ShapeText(shape) + ", but the rows of x need " +
                    ShapeText({x.shape.back()}));
  }
  bool fits = shape.size() <= x.shape.size();
  if (fits) leading_.assign(x.shape.size() - shape.size(), 1);
  leading_.insert(leading_.end(), shape.begin(), shape.end() - 1);
  for (size_t i = 0; fits && i < leading_.size(); ++i) {
    fits = leading_[i] == 1 || leading_[i] == x.shape[i];
  }
  if (!fits) {
    throw UserError(option_ + ": shape " + ShapeText(shape) + " does not broadcast to " +
                    ShapeText(x.shape) + ", the shape of x");
  }
}

RowShape ShapeOfRows(const TensorInfo& x, std::initializer_list<Columns*> columns) {
  if (x.shape.empty()) throw UserError("--input: a tensor without dimensions has no rows");
  const size_t d = x.shape.back();
  if (d == 0) {
    throw UserError("--input: shape " + ShapeText(x.shape) + " has rows of no elements");
  }
  // Where there are no rows, d may be so large that a size_t cannot count the bytes of one.
  const size_t size = ByteSize(x);
  RowShape rows = {{}, d, size == 0 ? 0 : size / (d * ElementSize(x.dtype))};

  std::vector<std::vector<size_t>*> all = {&rows.leading};  // of x and of what broadcasts to it
  std::vector<std::vector<size_t>> unmerged = {{x.shape.begin(), x.shape.end() - 1}};
  for (Columns* const tensor : columns) {
    if (!tensor->tensor_) continue;
    tensor->Fit(x);
    unmerged.push_back(std::move(tensor->leading_));
    tensor->leading_.clear();
    all.push_back(&tensor->leading_);
  }
  for (size_t i = 0; i < unmerged[0].size(); ++i) {
    if (unmerged[0][i] == 1) continue;
    bool is_alike = !rows.leading.empty();
    for (size_t t = 0; is_alike && t < all.size(); ++t) {
      is_alike = (unmerged[t][i] == 1) == (all[t]->back() == 1);
    }
    for (size_t t = 0; t < all.size(); ++t) {
      if (is_alike) {
        all[t]->back() *= unmerged[t][i];
      } else {
        all[t]->push_back(unmerged[t][i]);
      }
    }
  }
  if (rows.leading.empty()) {
    for (std::vector<size_t>* const leading : all) leading->push_back(1);
  }
  return rows;
}

void CheckShape(const std::string& option, const TensorInfo& tensor, const TensorInfo& x) {
  if (tensor.shape != x.shape) {
    throw UserError(option + ": shape " + ShapeText(tensor.shape) + ", but x has " +
                    ShapeText(x.shape));
  }
}

ConstView ViewOfChunk(InputTensor& tensor, const Chunk& chunk, size_t d) {
  const std::vector<size_t> shape = WithLast(chunk.extent, d);
  return ConstView(tensor.Elements(chunk.first * d, chunk.rows * d), tensor.info().dtype,
                   shape.size(), shape.data());
}

View ViewOfChunk(void* elements, Dtype dtype, const Chunk& chunk, size_t d) {
  const std::vector<size_t> shape = WithLast(chunk.extent, d);
  return View(elements, dtype, shape.size(), shape.data());
}

size_t RowsInChunk(const RowShape& shape, Dtype dtype) {
  return std::max<size_t>(1, kChunkBytes / ElementSize(dtype) / shape.d);
}

void ForEachChunk(const RowShape& shape, size_t most_rows,
                  const std::function<void(const Chunk&)>& work) {
  const std::vector<size_t>& leading = shape.leading;
  if (shape.rows == 0) return work({0, 0, std::vector<size_t>(leading.size()), leading});

  size_t axis = leading.size() - 1;  // the dimension that is cut
  size_t rows_behind = 1;            // of each of its indices
  while (axis > 0 && rows_behind * leading[axis] <= most_rows) rows_behind *= leading[axis--];
  const size_t most = std::max<size_t>(1, most_rows / rows_behind);

  Progress progress(shape.rows);
  Chunk chunk = {0, 0, std::vector<size_t>(leading.size()), leading};
  std::fill_n(chunk.extent.begin(), axis, 1);
  while (chunk.first < shape.rows) {
    size_t index = chunk.first / rows_behind;
    for (size_t i = axis + 1; i-- > 0;) {
      chunk.begin[i] = index % leading[i];
      index /= leading[i];
    }
    chunk.extent[axis] = std::min(most, leading[axis] - chunk.begin[axis]);
    chunk.rows = chunk.extent[axis] * rows_behind;
    work(chunk);
    chunk.first += chunk.rows;
    progress.Update(chunk.first);
  }
}

}  // namespace rmsnorm::tools
