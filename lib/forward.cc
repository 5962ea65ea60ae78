// SPDX-License-Identifier: Apache-2.0
// Forward: its entry points, and how its rows go to threads.
#include <algorithm>
#include <memory>
#include <new>

#include "calls.h"
#include "inverse_rms.h"
#include "norm.h"
#include "reference.h"
#include "short_calls.h"
#include "status.h"

namespace rmsnorm::internal {
namespace {

// What runs of a call.
struct Forward {
  Norm norm;
  Walk walk;
};

// `count` items, on the stack where they are few.
template <class T>
class OfEachCall {
 public:
  explicit OfEachCall(size_t count) {
    if (count <= kCallsOnStack) return;
    many_.reset(new (std::nothrow) T[count]);
    data_ = many_.get();
  }
  OfEachCall(const OfEachCall&) = delete;
  OfEachCall& operator=(const OfEachCall&) = delete;

  T* data() const { return data_; }  // null where there is no memory

 private:
  T few_[kCallsOnStack];
  std::unique_ptr<T[]> many_;
  T* data_ = few_;
};

// ------------------------------------------------------------------ rows to threads

struct Forwards {
  const Forward* forward;
  size_t count;
  size_t elements;
};

void RunRows(const Forward& forward, size_t begin, size_t end) {
  while (begin < end) {
    const Run run = NextRun(forward.walk, begin, end);
    forward.norm.kernels->forward(forward.norm, run);
    begin += run.count;
  }
}

// The rows of all calls, one call after the other, that begin in the part's share of the elements.
void RunPartOfRows(void* state, size_t part, size_t parts) {
  const Forwards& all = *static_cast<const Forwards*>(state);
  const size_t begin = PartBegin(all.elements, part, parts);
  const size_t end = PartBegin(all.elements, part + 1, parts);
  size_t before = 0;  // elements of the calls before
  for (size_t i = 0; i < all.count; ++i) {
    const Walk& walk = all.forward[i].walk;
    const auto first_row = [&](size_t element) {
      return element <= before ? 0 : std::min(walk.rows, (element - before - 1) / walk.d + 1);
    };
    RunRows(all.forward[i], first_row(begin), first_row(end));
    before += walk.rows * walk.d;
  }
}

void RunAll(DefaultFloatEnvironment& environment, const rmsnorm_context& context, Forwards& all) {
  size_t rows = 0;
  Work work = {all.forward->norm.kernels, all.forward->norm.dtype[kX], 0};
  for (size_t i = 0; i < all.count; ++i) {
    const Walk& walk = all.forward[i].walk;
    rows += walk.rows;
    all.elements += walk.rows * walk.d;
    work.elements += CostOfForward(walk.given, walk.rows * walk.d);
  }
  const size_t parts = PartsOf(work, context);
  RunParts(environment, context, std::min(parts, rows), RunPartOfRows, &all);
}

// ------------------------------------------------------------------ from a call to what runs

// Whether the weight and the bias matter.
bool IsScaled(const Call& call) { return call.operands.Has(kY) || call.operands.Has(kQ); }

void AddScratch(const Call& call, WeightScratch& scratch) {
  if (call.operands.Has(kPostNormWeight)) AddColumns(call.operands[kPostNormWeight], scratch);
  if (!IsScaled(call)) return;
  AddWeight(call, scratch);
  if (call.operands.Has(kBias)) AddColumns(call.operands[kBias], scratch);
}

// Prepares one call. `bytes_of_calls` are the bytes of the rows of all calls that run together. The
// operands receive views of what has been prepared.
void PrepareForward(Call& call, const KernelTable& kernels, size_t bytes_of_calls,
                    WeightScratch& scratch, Forward& forward) {
  Operands& operands = call.operands;
  rmsnorm_view weight;
  rmsnorm_view bias;
  rmsnorm_view post_norm_weight;
  if (operands.Has(kPostNormWeight)) {
    post_norm_weight =
        PrepareColumns(kernels, operands[kPostNormWeight], call.options.weight_offset, scratch);
    operands.Set(kPostNormWeight, &post_norm_weight);
  }
  if (IsScaled(call)) {
    weight = PrepareWeight(call, kernels, scratch);
    operands.Set(kWeight, &weight);
    if (operands.Has(kBias)) {
      bias = PrepareColumns(kernels, operands[kBias], -0.0f, scratch);
      operands.Set(kBias, &bias);
    }
  } else {
    operands.Remove(kWeight);
    operands.Remove(kBias);
  }
  MakeNormOfViews(kernels, call.options, operands.d, operands, forward.norm);
  MakeWalk(operands[kX], operands, forward.walk);
  WalkInSlabs(forward.walk);
  forward.norm.stream = operands.Has(kY) && operands[kY].data != operands[kX].data &&
                        bytes_of_calls > StreamedBytes();
}

// Does `count` checked calls at once. Fails, with nothing written, only where there is no memory
// for scratch. The calls receive views of what has been prepared.
rmsnorm_status RunForward(DefaultFloatEnvironment& environment, const Place& place, Call* calls,
                          size_t count) {
  WeightScratch scratch;
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (calls[i].operands.rows > 0) AddScratch(calls[i], scratch);
    bytes += RowBytes(calls[i].operands);
  }
  const OfEachCall<Forward> forwards_of_calls(count);
  Forward* const forwards = forwards_of_calls.data();
  if (forwards == nullptr || !scratch.Allocate()) {
    return NoMemoryForWeight(count > 0 ? calls->operands.d : 0);
  }
  Forwards all = {forwards, 0, 0};
  for (size_t i = 0; i < count; ++i) {
    if (calls[i].operands.rows == 0) continue;
    PrepareForward(calls[i], *place.kernels, bytes, scratch, forwards[all.count++]);
  }
  if (all.count > 0) RunAll(environment, place.context, all);
  return RMSNORM_OK;
}

}  // namespace

rmsnorm_status CallForward(const rmsnorm_module* module, const rmsnorm_operands* operands,
                           const rmsnorm_options* options, const rmsnorm_context* context) {
  DefaultFloatEnvironment environment;
  if (MakeShortCall(Operation::kForward, module, operands, options, context)) return RMSNORM_OK;
  Call call;
  Place place;
  RMSNORM_RETURN_IF_ERROR(CheckCall(Operation::kForward, module, operands, options, call));
  RMSNORM_RETURN_IF_ERROR(FindPlace(module, context, place));
  return RunForward(environment, place, &call, 1);
}

}  // namespace rmsnorm::internal

using namespace rmsnorm::internal;

rmsnorm_status rmsnorm_forward(const rmsnorm_operands* operands, const rmsnorm_options* options,
                               const rmsnorm_context* context) noexcept {
  return CallForward(nullptr, operands, options, context);
}

rmsnorm_status rmsnorm_forward_all(const rmsnorm_call* calls, size_t count,
                                   const rmsnorm_context* context) noexcept {
  DefaultFloatEnvironment environment;
  if (calls == nullptr && count > 0) return Fail(RMSNORM_ERROR_NULL, "calls: the pointer is null");
  if (MakeShortCalls(calls, count, context)) return RMSNORM_OK;
  const OfEachCall<Call> checked(count);
  Call* const all = checked.data();
  if (all == nullptr) return Fail(RMSNORM_ERROR_MEMORY, "calls: no memory for %zu of them", count);
  for (size_t i = 0; i < count; ++i) {
    const rmsnorm_status status = CheckCall(Operation::kForward, calls[i].module, calls[i].operands,
                                            calls[i].options, all[i]);
    if (status != RMSNORM_OK) return FailOfCall(i, status);
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      const rmsnorm_status status = CheckApart(all[i].operands, all[j].operands, j);
      if (status != RMSNORM_OK) return FailOfCall(i, status);
    }
  }
  Place place;
  RMSNORM_RETURN_IF_ERROR(FindPlace(nullptr, context, place));
  return RunForward(environment, place, all, count);
}
