// SPDX-License-Identifier: Apache-2.0
// The work of the commands, apart from their command lines, which main.cc reads.
#ifndef RMSNORM_TOOLS_COMMAND_H_
#define RMSNORM_TOOLS_COMMAND_H_

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cases/run.h"
#include "cases/vectors.h"

namespace rmsnorm::tools {

// Exit statuses.
constexpr int kSuccess = 0;
constexpr int kCheckFailed = 1;
constexpr int kUserError = 2;

// Returns `text` on one line of ASCII, without the middle of a long one. Words of a command line
// may hold anything, such as characters that hide or turn around what follows.
inline std::string OneLine(std::string text) {
  constexpr size_t kLongest = 1000;
  if (text.size() > kLongest) {
    text.replace(kLongest / 2, text.size() - kLongest, " ... ");
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (' ' <= c && c <= '~') {
      line += c;
    } else {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return line;
}

// A name such as "AMD EPYC 9B45". CPUs on arm64 do not know their names: there it is "Arm
// implementer 0x41 part 0xd40". "unknown" if the system does not say. Under emulation it may be the
// host's CPU.
std::string CpuModel();

void PrintInfo();

struct CheckOptions {
  std::vector<std::string> targets;
  std::optional<std::string> one_case;
  std::optional<std::string> list;
  std::vector<std::string> vectors;
  int32_t every = 1;
  int32_t random = 20000;
  std::optional<unsigned> seed;
  bool formula = false;
  bool small_stack = false;
};

// Returns the exit status.
int RunCheck(CheckOptions options);

// Checks cases on targets and counts the results. Several threads may check at once, each with its
// own runner.
class Checker {
 public:
  // `cases` is the expected number of cases, of which a terminal shows the percentage that is done.
  // `flag` of the command is the one that compares cases by `find_fault`.
  Checker(size_t cases, const std::vector<std::string>& targets, std::ostream& out,
          cases::FindFault find_fault = cases::FaultOf, std::string flag = "");

  // Checks the calls of a line. For each failure it writes two lines: the fault, and a command that
  // repeats the simplest failing case it finds. If the case ends the process (at a guard page, for
  // example), the lines come before the end.
  void Check(const cases::Calls& calls, cases::Runner& runner);

  // Compares the targets with the recorded results of a case of a file. The command that repeats a
  // failure names both.
  void Check(const cases::Recorded& recorded, const std::string& path, cases::Runner& runner);

  // Writes a line with the counts, and returns the exit status.
  int Finish();

  // For a target: the command that checks it, or its fault; and the text that reports a fault.
  using OnTarget = std::function<std::string(const std::string& target)>;
  using Describe = std::function<std::string(const std::string& target, const std::string& fault)>;

 private:
  void CheckTargets(const OnTarget& command, const OnTarget& find_fault, const Describe& describe);
  void ClearPercentage() const;

  const size_t cases_;
  const bool is_terminal_;
  const std::vector<std::string> targets_;
  std::ostream& out_;
  const cases::FindFault find_fault_;
  const std::string flag_;
  std::mutex mutex_;  // guards the members below
  size_t done_ = 0;
  size_t passed_ = 0;
  size_t failed_ = 0;
};

struct BenchOptions {
  std::vector<std::string> operations = {"norm"};
  std::vector<std::string> calls;  // lines, in place of named operations
  // Shapes of decoding and of prompts, through all cache levels; the length of an attention head;
  // and a length that is no multiple of a vector. 7168 is the length in Kimi-K2 and DeepSeek-V3.
  std::vector<std::string> shapes = {"1x64",     "1x1000",   "1x2048",   "1x4096",   "1x7168",
                                     "1x8192",   "8x4096",   "32x4096",  "32x7168",  "512x4096",
                                     "64x16384", "4096x128", "512x2880", "8192x4096"};
  std::vector<std::string> types = {"f32", "bf16", "f16"};
  std::vector<std::string> threads = {"1", "all"};
  std::vector<std::string> targets;  // empty: the default target
  std::vector<std::string> peers;    // paths of libraries
  std::string older;                 // path of a library
  std::string results;               // path of the file of --benchmark_out
  bool prepared = false;             // prepared calls, too
  bool reads = false;
};

// Gives Google Benchmark the flags that it knows, returns the others, and sets `results`.
std::vector<std::string> TakeHarnessFlags(const std::vector<std::string>& flags,
                                          BenchOptions& options);

// Returns the exit status.
int RunBench(const BenchOptions& options);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_COMMAND_H_
