// SPDX-License-Identifier: Apache-2.0
#include "tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace rmsnorm::bench {
namespace {

// Drawing a number takes longer than its norm, so the numbers repeat after a prime number of them:
// no two neighbouring rows are the same.
constexpr size_t kDrawn = 65521;

Buffer NormalNumbers(Dtype dtype, size_t count, float mean, float deviation) {
  const size_t drawn = std::min(count, kDrawn);
  std::vector<float> numbers(drawn);
  std::mt19937 random;
  std::normal_distribution<float> distribution(mean, deviation);
  for (float& number : numbers) number = distribution(random);

  const size_t size = rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  Buffer buffer(count * size);
  if (count == 0) return buffer;
  Convert(Dtype::f32, numbers.data(), dtype, buffer.data(), drawn);
  for (size_t done = drawn; done < count; done += drawn) {
    std::memcpy(buffer.data() + done * size, buffer.data(), std::min(drawn, count - done) * size);
  }
  return buffer;
}

size_t ElementsIf(bool given, const Cell& cell) { return given ? cell.elements() : 0; }

}  // namespace

// A module converts its weight between any two types.
void Convert(Dtype from_type, const void* from, Dtype to_type, void* to, size_t count) {
  RmsNorm module(count, Options(), to_type == Dtype::f32 ? from_type : to_type);
  module.set_weight({from, from_type, {count}});
  module.get_weight({to, to_type, {count}});
}

Inputs::Inputs(const Cell& cell)
    : x(NormalNumbers(cell.dtype, cell.elements(), 0.0f, 1.0f)),
      weight(NormalNumbers(cell.dtype, cell.d, 1.0f, 0.25f)),
      bias(NormalNumbers(cell.dtype, cell.d, 0.0f, 0.25f)),
      post_norm_weight(NormalNumbers(cell.dtype, cell.d, 1.0f, 0.5f)),
      residual(NormalNumbers(cell.dtype,
                             ElementsIf(cell.operation->Has(kResidual | kGate | kGradients), cell),
                             0.25f, 0.5f)) {
  const ConstView all(x.data(), cell.dtype, {cell.rows, cell.d});
  Context context;
  context.target = "reference";
  ForwardOperands operands;
  operands.x = all;
  if (cell.operation->Has(kGradients)) {
    rstd.resize(cell.rows);
    operands.rstd = View(rstd.data(), cell.rows);
    forward(operands, Options(), context);
  } else if (cell.operation->Has(kSums)) {
    sums.resize(cell.rows);
    operands.sums_out = View(sums.data(), cell.rows);
    forward(operands, Options(), context);
  }
}

Results::Results(const Cell& cell)
    : y(cell.bytes()),
      residual(cell.operation->Has(kResidual) ? cell.bytes() : 0),
      dw(cell.operation->Has(kGradients) ? cell.d : 0),
      sums(cell.operation->Has(kSumsOut) ? cell.rows : 0),
      q(ElementsIf(cell.operation->Has(kInt8), cell)),
      scale(cell.operation->Has(kInt8) ? cell.rows : 0) {}

void Results::Reset(const Inputs& inputs) {
  std::memset(y.data(), 0xFF, y.bytes());
  std::memcpy(residual.data(), inputs.residual.data(), residual.bytes());
  std::fill(dw.begin(), dw.end(), NAN);
  std::fill(sums.begin(), sums.end(), NAN);
  std::fill(q.begin(), q.end(), int8_t{-128});
  std::fill(scale.begin(), scale.end(), NAN);
}

rmsnorm_peer_case Describe(const Cell& cell, const Inputs& inputs, Results& results) {
  rmsnorm_peer_case what = {};
  what.operation = cell.operation->code;
  what.dtype = static_cast<int32_t>(cell.dtype);
  what.rows = cell.rows;
  what.d = cell.d;
  what.threads = cell.threads;
  what.eps = Options().eps;
  what.x = inputs.x.data();
  what.weight = inputs.weight.data();
  const Operation& operation = *cell.operation;
  if (operation.Has(kY)) what.y = results.y.data();
  if (operation.Has(kBias)) what.bias = inputs.bias.data();
  if (operation.Has(kResidual)) what.residual = results.residual.data();
  if (operation.Has(kPostNormWeight)) what.post_norm_weight = inputs.post_norm_weight.data();
  if (operation.Has(kGate)) what.gate = inputs.residual.data();
  if (operation.Has(kSums)) what.sums = const_cast<double*>(inputs.sums.data());
  if (operation.Has(kSumsOut)) what.sums = results.sums.data();
  if (operation.Has(kInt8)) {
    what.q = results.q.data();
    what.scale = results.scale.data();
  }
  if (operation.Has(kGradients)) {
    what.dy = inputs.residual.data();
    what.rstd = inputs.rstd.data();
    what.dx = results.y.data();
    what.dw = results.dw.data();
  }
  return what;
}

}  // namespace rmsnorm::bench
