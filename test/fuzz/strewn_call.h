// SPDX-License-Identifier: Apache-2.0
// Calls that the library may or must refuse: operands strewn over a small piece of memory, where
// they may share bytes, and one argument changed.
#ifndef RMSNORM_TEST_FUZZ_STREWN_CALL_H_
#define RMSNORM_TEST_FUZZ_STREWN_CALL_H_

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "../../lib/overlap.h"
#include "cases/layout.h"
#include "cases/problem.h"
#include "cases/random_case.h"
#include "cases/values.h"

namespace rmsnorm::test {

using cases::Case;
using cases::Operand;
using internal::kOperandRules, internal::kOperands;

struct StrewnCall {
  Case c;
  cases::CallOperands operands;      // with null data pointers
  ptrdiff_t offset[kOperands] = {};  // of the first element, in bytes from the start of memory
  bool null_data[kOperands] = {};
  std::vector<uint8_t> memory;
};

inline size_t RowBytes(Operand o, const rmsnorm_view& view) {
  return internal::ElementSize(view.dtype) * static_cast<size_t>(internal::RowLength(o, view));
}
// Bytes from the start of memory to each row.
inline std::vector<ptrdiff_t> RowsAt(const StrewnCall& call, Operand o) {
  const rmsnorm_view& view = call.operands.view[o];
  const int dimensions = internal::RowDimensions(o, view);
  std::vector<ptrdiff_t> rows =
      cases::RowOffsets({view.shape, view.shape + dimensions},
                        {view.stride, view.stride + dimensions}, internal::ElementSize(view.dtype));
  for (ptrdiff_t& row : rows) row += call.offset[o];
  return rows;
}

// Whether a view lies within memory. A view that is always refused counts, too: an unknown type, no
// dimensions or too many, or more bytes than an address can count.
inline bool IsHeld(const StrewnCall& call, Operand o) {
  const rmsnorm_view& view = call.operands.view[o];
  const auto size = static_cast<ptrdiff_t>(internal::ElementSize(view.dtype));
  if (size == 0 || view.ndim < 1 || view.ndim > RMSNORM_MAX_DIMS) return true;
  ptrdiff_t low = 0;  // in bytes from the first element
  ptrdiff_t high = 0;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 0) return true;
    const ptrdiff_t stride = i < internal::RowDimensions(o, view) ? view.stride[i] : 1;
    ptrdiff_t span;
    ptrdiff_t& bound = stride < 0 ? low : high;
    if (__builtin_mul_overflow(view.shape[i] - 1, stride, &span) ||
        __builtin_mul_overflow(span, size, &span) || __builtin_add_overflow(bound, span, &bound)) {
      return true;
    }
  }
  return low >= -call.offset[o] &&
         high <= static_cast<ptrdiff_t>(call.memory.size()) - size - call.offset[o];
}

class StrewnDrawer {
 public:
  explicit StrewnDrawer(uint32_t seed) : random_(seed) {}

  StrewnCall Draw(uint32_t seed) {
    call_.c = cases::RandomCase(seed);
    Case& c = call_.c;
    // Few elements make overlaps likely.
    c.d = 1 + Below(12);
    for (size_t& size : c.rows) size = std::min<size_t>(size, 1 + Below(4));
    while (c.rows.size() > 3) c.rows.pop_back();
    c.threads = 1;
    // Any operand fits by itself.
    const size_t largest = sizeof(double) * c.RowCount() * c.d;
    const size_t some = 8 * (64 + Below(448));
    call_.memory.resize(c.function == cases::Function::kRows ? 8192 : std::max(some, largest));
    for (uint8_t& byte : call_.memory) byte = static_cast<uint8_t>(random_.Bits());
    internal::ForEachOperand(c.Given(), [&](Operand o) { Strew(o); });
    if (OneIn(2)) Spoil();
    return call_;
  }

 private:
  size_t Below(size_t count) { return random_.Below(count); }
  bool OneIn(size_t count) { return random_.OneIn(count); }
  ptrdiff_t Around(size_t distance) {  // from -distance to distance
    return static_cast<ptrdiff_t>(Below(2 * distance + 1)) - static_cast<ptrdiff_t>(distance);
  }
  bool Has(Operand o) const { return (call_.operands.given & cases::SetOf(o)) != 0; }
  bool IsDense() const { return call_.c.function == cases::Function::kRows; }

  void Strew(Operand o) {
    const Case& c = call_.c;
    const std::vector<size_t> shape = cases::ShapeOf(c, o);
    rmsnorm_view dense = rmsnorm_tensor(nullptr, c.operand[o].dtype,
                                        static_cast<int32_t>(shape.size()), shape.data(), nullptr);
    // Zeros beyond the last dimension, which a spoilt call may have.
    std::fill(dense.shape + shape.size(), std::end(dense.shape), 0);
    std::fill(dense.stride + shape.size(), std::end(dense.stride), 0);
    rmsnorm_view view = dense;
    const auto element = static_cast<ptrdiff_t>(internal::ElementSize(view.dtype));
    const bool alike = before_ >= 0 && OneIn(2);
    for (int i = 0; !IsDense() && OneIn(2) && i < internal::RowDimensions(o, view); ++i) {
      view.stride[i] = OneIn(2) ? Around(60) : view.stride[i] * Around(3) + Around(2);
      const rmsnorm_view& other = call_.operands.view[alike ? before_ : o];
      if (alike && i < other.ndim) {
        view.stride[i] =
            other.stride[i] * static_cast<ptrdiff_t>(internal::ElementSize(other.dtype)) / element;
      }
    }
    call_.operands.Set(o, view);
    if (c.operand[o].add) call_.operands.add_to |= 1u << (o - internal::kDx);
    const auto places = call_.memory.size() / static_cast<size_t>(element);
    for (int tries = 0; tries < 20; ++tries) {
      call_.offset[o] = static_cast<ptrdiff_t>(Below(places)) * element;
      const bool near = before_ >= 0 && OneIn(2);
      if (near) call_.offset[o] = call_.offset[before_] + (OneIn(2) ? 0 : Around(40) * element);
      if (call_.offset[o] % element == 0 && IsHeld(call_, o)) break;
    }
    if (call_.offset[o] % element != 0 || !IsHeld(call_, o)) {
      std::copy_n(dense.stride, view.ndim, call_.operands.view[o].stride);
      call_.offset[o] = 0;
    }
    before_ = o;
  }

  // Changes one argument.
  void Spoil() {
    Case& c = call_.c;
    // Each piece has a separate shape, so one call takes their place.
    if (c.function == cases::Function::kSeveral) c.function = cases::Function::kPlain;
    const StrewnCall good = call_;
    const auto any = static_cast<Operand>(Below(kOperands));
    auto o = any;
    while (!Has(o)) o = static_cast<Operand>(Below(kOperands));
    rmsnorm_view& view = call_.operands.view[o];
    const size_t dimension = Below(static_cast<size_t>(view.ndim));
    const float wrong[] = {-1, -FLT_MAX, HUGE_VALF, -HUGE_VALF, NAN, -1e-40f};
    const size_t sizes[] = {
        0, 1, view.shape[dimension] + 1, view.shape[dimension] - 1, SIZE_MAX, size_t{1} << 62};
    const auto option = static_cast<internal::Option>(Below(internal::kOptions));
    switch (IsDense() ? Below(4) : Below(12)) {
      case 0:  // among the arguments for dense rows, null means that an optional operand is absent
        call_.null_data[o] = true;
        if (IsDense() &&
            (o == internal::kRstd || (c.backward && c.RoleOf(o) != cases::Role::kRequired))) {
          call_.operands.given &= ~cases::SetOf(o);
        }
        break;
      case 1:
      case 2:
        if (internal::IsNumber(option)) {
          internal::SetValueIn(c.options, option, wrong[Below(std::size(wrong))]);
        } else {
          internal::SetValueIn(c.options, option, static_cast<int32_t>(Below(6)) - 2);
        }
        break;
      case 3:
        c.threads = -1 - static_cast<int>(Below(3));
        break;
      case 4:
        call_.operands.given &= ~cases::SetOf(o);
        break;
      case 5:  // one more operand, at the place of another
        if (!Has(any)) {
          call_.operands.Set(any, view);
          call_.offset[any] = call_.offset[o];
        }
        break;
      case 6:
        view.dtype = static_cast<rmsnorm_dtype>(Below(8)) - 1;
        break;
      case 7:
        view.ndim = static_cast<int32_t>(Below(RMSNORM_MAX_DIMS + 3)) - 1;
        break;
      case 8:
        view.shape[dimension] = sizes[Below(std::size(sizes))];
        break;
      case 9:
        view.stride[dimension] =
            OneIn(4) ? PTRDIFF_MAX - static_cast<ptrdiff_t>(Below(8)) : Around(300);
        break;
      case 10:
        call_.offset[o] += 1 + static_cast<ptrdiff_t>(Below(7));
        break;
      default:  // structs of an older, smaller size
        c.options.size = static_cast<uint32_t>(4 * Below(sizeof(rmsnorm_options) / 4 + 1));
        call_.operands.size = static_cast<uint32_t>(8 * Below(sizeof(rmsnorm_operands) / 8 + 1));
    }
    // Views that are not refused must lie within memory.
    bool held = true;
    internal::ForEachOperand(call_.operands.given,
                             [&](Operand one) { held = held && IsHeld(call_, one); });
    if (!held) call_ = good;
  }

  cases::Random random_;
  StrewnCall call_;
  int before_ = -1;
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FUZZ_STREWN_CALL_H_
