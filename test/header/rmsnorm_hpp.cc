// SPDX-License-Identifier: Apache-2.0
// The C++ interface compiles alone, and twice over. Using it makes its templates.
#include <rmsnorm/rmsnorm.hpp>

void HeaderTest(const float* x, rmsnorm::bf16* y, rmsnorm::f16* z, std::size_t d) {
  rmsnorm::forward({x, d}, nullptr, {y, d});
  rmsnorm::forward({x, 1, d}, {x, d}, {z, 1, d}, {}, nullptr);
  double sum;
  rmsnorm::sum_squares({x, {1, d}}, &sum);
  rmsnorm::scale({x, d}, &sum, {x, d}, {y, {d}});
  rmsnorm::RmsNorm norm(d, 1e-6f, rmsnorm::Dtype::bf16);
  norm.set_weight({x, d});
  norm.reset_weight();
  norm.get_weight({y, d});
  norm.forward({x, 1, d, static_cast<std::ptrdiff_t>(d)}, {y, 1, d});
  static_cast<void>(norm.description());
}
