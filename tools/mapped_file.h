// SPDX-License-Identifier: Apache-2.0
// A file to read, through a memory map.
#ifndef RMSNORM_TOOLS_MAPPED_FILE_H_
#define RMSNORM_TOOLS_MAPPED_FILE_H_

#include <string>
#include <string_view>

namespace rmsnorm::tools {

class MappedFile {
 public:
  // Throws UserError if `path` is not a regular file that can be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_MAPPED_FILE_H_
