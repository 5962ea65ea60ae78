// SPDX-License-Identifier: Apache-2.0
// The adaptor for DLPack compiles alone.
#include <rmsnorm/dlpack.hpp>

void HeaderTest(const DLTensor& x, const DLManagedTensor& y) {
  rmsnorm::norm(rmsnorm::dlpack_input(x), {}, rmsnorm::dlpack_output(y));
}
