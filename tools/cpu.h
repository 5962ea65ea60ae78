// SPDX-License-Identifier: Apache-2.0
// What the system knows about its CPU.
#ifndef RMSNORM_TOOLS_CPU_H_
#define RMSNORM_TOOLS_CPU_H_

#include <string>

namespace rmsnorm::tools {

// A name such as "AMD EPYC 9B45". CPUs on arm64 do not know their names: there it is "Arm
// implementer 0x41 part 0xd40". "unknown" if the system does not say. Under emulation it may be the
// host's CPU.
std::string CpuModel();

// The caches of the first CPU, such as "L1 data 32K, L1 instruction 32K, L2 1024K, L3 32768K";
// "unknown" if the system does not say.
std::string CpuCaches();

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CPU_H_
