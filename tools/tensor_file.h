// SPDX-License-Identifier: Apache-2.0
// Tensors in files of either format, as the command line names them.
#ifndef RMSNORM_TOOLS_TENSOR_FILE_H_
#define RMSNORM_TOOLS_TENSOR_FILE_H_

#include <string>
#include <utility>
#include <vector>

#include "input_file.h"
#include "tensor.h"

namespace rmsnorm::tools {

enum class FileFormat { kNpy, kSafetensors };

// FILE[:TENSOR] taken apart.
struct TensorLocation {
  std::string path;
  FileFormat format;
  std::string name;  // empty where none is given
};

// Paths and names may hold colons: the longest path that names a file is taken or, where there is
// no file, the longest path. Throws UserError if no path ends in .npy or .safetensors.
TensorLocation ParseLocation(const std::string& text);

// A tensor to read.
class InputTensor {
 public:
  // Throws UserError, naming the file, for whatever is wrong with it.
  explicit InputTensor(const TensorLocation& location);

  const TensorInfo& info() const { return tensor_.info; }

  // `count` elements from `first` on, read into memory that lives until the next call and may be
  // written.
  char* Elements(size_t first, size_t count);

 private:
  InputFile file_;
  Tensor tensor_;
  std::vector<char> elements_;
};

// What stands before the data of a file that holds these tensors, by their names, one right after
// the other. Throws UserError, naming the file, where there is no such file.
std::string FileHeader(const TensorLocation& location,
                       const std::vector<std::pair<std::string, TensorInfo>>& tensors);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_TENSOR_FILE_H_
