// SPDX-License-Identifier: Apache-2.0
// Every call uses at most 48 KiB of stack, so it runs on threads with 64 KiB.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kMost = 48 << 10;
constexpr size_t kRows = 5;
constexpr unsigned char kUntouched = 0xA5;  // fills the stack

// A stack of 64 KiB with an inaccessible page below it.
class SmallStack {
 public:
  SmallStack()
      : memory_(static_cast<char*>(mmap(nullptr, kGuard + kSize, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_NE(MAP_FAILED, static_cast<void*>(memory_));
    EXPECT_EQ(0, mprotect(memory_, kGuard, PROT_NONE));
  }
  ~SmallStack() { munmap(memory_, kGuard + kSize); }
  SmallStack(const SmallStack&) = delete;
  SmallStack& operator=(const SmallStack&) = delete;

  // Runs a function on a thread with this stack. Returns the number of touched bytes.
  size_t Run(const std::function<void()>& function) const {
    char* const stack = memory_ + kGuard;
    std::memset(stack, kUntouched, kSize);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, kSize);
    const auto run = [](void* data) -> void* {
      (*static_cast<const std::function<void()>*>(data))();
      return nullptr;
    };
    pthread_t thread;
    EXPECT_EQ(0, pthread_create(&thread, &attributes, run,
                                const_cast<void*>(static_cast<const void*>(&function))));
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    const char* const touched = std::find_if(stack, stack + kSize, [](char byte) {
      return static_cast<unsigned char>(byte) != kUntouched;
    });
    return static_cast<size_t>(stack + kSize - touched);
  }

 private:
  static constexpr size_t kGuard = 4096;
  static constexpr size_t kSize = 64 << 10;

  char* memory_;
};

// The types of x, residual and gate, of y, and of weights and biases.
struct Types {
  rmsnorm_dtype x;
  rmsnorm_dtype residual;
  rmsnorm_dtype y;
  rmsnorm_dtype weight;
};
constexpr Types kTypes[] = {
    {RMSNORM_F32, RMSNORM_F32, RMSNORM_F32, RMSNORM_F32},
    {RMSNORM_F16, RMSNORM_F16, RMSNORM_F16, RMSNORM_F16},
    {RMSNORM_BF16, RMSNORM_BF16, RMSNORM_BF16, RMSNORM_F32},
    {RMSNORM_BF16, RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16},
    {RMSNORM_F32, RMSNORM_BF16, RMSNORM_BF16, RMSNORM_F16},
};

class StackTest : public testing::TestWithParam<std::string> {
 protected:
  // Makes a call on a small thread. The first call runs on this thread: it finds targets and binds
  // symbols.
  void Expect(const std::string& name, const std::function<void()>& call) {
    call();
    const size_t touched = stack_.Run(call) - idle_;
    EXPECT_LE(touched, kMost) << name;
    most_ = std::max(most_, touched);
  }

  const std::string target_ = GetParam();
  SmallStack stack_;
  const size_t idle_ = stack_.Run([] {});
  size_t most_ = 0;
  Random random_{131};
};

TEST_P(StackTest, Forward) {
  const Context context = OnTarget(target_, 1);
  for (const size_t d : Sizes{1, 64, 300, 1000, 4096, 4097, 8192, 8200}) {
    for (const Types& types : kTypes) {
      Rows x(types.x, kRows, d);
      Rows residual(types.residual, kRows, d);
      Rows gate(types.residual, kRows, d);
      Rows weight(types.weight, 1, d);
      cases::Fill(random_, Values::kMixed, 0, x);  // this includes cold rows
      cases::Fill(random_, Values::kNormal, 0, residual);
      cases::Fill(random_, Values::kNormal, 0, gate);
      cases::Fill(random_, Values::kSpecial, 0, weight);
      const Rows y(types.y, kRows, d);
      const Rows residual_out(types.residual, kRows, d);
      std::vector<int8_t> q(kRows * d);
      std::vector<float> scale(kRows);
      std::vector<int8_t> zero(kRows);
      std::vector<float> rstd(kRows);
      std::vector<double> sums(kRows, 1.0);
      ForwardOperands plain;
      plain.x = ConstView(ViewOf(x));
      plain.weight = ConstView(VectorOf(weight));
      plain.y = View(ViewOf(y));
      plain.rstd = View(rstd.data(), kRows);
      ForwardOperands added = plain;
      added.residual = ConstView(ViewOf(residual));
      added.residual_out = View(ViewOf(residual_out));
      using Change = std::pair<const char*, std::function<void(ForwardOperands&)>>;
      const Change changes[] = {
          {"", [](ForwardOperands&) {}},
          {"post-norm", [&](ForwardOperands& o) { o.post_norm_weight = o.weight; }},
          {"gate", [&](ForwardOperands& o) { o.gate = ConstView(ViewOf(gate)); }},
          {"bias", [&](ForwardOperands& o) { o.bias = o.weight; }},
          {"q beside y",
           [&](ForwardOperands& o) {
             o.q = View(q.data(), kRows, d);
             o.scale = View(scale.data(), kRows);
             o.zero = View(zero.data(), kRows);
           }},
          {"q alone",
           [&](ForwardOperands& o) {
             o.q = View(q.data(), kRows, d);
             o.scale = View(scale.data(), kRows);
             o.y = {};
           }},
          {"sums_out", [&](ForwardOperands& o) { o.sums_out = View(sums.data(), kRows); }},
          {"everything",
           [&](ForwardOperands& o) {
             o.post_norm_weight = o.bias = o.weight;
             o.gate = ConstView(ViewOf(gate));
             o.q = View(q.data(), kRows, d);
             o.scale = View(scale.data(), kRows);
             o.zero = View(zero.data(), kRows);
             o.sums_out = View(sums.data(), kRows);
           }},
      };
      RmsNorm module(d, Options(), Dtype::f32, context);
      for (const bool adds : {false, true}) {
        for (const auto& [name, change] : changes) {
          ForwardOperands operands = adds ? added : plain;
          change(operands);
          const std::string title = std::string(name) + ", d " + std::to_string(d) + ", x " +
                                    rmsnorm_dtype_name(types.x) + (adds ? ", added" : "");
          for (const float factor : {1.0f, 0.5f}) {
            Options options;
            options.factor = factor;
            Expect(title, [&] { forward(operands, options, context); });
            if (operands.gate.empty() || adds) continue;
            options.gate_placement = GatePlacement::before;
            Expect("before, " + title, [&] { forward(operands, options, context); });
          }
          ForwardOperands of_module = operands;
          of_module.weight = {};
          Expect("module, " + title, [&] { module.forward(of_module); });
        }
      }
      const Rows other_y(types.y, kRows, d);
      const Rows third_y(types.y, kRows, d);
      Call calls[] = {{nullptr, plain, {}}, {nullptr, plain, {}}, {nullptr, plain, {}}};
      for (Call& call : calls) call.operands.rstd = {};
      calls[1].operands.y = View(ViewOf(other_y));
      calls[2].operands.y = View(ViewOf(third_y));
      const std::string of_calls = "d " + std::to_string(d) + ", x " + rmsnorm_dtype_name(types.x);
      for (const size_t count : Sizes{2, 3}) {
        Expect("several, " + std::to_string(count) + ", " + of_calls,
               [&, count] { forward_all(calls, count, context); });
      }
      std::vector<int8_t> other_q(kRows * d);
      std::vector<float> other_scale(kRows);
      for (size_t i = 0; i < 2; ++i) {
        ForwardOperands& operands = calls[i].operands;
        operands.y = {};
        operands.q = View((i == 0 ? q : other_q).data(), kRows, d);
        operands.scale = View((i == 0 ? scale : other_scale).data(), kRows);
      }
      Expect("several, q alone, " + of_calls, [&] { forward_all(calls, 2, context); });
      ForwardOperands by_sums = plain;
      by_sums.sums = ConstView(sums.data(), kRows);
      Expect("sums", [&] { forward(by_sums, {}, context); });
    }
  }
  RecordProperty("most", std::to_string(most_));
}

TEST_P(StackTest, Backward) {
  const Context context = OnTarget(target_, 1);
  for (const size_t d : Sizes{1, 64, 300, 1000, 4096, 4097, 8200}) {
    for (const size_t rows : Sizes{3, 40}) {
      for (const Types& types : kTypes) {
        Rows x(types.x, rows, d);
        Rows dy(types.residual, rows, d);
        Rows weight(types.weight, 1, d);
        cases::Fill(random_, Values::kMixed, 0, x);
        cases::Fill(random_, Values::kNormal, 0, dy);
        cases::Fill(random_, Values::kSpecial, 0, weight);
        const Rows dx(types.y, rows, d);
        const Rows dw(types.weight, 1, d);
        const Rows db(types.y, 1, d);
        const std::vector<float> rstd(rows, 1.0f);
        BackwardOperands all;
        all.x = ConstView(ViewOf(x));
        all.dy = ConstView(ViewOf(dy));
        all.weight = ConstView(VectorOf(weight));
        all.dx = View(ViewOf(dx));
        all.dw = View(VectorOf(dw));
        all.db = View(VectorOf(db));
        for (const EpsPlacement placement :
             {EpsPlacement::inside, EpsPlacement::outside, EpsPlacement::floor}) {
          for (const bool saved : {false, true}) {
            for (const bool add : {false, true}) {
              BackwardOperands operands = all;
              if (saved) operands.rstd = ConstView(rstd.data(), rows);
              operands.add_to_dx = operands.add_to_dw = add;
              Options options;
              options.eps_placement = placement;
              Expect("d " + std::to_string(d) + ", x " + rmsnorm_dtype_name(types.x),
                     [&] { backward(operands, options, context); });
            }
          }
        }
      }
    }
  }
  RecordProperty("most", std::to_string(most_));
}

// In this test, OpenMP's threads have 64 KiB (OMP_STACKSIZE).
TEST_P(StackTest, OpenMp) {
  const Context context = OnTarget(target_, 4);
  for (const Types& types : kTypes) {
    const size_t rows = 300;
    const size_t d = 8200;
    Rows x(types.x, rows, d);
    Rows residual(types.residual, rows, d);
    cases::Fill(random_, Values::kMixed, 0, x);
    cases::Fill(random_, Values::kNormal, 0, residual);
    const Rows y(types.y, rows, d);
    const Rows dw(types.y, 1, d);
    ForwardOperands operands;
    operands.x = ConstView(ViewOf(x));
    operands.residual = operands.gate = ConstView(ViewOf(residual));
    operands.y = View(ViewOf(y));
    forward(operands, {}, context);
    BackwardOperands gradients;
    gradients.x = ConstView(ViewOf(x));
    gradients.dy = ConstView(ViewOf(residual));
    gradients.dx = View(ViewOf(y));
    gradients.dw = View(VectorOf(dw));
    backward(gradients, {}, context);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, StackTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
