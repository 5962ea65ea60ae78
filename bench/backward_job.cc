// SPDX-License-Identifier: Apache-2.0
#include "backward_job.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "plain_loops.h"
#include "tolerance.h"

namespace rmsnorm::bench {

BackwardJob::BackwardJob(const Cell& cell)
    : Job(cell, /*has_third=*/true),
      library_(MakeModule(MakeContext(cell_.target.c_str()))),
      reference_(MakeModule(MakeContext("reference"))),
      rstd_(tensors_.copies() * cell.rows),
      dw_(cell.d) {
  for (size_t i = 0; i < tensors_.copies(); ++i) {
    ForwardOperands operands;
    operands.x = Rows(XFrom(0), cell.rows);
    operands.rstd = View(rstd_.data() + tensors_.copy() * cell.rows, cell.rows);
    reference_.forward(operands);
    tensors_.MoveOn();
  }
  SpoilGradients();
  CountParts([this](const Context& context) { Run(MakeModule(context)); });
  sums_.resize((parts() - 1) * cell.d);
}

void BackwardJob::Backward(const RmsNorm& module, size_t first_row, size_t rows, uint8_t* dx,
                           float* dw) const {
  const uint8_t* const dy = tensors_.third() + first_row * row_bytes();
  const float* const row_rstd = rstd() + first_row;
  if (cell_.dtype == Dtype::f32) {
    check(rmsnorm_module_backward_rows(module.get(), RMSNORM_F32, rows, dy, XFrom(first_row),
                                       row_rstd, dx, dw));
    return;
  }
  BackwardOperands operands;
  operands.dy = Rows(dy, rows);
  operands.x = Rows(XFrom(first_row), rows);
  operands.rstd = ConstView(row_rstd, rows);
  if (dx != nullptr) operands.dx = Rows(dx, rows);
  if (dw != nullptr) operands.dw = View(dw, cell_.d);
  module.backward(operands);
}

void BackwardJob::RunPlainLoops() {
  ForRangesInParts(parts(), parts(), [this](size_t part, size_t /*end*/) {
    const size_t begin = cell_.rows * part / parts();
    const size_t end = cell_.rows * (part + 1) / parts();
    const size_t offset = begin * row_bytes();
    PlainBackward(cell_.dtype, tensors_.third() + offset, tensors_.x() + offset, tensors_.weight(),
                  rstd() + begin, tensors_.y() + offset,
                  part == 0 ? dw_.data() : sums_.data() + (part - 1) * cell_.d, end - begin,
                  cell_.d);
  });
  PlainAddSums(sums_.data(), parts() - 1, dw_.data(), cell_.d);
}

std::vector<Contender> BackwardJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { Run(library_); }),
      Memcpy(),
      Each(kReference, [this] { Run(reference_); }),
      Each(kPlain, [this] { RunPlainLoops(); }),
  };
}

void BackwardJob::SpoilGradients() {
  SpoilY();
  std::fill(dw_.begin(), dw_.end(), std::numeric_limits<float>::quiet_NaN());
}

Job::Expect BackwardJob::ExpectDx() const {
  return [this](size_t first_row, size_t rows, uint8_t* dx) {
    Backward(reference_, first_row, rows, dx, nullptr);
  };
}

// Which rows add up with which depends on how many there are, so it takes all of them at once.
std::vector<float> BackwardJob::ExpectedDw() const {
  std::vector<float> expected(cell_.d);
  Backward(reference_, 0, cell_.rows, nullptr, expected.data());
  return expected;
}

std::string BackwardJob::FindFaultInCopy() {
  SpoilGradients();
  Run(library_);
  std::string fault = FindDifferenceInY(ExpectDx());
  if (!fault.empty()) return fault;
  const std::vector<float> expected = ExpectedDw();
  for (size_t j = 0; j < cell_.d; ++j) {
    if (std::memcmp(&dw_[j], &expected[j], sizeof(float)) != 0) {
      return "dw: element " + std::to_string(j) + " differs from the reference";
    }
  }
  return {};
}

std::optional<rmsnorm_peer_case> BackwardJob::DescribeForPeer() {
  rmsnorm_peer_case what = CommonPeerCase(RMSNORM_PEER_BACKWARD);
  what.dy = tensors_.third();
  what.rstd = rstd();
  what.dx = tensors_.y();
  what.dw = dw_.data();
  return what;
}

std::string BackwardJob::FindFaultOfPeer(const std::function<void()>& run) {
  SpoilGradients();
  run();
  GradientTolerance tolerance(cell_.dtype, cell_.rows, cell_.d, tensors_.weight());
  std::string fault = CompareY(ExpectDx(), [&](size_t first_row, size_t rows, const uint8_t* actual,
                                               const uint8_t* expected) {
    const size_t offset = first_row * row_bytes();
    return tolerance.FindDxBeyond(first_row, rows, tensors_.third() + offset, tensors_.x() + offset,
                                  rstd() + first_row, actual, expected);
  });
  if (!fault.empty()) return fault;
  return tolerance.FindDwBeyond(dw_.data(), ExpectedDw().data());
}

}  // namespace rmsnorm::bench
