// SPDX-License-Identifier: Apache-2.0
// A cell with its buffers and its contenders. Each contender has been checked.
#ifndef RMSNORM_BENCH_CASE_H_
#define RMSNORM_BENCH_CASE_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cell.h"
#include "contender.h"
#include "rounds.h"
#include "tensors.h"

namespace rmsnorm::bench {

constexpr char kMemcpy[] = "memcpy";

using Contenders = std::vector<std::unique_ptr<Contender>>;

// Why a contender is not timed: it cannot compute the cell, or its result is wrong.
struct Problem {
  std::string name;
  bool wrong;
  std::string text;
};

class Case {
 public:
  // The library is the first contender; the contenders outlive the case. Throws Refusal if the
  // library refuses the cell.
  Case(const Cell& cell, const Contenders& contenders);
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  const std::vector<Problem>& problems() const { return problems_; }

  // The contenders of this cell without a problem, and memcpy after the library, in the current
  // place.
  std::vector<Turn> Turns();

  // Switches to another place in memory, if there is one.
  void MoveOn() { place_ = (place_ + 1) % places_.size(); }

  // The number of threads that share the work: the library keeps small work on one.
  size_t parts() const { return parts_; }

 private:
  struct Place {
    explicit Place(const Cell& cell) : inputs(cell), results(cell) {}
    Inputs inputs;
    Results results;
    std::vector<std::unique_ptr<Prepared>> prepared;  // by contender; null if it has no part
  };

  // Prepares each contender in a place, runs it once and checks its results.
  void Prepare(Place& place);
  bool HasProblem(const std::string& name) const;
  // Copies x to y. A part may end inside a row: many threads can share one long row.
  void Memcpy(size_t times);

  const Cell cell_;
  const Contenders& contenders_;
  std::vector<std::unique_ptr<Place>> places_;
  size_t place_ = 0;
  size_t parts_ = 1;
  std::vector<Problem> problems_;
  std::set<std::string> with_threads_;  // the contenders that start threads
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CASE_H_
