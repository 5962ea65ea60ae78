// SPDX-License-Identifier: Apache-2.0
// The table that `rmsnorm bench` prints.
#ifndef RMSNORM_TOOLS_BENCH_TABLE_H_
#define RMSNORM_TOOLS_BENCH_TABLE_H_

#include <benchmark/benchmark.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "cell.h"
#include "job.h"

namespace rmsnorm::tools {

// Prints a line for each cell, as soon as it is done, and below the table what was not timed.
class BenchTable : public benchmark::BenchmarkReporter {
 public:
  BenchTable(const std::vector<bench::Cell>& cells, const std::vector<std::string>& peers);

  // To be called before the cell is reported.
  void PeerNotTimed(const std::string& cell_name, const bench::PeerProblem& problem);

  // Adds a line below the table.
  void AddNote(const std::string& note);

  bool ReportContext(const Context& context) override;
  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

 private:
  void PrintRun(const Run& run);
  // The start of a line, up to the number of threads.
  std::string Start(const std::string& operation, const std::string& type, const std::string& rows,
                    const std::string& d, const std::string& threads) const;

  // A peer's column in a line.
  std::string PeerText(const Run& run, const std::string& peer) const;

  std::map<std::string, bench::Cell> cells_;  // by the benchmark's name
  const std::vector<std::string> peers_;
  std::map<std::string, std::set<std::string>> wrong_peers_;  // by the benchmark's name
  std::vector<std::string> notes_;                            // without repetition
  std::string targets_;
  bool has_target_column_;
  bool has_rmsnorm_column_;
  bool cold_;
  size_t operation_width_ = 0;  // 0: no such column
  size_t rows_width_ = 4;
  size_t d_width_ = 7;
};

// Why a benchmark failed; empty where it did not.
std::string FailureOf(const benchmark::BenchmarkReporter::Run& run);

// Three significant digits and a unit, such as "142 ns" or "5.30 us".
std::string TimeText(double seconds);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_BENCH_TABLE_H_
