// SPDX-License-Identifier: Apache-2.0
// Peers for peer_test.cc, one for each way in which a plug-in can be good or bad; the build chooses
// which. All compute f32 only.
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
#ifndef EPS
#define EPS what->eps
#endif
#ifndef NORM_OF
#define NORM_OF sum
#endif
#ifndef NEW_RESIDUAL
#define NEW_RESIDUAL sum
#endif
#ifndef SECOND_TERM
#define SECOND_TERM 1
#endif
#ifndef MEAN_TERM  // LayerNorm's
#define MEAN_TERM 0
#endif
#ifndef DW_OF_ROWS_BEFORE
#define DW_OF_ROWS_BEFORE what->dw[j]
#endif
#ifndef WHY
#define WHY *why = "f32 only"
#endif

// The number of cases that are prepared and not released.
int prepared_cases = 0;

static void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  if (what->dtype != RMSNORM_PEER_F32 || what->operation > RMSNORM_PEER_BACKWARD) {
    (void)why;
    WHY;
    return NULL;
  }
  rmsnorm_peer_case* copy = malloc(sizeof *copy);
  *copy = *what;
  ++prepared_cases;
  return copy;
}

// y = the norm of values, which may be y itself.
static void Norm(const rmsnorm_peer_case* what, const float* values, float* y) {
  float sum = 0;
  for (size_t j = 0; j < what->d; ++j) sum += values[j] * values[j];
  const float r = FACTOR / sqrtf(sum / (float)what->d + EPS);
  for (size_t j = 0; j < what->d; ++j) y[j] = values[j] * r * ((const float*)what->weight)[j];
}

static void AddNorm(const rmsnorm_peer_case* what, size_t row) {
  const float* x = (const float*)what->x + row * what->d;
  float* residual = (float*)what->residual + row * what->d;
  float* y = (float*)what->y + row * what->d;
  for (size_t j = 0; j < what->d; ++j) {
    const float sum = residual[j] + x[j];
    y[j] = NORM_OF;
    residual[j] = NEW_RESIDUAL;
  }
  Norm(what, y, y);
}

static void Backward(const rmsnorm_peer_case* what, size_t row) {
  const float* weight = what->weight;
  const float* x = (const float*)what->x + row * what->d;
  const float* dy = (const float*)what->dy + row * what->d;
  float* dx = (float*)what->dx + row * what->d;
  const float r = what->rstd[row];
  float products = 0;
  float gradients = 0;
  for (size_t j = 0; j < what->d; ++j) {
    products += dy[j] * weight[j] * x[j];
    gradients += dy[j] * weight[j];
  }
  const float mean = SECOND_TERM * products * r * r / (float)what->d;
  const float layer_norm = MEAN_TERM * gradients / (float)what->d;
  for (size_t j = 0; j < what->d; ++j) {
    float before = 0;
    if (row > 0) before = DW_OF_ROWS_BEFORE;
    what->dw[j] = before + dy[j] * x[j] * r;
    dx[j] = r * (dy[j] * weight[j] - x[j] * mean - layer_norm);
  }
}

void Run(void* prepared) {
  const rmsnorm_peer_case* what = prepared;
  for (size_t row = 0; row < what->rows; ++row) {
    switch (what->operation) {
      case RMSNORM_PEER_ADD_NORM:
        AddNorm(what, row);
        break;
      case RMSNORM_PEER_BACKWARD:
        Backward(what, row);
        break;
      default:
        Norm(what, (const float*)what->x + row * what->d, (float*)what->y + row * what->d);
    }
  }
}

void Idle(void* prepared) { (void)prepared; }

static void Release(void* prepared) {
  --prepared_cases;
  free(prepared);
}

#ifdef LOADS_ROUNDING_UP
__attribute__((constructor)) static void RoundUp(void) { fesetround(FE_UPWARD); }
#endif

const rmsnorm_peer peer = {VERSION, NAME, Prepare, RUN, Release};

#ifndef GET
#define GET &peer
#endif
#ifndef NO_FUNCTION
const rmsnorm_peer* rmsnorm_peer_get(void) { return GET; }
#endif
