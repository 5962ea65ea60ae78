// SPDX-License-Identifier: Apache-2.0
#include "output_file.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include "system_file.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

// The temporary files for the signal handler, or null.
std::atomic<const Path*> temporaries[8] = {};
static_assert(std::atomic<const Path*>::is_always_lock_free);

void RemoveTemporariesAndDie(int signal) {
  for (const Path* const temporary : temporaries) {
    if (temporary != nullptr) RemoveFile(*temporary);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

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

}  // namespace

Path FileKey(const std::string& path) { return CommonSpelling(ResolvedPath(path)); }

OutputFile::OutputFile(const std::string& path) : name_(path), path_(ResolvedPath(path)) {
  std::error_code error;
  const std::filesystem::file_status existing = std::filesystem::status(path_, error);
  if (std::filesystem::exists(existing)) {
    if (!std::filesystem::is_regular_file(existing)) Fail("not a regular file");
    // A rename would replace even a file that is marked read-only.
    if (CheckWritable(path_) != 0) Fail(std::strerror(errno));
  } else if (existing.type() != std::filesystem::file_type::not_found) {
    Fail(error.message());
  }
  CatchEndingSignals(RemoveTemporariesAndDie);

  while (temporaries[slot_] != nullptr) ++slot_;
  // A killed process with the same number may have left a file behind.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporaries[slot_] = nullptr;
    temporary_ = path_.parent_path() /
                 (".rmsnorm-" + std::to_string(ProcessId()) + "-" + std::to_string(attempt));
    temporaries[slot_] = &temporary_;
    fd_ = CreateToWrite(temporary_);
    if (fd_ >= 0 || errno == EEXIST) continue;
    temporaries[slot_] = nullptr;
    Fail(std::strerror(errno));
  }
}

OutputFile::~OutputFile() {
  Close();
  if (!temporary_.empty()) RemoveFile(temporary_);
  temporaries[slot_] = nullptr;
}

void OutputFile::Write(std::string_view bytes, size_t begin) {
  while (!bytes.empty()) {
    const int64_t written = WriteAt(fd_, bytes.data(), bytes.size(), begin);
    if (written < 0 && errno != EINTR) Fail(std::strerror(errno));
    const size_t count = written < 0 ? 0 : static_cast<size_t>(written);
    bytes.remove_prefix(count);
    begin += count;
  }
}

void OutputFile::Sync() {
  if (FlushToDisk(fd_) != 0) Fail(std::strerror(errno));
}

// Windows renames no open file.
void OutputFile::Commit() {
  if (Close() != 0 || RenameOver(temporary_, path_) != 0) Fail(std::strerror(errno));
  temporaries[slot_] = nullptr;
  temporary_.clear();
}

int OutputFile::Close() { return fd_ < 0 ? 0 : CloseFile(std::exchange(fd_, -1)); }

void OutputFile::Fail(const std::string& problem) const {
  throw UserError("cannot write " + name_ + ": " + problem);
}

}  // namespace rmsnorm::tools
