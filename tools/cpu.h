// SPDX-License-Identifier: Apache-2.0
// What the system says of its CPU.
#ifndef RMSNORM_TOOLS_CPU_H_
#define RMSNORM_TOOLS_CPU_H_

#include <string>

namespace rmsnorm::tools {

// Such as "AMD EPYC 9B45"; on arm64, whose CPUs do not know their names, "Arm implementer 0x41 part
// 0xd40"; "unknown" where the system does not say. Under emulation it may be the host's.
std::string CpuModel();

// The caches that the first CPU sees, such as "L1 data 32K, L1 instruction 32K, L2 1024K, L3
// 32768K"; "unknown" where the system does not say.
std::string CpuCaches();

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CPU_H_
