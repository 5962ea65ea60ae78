// SPDX-License-Identifier: Apache-2.0
// Files by descriptor, on POSIX and on Windows.
#ifndef RMSNORM_TOOLS_SYSTEM_FILE_H_
#define RMSNORM_TOOLS_SYSTEM_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace rmsnorm::tools {

// Texts with paths are UTF-8 on Windows, and any bytes on POSIX: u8path() and u8string() convert.
using Path = std::filesystem::path;

// Where the system refuses, each returns a negative number. All but SizeOf() also set errno.
int OpenToRead(const Path& path);
int CreateToWrite(const Path& path);  // a new file, whose name may be removed while it is open
int64_t ReadAt(int file, char* bytes, size_t count, size_t begin);
int64_t WriteAt(int file, const char* bytes, size_t count, size_t begin);
int64_t SizeOf(int file);  // fails unless the file is regular
int FlushToDisk(int file);
int CloseFile(int file);
int RenameOver(const Path& from, const Path& to);
int RemoveFile(const Path& path);  // may be called from a signal handler
int CheckWritable(const Path& path);

// The spelling that all names of a file share: Windows ignores case.
Path CommonSpelling(const Path& path);

// Calls `end` for each signal by which a user ends a program, unless the caller ignores that signal
// (nohup). Writing beyond a limit on the size of files becomes an error instead of a signal.
void CatchEndingSignals(void (*end)(int));

// Writes to stdout, and may be called from a signal handler.
void WriteToStdout(const char* bytes, size_t count);

bool StderrIsTerminal();
int ProcessId();

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_SYSTEM_FILE_H_
