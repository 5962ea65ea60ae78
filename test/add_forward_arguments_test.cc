// SPDX-License-Identifier: Apache-2.0
// Every argument of the residual add that is refused: with which status, a message that begins with
// the argument's name, and nothing written. And what looks odd but is allowed.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "tensor.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kRows = 3;
constexpr size_t kD = 8;
constexpr size_t kRowBytes = kD * sizeof(float);
constexpr size_t kSpan = kRows * kRowBytes;

// Arguments of one call, right as they are made; a test spoils one.
struct Call {
  Call() { std::memset(memory, kWiped, sizeof memory); }
  Call(const Call&) = delete;  // the views point into it
  Call& operator=(const Call&) = delete;

  // All arguments lie in it, apart from each other and with room around each.
  alignas(64) char memory[8192];
  void* At(size_t offset) { return memory + offset; }

  rmsnorm_view x = rmsnorm_rows(At(1024), RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view residual = rmsnorm_rows(At(2048), RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view residual_out = rmsnorm_rows(At(3072), RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view y = rmsnorm_rows(At(4096), RMSNORM_F32, kRows, kD, kD);
  size_t weight_shape = kD;
  rmsnorm_view weight = rmsnorm_tensor(At(5120), RMSNORM_F32, 1, &weight_shape, nullptr);
  float* rstd = static_cast<float*>(At(6144));
  Options options;
};

using Spoil = std::function<void(Call&)>;
using Function = rmsnorm_status (*)(Call&);

rmsnorm_status AddForward(Call& c) {
  return rmsnorm_add_forward(&c.x, &c.residual, &c.weight, &c.residual_out, &c.y, c.rstd,
                             &c.options);
}
rmsnorm_status WithoutWeight(Call& c) {
  return rmsnorm_add_forward(&c.x, &c.residual, nullptr, &c.residual_out, &c.y, c.rstd, &c.options);
}
rmsnorm_status OfModule(Call& c) {
  const RmsNorm norm(kD);
  try {
    norm.add_forward(ConstView(c.x), ConstView(c.residual), View(c.residual_out), View(c.y),
                     c.rstd);
  } catch (const Error& error) {
    EXPECT_STREQ(rmsnorm_error_message(), error.what());
    return error.status();
  }
  return RMSNORM_OK;
}

const std::vector<Function> kAll = {AddForward, WithoutWeight, OfModule};
const std::vector<Function> kTakeOptions = {AddForward, WithoutWeight};
const std::vector<Function> kTakeWeight = {AddForward};

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
    EXPECT_GT(message.size(), 10u) << message;
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

struct ViewArgument {
  const char* name;
  rmsnorm_view Call::*view;
  const std::vector<Function>& runs;
};
const ViewArgument kX = {"x", &Call::x, kAll};
const ViewArgument kResidual = {"residual", &Call::residual, kAll};
const ViewArgument kResidualOut = {"residual_out", &Call::residual_out, kAll};
const ViewArgument kY = {"y", &Call::y, kAll};
const ViewArgument kWeight = {"weight", &Call::weight, kTakeWeight};
const std::vector<ViewArgument> kRowArguments = {kX, kResidual, kResidualOut, kY};
const std::vector<ViewArgument> kViews = {kX, kResidual, kResidualOut, kY, kWeight};

// Spoils each view in turn.
void ExpectViewRefused(rmsnorm_status status, const std::vector<ViewArgument>& views,
                       const std::function<void(rmsnorm_view&)>& spoil) {
  for (const ViewArgument& argument : views) {
    SCOPED_TRACE(argument.name);
    ExpectRefused(status, std::string(argument.name) + ": ", argument.runs,
                  [&](Call& c) { spoil(c.*argument.view); });
  }
}

TEST(AddArguments, AreAcceptedUnspoilt) {
  ExpectAccepted(kAll, [](Call&) {});
  ExpectAccepted(kAll, [](Call& c) { c.rstd = nullptr; });
  Call c;
  EXPECT_EQ(RMSNORM_OK, rmsnorm_add_forward(&c.x, &c.residual, &c.weight, &c.residual_out, &c.y,
                                            c.rstd, nullptr));
}

TEST(AddOptions, AreChecked) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused(RMSNORM_ERROR_STRUCT_SIZE, "options: ", kTakeOptions,
                [](Call& c) { c.options.size = 8; });
  ExpectRefused(RMSNORM_ERROR_EPS, "options: ", kTakeOptions, [](Call& c) { c.options.eps = -1; });
  ExpectRefused(RMSNORM_ERROR_EPS_PLACEMENT, "options: ", kTakeOptions,
                [](Call& c) { c.options.eps_placement = 2; });
  ExpectRefused(RMSNORM_ERROR_ROUNDING, "options: rounding ", kTakeOptions,
                [](Call& c) { c.options.rounding = 2; });
  ExpectRefused(RMSNORM_ERROR_WEIGHT_OFFSET, "options: ", kTakeOptions,
                [&](Call& c) { c.options.weight_offset = nan; });
  ExpectRefused(RMSNORM_ERROR_WEIGHT_OFFSET, "options: ", {WithoutWeight},
                [](Call& c) { c.options.weight_offset = 1; });
  ExpectRefused(RMSNORM_ERROR_DIVISOR, "options: ", kTakeOptions,
                [](Call& c) { c.options.divisor = -1; });
  ExpectRefused(RMSNORM_ERROR_THREADS, "options: ", kTakeOptions,
                [](Call& c) { c.options.threads = -1; });
  ExpectRefused(RMSNORM_ERROR_TARGET, "target: ", kTakeOptions,
                [](Call& c) { c.options.target = "PDP11"; });
}

TEST(AddOptions, ResidualRoundingMustBeKnown) {
  for (const int32_t value : {-1, 2, INT32_MAX, INT32_MIN}) {
    const auto spoil = [&](Call& c) { c.options.residual_rounding = value; };
    ExpectRefused(RMSNORM_ERROR_ROUNDING, "options: residual_rounding ", kTakeOptions, spoil);
    // Every call that takes options checks all of them.
    Call c;
    spoil(c);
    rmsnorm_module* module;
    EXPECT_EQ(RMSNORM_ERROR_ROUNDING, rmsnorm_forward(&c.x, nullptr, &c.y, nullptr, &c.options));
    EXPECT_EQ(RMSNORM_ERROR_ROUNDING, rmsnorm_module_create(&module, kD, RMSNORM_F32, &c.options));
  }
}

TEST(AddPointers, MustNotBeNull) {
  Call c;
  const rmsnorm_view* const views[] = {&c.x, &c.residual, &c.residual_out, &c.y};
  for (size_t missing = 0; missing < 4; ++missing) {
    const rmsnorm_view* given[4];
    for (size_t i = 0; i < 4; ++i) given[i] = i == missing ? nullptr : views[i];
    EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_add_forward(given[0], given[1], nullptr, given[2],
                                                      given[3], c.rstd, nullptr));
    EXPECT_EQ(
        0u,
        std::string(rmsnorm_error_message()).find(std::string(kRowArguments[missing].name) + ": "))
        << rmsnorm_error_message();
  }
  EXPECT_EQ(RMSNORM_ERROR_NULL,
            rmsnorm_module_add_forward(nullptr, &c.x, &c.residual, &c.residual_out, &c.y, nullptr));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("module: "));
  ExpectViewRefused(RMSNORM_ERROR_NULL, kViews, [](rmsnorm_view& view) { view.data = nullptr; });
}

TEST(AddViews, EachIsCheckedByItself) {
  ExpectViewRefused(RMSNORM_ERROR_STRUCT_SIZE, kViews, [](rmsnorm_view& view) { view.size = 0; });
  for (const int32_t dtype : {0, 4, -1, INT32_MAX, INT32_MIN}) {
    ExpectViewRefused(RMSNORM_ERROR_DTYPE, kViews, [&](rmsnorm_view& view) { view.dtype = dtype; });
  }
  for (const int32_t ndim : {0, -1, 6, INT32_MAX}) {
    ExpectViewRefused(RMSNORM_ERROR_SHAPE, kViews, [&](rmsnorm_view& view) { view.ndim = ndim; });
  }
  ExpectViewRefused(RMSNORM_ERROR_SHAPE, kViews,
                    [](rmsnorm_view& view) { view.shape[view.ndim - 1] = 0; });
  for (const ptrdiff_t stride : {0, 2, -1}) {
    ExpectViewRefused(RMSNORM_ERROR_STRIDE, kViews,
                      [&](rmsnorm_view& view) { view.stride[view.ndim - 1] = stride; });
  }
  ExpectViewRefused(RMSNORM_ERROR_SIZE_OVERFLOW, kRowArguments,
                    [](rmsnorm_view& view) { view.stride[0] = PTRDIFF_MAX / 2; });
  for (const size_t shift : SizeList{1, 2, 3}) {
    ExpectViewRefused(RMSNORM_ERROR_ALIGNMENT, kViews, [&](rmsnorm_view& view) {
      view.data = static_cast<char*>(view.data) + shift;
    });
    ExpectRefused(RMSNORM_ERROR_ALIGNMENT, "rstd: ", kAll, [&](Call& c) {
      c.rstd = reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(c.rstd) + shift);
    });
  }
}

TEST(AddViews, ShapesMustMatch) {
  const std::vector<ViewArgument> others = {kResidual, kResidualOut, kY};
  ExpectViewRefused(RMSNORM_ERROR_SHAPE, others, [](rmsnorm_view& view) { --view.shape[0]; });
  ExpectViewRefused(RMSNORM_ERROR_SHAPE, others, [](rmsnorm_view& view) { ++view.shape[0]; });
  ExpectViewRefused(RMSNORM_ERROR_SHAPE, others, [](rmsnorm_view& view) { --view.shape[1]; });
  // The same rows in other dimensions are another shape.
  ExpectViewRefused(RMSNORM_ERROR_SHAPE, others, [](rmsnorm_view& view) {
    const size_t shape[] = {1, kRows, kD};
    view = rmsnorm_tensor(view.data, RMSNORM_F32, 3, shape, nullptr);
  });
  ExpectRefused(RMSNORM_ERROR_SHAPE, "weight: ", kTakeWeight,
                [](Call& c) { c.weight.shape[0] = kD + 1; });
  // The module knows its d.
  ExpectRefused(RMSNORM_ERROR_SHAPE, "x: ", {OfModule}, [](Call& c) {
    for (const ViewArgument& argument : kRowArguments) (c.*argument.view).shape[1] = kD - 1;
  });
}

TEST(AddViews, TypeOfTheResidual) {
  for (const rmsnorm_dtype x : kDtypes) {
    for (const rmsnorm_dtype residual : kDtypes) {
      for (const rmsnorm_dtype out : kDtypes) {
        for (const rmsnorm_dtype y : kDtypes) {
          const auto set = [&](Call& c) {
            c.x.dtype = x;
            c.residual.dtype = residual;
            c.residual_out.dtype = out;
            c.y.dtype = y;
          };
          if (residual != x && residual != RMSNORM_F32) {
            ExpectRefused(RMSNORM_ERROR_DTYPE, "residual: ", kAll, set);
          } else if (out != residual) {
            ExpectRefused(RMSNORM_ERROR_DTYPE, "residual_out: ", kAll, set);
          } else {
            ExpectAccepted(kAll, set);
          }
        }
      }
    }
  }
}

TEST(AddViews, RowsOfAnOutputMustNotOverlap) {
  for (const ptrdiff_t stride : {0, 1, 7, -7}) {
    ExpectViewRefused(RMSNORM_ERROR_STRIDE, {kResidualOut, kY},
                      [&](rmsnorm_view& view) { view.stride[0] = stride; });
    // An input's may, but then nothing is in place of it.
    ExpectAccepted(kAll, [&](Call& c) { c.x.stride[0] = c.residual.stride[0] = stride; });
  }
  ExpectRefused(RMSNORM_ERROR_STRIDE, "residual_out: ", kAll, [](Call& c) {
    c.residual.stride[0] = 0;
    c.residual_out = c.residual;
  });
}

// --------------------------------------------------------------------------------------- overlap

TEST(AddOverlap, InPlacePasses) {
  ExpectAccepted(kAll, [](Call& c) { c.residual_out = c.residual; });
  ExpectAccepted(kAll, [](Call& c) { c.y = c.x; });
  ExpectAccepted(kAll, [](Call& c) {
    c.residual_out = c.residual;
    c.y = c.x;
  });
  // Other types of the same size, and falling rows.
  ExpectAccepted(kAll, [](Call& c) {
    c.x.dtype = RMSNORM_F16;
    c.x.stride[0] = -static_cast<ptrdiff_t>(kD);
    c.y = c.x;
    c.y.dtype = RMSNORM_BF16;
    c.residual.stride[0] = -static_cast<ptrdiff_t>(kD);
    c.residual_out = c.residual;
  });
}

TEST(AddOverlap, InputsMayShareBytes) {
  ExpectAccepted(kAll, [](Call& c) { c.residual = c.x; });
  ExpectAccepted(kAll, [](Call& c) { c.weight.data = c.x.data; });
  ExpectAccepted(kAll, [](Call& c) { c.weight.data = c.residual.data; });
  // But not with an output that is in place of one.
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "residual_out: ", kAll,
                [](Call& c) { c.residual = c.residual_out = c.x; });
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: ", kAll, [](Call& c) { c.residual = c.y = c.x; });
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "residual_out: ", kTakeWeight, [](Call& c) {
    c.weight.data = c.residual.data;
    c.residual_out = c.residual;
  });
}

struct Pair {
  const ViewArgument& output;
  const ViewArgument& other;
  bool in_place;
};
const Pair kPairs[] = {{kResidualOut, kX, false},
                       {kResidualOut, kResidual, true},
                       {kY, kX, true},
                       {kY, kResidual, false},
                       {kY, kResidualOut, false}};

// Each output beside, over and at every other argument.
TEST(AddOverlap, OutputsShareNoByteWithOtherArguments) {
  for (const Pair& pair : kPairs) {
    SCOPED_TRACE(std::string(pair.output.name) + " and " + pair.other.name);
    const std::string name = std::string(pair.output.name) + ": overlaps " + pair.other.name;
    const auto place = [&](ptrdiff_t bytes) {
      return [&pair, bytes](Call& c) {
        (c.*pair.output.view).data = static_cast<char*>((c.*pair.other.view).data) + bytes;
      };
    };
    const ptrdiff_t span = kSpan;
    for (const ptrdiff_t bytes : {span - 4, 4 - span, ptrdiff_t{4}, ptrdiff_t{-4}, ptrdiff_t{32}}) {
      ExpectRefused(RMSNORM_ERROR_OVERLAP, name, kAll, place(bytes));
    }
    for (const ptrdiff_t bytes : {span, -span}) ExpectAccepted(kAll, place(bytes));
    if (pair.in_place) {
      ExpectAccepted(kAll, place(0));
    } else {
      ExpectRefused(RMSNORM_ERROR_OVERLAP, name, kAll, place(0));
    }
    // In place means equal strides.
    ExpectRefused(RMSNORM_ERROR_OVERLAP, name, kAll, [&](Call& c) {
      place(0)(c);
      (c.*pair.output.view).stride[0] = kD + 1;
    });
    // Columns of one buffer, beside each other and one element too near.
    const auto columns = [&](ptrdiff_t bytes) {
      return [&pair, &place, bytes](Call& c) {
        place(bytes)(c);
        (c.*pair.output.view).stride[0] = (c.*pair.other.view).stride[0] = 24;
      };
    };
    for (const ptrdiff_t bytes : {32, 64, -32, -64}) ExpectAccepted(kAll, columns(bytes));
    for (const ptrdiff_t bytes : {28, 68, -28, -68}) {
      ExpectRefused(RMSNORM_ERROR_OVERLAP, name, kAll, columns(bytes));
    }
  }
}

TEST(AddOverlap, InPlaceNeedsEqualSizes) {
  ExpectRefused(RMSNORM_ERROR_OVERLAP, "y: overlaps x or lies between its rows", kAll, [](Call& c) {
    c.y = c.x;
    c.y.dtype = RMSNORM_BF16;
  });
}

TEST(AddOverlap, WeightAndRstdAreApartFromOutputs) {
  for (const ViewArgument& output : {kResidualOut, kY}) {
    const std::string name = std::string(output.name) + ": overlaps weight";
    const auto place = [&](ptrdiff_t bytes) {
      return [&output, bytes](Call& c) {
        c.weight.data = static_cast<char*>((c.*output.view).data) + bytes;
      };
    };
    const ptrdiff_t after = kSpan;
    const ptrdiff_t before = kRowBytes;
    for (const ptrdiff_t bytes : {ptrdiff_t{0}, after - 4, 4 - before}) {
      ExpectRefused(RMSNORM_ERROR_OVERLAP, name, kTakeWeight, place(bytes));
    }
    for (const ptrdiff_t bytes : {after, -before}) ExpectAccepted(kTakeWeight, place(bytes));
  }
  for (const ViewArgument& other : kViews) {
    SCOPED_TRACE(other.name);
    const std::string name = std::string("rstd: overlaps ") + other.name;
    const auto place = [&](ptrdiff_t bytes) {
      return [&other, bytes](Call& c) {
        c.rstd = reinterpret_cast<float*>(static_cast<char*>((c.*other.view).data) + bytes);
      };
    };
    const ptrdiff_t after = other.view == kWeight.view ? kRowBytes : kSpan;
    const ptrdiff_t before = static_cast<ptrdiff_t>(kRows * sizeof(float));
    for (const ptrdiff_t bytes : {ptrdiff_t{0}, after - 4, 4 - before}) {
      ExpectRefused(RMSNORM_ERROR_OVERLAP, name, other.runs, place(bytes));
    }
    for (const ptrdiff_t bytes : {after, -before}) ExpectAccepted(other.runs, place(bytes));
  }
}

// A module takes one plain row without the checks of other calls; it must refuse what they refuse.
TEST(AddOneRow, ModuleRefusesWhatTheFunctionRefuses) {
  rmsnorm_module* module;
  ASSERT_EQ(RMSNORM_OK, rmsnorm_module_create(&module, kD, RMSNORM_F32, nullptr));
  size_t accepted = 0;
  size_t refused = 0;
  const auto compare = [&](const Spoil& spoil) {
    Call call;
    for (const ViewArgument& argument : kRowArguments) (call.*argument.view).shape[0] = 1;
    spoil(call);
    const rmsnorm_status expected = rmsnorm_add_forward(
        &call.x, &call.residual, nullptr, &call.residual_out, &call.y, nullptr, nullptr);
    ++(expected == RMSNORM_OK ? accepted : refused);
    EXPECT_EQ(expected, rmsnorm_module_add_forward(module, &call.x, &call.residual,
                                                   &call.residual_out, &call.y, nullptr));
  };
  for (const ViewArgument& one : kRowArguments) {
    SCOPED_TRACE(one.name);
    for (const ViewArgument& other : kRowArguments) {
      SCOPED_TRACE(other.name);
      for (const ptrdiff_t bytes : {-32, -28, -4, 0, 4, 28, 32}) {
        SCOPED_TRACE(bytes);
        const auto place = [&](Call& c) {
          (c.*one.view).data = static_cast<char*>((c.*other.view).data) + bytes;
        };
        compare(place);
        compare([&](Call& c) {
          place(c);
          (c.*one.view).dtype = RMSNORM_BF16;
        });
        compare([&](Call& c) {
          for (const ViewArgument& each : kRowArguments) (c.*each.view).dtype = RMSNORM_BF16;
          place(c);
        });
      }
    }
    const auto spoil_view = [&](const std::function<void(rmsnorm_view&)>& spoil) {
      compare([&](Call& c) { spoil(c.*one.view); });
    };
    spoil_view([](rmsnorm_view& view) { view.size = 1; });
    spoil_view([](rmsnorm_view& view) { view.dtype = 0; });
    spoil_view([](rmsnorm_view& view) { view.dtype = RMSNORM_F16; });
    spoil_view([](rmsnorm_view& view) { view.data = nullptr; });
    spoil_view([](rmsnorm_view& view) { view.data = static_cast<char*>(view.data) + 1; });
    spoil_view([](rmsnorm_view& view) { view = rmsnorm_rows(view.data, RMSNORM_F32, 1, 7, 7); });
    spoil_view([](rmsnorm_view& view) { view.shape[0] = 2; });
    spoil_view([](rmsnorm_view& view) { view.stride[1] = 2; });
    spoil_view([](rmsnorm_view& view) {
      view = rmsnorm_tensor(view.data, RMSNORM_F32, 1, view.shape + 1, nullptr);
    });
  }
  rmsnorm_module_destroy(module);
  EXPECT_GT(accepted, 50u);
  EXPECT_GT(refused, 50u);
}

// ------------------------------------------------------------------------------------- zero rows

TEST(AddZeroRows, SucceedAndTouchNothing) {
  const auto no_rows = [](Call& c) {
    for (const ViewArgument& argument : kRowArguments) {
      (c.*argument.view).shape[0] = 0;
      (c.*argument.view).data = nullptr;
    }
  };
  for (const Function run : kAll) {
    Call c;
    no_rows(c);
    char before[sizeof c.memory];
    std::memcpy(before, c.memory, sizeof before);
    EXPECT_EQ(RMSNORM_OK, run(c)) << rmsnorm_error_message();
    EXPECT_EQ(0, std::memcmp(before, c.memory, sizeof before));
  }
  ExpectRefused(RMSNORM_ERROR_DTYPE, "residual: ", kAll, [&](Call& c) {
    no_rows(c);
    c.residual.dtype = RMSNORM_F16;
  });
}

}  // namespace
}  // namespace rmsnorm::test
