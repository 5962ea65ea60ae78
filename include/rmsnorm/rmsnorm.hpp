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
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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
enum class Dtype : rmsnorm_dtype {
  f32 = RMSNORM_F32,
  f16 = RMSNORM_F16,
  bf16 = RMSNORM_BF16,
  f64 = RMSNORM_F64,
  i8 = RMSNORM_I8
};

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
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::f64;
};
template <>
struct DtypeOf<std::int8_t> {
  static constexpr Dtype value = Dtype::i8;
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

/// See rmsnorm_eps_placement.
enum class EpsPlacement : rmsnorm_eps_placement {
  inside = RMSNORM_EPS_INSIDE,
  outside = RMSNORM_EPS_OUTSIDE,
  floor = RMSNORM_EPS_FLOOR
};

/// See rmsnorm_rounding.
enum class Rounding : rmsnorm_rounding {
  scale_then_cast = RMSNORM_SCALE_THEN_CAST,
  cast_then_scale = RMSNORM_CAST_THEN_SCALE,
  inverse_rounded = RMSNORM_INVERSE_ROUNDED
};

/// See rmsnorm_residual_rounding.
enum class ResidualRounding : rmsnorm_residual_rounding {
  cast_then_norm = RMSNORM_CAST_THEN_NORM,
  norm_then_cast = RMSNORM_NORM_THEN_CAST
};

/// See rmsnorm_activation.
enum class Activation : rmsnorm_activation { silu = RMSNORM_SILU, sigmoid = RMSNORM_SIGMOID };

/// See rmsnorm_gate_placement.
enum class GatePlacement : rmsnorm_gate_placement {
  after = RMSNORM_GATE_AFTER,
  before = RMSNORM_GATE_BEFORE
};

/// See rmsnorm_gate_rounding.
enum class GateRounding : rmsnorm_gate_rounding {
  none = RMSNORM_GATE_UNROUNDED,
  x = RMSNORM_GATE_ROUNDED_TO_X
};

/// How to normalise; see rmsnorm_options. `Options o; o.eps = 1e-6f;`
struct Options {
  float eps = 1e-5f;                                                      ///< see rmsnorm_options
  EpsPlacement eps_placement = EpsPlacement::inside;                      ///< see rmsnorm_options
  Rounding rounding = Rounding::scale_then_cast;                          ///< see rmsnorm_options
  ResidualRounding residual_rounding = ResidualRounding::cast_then_norm;  ///< see rmsnorm_options
  float weight_offset = 0.0f;                                             ///< see rmsnorm_options
  float divisor = 0.0f;                                                   ///< see rmsnorm_options
  float factor = 1.0f;                                                    ///< see rmsnorm_options
  Activation activation = Activation::silu;                               ///< see rmsnorm_options
  GatePlacement gate_placement = GatePlacement::after;                    ///< see rmsnorm_options
  GateRounding gate_rounding = GateRounding::none;                        ///< see rmsnorm_options

  /// The defaults.
  Options() noexcept = default;
  /// Those of the C interface.
  explicit Options(const rmsnorm_options& options) noexcept
      : eps(options.eps),
        eps_placement(static_cast<EpsPlacement>(options.eps_placement)),
        rounding(static_cast<Rounding>(options.rounding)),
        residual_rounding(static_cast<ResidualRounding>(options.residual_rounding)),
        weight_offset(options.weight_offset),
        divisor(options.divisor),
        factor(options.factor),
        activation(static_cast<Activation>(options.activation)),
        gate_placement(static_cast<GatePlacement>(options.gate_placement)),
        gate_rounding(static_cast<GateRounding>(options.gate_rounding)) {}

  /// The C interface's options.
  rmsnorm_options get() const noexcept {
    rmsnorm_options options = rmsnorm_default_options();
    options.eps = eps;
    options.eps_placement = static_cast<rmsnorm_eps_placement>(eps_placement);
    options.rounding = static_cast<rmsnorm_rounding>(rounding);
    options.residual_rounding = static_cast<rmsnorm_residual_rounding>(residual_rounding);
    options.weight_offset = weight_offset;
    options.divisor = divisor;
    options.factor = factor;
    options.activation = static_cast<rmsnorm_activation>(activation);
    options.gate_placement = static_cast<rmsnorm_gate_placement>(gate_placement);
    options.gate_rounding = static_cast<rmsnorm_gate_rounding>(gate_rounding);
    return options;
  }
};

/// Where a call runs; rmsnorm_context with its defaults. `Context c; c.threads = 1;`
struct Context : rmsnorm_context {
  Context() noexcept : rmsnorm_context(rmsnorm_default_context()) {}
};

/// Where an input lies in memory; see rmsnorm_view. An empty one, `{}`, is a missing operand.
class ConstView {
 public:
  /// A missing operand.
  ConstView() noexcept { view_.ndim = 0; }
  /// One row of d elements, a weight, or one value for each row.
  template <class T>
  ConstView(const T* data, std::size_t d)
      : view_(rmsnorm_vector(data, code(DtypeOf<T>::value), d)) {}
  /// Dense rows.
  template <class T>
  ConstView(const T* data, std::size_t rows, std::size_t d)
      : ConstView(data, rows, d, static_cast<std::ptrdiff_t>(d)) {}
  /// Rows that lie `row_stride` elements apart.
  template <class T>
  ConstView(const T* data, std::size_t rows, std::size_t d, std::ptrdiff_t row_stride)
      : view_(rmsnorm_rows(data, code(DtypeOf<T>::value), rows, d, row_stride)) {}
  /// Any shape of 1 to RMSNORM_MAX_DIMS dimensions; strides in elements, dense where none are
  /// given.
  template <class T>
  ConstView(const T* data, std::initializer_list<std::size_t> shape,
            std::initializer_list<std::ptrdiff_t> stride = {})
      : ConstView(data, DtypeOf<T>::value, shape, stride) {}
  /// The same with a type known at run time.
  ConstView(const void* data, Dtype dtype, std::initializer_list<std::size_t> shape,
            std::initializer_list<std::ptrdiff_t> stride = {})
      // A number of strides other than that of dimensions makes the view one that is refused.
      : ConstView(data, dtype,
                  stride.size() == 0 || stride.size() == shape.size() ? shape.size()
                                                                      : RMSNORM_MAX_DIMS + 1,
                  shape.begin(), stride.size() == 0 ? nullptr : stride.begin()) {}
  /// The same with a shape known at run time: `shape` and `stride` have `ndim` elements; `stride`
  /// may be null.
  ConstView(const void* data, Dtype dtype, std::size_t ndim, const std::size_t* shape,
            const std::ptrdiff_t* stride = nullptr)
      // No dimension would be a missing operand, but is as wrong as too many.
      : view_(rmsnorm_tensor(
            data, code(dtype),
            ndim - 1 < RMSNORM_MAX_DIMS ? static_cast<std::int32_t>(ndim) : RMSNORM_MAX_DIMS + 1,
            shape, stride)) {}
  /// A view made with the C interface.
  explicit ConstView(const rmsnorm_view& view) noexcept : view_(view) {}

  /// Whether this is a missing operand.
  bool empty() const noexcept { return view_.ndim == 0; }
  /// The C interface's view; null where it is empty.
  const rmsnorm_view* get() const noexcept { return empty() ? nullptr : &view_; }

 private:
  static constexpr rmsnorm_dtype code(Dtype dtype) { return static_cast<rmsnorm_dtype>(dtype); }

  rmsnorm_view view_;
};

/// Where an output lies in memory; made like a ConstView, from a pointer to elements that may be
/// written.
class View : public ConstView {
 public:
  /// A missing operand.
  View() noexcept = default;
  /// One row of d elements, the gradient by a weight, or one value for each row.
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
  /// The same with a shape known at run time.
  View(void* data, Dtype dtype, std::size_t ndim, const std::size_t* shape,
       const std::ptrdiff_t* stride = nullptr)
      : ConstView(data, dtype, ndim, shape, stride) {}
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
  View(const void*, Dtype, std::initializer_list<std::size_t>,
       std::initializer_list<std::ptrdiff_t> = {}) = delete;
  View(const void*, Dtype, std::size_t, const std::size_t*,
       const std::ptrdiff_t* = nullptr) = delete;
};

/// The tensors of a forward call, each empty where it is absent; see rmsnorm_forward().
struct ForwardOperands {
  ConstView x;                 ///< input: what is normalised
  ConstView residual;          ///< input: what x is added to before
  ConstView weight;            ///< input; absent, it has the bits of ones
  ConstView bias;              ///< input: added after the weight
  ConstView sums;              ///< input: the sums of squares, in the place of x's own
  View y;                      ///< output: the norm; may be in the place of x
  View residual_out;           ///< output: residual + x; may be in the place of residual
  View rstd;                   ///< output: 1 / RMS
  View sums_out;               ///< output: the sums of squares of what is normalised
  ConstView post_norm_weight;  ///< input: x is first normalised, by this weight
  ConstView gate;              ///< input: what an activation turns into factors
  View q;                      ///< output: the norm, quantised
  View scale;                  ///< output: the step from one integer of q to the next
  View zero;                   ///< output: the integer of q that stands for 0

  /// The C interface's operands, which point into this object.
  rmsnorm_operands get() const noexcept {
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.x = x.get();
    operands.residual = residual.get();
    operands.weight = weight.get();
    operands.bias = bias.get();
    operands.sums = sums.get();
    operands.y = y.get();
    operands.residual_out = residual_out.get();
    operands.rstd = rstd.get();
    operands.sums_out = sums_out.get();
    operands.post_norm_weight = post_norm_weight.get();
    operands.gate = gate.get();
    operands.q = q.get();
    operands.scale = scale.get();
    operands.zero = zero.get();
    return operands;
  }
};

/// The tensors of a backward call, each empty where it is absent, and which gradients are added to
/// what their memory holds; see rmsnorm_backward().
struct BackwardOperands {
  ConstView dy;            ///< input: the gradient by y
  ConstView x;             ///< input: what was normalised
  ConstView weight;        ///< input, as in the forward call
  ConstView rstd;          ///< input: what the forward call gave
  View dx;                 ///< output: the gradient by x; may be in the place of dy
  View dw;                 ///< output: the gradient by the weight, of its shape
  View db;                 ///< output: the gradient by the bias
  bool add_to_dx = false;  ///< dx is added to what its memory holds
  bool add_to_dw = false;  ///< dw is added to what its memory holds
  bool add_to_db = false;  ///< db is added to what its memory holds

  /// The C interface's operands, which point into this object.
  rmsnorm_operands get() const noexcept {
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.add_to = (add_to_dx ? std::uint32_t{RMSNORM_ADD_TO_DX} : 0u) |
                      (add_to_dw ? std::uint32_t{RMSNORM_ADD_TO_DW} : 0u) |
                      (add_to_db ? std::uint32_t{RMSNORM_ADD_TO_DB} : 0u);
    operands.dy = dy.get();
    operands.x = x.get();
    operands.weight = weight.get();
    operands.rstd = rstd.get();
    operands.dx = dx.get();
    operands.dw = dw.get();
    operands.db = db.get();
    return operands;
  }
};

/// See rmsnorm_forward().
inline void forward(const ForwardOperands& operands, const Options& options = {},
                    const Context& context = {}) {
  const rmsnorm_operands tensors = operands.get();
  const rmsnorm_options numbers = options.get();
  check(rmsnorm_forward(&tensors, &numbers, &context));
}

/// See rmsnorm_backward().
inline void backward(const BackwardOperands& operands, const Options& options = {},
                     const Context& context = {}) {
  const rmsnorm_operands tensors = operands.get();
  const rmsnorm_options numbers = options.get();
  check(rmsnorm_backward(&tensors, &numbers, &context));
}

/// y = RMSNorm(x) * (offset + weight); the weight may be empty. See rmsnorm_norm().
inline void norm(const ConstView& x, const ConstView& weight, const View& y,
                 const Options& options = {}) {
  const rmsnorm_options numbers = options.get();
  check(rmsnorm_norm(x.get(), weight.get(), y.get(), &numbers));
}

/// residual_out = residual + x, y = RMSNorm(residual_out) * (offset + weight); the weight may be
/// empty. See rmsnorm_add_norm().
inline void add_norm(const ConstView& x, const ConstView& residual, const ConstView& weight,
                     const View& residual_out, const View& y, const Options& options = {}) {
  const rmsnorm_options numbers = options.get();
  check(rmsnorm_add_norm(x.get(), residual.get(), weight.get(), residual_out.get(), y.get(),
                         &numbers));
}

/// A layer's norm with its weight, of ones at first; see rmsnorm_module. Movable, not copyable; a
/// moved-from object may only be destroyed or assigned to.
class RmsNorm {
 public:
  /// For rows of d elements, with the default options but for eps.
  explicit RmsNorm(std::size_t d, float eps = 1e-5f, Dtype dtype = Dtype::f32)
      : RmsNorm(d, with_eps(eps), dtype) {}
  /// For rows of d elements; see rmsnorm_module_create().
  RmsNorm(std::size_t d, const Options& options, Dtype dtype = Dtype::f32,
          const Context& context = {}) {
    const rmsnorm_options numbers = options.get();
    check(
        rmsnorm_module_create(&module_, d, static_cast<rmsnorm_dtype>(dtype), &numbers, &context));
  }
  ~RmsNorm() { rmsnorm_module_destroy(module_); }
  /// Takes the other's weight, options and context.
  RmsNorm(RmsNorm&& other) noexcept : module_(std::exchange(other.module_, nullptr)) {}
  /// Takes the other's weight, options and context.
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

  /// The elements of a row.
  std::size_t d() const noexcept { return rmsnorm_module_d(module_); }
  /// The type in which the weight is kept.
  Dtype dtype() const noexcept { return static_cast<Dtype>(rmsnorm_module_dtype(module_)); }
  /// How it normalises.
  Options options() const noexcept { return Options(*rmsnorm_module_options(module_)); }
  /// Such as "RmsNorm(4096, eps=1e-05, bf16)".
  std::string description() const { return rmsnorm_module_describe(module_); }

  /// See rmsnorm_module_forward(): all that rmsnorm::forward() takes, but no weight.
  void forward(const ForwardOperands& operands) const {
    const rmsnorm_operands tensors = operands.get();
    check(rmsnorm_module_forward(module_, &tensors, nullptr));
  }
  /// The same in another context than the module's.
  void forward(const ForwardOperands& operands, const Context& context) const {
    const rmsnorm_operands tensors = operands.get();
    check(rmsnorm_module_forward(module_, &tensors, &context));
  }

  /// See rmsnorm_module_backward(): all that rmsnorm::backward() takes, but no weight.
  void backward(const BackwardOperands& operands) const {
    const rmsnorm_operands tensors = operands.get();
    check(rmsnorm_module_backward(module_, &tensors, nullptr));
  }
  /// The same in another context than the module's.
  void backward(const BackwardOperands& operands, const Context& context) const {
    const rmsnorm_operands tensors = operands.get();
    check(rmsnorm_module_backward(module_, &tensors, &context));
  }

  /// y = RMSNorm(x) * (offset + weight) for dense rows; y may be x.
  template <class T>
  void forward(const T* x, T* y, std::size_t rows = 1) const {
    check(rmsnorm_module_forward_rows(module_, code<T>(), rows, x, y));
  }
  /// residual_out = residual + x, y = RMSNorm(residual_out) * (offset + weight) for dense rows;
  /// residual_out may be residual, and y may be x.
  template <class T>
  void add_forward(const T* x, const T* residual, T* residual_out, T* y,
                   std::size_t rows = 1) const {
    check(rmsnorm_module_add_forward_rows(module_, code<T>(), rows, x, residual, residual_out, y));
  }
  /// The gradients of forward() for dense rows, dw in f32. rstd, dx and dw may be null; dx may be
  /// dy.
  template <class T>
  void backward(const T* dy, const T* x, const float* rstd, T* dx, float* dw,
                std::size_t rows = 1) const {
    check(rmsnorm_module_backward_rows(module_, code<T>(), rows, dy, x, rstd, dx, dw));
  }

  /// The C interface's module.
  const rmsnorm_module* get() const noexcept { return module_; }

 private:
  static Options with_eps(float eps) {
    Options options;
    options.eps = eps;
    return options;
  }
  template <class T>
  static constexpr rmsnorm_dtype code() {
    return static_cast<rmsnorm_dtype>(DtypeOf<T>::value);
  }

  rmsnorm_module* module_ = nullptr;
};

/// One of several norms that are done at once: by a module, or else by `options`. See rmsnorm_call.
struct Call {
  const RmsNorm* module = nullptr;  ///< the module, or null
  ForwardOperands operands;         ///< what forward() takes
  Options options = {};             ///< without a module
};

/// Several norms at once; see rmsnorm_forward_all().
inline void forward_all(const Call* calls, std::size_t count, const Context& context = {}) {
  std::vector<rmsnorm_operands> tensors(count);
  std::vector<rmsnorm_options> numbers(count);
  std::vector<rmsnorm_call> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool by_module = calls[i].module != nullptr;
    tensors[i] = calls[i].operands.get();
    numbers[i] = calls[i].options.get();
    all[i] = {by_module ? calls[i].module->get() : nullptr, &tensors[i],
              by_module ? nullptr : &numbers[i]};
  }
  check(rmsnorm_forward_all(all.data(), count, &context));
}

/// The same for calls written down in braces.
inline void forward_all(std::initializer_list<Call> calls, const Context& context = {}) {
  forward_all(calls.begin(), calls.size(), context);
}

}  // namespace rmsnorm

#endif  // RMSNORM_RMSNORM_HPP_
