// SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rmsnorm::cases {
namespace {

// Canaries before the lowest row and after the highest one: more than four of the widest vectors.
constexpr size_t kCanaries = 5 * 64;

// Canaries around an input make NaNs, which show in every result that reads them. A NaN written
// over such a canary could have the same bits, so canaries around outputs differ.
constexpr uint8_t kAroundInput = 0xFF;
constexpr uint8_t kAroundOutput = 0xA5;

bool IsOverwritten(const Case& c, Operand o) {
  for (int i = 0; i < kOperands; ++i) {
    if (c.operand[i].in_place && kOperandRules[i].in_place_of == o) return true;
  }
  return c.IsOutput(o);
}

}  // namespace

Spans SpansOf(const OperandCase& own, const std::vector<size_t>& leading, size_t length,
              size_t element) {
  const Order order = own.order;
  const size_t count = leading.size();
  Spans spans = {std::vector<ptrdiff_t>(count), 0, 0};
  const size_t pitch = length + own.gap;
  size_t step = pitch;
  size_t last = 0;   // elements between the lowest and the highest row
  size_t first = 0;  // elements between the lowest row and the first
  for (size_t i = 0; i < count; ++i) {
    const size_t at = order == Order::kTransposed ? i : count - 1 - i;
    size_t stride = step;
    if (order == Order::kRepeated || (order == Order::kAgain && at == 0)) stride = 0;
    if (order == Order::kWindows) stride = i == 0 ? 1 : last + 1;
    const size_t reach = (std::max<size_t>(leading[at], 1) - 1) * stride;
    const bool falls = order == Order::kFalling || (order == Order::kZigzag && i % 2 == 0);
    spans.stride[at] = falls ? -static_cast<ptrdiff_t>(stride) : static_cast<ptrdiff_t>(stride);
    if (falls) first += reach;
    last += reach;
    step *= leading[at];
    if (order == Order::kZigzag) step += pitch;
    if (i == 0) step += own.skip * pitch;
  }
  spans.first = static_cast<ptrdiff_t>(first * element);
  spans.bytes = (last + length) * element;
  return spans;
}

std::vector<ptrdiff_t> RowOffsets(const std::vector<size_t>& leading,
                                  const std::vector<ptrdiff_t>& stride, size_t element) {
  if (std::count(leading.begin(), leading.end(), size_t{0}) != 0) return {};
  std::vector<ptrdiff_t> offsets = {0};
  for (size_t i = 0; i < leading.size(); ++i) {
    std::vector<ptrdiff_t> finer;
    finer.reserve(offsets.size() * leading[i]);
    for (const ptrdiff_t offset : offsets) {
      for (size_t index = 0; index < leading[i]; ++index) {
        finer.push_back(offset + static_cast<ptrdiff_t>(index) * stride[i] *
                                     static_cast<ptrdiff_t>(element));
      }
    }
    offsets = std::move(finer);
  }
  return offsets;
}

Layout::Layout(const Case& c) {
  if (c.strewn) {
    Strew(c);
    return;
  }
  if (c.interleaved) Interleave(c);
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    if (c.operand[o].in_place) {
      place[o] = place[kOperandRules[o].in_place_of];
    } else if (!c.interleaved || !kOperandRules[o].HasShapeOfX()) {
      PlaceAlone(c, o);
    }
  });
}

void Layout::Write(const Rows& rows, Operand o, uint8_t* const* memory) const {
  for (size_t i = 0; i < rows.count(); ++i) {
    std::memcpy(RowIn(memory, o, i), rows.row(i), rows.row_bytes());
  }
}

void Layout::Read(uint8_t* const* memory, Operand o, Rows& rows) const {
  for (size_t i = 0; i < rows.count(); ++i) {
    std::memcpy(rows.row(i), RowIn(memory, o, i), rows.row_bytes());
  }
}

void Layout::PlaceAlone(const Case& c, Operand o) {
  const OperandCase& own = c.operand[o];
  const size_t element = internal::ElementSize(own.dtype);
  const std::vector<size_t> leading = LeadingOf(c, o);
  const Spans spans = SpansOf(own, leading, RowLengthOf(c, o), element);
  const size_t begin = c.guard == Guard::kBefore ? 0 : kCanaries + own.shift * element;
  const size_t end = c.guard == Guard::kAfter ? 0 : kCanaries;
  block[o] = {begin + spans.bytes + end, IsOverwritten(c, o) ? kAroundOutput : kAroundInput};
  place[o] = {o, begin + static_cast<size_t>(spans.first), spans.stride,
              RowOffsets(leading, spans.stride, element)};
}

// Counts in units of 4 bytes, the largest element.
void Layout::Interleave(const Case& c) {
  constexpr size_t kUnit = 4;
  const OperandCase& x = c.operand[internal::kX];
  const auto is_alone = [&](Operand o) {
    return kOperandRules[o].HasShapeOfX() && !c.operand[o].in_place;
  };
  const auto units = [&](Operand o) {
    return (c.d * internal::ElementSize(c.operand[o].dtype) + kUnit - 1) / kUnit;
  };
  size_t pitch = 0;
  internal::ForEachOperand(c.Given(), [&](Operand o) { pitch += is_alone(o) ? units(o) : 0; });
  const Spans spans = SpansOf(x, c.rows, pitch, kUnit);
  const size_t begin = c.guard == Guard::kBefore ? 0 : kCanaries + x.shift * kUnit;
  const size_t end = c.guard == Guard::kAfter ? 0 : kCanaries;
  block[internal::kX] = {begin + spans.bytes + end, kAroundOutput};
  size_t slot = 0;
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    if (!is_alone(o)) return;
    const auto element = static_cast<ptrdiff_t>(internal::ElementSize(c.operand[o].dtype));
    place[o] = {internal::kX, begin + static_cast<size_t>(spans.first) + slot * kUnit, spans.stride,
                RowOffsets(c.rows, spans.stride, kUnit)};
    for (ptrdiff_t& stride : place[o].stride) stride *= ptrdiff_t{kUnit} / element;
    slot += units(o);
  });
}

// Each place is drawn until the operand fits. It often has strides of the operand before, or begins
// near it.
void Layout::Strew(const Case& c) {
  Random random(c.seed);
  const auto around = [&](size_t distance) {  // from -distance to distance
    return static_cast<ptrdiff_t>(random.Below(2 * distance + 1)) -
           static_cast<ptrdiff_t>(distance);
  };
  // Any operand fits by itself.
  const size_t bytes = std::max(8 * (64 + random.Below(448)), sizeof(double) * c.RowCount() * c.d);
  block[internal::kX] = {bytes, kAroundOutput};
  const Place* before = &place[internal::kX];
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    const size_t element = internal::ElementSize(c.operand[o].dtype);
    const std::vector<size_t> leading = LeadingOf(c, o);
    const size_t length = RowLengthOf(c, o);
    const std::vector<ptrdiff_t> dense = SpansOf({}, leading, length, element).stride;
    place[o] = {internal::kX, 0, dense, RowOffsets(leading, dense, element)};
    for (int tries = 0; tries < 20; ++tries) {
      std::vector<ptrdiff_t> stride = dense;
      const bool is_alike = before->stride.size() == stride.size() && random.OneIn(3);
      for (size_t i = 0; c.function != Function::kRows && i < stride.size(); ++i) {
        if (is_alike) stride[i] = before->stride[i];
        if (random.OneIn(4)) stride[i] = around(60);
        if (random.OneIn(4)) stride[i] = stride[i] * around(3) + around(2);
      }
      const std::vector<ptrdiff_t> offsets = RowOffsets(leading, stride, element);
      const auto [low, high] = std::minmax_element(offsets.begin(), offsets.end());
      auto first = static_cast<ptrdiff_t>(random.Below(bytes / element) * element);
      if (random.OneIn(2)) first = static_cast<ptrdiff_t>(before->first);
      if (random.OneIn(4)) first += around(40) * static_cast<ptrdiff_t>(element);
      if (first % static_cast<ptrdiff_t>(element) != 0 || first + *low < 0 ||
          static_cast<size_t>(first + *high) + length * element > bytes) {
        continue;
      }
      place[o] = {internal::kX, static_cast<size_t>(first), stride, offsets};
      break;
    }
    before = &place[o];
  });
}

// A module copies what it holds before the call.
std::string OverlapIn(const Case& c, const Layout& layout) {
  const auto bytes_of = [&](Operand o) {
    return RowLengthOf(c, o) * internal::ElementSize(c.operand[o].dtype);
  };
  const OperandSet held = IsByModule(c) ? HeldByModule(c) : 0;
  std::string found;
  internal::ForEachOperand(c.Given(), [&](Operand output) {
    if (!c.IsOutput(output)) return;
    std::vector<uint8_t> own(layout.block[internal::kX].bytes);
    const Layout::Place& place = layout.place[output];
    const std::string name = kOperandRules[output].name;
    for (const ptrdiff_t offset : place.offset) {
      uint8_t* const row = &own[place.first] + offset;
      if (std::memchr(row, 1, bytes_of(output)) != nullptr) found = "rows of " + name + " overlap";
      std::memset(row, 1, bytes_of(output));
    }
    internal::ForEachOperand(c.Given() & ~held & ~SetOf(output), [&](Operand other) {
      const Layout::Place& its = layout.place[other];
      const bool may_replace = kOperandRules[output].in_place_of == other &&
                               bytes_of(output) == bytes_of(other) && its.first == place.first;
      if (may_replace && its.offset == place.offset) return;
      for (size_t row = 0; row < its.offset.size(); ++row) {
        // With several calls, one may be in place and the others separate.
        if (may_replace && c.function == Function::kSeveral &&
            its.offset[row] == place.offset[row]) {
          continue;
        }
        if (std::memchr(&own[its.first] + its.offset[row], 1, bytes_of(other)) != nullptr) {
          found = name + " overlaps " + kOperandRules[other].name;
        }
      }
    });
  });
  return found;
}

CallOperands OperandsAt(const Case& c, const Layout& layout, uint8_t* const* block) {
  CallOperands operands;
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    const Layout::Place& place = layout.place[o];
    const std::vector<size_t> shape = ShapeOf(c, o);
    std::vector<ptrdiff_t> stride = place.stride;
    stride.resize(shape.size(), 1);
    operands.Set(o,
                 rmsnorm_tensor(block[place.block] + place.first, c.operand[o].dtype,
                                static_cast<int32_t>(shape.size()), shape.data(), stride.data()));
    if (c.operand[o].add) operands.add_to |= 1u << (o - internal::kDx);
  });
  return operands;
}

}  // namespace rmsnorm::cases
