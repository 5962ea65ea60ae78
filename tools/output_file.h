// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all.
#ifndef RMSNORM_TOOLS_OUTPUT_FILE_H_
#define RMSNORM_TOOLS_OUTPUT_FILE_H_

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace rmsnorm::tools {

// Two outputs with the same key are the same file, which need not exist.
std::filesystem::path FileKey(const std::string& path);

// A temporary file beside the target, called .rmsnorm-NUMBER, which Commit() renames to the target.
// Without Commit(), the destructor removes it and the target stays as it was.
class OutputFile {
 public:
  // The functions throw UserError if the system refuses.
  explicit OutputFile(const std::string& path);
  void Write(std::string_view bytes, size_t begin = 0);
  // Closes the file and flushes it to the disk: without this, a renamed file may be empty after a
  // power loss.
  void Sync();
  void Commit();

  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

 private:
  void Require(bool succeeded) const;

  std::string name_;                 // as the user gave it, for messages
  std::filesystem::path path_;       // with links resolved
  std::filesystem::path temporary_;  // empty once committed
  std::ofstream file_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_OUTPUT_FILE_H_
