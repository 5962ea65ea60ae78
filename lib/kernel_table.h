// SPDX-License-Identifier: Apache-2.0
// The interface between a plan and a target's kernels. Element types appear as run-time values
// only.
#ifndef RMSNORM_LIB_KERNEL_TABLE_H_
#define RMSNORM_LIB_KERNEL_TABLE_H_

#include <cstddef>

#include "exact_arithmetic.h"
#include "operands.h"

namespace rmsnorm::internal {

struct KernelTable;

// What leads from a row's sum of squares to 1 / RMS.
struct Root {
  float eps;
  float divisor;
  float inverse_divisor;  // 1 / divisor, rounded
  rmsnorm_eps_placement eps_placement;
};

// What is the same for every row of a call. All of it has been checked.
struct Norm {
  const KernelTable* kernels;
  Root root;
  rmsnorm_rounding rounding;
  bool norm_unrounded;    // h is residual + x before it is rounded to residual_out
  float factor;           // multiplies x; 1 leaves x alone
  float residual_factor;  // multiplies residual + x, and dx; 1 leaves them alone
  rmsnorm_activation activation;
  rmsnorm_gate_placement gate_placement;
  rmsnorm_gate_rounding gate_rounding;
  size_t group;    // elements of a row that share a scale and a zero
  size_t rotated;  // elements of a row that are rotated: twice as many as cos has; 0 without cos
  rmsnorm_rotary_pairs rotary_pairs;
  rmsnorm_rotary_part rotary_part;
  rmsnorm_rotary_rounding rotary_rounding;
  bool add_to_dx;  // dx is added to the values in its memory
  // All row operands but q have one type, and the fused leaves of forward or of backward serve
  // every option.
  bool has_leaves;
  bool has_backward_leaves;
  bool has_step_leaves;            // as has_leaves, but for residual_factor and activation
  bool stream;                     // y or dx is written past the caches; never in place
  rmsnorm_dtype dtype[kOperands];  // of each operand as a run has it: weights and sums are f32
};

// Some rows of a call at constant distances. Without a gate they share a row of the weight and of
// the bias. A kernel works through them in rising order on the calling thread, in the default
// floating-point state. An output either has the data and the stride of the operand it replaces, or
// shares no byte with another operand.
struct RowRun {
  explicit RowRun(size_t rows = 0, size_t length = 0) : count(rows), d(length) {}

  size_t count;  // rows
  size_t d;      // elements of each
  OperandSet given = 0;
  // The first row of each given operand. Weights, biases and their gradients are f32 here:
  //   weight            w' = offset + w, or ones; given with y, q, dx and dw
  //   post_norm_weight  in the same way
  //   bias              its values
  //   dw, db            sums to add to, which need not be the gradients themselves
  char* data[kOperands];
  ptrdiff_t stride[kOperands];  // bytes from one row to the next; 0 for dw, db and what rows share
  bool start_sums = false;  // dw or db are +0 before the first of these rows, whatever they hold

  bool Has(Operand operand) const { return (given & SetOf(operand)) != 0; }
  void Set(Operand operand, void* first_row, ptrdiff_t row_stride) {
    given |= SetOf(operand);
    data[operand] = static_cast<char*>(first_row);
    stride[operand] = row_stride;
  }

  template <class T>
  T* Row(Operand operand, size_t row) const {
    return reinterpret_cast<T*>(data[operand] + static_cast<ptrdiff_t>(row) * stride[operand]);
  }

  // `rows` of these rows, from `begin` on.
  RowRun From(size_t begin, size_t rows) const {
    RowRun run(rows, d);
    ForEachOperand(given, [&](Operand operand) {
      run.Set(operand, Row<void>(operand, begin), stride[operand]);
    });
    run.start_sums = start_sums && begin == 0;
    return run;
  }
};

// A function of a target that works through the rows of a run.
using Kernel = void (*)(const Norm& norm, const RowRun& run);

// The kernels of one target.
struct KernelTable {
  const char* target;

  // About how long forward takes for an element of f32, f16 and bf16 in the second cache. It
  // decides how many threads share a call, and no bit of a result.
  unsigned short picoseconds[3];

  // Writes offset + w for d elements of a type. A NaN gets no payload bits that the target's own
  // rounding to bf16 could carry. An offset of -0 changes no other value.
  void (*add_offset)(rmsnorm_dtype dtype, const void* from, size_t d, float offset, float* column);

  // Forward, with any of its operands.
  Kernel forward;

  // Backward: writes or adds to dx, and adds to dw. Either may be absent.
  Kernel backward;
  // Adds dy to db, row by row.
  Kernel add_rows;
  // Adds up `blocks` rows of d sums each, `stride` floats apart, and rounds the total to d elements
  // of a type; or adds it to what they hold.
  void (*add_blocks)(const float* sums, size_t stride, size_t blocks, size_t d, bool add,
                     rmsnorm_dtype dtype, void* to);
  // Rounds d values to a type.
  void (*narrow)(rmsnorm_dtype dtype, const float* from, size_t d, void* to);

  const struct Leaves*
      leaves;  // of the target's drivers (kernels/leaves.h); null for the reference
};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_KERNEL_TABLE_H_
