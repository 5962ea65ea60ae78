// SPDX-License-Identifier: Apache-2.0
// What `rmsnorm bench --peer FILE.so` asks of another library's plug-in: a shared library, in any
// language, that exports one function, rmsnorm_peer_get(). Plain C; this file needs nothing else of
// rmsnorm.
//
// For each cell of the table the benchmark makes the buffers and calls prepare() once; small cells
// have buffers in 32 places, so that as many cases are prepared at the same time. It runs each,
// checks what was written against the scalar reference, to within the roundings that
// bench/compare.cc counts, and then times run() in turn with the library and with memcpy.
// Everything that can be done once belongs in prepare(): run() is the call that an application
// makes for each token or batch.
//
// All calls come from one thread. While run() is timed, that thread is bound to one CPU, which
// threads it starts would inherit: start them in prepare() or in the first run().
#ifndef RMSNORM_BENCH_PEERS_PEER_H_
#define RMSNORM_BENCH_PEERS_PEER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; it changes whenever a struct below does. */
#define RMSNORM_PEER_VERSION 4

/* Row by row, with r = 1 / sqrt(mean(x^2) + eps), and each result cast once: */
enum {
  /* y = x * r * weight */
  RMSNORM_PEER_NORM = 0,
  /* residual += x, in place; y = the same of the residual, after it is cast (or before) */
  RMSNORM_PEER_ADD_NORM = 1,
  /* With g = dy * weight: dx = r * (g - x * r^2 * mean(g * x)), dw = sum over rows of dy * x * r */
  RMSNORM_PEER_BACKWARD = 2,
  /* y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, beside which the library's forward
     is timed */
  RMSNORM_PEER_LAYERNORM = 3,
  /* Those of the library alone: forward without a prepared weight, its two phases, and several
     norms in one call or one over all of their heads. A plug-in refuses these and those below, and
     any other number. */
  RMSNORM_PEER_NORM_CALL = 4,
  RMSNORM_PEER_SUM_SQUARES = 5,
  RMSNORM_PEER_SCALE = 6,
  RMSNORM_PEER_LATENT = 7,
  RMSNORM_PEER_Q_AND_K = 8,
  RMSNORM_PEER_ALL_HEADS = 9,
  /* residual += norm(x; post_norm_weight), in place; y = norm(residual; weight): in one call, in
     three, and the first half alone */
  RMSNORM_PEER_POST_NORM = 10,
  RMSNORM_PEER_POST_APART = 11,
  RMSNORM_PEER_POST_ADD = 12,
  /* y = norm(x) * silu(gate); y = norm(x * silu(gate)) in groups of 512, and the same in two calls
   */
  RMSNORM_PEER_GATE_AFTER = 13,
  RMSNORM_PEER_GATE_BEFORE = 14,
  RMSNORM_PEER_GATE_APART = 15,
  /* forward with q, a = max |y| of each row, scale = a / 127 and q = rint(y * (127 / a)), beside y
     or alone */
  RMSNORM_PEER_INT8 = 16,
  RMSNORM_PEER_INT8_ALONE = 17
};

enum { RMSNORM_PEER_F32 = 1, RMSNORM_PEER_F16 = 2, RMSNORM_PEER_BF16 = 3 };

/* What to compute. The buffers stay where they are until release(), and those that an operation
   does without are null. Only the results may be written. */
typedef struct rmsnorm_peer_case {
  int32_t operation; /* RMSNORM_PEER_NORM, ... */
  int32_t dtype;     /* of x, weight, y and what has no type below: RMSNORM_PEER_F32, ... */
  size_t rows;
  size_t d;        /* elements of a row; rows are dense */
  int32_t threads; /* how many to use; 1 is the calling thread alone */
  float eps;
  const void* x;      /* rows * d elements */
  const void* weight; /* d elements */
  const void* bias;   /* LAYERNORM: d elements */
  void* y;            /* the result of most, rows * d elements */
  void* residual;     /* ADD_NORM, POST_...: is added to; rows * d elements, others in each run */
  const void* post_norm_weight; /* POST_...: d elements */
  const void* gate;             /* GATE_...: rows * d elements */
  const void* dy;               /* BACKWARD: the gradient by y, rows * d elements */
  const float* rstd;            /* BACKWARD: r of each row */
  void* dx;                     /* BACKWARD: a result, rows * d elements */
  float* dw;                    /* BACKWARD: the other, d elements */
  double* sums; /* SUM_SQUARES: the results, one for each row; SCALE: what it takes */
  int8_t* q;    /* INT8...: a result, rows * d elements */
  float* scale; /* INT8...: the other, one for each row */
} rmsnorm_peer_case;

typedef struct rmsnorm_peer {
  uint32_t version; /* RMSNORM_PEER_VERSION */
  const char* name; /* as printed: short, of letters, digits, '.', '-' and '_' */

  /* Makes what run() needs, and returns it. Null where this peer cannot do the case: then *why says
     so, in a few words that live as long as the plug-in. */
  void* (*prepare)(const rmsnorm_peer_case* what, const char** why);
  /* Computes the whole case once; called many times. */
  void (*run)(void* prepared);
  void (*release)(void* prepared);
} rmsnorm_peer;

/* The plug-in's one exported function. Never null; what it points at lives as long as the plug-in.
 */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const rmsnorm_peer*
rmsnorm_peer_get(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RMSNORM_BENCH_PEERS_PEER_H_
