// SPDX-License-Identifier: Apache-2.0
#include "input_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "cases/user_error.h"

namespace rmsnorm::tools {

InputFile::InputFile(const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path native = fs::u8path(path);
  const fs::file_status status = fs::status(native, error);
  // Before it is opened: a pipe would wait for its writer.
  if (fs::exists(status) && !fs::is_regular_file(status)) Fail("not a regular file");
  file_.open(native, std::ios::binary);
  if (!file_) Fail(std::strerror(errno));
  size_ = static_cast<size_t>(fs::file_size(native));
}

void InputFile::Read(size_t begin, size_t count, char* bytes) const {
  if (count == 0) return;
  file_.seekg(static_cast<std::streamoff>(begin));
  file_.read(bytes, static_cast<std::streamsize>(count));
  if (file_.eof()) Fail("it became shorter meanwhile");
  if (!file_) Fail(std::strerror(errno));
}

std::string InputFile::Read(size_t begin, size_t count) const {
  std::string bytes(std::min(count, size_ - std::min(begin, size_)), '\0');
  Read(begin, bytes.size(), bytes.data());
  return bytes;
}

void InputFile::Fail(const std::string& problem) const {
  throw cases::UserError("cannot read " + path_ + ": " + problem);
}

}  // namespace rmsnorm::tools
