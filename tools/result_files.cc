// SPDX-License-Identifier: Apache-2.0
#include "result_files.h"

#include <algorithm>

namespace rmsnorm::tools {

ResultFiles::ResultFiles(const std::vector<const Result*>& results) {
  for (const Result* const result : results) {
    const std::string path = ResolvedPath(result->tensor.location.path);
    auto file = std::find_if(files_.begin(), files_.end(),
                             [&](const File& other) { return other.path == path; });
    if (file == files_.end()) file = files_.insert(file, {path, {}, {}, {}});
    // The larger elements come first, so that all are aligned.
    const auto place =
        std::find_if(file->results.begin(), file->results.end(), [result](const Result* other) {
          return ElementSize(other->tensor.info.dtype) < ElementSize(result->tensor.info.dtype);
        });
    file->results.insert(place, result);
  }
  for (File& file : files_) {
    std::vector<OutputTensor> tensors;
    for (const Result* const result : file.results) tensors.push_back(result->tensor);
    file.header = FileHeader(tensors);
  }
}

void ResultFiles::Open() {
  for (File& file : files_) {
    file.output = std::make_unique<OutputFile>(file.results.front()->tensor.location.path);
    file.output->Write(file.header);
  }
}

void ResultFiles::WriteElements() {
  for (File& file : files_) {
    for (const Result* const result : file.results) file.output->Write(result->elements);
  }
}

void ResultFiles::Commit() {
  for (File& file : files_) file.output->Sync();
  for (File& file : files_) file.output->Commit();
}

}  // namespace rmsnorm::tools
