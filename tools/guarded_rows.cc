// SPDX-License-Identifier: Apache-2.0
#include "guarded_rows.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace rmsnorm::tools {
namespace {

// Canaries before the lowest row and after the highest one: more than four of the widest vectors.
constexpr size_t kGuardLines = 5;

}  // namespace

Format FormatOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::f16:
      return {5, 10};
    case Dtype::bf16:
      return {8, 7};
    case Dtype::f64:
      return {11, 52};
    case Dtype::f32:
    case Dtype::i8:  // which is no format of floats
      break;
  }
  return {8, 23};
}

GuardedRows::GuardedRows(Dtype dtype, const Layout& layout, uint8_t canary)
    : dtype_(dtype), layout_(layout), canary_(canary) {
  const size_t rows_in_memory = layout.repeated ? 1 : layout.rows;
  const size_t elements = layout.shift + rows_in_memory * (layout.d + layout.gap);
  lines_.resize(elements * format().size() / sizeof(Line) + 1 + 2 * kGuardLines);
  std::memset(lines_.data(), canary, lines_.size() * sizeof(Line));
}

ptrdiff_t GuardedRows::stride() const {
  if (layout_.repeated) return 0;
  const ptrdiff_t distance = static_cast<ptrdiff_t>(layout_.d + layout_.gap);
  return layout_.falling ? -distance : distance;
}

size_t GuardedRows::Position(size_t row) const {
  size_t slot = row;
  if (layout_.falling) slot = layout_.rows - 1 - row;
  if (layout_.repeated) slot = 0;
  return kGuardLines * sizeof(Line) +
         (layout_.shift + slot * (layout_.d + layout_.gap)) * format().size();
}

uint8_t* GuardedRows::row(size_t index) {
  return reinterpret_cast<uint8_t*>(lines_.data()) + Position(index);
}

const uint8_t* GuardedRows::row(size_t index) const {
  return reinterpret_cast<const uint8_t*>(lines_.data()) + Position(index);
}

uint64_t GuardedRows::bits(size_t row_index, size_t j) const {
  uint64_t bits = 0;  // every CPU that Highway has targets for here is little-endian
  std::memcpy(&bits, row(row_index) + j * format().size(), format().size());
  return bits;
}

void GuardedRows::set_bits(size_t row_index, size_t j, uint64_t bits) {
  std::memcpy(row(row_index) + j * format().size(), &bits, format().size());
}

View GuardedRows::view_as(Dtype dtype, const std::vector<size_t>& leading) {
  std::vector<size_t> shape = leading;
  shape.push_back(layout_.d);
  std::vector<ptrdiff_t> strides(shape.size(), 1);
  ptrdiff_t rows = 1;  // of each index
  for (size_t i = leading.size(); i-- > 0;) {
    strides[i] = rows * stride();
    rows *= static_cast<ptrdiff_t>(shape[i]);
  }
  return View(row(0), dtype, shape.size(), shape.data(), strides.data());
}

View GuardedRows::rows(size_t first, size_t count) {
  return View(row(first), dtype_, {count, layout_.d}, {stride(), 1});
}

View GuardedRows::elements(size_t row_index, size_t first, const std::vector<size_t>& shape) {
  return View(row(row_index) + first * format().size(), dtype_, shape.size(), shape.data());
}

std::string GuardedRows::FindBrokenCanary() const {
  const uint8_t* const begin = reinterpret_cast<const uint8_t*>(lines_.data());
  const uint8_t* const end = begin + lines_.size() * sizeof(Line);
  const auto is_broken = [this](uint8_t byte) { return byte != canary_; };

  const uint8_t* gap = begin;  // what lies before, between and after the rows, in rising order
  for (size_t i = 0; i <= layout_.rows; ++i) {
    const bool last = i == layout_.rows;
    const size_t index = layout_.falling ? layout_.rows - 1 - i : i;
    const uint8_t* const next = last ? end : row(index);
    const uint8_t* const broken = std::find_if(gap, std::max(gap, next), is_broken);
    if (broken < next) {
      return "byte " + std::to_string(broken - row(0)) +
             " from its start, outside its rows, was written";
    }
    if (!last) gap = next + layout_.d * format().size();
  }
  return {};
}

bool GuardedRows::operator==(const GuardedRows& other) const {
  return lines_.size() == other.lines_.size() &&
         std::memcmp(lines_.data(), other.lines_.data(), lines_.size() * sizeof(Line)) == 0;
}

GuardedRows Input(Dtype dtype, const Layout& layout) {
  return GuardedRows(dtype, layout, GuardedRows::kAroundInput);
}

GuardedRows Output(Dtype dtype, const Layout& layout) {
  return GuardedRows(dtype, layout, GuardedRows::kAroundOutput);
}

GuardedRows OnePerRow(Dtype dtype, size_t rows) { return Output(dtype, {1, rows}); }

void CopyRow(const GuardedRows& from, size_t from_row, GuardedRows& to, size_t to_row) {
  std::memcpy(to.row(to_row), from.row(from_row), from.layout().d * from.format().size());
}

void CopyRows(const GuardedRows& from, GuardedRows& to) {
  for (size_t row = 0; row < from.layout().rows; ++row) CopyRow(from, row, to, row);
}

std::string FindDifference(const GuardedRows& expected, const GuardedRows& actual) {
  const Format format = expected.format();
  const size_t d = expected.layout().d;
  for (size_t row = 0; row < expected.layout().rows; ++row) {
    if (std::memcmp(expected.row(row), actual.row(row), d * format.size()) == 0) continue;
    for (size_t j = 0; j < d; ++j) {
      const uint64_t wanted = expected.bits(row, j);
      const uint64_t got = actual.bits(row, j);
      if (got == wanted || (format.IsNan(got) && format.IsNan(wanted))) continue;
      char text[100];
      std::snprintf(text, sizeof text, "[%zu, %zu] is 0x%0*llx, not 0x%0*llx", row, j,
                    static_cast<int>(2 * format.size()), static_cast<unsigned long long>(got),
                    static_cast<int>(2 * format.size()), static_cast<unsigned long long>(wanted));
      return text;
    }
  }
  return {};
}

std::string FindFaultOfOutputs(std::initializer_list<ComparedRows> outputs) {
  for (const ComparedRows& output : outputs) {
    const std::string difference =
        output.is_computed ? FindDifference(output.expected, output.actual) : std::string();
    if (!difference.empty()) return output.name + difference;
    const std::string broken = output.actual.FindBrokenCanary();
    if (!broken.empty()) return std::string(output.name) + ": " + broken;
  }
  return {};
}

}  // namespace rmsnorm::tools
