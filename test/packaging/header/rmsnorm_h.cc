// SPDX-License-Identifier: Apache-2.0
// The C interface compiles alone, and when included twice, as C++.
#include <rmsnorm/rmsnorm.h>

rmsnorm_options HeaderTest() { return rmsnorm_default_options(); }
