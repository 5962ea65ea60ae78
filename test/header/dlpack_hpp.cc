// SPDX-License-Identifier: Apache-2.0
// The adaptor for DLPack compiles alone.
#include <rmsnorm/dlpack.hpp>

void HeaderTest(const DLTensor& x, const DLManagedTensor& y) {
  rmsnorm::forward(rmsnorm::dlpack_input(x), nullptr, rmsnorm::dlpack_output(y));
}
