// SPDX-License-Identifier: Apache-2.0
// PyTorch's C++ library: eager, in inference mode.
//
// The timed code is what an application calls: at::rms_norm(), after add_() for the residual, and
// for the gradients the operations of their formula. The caller cannot choose where their results
// go: results and intermediates come from PyTorch's allocator, which for the CPU is malloc's. Each
// run frees its memory, so the next run finds the same memory, up to the size from which malloc
// asks the system each time. Only the first run copies the results to y, dx and dw, for the check:
// in every run, PyTorch would be charged for the copy. So once the cell is checked, no run reads or
// writes that memory. The residual is updated in place.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "peer.h"

#if __has_include(<ATen/ops/rms_norm.h>)
#include <ATen/ops/rms_norm.h>
#else
#include <ATen/ops/rsqrt.h>
#endif

namespace {

#if __has_include(<ATen/ops/rms_norm.h>)
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, weight.sizes(), weight, eps);
}
#else
// For PyTorch before 2.4. A weight with fewer bits becomes f32 in the product, so this rounds to
// them once.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps);
  return (wide * scale * weight).to(x.scalar_type());
}
#endif

at::ScalarType TypeOf(const rmsnorm_view& view) {
  return view.dtype == RMSNORM_F32   ? at::kFloat
         : view.dtype == RMSNORM_F16 ? at::kHalf
                                     : at::kBFloat16;
}

// A tensor over the memory of a view; an undefined one for null.
at::Tensor TensorOf(const rmsnorm_view* view) {
  if (view == nullptr) return {};
  const std::vector<int64_t> sizes(view->shape, view->shape + view->ndim);
  const std::vector<int64_t> strides(view->stride, view->stride + view->ndim);
  return at::from_blob(const_cast<void*>(view->data), sizes, strides,
                       at::TensorOptions(TypeOf(*view)));
}

// The number belongs to the calling thread, and other cells set it too. Reading is cheaper than
// setting.
void UseThreads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

// A call of a case.
class Call {
 public:
  explicit Call(const rmsnorm_call& call)
      : eps_(call.options->eps),
        x_(TensorOf(call.operands->x)),
        weight_(TensorOf(call.operands->weight)),
        residual_(TensorOf(call.operands->residual)),
        y_(TensorOf(call.operands->y)),
        dy_(TensorOf(call.operands->dy)),
        rstd_(TensorOf(call.operands->rstd)),
        dx_(TensorOf(call.operands->dx)),
        dw_(TensorOf(call.operands->dw)) {
    if (rstd_.defined()) rstd_ = rstd_.unsqueeze(-1);
  }

  void Forward() {
    if (residual_.defined()) residual_.add_(x_);
    Write(RmsNorm(residual_.defined() ? residual_ : x_, weight_, eps_), y_);
    has_run_ = true;
  }

  // Computes the gradients as a custom function for autograd does, with f32 in between. Autograd
  // over the graph of at::rms_norm() took 1.6 to 7 times as long, and _fused_rms_norm_backward()
  // has no code for the CPU.
  void Backward() {
    const at::Tensor n = x_ * rstd_;
    Write((dy_ * n).sum(0), dw_);
    const at::Tensor g = dy_.to(at::kFloat) * weight_;
    const at::Tensor mean = (g * n).mean(-1, /*keepdim=*/true);
    Write(at::addcmul(g, n, mean, -1).mul_(rstd_).to(x_.scalar_type()), dx_);
    has_run_ = true;
  }

 private:
  // Copies in the first run only.
  void Write(const at::Tensor& result, at::Tensor& to) const {
    if (!has_run_) to.copy_(result);
  }

  const double eps_;
  at::Tensor x_, weight_, residual_, y_, dy_, rstd_, dx_, dw_;
  bool has_run_ = false;
};

struct Prepared {
  std::vector<Call> calls;
  bool backward;
  int threads;
};

// Why the plug-in refuses a call; null for a norm of x, or of a residual that is updated in place,
// and for dx and dw of two-dimensional rows.
const char* WhyNot(const rmsnorm_call& call, bool backward) {
  const rmsnorm_operands& given = *call.operands;
  rmsnorm_operands known = rmsnorm_no_operands();
  known.x = given.x;
  known.weight = given.weight;
  if (backward) {
    known.dy = given.dy;
    known.rstd = given.rstd;
    known.dx = given.dx;
    known.dw = given.dw;
  } else {
    known.y = given.y;
    known.residual = given.residual;
    known.residual_out = given.residual_out;
  }
  rmsnorm_options usual = {};
  usual.size = sizeof usual;
  usual.eps = call.options->eps;
  const bool has_all = given.weight != nullptr && given.weight->ndim == 1 &&
                       (backward ? given.rstd != nullptr && given.dx != nullptr &&
                                       given.dw != nullptr && given.x->ndim == 2
                                 : given.y != nullptr);
  const bool is_in_place =
      given.residual == nullptr ||
      (given.residual_out != nullptr && given.residual_out->data == given.residual->data);
  if (!has_all || !is_in_place || std::memcmp(&known, &given, sizeof known) != 0 ||
      std::memcmp(&usual, call.options, sizeof usual) != 0) {
    return "not an operation of this plug-in";
  }
  return nullptr;
}

void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  try {
    const c10::InferenceMode guard;
    auto prepared = std::make_unique<Prepared>(Prepared{{}, what->backward != 0, what->threads});
    for (size_t i = 0; i < what->count; ++i) {
      *why = WhyNot(what->calls[i], prepared->backward);
      if (*why != nullptr) return nullptr;
      prepared->calls.emplace_back(what->calls[i]);
    }
    return prepared.release();
  } catch (const std::exception& error) {
    static std::string message;
    message = error.what();
    *why = message.c_str();
    return nullptr;
  }
}

void Run(void* state) {
  Prepared& prepared = *static_cast<Prepared*>(state);
  UseThreads(prepared.threads);
  const c10::InferenceMode guard;
  for (Call& call : prepared.calls) prepared.backward ? call.Backward() : call.Forward();
}

void Release(void* prepared) { delete static_cast<Prepared*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, "pytorch", Prepare, Run, Release};
  return &peer;
}
