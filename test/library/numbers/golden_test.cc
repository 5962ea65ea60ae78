// SPDX-License-Identifier: Apache-2.0
// golden_test FILE...: every target gives the recorded bits of files. It stands in for
// `rmsnorm check --vectors` in builds without the command.
#include <cstdio>

#include "cases/run.h"
#include "cases/text.h"
#include "cases/vectors.h"

int main(int argc, char** argv) try {
  using namespace rmsnorm::cases;
  int compared = 0, wrong = 0;
  Runner runner;
  for (int i = 1; i < argc; ++i) {
    for (const Recorded& recorded : ReadVectors(argv[i])) {
      for (const std::string& target : SupportedTargets()) {
        runner.Set({recorded.c}, &recorded.problem);
        const std::string fault = runner.Run(target);
        ++compared;
        if (fault.empty()) continue;
        ++wrong;
        std::printf("%s: %s on %s: %s\n", argv[i], recorded.name.c_str(), target.c_str(),
                    fault.c_str());
      }
    }
  }
  std::printf("%d results, %d wrong\n", compared, wrong);
  return compared == 0 || wrong != 0 ? 1 : 0;
} catch (const rmsnorm::cases::UserError& error) {
  std::fprintf(stderr, "golden_test: %s\n", error.what());
  return 1;
}
