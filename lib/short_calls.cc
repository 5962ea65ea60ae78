// SPDX-License-Identifier: Apache-2.0
#include "short_calls.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "calls.h"
#include "module.h"
#include "norm.h"
#include "options.h"
#include "status.h"

namespace rmsnorm::internal {
namespace {

// ------------------------------------------------------------------ sizes and places

// Rows without gaps. No product of what follows overflows in a short call.
struct DenseRows {
  rmsnorm_dtype dtype;  // of what has the shape of x
  size_t count;
  size_t d;

  // ElementSize(), which knows every type, takes 0.7 ns more of the 16 that one row of 64 takes.
  size_t ElementBytes() const { return dtype == RMSNORM_F32 ? 4 : 2; }
  size_t RowBytes() const { return d * ElementBytes(); }
};

bool IsElementType(rmsnorm_dtype dtype) { return dtype >= RMSNORM_F32 && dtype <= RMSNORM_BF16; }

// How many rows of d elements go the short way for so much work. The rows of backward are those of
// one block, whose sums of dw are dw itself or fit the stack.
size_t MostRows(Operation operation, size_t d, size_t work) {
  if (operation == Operation::kForward) return work / d;
  return d <= kSumsOnStack ? std::min(work / kCostOfBackward / d, kMinRowsPerBlock) : 0;
}

Work WorkOf(Operation operation, const Norm& norm, const DenseRows& rows, OperandSet given) {
  const size_t elements = rows.count * rows.d;
  return {norm.kernels, rows.dtype,
          operation == Operation::kBackward ? elements * kCostOfBackward
                                            : CostOfForward(given, elements)};
}

// Whether options ask for nothing that excludes backward or needs a gate.
bool AreUsual(const rmsnorm_options& options) {
  return AreDefaultsBut(SetOf(kEps) | SetOf(kEpsPlacement) | SetOf(kRounding) |
                            SetOf(kResidualRounding) | SetOf(kWeightOffset) | SetOf(kDivisor),
                        options);
}

bool IsAligned(const void* data, size_t element_bytes) {
  return data != nullptr && (reinterpret_cast<uintptr_t>(data) & (element_bytes - 1)) == 0;
}

// The bytes of an operand, at least one.
struct Bytes {
  Bytes() = default;
  Bytes(uintptr_t address, size_t bytes) : begin(address), count(bytes) {}
  Bytes(const void* data, size_t bytes) : Bytes(reinterpret_cast<uintptr_t>(data), bytes) {}

  uintptr_t begin;
  size_t count;
};

// Whether two operands share no byte. The distance from one to the other, modulo 2^64, is at least
// the one's bytes, and from the other to the one the other's: as a single comparison it is half of
// the instructions of two.
bool AreApart(const Bytes& a, const Bytes& b) {
  return b.begin - a.begin - a.count <= uintptr_t{0} - a.count - b.count;
}

// Whether an output shares no byte with another operand, or has its place.
bool IsApartOrInPlace(Operand output, const Bytes& bytes, Operand other, const Bytes& other_bytes) {
  return AreApart(bytes, other_bytes) ||
         (kOperandRules[output].in_place_of == other && bytes.begin == other_bytes.begin);
}

// Of two outputs the later one is compared with the earlier. Inlined, as clang else makes it a
// function and one row of 64 in f32 takes backward 1.3 times as long.
template <Operation kOperation, Operand kOutput, Operand... kGiven>
[[gnu::always_inline]] inline bool IsApartFromAll(const Bytes (&bytes)[kOperands]) {
  constexpr OperandSet kOutputs = RolesIn(kOperation).outputs;
  if ((kOutputs & SetOf(kOutput)) == 0) return true;
  const auto is_other = [](Operand given) {
    return given < kOutput || (kOutputs & SetOf(given)) == 0;
  };
  return ((!is_other(kGiven) || IsApartOrInPlace(kOutput, bytes[kOutput], kGiven, bytes[kGiven])) &&
          ...);
}

// ------------------------------------------------------------------ runs

// Rows whose operands are still to be set. It takes no more instructions than it must: a copy of a
// whole Run is 20 ns where one row of 64 takes 12.
Run MakeRun(const DenseRows& rows, const float* prepared_weight) {
  Run run(rows.count, rows.d);
  run.Set(kWeight, const_cast<float*>(prepared_weight), 0);
  return run;
}

void SetOperand(const DenseRows& rows, Operand operand, const void* data, Run& run) {
  const bool per_row = kOperandRules[operand].shape == Shape::kPerRow;
  run.Set(operand, const_cast<void*>(data),
          static_cast<ptrdiff_t>(per_row ? sizeof(float) : rows.RowBytes()));
}

// Runs backward where dw has sums of its own, and is rounded from them.
[[gnu::noinline]] void RunShortBackwardToSums(const Norm& norm, rmsnorm_dtype dw_dtype, void* dw,
                                              Run& run) {
  alignas(64) float sums[kSumsOnStack];
  run.Set(kDw, sums, 0);
  norm.kernels->backward(norm, run);
  norm.kernels->store_sums(sums, 0, 1, run.d, false, dw_dtype, dw);
}

// dw, of a type of its own, may be null.
void RunShortBackward(const Norm& norm, rmsnorm_dtype dw_dtype, void* dw, Run& run) {
  run.start_sums = true;
  if (dw != nullptr && dw_dtype != RMSNORM_F32)
    return RunShortBackwardToSums(norm, dw_dtype, dw, run);
  if (dw != nullptr) run.Set(kDw, dw, 0);
  norm.kernels->backward(norm, run);
}

// ------------------------------------------------------------------ by views

bool IsVector(const rmsnorm_view& view, size_t count) {
  return view.ndim == 1 && view.shape[0] == count && (count == 1 || view.stride[0] == 1);
}

// Whether a view has the first `dimensions` dimensions of x, and no others, without gaps.
bool IsDense(const rmsnorm_view& view, const rmsnorm_view& x, int dimensions) {
  if (view.ndim != dimensions) return false;
  size_t elements = 1;
  for (int i = dimensions - 1; i >= 0; --i) {
    const size_t count = x.shape[i];
    if (view.shape[i] != count) return false;
    if (count != 1 && view.stride[i] != static_cast<ptrdiff_t>(elements)) return false;
    elements *= count;
  }
  return true;
}

// Reads the view of an operand; false where it is not plainly right. An operand that is absent gets
// a byte of its own in the first page, where no operand lies.
template <Operand kOperand>
bool ReadView(const rmsnorm_operands& operands, const DenseRows& rows, Views& views, Bytes& bytes) {
  constexpr Shape kShape = kOperandRules[kOperand].shape;
  const rmsnorm_view& x = *operands.x;
  const rmsnorm_view* const view = ViewIn(operands, kOperand);
  if (view == nullptr) {
    bytes = Bytes(kOperand, 1);
    return true;
  }
  views.Set(kOperand, view);
  size_t element = rows.ElementBytes();
  size_t elements = rows.count * rows.d;
  if constexpr (kShape == Shape::kRows) {
    if (view->dtype != rows.dtype || !IsDense(*view, x, x.ndim)) return false;
  } else if constexpr (kShape == Shape::kColumns) {
    if (!IsVector(*view, rows.d) || !IsElementType(view->dtype)) return false;
    element = ElementSize(view->dtype);
    elements = rows.d;
  } else {
    if (view->dtype != RMSNORM_F32) return false;
    if (!(x.ndim == 1 ? IsVector(*view, 1) : IsDense(*view, x, x.ndim - 1))) return false;
    element = sizeof(float);
    elements = rows.count;
  }
  bytes = Bytes(view->data, elements * element);
  return IsAligned(view->data, element) && bytes.begin <= UINTPTR_MAX - bytes.count;
}

// Whether there is an operand that is not in the set.
template <OperandSet kSet, int... kAll>
bool HasOther(const rmsnorm_operands& operands, std::integer_sequence<int, kAll...>) {
  return (((kSet & SetOf(static_cast<Operand>(kAll))) == 0 &&
           ViewIn(operands, static_cast<Operand>(kAll)) != nullptr) ||
          ...);
}

// Elements of forward that are far from what is written past the caches.
constexpr size_t kMostWorkOfViews = Threshold(65535, 127);

// A call by views of operands of the pack alone. Each operand has code of its own: beside a
// loop over the table one row of 64 in f32 takes 0.84 of the time forward, and 0.74 backward.
template <Operation kOperation, Operand... kTaken>
class ShortCall {
 public:
  // Reads a call by a module or, where that is null, by options. Returns false where its arguments
  // are not plainly right.
  bool Read(const rmsnorm_module* module, const rmsnorm_operands* operands,
            const rmsnorm_options* options) {
    module_ = module;
    if (operands == nullptr || operands->size != sizeof *operands || !ReadViews(*operands)) {
      return false;
    }
    if (module != nullptr) {
      return options == nullptr && rows_.d == module->d && !views_.Has(kWeight) &&
             AreUsual(module->options);
    }
    return ReadOptions(options, options_) == RMSNORM_OK && AreUsual(options_) &&
           (views_.Has(kWeight) || options_.weight_offset == 0.0f);
  }

  // Whether no output shares a byte with an operand of the other call.
  bool IsApart(const ShortCall& other) const {
    bool apart = true;
    ForEachOperand(RolesIn(kOperation).outputs & views_.given, [&](Operand output) {
      ForEachOperand(other.views_.given, [&](Operand operand) {
        apart = apart && AreApart(bytes_[output], other.bytes_[operand]);
      });
    });
    return apart;
  }

  // Takes the module's norm or makes one for a target, which the rest needs.
  void UseOwnNorm() { norm_ = &module_->NormOf(rows_.dtype); }
  void MakeNorm(const KernelTable& kernels) {
    MakeDenseNorm(kernels, module_ != nullptr ? module_->options : options_, rows_.d, rows_.dtype,
                  made_norm_);
    norm_ = &made_norm_;
  }

  Work ItsWork() const { return WorkOf(kOperation, *norm_, rows_, views_.given); }

  // Adds room for the prepared weight, unless a module has it; and prepares it there.
  void AddWeight(WeightScratch& scratch) const {
    if (module_ == nullptr) scratch.Add(rows_.d, sizeof(float));
  }
  void PrepareWeight(WeightScratch& scratch) {
    if (module_ != nullptr) {
      weight_ = module_->prepared.get();
      return;
    }
    float* const prepared = scratch.Take<float>(rows_.d);
    if (views_.Has(kWeight)) {
      norm_->kernels->prepare(views_[kWeight].dtype, views_[kWeight].data, rows_.d,
                              options_.weight_offset, prepared);
    } else {
      std::fill_n(prepared, rows_.d, 1.0f);
    }
    weight_ = prepared;
  }

  void Execute() const {
    Run run = MakeRun(rows_, weight_);
    const auto set = [&](Operand operand) {
      if (operand == kWeight || operand == kDw || !views_.Has(operand)) return;
      SetOperand(rows_, operand, views_[operand].data, run);
    };
    (set(kTaken), ...);
    if (kOperation == Operation::kForward) {
      norm_->kernels->forward(*norm_, run);
    } else {
      const bool has_dw = views_.Has(kDw);
      RunShortBackward(*norm_, has_dw ? views_[kDw].dtype : 0,
                       has_dw ? DataOf(views_[kDw]) : nullptr, run);
    }
  }

 private:
  // The views as far as all of them are right; false where they are not plainly so.
  bool ReadViews(const rmsnorm_operands& operands) {
    constexpr OperandSet kTakenSet = (SetOf(kTaken) | ...);
    constexpr OperandSet kNeeded = kOperation == Operation::kForward
                                       ? SetOf(kX) | SetOf(kY)
                                       : SetOf(kX) | SetOf(kDy) | SetOf(kDx);
    const rmsnorm_view* const x = operands.x;
    if (x == nullptr || !IsElementType(x->dtype) || x->ndim < 1 || x->ndim > RMSNORM_MAX_DIMS) {
      return false;
    }
    rows_ = {x->dtype, 1, x->shape[x->ndim - 1]};
    for (int i = 0; i + 1 < x->ndim; ++i) {
      if (__builtin_mul_overflow(rows_.count, x->shape[i], &rows_.count)) return false;
    }
    if (rows_.d == 0 || rows_.count - 1 >= MostRows(kOperation, rows_.d, kMostWorkOfViews) ||
        HasOther<kTakenSet>(operands, std::make_integer_sequence<int, kOperands>())) {
      return false;
    }
    return operands.add_to == 0 &&
           (ReadView<kTaken>(operands, rows_, views_, bytes_[kTaken]) && ...) &&
           (views_.given & kNeeded) == kNeeded &&
           (views_.Has(kResidual) || !views_.Has(kResidualOut)) &&
           ((!views_.Has(kTaken) || IsApartFromAll<kOperation, kTaken, kTaken...>(bytes_)) && ...);
  }

  const rmsnorm_module* module_;
  rmsnorm_options options_;  // where there is no module
  DenseRows rows_;
  Views views_;
  Bytes bytes_[kOperands];
  const Norm* norm_;
  Norm made_norm_;
  const float* weight_;
};

using ShortForward =
    ShortCall<Operation::kForward, kX, kResidual, kWeight, kResidualOut, kY, kRstd>;
using ShortBackward = ShortCall<Operation::kBackward, kX, kDy, kWeight, kRstd, kDx, kDw>;

// MakeShortCall() of an operation.
template <class Call>
bool MakeShortCallOf(const rmsnorm_module* module, const rmsnorm_operands* operands,
                     const rmsnorm_options* options, const rmsnorm_context* context) {
  Call call;
  if (!call.Read(module, operands, options)) return false;
  if (module != nullptr && context == nullptr) {
    call.UseOwnNorm();
    if (PartsOf(call.ItsWork(), module->context) > 1) return false;
  } else {
    Place place;
    if (FindPlace(nullptr, context, place) != RMSNORM_OK) return false;
    call.MakeNorm(*place.kernels);
    if (PartsOf(call.ItsWork(), place.context) > 1) return false;
  }
  WeightScratch scratch;
  call.AddWeight(scratch);
  if (!scratch.Allocate()) return false;
  call.PrepareWeight(scratch);
  call.Execute();
  return true;
}

// ------------------------------------------------------------------ by pointers

// Threads read little of what the calling one has just written: 8 x 4096 in bf16 on two threads
// takes 2 us less than the long way.
struct RowsOfRun {
  const Norm* norm;
  const Run* run;
};

void RunPartOfRun(void* state, size_t part, size_t parts) {
  const RowsOfRun& all = *static_cast<const RowsOfRun*>(state);
  Run run = *all.run;
  const size_t begin = PartBegin(run.count, part, parts);
  run.count = PartBegin(run.count, part + 1, parts) - begin;
  ForEachOperand(run.given, [&](Operand operand) {
    run.data[operand] += static_cast<ptrdiff_t>(begin) * run.stride[operand];
  });
  all.norm->kernels->forward(*all.norm, run);
}

// An operand that a function takes by its pointer, and its type where that is a parameter too.
template <Operand kOperand>
struct Given {
  const void* data;
  const rmsnorm_dtype* dtype = nullptr;
};

// All but the rows themselves is f32.
template <Operand kOperand>
size_t ElementBytesOf(const DenseRows& rows) {
  return kOperandRules[kOperand].shape == Shape::kRows ? rows.ElementBytes() : sizeof(float);
}

template <Operand kOperand>
Bytes BytesOf(const DenseRows& rows, Given<kOperand> given) {
  constexpr Shape kShape = kOperandRules[kOperand].shape;
  const size_t elements =
      (kShape == Shape::kColumns ? 1 : rows.count) * (kShape == Shape::kPerRow ? 1 : rows.d);
  return Bytes(given.data, elements * ElementBytesOf<kOperand>(rows));
}

template <Operation kOperation, Operand... kGiven>
bool ArePlain(const DenseRows& rows, Given<kGiven>... given) {
  if (!(IsAligned(given.data, ElementBytesOf<kGiven>(rows)) && ...)) return false;
  Bytes bytes[kOperands];
  ((bytes[kGiven] = BytesOf(rows, given)), ...);
  return (IsApartFromAll<kOperation, kGiven, kGiven...>(bytes) && ...);
}

// The view of what a function takes by its pointer.
template <Operand kOperand>
rmsnorm_view ViewOf(const DenseRows& rows, Given<kOperand> given) {
  switch (kOperandRules[kOperand].shape) {
    case Shape::kRows:
      return rmsnorm_rows(given.data, given.dtype != nullptr ? *given.dtype : rows.dtype,
                          rows.count, rows.d, static_cast<ptrdiff_t>(rows.d));
    case Shape::kColumns:
      return rmsnorm_vector(given.data, RMSNORM_F32, rows.d);
    default:
      return rmsnorm_vector(given.data, RMSNORM_F32, rows.count);
  }
}

// The long way, which finds out what is wrong. The inverse RMS and gradients of rows may be null.
template <Operation kOperation, Operand... kGiven>
[[gnu::noinline]] rmsnorm_status CallByViews(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                             size_t count, const rmsnorm_context* context,
                                             Given<kGiven>... given) {
  constexpr bool kForward = kOperation == Operation::kForward;
  const DenseRows rows = {dtype, count, rmsnorm_module_d(module)};
  rmsnorm_operands operands = rmsnorm_no_operands();
  const rmsnorm_view views[] = {ViewOf(rows, given)...};
  const rmsnorm_view* view = views;
  const auto set = [&](Operand operand, const void* data) {
    const bool needed = operand != kRstd && (kForward || operand == kX || operand == kDy ||
                                             (operand == kDx && count == 0));
    if (needed || data != nullptr) SetViewIn(operands, operand, view);
    ++view;
  };
  (set(kGiven, given.data), ...);
  return kForward ? rmsnorm_module_forward(module, &operands, context)
                  : rmsnorm_module_backward(module, &operands, context);
}

template <Operation kOperation, Operand... kGiven>
[[gnu::always_inline]] inline rmsnorm_status CallByPointers(const rmsnorm_module* module,
                                                            rmsnorm_dtype dtype, size_t count,
                                                            Given<kGiven>... given) {
  constexpr bool kForward = kOperation == Operation::kForward;
  if (module != nullptr && IsElementType(dtype) &&
      count - 1 < module->most_short_rows[static_cast<int>(kOperation)]) {
    const DenseRows rows = {dtype, count, module->d};
    const Norm& norm = module->NormOf(dtype);
    size_t parts = 1;
    // A row of 64 elements takes 1 to 3 % longer where it asks what its work is.
    if (count * module->d >= kMinWorkToSplit / kCostOfBackward) {
      parts = std::min(
          PartsOf(WorkOf(kOperation, norm, rows, (SetOf(kGiven) | ...)), module->context), count);
    }
    if ((parts == 1 || kForward) && ArePlain<kOperation>(rows, given...)) {
      DefaultFloatEnvironment environment;
      Run run = MakeRun(rows, module->prepared.get());
      void* dw = nullptr;
      const auto set = [&](Operand operand, const void* data) {
        if (operand == kDw) {
          dw = const_cast<void*>(data);
        } else {
          SetOperand(rows, operand, data, run);
        }
      };
      (set(kGiven, given.data), ...);
      if (!kForward) {
        RunShortBackward(norm, RMSNORM_F32, dw, run);
      } else if (parts == 1) {
        norm.kernels->forward(norm, run);
      } else {
        RowsOfRun all = {&norm, &run};
        RunOnThreads(environment, module->context, parts, RunPartOfRun, &all);
      }
      return RMSNORM_OK;
    }
  }
  return CallByViews<kOperation>(module, dtype, count, nullptr, given...);
}

}  // namespace

size_t MostShortRows(Operation operation, size_t d, const rmsnorm_options& options) {
  if (!AreUsual(options)) return 0;
  constexpr size_t kBytesOfElement = 4 * sizeof(float);  // of x, residual, residual_out and y
  return MostRows(operation, d, StreamedBytes() / kBytesOfElement);
}

bool MakeShortCall(Operation operation, const rmsnorm_module* module,
                   const rmsnorm_operands* operands, const rmsnorm_options* options,
                   const rmsnorm_context* context) {
  return operation == Operation::kForward
             ? MakeShortCallOf<ShortForward>(module, operands, options, context)
             : MakeShortCallOf<ShortBackward>(module, operands, options, context);
}

bool MakeShortCalls(const rmsnorm_call* calls, size_t count, const rmsnorm_context* context) {
  ShortForward all[kCallsOnStack];
  if (count == 0 || count > kCallsOnStack) return false;
  for (size_t i = 0; i < count; ++i) {
    if (!all[i].Read(calls[i].module, calls[i].operands, calls[i].options)) return false;
    for (size_t j = 0; j < i; ++j) {
      if (!all[i].IsApart(all[j]) || !all[j].IsApart(all[i])) return false;
    }
  }
  Place place;
  if (FindPlace(nullptr, context, place) != RMSNORM_OK) return false;
  WeightScratch scratch;
  size_t elements = 0;
  for (size_t i = 0; i < count; ++i) {
    all[i].MakeNorm(*place.kernels);
    all[i].AddWeight(scratch);
    elements += all[i].ItsWork().elements;
  }
  Work work = all[0].ItsWork();
  work.elements = elements;
  if (PartsOf(work, place.context) > 1 || !scratch.Allocate()) return false;
  for (size_t i = 0; i < count; ++i) all[i].PrepareWeight(scratch);
  for (size_t i = 0; i < count; ++i) all[i].Execute();
  return true;
}

}  // namespace rmsnorm::internal

using namespace rmsnorm::internal;

rmsnorm_status rmsnorm_module_norm_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                        size_t rows, const void* x, void* y, float* rstd,
                                        const rmsnorm_context* context) noexcept {
  const Given<kX> x_given = {x};
  const Given<kY> y_given = {y};
  const Given<kRstd> rstd_given = {rstd};
  constexpr Operation kForward = Operation::kForward;
  if (context != nullptr) {
    return CallByViews<kForward>(module, dtype, rows, context, x_given, y_given, rstd_given);
  }
  if (rstd != nullptr)
    return CallByPointers<kForward>(module, dtype, rows, x_given, y_given, rstd_given);
  return CallByPointers<kForward>(module, dtype, rows, x_given, y_given);
}

rmsnorm_status rmsnorm_module_add_norm_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                            rmsnorm_dtype residual_dtype, size_t rows,
                                            const void* x, const void* residual, void* residual_out,
                                            void* y, float* rstd,
                                            const rmsnorm_context* context) noexcept {
  const Given<kX> x_given = {x};
  const Given<kY> y_given = {y};
  const Given<kRstd> rstd_given = {rstd};
  constexpr Operation kForward = Operation::kForward;
  if (context != nullptr || residual_dtype != dtype) {
    return CallByViews<kForward>(
        module, dtype, rows, context, x_given, Given<kResidual>{residual, &residual_dtype},
        Given<kResidualOut>{residual_out, &residual_dtype}, y_given, rstd_given);
  }
  const Given<kResidual> residual_given = {residual};
  const Given<kResidualOut> residual_out_given = {residual_out};
  if (rstd != nullptr) {
    return CallByPointers<kForward>(module, dtype, rows, x_given, residual_given,
                                    residual_out_given, y_given, rstd_given);
  }
  return CallByPointers<kForward>(module, dtype, rows, x_given, residual_given, residual_out_given,
                                  y_given);
}

rmsnorm_status rmsnorm_module_backward_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                            size_t rows, const void* dy, const void* x,
                                            const float* rstd, void* dx, float* dw,
                                            const rmsnorm_context* context) noexcept {
  constexpr Operation kBackward = Operation::kBackward;
  if (context != nullptr) {
    return CallByViews<kBackward>(module, dtype, rows, context, Given<kDy>{dy}, Given<kX>{x},
                                  Given<kRstd>{rstd}, Given<kDx>{dx}, Given<kDw>{dw});
  }
  return CallByPointers<kBackward>(module, dtype, rows, Given<kDy>{dy}, Given<kX>{x},
                                   Given<kRstd>{rstd}, Given<kDx>{dx}, Given<kDw>{dw});
}
