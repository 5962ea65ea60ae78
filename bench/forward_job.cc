// SPDX-License-Identifier: Apache-2.0
#include "forward_job.h"

#include "tolerance.h"

namespace rmsnorm::bench {

ForwardJob::ForwardJob(const Cell& cell)
    : Job(cell),
      library_(MakeModule(MakeContext(cell_.target.c_str()))),
      reference_(MakeModule(MakeContext("reference"))) {
  CountParts([this](const Context& context) { Run(MakeModule(context)); });
}

void ForwardJob::Run(const RmsNorm& module) {
  Forward(module, cell_.rows, tensors_.x(), tensors_.y());
}

std::vector<Contender> ForwardJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { Run(library_); }),
      Memcpy(),
      Each(kReference, [this] { Run(reference_); }),
      PlainLoops(),
  };
}

std::string ForwardJob::FindFaultInCopy() {
  SpoilY();
  Run(library_);
  return FindDifferenceInY(ExpectForward(reference_));
}

std::optional<rmsnorm_peer_case> ForwardJob::DescribeForPeer() {
  rmsnorm_peer_case what = CommonPeerCase(RMSNORM_PEER_FORWARD);
  what.y = tensors_.y();
  return what;
}

std::string ForwardJob::FindFaultOfPeer(const std::function<void()>& run) {
  SpoilY();
  run();
  return CompareY(
      ExpectForward(reference_),
      [this](size_t first_row, size_t rows, const uint8_t* actual, const uint8_t* expected) {
        return FindElementBeyondTolerance(cell_.dtype, first_row, rows, cell_.d, actual, expected);
      });
}

ForwardCallJob::ForwardCallJob(const Cell& cell)
    : Job(cell), library_(MakeContext(cell_.target.c_str())), reference_(MakeContext("reference")) {
  CountParts([this](const Context& context) { Run(context); });
}

void ForwardCallJob::Call(size_t first_row, size_t rows, uint8_t* y, const Context& context) const {
  ForwardOperands operands;
  operands.x = Rows(XFrom(first_row), rows);
  operands.weight = tensors_.weight_view();
  operands.y = Rows(y, rows);
  forward(operands, Options(), context);
}

std::vector<Contender> ForwardCallJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { Run(library_); }),
      Memcpy(),
      Each(kReference, [this] { Run(reference_); }),
      PlainLoops(),
  };
}

std::string ForwardCallJob::FindFaultInCopy() {
  SpoilY();
  Run(library_);
  return FindDifferenceInY(
      [this](size_t first_row, size_t rows, uint8_t* y) { Call(first_row, rows, y, reference_); });
}

}  // namespace rmsnorm::bench
