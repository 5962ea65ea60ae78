// SPDX-License-Identifier: Apache-2.0
#include "add_forward_job.h"

#include "plain_loops.h"
#include "tolerance.h"

namespace rmsnorm::bench {

AddForwardJob::AddForwardJob(const Cell& cell)
    : Job(cell, /*has_third=*/true),
      library_(MakeModule(cell_.target.c_str())),
      reference_(MakeModule("reference")) {
  CountParts([this](const Options& options) {
    add_forward(tensors_.x_view(), tensors_.third_view(), nullptr, tensors_.third_view(),
                tensors_.y_view(), options);
  });
}

void AddForwardJob::Run(const RmsNorm& module) {
  module.add_forward(tensors_.x_view(), tensors_.third_view(), tensors_.third_view(),
                     tensors_.y_view());
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
      [&](const ConstView& x, size_t first_row, const View& y) {
        const View rows(residual.data() + first_row * row_bytes(), cell_.dtype,
                        {x.get()->shape[0], cell_.d});
        reference_.add_forward(x, rows, rows, y);
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
