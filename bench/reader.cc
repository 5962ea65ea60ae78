// SPDX-License-Identifier: Apache-2.0
#include "reader.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "threads.h"

namespace rmsnorm::bench {

Reader::Reader(const uint8_t* data, size_t bytes) { Add(data, bytes); }

Reader::Reader(const Tensors& tensors) {
  const std::vector<cases::Case>& calls = tensors.values().calls;
  for (size_t i = 0; i < calls.size(); ++i) {
    internal::ForEachOperand(calls[i].Given(), [&](internal::Operand o) {
      const bool has_rows = internal::kOperandRules[o].shape == internal::Shape::kRows;
      if (!has_rows || !calls[i].IsOutput(o)) return;
      const cases::Rows& rows = tensors.values().problems[i].after(o);
      for (size_t row = 0; row < rows.count(); ++row) {
        Add(tensors.row(i, o, row), rows.row_bytes());
      }
    });
  }
}

// Neighbouring rows become one span.
void Reader::Add(const uint8_t* data, size_t bytes) {
  bytes_ += bytes;
  if (!spans_.empty() && spans_.back().data + spans_.back().bytes == data) {
    spans_.back().bytes += bytes;
  } else {
    spans_.push_back({data, bytes});
  }
}

uint64_t Reader::Read(size_t threads) const {
  std::vector<uint64_t> sums(threads);
  const size_t words = bytes_ / sizeof sums[0];
  const auto share = [&](size_t i) {
    const size_t end = i + 1 < threads ? words * (i + 1) / threads * sizeof sums[0] : bytes_;
    sums[i] = SumBetween(words * i / threads * sizeof sums[0], end);
  };
  if (threads == 1) {
    share(0);
  } else {
    RunOnThreads(threads, share);
  }
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

// Of the bytes of all spans, those from `begin` to `end`. A word lies within one span.
uint64_t Reader::SumBetween(size_t begin, size_t end) const {
  uint64_t sum = 0;
  size_t at = 0;
  for (const Span& span : spans_) {
    const size_t first = std::clamp(begin, at, at + span.bytes) - at;
    const size_t last = std::clamp(end, at, at + span.bytes) - at;
    at += span.bytes;
    size_t i = first;
    for (; i + sizeof sum <= last; i += sizeof sum) {
      uint64_t word;
      std::memcpy(&word, span.data + i, sizeof word);
      sum += word;
    }
    for (; i < last; ++i) sum += span.data[i];
  }
  return sum;
}

}  // namespace rmsnorm::bench
