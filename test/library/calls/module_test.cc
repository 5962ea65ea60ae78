// SPDX-License-Identifier: Apache-2.0
// The module keeps a weight; its calls equal plain calls with that weight.
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cstring>
#include <functional>
#include <locale>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "allocation_counter.h"
#include "cases/guarded_memory.h"
#include "cases/run.h"
#include "executor.h"
#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

using cases::Operand;

constexpr size_t kD = 300;

Dtype DtypeOfCode(rmsnorm_dtype dtype) { return static_cast<Dtype>(dtype); }

Rows Weight(const RmsNorm& norm, rmsnorm_dtype dtype) {
  Rows weight(dtype, 1, kD);
  norm.get_weight(View(VectorOf(weight)));
  return weight;
}

Rows Ones(rmsnorm_dtype dtype) {
  Rows ones(dtype, 1, kD);
  for (size_t j = 0; j < kD; ++j) Set(ones, 0, j, 1);
  return ones;
}

TEST(Module, BeginsWithAWeightOfOnes) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    const RmsNorm norm(kD, 1e-5f, DtypeOfCode(dtype));
    for (const rmsnorm_dtype read : kDtypes) EXPECT_TRUE(SameBits(Ones(read), Weight(norm, read)));
  }
}

// The weight is rounded to the module's type when it is set, and to the output's type when it is
// read.
TEST(Module, KeepsItsWeightInItsType) {
  Random random(71);
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const rmsnorm_dtype from : kDtypes) {
      Rows weight(from, 1, kD);
      cases::Fill(random, Values::kSpecial, 0, weight);
      RmsNorm norm(kD, 1e-5f, DtypeOfCode(dtype));
      norm.set_weight(ConstView(VectorOf(weight)));
      for (const rmsnorm_dtype read : kDtypes) {
        Rows expected(read, 1, kD);
        for (size_t j = 0; j < kD; ++j) Set(expected, 0, j, RoundTo(dtype, Get(weight, 0, j)));
        EXPECT_TRUE(SameBits(expected, Weight(norm, read)))
            << rmsnorm_dtype_name(from) << " kept as " << rmsnorm_dtype_name(dtype);
      }
    }
  }
}

TEST(Module, KeepsACopyOfItsWeight) {
  Rows weight = Ones(RMSNORM_F32);
  Set(weight, 0, 5, 2);
  const Rows before = weight;
  RmsNorm norm(kD);
  norm.set_weight(ConstView(VectorOf(weight)));
  Set(weight, 0, 5, 3);
  EXPECT_TRUE(SameBits(before, Weight(norm, RMSNORM_F32)));
}

// Weights lie next to inaccessible pages.
TEST(Module, TouchesNothingBesideAWeight) {
  cases::GuardedMemory memory;
  for (size_t d = 1; d <= 5000; d += d < 300 ? 1 : 997) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      RmsNorm norm(d, 1e-5f, DtypeOfCode(dtype));
      for (const rmsnorm_dtype of_weight : kDtypes) {
        const size_t bytes = d * rmsnorm_dtype_size(of_weight);
        for (void* const data : {memory.After(bytes), memory.Before(bytes)}) {
          std::memset(data, 0, bytes);
          const View weight(rmsnorm_vector(data, of_weight, d));
          norm.set_weight(weight);
          norm.get_weight(weight);
        }
      }
    }
  }
}

TEST(Module, CanBeReset) {
  Random random(73);
  Rows weight(RMSNORM_F32, 1, kD);
  cases::Fill(random, Values::kNormal, 0, weight);
  for (const rmsnorm_dtype dtype : kDtypes) {
    RmsNorm norm(kD, 1e-5f, DtypeOfCode(dtype));
    norm.set_weight(ConstView(VectorOf(weight)));
    norm.reset_weight();
    EXPECT_TRUE(SameBits(Ones(dtype), Weight(norm, dtype)));

    Rows x(RMSNORM_F32, 1, kD);
    cases::Fill(random, Values::kNormal, 0, x);
    Rows expected(RMSNORM_F32, 1, kD);
    forward(NormOperands(x, nullptr, expected));
    Rows y(RMSNORM_F32, 1, kD);
    norm.forward(NormOperands(x, nullptr, y));
    EXPECT_TRUE(SameBits(expected, y));
  }
}

// ----------------------------------------------------------------- a bias and a post-norm weight

using Setter = void (RmsNorm::*)(const ConstView&);

// Each vector that a module may hold beside its weight: how it is set, and the operand.
const std::pair<Setter, ConstView ForwardOperands::*> kVectors[] = {
    {&RmsNorm::set_bias, &ForwardOperands::bias},
    {&RmsNorm::set_post_norm_weight, &ForwardOperands::post_norm_weight}};

// Vectors are rounded to the module's type, of whatever type they are, and copied. A second one
// replaces the first one, and an empty one removes it.
TEST(Module, KeepsItsVectorsInItsType) {
  Random random(74);
  Rows x(RMSNORM_BF16, 5, kD);
  cases::Fill(random, Values::kNormal, 0, x);
  Options options;
  options.weight_offset = 0.5f;
  for (const auto& [set, operand] : kVectors) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      RmsNorm norm(kD, options, DtypeOfCode(dtype));
      for (const rmsnorm_dtype from : kDtypes) {
        Rows vector(from, 1, kD);
        cases::Fill(random, Values::kSpecial, 0, vector);
        Rows rounded(RMSNORM_F32, 1, kD);
        for (size_t j = 0; j < kD; ++j) Set(rounded, 0, j, RoundTo(dtype, Get(vector, 0, j)));
        const Rows ones = Ones(RMSNORM_F32);
        Rows expected(RMSNORM_F32, 5, kD);
        ForwardOperands operands = NormOperands(x, &ones, expected);
        operands.*operand = ConstView(VectorOf(rounded));
        forward(operands, options);

        (norm.*set)(ConstView(VectorOf(vector)));
        cases::Fill(random, Values::kNormal, 0, vector);
        Rows y(RMSNORM_F32, 5, kD);
        norm.forward(NormOperands(x, nullptr, y));
        EXPECT_TRUE(SameBits(expected, y))
            << rmsnorm_dtype_name(from) << " kept as " << rmsnorm_dtype_name(dtype);
      }
      Rows expected(RMSNORM_F32, 5, kD);
      RmsNorm(kD, options).forward(NormOperands(x, nullptr, expected));
      (norm.*set)({});
      Rows y(RMSNORM_F32, 5, kD);
      norm.forward(NormOperands(x, nullptr, y));
      EXPECT_TRUE(SameBits(expected, y));
    }
  }
}

// A refused vector leaves the previous one, and the weight is set apart from it.
TEST(Module, KeepsItsVectorsBesideOtherCalls) {
  Random random(75);
  Rows x(RMSNORM_F32, 1, kD);
  cases::Fill(random, Values::kNormal, 0, x);
  for (const auto& [set, operand] : kVectors) {
    RmsNorm norm(kD);
    (norm.*set)(ConstView(VectorOf(x)));
    Rows before(RMSNORM_F32, 1, kD);
    norm.forward(NormOperands(x, nullptr, before));
    const float short_vector[2] = {};
    EXPECT_THROW((norm.*set)({short_vector, 2}), Error);
    norm.set_weight(ConstView(VectorOf(x)));
    norm.reset_weight();
    Rows after(RMSNORM_F32, 1, kD);
    norm.forward(NormOperands(x, nullptr, after));
    EXPECT_TRUE(SameBits(before, after));
  }
}

// Gradients do not depend on a bias.
TEST(Module, WithABiasHasTheSameGradients) {
  Random random(76);
  Rows x(RMSNORM_BF16, 20, kD);
  cases::Fill(random, Values::kNormal, 0, x);
  const auto* const in = reinterpret_cast<const bf16*>(x.row(0));
  RmsNorm norm(kD);
  for (const size_t rows : Sizes{1, 20}) {  // directly and by views
    const auto gradients = [&] {
      std::vector<float> all(2 * kD);
      Rows dx(RMSNORM_BF16, rows, kD);
      norm.backward(in, in, nullptr, reinterpret_cast<bf16*>(dx.row(0)), all.data(), rows);
      BackwardOperands operands;
      operands.x = operands.dy = {in, rows, kD};
      operands.db = {&all[kD], kD};
      norm.backward(operands);
      return std::pair{all, dx};
    };
    norm.set_bias({});
    const auto expected = gradients();
    norm.set_bias(ConstView(VectorOf(Draw(random, Values::kNormal, RMSNORM_BF16, 1, kD))));
    const auto actual = gradients();
    EXPECT_EQ(expected.first, actual.first);
    EXPECT_TRUE(SameBits(expected.second, actual.second));
  }
}

#ifdef __GLIBC__  // whose malloc() a program can replace

TEST(Module, IsAsBeforeWhereThereIsNoMemory) {
  const std::vector<float> vector(kD, 0.5f);
  const ConstView view(vector.data(), kD);
  for (const auto& [set, operand] : kVectors) {
    RmsNorm norm(kD);
    const auto status = [&, set_vector = set] {
      FailAligned(true);
      rmsnorm_status of_call = RMSNORM_OK;
      try {
        (norm.*set_vector)(view);
      } catch (const Error& error) {
        of_call = error.status();
      }
      FailAligned(false);
      return of_call;
    };
    const auto result = [&] {
      std::vector<float> y(kD);
      norm.norm(vector.data(), y.data());
      return y;
    };
    const std::vector<float> before = result();
    EXPECT_EQ(RMSNORM_ERROR_MEMORY, status());
    EXPECT_EQ(before, result());
    (norm.*set)(view);
    EXPECT_EQ(RMSNORM_OK, status()) << "memory that the module has already";
  }
}

#endif  // __GLIBC__

TEST(Module, SaysWhatItIsMadeOf) {
  Options options;
  options.eps = 0.25f;
  options.eps_placement = EpsPlacement::outside;
  options.rounding = Rounding::inverse;
  options.residual_rounding = ResidualRounding::unrounded;
  options.weight_offset = 1;
  options.divisor = 7;
  options.factor = 0.5f;
  const RmsNorm norm(kD, options, Dtype::f16);
  EXPECT_EQ(kD, norm.d());
  EXPECT_EQ(Dtype::f16, norm.dtype());
  const rmsnorm_options expected = options.get();
  const rmsnorm_options actual = norm.options().get();
  EXPECT_EQ(0, std::memcmp(&expected, &actual, sizeof expected));
  const rmsnorm_options defaults = rmsnorm_default_options();
  rmsnorm_module* module;
  ASSERT_EQ(RMSNORM_OK, rmsnorm_module_create(&module, 5, RMSNORM_BF16, nullptr, nullptr));
  EXPECT_EQ(0, std::memcmp(&defaults, rmsnorm_module_options(module), sizeof defaults));
  EXPECT_EQ(RMSNORM_BF16, rmsnorm_module_dtype(module));
  EXPECT_EQ(5u, rmsnorm_module_d(module));
  rmsnorm_module_destroy(module);
}

// ------------------------------------------------------------------------------------- contexts

Context Counting(CountingExecutor& executor) {
  Context context;
  context.threads = 2;
  executor.SetIn(context);
  return context;
}

// Calls without a context run in the module's own; other calls run in the context they pass.
TEST(Module, RunsInItsContextOrInThatOfTheCall) {
  CountingExecutor own;
  CountingExecutor others;
  const RmsNorm norm(kD, {}, Dtype::f32, Counting(own));
  Rows x(RMSNORM_BF16, 1000, kD);
  Random random(82);
  cases::Fill(random, Values::kMixed, 0, x);
  Rows dw(RMSNORM_BF16, 1, kD);
  Rows y(RMSNORM_BF16, 1000, kD);
  const ForwardOperands operands = NormOperands(x, nullptr, y);
  BackwardOperands gradients;
  gradients.dy = gradients.x = ConstView(ViewOf(x));
  gradients.dw = View(VectorOf(dw));
  const auto was_called = [](CountingExecutor& executor) {
    return std::exchange(executor.calls, 0) > 0;
  };

  norm.forward(operands);
  EXPECT_TRUE(was_called(own));
  norm.backward(gradients);
  EXPECT_TRUE(was_called(own));
  const bf16* const in = reinterpret_cast<const bf16*>(x.row(0));
  bf16* const out = reinterpret_cast<bf16*>(y.row(0));
  float sums_of_dw[kD];
  norm.norm(in, out, 1000);
  EXPECT_TRUE(was_called(own));
  norm.add_norm(in, in, reinterpret_cast<bf16*>(Rows(x).row(0)), out, 1000);
  EXPECT_TRUE(was_called(own));
  norm.backward(in, in, nullptr, out, sums_of_dw, 1000);
  EXPECT_TRUE(was_called(own));

  norm.forward(operands, Counting(others));
  EXPECT_TRUE(was_called(others));
  norm.backward(gradients, Counting(others));
  EXPECT_TRUE(was_called(others));
  norm.norm(in, out, 1000, nullptr, Counting(others));
  EXPECT_TRUE(was_called(others));
  norm.add_norm(in, in, reinterpret_cast<bf16*>(Rows(x).row(0)), out, 1000, nullptr,
                Counting(others));
  EXPECT_TRUE(was_called(others));
  norm.backward(in, in, nullptr, out, sums_of_dw, 1000, Counting(others));
  EXPECT_TRUE(was_called(others));
  norm.forward(operands, Context());
  norm.backward(gradients, Context());
  forward_all({{&norm, operands}}, Counting(others));
  EXPECT_TRUE(was_called(others));
  EXPECT_FALSE(was_called(own));
}

// The text of a target belongs to the caller, and may disappear.
TEST(Module, KeepsItsTarget) {
  std::string name = kReference;
  const RmsNorm norm(kD, {}, Dtype::f32, OnTarget(name));
  name = "PDP11....";
  const float x[kD] = {1, 2, 3};
  float y[kD];
  norm.norm(x, y);
  EXPECT_GT(y[2], y[1]);
  EXPECT_EQ("RmsNorm(300, eps=1e-05, f32, target=reference)", norm.description());
}

// ----------------------------------------------------------------------------------- dense rows

// A call of a function for dense rows, and the same call by views, on copies of a piece of memory.
class DenseCall {
 public:
  DenseCall(const std::string& line, bool has_f32_stream)
      : c_(cases::Parse(line)), has_f32_stream_(has_f32_stream) {
    internal::ForEachOperand(c_.Given(), [&](Operand o) {
      const bool is_held = (cases::HeldByModule(c_) & cases::SetOf(o)) != 0;
      if (!is_held) places.emplace(o, kPlace * (1 + places.size()));
    });
  }

  // Status, the first word of the message, and all bytes must be equal. Returns the status.
  rmsnorm_status ExpectSameAsViews(rmsnorm_dtype dtype, size_t rows) {
    c_.rows = {rows};
    Rows by_rows = memory_;
    Rows by_views = memory_;
    const rmsnorm_status expected = Make(cases::Function::kModule, dtype, rows, by_views);
    const std::string message = rmsnorm_error_message();
    EXPECT_EQ(expected, Make(cases::Function::kRows, dtype, rows, by_rows));
    if (expected != RMSNORM_OK) {
      const std::string actual = rmsnorm_error_message();
      EXPECT_EQ(message.substr(0, message.find(' ')), actual.substr(0, actual.find(' ')));
      EXPECT_TRUE(SameBits(memory_, by_rows)) << "something was written";
    }
    EXPECT_TRUE(SameBits(by_views, by_rows));
    return expected;
  }

  static constexpr size_t kPlace = 1024;
  static constexpr size_t kNone = SIZE_MAX;
  static constexpr size_t kShort = 8;  // elements of a row

  // Bytes from the start of the memory to each operand, or kNone for a null pointer.
  std::map<Operand, size_t> places;

 private:
  rmsnorm_status Make(cases::Function function, rmsnorm_dtype dtype, size_t rows, Rows& memory) {
    c_.function = function;
    cases::CallOperands all;
    internal::ForEachOperand(cases::HeldByModule(c_) & c_.Given(), [&](Operand o) {
      all.Set(o, rmsnorm_vector(held_, RMSNORM_F32, kShort));
    });
    for (const auto& [o, place] : places) {
      // Without rows, a null dx is valid memory.
      const bool is_optional =
          o == internal::kRstd || o == internal::kDw || (o == internal::kDx && rows > 0);
      if (place == kNone && is_optional) continue;
      void* const data = place == kNone ? nullptr : memory.row(0) + place;
      const bool is_stream = o == internal::kResidual || o == internal::kResidualOut;
      all.Set(o, o == internal::kRstd ? rmsnorm_vector(data, RMSNORM_F32, rows)
                 : o == internal::kDw
                     ? rmsnorm_vector(data, RMSNORM_F32, kShort)
                     : rmsnorm_rows(data, has_f32_stream_ && is_stream ? RMSNORM_F32 : dtype, rows,
                                    kShort, kShort));
    }
    return cases::MakeCalls({c_}, {all}, nullptr);
  }

  cases::Case c_;
  const bool has_f32_stream_;
  const float held_[kShort] = {1, 2, 3, 4, 5, 6, 7, 8};
  Random random_{86};
  const Rows memory_ = Draw(random_, Values::kNormal, RMSNORM_F32, 1, 6 * kPlace / sizeof(float));
};

// Functions for dense rows skip the checks of other calls, but must refuse the same arguments.
TEST(DenseRows, AreRefusedAsViewsAre) {
  const std::string add = "forward,x+y+residual+residual_out=f32";
  const std::pair<std::string, bool> lines[] = {
      {"forward,x+y=f32", false},
      {"forward,x+y=f32,rstd=f32", false},
      {"forward,x+y=f32,rstd=f32,seed=1", false},  // in the module's context
      {add, false},
      {add + ",rstd=f32", false},
      {add + ",rstd=f32", true},
      {"backward,x+dy+dx+dw=f32,rstd=f32", false},
  };
  for (const auto& [line, has_f32_stream] : lines) {
    for (const std::string held : {"", ",bias=f32,post_norm_weight=f32"}) {
      if (line[0] == 'b' && !held.empty()) continue;  // a module with a post-norm has no gradients
      SCOPED_TRACE(line + held);
      DenseCall call(line + ",call=rows,rows=1,d=8" + held, has_f32_stream);
      size_t accepted = 0;
      size_t refused = 0;
      const auto compare = [&](rmsnorm_dtype dtype, size_t rows) {
        SCOPED_TRACE("dtype " + std::to_string(dtype) + ", rows " + std::to_string(rows));
        ++(call.ExpectSameAsViews(dtype, rows) == RMSNORM_OK ? accepted : refused);
      };
      for (const rmsnorm_dtype dtype : {0, 1, 2, 3, 4, 5, -1, INT32_MAX, INT32_MIN}) {
        // The last, times d and the size of an element, is a few bytes.
        for (const size_t rows :
             {size_t{0}, size_t{1}, size_t{3}, SIZE_MAX, SIZE_MAX / 8, SIZE_MAX / 8 + 1}) {
          compare(dtype, rows);
        }
      }
      const auto usual = call.places;
      for (const rmsnorm_dtype dtype : kDtypes) {
        // Backward has one block of 16 rows, and two of 17.
        for (const size_t rows : Sizes{16, 17}) compare(dtype, rows);
        for (const size_t rows : Sizes{0, 1, 3}) {
          const size_t span = rows * DenseCall::kShort * rmsnorm_dtype_size(dtype);
          for (const auto& [o, place] : usual) {
            SCOPED_TRACE(internal::kOperandRules[o].name);
            Sizes others = {DenseCall::kNone, place + 1, place + 2, place + 4};
            for (const auto& [other, its_place] : usual) {
              for (const size_t bytes : Sizes{0, 4, span / 2, span - 4, span, span + 4}) {
                if (bytes > span + 4) continue;  // without rows
                others.insert(others.end(), {its_place + bytes, its_place - bytes});
              }
            }
            for (const size_t moved : others) {
              call.places[o] = moved;
              compare(dtype, rows);
            }
            call.places = usual;
          }
        }
      }
      EXPECT_GT(accepted, 100u);
      EXPECT_GT(refused, 100u);
    }
  }
}

// ---------------------------------------------------------------------------------- allocations

#ifdef __GLIBC__  // whose malloc() a program can replace

TEST(Module, AllocatesNothingInForward) {
  for (const size_t d : Sizes{1, 300, 5000}) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      for (const auto rounding : {ResidualRounding::rounded, ResidualRounding::unrounded}) {
        Options options;
        options.weight_offset = 1;
        options.residual_rounding = rounding;
        const std::vector<float> vector(d, 0.5f);
        RmsNorm norm(d, options, DtypeOfCode(dtype));
        for (const auto& [set, operand] : kVectors) (norm.*set)({vector.data(), d});
        for (const size_t rows : Sizes{1, 3, 40}) {
          Rows x(dtype, rows, d);
          Rows residual(dtype, rows, d);
          Random random(83);
          cases::Fill(random, Values::kMixed, 0, x);  // includes the cold path
          cases::Fill(random, Values::kMixed, 0, residual);
          std::vector<float> rstd(rows);
          ForwardOperands plain = NormOperands(x, nullptr, x);
          plain.rstd = {rstd.data(), rows};
          ForwardOperands add = plain;
          add.residual = ConstView(ViewOf(residual));
          add.residual_out = View(ViewOf(residual));
          const auto run = [&] {
            norm.forward(plain);
            norm.forward(add);
            uint8_t* const in = x.row(0);
            uint8_t* const stream = residual.row(0);
            check(rmsnorm_module_norm_rows(norm.get(), dtype, rows, in, in, nullptr, nullptr));
            check(rmsnorm_module_add_norm_rows(norm.get(), dtype, dtype, rows, in, stream, stream,
                                               in, nullptr, nullptr));
          };
          run();  // OpenMP's threads start with the first call
          const int before = Allocations();
          run();
          EXPECT_EQ(before, Allocations());
        }
      }
    }
  }
}

// The C++ form of several norms allocates nothing itself.
TEST(Allocations, OfSeveralNormsAreThoseOfTheCFunction) {
  const RmsNorm norm(kD);
  std::vector<std::vector<float>> x(16, std::vector<float>(kD, 2.0f));
  std::vector<Call> calls(x.size());
  std::vector<rmsnorm_operands> operands(x.size());
  std::vector<rmsnorm_call> c_calls(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    calls[i].module = &norm;
    calls[i].operands.x = {x[i].data(), kD};
    calls[i].operands.y = {x[i].data(), kD};
    operands[i] = calls[i].operands.get();
    c_calls[i] = {norm.get(), &operands[i], nullptr};
  }
  for (const size_t count : Sizes{1, 2, 16}) {
    const int before = Allocations();
    check(rmsnorm_forward_all(c_calls.data(), count, nullptr));
    const int between = Allocations();
    forward_all(calls.data(), count);
    EXPECT_EQ(between - before, Allocations() - between) << count;
  }
  EXPECT_NEAR(1, x[15][kD - 1], 1e-4f);
}

TEST(Allocations, AreCounted) {
  const int before = Allocations();
  const RmsNorm norm(kD);
  EXPECT_GT(Allocations(), before);
}

#endif  // __GLIBC__

// Without rows, no pointer is needed, and a gradient by the weight is zeros.
TEST(DenseRows, MayBeNone) {
  const RmsNorm norm(kD);
  norm.norm<float>(nullptr, nullptr, 0);
  norm.add_norm<bf16, float>(nullptr, nullptr, nullptr, nullptr, 0);
  norm.backward<bf16>(nullptr, nullptr, nullptr, nullptr, nullptr, 0);
  std::vector<float> dw(kD, 5);
  norm.backward<f16>(nullptr, nullptr, nullptr, nullptr, dw.data(), 0);
  EXPECT_EQ(std::vector<float>(kD, 0.0f), dw);
}

// Any integer type works; a negative number of rows is refused.
TEST(DenseRows, AreCountedByAnyInteger) {
  const int d = 4;
  RmsNorm norm(d);
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  float y[8] = {};
  const int rows = 2;
  norm.norm(x, y, rows);
  EXPECT_GT(y[7], 0);
  for (const int negative : {-1, INT32_MIN}) {
    EXPECT_THROW(norm.norm(x, y, negative), Error);
    EXPECT_THROW(norm.backward(x, x, nullptr, y, nullptr, negative), Error);
    EXPECT_THROW(RmsNorm{negative}, Error);
  }
}

TEST(Module, CanBeMoved) {
  RmsNorm first(kD, 0.25f, Dtype::bf16);
  RmsNorm second(std::move(first));
  EXPECT_EQ("RmsNorm(300, eps=0.25, bf16)", second.description());
  RmsNorm third(7);
  third = std::move(second);
  EXPECT_EQ("RmsNorm(300, eps=0.25, bf16)", third.description());
  RmsNorm& same = third;
  third = std::move(same);
  EXPECT_EQ("RmsNorm(300, eps=0.25, bf16)", third.description());
}

// No call takes a norm that was moved from for default options.
TEST(Module, IsRefusedOnceItWasMoved) {
  RmsNorm moved(4);
  const RmsNorm norm(std::move(moved));
  const std::vector<float> x(4, 2.0f);
  std::vector<float> y(4, 7.0f);
  ForwardOperands forwards;
  forwards.x = {x.data(), 4};
  forwards.y = {y.data(), 4};
  BackwardOperands backwards;
  backwards.x = backwards.dy = forwards.x;
  backwards.dx = forwards.y;
  ForwardOperands others = forwards;
  others.y = {};
  float rstd;
  others.rstd = {&rstd, 1};
  const auto expect_refused = [&](const std::string& call, const std::function<void()>& use) {
    try {
      use();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(RMSNORM_ERROR_NULL, error.status());
      EXPECT_EQ(call + "module: the pointer is null", error.what());
    }
  };
  expect_refused("", [&] { moved.forward(forwards); });
  expect_refused("", [&] { moved.forward(forwards, Context()); });
  expect_refused("", [&] { moved.backward(backwards); });
  expect_refused("", [&] { moved.norm(x.data(), y.data()); });
  expect_refused("", [&] { moved.set_weight(forwards.x); });
  expect_refused("", [&] { moved.options(); });
  expect_refused("", [&] { forward_all({{&moved, forwards}}); });
  expect_refused("calls[1].", [&] { forward_all({{&norm, others}, {&moved, forwards}}); });
  expect_refused("calls[0].", [&] { Prepared({{&moved, forwards}, {&norm, others}})(); });
  expect_refused("", [&] { Prepared(moved, forwards)(); });
  expect_refused("", [&] { Prepared(moved, forwards, Context())(); });
  expect_refused("", [&] { Prepared(moved, backwards)(); });
  expect_refused("", [&] { Prepared(moved, backwards, Context())(); });
  EXPECT_EQ(std::vector<float>(4, 7.0f), y);
}

TEST(Description, NamesEachOptionThatIsNotTheDefault) {
  EXPECT_EQ("RmsNorm(4096, eps=1e-05, bf16)", RmsNorm(4096, 1e-5f, Dtype::bf16).description());
  EXPECT_EQ("RmsNorm(1, eps=1e-06, f32)", RmsNorm(1, 1e-6f).description());
  EXPECT_EQ("RmsNorm(2, eps=0, f16)", RmsNorm(2, 0.0f, Dtype::f16).description());
  Options of_one;
  of_one.factor = 1;  // the same as the default
  EXPECT_EQ("RmsNorm(1, eps=1e-05, f32)", RmsNorm(1, of_one).description());

  const std::string defaults = RmsNorm(8).description();
  const auto names = [&](const char* word, const std::function<void(Options&, Context&)>& change) {
    Options options;
    Context context;
    change(options, context);
    const std::string description = RmsNorm(8, options, Dtype::f32, context).description();
    EXPECT_NE(std::string::npos, description.find(word)) << description;
    EXPECT_EQ(std::string::npos, defaults.find(word)) << defaults;
  };
  names("eps_placement=outside",
        [](Options& o, Context&) { o.eps_placement = EpsPlacement::outside; });
  names("eps_placement=floor", [](Options& o, Context&) { o.eps_placement = EpsPlacement::floor; });
  names("rounding=before_weight",
        [](Options& o, Context&) { o.rounding = Rounding::before_weight; });
  names("rounding=inverse", [](Options& o, Context&) { o.rounding = Rounding::inverse; });
  names("residual_rounding=unrounded",
        [](Options& o, Context&) { o.residual_rounding = ResidualRounding::unrounded; });
  names("weight_offset=1", [](Options& o, Context&) { o.weight_offset = 1; });
  names("factor=0.25", [](Options& o, Context&) { o.factor = 0.25f; });
  names("activation=sigmoid", [](Options& o, Context&) { o.activation = Activation::sigmoid; });
  names("gate_placement=before",
        [](Options& o, Context&) { o.gate_placement = GatePlacement::before; });
  names("gate_rounding=rounded",
        [](Options& o, Context&) { o.gate_rounding = GateRounding::rounded; });
  names("divisor=100.5", [](Options& o, Context&) { o.divisor = 100.5f; });
  names("threads=3", [](Options&, Context& c) { c.threads = 3; });
  names("target=reference", [](Options&, Context& c) { c.target = "reference"; });
}

// Text has a decimal point and no grouping, even if the process uses another locale.
class German : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Description, DoesNotFollowTheLocale) {
  const std::locale usual = std::locale::global(std::locale(std::locale(), new German));
  const std::string description = RmsNorm(4096, 0.25f).description();
  std::locale::global(usual);
  EXPECT_EQ("RmsNorm(4096, eps=0.25, f32)", description);
}

}  // namespace
}  // namespace rmsnorm::test
