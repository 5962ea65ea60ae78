// SPDX-License-Identifier: Apache-2.0
// The C++ interface compiles alone. The uses instantiate its templates.
#include <rmsnorm/rmsnorm.hpp>

void HeaderTest(const float* x, rmsnorm::bf16* y, rmsnorm::f16* z, std::size_t d) {
  const std::size_t shape[] = {1, d};
  rmsnorm::norm({x, d}, {}, {y, d});
  rmsnorm::norm({x, rmsnorm::Dtype::f32, 2, shape}, {x, d}, {z, 1, d}, rmsnorm::Options());
  rmsnorm::add_norm({x, 1, d}, {y, 1, d}, {x, d}, {y, 1, d}, {z, {1, d}, {0, 1}});

  double sum;
  float rstd;
  rmsnorm::ForwardOperands operands;
  operands.x = {x, d};
  operands.weight = {x, rmsnorm::Dtype::f32, {d}};
  operands.bias = operands.weight;
  operands.y = {y, {d}};
  operands.rstd = {&rstd, 1};
  operands.sums_out = {&sum, 1};
  rmsnorm::forward(operands, {}, rmsnorm::Context());
  rmsnorm::BackwardOperands gradients;
  gradients.dy = {y, d};
  gradients.x = {x, d};
  gradients.db = {z, d};
  gradients.add_to_db = true;
  rmsnorm::backward(gradients);

  rmsnorm::Options options;
  options.rounding = rmsnorm::Rounding::inverse;
  options.eps_placement = rmsnorm::EpsPlacement::floor;
  rmsnorm::RmsNorm norm(d, options, rmsnorm::Dtype::bf16);
  norm.set_weight({x, d});
  norm.set_bias({y, d});
  norm.set_post_norm_weight({});
  norm.reset_weight();
  norm.get_weight({y, d});
  norm.forward(operands, rmsnorm::Context());
  norm.norm(y, y);
  norm.add_norm(y, x, const_cast<float*>(x), y, 1);
  norm.backward(gradients);
  norm.backward<rmsnorm::f16>(z, z, nullptr, z, nullptr);
  rmsnorm::forward_all({{&norm, operands}, {nullptr, operands, norm.options()}});
  static_cast<void>(norm.description());
}
