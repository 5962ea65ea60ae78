/* SPDX-License-Identifier: Apache-2.0 */
/* The loops that a user would write. plain_loops.cc is compiled several times, for CPUs that may
   not be the one at hand. So neither file uses an inline function of this project or of C++'s
   library: of several copies the linker keeps one, and that one could need AVX-512. */
#ifndef RMSNORM_BENCH_PLAIN_LOOPS_H_
#define RMSNORM_BENCH_PLAIN_LOOPS_H_

#include <stddef.h>
#include <stdint.h>

/* An operand's first row, and the elements from one row to the next. */
struct PlainOperand {
  void* data;
  ptrdiff_t stride;
};

/* Rows of d elements. An operand that a loop does not use has a null pointer; `int8` may lack y. */
struct PlainRun {
  size_t rows;
  size_t d;
  float eps;
  float* scratch; /* d elements */
  float* dw;      /* the sums of these rows are added */
  PlainOperand x, weight, post_norm_weight, residual, gate, dy, y, dx;
  PlainOperand q;           /* of int8_t */
  PlainOperand rstd, scale; /* of float, one for each row */
};

enum PlainKind {
  kPlainNorm,
  kPlainAddNorm,
  kPlainPostNorm,
  kPlainGateAfter,
  kPlainGateBefore,
  kPlainInt8,
  kPlainBackward,
  kPlainKinds
};

typedef void (*PlainLoop)(const PlainRun* run);

/* The loops by kind, for f32, f16 and bf16 (rmsnorm_dtype - 1). The f16 loops are null where the
   compiler has no such type. */
struct PlainLoops {
  PlainLoop loop[3][kPlainKinds];
};

/* By CPU, each without and with -ffast-math. */
#ifdef __x86_64__
extern const PlainLoops plain_loops_v3, plain_loops_v3_fast, plain_loops_v4, plain_loops_v4_fast;
#else
extern const PlainLoops plain_loops_base, plain_loops_base_fast;
#endif

#endif /* RMSNORM_BENCH_PLAIN_LOOPS_H_ */
