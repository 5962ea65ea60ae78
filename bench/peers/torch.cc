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
#include <ATen/ops/layer_norm.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <exception>
#include <string>

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

at::Tensor View(const void* data, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), sizes, at::TensorOptions(type));
}

// The number belongs to the calling thread, and other cells set it too. Reading is cheaper than
// setting.
void UseThreads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

class Prepared {
 public:
  explicit Prepared(const rmsnorm_peer_case& what, at::ScalarType type)
      : rows_(static_cast<int64_t>(what.rows)),
        d_(static_cast<int64_t>(what.d)),
        type_(type),
        threads_(what.threads),
        eps_(what.eps),
        x_(View(what.x, {rows_, d_}, type)),
        weight_(View(what.weight, {d_}, type)) {}
  virtual ~Prepared() = default;

  void Run() {
    UseThreads(threads_);
    const c10::InferenceMode guard;
    Compute();
    has_run_ = true;
  }

 protected:
  virtual void Compute() = 0;

  at::Tensor Matrix(const void* data) const { return View(data, {rows_, d_}, type_); }
  // Copies in the first run only.
  void Write(const at::Tensor& result, at::Tensor& to) const {
    if (!has_run_) to.copy_(result);
  }

  const int64_t rows_;
  const int64_t d_;
  const at::ScalarType type_;
  const int threads_;
  const double eps_;
  at::Tensor x_;
  at::Tensor weight_;

 private:
  bool has_run_ = false;
};

class Forward final : public Prepared {
 public:
  Forward(const rmsnorm_peer_case& what, at::ScalarType type)
      : Prepared(what, type), y_(Matrix(what.y)) {}

 private:
  void Compute() override { Write(RmsNorm(x_, weight_, eps_), y_); }

  at::Tensor y_;
};

class LayerNorm final : public Prepared {
 public:
  LayerNorm(const rmsnorm_peer_case& what, at::ScalarType type)
      : Prepared(what, type), bias_(View(what.bias, {d_}, type)), y_(Matrix(what.y)) {}

 private:
  void Compute() override { Write(at::layer_norm(x_, {d_}, weight_, bias_, eps_), y_); }

  at::Tensor bias_;
  at::Tensor y_;
};

class AddNorm final : public Prepared {
 public:
  AddNorm(const rmsnorm_peer_case& what, at::ScalarType type)
      : Prepared(what, type), residual_(Matrix(what.residual)), y_(Matrix(what.y)) {}

 private:
  void Compute() override {
    residual_.add_(x_);
    Write(RmsNorm(residual_, weight_, eps_), y_);
  }

  at::Tensor residual_;
  at::Tensor y_;
};

// Computes the gradients as a custom function for autograd does, with f32 in between. Autograd over
// the graph of at::rms_norm() took 1.6 to 7 times as long, and _fused_rms_norm_backward() has no
// code for the CPU.
class Backward final : public Prepared {
 public:
  Backward(const rmsnorm_peer_case& what, at::ScalarType type)
      : Prepared(what, type),
        dy_(Matrix(what.dy)),
        rstd_(View(what.rstd, {rows_, 1}, at::kFloat)),
        dx_(Matrix(what.dx)),
        dw_(View(what.dw, {d_}, at::kFloat)) {}

 private:
  void Compute() override {
    const at::Tensor n = x_ * rstd_;
    Write((dy_ * n).sum(0), dw_);
    const at::Tensor g = dy_.to(at::kFloat) * weight_;
    const at::Tensor mean = (g * n).mean(-1, /*keepdim=*/true);
    Write(at::addcmul(g, n, mean, -1).mul_(rstd_).to(type_), dx_);
  }

  at::Tensor dy_;
  at::Tensor rstd_;
  at::Tensor dx_;
  at::Tensor dw_;
};

void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  at::ScalarType type;
  switch (what->dtype) {
    case RMSNORM_PEER_F32:
      type = at::kFloat;
      break;
    case RMSNORM_PEER_F16:
      type = at::kHalf;
      break;
    case RMSNORM_PEER_BF16:
      type = at::kBFloat16;
      break;
    default:
      *why = "unknown type";
      return nullptr;
  }
  try {
    const c10::InferenceMode guard;
    switch (what->operation) {
      case RMSNORM_PEER_NORM:
        return static_cast<Prepared*>(new Forward(*what, type));
      case RMSNORM_PEER_ADD_NORM:
        return static_cast<Prepared*>(new AddNorm(*what, type));
      case RMSNORM_PEER_BACKWARD:
        return static_cast<Prepared*>(new Backward(*what, type));
      case RMSNORM_PEER_LAYERNORM:
        return static_cast<Prepared*>(new LayerNorm(*what, type));
      default:
        *why = "unknown operation";
        return nullptr;
    }
  } catch (const std::exception& error) {
    static std::string message;
    message = error.what();
    *why = message.c_str();
    return nullptr;
  }
}

void Run(void* prepared) { static_cast<Prepared*>(prepared)->Run(); }

void Release(void* prepared) { delete static_cast<Prepared*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, "pytorch", Prepare, Run, Release};
  return &peer;
}
