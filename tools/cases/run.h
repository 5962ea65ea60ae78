// SPDX-License-Identifier: Apache-2.0
// Runs cases and says what is wrong with them.
#ifndef RMSNORM_TOOLS_CASES_RUN_H_
#define RMSNORM_TOOLS_CASES_RUN_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "case.h"
#include "problem.h"

namespace rmsnorm::cases {

// Memory directly beside pages that cannot be touched: a byte read or written too far is a crash.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // So many bytes after a page, or before one. What they held before is gone. Throws
  // std::bad_alloc.
  uint8_t* After(size_t bytes);
  uint8_t* Before(size_t bytes);

 private:
  void Reserve(size_t bytes);

  uint8_t* mapped_ = nullptr;
  size_t size_ = 0;
  size_t page_ = 0;
};

// Where the operands of a case lie. Each has a block of memory, or lies in that of another.
struct Layout {
  explicit Layout(const Case& c);

  struct Block {
    size_t bytes = 0;  // with canaries; 0 where there is none
    uint8_t canary = 0;
  };
  struct Place {
    Operand block;
    size_t first;                   // bytes from the begin of the block to the first row
    std::vector<ptrdiff_t> stride;  // elements
    std::vector<ptrdiff_t> offset;  // bytes from the first row to each
  };
  Block block[internal::kOperands];
  Place place[internal::kOperands];  // of those that are given

 private:
  void PlaceAlone(const Case& c, Operand o);
  void Interleave(const Case& c);
};

// Makes the call of a case on a target, or without one on that of the process: its status. Throws
// std::runtime_error if a floating-point state was not put back.
rmsnorm_status Call(const Case& c, const CallOperands& operands, const char* target);

// Runs cases, one after the other.
class Runner {
 public:
  Runner();
  ~Runner();

  // Makes a case's values and its results by the reference, unless they are those of the case
  // before. Throws rmsnorm::Error if the library refuses it.
  void Set(const Case& c);

  const Problem& problem() const { return *problem_; }

  // Makes the call on a target and says what is wrong with what came out, naming the first wrong
  // element; empty where nothing is.
  std::string Run(const std::string& target);

 private:
  void Write(bool after, uint8_t* const* memory) const;
  void SetPoison(bool poison) const;
  std::string FindFault() const;
  std::string DescribeOutput(Operand o) const;

  Case case_;
  std::optional<Problem> problem_;
  std::optional<Layout> layout_;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

// A case on a target by itself: what is wrong with it, also that it is refused, or nothing.
std::string FaultOf(Runner& runner, const Case& c, const std::string& target);

// The simplest case found that fails on a target as this one does: field by field what can be
// smaller or left out.
Case Shrink(Runner& runner, const Case& failing, const std::string& target);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_TOOLS_CASES_RUN_H_
