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

}  // namespace

RowShape ShapeOfRows(const std::string& option, const TensorInfo& info) {
  if (info.shape.empty()) throw UserError(option + ": a tensor without dimensions has no rows");
  const size_t d = info.shape.back();
  if (d == 0) {
    throw UserError(option + ": shape " + ShapeText(info.shape) + " has rows of no elements");
  }
  // Where there are no rows, d may be so large that a size_t cannot count the bytes of one.
  const size_t size = ByteSize(info);
  return {size == 0 ? 0 : size / (d * ElementSize(info.dtype)), d};
}

ConstView ViewOfRows(InputTensor& tensor, size_t d, size_t first, size_t count) {
  return ConstView(tensor.Elements(first * d, count * d), tensor.info().dtype, {count, d});
}

Weight::Weight(const std::string& location) {
  if (!location.empty()) tensor_.emplace(ParseLocation(location));
}

std::optional<Dtype> Weight::dtype() const {
  if (!tensor_) return std::nullopt;
  return tensor_->info().dtype;
}

std::optional<ConstView> Weight::View(size_t d) {
  if (!tensor_) return std::nullopt;
  if (tensor_->info().shape != std::vector<size_t>{d}) {
    throw UserError("--weight: shape " + ShapeText(tensor_->info().shape) +
                    ", but the rows of x need " + ShapeText({d}));
  }
  return ConstView(tensor_->Elements(0, d), tensor_->info().dtype, {d});
}

size_t RowsInChunk(const RowShape& shape, Dtype dtype) {
  const size_t rows = std::max<size_t>(1, kChunkBytes / ElementSize(dtype) / shape.d);
  return std::min(rows, shape.rows);
}

void ForEachChunk(size_t rows, size_t chunk_rows, const std::function<void(size_t, size_t)>& work) {
  Progress progress(rows);
  size_t row = 0;
  do {
    const size_t count = std::min(chunk_rows, rows - row);
    work(row, count);
    row += count;
    progress.Update(row);
  } while (row < rows);
}

}  // namespace rmsnorm::tools
