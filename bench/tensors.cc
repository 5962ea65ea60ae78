// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <cstring>

namespace rmsnorm::bench {

using cases::Case;
using internal::Operand;

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
    peer_operands_.push_back(operands_[i].Get());
    peer_calls_.push_back({nullptr, nullptr, &values.calls[i].options});
  }
  for (size_t i = 0; i < operands_.size(); ++i) peer_calls_[i].operands = &peer_operands_[i];
  peer_case_ = {peer_calls_.data(), peer_calls_.size(), 0, 1};
  for (const Case& c : values.calls) {
    peer_case_.backward = c.backward;
    peer_case_.threads = c.threads;
  }
}

void Tensors::Reset() {
  for (size_t i = 0; i < values_.calls.size(); ++i) {
    const Case& c = values_.calls[i];
    for (int o = 0; o < internal::kOperands; ++o) {
      const size_t bytes = layouts_[i].block[o].bytes;
      if (bytes != 0) std::memset(blocks_[i][static_cast<size_t>(o)], 0xFF, bytes);
    }
    internal::ForEachOperand(c.Given(), [&](Operand o) {
      const cases::Rows& rows = values_.problems[i].before(o);
      for (size_t row = 0; row < rows.count(); ++row) {
        std::memcpy(RowAt(i, o, row), rows.row(row), rows.row_bytes());
      }
    });
  }
}

uint8_t* Tensors::RowAt(size_t call, Operand o, size_t row) const {
  const cases::Layout::Place& place = layouts_[call].place[o];
  return blocks_[call][static_cast<size_t>(place.block)] + place.first + place.offset[row];
}

}  // namespace rmsnorm::bench
