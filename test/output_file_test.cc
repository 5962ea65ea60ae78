// SPDX-License-Identifier: Apache-2.0
// The order in which `rmsnorm apply` and `rmsnorm backward` bring their outputs to the disk, and
// what they do where the system refuses. The linker puts the functions below in place of fchown(),
// fsync() and rename() (--wrap).
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "command.h"
#include "run_command.h"
#include "tensor_files.h"
#include "user_error.h"

namespace rmsnorm::test {
namespace {

using Words = std::vector<std::string>;

Words calls;
size_t refused;  // the number of the call that fails, from 1 on
bool refuses_group = false;

bool Refuses() {
  errno = EIO;
  return calls.size() == refused;
}

}  // namespace
}  // namespace rmsnorm::test

extern "C" int __real_fchown(int fd, uid_t owner, gid_t group);
extern "C" int __real_fsync(int fd);
extern "C" int __real_rename(const char* from, const char* to);

extern "C" int __wrap_fchown(int fd, uid_t owner, gid_t group) {
  return rmsnorm::test::refuses_group ? -1 : __real_fchown(fd, owner, group);
}

extern "C" int __wrap_fsync(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) return -1;
  rmsnorm::test::calls.push_back(
      S_ISDIR(status.st_mode) ? "sync folder" : "sync " + std::to_string(status.st_size));
  return rmsnorm::test::Refuses() ? -1 : __real_fsync(fd);
}

extern "C" int __wrap_rename(const char* from, const char* to) {
  rmsnorm::test::calls.push_back("rename " + std::filesystem::path(to).filename().string());
  return rmsnorm::test::Refuses() ? -1 : __real_rename(from, to);
}

namespace rmsnorm::test {
namespace {

class OutputFileTest : public DirectoryTest {
 protected:
  OutputFileTest() {
    tools::AddApply(app_, status_);
    tools::AddBackward(app_, status_);
  }

  // Runs a command; `number` is that of the call that fails, or 0.
  void Run(Words words, size_t number = 0) {
    calls.clear();
    refused = number;
    app_.parse(Words(words.rbegin(), words.rend()));
  }

  const std::string x_ = Make("x.npy", Npy(NpyHeader("<f4", "(2, 3)"), Bytes(Numbers(6))));
  const std::string a_ = Make("a.npy", "as it was");
  const std::string b_ = Make("b.npy", "as it was");
  const Words before_ = directory_.Names();
  const std::vector<Words> commands_ = {
      {"apply", "--input", x_, "--output", a_, "--residual", x_, "--residual-output", b_},
      {"backward", "--input", x_, "--grad", x_, "--grad-input", a_, "--grad-weight", b_},
  };
  CLI::App app_;
  int status_ = -1;
};

TEST_F(OutputFileTest, AllIsOnTheDiskBeforeAnyTakesItsPlace) {
  for (const Words& command : commands_) {
    SCOPED_TRACE(command[0]);
    Run(command);
    const auto size = [](const std::string& file) {
      return std::to_string(std::filesystem::file_size(file));
    };
    EXPECT_EQ(calls, (Words{"sync " + size(a_), "sync " + size(b_), "rename a.npy", "sync folder",
                            "rename b.npy", "sync folder"}));
  }
}

TEST_F(OutputFileTest, WhatIsRefusedLeavesBothOutputsAlone) {
  for (const Words& command : commands_) {
    for (const size_t number : {1u, 2u, 3u}) {
      SCOPED_TRACE(command[0] + " " + std::to_string(number));
      EXPECT_THROW(Run(command, number), tools::UserError);
      EXPECT_EQ(ReadFile(a_), "as it was");
      EXPECT_EQ(ReadFile(b_), "as it was");
      EXPECT_EQ(directory_.Names(), before_);
    }
  }
}

TEST_F(OutputFileTest, AnotherGroupGetsNoPermissions) {
  ASSERT_EQ(chmod(a_.c_str(), 0665), 0);
  refuses_group = true;
  Run(commands_[0]);
  refuses_group = false;
  struct stat status;
  ASSERT_EQ(stat(a_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0605u);
}

TEST_F(OutputFileTest, AFolderThatCannotBeSyncedIsNoError) {
  for (const Words& command : commands_) {
    Run(command, 4);
    EXPECT_EQ(status_, 0);
    EXPECT_EQ(ReadFile(b_).substr(1, 5), "NUMPY");
    EXPECT_EQ(directory_.Names(), before_);
  }
}

}  // namespace
}  // namespace rmsnorm::test
