// SPDX-License-Identifier: Apache-2.0
#include "phases_job.h"

#include <cstring>
#include <limits>

namespace rmsnorm::bench {

SumSquaresJob::SumSquaresJob(const Cell& cell)
    : Job(cell),
      sums_(cell.rows),
      library_(LibraryOptions(cell_.target.c_str())),
      reference_(LibraryOptions("reference")) {
  CountParts(
      [&](const Options& options) { sum_squares(tensors_.x_view(), sums_.data(), options); });
}

std::vector<Contender> SumSquaresJob::OwnContenders() {
  return {
      Each(kLibrary, [this] { sum_squares(tensors_.x_view(), sums_.data(), library_); }),
      Memcpy(),
      Each(kReference, [this] { sum_squares(tensors_.x_view(), sums_.data(), reference_); }),
  };
}

std::string SumSquaresJob::FindFaultInCopy() {
  sums_.assign(cell_.rows, std::numeric_limits<double>::quiet_NaN());
  sum_squares(tensors_.x_view(), sums_.data(), library_);
  std::vector<double> expected(cell_.rows);
  sum_squares(tensors_.x_view(), expected.data(), reference_);
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
      library_(LibraryOptions(cell_.target.c_str())),
      reference_(LibraryOptions("reference")) {
  sum_squares(tensors_.x_view(), sums_.data(), reference_);
  CountParts([&](const Options& options) {
    scale(tensors_.x_view(), sums_.data(), tensors_.weight_view(), tensors_.y_view(), options);
  });
}

std::vector<Contender> ScaleJob::OwnContenders() {
  const auto run_with = [this](const Options& options) {
    return [this, &options] {
      scale(tensors_.x_view(), sums_.data(), tensors_.weight_view(), tensors_.y_view(), options);
    };
  };
  return {Each(kLibrary, run_with(library_)), Memcpy(), Each(kReference, run_with(reference_))};
}

std::string ScaleJob::FindFaultInCopy() {
  SpoilY();
  scale(tensors_.x_view(), sums_.data(), tensors_.weight_view(), tensors_.y_view(), library_);
  return FindDifferenceInY([this](const ConstView& x, size_t first_row, const View& y) {
    scale(x, sums_.data() + first_row, tensors_.weight_view(), y, reference_);
  });
}

}  // namespace rmsnorm::bench
