// SPDX-License-Identifier: Apache-2.0
#include "phases_job.h"

#include <cstring>
#include <limits>

namespace rmsnorm::bench {
namespace {

void SumSquares(const ConstView& x, std::vector<double>& sums, const Context& context) {
  ForwardOperands operands;
  operands.x = x;
  operands.sums_out = View(sums.data(), sums.size());
  forward(operands, Options(), context);
}

}  // namespace

SumSquaresJob::SumSquaresJob(const Cell& cell)
    : Job(cell),
      sums_(cell.rows),
      library_(MakeContext(cell_.target.c_str())),
      reference_(MakeContext("reference")) {
  CountParts([this](const Context& context) { Run(sums_, context); });
}

void SumSquaresJob::Run(std::vector<double>& sums, const Context& context) {
  SumSquares(Rows(tensors_.x(), cell_.rows), sums, context);
}

std::vector<Contender> SumSquaresJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { Run(sums_, library_); }),
      Memcpy(),
      Each(kReference, [this] { Run(sums_, reference_); }),
  };
}

std::string SumSquaresJob::FindFaultInCopy() {
  sums_.assign(cell_.rows, std::numeric_limits<double>::quiet_NaN());
  Run(sums_, library_);
  std::vector<double> expected(cell_.rows);
  Run(expected, reference_);
  for (size_t row = 0; row < cell_.rows; ++row) {
    if (std::memcmp(&sums_[row], &expected[row], sizeof(double)) != 0) {
      return "row " + std::to_string(row) + ": the sum differs from the reference";
    }
  }
  return {};
}

ScaleJob::ScaleJob(const Cell& cell)
    : Job(cell),
      sums_(cell.rows),
      library_(MakeContext(cell_.target.c_str())),
      reference_(MakeContext("reference")) {
  SumSquares(Rows(tensors_.x(), cell.rows), sums_, reference_);
  CountParts([this](const Context& context) { Run(context); });
}

void ScaleJob::Scale(size_t first_row, size_t rows, uint8_t* y, const Context& context) {
  ForwardOperands operands;
  operands.x = Rows(XFrom(first_row), rows);
  operands.weight = tensors_.weight_view();
  operands.sums = ConstView(sums_.data() + first_row, rows);
  operands.y = Rows(y, rows);
  forward(operands, Options(), context);
}

std::vector<Contender> ScaleJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { Run(library_); }),
      Memcpy(),
      Each(kReference, [this] { Run(reference_); }),
  };
}

std::string ScaleJob::FindFaultInCopy() {
  SpoilY();
  Run(library_);
  return FindDifferenceInY(
      [this](size_t first_row, size_t rows, uint8_t* y) { Scale(first_row, rows, y, reference_); });
}

}  // namespace rmsnorm::bench
