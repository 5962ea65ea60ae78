// SPDX-License-Identifier: Apache-2.0
// The work of the commands, apart from their command lines, which main.cc reads.
#ifndef RMSNORM_TOOLS_COMMAND_H_
#define RMSNORM_TOOLS_COMMAND_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rmsnorm::tools {

// Exit statuses.
constexpr int kSuccess = 0;
constexpr int kCheckFailed = 1;
constexpr int kUserError = 2;

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
  bool apart = false;
  bool formula = false;
  bool small_stack = false;
};

// Returns the exit status.
int RunCheck(CheckOptions options);

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
  bool prepared = false;             // prepared calls, too
  bool reads = false;
};

// Gives Google Benchmark the flags that it knows; returns the others.
std::vector<std::string> TakeHarnessFlags(const std::vector<std::string>& flags);

// Returns the exit status.
int RunBench(const BenchOptions& options);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_COMMAND_H_
