// SPDX-License-Identifier: Apache-2.0
// Forward: its entry points, and how its rows, or the blocks of few long ones, go to threads.
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

// ------------------------------------------------------------------ blocks of a row to threads

// One row over threads, for calls with fewer rows than threads. It has the bits of RunRows(): each
// block is summed apart by definition, and the sums are added in order.
class LongRow {
 public:
  LongRow(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
          const Forward& forward, size_t row, size_t parts)
      : environment_(environment),
        context_(context),
        forward_(forward),
        index_(row),
        row_(NextRun(forward.walk, row, row + 1)),
        parts_(parts) {}

  void Normalise() {
    const Norm& norm = forward_.norm;
    float sum = 0;
    const bool needs_sum = (row_.given & (SetOf(kY) | SetOf(kRstd) | SetOf(kSumsOut))) != 0;
    if (needs_sum && !row_.Has(kSums)) {
      sum = SumInParts();
      // In binary64, which is rare, a row is one thread's.
      const bool safe =
          IsSafe(UnderRoot(norm, sum)) && (!row_.Has(kSumsOut) || IsSafeSum(sum, norm.divisor));
      if (!safe) return RunRows(forward_, index_, index_ + 1);
      row_.safe_sum = &sum;
    }
    RunParts(environment_, context_, parts_, ScalePart, this);
  }

 private:
  size_t Blocks() const { return (row_.d + kBlock - 1) / kBlock; }

  Run BlocksFrom(size_t begin, size_t end) const {
    return Columns(forward_.norm, row_, begin * kBlock, std::min(row_.d, end * kBlock));
  }

  float SumInParts() {
    float sums[kBatchBlocks];
    sums_ = sums;
    float total = 0;
    for (first_block_ = 0; first_block_ < Blocks(); first_block_ += kBatchBlocks) {
      blocks_ = std::min(kBatchBlocks, Blocks() - first_block_);
      RunParts(environment_, context_, parts_, SumPart, this);
      for (size_t block = 0; block < blocks_; ++block) total += sums[block];
    }
    return total;
  }

  // Sums part of a batch's blocks.
  static void SumPart(void* state, size_t part, size_t parts) {
    const LongRow& row = *static_cast<const LongRow*>(state);
    const Norm& norm = row.forward_.norm;
    const size_t end = PartBegin(row.blocks_, part + 1, parts);
    for (size_t i = PartBegin(row.blocks_, part, parts); i < end; ++i) {
      const size_t block = row.first_block_ + i;
      row.sums_[i] = norm.kernels->sum_block(norm, row.BlocksFrom(block, block + 1));
    }
  }

  // Does part of the row by its sum.
  static void ScalePart(void* state, size_t part, size_t parts) {
    const LongRow& row = *static_cast<const LongRow*>(state);
    const Norm& norm = row.forward_.norm;
    const size_t begin = PartBegin(row.Blocks(), part, parts);
    const size_t end = PartBegin(row.Blocks(), part + 1, parts);
    if (begin == end) return;
    Run run = row.BlocksFrom(begin, end);
    if (part != 0) run.given &= ~(SetOf(kRstd) | SetOf(kSumsOut));
    norm.kernels->forward(norm, run);
  }

  DefaultFloatEnvironment& environment_;
  const rmsnorm_context& context_;
  const Forward& forward_;
  size_t index_;
  Run row_;
  size_t parts_;
  size_t first_block_ = 0;  // of a batch,
  size_t blocks_ = 0;       // how many,
  float* sums_ = nullptr;   // and their sums
};

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
  // A post-norm and a quantised output need all of a row before the first of it is done.
  const OperandSet whole_rows = SetOf(kPostNormWeight) | SetOf(kQ);
  if (all.count == 1 && (all.forward->walk.given & whole_rows) == 0) {
    const Walk& walk = all.forward->walk;
    work.elements /= kInSteps * walk.rows;
    const size_t parts_of_row = parts > walk.rows ? PartsOf(work, context) : 1;
    const bool added = (walk.given & SetOf(kResidual)) != 0;
    if (parts_of_row > walk.rows && (!added || parts_of_row >= kThreadsOfAddedRow * walk.rows)) {
      for (size_t row = 0; row < walk.rows; ++row) {
        LongRow(environment, context, *all.forward, row, parts_of_row).Normalise();
      }
      return;
    }
  }
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
