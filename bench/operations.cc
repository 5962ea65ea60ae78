// SPDX-License-Identifier: Apache-2.0
#include "operations.h"

#include <stdexcept>

#include "add_forward_job.h"
#include "backward_job.h"
#include "forward_job.h"
#include "layer_norm_job.h"
#include "phases_job.h"

namespace rmsnorm::bench {
namespace {

template <class Class>
std::unique_ptr<Job> Make(const Cell& cell) {
  return std::make_unique<Class>(cell);
}

}  // namespace

const std::vector<Operation>& Operations() {
  static const std::vector<Operation> operations = {
      {"forward", Make<ForwardJob>},
      {"forward_call", Make<ForwardCallJob>},
      {"sum_squares", Make<SumSquaresJob>},
      {"scale", Make<ScaleJob>},
      {"add_forward", Make<AddForwardJob>},
      {"backward", Make<BackwardJob>},
      {"layernorm", Make<LayerNormJob>, false},
  };
  return operations;
}

std::unique_ptr<Job> MakeJob(const Cell& cell) {
  for (const Operation& operation : Operations()) {
    if (operation.name == cell.operation) return operation.make(cell);
  }
  throw std::logic_error("no operation " + cell.operation);
}

}  // namespace rmsnorm::bench
