// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "rounds.h"

namespace rmsnorm::bench {

using cases::Case;
using internal::Operand;

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  static std::mt19937 random;
  first_line_ = random() % 1024;
  lines_.resize(first_line_ + bytes / sizeof(Line) + 1);
}

CallValues::CallValues(const std::vector<Case>& its_calls) : calls(its_calls) {
  for (const Case& c : calls) problems.emplace_back(c);
}

Tensors::Tensors(const CallValues& values) : values_(values) {
  for (const Case& c : values.calls) {
    const cases::Layout& layout = layouts_.emplace_back(c);
    std::vector<uint8_t*>& blocks = blocks_.emplace_back();
    for (const cases::Layout::Block& block : layout.block) {
      blocks.push_back(block.bytes == 0 ? nullptr : buffers_.emplace_back(block.bytes).data());
    }
    operands_.push_back(cases::OperandsAt(c, layout, blocks.data()));
  }
  for (size_t i = 0; i < operands_.size(); ++i) {
    const rmsnorm_operands& its = peer_operands_.emplace_back(operands_[i].Get());
    peer_calls_.push_back({nullptr, &its, &values.calls[i].options});
    peer_case_.backward = values.calls[i].backward;
    peer_case_.threads = values.calls[i].threads;
  }
  peer_case_.calls = peer_calls_.data();
  peer_case_.count = peer_calls_.size();
}

void Tensors::Reset() {
  for (size_t i = 0; i < values_.calls.size(); ++i) {
    const Case& c = values_.calls[i];
    for (int o = 0; o < internal::kOperands; ++o) {
      const size_t bytes = layouts_[i].block[o].bytes;
      if (bytes != 0) std::memset(blocks_[i][static_cast<size_t>(o)], 0xFF, bytes);
    }
    internal::ForEachOperand(c.Given(), [&](Operand o) {
      layouts_[i].Write(values_.problems[i].before(o), o, blocks_[i].data());
    });
  }
}

Reader::Reader(const Tensors& tensors) {
  const std::vector<Case>& calls = tensors.values().calls;
  for (size_t i = 0; i < calls.size(); ++i) {
    internal::ForEachOperand(calls[i].Given(), [&](Operand o) {
      const bool has_rows = internal::kOperandRules[o].HasShapeOfX();
      if (!has_rows || !calls[i].IsOutput(o)) return;
      const cases::Rows& rows = tensors.values().problems[i].after(o);
      for (size_t row = 0; row < rows.count(); ++row) {
        Add(tensors.row(i, o, row), rows.row_bytes());
      }
    });
  }
}

void Reader::Add(const uint8_t* data, size_t bytes) {
  constexpr size_t kMost = 4096;
  while (bytes > 0) {
    const bool goes_on = !pieces_.empty() && pieces_.back().data + pieces_.back().bytes == data;
    if (!goes_on || pieces_.back().bytes == kMost) pieces_.push_back({data, 0});
    const size_t more = std::min(bytes, kMost - pieces_.back().bytes);
    pieces_.back().bytes += more;
    data += more;
    bytes -= more;
  }
}

uint64_t Reader::Read(size_t threads) const {
  std::vector<uint64_t> sums(threads);
  RunOnThreads(threads, [&](size_t i) {
    uint64_t sum = 0;
    const size_t end = pieces_.size() * (i + 1) / threads;
    for (size_t piece = pieces_.size() * i / threads; piece < end; ++piece) {
      sum += pieces_[piece].Sum();
    }
    sums[i] = sum;
  });
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

uint64_t Reader::Piece::Sum() const {
  uint64_t sum = 0;
  size_t i = 0;
  for (; i + sizeof sum <= bytes; i += sizeof sum) {
    uint64_t word;
    std::memcpy(&word, data + i, sizeof word);
    sum += word;
  }
  for (; i < bytes; ++i) sum += data[i];
  return sum;
}

}  // namespace rmsnorm::bench
