// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "rows.h"

namespace rmsnorm::internal {
namespace {

constexpr int kMaxOuter = RMSNORM_MAX_DIMS - 1;

// One dimension over rows: how many, and how many bytes from one to the next.
struct Step {
  size_t count;
  ptrdiff_t bytes;
};

// The dimensions over rows that have more than one index, widest step first.
struct Steps {
  int size = 0;
  Step step[kMaxOuter];
};

Steps WidestFirst(const rmsnorm_view& view) {
  const ptrdiff_t element = static_cast<ptrdiff_t>(ElementSize(view.dtype));
  Steps steps;
  for (int i = 0; i + 1 < view.ndim; ++i) {
    if (view.shape[i] == 1) continue;
    const Step step = {view.shape[i], view.stride[i] * element};
    int at = steps.size++;
    for (; at > 0 && std::abs(steps.step[at - 1].bytes) < std::abs(step.bytes); --at) {
      steps.step[at] = steps.step[at - 1];
    }
    steps.step[at] = step;
  }
  return steps;
}

size_t RowBytes(const rmsnorm_view& view) {
  return view.shape[view.ndim - 1] * ElementSize(view.dtype);
}

// The bytes spanned by the steps from `first` on over rows of `row_bytes`.
ptrdiff_t SpanFrom(const Steps& steps, int first, size_t row_bytes) {
  ptrdiff_t span = static_cast<ptrdiff_t>(row_bytes);
  for (int i = first; i < steps.size; ++i) {
    span += std::abs(steps.step[i].bytes) * static_cast<ptrdiff_t>(steps.step[i].count - 1);
  }
  return span;
}

// Whether rows of a_bytes at 0 and rows of b_bytes at `offset`, both repeated by the same steps
// from `first` on, share no byte. May say no where they do not.
bool RowsApart(const Steps& steps, int first, ptrdiff_t offset, size_t a_bytes, size_t b_bytes) {
  if (offset >= SpanFrom(steps, first, a_bytes)) return true;
  if (-offset >= SpanFrom(steps, first, b_bytes)) return true;
  if (first == steps.size) return false;
  // Relative to one group of rows of a, the groups of b lie at offset + m * width. If no group is
  // wider than the step, only the two nearest can touch it.
  const ptrdiff_t width = std::abs(steps.step[first].bytes);
  if (SpanFrom(steps, first + 1, std::max(a_bytes, b_bytes)) > width) return false;
  const ptrdiff_t above = ((offset % width) + width) % width;
  return RowsApart(steps, first + 1, above, a_bytes, b_bytes) &&
         RowsApart(steps, first + 1, above - width, a_bytes, b_bytes);
}

bool EqualSteps(const rmsnorm_view& x, const rmsnorm_view& y) {
  const ptrdiff_t x_size = static_cast<ptrdiff_t>(ElementSize(x.dtype));
  const ptrdiff_t y_size = static_cast<ptrdiff_t>(ElementSize(y.dtype));
  for (int i = 0; i + 1 < x.ndim; ++i) {
    if (x.shape[i] > 1 && x.stride[i] * x_size != y.stride[i] * y_size) return false;
  }
  return true;
}

rmsnorm_status CheckPointer(const char* name, const void* data, size_t element_size) {
  if (data == nullptr) return Fail(RMSNORM_ERROR_NULL, "%s: data is null", name);
  if (reinterpret_cast<uintptr_t>(data) % element_size != 0) {
    return Fail(RMSNORM_ERROR_ALIGNMENT, "%s: %p is not aligned to its element of %zu bytes", name,
                data, element_size);
  }
  return RMSNORM_OK;
}

rmsnorm_status Overflow(const char* name) {
  return Fail(RMSNORM_ERROR_SIZE_OVERFLOW, "%s: spans more bytes than an address can count", name);
}

}  // namespace

rmsnorm_status CheckOptions(const rmsnorm_options& options, bool has_weight) {
  if (options.size != sizeof options) {
    return Fail(RMSNORM_ERROR_STRUCT_SIZE,
                "options: size is %u, not %zu; start from rmsnorm_default_options()", options.size,
                sizeof options);
  }
  if (!(options.eps >= 0.0f) || std::isinf(options.eps)) {
    return Fail(RMSNORM_ERROR_EPS, "options: eps is %g; it must be finite and not negative",
                static_cast<double>(options.eps));
  }
  if (options.eps_placement != RMSNORM_EPS_INSIDE && options.eps_placement != RMSNORM_EPS_OUTSIDE) {
    return Fail(RMSNORM_ERROR_EPS_PLACEMENT, "options: eps_placement is unknown (%d)",
                options.eps_placement);
  }
  if (options.rounding != RMSNORM_SCALE_THEN_CAST && options.rounding != RMSNORM_CAST_THEN_SCALE) {
    return Fail(RMSNORM_ERROR_ROUNDING, "options: rounding is unknown (%d)", options.rounding);
  }
  if (options.residual_rounding != RMSNORM_CAST_THEN_NORM &&
      options.residual_rounding != RMSNORM_NORM_THEN_CAST) {
    return Fail(RMSNORM_ERROR_ROUNDING, "options: residual_rounding is unknown (%d)",
                options.residual_rounding);
  }
  if (!std::isfinite(options.weight_offset)) {
    return Fail(RMSNORM_ERROR_WEIGHT_OFFSET, "options: weight_offset is %g; it must be finite",
                static_cast<double>(options.weight_offset));
  }
  if (options.weight_offset != 0.0f && !has_weight) {
    return Fail(RMSNORM_ERROR_WEIGHT_OFFSET, "options: weight_offset is %g, but there is no weight",
                static_cast<double>(options.weight_offset));
  }
  if (!(options.divisor >= 0.0f) || std::isinf(options.divisor)) {
    return Fail(RMSNORM_ERROR_DIVISOR,
                "options: divisor is %g; it must be finite and positive, or 0 for d",
                static_cast<double>(options.divisor));
  }
  if (options.threads < 0) {
    return Fail(RMSNORM_ERROR_THREADS, "options: threads is %d; it must not be negative",
                options.threads);
  }
  return RMSNORM_OK;
}

rmsnorm_status CheckView(const char* name, const rmsnorm_view* view, size_t& rows, Extent& extent) {
  if (view == nullptr) return Fail(RMSNORM_ERROR_NULL, "%s: the view is null", name);
  if (view->size != sizeof *view) {
    return Fail(
        RMSNORM_ERROR_STRUCT_SIZE,
        "%s: size of the view is %u, not %zu; make it with rmsnorm_rows() or rmsnorm_tensor()",
        name, view->size, sizeof *view);
  }
  const size_t element_size = ElementSize(view->dtype);
  if (element_size == 0)
    return Fail(RMSNORM_ERROR_DTYPE, "%s: unknown dtype %d", name, view->dtype);
  if (view->ndim < 1 || view->ndim > RMSNORM_MAX_DIMS) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions; 1 to %d are possible", name, view->ndim,
                RMSNORM_MAX_DIMS);
  }
  const int last = view->ndim - 1;
  const size_t d = view->shape[last];
  if (d == 0) return Fail(RMSNORM_ERROR_SHAPE, "%s: the last dimension, d, is 0", name);
  if (d > 1 && view->stride[last] != 1) {
    return Fail(RMSNORM_ERROR_STRIDE,
                "%s: stride %td in the last dimension; it must be contiguous (1)", name,
                view->stride[last]);
  }

  rows = 1;
  extent = {0, 0};
  for (int i = 0; i < last; ++i) {
    if (view->shape[i] == 0) {
      rows = 0;
      return RMSNORM_OK;
    }
  }
  ptrdiff_t low = 0;  // in elements, relative to data
  ptrdiff_t high;
  if (__builtin_add_overflow(d, 0, &high)) return Overflow(name);
  for (int i = 0; i < last; ++i) {
    ptrdiff_t reach;
    ptrdiff_t& bound = view->stride[i] < 0 ? low : high;
    if (__builtin_mul_overflow(rows, view->shape[i], &rows) ||
        __builtin_mul_overflow(view->stride[i], view->shape[i] - 1, &reach) ||
        __builtin_add_overflow(bound, reach, &bound)) {
      return Overflow(name);
    }
  }
  ptrdiff_t bytes;
  if (__builtin_sub_overflow(high, low, &bytes) ||
      __builtin_mul_overflow(bytes, element_size, &bytes)) {
    return Overflow(name);
  }
  RMSNORM_RETURN_IF_ERROR(CheckPointer(name, view->data, element_size));
  const uintptr_t data = reinterpret_cast<uintptr_t>(view->data);
  const uintptr_t below = static_cast<uintptr_t>(-low) * element_size;
  const uintptr_t above = static_cast<uintptr_t>(high) * element_size;
  if (below > data || above > UINTPTR_MAX - data) return Overflow(name);
  extent = {data - below, data + above};
  return RMSNORM_OK;
}

namespace {

// A tensor of d elements in one dimension.
rmsnorm_status CheckVector(const char* name, const rmsnorm_view* vector, size_t d, Extent& extent) {
  size_t rows;
  RMSNORM_RETURN_IF_ERROR(CheckView(name, vector, rows, extent));
  if (vector->ndim != 1) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions; it must have one", name, vector->ndim);
  }
  if (vector->shape[0] != d) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %zu elements for rows of %zu", name, vector->shape[0], d);
  }
  return RMSNORM_OK;
}

// An array with one element for each row.
template <class T>
rmsnorm_status CheckPerRow(const char* name, const T* data, size_t rows, Extent& extent) {
  extent = {0, 0};
  if (rows == 0) return RMSNORM_OK;
  RMSNORM_RETURN_IF_ERROR(CheckPointer(name, data, sizeof(T)));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  if (rows > (UINTPTR_MAX - begin) / sizeof(T)) return Overflow(name);
  extent = {begin, begin + rows * sizeof(T)};
  return RMSNORM_OK;
}

// A tensor called `name` has the shape of x.
rmsnorm_status CheckEqualShapes(const rmsnorm_view& x, const char* name, const rmsnorm_view& y) {
  if (x.ndim != y.ndim) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions, but x has %d", name, y.ndim, x.ndim);
  }
  for (int i = 0; i < x.ndim; ++i) {
    if (x.shape[i] != y.shape[i]) {
      return Fail(RMSNORM_ERROR_SHAPE, "%s: %zu in dimension %d, but x has %zu", name, y.shape[i],
                  i, x.shape[i]);
    }
  }
  return RMSNORM_OK;
}

// The rows of an output are told apart by their strides: each step is at least as wide as what the
// narrower ones span. Other rows may share no byte, too, but are refused.
rmsnorm_status CheckRowsToldApart(const char* name, const rmsnorm_view& y) {
  const Steps steps = WidestFirst(y);
  for (int i = 0; i < steps.size; ++i) {
    const ptrdiff_t inner = SpanFrom(steps, i + 1, RowBytes(y));
    if (std::abs(steps.step[i].bytes) < inner) {
      return Fail(
          RMSNORM_ERROR_STRIDE,
          "%s: its strides do not tell rows apart (%td bytes from one index to the next, but "
          "each spans %td)",
          name, steps.step[i].bytes, inner);
    }
  }
  return RMSNORM_OK;
}

// Whether x and y of the same shape share no byte. May say no where they do not.
bool TensorsApart(const rmsnorm_view& x, const Extent& x_extent, const rmsnorm_view& y,
                  const Extent& y_extent) {
  if (Disjoint(x_extent, y_extent)) return true;
  const ptrdiff_t offset = static_cast<ptrdiff_t>(reinterpret_cast<uintptr_t>(y.data) -
                                                  reinterpret_cast<uintptr_t>(x.data));
  return EqualSteps(x, y) && RowsApart(WidestFirst(y), 0, offset, RowBytes(x), RowBytes(y));
}

bool IsInPlace(const rmsnorm_view& x, const rmsnorm_view& y) {
  return x.data == y.data && ElementSize(x.dtype) == ElementSize(y.dtype) && EqualSteps(x, y);
}

// y as the output for x of the same shape, by their names: its rows do not overlap, and it is in
// place or apart.
rmsnorm_status CheckOutput(const char* x_name, const rmsnorm_view& x, const Extent& x_extent,
                           const char* y_name, const rmsnorm_view& y, const Extent& y_extent,
                           size_t rows) {
  if (rows == 1 && Disjoint(x_extent, y_extent)) return RMSNORM_OK;
  RMSNORM_RETURN_IF_ERROR(CheckRowsToldApart(y_name, y));
  if (TensorsApart(x, x_extent, y, y_extent) || IsInPlace(x, y)) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_OVERLAP,
              "%s: overlaps %s or lies between its rows; in place means the same data, strides and "
              "element size",
              y_name, x_name);
}

// y as an output that may not take the place of x, of the same shape.
rmsnorm_status CheckTensorsApart(const char* x_name, const rmsnorm_view& x, const Extent& x_extent,
                                 const char* y_name, const rmsnorm_view& y,
                                 const Extent& y_extent) {
  if (TensorsApart(x, x_extent, y, y_extent)) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_OVERLAP, "%s: overlaps %s or lies between its rows", y_name, x_name);
}

// An output and another argument share no byte.
rmsnorm_status CheckApart(const char* output, const Extent& output_extent, const char* other,
                          const Extent& other_extent) {
  if (Disjoint(output_extent, other_extent)) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_OVERLAP, "%s: overlaps %s or lies between its rows", output, other);
}

}  // namespace

rmsnorm_status CheckWeight(const rmsnorm_view* weight, size_t d, Extent& extent) {
  return CheckVector("weight", weight, d, extent);
}

rmsnorm_status CheckForward(const rmsnorm_view* x, const double* sums, const rmsnorm_view* weight,
                            const rmsnorm_view* y, const float* rstd, size_t& rows) {
  Extent x_extent;
  Extent y_extent;
  size_t y_rows;
  RMSNORM_RETURN_IF_ERROR(CheckView("x", x, rows, x_extent));
  RMSNORM_RETURN_IF_ERROR(CheckView("y", y, y_rows, y_extent));
  RMSNORM_RETURN_IF_ERROR(CheckEqualShapes(*x, "y", *y));
  if (rows > 0) {
    RMSNORM_RETURN_IF_ERROR(CheckOutput("x", *x, x_extent, "y", *y, y_extent, rows));
  }

  // One test spares a module's call, which has none of these, a third of its checks.
  if (weight == nullptr && sums == nullptr && rstd == nullptr) return RMSNORM_OK;
  // An argument that is null spans nothing.
  Extent weight_extent = {0, 0};
  Extent sums_extent = {0, 0};
  Extent rstd_extent = {0, 0};
  if (weight != nullptr) {
    RMSNORM_RETURN_IF_ERROR(CheckWeight(weight, x->shape[x->ndim - 1], weight_extent));
  }
  if (sums != nullptr) RMSNORM_RETURN_IF_ERROR(CheckPerRow("sums", sums, rows, sums_extent));
  if (rstd != nullptr) RMSNORM_RETURN_IF_ERROR(CheckPerRow("rstd", rstd, rows, rstd_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("y", y_extent, "weight", weight_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("y", y_extent, "sums", sums_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("rstd", rstd_extent, "x", x_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("rstd", rstd_extent, "y", y_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("rstd", rstd_extent, "weight", weight_extent));
  return CheckApart("rstd", rstd_extent, "sums", sums_extent);
}

rmsnorm_status CheckAddForward(const rmsnorm_view* x, const rmsnorm_view* residual,
                               const rmsnorm_view* weight, const rmsnorm_view* residual_out,
                               const rmsnorm_view* y, const float* rstd, size_t& rows) {
  Extent x_extent;
  Extent residual_extent;
  Extent out_extent;
  Extent y_extent;
  size_t same_rows;
  RMSNORM_RETURN_IF_ERROR(CheckView("x", x, rows, x_extent));
  RMSNORM_RETURN_IF_ERROR(CheckView("residual", residual, same_rows, residual_extent));
  RMSNORM_RETURN_IF_ERROR(CheckView("residual_out", residual_out, same_rows, out_extent));
  RMSNORM_RETURN_IF_ERROR(CheckView("y", y, same_rows, y_extent));
  if (residual->dtype != RMSNORM_F32 && residual->dtype != x->dtype) {
    return Fail(RMSNORM_ERROR_DTYPE, "residual: %s; it must be f32 or the type of x, %s",
                rmsnorm_dtype_name(residual->dtype), rmsnorm_dtype_name(x->dtype));
  }
  if (residual_out->dtype != residual->dtype) {
    return Fail(RMSNORM_ERROR_DTYPE, "residual_out: %s; it must be the type of residual, %s",
                rmsnorm_dtype_name(residual_out->dtype), rmsnorm_dtype_name(residual->dtype));
  }
  RMSNORM_RETURN_IF_ERROR(CheckEqualShapes(*x, "residual", *residual));
  RMSNORM_RETURN_IF_ERROR(CheckEqualShapes(*x, "residual_out", *residual_out));
  RMSNORM_RETURN_IF_ERROR(CheckEqualShapes(*x, "y", *y));
  if (rows > 0) {
    RMSNORM_RETURN_IF_ERROR(CheckOutput("residual", *residual, residual_extent, "residual_out",
                                        *residual_out, out_extent, rows));
    RMSNORM_RETURN_IF_ERROR(CheckOutput("x", *x, x_extent, "y", *y, y_extent, rows));
    RMSNORM_RETURN_IF_ERROR(
        CheckTensorsApart("x", *x, x_extent, "residual_out", *residual_out, out_extent));
    RMSNORM_RETURN_IF_ERROR(
        CheckTensorsApart("residual", *residual, residual_extent, "y", *y, y_extent));
    RMSNORM_RETURN_IF_ERROR(
        CheckTensorsApart("residual_out", *residual_out, out_extent, "y", *y, y_extent));
  }

  // An argument that is null spans nothing.
  Extent weight_extent = {0, 0};
  Extent rstd_extent = {0, 0};
  if (weight != nullptr) {
    RMSNORM_RETURN_IF_ERROR(CheckWeight(weight, x->shape[x->ndim - 1], weight_extent));
  }
  if (rstd != nullptr) RMSNORM_RETURN_IF_ERROR(CheckPerRow("rstd", rstd, rows, rstd_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("residual_out", out_extent, "weight", weight_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("y", y_extent, "weight", weight_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("rstd", rstd_extent, "x", x_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("rstd", rstd_extent, "residual", residual_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("rstd", rstd_extent, "residual_out", out_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("rstd", rstd_extent, "y", y_extent));
  return CheckApart("rstd", rstd_extent, "weight", weight_extent);
}

rmsnorm_status CheckBackward(const rmsnorm_view* dy, const rmsnorm_view* x,
                             const rmsnorm_view* weight, const float* rstd, const rmsnorm_view* dx,
                             const rmsnorm_view* dw, uint32_t flags, size_t& rows) {
  if ((flags & ~(uint32_t{RMSNORM_ADD_TO_DX} | uint32_t{RMSNORM_ADD_TO_DW})) != 0) {
    return Fail(RMSNORM_ERROR_FLAGS, "flags: 0x%X holds an unknown flag", flags);
  }
  if (dx == nullptr && dw == nullptr) {
    return Fail(RMSNORM_ERROR_NULL, "dx: the view is null, and so is dw; one of them is needed");
  }
  // An argument that is null spans nothing.
  Extent x_extent;
  Extent dy_extent;
  Extent weight_extent = {0, 0};
  Extent rstd_extent = {0, 0};
  Extent dx_extent = {0, 0};
  Extent dw_extent = {0, 0};
  size_t same_rows;
  RMSNORM_RETURN_IF_ERROR(CheckView("x", x, rows, x_extent));
  RMSNORM_RETURN_IF_ERROR(CheckView("dy", dy, same_rows, dy_extent));
  RMSNORM_RETURN_IF_ERROR(CheckEqualShapes(*x, "dy", *dy));
  const size_t d = x->shape[x->ndim - 1];
  if (weight != nullptr) {
    RMSNORM_RETURN_IF_ERROR(CheckVector("weight", weight, d, weight_extent));
  }
  if (rstd != nullptr) RMSNORM_RETURN_IF_ERROR(CheckPerRow("rstd", rstd, rows, rstd_extent));
  if (dx != nullptr) {
    RMSNORM_RETURN_IF_ERROR(CheckView("dx", dx, same_rows, dx_extent));
    RMSNORM_RETURN_IF_ERROR(CheckEqualShapes(*x, "dx", *dx));
    const bool f32_as_x = dx->dtype == RMSNORM_F32 && x->dtype == RMSNORM_F32;
    if (dx->dtype != dy->dtype && !f32_as_x) {
      return Fail(RMSNORM_ERROR_DTYPE, "dx: %s; it must be the type of dy, %s, or f32 where x is",
                  rmsnorm_dtype_name(dx->dtype), rmsnorm_dtype_name(dy->dtype));
    }
    if (rows > 0) {
      RMSNORM_RETURN_IF_ERROR(CheckOutput("dy", *dy, dy_extent, "dx", *dx, dx_extent, rows));
      RMSNORM_RETURN_IF_ERROR(CheckTensorsApart("x", *x, x_extent, "dx", *dx, dx_extent));
    }
    RMSNORM_RETURN_IF_ERROR(CheckApart("dx", dx_extent, "weight", weight_extent));
    RMSNORM_RETURN_IF_ERROR(CheckApart("dx", dx_extent, "rstd", rstd_extent));
  }
  if (dw == nullptr) return RMSNORM_OK;
  RMSNORM_RETURN_IF_ERROR(CheckVector("dw", dw, d, dw_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("dw", dw_extent, "x", x_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("dw", dw_extent, "dy", dy_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("dw", dw_extent, "weight", weight_extent));
  RMSNORM_RETURN_IF_ERROR(CheckApart("dw", dw_extent, "rstd", rstd_extent));
  return CheckApart("dw", dw_extent, "dx", dx_extent);
}

rmsnorm_status CheckSumSquares(const rmsnorm_view* x, const double* sums, size_t& rows) {
  Extent x_extent;
  Extent sums_extent;
  RMSNORM_RETURN_IF_ERROR(CheckView("x", x, rows, x_extent));
  RMSNORM_RETURN_IF_ERROR(CheckPerRow("sums", sums, rows, sums_extent));
  return CheckApart("sums", sums_extent, "x", x_extent);
}

}  // namespace rmsnorm::internal

size_t rmsnorm_dtype_size(rmsnorm_dtype dtype) noexcept {
  return rmsnorm::internal::ElementSize(dtype);
}

const char* rmsnorm_dtype_name(rmsnorm_dtype dtype) noexcept {
  switch (dtype) {
    case RMSNORM_F32:
      return "f32";
    case RMSNORM_F16:
      return "f16";
    case RMSNORM_BF16:
      return "bf16";
    default:
      return nullptr;
  }
}
