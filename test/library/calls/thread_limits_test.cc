// SPDX-License-Identifier: Apache-2.0
// How many threads a call may use: by numbers, and by files of control groups as Linux has them.
// When calls stay on their thread: by reported times, without a clock.
#include "../../../lib/thread_limits.h"

#include <gtest/gtest.h>

#include <climits>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "../../../lib/waits.h"

namespace rmsnorm::internal {
namespace {

namespace fs = std::filesystem;

using Files = std::vector<std::pair<std::string, std::string>>;

// What is found where a root directory has these files and no others.
int CpusWith(const Files& files) {
  const fs::path root = fs::path(testing::TempDir()) / "thread_limits_test";
  fs::remove_all(root);
  for (const auto& [path, text] : files) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text;
  }
  const int cpus = CpusOfQuota(root.string());
  fs::remove_all(root);
  return cpus;
}

// In version 2 the group is /a/b. In version 1, too, beside a group of version 2 without CPU time.
const char kVersion2[] = "0::/a/b\n";
const char kVersion1[] = "9:name=systemd:/\n4:cpu,cpuacct:/a/b\n3:cpuset:/c\n0::/\n";

TEST(CpuQuota, Files) {
  const std::string max = "sys/fs/cgroup/a/b/cpu.max";
  const std::string folder = "sys/fs/cgroup/cpu/a/b/";
  const std::string quota = folder + "cpu.cfs_quota_us";
  const std::pair<std::string, std::string> period = {folder + "cpu.cfs_period_us", "100000\n"};
  const struct {
    const char* name;
    int cpus;
    const char* groups;
    Files files;
  } known[] = {
      {"no files of version 1", INT_MAX, kVersion1, {}},
      {"no files of version 2", INT_MAX, kVersion2, {}},
      {"four", 4, kVersion2, {{max, "400000 100000\n"}}},
      {"another period", 2, kVersion2, {{max, "100000 50000\n"}}},
      {"no limit", INT_MAX, kVersion2, {{max, "max 100000\n"}}},
      {"version 1", 3, kVersion1, {{quota, "300000\n"}, period}},
      {"no limit of version 1", INT_MAX, kVersion1, {{quota, "-1\n"}, period}},
      {"part of a CPU", 1, kVersion2, {{max, "199999 100000\n"}}},
      {"less than a CPU", 1, kVersion2, {{max, "1000 100000\n"}}},
      {"the least of all groups",
       2,
       kVersion2,
       {{max, "800000 100000\n"},
        {"sys/fs/cgroup/a/cpu.max", "200000 100000\n"},
        {"sys/fs/cgroup/cpu.max", "300000 100000\n"}}},
      // In a container, the group has its name of the host, and its files lie at the root.
      {"container", 2, kVersion2, {{"sys/fs/cgroup/cpu.max", "200000 100000\n"}}},
      {"container of version 1",
       2,
       kVersion1,
       {{"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"},
        {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}},
      {"other groups", INT_MAX, "\n:\nx:y\n0:\n", {{"sys/fs/cgroup/cpu.max", "200000 100000\n"}}},
  };
  EXPECT_EQ(INT_MAX, CpusWith({}));
  for (auto [name, cpus, groups, files] : known) {
    files.emplace_back("proc/self/cgroup", groups);
    EXPECT_EQ(cpus, CpusWith(files)) << name;
  }
  for (const char* text : {"", "\n", "x\n", "100000\n", "-5 100000\n", "100000 0\n", "nan nan\n",
                           "inf 100000\n", "inf inf\n", "1e308 1e-308\n", "100000 inf\n"}) {
    EXPECT_EQ(INT_MAX, CpusWith({{"proc/self/cgroup", kVersion2}, {max, text}})) << text;
  }
}

// A quota of 2 CPUs on a machine with 8.
TEST(UsualThreads, ChosenNumber) {
  const auto cpus = [] { return 8; };
  EXPECT_EQ(2, WithinQuota(8, 2, cpus));
  EXPECT_EQ(8, WithinQuota(8, 16, cpus));
  for (const int chosen : {1, 3, 7, 9}) EXPECT_EQ(chosen, WithinQuota(chosen, 2, cpus));
}

// OpenMP's default and the same number in its variable are one number to the program.
TEST(UsualThreads, Variable) {
  for (const char* text : {"8", " 8 ", "8,4", "08"}) EXPECT_TRUE(IsChosen(text, 8)) << text;
  for (const char* text : {"", "4", "4,8", "80", "x", "-8"})
    EXPECT_FALSE(IsChosen(text, 8)) << text;
  EXPECT_FALSE(IsChosen(nullptr, 8));
}

// On a machine with 8 CPUs.
TEST(MostThreads, OfACall) {
  const auto most = [](int asked, int usual, int limit) {
    return MostThreads(asked, usual, limit, [] { return 8; });
  };
  EXPECT_EQ(2, most(0, 2, INT_MAX));
  EXPECT_EQ(1, most(1, 2, INT_MAX));
  EXPECT_EQ(8, most(8, 2, INT_MAX));
  EXPECT_EQ(8, most(INT_MAX, 2, INT_MAX));
  EXPECT_EQ(12, most(INT_MAX, 12, INT_MAX));
  for (const int asked : {0, 4, 8, INT_MAX}) EXPECT_EQ(3, most(asked, 8, 3));
}

// ------------------------------------------------------------------------------------------ waits

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long calls of 1 ms stay on their thread.
int MillisecondsOfStaying(Waits& waits) {
  int stayed = 0;
  for (; waits.ShouldStay(); ++stayed) waits.Stayed(milliseconds(1));
  return stayed;
}

TEST(Waits, Begin) { EXPECT_FALSE(Waits().ShouldStay()); }

TEST(Waits, NoLoss) {
  Waits waits;
  waits.Report(4, milliseconds(1), milliseconds(4));
  EXPECT_FALSE(waits.ShouldStay());
  waits.Report(4, milliseconds(1), milliseconds(5));
  EXPECT_EQ(1, MillisecondsOfStaying(waits));
}

// A thread that sleeps takes some tens of microseconds to wake.
TEST(Waits, WakingThread) {
  Waits waits;
  for (int i = 0; i < 1000; ++i) waits.Report(2, microseconds(5), microseconds(100));
  EXPECT_FALSE(waits.ShouldStay());
}

TEST(Waits, RepeatedLosses) {
  Waits waits;
  for (const int stays : {10, 30, 70, 150, 310, 630, 1270, 2000, 2000}) {
    waits.Report(2, microseconds(10), microseconds(10'020));
    EXPECT_EQ(stays, MillisecondsOfStaying(waits));
  }
}

TEST(Waits, Gains) {
  Waits waits;
  waits.Report(2, microseconds(10), microseconds(10'020));
  MillisecondsOfStaying(waits);
  for (int i = 0; i < 1100; ++i) waits.Report(2, microseconds(10), microseconds(10));
  waits.Report(2, microseconds(10), microseconds(10'020));
  EXPECT_LE(MillisecondsOfStaying(waits), 11);
}

// A calling thread that is left out for 50 ms seems to have gained them.
TEST(Waits, OneGain) {
  Waits waits;
  waits.Report(2, microseconds(10), microseconds(10'020));
  MillisecondsOfStaying(waits);
  waits.Report(2, milliseconds(50), milliseconds(50));
  waits.Report(2, microseconds(10), microseconds(10'020));
  EXPECT_EQ(28, MillisecondsOfStaying(waits));
}

}  // namespace
}  // namespace rmsnorm::internal
