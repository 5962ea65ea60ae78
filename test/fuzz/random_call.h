// SPDX-License-Identifier: Apache-2.0
// Any call of any operation of rmsnorm.h, drawn from a seed: where its operands lie in one piece of
// memory, what they hold, and the options.
#ifndef RMSNORM_TEST_FUZZ_RANDOM_CALL_H_
#define RMSNORM_TEST_FUZZ_RANDOM_CALL_H_

#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "../../lib/operands.h"  // which operands there are, and which operation takes which
#include "gradients.h"
#include "oracle.h"
#include "random_rows.h"
#include "tensor.h"

namespace rmsnorm::test {

using internal::kBias, internal::kDb, internal::kDw, internal::kDx, internal::kDy,
    internal::kOperandRules, internal::kOperands, internal::kResidual, internal::kResidualOut,
    internal::kRstd, internal::kSums, internal::kSumsOut, internal::kWeight, internal::kX,
    internal::kY;
using internal::OperandRule;
using internal::Role;
using internal::Shape;

// ------------------------------------------------------------------ operations and operands

struct Operation {
  const char* name;
  bool backward;
  bool by_module;
  unsigned dense;  // the operands of a call with pointers to dense rows, as bits; else 0
};
constexpr unsigned Bit(int id) { return 1u << id; }
enum OperationId {
  kForward,
  kBackward,
  kForwardAll,
  kModuleForward,
  kModuleBackward,
  kForwardRows,
  kAddForwardRows,
  kBackwardRows
};
constexpr Operation kOperations[] = {
    {"rmsnorm_forward", false, false, 0},
    {"rmsnorm_backward", true, false, 0},
    {"rmsnorm_forward_all", false, false, 0},
    {"rmsnorm_module_forward", false, true, 0},
    {"rmsnorm_module_backward", true, true, 0},
    {"rmsnorm_module_forward_rows", false, true, Bit(kX) | Bit(kY)},
    {"rmsnorm_module_add_forward_rows", false, true,
     Bit(kX) | Bit(kResidual) | Bit(kResidualOut) | Bit(kY)},
    {"rmsnorm_module_backward_rows", true, true,
     Bit(kX) | Bit(kDy) | Bit(kRstd) | Bit(kDx) | Bit(kDw)}};
constexpr size_t kOperationCount = std::size(kOperations);

struct Operand {
  bool given = false;
  bool null_data = false;
  bool per_row = false;  // an element for each row of x, rather than rows
  rmsnorm_view view = {};
  ptrdiff_t offset = 0;  // of the first element, in bytes from the begin of the memory
};

// One norm, or its gradients. A call of rmsnorm_forward_all() has two, any other call one.
struct Norm {
  bool by_module = false;
  size_t module_d = 0;
  rmsnorm_dtype module_dtype = RMSNORM_F32;
  rmsnorm_options options = rmsnorm_default_options();
  bool null_options = false;
  uint32_t add_to = 0;
  uint32_t operands_size = sizeof(rmsnorm_operands);
};

constexpr int kMostNorms = 2;
constexpr int kAllOperands = kMostNorms * kOperands;

struct Call {
  OperationId operation;
  int norms = 1;
  Norm norm[kMostNorms];
  Operand operands[kAllOperands];  // of the first norm, and then of the second
  rmsnorm_context context = rmsnorm_default_context();
  bool null_context = false;
  unsigned char beyond = 0;  // the last byte of a struct that says to be larger than it is
  bool legal = true;         // whether it must be accepted; if not, it may be
  bool tame = true;          // numbers around 1, and an rstd that is theirs
  bool at_end = false;       // of memory before a guard page, rather than after one
  std::vector<unsigned char> memory;

  const Operation& Is() const { return kOperations[operation]; }
  // A weight of a module is given to it before the call.
  bool IsOfModule(int id) const { return norm[id / kOperands].by_module && RuleId(id) == kWeight; }
  Role RoleOf(int id) const {
    if (id >= norms * kOperands || IsOfModule(id)) return Role::kAbsent;
    const OperandRule& rule = kOperandRules[RuleId(id)];
    if (Is().dense != 0 && (Is().dense & Bit(RuleId(id))) == 0) return Role::kAbsent;
    return Is().backward ? rule.backward : rule.forward;
  }
  bool IsOutput(int id) const { return RoleOf(id) == Role::kOutput; }
  bool IsInput(int id) const { return RoleOf(id) == Role::kInput || RoleOf(id) == Role::kRequired; }
  std::string NameOf(int id) const {
    return (norms > 1 ? "calls[" + std::to_string(id / kOperands) + "]." : "") +
           kOperandRules[RuleId(id)].name;
  }
  static int RuleId(int id) { return id % kOperands; }
};

// The input that an output may take the place of, or -1.
inline int PlaceOf(int id) {
  const int first = id - Call::RuleId(id);
  switch (Call::RuleId(id)) {
    case kY:
      return first + kX;
    case kResidualOut:
      return first + kResidual;
    case kDx:
      return first + kDy;
    default:
      return -1;
  }
}

inline int RowDimensions(const Operand& operand) {
  return operand.view.ndim - (operand.per_row ? 0 : 1);
}
inline size_t Rows(const Operand& operand) {
  size_t rows = 1;
  for (int i = 0; i < RowDimensions(operand); ++i) rows *= operand.view.shape[i];
  return rows;
}
inline size_t RowLength(const Operand& operand) {
  return operand.per_row ? 1 : operand.view.shape[operand.view.ndim - 1];
}
inline size_t SizeOf(const Operand& operand) { return rmsnorm_dtype_size(operand.view.dtype); }
inline size_t RowBytes(const Operand& operand) { return RowLength(operand) * SizeOf(operand); }
inline SizeList Leading(const Operand& operand) {
  return SizeList(operand.view.shape, operand.view.shape + RowDimensions(operand));
}

// Where the rows of an operand begin, in C order.
inline std::vector<ptrdiff_t> RowOffsets(const Operand& operand) {
  const rmsnorm_view& view = operand.view;
  std::vector<ptrdiff_t> offsets(Rows(operand));
  for (size_t row = 0; row < offsets.size(); ++row) {
    ptrdiff_t elements = 0;
    size_t rest = row;
    for (int i = RowDimensions(operand) - 1; i >= 0; rest /= view.shape[i--]) {
      elements += static_cast<ptrdiff_t>(rest % view.shape[i]) * view.stride[i];
    }
    offsets[row] = operand.offset + elements * static_cast<ptrdiff_t>(SizeOf(operand));
  }
  return offsets;
}

inline Tensor Gather(const Operand& operand, const unsigned char* memory) {
  const std::vector<ptrdiff_t> offsets = RowOffsets(operand);
  Tensor rows(operand.view.dtype, offsets.size(), RowLength(operand));
  for (size_t row = 0; row < offsets.size(); ++row) {
    std::memcpy(rows.Row(row), memory + offsets[row], RowBytes(operand));
  }
  return rows;
}

// The numbers of an operand that has one for each row; none where it is not given.
template <class T>
std::vector<T> GatherNumbers(const Operand& operand, const unsigned char* memory) {
  std::vector<T> numbers;
  if (!operand.given) return numbers;
  for (const ptrdiff_t offset : RowOffsets(operand)) {
    std::memcpy(&numbers.emplace_back(), memory + offset, sizeof(T));
  }
  return numbers;
}

// Whether some memory holds what a view describes. A view that is refused in any case counts as
// held: an unknown type, no dimension or too many, or more bytes than an address can count.
inline bool IsHeld(const Operand& operand, size_t memory) {
  const rmsnorm_view& view = operand.view;
  const auto size = static_cast<ptrdiff_t>(SizeOf(operand));
  if (size == 0 || view.ndim < 1 || view.ndim > RMSNORM_MAX_DIMS) return true;
  ptrdiff_t low = operand.offset;
  ptrdiff_t high = operand.offset;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 0) return true;
    ptrdiff_t span;
    const ptrdiff_t stride = i < RowDimensions(operand) ? view.stride[i] : 1;
    ptrdiff_t& bound = stride < 0 ? low : high;
    if (__builtin_mul_overflow(view.shape[i] - 1, stride, &span) ||
        __builtin_mul_overflow(span, size, &span) || __builtin_add_overflow(bound, span, &bound)) {
      return true;
    }
  }
  return low >= 0 && high <= static_cast<ptrdiff_t>(memory) - size;
}

// ------------------------------------------------------------------ drawing

class CallDrawer {
 public:
  explicit CallDrawer(uint32_t seed) : random_(seed) {}

  Random& random() { return random_; }

  Call Draw() {
    call_.operation = static_cast<OperationId>(random_.Below(kOperationCount));
    call_.norms = call_.operation == kForwardAll ? kMostNorms : 1;
    scattered_ = OneIn(5);
    for (int i = 0; i < call_.norms; ++i) {
      DrawShape(i);
      DrawOperands(i);
    }
    if (scattered_) {
      Scatter();
    } else {
      LayOut();
    }
    call_.at_end = OneIn(2);
    exponent_ = static_cast<int>(random_.Below(278)) - 150;
    call_.tame = !scattered_ && OneIn(3);
    for (int i = 0; i < call_.norms; ++i) DrawOptions(i);
    call_.null_context = OneIn(16);
    FillMemory();
    if (OneIn(6)) Spoil();
    return std::move(call_);
  }

 private:
  bool OneIn(size_t count) { return random_.Below(count) == 0; }
  ptrdiff_t Around(size_t distance) {  // from -distance to distance
    return static_cast<ptrdiff_t>(random_.Below(2 * distance + 1)) -
           static_cast<ptrdiff_t>(distance);
  }
  Operand& operand(int id) { return call_.operands[id]; }
  bool IsDense() const { return call_.Is().dense != 0; }

  size_t DrawLength() {
    constexpr size_t kMultiples[] = {8, 16, 32, 64, 128};
    switch (scattered_ ? 0 : random_.Below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return 1 + random_.Below(40);
      case 4:
      case 5:
        return 1 + random_.Below(1500);
      case 6:
        return 4096 * (1 + random_.Below(4)) + random_.Below(5) - 2;
      case 7:  // which kernels know
        return OneIn(2) ? 64 : 128;
      default: {
        const size_t multiple = kMultiples[random_.Below(std::size(kMultiples))];
        return multiple * (1 + random_.Below(6)) + random_.Below(5) - 2;
      }
    }
  }

  // Few elements, in up to 2,000 rows. A second norm may have dimensions of the first, as q and k
  // have.
  void DrawShape(int norm) {
    SizeList& leading = leading_[norm];
    if (norm > 0 && OneIn(2)) {
      leading = leading_[0];
      d_[norm] = OneIn(2) ? d_[0] : std::min(DrawLength(), d_[0]);
      if (!leading.empty() && OneIn(2)) leading.back() = 1 + random_.Below(leading.back() + 1);
      return;
    }
    const size_t d = d_[norm] = DrawLength();
    leading.resize(IsDense() ? 1 : random_.Below(RMSNORM_MAX_DIMS));
    size_t rows = scattered_ ? 12 : std::max<size_t>((OneIn(8) ? 40000 : 6000) / d, 1);
    if (!OneIn(8)) rows = std::min<size_t>(rows, 32);
    rows = std::min<size_t>(rows, 2000);
    for (size_t& size : leading) {
      size = 1 + random_.Below(OneIn(2) ? rows : std::min<size_t>(rows, 4));
      rows /= size;
      if (OneIn(100)) size = 0;
    }
    if (!leading.empty()) std::swap(leading[0], leading[random_.Below(leading.size())]);
  }

  rmsnorm_dtype DrawType() { return kDtypes[random_.Below(3)]; }

  // Which operands a norm has, and of which types and shapes.
  void DrawOperands(int index) {
    Norm& norm = call_.norm[index];
    norm.by_module = call_.Is().by_module || (call_.operation == kForwardAll && OneIn(2));
    norm.module_d = d_[index];
    norm.module_dtype = DrawType();
    norm.add_to = call_.Is().backward && !IsDense() ? static_cast<uint32_t>(random_.Below(8)) : 0;
    const rmsnorm_dtype usual = DrawType();
    const bool all_alike = IsDense() || OneIn(2);
    const SizeList weight = DrawColumns(leading_[index]);
    for (int id = index * kOperands; id < (index + 1) * kOperands; ++id) {
      const OperandRule& rule = kOperandRules[Call::RuleId(id)];
      const Role role = call_.RoleOf(id);
      Operand& o = operand(id);
      o.given = role == Role::kRequired || (role != Role::kAbsent && OneIn(2)) ||
                (call_.IsOfModule(id) && OneIn(2));
      o.per_row = rule.shape == Shape::kPerRow;
      SizeList shape = leading_[index];
      if (o.per_row && shape.empty()) shape = {1};
      if (rule.shape == Shape::kColumns) {
        // dw has the shape of the weight, which of a module has no leading dimensions.
        const int rule_id = Call::RuleId(id);
        const bool like_weight = rule_id == kWeight || rule_id == kDw;
        shape = like_weight && norm.by_module ? SizeList()
                : like_weight                 ? weight
                                              : DrawColumns(leading_[index]);
      }
      if (!o.per_row) shape.push_back(d_[index]);
      o.view = rmsnorm_tensor(nullptr, all_alike ? usual : DrawType(),
                              static_cast<int32_t>(shape.size()), shape.data(), nullptr);
      if (!o.per_row && d_[index] == 1) o.view.stride[o.view.ndim - 1] = Around(9);
      if (rule.dtype != 0) o.view.dtype = rule.dtype;
    }
    // What one operand asks of others.
    const int first = index * kOperands;
    const auto given = [&](int id) -> bool& { return operand(first + id).given; };
    if (IsDense() && !call_.Is().backward) {
      for (int id = 0; id < kOperands; ++id) given(id) |= call_.RoleOf(id) != Role::kAbsent;
    }
    if (given(kSums) && given(kResidual)) given(OneIn(2) ? kSums : kResidual) = false;
    given(kResidualOut) &= given(kResidual);
    operand(first + kResidualOut).view.dtype = operand(first + kResidual).view.dtype;
    bool has_output = false;
    for (int id = first; id < first + kOperands; ++id) {
      has_output = has_output || (operand(id).given && call_.IsOutput(id));
    }
    if (!has_output) given(call_.Is().backward ? kDx : kY) = true;
  }

  // Leading dimensions of a weight or a bias.
  SizeList DrawColumns(const SizeList& leading) {
    return OneIn(2) ? SizeList() : DrawShared(random_, leading);
  }

  // -------------------------------------------------------------- where operands lie

  // Every operand in memory of its own, in the place of another, or interleaved with others.
  void LayOut() {
    std::vector<std::vector<int>> groups;
    bool is_in_place[kAllOperands] = {};
    for (int id = 0; id < kAllOperands; ++id) {
      if (!operand(id).given) continue;
      const int place = PlaceOf(id);
      is_in_place[id] = place >= 0 && operand(place).given &&
                        SizeOf(operand(place)) == SizeOf(operand(id)) && OneIn(3);
      if (is_in_place[id]) {
        overwritten_[place] = true;
      } else if (!groups.empty() && !IsDense() && OneIn(4)) {
        groups.back().push_back(id);
      } else {
        groups.push_back({id});
      }
    }
    for (size_t i = groups.size(); i > 1; --i) std::swap(groups[i - 1], groups[random_.Below(i)]);
    size_t size = 0;
    for (const std::vector<int>& group : groups) {
      size_t alignment = 1;
      for (const int id : group) alignment = std::max(alignment, SizeOf(operand(id)));
      if (!OneIn(3)) size += random_.Below(100);
      size = (size + alignment - 1) / alignment * alignment;
      size += PlaceGroup(group, size, alignment);
    }
    // The last ends where memory does.
    const size_t slack = (8 - size % 8) % 8;
    for (const int id : groups.back()) operand(id).offset += static_cast<ptrdiff_t>(slack);
    call_.memory.resize(size + slack);
    for (int id = 0; id < kAllOperands; ++id) {
      if (!is_in_place[id]) continue;
      operand(id).offset = operand(PlaceOf(id)).offset;
      std::copy_n(operand(PlaceOf(id)).view.stride, RowDimensions(operand(id)),
                  operand(id).view.stride);
    }
  }

  size_t Pad(size_t alignment) { return IsDense() || OneIn(2) ? 0 : random_.Below(20) * alignment; }

  // Repeats what `span` bytes of some operands hold by their dimensions from `begin` up to `end`,
  // each operand by the same distances. Gives the bytes that it spans then.
  size_t Repeat(const std::vector<int>& group, int begin, int end, size_t span, size_t alignment,
                bool only_read) {
    int order[RMSNORM_MAX_DIMS];
    const int count = end - begin;
    for (int i = 0; i < count; ++i) order[i] = end - 1 - i;
    if (count > 1 && !IsDense() && OneIn(3)) {
      std::swap(order[0], order[random_.Below(static_cast<size_t>(count))]);
    }
    size_t below = 0;
    for (int at = 0; at < count; ++at) {
      const int i = order[at];
      const size_t steps = std::max<size_t>(operand(group[0]).view.shape[i], 1) - 1;
      size_t step = span + Pad(alignment);
      if (only_read && !IsDense() &&
          OneIn(6)) {  // the same rows again or, alone, rows that overlap
        const size_t row = RowLength(operand(group[0]));
        step = group.size() > 1 || OneIn(2) ? 0 : random_.Below(row) * alignment;
      }
      step = (step + alignment - 1) / alignment * alignment;
      span += steps * step;
      const bool falling = !IsDense() && OneIn(4);
      if (falling) below += steps * step;
      for (const int id : group) {
        const auto elements = static_cast<ptrdiff_t>(step / SizeOf(operand(id)));
        operand(id).view.stride[i] = steps == 0 && !IsDense() ? Around(5000)
                                     : falling                ? -elements
                                                              : elements;
      }
    }
    for (const int id : group) operand(id).offset += static_cast<ptrdiff_t>(below);
    return span;
  }

  // What the operands of a group hold by their inner dimensions lies side by side in slots, which
  // the outer dimensions that they have in common repeat. Gives the bytes that it takes from
  // `begin` on.
  size_t PlaceGroup(const std::vector<int>& group, size_t begin, size_t alignment) {
    int common = RowDimensions(operand(group[0]));
    bool all_only_read = true;
    for (const int id : group) {
      const SizeList first = Leading(operand(group[0]));
      const SizeList own = Leading(operand(id));
      int same = 0;
      while (same < common && same < RowDimensions(operand(id)) &&
             first[static_cast<size_t>(same)] == own[static_cast<size_t>(same)]) {
        ++same;
      }
      common = same;
      all_only_read = all_only_read && IsOnlyRead(id);
    }
    size_t slots = 0;
    for (const int id : group) {
      operand(id).offset = static_cast<ptrdiff_t>(begin + slots);
      const size_t slot = Repeat({id}, common, RowDimensions(operand(id)), RowBytes(operand(id)),
                                 SizeOf(operand(id)), IsOnlyRead(id));
      slots = (slots + slot + alignment - 1) / alignment * alignment;
      if (id != group.back()) slots += Pad(alignment);
    }
    return Repeat(group, 0, common, slots, alignment, all_only_read);
  }

  bool IsOnlyRead(int id) const { return !call_.IsOutput(id) && !overwritten_[id]; }

  // Every operand anywhere in a small memory, whatever it shares with others.
  void Scatter() {
    call_.legal = false;
    call_.memory.resize(8 * (64 + random_.Below(448)));
    if (IsDense()) call_.memory.resize(4096);  // which any dense rows fit
    const auto size = static_cast<ptrdiff_t>(call_.memory.size());
    const Operand* before = nullptr;
    for (int id = 0; id < kAllOperands; ++id) {
      Operand& o = operand(id);
      if (!o.given) continue;
      const auto element = static_cast<ptrdiff_t>(SizeOf(o));
      const bool alike = before != nullptr && Leading(*before) == Leading(o) && !OneIn(3);
      ptrdiff_t low = 0;
      ptrdiff_t high = static_cast<ptrdiff_t>(RowBytes(o));
      for (int i = 0; i < RowDimensions(o); ++i) {
        const auto row = static_cast<ptrdiff_t>(RowLength(o));
        ptrdiff_t& stride = o.view.stride[i];
        if (!IsDense()) {
          stride = OneIn(2) ? Around(60) : Around(3) * row + (OneIn(2) ? Around(2) : 0);
          if (alike) {
            stride = before->view.stride[i] * static_cast<ptrdiff_t>(SizeOf(*before)) / element;
          }
        }
        const ptrdiff_t reach = static_cast<ptrdiff_t>(o.view.shape[i]) * stride * element;
        (reach < 0 ? low : high) += reach;
      }
      if (high - low > size) {
        std::fill_n(o.view.stride, RowDimensions(o), 0);
        low = 0;
        high = static_cast<ptrdiff_t>(RowBytes(o));
      }
      const auto places = static_cast<size_t>((size - (high - low)) / element + 1);
      o.offset = -low + static_cast<ptrdiff_t>(random_.Below(places)) * element;
      if (before != nullptr && OneIn(2)) {
        const ptrdiff_t there = o.offset;
        o.offset = before->offset + (OneIn(2) ? 0 : Around(40) * element);
        if (o.offset % element != 0 || !IsHeld(o, call_.memory.size())) o.offset = there;
      }
      before = &o;
    }
  }

  // -------------------------------------------------------------- options and values

  float PositivePower(double exponent) {
    const double value = std::exp2(std::clamp(exponent, -149.0, 127.9));
    return static_cast<float>(value);
  }
  float AnyPower() { return PositivePower(-149 + 277 * random_.Uniform()); }

  void DrawOptions(int index) {
    Norm& norm = call_.norm[index];
    rmsnorm_options& options = norm.options;
    const bool wild = !call_.tame;
    const float eps[] = {1e-5f, 1e-6f, 0.5f, 0, 1, 0, 1e-40f, FLT_MAX, AnyPower()};
    // The last brings the rows of that exponent near the border between f32 and binary64.
    const float divisors[] = {
        0,          0,
        100.5f,     1,
        1e-40f,     FLT_MAX,
        AnyPower(), PositivePower(2.0 * exponent_ + 130 * (2 * random_.Uniform() - 1))};
    const float offsets[] = {0, 0, 1, 0.1f, 1e-40f, FLT_MAX, -AnyPower()};
    options.eps = eps[random_.Below(wild ? std::size(eps) : 5)];
    options.divisor = divisors[random_.Below(wild ? std::size(divisors) : 4)];
    options.eps_placement =
        OneIn(2) ? RMSNORM_EPS_INSIDE : static_cast<int32_t>(1 + random_.Below(2));
    options.rounding =
        OneIn(2) ? RMSNORM_SCALE_THEN_CAST : static_cast<int32_t>(1 + random_.Below(2));
    options.residual_rounding = OneIn(2) ? RMSNORM_NORM_THEN_CAST : RMSNORM_CAST_THEN_NORM;
    const int first = index * kOperands;
    const auto given = [&](int id) { return operand(first + id).given; };
    if (norm.by_module || given(kWeight) || !(given(kY) || given(kDx) || given(kDw))) {
      options.weight_offset = offsets[random_.Below(wild ? std::size(offsets) : 4)];
    }
    norm.null_options = OneIn(16);
    if (norm.null_options) options = rmsnorm_default_options();
  }

  void FillAnyRow(Tensor& rows, size_t row) {
    const Format format = FormatOf(rows.dtype());
    const size_t kind = call_.tame ? random_.Below(2) : random_.Below(kRowKinds + 4);
    if (kind < kRowKinds) {
      FillRow(random_, static_cast<RowKind>(kind), rows, row);
    } else if (kind == kRowKinds) {  // any bits, any NaN among them
      for (size_t j = 0; j < rows.d(); ++j) rows.set_bits(row, j, random_.Bits());
    } else {
      const bool sparse = kind == kRowKinds + 1;
      const int exponent = rows.dtype() == RMSNORM_F16 ? exponent_ / 8 : exponent_;
      for (size_t j = 0; j < rows.d(); ++j) {
        rows.set(row, j, sparse && j % 64 != 0 ? 0 : std::ldexp(random_.Normal(), exponent));
      }
    }
    if (!call_.tame && OneIn(8)) {
      rows.set_bits(row, random_.Below(rows.d()), HardBits(random_, format));
    }
  }

  // Inputs, and outputs that are added to. What lies around them is NaN or an odd number.
  void FillMemory() {
    std::fill(call_.memory.begin(), call_.memory.end(), OneIn(2) ? 0xFF : kWiped);
    for (int id = 0; id < call_.norms * kOperands; ++id) {
      const int rule = Call::RuleId(id);
      const bool is_added_to = rule == kDx || rule == kDw || rule == kDb;
      if (!operand(id).given || operand(id).view.dtype == RMSNORM_F64) continue;
      if (call_.IsOutput(id) && !is_added_to) continue;
      Tensor rows(operand(id).view.dtype, Rows(operand(id)), RowLength(operand(id)));
      for (size_t row = 0; row < rows.rows(); ++row) FillAnyRow(rows, row);
      if ((rule == kWeight || rule == kBias) && !call_.tame && OneIn(2)) FillWeight(random_, rows);
      Store(id, rows);
    }
    for (int i = 0; i < call_.norms; ++i) {
      const int rstd = i * kOperands + kRstd;
      if (call_.IsInput(rstd) && operand(rstd).given && (call_.tame || OneIn(2))) FillRstd(i);
      if (operand(i * kOperands + kSums).given) FillSums(i);
    }
  }

  void Store(int id, const Tensor& rows) {
    const std::vector<ptrdiff_t> offsets = RowOffsets(operand(id));
    for (size_t row = 0; row < offsets.size(); ++row) {
      std::memcpy(call_.memory.data() + offsets[row], rows.Row(row), RowBytes(operand(id)));
    }
  }

  // What forward gives for these rows.
  void FillRstd(int norm) {
    const int first = norm * kOperands;
    if (Rows(operand(first + kX)) == 0) return;
    const Tensor x = Gather(operand(first + kX), call_.memory.data());
    rmsnorm_context reference = rmsnorm_default_context();
    reference.target = "reference";
    reference.threads = 1;
    Context context;
    static_cast<rmsnorm_context&>(context) = reference;
    const std::vector<float> rstd = InverseRmsOf(x, Options(call_.norm[norm].options), context);
    Tensor numbers(RMSNORM_F32, rstd.size(), 1);
    std::memcpy(numbers.data(), rstd.data(), rstd.size() * sizeof(float));
    Store(first + kRstd, numbers);
  }

  void FillSums(int norm) {
    const int first = norm * kOperands;
    const Tensor x = Gather(operand(first + kX), call_.memory.data());
    const std::vector<ptrdiff_t> offsets = RowOffsets(operand(first + kSums));
    for (size_t row = 0; row < x.rows(); ++row) {
      const double any[] = {0,
                            -1,
                            1e300,
                            5e-324,
                            std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN(),
                            std::exp2(300 * (2 * random_.Uniform() - 1))};
      const double sum =
          call_.tame || OneIn(2) ? ExactSumSquares(x, row) : any[random_.Below(std::size(any))];
      std::memcpy(call_.memory.data() + offsets[row], &sum, sizeof sum);
    }
  }

  // -------------------------------------------------------------- illegal calls

  // Makes one thing another, which is refused in most cases.
  void Spoil() {
    const Call good = call_;
    call_.legal = call_.tame = call_.null_context = false;
    for (Norm& norm : call_.norm) norm.null_options = false;
    Norm& norm = call_.norm[random_.Below(static_cast<size_t>(call_.norms))];
    int id;
    do {
      id = static_cast<int>(random_.Below(kAllOperands));
    } while (!operand(id).given);
    Operand& o = operand(id);
    rmsnorm_view& view = o.view;
    const auto element = static_cast<ptrdiff_t>(SizeOf(o));
    const size_t dimension = random_.Below(static_cast<size_t>(view.ndim));
    const float wrong[] = {-1,
                           -FLT_MAX,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(),
                           -1e-40f};
    const float wrong_float = wrong[random_.Below(std::size(wrong))];
    const size_t sizes[] = {
        0, 1, view.shape[dimension] + 1, view.shape[dimension] - 1, SIZE_MAX, size_t{1} << 62};
    switch (random_.Below(16)) {
      case 0:
        o.given = false;
        break;
      case 1:  // a pointer to dense rows that is null is a missing operand
        (IsDense() && !call_.IsOfModule(id) ? o.given : o.null_data) ^= true;
        break;
      case 2:  // an operand more, in the memory of another
        id = static_cast<int>(random_.Below(static_cast<size_t>(call_.norms * kOperands)));
        if (IsDense()) break;
        operand(id).given = true;
        if (operand(id).offset == 0) operand(id).offset = o.offset;
        break;
      case 3:
        view.dtype = static_cast<rmsnorm_dtype>(random_.Below(6));
        break;
      case 4:
        view.ndim = static_cast<int32_t>(random_.Below(RMSNORM_MAX_DIMS + 3)) - 1;
        break;
      case 5:
        view.shape[dimension] = sizes[random_.Below(std::size(sizes))];
        break;
      case 6:
        view.stride[dimension] =
            OneIn(4) ? PTRDIFF_MAX - static_cast<ptrdiff_t>(random_.Below(8)) : Around(300);
        break;
      case 7:
        o.offset += 1 + static_cast<ptrdiff_t>(random_.Below(7));
        break;
      case 8:
      case 9:  // near another
        o.offset = good.operands[random_.Below(kAllOperands)].offset + Around(70) * element;
        break;
      case 10:
        norm.options.eps = wrong_float;
        break;
      case 11:
        norm.options.divisor = wrong_float;
        break;
      case 12:
        norm.options.weight_offset = wrong_float;
        break;
      case 13:
        call_.context.threads = -1 - static_cast<int32_t>(random_.Below(3));
        break;
      case 14: {
        rmsnorm_options& options = norm.options;
        int32_t* const numbers[] = {&options.eps_placement, &options.rounding,
                                    &options.residual_rounding};
        *numbers[random_.Below(3)] = static_cast<int32_t>(random_.Below(6)) - 2;
        norm.add_to += OneIn(2) ? 8u : 0u;
        break;
      }
      default:
        SpoilSizes(norm);
        if (OneIn(3)) call_.context.target = "unknown";
        norm.module_d += OneIn(2) ? 1u : 0u;
    }
    // What is not refused must have memory. Dense rows are what x says.
    bool held = true;
    for (int other = 0; other < kAllOperands; ++other) {
      if (!operand(other).given) continue;
      held = held && IsHeld(operand(other), call_.memory.size());
      held = held && (!IsDense() || IsStillDense(other));
    }
    if (!held) call_ = good;
  }

  // Whether an operand of a call with dense rows is what the call says of it by the dtype and the
  // rows of x.
  bool IsStillDense(int id) {
    const Operand& o = operand(id);
    const rmsnorm_view& x = operand(kX).view;
    const OperandRule& rule = kOperandRules[Call::RuleId(id)];
    if (x.ndim != 2 || x.shape[1] != call_.norm[0].module_d) return false;
    if (id == kWeight) return true;  // of the module
    const bool by_rows = rule.shape == Shape::kRows;
    if (o.view.dtype != (rule.dtype == 0 ? x.dtype : rule.dtype)) return false;
    if (o.view.ndim != (by_rows ? 2 : 1)) return false;
    if (rule.shape == Shape::kColumns) return o.view.shape[0] == x.shape[1];
    return o.view.shape[0] == x.shape[0] && RowLength(o) == (by_rows ? x.shape[1] : 1) &&
           o.view.stride[0] == static_cast<ptrdiff_t>(RowLength(o));
  }

  // Structs of an older, smaller size, of a newer, larger one, and of none. An older one ends with
  // a field.
  void SpoilSizes(Norm& norm) {
    call_.beyond = OneIn(2) ? 0 : 1;
    const auto size = [&](size_t known, size_t word) -> uint32_t {
      const size_t any[] = {known,
                            known,
                            word * (1 + random_.Below(known / word)),
                            known + word * random_.Below(9),
                            4096,
                            4097,
                            random_.Bits(),
                            3,
                            0};
      return static_cast<uint32_t>(any[random_.Below(std::size(any))]);
    };
    norm.options.size = size(sizeof(rmsnorm_options), sizeof(float));
    norm.operands_size = size(sizeof(rmsnorm_operands), sizeof(void*));
    call_.context.size = size(sizeof(rmsnorm_context), sizeof(void*));
    // An executor comes with its context.
    if (call_.context.size == offsetof(rmsnorm_context, parallel_context)) call_.context.size += 8;
    // What a smaller struct lacks is the default. The bytes there are others: see Run().
    const int first = static_cast<int>(&norm - call_.norm) * kOperands;
    for (int id = first; id < first + kOperands; ++id) {
      const bool read = kOperandRules[Call::RuleId(id)].offset < norm.operands_size;
      operand(id).given &= read || IsDense() || call_.IsOfModule(id);
    }
    const uint32_t size_of_options = norm.options.size;
    rmsnorm_options read = rmsnorm_default_options();
    std::memcpy(&read, &norm.options, std::min<size_t>(size_of_options, sizeof read));
    norm.options = read;
    norm.options.size = size_of_options;
  }

  Random random_;
  Call call_;
  bool scattered_ = false;
  SizeList leading_[kMostNorms];
  size_t d_[kMostNorms] = {};
  bool overwritten_[kAllOperands] = {};
  int exponent_ = 0;  // of some rows, and of a divisor that suits them
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FUZZ_RANDOM_CALL_H_
