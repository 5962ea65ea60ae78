// SPDX-License-Identifier: Apache-2.0
// The calls of a line of cases, with their operands in memory, for tests that make them in other
// ways than `rmsnorm check` does.
#ifndef RMSNORM_TEST_LINE_CALLS_H_
#define RMSNORM_TEST_LINE_CALLS_H_

#include <cstring>
#include <deque>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "cases/layout.h"
#include "cases/list.h"
#include "cases/prepared_call.h"
#include "cases/problem.h"

namespace rmsnorm::test {

// A block of Memory(bytes) begins at data().
template <class Memory = std::vector<uint8_t>>
class LineCalls {
 public:
  explicit LineCalls(const cases::Calls& calls) : calls_(calls) {
    for (const cases::Case& c : calls_) {
      const cases::Layout& layout = layouts_.emplace_back(c);
      uint8_t* blocks[internal::kOperands];
      for (int i = 0; i < internal::kOperands; ++i) {
        blocks[i] = memory_.emplace_back(layout.block[i].bytes + 1).data();
        blocks_.push_back(blocks[i]);
      }
      operands_.push_back(cases::OperandsAt(c, layout, blocks));
    }
  }
  explicit LineCalls(const std::string& line) : LineCalls(cases::ParseCalls(line)) {}
  LineCalls(const LineCalls&) = delete;  // the views point into it
  LineCalls& operator=(const LineCalls&) = delete;

  // Writes other values for each seed.
  void Fill(unsigned seed) {
    problems_.clear();
    for (size_t i = 0; i < calls_.size(); ++i) {
      cases::Case c = calls_[i];
      c.seed += seed;
      const cases::Problem& problem = problems_.emplace_back(c);
      internal::ForEachOperand(c.Given(), [&](cases::Operand o) {
        const bool is_result = c.IsOutput(o) && !c.operand[o].add;
        if (c.operand[o].in_place) return;
        const cases::Rows& rows = is_result ? problem.after(o) : problem.before(o);
        for (size_t row = 0; row < rows.count(); ++row) {
          std::memcpy(At(i, o, row), rows.row(row), rows.row_bytes());
          if (is_result) std::memset(At(i, o, row), 0xA5, rows.row_bytes());
        }
      });
    }
  }

  // Modules read what they hold at once, and calls their operands when they run.
  cases::PreparedCall Prepare(const rmsnorm_context& context) const {
    return {calls_, operands_, context};
  }

  // Describes the first wrong result of a run; empty if all are right.
  std::string Fault() const {
    std::string fault;
    for (size_t i = 0; i < calls_.size(); ++i) {
      internal::ForEachOperand(calls_[i].Given(), [&](cases::Operand o) {
        if (!calls_[i].IsOutput(o) || !fault.empty()) return;
        const cases::Rows& wanted = problems_[i].after(o);
        cases::Rows got = wanted;
        for (size_t row = 0; row < got.count(); ++row) {
          std::memcpy(got.row(row), At(i, o, row), got.row_bytes());
        }
        fault = cases::FirstDifference(wanted, got);
        if (!fault.empty()) fault = internal::kOperandRules[o].name + fault;
      });
    }
    return fault;
  }

  // The same of a run in this context.
  std::string FaultIn(const rmsnorm_context& context) {
    Fill(1);
    return Prepare(context).Run() == RMSNORM_OK ? Fault() : rmsnorm_error_message();
  }

 private:
  uint8_t* At(size_t call, cases::Operand o, size_t row) const {
    const cases::Layout::Place& place = layouts_[call].place[o];
    const size_t block = call * internal::kOperands + static_cast<size_t>(place.block);
    return blocks_[block] + place.first + place.offset[row];
  }

  const cases::Calls calls_;
  std::deque<cases::Layout> layouts_;
  std::deque<Memory> memory_;
  std::vector<uint8_t*> blocks_;  // of each operand of each call
  std::vector<cases::CallOperands> operands_;
  std::deque<cases::Problem> problems_;
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_LINE_CALLS_H_
