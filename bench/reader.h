// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_BENCH_READER_H_
#define RMSNORM_BENCH_READER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensors.h"

namespace rmsnorm::bench {

// Reads results as the next operation of a program would, which takes longer if they are not in the
// caches.
class Reader {
 public:
  // Reads `bytes` bytes.
  Reader(const uint8_t* data, size_t bytes);
  // Reads the rows that calls write. The tensors outlive the reader.
  explicit Reader(const Tensors& tensors);

  // Shares the bytes among the threads. Returns the sum of all words of 64 bits, and of the single
  // bytes after the last whole one; without a result a compiler could leave out the loads.
  uint64_t Read(size_t threads) const;

 private:
  struct Span {
    const uint8_t* data;
    size_t bytes;
  };
  void Add(const uint8_t* data, size_t bytes);
  uint64_t SumBetween(size_t begin, size_t end) const;

  std::vector<Span> spans_;
  size_t bytes_ = 0;  // of all spans
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_READER_H_
