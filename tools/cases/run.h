// SPDX-License-Identifier: Apache-2.0
// Runs cases and describes their faults.
#ifndef RMSNORM_TOOLS_CASES_RUN_H_
#define RMSNORM_TOOLS_CASES_RUN_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "case.h"
#include "problem.h"

namespace rmsnorm::cases {

// Where the operands of a case lie. Each operand has a block of memory, or shares another's.
struct Layout {
  explicit Layout(const Case& c);

  struct Block {
    size_t bytes = 0;  // with canaries; 0 if there is no block
    uint8_t canary = 0;
  };
  struct Place {
    Operand block;
    size_t first;                   // bytes from the start of the block to the first row
    std::vector<ptrdiff_t> stride;  // elements
    std::vector<ptrdiff_t> offset;  // bytes from the first row to each row
  };
  Block block[internal::kOperands];
  Place place[internal::kOperands];  // only for given operands

 private:
  void PlaceAlone(const Case& c, Operand o);
  void Interleave(const Case& c);
};

// Makes the call of a case on a target, or on the process's target if that is null, and returns the
// status. Throws std::runtime_error if a floating-point state was not restored.
rmsnorm_status Call(const Case& c, const CallOperands& operands, const char* target);

// Runs cases, one after the other.
class Runner {
 public:
  Runner();
  ~Runner();

  // Makes the values and the reference results of a case, unless the case before has the same.
  // Throws rmsnorm::Error if the library refuses the case.
  void Set(const Case& c);

  const Problem& problem() const { return *problem_; }

  // Makes the call on a target and describes the first wrong element; the text is empty if all is
  // right.
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

// Checks one case on one target. The text describes the fault, which may be a refusal, or is empty.
std::string FaultOf(Runner& runner, const Case& c, const std::string& target);

// The simplest case found that fails on a target as this one does. It makes fields smaller or
// leaves them out, one by one.
Case Shrink(Runner& runner, const Case& failing, const std::string& target);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_TOOLS_CASES_RUN_H_
