// SPDX-License-Identifier: Apache-2.0
#include "tensor.h"

#include <cstdint>

#include "cases/user_error.h"

namespace rmsnorm::tools {

size_t ElementSize(Dtype dtype) { return rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype)); }

std::string DtypeName(Dtype dtype) { return rmsnorm_dtype_name(static_cast<rmsnorm_dtype>(dtype)); }

std::string ShapeText(const std::vector<size_t>& shape) {
  std::string text;
  for (size_t dimension : shape) text += (text.empty() ? "" : ", ") + std::to_string(dimension);
  return "[" + text + "]";
}

size_t ByteSize(const TensorInfo& info) {
  size_t size = ElementSize(info.dtype);
  for (size_t dimension : info.shape) {
    if (dimension != 0 && size > SIZE_MAX / dimension) {
      throw cases::UserError("shape " + ShapeText(info.shape) + " overflows");
    }
    size *= dimension;
  }
  return size;
}

}  // namespace rmsnorm::tools
