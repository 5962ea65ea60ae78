// SPDX-License-Identifier: Apache-2.0
// Passes every f32 pattern through the casts to f16 and bf16 and through the activations of gates,
// and every 16-bit pattern from x to y, on every target of this CPU. `--every N` takes each Nth run
// of 65,536 f32 patterns, and those around the limits of activations and of types.
//
// Casts are compared with the arithmetic conversion of rows.h, wherever the library rounds a
// result: y from x and from a weight, residual_out, and db. Activations have the bits of the
// reference, which is compared with binary64.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cases/expected.h"
#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kRows = 16;
constexpr size_t kLength = 4096;
constexpr size_t kPatterns = kRows * kLength;  // that one call takes
constexpr size_t kRuns = (uint64_t{1} << 32) / kPatterns;
// Definition 15 states the worst errors over every argument: 1.9981 and 1.9991 ulp.
constexpr double kMostUlps[] = {1.9981, 1.9991};
constexpr const char* kActivations[] = {"silu", "sigmoid"};
// Where results become subnormal, vanish or stop changing, and the ends of the range of z. Where
// f16 and bf16 become subnormal, vanish or overflow, and NaNs begin.
constexpr float kLimits[] = {-110,     -104,     -103.97f, -103.3f,   -88.03f,   -87,
                             -86.64f,  -17.3f,   0,        0.35f,     16.6f,     17.4f,
                             87,       88.03f,   88.73f,   104,       110,       0x1p-14f,
                             0x1p-24f, 0x1p-25f, 65520,    0x1p-126f, HUGE_VALF, -HUGE_VALF};

class Worker {
 public:
  explicit Worker(const std::vector<std::string>& targets) : targets_(targets) {
    std::fill(sums_.begin(), sums_.end(), double{kLength});
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t j = 0; j < kLength; ++j) {
        Set(ones_, row, j, 1);
        Set(minus_zeros_f16_, row, j, -0.0);
        Set(minus_zeros_bf16_, row, j, -0.0);
      }
    }
    options_.eps = 0;
  }

  // The patterns from `first` on. Returns the first fault, or an empty text.
  std::string Test(uint32_t first) {
    for (uint32_t i = 0; i < kPatterns; ++i) {
      const uint32_t bits = first + i;
      std::memcpy(patterns_.row(0) + i * sizeof bits, &bits, sizeof bits);
    }
    TestCast(RMSNORM_F16, minus_zeros_f16_);
    TestCast(RMSNORM_BF16, minus_zeros_bf16_);
    for (const Activation activation : {Activation::silu, Activation::sigmoid}) {
      TestActivation(activation);
    }
    return fault_;
  }

  // Every pattern of a 16-bit type, in every type.
  std::string TestShort(rmsnorm_dtype from) {
    Rows x(from, kRows, kLength);
    for (size_t i = 0; i < kPatterns; ++i) x.set_bits(i / kLength, i % kLength, i);
    for (const rmsnorm_dtype to : kDtypes) {
      Rows expected(to, kRows, kLength);
      Rows actual = expected;
      for (size_t i = 0; i < kPatterns; ++i) {
        Set(expected, i / kLength, i % kLength, RoundTo(to, Get(x, i / kLength, i % kLength)));
      }
      for (const std::string& target : targets_) {
        CallNorm(x, nullptr, options_, target, actual);
        Expect(expected, actual, "y from 16 bits", target);
      }
    }
    return fault_;
  }

  // The worst error of silu and of sigmoid so far, in ulp.
  double worst(int activation) const { return worst_[activation]; }

 private:
  void TestCast(rmsnorm_dtype dtype, const Rows& minus_zeros) {
    Rows expected(dtype, kRows, kLength);
    for (size_t i = 0; i < kPatterns; ++i) {
      Set(expected, i / kLength, i % kLength, Get(patterns_, i / kLength, i % kLength));
    }
    Rows expected_of_sum = expected;  // 0 is added to a weight and to db, and turns -0 into 0
    if (patterns_.bits(0, 0) == 0x80000000) expected_of_sum.set_bits(0, 0, 0);
    for (const std::string& target : targets_) {
      Rows actual(dtype, kRows, kLength);
      CallNorm(patterns_, nullptr, options_, target, actual);
      Expect(expected, actual, "y from x", target);

      ForwardOperands add;
      add.x = ConstView(ViewOf(patterns_));
      add.residual = ConstView(ViewOf(minus_zeros));
      add.residual_out = View(ViewOf(actual));
      forward(add, options_, OnTarget(target, 1));
      Expect(expected, actual, "residual_out", target);

      ForwardOperands weighted;  // the norm of ones is ones
      weighted.x = {reinterpret_cast<const float*>(ones_.row(0)), 1, kPatterns};
      weighted.weight = ConstView(VectorOf(patterns_));
      weighted.y = View(rmsnorm_rows(actual.row(0), dtype, 1, kPatterns, kPatterns));
      forward(weighted, options_, OnTarget(target, 1));
      Expect(expected_of_sum, actual, "y from the weight", target);

      BackwardOperands gradient;  // of one row: db is dy
      gradient.x = weighted.x;
      gradient.dy = {reinterpret_cast<const float*>(patterns_.row(0)), 1, kPatterns};
      gradient.db = View(VectorOf(actual));
      backward(gradient, options_, OnTarget(target, 1));
      Expect(expected_of_sum, actual, "db", target);
    }
  }

  void TestActivation(Activation activation) {
    Options options = options_;
    options.activation = activation;
    Rows expected(RMSNORM_F32, kRows, kLength);
    CallNorm(ones_, &patterns_, options, kReference, expected);
    CheckReference(activation == Activation::silu ? 0 : 1, expected);
    for (const std::string& target : targets_) {
      if (target == kReference) continue;
      Rows actual(RMSNORM_F32, kRows, kLength);
      CallNorm(ones_, &patterns_, options, target, actual);
      Expect(expected, actual, kActivations[activation == Activation::silu ? 0 : 1], target);
    }
  }

  // With a sum equal to the divisor, the inverse RMS is 1.
  void CallNorm(const Rows& x, const Rows* gate, const Options& options, const std::string& target,
                const Rows& y) const {
    ForwardOperands operands = NormOperands(x, nullptr, y);
    operands.sums = {sums_.data(), kRows};
    if (gate != nullptr) operands.gate = ConstView(ViewOf(*gate));
    forward(operands, options, OnTarget(target, 1));
  }

  void CheckReference(int activation, const Rows& y) {
    for (size_t i = 0; i < kPatterns; ++i) {
      const double z = Get(patterns_, i / kLength, i % kLength);
      const double actual = Get(y, i / kLength, i % kLength);
      const double exact = cases::ExactActivation(activation, z);
      double ulps = 0;
      if (!std::isfinite(exact)) {
        ulps = std::isnan(exact) == std::isnan(actual) && (std::isnan(exact) || exact == actual)
                   ? 0
                   : HUGE_VAL;
      } else {
        ulps = std::fabs(actual - exact) / Ulp(RMSNORM_F32, exact);
        if (std::signbit(actual) != std::signbit(exact)) ulps = HUGE_VAL;
      }
      // The bounds are rounded to four decimals.
      if (!(ulps < kMostUlps[activation] + 0.00005)) {
        SetFault(std::string(kActivations[activation]) + " of " + std::to_string(z) + " is " +
                 std::to_string(ulps) + " ulp off");
      }
      worst_[activation] = std::max(worst_[activation], ulps);
    }
  }

  void Expect(const Rows& expected, const Rows& actual, const char* what,
              const std::string& target) {
    const std::string difference = cases::FirstDifference(expected, actual);
    if (!difference.empty()) {
      SetFault(std::string(what) + " on " + target + ": " + rmsnorm_dtype_name(expected.dtype()) +
               " element " + difference);
    }
  }

  void SetFault(const std::string& fault) {
    if (fault_.empty()) {
      fault_ = "patterns from " + std::to_string(patterns_.bits(0, 0)) + " on: " + fault;
    }
  }

  const std::vector<std::string>& targets_;
  Rows patterns_{RMSNORM_F32, kRows, kLength};
  Rows ones_{RMSNORM_F32, kRows, kLength};
  Rows minus_zeros_f16_{RMSNORM_F16, kRows, kLength};
  Rows minus_zeros_bf16_{RMSNORM_BF16, kRows, kLength};
  std::array<double, kRows> sums_{};
  Options options_;
  double worst_[2] = {};
  std::string fault_;
};

// The numbers of the runs of patterns that are taken.
std::vector<size_t> Runs(size_t every) {
  std::vector<size_t> runs;
  for (size_t run = 0; run < kRuns; run += every) runs.push_back(run);
  for (size_t i = 0; every > 1 && i < std::size(kLimits); ++i) {
    const auto run = Reinterpret<uint32_t>(kLimits[i]) / kPatterns;
    runs.insert(runs.end(), {run, (run + kRuns - 1) % kRuns});
  }
  return runs;
}

int Run(size_t every, size_t threads) {
  const std::vector<std::string> targets = SupportedTargets();
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<size_t> numbers = Runs(every);
  const size_t runs = numbers.size();
  std::atomic<size_t> next{0};
  std::mutex mutex;  // guards the two below, and the output
  double worst[2] = {};
  bool failed = false;
  const auto expect_no_fault = [&](const std::string& fault) {
    if (fault.empty()) return;
    std::printf("FAILED: %s\n", fault.c_str());
    failed = true;
    next = runs;
  };
  for (const rmsnorm_dtype from : {RMSNORM_F16, RMSNORM_BF16}) {
    expect_no_fault(Worker(targets).TestShort(from));
  }
  const auto work = [&] {
    Worker worker(targets);
    for (size_t run; (run = next++) < runs;) {
      const std::string fault = worker.Test(static_cast<uint32_t>(numbers[run] * kPatterns));
      const std::lock_guard<std::mutex> lock(mutex);
      const bool is_sixteenth = (run + 1) % std::max<size_t>(runs / 16, 1) == 0;
      if (is_sixteenth) std::fprintf(stderr, "%zu of %zu runs of 65,536 patterns\n", run + 1, runs);
      expect_no_fault(fault);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < 2; ++i) worst[i] = std::max(worst[i], worker.worst(i));
  };
  std::vector<std::future<void>> workers;
  for (size_t i = 0; i < threads; ++i) workers.push_back(std::async(std::launch::async, work));
  for (std::future<void>& worker : workers) worker.get();
  if (failed) return 1;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  std::printf("targets:");
  for (const std::string& target : targets) std::printf(" %s", target.c_str());
  std::printf("\n%zu patterns: 4 casts to f16 and 4 to bf16, silu and sigmoid: no fault\n",
              runs * kPatterns);
  std::printf("silu: at most %.4f ulp of %.4f; sigmoid: at most %.4f ulp of %.4f\n", worst[0],
              kMostUlps[0], worst[1], kMostUlps[1]);
  std::printf("%.0f s by %zu threads\n", time.count(), threads);
  return 0;
}

}  // namespace
}  // namespace rmsnorm::test

int main(int argc, char** argv) {
  size_t every = 1;
  size_t threads = std::max(1u, std::thread::hardware_concurrency());
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const size_t number = i + 1 < argc ? std::strtoul(argv[i + 1], nullptr, 10) : 0;
    if (number == 0 || (name != "--every" && name != "--threads")) {
      std::fprintf(stderr, "usage: exhaustive [--every N] [--threads N]\n");
      return 2;
    }
    (name == "--every" ? every : threads) = number;
  }
  return rmsnorm::test::Run(every, threads);
}
