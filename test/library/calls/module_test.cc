// SPDX-License-Identifier: Apache-2.0
// What a module keeps: its vectors, options and context. `rmsnorm check` compares its results.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <locale>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cases/guarded_memory.h"
#include "cases/option_value.h"
#include "executor.h"
#include "on_target.h"
#include "rows.h"

namespace {

// The number of calls of malloc() and its relatives since the program started; operator new uses
// them.
std::atomic<int> allocations{0};
// Whether allocations of more than the usual alignment fail.
std::atomic<bool> aligned_fail{false};

}  // namespace

#ifdef __GLIBC__  // whose malloc() a program can replace

// The linker prefers a program's own functions to the ones in shared libraries. The GNU C library
// exports its originals under these names.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) noexcept {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) noexcept {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) noexcept {
  ++allocations;
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) noexcept {
  ++allocations;
  return aligned_fail ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept { return memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) noexcept {
  *memory = memalign(alignment, size);
  return *memory != nullptr ? 0 : ENOMEM;
}
}

#endif  // __GLIBC__

namespace rmsnorm::test {
namespace {

constexpr size_t kD = 300;

Rows Filled(Values values, rmsnorm_dtype dtype, size_t rows = 1) {
  Random random(71);
  return Draw(random, values, dtype, rows, kD);
}

// ------------------------------------------------------------------------------------- vectors

// Each vector that a module holds: how it is set and taken away, and the operand.
const struct {
  void (RmsNorm::*set)(const ConstView&);
  void (*remove)(RmsNorm&);
  ConstView ForwardOperands::*operand;
} kVectors[] = {
    {&RmsNorm::set_weight, [](RmsNorm& norm) { norm.reset_weight(); }, &ForwardOperands::weight},
    {&RmsNorm::set_bias, [](RmsNorm& norm) { norm.set_bias({}); }, &ForwardOperands::bias},
    {&RmsNorm::set_post_norm_weight, [](RmsNorm& norm) { norm.set_post_norm_weight({}); },
     &ForwardOperands::post_norm_weight}};

// The weight of a module is rounded to the type in which it is read.
void ExpectWeight(const RmsNorm& norm, const Rows& weight) {
  for (const rmsnorm_dtype read : kDtypes) {
    Rows expected(read, 1, kD);
    for (size_t j = 0; j < kD; ++j) Set(expected, 0, j, Get(weight, 0, j));
    Rows actual(read, 1, kD);
    norm.get_weight(View(VectorOf(actual)));
    EXPECT_TRUE(SameBits(expected, actual));
  }
}

Rows Forward(const RmsNorm& norm, const Rows& x) {
  Rows y(RMSNORM_F32, x.count(), kD);
  norm.forward(NormOperands(x, nullptr, y));
  return y;
}

// Vectors are rounded to the module's type, of whatever type they are, and copied. A second one
// replaces the first one. Without them the weight is ones, and the others are absent. A refused
// vector changes nothing.
TEST(Module, Vectors) {
  const Rows x = Filled(Values::kNormal, RMSNORM_BF16, 5);
  Options options;
  options.weight_offset = 0.5f;
  const float short_vector = 1;
  Rows ones(RMSNORM_F32, 1, kD);
  for (size_t j = 0; j < kD; ++j) Set(ones, 0, j, 1);
  for (const auto& [set, remove, operand] : kVectors) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      RmsNorm norm(kD, options, static_cast<Dtype>(dtype));
      const Rows without = Forward(norm, x);
      for (const rmsnorm_dtype from : kDtypes) {
        Rows vector = Filled(Values::kSpecial, from);
        Rows rounded(RMSNORM_F32, 1, kD);
        for (size_t j = 0; j < kD; ++j) Set(rounded, 0, j, RoundTo(dtype, Get(vector, 0, j)));
        Rows expected(RMSNORM_F32, 5, kD);
        ForwardOperands operands = NormOperands(x, &ones, expected);
        forward(operands, options);
        EXPECT_TRUE(SameBits(expected, without));
        operands.*operand = ConstView(VectorOf(rounded));
        forward(operands, options);

        (norm.*set)(ConstView(VectorOf(vector)));
        std::memset(vector.row(0), 0, vector.row_bytes());
        EXPECT_THROW((norm.*set)({&short_vector, 1}), Error);
        EXPECT_TRUE(SameBits(expected, Forward(norm, x)))
            << rmsnorm_dtype_name(from) << " kept as " << rmsnorm_dtype_name(dtype);
        ExpectWeight(norm, set == &RmsNorm::set_weight ? rounded : ones);
      }
      remove(norm);
      EXPECT_TRUE(SameBits(without, Forward(norm, x)));
      ExpectWeight(norm, ones);
    }
  }
}

// Weights lie next to inaccessible pages.
TEST(Module, WeightsBesideInaccessiblePages) {
  cases::GuardedMemory memory;
  for (size_t d = 1; d <= 5000; d += d < 300 ? 1 : 997) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      RmsNorm norm(d, 1e-5f, static_cast<Dtype>(dtype));
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

// A bias and a post-norm weight stay when the weight is set, and gradients do not depend on a bias.
TEST(Module, VectorsAreIndependent) {
  const Rows x = Filled(Values::kNormal, RMSNORM_F32, 20);
  const auto* const in = reinterpret_cast<const float*>(x.row(0));
  for (const auto& [set, remove, operand] : kVectors) {
    RmsNorm norm(kD);
    (norm.*set)({in, kD});
    const Rows before = Forward(norm, x);
    if (set == &RmsNorm::set_weight) continue;
    norm.set_weight({in, kD});
    norm.reset_weight();
    EXPECT_TRUE(SameBits(before, Forward(norm, x)));
  }
  RmsNorm norm(kD);
  for (const size_t rows : Sizes{1, 20}) {  // directly and by views
    const auto gradients = [&] {
      std::vector<float> all((rows + 2) * kD);  // dw, db and dx
      norm.backward(in, in, nullptr, &all[2 * kD], all.data(), rows);
      BackwardOperands operands;
      operands.x = operands.dy = {in, rows, kD};
      operands.db = {&all[kD], kD};
      norm.backward(operands);
      return all;
    };
    norm.set_bias({});
    const std::vector<float> expected = gradients();
    norm.set_bias({in + kD, kD});
    EXPECT_EQ(expected, gradients());
  }
}

#ifdef __GLIBC__

TEST(Module, NoMemoryForAVector) {
  const std::vector<float> vector(kD, 0.5f);
  for (const auto& [set, remove, operand] : kVectors) {
    if (set == &RmsNorm::set_weight) continue;  // whose memory a module has from the start
    RmsNorm norm(kD);
    const auto status = [&, set_vector = set] {
      aligned_fail = true;
      rmsnorm_status of_call = RMSNORM_OK;
      try {
        (norm.*set_vector)({vector.data(), kD});
      } catch (const Error& error) {
        of_call = error.status();
      }
      aligned_fail = false;
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
    (norm.*set)({vector.data(), kD});
    EXPECT_EQ(RMSNORM_OK, status()) << "memory that the module has already";
  }
}

#endif  // __GLIBC__

// ------------------------------------------------------------------------- options and description

TEST(Module, DescribesEachOption) {
  EXPECT_EQ("RmsNorm(4096, eps=1e-05, bf16)", RmsNorm(4096, 1e-5f, Dtype::bf16).description());
  EXPECT_EQ("RmsNorm(2, eps=0, f16)", RmsNorm(2, 0.0f, Dtype::f16).description());
  Options of_one;
  of_one.factor = 1;  // the same as the default
  EXPECT_EQ("RmsNorm(1, eps=1e-05, f32)", RmsNorm(1, of_one).description());
  for (int i = 0; i < internal::kOptions; ++i) {
    const auto option = static_cast<internal::Option>(i);
    const internal::OptionRule& rule = internal::kOptionRules[option];
    const auto expect_described = [&](auto value) {
      rmsnorm_options options = rmsnorm_default_options();
      internal::SetValueIn(options, option, value);
      const RmsNorm norm(8, Options::from(options), Dtype::f16);
      const std::string text = std::string(rule.name) + "=" + cases::OptionValue(options, option);
      EXPECT_EQ(option == internal::kEps ? "RmsNorm(8, " + text + ", f16)"
                                         : "RmsNorm(8, eps=1e-05, f16, " + text + ")",
                norm.description());
      const rmsnorm_options kept = norm.options().get();
      EXPECT_EQ(0, std::memcmp(&options, &kept, sizeof kept));
    };
    if (internal::IsNumber(option)) expect_described(100.5f);
    for (int32_t word = 1; !internal::IsNumber(option) && rule.words[word] != nullptr; ++word) {
      expect_described(word);
    }
  }
  Context context;
  context.threads = 3;
  context.target = kReference;
  const RmsNorm norm(kD, {}, Dtype::bf16, context);
  EXPECT_EQ("RmsNorm(300, eps=1e-05, bf16, threads=3, target=reference)", norm.description());
  EXPECT_EQ(kD, norm.d());
  EXPECT_EQ(Dtype::bf16, norm.dtype());
}

// Text has a decimal point and no grouping, even if the process uses another locale.
class German : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Module, DescriptionInAnotherLocale) {
  const std::locale usual = std::locale::global(std::locale(std::locale(), new German));
  const std::string description = RmsNorm(4096, 0.25f).description();
  std::locale::global(usual);
  EXPECT_EQ("RmsNorm(4096, eps=0.25, f32)", description);
}

// ------------------------------------------------------------------------------------- contexts

// Calls without a context run in the module's own; other calls run in the context they pass.
TEST(Module, Contexts) {
  constexpr size_t kRows = 1000;
  CountingExecutor own;
  CountingExecutor others;
  const auto counting = [](CountingExecutor& executor) {
    Context context;
    context.threads = 2;
    executor.SetIn(context);
    return context;
  };
  const RmsNorm norm(kD, {}, Dtype::f32, counting(own));
  const Rows x = Filled(Values::kMixed, RMSNORM_BF16, kRows);
  Rows y(RMSNORM_BF16, kRows, kD);
  Rows stream(RMSNORM_BF16, kRows, kD);
  std::vector<float> dw(kD);
  BackwardOperands gradients;
  gradients.dy = gradients.x = ConstView(ViewOf(x));
  gradients.dw = {dw.data(), kD};
  const auto* const in = reinterpret_cast<const bf16*>(x.row(0));
  auto* const out = reinterpret_cast<bf16*>(y.row(0));
  auto* const sum = reinterpret_cast<bf16*>(stream.row(0));
  using Given = const std::optional<Context>&;
  const std::function<void(Given)> calls[] = {
      [&](Given context) { norm.forward(NormOperands(x, nullptr, y), context); },
      [&](Given context) { norm.backward(gradients, context); },
      [&](Given context) { norm.norm(in, out, kRows, nullptr, context); },
      [&](Given context) { norm.add_norm(in, in, sum, out, kRows, nullptr, context); },
      [&](Given context) { norm.backward(in, in, nullptr, out, dw.data(), kRows, context); },
  };
  const auto was_called = [](CountingExecutor& executor) {
    return std::exchange(executor.calls, 0) > 0;
  };
  for (const auto& call : calls) {
    call({});
    EXPECT_TRUE(was_called(own));
    call(counting(others));
    EXPECT_TRUE(was_called(others));
    call(Context());
    EXPECT_FALSE(was_called(own));
  }
  forward_all({{&norm, NormOperands(x, nullptr, y)}}, counting(others));
  EXPECT_TRUE(was_called(others));
  EXPECT_FALSE(was_called(own));
}

// The text of a target belongs to the caller, and may disappear.
TEST(Module, CopiesTheTarget) {
  std::string name = kReference;
  const RmsNorm norm(kD, {}, Dtype::f32, OnTarget(name));
  name = "PDP11....";
  const float x[kD] = {1, 2, 3};
  float y[kD];
  norm.norm(x, y);
  EXPECT_GT(y[2], y[1]);
  EXPECT_EQ("RmsNorm(300, eps=1e-05, f32, target=reference)", norm.description());
}

// ---------------------------------------------------------------------------------- allocations

#ifdef __GLIBC__

TEST(Allocations, NoneInForward) {
  for (const size_t d : Sizes{1, 300, 5000}) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      for (const auto rounding : {ResidualRounding::rounded, ResidualRounding::unrounded}) {
        Options options;
        options.weight_offset = 1;
        options.residual_rounding = rounding;
        const std::vector<float> vector(d, 0.5f);
        RmsNorm norm(d, options, static_cast<Dtype>(dtype));
        for (const auto& each : kVectors) (norm.*each.set)({vector.data(), d});
        for (const size_t rows : Sizes{1, 3, 40}) {
          Random random(83);
          Rows x = Draw(random, Values::kMixed, dtype, rows, d);  // includes the cold path
          Rows residual = Draw(random, Values::kMixed, dtype, rows, d);
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
          const int before = allocations;
          run();
          EXPECT_EQ(before, allocations);
        }
      }
    }
  }
}

// The C++ form of several norms allocates nothing itself.
TEST(Allocations, SeveralNormsInCpp) {
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
    const int before = allocations;
    check(rmsnorm_forward_all(c_calls.data(), count, nullptr));
    const int between = allocations;
    forward_all(calls.data(), count);
    EXPECT_EQ(between - before, allocations - between) << count;
  }
  EXPECT_NEAR(1, x[15][kD - 1], 1e-4f);
}

TEST(Allocations, Counter) {
  const int before = allocations;
  const RmsNorm norm(kD);
  EXPECT_GT(allocations, before);
}

#endif  // __GLIBC__

// Without rows, no pointer is needed, and a gradient by the weight is zeros.
TEST(DenseRows, NoRows) {
  const RmsNorm norm(kD);
  norm.norm<float>(nullptr, nullptr, 0);
  norm.add_norm<bf16, float>(nullptr, nullptr, nullptr, nullptr, 0);
  norm.backward<bf16>(nullptr, nullptr, nullptr, nullptr, nullptr, 0);
  std::vector<float> dw(kD, 5);
  norm.backward<f16>(nullptr, nullptr, nullptr, nullptr, dw.data(), 0);
  EXPECT_EQ(std::vector<float>(kD, 0.0f), dw);
}

// Any integer type works; a negative number of rows is refused.
TEST(DenseRows, IntegerTypes) {
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

TEST(Module, Move) {
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
TEST(Module, MovedFrom) {
  RmsNorm moved(4);
  const RmsNorm norm(std::move(moved));
  const float x[4] = {2, 2, 2, 2};
  float y[4] = {7, 7, 7, 7};
  float rstd;
  ForwardOperands forwards;
  forwards.x = {x, 4};
  ForwardOperands others = forwards;
  forwards.y = {y, 4};
  others.rstd = {&rstd, 1};
  BackwardOperands backwards;
  backwards.x = backwards.dy = forwards.x;
  backwards.dx = forwards.y;
  const Call of_moved = {&moved, forwards};
  const Call of_other = {&norm, others};
  const std::pair<std::string, std::function<void()>> calls[] = {
      {"", [&] { moved.forward(forwards); }},
      {"", [&] { moved.forward(forwards, Context()); }},
      {"", [&] { moved.backward(backwards); }},
      {"", [&] { moved.norm(x, y); }},
      {"", [&] { moved.set_weight(forwards.x); }},
      {"", [&] { moved.options(); }},
      {"", [&] { forward_all({of_moved}); }},
      {"calls[1].",
       [&] {
         forward_all({of_other, of_moved});
       }},
      {"calls[0].",
       [&] {
         Prepared({of_moved, of_other})();
       }},
      {"", [&] { Prepared(moved, forwards)(); }},
      {"", [&] { Prepared(moved, forwards, Context())(); }},
      {"", [&] { Prepared(moved, backwards)(); }},
      {"", [&] { Prepared(moved, backwards, Context())(); }}};
  for (const auto& [name, call] : calls) {
    try {
      call();
      ADD_FAILURE() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(RMSNORM_ERROR_NULL, error.status());
      EXPECT_EQ(name + "module: the pointer is null", error.what());
    }
  }
  EXPECT_EQ(std::vector<float>(4, 7.0f), std::vector<float>(y, y + 4));
}

}  // namespace
}  // namespace rmsnorm::test
