// SPDX-License-Identifier: Apache-2.0
// Every argument of the backward pass that is refused: with which status, a message that begins
// with the argument's name, and nothing written. And what looks odd but is allowed.
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
constexpr ptrdiff_t kSpan = kRows * kD * sizeof(float);

// Arguments of one call, right as they are made; a test spoils one.
struct Call {
  Call() { std::memset(memory, kWiped, sizeof memory); }
  Call(const Call&) = delete;  // the views point into it
  Call& operator=(const Call&) = delete;

  // All arguments lie in it, apart from each other.
  alignas(64) char memory[8192];
  void* At(size_t offset) { return memory + offset; }

  rmsnorm_view x = rmsnorm_rows(At(1024), RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view dy = rmsnorm_rows(At(2048), RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view dx = rmsnorm_rows(At(3072), RMSNORM_F32, kRows, kD, kD);
  size_t d = kD;
  rmsnorm_view weight = rmsnorm_tensor(At(4096), RMSNORM_F32, 1, &d, nullptr);
  rmsnorm_view dw = rmsnorm_tensor(At(5120), RMSNORM_F32, 1, &d, nullptr);
  float* rstd = static_cast<float*>(At(6144));
  uint32_t flags = 0;
  Options options;
};

using Spoil = std::function<void(Call&)>;
using Function = std::function<rmsnorm_status(Call&)>;

rmsnorm_status Backward(Call& c) {
  return rmsnorm_backward(&c.dy, &c.x, &c.weight, c.rstd, &c.dx, &c.dw, c.flags, &c.options);
}
rmsnorm_status WithoutWeight(Call& c) {
  return rmsnorm_backward(&c.dy, &c.x, nullptr, c.rstd, &c.dx, &c.dw, c.flags, &c.options);
}
rmsnorm_status OnlyDx(Call& c) {
  return rmsnorm_backward(&c.dy, &c.x, &c.weight, c.rstd, &c.dx, nullptr, c.flags, &c.options);
}
rmsnorm_status OnlyDw(Call& c) {
  return rmsnorm_backward(&c.dy, &c.x, &c.weight, c.rstd, nullptr, &c.dw, c.flags, &c.options);
}
rmsnorm_status Module(Call& c) {
  rmsnorm_module* module = nullptr;
  EXPECT_EQ(RMSNORM_OK, rmsnorm_module_create(&module, kD, RMSNORM_F32, nullptr));
  const rmsnorm_status status =
      rmsnorm_module_backward(module, &c.dy, &c.x, c.rstd, &c.dx, &c.dw, c.flags);
  rmsnorm_module_destroy(module);
  return status;
}

const std::vector<Function> kAll = {Backward, WithoutWeight, OnlyDx, OnlyDw, Module};
const std::vector<Function> kTakeDx = {Backward, WithoutWeight, OnlyDx, Module};
const std::vector<Function> kTakeDw = {Backward, WithoutWeight, OnlyDw, Module};
const std::vector<Function> kTakeWeight = {Backward, OnlyDx, OnlyDw};
const std::vector<Function> kTakeOptions = {Backward, OnlyDx, OnlyDw};

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

void ExpectViewRefused(rmsnorm_status status, const std::function<void(rmsnorm_view&)>& spoil) {
  ExpectRefused(status, "x: ", kAll, [&](Call& c) { spoil(c.x); });
  ExpectRefused(status, "dy: ", kAll, [&](Call& c) { spoil(c.dy); });
  ExpectRefused(status, "dx: ", kTakeDx, [&](Call& c) { spoil(c.dx); });
  ExpectRefused(status, "weight: ", kTakeWeight, [&](Call& c) { spoil(c.weight); });
  ExpectRefused(status, "dw: ", kTakeDw, [&](Call& c) { spoil(c.dw); });
}

TEST(BackwardArguments, AreAcceptedUnspoilt) {
  ExpectAccepted(kAll, [](Call&) {});
}

TEST(BackwardArguments, OptionsAreChecked) {
  const auto refused = [](rmsnorm_status status, const std::string& name, const Spoil& spoil) {
    ExpectRefused(status, name, kTakeOptions, spoil);
  };
  refused(RMSNORM_ERROR_STRUCT_SIZE, "options: ", [](Call& c) { c.options.size = 4; });
  refused(RMSNORM_ERROR_EPS, "options: eps ", [](Call& c) { c.options.eps = -1; });
  refused(RMSNORM_ERROR_EPS_PLACEMENT, "options: ", [](Call& c) { c.options.eps_placement = 2; });
  refused(RMSNORM_ERROR_ROUNDING, "options: ", [](Call& c) { c.options.rounding = 2; });
  refused(RMSNORM_ERROR_DIVISOR, "options: ", [](Call& c) { c.options.divisor = -1; });
  refused(RMSNORM_ERROR_THREADS, "options: ", [](Call& c) { c.options.threads = -1; });
  refused(RMSNORM_ERROR_TARGET, "target: ", [](Call& c) { c.options.target = "none such"; });
  ExpectRefused(RMSNORM_ERROR_WEIGHT_OFFSET, "options: weight_offset ", {WithoutWeight},
                [](Call& c) { c.options.weight_offset = 1; });
  ExpectAccepted(kTakeOptions, [](Call& c) { c.options.weight_offset = 1; });
  Call c;
  EXPECT_EQ(RMSNORM_OK, rmsnorm_backward(&c.dy, &c.x, &c.weight, c.rstd, &c.dx, &c.dw, 0, nullptr));
}

// A struct of another version may be shorter: nothing but its size may be read.
TEST(BackwardArguments, OptionsAreNotReadBeyondTheirSize) {
  const uint32_t size = alignof(rmsnorm_options);
  const GuardedBuffer buffer(size);
  void* const end = buffer.AtEnd(size);
  std::memcpy(end, &size, sizeof size);
  Call c;
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE,
            rmsnorm_backward(&c.dy, &c.x, nullptr, nullptr, &c.dx, &c.dw, 0,
                             static_cast<const rmsnorm_options*>(end)));
  const auto* const view = static_cast<const rmsnorm_view*>(end);
  const auto with = [&](const rmsnorm_view* dy, const rmsnorm_view* x, const rmsnorm_view* weight,
                        const rmsnorm_view* dx, const rmsnorm_view* dw) {
    return rmsnorm_backward(dy, x, weight, nullptr, dx, dw, 0, nullptr);
  };
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, with(view, &c.x, &c.weight, &c.dx, &c.dw));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, with(&c.dy, view, &c.weight, &c.dx, &c.dw));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, with(&c.dy, &c.x, view, &c.dx, &c.dw));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, with(&c.dy, &c.x, &c.weight, view, &c.dw));
  EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, with(&c.dy, &c.x, &c.weight, &c.dx, view));
}

TEST(BackwardArguments, UnknownFlagsAreRefused) {
  for (const uint32_t flags : {4u, 5u, 0x80000000u, UINT32_MAX}) {
    ExpectRefused(RMSNORM_ERROR_FLAGS, "flags: ", kAll, [&](Call& c) { c.flags = flags; });
  }
  for (const uint32_t flags : {1u, 2u, 3u}) {
    ExpectAccepted(kAll, [&](Call& c) {
      c.flags = flags;
      // What is added to must be numbers, for sanitizers' sake only.
      std::memset(c.memory, 0, sizeof c.memory);
    });
  }
}

TEST(BackwardArguments, ThatAreRequiredMustNotBeNull) {
  ExpectRefused(RMSNORM_ERROR_NULL, "dy: ", {[](Call& c) {
                  return rmsnorm_backward(nullptr, &c.x, nullptr, nullptr, &c.dx, &c.dw, 0,
                                          nullptr);
                }},
                [](Call&) {});
  ExpectRefused(RMSNORM_ERROR_NULL, "x: ", {[](Call& c) {
                  return rmsnorm_backward(&c.dy, nullptr, nullptr, nullptr, &c.dx, &c.dw, 0,
                                          nullptr);
                }},
                [](Call&) {});
  ExpectRefused(RMSNORM_ERROR_NULL, "dx: ", {[](Call& c) {
                  return rmsnorm_backward(&c.dy, &c.x, nullptr, nullptr, nullptr, nullptr, 0,
                                          nullptr);
                }},
                [](Call&) {});
  ExpectRefused(RMSNORM_ERROR_NULL, "module: ", {[](Call& c) {
                  return rmsnorm_module_backward(nullptr, &c.dy, &c.x, nullptr, &c.dx, &c.dw, 0);
                }},
                [](Call&) {});
  ExpectViewRefused(RMSNORM_ERROR_NULL, [](rmsnorm_view& view) { view.data = nullptr; });
  ExpectAccepted(kAll, [](Call& c) { c.rstd = nullptr; });
}

TEST(BackwardArguments, MustBeAligned) {
  ExpectViewRefused(RMSNORM_ERROR_ALIGNMENT,
                    [](rmsnorm_view& view) { view.data = static_cast<char*>(view.data) + 2; });
  ExpectRefused(RMSNORM_ERROR_ALIGNMENT, "rstd: ", kAll, [](Call& c) {
    c.rstd = reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(c.rstd) + 2);
  });
}

TEST(BackwardArguments, MustBeViews) {
  ExpectViewRefused(RMSNORM_ERROR_STRUCT_SIZE, [](rmsnorm_view& view) { view.size = 8; });
  ExpectViewRefused(RMSNORM_ERROR_DTYPE, [](rmsnorm_view& view) { view.dtype = 9; });
  ExpectViewRefused(RMSNORM_ERROR_SHAPE, [](rmsnorm_view& view) { view.ndim = 0; });
  ExpectViewRefused(RMSNORM_ERROR_SHAPE, [](rmsnorm_view& view) { view.shape[view.ndim - 1] = 0; });
  ExpectViewRefused(RMSNORM_ERROR_STRIDE,
                    [](rmsnorm_view& view) { view.stride[view.ndim - 1] = 2; });
  for (const ptrdiff_t stride : {PTRDIFF_MAX, PTRDIFF_MIN}) {
    ExpectRefused(RMSNORM_ERROR_SIZE_OVERFLOW, "dx: ", kTakeDx,
                  [&](Call& c) { c.dx.stride[0] = stride; });
  }
}

TEST(BackwardArguments, MustMatch) {
  for (const size_t d : {kD - 1, kD + 1}) {
    ExpectRefused(RMSNORM_ERROR_SHAPE, "dy: ", kAll, [&](Call& c) { c.dy.shape[1] = d; });
    ExpectRefused(RMSNORM_ERROR_SHAPE, "dx: ", kTakeDx, [&](Call& c) { c.dx.shape[1] = d; });
    ExpectRefused(RMSNORM_ERROR_SHAPE, "weight: ", kTakeWeight,
                  [&](Call& c) { c.weight.shape[0] = d; });
    ExpectRefused(RMSNORM_ERROR_SHAPE, "dw: ", kTakeDw, [&](Call& c) { c.dw.shape[0] = d; });
    ExpectRefused(RMSNORM_ERROR_SHAPE, "x: ", {Module}, [&](Call& c) {
      c.x.shape[1] = c.dy.shape[1] = c.dx.shape[1] = c.dw.shape[0] = d;
      c.x.stride[0] = c.dy.stride[0] = c.dx.stride[0] = 20;
    });
  }
  ExpectRefused(RMSNORM_ERROR_SHAPE, "dy: ", kAll, [](Call& c) { c.dy.shape[0] = kRows - 1; });
  ExpectRefused(RMSNORM_ERROR_SHAPE, "dx: ", kTakeDx, [](Call& c) { c.dx.shape[0] = kRows - 1; });
  ExpectRefused(RMSNORM_ERROR_SHAPE, "dw: ", kTakeDw,
                [](Call& c) { c.dw = rmsnorm_rows(c.dw.data, RMSNORM_F32, 1, kD, kD); });
  // The same rows in other dimensions are another shape.
  ExpectRefused(RMSNORM_ERROR_SHAPE, "dx: ", kTakeDx, [](Call& c) {
    const size_t shape[] = {1, kRows, kD};
    c.dx = rmsnorm_tensor(c.dx.data, RMSNORM_F32, 3, shape, nullptr);
  });
}

TEST(BackwardArguments, TypesOfTheGradients) {
  for (const rmsnorm_dtype dtype : {RMSNORM_F16, RMSNORM_BF16}) {
    ExpectRefused(RMSNORM_ERROR_DTYPE, "dx: ", kTakeDx, [&](Call& c) { c.dx.dtype = dtype; });
    ExpectRefused(RMSNORM_ERROR_DTYPE, "dx: ", kTakeDx,
                  [&](Call& c) { c.dy.dtype = c.x.dtype = dtype; });
    ExpectAccepted(kAll, [&](Call& c) { c.dy.dtype = dtype; });  // dx as x, both f32
    ExpectAccepted(kAll, [&](Call& c) { c.dy.dtype = c.dx.dtype = dtype; });
    ExpectAccepted(kAll, [&](Call& c) { c.x.dtype = dtype; });
    ExpectAccepted(kAll, [&](Call& c) { c.dw.dtype = dtype; });
    ExpectAccepted(kAll, [&](Call& c) { c.weight.dtype = dtype; });
  }
}

TEST(BackwardArguments, RowsOfDxMustNotOverlap) {
  for (const ptrdiff_t stride : {0, 1, 7, -7}) {
    ExpectRefused(RMSNORM_ERROR_STRIDE, "dx: ", kTakeDx, [&](Call& c) { c.dx.stride[0] = stride; });
  }
  // In place does not allow it either.
  ExpectRefused(RMSNORM_ERROR_STRIDE, "dx: ", kTakeDx, [](Call& c) {
    c.dy.stride[0] = 0;
    c.dx = c.dy;
  });
  // Those of inputs may.
  ExpectAccepted(kAll, [](Call& c) { c.x.stride[0] = c.dy.stride[0] = 0; });
}

TEST(BackwardOverlap, InPlaceOfDyPasses) {
  ExpectAccepted(kAll, [](Call& c) { c.dx = c.dy; });
}

TEST(BackwardOverlap, InPlaceNeedsEqualStrides) {
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "dx: overlaps dy", kTakeDx, [](Call& c) {
    c.dx = c.dy;
    c.dx.stride[0] = kD + 1;
  });
}

TEST(BackwardOverlap, InPlaceOfXIsRefused) {
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "dx: overlaps x", kTakeDx, [](Call& c) { c.dx = c.x; });
  // Nor where all three are one.
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "dx: overlaps x", kTakeDx,
                [](Call& c) { c.dx = c.dy = c.x; });
}

// Places dx some bytes after x and then after dy.
TEST(BackwardOverlap, DxIsApartFromTheInputs) {
  const auto move = [](rmsnorm_view Call::*input, ptrdiff_t bytes) {
    return [=](Call& c) { c.dx.data = static_cast<char*>((c.*input).data) + bytes; };
  };
  for (const auto& [input, name] :
       {std::pair{&Call::x, "dx: overlaps x"}, std::pair{&Call::dy, "dx: overlaps dy"}}) {
    for (const ptrdiff_t bytes : {ptrdiff_t{4}, ptrdiff_t{-4}, kSpan - 4, 4 - kSpan}) {
      ExpectRefused(RMSNORM_ERROR_OVERLAP, name, kTakeDx, move(input, bytes));
    }
    for (const ptrdiff_t bytes : {kSpan, -kSpan}) {
      ExpectAccepted(kTakeDx, move(input, bytes));
    }
    // Columns of one buffer: rows of 24 elements.
    for (const ptrdiff_t bytes : {32, 64}) {
      ExpectAccepted(kTakeDx, [&, input = input](Call& c) {
        move(input, bytes)(c);
        c.x.stride[0] = c.dy.stride[0] = c.dx.stride[0] = 24;
      });
    }
    for (const ptrdiff_t bytes : {28, 68}) {
      ExpectRefused(RMSNORM_ERROR_OVERLAP, name, kTakeDx, [&, input = input](Call& c) {
        move(input, bytes)(c);
        c.x.stride[0] = c.dy.stride[0] = c.dx.stride[0] = 24;
      });
    }
  }
}

// Moves an argument so that it shares its first, or its last, bytes with one at `begin` of `bytes`.
template <class Move>
void ExpectApart(const std::string& name, const std::vector<Function>& runs, size_t begin,
                 ptrdiff_t bytes, ptrdiff_t own_bytes, const Move& move) {
  const ptrdiff_t at = static_cast<ptrdiff_t>(begin);
  for (const ptrdiff_t offset : {at - own_bytes + 4, at, at + bytes - 4}) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, name, runs, [&](Call& c) { move(c, c.memory + offset); });
  }
  for (const ptrdiff_t offset : {at - own_bytes, at + bytes}) {
    ExpectAccepted(runs, [&](Call& c) { move(c, c.memory + offset); });
  }
}

TEST(BackwardOverlap, OutputsShareNoByteWithOtherArguments) {
  const ptrdiff_t vector = kD * sizeof(float);
  const ptrdiff_t per_row = kRows * sizeof(float);
  const auto move_dw = [](Call& c, void* to) { c.dw.data = to; };
  const auto move_rstd = [](Call& c, void* to) { c.rstd = static_cast<float*>(to); };
  const auto move_weight = [](Call& c, void* to) { c.weight.data = to; };
  ExpectApart("dw: overlaps x", kTakeDw, 1024, kSpan, vector, move_dw);
  ExpectApart("dw: overlaps dy", kTakeDw, 2048, kSpan, vector, move_dw);
  ExpectApart("dw: overlaps dx", {Backward, WithoutWeight, Module}, 3072, kSpan, vector, move_dw);
  ExpectApart("dw: overlaps weight", {Backward, OnlyDw}, 4096, vector, vector, move_dw);
  ExpectApart("dw: overlaps rstd", kTakeDw, 6144, per_row, vector, move_dw);
  ExpectApart("dx: overlaps rstd", kTakeDx, 3072, kSpan, per_row, move_rstd);
  ExpectApart("dx: overlaps weight", {Backward, OnlyDx}, 3072, kSpan, vector, move_weight);
}

TEST(BackwardOverlap, InputsMayShareBytes) {
  ExpectAccepted(kAll, [](Call& c) {
    c.dy = c.x;
    c.weight.data = c.x.data;
    c.rstd = static_cast<float*>(c.x.data);
  });
}

TEST(BackwardZeroRows, AreStillChecked) {
  ExpectRefused(RMSNORM_ERROR_DTYPE, "dx: ", kTakeDx, [](Call& c) {
    c.x.shape[0] = c.dy.shape[0] = c.dx.shape[0] = 0;
    c.dx.dtype = RMSNORM_F16;
  });
  ExpectAccepted(kAll, [](Call& c) {
    c.x.shape[0] = c.dy.shape[0] = c.dx.shape[0] = 0;
    c.x.data = c.dy.data = c.dx.data = nullptr;
    c.rstd = nullptr;
  });
}

// Rows so long that no memory holds their sums: said before anything is written. The views span
// addresses that are never touched.
TEST(BackwardMemory, ThatIsMissingIsAnError) {
  Call c;
  const size_t d = SIZE_MAX / 64;
  const size_t shape[] = {d};
  char* const low = reinterpret_cast<char*>(4096);
  const rmsnorm_view x = rmsnorm_tensor(low, RMSNORM_BF16, 1, shape, nullptr);
  const rmsnorm_view dw = rmsnorm_tensor(low + 8 * d, RMSNORM_BF16, 1, shape, nullptr);
  EXPECT_EQ(RMSNORM_ERROR_MEMORY,
            rmsnorm_backward(&x, &x, nullptr, nullptr, nullptr, &dw, 0, nullptr));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("dw: ")) << rmsnorm_error_message();
}

TEST(BackwardInCpp, ThrowsWhatTheCInterfaceSays) {
  Call c;
  try {
    backward(ConstView(c.dy), ConstView(c.x), nullptr, {});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(RMSNORM_ERROR_NULL, error.status());
    EXPECT_STREQ(rmsnorm_error_message(), error.what());
  }
  const RmsNorm norm(kD);
  EXPECT_THROW(norm.backward(ConstView(c.dy), ConstView(c.x), {}), Error);
  EXPECT_THROW(backward(ConstView(c.dy), ConstView(c.x), ConstView(c.x), {View(c.dx)}), Error);
}

}  // namespace
}  // namespace rmsnorm::test
