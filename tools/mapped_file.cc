// SPDX-License-Identifier: Apache-2.0
#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "user_error.h"

namespace rmsnorm::tools {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

UserError CannotRead(const std::string& path) {
  return UserError("cannot read " + path + ": " + std::strerror(errno));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: a pipe is refused, not waited for.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) throw CannotRead(path);
  if (!S_ISREG(status.st_mode)) throw UserError("cannot read " + path + ": not a regular file");
  const size_t size = static_cast<size_t>(status.st_size);
  if (size == 0) return;  // mmap refuses to map nothing
  void* const address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw CannotRead(path);
  madvise(address, size, MADV_SEQUENTIAL);
  bytes_ = {static_cast<const char*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace rmsnorm::tools
