// SPDX-License-Identifier: Apache-2.0
// An output of a command on files appears whole or not at all: full disks, killed commands, links,
// permissions, and the order in which outputs reach the disk. For the order, the linker replaces
// fsync() and rename() by functions below (--wrap).
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include "cases/user_error.h"
#include "command.h"
#include "file_command.h"

namespace rmsnorm::test {
namespace {

Words calls;
size_t refused;  // the index of the call that fails, from 1

bool Refuses() {
  errno = EIO;
  return calls.size() == refused;
}

}  // namespace
}  // namespace rmsnorm::test

extern "C" int __real_fsync(int fd);
extern "C" int __real_rename(const char* from, const char* to);

extern "C" int __wrap_fsync(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) return -1;
  rmsnorm::test::calls.push_back("sync " + std::to_string(status.st_size));
  return rmsnorm::test::Refuses() ? -1 : __real_fsync(fd);
}

extern "C" int __wrap_rename(const char* from, const char* to) {
  rmsnorm::test::calls.push_back("rename " + std::filesystem::path(to).filename().string());
  return rmsnorm::test::Refuses() ? -1 : __real_rename(from, to);
}

namespace rmsnorm::test {
namespace {

using OutputFiles = FileCommandTest;

constexpr char kApply[] =
    "apply --input f32[50,100] --residual f32[50,100] --output a.npy --dtype f16 "
    "--residual-output b.npy";
constexpr char kBackward[] =
    "backward --input f32[50,100] --grad f32[50,100] --grad-input b.npy --grad-weight a.npy";

// The command runs in this process.
TEST_F(OutputFiles, AllAreOnTheDiskBeforeAnyIsRenamed) {
  ASSERT_EQ(chdir(File("").c_str()), 0);
  for (const char* const text : {kApply, kBackward}) {
    const Words words = Read(text).words;
    Make("a.npy", "as it was");
    Make("b.npy", "as it was");
    const auto before = Contents();
    for (const size_t number : {1u, 2u, 3u, 0u}) {
      SCOPED_TRACE(text + std::to_string(number));
      CLI::App app;
      int status = -1;
      tools::AddFileCommands(app, status);
      calls.clear();
      refused = number;
      const auto run = [&] { app.parse(Words(words.rbegin(), words.rend())); };
      if (number > 0) {
        EXPECT_THROW(run(), cases::UserError);
        EXPECT_EQ(Contents(), before);
        continue;
      }
      run();
      EXPECT_EQ(status, tools::kSuccess);
      const auto sync = [this](const std::string& name) {
        return "sync " + std::to_string(std::filesystem::file_size(File(name)));
      };
      EXPECT_EQ(calls, (Words{sync("a.npy"), sync("b.npy"), "rename a.npy", "rename b.npy"}));
    }
  }
  ASSERT_EQ(chdir("/"), 0);
}

// A limit on the size of files simulates a full disk: write() fails in the middle. b.npy is the
// larger file, so some limits are too small for that file alone. The command uses one thread:
// libomp writes a file when it starts, which the limit also affects.
TEST_F(OutputFiles, AFullDiskLeavesAllAsTheyWere) {
  for (const char* const line : {kApply, kBackward}) {
    for (const rlim_t limit : {rlim_t{0}, rlim_t{100}, rlim_t{500}, rlim_t{4096}, rlim_t{15000}}) {
      SCOPED_TRACE(limit);
      ExpectRefused(std::string(line) + " --threads 1", ".npy: File too large", [limit] {
        const rlimit size = {limit, limit};
        setrlimit(RLIMIT_FSIZE, &size);
        std::signal(SIGXFSZ, SIG_IGN);  // without this, the limit ends the process
      });
    }
  }
}

class LongWork : public FileCommandTest {
 protected:
  // 4 GiB of zeros that take no space: more than any machine can process at once.
  LongWork() {
    Make("x.npy", Npy(NpyHeader("<f4", "(1048576, 1024)"), ""));
    Extend("x.npy", uint64_t{4} << 30);
    Make("y.npy", "as it was");
  }

  // Waits until the command has its temporary file.
  void WaitForWork() const {
    EXPECT_TRUE(Wait([&] { return directory_.Names().size() == 3; }));
  }

  const Words words_ = {"apply", "--input", "x.npy", "--output", "y.npy"};
};

TEST_F(LongWork, AKilledCommandLeavesOnlyItsTemporaryFile) {
  for (const int signal : {SIGINT, SIGKILL}) {
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(File("").c_str()) != 0) _exit(126);
      ExecuteCommand(words_);
    }
    WaitForWork();
    kill(child, signal);
    EXPECT_EQ(WaitFor(child), 128 + signal);
    EXPECT_EQ(ReadFile(File("y.npy")), "as it was");
    for (const std::string& name : directory_.Names()) {
      if (name.rfind(".rmsnorm-", 0) == 0) std::filesystem::remove(File(name));
    }
    EXPECT_EQ(directory_.Names(), (Words{"x.npy", "y.npy"}));
  }
}

TEST_F(LongWork, AnInputThatBecomesShorterLeavesAllAsTheyWere) {
  std::thread shorten([&] {
    WaitForWork();
    std::filesystem::resize_file(File("x.npy"), 4096);
  });
  ExpectUserError(Run(words_), "cannot read x.npy: it became shorter meanwhile");
  shorten.join();
  EXPECT_EQ(ReadFile(File("y.npy")), "as it was");
  EXPECT_EQ(directory_.Names(), (Words{"x.npy", "y.npy"}));
}

TEST_F(OutputFiles, LinksAreFollowed) {
  const Words input = Read("apply --input f32[2,3]").words;
  const auto apply = [&](const std::string& output) {
    Words words = input;
    words.insert(words.end(), {"--output", output});
    return Run(words);
  };
  std::filesystem::create_directory(File("elsewhere"));
  std::filesystem::create_symlink("elsewhere/other.npy", File("link.npy"));
  std::filesystem::create_symlink(File("elsewhere/y.npy"), File("elsewhere/other.npy"));
  for (const bool is_there : {false, true}) {
    SCOPED_TRACE(is_there);
    ExpectSuccess(apply("link.npy"));
    EXPECT_TRUE(std::filesystem::is_symlink(File("link.npy")));
    EXPECT_TRUE(std::filesystem::is_symlink(File("elsewhere/other.npy")));
    EXPECT_EQ(ReadFile(File("elsewhere/y.npy")).substr(1, 5), "NUMPY");
    Make("elsewhere/y.npy", "as it was");
  }
  std::filesystem::create_symlink("missing/y.npy", File("nowhere.npy"));
  std::filesystem::create_symlink("circle.npy", File("circle.npy"));
  const Words before = directory_.Names();
  ExpectUserError(apply("nowhere.npy"), "nowhere.npy: No such file or directory");
  ExpectUserError(apply("circle.npy"), "circle.npy: Too many levels of symbolic links");
  EXPECT_EQ(directory_.Names(), before);
  ExpectSuccess(apply(std::string(251, 'y') + ".npy"));
}

TEST_F(OutputFiles, HaveThePermissionsOfANewFile) {
  const Words words = Read("apply --input f32[2,3] --output y.npy").words;
  for (const auto& [mask, permissions] : {std::pair{027u, 0640u}, std::pair{077u, 0600u}}) {
    ExpectSuccess(Run(words, [own = mask] { umask(own); }));
    struct stat status;
    ASSERT_EQ(stat(File("y.npy").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, permissions);
    EXPECT_EQ(status.st_uid, geteuid());
  }
  if (geteuid() == 0) return;  // root may write anything
  ASSERT_EQ(chmod(File("y.npy").c_str(), 0444), 0);
  ExpectUserError(Run(words), "y.npy: Permission denied");
}

}  // namespace
}  // namespace rmsnorm::test
