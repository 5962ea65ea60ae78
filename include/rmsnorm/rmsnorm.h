// SPDX-License-Identifier: Apache-2.0
/// @file
/// RMSNorm for CPUs: the C interface.
///
/// A row x of d elements is divided by its root mean square and scaled by a weight:
///
///     y_j = x_j / sqrt(sum_i(x_i^2) / D + eps) * (offset + weight_j)
///
/// D is d unless a divisor is given. The formula is that of Zhang and Sennrich, "Root Mean Square
/// Layer Normalization", 2019, arXiv:1910.07467, equation 4; eps and the offset came with the
/// models that use it. Gradients are its derivatives. Everything is computed in f32 and has the
/// same bits on every CPU, for every number of threads, for every batch around a row and in every
/// rounding mode the caller may have set.
///
/// Conventions that hold for every function here:
/// - Errors: a function that can fail returns a ::rmsnorm_status. It checks its arguments first: on
///   an error nothing has been written, and rmsnorm_error_message() says what was wrong with which
///   argument. A call may return the codes of the views and options it takes, RMSNORM_ERROR_TARGET
///   where it chooses a target, and RMSNORM_ERROR_MEMORY. No pointer may be null unless its
///   description says so.
/// - Thread safety: every function may be called from many threads at once, also on the same
///   module, as long as nobody changes that module's weight or destroys it at the same time. Calls
///   at the same time must not write to memory that another of them uses.
/// - Threads: a call with work enough is spread over threads of OpenMP, or over the parts that the
///   executor in its options gets. Inside an OpenMP parallel region a call without an executor is
///   serial. It is so, too, in a child that was forked after a call in its parent had used OpenMP:
///   those threads stay behind.
/// - The library prints nothing, does not abort, and no C++ exception leaves it. But where GNU's
///   OpenMP cannot start a thread or gets no memory (ulimit -u, ulimit -v), it says so on stderr
///   and ends the process, which the library cannot prevent. A call with one thread or with an
///   executor does not use it.
/// - Units: sizes and strides are counted in elements, never in bytes. eps is in the unit of x
///   squared, or of x where it stands outside the root.
/// - Aliasing: an output shares memory with another argument only where its description says so.
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
  RMSNORM_ERROR_STRUCT_SIZE = 2,  ///< a struct was not made by this header's functions
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
  RMSNORM_ERROR_DIVISOR = 13,        ///< a divisor that is negative or not finite
  RMSNORM_ERROR_THREADS = 14,        ///< a negative number of threads
  RMSNORM_ERROR_TARGET = 15,         ///< a target that is unknown, or that this CPU cannot run
  RMSNORM_ERROR_MEMORY = 16,         ///< out of memory
  RMSNORM_ERROR_FLAGS = 17,          ///< an unknown flag
  RMSNORM_ERROR_DEVICE = 18,         ///< memory of another device (rmsnorm/dlpack.hpp)
  RMSNORM_ERROR_READ_ONLY = 19       ///< an output that may only be read (rmsnorm/dlpack.hpp)
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

/// Element types. Each converts to f32 exactly; results are rounded to nearest even.
typedef int32_t rmsnorm_dtype;
enum {
  RMSNORM_F32 = 1,  ///< IEEE binary32
  RMSNORM_F16 = 2,  ///< IEEE binary16
  RMSNORM_BF16 = 3  ///< bfloat16, the upper half of binary32
};

/// The size of an element in bytes (4 or 2), or 0 for an unknown dtype.
RMSNORM_API size_t rmsnorm_dtype_size(rmsnorm_dtype dtype) RMSNORM_NOEXCEPT;
/// "f32", "f16" or "bf16", or null for an unknown dtype.
RMSNORM_API const char* rmsnorm_dtype_name(rmsnorm_dtype dtype) RMSNORM_NOEXCEPT;

/// The most dimensions a view can have.
#define RMSNORM_MAX_DIMS 5

/// Where a tensor lies in memory. The last dimension is the row of d elements that is normalised
/// and must be contiguous (stride 1); the others may have any stride, so that a slice of a fused
/// buffer or padded rows need no copy. An input may repeat rows (stride 0). The rows of an output
/// are told apart by their strides: each is at least as wide as what the narrower ones span, the
/// row included. The data must be aligned to the element's own size; nothing more is needed. Make
/// views with rmsnorm_rows() or rmsnorm_tensor(), which set `size`.
typedef struct rmsnorm_view {
  uint32_t size;                   ///< sizeof(rmsnorm_view)
  rmsnorm_dtype dtype;             ///< the element type
  void* data;                      ///< the first element; never written where the view is an input
  int32_t ndim;                    ///< number of dimensions, 1 to RMSNORM_MAX_DIMS
  size_t shape[RMSNORM_MAX_DIMS];  ///< elements in each dimension; the last is d
  ptrdiff_t stride[RMSNORM_MAX_DIMS];  ///< elements from one index to the next; the last is 1
} rmsnorm_view;

/// A view of `rows` rows of `d` elements, the rows `row_stride` elements apart (d where they are
/// dense).
static inline rmsnorm_view rmsnorm_rows(const void* data, rmsnorm_dtype dtype, size_t rows,
                                        size_t d, ptrdiff_t row_stride) {
  rmsnorm_view view;
  view.size = (uint32_t)sizeof(rmsnorm_view);
  view.dtype = dtype;
  view.data = (void*)data;
  view.ndim = 2;
  view.shape[0] = rows;
  view.shape[1] = d;
  view.stride[0] = row_stride;
  view.stride[1] = 1;
  return view;
}

/// A view of a tensor with `ndim` dimensions. `stride` may be null for a dense tensor in C order.
/// A wrong `ndim` is kept, and refused by the call that gets the view.
static inline rmsnorm_view rmsnorm_tensor(const void* data, rmsnorm_dtype dtype, int32_t ndim,
                                          const size_t* shape, const ptrdiff_t* stride) {
  rmsnorm_view view;
  ptrdiff_t dense = 1;
  int32_t i;
  view.size = (uint32_t)sizeof(rmsnorm_view);
  view.dtype = dtype;
  view.data = (void*)data;
  view.ndim = ndim;
  for (i = ndim <= RMSNORM_MAX_DIMS ? ndim - 1 : -1; i >= 0; --i) {
    view.shape[i] = shape[i];
    view.stride[i] = stride ? stride[i] : dense;
    dense = (ptrdiff_t)((size_t)dense * shape[i]);
  }
  return view;
}

// ----------------------------------------------------------------------------------- options

/// Where eps is added. Llama, Gemma, T5, Qwen and DeepSeek add it inside the root.
typedef int32_t rmsnorm_eps_placement;
enum {
  RMSNORM_EPS_INSIDE = 0,  ///< x / sqrt(mean(x^2) + eps)
  RMSNORM_EPS_OUTSIDE = 1  ///< x / (sqrt(mean(x^2)) + eps)
};

/// When the normalised value n = x / RMS is rounded to the type of x.
typedef int32_t rmsnorm_rounding;
enum {
  /// y = cast_y(n * w): PyTorch's rms_norm, Gemma, ONNX Runtime's SimplifiedLayerNormalization.
  RMSNORM_SCALE_THEN_CAST = 0,
  /// y = cast_y(cast_x(n) * w): Hugging Face's Llama, T5 and DeepSeek-V3, ONNX RMSNormalization-23.
  RMSNORM_CAST_THEN_SCALE = 1
};

/// What rmsnorm_add_forward() normalises: the sum of residual and x as it is stored, or as it was
/// before.
typedef int32_t rmsnorm_residual_rounding;
enum {
  /// The norm of residual_out: Hugging Face, vLLM.
  RMSNORM_CAST_THEN_NORM = 0,
  /// The norm of the sum in f32: sglang, FlashInfer. The same bits where the residual is f32.
  RMSNORM_NORM_THEN_CAST = 1
};

/// One part of a call's work; the library makes these, an executor runs them.
typedef void (*rmsnorm_task)(void* state, size_t index);

/// The caller's own executor: runs task(state, i) once for each i below `count`, on any threads in
/// any order, and returns when all are done. It must not throw through the library. `context` is
/// rmsnorm_options::parallel_context.
typedef void (*rmsnorm_parallel_for)(void* context, size_t count, rmsnorm_task task, void* state);

/// How to normalise. Start from rmsnorm_default_options() and change what differs.
typedef struct rmsnorm_options {
  uint32_t size;                                ///< sizeof(rmsnorm_options)
  float eps;                                    ///< 1e-5 by default; finite and not negative
  rmsnorm_eps_placement eps_placement;          ///< RMSNORM_EPS_INSIDE by default
  rmsnorm_rounding rounding;                    ///< RMSNORM_SCALE_THEN_CAST by default
  rmsnorm_residual_rounding residual_rounding;  ///< RMSNORM_CAST_THEN_NORM by default
  float weight_offset;  ///< added to the weight in f32: 0 by default, 1 for Gemma; needs a weight
  float divisor;        ///< what the sum of squares is divided by; 0, the default, means float(d)
  /// The most threads of OpenMP for a call, where OpenMP would use as many by itself or the machine
  /// has as many CPUs, and OMP_THREAD_LIMIT allows them; or the most parts that parallel_for gets.
  /// 0: as many as OpenMP would use, or for parallel_for a part for each CPU. 1: serial.
  int32_t threads;
  rmsnorm_parallel_for parallel_for;  ///< runs the parts in OpenMP's stead; null by default
  void* parallel_context;             ///< handed to parallel_for
  const char* target;  ///< see "targets" below; null by default: RMSNORM_TARGET, or the best
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
  options.threads = 0;
  options.parallel_for = NULL;
  options.parallel_context = NULL;
  options.target = NULL;
  return options;
}

// ----------------------------------------------------------------------------------- forward

/// y = RMSNorm(x) * (offset + weight), row by row.
///
/// @param x        input, any shape [..., d]; d at least 1. Zero rows succeed and touch nothing.
/// @param weight   d elements, one dimension, any dtype; or null for none, which has the bits of
///                 ones.
/// @param y        output, the shape of x, any dtype. In place means the same data, strides and
///                 element size as x; otherwise y may share no byte with x, weight or rstd. Views
///                 that interleave (the q and k slices of one buffer) are told apart if their
///                 strides are equal.
/// @param rstd     output, or null: float(1 / RMS) for each row in C order of the leading
///                 dimensions. Its range: a row of |x| below about 1e-38 with eps = 0 has an
///                 inverse RMS above FLT_MAX, given as infinity; y is right all the same.
/// @param options  null for the defaults.
///
/// The inverse RMS is within ((k + 7 + b) / 2 + 4) * 2^-24 of the exact one, relatively, where k is
/// min(d, 4096) / 128 and b is d / 4096 - 1, both rounded up, for a divisor of at least 1.
/// A row that holds NaN or infinity gives what the formula gives in IEEE arithmetic. An all-zero
/// row with eps = 0 gives NaN. Rows whose squares overflow or vanish in f32 are computed in
/// binary64. As offset + weight is a sum, a weight of -0 counts as +0. A weight of more than 4096
/// elements takes scratch of as many floats for the time of the call; a module needs none.
RMSNORM_API rmsnorm_status rmsnorm_forward(const rmsnorm_view* x, const rmsnorm_view* weight,
                                           const rmsnorm_view* y, float* rstd,
                                           const rmsnorm_options* options) RMSNORM_NOEXCEPT;

/// The first phase alone: sums[row] = sum of squares of a row of x, in binary64.
///
///     sums[row] = sum_i(x_i^2)
///
/// It is the f32 sum, widened, unless that is infinite or below 2^-100 times the divisor: then the
/// sum in binary64. Sums of the parts of a sharded row may be added up and given to
/// rmsnorm_scale(). Of the options only divisor, threads, the executor and target matter.
///
/// @param x        as for rmsnorm_forward().
/// @param sums     output, one for each row in C order of the leading dimensions; shares no byte
///                 with x.
/// @param options  null for the defaults.
RMSNORM_API rmsnorm_status rmsnorm_sum_squares(const rmsnorm_view* x, double* sums,
                                               const rmsnorm_options* options) RMSNORM_NOEXCEPT;

/// The second phase alone: as rmsnorm_forward(), with the sums of squares given.
///
///     y_j = x_j / sqrt(sums[row] / D + eps) * (offset + weight_j)
///
/// On whole rows rmsnorm_sum_squares() and rmsnorm_scale() with equal options give the bits of
/// rmsnorm_forward(). For a part of a row give the whole row's sum and its length as divisor.
///
/// @param x        as for rmsnorm_forward().
/// @param sums     input, one for each row in C order of the leading dimensions.
/// @param weight   as for rmsnorm_forward(); may be null.
/// @param y        as for rmsnorm_forward(); shares no byte with sums either.
/// @param rstd     as for rmsnorm_forward(); shares no byte with sums either.
/// @param options  null for the defaults.
RMSNORM_API rmsnorm_status rmsnorm_scale(const rmsnorm_view* x, const double* sums,
                                         const rmsnorm_view* weight, const rmsnorm_view* y,
                                         float* rstd,
                                         const rmsnorm_options* options) RMSNORM_NOEXCEPT;

// ------------------------------------------------------------------------------ residual add

/// The step of a pre-norm block: adds x onto a residual and normalises the result, in one pass over
/// memory.
///
///     h = residual + x                               in f32
///     residual_out = h                               rounded to its type
///     y = RMSNorm(residual_out) * (offset + weight)
///
/// residual_out and y have the bits of a separate addition and rmsnorm_forward() of residual_out;
/// with RMSNORM_NORM_THEN_CAST y has those of rmsnorm_forward() of h as a tensor of f32 (whose
/// cast-then-scale has nothing to round). A sum beyond FLT_MAX is infinite, and one beyond the type
/// of residual_out is stored as infinity.
///
/// @param x             input, any shape [..., d]; left alone unless y is in its place.
/// @param residual      input, the shape of x; f32 or the dtype of x.
/// @param weight        as for rmsnorm_forward(); may be null.
/// @param residual_out  output, the shape of x and the dtype of residual. In place means the same
///                      data and strides as residual; otherwise it may share no byte with another
///                      argument.
/// @param y             output, the shape of x, any dtype; in place of x as for rmsnorm_forward(),
///                      otherwise it may share no byte with another argument.
/// @param rstd          output, or null, as for rmsnorm_forward(): 1 / RMS of what is normalised.
/// @param options       null for the defaults.
///
/// For the gradients give rmsnorm_backward() residual_out as x, and the gradient of residual_out as
/// dx with RMSNORM_ADD_TO_DX: what comes out is the gradient of both residual and x. With
/// RMSNORM_NORM_THEN_CAST give it this call's rstd, too.
/// A row is spread over threads as by rmsnorm_forward(), but for RMSNORM_NORM_THEN_CAST with a
/// residual of 16 bits: there each row is one thread's.
RMSNORM_API rmsnorm_status rmsnorm_add_forward(const rmsnorm_view* x, const rmsnorm_view* residual,
                                               const rmsnorm_view* weight,
                                               const rmsnorm_view* residual_out,
                                               const rmsnorm_view* y, float* rstd,
                                               const rmsnorm_options* options) RMSNORM_NOEXCEPT;

// ---------------------------------------------------------------------------------- backward

/// What rmsnorm_backward() does besides, as bits to be combined. A flag for a gradient that is not
/// computed is no matter.
enum {
  RMSNORM_ADD_TO_DX = 1,  ///< dx is added to what its memory holds
  RMSNORM_ADD_TO_DW = 2   ///< dw is added to what its memory holds
};

/// The gradients of a loss by x and by the weight, from that by y = rmsnorm_forward(x, weight).
///
/// With g = dy * (offset + weight), c = sum_i(g_i * x_i) and r = 1 / RMS, for each row
///
///     dx_j = r * (g_j - x_j * r * c * r / D)          eps inside the root
///     dx_j = r * (g_j - x_j * c * r / (D * s))        eps outside; s = sqrt(sum_i(x_i^2) / D)
///     dw_j = sum over rows of dy_j * x_j * r
///
/// the derivatives of the formula at the head of this file; where s = 0 the second term is 0. They
/// pass through the unrounded values: both rounding orders give the same gradients.
///
/// @param dy       input, the shape of x, any dtype.
/// @param x        input of the forward call, any shape [..., d].
/// @param weight   as in the forward call. Null means a weight of ones, for dw too.
/// @param rstd     what the forward call gave for these rows, used as it is: with eps inside it
///                 spares the sum of squares. Null, and it is computed again, where it was not
///                 kept, or where forward's own may be infinite (see there).
/// @param dx       output, the shape of x and the dtype of dy, or f32 where x is; or null, and it
///                 is not computed. In place means the same data, strides and element size as dy;
///                 otherwise it may share no byte with another argument.
/// @param dw       output, d elements, one dimension, any dtype; or null, and it is not computed;
///                 shares no byte with another argument. Without rows the gradient is zeros.
/// @param flags    RMSNORM_ADD_TO_DX, RMSNORM_ADD_TO_DW, both or 0. A gradient is added in f32,
///                 and the sum rounded once. With dx in place it is dy that dx is added to, as
///                 where a residual stream goes around the norm.
/// @param options  those of the forward call; null for the defaults.
///
/// dw adds up in f32 and is rounded to its dtype at the end; it has the same bits for any number of
/// threads, but not for a batch in pieces. For a row of finite values whose products neither
/// overflow nor vanish, dx is exact up to the rounding of its type and some units of 2^-24 of the
/// larger of r * |g_j| and |x_j| * r^3 * sum_i|g_i * x_i| / D. A row computed in binary64 by the
/// forward call is computed in binary64 here too, and so is dx where f32 cannot hold c.
/// The call takes scratch of up to 65 * d floats and 32 bytes for each row, on the heap where that
/// is more than 32 KiB.
RMSNORM_API rmsnorm_status rmsnorm_backward(const rmsnorm_view* dy, const rmsnorm_view* x,
                                            const rmsnorm_view* weight, const float* rstd,
                                            const rmsnorm_view* dx, const rmsnorm_view* dw,
                                            uint32_t flags,
                                            const rmsnorm_options* options) RMSNORM_NOEXCEPT;

// ------------------------------------------------------------------------------------ module

/// What an engine keeps for each layer: d, dtype, options and the prepared weight. A forward call
/// on it looks up and allocates nothing.
typedef struct rmsnorm_module rmsnorm_module;

/// Makes a module with a weight of d ones. Its target and threads are fixed here.
///
/// @param module   receives the module; destroy it with rmsnorm_module_destroy(). Set to null on an
///                 error.
/// @param d        elements of a row, at least 1.
/// @param dtype    the type in which the weight is kept.
/// @param options  null for the defaults; copied (parallel_context must outlive the module).
RMSNORM_API rmsnorm_status rmsnorm_module_create(rmsnorm_module** module, size_t d,
                                                 rmsnorm_dtype dtype,
                                                 const rmsnorm_options* options) RMSNORM_NOEXCEPT;

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

/// rmsnorm_forward() with the module's weight and options; same shapes, aliasing and errors.
RMSNORM_API rmsnorm_status rmsnorm_module_forward(const rmsnorm_module* module,
                                                  const rmsnorm_view* x, const rmsnorm_view* y,
                                                  float* rstd) RMSNORM_NOEXCEPT;

/// rmsnorm_add_forward() with the module's weight and options; same shapes, aliasing and errors.
RMSNORM_API rmsnorm_status rmsnorm_module_add_forward(
    const rmsnorm_module* module, const rmsnorm_view* x, const rmsnorm_view* residual,
    const rmsnorm_view* residual_out, const rmsnorm_view* y, float* rstd) RMSNORM_NOEXCEPT;

/// rmsnorm_backward() with the module's weight and options; same shapes, aliasing and errors.
RMSNORM_API rmsnorm_status rmsnorm_module_backward(const rmsnorm_module* module,
                                                   const rmsnorm_view* dy, const rmsnorm_view* x,
                                                   const float* rstd, const rmsnorm_view* dx,
                                                   const rmsnorm_view* dw,
                                                   uint32_t flags) RMSNORM_NOEXCEPT;

/// A text such as "RmsNorm(4096, eps=1e-05, bf16)", naming each option that differs from its
/// default. Owned by the module and valid as long as it. Empty for null.
RMSNORM_API const char* rmsnorm_module_describe(const rmsnorm_module* module) RMSNORM_NOEXCEPT;

// ----------------------------------------------------------------------------------- targets
//
// A target is an instruction set the kernels are compiled for. The best one this CPU runs is chosen
// once; the environment variable RMSNORM_TARGET names another for the process,
// rmsnorm_options::target for a call. Names, in any case: "reference", the plain scalar definition,
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
