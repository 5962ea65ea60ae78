// SPDX-License-Identifier: Apache-2.0
// How many threads a call may use: by numbers, and by files of control groups as Linux has them.
#include "../../../lib/thread_limits.h"

#include <gtest/gtest.h>

#include <climits>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

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

// Version 2 with a group /a/b.
int CpusInVersion2(Files files) {
  files.emplace_back("proc/self/cgroup", "0::/a/b\n");
  return CpusWith(files);
}

// Version 1 with a group /a/b, beside a group of version 2 without CPU time.
int CpusInVersion1(Files files) {
  files.emplace_back("proc/self/cgroup",
                     "9:name=systemd:/\n4:cpu,cpuacct:/a/b\n3:cpuset:/c\n0::/\n");
  return CpusWith(files);
}

TEST(CpuQuota, IsNoneWithoutFiles) {
  EXPECT_EQ(INT_MAX, CpusWith({}));
  EXPECT_EQ(INT_MAX, CpusInVersion1({}));
  EXPECT_EQ(INT_MAX, CpusInVersion2({}));
}

TEST(CpuQuota, IsReadFromVersion2) {
  EXPECT_EQ(4, CpusInVersion2({{"sys/fs/cgroup/a/b/cpu.max", "400000 100000\n"}}));
  EXPECT_EQ(2, CpusInVersion2({{"sys/fs/cgroup/a/b/cpu.max", "100000 50000\n"}}));
  EXPECT_EQ(INT_MAX, CpusInVersion2({{"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"}}));
}

TEST(CpuQuota, IsReadFromVersion1) {
  const std::string folder = "sys/fs/cgroup/cpu/a/b/";
  const auto cpus = [&](const std::string& quota) {
    return CpusInVersion1(
        {{folder + "cpu.cfs_quota_us", quota}, {folder + "cpu.cfs_period_us", "100000\n"}});
  };
  EXPECT_EQ(3, cpus("300000\n"));
  EXPECT_EQ(INT_MAX, cpus("-1\n"));
}

TEST(CpuQuota, CountsWholeCpusAndAtLeastOne) {
  EXPECT_EQ(1, CpusInVersion2({{"sys/fs/cgroup/a/b/cpu.max", "199999 100000\n"}}));
  EXPECT_EQ(1, CpusInVersion2({{"sys/fs/cgroup/a/b/cpu.max", "1000 100000\n"}}));
}

TEST(CpuQuota, IsTheLeastOfAllGroupsAbove) {
  EXPECT_EQ(2, CpusInVersion2({{"sys/fs/cgroup/a/b/cpu.max", "800000 100000\n"},
                               {"sys/fs/cgroup/a/cpu.max", "200000 100000\n"},
                               {"sys/fs/cgroup/cpu.max", "300000 100000\n"}}));
}

// The group has its name of the host, and its files lie at the root.
TEST(CpuQuota, IsFoundInAContainer) {
  EXPECT_EQ(2, CpusInVersion2({{"sys/fs/cgroup/cpu.max", "200000 100000\n"}}));
  EXPECT_EQ(2, CpusInVersion1({{"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n"},
                               {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}}));
}

TEST(CpuQuota, IsNoneWhereFilesHoldSomethingElse) {
  for (const char* text : {"", "\n", "x\n", "100000\n", "-5 100000\n", "100000 0\n", "nan nan\n",
                           "inf 100000\n", "inf inf\n", "1e308 1e-308\n", "100000 inf\n"}) {
    EXPECT_EQ(INT_MAX, CpusInVersion2({{"sys/fs/cgroup/a/b/cpu.max", text}})) << text;
  }
  EXPECT_EQ(INT_MAX, CpusWith({{"proc/self/cgroup", "\n:\nx:y\n0:\n"},
                               {"sys/fs/cgroup/cpu.max", "200000 100000\n"}}));
}

// A quota of 2 CPUs on a machine with 8.
TEST(UsualThreads, AChosenNumberLiftsTheQuota) {
  const auto cpus = [] { return 8; };
  EXPECT_EQ(2, WithinQuota(8, 2, cpus));
  EXPECT_EQ(8, WithinQuota(8, 16, cpus));
  for (const int chosen : {1, 3, 7, 9}) EXPECT_EQ(chosen, WithinQuota(chosen, 2, cpus));
}

// OpenMP's default and the same number in its variable are one number to the program.
TEST(UsualThreads, TheVariableChooses) {
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

}  // namespace
}  // namespace rmsnorm::internal
