// SPDX-License-Identifier: Apache-2.0
// An output of a command on files appears whole or not at all: full disks, signals, links,
// permissions, and the order in which outputs reach the disk. For the order, the linker puts
// functions below in place of fsync() and rename() (--wrap).
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include "command.h"
#include "file_command.h"
#include "user_error.h"

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
TEST_F(OutputFiles, AllAreOnTheDiskBeforeAnyTakesItsPlace) {
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
        EXPECT_THROW(run(), tools::UserError);
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

// A limit on the size of files simulates a full disk: pwrite() fails in the middle. b.npy is the
// larger file, so some limits are too small for that file alone. The command uses one thread:
// libomp writes a file when it starts, which the limit also affects.
TEST_F(OutputFiles, AFullDiskLeavesAllAsTheyWere) {
  for (const char* const line : {kApply, kBackward}) {
    for (const rlim_t limit : {rlim_t{0}, rlim_t{100}, rlim_t{500}, rlim_t{4096}, rlim_t{15000}}) {
      SCOPED_TRACE(limit);
      ExpectRefused(std::string(line) + " --threads 1", ".npy: File too large", [limit] {
        const rlimit size = {limit, limit};
        setrlimit(RLIMIT_FSIZE, &size);
      });
    }
  }
}

class LongWork : public FileCommandTest {
 protected:
  // 4 GiB of zeros that take no space: more than any machine can process at once.
  LongWork() {
    Make("x.npy", Npy(NpyHeader("<f4", "(1048576, 1024)"), ""));
    std::filesystem::resize_file(File("x.npy"),
                                 Contents().at("x.npy").size() + (uint64_t{4} << 30));
    Make("a.npy", "as it was");
    Make("b.npy", "as it was");
  }

  // Starts a command, and returns when it has its temporary files.
  pid_t Begin(const Words& words, const Prepare& prepare) const {
    const size_t before = directory_.Names().size();
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(File("").c_str()) != 0) _exit(126);
      prepare();
      ExecuteCommand(words);
    }
    EXPECT_TRUE(Wait([&] { return directory_.Names().size() == before + 2; }));
    return child;
  }

  const Words apply_ = {"apply", "--input",           "x.npy", "--residual", "x.npy", "--output",
                        "a.npy", "--residual-output", "b.npy"};
  const Words backward_ = {"backward",     "--input", "x.npy",         "--grad", "x.npy",
                           "--grad-input", "a.npy",   "--grad-weight", "b.npy"};
};

TEST_F(LongWork, ASignalLeavesAllAsTheyWere) {
  const auto before = Contents();
  for (const Words& words : {apply_, backward_}) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      SCOPED_TRACE(words[0] + std::to_string(signal));
      // nohup makes processes ignore it.
      const pid_t child = Begin(words, [signal] { std::signal(signal, SIG_DFL); });
      kill(child, signal);
      EXPECT_EQ(WaitFor(child), 128 + signal);
      EXPECT_EQ(Contents(), before);
    }
  }
}

TEST_F(LongWork, AnIgnoredSignalIsIgnored) {
  const pid_t child = Begin(apply_, [] { std::signal(SIGHUP, SIG_IGN); });
  kill(child, SIGHUP);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // enough time to die of the signal
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0);
  kill(child, SIGTERM);
  EXPECT_EQ(WaitFor(child), 128 + SIGTERM);
}

TEST_F(LongWork, AnInputThatBecomesShorterLeavesAllAsTheyWere) {
  auto before = Contents();
  const std::string input = "x.npy";
  const size_t names = before.size();
  std::thread shorten([&] {
    EXPECT_TRUE(Wait([&] { return directory_.Names().size() > names; }));
    std::filesystem::resize_file(File(input), 4096);
  });
  ExpectUserError(Run(apply_), "cannot read x.npy: it became shorter meanwhile");
  shorten.join();
  before[input] = ReadFile(File(input));
  EXPECT_EQ(Contents(), before);
}

TEST_F(LongWork, ShowsABarOnATerminalOnly) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) GTEST_SKIP() << "no pseudo-terminals here";
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int standard_error = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(standard_error, 0);
  ASSERT_EQ(fcntl(terminal, F_SETFL, O_NONBLOCK), 0);
  const auto on_terminal = [standard_error] { dup2(standard_error, STDERR_FILENO); };
  std::string shown;
  const auto see = [&] {
    char text[1000];
    const ssize_t length = read(terminal, text, sizeof text);
    if (length > 0) shown.append(text, static_cast<size_t>(length));
    return shown.find('%') != std::string::npos;
  };
  EXPECT_EQ(Run(Read("apply --input f32[2,3] --output a.npy").words, on_terminal).status, 0);
  see();
  EXPECT_EQ(shown, "") << "short work";
  const pid_t child = Begin(apply_, on_terminal);
  EXPECT_TRUE(Wait(see)) << shown;
  kill(child, SIGTERM);
  WaitFor(child);
  EXPECT_EQ(shown.rfind("\r[", 0), 0u) << shown;
  close(standard_error);
  close(terminal);
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

TEST_F(OutputFiles, PermissionsAreThoseOfAnyNewFile) {
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

// A temporary file of a killed process with the same number does no harm.
TEST_F(OutputFiles, AnotherTemporaryFileIsLeftAlone) {
  const Words words = Read("apply --input f32[2,3] --output y.npy").words;
  std::string left;
  ExpectSuccess(Run(words, [this] {
    WriteFile(File(".rmsnorm-" + std::to_string(getpid()) + "-0"), "left behind");
  }));
  for (const std::string& name : directory_.Names()) {
    if (name[0] == '.') left = ReadFile(File(name));
  }
  EXPECT_EQ(left, "left behind");
  EXPECT_TRUE(std::filesystem::exists(File("y.npy")));
}

}  // namespace
}  // namespace rmsnorm::test
