// SPDX-License-Identifier: Apache-2.0
// Tensors in files of either format, as the command line names them.
#ifndef RMSNORM_TOOLS_TENSOR_FILE_H_
#define RMSNORM_TOOLS_TENSOR_FILE_H_

#include <string>
#include <vector>

#include "input_file.h"
#include "tensor.h"

namespace rmsnorm::tools {

enum class FileFormat { kNpy, kSafetensors };

// The parts of FILE[:TENSOR].
struct TensorLocation {
  std::string path;
  FileFormat format;
  std::string name;  // empty if none is given
};

// Paths and names may contain colons: the path is the longest one that names a file or, if there is
// no file, the longest one of all. Throws UserError if no path ends in .npy or .safetensors.
TensorLocation ParseLocation(const std::string& text);

// A tensor to read.
class InputTensor {
 public:
  // Throws UserError with the file's name for any fault of the file.
  explicit InputTensor(const TensorLocation& location);

  const TensorInfo& info() const { return tensor_.info; }

  // `count` elements from element `first` on. They are in memory that stays valid until the next
  // call; the caller may overwrite it.
  char* Elements(size_t first, size_t count);

 private:
  InputFile file_;
  Tensor tensor_;
  std::vector<char> elements_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_TENSOR_FILE_H_
