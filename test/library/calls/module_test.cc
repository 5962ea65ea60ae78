// SPDX-License-Identifier: Apache-2.0
// What a module keeps: its vectors, options and context. `rmsnorm check` compares its results.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <locale>
#include <map>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cases/guarded_memory.h"
#include "cases/list.h"
#include "cases/prepared_call.h"
#include "cases/text.h"
#include "fixtures.h"

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

Rows RoundedTo(rmsnorm_dtype dtype, const Rows& vector) {
  Rows rounded(dtype, 1, vector.d());
  for (size_t j = 0; j < vector.d(); ++j) Set(rounded, 0, j, Get(vector, 0, j));
  return rounded;
}

// Vectors are rounded to the module's type, of whatever type they are, and copied. Each is set and
// removed without the others. Without them the weight is ones, and the others are absent. A refused
// vector changes nothing. Gradients depend on the weight alone.
TEST(Module, Vectors) {
  Random random(71);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, 5, kD);
  const auto* const in = reinterpret_cast<const float*>(x.row(0));
  Rows ones(RMSNORM_F32, 1, kD);
  for (size_t j = 0; j < kD; ++j) Set(ones, 0, j, 1);
  Options options;
  options.eps = 0.1f;
  options.weight_offset = 0.5f;
  const float short_vector = 1;
  const auto run_in_any_state = [&](const auto& run) {
    RunInState(cases::RandomControl(random), run);
  };
  for (const rmsnorm_dtype dtype : kDtypes) {
    std::optional<RmsNorm> norm;
    run_in_any_state([&] { norm.emplace(kD, options, static_cast<Dtype>(dtype)); });
    std::map<size_t, Rows> held = {{0, ones}};
    for (int step = 0; step < 60; ++step) {
      const size_t i = random.Below(std::size(kVectors));
      Rows vector = Draw(random, Values::kSpecial, kDtypes[random.Below(3)], 1, kD);
      const bool is_set = !random.OneIn(3);
      run_in_any_state([&] {
        is_set ? (*norm.*kVectors[i].set)(ConstView(VectorOf(vector))) : kVectors[i].remove(*norm);
      });
      held.erase(i);
      if (is_set) held[i] = RoundedTo(dtype, vector);
      if (!is_set && i == 0) held[i] = ones;
      std::memset(vector.row(0), 0, vector.row_bytes());
      EXPECT_THROW((*norm.*kVectors[i].set)({&short_vector, 1}), Error);

      for (const rmsnorm_dtype read : kDtypes) {
        const Rows weight(read, 1, kD);
        run_in_any_state([&] { norm->get_weight(View(VectorOf(weight))); });
        EXPECT_TRUE(SameBits(RoundedTo(read, held[0]), weight));
      }
      const Rows y[] = {Rows(RMSNORM_F32, 5, kD), Rows(RMSNORM_F32, 5, kD)};
      norm->forward(NormOperands(x, nullptr, y[0]));
      ForwardOperands operands = NormOperands(x, nullptr, y[1]);
      for (const auto& [k, rows] : held) operands.*kVectors[k].operand = ConstView(VectorOf(rows));
      forward(operands, options);
      EXPECT_TRUE(SameBits(y[1], y[0]));
      if (held.count(2) != 0) continue;  // backward takes no post-norm weight
      // dx, dw and db: by options, by views and by pointers.
      std::vector<Rows> all(3, Rows(RMSNORM_F32, 7, kD));
      const auto row = [&](size_t k, size_t j) { return reinterpret_cast<float*>(all[k].row(j)); };
      for (const size_t k : Sizes{0, 1}) {
        BackwardOperands gradients;
        gradients.x = gradients.dy = operands.x;
        gradients.dx = {row(k, 0), 5, kD};
        gradients.dw = {row(k, 5), kD};
        gradients.db = {row(k, 6), kD};
        if (k == 0) gradients.weight = operands.weight;
        k == 0 ? backward(gradients, options) : norm->backward(gradients);
      }
      norm->backward(in, in, nullptr, row(2, 0), row(2, 5), 5);
      all[2].Copy(6, all[0], 6);
      EXPECT_TRUE(SameBits(all[0], all[1]) && SameBits(all[0], all[2]));
    }
    std::string description;
    run_in_any_state([&] { description = norm->description(); });
    EXPECT_EQ(RmsNorm(kD, options, static_cast<Dtype>(dtype)).description(), description);
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
  of_one.factor = of_one.residual_factor = 1;  // the same as the defaults
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
    if (internal::IsInteger(option)) expect_described(int32_t{8});
    for (int32_t word = 1; rule.words[0] != nullptr && rule.words[word] != nullptr; ++word) {
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
  Random random(71);
  const Rows x = Draw(random, Values::kMixed, RMSNORM_BF16, kRows, kD);
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
      [&](Given context) { Prepared(norm, NormOperands(x, nullptr, y), context)(); },
      [&](Given context) { Prepared(norm, gradients, context)(); },
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
  // Several calls use none of their modules' contexts.
  forward_all({{&norm, NormOperands(x, nullptr, y)}}, counting(others));
  EXPECT_TRUE(was_called(others));
  const ForwardOperands norms[] = {NormOperands(x, nullptr, y), NormOperands(x, nullptr, stream)};
  const rmsnorm_operands operands[] = {norms[0].get(), norms[1].get()};
  const rmsnorm_call two[] = {{norm.get(), &operands[0], nullptr},
                              {norm.get(), &operands[1], nullptr}};
  check(rmsnorm_forward_all(two, 2, nullptr));
  rmsnorm_prepared* prepared;
  check(rmsnorm_prepare(&prepared, two, 2, nullptr));
  check(rmsnorm_run(prepared));
  rmsnorm_prepared_destroy(prepared);
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
  const cases::List list(R"(
$T=f32|f16|bf16
$ALL=weight+bias+post_norm_weight=f32,x_values=mixed,weight_offset=1,d=1|300|5000,rows=1|3|40
forward,x+y=$T,$ALL,call=module|rows,seed=0|1,threads=0
forward,x+y+residual+residual_out=$T,$ALL,residual_rounding=rounded|unrounded,call=module|rows,seed=0|1,threads=0
)");
  list.ForEach([](const cases::Calls& calls) {
    cases::Runner runner;
    runner.Set(calls);
    const cases::PreparedCall call(calls, runner.Fill(), cases::ContextOf(calls[0], nullptr));
    call.Run();  // OpenMP's threads start with the first call
    const int before = allocations;
    EXPECT_EQ(RMSNORM_OK, call.Run());
    EXPECT_EQ(before, allocations) << cases::Text(calls);
  });
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

}  // namespace
}  // namespace rmsnorm::test
