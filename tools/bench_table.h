// SPDX-License-Identifier: Apache-2.0
// The table that `rmsnorm bench` prints.
#ifndef RMSNORM_TOOLS_BENCH_TABLE_H_
#define RMSNORM_TOOLS_BENCH_TABLE_H_

#include <benchmark/benchmark.h>

#include <map>
#include <string>
#include <vector>

#include "contest.h"

namespace rmsnorm::tools {

// Prints a line for each finished cell at once. Below the table stand the missing times, what the
// marks mean, and how much faster than plain loops the library is.
class BenchTable : public benchmark::BenchmarkReporter {
 public:
  BenchTable(const std::vector<bench::Cell>& cells, const bench::Contenders& contenders);

  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

  // Whether a cell failed or a contender was wrong.
  bool found_fault() const { return found_fault_; }

 private:
  // How much faster than plain loops the rows of a type are, or of a type on a target.
  struct Means {
    struct Mean {
      double logarithms = 0;
      double rows = 0;
    };
    std::string name;
    std::map<int, Mean> by_threads;
  };

  void PrintRun(const Run& run);
  void Note(const std::string& text);
  void AddToMean(const bench::Cell& cell, double times_faster);

  std::map<std::string, bench::Cell> cells_;  // by the benchmark's name
  std::vector<std::string> others_;           // contenders with a column of their own
  std::vector<std::string> notes_;            // below the table; without duplicates
  bool has_marks_ = false;
  bool has_targets_ = false;  // whether there are several
  std::vector<Means> means_;
  bool found_fault_ = false;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_BENCH_TABLE_H_
