// SPDX-License-Identifier: Apache-2.0
#include "output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "user_error.h"

namespace rmsnorm::tools {
namespace {

// The temporary files for the signal handler, or null.
std::atomic<const char*> temporaries[8] = {};
static_assert(std::atomic<const char*>::is_always_lock_free);

void RemoveTemporariesAndDie(int signal) {
  for (const char* const temporary : temporaries) {
    if (temporary != nullptr) unlink(temporary);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

}  // namespace

std::string ResolvedPath(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path resolved = fs::path(".") / path;  // becomes absolute even if there is no such file
  // weakly_canonical() does not follow a link to a file that does not exist. A longer chain of
  // links is a circle, as in Linux.
  for (int i = 0; i < 40 && fs::is_symlink(fs::symlink_status(resolved, error)); ++i) {
    resolved = resolved.parent_path() / fs::read_symlink(resolved, error);
  }
  resolved = fs::weakly_canonical(resolved, error);
  // A path that cannot be resolved cannot be written: stat() will report the reason.
  return error ? path : resolved.string();
}

OutputFile::OutputFile(const std::string& path) : name_(path), path_(ResolvedPath(path)) {
  struct stat existing;
  if (stat(path_.c_str(), &existing) == 0) {
    if (!S_ISREG(existing.st_mode)) {
      throw UserError("cannot write " + name_ + ": not a regular file");
    }
    // A rename would replace even a file that is marked read-only.
    if (access(path_.c_str(), W_OK) != 0) Fail();
  } else if (errno != ENOENT) {
    Fail();
  }
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // A signal that the caller ignores (nohup) stays ignored.
    if (std::signal(signal, RemoveTemporariesAndDie) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
  // An exceeded file size limit then becomes an error of pwrite().
  std::signal(SIGXFSZ, SIG_IGN);

  while (temporaries[slot_] != nullptr) ++slot_;
  // A killed process with the same number may have left a file behind.
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporaries[slot_] = nullptr;
    temporary_ = std::filesystem::path(path_).parent_path() /
                 (".rmsnorm-" + std::to_string(getpid()) + "-" + std::to_string(attempt));
    temporaries[slot_] = temporary_.c_str();
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0 || errno == EEXIST) continue;
    temporaries[slot_] = nullptr;
    Fail();
  }
}

OutputFile::~OutputFile() {
  close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporaries[slot_] = nullptr;
}

void OutputFile::Write(std::string_view bytes, size_t begin) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (written < 0 && errno != EINTR) Fail();
    const size_t count = written < 0 ? 0 : static_cast<size_t>(written);
    bytes.remove_prefix(count);
    begin += count;
  }
}

void OutputFile::Sync() {
  if (fsync(fd_) != 0) Fail();
}

void OutputFile::Commit() {
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail();
  temporaries[slot_] = nullptr;
  temporary_.clear();
}

void OutputFile::Fail() const {
  throw UserError("cannot write " + name_ + ": " + std::strerror(errno));
}

}  // namespace rmsnorm::tools
