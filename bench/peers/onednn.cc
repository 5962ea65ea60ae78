// SPDX-License-Identifier: Apache-2.0
// oneDNN: its layer normalization with the flag rms_norm.
//
// The scale is f32 whatever the type of x and y, converted once: with a scale of 16 bits
// oneDNN 3.13 falls back to its reference loops.
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
#elif DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
#error "This oneDNN needs a thread pool; build one for OpenMP."
#endif

namespace {

using dnnl::memory;

// oneDNN has no number of threads of its own: it takes what its runtime would.
void UseThreads([[maybe_unused]] int threads) {
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
  omp_set_num_threads(threads);
#elif DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_TBB
  static int current = 0;
  static std::optional<tbb::global_control> limit;
  if (current == threads) return;
  limit.reset();  // of two limits the lower would count
  limit.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  current = threads;
#endif
}

struct Prepared {
  dnnl::stream stream;
  dnnl::layer_normalization_forward primitive;
  std::unordered_map<int, memory> arguments;
  int threads;
};

void* TryToPrepare(const rmsnorm_peer_case& what, memory::data_type type, const char** why) {
  UseThreads(what.threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto rows = static_cast<memory::dim>(what.rows);
  const auto d = static_cast<memory::dim>(what.d);
  const memory::desc matrix({rows, d}, type, memory::format_tag::ab);
  const memory::desc weight_as_given({d}, type, memory::format_tag::a);
  const memory::desc weight({d}, memory::data_type::f32, memory::format_tag::a);

  using Flags = dnnl::normalization_flags;
  const dnnl::layer_normalization_forward::primitive_desc primitive(
      engine, dnnl::prop_kind::forward_inference, matrix, matrix, memory::data_type::f32, what.eps,
      Flags::use_scale | Flags::rms_norm, dnnl::primitive_attr(), /*allow_empty=*/true);
  if (!primitive) {
    *why = "oneDNN cannot on this CPU";
    return nullptr;
  }

  dnnl::stream stream(engine);
  memory scale(weight, engine);
  memory given(weight_as_given, engine, const_cast<void*>(what.weight));
  dnnl::reorder(given, scale).execute(stream, given, scale);
  stream.wait();
  return new Prepared{stream,
                      dnnl::layer_normalization_forward(primitive),
                      {{DNNL_ARG_SRC, memory(matrix, engine, const_cast<void*>(what.x))},
                       {DNNL_ARG_SCALE, scale},
                       {DNNL_ARG_DST, memory(matrix, engine, what.y)}},
                      what.threads};
}

void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  if (what->operation != RMSNORM_PEER_FORWARD) {
    *why = "only forward is timed";
    return nullptr;
  }
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_SEQ
  if (what->threads != 1) {
    *why = "this oneDNN was built without threads";
    return nullptr;
  }
#endif
  memory::data_type type;
  switch (what->dtype) {
    case RMSNORM_PEER_F32:
      type = memory::data_type::f32;
      break;
    case RMSNORM_PEER_F16:
      type = memory::data_type::f16;
      break;
    case RMSNORM_PEER_BF16:
      type = memory::data_type::bf16;
      break;
    default:
      *why = "unknown type";
      return nullptr;
  }
  try {
    return TryToPrepare(*what, type, why);
  } catch (const std::exception& error) {
    static std::string message;
    message = error.what();
    *why = message.c_str();
    return nullptr;
  }
}

void Run(void* prepared) {
  Prepared& job = *static_cast<Prepared*>(prepared);
  UseThreads(job.threads);
  job.primitive.execute(job.stream, job.arguments);
  job.stream.wait();
}

void Release(void* prepared) { delete static_cast<Prepared*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  // Through a queue of SYCL a call costs some 10 us more, so one is not to be taken for the other.
  static const rmsnorm_peer peer = {
      RMSNORM_PEER_VERSION, DNNL_CPU_RUNTIME == DNNL_RUNTIME_SYCL ? "onednn-sycl" : "onednn",
      Prepare, Run, Release};
  return &peer;
}
