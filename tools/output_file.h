// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all.
#ifndef RMSNORM_TOOLS_OUTPUT_FILE_H_
#define RMSNORM_TOOLS_OUTPUT_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace rmsnorm::tools {

// The path with symbolic links resolved: two outputs with the same one are the same file.
std::string ResolvedPath(const std::string& path);

// Writes a temporary file beside `path`, which no other user may open; Commit() renames it over
// `path`. Without Commit(), and on SIGINT, SIGTERM and SIGHUP, the temporary file goes and `path`
// stays as it was. Three at a time. The man page says which permissions the file gets, and that
// symbolic links are followed.
class OutputFile {
 public:
  // Each throws UserError if the system refuses.
  explicit OutputFile(const std::string& path);
  void Write(std::string_view bytes);
  // Writes all to the disk. Only Commit() may follow.
  void Sync();
  void Commit();

  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

 private:
  [[noreturn]] void Fail() const;
  std::filesystem::path Folder() const { return std::filesystem::path(path_).parent_path(); }

  std::string name_;                      // as the user gave it, for messages
  std::string path_;                      // with links resolved
  std::string temporary_;                 // empty once committed
  mode_t mode_;                           // the permissions that the file is to have
  gid_t group_ = static_cast<gid_t>(-1);  // and its group, or the one that new files have
  size_t slot_ = 0;                       // where the signal handler finds it
  int fd_ = -1;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_OUTPUT_FILE_H_
