// SPDX-License-Identifier: Apache-2.0
#include "input_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "system_file.h"
#include "user_error.h"

namespace rmsnorm::tools {

// Windows does not open a directory, and gives a reason that misleads: permission denied.
InputFile::InputFile(const std::string& path)
    : path_(path), fd_(OpenToRead(std::filesystem::u8path(path))) {
  const int problem = errno;
  std::error_code ignored;
  if (fd_ < 0 && !std::filesystem::is_directory(std::filesystem::u8path(path), ignored))
    Fail(std::strerror(problem));
  const int64_t size = fd_ < 0 ? -1 : SizeOf(fd_);
  if (size < 0) Fail("not a regular file");
  size_ = static_cast<size_t>(size);
}

InputFile::~InputFile() { CloseFile(fd_); }

void InputFile::Read(size_t begin, size_t count, char* bytes) const {
  while (count > 0) {
    const int64_t got = ReadAt(fd_, bytes, count, begin);
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
