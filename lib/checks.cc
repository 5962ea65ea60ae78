// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "module.h"
#include "options.h"
#include "status.h"

namespace rmsnorm::internal {
namespace {

// ------------------------------------------------------------------ structs that grow

// Copies a struct, which begins with its size, over one that holds the defaults. No struct has
// padding, so a smaller one lacks whole fields.
template <class Struct>
rmsnorm_status ReadStruct(const char* name, const Struct* given, Struct& read) {
  constexpr size_t kKnown = sizeof(Struct);
  constexpr size_t kLargest = 4096;  // a larger size is no size
  uint32_t size;
  std::memcpy(&size, given, sizeof size);
  // Fields end at multiples of the alignment, except for the size itself.
  const bool between_fields = size == sizeof size || size % alignof(Struct) == 0;
  if (size < sizeof size || size > kLargest || !between_fields) {
    return Fail(RMSNORM_ERROR_STRUCT_SIZE,
                "%s: size is %u; start from the function that makes the defaults", name, size);
  }
  const char* const bytes = reinterpret_cast<const char*>(given);
  for (size_t i = kKnown; i < size; ++i) {
    if (bytes[i] != 0) {
      return Fail(
          RMSNORM_ERROR_STRUCT_SIZE,
          "%s: size is %u, and not all beyond the %zu bytes that this library knows is zero", name,
          size, kKnown);
    }
  }
  std::memcpy(&read, given, std::min<size_t>(size, kKnown));
  return RMSNORM_OK;
}

// ------------------------------------------------------------------ a view by itself

rmsnorm_status Overflow(const char* name) {
  return Fail(RMSNORM_ERROR_LAYOUT, "%s: spans more bytes than an address can count", name);
}

rmsnorm_status CheckDtype(const OperandRule& rule, rmsnorm_dtype dtype) {
  if (rule.dtype == 0) return CheckElementType(rule.name, dtype);
  if (dtype == rule.dtype) return RMSNORM_OK;
  const char* const name = rmsnorm_dtype_name(dtype);
  const char* const possible = rmsnorm_dtype_name(rule.dtype);
  if (name == nullptr) {
    return Fail(RMSNORM_ERROR_DTYPE, "%s: unknown dtype %d; it must be %s", rule.name, dtype,
                possible);
  }
  return Fail(RMSNORM_ERROR_DTYPE, "%s: %s; it must be %s", rule.name, name, possible);
}

rmsnorm_status CheckDimensions(const char* name, const rmsnorm_view& view) {
  if (view.ndim >= 1 && view.ndim <= RMSNORM_MAX_DIMS) return RMSNORM_OK;
  if (view.ndim == RMSNORM_VIEW_WRONG_STRIDES) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %zu stride%s for %zu dimension%s", name, view.shape[1],
                view.shape[1] == 1 ? "" : "s", view.shape[0], view.shape[0] == 1 ? "" : "s");
  }
  if (view.ndim == RMSNORM_VIEW_NEGATIVE_SIZE) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %td elements in dimension %zu; a size is not negative",
                name, view.stride[0], view.shape[0]);
  }
  return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions; 1 to %d are possible", name, view.ndim,
              RMSNORM_MAX_DIMS);
}

// Whether the stride of the last dimension is the size of an element: a stride in bytes.
bool IsInBytes(const rmsnorm_view& view, int last) {
  return view.stride[last] == static_cast<ptrdiff_t>(ElementSize(view.dtype));
}

// The type, the dimensions, the size and the pointer of a view. `extent` receives the bytes that it
// spans: nothing where it has no rows.
rmsnorm_status CheckView(Operand operand, const rmsnorm_view& view, Extent& extent) {
  const OperandRule& rule = kOperandRules[operand];
  RMSNORM_RETURN_IF_ERROR(CheckDtype(rule, view.dtype));
  RMSNORM_RETURN_IF_ERROR(CheckDimensions(rule.name, view));
  const int rows = RowDimensions(operand, view);
  ptrdiff_t low = 0;  // in elements, relative to data
  ptrdiff_t high = 1;
  if (rows < view.ndim) {
    const size_t d = view.shape[rows];
    if (d == 0) return Fail(RMSNORM_ERROR_SHAPE, "%s: the last dimension, d, is 0", rule.name);
    if (d > 1 && view.stride[rows] != 1) {
      return Fail(RMSNORM_ERROR_LAYOUT,
                  "%s: stride %td in the last dimension; it must be contiguous (1)%s", rule.name,
                  view.stride[rows], IsInBytes(view, rows) ? "; strides count elements" : "");
    }
  }
  extent = {0, 0};
  size_t count = 1;
  for (int i = 0; i < rows; ++i) {
    if (view.shape[i] == 0) return RMSNORM_OK;
  }
  if (rows < view.ndim && __builtin_add_overflow(view.shape[rows], 0, &high)) {
    return Overflow(rule.name);
  }
  for (int i = 0; i < rows; ++i) {
    if (view.shape[i] == 1) continue;
    ptrdiff_t reach;
    ptrdiff_t& bound = view.stride[i] < 0 ? low : high;
    if (__builtin_mul_overflow(count, view.shape[i], &count) ||
        __builtin_mul_overflow(view.stride[i], view.shape[i] - 1, &reach) ||
        __builtin_add_overflow(bound, reach, &bound)) {
      return Overflow(rule.name);
    }
  }
  const size_t element_size = ElementSize(view.dtype);
  ptrdiff_t elements;
  if (__builtin_sub_overflow(high, low, &elements) ||
      static_cast<size_t>(elements) > PTRDIFF_MAX / element_size) {
    return Overflow(rule.name);
  }
  const uintptr_t data = reinterpret_cast<uintptr_t>(view.data);
  if (data == 0) return Fail(RMSNORM_ERROR_NULL, "%s: data is null", rule.name);
  if ((data & (element_size - 1)) != 0) {
    return Fail(RMSNORM_ERROR_LAYOUT, "%s: %p is not aligned to its element of %zu bytes",
                rule.name, view.data, element_size);
  }
  const uintptr_t below = static_cast<uintptr_t>(-low) * element_size;
  const uintptr_t above = static_cast<uintptr_t>(high) * element_size;
  if (below > data || above > UINTPTR_MAX - data) return Overflow(rule.name);
  extent = {data - below, data + above};
  return RMSNORM_OK;
}

// ------------------------------------------------------------------ a view beside x

rmsnorm_status CheckDimension(const char* name, const rmsnorm_view& view, int i,
                              const rmsnorm_view& x, int x_i) {
  if (view.shape[i] == x.shape[x_i]) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_SHAPE, "%s: %zu in dimension %d, but x has %zu", name, view.shape[i], i,
              x.shape[x_i]);
}

rmsnorm_status CheckRowsShape(const char* name, const rmsnorm_view& view, const rmsnorm_view& x) {
  if (view.ndim != x.ndim) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions, but x has %d", name, view.ndim, x.ndim);
  }
  for (int i = 0; i < x.ndim; ++i) RMSNORM_RETURN_IF_ERROR(CheckDimension(name, view, i, x, i));
  return RMSNORM_OK;
}

rmsnorm_status CheckColumnsShape(const char* name, const rmsnorm_view& view,
                                 const rmsnorm_view& x) {
  if (view.ndim > x.ndim) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions, but x has %d", name, view.ndim, x.ndim);
  }
  const int before = x.ndim - view.ndim;  // dimensions of x that the view lacks
  const int last = view.ndim - 1;
  const size_t d = x.shape[x.ndim - 1];
  if (view.shape[last] != d) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %zu elements in its last dimension for rows of %zu", name,
                view.shape[last], d);
  }
  for (int i = 0; i < last; ++i) {
    if (view.shape[i] == 1) continue;
    if (view.shape[i] != x.shape[before + i]) {
      return Fail(RMSNORM_ERROR_SHAPE,
                  "%s: %zu in dimension %d, but x has %zu in dimension %d; it must be that or 1",
                  name, view.shape[i], i, x.shape[before + i], before + i);
    }
  }
  return RMSNORM_OK;
}

rmsnorm_status CheckPerRowShape(const char* name, const rmsnorm_view& view, const rmsnorm_view& x) {
  const int leading = x.ndim - 1;
  if (leading == 0) {
    if (view.ndim == 1 && view.shape[0] == 1) return RMSNORM_OK;
    return Fail(RMSNORM_ERROR_SHAPE, "%s: it must be one element, as x is one row", name);
  }
  if (view.ndim != leading) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions for the %d leading dimensions of x", name,
                view.ndim, leading);
  }
  for (int i = 0; i < leading; ++i) RMSNORM_RETURN_IF_ERROR(CheckDimension(name, view, i, x, i));
  return RMSNORM_OK;
}

rmsnorm_status CheckShape(Operand operand, const rmsnorm_view& view, const rmsnorm_view& x) {
  const OperandRule& rule = kOperandRules[operand];
  switch (rule.shape) {
    case Shape::kRows:
      return CheckRowsShape(rule.name, view, x);
    case Shape::kColumns:
      return CheckColumnsShape(rule.name, view, x);
    default:
      return CheckPerRowShape(rule.name, view, x);
  }
}

// Whether a view of rows has the type, the shape and the strides of x, so that what was found of x
// holds for it too.
bool IsLikeX(Operand operand, const rmsnorm_view& view, const rmsnorm_view& x) {
  const OperandRule& rule = kOperandRules[operand];
  if (rule.shape != Shape::kRows || rule.dtype != 0 || view.dtype != x.dtype ||
      view.ndim != x.ndim) {
    return false;
  }
  for (int i = 0; i < x.ndim; ++i) {
    if (view.shape[i] != x.shape[i] || view.stride[i] != x.stride[i]) return false;
  }
  return true;
}

// Finds the extent of a view like x. Returns false where its data may be wrong, or x has no rows.
bool FindExtentLikeX(const rmsnorm_view& view, const rmsnorm_view& x, const Extent& of_x,
                     Extent& extent) {
  const uintptr_t data = reinterpret_cast<uintptr_t>(view.data);
  const uintptr_t below = reinterpret_cast<uintptr_t>(x.data) - of_x.begin;
  const uintptr_t bytes = of_x.end - of_x.begin;
  const bool is_aligned = (data & (ElementSize(view.dtype) - 1)) == 0;
  if (bytes == 0 || data == 0 || !is_aligned || below > data ||
      bytes > UINTPTR_MAX - (data - below)) {
    return false;
  }
  extent = {data - below, data - below + bytes};
  return true;
}

// Whether two views have the same dimensions, apart from leading ones of 1.
bool EqualColumns(const rmsnorm_view& a, const rmsnorm_view& b) {
  int i = a.ndim - 1;
  int j = b.ndim - 1;
  for (; i >= 0 && j >= 0; --i, --j) {
    if (a.shape[i] != b.shape[j]) return false;
  }
  for (; i >= 0; --i) {
    if (a.shape[i] != 1) return false;
  }
  for (; j >= 0; --j) {
    if (b.shape[j] != 1) return false;
  }
  return true;
}

// ------------------------------------------------------------------ operands together

const char* NameOfFirst(OperandSet set) { return kOperandRules[__builtin_ctz(set)].name; }

rmsnorm_status NoOutput(Operation operation) {
  return operation == Operation::kForward
             ? Fail(RMSNORM_ERROR_NULL, "y: the view is null; at least one output is needed")
             : Fail(RMSNORM_ERROR_NULL,
                    "dx: the view is null, and so are dw and db; one of them is needed");
}

// The operands that need or exclude others.
constexpr OperandSet OperandsWithConditions() {
  OperandSet set = 0;
  for (int i = 0; i < kOperands; ++i) {
    const OperandRule& rule = kOperandRules[i];
    if ((rule.needs | rule.excludes) != 0) set |= SetOf(static_cast<Operand>(i));
  }
  return set;
}

// Checks which operands go together.
rmsnorm_status CheckTogether(OperandSet given) {
  constexpr OperandSet kWithConditions = OperandsWithConditions();
  rmsnorm_status status = RMSNORM_OK;
  ForEachOperand(given & kWithConditions, [&](Operand operand) {
    const OperandRule& rule = kOperandRules[operand];
    const OperandSet excluded = rule.excludes & given;
    if (status != RMSNORM_OK) return;
    if (rule.needs != 0 && (rule.needs & given) == 0) {
      status =
          Fail(RMSNORM_ERROR_OPERAND, "%s: there is no %s", rule.name, NameOfFirst(rule.needs));
    } else if (excluded != 0) {
      status = Fail(RMSNORM_ERROR_OPERAND, "%s: excludes %s", rule.name, NameOfFirst(excluded));
    }
  });
  return status;
}

// Finds the views, and checks which there are.
rmsnorm_status FindViews(Operation operation, const Roles& roles, const rmsnorm_operands& given,
                         bool own_weight, Operands& operands) {
  operands.given = 0;
  for (int i = 0; i < kOperands; ++i) {
    const auto operand = static_cast<Operand>(i);
    const rmsnorm_view* const view = ViewIn(given, operand);
    if (view != nullptr) operands.Set(operand, view);
  }
  const OperandSet missing = roles.required & ~operands.given;
  if (missing != 0) {
    return Fail(RMSNORM_ERROR_NULL, "%s: the view is null", NameOfFirst(missing));
  }
  const OperandSet alien = roles.absent & operands.given;
  if (alien != 0) {
    return Fail(RMSNORM_ERROR_OPERAND, "%s: rmsnorm_%s() does not take it", NameOfFirst(alien),
                operation == Operation::kForward ? "forward" : "backward");
  }
  operands.add_to = given.add_to;
  constexpr uint32_t kKnown = RMSNORM_ADD_TO_DX | RMSNORM_ADD_TO_DW | RMSNORM_ADD_TO_DB;
  if ((given.add_to & ~kKnown) != 0) {
    return Fail(RMSNORM_ERROR_OPERAND, "add_to: 0x%X holds an unknown flag; 0x%X has them all",
                given.add_to, kKnown);
  }
  if (own_weight && operands.Has(kWeight)) {
    return Fail(RMSNORM_ERROR_OPERAND, "weight: the module has its own");
  }
  if ((roles.outputs & operands.given) == 0) return NoOutput(operation);
  return CheckTogether(operands.given);
}

// Checks that no output shares memory with another operand, unless it takes that operand's place.
rmsnorm_status CheckOverlaps(OperandSet outputs, const Operands& operands) {
  rmsnorm_status status = RMSNORM_OK;
  ForEachOperand(outputs, [&](Operand output) {
    const rmsnorm_view& view = operands[output];
    const Extent& extent = operands.extent[output];
    if (status == RMSNORM_OK) status = CheckRowsToldApart(output, view, extent);
    ForEachOperand(operands.given, [&](Operand other) {
      // The message about two outputs begins with the later one.
      const bool seen = (outputs & SetOf(other)) != 0 && other >= output;
      if (seen || Disjoint(extent, operands.extent[other]) || status != RMSNORM_OK) return;
      const bool may_replace = kOperandRules[output].in_place_of == other;
      if (may_replace && IsInPlace(operands[other], view)) return;
      if (Apart(other, operands, output, operands)) return;
      status =
          Fail(RMSNORM_ERROR_OVERLAP, "%s: overlaps %s or lies between its rows%s%s",
               kOperandRules[output].name, kOperandRules[other].name,
               may_replace ? "; in place means the same data, strides and element size" : "",
               ApartByBytes(other, operands[other], operands.extent[other], output, view, extent)
                   ? "; strides count elements, not bytes"
                   : "");
    });
  });
  return status;
}

}  // namespace

rmsnorm_status CheckElementType(const char* argument, rmsnorm_dtype dtype) {
  if (dtype >= RMSNORM_F32 && dtype <= RMSNORM_BF16) return RMSNORM_OK;
  const char* const name = rmsnorm_dtype_name(dtype);
  if (name != nullptr) {
    return Fail(RMSNORM_ERROR_DTYPE, "%s: %s; it must be f32, f16 or bf16", argument, name);
  }
  return Fail(RMSNORM_ERROR_DTYPE, "%s: unknown dtype %d; it must be f32, f16 or bf16", argument,
              dtype);
}

rmsnorm_status ReadOptions(const rmsnorm_options* given, rmsnorm_options& options) {
  options = rmsnorm_default_options();
  if (given == nullptr) return RMSNORM_OK;
  RMSNORM_RETURN_IF_ERROR(ReadStruct("options", given, options));
  options.size = sizeof options;
  return CheckOptions(options);
}

rmsnorm_status ReadContext(const rmsnorm_context* given, rmsnorm_context& context) {
  context = rmsnorm_default_context();
  if (given == nullptr) return RMSNORM_OK;
  RMSNORM_RETURN_IF_ERROR(ReadStruct("context", given, context));
  context.size = sizeof context;
  if (context.threads < 0) {
    return Fail(RMSNORM_ERROR_OPTION, "context: threads is %d; it must be 0 or larger",
                context.threads);
  }
  return RMSNORM_OK;
}

rmsnorm_status CheckOperands(Operation operation, const rmsnorm_operands* given, bool own_weight,
                             Operands& operands) {
  if (given == nullptr) return Fail(RMSNORM_ERROR_NULL, "operands: the pointer is null");
  rmsnorm_operands read;
  if (given->size != sizeof read) {
    read = rmsnorm_no_operands();
    RMSNORM_RETURN_IF_ERROR(ReadStruct("operands", given, read));
    given = &read;
  }
  const Roles& roles = RolesIn(operation);
  RMSNORM_RETURN_IF_ERROR(FindViews(operation, roles, *given, own_weight, operands));

  const rmsnorm_view& x = operands[kX];  // which comes first
  operands.like_x = SetOf(kX);
  rmsnorm_status status = RMSNORM_OK;
  ForEachOperand(operands.given, [&](Operand operand) {
    const rmsnorm_view& view = operands[operand];
    Extent& extent = operands.extent[operand];
    if (status != RMSNORM_OK) return;
    if (operand != kX && IsLikeX(operand, view, x) &&
        FindExtentLikeX(view, x, operands.extent[kX], extent)) {
      operands.like_x |= SetOf(operand);
      return;
    }
    status = CheckView(operand, view, extent);
    if (status == RMSNORM_OK) status = CheckShape(operand, view, x);
  });
  RMSNORM_RETURN_IF_ERROR(status);
  if (operands.Has(kResidualOut) && operands[kResidualOut].dtype != operands[kResidual].dtype) {
    return Fail(RMSNORM_ERROR_DTYPE, "residual_out: %s; it must be the type of residual, %s",
                rmsnorm_dtype_name(operands[kResidualOut].dtype),
                rmsnorm_dtype_name(operands[kResidual].dtype));
  }
  if (operands.Has(kDw) && operands.Has(kWeight) &&
      !EqualColumns(operands[kDw], operands[kWeight])) {
    return Fail(RMSNORM_ERROR_SHAPE, "dw: its shape differs from the shape of weight");
  }
  RMSNORM_RETURN_IF_ERROR(CheckOverlaps(roles.outputs & operands.given, operands));
  operands.d = x.shape[x.ndim - 1];
  operands.rows = 1;
  for (int i = 0; i + 1 < x.ndim; ++i) operands.rows *= x.shape[i];
  return RMSNORM_OK;
}

rmsnorm_status CheckApart(const Operands& call, const Operands& other, size_t other_index) {
  rmsnorm_status status = RMSNORM_OK;
  ForEachOperand(kForwardRoles.outputs & call.given, [&](Operand output) {
    ForEachOperand(other.given, [&](Operand operand) {
      if (status != RMSNORM_OK || Apart(operand, other, output, call)) return;
      status = Fail(RMSNORM_ERROR_OVERLAP, "%s: overlaps calls[%zu].%s or lies between its rows",
                    kOperandRules[output].name, other_index, kOperandRules[operand].name);
    });
  });
  return status;
}

rmsnorm_status CheckCall(Operation operation, const rmsnorm_module* module,
                         const rmsnorm_operands* operands, const rmsnorm_options* options,
                         Call& call) {
  const bool by_module = module != nullptr;
  if (by_module && options != nullptr) {
    return Fail(RMSNORM_ERROR_OPERAND, "options: the module has its own");
  }
  call.module = module;
  if (by_module) {
    call.options = module->options;
    call.changed_options = module->changed_options;
  } else {
    RMSNORM_RETURN_IF_ERROR(ReadOptions(options, call.options));
    call.changed_options = ChangedOptions(call.options);
  }
  RMSNORM_RETURN_IF_ERROR(CheckOperands(operation, operands, by_module, call.operands));
  RMSNORM_RETURN_IF_ERROR(
      CheckOptionsFit(operation, call.options, call.changed_options, call.operands, by_module));
  if (!by_module || call.operands.d == module->d) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_SHAPE, "x: rows of %zu, but the module is for %zu", call.operands.d,
              module->d);
}

rmsnorm_status CheckVector(Operand operand, const rmsnorm_view* view, size_t d) {
  const char* const name = kOperandRules[operand].name;
  if (view == nullptr) return Fail(RMSNORM_ERROR_NULL, "%s: the view is null", name);
  Extent extent;
  RMSNORM_RETURN_IF_ERROR(CheckView(operand, *view, extent));
  if (view->ndim != 1) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions; it must have one", name, view->ndim);
  }
  if (view->shape[0] != d) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %zu elements in its last dimension for rows of %zu", name,
                view->shape[0], d);
  }
  return RMSNORM_OK;
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
    case RMSNORM_F64:
      return "f64";
    case RMSNORM_I8:
      return "i8";
    default:
      return nullptr;
  }
}

rmsnorm_context rmsnorm_default_context() noexcept {
  rmsnorm_context context = {};
  context.size = sizeof context;
  return context;
}
