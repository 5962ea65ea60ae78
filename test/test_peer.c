// SPDX-License-Identifier: Apache-2.0
// Peers for peer_test.cc, one for each way in which a plug-in can be good or bad; the build defines
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
#ifndef WHY
#define WHY *why = "f32 only"
#endif

// How many cases are prepared and not released.
int prepared_cases = 0;

static void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  if (what->dtype != RMSNORM_PEER_F32) {
    (void)why;
    WHY;
    return NULL;
  }
  rmsnorm_peer_case* copy = malloc(sizeof *copy);
  *copy = *what;
  ++prepared_cases;
  return copy;
}

void Run(void* prepared) {
  const rmsnorm_peer_case* what = prepared;
  for (size_t row = 0; row < what->rows; ++row) {
    const float* x = (const float*)what->x + row * what->d;
    float* y = (float*)what->y + row * what->d;
    float sum = 0;
    for (size_t j = 0; j < what->d; ++j) sum += x[j] * x[j];
    const float r = FACTOR / sqrtf(sum / (float)what->d + EPS);
    for (size_t j = 0; j < what->d; ++j) y[j] = x[j] * r * ((const float*)what->weight)[j];
  }
}

#ifdef STARTS_THREAD
#include <pthread.h>
#include <unistd.h>
static void* Sleep(void* unused) {
  pause();
  return unused;
}
void RunAndStartThread(void* prepared) {
  static int started = 0;
  pthread_t thread;
  if (!started++ && pthread_create(&thread, NULL, Sleep, NULL) == 0) pthread_detach(thread);
  Run(prepared);
}
#endif

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
