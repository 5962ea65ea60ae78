// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "../lib/cache.h"
#include "plain_loops.h"

namespace rmsnorm::bench {
namespace {

size_t CopyBytes(const Cell& cell) { return (cell.bytes() + 63) / 64 * 64; }

size_t CountCopies(const Cell& cell) {
  if (!cell.cold) return 1;
  constexpr size_t kMostBytes = size_t{1} << 30;
  const size_t copy_bytes = 2 * CopyBytes(cell);  // of x and y
  const size_t copies = 2 * internal::LastLevelCache() / copy_bytes + 1;
  return std::clamp<size_t>(copies, 1, std::max<size_t>(kMostBytes / copy_bytes, 1));
}

// The golden section of a number of copies, or the next number below it that visits all of them.
size_t FindStep(size_t copies) {
  size_t step = std::max<size_t>(copies * 618 / 1000, 1);
  while (std::gcd(step, copies) != 1) --step;
  return step;
}

}  // namespace

// Drawing a number takes longer than normalising it, so that after a prime number of them they
// repeat: no two rows next to each other are the same.
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

Tensors::Tensors(const Cell& cell, bool has_third)
    : cell_(cell),
      copies_(CountCopies(cell)),
      step_(FindStep(copies_)),
      copy_bytes_(CopyBytes(cell)),
      x_(NormalNumbers(cell.dtype, elements_of_copies(), 0.0f, 1.0f)),
      weight_(NormalNumbers(cell.dtype, cell.d, 1.0f, 0.25f)),
      y_(copies_ * copy_bytes_),
      third_(has_third ? NormalNumbers(cell.dtype, elements_of_copies(), 0.25f, 0.5f) : Buffer(0)) {
}

void Tensors::MoveOn() {
  copy_ += step_;
  if (copy_ >= copies_) copy_ -= copies_;
}

}  // namespace rmsnorm::bench
