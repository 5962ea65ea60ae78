// SPDX-License-Identifier: Apache-2.0
// The version's header compiles alone, and has the version of the build.
#include <rmsnorm/version.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  char parts[64];
  snprintf(parts, sizeof parts, "%d.%d.%d", RMSNORM_VERSION_MAJOR, RMSNORM_VERSION_MINOR,
           RMSNORM_VERSION_PATCH);
  if (strcmp(RMSNORM_VERSION, PROJECT_VERSION) == 0 && strcmp(parts, PROJECT_VERSION) == 0)
    return 0;
  printf("version.h has %s and the parts %s; meson.build has %s\n", RMSNORM_VERSION, parts,
         PROJECT_VERSION);
  return 1;
}
