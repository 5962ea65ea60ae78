// SPDX-License-Identifier: Apache-2.0
// Sizes and strides of any integer type, known only at run time, compile without a warning.
#include <rmsnorm/rmsnorm.hpp>

using rmsnorm::ConstView;
using rmsnorm::Dtype;
using rmsnorm::View;

void RuntimeSizesTest(float* x, std::size_t tokens, int heads, std::int64_t d, unsigned token,
                      short rows, std::ptrdiff_t step, const std::int64_t* sizes,
                      const int* strides, std::size_t dimensions) {
  const View q(x, {tokens, heads, d}, {token, d, 1});
  rmsnorm::norm({x, {tokens, heads, d}, {token, d, 1}}, {x, {heads, d}}, q);
  rmsnorm::norm({x, rows, d}, {x, d}, {x, rows, d});
  rmsnorm::norm({x, rows, d, step}, {x, heads}, {x, rows, d, token});
  rmsnorm::norm({x, Dtype::f32, {tokens, 1, d}}, {}, {x, Dtype::f32, {rows, d}, {-step, 1}});
  rmsnorm::norm({x, Dtype::f32, dimensions, sizes}, {}, {x, Dtype::f32, rows, sizes, strides});
  rmsnorm::norm({x, Dtype::f32, 2, sizes, nullptr}, {}, {x, Dtype::f32, 2, strides, sizes});
  rmsnorm::ForwardOperands operands;
  operands.x = {x, {tokens, d}};
  operands.y = {x, tokens, d};
  rmsnorm::RmsNorm norm(heads);
  norm.norm(x, x, rows);
  norm.add_norm(x, x, x, x, tokens);
  norm.backward(x, x, nullptr, x, nullptr, heads);
}

static_assert(!std::is_constructible_v<View, const float*, int>, "an output is not const");
static_assert(!std::is_constructible_v<View, const float*, int, int>, "an output is not const");
static_assert(std::is_constructible_v<ConstView, const float*, int, int>);
static_assert(std::is_aggregate_v<rmsnorm::Options> && std::is_aggregate_v<rmsnorm::Context>);
