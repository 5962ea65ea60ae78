// SPDX-License-Identifier: Apache-2.0
// rmsnorm info: describes the library, the CPU and the target in use.
#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>

#include "../lib/portable.h"
#include "cases/run.h"
#include "command.h"

namespace rmsnorm::tools {
namespace {

// The first line of a file, or an empty text.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value of the first line "key  : value" of /proc/cpuinfo, or an empty text.
std::string CpuInfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t value = line.find(": ");
    if (line.compare(0, key.size(), key) == 0 && value != std::string::npos) {
      return line.substr(value + 2);
    }
  }
  return "";
}

// The name that an x86-64 CPU gives itself, or an empty text.
std::string BrandString() {
  std::string brand;
#if RMSNORM_X86_64
  for (unsigned leaf = 0x80000002; leaf <= 0x80000004; ++leaf) {
    const internal::CpuidRegisters part = internal::Cpuid(leaf, 0);
    char text[sizeof part + 1] = {};
    std::memcpy(text, &part, sizeof part);
    brand += text;
  }
  brand.erase(0, brand.find_first_not_of(' '));
#endif
  return brand;
}

// The caches of the first CPU, such as "L1 data 32K, L1 instruction 32K, L2 1024K, L3 32768K";
// "unknown" if the system does not say.
std::string CpuCaches() {
  std::string caches;
  for (int index = 0;; ++index) {
    const std::string directory =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const std::string size = FirstLine(directory + "size");
    if (size.empty()) break;
    std::string type = FirstLine(directory + "type");
    std::transform(type.begin(), type.end(), type.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (!caches.empty()) caches += ", ";
    caches += "L" + FirstLine(directory + "level");
    if (type != "unified") caches += " " + type;
    caches += " " + size;
  }
  return caches.empty() ? "unknown" : caches;
}

}  // namespace

std::string CpuModel() {
  std::string model = CpuInfo("model name");
  if (!model.empty()) return model;
  const std::string part = CpuInfo("CPU part");
  if (!part.empty()) return "Arm implementer " + CpuInfo("CPU implementer") + " part " + part;
  model = BrandString();
  return model.empty() ? "unknown" : model;
}

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
