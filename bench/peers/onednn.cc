// SPDX-License-Identifier: Apache-2.0
// oneDNN: forward of its layer normalization with the flag rms_norm. It has no norm that adds a
// residual, and its backward is LayerNorm's even with that flag.
//
// The scale is f32 for every type of x and y, and is converted once: with a scale of 16 bits oneDNN
// 3.13 falls back to its reference loops.
#include <dnnl.hpp>
#include <exception>
#include <string>
#include <unordered_map>

#include "peer.h"

#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
#include <omp.h>
#elif DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_TBB
#include <tbb/global_control.h>

#include <optional>
#else
#error "This oneDNN needs a thread pool; build one for OpenMP."
#endif

namespace {

using dnnl::memory;

// oneDNN has no setting for the number of threads: it uses its runtime's.
void UseThreads(int threads) {
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
  omp_set_num_threads(threads);
#else
  static int current = 0;
  static std::optional<tbb::global_control> limit;
  if (current == threads) return;
  limit.reset();  // with two limits, the lower one would count
  limit.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  current = threads;
#endif
}

struct TimedCall {
  dnnl::stream stream;
  dnnl::layer_normalization_forward primitive;
  std::unordered_map<int, memory> arguments;
  int threads;
};

TimedCall* Make(const rmsnorm_operands& operands, float eps, int threads) {
  const rmsnorm_view& x = *operands.x;
  const memory::data_type type = x.dtype == RMSNORM_F32   ? memory::data_type::f32
                                 : x.dtype == RMSNORM_F16 ? memory::data_type::f16
                                                          : memory::data_type::bf16;
  const memory::dims dims(x.shape, x.shape + x.ndim);
  const memory::desc matrix(dims, type, memory::format_tag::ab);
  const memory::desc given({dims[1]}, type, memory::format_tag::a);
  const memory::desc wide({dims[1]}, memory::data_type::f32, memory::format_tag::a);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const auto at = [&](const memory::desc& desc, const rmsnorm_view* view) {
    return memory(desc, engine, const_cast<void*>(view->data));
  };
  memory weight = at(given, operands.weight);
  memory scale(wide, engine);
  dnnl::reorder(weight, scale).execute(stream, weight, scale);
  stream.wait();
  using Flags = dnnl::normalization_flags;
  const dnnl::layer_normalization_forward::primitive_desc description(
      engine, dnnl::prop_kind::forward_inference, matrix, matrix, memory::data_type::f32, eps,
      Flags::use_scale | Flags::rms_norm, dnnl::primitive_attr(), /*allow_empty=*/true);
  if (!description) return nullptr;
  return new TimedCall{stream,
                       dnnl::layer_normalization_forward(description),
                       {{DNNL_ARG_SRC, at(matrix, operands.x)},
                        {DNNL_ARG_SCALE, scale},
                        {DNNL_ARG_DST, at(matrix, operands.y)}},
                       threads};
}

// Why the plug-in refuses a case; null for a norm with all of one type and in dense rows.
const char* WhyNot(const rmsnorm_peer_case& what) {
  const rmsnorm_operands& given = *what.calls->operands;
  if (what.count != 1 || what.backward != 0 || rmsnorm_peer_no_norm(what.calls) != nullptr ||
      given.residual != nullptr || given.weight->ndim != 1) {
    return "not an operation of this plug-in";
  }
  for (const rmsnorm_view* const view : {given.x, given.y}) {
    if (view->ndim != 2 || view->stride[0] != static_cast<ptrdiff_t>(view->shape[1])) {
      return "dense rows only";
    }
  }
  return rmsnorm_peer_has_one_type(&given) != 0 ? nullptr : "one type only";
}

void* Prepare(const rmsnorm_peer_case* what, const char** why) try {
  *why = WhyNot(*what);
  if (*why != nullptr) return nullptr;
  UseThreads(what->threads);
  TimedCall* const call = Make(*what->calls->operands, what->calls->options->eps, what->threads);
  if (call == nullptr) *why = "oneDNN cannot on this CPU";
  return call;
} catch (const std::exception& error) {
  static std::string message;
  message = error.what();
  *why = message.c_str();
  return nullptr;
}

void Run(void* prepared) {
  TimedCall& call = *static_cast<TimedCall*>(prepared);
  UseThreads(call.threads);
  call.primitive.execute(call.stream, call.arguments);
  call.stream.wait();
}

void Release(void* prepared) { delete static_cast<TimedCall*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  // A call through a SYCL queue costs some 10 us more, so the two get different names.
  static const rmsnorm_peer peer = {
      RMSNORM_PEER_VERSION, DNNL_CPU_RUNTIME == DNNL_RUNTIME_SYCL ? "onednn-sycl" : "onednn",
      Prepare, Run, Release};
  return &peer;
}
