// SPDX-License-Identifier: Apache-2.0
// PyTorch's C++ library: eager, in inference mode.
//
// What is timed is the call an application makes, at::rms_norm(). It cannot be told where its
// result goes: it takes that, and all that lies between, from PyTorch's allocator, which for the
// CPU is malloc's. Each run gives back what it took, so the next finds the same memory, up to the
// size from which malloc asks the system each time. Only the first run copies the result to y,
// where it is checked: as part of every run the copy would be charged to PyTorch. So y's memory is
// read and written no more once the cell is checked.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <exception>
#include <string>

#include "peer.h"

#if __has_include(<ATen/ops/rms_norm.h>)
#include <ATen/ops/rms_norm.h>
#else
#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>
#endif

namespace {

#if __has_include(<ATen/ops/rms_norm.h>)
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, weight.sizes(), weight, eps);
}
#else
// PyTorch before 2.4. A weight of fewer bits becomes f32 in the product, so this rounds to them
// once.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps);
  return (wide * scale * weight).to(x.scalar_type());
}
#endif

struct Prepared {
  at::Tensor x;
  at::Tensor weight;
  at::Tensor y;
  double eps;
  int threads;
  bool y_is_written = false;
};

at::Tensor View(const void* data, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), sizes, at::TensorOptions(type));
}

void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  if (what->operation != RMSNORM_PEER_FORWARD) {
    *why = "only forward is timed";
    return nullptr;
  }
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
    const auto rows = static_cast<int64_t>(what->rows);
    const auto d = static_cast<int64_t>(what->d);
    return new Prepared{View(what->x, {rows, d}, type), View(what->weight, {d}, type),
                        View(what->y, {rows, d}, type), what->eps, what->threads};
  } catch (const std::exception& error) {
    static std::string message;
    message = error.what();
    *why = message.c_str();
    return nullptr;
  }
}

void Run(void* prepared) {
  Prepared& job = *static_cast<Prepared*>(prepared);
  const c10::InferenceMode guard;
  // The number is the calling thread's, and other cells set it too. Asking is cheaper than setting.
  if (at::get_num_threads() != job.threads) at::set_num_threads(job.threads);
  const at::Tensor result = RmsNorm(job.x, job.weight, job.eps);
  if (!job.y_is_written) {
    job.y.copy_(result);
    job.y_is_written = true;
  }
}

void Release(void* prepared) { delete static_cast<Prepared*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, "pytorch", Prepare, Run, Release};
  return &peer;
}
