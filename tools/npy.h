// SPDX-License-Identifier: Apache-2.0
// The .npy format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#ifndef RMSNORM_TOOLS_NPY_H_
#define RMSNORM_TOOLS_NPY_H_

#include <string>

#include "input_file.h"
#include "tensor.h"

namespace rmsnorm::tools {

// The tensor in a file of version 1 to 3 that holds '<f4' or '<f2' in C order. Throws UserError for
// anything else, and if the data is not exactly as long as the shape says.
Tensor ParseNpy(const InputFile& file);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_NPY_H_
