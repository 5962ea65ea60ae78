// SPDX-License-Identifier: Apache-2.0
// Tensors in files of either format, as the command line names them.
#ifndef RMSNORM_TOOLS_TENSOR_FILE_H_
#define RMSNORM_TOOLS_TENSOR_FILE_H_

#include <string>

#include "mapped_file.h"
#include "tensor.h"

namespace rmsnorm::tools {

enum class FileFormat { kNpy, kSafetensors };

// FILE[:TENSOR] taken apart.
struct TensorLocation {
  std::string path;
  FileFormat format;
  std::string name;  // empty where none is given
};

// The name is what follows the last ".safetensors:", so that paths and names may hold other colons.
// Throws UserError if the path ends neither in .npy nor in .safetensors.
TensorLocation ParseLocation(const std::string& text);

// A tensor to read; its data lives as long as this.
class InputTensor {
 public:
  // Throws UserError, naming the file, for whatever is wrong with it.
  explicit InputTensor(const TensorLocation& location);

  const TensorInfo& info() const { return tensor_.info; }
  const char* data() const { return tensor_.data.data(); }

 private:
  MappedFile file_;
  Tensor tensor_;
};

// What stands before the data of a file at `location` that holds one tensor, called "output" where
// no name is given.
std::string FileHeader(const TensorLocation& location, const TensorInfo& info);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_TENSOR_FILE_H_
