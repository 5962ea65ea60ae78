// SPDX-License-Identifier: Apache-2.0
// oneDNN: its layer normalization with the flag rms_norm. It has no norm that adds a residual.
//
// The scale is f32 for every type of x and y, and is converted once: with a scale of 16 bits oneDNN
// 3.13 falls back to its reference loops.
#include <cstring>
#include <dnnl.hpp>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

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

// oneDNN has no setting for the number of threads: it uses its runtime's.
void UseThreads([[maybe_unused]] int threads) {
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
  omp_set_num_threads(threads);
#elif DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_TBB
  static int current = 0;
  static std::optional<tbb::global_control> limit;
  if (current == threads) return;
  limit.reset();  // with two limits, the lower one would count
  limit.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  current = threads;
#endif
}

struct Prepared {
  dnnl::stream stream;
  dnnl::primitive primitive;
  std::unordered_map<int, memory> arguments;
  int threads;
};

using Flags = dnnl::normalization_flags;
const Flags kFlags = Flags::use_scale | Flags::rms_norm;

memory::dims DimsOf(const rmsnorm_view& view) {
  return memory::dims(view.shape, view.shape + view.ndim);
}

// The parts of a case that both operations need.
class Preparation {
 public:
  Preparation(const rmsnorm_peer_case& what, memory::data_type type)
      : operands_(*what.calls->operands),
        eps_(what.calls->options->eps),
        threads_(what.threads),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        matrix_(DimsOf(*operands_.x), type, memory::format_tag::ab),
        weight_(DimsOf(*operands_.weight), memory::data_type::f32, memory::format_tag::a),
        scale_(weight_, engine_) {
    const memory::desc as_given(weight_.get_dims(), type, memory::format_tag::a);
    memory given = At(as_given, operands_.weight);
    dnnl::reorder(given, scale_).execute(stream_, given, scale_);
    stream_.wait();
  }

  // Returns null if oneDNN cannot do it.
  Prepared* Forward() {
    const auto primitive = MakeForward(dnnl::prop_kind::forward_inference);
    if (!primitive) return nullptr;
    return Finish(dnnl::layer_normalization_forward(primitive),
                  {{DNNL_ARG_SRC, At(matrix_, operands_.x)},
                   {DNNL_ARG_SCALE, scale_},
                   {DNNL_ARG_DST, At(matrix_, operands_.y)}});
  }

  // Backward needs the statistics of oneDNN's own forward call for training, not 1 / RMS.
  Prepared* Backward() {
    const auto forward = MakeForward(dnnl::prop_kind::forward_training);
    if (!forward) return nullptr;
    const dnnl::layer_normalization_backward::primitive_desc backward(
        engine_, dnnl::prop_kind::backward, matrix_, matrix_, matrix_, eps_, kFlags, forward,
        dnnl::primitive_attr(), /*allow_empty=*/true);
    if (!backward) return nullptr;

    std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, At(matrix_, operands_.x)},
        {DNNL_ARG_SCALE, scale_},
        {DNNL_ARG_MEAN, memory(forward.mean_desc(), engine_)},
        {DNNL_ARG_VARIANCE, memory(forward.variance_desc(), engine_)}};
    std::unordered_map<int, memory> forward_arguments = arguments;
    forward_arguments[DNNL_ARG_DST] = memory(matrix_, engine_);
    dnnl::layer_normalization_forward(forward).execute(stream_, forward_arguments);
    stream_.wait();

    arguments[DNNL_ARG_DIFF_DST] = At(matrix_, operands_.dy);
    arguments[DNNL_ARG_DIFF_SRC] = At(matrix_, operands_.dx);
    arguments[DNNL_ARG_DIFF_SCALE] = At(weight_, operands_.dw);
    return Finish(dnnl::layer_normalization_backward(backward), std::move(arguments));
  }

 private:
  memory At(const memory::desc& desc, const rmsnorm_view* view) const {
    return memory(desc, engine_, const_cast<void*>(view->data));
  }
  dnnl::layer_normalization_forward::primitive_desc MakeForward(dnnl::prop_kind kind) const {
    return {engine_,
            kind,
            matrix_,
            matrix_,
            memory::data_type::f32,
            eps_,
            kFlags,
            dnnl::primitive_attr(),
            /*allow_empty=*/true};
  }
  Prepared* Finish(dnnl::primitive primitive, std::unordered_map<int, memory> arguments) const {
    return new Prepared{stream_, std::move(primitive), std::move(arguments), threads_};
  }

  const rmsnorm_operands operands_;
  const float eps_;
  const int threads_;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  const memory::desc matrix_;
  const memory::desc weight_;
  memory scale_;
};

// Why the plug-in refuses a case; null for forward of x and weight to y, or backward with dw in
// f32, all else of one type and in dense rows.
const char* WhyNot(const rmsnorm_peer_case& what) {
  const rmsnorm_operands& given = *what.calls->operands;
  const rmsnorm_options& options = *what.calls->options;
  rmsnorm_operands known = rmsnorm_no_operands();
  known.x = given.x;
  known.weight = given.weight;
  known.y = given.y;
  if (what.backward != 0) {
    known.dy = given.dy;
    known.rstd = given.rstd;
    known.dx = given.dx;
    known.dw = given.dw;
  }
  rmsnorm_options usual = {};
  usual.size = sizeof usual;
  usual.eps = options.eps;
  const bool has_all =
      given.weight != nullptr &&
      (what.backward != 0 ? given.dx != nullptr && given.dw != nullptr : given.y != nullptr);
  if (what.count != 1 || !has_all || std::memcmp(&known, &given, sizeof known) != 0 ||
      std::memcmp(&usual, &options, sizeof usual) != 0) {
    return "not an operation of this plug-in";
  }
  for (const rmsnorm_view* const view : {given.x, given.y, given.dy, given.dx}) {
    if (view == nullptr) continue;
    if (view->ndim != 2 || view->stride[0] != static_cast<ptrdiff_t>(view->shape[1])) {
      return "dense rows only";
    }
    if (view->dtype != given.x->dtype) return "one type only";
  }
  if (given.weight->ndim != 1 || given.weight->dtype != given.x->dtype) return "one type only";
  if (given.dw != nullptr && given.dw->dtype != RMSNORM_F32) return "dw in f32 only";
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_SEQ
  if (what.threads != 1) return "this oneDNN was built without threads";
#endif
  return nullptr;
}

void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  *why = WhyNot(*what);
  if (*why != nullptr) return nullptr;
  const rmsnorm_dtype dtype = what->calls->operands->x->dtype;
  const memory::data_type type = dtype == RMSNORM_F32   ? memory::data_type::f32
                                 : dtype == RMSNORM_F16 ? memory::data_type::f16
                                                        : memory::data_type::bf16;
  try {
    UseThreads(what->threads);
    Preparation preparation(*what, type);
    Prepared* const prepared = what->backward != 0 ? preparation.Backward() : preparation.Forward();
    if (prepared == nullptr) *why = "oneDNN cannot on this CPU";
    return prepared;
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
  // A call through a SYCL queue costs some 10 us more, so the two get different names.
  static const rmsnorm_peer peer = {
      RMSNORM_PEER_VERSION, DNNL_CPU_RUNTIME == DNNL_RUNTIME_SYCL ? "onednn-sycl" : "onednn",
      Prepare, Run, Release};
  return &peer;
}
