// SPDX-License-Identifier: Apache-2.0
// The buffers that all contenders of a cell share.
#ifndef RMSNORM_BENCH_TENSORS_H_
#define RMSNORM_BENCH_TENSORS_H_

#include <rmsnorm/rmsnorm.hpp>

#include "buffer.h"
#include "cell.h"

namespace rmsnorm::bench {

// Normal numbers of a type.
Buffer NormalNumbers(Dtype dtype, size_t count, float mean, float deviation);

// x, the weight and y of a cell. In a cold one there are several copies of x and y, as many as
// exceed twice the last-level cache together (but 1 GiB at the most, or one copy), and one weight:
// memcpy, the yardstick, has no more to read than x. The copies are visited in steps of about 0.62
// of their number, so that no prefetcher runs ahead into the next.
//
// Some operations have a third tensor in each copy: a residual, or the gradient dy. Its numbers are
// 0.25 + x / 2, rounded. So it neither looks like x nor is it independent of x, and gradients have
// no term that is small by chance: a result that lacks one is far off.
class Tensors {
 public:
  explicit Tensors(const Cell& cell, bool has_third = false);
  size_t copies() const { return copies_; }
  size_t copy() const { return copy_; }  // the current one
  // Goes on to another copy. After copies() times all have had their turn.
  void MoveOn();

  // Of the current copy.
  const uint8_t* x() const { return x_.data() + copy_ * copy_bytes_; }
  uint8_t* y() { return y_.data() + copy_ * copy_bytes_; }
  const uint8_t* y() const { return y_.data() + copy_ * copy_bytes_; }
  // Where there is one.
  uint8_t* third() { return third_.data() + copy_ * copy_bytes_; }
  const uint8_t* third() const { return third_.data() + copy_ * copy_bytes_; }

  const uint8_t* weight() const { return weight_.data(); }
  ConstView weight_view() const { return {weight_.data(), cell_.dtype, {cell_.d}}; }

 private:
  size_t elements_of_copies() const {
    return copies_ * copy_bytes_ / (cell_.bytes() / cell_.elements());
  }

  const Cell cell_;
  const size_t copies_;
  const size_t step_;
  const size_t copy_bytes_;  // from one copy to the next, in whole cache lines
  Buffer x_;
  Buffer weight_;
  Buffer y_;
  Buffer third_;
  size_t copy_ = 0;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_TENSORS_H_
