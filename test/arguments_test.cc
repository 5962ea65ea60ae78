// SPDX-License-Identifier: Apache-2.0
// Arguments other than operands that are refused: options, contexts, modules. With which status, a
// message that begins with the argument's name, and nothing written. And what looks odd but is
// allowed; statuses and their texts. Operands are in operands_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
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
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Arguments of one call, right as they are made; a test spoils one.
struct Arguments {
  Arguments() = default;
  Arguments(const Arguments&) = delete;  // the views point into it
  Arguments& operator=(const Arguments&) = delete;

  std::vector<float> memory = std::vector<float>(4 * kRows * kD, 1.5f);
  rmsnorm_view x = rmsnorm_rows(memory.data(), RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view y = rmsnorm_rows(memory.data() + kRows * kD, RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view residual = rmsnorm_rows(memory.data() + 2 * kRows * kD, RMSNORM_F32, kRows, kD, kD);
  rmsnorm_view weight = rmsnorm_vector(memory.data() + 3 * kRows * kD, RMSNORM_F32, kD);
  rmsnorm_options options = rmsnorm_default_options();
  rmsnorm_context context = rmsnorm_default_context();

  rmsnorm_operands Norm() const {
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.x = &x;
    operands.weight = &weight;
    operands.y = &y;
    return operands;
  }
};

struct Function {
  const char* name;
  rmsnorm_status (*run)(const Arguments&);
};

rmsnorm_status Forward(const Arguments& a) {
  const rmsnorm_operands operands = a.Norm();
  return rmsnorm_forward(&operands, &a.options, &a.context);
}
rmsnorm_status AddForward(const Arguments& a) {
  rmsnorm_operands operands = a.Norm();
  operands.residual = operands.residual_out = &a.residual;
  return rmsnorm_forward(&operands, &a.options, &a.context);
}
rmsnorm_status ForwardAll(const Arguments& a) {
  const rmsnorm_operands operands = a.Norm();
  const rmsnorm_call call = {nullptr, &operands, &a.options};
  return rmsnorm_forward_all(&call, 1, &a.context);
}
rmsnorm_status Backward(const Arguments& a) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = &a.x;
  operands.weight = &a.weight;
  operands.dy = operands.dx = &a.y;
  return rmsnorm_backward(&operands, &a.options, &a.context);
}
rmsnorm_status CreateModule(const Arguments& a) {
  rmsnorm_module* module = nullptr;
  const rmsnorm_status status =
      rmsnorm_module_create(&module, kD, RMSNORM_BF16, &a.options, &a.context);
  EXPECT_EQ(status == RMSNORM_OK, module != nullptr);
  rmsnorm_module_destroy(module);
  return status;
}
rmsnorm_status ModuleForward(const Arguments& a) {
  rmsnorm_operands operands = a.Norm();
  operands.weight = nullptr;
  return rmsnorm_module_forward(RmsNorm(kD).get(), &operands, &a.context);
}
rmsnorm_status ModuleBackward(const Arguments& a) {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = &a.x;
  operands.dy = operands.dx = &a.y;
  return rmsnorm_module_backward(RmsNorm(kD).get(), &operands, &a.context);
}

const std::vector<Function> kTakeOptions = {{"forward", Forward},
                                            {"forward with a residual", AddForward},
                                            {"forward_all", ForwardAll},
                                            {"backward", Backward},
                                            {"module_create", CreateModule}};
const std::vector<Function> kTakeContext = {{"forward", Forward},
                                            {"forward_all", ForwardAll},
                                            {"backward", Backward},
                                            {"create", CreateModule},
                                            {"module's forward", ModuleForward},
                                            {"module's backward", ModuleBackward}};

using Spoil = std::function<void(Arguments&)>;

// Refused by each function, with a message that begins with `name`, or with that after the call's.
void ExpectRefused(rmsnorm_status status, const std::string& name,
                   const std::vector<Function>& functions, const Spoil& spoil) {
  for (const Function& function : functions) {
    SCOPED_TRACE(function.name);
    Arguments arguments;
    spoil(arguments);
    const std::vector<float> before = arguments.memory;
    ASSERT_EQ(status, function.run(arguments)) << rmsnorm_error_message();
    EXPECT_EQ(before, arguments.memory) << "something was written";
    std::string message = rmsnorm_error_message();
    if (function.run == ForwardAll && message.find("calls[0].") == 0) message.erase(0, 9);
    EXPECT_EQ(0u, message.find(name)) << message;
    EXPECT_GT(message.size(), name.size() + 5) << message;
    EXPECT_EQ(std::string::npos, message.find('\n')) << message;
  }
}

void ExpectAccepted(const std::vector<Function>& functions, const Spoil& spoil) {
  for (const Function& function : functions) {
    SCOPED_TRACE(function.name);
    Arguments arguments;
    spoil(arguments);
    EXPECT_EQ(RMSNORM_OK, function.run(arguments)) << rmsnorm_error_message();
  }
}

TEST(Arguments, AreAcceptedUnspoilt) {
  ExpectAccepted(kTakeOptions, [](Arguments&) {});
  ExpectAccepted(kTakeContext, [](Arguments&) {});
}

// ----------------------------------------------------------------------- options and contexts

TEST(Options, EpsMustBeFiniteAndNotNegative) {
  for (const float eps : {-1e-45f, -1.0f, kNan, kInfinity, -kInfinity}) {
    ExpectRefused(RMSNORM_ERROR_EPS, "options: eps ", kTakeOptions,
                  [&](Arguments& a) { a.options.eps = eps; });
  }
  for (const float eps : {0.0f, -0.0f, 1e-45f, std::numeric_limits<float>::max()}) {
    ExpectAccepted(kTakeOptions, [&](Arguments& a) { a.options.eps = eps; });
  }
}

TEST(Options, UnknownEnumValuesAreRefused) {
  const auto refuse = [](int32_t rmsnorm_options::*field, int32_t values, rmsnorm_status status,
                         const std::string& name) {
    for (const int32_t value : {-1, values, INT32_MAX, INT32_MIN}) {
      ExpectRefused(status, "options: " + name + " ", kTakeOptions,
                    [&](Arguments& a) { a.options.*field = value; });
    }
  };
  const auto check = [&](int32_t rmsnorm_options::*field, int32_t values, rmsnorm_status status,
                         const std::string& name) {
    refuse(field, values, status, name);
    for (int32_t value = 0; value < values; ++value) {
      ExpectAccepted(kTakeOptions, [&](Arguments& a) { a.options.*field = value; });
    }
  };
  check(&rmsnorm_options::eps_placement, 3, RMSNORM_ERROR_EPS_PLACEMENT, "eps_placement");
  check(&rmsnorm_options::rounding, 3, RMSNORM_ERROR_ROUNDING, "rounding");
  check(&rmsnorm_options::residual_rounding, 2, RMSNORM_ERROR_ROUNDING, "residual_rounding");
  // Known ones are accepted beside a gate: Options.OfTheGateNeedAGate.
  refuse(&rmsnorm_options::activation, 2, RMSNORM_ERROR_GATE, "activation");
  refuse(&rmsnorm_options::gate_placement, 2, RMSNORM_ERROR_GATE, "gate_placement");
  refuse(&rmsnorm_options::gate_rounding, 2, RMSNORM_ERROR_GATE, "gate_rounding");
}

TEST(Options, FactorMustBeFinite) {
  for (const float factor : {kNan, kInfinity, -kInfinity}) {
    ExpectRefused(RMSNORM_ERROR_FACTOR, "options: factor ", kTakeOptions,
                  [&](Arguments& a) { a.options.factor = factor; });
  }
  for (const float factor : {0.0f, -1.0f, 1e-45f, std::numeric_limits<float>::max()}) {
    ExpectAccepted({{"forward", Forward}, {"forward_all", ForwardAll}, {"create", CreateModule}},
                   [&](Arguments& a) { a.options.factor = factor; });
    ExpectRefused(RMSNORM_ERROR_FACTOR, "options: factor ", {{"backward", Backward}},
                  [&](Arguments& a) { a.options.factor = factor; });
  }
}

// Every combination, in forward without a gate and with one, after a residual or not, and in
// backward: refused for which status, if it is, by a message that begins how.
TEST(Options, OfTheGateNeedAGate) {
  const Function with_gate = {"with a gate", [](const Arguments& a) {
                                rmsnorm_operands operands = a.Norm();
                                operands.gate = &a.x;
                                return rmsnorm_forward(&operands, &a.options, &a.context);
                              }};
  const Function with_both = {"with a gate and a residual", [](const Arguments& a) {
                                rmsnorm_operands operands = a.Norm();
                                operands.gate = &a.x;
                                operands.residual = operands.residual_out = &a.residual;
                                return rmsnorm_forward(&operands, &a.options, &a.context);
                              }};
  const std::vector<Function> without = {{"forward", Forward},
                                         {"forward with a residual", AddForward},
                                         {"forward_all", ForwardAll},
                                         {"backward", Backward}};
  for (const rmsnorm_activation activation : {RMSNORM_SILU, RMSNORM_SIGMOID}) {
    for (const rmsnorm_gate_placement placement : {RMSNORM_GATE_AFTER, RMSNORM_GATE_BEFORE}) {
      for (const rmsnorm_gate_rounding rounding :
           {RMSNORM_GATE_UNROUNDED, RMSNORM_GATE_ROUNDED_TO_X}) {
        const Spoil set = [&](Arguments& a) {
          a.options.activation = activation;
          a.options.gate_placement = placement;
          a.options.gate_rounding = rounding;
        };
        const bool before = placement == RMSNORM_GATE_BEFORE;
        const bool rounded = rounding == RMSNORM_GATE_ROUNDED_TO_X;
        const std::string first = activation != RMSNORM_SILU ? "activation"
                                  : before                   ? "gate_placement"
                                                             : "gate_rounding";
        if (activation == RMSNORM_SILU && !before && !rounded) {
          ExpectAccepted(without, set);
        } else {
          ExpectRefused(RMSNORM_ERROR_GATE, "options: " + first + " is given, ", without, set);
        }
        if (before && rounded) {
          ExpectRefused(RMSNORM_ERROR_GATE, "options: gate_rounding needs ", {with_gate}, set);
        } else {
          ExpectAccepted({with_gate}, set);
        }
        if (before) {
          ExpectRefused(RMSNORM_ERROR_OPERAND, "gate: before the norm ", {with_both}, set);
        } else {
          ExpectAccepted({with_both}, set);
        }
      }
    }
  }
}

TEST(Options, WeightOffsetMustBeFiniteAndHaveAWeight) {
  for (const float offset : {kNan, kInfinity, -kInfinity}) {
    ExpectRefused(RMSNORM_ERROR_WEIGHT_OFFSET, "options: weight_offset ", kTakeOptions,
                  [&](Arguments& a) { a.options.weight_offset = offset; });
  }
  for (const float offset : {1.0f, -1e-45f}) {
    ExpectAccepted(kTakeOptions, [&](Arguments& a) { a.options.weight_offset = offset; });
    Arguments a;
    a.options.weight_offset = offset;
    rmsnorm_operands operands = a.Norm();
    operands.weight = nullptr;
    EXPECT_EQ(RMSNORM_ERROR_WEIGHT_OFFSET, rmsnorm_forward(&operands, &a.options, nullptr));
    EXPECT_STREQ(("options: weight_offset is " + std::string(offset == 1 ? "1" : "-1.4013e-45") +
                  ", but there is no weight")
                     .c_str(),
                 rmsnorm_error_message());
    operands.dy = operands.dx = operands.y;
    operands.y = nullptr;
    EXPECT_EQ(RMSNORM_ERROR_WEIGHT_OFFSET, rmsnorm_backward(&operands, &a.options, nullptr));
    // A quantised output depends on one as y does, and a post-norm has one.
    int8_t q[kRows * kD];
    float numbers[kRows];
    const rmsnorm_view q_view = rmsnorm_rows(q, RMSNORM_I8, kRows, kD, kD);
    const rmsnorm_view scale = rmsnorm_vector(numbers, RMSNORM_F32, kRows);
    operands = rmsnorm_no_operands();
    operands.x = &a.x;
    operands.q = &q_view;
    operands.scale = &scale;
    EXPECT_EQ(RMSNORM_ERROR_WEIGHT_OFFSET, rmsnorm_forward(&operands, &a.options, nullptr));
    operands.post_norm_weight = &a.weight;
    EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&operands, &a.options, nullptr));
    // What does not depend on a weight needs none.
    float rstd[kRows];
    const rmsnorm_view rstd_view = rmsnorm_vector(rstd, RMSNORM_F32, kRows);
    operands = rmsnorm_no_operands();
    operands.x = &a.x;
    operands.rstd = &rstd_view;
    EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&operands, &a.options, nullptr));
  }
  Arguments a;
  a.options.weight_offset = -0.0f;
  rmsnorm_operands operands = a.Norm();
  operands.weight = nullptr;
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&operands, &a.options, nullptr));
}

TEST(Options, DivisorMustBeFiniteAndNotNegative) {
  for (const float divisor : {-1e-45f, -8.0f, kNan, kInfinity, -kInfinity}) {
    ExpectRefused(RMSNORM_ERROR_DIVISOR, "options: divisor ", kTakeOptions,
                  [&](Arguments& a) { a.options.divisor = divisor; });
  }
  for (const float divisor : {1e-45f, std::numeric_limits<float>::max()}) {
    ExpectAccepted(kTakeOptions, [&](Arguments& a) { a.options.divisor = divisor; });
  }
}

TEST(Context, ThreadsMustNotBeNegative) {
  for (const int32_t threads : {-1, INT32_MIN}) {
    ExpectRefused(RMSNORM_ERROR_THREADS, "context: threads ", kTakeContext,
                  [&](Arguments& a) { a.context.threads = threads; });
  }
  ExpectAccepted(kTakeContext, [](Arguments& a) { a.context.threads = INT32_MAX; });
}

TEST(Context, TargetMustBeKnown) {
  ExpectRefused(RMSNORM_ERROR_TARGET, "target: ", kTakeContext,
                [](Arguments& a) { a.context.target = "PDP11"; });
}

// Options of zero rows are checked as well.
TEST(Options, OfZeroRowsAreChecked) {
  ExpectRefused(RMSNORM_ERROR_EPS, "options: eps ", kTakeOptions, [](Arguments& a) {
    a.x.shape[0] = a.y.shape[0] = a.residual.shape[0] = 0;
    a.options.eps = -1;
  });
}

// ------------------------------------------------------------------------------------- module

// That of which a module is asked or told needs the module.
TEST(Module, MustNotBeNull) {
  Arguments a;
  rmsnorm_operands operands = a.Norm();
  float number = 0;
  const std::vector<std::function<rmsnorm_status()>> calls = {
      [] { return rmsnorm_module_create(nullptr, kD, RMSNORM_F32, nullptr, nullptr); },
      [&] { return rmsnorm_module_set_weight(nullptr, &a.weight); },
      [&] { return rmsnorm_module_get_weight(nullptr, &a.weight); },
      [] { return rmsnorm_module_reset_weight(nullptr); },
      [&] { return rmsnorm_module_forward(nullptr, &operands, nullptr); },
      [&] { return rmsnorm_module_backward(nullptr, &operands, nullptr); },
      [&] { return rmsnorm_module_forward_rows(nullptr, RMSNORM_F32, 1, &number, &number); },
      [&] {
        return rmsnorm_module_add_forward_rows(nullptr, RMSNORM_F32, 1, &number, &number, &number,
                                               &number);
      },
      [&] {
        return rmsnorm_module_backward_rows(nullptr, RMSNORM_F32, 1, &number, &number, nullptr,
                                            &number, nullptr);
      }};
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(RMSNORM_ERROR_NULL, calls[i]()) << i;
    EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("module: ")) << i;
  }
  rmsnorm_module_destroy(nullptr);
  EXPECT_EQ(0u, rmsnorm_module_d(nullptr));
  EXPECT_EQ(0, rmsnorm_module_dtype(nullptr));
  EXPECT_EQ(nullptr, rmsnorm_module_options(nullptr));
  EXPECT_STREQ("", rmsnorm_module_describe(nullptr));
}

TEST(Module, IsNotMadeOfWrongArguments) {
  rmsnorm_module* module;
  const auto expect_refused = [&](rmsnorm_status status, const std::string& name, size_t d,
                                  rmsnorm_dtype dtype) {
    module = reinterpret_cast<rmsnorm_module*>(&module);
    EXPECT_EQ(status, rmsnorm_module_create(&module, d, dtype, nullptr, nullptr));
    EXPECT_EQ(nullptr, module);
    EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find(name)) << rmsnorm_error_message();
  };
  for (const int32_t dtype : {0, int32_t{RMSNORM_F64}, 6, -1, INT32_MIN}) {
    expect_refused(RMSNORM_ERROR_DTYPE, "dtype: ", kD, dtype);
  }
  expect_refused(RMSNORM_ERROR_SHAPE, "d: ", 0, RMSNORM_F32);
  for (const size_t d : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 8}) {
    expect_refused(RMSNORM_ERROR_MEMORY, "d: ", d, RMSNORM_F32);
  }
}

TEST(Module, WeightMustBeARowOfItsElements) {
  const Function set = {"set_weight", [](const Arguments& a) {
                          RmsNorm norm(kD);
                          return rmsnorm_module_set_weight(const_cast<rmsnorm_module*>(norm.get()),
                                                           &a.weight);
                        }};
  const Function get = {"get_weight", [](const Arguments& a) {
                          return rmsnorm_module_get_weight(RmsNorm(kD).get(), &a.weight);
                        }};
  const std::vector<Function> both = {set, get};
  const auto expect_refused = [&](rmsnorm_status status,
                                  const std::function<void(rmsnorm_view&)>& spoil) {
    ExpectRefused(status, "weight: ", both, [&](Arguments& a) { spoil(a.weight); });
  };
  ExpectAccepted(both, [](Arguments&) {});
  expect_refused(RMSNORM_ERROR_NULL, [](rmsnorm_view& view) { view.data = nullptr; });
  for (const int32_t dtype : {0, int32_t{RMSNORM_F64}, 6, -1}) {
    expect_refused(RMSNORM_ERROR_DTYPE, [&](rmsnorm_view& view) { view.dtype = dtype; });
  }
  for (const int32_t ndim : {0, -1, 2, 9}) {
    expect_refused(RMSNORM_ERROR_SHAPE, [&](rmsnorm_view& view) {
      view = rmsnorm_rows(view.data, RMSNORM_F32, 1, kD, kD);
      view.ndim = ndim;
    });
  }
  for (const size_t d : {size_t{0}, kD - 1, kD + 1}) {
    expect_refused(RMSNORM_ERROR_SHAPE, [&](rmsnorm_view& view) { view.shape[0] = d; });
  }
  expect_refused(RMSNORM_ERROR_STRIDE, [](rmsnorm_view& view) { view.stride[0] = 2; });
  expect_refused(RMSNORM_ERROR_ALIGNMENT,
                 [](rmsnorm_view& view) { view.data = static_cast<char*>(view.data) + 2; });
  RmsNorm norm(kD);
  EXPECT_EQ(RMSNORM_ERROR_NULL,
            rmsnorm_module_set_weight(const_cast<rmsnorm_module*>(norm.get()), nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_module_get_weight(norm.get(), nullptr));
}

// A refused weight leaves the one before.
TEST(Module, RefusedWeightChangesNothing) {
  RmsNorm norm(2);
  const float weight[] = {3, 4};
  norm.set_weight({weight, 2});
  EXPECT_THROW(norm.set_weight({weight, 1}), Error);
  float kept[2];
  norm.get_weight({kept, 2});
  EXPECT_EQ(3, kept[0]);
  EXPECT_EQ(4, kept[1]);
}

// ------------------------------------------------------------------------------------- memory

// Rows so long that no memory holds their sums: said before anything is written. The views span
// addresses that are never touched.
TEST(Memory, ThatIsMissingIsAnError) {
  const size_t d = SIZE_MAX / 64;
  char* const low = reinterpret_cast<char*>(4096);
  const rmsnorm_view x = rmsnorm_vector(low, RMSNORM_BF16, d);
  const rmsnorm_view other = rmsnorm_vector(low + 8 * d, RMSNORM_BF16, d);
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = operands.dy = &x;
  operands.dw = &other;
  EXPECT_EQ(RMSNORM_ERROR_MEMORY, rmsnorm_backward(&operands, nullptr, nullptr));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("weight: ")) << rmsnorm_error_message();
  operands = rmsnorm_no_operands();
  operands.x = operands.weight = &x;
  operands.y = &other;
  EXPECT_EQ(RMSNORM_ERROR_MEMORY, rmsnorm_forward(&operands, nullptr, nullptr));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("weight: ")) << rmsnorm_error_message();
}

// ---------------------------------------------------------------------------- statuses, dtypes

TEST(Status, EachHasATextOfItsOwn) {
  std::vector<std::string> texts;
  for (rmsnorm_status status = RMSNORM_OK; status <= RMSNORM_ERROR_GATE; ++status) {
    const std::string text = rmsnorm_status_text(status);
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(texts.end(), std::find(texts.begin(), texts.end(), text)) << text;
    texts.push_back(text);
  }
  for (const rmsnorm_status unknown : {-1, RMSNORM_ERROR_GATE + 1, INT32_MAX, INT32_MIN}) {
    const std::string text = rmsnorm_status_text(unknown);
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(texts.end(), std::find(texts.begin(), texts.end(), text)) << text;
  }
}

TEST(Status, AMessageStaysUntilTheNextFailure) {
  Arguments a;
  a.options.eps = -1;
  EXPECT_EQ(RMSNORM_ERROR_EPS, Forward(a));
  const std::string message = rmsnorm_error_message();
  a.options.eps = 1;
  EXPECT_EQ(RMSNORM_OK, Forward(a));
  EXPECT_EQ(message, rmsnorm_error_message());
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(4u, rmsnorm_dtype_size(RMSNORM_F32));
  EXPECT_EQ(2u, rmsnorm_dtype_size(RMSNORM_F16));
  EXPECT_EQ(2u, rmsnorm_dtype_size(RMSNORM_BF16));
  EXPECT_EQ(8u, rmsnorm_dtype_size(RMSNORM_F64));
  EXPECT_EQ(1u, rmsnorm_dtype_size(RMSNORM_I8));
  EXPECT_STREQ("f32", rmsnorm_dtype_name(RMSNORM_F32));
  EXPECT_STREQ("f16", rmsnorm_dtype_name(RMSNORM_F16));
  EXPECT_STREQ("bf16", rmsnorm_dtype_name(RMSNORM_BF16));
  EXPECT_STREQ("f64", rmsnorm_dtype_name(RMSNORM_F64));
  EXPECT_STREQ("i8", rmsnorm_dtype_name(RMSNORM_I8));
  for (const rmsnorm_dtype unknown : {0, 6, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(0u, rmsnorm_dtype_size(unknown));
    EXPECT_EQ(nullptr, rmsnorm_dtype_name(unknown));
  }
}

// ----------------------------------------------------------------------------------- short forms

// They are rmsnorm_forward() with the operands named.
TEST(ShortForms, GiveWhatForwardGives) {
  for (const bool weighted : {false, true}) {
    Arguments a;
    Arguments expected;
    rmsnorm_operands operands = expected.Norm();
    if (!weighted) operands.weight = nullptr;
    ASSERT_EQ(RMSNORM_OK, rmsnorm_forward(&operands, nullptr, nullptr));
    ASSERT_EQ(RMSNORM_OK, rmsnorm_norm(&a.x, weighted ? &a.weight : nullptr, &a.y, nullptr));
    EXPECT_EQ(expected.memory, a.memory);
    operands.residual = operands.residual_out = &expected.residual;
    ASSERT_EQ(RMSNORM_OK, rmsnorm_forward(&operands, &a.options, nullptr));
    ASSERT_EQ(RMSNORM_OK, rmsnorm_add_norm(&a.x, &a.residual, weighted ? &a.weight : nullptr,
                                           &a.residual, &a.y, &a.options));
    EXPECT_EQ(expected.memory, a.memory);
  }
  Arguments a;
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_norm(nullptr, nullptr, &a.y, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_norm(&a.x, nullptr, nullptr, nullptr));
  a.options.eps = -1;
  EXPECT_EQ(RMSNORM_ERROR_EPS, rmsnorm_norm(&a.x, nullptr, &a.y, &a.options));
  EXPECT_EQ(RMSNORM_ERROR_EPS,
            rmsnorm_add_norm(&a.x, &a.residual, nullptr, &a.residual, &a.y, &a.options));
}

// ----------------------------------------------------------------------------------------- C++

void ExpectThrown(rmsnorm_status status, const std::function<void()>& run) {
  try {
    run();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(status, error.status());
    EXPECT_STREQ(rmsnorm_error_message(), error.what());
  }
}

TEST(Cpp, ThrowsWhatTheCInterfaceSays) {
  float memory[4][kD] = {};
  const ConstView x(memory[0], kD);
  const View y(memory[1], kD);
  ForwardOperands operands;
  operands.x = x;
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { forward(operands); });
  operands.y = y;
  Options options;
  options.eps = -1;
  Context context;
  context.threads = -1;
  const RmsNorm module(kD);
  ExpectThrown(RMSNORM_ERROR_EPS, [&] { forward(operands, options); });
  ExpectThrown(RMSNORM_ERROR_THREADS, [&] { forward(operands, {}, context); });
  ExpectThrown(RMSNORM_ERROR_EPS, [&] { norm(x, {}, y, options); });
  ExpectThrown(RMSNORM_ERROR_EPS, [&] { add_norm(x, x, {}, y, View(memory[2], kD), options); });
  ExpectThrown(RMSNORM_ERROR_EPS, [&] { forward_all({{nullptr, operands, options}}); });
  ExpectThrown(RMSNORM_ERROR_EPS, [&] { RmsNorm(kD, options); });
  ExpectThrown(RMSNORM_ERROR_THREADS, [&] { module.forward(operands, context); });
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { module.forward(ForwardOperands()); });
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { module.forward<float>(nullptr, memory[1]); });
  ExpectThrown(RMSNORM_ERROR_NULL,
               [&] { module.add_forward<float>(memory[0], nullptr, memory[1], memory[2]); });
  ExpectThrown(RMSNORM_ERROR_NULL,
               [&] { module.backward<float>(memory[0], memory[1], nullptr, nullptr, nullptr); });

  BackwardOperands gradients;
  gradients.x = x;
  gradients.dy = y;
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { backward(gradients); });
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { module.backward(gradients); });
  gradients.dx = y;
  ExpectThrown(RMSNORM_ERROR_EPS, [&] { backward(gradients, options); });
  ExpectThrown(RMSNORM_ERROR_THREADS, [&] { module.backward(gradients, context); });
  gradients.weight = {memory[3], 1, kD};
  ExpectThrown(RMSNORM_ERROR_SHAPE, [&] { backward(gradients); });
}

TEST(Cpp, ViewsOfWrongShapesAreRefused) {
  float value = 1;
  const View one(&value, 1);
  // More or fewer strides than dimensions; no dimension; too many.
  for (const ConstView& view :
       {ConstView(&value, {1, 1}, {1, 1, 1}), ConstView(&value, {1, 1}, {1}),
        ConstView(&value, Dtype::f32, 0, nullptr),
        ConstView(&value, std::initializer_list<size_t>{}),
        ConstView(&value, {1, 1, 1, 1, 1, 1, 1, 1, 1})}) {
    EXPECT_FALSE(view.empty());
    ExpectThrown(RMSNORM_ERROR_SHAPE, [&] { norm(view, {}, one); });
  }
  EXPECT_TRUE(ConstView().empty());
  EXPECT_TRUE(View().empty());
  EXPECT_EQ(nullptr, View().get());
  ExpectThrown(RMSNORM_ERROR_NULL, [&] { norm({}, {}, one); });
}

}  // namespace
}  // namespace rmsnorm::test
