// SPDX-License-Identifier: Apache-2.0
// The .safetensors format: https://github.com/huggingface/safetensors#format
#ifndef RMSNORM_TOOLS_SAFETENSORS_H_
#define RMSNORM_TOOLS_SAFETENSORS_H_

#include <string>
#include <utility>
#include <vector>

#include "input_file.h"
#include "tensor.h"

namespace rmsnorm::tools {

// The tensor called `name`, or the only one where `name` is empty. Throws UserError if the file
// breaks the format's rules (tensors must fill the data without holes or overlaps) or the tensor is
// not F32, F16 or BF16. Other tensors of the file may have any dtype.
Tensor ParseSafetensors(const InputFile& file, const std::string& name);

// The bytes before the data of a file that holds these tensors, with their names, one right after
// the other.
std::string SafetensorsHeader(const std::vector<std::pair<std::string, TensorInfo>>& tensors);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_SAFETENSORS_H_
