// SPDX-License-Identifier: Apache-2.0
#include "cpu.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <fstream>

#include "../lib/portable.h"

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

}  // namespace

std::string CpuModel() {
  std::string model = CpuInfo("model name");
  if (!model.empty()) return model;
  const std::string part = CpuInfo("CPU part");
  if (!part.empty()) return "Arm implementer " + CpuInfo("CPU implementer") + " part " + part;
  model = BrandString();
  return model.empty() ? "unknown" : model;
}

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

}  // namespace rmsnorm::tools
