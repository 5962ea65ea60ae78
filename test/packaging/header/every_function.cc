// SPDX-License-Identifier: Apache-2.0
// Calls every function of the C++ interface that is a template or has other forms, outputs
// uninitialised: the headers compile alone, and no compiler warns.
#include <rmsnorm/rmsnorm.hpp>
#include <vector>
#if __has_include(<dlpack/dlpack.h>)
#include <rmsnorm/dlpack.hpp>
#endif

namespace every_function {

using rmsnorm::bf16;
using rmsnorm::ConstView;
using rmsnorm::Dtype;
using rmsnorm::View;

// One view of each form, with sizes and strides of any integer type.
template <class V, class T>
std::vector<V> views(T* x, std::size_t rows, int heads, std::int64_t d, unsigned token, short few,
                     std::ptrdiff_t step, const std::int64_t* sizes, const int* strides) {
  return {
      {},
      {x, d},
      {x, few, heads},
      {x, rows, d, step},
      {x, {rows, d}},
      {x, {rows, heads, d}, {token, d, 1}},
      {x, Dtype::f32, {few, 1, d}},
      {x, Dtype::f32, {rows, d}, {-step, 1}},
      {x, Dtype::f32, rows, sizes},
      {x, Dtype::f32, few, sizes, strides},
      {x, Dtype::f32, 2, strides, nullptr},
      V(rmsnorm_rows(x, RMSNORM_F32, rows, rows, 16)),
  };
}

float norms_of_views(const float* x, const std::int64_t* sizes, const int* strides) {
  float y[64];
  const auto inputs = views<ConstView>(x, 2, 2, 8, 16, 2, 8, sizes, strides);
  for (const ConstView& in : inputs) {
    for (const View& out : views<View>(y, 2, 2, 8, 16, 2, 8, sizes, strides)) {
      rmsnorm::norm(in, {}, out);
    }
  }
  return inputs[0].empty() && inputs[1].get() != nullptr ? y[0] : y[1];
}

float module(const float* x, const bf16* residual, int rows, std::size_t d) {
  float y[64];
  float dx[64];
  bf16 residual_out[64];
  float rstd[4];
  float dw[16];
  const rmsnorm::Context context;
  rmsnorm::RmsNorm norm(d);
  rmsnorm::RmsNorm other(rows, 1e-6f, Dtype::bf16);
  norm = rmsnorm::RmsNorm(d, norm.options(), norm.dtype(), context);
  norm.get_weight({dw, d});
  norm.norm(x, y);
  norm.norm(x, y, rows, rstd, context);
  norm.add_norm(x, residual, residual_out, y);
  norm.add_norm(x, residual, residual_out, y, rows, rstd, context);
  norm.backward(x, x, rstd, dx, dw);
  norm.backward(x, x, rstd, dx, dw, rows, context);
  norm.backward<rmsnorm::f16>(nullptr, nullptr, nullptr, nullptr, nullptr);
  other = std::move(norm);
  return y[0] + dx[0] + rstd[0] + dw[0] + residual_out[0].bits;
}

void several(const rmsnorm::Call* calls, std::size_t count, const rmsnorm::RmsNorm& norm,
             const rmsnorm::ForwardOperands& operands, const rmsnorm::BackwardOperands& gradients) {
  const rmsnorm::Context context;
  rmsnorm::forward_all(calls, count);
  rmsnorm::forward_all(calls, 0);
  rmsnorm::forward_all({});
  rmsnorm::forward_all({calls[0], {&norm, operands}, {nullptr, operands, norm.options()}}, context);
  rmsnorm::Prepared all[] = {rmsnorm::Prepared(calls, count),
                             rmsnorm::Prepared({}),
                             rmsnorm::Prepared({calls[0], calls[1]}, context),
                             rmsnorm::Prepared(operands),
                             rmsnorm::Prepared(norm, operands),
                             rmsnorm::Prepared(norm, operands, context),
                             rmsnorm::Prepared(gradients),
                             rmsnorm::Prepared(norm, gradients),
                             rmsnorm::Prepared(norm, gradients, context)};
  all[0] = std::move(all[1]);
  for (rmsnorm::Prepared& one : all) one();
}

#if __cplusplus >= 202002L
// Aggregates, without a warning about missing fields.
void designated(float* x, int rows, int d) {
  rmsnorm::forward({.x = {x, rows, d}, .y = {x, rows, d}}, {.eps = 1e-6f}, {.threads = 1});
  rmsnorm::backward({.x = {x, rows, d}, .dy = {x, rows, d}, .dx = {x, rows, d}, .add_to_dx = true},
                    rmsnorm::Options{.weight_offset = 1}, rmsnorm::Context{.target = "AVX2"});
  const rmsnorm::RmsNorm norm(d, rmsnorm::Options{.eps = 1e-6f}, rmsnorm::Dtype::bf16);
  rmsnorm::forward_all({{.module = &norm, .operands = {.x = {x, rows, d}, .y = {x, rows, d}}}});
}
#endif
static_assert(std::is_aggregate_v<rmsnorm::Options> && std::is_aggregate_v<rmsnorm::Context>);

static_assert(std::is_constructible_v<ConstView, const float*, int, int>);
static_assert(!std::is_constructible_v<View, const float*, int>, "an output is not const");
static_assert(!std::is_constructible_v<View, const float*, int, int>, "an output is not const");
static_assert(!std::is_assignable_v<View&, ConstView>, "an input is no output");
static_assert(std::is_assignable_v<ConstView&, View>, "an output may be an input");

#if defined(RMSNORM_DLPACK_HPP_)
template <class Tensor>
void dlpack(const Tensor& tensor) {
  rmsnorm::norm(rmsnorm::dlpack_input(tensor), {}, rmsnorm::dlpack_output(tensor));
}
template void dlpack(const DLTensor&);
template void dlpack(const DLManagedTensor&);
#if defined(DLPACK_MAJOR_VERSION)  // DLPack 1.0 and later
template void dlpack(const DLManagedTensorVersioned&);
#endif
#endif

}  // namespace every_function
