// SPDX-License-Identifier: Apache-2.0
// The files that a command makes, with one tensor or several in each.
#ifndef RMSNORM_TOOLS_RESULT_FILES_H_
#define RMSNORM_TOOLS_RESULT_FILES_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "output_file.h"
#include "tensor_file.h"

namespace rmsnorm::tools {

// A tensor on its way to a file.
struct Result {
  OutputTensor tensor;
  std::string_view elements;  // what the next WriteElements() writes
};

class ResultFiles {
 public:
  // Results whose paths lead to one file share it. Throws UserError for names and types that cannot
  // be written, and writes nothing yet.
  explicit ResultFiles(const std::vector<const Result*>& results);

  void Open();
  // A result in a file of its own may come in pieces.
  void WriteElements();
  // What a full disk refuses shows here at the latest, before any file takes its place.
  void Commit();

 private:
  struct File {
    std::string path;
    std::vector<const Result*> results;
    std::string header;
    std::unique_ptr<OutputFile> output;
  };
  std::vector<File> files_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_RESULT_FILES_H_
