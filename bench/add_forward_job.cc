// SPDX-License-Identifier: Apache-2.0
#include "add_forward_job.h"

#include "plain_loops.h"
#include "tolerance.h"

namespace rmsnorm::bench {

AddForwardJob::AddForwardJob(const Cell& cell)
    : Job(cell, /*has_third=*/true),
      library_(MakeModule(MakeContext(cell_.target.c_str()))),
      reference_(MakeModule(MakeContext("reference"))) {
  CountParts([this](const Context& context) { Run(MakeModule(context)); });
}

void AddForwardJob::AddForward(const RmsNorm& module, size_t rows, const void* x, void* residual,
                               void* y) const {
  check(rmsnorm_module_add_forward_rows(module.get(), static_cast<rmsnorm_dtype>(cell_.dtype), rows,
                                        x, residual, residual, y));
}

void AddForwardJob::Run(const RmsNorm& module) {
  AddForward(module, cell_.rows, tensors_.x(), tensors_.third(), tensors_.y());
}

std::vector<Contender> AddForwardJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { Run(library_); }),
      Memcpy(),
      Each(kReference, [this] { Run(reference_); }),
      Each(kPlain,
           [this] {
             ForRangesInParts(cell_.rows, parts(), [this](size_t begin, size_t end) {
               const size_t offset = begin * row_bytes();
               PlainAddForward(cell_.dtype, tensors_.x() + offset, tensors_.third() + offset,
                               tensors_.weight(), tensors_.y() + offset, end - begin, cell_.d,
                               Options().eps);
             });
           }),
  };
}

std::string AddForwardJob::FindFaultOf(const std::function<void()>& run, const Compare& compare_y,
                                       const Compare& compare_residual) {
  std::vector<uint8_t> residual(tensors_.third(), tensors_.third() + cell_.bytes());
  SpoilY();
  run();
  std::string fault = CompareY(
      [&](size_t first_row, size_t rows, uint8_t* y) {
        AddForward(reference_, rows, XFrom(first_row), residual.data() + first_row * row_bytes(),
                   y);
      },
      compare_y);
  if (!fault.empty()) return fault;
  fault = compare_residual(0, cell_.rows, tensors_.third(), residual.data());
  return fault.empty() ? fault : "residual: " + fault;
}

std::string AddForwardJob::FindFaultInCopy() {
  const Compare compare = [this](size_t first_row, size_t rows, const uint8_t* actual,
                                 const uint8_t* expected) {
    return FindDifference(first_row, rows, actual, expected);
  };
  return FindFaultOf([this] { Run(library_); }, compare, compare);
}

std::optional<rmsnorm_peer_case> AddForwardJob::DescribeForPeer() {
  rmsnorm_peer_case what = CommonPeerCase(RMSNORM_PEER_ADD_FORWARD);
  what.residual = tensors_.third();
  what.y = tensors_.y();
  return what;
}

std::string AddForwardJob::FindFaultOfPeer(const std::function<void()>& run) {
  const auto within = [this](auto find) -> Compare {
    return [this, find](size_t first_row, size_t rows, const uint8_t* actual,
                        const uint8_t* expected) {
      return find(cell_.dtype, first_row, rows, cell_.d, actual, expected);
    };
  };
  return FindFaultOf(run, within(FindElementBeyondAddTolerance),
                     within(FindElementBeyondSumTolerance));
}

}  // namespace rmsnorm::bench
