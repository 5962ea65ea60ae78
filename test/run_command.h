// SPDX-License-Identifier: Apache-2.0
// Runs the command `rmsnorm` as a user would, and makes its files.
//
// Environment variables: RMSNORM_COMMAND is the path of the command, and RMSNORM_COMMAND_WRAPPER
// the program that runs it if this machine cannot (an emulator).
#ifndef RMSNORM_TEST_RUN_COMMAND_H_
#define RMSNORM_TEST_RUN_COMMAND_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef _WIN32
#include <io.h>
#include <process.h>
#else
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace rmsnorm::test {

// A temporary directory; the destructor removes it with all its files.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    do {
      path_ = testing::TempDir() + "rmsnorm-test-" + std::to_string(std::random_device()());
    } while (!std::filesystem::create_directory(path_));
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  // In UTF-8, as the command takes it.
  std::string File(const std::string& name) const {
    return (path_ / std::filesystem::u8path(name)).u8string();
  }

  // The sorted names of its files.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().u8string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(std::filesystem::u8path(path), std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(std::filesystem::u8path(path), std::ios::binary);
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

struct Outcome {
  int status;  // the exit status; 128 + N if signal N ended it
  std::string out;
  std::string err;
};

#ifdef _WIN32

// An argument as the child's C library reads it from a command line.
inline std::string Quoted(const std::string& argument) {
  std::string quoted = "\"";
  size_t backslashes = 0;
  for (const char c : argument) {
    if (c == '"') quoted.append(backslashes + 1, '\\');
    backslashes = c == '\\' ? backslashes + 1 : 0;
    quoted += c;
  }
  return quoted.append(backslashes, '\\') + '"';
}

// Makes a standard stream of this process, and so of its children, a file for a while.
class Redirection {
 public:
  Redirection(int stream, const std::string& file) : stream_(stream), usual_(_dup(stream)) {
    const int opened = _open(file.c_str(), _O_WRONLY | _O_CREAT, _S_IREAD | _S_IWRITE);
    if (opened < 0 || _dup2(opened, stream) != 0) throw std::runtime_error("cannot write " + file);
    _close(opened);
  }
  ~Redirection() {
    _dup2(usual_, stream_);
    _close(usual_);
  }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;

 private:
  const int stream_;
  const int usual_;
};

inline std::string ReadLines(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Windows runs no code of this process in the child.
struct Prepare {};

// Runs the command to its end, in a directory or in this process's.
inline Outcome RunCommand(const std::vector<std::string>& arguments,
                          const Environment& environment = {}, const Prepare& = {},
                          const std::string& directory = "") {
  const TemporaryDirectory streams;
  const std::string command = std::filesystem::absolute(std::getenv("RMSNORM_COMMAND")).string();
  std::vector<std::string> quoted = {Quoted(command)};
  for (const std::string& argument : arguments) quoted.push_back(Quoted(argument));
  std::vector<const char*> words;
  for (const std::string& word : quoted) words.push_back(word.c_str());
  words.push_back(nullptr);
  const auto here = std::filesystem::current_path();
  Environment before;
  for (const auto& [name, value] : environment) {
    const char* const usual = std::getenv(name.c_str());
    before[name] = usual == nullptr ? "" : usual;
    _putenv_s(name.c_str(), value.c_str());
  }
  if (!directory.empty()) std::filesystem::current_path(directory);
  std::fflush(nullptr);
  intptr_t status = -1;
  {
    const Redirection out(1, streams.File("out"));
    const Redirection err(2, streams.File("err"));
    // On a busy machine, Wine fails to start one process in some hundreds.
    for (int tries = 0; status == -1 && tries < 3; ++tries) {
      status = _spawnv(_P_WAIT, command.c_str(), words.data());
    }
  }
  std::filesystem::current_path(here);
  for (const auto& [name, value] : before) _putenv_s(name.c_str(), value.c_str());
  if (status == -1) throw std::runtime_error("cannot start " + command);
  return {static_cast<int>(status), ReadLines(streams.File("out")), ReadLines(streams.File("err"))};
}

#else

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

inline int WaitFor(pid_t child) {
  int status;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("no child to wait for");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

using Prepare = std::function<void()>;

// Runs the command to its end, in a directory or in this process's. The child calls `prepare`
// first. Standard error is a pipe, so a limit on the size of files does not affect it.
inline Outcome RunCommand(const std::vector<std::string>& arguments,
                          const Environment& environment = {}, const Prepare& prepare = {},
                          const std::string& directory = "") {
  const TemporaryDirectory streams;
  const std::string out = streams.File("out");
  int error[2];
  if (pipe2(error, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), STDOUT_FILENO);
    dup2(error[1], STDERR_FILENO);
    if (!directory.empty() && chdir(directory.c_str()) != 0) _exit(126);
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

#endif

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
