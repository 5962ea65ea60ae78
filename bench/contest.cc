// SPDX-License-Identifier: Apache-2.0
#include "contest.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cases/expected.h"
#include "threads.h"

namespace rmsnorm::bench {

using cases::Case;
using internal::Operand;

namespace {

// A small cell is timed in many places in memory, one after another: in some places, 1 x 4096 in
// f32 takes half as long again, round after round. Larger cells (by the bytes of x) cover many
// places anyway.
constexpr size_t kPlaces = 32;
constexpr size_t kMaxBytesInPlaces = 512 * 1024;

// Whether the bounds of other contenders hold: for ordinary rows.
bool HasBounds(const Case& c) {
  return std::all_of(std::begin(c.operand), std::end(c.operand), [](const auto& operand) {
    return operand.values == cases::Values::kNormal || operand.values == cases::Values::kPositive;
  });
}

// A result's name, with the number of its call where there are several.
std::string NameOf(const Tensors& tensors, size_t call, Operand o) {
  const bool is_one = tensors.values().calls.size() == 1;
  return (is_one ? "" : "calls[" + std::to_string(call) + "].") + internal::kOperandRules[o].name;
}

// For the library: names the first element that has not the reference's bits, or is empty.
std::string FindDifference(const Tensors& tensors) {
  std::string fault;
  for (size_t call = 0; call < tensors.values().calls.size(); ++call) {
    const Case& c = tensors.values().calls[call];
    internal::ForEachOperand(c.Given(), [&](Operand o) {
      if (!c.IsOutput(o) || !fault.empty()) return;
      const cases::Rows& wanted = tensors.values().problems[call].after(o);
      cases::Rows got(wanted.dtype(), wanted.count(), wanted.d());
      for (size_t row = 0; row < got.count(); ++row) {
        std::memcpy(got.row(row), tensors.row(call, o, row), got.row_bytes());
      }
      const std::string difference = cases::FirstDifference(wanted, got);
      if (!difference.empty()) fault = NameOf(tensors, call, o) + difference;
    });
  }
  return fault;
}

// The most elements that are all compared. Exact values of more take longer than the rounds.
constexpr size_t kMostExact = size_t{1} << 20;

// For others: names the first element beyond its error bound, or is empty. Of many elements it
// compares every nth row. n is odd, so the sample has rows at each place of a group.
std::string FindBeyondBounds(const Tensors& tensors) {
  std::string fault;
  for (size_t call = 0; call < tensors.values().calls.size(); ++call) {
    const Case& c = tensors.values().calls[call];
    const cases::Results results = [&](Operand o, size_t row, size_t j) {
      const rmsnorm_dtype dtype = c.operand[o].dtype;
      const uint8_t* const element = tensors.row(call, o, row) + j * internal::ElementSize(dtype);
      return cases::Decode(dtype, cases::LoadBits(dtype, element));
    };
    const auto is_right = [&](const cases::ExpectedRow& row) {
      if (row.bound == cases::kInfinity) throw Refusal("there is no bound for its error");
      for (size_t j = 0; j < row.elements.size(); ++j) {
        const double result = results(row.operand, row.row, j);
        const double error = row.Error(j, result);
        if (error <= row.bound) continue;
        char text[120];
        std::snprintf(text, sizeof text,
                      "[%zu, %zu] is %.9g, not %.9g: off by %.2g units where %.2g are allowed",
                      row.row, j, result, row.elements[j].exact, error, row.bound);
        fault = NameOf(tensors, call, row.operand) + text;
        return false;
      }
      return true;
    };
    ForEachExpectedRow(c, tensors.values().problems[call], cases::Arithmetic::kAny, results,
                       is_right, c.RowCount() * c.d / kMostExact | 1);
    if (!fault.empty()) break;
  }
  return fault;
}

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
  for (const Contender& contender : contenders_) {
    std::unique_ptr<TimedCall>& call = place.timed_calls.emplace_back();
    const std::string& name = contender.name;
    const bool has_exact_bits = contender.kind == Kind::kLibrary || contender.kind == Kind::kApart;
    Tensors& tensors = contender.kind == Kind::kApart ? place.apart : place.tensors;
    if (tensors.operands().empty() || IsUntimed(name)) continue;
    tensors.Reset();
    try {
      if (!has_exact_bits && !std::all_of(cell_.calls.begin(), cell_.calls.end(), HasBounds)) {
        throw Refusal("there is no bound for its error");
      }
      call = std::make_unique<TimedCall>(contender.prepare(tensors, cell_.target.c_str()));
      call->Run();
      const std::string fault =
          has_exact_bits ? FindDifference(tensors) : FindBeyondBounds(tensors);
      if (!fault.empty()) untimed_.push_back({name, true, fault});
    } catch (const Refusal& refusal) {
      if (&contender == &contenders_.front()) throw;
      untimed_.push_back({name, false, refusal.what()});
    }
  }
}

bool Contest::IsUntimed(const std::string& name) const {
  return std::any_of(untimed_.begin(), untimed_.end(),
                     [&](const Untimed& one) { return one.name == name; });
}

void Contest::Memcpy() const {
  Place& place = *places_[place_];
  const size_t bytes = place.from.bytes();
  const size_t parts = std::clamp<size_t>(bytes, 1, parts_);
  if (parts == 1) {
    std::memcpy(place.to.data(), place.from.data(), bytes);
    return;
  }
  RunOnThreads(parts, [&](size_t part) {
    const size_t begin = bytes * part / parts;
    std::memcpy(place.to.data() + begin, place.from.data() + begin,
                bytes * (part + 1) / parts - begin);
  });
}

std::vector<Turn> Contest::Turns() {
  std::vector<Turn> turns;
  for (size_t i = 0; i < contenders_.size(); ++i) {
    const std::string& name = contenders_[i].name;
    const Kind kind = contenders_[i].kind;
    if (places_.front()->timed_calls[i] == nullptr || IsUntimed(name)) continue;
    const auto repeat = [this, i, kind](size_t times) {
      const Place& place = *places_[place_];
      const TimedCall& call = *place.timed_calls[i];
      const Reader& reader = kind == Kind::kApart ? place.apart_reader : place.reader;
      for (size_t time = 0; time < times; ++time) {
        call.Run();
        if (cell_.reads) sum_ += reader.Read(parts_);
      }
    };
    // The threads of a peer wait for work, awake, for a while after a call, and so do those of a
    // library by another compiler.
    turns.push_back({name, repeat, kind == Kind::kPeer || name == kOlder ? name : ""});
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
