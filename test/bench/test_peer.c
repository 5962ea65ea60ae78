// SPDX-License-Identifier: Apache-2.0
// Plug-ins for peer_test.cc, good and bad ones; the build chooses which. All compute the norm of
// dense rows in f32.
#include <fenv.h>
#include <math.h>
#include <stdlib.h>

#include "peers/peer.h"

#ifndef NAME
#define NAME "test"
#endif
#ifndef VERSION
#define VERSION RMSNORM_PEER_VERSION
#endif
#ifndef RUN
#define RUN Run
#endif
#ifndef FACTOR
#define FACTOR 1.0f
#endif
#ifndef WHY
#define WHY "f32 only"
#endif

// The number of cases that are prepared and not released.
int prepared_cases = 0;

static void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  const rmsnorm_operands* operands = what->calls->operands;
  if (operands->x->dtype != RMSNORM_F32) {
    *why = WHY;
    return NULL;
  }
  if (what->count != 1 || what->backward || what->threads != 1 || operands->residual ||
      operands->x->ndim != 2 || operands->x->stride[0] != (ptrdiff_t)operands->x->shape[1]) {
    *why = "only norms of dense rows";
    return NULL;
  }
  ++prepared_cases;
  rmsnorm_call* call = malloc(sizeof *call);
  *call = *what->calls;
  return call;
}

void Run(void* prepared) {
  const rmsnorm_call* call = prepared;
  const size_t d = call->operands->x->shape[1];
  const float* weight = call->operands->weight->data;
  for (size_t row = 0; row < call->operands->x->shape[0]; ++row) {
    const float* x = (const float*)call->operands->x->data + row * d;
    float* y = (float*)call->operands->y->data + row * d;
    float sum = 0;
    for (size_t j = 0; j < d; ++j) sum += x[j] * x[j];
    const float r = FACTOR / sqrtf(sum / (float)d + call->options->eps);
    for (size_t j = 0; j < d; ++j) y[j] = x[j] * r * weight[j];
  }
}

static void Release(void* prepared) {
  --prepared_cases;
  free(prepared);
}

// As a library linked with -ffast-math does: loading one must not change the state of a thread.
__attribute__((constructor)) static void RoundUp(void) { fesetround(FE_UPWARD); }

const rmsnorm_peer peer = {VERSION, NAME, Prepare, RUN, Release};

#ifndef GET
#define GET &peer
#endif
#ifndef NO_FUNCTION
const rmsnorm_peer* rmsnorm_peer_get(void) { return GET; }
#endif
