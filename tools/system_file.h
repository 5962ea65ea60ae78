// SPDX-License-Identifier: Apache-2.0
// Files and standard streams, as POSIX and Windows have them and C++ does not.
#ifndef RMSNORM_TOOLS_SYSTEM_FILE_H_
#define RMSNORM_TOOLS_SYSTEM_FILE_H_

#include <cstddef>
#include <filesystem>

namespace rmsnorm::tools {

// Texts with paths are UTF-8 on Windows, and any bytes on POSIX: u8path() and u8string() convert.
using Path = std::filesystem::path;

// Where the system refuses, both return a negative number and set errno.
int FlushToDisk(const Path& path);
int RenameOver(const Path& from, const Path& to);

// The spelling that all names of a file share: Windows ignores case.
Path CommonSpelling(const Path& path);

// May be called from a signal handler.
void WriteToStdout(const char* bytes, size_t count);

bool StderrIsTerminal();

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_SYSTEM_FILE_H_
