// SPDX-License-Identifier: Apache-2.0
// A cell with its buffers and all who compute it, each of whom was checked.
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

// Why one is not timed: it cannot compute the cell, or it computes it wrongly.
struct Problem {
  std::string name;
  bool wrong;
  std::string text;
};

class Case {
 public:
  // The contenders begin with the library, and outlive the case. Throws Refusal where the library
  // refuses the cell.
  Case(const Cell& cell, const Contenders& contenders);
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  const std::vector<Problem>& problems() const { return problems_; }

  // Those without a problem, and memcpy after the library. In the current place.
  std::vector<Turn> Turns();

  // Goes on to another place in memory, where there is one.
  void MoveOn() { place_ = (place_ + 1) % places_.size(); }

  // How many threads share the work: the library keeps small work on one.
  size_t parts() const { return parts_; }

 private:
  struct Place {
    explicit Place(const Cell& cell) : inputs(cell), results(cell) {}
    Inputs inputs;
    Results results;
    std::vector<std::unique_ptr<Prepared>> prepared;  // by contender; null where it has a problem
  };

  // Makes each contender ready in a place, runs it once and checks what it gave.
  void Prepare(Place& place);
  bool HasProblem(const std::string& name) const;
  // Copies x to y. Its parts may end amid a row: one long row can be the work of many threads.
  void Memcpy(size_t times);

  const Cell cell_;
  const Contenders& contenders_;
  std::vector<std::unique_ptr<Place>> places_;
  size_t place_ = 0;
  size_t parts_ = 1;
  std::vector<Problem> problems_;
  std::set<std::string> with_threads_;  // the contenders that have threads of their own
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CASE_H_
