// SPDX-License-Identifier: Apache-2.0
// The interface of `rmsnorm bench --peer FILE.so` for the plug-in of another library: a shared
// library, in any language, that exports one function, rmsnorm_peer_get(). Plain C; this file needs
// no other file of rmsnorm.
//
// For each cell of the table, the benchmark makes the buffers and calls prepare() once; small cells
// have buffers in 32 places, so 32 cases are prepared at the same time. The benchmark runs each
// case, checks the results against the scalar reference, to within the roundings that
// bench/compare.cc counts, and then times run() in turn with the library and with memcpy. Do all
// one-time work in prepare(): run() is the call that an application makes for each token or batch.
//
// All calls come from one thread. While run() is timed, that thread is bound to one CPU, and new
// threads would inherit this: start threads in prepare() or in the first run().
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
  /* y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, timed against the library's
     forward */
  RMSNORM_PEER_LAYERNORM = 3,
  /* Operations of the library alone: forward without a prepared weight, its two phases, and several
     norms in one call or one over all of their heads. A plug-in refuses these, all operations
     below, and any other number. */
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
  /* forward with q: a = max |y| of each row, scale = a / 127 and q = rint(y * (127 / a)); with y,
     or alone */
  RMSNORM_PEER_INT8 = 16,
  RMSNORM_PEER_INT8_ALONE = 17
};

enum { RMSNORM_PEER_F32 = 1, RMSNORM_PEER_F16 = 2, RMSNORM_PEER_BF16 = 3 };

/* What to compute. The buffers stay where they are until release(); a buffer that the operation
   does not use is null. Only the results may be written. */
typedef struct rmsnorm_peer_case {
  int32_t operation; /* RMSNORM_PEER_NORM, ... */
  int32_t dtype;     /* of all operands without a type below: RMSNORM_PEER_F32, ... */
  size_t rows;
  size_t d;        /* elements of a row; rows are dense */
  int32_t threads; /* the number to use; 1 is the calling thread alone */
  float eps;
  const void* x;      /* rows * d elements */
  const void* weight; /* d elements */
  const void* bias;   /* LAYERNORM: d elements */
  void* y;            /* a result, rows * d elements */
  void* residual;     /* ADD_NORM, POST_...: is added to; rows * d elements, new in each run */
  const void* post_norm_weight; /* POST_...: d elements */
  const void* gate;             /* GATE_...: rows * d elements */
  const void* dy;               /* BACKWARD: the gradient by y, rows * d elements */
  const float* rstd;            /* BACKWARD: r of each row */
  void* dx;                     /* BACKWARD: a result, rows * d elements */
  float* dw;                    /* BACKWARD: a result, d elements */
  double* sums;                 /* SUM_SQUARES: the results, one for each row; SCALE: an input */
  int8_t* q;                    /* INT8...: a result, rows * d elements */
  float* scale;                 /* INT8...: a result, one for each row */
} rmsnorm_peer_case;

typedef struct rmsnorm_peer {
  uint32_t version; /* RMSNORM_PEER_VERSION */
  const char* name; /* as printed: short, of letters, digits, '.', '-' and '_' */

  /* Makes the argument of run(), and returns it. Returns null if this peer cannot do the case:
     then *why is the reason, in a few words that live as long as the plug-in. */
  void* (*prepare)(const rmsnorm_peer_case* what, const char** why);
  /* Computes the whole case once; called many times. */
  void (*run)(void* prepared);
  void (*release)(void* prepared);
} rmsnorm_peer;

/* The plug-in's one exported function. Never returns null; the struct lives as long as the
   plug-in. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const rmsnorm_peer*
rmsnorm_peer_get(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RMSNORM_BENCH_PEERS_PEER_H_
