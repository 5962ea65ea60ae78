// SPDX-License-Identifier: Apache-2.0
// Calls by views, with or without a module: checked, and planned.
#ifndef RMSNORM_LIB_CALLS_H_
#define RMSNORM_LIB_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "plan.h"

namespace rmsnorm::internal {

// An array that lies on the stack where it is short.
template <class T, size_t kOnStack>
class Array {
 public:
  explicit Array(size_t count) : data_(few_) {
    if (count <= kOnStack) return;
    // With gcc, a size that overflows throws in spite of std::nothrow.
    if (count <= PTRDIFF_MAX / sizeof(T)) many_.reset(new (std::nothrow) T[count]);
    data_ = many_.get();
  }
  Array(const Array&) = delete;

  T* get() { return data_; }  // null where there is no memory

 private:
  T few_[kOnStack];
  std::unique_ptr<T[]> many_;
  T* data_;
};

// Reads the context that is given or, if that is null, takes the module's.
rmsnorm_status FindContext(const rmsnorm_module* module, const rmsnorm_context* given,
                           CallContext& context);

rmsnorm_status NoMemoryForCalls(size_t count);

// Checks forward calls that are made at once; `checked` has room for them. An error names the call.
rmsnorm_status CheckCalls(const rmsnorm_call* calls, size_t count, CheckedCall* checked);

// Plans forward calls that run together. Calls without rows have no plan. Returns the number of
// plans; `plans` has room for one for each call. Throws std::bad_alloc where there is no scratch.
size_t PlanTogether(const CheckedCall* calls, size_t count, const CallContext& context,
                    Scratch& scratch, Plan* plans);

// Plans a backward call with rows: one plan or two, which run one after the other, each with its
// parts. Returns their number. Throws std::bad_alloc where there is no scratch.
constexpr size_t kMostBackwardPlans = 2;
size_t PlanBackward(const CheckedCall& call, const CallContext& context, Scratch& scratch,
                    Plan* plans);

// A call by a module or, where that is null, by `options`.
rmsnorm_status RunCall(Operation operation, const rmsnorm_module* module,
                       const rmsnorm_operands* operands, const rmsnorm_options* options,
                       const rmsnorm_context* context);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CALLS_H_
