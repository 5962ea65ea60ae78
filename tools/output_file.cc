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
std::atomic<const char*> interrupted_temporaries[3] = {};
static_assert(std::atomic<const char*>::is_always_lock_free);

void RemoveTemporaryAndDie(int signal) {
  for (const char* const temporary : interrupted_temporaries) {
    if (temporary != nullptr) unlink(temporary);
  }
  // SA_RESETHAND has put the default action back, which ends the process once this returns.
  raise(signal);
}

// Also blocks the signals; returns the mask there was.
sigset_t HandleSignals() {
  struct sigaction action = {};
  action.sa_handler = RemoveTemporaryAndDie;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigset_t blocked, before;
  sigemptyset(&blocked);
  for (int signal : kInterrupts) {
    sigaddset(&blocked, signal);
    struct sigaction previous;
    // Whoever started us with a signal ignored (nohup) keeps it so.
    if (sigaction(signal, nullptr, &previous) == 0 && previous.sa_handler != SIG_IGN) {
      sigaction(signal, &action, nullptr);
    }
  }
  // A file size limit then shows as an error of write().
  std::signal(SIGXFSZ, SIG_IGN);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  return before;
}

}  // namespace

std::string ResolvedPath(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path resolved = fs::path(".") / path;  // made absolute even where there is no such file
  // weakly_canonical() does not follow a link to a file that does not exist. More links than these
  // are a circle, as for Linux.
  for (int i = 0; i < 40 && fs::is_symlink(fs::symlink_status(resolved, error)); ++i) {
    resolved = resolved.parent_path() / fs::read_symlink(resolved, error);
  }
  resolved = fs::weakly_canonical(resolved, error);
  // A path that cannot be resolved is one that cannot be written: opening it will say so.
  return error ? path : resolved.string();
}

OutputFile::OutputFile(const std::string& path) : name_(path), path_(ResolvedPath(path)) {
  struct stat existing;
  const bool exists = stat(path_.c_str(), &existing) == 0;
  if (!exists && errno != ENOENT) Fail();
  if (exists && !S_ISREG(existing.st_mode)) {
    throw UserError("cannot write " + name_ + ": not a regular file");
  }
  // A rename would replace even a file that is marked read-only.
  if (exists && access(path_.c_str(), W_OK) != 0) Fail();
  const mode_t mask = umask(0);
  umask(mask);
  // Bits beyond these could hand the rights of who runs this to others.
  mode_ = (exists ? existing.st_mode : 0666 & ~mask) & 0777;
  if (exists) group_ = existing.st_gid;

  const sigset_t before = HandleSignals();
  const std::string prefix = Folder() / (".rmsnorm-" + std::to_string(getpid()) + "-");
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = prefix + std::to_string(attempt);
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0 && errno != EEXIST) Fail();
  }
  while (interrupted_temporaries[slot_] != nullptr) ++slot_;
  interrupted_temporaries[slot_] = temporary_.c_str();
  sigprocmask(SIG_SETMASK, &before, nullptr);
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

void OutputFile::Sync() {
  // What one group was permitted is not for another.
  if (fchown(fd_, static_cast<uid_t>(-1), group_) != 0) mode_ &= 0707;
  // Not every file system has permission bits: a refusal is no reason to stop.
  static_cast<void>(fchmod(fd_, mode_));
  if (fsync(fd_) != 0) Fail();
  // Some file systems report a full disk only here.
  const int closed = close(fd_);
  fd_ = -1;
  if (closed != 0) Fail();
}

void OutputFile::Commit() {
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail();
  interrupted_temporaries[slot_] = nullptr;
  temporary_.clear();
  // Not every folder can be opened or written to the disk: a refusal is no reason to stop.
  const int folder = open(Folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  static_cast<void>(fsync(folder));
  close(folder);
}

void OutputFile::Fail() const {
  throw UserError("cannot write " + name_ + ": " + std::strerror(errno));
}

}  // namespace rmsnorm::tools
