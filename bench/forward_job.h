// SPDX-License-Identifier: Apache-2.0
// Forward RMSNorm and what it is compared with, on the same buffers and threads.
#ifndef RMSNORM_BENCH_FORWARD_JOB_H_
#define RMSNORM_BENCH_FORWARD_JOB_H_

#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "buffer.h"
#include "cell.h"

namespace rmsnorm::bench {

class ForwardJob {
 public:
  // Makes the inputs and the modules. Throws rmsnorm::Error if the library refuses the cell.
  explicit ForwardJob(const Cell& cell);
  ForwardJob(const ForwardJob&) = delete;  // the views point into the buffers
  ForwardJob& operator=(const ForwardJob&) = delete;

  // Runs the library and compares every bit with the reference's. Says where they first differ;
  // empty where they do not.
  std::string FindDifference();

  // Each normalises all of x into y, or copies it there.
  void RunLibrary() { library_.forward(x_view_, y_view_); }
  void RunReference() { reference_.forward(x_view_, y_view_); }
  void RunPlainLoops();
  void RunMemcpy();

  // How many threads share the work: the library keeps small work on one.
  size_t parts() const { return parts_; }

  const uint8_t* x() const { return x_.data(); }
  const uint8_t* y() const { return y_.data(); }

 private:
  RmsNorm MakeModule(const char* target);
  size_t CountParts();

  const Cell cell_;
  const size_t row_bytes_;
  Buffer x_;
  Buffer weight_;
  Buffer y_;
  const ConstView x_view_;
  const View y_view_;
  const RmsNorm library_;
  const RmsNorm reference_;
  const size_t parts_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_FORWARD_JOB_H_
