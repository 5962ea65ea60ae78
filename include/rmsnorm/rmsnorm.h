// SPDX-License-Identifier: Apache-2.0
/// @file
/// RMSNorm for CPUs: the C interface.
///
/// A row x of d elements is divided by its root mean square and scaled by a weight:
///
///     y_j = x_j / sqrt(sum_i(x_i^2) / D + eps) * (offset + weight_j) + bias_j
///
/// D is d unless a divisor is given. The formula is equation 4 of Zhang and Sennrich, "Root Mean
/// Square Layer Normalization", 2019, arXiv:1910.07467; eps, the offset and the bias came with the
/// models that use them. Gradients are its derivatives. Everything is computed in f32 and has the
/// same bits on every CPU, for every number of threads, for every batch around a row and in every
/// rounding mode that the caller may have set.
///
/// A call has operands (views of tensors), options (numbers) and a context (on which threads and
/// with which instructions it runs):
///
///     rmsnorm_forward(&operands, &options, &context);
///
/// rmsnorm_norm() and rmsnorm_add_norm() are short forms of the usual calls.
///
/// Conventions for every function here:
/// - Errors: a function that can fail returns a ::rmsnorm_status. It checks its arguments before it
///   writes anything. After an error rmsnorm_error_message() names the argument, its value and what
///   is possible. No pointer may be null unless its description says so.
/// - Defaults: 0 is the default of every field of options and contexts, except for eps, which is
///   what it says. `{.size = sizeof options, .eps = 1e-6f}` has all other options at their
///   defaults.
/// - Growth: operands, options and contexts begin with their size. A later version may append
///   fields. The library takes a smaller struct of an older version, with the defaults for the
///   fields it lacks, and a larger one if all bytes that this version does not know are zero.
/// - Thread safety: every function may be called from many threads at once, also on the same
///   module, as long as nobody sets what that module holds or destroys it at the same time. Calls
///   at the same time must not write to memory that another of them uses.
/// - Threads: a call with enough work runs on several threads of OpenMP, or hands its parts to the
///   executor in its context. Inside an OpenMP parallel region a call without an executor is
///   serial. So is a call in a child that was forked after its parent had used OpenMP, because the
///   parent's threads do not exist in the child.
/// - Stack: a call needs at most 48 KiB of stack, on every thread it runs on.
/// - The library prints nothing, does not abort, and throws no C++ exception. But GNU's OpenMP ends
///   the process, with a message on stderr, where it cannot start a thread or gets no memory
///   (ulimit -u, ulimit -v). The library cannot prevent this. A call with one thread or with an
///   executor does not use OpenMP.
/// - Units: sizes and strides count elements, never bytes. eps is in the unit of x squared, or of x
///   where it stands outside the root.
/// - Aliasing: y may be in the place of x, residual_out in the place of residual, and dx in the
///   place of dy. "In the place of" means the same data, strides and element size. Otherwise an
///   output shares no byte with another operand. It may lie between the rows of another operand
///   only where both have the same strides in bytes, as the q and k slices of one buffer do.
#ifndef RMSNORM_RMSNORM_H_
#define RMSNORM_RMSNORM_H_

#if defined(__cplusplus) && __cplusplus < 201103L && !defined(_MSVC_LANG)
#error "rmsnorm.h needs C99, or C++11 or later: compile with -std=c++11 or later"
#endif

#include <rmsnorm/version.h>
#include <stddef.h>
#include <stdint.h>

/// @cond
// On Windows a program that uses the DLL may define RMSNORM_DLL, as CMake's package does. Calls
// then save a jump.
#if defined(_WIN32)
#if defined(RMSNORM_EXPORTS)
#define RMSNORM_API __declspec(dllexport)
#elif defined(RMSNORM_DLL)
#define RMSNORM_API __declspec(dllimport)
#else
#define RMSNORM_API
#endif
#elif defined(__GNUC__)
#define RMSNORM_API __attribute__((visibility("default")))
#else
#define RMSNORM_API
#endif

#ifdef __cplusplus
#define RMSNORM_NOEXCEPT noexcept
#define RMSNORM_CAST(type, value) static_cast<type>(value)  // programs may use -Wold-style-cast
extern "C" {
#else
#define RMSNORM_NOEXCEPT
#define RMSNORM_CAST(type, value) ((type)(value))
#endif
/// @endcond

// ------------------------------------------------------------------------------------ status

/// The result of a call: RMSNORM_OK, or the kind of error.
typedef int32_t rmsnorm_status;
enum {
  RMSNORM_OK = 0,
  RMSNORM_ERROR_NULL = 1,         ///< a required pointer is null
  RMSNORM_ERROR_STRUCT_SIZE = 2,  ///< a struct has no known size, or holds unknown fields
  RMSNORM_ERROR_DTYPE = 3,        ///< an element type that the operand cannot have
  RMSNORM_ERROR_SHAPE = 4,        ///< a wrong number of dimensions, d = 0, or shapes that differ
  RMSNORM_ERROR_LAYOUT = 5,       ///< strides, alignment, or more bytes than an address can count
  RMSNORM_ERROR_OVERLAP = 6,      ///< an output shares memory with another argument
  RMSNORM_ERROR_OPTION = 7,       ///< an option or a field of a context has no possible value
  RMSNORM_ERROR_OPERAND = 8,  ///< operands exclude or lack each other, or cannot be what they are
  RMSNORM_ERROR_TARGET = 9,   ///< a target that is unknown, or that this CPU cannot run
  RMSNORM_ERROR_MEMORY = 10,  ///< out of memory
  RMSNORM_ERROR_DEVICE = 11   ///< memory of another device (rmsnorm/dlpack.hpp)
};

/// A constant text for a status, such as "out of memory". Never null.
RMSNORM_API const char* rmsnorm_status_text(rmsnorm_status status) RMSNORM_NOEXCEPT;

/// The error of this thread's last failed call. It begins with the name of the argument, as in
/// "y: 3 dimensions, but x has 2". Empty before the first failure. Valid until the next failing
/// call of the same thread.
RMSNORM_API const char* rmsnorm_error_message(void) RMSNORM_NOEXCEPT;

/// The version of the linked library, such as "0.1.0".
RMSNORM_API const char* rmsnorm_version(void) RMSNORM_NOEXCEPT;

// ------------------------------------------------------------------------------------- views

/// Element types. Each of the first three converts to f32 exactly; results are rounded to nearest
/// even. Only sums of squares have the type f64, and only quantised outputs the type i8.
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

/// Where a tensor lies in memory. The last dimension is the row of d elements and must be
/// contiguous (stride 1). The others may have any stride, so that a slice of a fused buffer or
/// padded rows need no copy. An input may repeat rows (stride 0). The strides of an output must
/// tell its rows apart: each stride is at least as wide as all that the narrower strides span, the
/// row included. The data must be aligned to the size of an element; nothing more is needed. Make
/// views with the functions below, or fill in the struct. Later versions add no fields to it.
typedef struct rmsnorm_view {
  const void* data;                    ///< the first element; written where the view is an output
  rmsnorm_dtype dtype;                 ///< the element type
  int32_t ndim;                        ///< number of dimensions, 1 to RMSNORM_MAX_DIMS
  size_t shape[RMSNORM_MAX_DIMS];      ///< elements in each dimension; the last is d
  ptrdiff_t stride[RMSNORM_MAX_DIMS];  ///< elements from one index to the next; the last is 1
} rmsnorm_view;

/// @cond
// The ndim of an empty view of rmsnorm.hpp, and of views that it could not make, which a call
// refuses: shape[0] dimensions but shape[1] strides, stride[0] elements in dimension shape[0], or
// shape[0] dimensions, which is a negative number where stride[0] is not 0.
enum {
  RMSNORM_VIEW_ABSENT = -1000,
  RMSNORM_VIEW_WRONG_STRIDES = -1001,
  RMSNORM_VIEW_NEGATIVE_SIZE = -1002,
  RMSNORM_VIEW_WRONG_NDIM = -1003
};
/// @endcond

/// A view of `rows` rows of `d` elements, the rows `row_stride` elements apart (d where they are
/// dense).
static inline rmsnorm_view rmsnorm_rows(const void* data, rmsnorm_dtype dtype, size_t rows,
                                        size_t d, ptrdiff_t row_stride) {
  rmsnorm_view view;
  view.data = data;
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
  view.data = data;
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
  view.data = data;
  view.dtype = dtype;
  view.ndim = ndim;
  for (i = 0 < ndim && ndim <= RMSNORM_MAX_DIMS ? ndim - 1 : -1; i >= 0; --i) {
    view.shape[i] = shape[i];
    view.stride[i] = stride ? stride[i] : dense;
    dense = RMSNORM_CAST(ptrdiff_t, RMSNORM_CAST(size_t, dense) * shape[i]);
  }
  return view;
}

/// Merges dimensions of tensors that one call uses together, for tensors with more dimensions than a
/// view can have. Two neighbours become one if the outer one continues the inner one in every
/// tensor and size_t holds their size. Dimensions of size 1 are dropped. Leave out the last
/// dimension, the row. Both arrays are changed in place.
///
/// @param ndim     dimensions of all tensors; may be 0.
/// @param shape    the size of each dimension.
/// @param stride   for each tensor, the stride of each dimension; 0 where the tensor repeats.
/// @param tensors  how many there are.
/// @return the number of dimensions that are left.
RMSNORM_API int32_t rmsnorm_merge_dims(int32_t ndim, size_t* shape, ptrdiff_t* const* stride,
                                       size_t tensors) RMSNORM_NOEXCEPT;

// ---------------------------------------------------------------------------------- operands

/// Bits of rmsnorm_operands::add_to: the gradient is added to the values in its memory. Bits for
/// absent gradients are ignored.
enum {
  RMSNORM_ADD_TO_DX = 1,  ///< dx
  RMSNORM_ADD_TO_DW = 2,  ///< dw
  RMSNORM_ADD_TO_DB = 4   ///< db
};

/// The tensors of a call, inputs first; a null pointer is an absent operand. Start from
/// rmsnorm_no_operands(), or from a struct of zeros with its size.
///
/// x has any shape [..., d] with d at least 1. Zero rows succeed. The shapes of the others:
///
///     rows      residual, dy, gate, residual_out, y, q, dx: the shape of x
///     columns   weight, bias, post_norm_weight, dw, db: [d], or with leading dimensions, aligned
///               with x from the right; each equals the dimension of x, or is 1 where all rows of x
///               along it share one row of the weight
///     pairs     cos, sin: [R / 2] with R at most d, and leading dimensions as columns have them
///     per row   rstd, sums, sums_out, scale, zero: the leading dimensions of x, or one element
///               where x has one dimension; with a group, scale and zero are [..., d / group]
///
/// Which operands go together:
///
///     operand            forward    backward   needs      excludes
///     x                  required   required
///     residual           input      -                     sums
///     dy                 -          required
///     gate               input      -
///     weight             input      input
///     bias               input      -
///     post_norm_weight   input      -                     sums
///     cos                input      input      y, sin     residual, gate, q; d above 4096
///     sin                input      input      cos
///     sums               input      -                     residual, post_norm_weight
///     residual_out       output     -          residual
///     y                  output     -
///     q                  output     -          scale
///     rstd               output     input
///     sums_out           output     -
///     scale              output     -          q
///     zero               output     -          q
///     dx, dw, db         -          output
///
/// A call needs at least one output. A weight_offset needs a weight or a post_norm_weight where y,
/// q, dx or dw is given. In forward, an activation, gate_placement or gate_rounding other than the
/// default needs a gate, and a residual_factor a residual. A group needs q where y is given. The
/// rotary options need cos and sin.
///
/// The types are f32, f16 or bf16 in any combination, with these exceptions: rstd and scale are
/// f32, sums and sums_out are f64, q and zero are i8, and residual_out has the type of residual.
typedef struct rmsnorm_operands {
  uint32_t size;                         ///< sizeof(rmsnorm_operands)
  uint32_t add_to;                       ///< RMSNORM_ADD_TO_DX and the like, or 0
  const rmsnorm_view* x;                 ///< input: the rows
  const rmsnorm_view* residual;          ///< input: x is added to it before the norm
  const rmsnorm_view* dy;                ///< input: the gradient of the loss by y
  const rmsnorm_view* gate;              ///< input: an activation of it multiplies x or the norm
  const rmsnorm_view* weight;            ///< input; absent, it has the bits of ones
  const rmsnorm_view* bias;              ///< input: added after the weight
  const rmsnorm_view* post_norm_weight;  ///< input: x is first normalised, by this weight
  const rmsnorm_view* cos;               ///< input: cosines by which pairs of the norm are rotated
  const rmsnorm_view* sin;               ///< input: the sines
  const rmsnorm_view* sums;              ///< input: sums of squares that replace the sums of x
  const rmsnorm_view* residual_out;      ///< output: residual + x; may be in the place of residual
  const rmsnorm_view* y;                 ///< output: the norm; may be in the place of x
  const rmsnorm_view* q;                 ///< output: the norm, quantised
  const rmsnorm_view* rstd;              ///< 1 / RMS: forward's output, and backward's input
  const rmsnorm_view* sums_out;          ///< output: the sums of squares of the input of the norm
  const rmsnorm_view* scale;             ///< output: the step from one integer of q to the next
  const rmsnorm_view* zero;              ///< output: the integer of q that stands for 0
  const rmsnorm_view* dx;                ///< output: the gradient by x; may be in the place of dy
  const rmsnorm_view* dw;                ///< output: the gradient by the weight, in its shape
  const rmsnorm_view* db;                ///< output: the gradient by the bias
} rmsnorm_operands;

/// No operand, and nothing to add to.
static inline rmsnorm_operands rmsnorm_no_operands(void) {
#ifdef __cplusplus
  rmsnorm_operands operands = {};
#else
  rmsnorm_operands operands = {0};
#endif
  operands.size = RMSNORM_CAST(uint32_t, sizeof operands);
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
  RMSNORM_ROUND_AFTER_WEIGHT = 0,
  /// y = cast_y(cast_x(n) * w): Hugging Face's Llama, T5 and DeepSeek-V3, ONNX RMSNormalization-23.
  RMSNORM_ROUND_BEFORE_WEIGHT = 1,
  /// The same with n = x * cast_x(1 / RMS): DeepSeek-V4.
  RMSNORM_ROUND_INVERSE = 2
};

/// The input of the norm where there is a residual: h = residual + x rounded to the type of
/// residual, or not.
typedef int32_t rmsnorm_residual_rounding;
enum {
  /// The norm of residual_out: Hugging Face, vLLM on GPUs. "The type of x" in the rounding orders
  /// is then the type of residual.
  RMSNORM_RESIDUAL_ROUNDED = 0,
  /// The norm of the sum in f32: sglang, FlashInfer. "The type of x" is the type of x itself.
  RMSNORM_RESIDUAL_UNROUNDED = 1
};

/// The function act of an element z of the gate.
typedef int32_t rmsnorm_activation;
enum {
  RMSNORM_ACTIVATION_SILU = 0,     ///< z / (1 + exp(-z))
  RMSNORM_ACTIVATION_SIGMOID = 1,  ///< 1 / (1 + exp(-z))
  RMSNORM_ACTIVATION_NONE = 2      ///< z itself: diffusion transformers
};

/// Whether the gate multiplies the output of the norm or its input.
typedef int32_t rmsnorm_gate_placement;
enum {
  RMSNORM_GATE_AFTER = 0,  ///< the norm, with weight and bias: Qwen3-Next, Kimi-Linear
  RMSNORM_GATE_BEFORE = 1  ///< x, before a residual is added: Mamba-2, diffusion transformers
};

/// What is rounded to the type of x: with a gate after the norm, the norm before the gate multiplies
/// it; with a gate before the norm, the product.
typedef int32_t rmsnorm_gate_rounding;
enum {
  RMSNORM_GATE_UNROUNDED = 0,  ///< m * act(z), x * act(z): Kimi-Linear, Mamba-2
  RMSNORM_GATE_ROUNDED = 1     ///< cast_x(m) * act(z), cast_x(x * act(z)): Qwen3-Next, diffusers
};

/// Which elements of the rotated part of a row, of R elements, are a pair.
typedef int32_t rmsnorm_rotary_pairs;
enum {
  RMSNORM_ROTARY_HALVES = 0,     ///< i and i + R / 2: GPT-NeoX, Llama, Qwen, Gemma
  RMSNORM_ROTARY_NEIGHBOURS = 1  ///< 2 i and 2 i + 1: GPT-J, Cohere, GLM
};

/// Where the rotated part of a row lies, if it is not the whole row.
typedef int32_t rmsnorm_rotary_part;
enum {
  RMSNORM_ROTARY_START = 0,  ///< the first R elements: GPT-NeoX, Phi
  RMSNORM_ROTARY_END = 1     ///< the last R elements: DeepSeek-V4
};

/// What is rounded to the type of y on the way from m, the norm with weight and bias, to y.
typedef int32_t rmsnorm_rotary_rounding;
enum {
  /// m, cos, sin, each product and each sum: transformers' Llama, Qwen 3, Gemma 3 and GLM 4.5.
  RMSNORM_ROTARY_ROUND_EACH = 0,
  /// m, and the result: a norm followed by a kernel for rotations, as in vLLM and sglang.
  RMSNORM_ROTARY_ROUND_NORM = 1,
  /// The result alone: fused kernels of GPUs.
  RMSNORM_ROTARY_ROUND_NONE = 2
};

/// How to normalise. 0 is the default of every field but eps. Start from rmsnorm_default_options(),
/// or from a struct of zeros with its size and eps.
typedef struct rmsnorm_options {
  uint32_t size;                                ///< sizeof(rmsnorm_options)
  float eps;                                    ///< finite and not negative
  rmsnorm_eps_placement eps_placement;          ///< RMSNORM_EPS_INSIDE by default
  rmsnorm_rounding rounding;                    ///< RMSNORM_ROUND_AFTER_WEIGHT by default
  rmsnorm_residual_rounding residual_rounding;  ///< RMSNORM_RESIDUAL_ROUNDED by default
  float weight_offset;  ///< added to the weight in f32: 1 for Gemma; finite; needs a weight
  float divisor;        ///< divides the sum of squares; 2^-126 to 2^126; 0 means d
  float factor;         ///< x is first multiplied by this; finite; 0 means 1, which leaves x alone
  rmsnorm_activation activation;          ///< RMSNORM_ACTIVATION_SILU by default
  rmsnorm_gate_placement gate_placement;  ///< RMSNORM_GATE_AFTER by default
  rmsnorm_gate_rounding gate_rounding;    ///< RMSNORM_GATE_UNROUNDED by default
  int32_t group;  ///< elements of q with a separate scale: a power of two from 8 to 4096 that
                  ///< divides d; 0 means d; needs q
  float residual_factor;  ///< multiplies residual + x; finite; 0 means 1; needs a residual
  rmsnorm_rotary_pairs rotary_pairs;        ///< RMSNORM_ROTARY_HALVES by default; needs cos and sin
  rmsnorm_rotary_part rotary_part;          ///< RMSNORM_ROTARY_START by default
  rmsnorm_rotary_rounding rotary_rounding;  ///< RMSNORM_ROTARY_ROUND_EACH by default
} rmsnorm_options;

/// An eps of 1e-5, and 0 for everything else. These are the options of a call that gets none.
RMSNORM_API rmsnorm_options rmsnorm_default_options(void) RMSNORM_NOEXCEPT;

// ----------------------------------------------------------------------------------- context

/// One part of a call's work; the library makes these, an executor runs them.
typedef void (*rmsnorm_task)(void* state, size_t index);

/// The caller's own executor: runs task(state, i) once for each i below `count`, on any threads in
/// any order, and returns when all are done. It must not throw through the library. `context` is
/// rmsnorm_context::parallel_context.
typedef void (*rmsnorm_parallel_for)(void* context, size_t count, rmsnorm_task task, void* state);

/// Whether y or dx passes through the caches. Where it replaces an input, or is added to, it does.
typedef int32_t rmsnorm_stores;
enum {
  RMSNORM_STORES_BY_SIZE = 0,   ///< past the caches for a y or dx of 64 MiB and more, in rows of at
                                ///< least 4 KiB; each output of a call by its own size
  RMSNORM_STORES_STREAMED = 1,  ///< past the caches, for a large result that is not read soon
  RMSNORM_STORES_CACHED = 2     ///< through the caches, for a caller who reads the result next
};

/// Where and how a call runs. Nothing here changes a bit of a result. 0 is the default of every field.
/// Start from rmsnorm_default_context(), or from a struct of zeros with its size.
typedef struct rmsnorm_context {
  uint32_t size;  ///< sizeof(rmsnorm_context)
  /// 1: serial. 0: as many threads as OpenMP would use, or for parallel_for a part for each CPU.
  /// Larger: the most threads of OpenMP, within OMP_THREAD_LIMIT and the larger of OpenMP's own
  /// number and the number of CPUs; or the most parts for parallel_for.
  int32_t threads;
  rmsnorm_parallel_for parallel_for;  ///< runs the parts instead of OpenMP; null by default
  void* parallel_context;             ///< handed to parallel_for
  const char* target;     ///< see "targets" below; null by default: RMSNORM_TARGET, or the best
  rmsnorm_stores stores;  ///< RMSNORM_STORES_BY_SIZE by default
  int32_t reserved;       ///< 0, for later versions
} rmsnorm_context;

/// The size, and 0 for everything else.
RMSNORM_API rmsnorm_context rmsnorm_default_context(void) RMSNORM_NOEXCEPT;

// ----------------------------------------------------------------------------------- forward

/// y = RMSNorm(x) * (offset + weight) + bias, row by row. rmsnorm_operands says which operands the
/// call takes, and which go together.
///
/// With a residual the call is the step of a pre-norm block, in one pass over memory:
///
///     h = residual + x               in f32
///     residual_out = h               rounded to the type of residual
///     y = RMSNorm(residual_out)      or of h with RMSNORM_RESIDUAL_UNROUNDED
///
/// With a residual_factor, h is residual + x, rounded to the type of residual, times the factor.
/// With RMSNORM_RESIDUAL_UNROUNDED it is the same without the first rounding.
///
/// A sum beyond FLT_MAX is infinite, and a sum beyond the type of residual is stored as infinity.
/// Where residual_out is the only output, the call is the addition alone.
///
/// Before that, these steps replace x, in this order, each with the bits of a separate call:
///
///     x = cast_x(RMSNorm(x) * (offset + post_norm_weight))     with the options of the call
///     x = cast_x(factor * x)
///     x = x * act(gate)              in f32, or cast_x of it with RMSNORM_GATE_ROUNDED; with
///                                    RMSNORM_GATE_BEFORE
///
/// A gate after the norm multiplies m, the value that would otherwise be rounded to the type of y:
///
///     y = m * act(gate)              m rounded to the type of x with RMSNORM_GATE_ROUNDED
///
/// The activations are within 2 units in the last place, and have the same bits on every target.
/// Where residual_out is the input of the norm, its type replaces the type of x.
///
/// q quantises v. v is y; without y it is the same output, rounded to the type of x. For each row,
/// or each group of `group` elements of a row, with a = max|v|, lo = min(0, min v) and
/// hi = max(0, max v):
///
///     scale = a / 127,          q = rint(v * (127 / a))                   without zero
///     scale = (hi - lo) / 255,  q = rint(v * (255 / (hi - lo))) + zero    with it
///     zero = rint(-128 - lo * (255 / (hi - lo)))
///
/// q and zero are clamped to [-128, 127]. Where a (or, with zero, hi - lo) is below 2^-100, scale,
/// zero and q are 0. Where v holds NaN or infinity, or hi - lo is infinite, scale is NaN, and zero
/// and q are 0.
///
/// With cos and sin, y is m with its pairs (a, b) of elements rotated. Pair i takes element i of a
/// row of the tables:
///
///     y_a = m_a * cos_i - m_b * sin_i
///     y_b = m_b * cos_i + m_a * sin_i
///
/// These are rotary positions (Su et al., "RoFormer", 2021, arXiv:2104.09864). The rotated part has
/// R elements, twice as many as a row of cos; others are m. Each product and each sum is rounded to
/// f32, and by default to the type of y, as m and the tables are (rmsnorm_rotary_rounding).
///
/// The two phases of a norm are a call with sums_out, and a call with sums. Sums of the parts of a
/// sharded row may be added up in between: then give the whole row's length as divisor. A sum of
/// squares is the f32 sum, widened. Where that is infinite or below 2^-100 times the divisor, it is
/// the sum in binary64. On whole rows the two calls with equal options give the bits of one call,
/// unless f32 holds some but not all of the sum, sum / divisor and sum / divisor + eps (the sum as
/// above, the others finite and at least 2^-100). Then they may differ in the last place.
///
/// @param operands  see rmsnorm_operands.
/// @param options   null for the defaults.
/// @param context   null for the default one.
///
/// rstd is float(1 / RMS). A row of |x| below about 1e-38 with eps = 0 has an inverse RMS above
/// FLT_MAX, given as infinity; y is right all the same. The inverse RMS is within
/// ((k + 7 + b) / 2 + 4) * 2^-24 of the exact one, relatively, where k is min(d, 4096) / 128 and b
/// is d / 4096 - 1, both rounded up, for a divisor of at least 1.
/// A row that holds NaN or infinity gives the result of the formula in IEEE arithmetic. An all-zero
/// row with eps = 0 gives NaN. Rows whose squares overflow or vanish in f32 are computed in
/// binary64. As offset + weight is a sum, a weight of -0 counts as +0. Where weight and bias
/// together have more than 4096 elements, the call allocates that many floats; what a module holds
/// needs none.
RMSNORM_API rmsnorm_status rmsnorm_forward(const rmsnorm_operands* operands,
                                           const rmsnorm_options* options,
                                           const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// y = RMSNorm(x) * (offset + weight), with the default context. `weight` and `options` may be
/// null. See rmsnorm_forward().
RMSNORM_API rmsnorm_status rmsnorm_norm(const rmsnorm_view* x, const rmsnorm_view* weight,
                                        const rmsnorm_view* y,
                                        const rmsnorm_options* options) RMSNORM_NOEXCEPT;

/// residual_out = residual + x, y = RMSNorm(residual_out) * (offset + weight), with the default
/// context. `weight` and `options` may be null. See rmsnorm_forward().
RMSNORM_API rmsnorm_status rmsnorm_add_norm(const rmsnorm_view* x, const rmsnorm_view* residual,
                                            const rmsnorm_view* weight,
                                            const rmsnorm_view* residual_out, const rmsnorm_view* y,
                                            const rmsnorm_options* options) RMSNORM_NOEXCEPT;

typedef struct rmsnorm_module rmsnorm_module;

/// One of the calls of rmsnorm_forward_all(). Calls lie in an array, so this struct will not grow.
typedef struct rmsnorm_call {
  const rmsnorm_module* module;      ///< as in rmsnorm_module_forward(), or null
  const rmsnorm_operands* operands;  ///< as in rmsnorm_forward()
  const rmsnorm_options* options;    ///< null for the defaults, and where there is a module
} rmsnorm_call;

/// Several norms in one parallel region, each with separate operands and options: q and k slices of
/// a fused buffer, or the two norms of multi-head latent attention. The results are the same as
/// from rmsnorm_forward() for each. An output of one call shares no byte with an operand of
/// another. A message about operand y of the second call begins with "calls[1].y". Where several
/// pairs of calls overlap, it names the first call that overlaps an earlier one.
///
/// @param calls    `count` calls.
/// @param count    may be 0.
/// @param context  null for the default one; the contexts of modules are not used.
RMSNORM_API rmsnorm_status rmsnorm_forward_all(const rmsnorm_call* calls, size_t count,
                                               const rmsnorm_context* context) RMSNORM_NOEXCEPT;

// ---------------------------------------------------------------------------------- prepared calls

/// One or several calls that are checked and planned once and run many times on the same memory, as
/// in an engine that decodes into fixed buffers, or in the layers of a training step.
typedef struct rmsnorm_prepared rmsnorm_prepared;

/// Checks and plans calls as rmsnorm_forward_all() takes them. rmsnorm_run() makes them. A message
/// about a single call is the message of rmsnorm_forward() or rmsnorm_module_forward().
///
/// A run reads and writes what lies in the memory of the operands at that time: values may change
/// between runs, addresses, shapes, strides and types may not. The memory and the modules must
/// outlive the prepared call; the structs, views and options need not. A module's weight, bias and
/// post-norm weight may be set again, and runs use the new values. Adding or removing one later makes
/// no difference.
///
/// @param prepared  receives the prepared call, or null where an error is returned.
/// @param calls     `count` calls.
/// @param count     may be 0.
/// @param context   null for the default one or, in a single call by a module, for the module's.
///                  An executor must outlive the prepared call.
RMSNORM_API rmsnorm_status rmsnorm_prepare(rmsnorm_prepared** prepared, const rmsnorm_call* calls,
                                           size_t count,
                                           const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// The same for a call of rmsnorm_backward().
RMSNORM_API rmsnorm_status
rmsnorm_prepare_backward(rmsnorm_prepared** prepared, const rmsnorm_call* call,
                         const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// Makes the call. It has the bits of the function that the call was prepared for, and allocates
/// nothing. One thread at a time may run a prepared call. Fails only where `prepared` is null.
RMSNORM_API rmsnorm_status rmsnorm_run(rmsnorm_prepared* prepared) RMSNORM_NOEXCEPT;

/// Null is allowed.
RMSNORM_API void rmsnorm_prepared_destroy(rmsnorm_prepared* prepared) RMSNORM_NOEXCEPT;

// ---------------------------------------------------------------------------------- backward

/// The gradients of a loss by x, by the weight and by the bias, from dy, the gradient by y.
///
/// At least one of dx, dw and db is needed. db alone needs x for its shape. A factor other than 1
/// is refused, and so are the gate's options. A residual_factor multiplies dx, after the addition
/// to existing values.
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
/// rstd is the output of the forward call for these rows, used unchanged: with eps inside it saves
/// the sum of squares. Leave it out where it was not kept, or where it may be infinite (see
/// rmsnorm_forward()); then backward computes it again.
///
/// For the gradients of a call with a residual give residual_out as x, and the gradient of
/// residual_out as dx with RMSNORM_ADD_TO_DX: the result is the gradient of both residual and x.
/// With RMSNORM_RESIDUAL_UNROUNDED give the call's rstd as well.
///
/// With cos and sin, dy is first rotated back, in f32. For each pair the rotated gradient is
///
///     dy_a * cos_i + dy_b * sin_i    for element a
///     dy_b * cos_i - dy_a * sin_i    for element b
///
/// RMSNORM_ADD_TO_DX and the like add in f32, and round the sum once. With dx in the place of dy,
/// dx is added to dy, as where a residual stream goes around the norm. Without rows dw and db are
/// zeros.
///
/// @param operands  see rmsnorm_operands.
/// @param options   the options of the forward call; null for the defaults.
/// @param context   null for the default one.
///
/// dw and db add up in f32 and are rounded to their types at the end; they have the same bits for
/// any number of threads, but not for a batch in pieces. For a row of finite values whose products
/// neither overflow nor vanish, dx is exact up to the rounding of its type and some units of 2^-24
/// of the larger of r * |g_j| and |x_j| * r^3 * sum_i|g_i * x_i| / D. A row computed in binary64 by
/// the forward call is computed in binary64 here too. So is dx alone where f32 cannot hold
/// c * r / D, or c * r / (D * s) with eps outside, or c where dx_j = r * g_j.
/// The call takes scratch: the weight in f32, and up to 64 * d floats for each row of dw and of db.
/// Beyond 16 KiB the scratch is on the heap.
RMSNORM_API rmsnorm_status rmsnorm_backward(const rmsnorm_operands* operands,
                                            const rmsnorm_options* options,
                                            const rmsnorm_context* context) RMSNORM_NOEXCEPT;

// ------------------------------------------------------------------------------------ module

/// @struct rmsnorm_module
/// An engine keeps one for each norm. It holds d, the dtype, the options, a context and the weight,
/// and a bias and a post-norm weight if they were set, all of them prepared. A forward call that
/// brings no other weight or bias looks up, converts and allocates nothing.

/// Makes a module with a weight of d ones.
///
/// @param module   receives the module; destroy it with rmsnorm_module_destroy(). Set to null on an
///                 error.
/// @param d        elements of a row, at least 1.
/// @param dtype    the type in which the weight is kept, and to which a bias and a post-norm weight
///                 are rounded.
/// @param options  null for the defaults; copied.
/// @param context  for calls without a context, null for the default one; copied (its
///                 parallel_context must outlive the module).
RMSNORM_API rmsnorm_status rmsnorm_module_create(rmsnorm_module** module, size_t d,
                                                 rmsnorm_dtype dtype,
                                                 const rmsnorm_options* options,
                                                 const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// Frees a module; null is allowed. No other thread may be using it.
RMSNORM_API void rmsnorm_module_destroy(rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// Sets the weight from d elements in one dimension, of any dtype, rounded to the module's dtype.
/// No other thread may be using the module.
RMSNORM_API rmsnorm_status rmsnorm_module_set_weight(rmsnorm_module* module,
                                                     const rmsnorm_view* weight) RMSNORM_NOEXCEPT;

/// Writes the weight to d elements in one dimension, of any dtype; exact where that dtype is f32 or
/// the module's.
RMSNORM_API rmsnorm_status rmsnorm_module_get_weight(const rmsnorm_module* module,
                                                     const rmsnorm_view* weight) RMSNORM_NOEXCEPT;

/// Sets a bias from d elements in one dimension, of any dtype, rounded to the module's dtype; null
/// removes it. Every forward call adds it after the weight, as the operand `bias` does, and refuses
/// that operand. Backward ignores it, as dx and dw do not depend on a bias. No other thread may be
/// using the module. If there is no memory for it, the call fails with RMSNORM_ERROR_MEMORY and
/// changes nothing.
RMSNORM_API rmsnorm_status rmsnorm_module_set_bias(rmsnorm_module* module,
                                                   const rmsnorm_view* bias) RMSNORM_NOEXCEPT;

/// Sets a post-norm weight in the same way; null removes it. Every forward call first normalises x
/// by it, as the operand `post_norm_weight` does, and refuses that operand and `sums`. Backward
/// refuses such a module.
RMSNORM_API rmsnorm_status rmsnorm_module_set_post_norm_weight(
    rmsnorm_module* module, const rmsnorm_view* post_norm_weight) RMSNORM_NOEXCEPT;

/// Sets the weight, and nothing else, to ones. No other thread may be using the module.
RMSNORM_API rmsnorm_status rmsnorm_module_reset_weight(rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// The elements of a row. 0 for null.
RMSNORM_API size_t rmsnorm_module_d(const rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// The type in which the weight is kept. 0 for null.
RMSNORM_API rmsnorm_dtype rmsnorm_module_dtype(const rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// The options, owned by the module and valid as long as it. Null for null.
RMSNORM_API const rmsnorm_options* rmsnorm_module_options(const rmsnorm_module* module)
    RMSNORM_NOEXCEPT;

/// A text such as "RmsNorm(4096, eps=1e-05, bf16)", which names each option that differs from its
/// default. Owned by the module and valid as long as it. Empty for null.
RMSNORM_API const char* rmsnorm_module_describe(const rmsnorm_module* module) RMSNORM_NOEXCEPT;

/// rmsnorm_forward() with the module's options, weight, bias and post-norm weight. The operands
/// bring none of the three that the module holds. `context` may be null for the module's context.
RMSNORM_API rmsnorm_status rmsnorm_module_forward(const rmsnorm_module* module,
                                                  const rmsnorm_operands* operands,
                                                  const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// rmsnorm_backward() with the module's weight and options, and without a weight among the
/// operands. `context` may be null for the module's context.
RMSNORM_API rmsnorm_status rmsnorm_module_backward(const rmsnorm_module* module,
                                                   const rmsnorm_operands* operands,
                                                   const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// y = RMSNorm(x) * (offset + weight) + bias for dense rows by pointer, for the step of an engine
/// that decodes one token: beside its arithmetic a call of one short row takes a few nanoseconds. A
/// module with a post-norm weight first normalises x by it. y may be x. Zero rows succeed, also with
/// null pointers.
///
/// @param module   the module.
/// @param dtype    the type of x and y.
/// @param rows     the number of rows.
/// @param x        input, rows * d elements.
/// @param y        output, rows * d elements: x itself, or apart from all others.
/// @param rstd     output, one f32 for each row: 1 / RMS; or null.
/// @param context  null for the module's context.
RMSNORM_API rmsnorm_status rmsnorm_module_norm_rows(
    const rmsnorm_module* module, rmsnorm_dtype dtype, size_t rows, const void* x, void* y,
    float* rstd, const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// residual_out = residual + x, y = RMSNorm(residual_out) * (offset + weight) + bias for dense rows
/// by pointer. A module with a post-norm weight adds a norm of x in place of x:
///
///     residual_out = residual + RMSNorm(x) * (offset + post_norm_weight)
///     y            = RMSNorm(residual_out) * (offset + weight) + bias
///
/// This is the boundary between two parts of a layer in Gemma 2, 3 and 4 and in GLM 4. In OLMo 2 it
/// is the last one, where y is the model's norm.
///
/// residual_out may be residual, and y may be x. Zero rows succeed, also with null pointers.
///
/// @param module          the module.
/// @param dtype           the type of x and y.
/// @param residual_dtype  the type of residual and residual_out.
/// @param rows            the number of rows.
/// @param x               input, rows * d elements.
/// @param residual        input, rows * d elements.
/// @param residual_out    output, rows * d elements: residual itself, or apart from all others.
/// @param y               output, rows * d elements: x itself, or apart from all others.
/// @param rstd            output, one f32 for each row: 1 / RMS; or null.
/// @param context         null for the module's context.
RMSNORM_API rmsnorm_status rmsnorm_module_add_norm_rows(
    const rmsnorm_module* module, rmsnorm_dtype dtype, rmsnorm_dtype residual_dtype, size_t rows,
    const void* x, const void* residual, void* residual_out, void* y, float* rstd,
    const rmsnorm_context* context) RMSNORM_NOEXCEPT;

/// rmsnorm_module_backward() for dense rows by pointer. dx may be dy. Zero rows succeed, also with
/// null pointers, and set dw to zeros.
///
/// @param module   the module.
/// @param dtype    the type of dy, x and dx.
/// @param rows     the number of rows.
/// @param dy       input, rows * d elements.
/// @param x        input, rows * d elements.
/// @param rstd     input, one f32 for each row, or null.
/// @param dx       output, rows * d elements: dy itself, or apart from all others; or null.
/// @param dw       output, d elements of f32, whatever the type of x; or null.
/// @param context  null for the module's context.
RMSNORM_API rmsnorm_status rmsnorm_module_backward_rows(
    const rmsnorm_module* module, rmsnorm_dtype dtype, size_t rows, const void* dy, const void* x,
    const float* rstd, void* dx, float* dw, const rmsnorm_context* context) RMSNORM_NOEXCEPT;

// ----------------------------------------------------------------------------------- targets
//
// A target is an instruction set the kernels are compiled for. The library chooses the best one for
// this CPU once. The environment variable RMSNORM_TARGET names another for the process, and
// rmsnorm_context::target for a call. Names, in any case: "reference", the plain scalar definition,
// which every CPU runs; "AVX2", "AVX512" and "NEON", the best flavour of each; or an exact name
// such as "AVX3_DL". Every target gives the same bits. A call fails if its target is unknown or
// does not run on this CPU.

/// The name of the index-th target compiled into the library, best first, "reference" last; null
/// beyond.
RMSNORM_API const char* rmsnorm_target_name(size_t index) RMSNORM_NOEXCEPT;

/// Finds the target that `name` selects on this CPU (null: the one a call without a target uses)
/// and gives its exact name, which lives as long as the process. RMSNORM_ERROR_TARGET where there
/// is none.
RMSNORM_API rmsnorm_status rmsnorm_find_target(const char* name,
                                               const char** exact_name) RMSNORM_NOEXCEPT;

/// How many threads a call with `threads` = 0 uses where its work is large enough: OpenMP's number,
/// or 1 where the library was built without OpenMP. A control group's quota of CPU
/// time limits OpenMP's default, the number of CPUs, unless OMP_NUM_THREADS names the same number.
RMSNORM_API int32_t rmsnorm_max_threads(void) RMSNORM_NOEXCEPT;

/// Whether the library was built with OpenMP (1) or not (0).
RMSNORM_API int32_t rmsnorm_has_openmp(void) RMSNORM_NOEXCEPT;

/// The version of Highway the library was built with, such as "1.0.3", or "none" on a CPU for which
/// there are no kernels.
RMSNORM_API const char* rmsnorm_highway_version(void) RMSNORM_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RMSNORM_RMSNORM_H_
