// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_BENCH_TENSORS_H_
#define RMSNORM_BENCH_TENSORS_H_

#include <deque>
#include <vector>

#include "buffer.h"
#include "cases/case.h"
#include "cases/layout.h"
#include "cases/problem.h"
#include "peers/peer.h"

namespace rmsnorm::bench {

// Calls with their values and the reference's results.
struct CallValues {
  explicit CallValues(const std::vector<cases::Case>& its_calls);
  const std::vector<cases::Case> calls;
  std::vector<cases::Problem> problems;  // by call
};

// The operands of calls in memory, the same for all contenders.
class Tensors {
 public:
  // The values outlive the tensors.
  explicit Tensors(const CallValues& values);
  Tensors(const Tensors&) = delete;  // views point into it
  Tensors& operator=(const Tensors&) = delete;

  // Writes the inputs, and fills the outputs with NaNs.
  void Reset();

  const CallValues& values() const { return values_; }
  const std::vector<cases::CallOperands>& operands() const { return operands_; }
  // The calls for a plug-in.
  const rmsnorm_peer_case& peer_case() const { return peer_case_; }
  const uint8_t* row(size_t call, internal::Operand o, size_t row) const {
    return RowAt(call, o, row);
  }

 private:
  uint8_t* RowAt(size_t call, internal::Operand o, size_t row) const;

  const CallValues& values_;
  std::vector<cases::Layout> layouts_;
  std::deque<Buffer> buffers_;
  std::vector<std::vector<uint8_t*>> blocks_;  // of each call, by operand
  std::vector<cases::CallOperands> operands_;
  std::vector<rmsnorm_operands> peer_operands_;
  std::vector<rmsnorm_call> peer_calls_;
  rmsnorm_peer_case peer_case_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_TENSORS_H_
