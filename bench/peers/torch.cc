// SPDX-License-Identifier: Apache-2.0
// PyTorch's C++ library, 2.4 or later: eager, in inference mode.
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
#include <ATen/ops/rms_norm.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "peer.h"

namespace {

// A tensor over the memory of a view; an undefined one for null.
at::Tensor TensorOf(const rmsnorm_view* view) {
  if (view == nullptr) return {};
  const at::ScalarType type = view->dtype == RMSNORM_F32   ? at::kFloat
                              : view->dtype == RMSNORM_F16 ? at::kHalf
                                                           : at::kBFloat16;
  const std::vector<int64_t> sizes(view->shape, view->shape + view->ndim);
  const std::vector<int64_t> strides(view->stride, view->stride + view->ndim);
  return at::from_blob(const_cast<void*>(view->data), sizes, strides, at::TensorOptions(type));
}

class TimedCall {
 public:
  explicit TimedCall(const rmsnorm_call& call)
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

  void Run() {
    if (dy_.defined()) {
      Backward();
    } else {
      if (residual_.defined()) residual_.add_(x_);
      const at::Tensor& x = residual_.defined() ? residual_ : x_;
      Write(at::rms_norm(x, weight_.sizes(), weight_, eps_), y_);
    }
    has_run_ = true;
  }

 private:
  // Computes the gradients as a custom function for autograd does, with f32 in between. Autograd
  // over the graph of at::rms_norm() took 1.6 to 7 times as long, and _fused_rms_norm_backward()
  // has no code for the CPU.
  void Backward() {
    const at::Tensor n = x_ * rstd_;
    Write((dy_ * n).sum(0), dw_);
    const at::Tensor g = dy_.to(at::kFloat) * weight_;
    const at::Tensor mean = (g * n).mean(-1, /*keepdim=*/true);
    Write(at::addcmul(g, n, mean, -1).mul_(rstd_).to(x_.scalar_type()), dx_);
  }

  // Copies in the first run only.
  void Write(const at::Tensor& result, at::Tensor& to) const {
    if (!has_run_) to.copy_(result);
  }

  const double eps_;
  at::Tensor x_, weight_, residual_, y_, dy_, rstd_, dx_, dw_;
  bool has_run_ = false;
};

struct State {
  std::vector<TimedCall> calls;
  int threads;
};

// Whether a call is a norm, or dx and dw of two-dimensional rows, with a weight of one dimension.
bool IsKnown(const rmsnorm_call& call, bool backward) {
  if (backward) return rmsnorm_peer_no_gradients(&call) == nullptr;
  return rmsnorm_peer_no_norm(&call) == nullptr && call.operands->weight->ndim == 1;
}

void* Prepare(const rmsnorm_peer_case* what, const char** why) try {
  const c10::InferenceMode guard;
  auto state = std::make_unique<State>(State{{}, what->threads});
  for (size_t i = 0; i < what->count; ++i) {
    if (!IsKnown(what->calls[i], what->backward != 0)) {
      *why = "not an operation of this plug-in";
      return nullptr;
    }
    state->calls.emplace_back(what->calls[i]);
  }
  return state.release();
} catch (const std::exception& error) {
  static std::string message;
  message = error.what();
  *why = message.c_str();
  return nullptr;
}

void Run(void* prepared) {
  State& state = *static_cast<State*>(prepared);
  // The number belongs to the calling thread, and other cells set it too. Reading is cheaper than
  // setting.
  if (at::get_num_threads() != state.threads) at::set_num_threads(state.threads);
  const c10::InferenceMode guard;
  for (TimedCall& call : state.calls) call.Run();
}

void Release(void* prepared) { delete static_cast<State*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, "pytorch", Prepare, Run, Release};
  return &peer;
}
