// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all.
#ifndef RMSNORM_TOOLS_OUTPUT_FILE_H_
#define RMSNORM_TOOLS_OUTPUT_FILE_H_

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace rmsnorm::tools {

// Two outputs with the same key are the same file, which need not exist.
std::filesystem::path FileKey(const std::string& path);

// A temporary file beside the target; Commit() renames it to the target. Without Commit(), and on
// signals that end the program, the temporary file is removed and the target stays as it was.
class OutputFile {
 public:
  // The functions throw UserError if the system refuses.
  explicit OutputFile(const std::string& path);
  void Write(std::string_view bytes, size_t begin = 0);
  // Flushes all data to the disk: without this, a renamed file may be empty after a power loss.
  void Sync();
  void Commit();

  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

 private:
  int Close();
  [[noreturn]] void Fail(const std::string& problem) const;

  std::string name_;                 // as the user gave it, for messages
  std::filesystem::path path_;       // with links resolved
  std::filesystem::path temporary_;  // empty once committed
  size_t slot_ = 0;                  // index of the temporary file for the signal handler
  int fd_ = -1;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_OUTPUT_FILE_H_
