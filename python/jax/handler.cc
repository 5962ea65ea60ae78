// SPDX-License-Identifier: Apache-2.0
// The calls of rmsnorm.jax, as a handler of XLA's foreign function interface.
#include <rmsnorm/rmsnorm.h>
#include <xla/ffi/api/ffi.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <vector>

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

// A dense array with any dimensions. Those beyond RMSNORM_MAX_DIMS are refused by their number.
rmsnorm_view View(const Buffer& buffer) {
  const auto type = buffer.element_type();
  const auto dtype = type == ffi::F32   ? RMSNORM_F32
                     : type == ffi::F16 ? RMSNORM_F16
                     : type == ffi::S8  ? RMSNORM_I8
                                        : RMSNORM_BF16;
  const auto shape = buffer.dimensions();
  const size_t dims = shape.size();
  rmsnorm_view view = {buffer.untyped_data(), dtype, static_cast<int32_t>(dims), {}, {}};
  ptrdiff_t stride = 1;
  for (size_t i = dims <= RMSNORM_MAX_DIMS ? dims : 0; i-- > 0;) {
    view.shape[i] = static_cast<size_t>(shape[i]);
    view.stride[i] = stride;
    stride *= shape[i];
  }
  return view;
}

// `bytes` hold the options. `fields` holds the offset in rmsnorm_operands of each input, and then
// of each output. A call with an input dy is backward, any other is forward.
ffi::Error Norm(ffi::ThreadPool pool, ffi::Span<const int32_t> bytes,
                ffi::Span<const int32_t> fields, ffi::RemainingArgs args,
                ffi::RemainingRets results) {
  std::vector<rmsnorm_view> views(fields.size());
  rmsnorm_operands operands = rmsnorm_no_operands();
  for (size_t i = 0; i < fields.size(); ++i) {
    views[i] =
        View(i < args.size() ? *args.get<Buffer>(i) : **results.get<Buffer>(i - args.size()));
    const rmsnorm_view* view = &views[i];
    std::memcpy(reinterpret_cast<char*>(&operands) + fields[i], &view, sizeof view);
  }
  rmsnorm_options options;
  std::memcpy(&options, bytes.begin(), sizeof options);
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = static_cast<int32_t>(pool.num_threads());
  context.stores = RMSNORM_STORES_CACHED;  // large results lie in new memory
  context.parallel_for = RunOnPool;
  context.parallel_context = &pool;
  const auto call = operands.dy ? rmsnorm_backward : rmsnorm_forward;
  if (call(&operands, &options, &context) == RMSNORM_OK) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(rmsnorm_error_message());
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(rmsnorm_jax, Norm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<ffi::Span<const int32_t>>("options")
                                  .Attr<ffi::Span<const int32_t>>("fields")
                                  .RemainingArgs()
                                  .RemainingRets());
