// SPDX-License-Identifier: Apache-2.0
// What the layers above the kernels have a target do: the table of kernels that each target
// provides, and what a kernel is given. None of it depends on element types but by value.
#ifndef RMSNORM_LIB_KERNEL_TABLE_H_
#define RMSNORM_LIB_KERNEL_TABLE_H_

#include <cstddef>

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
  bool norm_unrounded;  // residual + x is normalised as it is before residual_out is rounded
  float factor;         // of x; at 1 x is left alone
  rmsnorm_activation activation;
  rmsnorm_gate_placement gate_placement;
  rmsnorm_gate_rounding gate_rounding;
  bool add_to_dx;   // dx is added to what its memory holds
  bool one_type;    // x and all that have its shape, but q, are of one type
  bool has_leaves;  // one_type, and no option asks for what only tiles do
  bool stream;      // y or dx is better written past the caches; never where it is in place
  rmsnorm_dtype dtype[kOperands];  // of each operand that a run has; f32 of weight, bias, dw and db
};

// Some rows of a call at constant distances, which share a row of the weight and of the bias. A
// kernel works through them in rising order on the calling thread, in the default rounding mode
// with subnormals kept. An operand that has the place of another is the same data and stride; else
// an output shares no byte with another operand.
struct Run {
  Run(size_t rows, size_t length) : count(rows), d(length) {}

  size_t count;  // rows
  size_t d;      // elements of each
  OperandSet given = 0;
  // Of the first row of those that are given. What the operands of columns are here:
  //   weight  the prepared values w' = offset + w in f32, ones where the call has none; there
  //           wherever y, q, dx or dw is
  //   post_norm_weight  prepared as well
  //   bias    the values in f32
  //   dw, db  sums of f32 to add to, not the operands themselves
  char* data[kOperands];
  ptrdiff_t stride[kOperands];  // bytes from one row to the next; 0 for weight, bias, dw and db
  bool start_sums = false;  // dw or db are +0 before the first of these rows, whatever they hold

  bool Has(Operand operand) const { return (given & SetOf(operand)) != 0; }
  void Set(Operand operand, void* first_row, ptrdiff_t row_stride) {
    given |= SetOf(operand);
    data[operand] = static_cast<char*>(first_row);
    stride[operand] = row_stride;
  }
  void Remove(Operand operand) { given &= ~SetOf(operand); }

  template <class T>
  T* Row(Operand operand, size_t row) const {
    return reinterpret_cast<T*>(data[operand] + static_cast<ptrdiff_t>(row) * stride[operand]);
  }
};

// What a row's gradient is made of: dx = r * (g - (x * scale_x) * mean), where
// (x * scale_x) * mean is the norm of x times the mean of its products with g.
template <class Real>
struct Terms {
  Real r;
  Real scale_x;
  Real mean;
};

// What of a row f32 cannot hold: all of it, where forward computes it in binary64, or dx alone,
// where c is not finite.
enum class Cold { kNothing, kDx, kAll };

// The terms of a row, in f32 and widened where nothing is cold, and r in f32.
struct RowTerms {
  Terms<double> terms;
  float r;
  Cold cold;
  bool only_g;  // dx = r * g: the second term is +0, whatever x holds
};

// The sums in f32 of a row, or of a block of one.
struct RowSums {
  float squares;  // 0 where it is not needed
  float dot;      // c
};

// The kernels of one target.
struct KernelTable {
  const char* target;

  // Writes offset + w for d elements of a type. A NaN gets no payload bits that the target's own
  // rounding to bf16 could carry. An offset of -0 leaves every other value as it is.
  void (*prepare)(rmsnorm_dtype dtype, const void* from, size_t d, float offset, float* prepared);

  // Forward, with any of its operands.
  void (*forward)(const Norm& norm, const Run& run);

  // Backward: writes or adds to dx, and adds to dw. Either may be absent.
  void (*backward)(const Norm& norm, const Run& run);
  // Adds dy to db, row by row.
  void (*add_rows)(const Norm& norm, const Run& run);
  // Adds up `blocks` rows of d sums each, `stride` floats apart, and rounds the total to d elements
  // of a type; or adds it to what they hold.
  void (*store_sums)(const float* sums, size_t stride, size_t blocks, size_t d, bool add,
                     rmsnorm_dtype dtype, void* to);

  const struct Leaves*
      leaves;  // of the target's drivers (kernels/leaves.h); null for the reference
};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_KERNEL_TABLE_H_
