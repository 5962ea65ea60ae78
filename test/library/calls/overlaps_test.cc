// SPDX-License-Identifier: Apache-2.0
// Which layouts of operands are refused because they share bytes, within a call and between calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "argument_call.h"

namespace rmsnorm::test {
namespace {

using cases::OperandSet;

bool Meet(const Row& a, const Row& b) { return a.begin < b.end && b.begin < a.end; }

bool AnyMeet(const std::vector<Row>& a, const std::vector<Row>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Row& row) {
    return std::any_of(b.begin(), b.end(), [&](const Row& other) { return Meet(row, other); });
  });
}

Row Whole(const std::vector<Row>& rows) {
  Row all = rows[0];
  for (const Row& row : rows) all = {std::min(all.begin, row.begin), std::max(all.end, row.end)};
  return all;
}

// Bytes from one index of the dimensions 2x3 to the next; zeros mean dense rows.
struct Steps {
  ptrdiff_t outer;
  ptrdiff_t inner;

  void Lay(rmsnorm_view& view) const {
    const auto element = static_cast<ptrdiff_t>(rmsnorm_dtype_size(view.dtype));
    if (outer == 0) return;
    view.stride[0] = outer / element;
    view.stride[1] = inner / element;
  }
};

// Moves an output past another operand, `every` elements at a time. The library accepts the output
// if the two share no byte, or if the output replaces the other operand. It may lie between rows of
// the other operand only if both have the same strides in bytes.
void SweepDistances(ArgumentCall& call, Operand output, Operand other, bool same_steps,
                    size_t every) {
  SCOPED_TRACE(std::string(kOperandRules[output].name) + " over " + kOperandRules[other].name);
  const bool may_replace = kOperandRules[output].in_place_of == other;
  const std::vector<Row> others = call.RowsOf(other);
  const size_t element = rmsnorm_dtype_size(call[output].dtype);
  const bool is_alike = same_steps && element == rmsnorm_dtype_size(call[other].dtype);
  const Row one = Whole(call.RowsOf(output));
  const Row all = Whole(others);
  const size_t span = std::max(one.end - one.begin, all.end - all.begin);
  const auto far = static_cast<ptrdiff_t>((span + 31) / 32 * 32);
  for (ptrdiff_t bytes = -far; bytes <= far; bytes += static_cast<ptrdiff_t>(every * element)) {
    SCOPED_TRACE(bytes);
    call[output].data = static_cast<const char*>(call[other].data) + bytes;
    const std::vector<Row> rows = call.RowsOf(output);
    const bool refused = AnyMeet(rows, others) || (!same_steps && Meet(Whole(rows), all));
    if (!refused || (may_replace && is_alike && bytes == 0)) {
      call.ExpectAccepted();
      continue;
    }
    const std::string message = call.ExpectRefused(RMSNORM_ERROR_OVERLAP);
    // The message may name either of two outputs first.
    const auto says = [&](Operand a, Operand b) {
      return Begins(message, kOperandRules[a].name + std::string(": overlaps ") +
                                 kOperandRules[b].name + " ");
    };
    EXPECT_TRUE(says(output, other) || (call.IsOutput(other) && says(other, output))) << message;
    EXPECT_EQ(may_replace, Begins(message, "*; in place means the same data, strides")) << message;
  }
}

// Each output of a call against each other operand.
TEST(Overlap, EveryDistance) {
  constexpr Steps kDense = {0, 0};
  constexpr Steps kWithRoom = {288, 96};
  struct Sweep {
    Steps output;
    Steps other;
    rmsnorm_dtype dtype;
    size_t every;
  };
  const Sweep sweeps[] = {{kWithRoom, kWithRoom, RMSNORM_F32, 1},
                          {kDense, kDense, RMSNORM_F32, 1},
                          {kWithRoom, kWithRoom, RMSNORM_F16, 1},
                          {kDense, kDense, RMSNORM_F16, 1},
                          {{144, 48}, kWithRoom, RMSNORM_F32, 4},
                          {{288, 32}, {288, 32}, RMSNORM_F32, 4},   // three heads of nine
                          {{96, 192}, {96, 192}, RMSNORM_F32, 4}};  // the first dimension innermost
  for (const EntryPoint& entry : EntryPoints()) {
    const bool takes_pointers = HasWords(entry, {"rows"});
    if (!HasWords(entry, {"call"}) && !takes_pointers) continue;
    SCOPED_TRACE(entry.words + ", " + entry.text);
    const bool is_plain = HasWords(entry, {"plain"});
    const OperandSet given = ArgumentCall(entry).operands.given;
    for (size_t i = takes_pointers ? 1 : 0; i < (is_plain ? std::size(sweeps) : 2); ++i) {
      const Sweep& sweep = sweeps[i];
      const bool same_steps = sweep.output.inner == sweep.other.inner;
      internal::ForEachOperand(given, [&](Operand output) {
        const bool has_types = kOperandRules[output].dtype == 0 && output != internal::kResidualOut;
        internal::ForEachOperand(given & ~cases::SetOf(output), [&](Operand other) {
          ArgumentCall call(entry);
          if (!call.IsOutput(output) || (sweep.dtype != RMSNORM_F32 && !has_types)) return;
          if (has_types && !takes_pointers) call[output].dtype = sweep.dtype;
          sweep.output.Lay(call[output]);
          sweep.other.Lay(call[other]);
          SweepDistances(call, output, other, same_steps, is_plain ? sweep.every : 4);
        });
      });
    }
  }
}

// Many calls at once are refused exactly where two of them are: where an output of one shares bytes
// with an operand of the other, and perhaps where it lies between its rows. In place applies only
// within one call. The message names the first call that overlaps an earlier one, and the first of
// these.
TEST(Overlap, BetweenManyCalls) {
  constexpr size_t kCalls = 12;
  constexpr size_t kHead = 4;
  cases::Random random(98);
  std::vector<float> memory(4000);
  rmsnorm_view x[kCalls];
  rmsnorm_view y[kCalls];
  rmsnorm_operands operands[kCalls];
  size_t accepted = 0;
  size_t refused = 0;
  const auto run = [&](const std::vector<size_t>& chosen) {
    std::vector<rmsnorm_call> calls;
    for (const size_t i : chosen) calls.push_back({nullptr, &operands[i], nullptr});
    return rmsnorm_forward_all(calls.data(), calls.size(), nullptr);
  };
  // Tests two calls, and returns the message for the same two among all.
  const auto message_of_two = [&](size_t first, size_t second) {
    bool must_refuse = false;
    bool may_refuse = false;
    for (const auto& [output, other] :
         {std::pair(y[first], y[second]), {y[first], x[second]}, {y[second], x[first]}}) {
      const std::vector<Row> a = RowsOf(output, output.ndim - 1);
      const std::vector<Row> b = RowsOf(other, other.ndim - 1);
      must_refuse |= AnyMeet(a, b);
      may_refuse |= Meet(Whole(a), Whole(b));
    }
    const rmsnorm_status status = run({first, second});
    EXPECT_TRUE(status == RMSNORM_OK ? !must_refuse : may_refuse) << first << " and " << second;

    if (status == RMSNORM_OK) return std::string();
    EXPECT_EQ(RMSNORM_ERROR_OVERLAP, status);
    const std::string text = rmsnorm_error_message();
    EXPECT_TRUE(Begins(text, "calls[*].y: overlaps calls[*].")) << text;
    std::string among_all;
    for (const char c : text) {
      among_all += c == '0'   ? std::to_string(first)
                   : c == '1' ? std::to_string(second)
                              : std::string{c};
    }
    return among_all;
  };
  for (int repeat = 0; repeat < 4000; ++repeat) {
    // The heads of a fused buffer, in two blocks of rows: in place, or from inputs that overlap.
    // Some are moved, or have another layout.
    const size_t shape[] = {2, 3, kHead};
    const auto row = static_cast<ptrdiff_t>(kHead * kCalls + random.Below(3));
    const ptrdiff_t stride[] = {row * 3 + static_cast<ptrdiff_t>(random.Below(2)), row, 1};
    for (size_t i = 0; i < kCalls; ++i) {
      const size_t block = random.Below(2) * 1000;
      float* const data = &memory[1000 + block + i * kHead];
      y[i] = rmsnorm_tensor(data, RMSNORM_F32, 3, shape, stride);
      if (random.OneIn(60)) y[i].data = data + random.Below(400);
      if (random.OneIn(60)) y[i].data = data + random.Below(2 * kHead) - kHead;
      if (random.OneIn(60)) y[i].shape[random.Below(2)] = 1;
      if (random.OneIn(60)) ++y[i].stride[0];
      const bool in_place = random.OneIn(2);
      if (in_place && random.OneIn(30)) y[i].data = &memory[3200 + random.Below(400)];
      x[i] = y[i];
      if (!in_place) {
        x[i].data = &memory[3200 + random.Below(400)];
        x[i].stride[0] = static_cast<ptrdiff_t>(random.Below(100));
        x[i].stride[1] = static_cast<ptrdiff_t>(random.Below(10));
      }
      operands[i] = rmsnorm_no_operands();
      operands[i].x = &x[i];
      operands[i].y = &y[i];
    }
    std::string expected;
    for (size_t i = 0; i < kCalls && expected.empty(); ++i) {
      for (size_t j = 0; j < i && expected.empty(); ++j) expected = message_of_two(j, i);
    }
    std::vector<size_t> all(kCalls);
    std::iota(all.begin(), all.end(), size_t{0});
    std::fill(memory.begin(), memory.end(), 1.5f);
    const rmsnorm_status status = run(all);
    EXPECT_EQ(expected.empty() ? RMSNORM_OK : RMSNORM_ERROR_OVERLAP, status);
    if (status != RMSNORM_OK) {
      EXPECT_EQ(expected, rmsnorm_error_message());
      EXPECT_EQ(std::vector<float>(memory.size(), 1.5f), memory) << "something was written";
    }
    ++(status == RMSNORM_OK ? accepted : refused);
  }
  EXPECT_GT(accepted, 500u);
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace rmsnorm::test
