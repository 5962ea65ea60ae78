// SPDX-License-Identifier: Apache-2.0
// A tensor as a file holds it.
#ifndef RMSNORM_TOOLS_TENSOR_H_
#define RMSNORM_TOOLS_TENSOR_H_

#include <cstddef>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

namespace rmsnorm::tools {

// The description of a tensor in a file. The elements lie in C order.
struct TensorInfo {
  Dtype dtype;
  std::vector<size_t> shape;
};

struct Tensor {
  TensorInfo info;
  size_t begin;  // offset of its data in the file
};

size_t ElementSize(Dtype dtype);

// The types that a user can name.
inline const std::map<std::string, Dtype> kDtypes = {
    {"f32", Dtype::f32}, {"f16", Dtype::f16}, {"bf16", Dtype::bf16}};

// "f32", "f16" or "bf16".
std::string DtypeName(Dtype dtype);

// Such as "[2, 24, 512]".
std::string ShapeText(const std::vector<size_t>& shape);

// The size of all elements. Throws UserError if no size_t can count it.
size_t ByteSize(const TensorInfo& info);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_TENSOR_H_
