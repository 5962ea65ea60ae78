// SPDX-License-Identifier: Apache-2.0
// Any forward call on views into one block of memory, whatever they share. Each target must refuse
// it with the reference's status and write nothing, or write the reference's bits and nothing
// beside them.
#include <fuzzer/FuzzedDataProvider.h>
#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr size_t kMemory = 8192;  // bytes
using Memory = std::vector<uint8_t>;

void Require(bool condition) {
  if (!condition) std::abort();
}

// A view, its data an offset into the memory.
struct View {
  rmsnorm_view view;
  size_t offset;
};

View ConsumeView(FuzzedDataProvider& input) {
  View result;
  rmsnorm_view& view = result.view;
  view = rmsnorm_rows(nullptr, input.ConsumeIntegralInRange<rmsnorm_dtype>(0, 4), 0, 0, 0);
  view.ndim = input.ConsumeIntegralInRange<int32_t>(0, RMSNORM_MAX_DIMS + 1);
  for (size_t i = 0; i < RMSNORM_MAX_DIMS; ++i) {
    // Rows of up to 300 elements; few of them.
    const bool is_row = static_cast<int32_t>(i) == view.ndim - 1;
    view.shape[i] = input.ConsumeIntegralInRange<size_t>(0, is_row ? 300 : 4);
    view.stride[i] = is_row ? input.ConsumeIntegralInRange<ptrdiff_t>(0, 1) ^ 1
                            : input.ConsumeIntegralInRange<ptrdiff_t>(-400, 400);
  }
  result.offset = input.ConsumeIntegralInRange<size_t>(0, kMemory);
  return result;
}

bool IsEmpty(const rmsnorm_view& view) {
  return std::any_of(view.shape, view.shape + view.ndim, [](size_t size) { return size == 0; });
}

// Whether the memory holds all of a view. What the library refuses need not be there.
bool IsWithin(const View& v) {
  const rmsnorm_view& view = v.view;
  const auto size = static_cast<ptrdiff_t>(rmsnorm_dtype_size(view.dtype));
  if (view.ndim < 1 || view.ndim > RMSNORM_MAX_DIMS || size == 0 || IsEmpty(view)) return true;
  ptrdiff_t low = static_cast<ptrdiff_t>(v.offset);
  ptrdiff_t high = low + size;
  for (int32_t i = 0; i < view.ndim; ++i) {
    const ptrdiff_t span = static_cast<ptrdiff_t>(view.shape[i] - 1) * view.stride[i] * size;
    (span < 0 ? low : high) += span;
  }
  return low >= 0 && high <= static_cast<ptrdiff_t>(kMemory);
}

// Calls visit(offset in bytes) for each element of a view that the library accepted.
template <class Visit>
void ForEachElement(const View& v, Visit visit) {
  const rmsnorm_view& view = v.view;
  if (IsEmpty(view)) return;
  const int32_t last = view.ndim - 1;
  size_t index[RMSNORM_MAX_DIMS] = {};
  int32_t carry;
  do {
    ptrdiff_t element = 0;
    for (int32_t i = 0; i <= last; ++i)
      element += static_cast<ptrdiff_t>(index[i]) * view.stride[i];
    visit(v.offset + static_cast<size_t>(element) * rmsnorm_dtype_size(view.dtype));
    for (carry = last; carry >= 0 && ++index[carry] == view.shape[carry]; --carry) index[carry] = 0;
  } while (carry >= 0);
}

// Two NaNs count as equal, so any NaN among the elements of y turns into this one.
void UnifyNans(const View& y, Memory& memory) {
  ForEachElement(y, [&](size_t offset) {
    uint32_t bits = 0;
    const size_t size = rmsnorm_dtype_size(y.view.dtype);
    std::memcpy(&bits, &memory[offset], size);
    const uint32_t infinity = y.view.dtype == RMSNORM_F32   ? 0x7F800000
                              : y.view.dtype == RMSNORM_F16 ? 0x7C00
                                                            : 0x7F80;
    const uint32_t sign = size == 4 ? 0x80000000 : 0x8000;
    if ((bits & ~sign) > infinity) bits = ~sign;
    std::memcpy(&memory[offset], &bits, size);
  });
}

struct Result {
  rmsnorm_status status;
  Memory memory;
  std::vector<uint8_t> written;  // 1 for each byte of y
};

Result Forward(const Memory& memory, View x, View weight, bool has_weight, View y,
               rmsnorm_options options, const char* target) {
  Result result = {RMSNORM_OK, memory, std::vector<uint8_t>(kMemory)};
  x.view.data = result.memory.data() + x.offset;
  weight.view.data = result.memory.data() + weight.offset;
  y.view.data = result.memory.data() + y.offset;
  options.target = target;
  result.status =
      rmsnorm_forward(&x.view, has_weight ? &weight.view : nullptr, &y.view, nullptr, &options);
  if (result.status != RMSNORM_OK) {
    Require(result.memory == memory);
    return result;
  }
  ForEachElement(y, [&](size_t offset) {
    std::fill_n(&result.written[offset], rmsnorm_dtype_size(y.view.dtype), uint8_t{1});
  });
  for (size_t i = 0; i < kMemory; ++i) {
    Require(result.written[i] == 1 || result.memory[i] == memory[i]);
  }
  UnifyNans(y, result.memory);
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const View x = ConsumeView(input);
  View y = ConsumeView(input);
  // Shapes that agree by chance are rare.
  if (input.ConsumeBool()) {
    y.view.ndim = x.view.ndim;
    std::copy(std::begin(x.view.shape), std::end(x.view.shape), y.view.shape);
  }
  if (input.ConsumeBool()) {
    std::copy(std::begin(x.view.stride), std::end(x.view.stride), y.view.stride);
  }
  const bool has_weight = input.ConsumeBool();
  View weight = ConsumeView(input);
  if (input.ConsumeBool() && x.view.ndim >= 1 && x.view.ndim <= RMSNORM_MAX_DIMS) {
    weight.view.ndim = 1;
    weight.view.shape[0] = x.view.shape[x.view.ndim - 1];
    weight.view.stride[0] = 1;
  }
  if (!IsWithin(x) || !IsWithin(y) || (has_weight && !IsWithin(weight))) return -1;

  rmsnorm_options options = rmsnorm_default_options();
  options.eps = input.ConsumeBool() ? 1e-5f : input.ConsumeFloatingPoint<float>();
  options.eps_placement = input.ConsumeIntegralInRange<rmsnorm_eps_placement>(-1, 2);
  options.rounding = input.ConsumeIntegralInRange<rmsnorm_rounding>(-1, 2);
  options.weight_offset = input.ConsumeIntegralInRange(0, 1) == 0 ? 0.0f : 1.0f;
  options.divisor = input.ConsumeBool() ? 0.0f : input.ConsumeFloatingPoint<float>();
  options.threads = input.ConsumeIntegralInRange<int32_t>(-1, 1);

  // What the input has left fills the memory, again and again.
  std::vector<uint8_t> elements = input.ConsumeRemainingBytes<uint8_t>();
  if (elements.empty()) elements = {0x3F, 0x80};
  Memory memory(kMemory);
  for (size_t i = 0; i < kMemory; ++i) memory[i] = elements[i % elements.size()];

  const Result expected = Forward(memory, x, weight, has_weight, y, options, "reference");
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    const char* const target = rmsnorm_target_name(i);
    if (rmsnorm_find_target(target, nullptr) != RMSNORM_OK) continue;  // not on this CPU
    const Result result = Forward(memory, x, weight, has_weight, y, options, target);
    Require(result.status == expected.status);
    Require(result.memory == expected.memory);
  }
  return 0;
}
