// SPDX-License-Identifier: Apache-2.0
// The C interface compiles alone, and twice over, as C++.
#include <rmsnorm/rmsnorm.h>

rmsnorm_options HeaderTest() { return rmsnorm_default_options(); }
