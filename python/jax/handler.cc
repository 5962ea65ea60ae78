// SPDX-License-Identifier: Apache-2.0
// The calls of rmsnorm.jax, as a handler of XLA's foreign function interface.
#include <rmsnorm/rmsnorm.h>
#include <xla/ffi/api/ffi.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <memory>

namespace {

namespace ffi = xla::ffi;
using Buffer = ffi::AnyBuffer;

// This thread may belong to the pool, so it waits only for parts that have begun. A thread that
// comes later finds no part left, and touches nothing but what it shares.
void RunOnPool(void* pool, size_t count, rmsnorm_task task, void* state) {
  const auto next = std::make_shared<std::atomic<size_t>>(0);
  const auto unfinished = std::make_shared<std::latch>(static_cast<ptrdiff_t>(count));
  const auto run = [=] {
    for (size_t i; (i = (*next)++) < count; unfinished->count_down()) task(state, i);
  };
  auto& threads = *static_cast<ffi::ThreadPool*>(pool);
  for (size_t i = 1; i < count; ++i) threads.Schedule([run] { run(); });
  run();
  unfinished->wait();
}

// The buffer, repeated to `shape`: vmap gives a dimension of 1 to what it does not map.
rmsnorm_view View(const Buffer& buffer, Buffer::Dimensions shape) {
  const auto type = buffer.element_type();
  const auto dtype = type == ffi::F32 ? RMSNORM_F32 : type == ffi::F16 ? RMSNORM_F16 : RMSNORM_BF16;
  rmsnorm_view view = {buffer.untyped_data(), dtype, static_cast<int32_t>(shape.size()), {}, {}};
  ptrdiff_t stride = 1;
  for (size_t i = shape.size() <= RMSNORM_MAX_DIMS ? shape.size() : 0; i-- > 0;) {
    view.shape[i] = static_cast<size_t>(shape[i]);
    view.stride[i] = buffer.dimensions()[i] == shape[i] ? stride : 0;
    stride *= buffer.dimensions()[i];
  }
  return view;
}

// Writes y, or with dy the gradients: dx takes the place of y, and dw follows. `bytes` hold the
// options.
ffi::Error Norm(ffi::ThreadPool pool, ffi::Span<const int32_t> bytes, Buffer x, Buffer weight,
                ffi::RemainingArgs dy, ffi::Result<Buffer> y, ffi::RemainingRets dw) {
  const auto rows = y->dimensions();
  const auto columns = dw.empty() ? weight.dimensions() : (*dw.get<Buffer>(0))->dimensions();
  const rmsnorm_view x_view = View(x, rows), weight_view = View(weight, columns);
  const rmsnorm_view y_view = View(*y, rows);
  rmsnorm_view dy_view, dw_view;
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = &x_view;
  operands.weight = &weight_view;
  (dw.empty() ? operands.y : operands.dx) = &y_view;
  if (!dw.empty()) {
    operands.dy = &(dy_view = View(*dy.get<Buffer>(0), rows));
    operands.dw = &(dw_view = View(**dw.get<Buffer>(0), columns));
  }
  rmsnorm_options options;
  std::memcpy(&options, bytes.begin(), sizeof options);
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = static_cast<int32_t>(pool.num_threads());
  context.parallel_for = RunOnPool;
  context.parallel_context = &pool;
  const auto call = dw.empty() ? rmsnorm_forward : rmsnorm_backward;
  if (call(&operands, &options, &context) == RMSNORM_OK) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(rmsnorm_error_message());
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(rmsnorm_jax, Norm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<ffi::Span<const int32_t>>("options")
                                  .Arg<Buffer>()
                                  .Arg<Buffer>()
                                  .RemainingArgs()
                                  .Ret<Buffer>()
                                  .RemainingRets());
