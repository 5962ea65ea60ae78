// SPDX-License-Identifier: Apache-2.0
// Several norms at once give the bits of separate calls, in one parallel region. Also tests refused
// calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "random_rows.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

// An executor that counts calls and parts, and runs the last part first.
struct CountingExecutor {
  int calls = 0;
  size_t parts = 0;

  Context With(const std::string& target, int32_t threads) {
    Context context = OnTarget(target, threads);
    context.parallel_context = this;
    context.parallel_for = [](void* own, size_t count, rmsnorm_task task, void* state) {
      CountingExecutor& executor = *static_cast<CountingExecutor*>(own);
      ++executor.calls;
      executor.parts += count;
      for (size_t i = count; i-- > 0;) task(state, i);
    };
    return context;
  }
};

Tensor RandomTensor(Random& random, rmsnorm_dtype dtype, size_t rows, size_t d) {
  Tensor tensor(dtype, rows, d);
  FillMixed(random, tensor);
  return tensor;
}

Tensor RandomWeight(Random& random, rmsnorm_dtype dtype, size_t d) {
  Tensor weight(dtype, 1, d);
  FillWeight(random, weight);
  return weight;
}

// Heads `first` to `first + count` of each token; the rows of the buffer are tokens.
View Heads(const Tensor& tokens, size_t first, size_t count, size_t d) {
  const size_t shape[] = {tokens.rows(), count, d};
  const ptrdiff_t stride[] = {static_cast<ptrdiff_t>(tokens.d()), static_cast<ptrdiff_t>(d), 1};
  const size_t element = rmsnorm_dtype_size(tokens.dtype());
  return View(rmsnorm_tensor(static_cast<const char*>(tokens.data()) + first * d * element,
                             tokens.dtype(), 3, shape, stride));
}

class SeveralTest : public testing::TestWithParam<std::string> {
 protected:
  // Makes the calls on copies of some tensors, one by one and all at once, and compares the
  // tensors. `make` turns tensors into calls. It runs on one thread, on OpenMP's threads, and with
  // an executor, which must be called once if `is_large`.
  void ExpectSameAsSeparate(const std::vector<Tensor>& tensors, bool is_large,
                            const std::function<std::vector<Call>(std::vector<Tensor>&)>& make) {
    const std::string target = GetParam();
    std::vector<Tensor> expected = tensors;
    for (const Call& call : make(expected)) {
      if (call.module != nullptr) {
        call.module->forward(call.operands, OnTarget(target, 1));
      } else {
        forward(call.operands, call.options, OnTarget(target, 1));
      }
    }
    const auto compare = [&](const Context& context) {
      std::vector<Tensor> actual = tensors;
      const std::vector<Call> calls = make(actual);
      forward_all(calls.data(), calls.size(), context);
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(SameBits(expected[i], actual[i])) << "tensor " << i;
      }
    };
    for (const int32_t threads : {1, 4, 0}) {
      SCOPED_TRACE(threads);
      compare(OnTarget(target, threads));
    }
    CountingExecutor executor;
    compare(executor.With(target, 4));
    // The reference is so slow that it splits even little work.
    if (!is_large && target == kReference) return;
    EXPECT_EQ(is_large ? 1 : 0, executor.calls);
    EXPECT_EQ(is_large ? 4u : 0u, executor.parts);
  }

  Random random_{97};
};

// q and k in a buffer [tokens, (q heads + k heads + v heads) * d], in place, each with a weight.
TEST_P(SeveralTest, QAndKOfAFusedBuffer) {
  const size_t d = 128;
  for (const rmsnorm_dtype dtype : kDtypes) {
    const Tensor q_weight = RandomWeight(random_, dtype, d);
    const Tensor k_weight = RandomWeight(random_, RMSNORM_F32, d);
    for (const size_t tokens : SizeList{1, 5, 300}) {
      SCOPED_TRACE(std::string(rmsnorm_dtype_name(dtype)) + ", " + std::to_string(tokens));
      ExpectSameAsSeparate({RandomTensor(random_, dtype, tokens, 12 * d)}, tokens == 300,
                           [&](std::vector<Tensor>& tensors) {
                             Call q;
                             q.operands.x = q.operands.y = Heads(tensors[0], 0, 8, d);
                             q.operands.weight = ConstView(q_weight.vector());
                             Call k;
                             k.operands.x = k.operands.y = Heads(tensors[0], 8, 2, d);
                             k.operands.weight = ConstView(k_weight.vector());
                             k.options.eps = 1e-6f;
                             k.options.weight_offset = 1;
                             return std::vector<Call>{q, k};
                           });
    }
  }
}

// The two norms of multi-head latent attention: 1,536 and 512 elements of rows of 2,112.
TEST_P(SeveralTest, LatentAttention) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    const Tensor q_weight = RandomWeight(random_, dtype, 1536);
    const Tensor kv_weight = RandomWeight(random_, dtype, 512);
    const std::vector<Tensor> tensors = {RandomTensor(random_, dtype, 110, 2112),
                                         Tensor(dtype, 110, 1536), Tensor(RMSNORM_F32, 110, 512)};
    const size_t element = rmsnorm_dtype_size(dtype);
    for (const bool in_place : {false, true}) {
      ExpectSameAsSeparate(tensors, true, [&](std::vector<Tensor>& to) {
        Call q;
        q.operands.x = ConstView(rmsnorm_rows(to[0].data(), dtype, 110, 1536, 2112));
        q.operands.weight = ConstView(q_weight.vector());
        q.operands.y = in_place ? View(*q.operands.x.get()) : View(to[1].view());
        q.options.rounding = Rounding::before_weight;
        Call kv;
        kv.operands.x = ConstView(
            rmsnorm_rows(static_cast<char*>(to[0].data()) + 1536 * element, dtype, 110, 512, 2112));
        kv.operands.weight = ConstView(kv_weight.vector());
        kv.operands.y = in_place ? View(*kv.operands.x.get()) : View(to[2].view());
        return std::vector<Call>{q, kv};
      });
    }
  }
}

// Calls with nothing in common: modules and options, residuals, biases, sums, no rows.
TEST_P(SeveralTest, OfEveryForm) {
  Options outside;
  outside.eps_placement = EpsPlacement::outside;
  outside.weight_offset = 1;
  RmsNorm module(1000, outside, Dtype::bf16);
  module.set_weight(ConstView(RandomWeight(random_, RMSNORM_F32, 1000).vector()));
  const Tensor weight = RandomWeight(random_, RMSNORM_F16, 300);
  const Tensor bias = RandomWeight(random_, RMSNORM_BF16, 300);
  const Tensor x = RandomTensor(random_, RMSNORM_BF16, 70, 1000);
  std::vector<double> sums(200);
  for (double& sum : sums) sum = 64 * (0.5 + random_.Uniform());
  const std::vector<Tensor> tensors = {RandomTensor(random_, RMSNORM_F32, 70, 1000),
                                       Tensor(RMSNORM_BF16, 70, 1000),
                                       RandomTensor(random_, RMSNORM_F16, 150, 300),
                                       Tensor(RMSNORM_F32, 1, 70),
                                       Tensor(RMSNORM_F32, 200, 64),
                                       RandomTensor(random_, RMSNORM_F32, 200, 64),
                                       Tensor(RMSNORM_F16, 70, 1000)};
  ExpectSameAsSeparate(tensors, true, [&](std::vector<Tensor>& to) {
    std::vector<Call> calls(5);
    calls[0].module = &module;
    calls[0].operands.x = ConstView(x.view());
    calls[0].operands.residual = calls[0].operands.residual_out = View(to[0].view());
    calls[0].operands.y = View(to[1].view());
    calls[0].operands.rstd = View(to[3].vector());
    calls[1].operands.x = calls[1].operands.y = View(to[2].view());
    calls[1].operands.weight = ConstView(weight.vector());
    calls[1].operands.bias = ConstView(bias.vector());
    calls[1].options.eps_placement = EpsPlacement::floor;
    calls[2].operands.x = ConstView(to[5].view());
    calls[2].operands.sums = {sums.data(), sums.size()};
    calls[2].operands.y = View(to[4].view());
    calls[3].operands.x = calls[3].operands.y = View(static_cast<float*>(nullptr), 0, 17);
    calls[4].module = &module;
    calls[4].operands.x = ConstView(x.view());  // the same x as in the first call
    calls[4].operands.y = View(to[6].view());
    return calls;
  });
}

// Each call alone is too short for a second thread.
TEST_P(SeveralTest, OfManyShortCallsAreSpread) {
  const size_t count = 50;
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    tensors.push_back(RandomTensor(random_, kDtypes[i % 3], 20, 100 + 10 * i));
  }
  ExpectSameAsSeparate(tensors, true, [&](std::vector<Tensor>& to) {
    std::vector<Call> calls(count);
    for (size_t i = 0; i < count; ++i) {
      calls[i].operands.x = calls[i].operands.y = View(to[i].view());
      calls[i].options.eps = 0.01f * static_cast<float>(i);
    }
    return calls;
  });
}

// A few rows that are too long for one thread, and many short ones.
TEST_P(SeveralTest, LongRowsBesideShortOnes) {
  const std::vector<Tensor> tensors = {RandomTensor(random_, RMSNORM_F32, 1, 200'000),
                                       RandomTensor(random_, RMSNORM_BF16, 2000, 64),
                                       RandomTensor(random_, RMSNORM_F16, 2, 100'000)};
  for (const int32_t threads : {1, 3, 8}) {
    std::vector<Tensor> expected = tensors;
    for (Tensor& tensor : expected) {
      forward(NormOperands(tensor, nullptr, tensor), {}, OnTarget(kReference, 1));
    }
    std::vector<Tensor> actual = tensors;
    const std::string target = GetParam();
    std::vector<Call> calls(3);
    for (size_t i = 0; i < 3; ++i) {
      calls[i].operands = NormOperands(actual[i], nullptr, actual[i]);
    }
    CountingExecutor executor;
    forward_all(calls.data(), 3, OnTarget(target, threads));
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(expected[i], actual[i])) << i;
    actual = tensors;
    forward_all(calls.data(), 3, executor.With(target, threads));
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(expected[i], actual[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SeveralTest, testing::ValuesIn(SupportedTargets()), Name);

// -------------------------------------------------------------------------------- refused calls

// Three correct calls; a test spoils one.
struct Calls {
  Calls() {
    for (size_t i = 0; i < 3; ++i) {
      x[i] = rmsnorm_rows(memory + 100 * i, RMSNORM_F32, 3, 8, 8);
      y[i] = rmsnorm_rows(memory + 100 * i + 50, RMSNORM_F32, 3, 8, 8);
      operands[i] = rmsnorm_no_operands();
      operands[i].x = &x[i];
      operands[i].y = &y[i];
      options[i] = rmsnorm_default_options();
      calls[i] = {nullptr, &operands[i], &options[i]};
    }
    std::fill(std::begin(memory), std::end(memory), 1.5f);
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  float memory[300];
  rmsnorm_view x[3];
  rmsnorm_view y[3];
  rmsnorm_operands operands[3];
  rmsnorm_options options[3];
  rmsnorm_context context = rmsnorm_default_context();
  rmsnorm_call calls[3];
};

// Expects an error whose message begins with one of these.
void ExpectRefused(rmsnorm_status status, const std::vector<std::string>& begins,
                   const std::function<void(Calls&)>& spoil) {
  Calls c;
  spoil(c);
  EXPECT_EQ(status, rmsnorm_forward_all(c.calls, 3, &c.context));
  const std::string message = rmsnorm_error_message();
  EXPECT_TRUE(std::any_of(begins.begin(), begins.end(),
                          [&](const std::string& begin) { return message.find(begin) == 0; }))
      << message << " does not begin with " << begins[0];
  for (const float number : c.memory) ASSERT_EQ(1.5f, number) << "something was written";
}

void ExpectAccepted(const std::function<void(Calls&)>& spoil) {
  Calls c;
  spoil(c);
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward_all(c.calls, 3, &c.context)) << rmsnorm_error_message();
}

TEST(SeveralRefused, SayWhichCallIsWrong) {
  ExpectAccepted([](Calls&) {});
  for (size_t i = 0; i < 3; ++i) {
    const std::string call = "calls[" + std::to_string(i) + "].";
    ExpectRefused(RMSNORM_ERROR_NULL, {call + "operands"},
                  [&](Calls& c) { c.calls[i].operands = nullptr; });
    ExpectRefused(RMSNORM_ERROR_NULL, {call + "x: "}, [&](Calls& c) { c.operands[i].x = nullptr; });
    ExpectRefused(RMSNORM_ERROR_SHAPE, {call + "y: 4 in dimension 0, but x has 3"},
                  [&](Calls& c) { c.y[i].shape[0] = 4; });
    ExpectRefused(RMSNORM_ERROR_OPERAND, {call + "dy: "},
                  [&](Calls& c) { c.operands[i].dy = &c.x[i]; });
    ExpectRefused(RMSNORM_ERROR_OPTION, {call + "options: eps "},
                  [&](Calls& c) { c.options[i].eps = -1; });
    ExpectRefused(RMSNORM_ERROR_OPTION, {call + "options: weight_offset "},
                  [&](Calls& c) { c.options[i].weight_offset = 1; });
    ExpectAccepted([&](Calls& c) { c.calls[i].options = nullptr; });
  }
}

TEST(SeveralRefused, TheCallAsAWhole) {
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward_all(nullptr, 0, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_forward_all(nullptr, 1, nullptr));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("calls: ")) << rmsnorm_error_message();
  ExpectRefused(RMSNORM_ERROR_OPTION, {"context: threads "},
                [](Calls& c) { c.context.threads = -1; });
  ExpectRefused(RMSNORM_ERROR_TARGET, {"target: "}, [](Calls& c) { c.context.target = "PDP11"; });
}

// A module has options, a weight and a length of rows.
TEST(SeveralRefused, WhatAModuleHas) {
  const RmsNorm module(8);
  const RmsNorm other(9);
  const auto with_module = [&](Calls& c) {
    c.calls[1].module = module.get();
    c.calls[1].options = nullptr;
  };
  ExpectAccepted(with_module);
  ExpectRefused(RMSNORM_ERROR_OPERAND, {"calls[1].options: "}, [&](Calls& c) {
    with_module(c);
    c.calls[1].options = &c.options[1];
  });
  const rmsnorm_view weight = rmsnorm_vector(&module, RMSNORM_F32, 8);
  ExpectRefused(RMSNORM_ERROR_OPERAND, {"calls[1].weight: "}, [&](Calls& c) {
    with_module(c);
    c.operands[1].weight = &weight;
  });
  ExpectRefused(RMSNORM_ERROR_SHAPE, {"calls[1].x: "}, [&](Calls& c) {
    with_module(c);
    c.calls[1].module = other.get();
  });
}

// An output of one call overlaps an operand of another. In place applies only within one call.
TEST(SeveralRefused, OverlapsBetweenCalls) {
  const auto refused = [](const std::string& a, const std::string& b,
                          const std::function<void(Calls&)>& spoil) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, {a + ": overlaps " + b, b + ": overlaps " + a}, spoil);
  };
  for (const ptrdiff_t elements : {0, 1, -1, 23, -23}) {
    refused("calls[0].y", "calls[2].x",
            [&](Calls& c) { c.y[0].data = static_cast<const float*>(c.x[2].data) + elements; });
    refused("calls[0].y", "calls[2].y",
            [&](Calls& c) { c.y[0].data = static_cast<const float*>(c.y[2].data) + elements; });
    refused("calls[2].y", "calls[1].x",
            [&](Calls& c) { c.y[2].data = static_cast<const float*>(c.x[1].data) + elements; });
    ExpectAccepted(
        [&](Calls& c) { c.x[0].data = static_cast<const float*>(c.x[2].data) + elements; });
  }
  for (const ptrdiff_t elements : {24, -24}) {
    ExpectAccepted(
        [&](Calls& c) { c.y[0].data = static_cast<const float*>(c.y[2].data) + elements; });
  }
  // Slices of one buffer with rows of 20 elements: separate, and one element too close.
  for (const ptrdiff_t elements : {8, 12}) {
    const auto slices = [&](ptrdiff_t more) {
      return [=](Calls& c) {
        c.x[0].stride[0] = c.x[1].stride[0] = 20;
        c.x[1].data = c.memory + elements + more;
        c.y[0] = c.x[0];
        c.y[1] = c.x[1];
      };
    };
    ExpectAccepted(slices(0));
    ExpectRefused(RMSNORM_ERROR_OVERLAP,
                  {"calls[0].y: overlaps calls[1].", "calls[1].y: overlaps calls[0]."},
                  slices(elements == 8 ? -1 : 1));
  }
  // Two calls read the same tensor.
  ExpectAccepted([](Calls& c) { c.x[0] = c.x[1] = c.x[2]; });
  // Per-row operands, and a weight, which has no rows.
  for (const bool over_weight : {false, true}) {
    Calls c;
    const rmsnorm_view rstd = rmsnorm_vector(c.memory + 290, RMSNORM_F32, 3);
    const rmsnorm_view other =
        rmsnorm_vector(c.memory + (over_weight ? 285 : 292), RMSNORM_F32, over_weight ? 8 : 3);
    c.operands[0].rstd = &rstd;
    (over_weight ? c.operands[1].weight : c.operands[1].rstd) = &other;
    EXPECT_EQ(RMSNORM_ERROR_OVERLAP, rmsnorm_forward_all(c.calls, 3, nullptr));
  }
}

}  // namespace
}  // namespace rmsnorm::test
