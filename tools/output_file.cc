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

constexpr int kInterrupts[] = {SIGINT, SIGTERM, SIGHUP};

// The temporary files for the signal handler, or null.
std::atomic<const char*> interrupted_temporaries[2] = {};
static_assert(std::atomic<const char*>::is_always_lock_free);

void RemoveTemporaryAndDie(int signal) {
  for (const char* const temporary : interrupted_temporaries) {
    if (temporary != nullptr) unlink(temporary);
  }
  // SA_RESETHAND has put the default action back, which ends the process once this returns.
  raise(signal);
}

void HandleSignals() {
  struct sigaction action = {};
  action.sa_handler = RemoveTemporaryAndDie;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int signal : kInterrupts) {
    struct sigaction previous;
    // Whoever started us with a signal ignored (nohup) keeps it so.
    if (sigaction(signal, nullptr, &previous) == 0 && previous.sa_handler != SIG_IGN) {
      sigaction(signal, &action, nullptr);
    }
  }
  // A file size limit then shows as an error of write().
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace

std::string ResolvedPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
  // A path that cannot be resolved is one that cannot be written: opening it will say so.
  return error ? path : resolved.string();
}

OutputFile::OutputFile(const std::string& path) : name_(path), path_(ResolvedPath(path)) {
  struct stat existing;
  const bool exists = stat(path_.c_str(), &existing) == 0;
  if (exists && !S_ISREG(existing.st_mode)) {
    throw UserError("cannot write " + name_ + ": not a regular file");
  }
  // A rename would replace even a file that is marked read-only.
  if (exists && access(path_.c_str(), W_OK) != 0) Fail();

  HandleSignals();
  const std::string prefix =
      std::filesystem::path(path_).parent_path() / (".rmsnorm-" + std::to_string(getpid()) + "-");
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = prefix + std::to_string(attempt);
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno != EEXIST) Fail();
  }
  if (interrupted_temporaries[slot_] != nullptr) ++slot_;
  interrupted_temporaries[slot_] = temporary_.c_str();
  // Not every file system has permission bits: a refusal is no reason to stop.
  if (exists) static_cast<void>(fchmod(fd_, existing.st_mode & 07777));
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
  if (temporary_.empty()) return;
  unlink(temporary_.c_str());
  interrupted_temporaries[slot_] = nullptr;
}

void OutputFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      Fail();
    }
  }
}

void OutputFile::Close() {
  if (fd_ < 0) return;
  // Some file systems report a full disk only here.
  const int closed = close(fd_);
  fd_ = -1;
  if (closed != 0) Fail();
}

void OutputFile::Commit() {
  Close();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail();
  interrupted_temporaries[slot_] = nullptr;
  temporary_.clear();
}

void OutputFile::Fail() const {
  throw UserError("cannot write " + name_ + ": " + std::strerror(errno));
}

}  // namespace rmsnorm::tools
