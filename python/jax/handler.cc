// SPDX-License-Identifier: Apache-2.0
// The calls of rmsnorm.jax, as a handler of XLA's foreign function interface.
#include <rmsnorm/rmsnorm.h>
#include <xla/ffi/api/ffi.h>

#include <atomic>
#include <cstring>
#include <iterator>
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

using Operand = const rmsnorm_view* rmsnorm_operands::*;

// rmsnorm/jax.py gives the names of the inputs and of the outputs as numbers of these tables. The
// first kRows of each have a row for each row of x, the others may have one row for several.
constexpr Operand kInputs[] = {&rmsnorm_operands::x, &rmsnorm_operands::dy,
                               &rmsnorm_operands::weight, &rmsnorm_operands::bias};
constexpr Operand kOutputs[] = {&rmsnorm_operands::y, &rmsnorm_operands::dx, &rmsnorm_operands::dw,
                                &rmsnorm_operands::db};
constexpr int32_t kRows = 2;

// The shape of x is [..., rows, d]. A weight has the same leading dimensions, or 1 where vmap does
// not map it, and [1, d] at the end.
rmsnorm_view View(const Buffer& buffer, Buffer::Dimensions x_shape, bool has_rows) {
  const auto type = buffer.element_type();
  const auto dtype = type == ffi::F32 ? RMSNORM_F32 : type == ffi::F16 ? RMSNORM_F16 : RMSNORM_BF16;
  const size_t dims = x_shape.size();
  rmsnorm_view view = {buffer.untyped_data(), dtype, static_cast<int32_t>(dims), {}, {}};
  ptrdiff_t stride = 1;
  for (size_t i = dims <= RMSNORM_MAX_DIMS ? dims : 0; i-- > 0;) {
    const int64_t length = buffer.dimensions()[i];
    const int64_t wanted = i + 2 == dims && !has_rows ? 1 : x_shape[i];
    view.shape[i] = static_cast<size_t>(wanted);
    view.stride[i] = length == wanted ? stride : 0;
    stride *= length;
  }
  return view;
}

// `bytes` hold the options. A call with an output y is forward, any other is backward.
ffi::Error Norm(ffi::ThreadPool pool, ffi::Span<const int32_t> bytes,
                ffi::Span<const int32_t> inputs, ffi::Span<const int32_t> outputs,
                ffi::RemainingArgs args, ffi::RemainingRets results) {
  rmsnorm_view input_views[std::size(kInputs)], output_views[std::size(kOutputs)];
  rmsnorm_operands operands = rmsnorm_no_operands();
  const auto x_shape = args.get<Buffer>(0)->dimensions();
  for (size_t i = 0; i < inputs.size(); ++i) {
    input_views[i] = View(*args.get<Buffer>(i), x_shape, inputs[i] < kRows);
    operands.*kInputs[inputs[i]] = &input_views[i];
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    output_views[i] = View(**results.get<Buffer>(i), x_shape, outputs[i] < kRows);
    operands.*kOutputs[outputs[i]] = &output_views[i];
  }
  rmsnorm_options options;
  std::memcpy(&options, bytes.begin(), sizeof options);
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = static_cast<int32_t>(pool.num_threads());
  context.parallel_for = RunOnPool;
  context.parallel_context = &pool;
  const auto call = operands.y ? rmsnorm_forward : rmsnorm_backward;
  if (call(&operands, &options, &context) == RMSNORM_OK) return ffi::Error::Success();
  return ffi::Error::InvalidArgument(rmsnorm_error_message());
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(rmsnorm_jax, Norm,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<ffi::Span<const int32_t>>("options")
                                  .Attr<ffi::Span<const int32_t>>("inputs")
                                  .Attr<ffi::Span<const int32_t>>("outputs")
                                  .RemainingArgs()
                                  .RemainingRets());
