// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "module.h"
#include "options.h"
#include "portable.h"
#include "reference.h"
#include "status.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

constexpr rmsnorm_context kDefaultContext = [] {
  rmsnorm_context context = {};
  context.size = sizeof context;
  return context;
}();

// ------------------------------------------------------------------ structs that grow

// Copies a struct, which begins with its size, over a struct of the defaults. Null leaves these as
// they are. A smaller one lacks whole fields. No struct has padding, where programs could leave
// anything.
template <class Struct>
rmsnorm_status ReadStruct(const char* name, const Struct* given, Struct& read) {
  constexpr size_t kKnown = sizeof(Struct);
  constexpr size_t kLargest = 4096;  // a larger size is no size
  if (given == nullptr) return RMSNORM_OK;
  uint32_t size;
  std::memcpy(&size, given, sizeof size);
  if (RMSNORM_LIKELY(size == kKnown)) {
    std::memcpy(&read, given, kKnown);
    return RMSNORM_OK;
  }
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
  read.size = kKnown;
  return RMSNORM_OK;
}

// ------------------------------------------------------------------ a view by itself

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
  char ndim[24];
  if (view.ndim != RMSNORM_VIEW_WRONG_NDIM) {
    std::snprintf(ndim, sizeof(ndim), "%d", view.ndim);
  } else if (view.stride[0] != 0) {
    std::snprintf(ndim, sizeof(ndim), "%td", static_cast<ptrdiff_t>(view.shape[0]));
  } else {
    std::snprintf(ndim, sizeof(ndim), "%zu", view.shape[0]);
  }
  return Fail(RMSNORM_ERROR_SHAPE, "%s: %s dimensions; 1 to %d are possible", name, ndim,
              RMSNORM_MAX_DIMS);
}

// The type, the dimensions, the size and the pointer of a view. `extent` receives the bytes that it
// spans.
rmsnorm_status CheckView(Operand operand, int32_t group, const rmsnorm_view& view, Extent& extent) {
  const OperandRule& rule = kOperandRules[operand];
  RMSNORM_RETURN_IF_ERROR(CheckDtype(rule.name, rule.dtype, view.dtype));
  RMSNORM_RETURN_IF_ERROR(CheckDimensions(rule.name, view));
  const bool has_row = HasRowDimension(operand, group);
  const int rows = view.ndim - (has_row ? 1 : 0);
  const size_t element_size = ElementSize(view.dtype);
  size_t before = 0;  // elements before data, and from data on
  size_t after = 1;
  if (has_row) {
    const size_t d = view.shape[rows];
    if (d == 0) {
      return Fail(RMSNORM_ERROR_SHAPE, "%s: the last dimension%s is 0", rule.name,
                  rule.length == Length::kD ? ", d," : "");
    }
    if (d > 1 && view.stride[rows] != 1) {
      return Fail(
          RMSNORM_ERROR_LAYOUT, "%s: stride %td in the last dimension; it must be contiguous (1)%s",
          rule.name, view.stride[rows],
          static_cast<size_t>(view.stride[rows]) == element_size ? "; strides count elements" : "");
    }
    after = d;
  }
  extent = {0, 0, true, has_row};
  bool in_order = true;
  bool overflows = false;
  size_t count = after;  // elements, repeated ones too: nobody checks the product of sizes again
  for (int i = rows - 1; i >= 0; --i) {
    const ptrdiff_t stride = view.stride[i];
    if (view.shape[i] == 0) return RMSNORM_OK;
    if (view.shape[i] == 1) continue;
    const size_t step = stride < 0 ? 0 - static_cast<size_t>(stride) : static_cast<size_t>(stride);
    in_order &= step >= before + after;
    size_t reach;
    overflows |= MultiplyOverflows(count, view.shape[i], &count);
    overflows |= MultiplyOverflows(step, view.shape[i] - 1, &reach);
    size_t& side = stride < 0 ? before : after;
    overflows |= AddOverflows(side, reach, &side);
  }
  const auto data = reinterpret_cast<uintptr_t>(view.data);
  size_t bytes;
  overflows |= AddOverflows(before, after, &bytes);
  overflows |= MultiplyOverflows(bytes, element_size, &bytes);
  overflows |= bytes > PTRDIFF_MAX;
  const uintptr_t begin = data - before * element_size;
  const uintptr_t end = begin + bytes;
  if (data == 0 && !overflows) return Fail(RMSNORM_ERROR_NULL, "%s: data is null", rule.name);
  if (overflows || begin > data || end < data) {
    return Fail(RMSNORM_ERROR_LAYOUT, "%s: spans more bytes than an address can count", rule.name);
  }
  if ((data & (element_size - 1)) != 0) {
    return Fail(RMSNORM_ERROR_LAYOUT, "%s: %p is not aligned to its element of %zu bytes",
                rule.name, view.data, element_size);
  }
  extent = {begin, end, in_order, has_row};
  return RMSNORM_OK;
}

// ------------------------------------------------------------------ a view beside x

// Checks the length of a row of pairs.
rmsnorm_status CheckPairs(const char* name, size_t pairs, size_t d) {
  if (pairs <= d / 2) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_SHAPE,
              "%s: %zu elements in its last dimension; rows of %zu have %zu pairs", name, pairs, d,
              d / 2);
}

// Checks that a view has the right length of a row, if its last dimension is one, and the leading
// dimensions of x or, where rows share them, the last of these, each equal or 1.
rmsnorm_status CheckShape(Operand operand, int32_t group, const rmsnorm_view& view, bool has_row,
                          const rmsnorm_view& x) {
  const OperandRule& rule = kOperandRules[operand];
  const bool is_shared = rule.leading == Leading::kShared;
  const int rows = view.ndim - (has_row ? 1 : 0);
  if (!has_row && x.ndim == 1) {
    if (view.ndim == 1 && view.shape[0] == 1) return RMSNORM_OK;
    return Fail(RMSNORM_ERROR_SHAPE, "%s: it must be one element, as x is one row", rule.name);
  }
  const int lacks = x.ndim - 1 - rows;
  if (is_shared ? lacks < 0 : lacks != 0) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions, but x has %d%s", rule.name, view.ndim,
                view.ndim + lacks, has_row ? "" : " leading ones");
  }
  for (int i = view.ndim - 1; i >= 0; --i) {
    const bool is_row = i == rows;
    const size_t size = view.shape[i];
    const size_t of_x = x.shape[lacks + i];
    if (is_row && rule.length == Length::kPairs) {
      RMSNORM_RETURN_IF_ERROR(CheckPairs(rule.name, size, of_x));
      continue;
    }
    const size_t wanted = is_row ? RowLengthOf(operand, of_x, group) : of_x;
    if (size == wanted || (is_shared && size == 1 && !is_row)) continue;
    if (is_row && rule.length == Length::kGroups) {
      return Fail(RMSNORM_ERROR_SHAPE,
                  "%s: %zu elements in its last dimension; it must be d / group, %zu", rule.name,
                  size, wanted);
    }
    if (is_row && is_shared) {
      return Fail(RMSNORM_ERROR_SHAPE, "%s: %zu elements in its last dimension for rows of %zu",
                  rule.name, size, of_x);
    }
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %zu in dimension %d, but x has %zu in dimension %d%s",
                rule.name, size, i, of_x, lacks + i, is_shared ? "; it must be that or 1" : "");
  }
  return RMSNORM_OK;
}

// Whether a view of rows has the type, the shape and the strides of x, so that what was found of x
// holds for it too. `extent` receives the bytes that it spans. Returns false also where the data
// may be wrong, or x has no rows.
bool IsLikeX(const rmsnorm_view& view, const rmsnorm_view& x, const Extent& of_x, Extent& extent) {
  if (view.ndim != x.ndim) return false;
  for (int i = 0; i < x.ndim; ++i) {
    if (view.shape[i] != x.shape[i] || view.stride[i] != x.stride[i]) return false;
  }
  const auto data = reinterpret_cast<uintptr_t>(view.data);
  const uintptr_t distance = data - reinterpret_cast<uintptr_t>(x.data);
  extent = {of_x.begin + distance, of_x.end + distance, of_x.in_order, true};
  // The data lies from begin on and below end, unless one of these is no address.
  const bool is_aligned = (data & (ElementSize(view.dtype) - 1)) == 0;
  return view.dtype == x.dtype && is_aligned && data != 0 && extent.begin <= data &&
         data < extent.end;
}

// Whether two views have the same dimensions, apart from leading ones of 1.
bool EqualColumns(const rmsnorm_view& a, const rmsnorm_view& b) {
  for (int i = 1; i <= std::max(a.ndim, b.ndim); ++i) {
    const size_t of_a = i <= a.ndim ? a.shape[a.ndim - i] : 1;
    const size_t of_b = i <= b.ndim ? b.shape[b.ndim - i] : 1;
    if (of_a != of_b) return false;
  }
  return true;
}

// ------------------------------------------------------------------ operands together

const char* NameOfFirst(OperandSet set) { return kOperandRules[FirstOf(set)].name; }

// Checks which operands go together.
rmsnorm_status CheckTogether(OperandSet given) {
  constexpr OperandSet kWithConditions =
      OperandsWhere([](const OperandRule& rule) { return (rule.needs | rule.excludes) != 0; });
  for (OperandSet rest = given & kWithConditions; rest != 0; rest &= rest - 1) {
    const OperandRule& rule = kOperandRules[FirstOf(rest)];
    if (rule.needs != 0 && (rule.needs & given) == 0) {
      return Fail(RMSNORM_ERROR_OPERAND, "%s: there is no %s", rule.name, NameOfFirst(rule.needs));
    }
    const OperandSet excluded = rule.excludes & given;
    if (excluded == 0) continue;
    return Fail(RMSNORM_ERROR_OPERAND, "%s: excludes %s", rule.name, NameOfFirst(excluded));
  }
  return RMSNORM_OK;
}

// Finds the views, and checks which there are beside the module's own.
rmsnorm_status FindViews(Operation operation, const Roles& roles, const rmsnorm_operands& given,
                         OperandSet own, Operands& operands) {
  operands.given = 0;
#pragma GCC unroll 32
  for (int i = 0; i < kOperands; ++i) {
    const auto operand = static_cast<Operand>(i);
    const rmsnorm_view* const view = ViewIn(given, operand);
    // Most are absent, and jumps over these show in a call of one short row.
    if (!RMSNORM_LIKELY(view == nullptr)) operands.Set(operand, view);
  }
  const OperandSet missing = roles.required & ~operands.given;
  if (missing != 0) {
    return Fail(RMSNORM_ERROR_NULL, "%s: the view is null", NameOfFirst(missing));
  }
  const OperandSet alien = roles.absent & (operands.given | own);
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
  const OperandSet twice = own & operands.given;
  if (twice != 0) {
    return Fail(RMSNORM_ERROR_OPERAND, "%s: the module has its own", NameOfFirst(twice));
  }
  operands.outputs = roles.outputs & operands.given;
  if (operands.outputs == 0) {
    return Fail(RMSNORM_ERROR_NULL, "%s",
                operation == Operation::kForward
                    ? "y: the view is null; at least one output is needed"
                    : "dx: the view is null, and so are dw and db; one of them is needed");
  }
  return CheckTogether(operands.given | own);
}

// Checks that the outputs of a call share no memory with the operands of another call, whose index
// an error names, or with its own operands, except that an output may replace one of these.
rmsnorm_status CheckApart(const Operands& call, const Operands& other_call, size_t index = 0) {
  const bool is_own = &call == &other_call;
  for (OperandSet outputs = call.outputs; outputs != 0; outputs &= outputs - 1) {
    const Operand output = FirstOf(outputs);
    // A message about two outputs of one call begins with the later one.
    OperandSet others = other_call.given & ~(is_own ? outputs : 0);
    for (; others != 0; others &= others - 1) {
      const Operand other = FirstOf(others);
      if (Disjoint(call.extent[output], other_call.extent[other])) continue;
      const Placed of_output = {call[output], call.extent[output]};
      const Placed of_other = {other_call[other], other_call.extent[other]};
      const bool may_replace = is_own && kOperandRules[output].in_place_of == other;
      if (may_replace && IsInPlace(of_other.view, of_output.view)) continue;
      if (Apart(of_other, of_output)) continue;
      const bool in_bytes = LooksLikeBytes(of_other) || LooksLikeBytes(of_output);
      const ShortText prefix = is_own ? ShortText() : ShortText().Add("calls[%zu].", index);
      return Fail(RMSNORM_ERROR_OVERLAP, "%s: overlaps %s%s or lies between its rows%s%s",
                  kOperandRules[output].name, prefix.c_str(), kOperandRules[other].name,
                  may_replace ? "; in place means the same data, strides and element size" : "",
                  in_bytes ? "; strides count elements, not bytes" : "");
    }
  }
  return RMSNORM_OK;
}

// How many calls, from the first on, are apart from each other. Throws std::bad_alloc.
size_t CountApart(const CheckedCall* calls, size_t count) {
  const auto are_apart = [calls](size_t first_calls) {
    std::vector<PlacedOfCall> all;
    for (size_t i = 0; i < first_calls; ++i) {
      const Operands& operands = calls[i].operands;
      ForEachOperand(operands.given, [&](Operand operand) {
        const bool is_output = (operands.outputs & SetOf(operand)) != 0;
        all.push_back({{operands[operand], operands.extent[operand]}, i, is_output});
      });
    }
    return CallsApart(all);
  };
  if (are_apart(count)) return count;
  size_t apart = 1;
  size_t too_many = count;
  while (too_many - apart > 1) {
    const size_t middle = (apart + too_many) / 2;
    (are_apart(middle) ? apart : too_many) = middle;
  }
  return apart;
}

// Checks what the tables of rotary positions need beside their own shapes.
rmsnorm_status CheckRotation(const Operands& operands) {
  constexpr size_t kLongest = kBlock;  // a row that is rotated stays in a tile
  if (!operands.Has(kY) && !operands.Has(kDy)) {
    return Fail(RMSNORM_ERROR_OPERAND, "cos: there is no y");
  }
  if (operands.d > kLongest) {
    return Fail(RMSNORM_ERROR_SHAPE, "cos: it rotates rows of at most %zu elements, and x has %zu",
                kLongest, operands.d);
  }
  const size_t pairs = operands[kCos].shape[operands[kCos].ndim - 1];
  const size_t of_sin = operands[kSin].shape[operands[kSin].ndim - 1];
  if (pairs == of_sin) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_SHAPE, "sin: %zu elements in its last dimension, but cos has %zu",
              of_sin, pairs);
}

}  // namespace

rmsnorm_status CheckDtype(const char* argument, rmsnorm_dtype only, rmsnorm_dtype dtype) {
  const bool is_right = only == 0 ? RMSNORM_F32 <= dtype && dtype <= RMSNORM_BF16 : dtype == only;
  if (is_right) return RMSNORM_OK;
  const char* const name = rmsnorm_dtype_name(dtype);
  const ShortText given =
      name != nullptr ? ShortText().Add("%s", name) : ShortText().Add("unknown dtype %d", dtype);
  return Fail(RMSNORM_ERROR_DTYPE, "%s: %s; it must be %s", argument, given.c_str(),
              only == 0 ? "f32, f16 or bf16" : rmsnorm_dtype_name(only));
}

rmsnorm_status ReadOptions(const rmsnorm_options* given, rmsnorm_options& options,
                           OptionSet& changed) {
  options = rmsnorm_default_options();
  changed = 0;
  if (given == nullptr) return RMSNORM_OK;
  RMSNORM_RETURN_IF_ERROR(ReadStruct("options", given, options));
  changed = ChangedOptions(options);
  return CheckOptions(options, changed);
}

rmsnorm_status ReadContext(const rmsnorm_context* given, rmsnorm_context& copy,
                           const rmsnorm_context*& context) {
  context = given != nullptr ? given : &kDefaultContext;
  if (context->size != sizeof copy) {
    copy = kDefaultContext;
    RMSNORM_RETURN_IF_ERROR(ReadStruct("context", given, copy));
    context = &copy;
  }
  if (context->threads < 0) {
    return Fail(RMSNORM_ERROR_OPTION, "context: threads is %d; it must be 0 or larger",
                context->threads);
  }
  if (context->stores < RMSNORM_STORES_BY_SIZE || context->stores > RMSNORM_STORES_CACHED) {
    return Fail(RMSNORM_ERROR_OPTION, "context: stores is %d; it must be one of RMSNORM_STORES_...",
                context->stores);
  }
  if (context->reserved != 0) {
    return Fail(RMSNORM_ERROR_OPTION, "context: reserved is %d; it must be 0", context->reserved);
  }
  return RMSNORM_OK;
}

rmsnorm_status CheckOperands(Operation operation, const rmsnorm_operands* given, OperandSet own,
                             int32_t group, Operands& operands) {
  if (given == nullptr) return Fail(RMSNORM_ERROR_NULL, "operands: the pointer is null");
  rmsnorm_operands read;
  if (given->size != sizeof read) {
    read = rmsnorm_no_operands();
    RMSNORM_RETURN_IF_ERROR(ReadStruct("operands", given, read));
    given = &read;
  }
  const Roles& roles = RolesIn(operation);
  RMSNORM_RETURN_IF_ERROR(FindViews(operation, roles, *given, own, operands));

  const rmsnorm_view& x = operands[kX];
  RMSNORM_RETURN_IF_ERROR(CheckView(kX, group, x, operands.extent[kX]));
  operands.d = x.shape[x.ndim - 1];
  RMSNORM_RETURN_IF_ERROR(CheckGroup(group, operands.d));
  operands.like_x = SetOf(kX);
  for (OperandSet rest = operands.given & ~SetOf(kX); rest != 0; rest &= rest - 1) {
    const Operand operand = FirstOf(rest);
    const rmsnorm_view& view = operands[operand];
    Extent& extent = operands.extent[operand];
    if ((kRowsOfAnyType & SetOf(operand)) != 0 && IsLikeX(view, x, operands.extent[kX], extent)) {
      operands.like_x |= SetOf(operand);
    } else {
      RMSNORM_RETURN_IF_ERROR(CheckView(operand, group, view, extent));
      RMSNORM_RETURN_IF_ERROR(CheckShape(operand, group, view, extent.has_row, x));
    }
    if (!extent.in_order && (operands.outputs & SetOf(operand)) != 0) {
      RMSNORM_RETURN_IF_ERROR(CheckRowsToldApart(operand, {view, extent}));
    }
  }
  if (operands.Has(kResidualOut) && operands[kResidualOut].dtype != operands[kResidual].dtype) {
    return Fail(RMSNORM_ERROR_DTYPE, "residual_out: %s; it must be the type of residual, %s",
                rmsnorm_dtype_name(operands[kResidualOut].dtype),
                rmsnorm_dtype_name(operands[kResidual].dtype));
  }
  if (operands.Has(kCos)) RMSNORM_RETURN_IF_ERROR(CheckRotation(operands));
  if (operands.Has(kDw) && operands.Has(kWeight) &&
      !EqualColumns(operands[kDw], operands[kWeight])) {
    return Fail(RMSNORM_ERROR_SHAPE, "dw: its shape differs from the shape of weight");
  }
  RMSNORM_RETURN_IF_ERROR(CheckApart(operands, operands));
  operands.rows = 1;
  for (int i = 0; i + 1 < x.ndim; ++i) operands.rows *= x.shape[i];
  return RMSNORM_OK;
}

rmsnorm_status CheckGroup(int32_t group, size_t d) {
  if (group == 0 || d % static_cast<size_t>(group) == 0) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_OPTION, "options: group is %d; it does not divide rows of %zu", group,
              d);
}

rmsnorm_status CheckCallsApart(const CheckedCall* calls, size_t count) {
  size_t apart = 1;
  try {
    if (count > kFewCalls) apart = CountApart(calls, count);
    // GCOVR_EXCL_START: no test can make this small allocation fail.
  } catch (const std::bad_alloc&) {
    return Fail(RMSNORM_ERROR_MEMORY, "calls: no memory to compare %zu of them", count);
  }  // GCOVR_EXCL_STOP
  for (size_t i = apart; i < count; ++i) {
    for (size_t earlier = 0; earlier < i; ++earlier) {
      for (const auto& [a, b] : {std::pair(earlier, i), std::pair(i, earlier)}) {
        const rmsnorm_status status = CheckApart(calls[a].operands, calls[b].operands, b);
        if (status != RMSNORM_OK) return FailOfCall(a, status);
      }
    }
  }
  return RMSNORM_OK;
}

rmsnorm_status CheckCall(Operation operation, const rmsnorm_module* module,
                         const rmsnorm_operands* operands, const rmsnorm_options* options,
                         CheckedCall& call) {
  const bool by_module = module != nullptr;
  if (by_module && options != nullptr) {
    return Fail(RMSNORM_ERROR_OPERAND, "options: the module has its own");
  }
  call.module = module;
  if (by_module) {
    call.options = module->options;
    call.changed_options = module->changed_options;
    call.own = module->OwnIn(operation);
  } else {
    RMSNORM_RETURN_IF_ERROR(ReadOptions(options, call.options, call.changed_options));
    call.own = 0;
  }
  RMSNORM_RETURN_IF_ERROR(
      CheckOperands(operation, operands, call.own, call.options.group, call.operands));
  if (call.changed_options != 0) {
    RMSNORM_RETURN_IF_ERROR(
        CheckOptionsFit(operation, call.options, call.changed_options, call.operands, call.own));
  }
  if (!by_module || call.operands.d == module->d) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_SHAPE, "x: rows of %zu, but the module is for %zu", call.operands.d,
              module->d);
}

rmsnorm_status CheckVector(Operand operand, const rmsnorm_view* view, size_t d) {
  const char* const name = kOperandRules[operand].name;
  if (view == nullptr) return Fail(RMSNORM_ERROR_NULL, "%s: the view is null", name);
  Extent extent;
  RMSNORM_RETURN_IF_ERROR(CheckView(operand, 0, *view, extent));
  if (view->ndim != 1) {
    return Fail(RMSNORM_ERROR_SHAPE, "%s: %d dimensions; it must have one", name, view->ndim);
  }
  return CheckShape(operand, 0, *view, true, rmsnorm_vector(nullptr, RMSNORM_F32, d));
}

}  // namespace rmsnorm::internal

size_t rmsnorm_dtype_size(rmsnorm_dtype dtype) noexcept {
  return rmsnorm::internal::ElementSize(dtype);
}

const char* rmsnorm_dtype_name(rmsnorm_dtype dtype) noexcept {
  constexpr const char* kNames[] = {nullptr, "f32", "f16", "bf16", "f64", "i8"};
  return RMSNORM_F32 <= dtype && dtype <= RMSNORM_I8 ? kNames[dtype] : nullptr;
}

rmsnorm_context rmsnorm_default_context() noexcept { return rmsnorm::internal::kDefaultContext; }
