// SPDX-License-Identifier: Apache-2.0
// What `rmsnorm bench` can time: operations, each a line of text, and cells, which are an operation
// with a type, a shape, a number of threads and a target.
#ifndef RMSNORM_BENCH_OPERATIONS_H_
#define RMSNORM_BENCH_OPERATIONS_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cases/case.h"

namespace rmsnorm::bench {

// Lines are cases in the notation of cases/case.h, with the names $T (type), $R (rows) and $D
// (d). Factors and divisors may follow a name: "$D/48" exists for multiples of 48 alone.
struct Operation {
  std::string name;
  std::string help;
  std::string line;
  // The calls that a user would make instead, one after the other and each with separate memory.
  // Empty if there are none, or if they are the calls of the line.
  std::string apart = {};
};

// The operations with a name.
const std::vector<Operation>& Operations();

// The name of the operation that is the line of `--call LINE`.
constexpr char kCall[] = "call";

struct Shape {
  size_t rows;
  size_t d;
};

struct Cell {
  std::string operation;
  std::string type;  // of x
  Shape shape;
  int threads;
  std::string target;
  std::vector<cases::Case> calls;  // made at once
  std::vector<cases::Case> apart;  // made one after the other instead; may be empty
  bool reads;                      // whether the time includes reading the results after each call
  // Such as "norm/f32/1x4096/threads:1/target:AVX2", with "/read" at its end if the cell reads.
  // This name identifies results over time.
  std::string name;

  // The bytes of all rows of x, and of all rows that are read or written.
  size_t x_bytes() const { return bytes_of(internal::SetOf(internal::kX)); }
  size_t moved_bytes() const { return bytes_of(~internal::OperandSet{0}); }

 private:
  size_t bytes_of(internal::OperandSet operands) const;
};

// Returns nothing if d is no multiple of what the line divides it by. Throws UserError for a line
// that is no case, or none that can be timed.
std::optional<Cell> MakeCell(const Operation& operation, const std::string& type,
                             const Shape& shape, int threads, const std::string& target,
                             bool reads = false);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_OPERATIONS_H_
