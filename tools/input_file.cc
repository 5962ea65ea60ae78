// SPDX-License-Identifier: Apache-2.0
#include "input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "user_error.h"

namespace rmsnorm::tools {

// With O_NONBLOCK, a pipe is refused at once.
InputFile::InputFile(const std::string& path)
    : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status = {};
  if (fd_ < 0 || fstat(fd_, &status) != 0) Fail(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) Fail("not a regular file");
  size_ = static_cast<size_t>(status.st_size);
}

InputFile::~InputFile() { close(fd_); }

void InputFile::Read(size_t begin, size_t count, char* bytes) const {
  while (count > 0) {
    const ssize_t got = pread(fd_, bytes, count, static_cast<off_t>(begin));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail(std::strerror(errno));
    if (got == 0) Fail("it became shorter meanwhile");
    begin += static_cast<size_t>(got);
    bytes += got;
    count -= static_cast<size_t>(got);
  }
}

std::string InputFile::Read(size_t begin, size_t count) const {
  std::string bytes(std::min(count, size_ - std::min(begin, size_)), '\0');
  Read(begin, bytes.size(), bytes.data());
  return bytes;
}

void InputFile::Fail(const std::string& problem) const {
  throw UserError("cannot read " + path_ + ": " + problem);
}

}  // namespace rmsnorm::tools
