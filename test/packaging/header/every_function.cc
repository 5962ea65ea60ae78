// SPDX-License-Identifier: Apache-2.0
// Calls every function of the C++ interface as a program would, outputs uninitialised. No compiler
// warns.
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

inline void in_order(void*, std::size_t count, rmsnorm_task task, void* state) {
  for (std::size_t i = 0; i < count; ++i) task(state, i);
}

// One view of each form.
template <class V, class T>
std::vector<V> views(T* x, std::size_t rows, std::size_t d, const std::size_t* shape,
                     const std::ptrdiff_t* stride) {
  return {
      {},
      {x, d},
      {x, rows, d},
      {x, rows, d, d},
      {x, {rows, d}},
      {x, {rows, d}, {d, 1}},
      {x, Dtype::f32, {rows, d}},
      {x, Dtype::f32, {rows, d}, {d, 1}},
      {x, Dtype::f32, 2, shape},
      {x, Dtype::f32, 2, shape, stride},
      {x, Dtype::f32, 2, shape, nullptr},
      V(rmsnorm_rows(x, RMSNORM_F32, rows, d, 16)),
  };
}

float norms_of_views(const float* x, std::size_t rows, std::size_t d, const std::size_t* shape,
                     const std::ptrdiff_t* stride) {
  float y[64];
  const auto inputs = views<ConstView>(x, rows, d, shape, stride);
  for (const ConstView& in : inputs) {
    for (const View& out : views<View>(y, rows, d, shape, stride)) rmsnorm::norm(in, {}, out);
  }
  return inputs[0].empty() && inputs[1].get() != nullptr ? y[0] : y[1];
}

float functions(const float* x, const bf16* residual, std::size_t rows, std::size_t d) {
  float y[64];
  bf16 residual_out[64];
  std::int8_t q[64];
  float rstd[4];
  float scale[4];
  std::int8_t zero[4];
  double sums[4];
  float dw[16];
  float db[16];
  rmsnorm::Options options;
  options.eps = 1e-6f;
  rmsnorm::Context context;
  context.parallel_for = in_order;

  rmsnorm::norm({x, rows, d}, {x, d}, {y, rows, d});
  rmsnorm::norm({x, rows, d}, {x, d}, {y, rows, d}, options);
  rmsnorm::add_norm({x, rows, d}, {residual, rows, d}, {}, {residual_out, rows, d}, {y, rows, d});
  rmsnorm::add_norm({x, rows, d}, {residual, rows, d}, {}, {residual_out, rows, d}, {y, rows, d},
                    options);

  rmsnorm::ForwardOperands operands;
  operands.x = {x, rows, d};
  operands.residual = {residual, rows, d};
  operands.gate = {x, rows, d};
  operands.weight = operands.bias = operands.post_norm_weight = {x, d};
  operands.residual_out = {residual_out, rows, d};
  operands.q = {q, rows, d};
  operands.rstd = {rstd, rows};
  operands.scale = {scale, rows};
  operands.zero = {zero, rows};
  operands.sums_out = {sums, rows};
  operands.sums = operands.sums_out;
  rmsnorm::forward(operands);
  rmsnorm::forward(operands, options);
  rmsnorm::forward(operands, options, context);

  rmsnorm::BackwardOperands gradients;
  gradients.x = {x, rows, d};
  gradients.dy = {residual, rows, d};
  gradients.weight = {x, d};
  gradients.rstd = operands.rstd;
  gradients.dx = {y, rows, d};
  gradients.dw = {dw, d};
  gradients.db = {db, d};
  gradients.add_to_dx = gradients.add_to_dw = gradients.add_to_db = rows > 1;
  rmsnorm::backward(gradients);
  rmsnorm::backward(gradients, options);
  rmsnorm::backward(gradients, options, context);
  return y[0] + rstd[0] + scale[0] + dw[0] + db[0] + static_cast<float>(sums[0] + q[0] + zero[0]);
}

void several(const rmsnorm::Call* calls, std::size_t count, const rmsnorm::Call& call) {
  rmsnorm::forward_all(calls, count);
  rmsnorm::forward_all(calls, count, rmsnorm::Context());
  rmsnorm::forward_all(calls, 0);
  rmsnorm::forward_all({});
  rmsnorm::forward_all({call});
  rmsnorm::forward_all({call, call}, rmsnorm::Context());
}

void prepared(const rmsnorm::Call* calls, std::size_t count, const rmsnorm::RmsNorm& norm,
              const rmsnorm::ForwardOperands& operands,
              const rmsnorm::BackwardOperands& gradients) {
  const rmsnorm::Context context;
  rmsnorm::Prepared all[] = {rmsnorm::Prepared(calls, count),
                             rmsnorm::Prepared(calls, count, context),
                             rmsnorm::Prepared({}),
                             rmsnorm::Prepared({calls[0], calls[1]}, context),
                             rmsnorm::Prepared(operands),
                             rmsnorm::Prepared(operands, norm.options(), context),
                             rmsnorm::Prepared(norm, operands),
                             rmsnorm::Prepared(norm, operands, context),
                             rmsnorm::Prepared(gradients),
                             rmsnorm::Prepared(gradients, norm.options(), context),
                             rmsnorm::Prepared(norm, gradients),
                             rmsnorm::Prepared(norm, gradients, context)};
  all[0] = std::move(all[1]);
  for (rmsnorm::Prepared& one : all) one();
}

std::string module(const float* x, const bf16* residual, std::size_t rows, std::size_t d) {
  float y[64];
  bf16 residual_out[64];
  float rstd[4];
  float dw[16];
  const rmsnorm::Context context;
  rmsnorm::RmsNorm norm(d);
  rmsnorm::RmsNorm other(d, 1e-6f, Dtype::bf16);
  rmsnorm::RmsNorm third(d, norm.options(), norm.dtype(), context);
  rmsnorm::RmsNorm moved(std::move(other));
  third = std::move(moved);

  norm.set_weight({x, d});
  norm.set_bias({x, d});
  norm.set_post_norm_weight({x, d});
  norm.get_weight({dw, d});
  norm.reset_weight();

  norm.norm(x, y);
  norm.norm(x, y, rows);
  norm.norm(x, y, rows, rstd);
  norm.norm(x, y, rows, rstd, context);
  norm.add_norm(x, residual, residual_out, y);
  norm.add_norm(x, residual, residual_out, y, rows, rstd);
  norm.add_norm(x, residual, residual_out, y, rows, rstd, context);
  norm.backward(x, x, rstd, y, dw);
  norm.backward(x, x, rstd, y, dw, rows);
  norm.backward(x, x, rstd, y, dw, rows, context);
  norm.backward<rmsnorm::f16>(nullptr, nullptr, nullptr, nullptr, nullptr);

  rmsnorm::ForwardOperands operands;
  operands.x = {x, rows, d};
  operands.y = {y, rows, d};
  norm.forward(operands);
  norm.forward(operands, context);
  rmsnorm::BackwardOperands gradients;
  gradients.x = gradients.dy = {x, rows, d};
  gradients.dx = {y, rows, d};
  norm.backward(gradients);
  norm.backward(gradients, context);
  rmsnorm::forward_all({{&norm, operands}, {nullptr, operands, norm.options()}}, context);
  return norm.description() + std::to_string(static_cast<float>(norm.d()) + y[0] + rstd[0] + dw[0]);
}

const char* refused(rmsnorm_status status, rmsnorm_status* code) {
#if defined(__cpp_exceptions)
  try {
    rmsnorm::check(status);
  } catch (const rmsnorm::Error& error) {
    *code = error.status();
    return rmsnorm_status_text(*code);
  }
#endif
  *code = status;
  return rmsnorm_error_message();
}

#if defined(RMSNORM_DLPACK_HPP_)
void dlpack(const DLTensor& tensor, const DLManagedTensor& managed) {
  rmsnorm::norm(rmsnorm::dlpack_input(tensor), rmsnorm::dlpack_input(managed),
                rmsnorm::dlpack_output(tensor));
  rmsnorm::norm(rmsnorm::dlpack_input(tensor), {}, rmsnorm::dlpack_output(managed));
}

#if defined(DLPACK_MAJOR_VERSION)  // DLPack 1.0 and later
void dlpack_of_a_version(const DLManagedTensorVersioned& tensor) {
  rmsnorm::norm(rmsnorm::dlpack_input(tensor), {}, rmsnorm::dlpack_output(tensor));
}
#endif
#endif

}  // namespace every_function
