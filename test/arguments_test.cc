// SPDX-License-Identifier: Apache-2.0
// Every argument that is refused: with which status, a message that begins with the argument's
// name, and nothing written. And what looks odd but is allowed.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "guarded_buffer.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kRows = 3;
constexpr size_t kD = 8;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Arguments of one call, right as they are made; a test spoils one.
struct Call {
  Call() { std::memset(memory, kWiped, sizeof memory); }
  Call(const Call&) = delete;  // the views point into it
  Call& operator=(const Call&) = delete;

  // All arguments lie in it, apart from each other.
  alignas(64) char memory[4096];
  void* At(size_t offset) { return memory + offset; }

  rmsnorm_view x = rmsnorm_rows(At(0), RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view y = rmsnorm_rows(At(1024), RMSNORM_F32, kRows, kD, kD);
  size_t weight_shape = kD;
  rmsnorm_view weight = rmsnorm_tensor(At(2048), RMSNORM_F32, 1, &weight_shape, nullptr);
  float* rstd = static_cast<float*>(At(3072));
  double* sums = static_cast<double*>(At(3584));
  Options options;
};

using Spoil = std::function<void(Call&)>;
using Function = std::function<rmsnorm_status(Call&)>;

rmsnorm_status Forward(Call& c) {
  return rmsnorm_forward(&c.x, &c.weight, &c.y, c.rstd, &c.options);
}
rmsnorm_status ForwardWithoutWeight(Call& c) {
  return rmsnorm_forward(&c.x, nullptr, &c.y, c.rstd, &c.options);
}
rmsnorm_status SumSquares(Call& c) { return rmsnorm_sum_squares(&c.x, c.sums, &c.options); }
rmsnorm_status Scale(Call& c) {
  return rmsnorm_scale(&c.x, c.sums, &c.weight, &c.y, c.rstd, &c.options);
}
rmsnorm_status ModuleForward(Call& c) {
  const RmsNorm norm(kD);
  // The module's own pointer is the class's secret; the C function is what the class calls.
  try {
    norm.forward(ConstView(c.x), View(c.y), c.rstd);
  } catch (const Error& error) {
    EXPECT_STREQ(rmsnorm_error_message(), error.what());
    return error.status();
  }
  return RMSNORM_OK;
}
rmsnorm_status SetWeight(Call& c) {
  RmsNorm norm(kD);
  try {
    norm.set_weight(ConstView(c.weight));
  } catch (const Error& error) {
    return error.status();
  }
  return RMSNORM_OK;
}
rmsnorm_status GetWeight(Call& c) {
  const RmsNorm norm(kD);
  try {
    norm.get_weight(View(c.weight));
  } catch (const Error& error) {
    return error.status();
  }
  return RMSNORM_OK;
}
rmsnorm_status CreateModule(Call& c) {
  rmsnorm_module* module = nullptr;
  const rmsnorm_status status = rmsnorm_module_create(&module, kD, RMSNORM_BF16, &c.options);
  EXPECT_EQ(status == RMSNORM_OK, module != nullptr);
  rmsnorm_module_destroy(module);
  return status;
}

// Refused by each of the calls, with a message that begins with `name`.
void ExpectRefused(rmsnorm_status status, const std::string& name,
                   const std::vector<Function>& runs, const Spoil& spoil) {
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    Call call;
    spoil(call);
    char before[sizeof call.memory];
    std::memcpy(before, call.memory, sizeof before);
    ASSERT_EQ(status, runs[i](call)) << rmsnorm_error_message();
    EXPECT_EQ(0, std::memcmp(before, call.memory, sizeof before)) << "something was written";
    const std::string message = rmsnorm_error_message();
    EXPECT_EQ(0u, message.find(name)) << message;
    EXPECT_GT(message.size(), name.size() + 5) << message;
    EXPECT_EQ(std::string::npos, message.find('\n')) << message;
  }
}

void ExpectAccepted(const std::vector<Function>& runs, const Spoil& spoil) {
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    Call call;
    spoil(call);
    EXPECT_EQ(RMSNORM_OK, runs[i](call)) << rmsnorm_error_message();
  }
}

const std::vector<Function> kTakeOptions = {Forward, SumSquares, Scale, CreateModule};
const std::vector<Function> kTakeX = {Forward, ForwardWithoutWeight, SumSquares, Scale,
                                      ModuleForward};
const std::vector<Function> kTakeY = {Forward, ForwardWithoutWeight, Scale, ModuleForward};
const std::vector<Function> kTakeWeight = {Forward, Scale, SetWeight, GetWeight};
const std::vector<Function> kTakeSums = {SumSquares, Scale};
const std::vector<Function> kTakeRstd = kTakeY;

// Puts each view that can be spoilt in turn before `spoil`.
void ExpectViewRefused(rmsnorm_status status, const std::function<void(rmsnorm_view&)>& spoil) {
  ExpectRefused(status, "x: ", kTakeX, [&](Call& c) { spoil(c.x); });
  ExpectRefused(status, "y: ", kTakeY, [&](Call& c) { spoil(c.y); });
  ExpectRefused(status, "weight: ", kTakeWeight, [&](Call& c) { spoil(c.weight); });
}

TEST(Arguments, AreAcceptedUnspoilt) {
  for (const auto& runs : {kTakeOptions, kTakeX, kTakeY, kTakeWeight, kTakeSums}) {
    ExpectAccepted(runs, [](Call&) {});
  }
}

TEST(Options, OfUnknownSizeAreRefused) {
  for (const uint32_t size : {0u, 4u, static_cast<uint32_t>(sizeof(rmsnorm_options)) - 1,
                              static_cast<uint32_t>(sizeof(rmsnorm_options)) + 8, UINT32_MAX}) {
    ExpectRefused(RMSNORM_ERROR_STRUCT_SIZE, "options: ", kTakeOptions,
                  [&](Call& c) { c.options.size = size; });
  }
}

// A struct of another version may be shorter: nothing but its size may be read.
TEST(Options, AreNotReadBeyondTheirSize) {
  // Two fields of four bytes, so that the struct is aligned.
  const GuardedBuffer buffer(alignof(rmsnorm_options));
  const uint32_t size = alignof(rmsnorm_options);
  void* const end = buffer.AtEnd(size);
  std::memcpy(end, &size, sizeof size);
  const auto* const options = static_cast<const rmsnorm_options*>(end);
  Call c;
  rmsnorm_module* module;
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, rmsnorm_forward(&c.x, nullptr, &c.y, nullptr, options));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, rmsnorm_sum_squares(&c.x, c.sums, options));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE,
            rmsnorm_scale(&c.x, c.sums, nullptr, &c.y, nullptr, options));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, rmsnorm_module_create(&module, kD, RMSNORM_F32, options));
  const auto* const view = static_cast<const rmsnorm_view*>(end);
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, rmsnorm_forward(view, nullptr, &c.y, nullptr, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, rmsnorm_forward(&c.x, view, &c.y, nullptr, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, rmsnorm_forward(&c.x, nullptr, view, nullptr, nullptr));
}

TEST(Options, EpsMustBeFiniteAndNotNegative) {
  for (const float eps : {-1e-45f, -1.0f, kNan, kInfinity, -kInfinity}) {
    ExpectRefused(RMSNORM_ERROR_EPS, "options: eps ", kTakeOptions,
                  [&](Call& c) { c.options.eps = eps; });
  }
  for (const float eps : {0.0f, -0.0f, 1e-45f, std::numeric_limits<float>::max()}) {
    ExpectAccepted(kTakeOptions, [&](Call& c) { c.options.eps = eps; });
  }
}

TEST(Options, UnknownEnumValuesAreRefused) {
  for (const int32_t value : {-1, 2, INT32_MAX, INT32_MIN}) {
    ExpectRefused(RMSNORM_ERROR_EPS_PLACEMENT, "options: eps_placement ", kTakeOptions,
                  [&](Call& c) { c.options.eps_placement = value; });
    ExpectRefused(RMSNORM_ERROR_ROUNDING, "options: rounding ", kTakeOptions,
                  [&](Call& c) { c.options.rounding = value; });
  }
}

TEST(Options, WeightOffsetMustBeFiniteAndHaveAWeight) {
  for (const float offset : {kNan, kInfinity, -kInfinity}) {
    ExpectRefused(RMSNORM_ERROR_WEIGHT_OFFSET, "options: weight_offset ", kTakeOptions,
                  [&](Call& c) { c.options.weight_offset = offset; });
  }
  for (const float offset : {1.0f, -1e-45f}) {
    ExpectRefused(RMSNORM_ERROR_WEIGHT_OFFSET, "options: weight_offset ", {ForwardWithoutWeight},
                  [&](Call& c) { c.options.weight_offset = offset; });
    ExpectAccepted(kTakeOptions, [&](Call& c) { c.options.weight_offset = offset; });
  }
  ExpectAccepted({ForwardWithoutWeight}, [](Call& c) { c.options.weight_offset = -0.0f; });
}

TEST(Options, DivisorMustBeFiniteAndNotNegative) {
  for (const float divisor : {-1e-45f, -8.0f, kNan, kInfinity, -kInfinity}) {
    ExpectRefused(RMSNORM_ERROR_DIVISOR, "options: divisor ", kTakeOptions,
                  [&](Call& c) { c.options.divisor = divisor; });
  }
  for (const float divisor : {1e-45f, std::numeric_limits<float>::max()}) {
    ExpectAccepted(kTakeOptions, [&](Call& c) { c.options.divisor = divisor; });
  }
}

TEST(Options, ThreadsMustNotBeNegative) {
  for (const int32_t threads : {-1, INT32_MIN}) {
    ExpectRefused(RMSNORM_ERROR_THREADS, "options: threads ", kTakeOptions,
                  [&](Call& c) { c.options.threads = threads; });
  }
  ExpectAccepted(kTakeOptions, [](Call& c) { c.options.threads = INT32_MAX; });
}

TEST(Options, NullMeansTheDefaults) {
  Call c;
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&c.x, &c.weight, &c.y, c.rstd, nullptr));
  EXPECT_EQ(RMSNORM_OK, rmsnorm_sum_squares(&c.x, c.sums, nullptr));
  EXPECT_EQ(RMSNORM_OK, rmsnorm_scale(&c.x, c.sums, &c.weight, &c.y, c.rstd, nullptr));
}

TEST(Pointers, ThatAreRequiredMustNotBeNull) {
  ExpectRefused(
      RMSNORM_ERROR_NULL, "x: ",
      {[](Call& c) { return rmsnorm_forward(nullptr, nullptr, &c.y, c.rstd, nullptr); },
       [](Call& c) { return rmsnorm_sum_squares(nullptr, c.sums, nullptr); },
       [](Call& c) { return rmsnorm_scale(nullptr, c.sums, nullptr, &c.y, c.rstd, nullptr); }},
      [](Call&) {});
  ExpectRefused(
      RMSNORM_ERROR_NULL, "y: ",
      {[](Call& c) { return rmsnorm_forward(&c.x, nullptr, nullptr, c.rstd, nullptr); },
       [](Call& c) { return rmsnorm_scale(&c.x, c.sums, nullptr, nullptr, c.rstd, nullptr); }},
      [](Call&) {});
  ExpectRefused(RMSNORM_ERROR_NULL, "sums: ", kTakeSums, [](Call& c) { c.sums = nullptr; });
  ExpectViewRefused(RMSNORM_ERROR_NULL, [](rmsnorm_view& view) { view.data = nullptr; });
}

TEST(Pointers, ThatAreOptionalMayBeNull) {
  ExpectAccepted(kTakeRstd, [](Call& c) { c.rstd = nullptr; });
}

TEST(Pointers, MustBeAlignedToTheirElement) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (size_t shift = 1; shift < rmsnorm_dtype_size(dtype); ++shift) {
      ExpectViewRefused(RMSNORM_ERROR_ALIGNMENT, [&](rmsnorm_view& view) {
        view.dtype = dtype;
        view.data = static_cast<char*>(view.data) + shift;
      });
    }
  }
  const auto shift = [](auto*& pointer, size_t bytes) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(
        reinterpret_cast<uintptr_t>(pointer) + bytes);
  };
  for (const size_t bytes : SizeList{1, 2, 3}) {
    ExpectRefused(RMSNORM_ERROR_ALIGNMENT, "rstd: ", kTakeRstd,
                  [&](Call& c) { shift(c.rstd, bytes); });
  }
  for (const size_t bytes : SizeList{1, 2, 4, 7}) {
    ExpectRefused(RMSNORM_ERROR_ALIGNMENT, "sums: ", kTakeSums,
                  [&](Call& c) { shift(c.sums, bytes); });
  }
}

TEST(Views, OfUnknownSizeAreRefused) {
  for (const uint32_t size : {0u, static_cast<uint32_t>(sizeof(rmsnorm_view)) + 8, UINT32_MAX}) {
    ExpectViewRefused(RMSNORM_ERROR_STRUCT_SIZE, [&](rmsnorm_view& view) { view.size = size; });
  }
}

TEST(Views, OfUnknownTypesAreRefused) {
  for (const int32_t dtype : {0, 4, -1, INT32_MAX, INT32_MIN}) {
    ExpectViewRefused(RMSNORM_ERROR_DTYPE, [&](rmsnorm_view& view) { view.dtype = dtype; });
  }
}

TEST(Views, MustHaveOneToFiveDimensions) {
  for (const int32_t ndim : {0, -1, 6, INT32_MAX, INT32_MIN}) {
    ExpectViewRefused(RMSNORM_ERROR_SHAPE, [&](rmsnorm_view& view) { view.ndim = ndim; });
  }
  // Made through the interface, which must not write beyond its five dimensions.
  const size_t shape[6] = {1, 1, 1, 1, 1, 1};
  for (const int32_t ndim : {0, -1, 6}) {
    ExpectRefused(RMSNORM_ERROR_SHAPE, "x: ", kTakeX, [&](Call& c) {
      c.x = rmsnorm_tensor(c.memory, RMSNORM_F32, ndim, shape, nullptr);
    });
  }
  // The C++ views: more strides than dimensions.
  float value = 1;
  EXPECT_THROW(forward(ConstView(&value, {1, 1}, {1, 1, 1}), nullptr, View(&value, 1)), Error);
}

TEST(Views, MustHaveElementsInARow) {
  ExpectViewRefused(RMSNORM_ERROR_SHAPE, [](rmsnorm_view& view) { view.shape[view.ndim - 1] = 0; });
  // Without rows too: an empty row has no norm, whether there is one or not.
  ExpectRefused(RMSNORM_ERROR_SHAPE, "x: ", kTakeX, [](Call& c) {
    c.x.shape[0] = c.y.shape[0] = 0;
    c.x.shape[1] = c.y.shape[1] = 0;
  });
  rmsnorm_module* module;
  EXPECT_EQ(RMSNORM_ERROR_SHAPE, rmsnorm_module_create(&module, 0, RMSNORM_F32, nullptr));
  EXPECT_EQ(nullptr, module);
}

TEST(Views, MustMatch) {
  for (const size_t d : {kD - 1, kD + 1}) {
    ExpectRefused(RMSNORM_ERROR_SHAPE, "y: ", {Forward, ForwardWithoutWeight, Scale},
                  [&](Call& c) { c.y.shape[1] = d; });
    ExpectRefused(RMSNORM_ERROR_SHAPE, "weight: ", kTakeWeight,
                  [&](Call& c) { c.weight.shape[0] = d; });
    // The module knows its d.
    ExpectRefused(RMSNORM_ERROR_SHAPE, "x: ", {ModuleForward}, [&](Call& c) {
      c.x.shape[1] = c.y.shape[1] = d;
      c.x.stride[0] = c.y.stride[0] = 20;
    });
  }
  ExpectRefused(RMSNORM_ERROR_SHAPE, "y: ", kTakeY, [](Call& c) { c.y.shape[0] = kRows - 1; });
  // The same rows in other dimensions are another shape.
  ExpectRefused(RMSNORM_ERROR_SHAPE, "y: ", kTakeY, [](Call& c) {
    const size_t shape[] = {1, kRows, kD};
    c.y = rmsnorm_tensor(c.y.data, RMSNORM_F32, 3, shape, nullptr);
  });
  ExpectRefused(RMSNORM_ERROR_SHAPE, "weight: ", kTakeWeight,
                [](Call& c) { c.weight = rmsnorm_rows(c.weight.data, RMSNORM_F32, 1, kD, kD); });
}

TEST(Views, LastDimensionMustBeContiguous) {
  for (const ptrdiff_t stride : {ptrdiff_t{0}, ptrdiff_t{2}, ptrdiff_t{-1}, PTRDIFF_MAX}) {
    ExpectViewRefused(RMSNORM_ERROR_STRIDE,
                      [&](rmsnorm_view& view) { view.stride[view.ndim - 1] = stride; });
  }
}

TEST(Views, RowsOfAnOutputMustNotOverlap) {
  for (const ptrdiff_t stride : {0, 1, 7, -7}) {
    ExpectRefused(RMSNORM_ERROR_STRIDE, "y: ", kTakeY, [&](Call& c) { c.y.stride[0] = stride; });
  }
  // Each dimension by itself is wide enough, but rows (0, 2) and (1, 0) are the same.
  const size_t shape[] = {2, 3, kD};
  const ptrdiff_t overlapping[] = {2 * kD, kD, 1};
  ExpectRefused(RMSNORM_ERROR_STRIDE, "y: ", kTakeY, [&](Call& c) {
    c.x = rmsnorm_tensor(c.x.data, RMSNORM_F32, 3, shape, nullptr);
    c.y = rmsnorm_tensor(c.y.data, RMSNORM_F32, 3, shape, overlapping);
  });
  // Rows one of which begins between two others share no byte here, but are not told apart. The
  // text does not say that they overlap.
  const size_t columns[] = {2, 3, 1};
  const ptrdiff_t interleaved[] = {3, 2, 1};
  ExpectRefused(RMSNORM_ERROR_STRIDE,
                "y: its strides do not tell rows apart (12 bytes from one index to the next, but ",
                {ForwardWithoutWeight}, [&](Call& c) {
                  c.x = rmsnorm_tensor(c.x.data, RMSNORM_F32, 3, columns, nullptr);
                  c.y = rmsnorm_tensor(c.y.data, RMSNORM_F32, 3, columns, interleaved);
                });
  // In place does not allow it either.
  ExpectRefused(RMSNORM_ERROR_STRIDE, "y: ", kTakeY, [&](Call& c) {
    c.x.stride[0] = 0;
    c.y = c.x;
  });
  // An input may.
  ExpectAccepted(kTakeX, [&](Call& c) {
    c.x = rmsnorm_tensor(c.x.data, RMSNORM_F32, 3, shape, overlapping);
    c.y = rmsnorm_tensor(c.y.data, RMSNORM_F32, 3, shape, nullptr);
  });
}

TEST(Views, MustNotSpanMoreThanAnAddressCanCount) {
  constexpr size_t kHuge = SIZE_MAX / 2;
  ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "x: ", kTakeX, [](Call& c) { c.x.shape[1] = kHuge; });
  ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "x: ", kTakeX,
                [](Call& c) { c.x.shape[1] = SIZE_MAX; });
  ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "x: ", kTakeX, [](Call& c) { c.x.shape[0] = kHuge; });
  for (const ptrdiff_t stride : {PTRDIFF_MAX, PTRDIFF_MIN, PTRDIFF_MAX / 4, PTRDIFF_MIN / 4}) {
    ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "x: ", kTakeX,
                  [&](Call& c) { c.x.stride[0] = stride; });
    ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "y: ", kTakeY,
                  [&](Call& c) { c.y.stride[0] = stride; });
  }
  // Fits an address space, but not above (below) where the data begins.
  for (const ptrdiff_t bytes : {PTRDIFF_MAX - 4096, -(PTRDIFF_MAX - 4096)}) {
    ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "x: ", kTakeX, [&](Call& c) {
      c.x.shape[0] = 2;
      c.x.stride[0] = bytes / 4;
      if (bytes > 0) c.x.data = reinterpret_cast<void*>(UINTPTR_MAX - 4095);
      c.y.shape[0] = 2;
    });
  }
  // The number of rows overflows, though a repeated row spans little.
  ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "x: ", kTakeX, [](Call& c) {
    const size_t shape[] = {size_t{1} << 32, size_t{1} << 32, kD};
    const ptrdiff_t stride[] = {0, 0, 1};
    c.x = rmsnorm_tensor(c.x.data, RMSNORM_F32, 3, shape, stride);
  });
  // So does what is given for each row.
  for (const size_t rows : {SIZE_MAX / 8, SIZE_MAX / 16, SIZE_MAX / 4}) {
    ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "sums: ", {SumSquares}, [&](Call& c) {
      c.x.shape[0] = rows;
      c.x.stride[0] = 0;
      c.sums = reinterpret_cast<double*>(UINTPTR_MAX - 4095);
    });
  }
  rmsnorm_module* module;
  for (const size_t d : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 8}) {
    EXPECT_EQ(RMSNORM_ERROR_MEMORY, rmsnorm_module_create(&module, d, RMSNORM_F32, nullptr));
    EXPECT_EQ(nullptr, module);
    EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("d: ")) << rmsnorm_error_message();
  }
}

// --------------------------------------------------------------------------------------------
// overlap

// Places y `bytes` after x.
void PlaceY(Call& c, ptrdiff_t bytes) {
  c.x.data = c.memory + 2048;
  c.y.data = c.memory + 2048 + bytes;
  c.weight.data = c.memory;
}

constexpr ptrdiff_t kSpan = kRows * kD * sizeof(float);

TEST(Overlap, DisjointIntervalsPass) {
  for (const ptrdiff_t bytes : {kSpan, -kSpan}) {
    ExpectAccepted(kTakeY, [&](Call& c) { PlaceY(c, bytes); });
  }
}

TEST(Overlap, InPlacePasses) {
  ExpectAccepted(kTakeY, [](Call& c) { PlaceY(c, 0); });
  ExpectAccepted(kTakeY, [](Call& c) {  // other types of the same size
    PlaceY(c, 0);
    c.x.dtype = RMSNORM_F16;
    c.y.dtype = RMSNORM_BF16;
  });
}

TEST(Overlap, SharedBytesAreRefused) {
  for (const ptrdiff_t bytes : {ptrdiff_t{4}, ptrdiff_t{-4}, kSpan - 4, 4 - kSpan, ptrdiff_t{32}}) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [&](Call& c) { PlaceY(c, bytes); });
  }
}

TEST(Overlap, InPlaceNeedsEqualStridesAndSizes) {
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [](Call& c) {
    PlaceY(c, 0);
    c.y.stride[0] = kD + 1;
  });
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [](Call& c) {
    PlaceY(c, 0);
    c.y.stride[0] = -static_cast<ptrdiff_t>(kD);
  });
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [](Call& c) {
    PlaceY(c, 0);
    c.y.dtype = RMSNORM_BF16;
  });
  // Rows at the same places, half as wide: still not in place.
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [](Call& c) {
    PlaceY(c, 0);
    c.y.dtype = RMSNORM_BF16;
    c.y.stride[0] = 2 * kD;
  });
}

TEST(Overlap, InterleavedRowsPassWithEqualStrides) {
  // x and y are columns of one buffer with rows of 24 elements.
  for (const ptrdiff_t bytes : {32, 64, -32, -64}) {
    ExpectAccepted(kTakeY, [&](Call& c) {
      PlaceY(c, bytes);
      c.x.stride[0] = c.y.stride[0] = 24;
    });
  }
  // Columns that share an element.
  for (const ptrdiff_t bytes : {28, 68, -28, -68, 4}) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [&](Call& c) {
      PlaceY(c, bytes);
      c.x.stride[0] = c.y.stride[0] = 24;
    });
  }
  // Two types in one buffer: rows of 32 bytes beside rows of 16, 96 bytes apart.
  for (const ptrdiff_t bytes : {32, 80, -16, -64}) {
    ExpectAccepted(kTakeY, [&](Call& c) {
      PlaceY(c, bytes);
      c.y.dtype = RMSNORM_F16;
      c.x.stride[0] = 24;
      c.y.stride[0] = 48;
    });
  }
  for (const ptrdiff_t bytes : {30, 82, -14, -66}) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [&](Call& c) {
      PlaceY(c, bytes);
      c.y.dtype = RMSNORM_F16;
      c.x.stride[0] = 24;
      c.y.stride[0] = 48;
    });
  }
}

// Rows apart, but with strides that differ: not decided, so refused.
TEST(Overlap, WhatCannotBeDecidedIsRefused) {
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [](Call& c) {
    PlaceY(c, 32);
    c.x.stride[0] = 16;
    c.y.stride[0] = 32;
  });
}

TEST(Overlap, InterleavedHeadsOfTokens) {
  // Tokens of 6 heads of kD: x the first two, y two others.
  const size_t shape[] = {3, 2, kD};
  const ptrdiff_t stride[] = {6 * kD, kD, 1};
  for (const ptrdiff_t head : {2, 3, 4, -2, -3, -4}) {
    ExpectAccepted(kTakeY, [&](Call& c) {
      PlaceY(c, head * 32);
      c.x = rmsnorm_tensor(c.x.data, RMSNORM_F32, 3, shape, stride);
      c.y = rmsnorm_tensor(c.y.data, RMSNORM_F32, 3, shape, stride);
    });
  }
  for (const ptrdiff_t head : {1, -1, 5, -5}) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kTakeY, [&](Call& c) {
      PlaceY(c, head * 32);
      c.x = rmsnorm_tensor(c.x.data, RMSNORM_F32, 3, shape, stride);
      c.y = rmsnorm_tensor(c.y.data, RMSNORM_F32, 3, shape, stride);
    });
  }
}

// Moves an argument so that it shares its first, or its last, bytes with one at `begin` of `bytes`.
template <class Move>
void ExpectApart(const std::string& name, const std::vector<Function>& runs, size_t begin,
                 size_t bytes, size_t own_bytes, size_t element, const Move& move) {
  for (const size_t offset : {begin - own_bytes + element, begin, begin + bytes - element}) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, name, runs, [&](Call& c) { move(c, c.memory + offset); });
  }
  for (const size_t offset : {begin - own_bytes, begin + bytes}) {
    ExpectAccepted(runs, [&](Call& c) { move(c, c.memory + offset); });
  }
}

TEST(Overlap, OutputsShareNoByteWithOtherArguments) {
  const auto move_rstd = [](Call& c, void* to) { c.rstd = static_cast<float*>(to); };
  const auto move_sums = [](Call& c, void* to) { c.sums = static_cast<double*>(to); };
  const auto move_weight = [](Call& c, void* to) { c.weight.data = to; };
  // Room before and after each.
  const auto with_room = [](const auto& move) {
    return [&move](Call& c, void* to) {
      c.x.data = c.memory + 512;
      move(c, to);
    };
  };
  const size_t rstd_bytes = kRows * sizeof(float);
  const size_t sums_bytes = kRows * sizeof(double);
  const size_t weight_bytes = kD * sizeof(float);
  ExpectApart("rstd: ", kTakeRstd, 512, kSpan, rstd_bytes, 4, with_room(move_rstd));
  ExpectApart("rstd: ", kTakeRstd, 1024, kSpan, rstd_bytes, 4, move_rstd);
  ExpectApart("rstd: ", {Forward, Scale}, 2048, weight_bytes, rstd_bytes, 4, move_rstd);
  ExpectApart("rstd: ", {Scale}, 3584, sums_bytes, rstd_bytes, 4, move_rstd);
  ExpectApart("y: ", {Forward, Scale}, 1024, kSpan, weight_bytes, 4, move_weight);
  ExpectApart("y: ", {Scale}, 1024, kSpan, sums_bytes, 8, move_sums);
  ExpectApart("sums: ", {SumSquares}, 512, kSpan, sums_bytes, 8, with_room(move_sums));
}

TEST(Overlap, InputsMayShareBytes) {
  ExpectAccepted({Forward, Scale}, [](Call& c) { c.weight.data = c.x.data; });
  ExpectAccepted({Scale}, [](Call& c) { c.sums = static_cast<double*>(c.x.data); });
}

// ------------------------------------------------------------------------------------------ zero
// rows

TEST(ZeroRows, SucceedAndTouchNothing) {
  for (const Function& run : kTakeX) {
    Call c;
    c.x.shape[0] = c.y.shape[0] = 0;
    c.x.data = c.y.data = nullptr;
    char before[sizeof c.memory];
    std::memcpy(before, c.memory, sizeof before);
    EXPECT_EQ(RMSNORM_OK, run(c)) << rmsnorm_error_message();
    EXPECT_EQ(0, std::memcmp(before, c.memory, sizeof before));
  }
}

TEST(ZeroRows, InAnyLeadingDimension) {
  for (size_t zero = 0; zero < 3; ++zero) {
    size_t shape[] = {SIZE_MAX, SIZE_MAX, SIZE_MAX, kD};
    shape[zero] = 0;
    ExpectAccepted(kTakeX, [&](Call& c) {
      c.x = rmsnorm_tensor(nullptr, RMSNORM_F32, 4, shape, nullptr);
      c.y = rmsnorm_tensor(nullptr, RMSNORM_F32, 4, shape, nullptr);
    });
  }
}

TEST(ZeroRows, AreStillChecked) {
  ExpectRefused(RMSNORM_ERROR_DTYPE, "x: ", kTakeX, [](Call& c) {
    c.x.shape[0] = c.y.shape[0] = 0;
    c.x.dtype = 9;
  });
  ExpectRefused(RMSNORM_ERROR_EPS, "options: ", {Forward, SumSquares, Scale}, [](Call& c) {
    c.x.shape[0] = c.y.shape[0] = 0;
    c.options.eps = -1;
  });
}

// --------------------------------------------------------------------------------- module and
// status

TEST(ModuleArguments, AreChecked) {
  Call c;
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_create(nullptr, kD, RMSNORM_F32, nullptr));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("module: "));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_set_weight(nullptr, &c.weight));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_get_weight(nullptr, &c.weight));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_reset_weight(nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_forward(nullptr, &c.x, &c.y, nullptr));
  rmsnorm_module_destroy(nullptr);

  rmsnorm_module* module;
  for (const int32_t dtype : {0, 4, -1, INT32_MIN}) {
    EXPECT_EQ(RMSNORM_ERROR_DTYPE, rmsnorm_module_create(&module, kD, dtype, nullptr));
    EXPECT_EQ(nullptr, module);
    EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("dtype: "));
  }
  ASSERT_EQ(RMSNORM_OK, rmsnorm_module_create(&module, kD, RMSNORM_F32, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_set_weight(module, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_get_weight(module, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_forward(module, nullptr, &c.y, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_forward(module, &c.x, nullptr, nullptr));
  rmsnorm_module_destroy(module);
}

// A module takes one plain row without the checks of other calls; it must refuse what they refuse.
TEST(ModuleArguments, OneRowIsRefusedAsByTheFunction) {
  rmsnorm_module* module;
  ASSERT_EQ(RMSNORM_OK, rmsnorm_module_create(&module, kD, RMSNORM_F32, nullptr));
  size_t accepted = 0;
  size_t refused = 0;
  const auto compare = [&](const Spoil& spoil) {
    Call c;
    c.x.shape[0] = c.y.shape[0] = 1;
    c.x.data = c.At(512);  // y comes before it, too
    spoil(c);
    const rmsnorm_status expected = rmsnorm_forward(&c.x, nullptr, &c.y, nullptr, nullptr);
    ++(expected == RMSNORM_OK ? accepted : refused);
    EXPECT_EQ(expected, rmsnorm_module_forward(module, &c.x, &c.y, nullptr));
  };
  const ptrdiff_t row = kD * sizeof(float);
  for (const ptrdiff_t bytes : {-row, 4 - row, -row / 2, ptrdiff_t{-4}, ptrdiff_t{0}, ptrdiff_t{4},
                                row / 2, row - 4, row}) {
    SCOPED_TRACE(bytes);
    for (const rmsnorm_dtype x : kDtypes) {
      for (const rmsnorm_dtype y : kDtypes) {
        compare([&](Call& c) {
          c.x.dtype = x;
          c.y.dtype = y;
          c.y.data = static_cast<char*>(c.x.data) + bytes;
        });
      }
    }
  }
  for (rmsnorm_view Call::*view : {&Call::x, &Call::y}) {
    compare([&](Call& c) { (c.*view).size = 1; });
    compare([&](Call& c) { (c.*view).dtype = 0; });
    compare([&](Call& c) { (c.*view).data = nullptr; });
    compare([&](Call& c) { (c.*view).data = static_cast<char*>((c.*view).data) + 1; });
    compare([&](Call& c) { (c.*view).shape[0] = 2; });
    compare([&](Call& c) { (c.*view).shape[1] = kD - 1; });
    compare([&](Call& c) { (c.*view).stride[1] = 2; });
    compare([&](Call& c) {
      (c.*view) = rmsnorm_tensor((c.*view).data, RMSNORM_F32, 1, (c.*view).shape + 1, nullptr);
    });
  }
  rmsnorm_module_destroy(module);
  EXPECT_GT(accepted, 20u);
  EXPECT_GT(refused, 20u);
}

// A refused weight leaves the one before.
TEST(ModuleArguments, RefusedWeightChangesNothing) {
  RmsNorm norm(2);
  const float weight[] = {3, 4};
  norm.set_weight({weight, 2});
  EXPECT_THROW(norm.set_weight({weight, 1}), Error);
  float kept[2];
  norm.get_weight({kept, 2});
  EXPECT_EQ(3, kept[0]);
  EXPECT_EQ(4, kept[1]);
}

TEST(Status, EachHasATextOfItsOwn) {
  std::vector<std::string> texts;
  for (rmsnorm_status status = RMSNORM_OK; status <= RMSNORM_ERROR_READ_ONLY; ++status) {
    const std::string text = rmsnorm_status_text(status);
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(texts.end(), std::find(texts.begin(), texts.end(), text)) << text;
    texts.push_back(text);
  }
  for (const rmsnorm_status unknown : {-1, RMSNORM_ERROR_READ_ONLY + 1, INT32_MAX, INT32_MIN}) {
    const std::string text = rmsnorm_status_text(unknown);
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(texts.end(), std::find(texts.begin(), texts.end(), text)) << text;
  }
}

TEST(Status, AMessageStaysUntilTheNextFailure) {
  Call c;
  c.options.eps = -1;
  EXPECT_EQ(RMSNORM_ERROR_EPS, Forward(c));
  const std::string message = rmsnorm_error_message();
  c.options.eps = 1;
  EXPECT_EQ(RMSNORM_OK, Forward(c));
  EXPECT_EQ(message, rmsnorm_error_message());
}

TEST(Status, ErrorSaysTheSame) {
  Call c;
  c.options.eps = -1;
  try {
    forward(ConstView(c.x), nullptr, View(c.y), c.options);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(RMSNORM_ERROR_EPS, error.status());
    EXPECT_STREQ(rmsnorm_error_message(), error.what());
  }
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(4u, rmsnorm_dtype_size(RMSNORM_F32));
  EXPECT_EQ(2u, rmsnorm_dtype_size(RMSNORM_F16));
  EXPECT_EQ(2u, rmsnorm_dtype_size(RMSNORM_BF16));
  EXPECT_STREQ("f32", rmsnorm_dtype_name(RMSNORM_F32));
  EXPECT_STREQ("f16", rmsnorm_dtype_name(RMSNORM_F16));
  EXPECT_STREQ("bf16", rmsnorm_dtype_name(RMSNORM_BF16));
  for (const rmsnorm_dtype unknown : {0, 4, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(0u, rmsnorm_dtype_size(unknown));
    EXPECT_EQ(nullptr, rmsnorm_dtype_name(unknown));
  }
}

}  // namespace
}  // namespace rmsnorm::test
