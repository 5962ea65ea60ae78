// SPDX-License-Identifier: Apache-2.0
#include "job.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "plain_loops.h"
#include "threads.h"

namespace rmsnorm::bench {

std::string Job::FindFault() {
  for (size_t i = 0; i < tensors_.copies(); ++i) {
    std::string fault = FindFaultInCopy();
    if (!fault.empty()) return fault;
    tensors_.MoveOn();
  }
  return {};
}

std::vector<Contender> Job::Contenders() {
  std::vector<Contender> contenders = OwnContenders();
  for (const std::unique_ptr<PeerCases>& cases : peers_) {
    const std::string& name = cases->peer().name();
    contenders.push_back(Each(name, [this, peer = cases.get()] { peer->Run(tensors_.copy()); }));
    if (cases->peer().has_threads()) contenders.back().pool = name;
  }
  return contenders;
}

bool Job::AddPeer(const Peer& peer, PeerProblem* problem) {
  *problem = {peer.name(), false, {}};
  if (!DescribeForPeer()) {
    problem->text = "peers do not compute " + cell_.operation;
    return false;
  }
  const std::set<std::string> threads = OtherThreads();
  auto cases = std::make_unique<PeerCases>(
      peer, [this] { return *DescribeForPeer(); }, &tensors_);
  problem->text = cases->refusal();
  if (!problem->text.empty()) return false;
  problem->text = FindFaultInCopies(*cases);
  problem->wrong = !problem->text.empty();
  // A peer that works on OpenMP's threads of this program, or on one, has none to wait for.
  for (const std::string& thread : OtherThreads()) {
    if (threads.count(thread) == 0) peer.FoundThreads();
  }
  if (!problem->wrong) peers_.push_back(std::move(cases));
  return !problem->wrong;
}

std::string Job::FindFaultInCopies(const PeerCases& cases) {
  for (size_t i = 0; i < tensors_.copies(); ++i) {
    std::string fault = FindFaultOfPeer([&] { cases.Run(tensors_.copy()); });
    if (!fault.empty()) return fault;
    tensors_.MoveOn();
  }
  return {};
}

rmsnorm_peer_case Job::CommonPeerCase(int32_t operation) const {
  rmsnorm_peer_case what = {};
  what.operation = operation;
  what.dtype = static_cast<int32_t>(cell_.dtype);
  what.rows = cell_.rows;
  what.d = cell_.d;
  what.threads = cell_.threads;
  what.eps = Options().eps;
  what.x = tensors_.x();
  what.weight = tensors_.weight();
  return what;
}

// The library hands its parts to an executor just as to OpenMP, so one that counts them tells.
void Job::CountParts(const std::function<void(const Context& context)>& call, size_t most) {
  Context context = MakeContext(cell_.target.c_str());
  context.parallel_context = &parts_;
  context.parallel_for = [](void* counter, size_t count, rmsnorm_task task, void* state) {
    size_t& parts = *static_cast<size_t*>(counter);
    parts = std::max(parts, count);
    for (size_t i = 0; i < count; ++i) task(state, i);
  };
  call(context);
  parts_ = std::min(parts_, most);
}

Context Job::MakeContext(const char* target) const {
  Context context;
  context.threads = cell_.threads;
  context.target = target;
  return context;
}

RmsNorm Job::MakeModule(const Context& context) const {
  RmsNorm module(cell_.d, Options(), cell_.dtype, context);
  module.set_weight(tensors_.weight_view());
  return module;
}

void Job::Forward(const RmsNorm& module, size_t rows, const void* x, void* y) const {
  check(rmsnorm_module_forward_rows(module.get(), static_cast<rmsnorm_dtype>(cell_.dtype), rows, x,
                                    y));
}

void Job::SpoilY() { std::memset(tensors_.y(), 0xFF, cell_.bytes()); }

Job::Expect Job::ExpectForward(const RmsNorm& module) const {
  return [this, &module](size_t first_row, size_t rows, uint8_t* y) {
    Forward(module, rows, XFrom(first_row), y);
  };
}

std::string Job::CompareY(const Expect& expect, const Compare& compare) {
  const size_t rows_at_a_time = std::clamp<size_t>((size_t{1} << 20) / cell_.d, 1, cell_.rows);
  Buffer expected(rows_at_a_time * row_bytes());
  for (size_t row = 0; row < cell_.rows; row += rows_at_a_time) {
    const size_t rows = std::min(rows_at_a_time, cell_.rows - row);
    expect(row, rows, expected.data());
    std::string difference = compare(row, rows, tensors_.y() + row * row_bytes(), expected.data());
    if (!difference.empty()) return difference;
  }
  return {};
}

std::string Job::FindDifferenceInY(const Expect& expect) {
  return CompareY(expect, [this](size_t first_row, size_t rows, const uint8_t* actual,
                                 const uint8_t* expected) {
    return FindDifference(first_row, rows, actual, expected);
  });
}

std::string Job::FindDifference(size_t first_row, size_t rows, const uint8_t* actual,
                                const uint8_t* expected) const {
  const size_t bytes = rows * row_bytes();
  if (std::memcmp(actual, expected, bytes) == 0) return {};
  const size_t byte =
      static_cast<size_t>(std::mismatch(actual, actual + bytes, expected).first - actual);
  const size_t element = byte % row_bytes() / (row_bytes() / cell_.d);
  return "row " + std::to_string(first_row + byte / row_bytes()) + ", element " +
         std::to_string(element) + " differs from the reference";
}

Contender Job::Memcpy() {
  const size_t element_bytes = cell_.bytes() / cell_.elements();
  return Each(kMemcpy, [this, element_bytes] {
    ForRangesInParts(cell_.elements(), parts_, [this, element_bytes](size_t begin, size_t end) {
      std::memcpy(tensors_.y() + begin * element_bytes, tensors_.x() + begin * element_bytes,
                  (end - begin) * element_bytes);
    });
  });
}

Contender Job::PlainLoops() {
  return Each(kPlain, [this] {
    ForRangesInParts(cell_.rows, parts_, [this](size_t begin, size_t end) {
      PlainForward(cell_.dtype, tensors_.x() + begin * row_bytes(), tensors_.weight(),
                   tensors_.y() + begin * row_bytes(), end - begin, cell_.d, Options().eps);
    });
  });
}

}  // namespace rmsnorm::bench
