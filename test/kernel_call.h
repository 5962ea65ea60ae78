// SPDX-License-Identifier: Apache-2.0
// The arguments for direct calls of kernels.
#ifndef RMSNORM_TEST_KERNEL_CALL_H_
#define RMSNORM_TEST_KERNEL_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "kernel_table.h"
#include "target.h"
#include "tensor.h"

namespace rmsnorm::test {

using internal::KernelTable;
using internal::Operand;

inline const KernelTable& FindTable(const std::string& target) {
  const KernelTable* table = nullptr;
  EXPECT_EQ(RMSNORM_OK, internal::FindKernels(target.c_str(), table));
  return *table;
}

struct KernelCall {
  KernelCall(const KernelTable& kernels, const Tensor& x) : run(x.rows(), x.d()) {
    norm.kernels = &kernels;
    norm.root.eps = 1e-5f;
    SetDivisor(static_cast<float>(x.d()));
    norm.factor = 1;
    norm.has_backward_leaves = norm.has_leaves = true;
    std::fill_n(norm.dtype, +internal::kOperands, RMSNORM_F32);
    Set(internal::kX, x);
  }

  void SetDivisor(float divisor) {
    norm.root.divisor = divisor;
    norm.root.inverse_divisor = 1 / divisor;
  }

  // The order that rounds the inverse has no leaves.
  void SetRounding(rmsnorm_rounding rounding) {
    norm.rounding = rounding;
    norm.has_leaves = norm.has_leaves && rounding != RMSNORM_ROUND_INVERSE;
  }

  // Sets an operand with one row, or one element, per row of x.
  void Set(Operand operand, const Tensor& rows) {
    const rmsnorm_view view = rows.view();
    norm.dtype[operand] = view.dtype;
    run.Set(operand, internal::DataOf(view),
            view.stride[0] * static_cast<ptrdiff_t>(rmsnorm_dtype_size(view.dtype)));
    if (internal::kOperandRules[operand].shape == internal::Shape::kRows) {
      norm.has_backward_leaves = norm.has_backward_leaves && view.dtype == norm.dtype[internal::kX];
      norm.has_leaves = norm.has_leaves && norm.has_backward_leaves;
    }
  }

  // Sets an operand that all rows share: a weight, a bias, or the sums of a gradient.
  void Share(Operand operand, const float* columns) {
    run.Set(operand, const_cast<float*>(columns), 0);
  }

  internal::Norm norm = {};
  internal::RowRun run;
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_KERNEL_CALL_H_
