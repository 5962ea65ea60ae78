/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of `rmsnorm bench --peer FILE.so` for the plug-in of another library: a shared
   library, in any language, that exports one function, rmsnorm_peer_get(). Plain C; the plug-in
   needs rmsnorm's header for the structs of a call, and is not linked with rmsnorm.

   For each cell of the table, the benchmark makes the tensors and calls prepare() once; small cells
   have tensors in 32 places, so 32 cases are prepared at the same time. The benchmark runs each
   case, checks the results against the scalar reference, to within the roundings that
   cases/theta.h counts, and then times run() in turn with the library and with memcpy. Do all
   one-time work in prepare(): run() is the call that an application makes for each token or batch.

   All calls come from one thread. While run() is timed, that thread is bound to one CPU, and new
   threads would inherit this: start threads in prepare() or in the first run(). */
#ifndef RMSNORM_BENCH_PEERS_PEER_H_
#define RMSNORM_BENCH_PEERS_PEER_H_

#include <rmsnorm/rmsnorm.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; it changes whenever a struct below does. */
#define RMSNORM_PEER_VERSION 5

/* What to compute: the calls of rmsnorm_forward_all(), or one call of rmsnorm_backward(). The
   operands are views by name, the options are never null, and there are no modules. All memory and
   all structs stay where they are until release(). Only the outputs may be written. An operand that
   is updated in place, such as residual_out over residual, has new values in each run.

   A plug-in looks at the operands and options that it knows, and refuses a case with any others:
   later versions of rmsnorm.h add fields, and a size above sizeof() means that there are more. */
typedef struct rmsnorm_peer_case {
  const rmsnorm_call* calls;
  size_t count;
  int32_t backward; /* 1 for a call of rmsnorm_backward() */
  int32_t threads;  /* the number to use; 1 is the calling thread alone */
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

/* Whether a call has these operands and no others, and no option but eps. */
static inline int rmsnorm_peer_knows(const rmsnorm_call* call, const rmsnorm_operands* known) {
  rmsnorm_options usual;
  memset(&usual, 0, sizeof usual);
  usual.size = sizeof usual;
  usual.eps = call->options->eps;
  return memcmp(known, call->operands, sizeof *known) == 0 &&
         memcmp(&usual, call->options, sizeof usual) == 0;
}

/* Null for a norm with a weight, of x or of a residual that is updated in place, with no other
   operand and no option but eps; else the reason why a call is none. */
static inline const char* rmsnorm_peer_no_norm(const rmsnorm_call* call) {
  const rmsnorm_operands* given = call->operands;
  rmsnorm_operands known = rmsnorm_no_operands();
  known.x = given->x;
  known.weight = given->weight;
  known.residual = given->residual;
  known.residual_out = given->residual_out;
  known.y = given->y;
  if (!rmsnorm_peer_knows(call, &known) || given->weight == NULL || given->y == NULL) {
    return "only a norm with a weight, alone or after a residual addition";
  }
  if (given->residual != NULL &&
      (given->residual_out == NULL || given->residual_out->data != given->residual->data)) {
    return "only a residual that is updated in place";
  }
  return NULL;
}

/* Null for dx and dw of rows in two dimensions, by a weight of one, from the inverse RMS, with no
   other operand and no option but eps; else the reason why a call is none. */
static inline const char* rmsnorm_peer_no_gradients(const rmsnorm_call* call) {
  const rmsnorm_operands* given = call->operands;
  rmsnorm_operands known = rmsnorm_no_operands();
  known.x = given->x;
  known.weight = given->weight;
  known.dy = given->dy;
  known.rstd = given->rstd;
  known.dx = given->dx;
  known.dw = given->dw;
  if (!rmsnorm_peer_knows(call, &known) || given->weight == NULL || given->rstd == NULL ||
      given->dx == NULL || given->dw == NULL || given->x->ndim != 2 || given->weight->ndim != 1) {
    return "only dx and dw from the inverse RMS of rows";
  }
  return NULL;
}

/* Whether the operands of a norm have one type. */
static inline int rmsnorm_peer_has_one_type(const rmsnorm_operands* norm) {
  const rmsnorm_dtype type = norm->x->dtype;
  return norm->weight->dtype == type && norm->y->dtype == type &&
         (norm->residual == NULL || norm->residual->dtype == type);
}

/* The plug-in's one exported function. Never returns null; the struct lives as long as the
   plug-in. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const rmsnorm_peer*
rmsnorm_peer_get(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* RMSNORM_BENCH_PEERS_PEER_H_ */
