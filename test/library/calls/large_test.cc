// SPDX-License-Identifier: Apache-2.0
// Sizes beyond 32 bits: more than 2^31 elements, more than 2^32 bytes, strides as wide, and rows
// longer than f32 counts. The expected results are simple numbers that follow from the definition,
// or come from a small call. Most memory is never written: such pages are zeros and take no room.
// The rest is up to 5 GB, so Meson has this as a benchmark, which the suite leaves out:
//
//     tools/dev test --benchmark large
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <rmsnorm/rmsnorm.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cases/expected.h"
#include "cases/list.h"
#include "cases/prepared_call.h"
#include "cases/run.h"
#include "fixtures.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kPast31 = (size_t{1} << 31) + 1;

// Zeros of which only the pages that are written take memory.
template <class T>
class Sparse {
 public:
  // Throws if all bytes are to be written and there is no memory for them and half a GB more.
  explicit Sparse(size_t count, bool is_written = false)
      : bytes_(count * sizeof(T)),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    std::ifstream file("/proc/meminfo");
    std::string name;
    size_t kilobytes = 0;
    while (name != "MemAvailable:" && file >> name >> kilobytes) file.ignore(100, '\n');
    const size_t wanted = is_written ? (bytes_ >> 10) + (size_t{1} << 19) : 0;
    if (memory_ == MAP_FAILED || kilobytes < wanted) {
      throw std::runtime_error("this takes " + std::to_string(wanted >> 10) +
                               " MB of memory, and " + std::to_string(kilobytes >> 10) +
                               " MB are available");
    }
  }
  ~Sparse() { munmap(memory_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;

  T* data() const { return static_cast<T*>(memory_); }
  T& operator[](size_t index) const { return data()[index]; }

 private:
  size_t bytes_;
  void* memory_;
};

// A bf16 number; the value must be one.
bf16 Bf16(double value) {
  const bf16 number = {static_cast<uint16_t>(Encode(RMSNORM_BF16, value))};
  EXPECT_EQ(value, Decode(RMSNORM_BF16, number.bits));
  return number;
}

using Elements = std::vector<std::pair<size_t, double>>;

// Expects these elements, and +0 everywhere else. Overwrites the elements.
void ExpectZerosBut(const Elements& elements, size_t count, const Sparse<bf16>& values) {
  for (const auto& [index, value] : elements) {
    ASSERT_EQ(value, Decode(RMSNORM_BF16, values[index].bits)) << "element " << index;
    values[index] = {};
  }
  EXPECT_EQ(0, values[0].bits);
  EXPECT_EQ(0, std::memcmp(values.data(), values.data() + 1, (count - 1) * sizeof(bf16)))
      << "another element is not 0";
}

class LargeTest : public testing::TestWithParam<std::string> {
 protected:
  const std::string target_ = GetParam();
  const Context context_ = OnTarget(target_);
};

// ------------------------------------------------------------------ long rows

// Sums of 2^3 and of 2^-137, which f32 only holds as a subnormal: that row is cold. The divisor is
// float(d), which is 2^31.
template <class T>
void TestSums(T (*number)(double), const Context& context) {
  const Sparse<T> x(kPast31);
  Options options;
  options.eps = 0;
  for (const double scale : {0x1p0, 0x1p-70}) {
    x[kPast31 / 2] = x[kPast31 - 1] = number(2 * scale);
    double sum = 0;
    float rstd = 0;
    ForwardOperands operands;
    operands.x = {x.data(), kPast31};
    operands.sums_out = {&sum, 1};
    operands.rstd = {&rstd, 1};
    forward(operands, options, context);
    EXPECT_EQ(8 * scale * scale, sum);
    EXPECT_EQ(0x1p14 / scale, double{rstd});
  }
}

TEST_P(LargeTest, SumsOfALongRow) {
  TestSums<float>([](double value) { return static_cast<float>(value); }, context_);
  TestSums<bf16>(Bf16, context_);
}

TEST_P(LargeTest, AdditionOfALongRow) {
  const Sparse<bf16> x(kPast31);
  const Sparse<bf16> residual(kPast31, true);  // and its sum with x
  x[kPast31 / 2] = Bf16(2);
  x[kPast31 - 1] = residual[kPast31 - 1] = Bf16(1);
  residual[1] = Bf16(0x1p-60);
  float rstd = 0;
  ForwardOperands operands;
  operands.x = {x.data(), kPast31};
  operands.residual = {residual.data(), kPast31};
  operands.residual_out = {residual.data(), kPast31};
  operands.rstd = {&rstd, 1};
  Options options;
  options.eps = 0;
  forward(operands, options, context_);
  EXPECT_EQ(0x1p14f, rstd);
  ExpectZerosBut({{1, 0x1p-60}, {kPast31 / 2, 2}, {kPast31 - 1, 2}}, kPast31, residual);
}

// f32 does not hold these lengths. The reference, with bounds from binary64, and then every target.
TEST_P(LargeTest, LengthsThatF32Rounds) {
  const cases::List list(R"(
forward,x+y=f32|bf16,weight=f32,rstd=f32,rows=2,d=16777219,threads=2
forward,x+residual+residual_out+y=f16,weight=bf16,sums_out=f64,rows=1,d=33554435
forward,x=bf16,weight=f32,q=i8,scale=f32,zero=i8,rows=1,d=16777219
backward,x+dy+dx=f32|bf16,dw=f32,db=f32,rows=2,d=16777219,threads=2
)");
  cases::Runner runner;
  list.ForEach([&](const cases::Calls& calls) {
    EXPECT_EQ("", cases::FaultOf(runner, calls, target_)) << cases::Text(calls);
    if (target_ != kReference) return;
    EXPECT_EQ("", cases::FormulaFault(calls[0], runner.problem())) << cases::Text(calls);
  });
}

// ------------------------------------------------------------------ many rows

// (1 + 3) / 4 is 1 in each row of ones; eps makes the other rows 0.
TEST_P(LargeTest, ManyRows) {
  for (const size_t d : Sizes{1, 4097}) {
    const size_t rows = kPast31 / d + 1;
    const Sparse<bf16> y(rows * d, true);
    Elements expected;
    for (const size_t row : {size_t{1}, rows / 2, rows - 1}) {
      for (size_t j = 0; j < d; ++j) {
        y[row * d + j] = Bf16(1);
        expected.emplace_back(row * d + j, 0.5);
      }
    }
    ForwardOperands operands;
    operands.x = {y.data(), rows, d};
    operands.y = {y.data(), rows, d};
    Options options;
    options.eps = 3;
    forward(operands, options, context_);
    ExpectZerosBut(expected, rows * d, y);
  }
}

// All rows of x are the same memory, so each row of q equals the result of a call with one row.
TEST_P(LargeTest, ManyQuantisedRows) {
  const size_t d = 4097;
  const size_t rows = kPast31 / d + 1;
  Random random(7);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, 1, d);
  const Sparse<int8_t> q(rows * d, true);
  std::vector<float> scale(rows);
  std::vector<int8_t> expected(d);
  float expected_scale = 0;
  ForwardOperands operands;
  operands.x = ConstView(ViewOf(x));
  operands.q = {expected.data(), 1, d};
  operands.scale = {&expected_scale, 1};
  forward(operands, {}, context_);
  operands.x = {x.row(0), Dtype::f32, {rows, d}, {0, 1}};
  operands.q = {q.data(), rows, d};
  operands.scale = {scale.data(), rows};
  forward(operands, {}, context_);
  EXPECT_EQ(0, std::memcmp(expected.data(), q.data(), d));
  EXPECT_EQ(0, std::memcmp(q.data(), q.data() + d, (rows - 1) * d));
  EXPECT_EQ(std::vector<float>(rows, expected_scale), scale);
}

// With an x of zeros, dx is dy * 2. dy is in dx's place.
TEST_P(LargeTest, GradientByManyRows) {
  const size_t d = 4097;
  const size_t rows = kPast31 / d + 1;
  const std::vector<bf16> x(d);
  const std::vector<float> weight(d, 2);
  const float rstd = 1;
  const Sparse<bf16> dx(rows * d, true);
  const size_t last = rows * d - 1;
  dx[1] = dx[last / 2] = dx[last] = Bf16(3);
  BackwardOperands operands;
  operands.x = {x.data(), {rows, d}, {0, 1}};
  operands.dy = {dx.data(), rows, d};
  operands.weight = {weight.data(), d};
  operands.rstd = {&rstd, {rows}, {0}};
  operands.dx = {dx.data(), rows, d};
  backward(operands, {}, context_);
  ExpectZerosBut({{1, 6}, {last / 2, 6}, {last, 6}}, rows * d, dx);
}

// Sums over more than 2^31 rows, of which three are not 0: 1 * 1 + 2 * 3 + 4 * 5, and 1 + 3 + 5.
TEST_P(LargeTest, GradientsByColumnsOfManyRows) {
  const Sparse<bf16> x(kPast31);
  const Sparse<bf16> dy(kPast31);
  const float rstd = 1;
  float dw = 0;
  float db = 0;
  double number = 1;
  for (const size_t row : {size_t{1}, kPast31 / 2, kPast31 - 1}) {
    x[row] = Bf16(number);
    dy[row] = Bf16(number + 1);
    number *= 2;
  }
  BackwardOperands operands;
  operands.x = {x.data(), kPast31, 1};
  operands.dy = {dy.data(), kPast31, 1};
  operands.rstd = {&rstd, {kPast31}, {0}};
  operands.dw = {&dw, 1};
  operands.db = {&db, 1};
  backward(operands, {}, context_);
  EXPECT_EQ(1 * 2 + 2 * 3 + 4 * 5, dw);
  EXPECT_EQ(2 + 3 + 5, db);
}

// ------------------------------------------------------------------ wide strides

// Makes the call of a line whose operands lie in sparse memory.
void TestSparse(const cases::Calls& calls, const std::string& target) {
  using cases::Operand;
  const cases::Case& c = calls[0];
  const cases::Problem problem(c);
  const cases::Layout layout(c);
  std::deque<Sparse<uint8_t>> memory;
  uint8_t* blocks[internal::kOperands];
  for (int i = 0; i < internal::kOperands; ++i) {
    blocks[i] = memory.emplace_back(layout.block[i].bytes + 1).data();
  }
  internal::ForEachOperand(c.Given(),
                           [&](Operand o) { layout.Write(problem.before(o), o, blocks); });
  const cases::PreparedCall call(calls, {cases::OperandsAt(c, layout, blocks)},
                                 cases::ContextOf(c, target.c_str()));
  ASSERT_EQ(RMSNORM_OK, call.Run()) << rmsnorm_error_message();
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    const Rows& expected = c.IsOutput(o) ? problem.after(o) : problem.before(o);
    Rows got = expected;
    layout.Read(blocks, o, got);
    EXPECT_TRUE(SameBits(expected, got))
        << internal::kOperandRules[o].name << " of " << cases::Text(c);
  });
}

// The rows of every operand of a case lie more than 2^31 elements and 2^32 bytes apart.
TEST_P(LargeTest, WideStrides) {
  const cases::List list(R"(
$T=f32|f16|bf16
forward,x+residual+residual_out+y=$T,weight+bias=f32,weight_per+bias_per=tensor/row,rows=3,d=300|9000,
  rstd=f32,sums_out=f64,q=i8,scale=f32,zero=i8,threads=1|2
forward,x+gate+y=$T,post_norm_weight=bf16,rows=3,d=300,threads=1|2
forward,x+y=$T,sums=f64,rows=3,d=300
backward,x+dy+dx=$T,weight+dw+db=f32,weight_per+dw_per+db_per=tensor/row,rstd=f32,rows=3,d=300|9000,threads=1|2
)");
  list.ForEach([&](cases::Calls calls) {
    for (const cases::Order order : {cases::Order::kRising, cases::Order::kFalling}) {
      for (cases::OperandCase& operand : calls[0].operand) {
        operand.order = order;
        operand.gap = (size_t{1} << 32) + 3;
      }
      TestSparse(calls, target_);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Targets, LargeTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
