// SPDX-License-Identifier: Apache-2.0
// Structs of other versions: smaller ones have the defaults for what they lack, and of larger ones
// what is beyond must be zero. Nothing beyond its size is read of any.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "guarded_buffer.h"
#include "random_rows.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kRows = 3;
constexpr size_t kD = 100;

// A struct in front of memory that cannot be touched.
class Placed {
 public:
  // The first `size` bytes of a struct, and zeros where it is shorter.
  Placed(const void* from, size_t known, size_t size) : buffer_(size), data_(buffer_.AtEnd(size)) {
    std::memset(data_, 0, size);
    std::memcpy(data_, from, std::min(known, size));
    SetSize(static_cast<uint32_t>(size));
  }
  template <class Struct>
  Placed(const Struct& from, size_t size) : Placed(&from, sizeof from, size) {}

  void SetSize(uint32_t size) { std::memcpy(data_, &size, sizeof size); }
  char* Bytes() const { return static_cast<char*>(data_); }
  template <class Struct>
  const Struct* As() const {
    return static_cast<const Struct*>(data_);
  }

 private:
  GuardedBuffer buffer_;
  void* data_;
};

// The arguments of a call; the structs point into the rest.
struct Arguments {
  Arguments() {
    Random random(7);
    FillNormal(random, x);
    FillNormal(random, residual);
    FillWeight(random, weight);
    operands.x = &x_view;
    operands.residual = &residual_view;
    operands.weight = &weight_view;
    operands.y = &y_view;
    operands.residual_out = &residual_out_view;
    gradient_operands.x = &x_view;
    gradient_operands.dy = &residual_view;
    gradient_operands.weight = &weight_view;
    gradient_operands.dx = &y_view;
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  Tensor x{RMSNORM_BF16, kRows, kD};
  Tensor residual{RMSNORM_BF16, kRows, kD};
  Tensor weight{RMSNORM_F32, 1, kD};
  Tensor y{RMSNORM_BF16, kRows, kD};
  Tensor residual_out{RMSNORM_BF16, kRows, kD};
  rmsnorm_view x_view = x.view();
  rmsnorm_view residual_view = residual.view();
  rmsnorm_view weight_view = weight.vector();
  rmsnorm_view y_view = y.view();
  rmsnorm_view residual_out_view = residual_out.view();
  rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_operands gradient_operands = rmsnorm_no_operands();
  RmsNorm module{kD};
};

struct Structs {
  const rmsnorm_operands* operands;
  const rmsnorm_options* options;
  const rmsnorm_context* context;
};

struct Function {
  std::string name;
  bool backward;
  bool by_module;  // takes no options
  rmsnorm_status (*run)(const Arguments&, const Structs&);
};

const Function kFunctions[] = {
    {"forward", false, false,
     [](const Arguments&, const Structs& s) {
       return rmsnorm_forward(s.operands, s.options, s.context);
     }},
    {"forward_all", false, false,
     [](const Arguments&, const Structs& s) {
       const rmsnorm_call call = {nullptr, s.operands, s.options};
       return rmsnorm_forward_all(&call, 1, s.context);
     }},
    {"backward", true, false,
     [](const Arguments&, const Structs& s) {
       return rmsnorm_backward(s.operands, s.options, s.context);
     }},
    {"module's forward", false, true,
     [](const Arguments& a, const Structs& s) {
       return rmsnorm_module_forward(a.module.get(), s.operands, s.context);
     }},
    {"module's backward", true, true,
     [](const Arguments& a, const Structs& s) {
       return rmsnorm_module_backward(a.module.get(), s.operands, s.context);
     }},
    {"module_create", false, false,
     [](const Arguments&, const Structs& s) {
       rmsnorm_module* module = nullptr;
       const rmsnorm_status status =
           rmsnorm_module_create(&module, kD, RMSNORM_F32, s.options, s.context);
       EXPECT_EQ(status == RMSNORM_OK, module != nullptr);
       rmsnorm_module_destroy(module);
       return status;
     }},
};

bool TakesOperands(const Function& function) { return function.name != "module_create"; }

rmsnorm_operands OperandsOf(const Arguments& arguments, const Function& function) {
  rmsnorm_operands operands = function.backward ? arguments.gradient_operands : arguments.operands;
  if (function.by_module) operands.weight = nullptr;
  return operands;
}

enum class Which { kOperands, kOptions, kContext };
const char* const kNames[] = {"operands", "options", "context"};

// Calls visit for every function that takes the struct; `run` runs it with that in a place of its
// own.
void ForEachFunction(
    Which which,
    const std::function<void(const void* usual, size_t known,
                             const std::function<rmsnorm_status(const void*)>& run)>& visit) {
  for (const Function& function : kFunctions) {
    if (which == Which::kOperands && !TakesOperands(function)) continue;
    if (which == Which::kOptions && function.by_module) continue;
    SCOPED_TRACE(function.name);
    const Arguments arguments;
    const rmsnorm_operands operands = OperandsOf(arguments, function);
    const rmsnorm_options options = rmsnorm_default_options();
    const rmsnorm_context context = rmsnorm_default_context();
    const void* const usual[] = {&operands, &options, &context};
    const size_t known[] = {sizeof operands, sizeof options, sizeof context};
    const size_t i = static_cast<size_t>(which);
    visit(usual[i], known[i], [&](const void* given) {
      Structs structs = {&operands, &options, &context};
      if (which == Which::kOperands) structs.operands = static_cast<const rmsnorm_operands*>(given);
      if (which == Which::kOptions) structs.options = static_cast<const rmsnorm_options*>(given);
      if (which == Which::kContext) structs.context = static_cast<const rmsnorm_context*>(given);
      return function.run(arguments, structs);
    });
  }
}

class GrowthTest : public testing::TestWithParam<Which> {
 protected:
  void ExpectRefused(rmsnorm_status status) const {
    EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, status);
    EXPECT_NE(std::string::npos, std::string(rmsnorm_error_message()).find(name_ + ": size is "))
        << rmsnorm_error_message();
  }

  const std::string name_ = kNames[static_cast<int>(GetParam())];
};

TEST_P(GrowthTest, OfItsSizeIsTaken) {
  ForEachFunction(GetParam(), [](const void* usual, size_t known, const auto& run) {
    EXPECT_EQ(RMSNORM_OK, run(Placed(usual, known, known).Bytes())) << rmsnorm_error_message();
  });
}

TEST_P(GrowthTest, LargerWithZerosIsTaken) {
  ForEachFunction(GetParam(), [](const void* usual, size_t known, const auto& run) {
    for (const size_t more : SizeList{8, 64, 256}) {
      EXPECT_EQ(RMSNORM_OK, run(Placed(usual, known, known + more).Bytes()))
          << rmsnorm_error_message();
    }
  });
}

TEST_P(GrowthTest, LargerWithAnythingElseIsRefused) {
  ForEachFunction(GetParam(), [this](const void* usual, size_t known, const auto& run) {
    for (const size_t more : SizeList{8, 64, 256}) {
      const Placed placed(usual, known, known + more);
      for (size_t i = known; i < known + more; ++i) {
        placed.Bytes()[i] = i % 2 == 0 ? 1 : '\x80';
        ExpectRefused(run(placed.Bytes()));
        placed.Bytes()[i] = 0;
      }
      EXPECT_EQ(RMSNORM_OK, run(placed.Bytes())) << rmsnorm_error_message();
    }
  });
}

// Not even its own size fits, or more than any version can have.
TEST_P(GrowthTest, OfNoSizeIsRefused) {
  ForEachFunction(GetParam(), [this](const void* usual, size_t known, const auto& run) {
    Placed placed(usual, known, known);
    for (const uint32_t size : {0u, 1u, 2u, 3u, 0x80000000u, UINT32_MAX}) {
      placed.SetSize(size);
      ExpectRefused(run(placed.Bytes()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Structs, GrowthTest,
                         testing::Values(Which::kOperands, Which::kOptions, Which::kContext),
                         [](const auto& test) {
                           return std::string(kNames[static_cast<int>(test.param)]);
                         });

// Cut after each field: those before it count, and those beyond have their defaults.
TEST(SmallerOptions, HaveTheDefaultsForWhatTheyLack) {
  struct Field {
    size_t end;
    void (*set)(rmsnorm_options&);
  };
  // Each changes the result.
#define RMSNORM_FIELD(name, value)                                                  \
  Field {                                                                           \
    offsetof(rmsnorm_options, name) + 4, [](rmsnorm_options& o) { o.name = value; } \
  }
  const Field fields[] = {RMSNORM_FIELD(size, sizeof(rmsnorm_options)),
                          RMSNORM_FIELD(eps, 0.5f),
                          RMSNORM_FIELD(eps_placement, RMSNORM_EPS_OUTSIDE),
                          RMSNORM_FIELD(rounding, RMSNORM_CAST_THEN_SCALE),
                          RMSNORM_FIELD(residual_rounding, RMSNORM_NORM_THEN_CAST),
                          RMSNORM_FIELD(weight_offset, 1.0f),
                          RMSNORM_FIELD(divisor, 30.0f)};
#undef RMSNORM_FIELD
  rmsnorm_options all = rmsnorm_default_options();
  for (const Field& field : fields) field.set(all);
  rmsnorm_options expected = rmsnorm_default_options();
  const Arguments arguments;
  Tensor before = arguments.y;
  for (const Field& field : fields) {
    field.set(expected);
    ASSERT_EQ(RMSNORM_OK, rmsnorm_forward(&arguments.operands, &expected, nullptr));
    const Tensor y = arguments.y;
    EXPECT_FALSE(SameBits(before, y)) << field.end;
    before = y;

    const Placed cut(all, field.end);
    ASSERT_EQ(RMSNORM_OK, rmsnorm_forward(&arguments.operands, cut.As<rmsnorm_options>(), nullptr))
        << rmsnorm_error_message();
    EXPECT_TRUE(SameBits(y, arguments.y)) << field.end;

    // A module keeps them whole.
    rmsnorm_module* module;
    ASSERT_EQ(RMSNORM_OK,
              rmsnorm_module_create(&module, kD, RMSNORM_F32, cut.As<rmsnorm_options>(), nullptr));
    EXPECT_EQ(0, std::memcmp(&expected, rmsnorm_module_options(module), sizeof expected))
        << field.end;
    rmsnorm_module_destroy(module);
  }
}

TEST(SmallerOperands, LackOperands) {
  Arguments arguments;
  std::vector<float> rstd(kRows);
  const rmsnorm_view rstd_view = rmsnorm_vector(rstd.data(), RMSNORM_F32, kRows);
  rmsnorm_operands operands = arguments.operands;
  operands.rstd = &rstd_view;
  operands.dy = &arguments.y_view;  // forward does not take it
  const auto run = [&](size_t size) {
    rstd.assign(kRows, -1);
    return rmsnorm_forward(Placed(operands, size).As<rmsnorm_operands>(), nullptr, nullptr);
  };
  EXPECT_EQ(RMSNORM_ERROR_OPERAND, run(sizeof operands));
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_operands, dy))) << rmsnorm_error_message();
  EXPECT_GT(rstd[0], 0);
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_operands, rstd))) << rmsnorm_error_message();
  EXPECT_EQ(-1, rstd[0]);
  EXPECT_EQ(RMSNORM_ERROR_NULL, run(offsetof(rmsnorm_operands, y)));  // no output is left
  EXPECT_EQ(RMSNORM_ERROR_NULL, run(offsetof(rmsnorm_operands, x)));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("x: ")) << rmsnorm_error_message();
  EXPECT_EQ(RMSNORM_ERROR_NULL, run(offsetof(rmsnorm_operands, add_to)));

  // Flags come before all operands, and are not read of what ends before them.
  operands = arguments.gradient_operands;
  operands.add_to = UINT32_MAX;
  const auto run_backward = [&](size_t size) {
    return rmsnorm_backward(Placed(operands, size).As<rmsnorm_operands>(), nullptr, nullptr);
  };
  EXPECT_EQ(RMSNORM_ERROR_FLAGS, run_backward(sizeof operands));
  EXPECT_EQ(RMSNORM_ERROR_NULL, run_backward(offsetof(rmsnorm_operands, add_to)));
}

TEST(SmallerContexts, HaveTheDefaultsForWhatTheyLack) {
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = -1;
  int calls = 0;
  context.parallel_context = &calls;
  context.parallel_for = [](void* own, size_t count, rmsnorm_task task, void* state) {
    ++*static_cast<int*>(own);
    for (size_t i = 0; i < count; ++i) task(state, i);
  };
  context.target = "PDP11";
  Tensor x(RMSNORM_BF16, 1000, 1000);
  Random random(8);
  FillNormal(random, x);
  const rmsnorm_view view = x.view();
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = operands.y = &view;
  const auto run = [&](size_t size) {
    return rmsnorm_forward(&operands, nullptr, Placed(context, size).As<rmsnorm_context>());
  };
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, threads))) << rmsnorm_error_message();
  EXPECT_EQ(RMSNORM_ERROR_THREADS, run(offsetof(rmsnorm_context, parallel_for)));
  context.threads = 2;
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, parallel_for))) << rmsnorm_error_message();
  EXPECT_EQ(0, calls);
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, target))) << rmsnorm_error_message();
  EXPECT_EQ(1, calls);
  EXPECT_EQ(RMSNORM_ERROR_TARGET, run(sizeof context));
}

}  // namespace
}  // namespace rmsnorm::test
