// SPDX-License-Identifier: Apache-2.0
/// @file
/// RMSNorm for CPUs: the C++17 face, header-only, over the C interface in rmsnorm.h. What is said
/// there of formulas, shapes, units, aliasing, bits and threads holds here.
///
/// A call that fails throws rmsnorm::Error. In a program built without exceptions it calls
/// std::terminate(); such a program should use the C functions, which return codes.
#ifndef RMSNORM_RMSNORM_HPP_
#define RMSNORM_RMSNORM_HPP_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace rmsnorm {

/// Storage of an IEEE binary16 or bfloat16 number. Any two-byte type will do in their place:
/// specialise DtypeOf for it.
struct f16 {
  std::uint16_t bits;  ///< sign, 5 bits of exponent, 10 of fraction
};
/// See f16.
struct bf16 {
  std::uint16_t bits;  ///< sign, 8 bits of exponent, 7 of fraction
};

/// Element types, for tensors whose type is known at run time only.
enum class Dtype : rmsnorm_dtype { f32 = RMSNORM_F32, f16 = RMSNORM_F16, bf16 = RMSNORM_BF16 };

/// The Dtype of an element type T.
template <class T>
struct DtypeOf;
/// @cond
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::f32;
};
template <>
struct DtypeOf<f16> {
  static constexpr Dtype value = Dtype::f16;
};
template <>
struct DtypeOf<bf16> {
  static constexpr Dtype value = Dtype::bf16;
};
/// @endcond

/// What a failed call throws; what() says what was wrong with which argument.
class Error : public std::runtime_error {
 public:
  /// `message` is copied.
  Error(rmsnorm_status status, const char* message)
      : std::runtime_error(message), status_(status) {}
  /// The code of the C interface.
  rmsnorm_status status() const noexcept { return status_; }

 private:
  rmsnorm_status status_;
};

/// Throws Error unless `status` is RMSNORM_OK.
inline void check(rmsnorm_status status) {
  if (status == RMSNORM_OK) return;
#if defined(__cpp_exceptions)
  throw Error(status, rmsnorm_error_message());
#else
  std::terminate();
#endif
}

/// rmsnorm_options with its defaults. `Options o; o.eps = 1e-6f;`
struct Options : rmsnorm_options {
  Options() noexcept : rmsnorm_options(rmsnorm_default_options()) {}
};

/// Where an input lies in memory; see rmsnorm_view.
class ConstView {
 public:
  /// One row of d elements, or a weight.
  template <class T>
  ConstView(const T* data, std::size_t d) : ConstView(data, DtypeOf<T>::value, {d}) {}
  /// Dense rows.
  template <class T>
  ConstView(const T* data, std::size_t rows, std::size_t d)
      : view_(
            rmsnorm_rows(data, code(DtypeOf<T>::value), rows, d, static_cast<std::ptrdiff_t>(d))) {}
  /// Rows that lie `row_stride` elements apart.
  template <class T>
  ConstView(const T* data, std::size_t rows, std::size_t d, std::ptrdiff_t row_stride)
      : view_(rmsnorm_rows(data, code(DtypeOf<T>::value), rows, d, row_stride)) {}
  /// Any shape of up to RMSNORM_MAX_DIMS dimensions; strides in elements, dense where none are
  /// given.
  template <class T>
  ConstView(const T* data, std::initializer_list<std::size_t> shape,
            std::initializer_list<std::ptrdiff_t> stride = {})
      : ConstView(data, DtypeOf<T>::value, shape, stride) {}
  /// The same with a type known at run time.
  ConstView(const void* data, Dtype dtype, std::initializer_list<std::size_t> shape,
            std::initializer_list<std::ptrdiff_t> stride = {})
      // A number of strides other than that of dimensions makes the view one that is refused.
      : view_(rmsnorm_tensor(data, code(dtype),
                             stride.size() == 0 || stride.size() == shape.size()
                                 ? static_cast<std::int32_t>(shape.size())
                                 : 0,
                             shape.begin(), stride.size() == 0 ? nullptr : stride.begin())) {}
  /// A view made with the C interface.
  explicit ConstView(const rmsnorm_view& view) noexcept : view_(view) {}

  /// The C interface's view.
  const rmsnorm_view* get() const noexcept { return &view_; }

 private:
  static constexpr rmsnorm_dtype code(Dtype dtype) { return static_cast<rmsnorm_dtype>(dtype); }

  rmsnorm_view view_;
};

/// Where an output lies in memory; made like a ConstView, from a pointer to elements that may be
/// written.
class View : public ConstView {
 public:
  /// One row of d elements, or the gradient by a weight.
  template <class T>
  View(T* data, std::size_t d) : ConstView(data, d) {}
  /// Dense rows.
  template <class T>
  View(T* data, std::size_t rows, std::size_t d) : ConstView(data, rows, d) {}
  /// Rows that lie `row_stride` elements apart.
  template <class T>
  View(T* data, std::size_t rows, std::size_t d, std::ptrdiff_t row_stride)
      : ConstView(data, rows, d, row_stride) {}
  /// Any shape; strides in elements, dense where none are given.
  template <class T>
  View(T* data, std::initializer_list<std::size_t> shape,
       std::initializer_list<std::ptrdiff_t> stride = {})
      : ConstView(data, shape, stride) {}
  /// The same with a type known at run time.
  View(void* data, Dtype dtype, std::initializer_list<std::size_t> shape,
       std::initializer_list<std::ptrdiff_t> stride = {})
      : ConstView(data, dtype, shape, stride) {}
  /// A view made with the C interface, of memory that may be written.
  explicit View(const rmsnorm_view& view) noexcept : ConstView(view) {}

  template <class T>
  View(const T*, std::size_t) = delete;
  template <class T>
  View(const T*, std::size_t, std::size_t) = delete;
  template <class T>
  View(const T*, std::size_t, std::size_t, std::ptrdiff_t) = delete;
  template <class T>
  View(const T*, std::initializer_list<std::size_t>,
       std::initializer_list<std::ptrdiff_t> = {}) = delete;
};

/// y = RMSNorm(x) * (offset + weight); see rmsnorm_forward().
inline void forward(const ConstView& x, const ConstView& weight, const View& y,
                    const Options& options = {}, float* rstd = nullptr) {
  check(rmsnorm_forward(x.get(), weight.get(), y.get(), rstd, &options));
}

/// y = RMSNorm(x), without a weight.
inline void forward(const ConstView& x, std::nullptr_t, const View& y, const Options& options = {},
                    float* rstd = nullptr) {
  check(rmsnorm_forward(x.get(), nullptr, y.get(), rstd, &options));
}

/// residual_out = residual + x, y = RMSNorm(residual_out) * (offset + weight); see
/// rmsnorm_add_forward().
inline void add_forward(const ConstView& x, const ConstView& residual, const ConstView& weight,
                        const View& residual_out, const View& y, const Options& options = {},
                        float* rstd = nullptr) {
  check(rmsnorm_add_forward(x.get(), residual.get(), weight.get(), residual_out.get(), y.get(),
                            rstd, &options));
}

/// The same without a weight.
inline void add_forward(const ConstView& x, const ConstView& residual, std::nullptr_t,
                        const View& residual_out, const View& y, const Options& options = {},
                        float* rstd = nullptr) {
  check(rmsnorm_add_forward(x.get(), residual.get(), nullptr, residual_out.get(), y.get(), rstd,
                            &options));
}

/// The first phase alone; see rmsnorm_sum_squares().
inline void sum_squares(const ConstView& x, double* sums, const Options& options = {}) {
  check(rmsnorm_sum_squares(x.get(), sums, &options));
}

/// The second phase alone; see rmsnorm_scale().
inline void scale(const ConstView& x, const double* sums, const ConstView& weight, const View& y,
                  const Options& options = {}, float* rstd = nullptr) {
  check(rmsnorm_scale(x.get(), sums, weight.get(), y.get(), rstd, &options));
}

/// The second phase without a weight.
inline void scale(const ConstView& x, const double* sums, std::nullptr_t, const View& y,
                  const Options& options = {}, float* rstd = nullptr) {
  check(rmsnorm_scale(x.get(), sums, nullptr, y.get(), rstd, &options));
}

/// Where rmsnorm_backward() puts its gradients, and which of them it adds to what is there. At
/// least one is needed.
struct Gradients {
  std::optional<View> dx = std::nullopt;  ///< the gradient by x
  std::optional<View> dw = std::nullopt;  ///< the gradient by the weight
  bool add_dx = false;                    ///< dx is added to what its memory holds
  bool add_dw = false;                    ///< dw is added to what its memory holds

  /// dx as the C interface takes it, null where there is none.
  const rmsnorm_view* dx_view() const noexcept { return dx ? dx->get() : nullptr; }
  /// dw as the C interface takes it, null where there is none.
  const rmsnorm_view* dw_view() const noexcept { return dw ? dw->get() : nullptr; }
  /// RMSNORM_ADD_TO_DX and RMSNORM_ADD_TO_DW as asked for.
  std::uint32_t flags() const noexcept {
    return (add_dx ? std::uint32_t{RMSNORM_ADD_TO_DX} : 0u) |
           (add_dw ? std::uint32_t{RMSNORM_ADD_TO_DW} : 0u);
  }
};

/// The gradients of y = forward(x, weight) from dy; see rmsnorm_backward(). `rstd` may be null.
inline void backward(const ConstView& dy, const ConstView& x, const ConstView& weight,
                     const Gradients& gradients, const Options& options = {},
                     const float* rstd = nullptr) {
  check(rmsnorm_backward(dy.get(), x.get(), weight.get(), rstd, gradients.dx_view(),
                         gradients.dw_view(), gradients.flags(), &options));
}

/// The gradients of a forward call without a weight.
inline void backward(const ConstView& dy, const ConstView& x, std::nullptr_t,
                     const Gradients& gradients, const Options& options = {},
                     const float* rstd = nullptr) {
  check(rmsnorm_backward(dy.get(), x.get(), nullptr, rstd, gradients.dx_view(), gradients.dw_view(),
                         gradients.flags(), &options));
}

/// A layer's norm with its weight, of ones at first; see rmsnorm_module. Movable, not copyable; a
/// moved-from object may only be destroyed or assigned to.
class RmsNorm {
 public:
  /// For rows of d elements, with the default options but for eps.
  explicit RmsNorm(std::size_t d, float eps = 1e-5f, Dtype dtype = Dtype::f32)
      : RmsNorm(d, with_eps(eps), dtype) {}
  /// For rows of d elements; see rmsnorm_module_create().
  RmsNorm(std::size_t d, const Options& options, Dtype dtype = Dtype::f32) {
    check(rmsnorm_module_create(&module_, d, static_cast<rmsnorm_dtype>(dtype), &options));
  }
  ~RmsNorm() { rmsnorm_module_destroy(module_); }
  /// Takes the other's weight and options.
  RmsNorm(RmsNorm&& other) noexcept : module_(std::exchange(other.module_, nullptr)) {}
  /// Takes the other's weight and options.
  RmsNorm& operator=(RmsNorm&& other) noexcept {
    std::swap(module_, other.module_);
    return *this;
  }
  RmsNorm(const RmsNorm&) = delete;
  RmsNorm& operator=(const RmsNorm&) = delete;

  /// Sets the weight from d elements of any type, rounded to the module's.
  void set_weight(const ConstView& weight) {
    check(rmsnorm_module_set_weight(module_, weight.get()));
  }
  /// Writes the weight to d elements of any type.
  void get_weight(const View& weight) const {
    check(rmsnorm_module_get_weight(module_, weight.get()));
  }
  /// Sets the weight to ones.
  void reset_weight() { check(rmsnorm_module_reset_weight(module_)); }

  /// y = RMSNorm(x) * (offset + weight); y may be x.
  void forward(const ConstView& x, const View& y, float* rstd = nullptr) const {
    check(rmsnorm_module_forward(module_, x.get(), y.get(), rstd));
  }

  /// residual_out = residual + x, y = RMSNorm(residual_out) * (offset + weight); residual_out may
  /// be residual, and y may be x.
  void add_forward(const ConstView& x, const ConstView& residual, const View& residual_out,
                   const View& y, float* rstd = nullptr) const {
    check(rmsnorm_module_add_forward(module_, x.get(), residual.get(), residual_out.get(), y.get(),
                                     rstd));
  }

  /// The gradients of forward() from dy; see rmsnorm_backward(). `rstd` may be null.
  void backward(const ConstView& dy, const ConstView& x, const Gradients& gradients,
                const float* rstd = nullptr) const {
    check(rmsnorm_module_backward(module_, dy.get(), x.get(), rstd, gradients.dx_view(),
                                  gradients.dw_view(), gradients.flags()));
  }

  /// Such as "RmsNorm(4096, eps=1e-05, bf16)".
  std::string description() const { return rmsnorm_module_describe(module_); }

 private:
  static Options with_eps(float eps) {
    Options options;
    options.eps = eps;
    return options;
  }

  rmsnorm_module* module_ = nullptr;
};

}  // namespace rmsnorm

#endif  // RMSNORM_RMSNORM_HPP_
