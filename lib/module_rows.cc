// SPDX-License-Identifier: Apache-2.0
// Calls of a module by pointers, of dense rows. A valid call with little work is run directly: its
// pointers become a RowRun, without views or a plan. Every other call is made by views, where the
// checks find what is wrong with it.
#include <algorithm>
#include <cstdint>

#include "checks.h"
#include "float_environment.h"
#include "module.h"
#include "options.h"
#include "plan.h"
#include "portable.h"
#include "reference.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

// Rows of one type without gaps. No product overflows in a direct call.
struct DenseRows {
  rmsnorm_dtype dtype;
  size_t count;
  size_t d;

  // Without ElementSize(), which knows every type: its switch shows in a call of one short row.
  size_t ElementBytes(Operand operand) const {
    return !kOperandRules[operand].HasShapeOfX() || dtype == RMSNORM_F32 ? 4 : 2;
  }
  size_t BytesOfRow(Operand operand) const {
    return ElementBytes(operand) * RowLengthOf(operand, d, 0);
  }
};

// What a function takes by its pointer; null where it is absent.
template <Operand kOperand>
struct Given {
  const void* data;
};

// What may be null. A direct call has all of its operands.
constexpr OperandSet kOptional = SetOf(kRstd) | SetOf(kDx) | SetOf(kDw);

// ------------------------------------------------------------------ valid calls

// The bytes of an operand, at least one.
struct Bytes {
  uintptr_t begin;
  size_t count;
};

template <Operand kOperand>
Bytes BytesOf(const DenseRows& rows, Given<kOperand> given) {
  const bool is_shared = kOperandRules[kOperand].leading == Leading::kShared;
  return {reinterpret_cast<uintptr_t>(given.data),
          (is_shared ? 1 : rows.count) * rows.BytesOfRow(kOperand)};
}

// Whether two operands share no byte. Modulo 2^64, b begins at least a.count bytes after a, and a
// at least b.count bytes after b. A single comparison takes half the instructions of two.
bool AreApart(const Bytes& a, const Bytes& b) {
  return b.begin - a.begin - a.count <= uintptr_t{0} - a.count - b.count;
}

// Whether an output shares no byte with another operand, or has its place.
bool IsApartOrInPlace(Operand output, const Bytes& bytes, Operand other, const Bytes& other_bytes) {
  return AreApart(bytes, other_bytes) ||
         (kOperandRules[output].in_place_of == other && bytes.begin == other_bytes.begin);
}

// The same for every other operand. Of two outputs the later one is compared with the earlier.
// Inlined, as clang would make it a function.
template <Operation kOperation, Operand kOutput, Operand... kGiven>
RMSNORM_ALWAYS_INLINE bool IsApartFromAll(const Bytes (&bytes)[kOperands]) {
  constexpr OperandSet kOutputs = RolesIn(kOperation).outputs;
  if ((kOutputs & SetOf(kOutput)) == 0) return true;
  const auto is_compared = [](Operand given) {
    return given < kOutput || (kOutputs & SetOf(given)) == 0;
  };
  return (
      (!is_compared(kGiven) || IsApartOrInPlace(kOutput, bytes[kOutput], kGiven, bytes[kGiven])) &&
      ...);
}

// Whether a call with little work runs with this context as it does with the module's. It takes a
// pointer: by a reference, the compiler may read every field before the size, and the struct of an
// older program ends earlier.
bool IsUsual(const rmsnorm_module& module, const rmsnorm_context* context) {
  if (context == nullptr) return true;
  if (context->size != sizeof *context) return false;
  const rmsnorm_stores stores = context->stores;
  return context->threads >= 0 && context->target == nullptr && module.has_usual_target &&
         context->reserved == 0 &&
         (stores == RMSNORM_STORES_BY_SIZE || stores == RMSNORM_STORES_CACHED);
}

template <Operation kOperation, Operand... kGiven>
bool ArePlain(const DenseRows& rows, Given<kGiven>... given) {
  const auto is_aligned = [&](Operand operand, const void* data) {
    return data != nullptr &&
           (reinterpret_cast<uintptr_t>(data) & (rows.ElementBytes(operand) - 1)) == 0;
  };
  if (!(is_aligned(kGiven, given.data) && ...)) return false;
  Bytes bytes[kOperands];
  ((bytes[kGiven] = BytesOf(rows, given)), ...);
  return (IsApartFromAll<kOperation, kGiven, kGiven...>(bytes) && ...);
}

// ------------------------------------------------------------------ the two ways

// By views, for the checks to find what is wrong. An optional operand that is null is absent,
// except the rows of a call without rows.
template <Operation kOperation, Operand... kGiven>
RMSNORM_NOINLINE rmsnorm_status CallByViews(const rmsnorm_module* module, const DenseRows& rows,
                                            rmsnorm_dtype residual_dtype,
                                            const rmsnorm_context* context,
                                            Given<kGiven>... given) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_view views[sizeof...(kGiven)];  // no more: the stack is small
  rmsnorm_view* next = views;
  const auto set = [&](Operand operand, const void* data) {
    const OperandRule& rule = kOperandRules[operand];
    const bool is_residual = operand == kResidual || operand == kResidualOut;
    const rmsnorm_dtype dtype = is_residual ? residual_dtype : rows.dtype;
    const bool is_absent = (kOptional & SetOf(operand)) != 0 && data == nullptr;
    if (is_absent && (rows.count > 0 || !rule.HasShapeOfX())) return;
    *next = rule.HasShapeOfX()
                ? rmsnorm_rows(data, dtype, rows.count, rows.d, static_cast<ptrdiff_t>(rows.d))
                : rmsnorm_vector(data, RMSNORM_F32,
                                 rule.leading == Leading::kShared ? rows.d : rows.count);
    SetViewIn(operands, operand, next++);
  };
  (set(kGiven, given.data), ...);
  return kOperation == Operation::kForward ? rmsnorm_module_forward(module, &operands, context)
                                           : rmsnorm_module_backward(module, &operands, context);
}

// Runs the kernel of a direct call.
template <Operation kOperation, Operand... kGiven>
RMSNORM_ALWAYS_INLINE void CallKernel(const rmsnorm_module& module, const DenseRows& rows,
                                      Given<kGiven>... given) {
  const Norm& norm = module.NormOf(rows.dtype);
  RowRun run(rows.count, rows.d);
  const auto set_own = [&](Operand operand) {
    run.Set(operand, DataOf(module.ColumnOf(operand)), 0);
  };
  set_own(kWeight);
  if (kOperation == Operation::kForward && module.held != SetOf(kWeight)) {
    ForEachOperand(module.held & ~SetOf(kWeight), set_own);
  }
  const auto set = [&](Operand operand, const void* data) {
    const bool is_shared = kOperandRules[operand].leading == Leading::kShared;
    run.Set(operand, const_cast<void*>(data),
            is_shared ? 0 : static_cast<ptrdiff_t>(rows.BytesOfRow(operand)));
  };
  (set(kGiven, given.data), ...);
  run.start_sums = true;
  const DefaultFloatEnvironment environment;
  if (kOperation == Operation::kForward) {
    norm.kernels->forward(norm, run);
  } else {
    norm.kernels->backward(norm, run);
  }
}

template <Operation kOperation, Operand... kGiven>
RMSNORM_ALWAYS_INLINE rmsnorm_status CallByPointers(const rmsnorm_module* module,
                                                    rmsnorm_dtype dtype,
                                                    rmsnorm_dtype residual_dtype, size_t count,
                                                    const rmsnorm_context* context,
                                                    Given<kGiven>... given) {
  const DenseRows rows = {dtype, count, module != nullptr ? module->d : 0};
  const bool may_be_direct = module != nullptr && dtype >= RMSNORM_F32 && dtype <= RMSNORM_BF16 &&
                             residual_dtype == dtype &&
                             count - 1 < module->most_direct_rows[static_cast<int>(kOperation)] &&
                             IsUsual(*module, context);
  if (!RMSNORM_LIKELY(may_be_direct && ArePlain<kOperation>(rows, given...))) {
    return CallByViews<kOperation>(module, rows, residual_dtype, context, given...);
  }
  CallKernel<kOperation>(*module, rows, given...);
  return RMSNORM_OK;
}

// Whether an operation takes what a module holds and its options, in calls that have no other
// operands than such calls have.
bool TakesModule(Operation operation, const rmsnorm_module& module) {
  if ((RolesIn(operation).absent & module.OwnIn(operation)) != 0) return false;
  for (OptionSet changed = module.changed_options; changed != 0; changed &= changed - 1) {
    const OptionRule& rule = kOptionRules[FirstOption(changed)];
    const OperandSet needs = NeedsIn(operation, rule);
    const bool lacks_operand = needs != 0 && (needs & SetOf(kWeight)) == 0;
    const bool is_refused =
        operation == Operation::kBackward && rule.gradient == Gradient::kRefused;
    if (lacks_operand || is_refused) return false;
  }
  return true;
}

}  // namespace

size_t MostDirectRows(Operation operation, const rmsnorm_module& module) {
  const bool is_streamed = module.context.stores == RMSNORM_STORES_STREAMED;
  if (is_streamed || !TakesModule(operation, module)) return 0;
  if (operation == Operation::kBackward) {
    return std::min((kLeastStreamed - 1) / sizeof(float) / module.d, kMinRowsPerBlock);
  }
  size_t longest = 1;  // picoseconds of a row
  for (rmsnorm_dtype dtype = RMSNORM_F32; dtype <= RMSNORM_BF16; ++dtype) {
    longest = std::max(
        longest, PicosecondsOf(*module.kernels, dtype, SetOf(kResidual) | module.held, module.d));
  }
  return 2 * kLeastOfPart / longest;
}

}  // namespace rmsnorm::internal

using namespace rmsnorm::internal;

rmsnorm_status rmsnorm_module_norm_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                        size_t rows, const void* x, void* y, float* rstd,
                                        const rmsnorm_context* context) noexcept {
  const auto call = [&](auto... others) {
    return CallByPointers<Operation::kForward>(module, dtype, dtype, rows, context, Given<kX>{x},
                                               Given<kY>{y}, others...);
  };
  return rstd == nullptr ? call() : call(Given<kRstd>{rstd});
}

rmsnorm_status rmsnorm_module_add_norm_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                            rmsnorm_dtype residual_dtype, size_t rows,
                                            const void* x, const void* residual, void* residual_out,
                                            void* y, float* rstd,
                                            const rmsnorm_context* context) noexcept {
  const auto call = [&](auto... others) {
    return CallByPointers<Operation::kForward>(
        module, dtype, residual_dtype, rows, context, Given<kX>{x}, Given<kResidual>{residual},
        Given<kResidualOut>{residual_out}, Given<kY>{y}, others...);
  };
  return rstd == nullptr ? call() : call(Given<kRstd>{rstd});
}

rmsnorm_status rmsnorm_module_backward_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                            size_t rows, const void* dy, const void* x,
                                            const float* rstd, void* dx, float* dw,
                                            const rmsnorm_context* context) noexcept {
  return CallByPointers<Operation::kBackward>(module, dtype, dtype, rows, context, Given<kDy>{dy},
                                              Given<kX>{x}, Given<kRstd>{rstd}, Given<kDx>{dx},
                                              Given<kDw>{dw});
}
