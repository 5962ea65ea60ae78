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
#include <vector>

#include "gradients.h"
#include "oracle.h"
#include "random_rows.h"
#include "tensor.h"

namespace rmsnorm::test {

// ------------------------------------------------------------------ operations and operands

enum OperandId { kX, kResidual, kDy, kWeight, kSums, kRstd, kY, kResidualOut, kDx, kDw };
constexpr int kOperands = 10;
constexpr const char* kOperandNames[kOperands] = {
    "x", "residual", "dy", "weight", "sums", "rstd", "y", "residual_out", "dx", "dw"};

// What an operation takes each operand for, in the order of OperandId: i an input, o an output, in
// capitals where it may be missing; M an input of the module, given to it before the call.
struct Operation {
  const char* name;
  const char* roles;
};
enum OperationId {
  kForward,
  kSumSquares,
  kScale,
  kAddForward,
  kBackward,
  kModuleForward,
  kModuleAddForward,
  kModuleBackward
};
constexpr Operation kOperations[] = {{"rmsnorm_forward", "i--I-Oo---"},
                                     {"rmsnorm_sum_squares", "i---o-----"},
                                     {"rmsnorm_scale", "i--IiOo---"},
                                     {"rmsnorm_add_forward", "ii-I-Ooo--"},
                                     {"rmsnorm_backward", "i-iI-I--OO"},
                                     {"rmsnorm_module_forward", "i--M-Oo---"},
                                     {"rmsnorm_module_add_forward", "ii-M-Ooo--"},
                                     {"rmsnorm_module_backward", "i-iM-I--OO"}};
constexpr size_t kOperationCount = std::size(kOperations);

// The element type of sums, beside rmsnorm_dtype.
constexpr rmsnorm_dtype kF64 = 64;
inline size_t SizeOf(rmsnorm_dtype dtype) {
  return dtype == kF64 ? sizeof(double) : rmsnorm_dtype_size(dtype);
}

struct Operand {
  bool given = false;
  bool null_data = false;
  rmsnorm_view view = {};  // of the arrays rstd and sums, too
  ptrdiff_t offset = 0;    // of the first element, in bytes from the begin of the memory
};

struct Call {
  OperationId operation;
  Operand operands[kOperands];
  rmsnorm_options options = rmsnorm_default_options();
  bool null_options = false;
  uint32_t flags = 0;
  size_t module_d = 0;
  rmsnorm_dtype module_dtype = RMSNORM_F32;
  bool legal = true;    // whether it must be accepted; if not, it may be
  bool tame = true;     // numbers around 1, and an rstd that is theirs
  bool at_end = false;  // of memory before a guard page, rather than after one
  std::vector<unsigned char> memory;

  char Role(int id) const { return kOperations[operation].roles[id]; }
  bool IsModule() const { return operation >= kModuleForward; }
  bool IsOutput(int id) const { return (Role(id) | 0x20) == 'o'; }
  bool IsInput(int id) const { return (Role(id) | 0x20) == 'i'; }
};

inline size_t Rows(const rmsnorm_view& view) {
  size_t rows = 1;
  for (int i = 0; i + 1 < view.ndim; ++i) rows *= view.shape[i];
  return rows;
}
inline size_t RowLength(const rmsnorm_view& view) { return view.shape[view.ndim - 1]; }
inline size_t RowBytes(const Operand& operand) {
  return RowLength(operand.view) * SizeOf(operand.view.dtype);
}

// Where the rows of an operand begin, in C order.
inline std::vector<ptrdiff_t> RowOffsets(const Operand& operand) {
  const rmsnorm_view& view = operand.view;
  std::vector<ptrdiff_t> offsets(Rows(view));
  for (size_t row = 0; row < offsets.size(); ++row) {
    ptrdiff_t elements = 0;
    size_t rest = row;
    for (int i = view.ndim - 2; i >= 0; rest /= view.shape[i--]) {
      elements += static_cast<ptrdiff_t>(rest % view.shape[i]) * view.stride[i];
    }
    offsets[row] = operand.offset + elements * static_cast<ptrdiff_t>(SizeOf(view.dtype));
  }
  return offsets;
}

inline Tensor Gather(const Operand& operand, const unsigned char* memory) {
  const std::vector<ptrdiff_t> offsets = RowOffsets(operand);
  Tensor rows(operand.view.dtype, offsets.size(), RowLength(operand.view));
  for (size_t row = 0; row < offsets.size(); ++row) {
    std::memcpy(rows.Row(row), memory + offsets[row], RowBytes(operand));
  }
  return rows;
}

// Whether some memory holds what a view describes. A view that is refused in any case counts as
// held: an unknown type, no dimension or too many, or more bytes than an address can count.
inline bool IsHeld(const Operand& operand, size_t memory) {
  const rmsnorm_view& view = operand.view;
  const auto size = static_cast<ptrdiff_t>(SizeOf(view.dtype));
  if (size == 0 || view.ndim < 1 || view.ndim > RMSNORM_MAX_DIMS) return true;
  ptrdiff_t low = operand.offset;
  ptrdiff_t high = operand.offset;
  for (int i = 0; i < view.ndim; ++i) {
    if (view.shape[i] == 0) return true;
    ptrdiff_t span;
    const ptrdiff_t stride = i + 1 < view.ndim ? view.stride[i] : 1;
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
    scattered_ = OneIn(5);
    DrawShape();
    DrawTypes();
    if (scattered_) {
      Scatter();
    } else {
      LayOut();
    }
    call_.at_end = OneIn(2);
    exponent_ = static_cast<int>(random_.Below(278)) - 150;
    call_.tame = !scattered_ && OneIn(3);
    DrawOptions();
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
  bool IsShaped(int id) const {
    return id == kX || id == kResidual || id == kDy || id == kY || id == kResidualOut || id == kDx;
  }
  Operand& operand(int id) { return call_.operands[id]; }

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

  // Few elements, in up to 2,000 rows.
  void DrawShape() {
    ndim_ = 1 + static_cast<int>(random_.Below(RMSNORM_MAX_DIMS));
    const size_t d = DrawLength();
    size_t rows = scattered_ ? 12 : std::max<size_t>((OneIn(8) ? 40000 : 6000) / d, 1);
    if (!OneIn(8)) rows = std::min<size_t>(rows, 32);
    rows = std::min<size_t>(rows, 2000);
    for (int i = 0; i + 1 < ndim_; ++i) {
      shape_[i] = 1 + random_.Below(OneIn(2) ? rows : std::min<size_t>(rows, 4));
      rows /= shape_[i];
      if (OneIn(100)) shape_[i] = 0;
    }
    if (ndim_ > 1) std::swap(shape_[0], shape_[random_.Below(static_cast<size_t>(ndim_ - 1))]);
    shape_[ndim_ - 1] = d;
  }

  rmsnorm_dtype DrawType() { return kDtypes[random_.Below(3)]; }

  void DrawTypes() {
    const rmsnorm_dtype usual = DrawType();
    const bool all_alike = OneIn(2);
    for (int id = 0; id < kOperands; ++id) {
      const char role = call_.Role(id);
      operand(id).given = role == 'i' || role == 'o' || (role != '-' && OneIn(2));
      rmsnorm_view& view = operand(id).view;
      view = rmsnorm_rows(nullptr, all_alike ? usual : DrawType(), 0, 0, 0);
      view.ndim = IsShaped(id) ? ndim_ : 1;
      if (IsShaped(id)) {
        std::copy_n(shape_, ndim_, view.shape);
        view.stride[ndim_ - 1] = shape_[ndim_ - 1] == 1 ? Around(9) : 1;
      } else {
        const bool per_row = id == kRstd || id == kSums;
        view.shape[0] = per_row ? Rows(operand(kX).view) : shape_[ndim_ - 1];
        view.stride[0] = 1;
      }
    }
    const auto type = [this](int id) -> rmsnorm_dtype& { return operand(id).view.dtype; };
    type(kRstd) = RMSNORM_F32;
    type(kSums) = kF64;
    if (type(kResidual) != type(kX)) type(kResidual) = RMSNORM_F32;
    type(kResidualOut) = type(kResidual);
    type(kDx) = type(kX) == RMSNORM_F32 && OneIn(2) ? RMSNORM_F32 : type(kDy);
    if (call_.Role(kDx) == 'O' && !operand(kDw).given) operand(kDx).given = true;
    call_.module_d = shape_[ndim_ - 1];
    call_.module_dtype = DrawType();
  }

  // -------------------------------------------------------------- where operands lie

  // The input that an output may take the place of.
  static int PlaceOf(int id) {
    return id == kY ? kX : id == kResidualOut ? kResidual : id == kDx ? kDy : -1;
  }

  // Every operand in memory of its own, in the place of another, or interleaved with others.
  void LayOut() {
    std::vector<std::vector<int>> groups;
    bool is_in_place[kOperands] = {};
    for (int id = 0; id < kOperands; ++id) {
      if (!operand(id).given) continue;
      const int place = PlaceOf(id);
      is_in_place[id] = place >= 0 &&
                        SizeOf(operand(place).view.dtype) == SizeOf(operand(id).view.dtype) &&
                        OneIn(3);
      if (is_in_place[id]) {
        overwritten_[place] = true;
      } else if (IsShaped(id) && !groups.empty() && IsShaped(groups.back()[0]) && OneIn(4)) {
        groups.back().push_back(id);
      } else {
        groups.push_back({id});
      }
    }
    for (size_t i = groups.size(); i > 1; --i) std::swap(groups[i - 1], groups[random_.Below(i)]);
    size_t size = 0;
    for (const std::vector<int>& group : groups) {
      size_t alignment = 1;
      for (const int id : group) alignment = std::max(alignment, SizeOf(operand(id).view.dtype));
      if (!OneIn(3)) size += random_.Below(100);
      size = (size + alignment - 1) / alignment * alignment;
      size += PlaceGroup(group, size, alignment);
    }
    // The last ends where memory does.
    const size_t slack = (8 - size % 8) % 8;
    for (const int id : groups.back()) operand(id).offset += static_cast<ptrdiff_t>(slack);
    call_.memory.resize(size + slack);
    for (int id = 0; id < kOperands; ++id) {
      if (!is_in_place[id]) continue;
      operand(id).offset = operand(PlaceOf(id)).offset;
      std::copy_n(operand(PlaceOf(id)).view.stride, ndim_, operand(id).view.stride);
    }
  }

  // The rows of a group lie side by side in slots, which nested loops repeat. Gives the bytes that
  // it takes from `begin` on.
  size_t PlaceGroup(const std::vector<int>& group, size_t begin, size_t alignment) {
    const auto pad = [&] { return OneIn(2) ? 0 : random_.Below(20) * alignment; };
    size_t slot = 0;
    bool only_read = true;
    for (const int id : group) {
      operand(id).offset = static_cast<ptrdiff_t>(begin + slot);
      slot = (slot + RowBytes(operand(id)) + alignment - 1) / alignment * alignment;
      if (id != group.back()) slot += pad();
      only_read = only_read && !call_.IsOutput(id) && !overwritten_[id];
    }
    if (!IsShaped(group[0])) return slot;
    int order[RMSNORM_MAX_DIMS];
    for (int i = 0; i < ndim_; ++i) order[i] = ndim_ - 2 - i;
    if (OneIn(3) && ndim_ > 2)
      std::swap(order[0], order[random_.Below(static_cast<size_t>(ndim_ - 1))]);
    size_t span = slot;
    size_t below = 0;
    for (int at = 0; at + 1 < ndim_; ++at) {
      const int i = order[at];
      const size_t steps = std::max<size_t>(shape_[i], 1) - 1;
      size_t step = span + pad();
      if (only_read && OneIn(6)) {  // the same rows again or, alone, rows that overlap
        step = group.size() > 1 || OneIn(2) ? 0 : random_.Below(shape_[ndim_ - 1]) * alignment;
      }
      step = (step + alignment - 1) / alignment * alignment;
      span += steps * step;
      const bool falling = OneIn(4);
      if (falling) below += steps * step;
      for (const int id : group) {
        const ptrdiff_t elements = static_cast<ptrdiff_t>(step / SizeOf(operand(id).view.dtype));
        operand(id).view.stride[i] = steps == 0 ? Around(5000) : falling ? -elements : elements;
      }
    }
    for (const int id : group) operand(id).offset += static_cast<ptrdiff_t>(below);
    return span;
  }

  // Every operand anywhere in a small memory, whatever it shares with others.
  void Scatter() {
    call_.legal = false;
    call_.memory.resize(8 * (64 + random_.Below(448)));
    const auto size = static_cast<ptrdiff_t>(call_.memory.size());
    const Operand* before = nullptr;
    for (int id = 0; id < kOperands; ++id) {
      Operand& o = operand(id);
      if (!o.given) continue;
      const auto element = static_cast<ptrdiff_t>(SizeOf(o.view.dtype));
      const bool alike = IsShaped(id) && before != nullptr && !OneIn(3);
      ptrdiff_t low = 0;
      ptrdiff_t high = static_cast<ptrdiff_t>(RowBytes(o));
      for (int i = 0; IsShaped(id) && i + 1 < ndim_; ++i) {
        const auto d = static_cast<ptrdiff_t>(shape_[ndim_ - 1]);
        ptrdiff_t& stride = o.view.stride[i];
        stride = OneIn(2) ? Around(60) : Around(3) * d + (OneIn(2) ? Around(2) : 0);
        if (alike) {
          stride =
              before->view.stride[i] * static_cast<ptrdiff_t>(SizeOf(before->view.dtype)) / element;
        }
        const ptrdiff_t reach = static_cast<ptrdiff_t>(shape_[i]) * stride * element;
        (reach < 0 ? low : high) += reach;
      }
      if (high - low > size) {
        std::fill_n(o.view.stride, ndim_ - 1, 0);
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
      if (IsShaped(id)) before = &o;
    }
  }

  // -------------------------------------------------------------- options and values

  float PositivePower(double exponent) {
    const double value = std::exp2(std::clamp(exponent, -149.0, 127.9));
    return static_cast<float>(value);
  }
  float AnyPower() { return PositivePower(-149 + 277 * random_.Uniform()); }

  void DrawOptions() {
    rmsnorm_options& options = call_.options;
    const bool wild = !call_.tame;
    const float eps[] = {1e-5f, 1e-6f, 0.5f, 0, 0, 1e-40f, FLT_MAX, AnyPower()};
    // The last brings the rows of that exponent near the border between f32 and binary64.
    const float divisors[] = {
        0,          0,
        100.5f,     1,
        1e-40f,     FLT_MAX,
        AnyPower(), PositivePower(2.0 * exponent_ + 130 * (2 * random_.Uniform() - 1))};
    const float offsets[] = {0, 0, 1, 0.1f, 1e-40f, FLT_MAX, -AnyPower()};
    options.eps = eps[random_.Below(wild ? std::size(eps) : 4)];
    options.divisor = divisors[random_.Below(wild ? std::size(divisors) : 4)];
    options.eps_placement = OneIn(3) ? RMSNORM_EPS_OUTSIDE : RMSNORM_EPS_INSIDE;
    options.rounding = OneIn(3) ? RMSNORM_CAST_THEN_SCALE : RMSNORM_SCALE_THEN_CAST;
    options.residual_rounding = OneIn(2) ? RMSNORM_NORM_THEN_CAST : RMSNORM_CAST_THEN_NORM;
    if (operand(kWeight).given || call_.IsModule() || call_.operation == kSumSquares) {
      options.weight_offset = offsets[random_.Below(wild ? std::size(offsets) : 4)];
    }
    call_.null_options = OneIn(16);
    if (call_.null_options) options = rmsnorm_default_options();
    call_.flags = static_cast<uint32_t>(random_.Below(4));
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
    for (int id = 0; id < kOperands; ++id) {
      const bool is_added_to = id == kDx || id == kDw;
      if (!operand(id).given || id == kSums || (call_.IsOutput(id) && !is_added_to)) continue;
      Tensor rows(operand(id).view.dtype, Rows(operand(id).view), RowLength(operand(id).view));
      if (id == kRstd && rows.d() == 0) continue;
      for (size_t row = 0; row < rows.rows(); ++row) {
        if (id == kWeight && !call_.tame && OneIn(2)) {
          FillWeight(random_, rows);
        } else {
          FillAnyRow(rows, row);
        }
      }
      Store(id, rows);
    }
    if (call_.IsInput(kRstd) && operand(kRstd).given && (call_.tame || OneIn(2))) FillRstd();
    if (call_.operation == kScale) FillSums();
  }

  void Store(int id, const Tensor& rows) {
    const std::vector<ptrdiff_t> offsets = RowOffsets(operand(id));
    for (size_t row = 0; row < offsets.size(); ++row) {
      std::memcpy(call_.memory.data() + offsets[row], rows.Row(row), RowBytes(operand(id)));
    }
  }

  // What forward gives for these rows.
  void FillRstd() {
    if (Rows(operand(kX).view) == 0) return;
    const Tensor x = Gather(operand(kX), call_.memory.data());
    Options options;
    static_cast<rmsnorm_options&>(options) = call_.options;
    options.target = "reference";
    options.threads = 1;
    const std::vector<float> rstd = InverseRmsOf(x, options);
    std::memcpy(call_.memory.data() + operand(kRstd).offset, rstd.data(),
                rstd.size() * sizeof(float));
  }

  void FillSums() {
    const Tensor x = Gather(operand(kX), call_.memory.data());
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
      std::memcpy(call_.memory.data() + operand(kSums).offset + row * sizeof sum, &sum, sizeof sum);
    }
  }

  // -------------------------------------------------------------- illegal calls

  // Makes one thing another, which is refused in most cases.
  void Spoil() {
    const Call good = call_;
    call_.legal = call_.tame = call_.null_options = false;
    int id;
    do {
      id = static_cast<int>(random_.Below(kOperands));
    } while (!operand(id).given);
    Operand& o = operand(id);
    rmsnorm_view& view = o.view;
    const auto element = static_cast<ptrdiff_t>(SizeOf(view.dtype));
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
      case 1:  // the arrays have no view, whose data could be null
        (id == kRstd || id == kSums ? o.given : o.null_data) ^= true;
        break;
      case 2:
        view.size = random_.Bits();
        break;
      case 3:
        view.dtype = static_cast<rmsnorm_dtype>(random_.Below(5));
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
        o.offset = good.operands[random_.Below(kOperands)].offset + Around(70) * element;
        break;
      case 10:
        call_.options.eps = wrong_float;
        break;
      case 11:
        call_.options.divisor = wrong_float;
        break;
      case 12:
        call_.options.weight_offset = wrong_float;
        break;
      case 13:
        call_.options.threads = -1 - static_cast<int32_t>(random_.Below(3));
        break;
      case 14: {
        int32_t* const numbers[] = {&call_.options.eps_placement, &call_.options.rounding,
                                    &call_.options.residual_rounding};
        *numbers[random_.Below(3)] = static_cast<int32_t>(random_.Below(5)) - 2;
        call_.flags += OneIn(2) ? 4 : 0;
        break;
      }
      default:
        if (OneIn(3)) call_.options.size = random_.Bits();
        if (OneIn(3)) call_.options.target = "unknown";
        call_.module_d += OneIn(2) ? 1 : 0;
    }
    // What is not refused must have memory. The arrays have an element for each row of x.
    bool held = true;
    for (const int array : {kRstd, kSums}) {
      rmsnorm_view& shape = operand(array).view;
      held = held && shape.ndim == 1 && shape.dtype == good.operands[array].view.dtype;
      shape.shape[0] = Rows(operand(kX).view);
    }
    for (const Operand& any : call_.operands) {
      held = held && (!any.given || IsHeld(any, call_.memory.size()));
    }
    if (!held) call_ = good;
  }

  Random random_;
  Call call_;
  bool scattered_ = false;
  int ndim_ = 1;
  size_t shape_[RMSNORM_MAX_DIMS] = {};
  bool overwritten_[kOperands] = {};
  int exponent_ = 0;  // of some rows, and of a divisor that suits them
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FUZZ_RANDOM_CALL_H_
