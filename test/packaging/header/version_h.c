// SPDX-License-Identifier: Apache-2.0
// The version's header compiles alone.
#include <rmsnorm/version.h>

const char* header_test(void);
const char* header_test(void) { return RMSNORM_VERSION; }

/* The parts are numbers. */
int version_parts[] = {RMSNORM_VERSION_MAJOR, RMSNORM_VERSION_MINOR, RMSNORM_VERSION_PATCH};
