// SPDX-License-Identifier: Apache-2.0
// What surrounds calls: statuses and their texts, types, short forms, what prepared calls keep and
// what they read, errors in C++, merged dimensions.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "argument_call.h"
#include "cases/list.h"
#include "cases/prepared_call.h"
#include "cases/run.h"
#include "fixtures.h"

namespace rmsnorm::test {
namespace {

TEST(Status, DistinctTexts) {
  std::set<std::string> texts = {""};
  for (rmsnorm_status status = RMSNORM_OK; status <= RMSNORM_ERROR_DEVICE; ++status) {
    EXPECT_TRUE(texts.insert(rmsnorm_status_text(status)).second) << status;
  }
  for (const rmsnorm_status unknown : {-1, RMSNORM_ERROR_DEVICE + 1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(0u, texts.count(rmsnorm_status_text(unknown))) << unknown;
  }
}

TEST(Status, MessageAfterASuccess) {
  const std::string message =
      ArgumentCall(Find({"plain", "residual"}), "eps=-1").ExpectRefused(RMSNORM_ERROR_OPTION);
  ArgumentCall(Find({"plain", "residual"})).ExpectAccepted();
  EXPECT_EQ(message, rmsnorm_error_message());
}

TEST(Dtype, SizesAndNames) {
  const struct {
    rmsnorm_dtype dtype;
    size_t size;
    const char* name;
  } known[] = {{RMSNORM_F32, 4, "f32"},
               {RMSNORM_F16, 2, "f16"},
               {RMSNORM_BF16, 2, "bf16"},
               {RMSNORM_F64, 8, "f64"},
               {RMSNORM_I8, 1, "i8"}};
  for (const auto& [dtype, size, name] : known) {
    EXPECT_EQ(size, rmsnorm_dtype_size(dtype));
    EXPECT_STREQ(name, rmsnorm_dtype_name(dtype));
  }
  for (const rmsnorm_dtype unknown : {0, 6, -1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(0u, rmsnorm_dtype_size(unknown));
    EXPECT_EQ(nullptr, rmsnorm_dtype_name(unknown));
  }
}

// -------------------------------------------------------------------------------------- structs

// A struct of zeros with size and eps means the defaults, in C++, too, and so do options that end
// before eps.
TEST(Structs, Defaults) {
  rmsnorm_options options = {};
  options.size = sizeof options;
  options.eps = 1e-5f;
  rmsnorm_context context = {};
  context.size = sizeof context;
  rmsnorm_options smallest = options;
  smallest.size = sizeof smallest.size;
  smallest.eps = 1;
  rmsnorm_module* module = nullptr;
  ASSERT_EQ(RMSNORM_OK, rmsnorm_module_create(&module, kD, RMSNORM_F32, &smallest, nullptr));
  for (const rmsnorm_options& same :
       {rmsnorm_default_options(), Options().get(), *rmsnorm_module_options(module)}) {
    EXPECT_EQ(0, std::memcmp(&same, &options, sizeof options));
  }
  for (const rmsnorm_context& same : {rmsnorm_default_context(), Context().get()}) {
    EXPECT_EQ(0, std::memcmp(&same, &context, sizeof context));
  }
  rmsnorm_module_destroy(module);
}

// ----------------------------------------------------------------------------------- short forms

// Short forms equal rmsnorm_forward() with the same operands.
TEST(ShortForms, EqualForward) {
  for (const EntryPoint& entry : EntryPoints()) {
    if (!HasWords(entry, {"short"})) continue;
    EntryPoint full = entry;
    full.run = [](const Arguments& a) { return rmsnorm_forward(a.operands, a.options, a.context); };
    for (const std::string fields : {"eps=2", "eps=2,weight=none"}) {
      ArgumentCall expected(full, fields);
      ArgumentCall actual(entry, fields);
      expected.ExpectAccepted();
      actual.ExpectAccepted();
      EXPECT_TRUE(expected.Bytes() == actual.Bytes()) << entry.text;
    }
  }
}

// ------------------------------------------------------------------------------- prepared calls

// Neither operands nor what gradients are added to are read before the run, and sums start anew.
TEST(Prepared, OperandsAreReadByTheRun) {
  const cases::List list(R"(
forward,residual+gate+weight+bias+post_norm_weight=f32,rows=7,d=300,call=prepared
forward,x=bf16,weight+bias=f16,sums=f64,rows=2x3,d=300,weight_per=head,bias_per=row,call=prepared
backward,weight_per=head,weight_gap=5,dw=none,db=f32,rows=3x2,d=300,call=prepared
backward,db=f32,db_add=1,rows=5|300,d=300,threads=3,call=prepared
backward,x+dy=bf16,weight+dw=f16,weight_per+dw_per=head,rstd=f32,dw_add=1,rows=40x2,d=300,call=prepared
)");
  list.ForEach([](const cases::Calls& calls) {
    cases::Runner runner;
    runner.Set(calls);
    const cases::PreparedCall prepared(calls, runner.Fill(), cases::ContextOf(calls[0], nullptr));
    for (unsigned seed = 0; seed < 3; ++seed) {
      cases::Calls others = calls;
      others[0].seed += seed;
      runner.Set(others);
      runner.Fill();
      EXPECT_EQ(RMSNORM_OK, prepared.Run());
      EXPECT_EQ("", runner.FindFault()) << cases::Text(others);
    }
  });
}

// A module's weight may be set again.
TEST(Prepared, NewWeightOfAModule) {
  constexpr size_t kLength = 300;
  Random random(5);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, 3, kLength);
  Rows y(RMSNORM_F32, 3, kLength);
  Rows expected(RMSNORM_F32, 3, kLength);
  RmsNorm module(kLength);
  Prepared norm(module, NormOperands(x, nullptr, y));
  for (int repeat = 0; repeat < 2; ++repeat) {
    module.set_weight(ConstView(VectorOf(Draw(random, Values::kNormal, RMSNORM_F32, 1, kLength))));
    norm();
    module.forward(NormOperands(x, nullptr, expected));
    EXPECT_TRUE(SameBits(expected, y));
  }
}

TEST(Prepared, Move) {
  Random random(5);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, 2, kD);
  Rows y(RMSNORM_F32, 2, kD);
  Prepared first(NormOperands(x, nullptr, y));
  Prepared second = std::move(first);
  first = Prepared({});  // no calls
  first();
  second();
  first = std::move(second);
  Prepared& same = first;
  first = std::move(same);
  first();
  EXPECT_NE(0, Get(y, 1, 1));
  const Prepared third = std::move(first);
  EXPECT_THROW(first(), Error);
}

// ----------------------------------------------------------------------------------------- C++

void ExpectThrown(rmsnorm_status status, const std::string& message,
                  const std::function<void()>& run) {
  SCOPED_TRACE(message);
  try {
    run();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(status, error.status());
    EXPECT_TRUE(Begins(error.what(), message)) << error.what();
    // Null modules of several calls are found in C++.
    if (message.find("].module") != std::string::npos) return;
    EXPECT_STREQ(rmsnorm_error_message(), error.what());
  }
}

// No call takes a norm that was moved from for default options.
TEST(Cpp, Errors) {
  RmsNorm moved(kD);
  const RmsNorm module(std::move(moved));
  float memory[4][kD] = {};
  float* const data = memory[0];
  float* const null = nullptr;
  ForwardOperands forwards;
  forwards.x = {data, kD};
  const ForwardOperands without_y = forwards;
  forwards.y = {memory[1], kD};
  BackwardOperands backwards;
  backwards.x = backwards.dy = forwards.x;
  const BackwardOperands without_dx = backwards;
  backwards.dx = forwards.y;
  BackwardOperands alien = backwards;
  alien.weight = {memory[3], 1, kD};
  ForwardOperands others;
  others.x = forwards.x;
  others.rstd = {memory[2], 1};
  const View sum(memory[2], kD);
  const Call good = {&module, others}, bad = {&moved, forwards};
  const std::initializer_list<Call> begins_bad = {bad, good}, ends_bad = {good, bad};
  Options options;
  options.eps = -1;
  const Call of_options = {nullptr, forwards, options};
  Context context;
  context.threads = -1;
  const struct {
    rmsnorm_status status;
    std::string message;
    std::function<void()> call;
  } calls[] = {
      {RMSNORM_ERROR_NULL, "y: ", [&] { forward(without_y); }},
      {RMSNORM_ERROR_NULL, "y: ", [&] { module.forward(without_y); }},
      {RMSNORM_ERROR_NULL, "x: ", [&] { norm({}, {}, forwards.y); }},
      {RMSNORM_ERROR_NULL, "x: data", [&] { module.norm(null, data); }},
      {RMSNORM_ERROR_NULL, "residual: data", [&] { module.add_norm(data, null, data, data); }},
      {RMSNORM_ERROR_NULL, "dx: ", [&] { backward(without_dx); }},
      {RMSNORM_ERROR_NULL, "dx: ", [&] { module.backward(without_dx); }},
      {RMSNORM_ERROR_NULL, "dx: ", [&] { module.backward(data, data, null, null, null); }},
      {RMSNORM_ERROR_OPTION, "options: eps", [&] { forward(forwards, options); }},
      {RMSNORM_ERROR_OPTION, "options: eps", [&] { norm(forwards.x, {}, forwards.y, options); }},
      {RMSNORM_ERROR_OPTION, "options: eps",
       [&] { add_norm(forwards.x, forwards.x, {}, forwards.y, sum, options); }},
      {RMSNORM_ERROR_OPTION, "calls[0].options: eps", [&] { forward_all(&of_options, 1); }},
      {RMSNORM_ERROR_OPTION, "options: eps", [&] { RmsNorm(kD, options); }},
      {RMSNORM_ERROR_OPTION, "options: eps", [&] { backward(backwards, options); }},
      {RMSNORM_ERROR_OPTION, "context: threads", [&] { forward(forwards, {}, context); }},
      {RMSNORM_ERROR_OPTION, "context: threads", [&] { module.forward(forwards, context); }},
      {RMSNORM_ERROR_OPTION, "context: threads", [&] { module.backward(backwards, context); }},
      {RMSNORM_ERROR_SHAPE, "weight: ", [&] { backward(alien); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.forward(forwards); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.forward(forwards, Context()); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.backward(backwards); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.norm(data, data); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.add_norm(data, data, data, data); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.backward(data, data, null, data, null); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.set_weight(forwards.x); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.get_weight(forwards.y); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.reset_weight(); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.set_bias(forwards.x); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.set_post_norm_weight({}); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { moved.options(); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { forward_all(&bad, 1); }},
      {RMSNORM_ERROR_NULL, "calls[1].module: ", [&] { forward_all(ends_bad); }},
      {RMSNORM_ERROR_NULL, "calls[0].module: ", [&] { Prepared(begins_bad, {})(); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { Prepared(moved, forwards)(); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { Prepared(moved, forwards, Context())(); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { Prepared(moved, backwards)(); }},
      {RMSNORM_ERROR_NULL, "module: ", [&] { Prepared(moved, backwards, Context())(); }},
  };
  for (const auto& [status, message, call] : calls) ExpectThrown(status, message, call);
  for (const float value : memory[1]) EXPECT_EQ(0, value);
}

TEST(Cpp, WrongShapes) {
  float value = 1;
  const View one(&value, 1);
  const int64_t sizes[] = {3, -2};
  const std::pair<ConstView, std::string> wrong[] = {
      {ConstView(&value, {1, 1}, {1, 1, 1}), "x: 3 strides for 2 dimensions"},
      {ConstView(&value, {2, 16}, {32}), "x: 1 stride for 2 dimensions"},
      {ConstView(&value, {1}, {1, 1}), "x: 2 strides for 1 dimension"},
      {ConstView(&value, Dtype::f32, 0, sizes), "x: 0 dimensions; 1 to 8 are possible"},
      {ConstView(&value, std::initializer_list<Integer>{}), "x: 0 dimensions; 1 to 8"},
      {ConstView(&value, {1, 1, 1, 1, 1, 1, 1, 1, 1}), "x: 9 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, -1, sizes), "x: -1 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, 12, sizes), "x: 12 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, -1000, sizes), "x: -1000 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, int64_t{1} << 40, sizes),
       "x: 1099511627776 dimensions; 1 to 8 are possible"},
      {ConstView(&value, Dtype::f32, UINT64_MAX, sizes),
       "x: 18446744073709551615 dimensions; 1 to 8 are possible"},
      {ConstView(&value, -1), "x: -1 elements in dimension 0; a size is not negative"},
      {ConstView(&value, -3, 1), "x: -3 elements in dimension 0; a size is not negative"},
      {ConstView(&value, {0, -1, 1}), "x: -1 elements in dimension 1; a size is not negative"},
      {ConstView(&value, Dtype::f32, 2, sizes), "x: -2 elements in dimension 1"},
  };
  for (const auto& [view, message] : wrong) {
    EXPECT_FALSE(view.empty());
    ExpectThrown(RMSNORM_ERROR_SHAPE, message, [&, x = view] { norm(x, {}, one); });
  }
  const ConstView untyped(rmsnorm_view{});
  EXPECT_FALSE(untyped.empty());
  ExpectThrown(RMSNORM_ERROR_DTYPE, "x: ", [&] { norm(untyped, {}, one); });
  EXPECT_TRUE(ConstView().empty());
  EXPECT_TRUE(View().empty());
  EXPECT_EQ(nullptr, View().get());
}

// Ten dimensions of two tensors: x[2][3][1][4][2][1][1][5][1][2] is dense, and the other one has
// gaps after dimension 4 and repeats dimension 0.
TEST(MergeDims, GapsAndRepeats) {
  size_t shape[] = {2, 3, 1, 4, 2, 1, 1, 5, 1, 2};
  ptrdiff_t x[] = {240, 80, 9, 20, 10, 7, 7, 2, 7, 1};
  ptrdiff_t other[] = {0, 96, 9, 24, 12, 7, 7, 2, 7, 1};
  ptrdiff_t* const stride[] = {x, other};
  ASSERT_EQ(3, rmsnorm_merge_dims(10, shape, stride, 2));
  EXPECT_EQ((std::vector<size_t>{2, 24, 10}), std::vector<size_t>(shape, shape + 3));
  EXPECT_EQ((std::vector<ptrdiff_t>{240, 10, 1}), std::vector<ptrdiff_t>(x, x + 3));
  EXPECT_EQ((std::vector<ptrdiff_t>{0, 12, 1}), std::vector<ptrdiff_t>(other, other + 3));
}

TEST(MergeDims, SizeOneRepeatedAndFallingRows) {
  size_t shape[] = {1, 2, 3, 1};
  ptrdiff_t repeated[] = {5, 0, 0, 3};
  ptrdiff_t falling[] = {5, -12, -4, 3};
  ptrdiff_t* const stride[] = {repeated, falling};
  ASSERT_EQ(1, rmsnorm_merge_dims(4, shape, stride, 2));
  EXPECT_EQ(6u, shape[0]);
  EXPECT_EQ(0, repeated[0]);
  EXPECT_EQ(-4, falling[0]);
  shape[0] = 1;
  EXPECT_EQ(0, rmsnorm_merge_dims(1, shape, stride, 2));
  EXPECT_EQ(0, rmsnorm_merge_dims(0, nullptr, stride, 1));
}

TEST(MergeDims, Overflow) {
  constexpr size_t kSize = size_t{1} << 33;
  size_t shape[] = {kSize, 2, kSize};
  ptrdiff_t repeated[] = {0, 0, 0};
  ptrdiff_t* const stride[] = {repeated};
  ASSERT_EQ(2, rmsnorm_merge_dims(3, shape, stride, 1));
  EXPECT_EQ(2 * kSize, shape[0]);
  EXPECT_EQ(kSize, shape[1]);
}

}  // namespace
}  // namespace rmsnorm::test
