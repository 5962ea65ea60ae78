// SPDX-License-Identifier: Apache-2.0
#include "forward_job.h"

#include <set>

#include "threads.h"
#include "tolerance.h"

namespace rmsnorm::bench {

ForwardJob::ForwardJob(const Cell& cell)
    : Job(cell), library_(MakeModule(cell_.target.c_str())), reference_(MakeModule("reference")) {
  CountParts([this](const Options& options) {
    forward(tensors_.x_view(), nullptr, tensors_.y_view(), options);
  });
}

std::vector<Contender> ForwardJob::Contenders() {
  std::vector<Contender> contenders = {
      Each(kLibrary, [this] { library_.forward(tensors_.x_view(), tensors_.y_view()); }),
      Memcpy(),
      Each(kReference, [this] { reference_.forward(tensors_.x_view(), tensors_.y_view()); }),
      PlainLoops(),
  };
  for (const std::unique_ptr<PeerCases>& cases : peers_) {
    const std::string& name = cases->peer().name();
    contenders.push_back(Each(name, [this, peer = cases.get()] { peer->Run(tensors_.copy()); }));
    if (cases->peer().has_threads()) contenders.back().pool = name;
  }
  return contenders;
}

std::string ForwardJob::FindFaultInCopy() {
  SpoilY();
  library_.forward(tensors_.x_view(), tensors_.y_view());
  return FindDifferenceInY([this](const ConstView& x, size_t /*first_row*/, const View& y) {
    reference_.forward(x, y);
  });
}

bool ForwardJob::AddPeer(const Peer& peer, PeerProblem* problem) {
  *problem = {peer.name(), false, {}};
  const std::set<std::string> threads = OtherThreads();
  auto cases = std::make_unique<PeerCases>(peer, cell_, &tensors_);
  problem->text = cases->refusal();
  if (!problem->text.empty()) return false;
  problem->text = FindFaultOfPeer(*cases);
  problem->wrong = !problem->text.empty();
  // A peer that works on OpenMP's threads of this program, or on one, has none to wait for.
  for (const std::string& thread : OtherThreads()) {
    if (threads.count(thread) == 0) peer.FoundThreads();
  }
  if (!problem->wrong) peers_.push_back(std::move(cases));
  return !problem->wrong;
}

std::string ForwardJob::FindFaultOfPeer(const PeerCases& cases) {
  for (size_t i = 0; i < tensors_.copies(); ++i) {
    SpoilY();
    cases.Run(tensors_.copy());
    std::string fault = CompareY(
        [this](const ConstView& x, size_t /*first_row*/, const View& y) {
          reference_.forward(x, y);
        },
        [this](size_t first_row, size_t rows, const uint8_t* actual, const uint8_t* expected) {
          return FindElementBeyondTolerance(cell_.dtype, first_row, rows, cell_.d, actual,
                                            expected);
        });
    if (!fault.empty()) return fault;
    tensors_.MoveOn();
  }
  return {};
}

ForwardCallJob::ForwardCallJob(const Cell& cell)
    : Job(cell),
      library_(LibraryOptions(cell_.target.c_str())),
      reference_(LibraryOptions("reference")) {
  CountParts([this](const Options& options) {
    forward(tensors_.x_view(), tensors_.weight_view(), tensors_.y_view(), options);
  });
}

std::vector<Contender> ForwardCallJob::Contenders() {
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
