// SPDX-License-Identifier: Apache-2.0
#include "output_file.h"

#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>

#include "cases/user_error.h"
#include "system_file.h"

namespace rmsnorm::tools {
namespace {

// The path with symbolic links resolved.
Path ResolvedPath(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path resolved =
      fs::path(".") / fs::u8path(path);  // becomes absolute even if there is no such file
  // weakly_canonical() does not follow a link to a file that does not exist. A longer chain of
  // links is a circle, as in Linux.
  for (int i = 0; i < 40 && fs::is_symlink(fs::symlink_status(resolved, error)); ++i) {
    resolved = resolved.parent_path() / fs::read_symlink(resolved, error);
  }
  resolved = fs::weakly_canonical(resolved, error);
  // A path that cannot be resolved cannot be written: status() will report the reason.
  return error ? fs::u8path(path) : resolved;
}

[[noreturn]] void Fail(const std::string& name, const std::string& problem) {
  throw cases::UserError("cannot write " + name + ": " + problem);
}

}  // namespace

Path FileKey(const std::string& path) { return CommonSpelling(ResolvedPath(path)); }

OutputFile::OutputFile(const std::string& path) : name_(path), path_(ResolvedPath(path)) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status existing = fs::status(path_, error);
  if (fs::exists(existing)) {
    if (!fs::is_regular_file(existing)) Fail(name_, "not a regular file");
    // A rename would replace even a file that is marked read-only.
    Require(std::ofstream(path_, std::ios::app).is_open());
  } else if (existing.type() != fs::file_type::not_found) {
    Fail(name_, error.message());
  }
  do {
    const std::string number = std::to_string(std::random_device()());
    temporary_ = path_.parent_path() / (".rmsnorm-" + number);
  } while (fs::exists(temporary_, error));
  file_.open(temporary_, std::ios::binary);
  Require(file_.is_open());
}

OutputFile::~OutputFile() {
  file_.close();  // Windows removes no open file
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove(temporary_, ignored);
}

void OutputFile::Write(std::string_view bytes, size_t begin) {
  file_.seekp(static_cast<std::streamoff>(begin));
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  Require(file_.good());
}

void OutputFile::Sync() {
  file_.close();
  Require(file_.good() && FlushToDisk(temporary_) == 0);
}

void OutputFile::Commit() {
  Require(RenameOver(temporary_, path_) == 0);
  temporary_.clear();
}

void OutputFile::Require(bool succeeded) const {
  if (!succeeded) Fail(name_, std::strerror(errno));
}

}  // namespace rmsnorm::tools
