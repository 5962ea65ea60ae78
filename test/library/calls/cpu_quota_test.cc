// SPDX-License-Identifier: Apache-2.0
// The CPUs that control groups leave a process, read from files as Linux has them.
#include "../../../lib/cpu_quota.h"

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
  const fs::path root = fs::path(testing::TempDir()) / "cpu_quota_test";
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
  for (const char* text : {"", "\n", "x\n", "100000\n", "-5 100000\n", "100000 0\n", "nan nan\n"}) {
    EXPECT_EQ(INT_MAX, CpusInVersion2({{"sys/fs/cgroup/a/b/cpu.max", text}})) << text;
  }
  EXPECT_EQ(INT_MAX, CpusWith({{"proc/self/cgroup", "\n:\nx:y\n0:\n"},
                               {"sys/fs/cgroup/cpu.max", "200000 100000\n"}}));
}

}  // namespace
}  // namespace rmsnorm::internal
