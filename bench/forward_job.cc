// SPDX-License-Identifier: Apache-2.0
#include "forward_job.h"

#include "tolerance.h"

namespace rmsnorm::bench {

ForwardJob::ForwardJob(const Cell& cell)
    : Job(cell), library_(MakeModule(cell_.target.c_str())), reference_(MakeModule("reference")) {
  CountParts([this](const Options& options) {
    forward(tensors_.x_view(), nullptr, tensors_.y_view(), options);
  });
}

std::vector<Contender> ForwardJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { library_.forward(tensors_.x_view(), tensors_.y_view()); }),
      Memcpy(),
      Each(kReference, [this] { reference_.forward(tensors_.x_view(), tensors_.y_view()); }),
      PlainLoops(),
  };
}

std::string ForwardJob::FindFaultInCopy() {
  SpoilY();
  library_.forward(tensors_.x_view(), tensors_.y_view());
  return FindDifferenceInY([this](const ConstView& x, size_t /*first_row*/, const View& y) {
    reference_.forward(x, y);
  });
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
      [this](const ConstView& x, size_t /*first_row*/, const View& y) { reference_.forward(x, y); },
      [this](size_t first_row, size_t rows, const uint8_t* actual, const uint8_t* expected) {
        return FindElementBeyondTolerance(cell_.dtype, first_row, rows, cell_.d, actual, expected);
      });
}

ForwardCallJob::ForwardCallJob(const Cell& cell)
    : Job(cell),
      library_(LibraryOptions(cell_.target.c_str())),
      reference_(LibraryOptions("reference")) {
  CountParts([this](const Options& options) {
    forward(tensors_.x_view(), tensors_.weight_view(), tensors_.y_view(), options);
  });
}

std::vector<Contender> ForwardCallJob::OwnContenders() {
  const auto run_with = [this](const Options& options) {
    return [this, &options] {
      forward(tensors_.x_view(), tensors_.weight_view(), tensors_.y_view(), options);
    };
  };
  return {Each(kLibrary, run_with(library_)), Memcpy(), Each(kReference, run_with(reference_)),
          PlainLoops()};
}

std::string ForwardCallJob::FindFaultInCopy() {
  SpoilY();
  forward(tensors_.x_view(), tensors_.weight_view(), tensors_.y_view(), library_);
  return FindDifferenceInY([this](const ConstView& x, size_t /*first_row*/, const View& y) {
    forward(x, tensors_.weight_view(), y, reference_);
  });
}

}  // namespace rmsnorm::bench
