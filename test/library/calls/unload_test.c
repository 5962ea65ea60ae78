/* SPDX-License-Identifier: Apache-2.0 */
/* A program without OpenMP loads the shared library, calls it with several threads and unloads it,
 * a hundred times: OpenMP's threads outlive the call, so their code must outlive the library.
 *
 *     unload_test LIBRARY
 */
#define _POSIX_C_SOURCE 199309L

#include <dlfcn.h>
#include <rmsnorm/rmsnorm.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define ROWS 512
#define D 512

static float x[ROWS * D];
static float y[ROWS * D];

typedef rmsnorm_status (*forward_function)(const rmsnorm_operands*, const rmsnorm_options*,
                                           const rmsnorm_context*);

static int call(const char* path) {
  const struct timespec millisecond = {0, 1000000};
  const rmsnorm_view x_view = rmsnorm_rows(x, RMSNORM_F32, ROWS, D, D);
  const rmsnorm_view y_view = rmsnorm_rows(y, RMSNORM_F32, ROWS, D, D);
  rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_context context = {0};
  forward_function forward;
  void* symbol;
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 0;
  }
  symbol = dlsym(library, "rmsnorm_forward");
  memcpy(&forward, &symbol, sizeof forward);
  operands.x = &x_view;
  operands.y = &y_view;
  context.size = sizeof context;
  context.threads = 4;
  y[0] = y[ROWS * D - 1] = 0;
  if (forward(&operands, NULL, &context) != RMSNORM_OK || y[0] == 0 || y[ROWS * D - 1] != y[0]) {
    fprintf(stderr, "the call went wrong\n");
    return 0;
  }
  if (dlclose(library) != 0) {
    fprintf(stderr, "%s\n", dlerror());
    return 0;
  }
  nanosleep(&millisecond, NULL); /* for the threads to run on */
  return 1;
}

int main(int argc, char** argv) {
  int i;
  if (argc != 2) return 2;
  for (i = 0; i < ROWS * D; ++i) x[i] = 1;
  for (i = 0; i < 100; ++i) {
    if (!call(argv[1])) return 1;
  }
  return 0;
}
