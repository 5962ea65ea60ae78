// SPDX-License-Identifier: Apache-2.0
/// @file
/// RMSNorm for CPUs: the C++17 face, header-only, over the C interface in rmsnorm.h. Its rules for
/// formulas, shapes, units, aliasing, bits and threads hold here.
///
/// A call that fails throws rmsnorm::Error. In a program built without exceptions it calls
/// std::terminate(); such a program should use the C functions, which return codes.
#ifndef RMSNORM_RMSNORM_HPP_
#define RMSNORM_RMSNORM_HPP_

#if __cplusplus < 201703L && !(defined(_MSVC_LANG) && _MSVC_LANG >= 201703L)
#error "rmsnorm.hpp needs C++17 or later: compile with -std=c++17 (Visual C++: /std:c++17)"
#endif

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace rmsnorm {

/// Storage of an IEEE binary16 or bfloat16 number. Any other type of two bytes will do: specialise
/// DtypeOf for it.
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

/// The Dtype of an element type T. For another type of the same bits, write once:
///
///     template <>
///     struct rmsnorm::DtypeOf<_Float16> {
///       static constexpr rmsnorm::Dtype value = rmsnorm::Dtype::f16;
///     };
template <class T>
struct DtypeOf {
  static_assert(sizeof(T) == 0,
                "rmsnorm has no Dtype for this element type. For your type T of 16 bits write: "
                "template <> struct rmsnorm::DtypeOf<T> "
                "{ static constexpr rmsnorm::Dtype value = rmsnorm::Dtype::bf16; };");
  static constexpr Dtype value = Dtype::f32;  ///< never used
};
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

/// What a failed call throws; what() names the argument, its value and what is possible.
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

namespace detail {

/// Throws an Error.
[[noreturn]] inline void fail(rmsnorm_status status, const std::string& message) {
#if defined(__cpp_exceptions)
  throw Error(status, message.c_str());
#else
  static_cast<void>(status);
  static_cast<void>(message);
  std::terminate();
#endif
}

/// Refuses an RmsNorm that was moved from. For the C interface a null module is a call by options.
[[noreturn]] inline void refuse_module(const std::string& call) {
  fail(RMSNORM_ERROR_NULL, call + "module: the pointer is null");
}

}  // namespace detail

/// Throws Error unless `status` is RMSNORM_OK.
inline void check(rmsnorm_status status) {
  if (status != RMSNORM_OK) detail::fail(status, rmsnorm_error_message());
}

/// See rmsnorm_eps_placement.
enum class EpsPlacement : rmsnorm_eps_placement {
  inside = RMSNORM_EPS_INSIDE,
  outside = RMSNORM_EPS_OUTSIDE,
  floor = RMSNORM_EPS_FLOOR
};

/// See rmsnorm_rounding.
enum class Rounding : rmsnorm_rounding {
  after_weight = RMSNORM_ROUND_AFTER_WEIGHT,
  before_weight = RMSNORM_ROUND_BEFORE_WEIGHT,
  inverse = RMSNORM_ROUND_INVERSE
};

/// See rmsnorm_residual_rounding.
enum class ResidualRounding : rmsnorm_residual_rounding {
  rounded = RMSNORM_RESIDUAL_ROUNDED,
  unrounded = RMSNORM_RESIDUAL_UNROUNDED
};

/// See rmsnorm_activation.
enum class Activation : rmsnorm_activation {
  silu = RMSNORM_ACTIVATION_SILU,
  sigmoid = RMSNORM_ACTIVATION_SIGMOID,
  none = RMSNORM_ACTIVATION_NONE
};

/// See rmsnorm_gate_placement.
enum class GatePlacement : rmsnorm_gate_placement {
  after = RMSNORM_GATE_AFTER,
  before = RMSNORM_GATE_BEFORE
};

/// See rmsnorm_gate_rounding.
enum class GateRounding : rmsnorm_gate_rounding {
  unrounded = RMSNORM_GATE_UNROUNDED,
  rounded = RMSNORM_GATE_ROUNDED
};

/// See rmsnorm_rotary_pairs.
enum class RotaryPairs : rmsnorm_rotary_pairs {
  halves = RMSNORM_ROTARY_HALVES,
  neighbours = RMSNORM_ROTARY_NEIGHBOURS
};

/// See rmsnorm_rotary_part.
enum class RotaryPart : rmsnorm_rotary_part {
  start = RMSNORM_ROTARY_START,
  end = RMSNORM_ROTARY_END
};

/// See rmsnorm_rotary_rounding.
enum class RotaryRounding : rmsnorm_rotary_rounding {
  each = RMSNORM_ROTARY_ROUND_EACH,
  norm = RMSNORM_ROTARY_ROUND_NORM,
  none = RMSNORM_ROTARY_ROUND_NONE
};

/// How to normalise; see rmsnorm_options. In C++20 `Options{.eps = 1e-6f}`; in C++17 `Options o;
/// o.eps = 1e-6f;`.
struct Options {
  float eps = 1e-5f;                                               ///< see rmsnorm_options
  EpsPlacement eps_placement = EpsPlacement::inside;               ///< see rmsnorm_options
  Rounding rounding = Rounding::after_weight;                      ///< see rmsnorm_options
  ResidualRounding residual_rounding = ResidualRounding::rounded;  ///< see rmsnorm_options
  float weight_offset = 0.0f;                                      ///< see rmsnorm_options
  float divisor = 0.0f;                                            ///< see rmsnorm_options
  float factor = 0.0f;                                             ///< see rmsnorm_options
  Activation activation = Activation::silu;                        ///< see rmsnorm_options
  GatePlacement gate_placement = GatePlacement::after;             ///< see rmsnorm_options
  GateRounding gate_rounding = GateRounding::unrounded;            ///< see rmsnorm_options
  std::int32_t group = 0;                                          ///< see rmsnorm_options
  float residual_factor = 0.0f;                                    ///< see rmsnorm_options
  RotaryPairs rotary_pairs = RotaryPairs::halves;                  ///< see rmsnorm_options
  RotaryPart rotary_part = RotaryPart::start;                      ///< see rmsnorm_options
  RotaryRounding rotary_rounding = RotaryRounding::each;           ///< see rmsnorm_options

  /// The options of the C interface.
  rmsnorm_options get() const noexcept {
    rmsnorm_options options = {};
    options.size = static_cast<std::uint32_t>(sizeof options);
    std::memcpy(reinterpret_cast<char*>(&options) + kBegin, this, sizeof *this);
    return options;
  }
  /// The same options, from the C interface.
  static Options from(const rmsnorm_options& options) noexcept {
    Options same;
    std::memcpy(&same, reinterpret_cast<const char*>(&options) + kBegin, sizeof same);
    return same;
  }

 private:
  // The fields are those of the C interface, in the same order.
  static constexpr std::size_t kBegin = offsetof(rmsnorm_options, eps);
};
static_assert(sizeof(rmsnorm_options) == offsetof(rmsnorm_options, eps) + sizeof(Options),
              "an option is missing");

/// See rmsnorm_stores.
enum class Stores : rmsnorm_stores {
  by_size = RMSNORM_STORES_BY_SIZE,
  streamed = RMSNORM_STORES_STREAMED,
  cached = RMSNORM_STORES_CACHED
};

/// Where and how a call runs; see rmsnorm_context. In C++20 `Context{.threads = 1}`.
struct Context {
  std::int32_t threads = 0;                     ///< see rmsnorm_context
  rmsnorm_parallel_for parallel_for = nullptr;  ///< see rmsnorm_context
  void* parallel_context = nullptr;             ///< see rmsnorm_context
  const char* target = nullptr;                 ///< see rmsnorm_context
  Stores stores = Stores::by_size;              ///< see rmsnorm_stores

  /// The context of the C interface.
  rmsnorm_context get() const noexcept {
    rmsnorm_context context = {};
    context.size = static_cast<std::uint32_t>(sizeof context);
    context.threads = threads;
    context.parallel_for = parallel_for;
    context.parallel_context = parallel_context;
    context.target = target;
    context.stores = static_cast<rmsnorm_stores>(stores);
    return context;
  }
};

namespace detail {

/// A context as the C interface takes it: null where there is none.
class OptionalContext {
 public:
  explicit OptionalContext(const std::optional<Context>& context) noexcept
      : is_given_(context.has_value()) {
    if (is_given_) context_ = context->get();
  }
  const rmsnorm_context* get() const noexcept { return is_given_ ? &context_ : nullptr; }

 private:
  bool is_given_;
  rmsnorm_context context_;
};

}  // namespace detail

/// A size or a stride, made from an integer of any type. A call refuses negative sizes.
class Integer {
 public:
  /// Keeps the value.
  template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  constexpr Integer(T value) noexcept  // NOLINT(google-explicit-constructor): that is its purpose
      : bits_(static_cast<std::size_t>(value)), is_negative_(IsNegative(value)) {}

  /// The value as a size; a negative one is too large for any memory.
  constexpr std::size_t size() const noexcept { return bits_; }
  /// The value as a stride.
  constexpr std::ptrdiff_t stride() const noexcept { return static_cast<std::ptrdiff_t>(bits_); }
  /// Whether the value is below 0.
  constexpr bool is_negative() const noexcept { return is_negative_; }

 private:
  template <class T>
  static constexpr bool IsNegative(T value) noexcept {
    if constexpr (std::is_signed_v<T>) return value < 0;
    return static_cast<void>(value), false;
  }

  std::size_t bits_;
  bool is_negative_;
};

/// Where an input lies in memory; see rmsnorm_view. An empty one, `{}`, is an absent operand. Sizes
/// and strides may be integers of any type.
class ConstView {
 public:
  /// An absent operand.
  ConstView() noexcept : view_() { view_.ndim = RMSNORM_VIEW_ABSENT; }
  /// One row of d elements, a weight, or one value for each row.
  template <class T>
  ConstView(const T* data, Integer d) : ConstView(DtypeOf<T>::value, {d}) {
    view_.data = data;
  }
  /// Dense rows.
  template <class T>
  ConstView(const T* data, Integer rows, Integer d) : ConstView(DtypeOf<T>::value, {rows, d}) {
    view_.data = data;
  }
  /// Rows that lie `row_stride` elements apart.
  template <class T>
  ConstView(const T* data, Integer rows, Integer d, Integer row_stride)
      : ConstView(DtypeOf<T>::value, {rows, d}, {row_stride, 1}) {
    view_.data = data;
  }
  /// Any shape of 1 to RMSNORM_MAX_DIMS dimensions; strides in elements, dense where none are
  /// given.
  template <class T>
  ConstView(const T* data, std::initializer_list<Integer> shape,
            std::initializer_list<Integer> stride = {})
      : ConstView(DtypeOf<T>::value, shape, stride) {
    view_.data = data;
  }
  /// The same with a type known at run time.
  ConstView(const void* data, Dtype dtype, std::initializer_list<Integer> shape,
            std::initializer_list<Integer> stride = {})
      : ConstView(dtype, shape, stride) {
    view_.data = data;
  }
  /// The same with a number of dimensions known at run time: `shape` and `stride` have `ndim`
  /// elements; `stride` may be null.
  template <class Size, class Stride = std::ptrdiff_t>
  ConstView(const void* data, Dtype dtype, Integer ndim, const Size* shape,
            const Stride* stride = nullptr)
      : ConstView(dtype, ndim, shape, stride) {
    view_.data = data;
  }
  /// The same, dense.
  template <class Size>
  ConstView(const void* data, Dtype dtype, Integer ndim, const Size* shape, std::nullptr_t)
      : ConstView(data, dtype, ndim, shape) {}
  /// A view made with the C interface.
  explicit ConstView(const rmsnorm_view& view) noexcept : view_(view) {}

  /// Whether this is an absent operand.
  bool empty() const noexcept { return view_.ndim == RMSNORM_VIEW_ABSENT; }
  /// The C interface's view; null where it is empty.
  const rmsnorm_view* get() const noexcept { return empty() ? nullptr : &view_; }

 protected:
  /// @cond
  // A view whose data is still to be set. (A const pointer as a parameter of a function would have
  // gcc warn that an output is not initialised.)
  ConstView(Dtype dtype, std::initializer_list<Integer> shape,
            std::initializer_list<Integer> stride = {})
      : ConstView(dtype, shape.size(), shape.begin(),
                  stride.size() == shape.size() ? stride.begin() : nullptr) {
    if (stride.size() == 0 || stride.size() == shape.size()) return;
    view_.ndim = RMSNORM_VIEW_WRONG_STRIDES;
    view_.shape[0] = shape.size();
    view_.shape[1] = stride.size();
  }
  template <class Size, class Stride>
  ConstView(Dtype dtype, Integer ndim, const Size* shape, const Stride* stride) : view_() {
    const std::size_t count = ndim.size();
    view_.dtype = static_cast<rmsnorm_dtype>(dtype);
    if (ndim.is_negative() || count > RMSNORM_MAX_DIMS) {
      view_.ndim = RMSNORM_VIEW_WRONG_NDIM;
      view_.shape[0] = count;
      view_.stride[0] = ndim.is_negative();
      return;
    }
    view_.ndim = static_cast<std::int32_t>(count);
    std::size_t dense = 1;
    for (std::size_t i = count; i-- > 0;) {
      const Integer size = shape[i];
      if (size.is_negative()) {
        view_.ndim = RMSNORM_VIEW_NEGATIVE_SIZE;
        view_.shape[0] = i;
        view_.stride[0] = size.stride();
        return;
      }
      view_.shape[i] = size.size();
      view_.stride[i] = Integer(dense).stride();
      if (stride != nullptr) view_.stride[i] = Integer(stride[i]).stride();
      dense *= size.size();
    }
  }

  rmsnorm_view view_;
  /// @endcond
};

/// Where an output lies in memory; made like a ConstView, from a pointer to elements that may be
/// written.
class View : public ConstView {
 public:
  /// An absent operand.
  View() noexcept = default;
  /// One row of d elements, the gradient by a weight, or one value for each row.
  template <class T>
  View(T* data, Integer d) : ConstView(DtypeOf<T>::value, {d}) {
    view_.data = data;
  }
  /// Dense rows.
  template <class T>
  View(T* data, Integer rows, Integer d) : ConstView(DtypeOf<T>::value, {rows, d}) {
    view_.data = data;
  }
  /// Rows that lie `row_stride` elements apart.
  template <class T>
  View(T* data, Integer rows, Integer d, Integer row_stride)
      : ConstView(DtypeOf<T>::value, {rows, d}, {row_stride, 1}) {
    view_.data = data;
  }
  /// Any shape; strides in elements, dense where none are given.
  template <class T>
  View(T* data, std::initializer_list<Integer> shape, std::initializer_list<Integer> stride = {})
      : ConstView(DtypeOf<T>::value, shape, stride) {
    view_.data = data;
  }
  /// The same with a type known at run time.
  View(void* data, Dtype dtype, std::initializer_list<Integer> shape,
       std::initializer_list<Integer> stride = {})
      : ConstView(dtype, shape, stride) {
    view_.data = data;
  }
  /// The same with a number of dimensions known at run time.
  template <class Size, class Stride = std::ptrdiff_t>
  View(void* data, Dtype dtype, Integer ndim, const Size* shape, const Stride* stride = nullptr)
      : ConstView(dtype, ndim, shape, stride) {
    view_.data = data;
  }
  /// The same, dense.
  template <class Size>
  View(void* data, Dtype dtype, Integer ndim, const Size* shape, std::nullptr_t)
      : View(data, dtype, ndim, shape) {}
  /// A view made with the C interface, of memory that may be written.
  explicit View(const rmsnorm_view& view) noexcept : ConstView(view) {}

  View(const ConstView&) = delete;  // for a call in place, assign the output to the input
  template <class T>
  View(const T*, Integer) = delete;
  template <class T>
  View(const T*, Integer, Integer) = delete;
  template <class T>
  View(const T*, Integer, Integer, Integer) = delete;
  template <class T>
  View(const T*, std::initializer_list<Integer>, std::initializer_list<Integer> = {}) = delete;
  View(const void*, Dtype, std::initializer_list<Integer>,
       std::initializer_list<Integer> = {}) = delete;
  template <class Size, class Stride = std::ptrdiff_t>
  View(const void*, Dtype, Integer, const Size*, const Stride* = nullptr) = delete;
  template <class Size>
  View(const void*, Dtype, Integer, const Size*, std::nullptr_t) = delete;
};

/// The tensors of a forward call, each empty where it is absent; see rmsnorm_operands.
struct ForwardOperands {
  ConstView x{};                 ///< input: the rows
  ConstView residual{};          ///< input: x is added to it before the norm
  ConstView gate{};              ///< input: an activation of it multiplies x or the norm
  ConstView weight{};            ///< input; absent, it has the bits of ones
  ConstView bias{};              ///< input: added after the weight
  ConstView post_norm_weight{};  ///< input: x is first normalised, by this weight
  ConstView cos{};               ///< input: cosines by which pairs of the norm are rotated
  ConstView sin{};               ///< input: the sines
  ConstView sums{};              ///< input: sums of squares that replace the sums of x
  View residual_out{};           ///< output: residual + x; may be in the place of residual
  View y{};                      ///< output: the norm; may be in the place of x
  View q{};                      ///< output: the norm, quantised
  View rstd{};                   ///< output: 1 / RMS
  View sums_out{};               ///< output: the sums of squares of the input of the norm
  View scale{};                  ///< output: the step from one integer of q to the next
  View zero{};                   ///< output: the integer of q that stands for 0

  /// The C interface's operands, which point into this object.
  rmsnorm_operands get() const noexcept {
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.x = x.get();
    operands.residual = residual.get();
    operands.gate = gate.get();
    operands.weight = weight.get();
    operands.bias = bias.get();
    operands.post_norm_weight = post_norm_weight.get();
    operands.cos = cos.get();
    operands.sin = sin.get();
    operands.sums = sums.get();
    operands.residual_out = residual_out.get();
    operands.y = y.get();
    operands.q = q.get();
    operands.rstd = rstd.get();
    operands.sums_out = sums_out.get();
    operands.scale = scale.get();
    operands.zero = zero.get();
    return operands;
  }
};

/// The tensors of a backward call, each empty where it is absent, and the gradients that are added
/// to the values in their memory; see rmsnorm_backward().
struct BackwardOperands {
  ConstView x{};           ///< input: the input of the norm
  ConstView dy{};          ///< input: the gradient by y
  ConstView weight{};      ///< input, as in the forward call
  ConstView cos{};         ///< input, as in the forward call
  ConstView sin{};         ///< input, as in the forward call
  ConstView rstd{};        ///< input: an output of the forward call
  View dx{};               ///< output: the gradient by x; may be in the place of dy
  View dw{};               ///< output: the gradient by the weight, in its shape
  View db{};               ///< output: the gradient by the bias
  bool add_to_dx = false;  ///< add dx to the values in its memory
  bool add_to_dw = false;  ///< add dw to the values in its memory
  bool add_to_db = false;  ///< add db to the values in its memory

  /// The C interface's operands, which point into this object.
  rmsnorm_operands get() const noexcept {
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.add_to = (add_to_dx ? std::uint32_t{RMSNORM_ADD_TO_DX} : 0u) |
                      (add_to_dw ? std::uint32_t{RMSNORM_ADD_TO_DW} : 0u) |
                      (add_to_db ? std::uint32_t{RMSNORM_ADD_TO_DB} : 0u);
    operands.x = x.get();
    operands.dy = dy.get();
    operands.weight = weight.get();
    operands.cos = cos.get();
    operands.sin = sin.get();
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
  const rmsnorm_operands c_operands = operands.get();
  const rmsnorm_options c_options = options.get();
  const rmsnorm_context c_context = context.get();
  check(rmsnorm_forward(&c_operands, &c_options, &c_context));
}

/// See rmsnorm_backward().
inline void backward(const BackwardOperands& operands, const Options& options = {},
                     const Context& context = {}) {
  const rmsnorm_operands c_operands = operands.get();
  const rmsnorm_options c_options = options.get();
  const rmsnorm_context c_context = context.get();
  check(rmsnorm_backward(&c_operands, &c_options, &c_context));
}

/// y = RMSNorm(x) * (offset + weight); the weight may be empty. See rmsnorm_norm().
inline void norm(const ConstView& x, const ConstView& weight, const View& y,
                 const Options& options = {}) {
  const rmsnorm_options c_options = options.get();
  check(rmsnorm_norm(x.get(), weight.get(), y.get(), &c_options));
}

/// residual_out = residual + x, y = RMSNorm(residual_out) * (offset + weight); the weight may be
/// empty. See rmsnorm_add_norm().
inline void add_norm(const ConstView& x, const ConstView& residual, const ConstView& weight,
                     const View& residual_out, const View& y, const Options& options = {}) {
  const rmsnorm_options c_options = options.get();
  check(rmsnorm_add_norm(x.get(), residual.get(), weight.get(), residual_out.get(), y.get(),
                         &c_options));
}

/// A layer's norm with its weight, of ones at first, and perhaps a bias and a post-norm weight; see
/// rmsnorm_module. Movable, not copyable; a moved-from object may only be destroyed or assigned to.
class RmsNorm {
 public:
  /// For rows of d elements, with an eps and the default of every other option.
  explicit RmsNorm(Integer d, float eps = 1e-5f, Dtype dtype = Dtype::f32)
      : RmsNorm(d, with_eps(eps), dtype) {}
  /// For rows of d elements; see rmsnorm_module_create().
  RmsNorm(Integer d, const Options& options, Dtype dtype = Dtype::f32,
          const Context& context = {}) {
    const rmsnorm_options c_options = options.get();
    const rmsnorm_context c_context = context.get();
    check(rmsnorm_module_create(&module_, d.size(), static_cast<rmsnorm_dtype>(dtype), &c_options,
                                &c_context));
  }
  ~RmsNorm() { rmsnorm_module_destroy(module_); }
  /// Moves; `other` is empty afterwards.
  RmsNorm(RmsNorm&& other) noexcept : module_(std::exchange(other.module_, nullptr)) {}
  /// Moves; `other` holds afterwards what this one held.
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
  /// Sets a bias from d elements of any type, rounded to the module's; an empty view removes it.
  void set_bias(const ConstView& bias) { check(rmsnorm_module_set_bias(module_, bias.get())); }
  /// Sets a post-norm weight, or removes it, in the same way.
  void set_post_norm_weight(const ConstView& post_norm_weight) {
    check(rmsnorm_module_set_post_norm_weight(module_, post_norm_weight.get()));
  }
  /// Sets the weight, and nothing else, to ones.
  void reset_weight() { check(rmsnorm_module_reset_weight(module_)); }

  /// The elements of a row.
  std::size_t d() const noexcept { return rmsnorm_module_d(module_); }
  /// The type in which the weight is kept.
  Dtype dtype() const noexcept { return static_cast<Dtype>(rmsnorm_module_dtype(module_)); }
  /// How it normalises.
  Options options() const {
    if (module_ == nullptr) detail::refuse_module("");
    return Options::from(*rmsnorm_module_options(module_));
  }
  /// Such as "RmsNorm(4096, eps=1e-05, bf16)".
  std::string description() const { return rmsnorm_module_describe(module_); }

  // Each of these takes another context than the module's, if that is given.

  /// See rmsnorm_module_forward(). Takes the operands of rmsnorm::forward(), except the weight, and
  /// a bias and a post-norm weight if they are set.
  void forward(const ForwardOperands& operands, const std::optional<Context>& context = {}) const {
    const rmsnorm_operands c_operands = operands.get();
    check(rmsnorm_module_forward(module_, &c_operands, detail::OptionalContext(context).get()));
  }
  /// See rmsnorm_module_backward(): the operands of rmsnorm::backward() without the weight.
  void backward(const BackwardOperands& operands,
                const std::optional<Context>& context = {}) const {
    const rmsnorm_operands c_operands = operands.get();
    check(rmsnorm_module_backward(module_, &c_operands, detail::OptionalContext(context).get()));
  }

  /// See rmsnorm_module_norm_rows(). rstd receives 1 / RMS of each row where it is not null, and y
  /// may be x.
  template <class T>
  void norm(const T* x, T* y, Integer rows = 1, float* rstd = nullptr,
            const std::optional<Context>& context = {}) const {
    check(rmsnorm_module_norm_rows(module_, code<T>(), rows.size(), x, y, rstd,
                                   detail::OptionalContext(context).get()));
  }
  /// See rmsnorm_module_add_norm_rows(). rstd receives 1 / RMS of each row where it is not null.
  /// residual_out may be residual, and y may be x.
  template <class T, class Residual>
  void add_norm(const T* x, const Residual* residual, Residual* residual_out, T* y,
                Integer rows = 1, float* rstd = nullptr,
                const std::optional<Context>& context = {}) const {
    check(rmsnorm_module_add_norm_rows(module_, code<T>(), code<Residual>(), rows.size(), x,
                                       residual, residual_out, y, rstd,
                                       detail::OptionalContext(context).get()));
  }
  /// The gradients of norm() for dense rows, dw in f32. rstd, dx and dw may be null; dx may be dy.
  template <class T>
  void backward(const T* dy, const T* x, const float* rstd, T* dx, float* dw, Integer rows = 1,
                const std::optional<Context>& context = {}) const {
    check(rmsnorm_module_backward_rows(module_, code<T>(), rows.size(), dy, x, rstd, dx, dw,
                                       detail::OptionalContext(context).get()));
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

/// One of the calls of forward_all(), by a module or, where that is null, by `options`.
struct Call {
  const RmsNorm* module{};     ///< the module, or null
  ForwardOperands operands{};  ///< as in forward()
  Options options{};           ///< without a module
};

namespace detail {

/// Calls use(c_calls) with the calls of the C interface.
template <class F>
void use_calls(const Call* calls, std::size_t count, const F& use) {
  struct Parts {
    rmsnorm_operands operands;
    rmsnorm_options options;
  };
  constexpr std::size_t kFew = 16;
  Parts few_parts[kFew];
  rmsnorm_call few_calls[kFew];
  few_calls[0] = {};  // gcc warns where it sees no call written, as with a count of 0
  std::vector<Parts> many_parts(count > kFew ? count : 0);
  std::vector<rmsnorm_call> many_calls(count > kFew ? count : 0);
  Parts* const parts = count > kFew ? many_parts.data() : few_parts;
  rmsnorm_call* const all = count > kFew ? many_calls.data() : few_calls;
  for (std::size_t i = 0; i < count; ++i) {
    parts[i] = {calls[i].operands.get(), calls[i].options.get()};
    all[i] = {nullptr, &parts[i].operands, &parts[i].options};
    if (calls[i].module == nullptr) continue;
    all[i].options = nullptr;
    all[i].module = calls[i].module->get();
    if (all[i].module == nullptr) {
      refuse_module(count == 1 ? "" : "calls[" + std::to_string(i) + "].");
    }
  }
  use(static_cast<const rmsnorm_call*>(all));
}

}  // namespace detail

/// Several norms in one parallel region; see rmsnorm_forward_all(). Up to 16 calls need no memory
/// of the heap.
inline void forward_all(const Call* calls, std::size_t count, const Context& context = {}) {
  const rmsnorm_context c_context = context.get();
  detail::use_calls(calls, count, [&](const rmsnorm_call* all) {
    check(rmsnorm_forward_all(all, count, &c_context));
  });
}

/// The same for calls written down in braces.
inline void forward_all(std::initializer_list<Call> calls, const Context& context = {}) {
  forward_all(calls.begin(), calls.size(), context);
}

/// A call that is checked and planned once and then run many times on the same memory; see
/// rmsnorm_prepare() for what must stay, and what may change. Movable. An object that was moved from
/// can only be destroyed or assigned to.
///
///     rmsnorm::Prepared norm(operands, options);
///     norm();
class Prepared {
 public:
  /// Several norms, as forward_all() takes them.
  Prepared(const Call* calls, std::size_t count, const Context& context = {}) {
    prepare(calls, count, context);
  }
  /// Several norms, written in place.
  Prepared(std::initializer_list<Call> calls, const Context& context = {})
      : Prepared(calls.begin(), calls.size(), context) {}
  /// One norm, as forward() takes it.
  explicit Prepared(const ForwardOperands& operands, const Options& options = {},
                    const Context& context = {})
      : Prepared({{nullptr, operands, options}}, context) {}
  /// The gradients, as backward() takes them.
  explicit Prepared(const BackwardOperands& operands, const Options& options = {},
                    const Context& context = {}) {
    const rmsnorm_options c_options = options.get();
    prepare_backward(nullptr, operands, &c_options, context);
  }
  /// A norm by a module, in its context or in another one.
  Prepared(const RmsNorm& module, const ForwardOperands& operands,
           const std::optional<Context>& context = {}) {
    const Call call = {&module, operands, {}};
    prepare(&call, 1, context);
  }
  /// The gradients by a module, in its context or in another one.
  Prepared(const RmsNorm& module, const BackwardOperands& operands,
           const std::optional<Context>& context = {}) {
    prepare_backward(&module, operands, nullptr, context);
  }
  /// Takes the call of another object.
  Prepared(Prepared&& other) noexcept : prepared_(std::exchange(other.prepared_, nullptr)) {}
  /// Exchanges the calls of two objects.
  Prepared& operator=(Prepared&& other) noexcept {
    std::swap(prepared_, other.prepared_);
    return *this;
  }
  ~Prepared() { rmsnorm_prepared_destroy(prepared_); }

  /// Makes the call.
  void operator()() { check(rmsnorm_run(prepared_)); }

 private:
  void prepare(const Call* calls, std::size_t count, const std::optional<Context>& context) {
    detail::use_calls(calls, count, [&](const rmsnorm_call* all) {
      check(rmsnorm_prepare(&prepared_, all, count, detail::OptionalContext(context).get()));
    });
  }
  void prepare_backward(const RmsNorm* module, const BackwardOperands& operands,
                        const rmsnorm_options* options, const std::optional<Context>& context) {
    const rmsnorm_operands c_operands = operands.get();
    const rmsnorm_call call = {module != nullptr ? module->get() : nullptr, &c_operands, options};
    if (module != nullptr && call.module == nullptr) detail::refuse_module("");
    check(rmsnorm_prepare_backward(&prepared_, &call, detail::OptionalContext(context).get()));
  }

  rmsnorm_prepared* prepared_ = nullptr;
};

}  // namespace rmsnorm

#endif  // RMSNORM_RMSNORM_HPP_
