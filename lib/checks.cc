// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "module.h"
#include "status.h"

namespace rmsnorm::internal {
namespace {

// ------------------------------------------------------------------ structs that grow

// Copies a struct, which begins with its size, over one that holds the defaults. None has padding,
// so that what a smaller one lacks are whole fields.
template <class Struct>
rmsnorm_status ReadStruct(const char* name, const Struct* given, Struct& read) {
  constexpr size_t kKnown = sizeof(Struct);
  constexpr size_t kLargest = 4096;  // a larger size is no size
  uint32_t size;
  std::memcpy(&size, given, sizeof size);
  // Fields end there, but for the second one, which is as small as the size.
  const bool between_fields = size == sizeof size || size % alignof(Struct) == 0;
  if (size < sizeof size || size > kLargest || !between_fields) {
    return Fail(RMSNORM_ERROR_STRUCT_SIZE,
                "%s: size is %u; start from the function that makes the defaults", name, size);
  }
  const char* const bytes = reinterpret_cast<const char*>(given);
  for (size_t i = kKnown; i < size; ++i) {
    if (bytes[i] != 0) {
      return Fail(RMSNORM_ERROR_STRUCT_SIZE,
                  "%s: size is %u, and what is beyond the %zu bytes that this library knows is not "
                  "zero",
                  name, size, kKnown);
    }
  }
  std::memcpy(&read, given, std::min<size_t>(size, kKnown));
  return RMSNORM_OK;
}

rmsnorm_status CheckOptions(const rmsnorm_options& options) {
  if (!(options.eps >= 0.0f) || std::isinf(options.eps)) {
    return Fail(RMSNORM_ERROR_EPS, "options: eps is %g; it must be finite and not negative",
                static_cast<double>(options.eps));
  }
  if (options.eps_placement < RMSNORM_EPS_INSIDE || options.eps_placement > RMSNORM_EPS_FLOOR) {
    return Fail(RMSNORM_ERROR_EPS_PLACEMENT, "options: eps_placement is unknown (%d)",
                options.eps_placement);
  }
  if (options.rounding < RMSNORM_SCALE_THEN_CAST || options.rounding > RMSNORM_INVERSE_ROUNDED) {
    return Fail(RMSNORM_ERROR_ROUNDING, "options: rounding is unknown (%d)", options.rounding);
  }
  if (options.residual_rounding < RMSNORM_CAST_THEN_NORM ||
      options.residual_rounding > RMSNORM_NORM_THEN_CAST) {
    return Fail(RMSNORM_ERROR_ROUNDING, "options: residual_rounding is unknown (%d)",
                options.residual_rounding);
  }
  if (!std::isfinite(options.weight_offset)) {
    return Fail(RMSNORM_ERROR_WEIGHT_OFFSET, "options: weight_offset is %g; it must be finite",
                static_cast<double>(options.weight_offset));
  }
  if (options.divisor != 0.0f && !(options.divisor > 0.0f && std::isnormal(options.divisor) &&
                                   std::isnormal(1 / options.divisor))) {
    return Fail(RMSNORM_ERROR_DIVISOR,
                "options: divisor is %g; it must be from 2^-126 to 2^126, or 0 for d",
                static_cast<double>(options.divisor));
  }
  if (!std::isfinite(options.factor)) {
    return Fail(RMSNORM_ERROR_FACTOR, "options: factor is %g; it must be finite",
                static_cast<double>(options.factor));
  }
  if (options.activation < RMSNORM_SILU || options.activation > RMSNORM_SIGMOID) {
    return Fail(RMSNORM_ERROR_GATE, "options: activation is unknown (%d)", options.activation);
  }
  if (options.gate_placement < RMSNORM_GATE_AFTER || options.gate_placement > RMSNORM_GATE_BEFORE) {
    return Fail(RMSNORM_ERROR_GATE, "options: gate_placement is unknown (%d)",
                options.gate_placement);
  }
  if (options.gate_rounding < RMSNORM_GATE_UNROUNDED ||
      options.gate_rounding > RMSNORM_GATE_ROUNDED_TO_X) {
    return Fail(RMSNORM_ERROR_GATE, "options: gate_rounding is unknown (%d)",
                options.gate_rounding);
  }
  return RMSNORM_OK;
}

// ------------------------------------------------------------------ a view by itself

rmsnorm_status Overflow(const char* name) {
  return Fail(RMSNORM_ERROR_SIZE_OVERFLOW, "%s: spans more bytes than an address can count", name);
}

rmsnorm_status CheckDtype(const OperandRule& rule, rmsnorm_dtype dtype) {
  const char* const name = rmsnorm_dtype_name(dtype);
  if (name == nullptr) return Fail(RMSNORM_ERROR_DTYPE, "%s: unknown dtype %d", rule.name, dtype);
  if (rule.dtype != 0 && dtype != rule.dtype) {
    return Fail(RMSNORM_ERROR_DTYPE, "%s: %s; it must be %s", rule.name, name,
                rmsnorm_dtype_name(rule.dtype));
  }
  if (rule.dtype == 0 && dtype > RMSNORM_BF16) {
    return Fail(RMSNORM_ERROR_DTYPE, "%s: %s; it must be f32, f16 or bf16", rule.name, name);
  }
  return RMSNORM_OK;
}

// The type, the dimensions, the size and the pointer of a view. `extent` receives what it spans:
// nothing where it has no rows.
rmsnorm_status CheckView(Operand operand, const rmsnorm_view& view, Extent& extent) {
  const OperandRule& rule = kOperandRules[operand];
  RMSNORM_RETURN_IF_ERROR(CheckDtype(rule, view.dtype));
  if (view.ndim < 1 || view.ndim > RMSNORM_MAX_DIMS) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions; 1 to %d are possible", rule.name,
                view.ndim, RMSNORM_MAX_DIMS);
  }
  const int rows = RowDimensions(operand, view);
  ptrdiff_t low = 0;  // in elements, relative to data
  ptrdiff_t high = 1;
  if (rows < view.ndim) {
    const size_t d = view.shape[rows];
    if (d == 0) return Fail(RMSNORM_ERROR_SHAPE, "%s: the last dimension, d, is 0", rule.name);
    if (d > 1 && view.stride[rows] != 1) {
      return Fail(RMSNORM_ERROR_STRIDE,
                  "%s: stride %td in the last dimension; it must be contiguous (1)", rule.name,
                  view.stride[rows]);
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
    return Fail(RMSNORM_ERROR_ALIGNMENT, "%s: %p is not aligned to its element of %zu bytes",
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

// The dimensions of two views, without leading ones of 1, are the same.
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
    return Fail(RMSNORM_ERROR_FLAGS, "add_to: 0x%X holds an unknown flag", given.add_to);
  }
  if (own_weight && operands.Has(kWeight)) {
    return Fail(RMSNORM_ERROR_OPERAND, "weight: the module has its own");
  }
  if ((roles.outputs & operands.given) == 0) return NoOutput(operation);
  if (operands.Has(kResidualOut) && !operands.Has(kResidual)) {
    return Fail(RMSNORM_ERROR_OPERAND, "residual_out: there is no residual");
  }
  if (operands.Has(kSums) && operands.Has(kResidual)) {
    return Fail(RMSNORM_ERROR_OPERAND, "sums: they exclude a residual");
  }
  if (operands.Has(kSums) && operands.Has(kPostNormWeight)) {
    return Fail(RMSNORM_ERROR_OPERAND, "sums: they exclude a post-norm");
  }
  if (operands.Has(kQ) != operands.Has(kScale)) {
    return operands.Has(kQ) ? Fail(RMSNORM_ERROR_OPERAND, "q: there is no scale")
                            : Fail(RMSNORM_ERROR_OPERAND, "scale: there is no q");
  }
  if (operands.Has(kZero) && !operands.Has(kQ)) {
    return Fail(RMSNORM_ERROR_OPERAND, "zero: there is no q");
  }
  return RMSNORM_OK;
}

// Checks that no output shares memory with another operand, but in its place.
rmsnorm_status CheckOverlaps(OperandSet outputs, const Operands& operands) {
  rmsnorm_status status = RMSNORM_OK;
  ForEachOperand(outputs, [&](Operand output) {
    const rmsnorm_view& view = operands[output];
    const Extent& extent = operands.extent[output];
    if (status == RMSNORM_OK) status = CheckRowsToldApart(output, view, extent);
    ForEachOperand(operands.given, [&](Operand other) {
      // Of two outputs the later one is named first.
      const bool seen = (outputs & SetOf(other)) != 0 && other >= output;
      if (seen || Disjoint(extent, operands.extent[other]) || status != RMSNORM_OK) return;
      const bool may_replace = kOperandRules[output].in_place_of == other;
      if (may_replace && IsInPlace(operands[other], view)) return;
      if (Apart(other, operands, output, operands)) return;
      status = Fail(RMSNORM_ERROR_OVERLAP, "%s: overlaps %s or lies between its rows%s",
                    kOperandRules[output].name, kOperandRules[other].name,
                    may_replace ? "; in place means the same data, strides and element size" : "");
    });
  });
  return status;
}

}  // namespace

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
    return Fail(RMSNORM_ERROR_THREADS, "context: threads is %d; it must not be negative",
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

  rmsnorm_status status = RMSNORM_OK;
  ForEachOperand(operands.given, [&](Operand operand) {
    if (status == RMSNORM_OK) {
      status = CheckView(operand, operands[operand], operands.extent[operand]);
    }
    if (status == RMSNORM_OK) status = CheckShape(operand, operands[operand], operands[kX]);
  });
  RMSNORM_RETURN_IF_ERROR(status);
  if (operands.Has(kResidualOut) && operands[kResidualOut].dtype != operands[kResidual].dtype) {
    return Fail(RMSNORM_ERROR_DTYPE, "residual_out: %s; it must be the type of residual, %s",
                rmsnorm_dtype_name(operands[kResidualOut].dtype),
                rmsnorm_dtype_name(operands[kResidual].dtype));
  }
  if (operands.Has(kDw) && operands.Has(kWeight) &&
      !EqualColumns(operands[kDw], operands[kWeight])) {
    return Fail(RMSNORM_ERROR_SHAPE, "dw: its shape differs from that of weight");
  }
  RMSNORM_RETURN_IF_ERROR(CheckOverlaps(roles.outputs & operands.given, operands));

  const rmsnorm_view& x = operands[kX];
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

rmsnorm_status CheckOptionsFit(Operation operation, const rmsnorm_options& options,
                               const Operands& operands, bool own_weight) {
  const bool is_scaled = (operands.given & (SetOf(kY) | SetOf(kQ) | SetOf(kDx) | SetOf(kDw))) != 0;
  const bool has_weight = own_weight || operands.Has(kWeight) || operands.Has(kPostNormWeight);
  if (options.weight_offset != 0.0f && is_scaled && !has_weight) {
    return Fail(RMSNORM_ERROR_WEIGHT_OFFSET, "options: weight_offset is %g, but there is no weight",
                static_cast<double>(options.weight_offset));
  }
  if (operation == Operation::kBackward && options.factor != 1.0f) {
    return Fail(RMSNORM_ERROR_FACTOR, "options: factor is %g; rmsnorm_backward() takes none but 1",
                static_cast<double>(options.factor));
  }
  const bool before = options.gate_placement == RMSNORM_GATE_BEFORE;
  if (!operands.Has(kGate)) {
    const char* const given = options.activation != RMSNORM_SILU                ? "activation"
                              : before                                          ? "gate_placement"
                              : options.gate_rounding != RMSNORM_GATE_UNROUNDED ? "gate_rounding"
                                                                                : nullptr;
    if (given == nullptr) return RMSNORM_OK;
    return Fail(RMSNORM_ERROR_GATE, "options: %s is given, but there is no gate", given);
  }
  if (before && operands.Has(kResidual)) {
    return Fail(RMSNORM_ERROR_OPERAND, "gate: before the norm it excludes a residual");
  }
  if (before && options.gate_rounding != RMSNORM_GATE_UNROUNDED) {
    return Fail(RMSNORM_ERROR_GATE, "options: gate_rounding needs a gate after the norm");
  }
  return RMSNORM_OK;
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
  } else {
    RMSNORM_RETURN_IF_ERROR(ReadOptions(options, call.options));
  }
  RMSNORM_RETURN_IF_ERROR(CheckOperands(operation, operands, by_module, call.operands));
  RMSNORM_RETURN_IF_ERROR(CheckOptionsFit(operation, call.options, call.operands, by_module));
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
