// SPDX-License-Identifier: Apache-2.0
/// @file
/// Tensors of other systems as views, without a copy: DLPack's struct, which PyTorch, NumPy, JAX
/// and others hand out. This header needs DLPack's own, dlpack/dlpack.h, 0.6 or later; the library
/// does not.
///
///     rmsnorm::norm(rmsnorm::dlpack_input(x), {}, rmsnorm::dlpack_output(y));
///
/// A tensor is taken if it lies in memory of the host (kDLCPU, or pinned: kDLCUDAHost,
/// kDLROCMHost), holds f32, f16 or bf16 in one lane, and has 1 to RMSNORM_MAX_DIMS dimensions. Any
/// other is refused with an rmsnorm::Error. The call that gets the view checks the rest, such as a
/// last dimension that is not contiguous.
///
/// A view does not own its tensor: the caller keeps the tensor and deletes it. Nothing here writes
/// to a tensor, so all functions may be called from many threads at once.
#ifndef RMSNORM_DLPACK_HPP_
#define RMSNORM_DLPACK_HPP_

#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

namespace rmsnorm {

namespace dlpack_internal {

[[noreturn]] inline void RefuseTensor(rmsnorm_status status, const std::string& problem) {
  detail::fail(status, "DLPack tensor: " + problem);
}

inline rmsnorm_dtype TensorDtype(const DLDataType& type) {
  if (type.lanes != 1) {
    RefuseTensor(RMSNORM_ERROR_DTYPE, std::to_string(type.lanes) + " lanes; 1 is possible");
  }
  if (type.code == kDLFloat && type.bits == 32) return RMSNORM_F32;
  if (type.code == kDLFloat && type.bits == 16) return RMSNORM_F16;
  if (type.code == kDLBfloat && type.bits == 16) return RMSNORM_BF16;
  RefuseTensor(RMSNORM_ERROR_DTYPE, "type code " + std::to_string(type.code) + " of " +
                                        std::to_string(type.bits) +
                                        " bits; f32, f16 and bf16 are possible");
}

inline rmsnorm_view TensorView(const DLTensor& tensor) {
  const auto device = tensor.device.device_type;
  if (device != kDLCPU && device != kDLCUDAHost && device != kDLROCMHost) {
    RefuseTensor(RMSNORM_ERROR_DEVICE,
                 "device type " + std::to_string(device) + "; memory of the host is possible");
  }
  const rmsnorm_dtype dtype = TensorDtype(tensor.dtype);
  if (tensor.ndim < 1 || tensor.ndim > RMSNORM_MAX_DIMS) {
    RefuseTensor(RMSNORM_ERROR_SHAPE, std::to_string(tensor.ndim) + " dimensions; 1 to " +
                                          std::to_string(RMSNORM_MAX_DIMS) + " are possible");
  }
  if (tensor.shape == nullptr) RefuseTensor(RMSNORM_ERROR_NULL, "shape is null");

  static_assert(sizeof(std::size_t) >= sizeof(std::int64_t), "DLPack's sizes have 64 bits");
  std::size_t shape[RMSNORM_MAX_DIMS];
  std::ptrdiff_t stride[RMSNORM_MAX_DIMS];
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) {
      RefuseTensor(RMSNORM_ERROR_SHAPE,
                   std::to_string(tensor.shape[i]) + " elements in dimension " + std::to_string(i));
    }
    shape[i] = static_cast<std::size_t>(tensor.shape[i]);
    if (tensor.strides != nullptr) stride[i] = static_cast<std::ptrdiff_t>(tensor.strides[i]);
  }

  const char* data = static_cast<const char*>(tensor.data);
  if (data != nullptr) data += tensor.byte_offset;
  if (reinterpret_cast<std::uintptr_t>(data) % rmsnorm_dtype_size(dtype) != 0) {
    RefuseTensor(RMSNORM_ERROR_LAYOUT, "data with byte_offset " +
                                           std::to_string(tensor.byte_offset) +
                                           " is not aligned to its element of " +
                                           std::to_string(rmsnorm_dtype_size(dtype)) + " bytes");
  }
  return rmsnorm_tensor(data, dtype, tensor.ndim, shape,
                        tensor.strides != nullptr ? stride : nullptr);
}

}  // namespace dlpack_internal

/// A tensor to read: x, a weight, a residual or dy.
inline ConstView dlpack_input(const DLTensor& tensor) {
  return ConstView(dlpack_internal::TensorView(tensor));
}

/// A tensor to write: y, residual_out, dx or dw. The caller must know that it may be written.
inline View dlpack_output(const DLTensor& tensor) {
  return View(dlpack_internal::TensorView(tensor));
}

/// A tensor to read, as a "dltensor" capsule holds it.
inline ConstView dlpack_input(const DLManagedTensor& tensor) {
  return dlpack_input(tensor.dl_tensor);
}

/// A tensor to write, as a "dltensor" capsule holds it. The caller must know that it may be
/// written.
inline View dlpack_output(const DLManagedTensor& tensor) { return dlpack_output(tensor.dl_tensor); }

// DLPack 1.0 and later.
#if defined(DLPACK_MAJOR_VERSION)

/// A tensor to read, as a "dltensor_versioned" capsule holds it. Refused where its major version
/// differs from the version of the DLPack header this is compiled with.
inline ConstView dlpack_input(const DLManagedTensorVersioned& tensor) {
  if (tensor.version.major != DLPACK_MAJOR_VERSION) {
    dlpack_internal::RefuseTensor(RMSNORM_ERROR_STRUCT_SIZE,
                                  "DLPack version " + std::to_string(tensor.version.major) +
                                      "; this program knows " +
                                      std::to_string(DLPACK_MAJOR_VERSION));
  }
  return dlpack_input(tensor.dl_tensor);
}

/// A tensor to write, as a "dltensor_versioned" capsule holds it. Refused where it is marked as
/// read-only, or as dlpack_input() would.
inline View dlpack_output(const DLManagedTensorVersioned& tensor) {
  const ConstView view = dlpack_input(tensor);
  if ((tensor.flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) {
    dlpack_internal::RefuseTensor(RMSNORM_ERROR_OPERAND,
                                  "it is read-only, and cannot be an output");
  }
  return View(*view.get());
}

#endif

}  // namespace rmsnorm

#endif  // RMSNORM_DLPACK_HPP_
