// SPDX-License-Identifier: Apache-2.0
#include "forward_job.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "parallel.h"
#include "plain_loops.h"

namespace rmsnorm::bench {
namespace {

// Normal numbers of a type. Drawing one takes longer than normalising it, so that after a prime
// number of them they repeat: no two rows next to each other are the same.
Buffer NormalNumbers(Dtype dtype, size_t count, float mean, float deviation) {
  std::vector<float> drawn(std::min<size_t>(count, 65521));
  std::mt19937 random;
  std::normal_distribution<float> distribution(mean, deviation);
  for (float& number : drawn) number = distribution(random);

  const size_t size = rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  Buffer buffer(count * size);
  for (size_t done = 0; done < count; done += drawn.size()) {
    PlainConvert(drawn.data(), dtype, buffer.data() + done * size,
                 std::min(drawn.size(), count - done));
  }
  return buffer;
}

}  // namespace

ForwardJob::ForwardJob(const Cell& cell)
    : cell_(cell),
      row_bytes_(cell.bytes() / cell.rows),
      x_(NormalNumbers(cell.dtype, cell.elements(), 0.0f, 1.0f)),
      weight_(NormalNumbers(cell.dtype, cell.d, 1.0f, 0.25f)),
      y_(cell.bytes()),
      x_view_(x_.data(), cell.dtype, {cell.rows, cell.d}),
      y_view_(y_.data(), cell.dtype, {cell.rows, cell.d}),
      library_(MakeModule(cell.target.c_str())),
      reference_(MakeModule("reference")),
      parts_(CountParts()) {}

RmsNorm ForwardJob::MakeModule(const char* target) {
  Options options;
  options.threads = cell_.threads;
  options.target = target;
  RmsNorm module(cell_.d, options, cell_.dtype);
  module.set_weight(ConstView(weight_.data(), cell_.dtype, {cell_.d}));
  return module;
}

// The library hands its parts to an executor just as to OpenMP, so one that counts them tells.
size_t ForwardJob::CountParts() {
  size_t parts = 1;
  Options options;
  options.threads = cell_.threads;
  options.target = cell_.target.c_str();
  options.parallel_context = &parts;
  options.parallel_for = [](void* context, size_t count, rmsnorm_task task, void* state) {
    *static_cast<size_t*>(context) = count;
    for (size_t i = 0; i < count; ++i) task(state, i);
  };
  forward(x_view_, nullptr, y_view_, options);
  return std::min(parts, cell_.rows);
}

void ForwardJob::RunPlainLoops() {
  ForRowsInParts(cell_.rows, parts_, [this](size_t begin, size_t end) {
    PlainForward(cell_.dtype, x_.data() + begin * row_bytes_, weight_.data(),
                 y_.data() + begin * row_bytes_, end - begin, cell_.d, Options().eps);
  });
}

void ForwardJob::RunMemcpy() {
  ForRowsInParts(cell_.rows, parts_, [this](size_t begin, size_t end) {
    std::memcpy(y_.data() + begin * row_bytes_, x_.data() + begin * row_bytes_,
                (end - begin) * row_bytes_);
  });
}

std::string ForwardJob::FindDifference() {
  std::memset(y_.data(), 0xFF, cell_.bytes());  // NaNs, which no result here is
  RunLibrary();

  // The reference goes through some rows at a time, so that its results need little memory.
  const size_t rows_at_a_time = std::clamp<size_t>((size_t{1} << 20) / cell_.d, 1, cell_.rows);
  Buffer expected(rows_at_a_time * row_bytes_);
  for (size_t row = 0; row < cell_.rows; row += rows_at_a_time) {
    const size_t rows = std::min(rows_at_a_time, cell_.rows - row);
    const uint8_t* const actual = y_.data() + row * row_bytes_;
    reference_.forward(ConstView(x_.data() + row * row_bytes_, cell_.dtype, {rows, cell_.d}),
                       View(expected.data(), cell_.dtype, {rows, cell_.d}));
    const size_t bytes = rows * row_bytes_;
    if (std::memcmp(actual, expected.data(), bytes) == 0) continue;
    const size_t byte =
        static_cast<size_t>(std::mismatch(actual, actual + bytes, expected.data()).first - actual);
    const size_t element = byte % row_bytes_ / (row_bytes_ / cell_.d);
    return "row " + std::to_string(row + byte / row_bytes_) + ", element " +
           std::to_string(element) + " differs from the reference";
  }
  return {};
}

}  // namespace rmsnorm::bench
