// SPDX-License-Identifier: Apache-2.0
// A cell with its tensors and its contenders. Each contender has been checked.
#ifndef RMSNORM_BENCH_CONTEST_H_
#define RMSNORM_BENCH_CONTEST_H_

#include <memory>
#include <string>
#include <vector>

#include "contender.h"
#include "operations.h"
#include "rounds.h"
#include "tensors.h"

namespace rmsnorm::bench {

constexpr char kMemcpy[] = "memcpy";

// A contender without a time: it cannot compute the cell, or its result is wrong.
struct Untimed {
  std::string name;
  bool is_wrong;
  std::string reason;
};

class Contest {
 public:
  // The library is the first contender; the contenders outlive the contest. Throws Refusal if the
  // library refuses the cell.
  Contest(const Cell& cell, const Contenders& contenders);
  Contest(const Contest&) = delete;
  Contest& operator=(const Contest&) = delete;

  const std::vector<Untimed>& untimed() const { return untimed_; }

  // The other contenders of this cell, and memcpy after the library, in the current place.
  std::vector<Turn> Turns();

  // Switches to another place in memory, if there is one.
  void MoveOn() { place_ = (place_ + 1) % places_.size(); }

  // The number of threads that share the work: the library keeps small work on one.
  size_t parts() const { return parts_; }

 private:
  struct Place {
    Place(const CallValues& calls, const CallValues& apart_calls, size_t bytes)
        : tensors(calls),
          apart(apart_calls),
          from(bytes),
          to(bytes),
          reader(tensors),
          apart_reader(apart),
          to_reader(to.data(), bytes) {}
    Tensors tensors;
    Tensors apart;
    Buffer from;  // of memcpy
    Buffer to;
    Reader reader;
    Reader apart_reader;
    Reader to_reader;
    std::vector<std::unique_ptr<TimedCall>> timed_calls;  // by contender; null if it has no part
  };

  // Prepares each contender in a place, runs it once and checks its results.
  void Prepare(Place& place);
  bool IsUntimed(const std::string& name) const;
  // Copies as many bytes as x has.
  void Memcpy() const;

  const Cell cell_;
  const Contenders& contenders_;
  const CallValues calls_;
  const CallValues apart_;
  std::vector<std::unique_ptr<Place>> places_;
  size_t place_ = 0;
  size_t parts_ = 1;
  uint64_t sum_ = 0;  // of what readers read
  std::vector<Untimed> untimed_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CONTEST_H_
