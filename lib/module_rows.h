// SPDX-License-Identifier: Apache-2.0
// Calls of a module by pointers, of dense rows. Where a call is plainly right and has one part,
// nothing lies between its pointers and the kernel but a run. Any other call goes by views, where
// the checks find what is wrong with it.
#ifndef RMSNORM_LIB_MODULE_ROWS_H_
#define RMSNORM_LIB_MODULE_ROWS_H_

#include "operands.h"

namespace rmsnorm::internal {

// The most rows of a call by pointers that does not go by views; 0 where the module's options are
// refused without the operands that such calls lack. More rows may be worth several parts or stores
// past the caches, and backward then has several blocks of rows.
size_t MostDirectRows(Operation operation, const rmsnorm_module& module);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_MODULE_ROWS_H_
