// SPDX-License-Identifier: Apache-2.0
#include "case.h"

#include <algorithm>
#include <cstring>

#include "compare.h"
#include "parallel.h"
#include "threads.h"

namespace rmsnorm::bench {
namespace {

// A small cell is timed in many places in memory, one after another: in some places, 1 x 4096 in
// f32 takes half as long again, round after round. Larger cells (by the bytes of x) cover many
// places anyway.
constexpr size_t kPlaces = 32;
constexpr size_t kMaxBytesInPlaces = 512 * 1024;

}  // namespace

Case::Case(const Cell& cell, const Contenders& contenders) : cell_(cell), contenders_(contenders) {
  for (size_t i = 0; i < (cell.bytes() <= kMaxBytesInPlaces ? kPlaces : 1); ++i) {
    places_.push_back(std::make_unique<Place>(cell_));
    Prepare(*places_.back());
  }
  Place& first = *places_.front();
  parts_ = CountParts(Describe(cell_, first.inputs, first.results), cell_.target.c_str());
}

void Case::Prepare(Place& place) {
  Results bits(cell_);  // the expected results
  bits.Reset(place.inputs);
  const rmsnorm_peer_case exact = Describe(cell_, place.inputs, bits);
  Library()->Prepare(exact, "reference").Run();
  Results layer_norm(cell_);
  const bool is_layer_norm = exact.operation == RMSNORM_PEER_LAYERNORM;
  const rmsnorm_peer_case near = is_layer_norm ? Describe(cell_, place.inputs, layer_norm) : exact;
  if (is_layer_norm) LayerNorm(near);

  const rmsnorm_peer_case what = Describe(cell_, place.inputs, place.results);
  for (const std::unique_ptr<Contender>& contender : contenders_) {
    std::unique_ptr<Prepared>& prepared = place.prepared.emplace_back();
    if (!contender->Joins(what) || HasProblem(contender->name())) continue;
    const std::set<std::string> threads = OtherThreads();
    place.results.Reset(place.inputs);
    try {
      prepared = std::make_unique<Prepared>(contender->Prepare(what, cell_.target.c_str()));
      prepared->Run();
    } catch (const Refusal& refusal) {
      if (contender == contenders_.front()) throw;
      problems_.push_back({contender->name(), false, refusal.what()});
      continue;
    }
    // New threads belong to the contender. The library needs no wait: it uses this program's OpenMP
    // threads.
    for (const std::string& thread : OtherThreads()) {
      if (threads.count(thread) == 0 && !contender->has_exact_bits()) {
        with_threads_.insert(contender->name());
      }
    }
    const std::string fault =
        contender->has_exact_bits() ? FindDifference(what, exact) : FindBeyondTolerance(what, near);
    if (!fault.empty()) problems_.push_back({contender->name(), true, fault});
  }
}

bool Case::HasProblem(const std::string& name) const {
  return std::any_of(problems_.begin(), problems_.end(),
                     [&](const Problem& problem) { return problem.name == name; });
}

void Case::Memcpy(size_t times) {
  Place& place = *places_[place_];
  const uint8_t* const x = place.inputs.x.data();
  uint8_t* const y = place.results.y.data();
  const size_t size = cell_.element_bytes();
  for (size_t i = 0; i < times; ++i) {
    ForRangesInParts(cell_.elements(), parts_, [=](size_t begin, size_t end) {
      std::memcpy(y + begin * size, x + begin * size, (end - begin) * size);
    });
  }
}

std::vector<Turn> Case::Turns() {
  std::vector<Turn> turns;
  for (size_t i = 0; i < contenders_.size(); ++i) {
    const std::string& name = contenders_[i]->name();
    if (places_.front()->prepared[i] == nullptr || HasProblem(name)) continue;
    const auto repeat = [this, i](size_t times) {
      const Prepared& prepared = *places_[place_]->prepared[i];
      for (size_t time = 0; time < times; ++time) prepared.Run();
    };
    // OpenMP's threads wait for work, awake, for a while after a call, which must not slow down the
    // call on one thread.
    const bool is_apart_from_openmp = with_threads_.count(name) != 0 || name == kOneThread;
    turns.push_back({name, repeat, is_apart_from_openmp ? name : ""});
    if (i == 0) turns.push_back({kMemcpy, [this](size_t times) { Memcpy(times); }});
  }
  return turns;
}

}  // namespace rmsnorm::bench
