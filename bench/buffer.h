// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_BENCH_BUFFER_H_
#define RMSNORM_BENCH_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace rmsnorm::bench {

// Zeroed memory with all its pages mapped. It starts at a random cache line, so that successive
// buffers do not always have the same alignment.
class Buffer {
 public:
  explicit Buffer(size_t bytes)
      : bytes_(bytes), first_line_(RandomLine()), lines_(first_line_ + bytes / sizeof(Line) + 1) {}
  size_t bytes() const { return bytes_; }
  uint8_t* data() { return lines_[first_line_].bytes; }
  const uint8_t* data() const { return lines_[first_line_].bytes; }

 private:
  static size_t RandomLine() {
    static std::mt19937 random;
    return random() % 1024;
  }

  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  size_t bytes_;
  size_t first_line_;
  std::vector<Line> lines_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_BUFFER_H_
