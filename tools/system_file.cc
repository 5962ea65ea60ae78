// SPDX-License-Identifier: Apache-2.0
#include "system_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>

#ifdef _WIN32
#include <io.h>
#define NOMINMAX 1  // as libstdc++ defines it
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <unistd.h>
#endif

namespace rmsnorm::tools {

#ifdef _WIN32

int FlushToDisk(const Path& path) {
  const int file = _wopen(path.c_str(), _O_WRONLY | _O_BINARY);
  const int status = file < 0 ? -1 : _commit(file);
  return file < 0 || _close(file) != 0 ? -1 : status;
}

int RenameOver(const Path& from, const Path& to) {
  if (MoveFileExW(from.c_str(), to.c_str(), MOVEFILE_REPLACE_EXISTING) != 0) return 0;
  const std::error_code error(static_cast<int>(GetLastError()), std::system_category());
  errno = error.default_error_condition().value();
  return -1;
}

Path CommonSpelling(const Path& path) {
  std::wstring upper = path.native();
  CharUpperBuffW(upper.data(), static_cast<DWORD>(upper.size()));
  return upper;
}

void WriteToStdout(const char* bytes, size_t count) {
  [[maybe_unused]] const int written = _write(_fileno(stdout), bytes, static_cast<unsigned>(count));
}

bool StderrIsTerminal() { return _isatty(_fileno(stderr)) != 0; }

#else

int FlushToDisk(const Path& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const int status = file < 0 ? -1 : fsync(file);
  return file < 0 || close(file) != 0 ? -1 : status;
}

int RenameOver(const Path& from, const Path& to) { return std::rename(from.c_str(), to.c_str()); }
Path CommonSpelling(const Path& path) { return path; }

void WriteToStdout(const char* bytes, size_t count) {
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, bytes, count);
}

bool StderrIsTerminal() { return isatty(STDERR_FILENO) != 0; }

#endif

}  // namespace rmsnorm::tools
