// SPDX-License-Identifier: Apache-2.0
// rmsnorm info: describes the library, the CPU and the target in use.
#include <iostream>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "command.h"
#include "cpu.h"

namespace rmsnorm::tools {
namespace {

void Info() {
  // This comes first, so that a bad RMSNORM_TARGET prints nothing else.
  const char* active = nullptr;
  check(rmsnorm_find_target(nullptr, &active));

  std::string compiled;
  std::string supported;
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    const char* name = rmsnorm_target_name(i);
    const char* exact_name;
    compiled += std::string(" ") + name;
    if (rmsnorm_find_target(name, &exact_name) == RMSNORM_OK) supported += std::string(" ") + name;
  }
  std::cout << "rmsnorm " << rmsnorm_version() << "\n"
            << "CPU: " << CpuModel() << "\n"
            << "caches: " << CpuCaches() << "\n"
            << "compiled targets:" << compiled << "\n"
            << "supported targets:" << supported << "\n"
            << "active target: " << active << "\n"
            << "Highway: " << rmsnorm_highway_version() << "\n"
            << "OpenMP: " << (rmsnorm_has_openmp() ? "yes" : "no") << "\n"
            << "threads: " << rmsnorm_max_threads() << "\n";
}

}  // namespace

void AddInfo(CLI::App& app, int& status) {
  CLI::App* const command =
      app.add_subcommand("info", "Show the version, the CPU, its targets and the threads");
  command->callback([&status] {
    Info();
    status = kSuccess;
  });
}

}  // namespace rmsnorm::tools
