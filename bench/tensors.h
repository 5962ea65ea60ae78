// SPDX-License-Identifier: Apache-2.0
// Operands of calls in memory, and what reads their results.
#ifndef RMSNORM_BENCH_TENSORS_H_
#define RMSNORM_BENCH_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "cases/case.h"
#include "cases/layout.h"
#include "cases/problem.h"
#include "peers/peer.h"

namespace rmsnorm::bench {

// Zeroed memory with all its pages mapped. It starts at a random cache line, so that successive
// buffers do not always have the same alignment.
class Buffer {
 public:
  explicit Buffer(size_t bytes);
  size_t bytes() const { return bytes_; }
  uint8_t* data() { return lines_[first_line_].bytes; }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  size_t bytes_;
  size_t first_line_;
  std::vector<Line> lines_;
};

// Calls with their values and the reference's results.
struct CallValues {
  explicit CallValues(const std::vector<cases::Case>& its_calls);
  const std::vector<cases::Case> calls;
  std::vector<cases::Problem> problems;  // by call
};

// The operands of calls in memory, the same for all contenders.
class Tensors {
 public:
  // The values outlive the tensors.
  explicit Tensors(const CallValues& values);
  Tensors(const Tensors&) = delete;  // views point into it
  Tensors& operator=(const Tensors&) = delete;

  // Writes the inputs, and fills the outputs with NaNs.
  void Reset();

  const CallValues& values() const { return values_; }
  const std::vector<cases::CallOperands>& operands() const { return operands_; }
  // The calls for a plug-in.
  const rmsnorm_peer_case& peer_case() const { return peer_case_; }
  uint8_t* row(size_t call, internal::Operand o, size_t row) const {
    return layouts_[call].RowIn(blocks_[call].data(), o, row);
  }
  void Read(size_t call, internal::Operand o, cases::Rows& rows) const {
    layouts_[call].Read(blocks_[call].data(), o, rows);
  }

 private:
  const CallValues& values_;
  std::vector<cases::Layout> layouts_;
  std::deque<Buffer> buffers_;
  std::vector<std::vector<uint8_t*>> blocks_;  // of each call, by operand
  std::vector<cases::CallOperands> operands_;
  std::deque<rmsnorm_operands> peer_operands_;
  std::vector<rmsnorm_call> peer_calls_;
  rmsnorm_peer_case peer_case_ = {};
};

// Reads results, as the next operation of a program would. This takes longer where the caches do
// not hold them.
class Reader {
 public:
  Reader(const uint8_t* data, size_t bytes) { Add(data, bytes); }
  // Reads the rows that calls write. The tensors outlive the reader.
  explicit Reader(const Tensors& tensors);

  // Shares the bytes among the threads. Returns the sum of all words of 64 bits, and of the single
  // bytes after the last one of a piece: without a result a compiler could leave out the loads.
  uint64_t Read(size_t threads) const;

 private:
  // Neighbouring bytes, up to a page.
  struct Piece {
    const uint8_t* data;
    size_t bytes;
    uint64_t Sum() const;
  };
  void Add(const uint8_t* data, size_t bytes);

  std::vector<Piece> pieces_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_TENSORS_H_
