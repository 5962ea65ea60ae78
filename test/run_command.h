// SPDX-License-Identifier: Apache-2.0
// Runs the command `rmsnorm` as a user would, and makes its files.
//
// Environment variables: RMSNORM_COMMAND is the path of the command, and RMSNORM_COMMAND_WRAPPER
// the program that runs it if this machine cannot (an emulator).
#ifndef RMSNORM_TEST_RUN_COMMAND_H_
#define RMSNORM_TEST_RUN_COMMAND_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace rmsnorm::test {

// A temporary directory; the destructor removes it with all its files.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = testing::TempDir() + "rmsnorm-test-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = path;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::string File(const std::string& name) const { return path_ / name; }

  // The sorted names of its files.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

// A test with a temporary directory.
class DirectoryTest : public testing::Test {
 protected:
  std::string File(const std::string& name) const { return directory_.File(name); }

  // A file in the directory; returns its path.
  std::string Make(const std::string& name, const std::string& bytes) const {
    WriteFile(File(name), bytes);
    return File(name);
  }

  // Extends such a file by zeros that take no space; returns its path.
  std::string Extend(const std::string& name, uint64_t bytes) const {
    std::filesystem::resize_file(File(name), std::filesystem::file_size(File(name)) + bytes);
    return File(name);
  }

  TemporaryDirectory directory_;
};

using Environment = std::map<std::string, std::string>;

// Replaces a child process by the command. Does not return.
[[noreturn]] inline void ExecuteCommand(const std::vector<std::string>& arguments,
                                        const Environment& environment = {}) {
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (const char* variable : {"RMSNORM_COMMAND_WRAPPER", "RMSNORM_COMMAND"}) {
    char* const word = std::getenv(variable);
    if (word != nullptr && *word != '\0') words.push_back(word);
  }
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  execv(words[0], words.data());
  _exit(127);
}

struct Outcome {
  int status;  // the exit status; 128 + N if signal N ended it
  std::string out;
  std::string err;
};

inline int WaitFor(pid_t child) {
  int status;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("no child to wait for");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Runs the command to its end. The child calls `prepare` first. Standard error is a pipe, so a
// limit on the size of files does not affect it.
inline Outcome RunCommand(const std::vector<std::string>& arguments,
                          const Environment& environment = {},
                          const std::function<void()>& prepare = {}) {
  const TemporaryDirectory streams;
  const std::string out = streams.File("out");
  int error[2];
  if (pipe2(error, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), STDOUT_FILENO);
    dup2(error[1], STDERR_FILENO);
    if (prepare) prepare();
    ExecuteCommand(arguments, environment);
  }
  close(error[1]);
  std::string err;
  char text[1000];
  for (ssize_t length; (length = read(error[0], text, sizeof text)) > 0;) {
    err.append(text, static_cast<size_t>(length));
  }
  close(error[0]);
  const int status = WaitFor(child);
  return {status, ReadFile(out), err};
}

// Calls `ready` until it returns true; returns false after a minute.
inline bool Wait(const std::function<bool()>& ready) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!ready()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Expects that the command refused its arguments: status 2, nothing on standard output and one line
// on standard error that contains `problem`.
inline void ExpectUserError(const Outcome& outcome, const std::string& problem) {
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_EQ(outcome.err.rfind("rmsnorm: ", 0), 0u) << outcome.err;
  EXPECT_EQ(outcome.err.substr(outcome.err.size() - std::min<size_t>(1, outcome.err.size())), "\n");
  EXPECT_NE(outcome.err.find(problem), std::string::npos)
      << "expected \"" << problem << "\" in: " << outcome.err;
}

inline void ExpectSuccess(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.err, "");
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_RUN_COMMAND_H_
