// SPDX-License-Identifier: Apache-2.0
// rmsnorm info: describes the library, the CPU and the target in use.
#include <rmsnorm/rmsnorm.h>

#include <iostream>
#include <string>

#include "cases/targets.h"
#include "command.h"
#include "cpu.h"
#include "words.h"

namespace rmsnorm::tools {

void PrintInfo() {
  // Info is where a user looks for what is wrong with RMSNORM_TARGET.
  const char* found;
  const bool has_target = rmsnorm_find_target(nullptr, &found) == RMSNORM_OK;
  const std::string active =
      has_target ? found : OneLine(std::string("none; ") + rmsnorm_error_message());

  std::string compiled;
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    compiled += std::string(" ") + rmsnorm_target_name(i);
  }
  std::string supported;
  for (const std::string& name : cases::SupportedTargets()) supported += " " + name;
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

}  // namespace rmsnorm::tools
