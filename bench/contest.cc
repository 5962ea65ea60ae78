// SPDX-License-Identifier: Apache-2.0
#include "contest.h"

#include <algorithm>
#include <cstring>

#include "bounds.h"
#include "threads.h"

namespace rmsnorm::bench {
namespace {

// A small cell is timed in many places in memory, one after another: in some places, 1 x 4096 in
// f32 takes half as long again, round after round. Larger cells (by the bytes of x) cover many
// places anyway.
constexpr size_t kPlaces = 32;
constexpr size_t kMaxBytesInPlaces = 512 * 1024;

}  // namespace

Contest::Contest(const Cell& cell, const Contenders& contenders)
    : cell_(cell), contenders_(contenders), calls_(cell.calls), apart_(cell.apart) {
  const size_t bytes = cell_.x_bytes();
  for (size_t i = 0; i < (bytes <= kMaxBytesInPlaces ? kPlaces : 1); ++i) {
    places_.push_back(std::make_unique<Place>(calls_, apart_, bytes));
    Prepare(*places_.back());
  }
  parts_ = CountParts(places_.front()->tensors.peer_case(), cell_.target.c_str());
}

void Contest::Prepare(Place& place) {
  for (const std::unique_ptr<Contender>& contender : contenders_) {
    std::unique_ptr<Prepared>& prepared = place.prepared.emplace_back();
    const std::string& name = contender->name();
    const bool has_exact_bits = contender->kind() != Kind::kOther;
    Tensors& tensors = contender->kind() == Kind::kApart ? place.apart : place.tensors;
    if (tensors.operands().empty() || IsUntimed(name)) continue;
    const std::set<std::string> threads = OtherThreads();
    tensors.Reset();
    try {
      if (!has_exact_bits && !std::all_of(cell_.calls.begin(), cell_.calls.end(), HasBounds)) {
        throw Refusal("there is no bound for its error");
      }
      prepared = std::make_unique<Prepared>(contender->Prepare(tensors, cell_.target.c_str()));
      prepared->Run();
    } catch (const Refusal& refusal) {
      if (contender == contenders_.front()) throw;
      untimed_.push_back({name, false, refusal.what()});
      continue;
    }
    // New threads belong to the contender. The library and the plain loops need no wait: they use
    // this program's OpenMP threads.
    for (const std::string& thread : OtherThreads()) {
      if (threads.count(thread) == 0 && !has_exact_bits && name != kPlain) {
        with_threads_.insert(name);
      }
    }
    const std::string fault = has_exact_bits ? FindDifference(tensors) : FindBeyondBounds(tensors);
    if (!fault.empty()) untimed_.push_back({name, true, fault});
  }
}

bool Contest::IsUntimed(const std::string& name) const {
  return std::any_of(untimed_.begin(), untimed_.end(),
                     [&](const Untimed& one) { return one.name == name; });
}

void Contest::Memcpy() const {
  Place& place = *places_[place_];
  const size_t bytes = place.from.bytes();
  const uint8_t* const from = place.from.data();
  uint8_t* const to = place.to.data();
  const size_t parts = std::clamp<size_t>(bytes, 1, parts_);
  if (parts == 1) {
    std::memcpy(to, from, bytes);
    return;
  }
  RunOnThreads(parts, [&](size_t part) {
    const size_t begin = bytes * part / parts;
    std::memcpy(to + begin, from + begin, bytes * (part + 1) / parts - begin);
  });
}

std::vector<Turn> Contest::Turns() {
  std::vector<Turn> turns;
  for (size_t i = 0; i < contenders_.size(); ++i) {
    const std::string& name = contenders_[i]->name();
    if (places_.front()->prepared[i] == nullptr || IsUntimed(name)) continue;
    const bool is_apart = contenders_[i]->kind() == Kind::kApart;
    const auto repeat = [this, i, is_apart](size_t times) {
      const Place& place = *places_[place_];
      const Prepared& prepared = *place.prepared[i];
      const Reader* const reader = !cell_.reads ? nullptr
                                   : is_apart   ? &place.apart_reader
                                                : &place.reader;
      for (size_t time = 0; time < times; ++time) {
        prepared.Run();
        if (reader != nullptr) sum_ += reader->Read(parts_);
      }
    };
    // OpenMP's threads wait for work, awake, for a while after a call.
    turns.push_back({name, repeat, with_threads_.count(name) != 0 ? name : ""});
    if (i > 0) continue;
    turns.push_back({kMemcpy, [this](size_t times) {
                       for (size_t time = 0; time < times; ++time) {
                         Memcpy();
                         if (cell_.reads) sum_ += places_[place_]->to_reader.Read(parts_);
                       }
                     }});
  }
  return turns;
}

}  // namespace rmsnorm::bench
