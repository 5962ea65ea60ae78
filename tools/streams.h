// SPDX-License-Identifier: Apache-2.0
// Standard streams, as POSIX and Windows have them and C++ does not.
#ifndef RMSNORM_TOOLS_STREAMS_H_
#define RMSNORM_TOOLS_STREAMS_H_

#include <string>

#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

namespace rmsnorm::tools {

// May be called from a signal handler.
inline void WriteToStdout(const std::string& text) {
#ifdef _WIN32
  [[maybe_unused]] const auto written = _write(1, text.data(), static_cast<unsigned>(text.size()));
#else
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, text.data(), text.size());
#endif
}

inline bool StderrIsTerminal() {
#ifdef _WIN32
  return _isatty(2) != 0;
#else
  return isatty(STDERR_FILENO) != 0;
#endif
}

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_STREAMS_H_
