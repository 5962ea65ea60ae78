// SPDX-License-Identifier: Apache-2.0
// A file to read.
#ifndef RMSNORM_TOOLS_INPUT_FILE_H_
#define RMSNORM_TOOLS_INPUT_FILE_H_

#include <cstddef>
#include <fstream>
#include <string>

namespace rmsnorm::tools {

class InputFile {
 public:
  // Throws UserError if `path` is not a regular file that can be read.
  explicit InputFile(const std::string& path);

  const std::string& path() const { return path_; }
  // The size when the file was opened.
  size_t size() const { return size_; }

  // Both throw UserError if the file has become too short. They do not map it into memory: a
  // missing page would end the process. The second reads less if size() is less.
  void Read(size_t begin, size_t count, char* bytes) const;
  std::string Read(size_t begin, size_t count) const;

 private:
  [[noreturn]] void Fail(const std::string& problem) const;

  std::string path_;
  mutable std::ifstream file_;
  size_t size_ = 0;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_INPUT_FILE_H_
