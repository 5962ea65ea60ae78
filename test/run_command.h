// SPDX-License-Identifier: Apache-2.0
// Runs the command `rmsnorm` as a user would.
//
// Environment variables: RMSNORM_COMMAND is the path of the command, and RMSNORM_COMMAND_WRAPPER
// the program that runs it if this machine cannot (an emulator).
#ifndef RMSNORM_TEST_RUN_COMMAND_H_
#define RMSNORM_TEST_RUN_COMMAND_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef _WIN32
#include <process.h>
#else
#include <sys/wait.h>
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

  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// The text in a file, with '\n' after each line.
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

#ifdef _WIN32

inline void SetVariable(const std::string& name, const std::string& value) {
  _putenv_s(name.c_str(), value.c_str());  // an empty value removes it
}

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

// Runs a program to its end; returns its exit status.
inline int RunProgram(std::vector<std::string> words) {
  const std::string program = words[0];
  std::vector<const char*> quoted;
  for (std::string& word : words) quoted.push_back((word = Quoted(word)).c_str());
  quoted.push_back(nullptr);
  intptr_t status = -1;
  // On a busy machine, Wine fails to start one process in some hundreds.
  for (int tries = 0; status == -1 && tries < 3; ++tries) {
    status = _spawnv(_P_WAIT, program.c_str(), quoted.data());
  }
  return static_cast<int>(status);
}

#else

inline void SetVariable(const std::string& name, const std::string& value) {
  value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
}

// Runs a program to its end; returns its exit status, or 128 + N if signal N ended it.
inline int RunProgram(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  int status;
  if (waitpid(child, &status, 0) != child) throw std::runtime_error("cannot start " + words[0]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif

// Makes a standard stream of this process, and so of its children, a file for a while.
class Redirection {
 public:
  Redirection(int stream, const std::string& file) : stream_(stream), usual_(dup(stream)) {
    const int opened = open(file.c_str(), O_WRONLY | O_CREAT, 0600);
    if (opened < 0 || dup2(opened, stream) < 0) throw std::runtime_error("cannot write " + file);
    close(opened);
  }
  ~Redirection() {
    dup2(usual_, stream_);
    close(usual_);
  }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;

 private:
  const int stream_;
  const int usual_;
};

using Environment = std::map<std::string, std::string>;

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

// Runs the command to its end. Its standard output may be a device, such as /dev/full.
inline Outcome RunCommand(const std::vector<std::string>& arguments,
                          const Environment& environment = {}, const std::string& device = "") {
  const TemporaryDirectory streams;
  const std::string out = device.empty() ? streams.File("out") : device;
  const std::string err = streams.File("err");
  std::vector<std::string> words;
  for (const char* variable : {"RMSNORM_COMMAND_WRAPPER", "RMSNORM_COMMAND"}) {
    const char* const word = std::getenv(variable);
    if (word != nullptr && *word != '\0') words.emplace_back(word);
  }
  words.insert(words.end(), arguments.begin(), arguments.end());
  Environment before;
  for (const auto& [name, value] : environment) {
    const char* const usual = std::getenv(name.c_str());
    before[name] = usual == nullptr ? "" : usual;
    SetVariable(name, value);
  }
  std::fflush(nullptr);
  int status;
  {
    const Redirection to_out(1, out);
    const Redirection to_err(2, err);
    status = RunProgram(words);
  }
  for (const auto& [name, value] : before) SetVariable(name, value);
  return {status, device.empty() ? ReadFile(out) : "", ReadFile(err)};
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
