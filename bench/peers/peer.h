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
  /* Operations of the library alone: forward without a prepared weight, and its two phases. A
     plug-in refuses these, and any number that it does not know. */
  RMSNORM_PEER_NORM_CALL = 4,
  RMSNORM_PEER_SUM_SQUARES = 5,
  RMSNORM_PEER_SCALE = 6,
  /* Norms of parts of each row, each with the part of the weight at the same place, as the enum
     below says. What has no norm stays untouched in y. */
  RMSNORM_PEER_LATENT = 7,
  RMSNORM_PEER_Q_AND_K = 8,
  /* residual += norm(x; post_norm_weight), in place, the norm cast before the addition; then
     y = norm(residual; weight), or no y */
  RMSNORM_PEER_POST_NORM = 9,
  RMSNORM_PEER_POST_ADD = 10,
  /* y = norm(x) * silu(gate); y = norm(x * silu(gate)) of each group of a row, with its part of the
     weight; silu(z) = z / (1 + exp(-z)) */
  RMSNORM_PEER_GATE_AFTER = 11,
  RMSNORM_PEER_GATE_BEFORE = 12,
  /* Of the norm, cast: a = max |norm| of each row, scale = a / 127 and q = rint(norm * (127 / a));
     with the norm as y, or without y */
  RMSNORM_PEER_INT8 = 13,
  RMSNORM_PEER_INT8_ALONE = 14
};

enum {
  /* A row of LATENT is a multiple of these: a part for q, one for k and v, and one without a norm,
     as in DeepSeek-V3 and Kimi-K2. */
  RMSNORM_PEER_LATENT_Q = 1536,
  RMSNORM_PEER_LATENT_KV = 512,
  RMSNORM_PEER_LATENT_ROW = 1536 + 512 + 64,
  /* A row of Q_AND_K is heads of q, of k and of v, all of d / 48 elements, each with its own norm;
     v has none. All heads of q share the weight that lies at the first of them, and so do those of
     k. */
  RMSNORM_PEER_HEADS_OF_Q = 32,
  RMSNORM_PEER_HEADS_OF_K = 8,
  RMSNORM_PEER_HEADS = 32 + 8 + 8,
  /* The groups of GATE_BEFORE. */
  RMSNORM_PEER_GROUP = 512
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
