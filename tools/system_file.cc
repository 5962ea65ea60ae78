// SPDX-License-Identifier: Apache-2.0
#include "system_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>

#ifdef _WIN32
#include <io.h>
#include <process.h>
#define NOMINMAX 1  // as libstdc++ defines it
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <unistd.h>
#endif

namespace rmsnorm::tools {

#ifdef _WIN32

namespace {

// Counts are `unsigned` there.
unsigned AtOnce(size_t count) {
  return static_cast<unsigned>(std::min<size_t>(count, size_t{1} << 30));
}

int Refused() {
  const std::error_code error(static_cast<int>(GetLastError()), std::system_category());
  errno = error.default_error_condition().value();
  return -1;
}

}  // namespace

int OpenToRead(const Path& path) {
  return _wopen(path.c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT);
}

// Only a file that shares its deletion can be removed while it is open.
int CreateToWrite(const Path& path) {
  const HANDLE handle =
      CreateFileW(path.c_str(), GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_DELETE, nullptr,
                  CREATE_NEW, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (handle == INVALID_HANDLE_VALUE) return Refused();
  return _open_osfhandle(reinterpret_cast<intptr_t>(handle), _O_BINARY);
}

int64_t ReadAt(int file, char* bytes, size_t count, size_t begin) {
  if (_lseeki64(file, static_cast<int64_t>(begin), SEEK_SET) < 0) return -1;
  return _read(file, bytes, AtOnce(count));
}

int64_t WriteAt(int file, const char* bytes, size_t count, size_t begin) {
  if (_lseeki64(file, static_cast<int64_t>(begin), SEEK_SET) < 0) return -1;
  return _write(file, bytes, AtOnce(count));
}

int64_t SizeOf(int file) {
  struct _stat64 status;
  if (_fstat64(file, &status) != 0) return -1;
  return (status.st_mode & _S_IFMT) == _S_IFREG ? status.st_size : -1;
}

int FlushToDisk(int file) { return _commit(file); }
int CloseFile(int file) { return _close(file); }

int RenameOver(const Path& from, const Path& to) {
  return MoveFileExW(from.c_str(), to.c_str(), MOVEFILE_REPLACE_EXISTING) != 0 ? 0 : Refused();
}

int RemoveFile(const Path& path) { return _wunlink(path.c_str()); }

int CheckWritable(const Path& path) {
  constexpr int kWrite = 2;
  return _waccess(path.c_str(), kWrite);
}

Path CommonSpelling(const Path& path) {
  std::wstring upper = path.native();
  CharUpperBuffW(upper.data(), static_cast<DWORD>(upper.size()));
  return upper;
}

void CatchEndingSignals(void (*end)(int)) {
  // SIGBREAK: Ctrl-Break, or the end of the console, of the session or of the system.
  for (const int signal : {SIGINT, SIGTERM, SIGBREAK}) {
    if (std::signal(signal, end) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

void WriteToStdout(const char* bytes, size_t count) {
  [[maybe_unused]] const int written = _write(_fileno(stdout), bytes, AtOnce(count));
}

bool StderrIsTerminal() { return _isatty(_fileno(stderr)) != 0; }
int ProcessId() { return _getpid(); }

#else

// With O_NONBLOCK, a pipe is refused at once.
int OpenToRead(const Path& path) { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }

int CreateToWrite(const Path& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

int64_t ReadAt(int file, char* bytes, size_t count, size_t begin) {
  return pread(file, bytes, count, static_cast<off_t>(begin));
}

int64_t WriteAt(int file, const char* bytes, size_t count, size_t begin) {
  return pwrite(file, bytes, count, static_cast<off_t>(begin));
}

int64_t SizeOf(int file) {
  struct stat status;
  if (fstat(file, &status) != 0) return -1;
  return S_ISREG(status.st_mode) ? status.st_size : -1;
}

int FlushToDisk(int file) { return fsync(file); }
int CloseFile(int file) { return close(file); }
int RenameOver(const Path& from, const Path& to) { return std::rename(from.c_str(), to.c_str()); }
int RemoveFile(const Path& path) { return unlink(path.c_str()); }
int CheckWritable(const Path& path) { return access(path.c_str(), W_OK); }
Path CommonSpelling(const Path& path) { return path; }

void CatchEndingSignals(void (*end)(int)) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal, end) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

void WriteToStdout(const char* bytes, size_t count) {
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, bytes, count);
}

bool StderrIsTerminal() { return isatty(STDERR_FILENO) != 0; }
int ProcessId() { return getpid(); }

#endif

}  // namespace rmsnorm::tools
