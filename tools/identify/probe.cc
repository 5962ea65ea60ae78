// SPDX-License-Identifier: Apache-2.0
#include "probe.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "matrix.h"

namespace rmsnorm::identify {
namespace {

// How the rows of a probe differ from normal random rows.
struct RowOfProbe {
  double scale;          // the RMS of the random numbers
  double mean = 0;       // added to each element, in multiples of the scale
  double massive = 0;    // if not 0, every 97th element, in multiples of the scale
  float last = 0;        // if not 0, the last element
  bool is_tied = false;  // the elements are TiedElement() instead
};

constexpr double kHuge = 3e19;
constexpr double kPlain[] = {1, 0.5, 2, 8, 0.05, 1, 3, 0.2};

const std::vector<RowOfProbe>& Rows() {
  static const std::vector<RowOfProbe> rows = [] {
    std::vector<RowOfProbe> list;
    for (const double scale : kPlain) list.push_back({scale});
    // The RMS near the root of each usual eps, and near eps itself for eps outside the root.
    for (int exponent = -12; exponent <= -2; ++exponent) {
      const double root = std::pow(10.0, exponent / 2.0);
      list.push_back({root});
      if (exponent % 2 == 0) list.push_back({3 * root});
    }
    for (const double eps : {1e-8, 1e-10, 1e-12, 1e-14}) list.push_back({eps});
    // The mean, the largest element, and the last one matter.
    list.push_back({1, 2});
    list.push_back({0.3, -1});
    list.push_back({1, 0, 300});
    list.push_back({0.1, 0, 5000});
    list.push_back({1, 0, 0, 40});
    list.push_back({0.01, 0, 0, 3});
    list.push_back({1, 0, 0, 0, true});
    list.push_back({500});  // squares beyond f16
    // Squares beyond f32, and squares that vanish, in types that hold them.
    list.push_back({kHuge});
    list.push_back({1e-25});
    list.push_back({0});
    list.push_back({1, 0, 0, NAN});
    list.push_back({1, 0, 0, INFINITY});
    return list;
  }();
  return rows;
}

// Element j of a row whose RMS is 128, to more bits than the sum of squares and any usual eps.
// Every eighth element is 2.5 times the RMS. Many of its products with a weight of 8 or 11 bits lie
// halfway between two numbers of that type. Eight elements add up to 0, so that no sum rounds.
double TiedElement(size_t j, size_t d) {
  const double sign = j / 8 % 2 == 0 ? 1 : -1;
  if (j >= d / 8 * 8) return j % 2 == 0 ? 128 : -128;
  return sign * (j % 8 == 0 ? 320 : j % 8 == 1 ? 64 : -64);
}

// Normal numbers, the same by every C++ library.
class Normal {
 public:
  explicit Normal(unsigned seed) : engine_(seed) {}
  double operator()() {
    double sum = -6;  // twelve uniform numbers have a variance of 1
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(engine_()) * 0x1p-32;
    return sum;
  }

 private:
  std::mt19937 engine_;
};

}  // namespace

size_t ProbeRows() { return Rows().size(); }

size_t OrdinaryProbeRows() {
  const auto is_huge = [](const RowOfProbe& row) { return row.scale == kHuge; };
  return static_cast<size_t>(std::find_if(Rows().begin(), Rows().end(), is_huge) - Rows().begin());
}

Probe MakeProbe(size_t d, rmsnorm_dtype dtype) {
  Normal normal(1);
  Probe probe;
  const auto round = [dtype](double value) { return RoundedTo(dtype, static_cast<float>(value)); };
  // Weights of both signs, around 1; some are small, so that the sum with an offset of 1 rounds.
  for (size_t j = 0; j < d; ++j) {
    const double value = (1 + 0.4 * normal()) * (j % 11 == 6 ? 0.01 : 1);
    probe.weight.push_back(round(j % 7 == 3 ? -value : value));
  }
  for (const RowOfProbe& row : Rows()) {
    // f16 holds neither: such rows are tried in f16 as far as it goes.
    const double scale = dtype == RMSNORM_F16 ? std::min(row.scale, 1e4) : row.scale;
    for (size_t j = 0; j < d; ++j) {
      double value = normal() + row.mean;
      if (row.massive != 0 && j % 97 == 5) value = row.massive;
      probe.x.push_back(row.is_tied ? static_cast<float>(TiedElement(j, d)) : round(value * scale));
      probe.residual.push_back(row.is_tied ? 0 : round(2 * normal() * scale));
      probe.gate.push_back(round(3 * normal()));
    }
    if (row.last != 0) probe.x.back() = row.last;
  }
  return probe;
}

}  // namespace rmsnorm::identify
