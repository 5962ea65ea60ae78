// SPDX-License-Identifier: Apache-2.0
// Structs of other versions: a smaller one has defaults for its missing fields, and the extra bytes
// of a larger one must be zero. The library reads nothing beyond a struct's size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "argument_calls.h"
#include "cases/guarded_memory.h"
#include "cases/run.h"

namespace rmsnorm::test {
namespace {

// A struct in front of an inaccessible page.
class Placed {
 public:
  // The first `size` bytes of a struct, with zeros where it is shorter.
  Placed(const void* from, size_t known, size_t size) : data_(memory_.Before(size)) {
    std::memset(data_, 0, size);
    std::memcpy(data_, from, std::min(known, size));
    SetSize(static_cast<uint32_t>(size));
  }
  template <class Struct>
  Placed(const Struct& from, size_t size) : Placed(&from, sizeof from, size) {}

  void SetSize(uint32_t size) { std::memcpy(data_, &size, sizeof size); }
  uint8_t* Bytes() const { return data_; }
  template <class Struct>
  const Struct* As() const {
    return reinterpret_cast<const Struct*>(data_);
  }

 private:
  cases::GuardedMemory memory_;
  uint8_t* data_;
};

// ------------------------------------------------------------------------------ any struct

class GrowthTest : public testing::TestWithParam<const char*> {
 protected:
  using Run = std::function<rmsnorm_status(const Placed&)>;

  // Calls visit for every function that takes the struct, with its default value.
  void ForEachFunction(
      const std::function<void(const void* usual, size_t known, const Run& run)>& visit) const {
    for (const Function& function : Functions()) {
      if (!HasWords(function, {name_ == "operands" ? "call" : name_})) continue;
      SCOPED_TRACE(function.words);
      const Call call(function);
      const rmsnorm_operands operands = call.operands.Get();
      const auto run = [&](const Placed& placed) {
        Arguments arguments = {&operands, &call.c.options, &call.context};
        if (name_ == "operands") arguments.operands = placed.As<rmsnorm_operands>();
        if (name_ == "options") arguments.options = placed.As<rmsnorm_options>();
        if (name_ == "context") arguments.context = placed.As<rmsnorm_context>();
        return function.run(arguments);
      };
      if (name_ == "operands") visit(&operands, sizeof operands, run);
      if (name_ == "options") visit(&call.c.options, sizeof call.c.options, run);
      if (name_ == "context") visit(&call.context, sizeof call.context, run);
    }
  }
  void ExpectRefused(rmsnorm_status status) const {
    EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, status);
    EXPECT_NE(std::string::npos, std::string(rmsnorm_error_message()).find(name_ + ": size is "))
        << rmsnorm_error_message();
  }

  const std::string name_ = GetParam();
};

// A struct may be larger if its extra bytes are zero; any other byte is an error.
TEST_P(GrowthTest, IsTakenWhereWhatIsBeyondIsZero) {
  ForEachFunction([this](const void* usual, size_t known, const Run& run) {
    for (const size_t more : {0u, 8u, 64u, 256u}) {
      const Placed placed(usual, known, known + more);
      EXPECT_EQ(RMSNORM_OK, run(placed)) << rmsnorm_error_message();
      for (size_t i = known; i < known + more; ++i) {
        placed.Bytes()[i] = i % 2 == 0 ? 1 : 0x80;
        ExpectRefused(run(placed));
        placed.Bytes()[i] = 0;
      }
      EXPECT_EQ(RMSNORM_OK, run(placed)) << rmsnorm_error_message();
    }
  });
}

// The size field itself does not fit, or the size exceeds any version's.
TEST_P(GrowthTest, OfNoSizeIsRefused) {
  ForEachFunction([this](const void* usual, size_t known, const Run& run) {
    Placed placed(usual, known, known);
    for (const uint32_t size : {0u, 1u, 2u, 3u, 0x80000000u, UINT32_MAX}) {
      placed.SetSize(size);
      ExpectRefused(run(placed));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Structs, GrowthTest, testing::Values("operands", "options", "context"),
                         [](const auto& test) { return std::string(test.param); });

// ------------------------------------------------------------------------------ what is lacking

// These tests use this function: every option affects its results.
const Function& Forward() { return Functions()[0]; }

// Cuts after each field: the fields before count, and the others have their defaults.
TEST(SmallerOptions, HaveTheDefaultsForWhatTheyLack) {
  struct Field {
    size_t end;
    void (*set)(rmsnorm_options&);
  };
  // Each field changes the result.
#define RMSNORM_FIELD(name, value)                                                  \
  Field {                                                                           \
    offsetof(rmsnorm_options, name) + 4, [](rmsnorm_options& o) { o.name = value; } \
  }
  const Field fields[] = {RMSNORM_FIELD(size, sizeof(rmsnorm_options)),
                          RMSNORM_FIELD(eps, 0.5f),
                          RMSNORM_FIELD(eps_placement, RMSNORM_EPS_OUTSIDE),
                          RMSNORM_FIELD(rounding, RMSNORM_ROUND_BEFORE_WEIGHT),
                          RMSNORM_FIELD(residual_rounding, RMSNORM_RESIDUAL_UNROUNDED),
                          RMSNORM_FIELD(weight_offset, 1.0f),
                          RMSNORM_FIELD(divisor, 3.0f),
                          RMSNORM_FIELD(factor, 0.5f),
                          RMSNORM_FIELD(activation, RMSNORM_ACTIVATION_SIGMOID),
                          RMSNORM_FIELD(gate_rounding, RMSNORM_GATE_ROUNDED)};
#undef RMSNORM_FIELD
  rmsnorm_options all = rmsnorm_default_options();
  for (const Field& field : fields) field.set(all);
  Call call(Forward(), "x=bf16,residual=bf16,residual_out=bf16");
  const rmsnorm_operands operands = call.operands.Get();
  const auto run = [&](const rmsnorm_options* options) {
    EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&operands, options, nullptr)) << rmsnorm_error_message();
    return call.BytesOf(internal::kY);
  };
  rmsnorm_options expected = rmsnorm_default_options();
  std::string before;
  for (const Field& field : fields) {
    SCOPED_TRACE(field.end);
    field.set(expected);
    const std::string y = run(&expected);
    EXPECT_FALSE(before == y);
    before = y;
    const Placed cut(all, field.end);
    EXPECT_TRUE(y == run(cut.As<rmsnorm_options>()));
    // A module stores all options.
    rmsnorm_module* module;
    ASSERT_EQ(RMSNORM_OK,
              rmsnorm_module_create(&module, kD, RMSNORM_F32, cut.As<rmsnorm_options>(), nullptr));
    EXPECT_EQ(0, std::memcmp(&expected, rmsnorm_module_options(module), sizeof expected));
    rmsnorm_module_destroy(module);
  }
}

// A struct of zeros with size and eps means the defaults.
TEST(ZeroedStructs, AreTheDefaults) {
  rmsnorm_options options = {};
  options.size = sizeof options;
  options.eps = 1e-5f;
  const rmsnorm_options default_options = rmsnorm_default_options();
  EXPECT_EQ(0, std::memcmp(&default_options, &options, sizeof options));
  rmsnorm_context context = {};
  context.size = sizeof context;
  const rmsnorm_context default_context = rmsnorm_default_context();
  EXPECT_EQ(0, std::memcmp(&default_context, &context, sizeof context));
  const rmsnorm_options cpp_options = Options().get();
  EXPECT_EQ(0, std::memcmp(&cpp_options, &options, sizeof options));
  const rmsnorm_context cpp_context = Context().get();
  EXPECT_EQ(0, std::memcmp(&cpp_context, &context, sizeof context));

  for (const Function& function : Functions()) {
    if (!HasWords(function, {"plain"})) continue;
    SCOPED_TRACE(function.words);
    Call call(function);
    const rmsnorm_operands operands = call.operands.Get();
    const std::string before = call.Bytes();
    EXPECT_EQ(RMSNORM_OK, function.run({&operands, nullptr, nullptr})) << rmsnorm_error_message();
    const std::string expected = call.Bytes();
    EXPECT_FALSE(before == expected);
    // A factor of 0 counts as 1, and a divisor of 0 as the length of a row.
    for (const float factor : {0.0f, -0.0f, 1.0f}) {
      for (const float divisor : {0.0f, -0.0f, static_cast<float>(kD)}) {
        options.factor = factor;
        options.divisor = divisor;
        EXPECT_EQ(RMSNORM_OK, function.run({&operands, &options, &context}))
            << rmsnorm_error_message();
        EXPECT_TRUE(expected == call.Bytes()) << factor << " " << divisor;
      }
    }
    if (HasWords(function, {"backward"})) continue;  // backward gets rstd and needs no eps
    // For eps, 0 is a value and not the default.
    options.eps = 0;
    EXPECT_EQ(RMSNORM_OK, function.run({&operands, &options, &context}));
    EXPECT_FALSE(expected == call.Bytes());
    options.eps = 1e-5f;
  }
}

TEST(SmallerOperands, LackOperands) {
  Call call(Forward(), "q=none,scale=none,zero=none,gate=none,post_norm_weight=none,sums_out=none");
  call.Give(internal::kDx);  // forward does not take it
  const std::string unwritten = call.BytesOf(internal::kRstd);
  const auto run = [&](size_t size, bool backward = false) {
    const rmsnorm_operands operands = call.operands.Get();
    const Placed placed(operands, size);
    return backward ? rmsnorm_backward(placed.As<rmsnorm_operands>(), nullptr, nullptr)
                    : rmsnorm_forward(placed.As<rmsnorm_operands>(), nullptr, nullptr);
  };
  EXPECT_EQ(RMSNORM_ERROR_OPERAND, run(sizeof(rmsnorm_operands)));
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_operands, rstd))) << rmsnorm_error_message();
  EXPECT_TRUE(unwritten == call.BytesOf(internal::kRstd));
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_operands, dx))) << rmsnorm_error_message();
  EXPECT_FALSE(unwritten == call.BytesOf(internal::kRstd));
  EXPECT_EQ(RMSNORM_ERROR_NULL, run(offsetof(rmsnorm_operands, residual_out)));  // no output
  EXPECT_EQ(RMSNORM_ERROR_NULL, run(offsetof(rmsnorm_operands, x)));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("x: ")) << rmsnorm_error_message();
  EXPECT_EQ(RMSNORM_ERROR_NULL, run(offsetof(rmsnorm_operands, add_to)));
  // Flags come before all operands. If the struct ends before them, they are not read.
  call.operands.add_to = UINT32_MAX;
  for (const Operand o : {internal::kResidual, internal::kResidualOut, internal::kY,
                          internal::kRstd, internal::kBias}) {
    call.Remove(o);
  }
  call.Give(internal::kDy);
  EXPECT_EQ(RMSNORM_ERROR_OPERAND, run(sizeof(rmsnorm_operands), true));
  EXPECT_EQ(RMSNORM_ERROR_NULL, run(offsetof(rmsnorm_operands, add_to), true));
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
  std::vector<float> rows(1000 * 500, 1.5f);
  const View view(rows.data(), 1000, 500);
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = operands.y = view.get();
  const auto run = [&](size_t size) {
    return rmsnorm_forward(&operands, nullptr, Placed(context, size).As<rmsnorm_context>());
  };
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, threads))) << rmsnorm_error_message();
  EXPECT_EQ(RMSNORM_ERROR_OPTION, run(offsetof(rmsnorm_context, parallel_for)));
  context.threads = 2;
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, parallel_for))) << rmsnorm_error_message();
  EXPECT_EQ(0, calls);
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, target))) << rmsnorm_error_message();
  EXPECT_EQ(1, calls);
  EXPECT_EQ(RMSNORM_ERROR_TARGET, run(sizeof context));
}

}  // namespace
}  // namespace rmsnorm::test
