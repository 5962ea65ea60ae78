// SPDX-License-Identifier: Apache-2.0
/// @file
/// RMSNorm for CPUs: the C interface.
///
/// A row x of d elements is divided by its root mean square and scaled by a weight:
///
///     y_j = x_j / sqrt(sum_i(x_i^2) / D + eps) * (offset + weight_j) + bias_j
///
/// D is d unless a divisor is given. The formula is that of Zhang and Sennrich, "Root Mean Square
/// Layer Normalization", 2019, arXiv:1910.07467, equation 4; eps, the offset and the bias came with
/// the models that use them. Gradients are its derivatives. Everything is computed in f32 and has
/// the same bits on every CPU, for every number of threads, for every batch around a row and in
/// every rounding mode the caller may have set.
///
/// A call has operands, which are views of tensors, options, which are numbers, and a context,
/// which says on which threads and with which instructions it runs:
///
///     rmsnorm_forward(&operands, &options, &context);
///
/// rmsnorm_norm() and rmsnorm_add_norm() are short forms of the usual calls.
///
/// Conventions that hold for every function here:
/// - Errors: a function that can fail returns a ::rmsnorm_status. It checks its arguments first: on
///   an error nothing has been written, and rmsnorm_error_message() says what was wrong with which
///   argument. No pointer may be null unless its description says so.
/// - Growth: operands, options and contexts begin with their size. A later version may append
///   fields. A struct of an older, smaller size is taken with the default for what it lacks, and a
///   larger one if what this version does not know is zero.
/// - Thread safety: every function may be called from many threads at once, also on the same
///   module, as long as nobody changes that module's weight or destroys it at the same time. Calls
///   at the same time must not write to memory that another of them uses.
/// - Threads: a call with work enough is spread over threads of OpenMP, or over the parts that the
///   executor in its context gets. Inside an OpenMP parallel region a call without an executor is
///   serial. It is so, too, in a child that was forked after a call in its parent had used OpenMP:
///   those threads stay behind.
/// - The library prints nothing, does not abort, and no C++ exception leaves it. But where GNU's
///   OpenMP cannot start a thread or gets no memory (ulimit -u, ulimit -v), it says so on stderr
///   and ends the process, which the library cannot prevent. A call with one thread or with an
///   executor does not use it.
/// - Units: sizes and strides are counted in elements, never in bytes. eps is in the unit of x
///   squared, or of x where it stands outside the root.
/// - Aliasing: y may be in the place of x, residual_out in that of residual and dx in that of dy.
/// In
///   place means the same data, strides and element size. Otherwise an output shares no byte with
///   another operand, and lies between the rows of another only where both walk through memory by
///   the same strides, as the q and k slices of one buffer do.
#ifndef RMSNORM_RMSNORM_H_
#define RMSNORM_RMSNORM_H_

#include <rmsnorm/version.h>
#include <stddef.h>
#include <stdint.h>

/// @cond
#if defined(__GNUC__)
#define RMSNORM_API __attribute__((visibility("default")))
#else
#define RMSNORM_API
#endif

#ifdef __cplusplus
#define RMSNORM_NOEXCEPT noexcept
extern "C" {
#else
#define RMSNORM_NOEXCEPT
#endif
/// @endcond

// ------------------------------------------------------------------------------------ status

/// What a call came to: RMSNORM_OK, or what was wrong.
typedef int32_t rmsnorm_status;
enum {
  RMSNORM_OK = 0,
  RMSNORM_ERROR_NULL = 1,         ///< a required pointer is null
  RMSNORM_ERROR_STRUCT_SIZE = 2,  ///< a struct's size is unknown, or it holds what is unknown
  RMSNORM_ERROR_DTYPE = 3,        ///< an unknown element type
  RMSNORM_ERROR_SHAPE = 4,        ///< d = 0, a wrong number of dimensions, or shapes that differ
  RMSNORM_ERROR_STRIDE = 5,  ///< gaps in the last dimension, or rows of an output not told apart
  RMSNORM_ERROR_SIZE_OVERFLOW = 6,   ///< a view spans more bytes than an address can count
  RMSNORM_ERROR_ALIGNMENT = 7,       ///< a pointer is not aligned to its element
  RMSNORM_ERROR_OVERLAP = 8,         ///< an output shares memory with another argument
  RMSNORM_ERROR_EPS = 9,             ///< eps is negative or not finite
  RMSNORM_ERROR_EPS_PLACEMENT = 10,  ///< an unknown place for eps
  RMSNORM_ERROR_ROUNDING = 11,       ///< an unknown rounding order, of n or of the residual
  RMSNORM_ERROR_WEIGHT_OFFSET = 12,  ///< an offset that is not finite, or without a weight
  RMSNORM_ERROR_DIVISOR = 13,        ///< a divisor outside 2^-126 to 2^126
  RMSNORM_ERROR_THREADS = 14,        ///< a negative number of threads
  RMSNORM_ERROR_TARGET = 15,         ///< a target that is unknown, or that this CPU cannot run
  RMSNORM_ERROR_MEMORY = 16,         ///< out of memory
  RMSNORM_ERROR_FLAGS = 17,          ///< an unknown flag
  RMSNORM_ERROR_DEVICE = 18,         ///< memory of another device (rmsnorm/dlpack.hpp)
  RMSNORM_ERROR_READ_ONLY = 19,      ///< an output that may only be read (rmsnorm/dlpack.hpp)
  RMSNORM_ERROR_OPERAND = 20,        ///< operands that exclude or lack each other
  RMSNORM_ERROR_FACTOR = 21,         ///< a factor that is not finite
  RMSNORM_ERROR_GATE = 22            ///< an unknown way to gate, or one without a gate
};

/// A constant text for a status, such as "eps is negative or not finite". Never null.
RMSNORM_API const char* rmsnorm_status_text(rmsnorm_status status) RMSNORM_NOEXCEPT;

/// What was wrong in the last call of this thread that failed, naming the argument, such as
/// "y: 3 dimensions, but x has 2". Empty before the first failure. Valid until the next failing
/// call of the same thread.
RMSNORM_API const char* rmsnorm_error_message(void) RMSNORM_NOEXCEPT;

/// The version of the linked library, such as "0.1.0".
RMSNORM_API const char* rmsnorm_version(void) RMSNORM_NOEXCEPT;

// ------------------------------------------------------------------------------------- views

/// Element types. Each of the first three converts to f32 exactly; results are rounded to nearest
/// even. f64 is the type of sums of squares alone, and i8 that of quantised outputs.
typedef int32_t rmsnorm_dtype;
enum {
  RMSNORM_F32 = 1,   ///< IEEE binary32
  RMSNORM_F16 = 2,   ///< IEEE binary16
  RMSNORM_BF16 = 3,  ///< bfloat16, the upper half of binary32
  RMSNORM_F64 = 4,   ///< IEEE binary64
  RMSNORM_I8 = 5     ///< a signed integer of 8 bits
};

/// The size of an element in bytes (8, 4, 2 or 1), or 0 for an unknown dtype.
RMSNORM_API size_t rmsnorm_dtype_size(rmsnorm_dtype dtype) RMSNORM_NOEXCEPT;
/// "f32", "f16", "bf16", "f64" or "i8", or null for an unknown dtype.
RMSNORM_API const char* rmsnorm_dtype_name(rmsnorm_dtype dtype) RMSNORM_NOEXCEPT;

/// The most dimensions a view can have.
#define RMSNORM_MAX_DIMS 8

/// Where a tensor lies in memory. The last dimension is the row of d elements that is normalised
/// and must be contiguous (stride 1); the others may have any stride, so that a slice of a fused
/// buffer or padded rows need no copy. An input may repeat rows (stride 0). The rows of an output
/// are told apart by their strides: each is at least as wide as what the narrower ones span, the
/// row included. The data must be aligned to the element's own size; nothing more is needed. Make
/// views with the functions below. This struct does not grow.
typedef struct rmsnorm_view {
  void* data;                      ///< the first element; never written where the view is an input
  rmsnorm_dtype dtype;             ///< the element type
  int32_t ndim;                    ///< number of dimensions, 1 to RMSNORM_MAX_DIMS
  size_t shape[RMSNORM_MAX_DIMS];  ///< elements in each dimension; the last is d
  ptrdiff_t stride[RMSNORM_MAX_DIMS];  ///< elements from one index to the next; the last is 1
} rmsnorm_view;

/// A view of `rows` rows of `d` elements, the rows `row_stride` elements apart (d where they are
/// dense).
static inline rmsnorm_view rmsnorm_rows(const void* data, rmsnorm_dtype dtype, size_t rows,
                                        size_t d, ptrdiff_t row_stride) {
  rmsnorm_view view;
  view.data = (void*)data;
  view.dtype = dtype;
  view.ndim = 2;
  view.shape[0] = rows;
  view.shape[1] = d;
  view.stride[0] = row_stride;
  view.stride[1] = 1;
  return view;
}

/// A view of `count` elements in one dimension: a weight, a bias, or one value for each row.
static inline rmsnorm_view rmsnorm_vector(const void* data, rmsnorm_dtype dtype, size_t count) {
  rmsnorm_view view;
  view.data = (void*)data;
  view.dtype = dtype;
  view.ndim = 1;
  view.shape[0] = count;
  view.stride[0] = 1;
  return view;
}

/// A view of a tensor with `ndim` dimensions. `stride` may be null for a dense tensor in C order.
/// A wrong `ndim` is kept, and refused by the call that gets the view.
static inline rmsnorm_view rmsnorm_tensor(const void* data, rmsnorm_dtype dtype, int32_t ndim,
                                          const size_t* shape, const ptrdiff_t* stride) {
  rmsnorm_view view;
  ptrdiff_t dense = 1;
  int32_t i;
  view.data = (void*)data;
  view.dtype = dtype;
  view.ndim = ndim;
  for (i = 0 < ndim && ndim <= RMSNORM_MAX_DIMS ? ndim - 1 : -1; i >= 0; --i) {
    view.shape[i] = shape[i];
    view.stride[i] = stride ? stride[i] : dense;
    dense = (ptrdiff_t)((size_t)dense * shape[i]);
  }
  return view;
}

// ---------------------------------------------------------------------------------- operands

/// Gradients that are added to what their memory holds, as bits of rmsnorm_operands::add_to. A bit
/// for a gradient that is not computed is no matter.
enum {
  RMSNORM_ADD_TO_DX = 1,  ///< dx
  RMSNORM_ADD_TO_DW = 2,  ///< dw
  RMSNORM_ADD_TO_DB = 4   ///< db
};

/// The tensors of a call, each null where it is absent. Start from rmsnorm_no_operands() and set
/// those that the call has; rmsnorm_forward() and rmsnorm_backward() say which these are.
///
/// x has any shape [..., d] with d at least 1. Zero rows succeed. residual, gate, y, q,
/// residual_out, dy and dx have the shape of x. weight, bias, post_norm_weight, dw and db have the
/// shape [d], or have leading dimensions too, which are aligned with those of x from the right:
/// each is that of x, or 1 where all of x's rows along it share one row of the weight. rstd, sums,
/// sums_out, scale and zero have the leading dimensions of x, and one element where x has none.
///
/// The types are f32, f16 or bf16 in any combination, but rstd and scale are f32, sums and sums_out
/// are f64, q and zero are i8, and residual_out has the type of residual.
typedef struct rmsnorm_operands {
  uint32_t size;                         ///< sizeof(rmsnorm_operands)
  uint32_t add_to;                       ///< RMSNORM_ADD_TO_DX and the like, or 0
  const rmsnorm_view* x;                 ///< input: what is normalised
  const rmsnorm_view* residual;          ///< input: what x is added to before
  const rmsnorm_view* weight;            ///< input; absent, it has the bits of ones
  const rmsnorm_view* bias;              ///< input: added after the weight
  const rmsnorm_view* sums;              ///< input: the sums of squares, in the place of x's own
  const rmsnorm_view* y;                 ///< output: the norm; may be in the place of x
  const rmsnorm_view* residual_out;      ///< output: residual + x; may be in the place of residual
  const rmsnorm_view* rstd;              ///< 1 / RMS: forward's output, and backward's input
  const rmsnorm_view* sums_out;          ///< output: the sums of squares of what is normalised
  const rmsnorm_view* dy;                ///< input: the gradient of the loss by y
  const rmsnorm_view* dx;                ///< output: the gradient by x; may be in the place of dy
  const rmsnorm_view* dw;                ///< output: the gradient by the weight, of its shape
  const rmsnorm_view* db;                ///< output: the gradient by the bias
  const rmsnorm_view* post_norm_weight;  ///< input: x is first normalised, by this weight
  const rmsnorm_view* gate;              ///< input: what an activation turns into factors
  const rmsnorm_view* q;                 ///< output: the norm, quantised
  const rmsnorm_view* scale;             ///< output: the step from one integer of q to the next
  const rmsnorm_view* zero;              ///< output: the integer of q that stands for 0
} rmsnorm_operands;

/// No operand, and nothing that is added to.
static inline rmsnorm_operands rmsnorm_no_operands(void) {
  rmsnorm_operands operands;
  operands.size = (uint32_t)sizeof(rmsnorm_operands);
  operands.add_to = 0;
  operands.x = NULL;
  operands.residual = NULL;
  operands.weight = NULL;
  operands.bias = NULL;
  operands.sums = NULL;
  operands.y = NULL;
  operands.residual_out = NULL;
  operands.rstd = NULL;
  operands.sums_out = NULL;
  operands.dy = NULL;
  operands.dx = NULL;
  operands.dw = NULL;
  operands.db = NULL;
  operands.post_norm_weight = NULL;
  operands.gate = NULL;
  operands.q = NULL;
  operands.scale = NULL;
  operands.zero = NULL;
  return operands;
}

// ----------------------------------------------------------------------------------- options

/// Where eps is added. Llama, Gemma, T5, Qwen and DeepSeek add it inside the root.
typedef int32_t rmsnorm_eps_placement;
enum {
  RMSNORM_EPS_INSIDE = 0,   ///< x / sqrt(mean(x^2) + eps)
  RMSNORM_EPS_OUTSIDE = 1,  ///< x / (sqrt(mean(x^2)) + eps)
  RMSNORM_EPS_FLOOR = 2     ///< x / max(sqrt(mean(x^2)), eps): L2 norms, with a divisor of 1
};

/// When the normalised value n = x / RMS is rounded to the type of x.
typedef int32_t rmsnorm_rounding;
enum {
  /// y = cast_y(n * w): PyTorch's rms_norm, Gemma, ONNX Runtime's SimplifiedLayerNormalization.
  RMSNORM_SCALE_THEN_CAST = 0,
  /// y = cast_y(cast_x(n) * w): Hugging Face's Llama, T5 and DeepSeek-V3, ONNX RMSNormalization-23.
  RMSNORM_CAST_THEN_SCALE = 1,
  /// The same with n = x * cast_x(1 / RMS): DeepSeek-V4.
  RMSNORM_INVERSE_ROUNDED = 2
};

/// What is normalised where there is a residual: the sum of residual and x as residual_out holds
/// it, or as it was before.
typedef int32_t rmsnorm_residual_rounding;
enum {
  /// The norm of residual_out: Hugging Face, vLLM on GPUs.
  RMSNORM_CAST_THEN_NORM = 0,
  /// The norm of the sum in f32: sglang, FlashInfer. x's type in the rounding orders is then x's
  /// own,
  /// and else that of the residual.
  RMSNORM_NORM_THEN_CAST = 1
};

/// What makes a factor of an element z of the gate.
typedef int32_t rmsnorm_activation;
enum {
  RMSNORM_SILU = 0,    ///< z / (1 + exp(-z))
  RMSNORM_SIGMOID = 1  ///< 1 / (1 + exp(-z))
};

/// What the gate multiplies.
typedef int32_t rmsnorm_gate_placement;
enum {
  RMSNORM_GATE_AFTER = 0,  ///< the norm, with weight and bias: Qwen3-Next, Kimi-Linear
  RMSNORM_GATE_BEFORE = 1  ///< x, before it is normalised: Mamba-2
};

/// Whether the norm is rounded before the gate multiplies it.
typedef int32_t rmsnorm_gate_rounding;
enum {
  RMSNORM_GATE_UNROUNDED = 0,    ///< y = cast_y(m * act(z)): Kimi-Linear
  RMSNORM_GATE_ROUNDED_TO_X = 1  ///< y = cast_y(cast_x(m) * act(z)): Qwen3-Next
};

/// How to normalise. Start from rmsnorm_default_options() and change what differs.
typedef struct rmsnorm_options {
  uint32_t size;                                ///< sizeof(rmsnorm_options)
  float eps;                                    ///< 1e-5 by default; finite and not negative
  rmsnorm_eps_placement eps_placement;          ///< RMSNORM_EPS_INSIDE by default
  rmsnorm_rounding rounding;                    ///< RMSNORM_SCALE_THEN_CAST by default
  rmsnorm_residual_rounding residual_rounding;  ///< RMSNORM_CAST_THEN_NORM by default
  float weight_offset;  ///< added to the weight in f32: 0 by default, 1 for Gemma; needs a weight
  float divisor;        ///< divides the sum of squares; 2^-126 to 2^126; 0, the default, means d
  float factor;         ///< x is first multiplied by this: 1 by default, which leaves x alone
  rmsnorm_activation activation;          ///< RMSNORM_SILU by default; another needs a gate
  rmsnorm_gate_placement gate_placement;  ///< RMSNORM_GATE_AFTER by default; another needs a gate
  /// RMSNORM_GATE_UNROUNDED by default; another needs a gate after the norm.
  rmsnorm_gate_rounding gate_rounding;
} rmsnorm_options;

/// The defaults named above.
static inline rmsnorm_options rmsnorm_default_options(void) {
  rmsnorm_options options;
  options.size = (uint32_t)sizeof(rmsnorm_options);
  options.eps = 1e-5f;
  options.eps_placement = RMSNORM_EPS_INSIDE;
  options.rounding = RMSNORM_SCALE_THEN_CAST;
  options.residual_rounding = RMSNORM_CAST_THEN_NORM;
  options.weight_offset = 0.0f;
  options.divisor = 0.0f;
  options.factor = 1.0f;
  options.activation = RMSNORM_SILU;
  options.gate_placement = RMSNORM_GATE_AFTER;
  options.gate_rounding = RMSNORM_GATE_UNROUNDED;
  return options;
}

// ----------------------------------------------------------------------------------- context

/// One part of a call's work; the library makes these, an executor runs them.
typedef void (*rmsnorm_task)(void* state, size_t index);

/// The caller's own executor: runs task(state, i) once for each i below `count`, on any threads in
/// any order, and returns when all are done. It must not throw through the library. `context` is
/// rmsnorm_context::parallel_context.
typedef void (*rmsnorm_parallel_for)(void* context, size_t count, rmsnorm_task task, void* state);

/// Where a call runs. Nothing here changes a bit of a result. Start from rmsnorm_default_context()
/// and change what differs.
typedef struct rmsnorm_context {
  uint32_t size;  ///< sizeof(rmsnorm_context)
  /// The most threads of OpenMP for a call, where OpenMP would use as many by itself or the machine
  /// has as many CPUs, and OMP_THREAD_LIMIT allows them; or the most parts that parallel_for gets.
  /// 0: as many as OpenMP would use, or for parallel_for a part for each CPU. 1: serial.
  int32_t threads;
  rmsnorm_parallel_for parallel_for;  ///< runs the parts in OpenMP's stead; null by default
  void* parallel_context;             ///< handed to parallel_for
  const char* target;  ///< see "targets" below; null by default: RMSNORM_TARGET, or the best
} rmsnorm_context;

/// The defaults named above.
static inline rmsnorm_context rmsnorm_default_context(void) {
  rmsnorm_context context;
  context.size = (uint32_t)sizeof(rmsnorm_context);
  context.threads = 0;
  context.parallel_for = NULL;
  context.parallel_context = NULL;
  context.target = NULL;
  return context;
}

// ----------------------------------------------------------------------------------- forward

/// y = RMSNorm(x) * (offset + weight) + bias, row by row.
///
/// Takes x and, each where it is wanted, weight, bias, post_norm_weight, gate, residual, sums, y,
/// residual_out, rstd, sums_out, and q with scale and, for a quantisation that is not symmetric,
/// zero. At least one output is needed.
///
/// With a residual the call is the step of a pre-norm block, in one pass over memory:
///
///     h = residual + x               in f32
///     residual_out = h               rounded to the type of residual
///     y = RMSNorm(residual_out)      or of h with RMSNORM_NORM_THEN_CAST
///
/// A sum beyond FLT_MAX is infinite, and one beyond the type of residual is stored as infinity.
/// Without y, q, rstd and sums_out the call is the addition alone.
///
/// Before that, x is replaced by what follows, in this order, each with the bits of a call of its
/// own:
///
///     x = cast_x(RMSNorm(x) * (offset + post_norm_weight))     with the options of the call
///     x = cast_x(factor * x)
///     h = x * act(gate)              in f32, with RMSNORM_GATE_BEFORE, which excludes a residual
///
/// A gate after the norm multiplies m, the value that is else rounded to y's type:
///
///     y = m * act(gate)              m rounded to x's type with RMSNORM_GATE_ROUNDED_TO_X
///
/// The activations are within 2 units in the last place, and have the same bits on every target.
/// "x's type" is that of residual where residual_out is normalised.
///
/// The quantised output is that of v, which is y or, where y is absent, what y would be in x's
/// type. For each row, with a = max|v|, lo = min(0, min v) and hi = max(0, max v):
///
///     scale = a / 127,          q = rint(v * (127 / a))                   without zero
///     scale = (hi - lo) / 255,  q = rint(v * (255 / (hi - lo))) + zero    with it
///     zero = rint(-128 - lo * (255 / (hi - lo)))
///
/// q and zero are clamped to [-128, 127]. In a row with a below 2^-100, or hi - lo, scale, zero and
/// q are 0. In one that holds NaN or infinity, or whose hi - lo is infinite, scale is NaN, and zero
/// and q are 0.
///
/// The two phases of a norm are a call with sums_out, and a call with sums. Sums of the parts of a
/// sharded row may be added up in between: then give the whole row's length as divisor. A sum of
/// squares is the f32 sum, widened, unless that is infinite or below 2^-100 times the divisor: then
/// it is the sum in binary64. On whole rows the two calls with equal options give the bits of one
/// where f32 holds all of sum, sum / divisor and sum / divisor + eps, or none of them: that is, the
/// sum as above, the others finite and at least 2^-100. Else they may differ in the last place.
/// sums exclude a residual and a post-norm.
///
/// @param operands  see rmsnorm_operands.
/// @param options   null for the defaults.
/// @param context   null for the default one.
///
/// rstd is float(1 / RMS). A row of |x| below about 1e-38 with eps = 0 has an inverse RMS above
/// FLT_MAX, given as infinity; y is right all the same. The inverse RMS is within
/// ((k + 7 + b) / 2 + 4) * 2^-24 of the exact one, relatively, where k is min(d, 4096) / 128 and b
/// is d / 4096 - 1, both rounded up, for a divisor of at least 1.
/// A row that holds NaN or infinity gives what the formula gives in IEEE arithmetic. An all-zero
/// row with eps = 0 gives NaN. Rows whose squares overflow or vanish in f32 are computed in
/// binary64. As offset + weight is a sum, a weight of -0 counts as +0. A weight and a bias of more
/// than 4096 elements in all take scratch of as many floats for the time of the call; a module's
/// weight needs none.
RMSNORM_API rmsnorm_status rmsnorm_forward(const rmsnorm_operands* operands,
                                           const rmsnorm_options* options,
                                           const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// y = RMSNorm(x) * (offset + weight), with the default context. `weight` and `options` may be
/// null. See rmsnorm_forward().
static inline rmsnorm_status rmsnorm_norm(const rmsnorm_view* x, const rmsnorm_view* weight,
                                          const rmsnorm_view* y, const rmsnorm_options* options) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = x;
  operands.weight = weight;
  operands.y = y;
  return rmsnorm_forward(&operands, options, NULL);
}

/// residual_out = residual + x, y = RMSNorm(residual_out) * (offset + weight), with the default
/// context. `weight` and `options` may be null. See rmsnorm_forward().
static inline rmsnorm_status rmsnorm_add_norm(const rmsnorm_view* x, const rmsnorm_view* residual,
                                              const rmsnorm_view* weight,
                                              const rmsnorm_view* residual_out,
                                              const rmsnorm_view* y,
                                              const rmsnorm_options* options) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = x;
  operands.residual = residual;
  operands.weight = weight;
  operands.residual_out = residual_out;
  operands.y = y;
  return rmsnorm_forward(&operands, options, NULL);
}

typedef struct rmsnorm_module rmsnorm_module;

/// One of several norms that are done at once.
typedef struct rmsnorm_call {
  const rmsnorm_module* module;      ///< as in rmsnorm_module_forward(), or null
  const rmsnorm_operands* operands;  ///< as in rmsnorm_forward()
  const rmsnorm_options* options;    ///< null for the defaults, and where there is a module
} rmsnorm_call;

/// Several norms at once, each with its own operands and options, in one parallel region: q and k
/// slices of a fused buffer, or the two norms of multi-head latent attention. The results are those
/// of rmsnorm_forward() for each. An output of one call shares no byte with an operand of another.
/// A message about operand y of the second call begins with "calls[1].y".
///
/// @param calls    `count` calls.
/// @param count    may be 0.
/// @param context  null for the default one; modules do not bring theirs.
RMSNORM_API rmsnorm_status rmsnorm_forward_all(const rmsnorm_call* calls, size_t count,
                                               const rmsnorm_context* context) RMSNORM_NOEXCEPT;

// ---------------------------------------------------------------------------------- backward

/// The gradients of a loss by x, by the weight and by the bias, from dy, that by y.
///
/// Takes dy and x, each of weight, rstd, dx, dw and db where it is wanted, and add_to. At least one
/// of dx, dw and db is needed. db alone needs x for its shape. A factor other than 1 and the gate's
/// options are refused.
///
/// With g = dy * (offset + weight), c = sum_i(g_i * x_i), r = 1 / RMS and s = sqrt(sum_i(x_i^2) /
/// D), for each row
///
///     dx_j = r * (g_j - x_j * r * c * r / D)          eps inside the root
///     dx_j = r * (g_j - x_j * c * r / (D * s))        eps outside; where s = 0: r * g_j
///     dx_j = as for eps inside                        eps as a floor; where s < eps: r * g_j
///     dw_j = sum over rows of dy_j * x_j * r
///     db_j = sum over rows of dy_j
///
/// the derivatives of the formula at the head of this file. dw and db are sums over the rows that
/// share a row of the weight or of the bias. Gradients pass through the unrounded values: all
/// rounding orders give the same.
///
/// rstd is what the forward call gave for these rows, used as it is: with eps inside it spares the
/// sum of squares. Absent, it is computed again, where it was not kept, or where forward's own may
/// be infinite (see there).
///
/// For the gradients of a call with a residual give residual_out as x, and the gradient of
/// residual_out as dx with RMSNORM_ADD_TO_DX: what comes out is the gradient of both residual and
/// x. With RMSNORM_NORM_THEN_CAST give the call's rstd, too.
///
/// A gradient that is added to what its memory holds is added in f32, and the sum rounded once.
/// With dx in the place of dy it is dy that dx is added to, as where a residual stream goes around
/// the norm. Without rows dw and db are zeros.
///
/// @param operands  see rmsnorm_operands.
/// @param options   those of the forward call; null for the defaults.
/// @param context   null for the default one.
///
/// dw and db add up in f32 and are rounded to their types at the end; they have the same bits for
/// any number of threads, but not for a batch in pieces. For a row of finite values whose products
/// neither overflow nor vanish, dx is exact up to the rounding of its type and some units of 2^-24
/// of the larger of r * |g_j| and |x_j| * r^3 * sum_i|g_i * x_i| / D. A row computed in binary64 by
/// the forward call is computed in binary64 here too. So is dx alone where f32 cannot hold
/// c * r / D, or c * r / (D * s) with eps outside, or c where dx_j = r * g_j.
/// The call takes scratch: the weight in f32, for each row of the weight and of the bias up to 64 *
/// d floats, and 48 bytes for each row of x. What is more than some 16 KiB of it is on the heap.
RMSNORM_API rmsnorm_status rmsnorm_backward(const rmsnorm_operands* operands,
                                            const rmsnorm_options* options,
                                            const rmsnorm_context* context) RMSNORM_NOEXCEPT;

// ------------------------------------------------------------------------------------ module

/// @struct rmsnorm_module
/// What an engine keeps for each layer: d, dtype, options, the prepared weight and a context. A
/// forward call on it looks up and allocates nothing.

/// Makes a module with a weight of d ones.
///
/// @param module   receives the module; destroy it with rmsnorm_module_destroy(). Set to null on an
///                 error.
/// @param d        elements of a row, at least 1.
/// @param dtype    the type in which the weight is kept.
/// @param options  null for the defaults; copied.
/// @param context  that of calls without one, null for the default one; copied (its
///                 parallel_context must outlive the module).
RMSNORM_API rmsnorm_status rmsnorm_module_create(rmsnorm_module** module, size_t d,
                                                 rmsnorm_dtype dtype,
                                                 const rmsnorm_options* options,
                                                 const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// Frees a module; null is allowed. Not while others use it.
RMSNORM_API void rmsnorm_module_destroy(rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// Sets the weight from d elements in one dimension, of any dtype, rounded to the module's. Not
/// while others use the module.
RMSNORM_API rmsnorm_status rmsnorm_module_set_weight(rmsnorm_module* module,
                                                     const rmsnorm_view* weight) RMSNORM_NOEXCEPT;

/// Writes the weight to d elements in one dimension, of any dtype; exact where that is f32 or the
/// module's own.
RMSNORM_API rmsnorm_status rmsnorm_module_get_weight(const rmsnorm_module* module,
                                                     const rmsnorm_view* weight) RMSNORM_NOEXCEPT;

/// Sets the weight to ones. Not while others use the module.
RMSNORM_API rmsnorm_status rmsnorm_module_reset_weight(rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// The elements of a row. 0 for null.
RMSNORM_API size_t rmsnorm_module_d(const rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// The type in which the weight is kept. 0 for null.
RMSNORM_API rmsnorm_dtype rmsnorm_module_dtype(const rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// The options, owned by the module and valid as long as it. Null for null.
RMSNORM_API const rmsnorm_options* rmsnorm_module_options(const rmsnorm_module* module)
    RMSNORM_NOEXCEPT;

/// A text such as "RmsNorm(4096, eps=1e-05, bf16)", naming each option that differs from its
/// default. Owned by the module and valid as long as it. Empty for null.
RMSNORM_API const char* rmsnorm_module_describe(const rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// rmsnorm_forward() with the module's weight and options. Takes the operands that it takes, but
/// no weight. `context` may be null for the module's own.
RMSNORM_API rmsnorm_status rmsnorm_module_forward(const rmsnorm_module* module,
                                                  const rmsnorm_operands* operands,
                                                  const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// rmsnorm_backward() with the module's weight and options. Takes the operands that it takes, but
/// no weight. `context` may be null for the module's own.
RMSNORM_API rmsnorm_status rmsnorm_module_backward(const rmsnorm_module* module,
                                                   const rmsnorm_operands* operands,
                                                   const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// rmsnorm_module_forward() of dense rows of one type, in the module's context, for the step of an
/// engine that decodes one token: a call of one short row costs a few nanoseconds beside its
/// arithmetic. y may be x.
///
/// @param module  the module.
/// @param dtype   the type of x and y.
/// @param rows    how many.
/// @param x       input, rows * d elements.
/// @param y       output, rows * d elements: x itself, or apart from it.
RMSNORM_API rmsnorm_status rmsnorm_module_forward_rows(const rmsnorm_module* module,
                                                       rmsnorm_dtype dtype, size_t rows,
                                                       const void* x, void* y) RMSNORM_NOEXCEPT;

/// The same with a residual. residual_out may be residual, and y may be x.
///
/// @param module        the module.
/// @param dtype         the type of x, residual, residual_out and y.
/// @param rows          how many.
/// @param x             input, rows * d elements.
/// @param residual      input, rows * d elements.
/// @param residual_out  output, rows * d elements: residual itself, or apart from all others.
/// @param y             output, rows * d elements: x itself, or apart from all others.
RMSNORM_API rmsnorm_status rmsnorm_module_add_forward_rows(const rmsnorm_module* module,
                                                           rmsnorm_dtype dtype, size_t rows,
                                                           const void* x, const void* residual,
                                                           void* residual_out,
                                                           void* y) RMSNORM_NOEXCEPT;

/// rmsnorm_module_backward() of dense rows of one type, in the module's context. dx may be dy.
///
/// @param module  the module.
/// @param dtype   the type of dy, x and dx.
/// @param rows    how many.
/// @param dy      input, rows * d elements.
/// @param x       input, rows * d elements.
/// @param rstd    input, one f32 for each row, or null.
/// @param dx      output, rows * d elements: dy itself, or apart from all others; or null.
/// @param dw      output, d elements of f32, whatever the type of x; or null.
RMSNORM_API rmsnorm_status rmsnorm_module_backward_rows(const rmsnorm_module* module,
                                                        rmsnorm_dtype dtype, size_t rows,
                                                        const void* dy, const void* x,
                                                        const float* rstd, void* dx,
                                                        float* dw) RMSNORM_NOEXCEPT;

// ----------------------------------------------------------------------------------- targets
//
// A target is an instruction set the kernels are compiled for. The best one this CPU runs is chosen
// once; the environment variable RMSNORM_TARGET names another for the process,
// rmsnorm_context::target for a call. Names, in any case: "reference", the plain scalar definition,
// there on every CPU; "AVX2", "AVX512" and "NEON", the best flavour of each; or an exact name such
// as "AVX3_DL". Every target gives the same bits. A name that is unknown or that this CPU cannot
// run is an error of the call that asks.

/// The name of the index-th target compiled into the library, best first, "reference" last; null
/// beyond.
RMSNORM_API const char* rmsnorm_target_name(size_t index) RMSNORM_NOEXCEPT;

/// Finds the target that `name` selects on this CPU (null: the one a call without a target uses)
/// and gives its exact name, which lives as long as the process. RMSNORM_ERROR_TARGET where there
/// is none.
RMSNORM_API rmsnorm_status rmsnorm_find_target(const char* name,
                                               const char** exact_name) RMSNORM_NOEXCEPT;

/// How many threads a call with `threads` = 0 uses where its work is large enough: OpenMP's number,
/// or 1 where the library was built without OpenMP.
RMSNORM_API int32_t rmsnorm_max_threads(void) RMSNORM_NOEXCEPT;

/// Whether the library was built with OpenMP (1) or not (0).
RMSNORM_API int32_t rmsnorm_has_openmp(void) RMSNORM_NOEXCEPT;

/// The version of Highway the library was built with, such as "1.0.3".
RMSNORM_API const char* rmsnorm_highway_version(void) RMSNORM_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RMSNORM_RMSNORM_H_
