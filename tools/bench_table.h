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

// Prints a line for each finished cell at once, and the missing times below the table.
class BenchTable : public benchmark::BenchmarkReporter {
 public:
  BenchTable(const std::vector<bench::Cell>& cells, const bench::Contenders& contenders);

  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

  // Whether a cell failed or a contender was wrong.
  bool found_fault() const { return found_fault_; }

 private:
  void PrintRun(const Run& run);
  void Note(const std::string& text);

  std::map<std::string, bench::Cell> cells_;  // by the benchmark's name
  std::vector<std::string> others_;           // contenders with a column of their own
  std::vector<std::string> notes_;            // below the table; without duplicates
  bool found_fault_ = false;
};

// Three significant digits and a unit, such as "142 ns" or "5.30 us".
std::string TimeText(double seconds);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_BENCH_TABLE_H_
