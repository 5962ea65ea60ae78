// SPDX-License-Identifier: Apache-2.0
// Decodes with a model of Qwen 3's shape and random weights, and prints tokens a second: once with
// the residual adds, norms and rotary positions of a layer by plain loops, and once by the library.
// Both take turns at each token.
//
//   c++ -std=c++17 -O3 -march=native decode.cc $(pkg-config --cflags --libs rmsnorm)
//   ./a.out 0.6b 40
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <rmsnorm/rmsnorm.hpp>
#include <string_view>
#include <vector>

namespace {

using rmsnorm::bf16;
using Row = std::vector<bf16>;

struct Shape {
  size_t layers, d, q_heads, kv_heads, head, inner, vocabulary;
  size_t q() const { return q_heads * head; }
  size_t kv() const { return kv_heads * head; }
};
constexpr Shape kQwen3{28, 1024, 16, 8, 128, 3072, 151936};  // Qwen3-0.6B
constexpr Shape kDraft{4, 256, 4, 2, 64, 768, 4096};         // its weights fit in a cache
constexpr float kEps = 1e-6f;

float to_float(bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

bf16 to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bf16{static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

// The sum of the products of two rows. A compiler may keep its parts in vectors.
float dot(const bf16* a, const bf16* b, size_t count) {
  constexpr size_t kLanes = 32;
  float sums[kLanes] = {};
  for (size_t i = 0; i < count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += to_float(a[i + lane]) * to_float(b[i + lane]);
    }
  }
  float sum = 0;
  for (const float lane : sums) sum += lane;
  return sum;
}

// A matrix of bf16, [outputs, inputs], and its product with a row.
struct Matrix {
  size_t inputs;
  Row values;

  Matrix(size_t outputs, size_t columns) : inputs(columns), values(outputs * columns) {
    static std::minstd_rand random(1);
    const float scale = std::sqrt(3.0f / static_cast<float>(columns));
    std::uniform_real_distribution<float> uniform(-scale, scale);
    std::vector<bf16> some(8191);  // repeated, since drawing is slow
    for (bf16& value : some) value = to_bf16(uniform(random));
    for (size_t i = 0; i < values.size(); ++i) values[i] = some[i % some.size()];
  }

  void times(const Row& row, Row& product) const {
    for (size_t output = 0; output < product.size(); ++output) {
      product[output] = to_bf16(dot(values.data() + output * inputs, row.data(), inputs));
    }
  }
};

// A norm with its weight as plain loops need it, and as a module.
struct Norm {
  Row weight;
  rmsnorm::RmsNorm module;

  Norm(size_t d, float value)
      : weight(d, to_bf16(value)), module(d, options(), rmsnorm::Dtype::bf16) {
    module.set_weight({weight.data(), d});
  }
  static rmsnorm::Options options() {
    rmsnorm::Options qwen3;
    qwen3.eps = kEps;
    qwen3.rounding = rmsnorm::Rounding::before_weight;
    return qwen3;
  }
};

struct Layer {
  Matrix qkv, out, gate_up, down;
  Norm attention_norm, q_norm, k_norm, inner_norm;

  explicit Layer(const Shape& s)
      : qkv(s.q() + 2 * s.kv(), s.d),
        out(s.d, s.q()),
        gate_up(2 * s.inner, s.d),
        down(s.d, s.inner),
        attention_norm(s.d, 1.25f),
        q_norm(s.head, 1.5f),
        k_norm(s.head, 0.75f),
        inner_norm(s.d, 0.5f) {}
};

struct Model {
  Shape shape;
  Matrix embedding;  // [vocabulary, d]; also the last projection
  std::vector<Layer> layers;
  Norm last_norm;

  explicit Model(const Shape& s) : shape(s), embedding(s.vocabulary, s.d), last_norm(s.d, 1) {
    for (size_t i = 0; i < s.layers; ++i) layers.emplace_back(s);
  }
};

float plain_rstd(const bf16* x, size_t d) {
  return 1 / std::sqrt(dot(x, x, d) / static_cast<float>(d) + kEps);
}

void plain_add_norm(const Row& x, Row& stream, const Row& weight, Row& y) {
  for (size_t i = 0; i < x.size(); ++i) stream[i] = to_bf16(to_float(stream[i]) + to_float(x[i]));
  const float rstd = plain_rstd(stream.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = to_bf16(to_float(stream[i]) * rstd * to_float(weight[i]));
  }
}

// Normalises heads in place and rotates their halves.
void plain_rotary(bf16* heads, size_t count, const Row& weight, const Row& cos, const Row& sin) {
  const size_t half = cos.size();
  for (bf16* head = heads; head != heads + count * 2 * half; head += 2 * half) {
    const float rstd = plain_rstd(head, 2 * half);
    for (size_t i = 0; i < half; ++i) {
      const float a = to_float(head[i]) * rstd * to_float(weight[i]);
      const float b = to_float(head[i + half]) * rstd * to_float(weight[i + half]);
      head[i] = to_bf16(a * to_float(cos[i]) - b * to_float(sin[i]));
      head[i + half] = to_bf16(b * to_float(cos[i]) + a * to_float(sin[i]));
    }
  }
}

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One sequence: its stream, the rows between the steps of a layer, and its caches.
class Decoder {
 public:
  Decoder(const Model& model, bool by_library, size_t positions);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // The logits after one more token.
  const Row& step(size_t token);

  // Seconds of each step, and of its residual adds, norms and rotations.
  std::vector<double> times, norm_times;

 private:
  void add_norm(const Norm& norm);
  void rotate(size_t layer);
  void attend(size_t layer);

  const Model& model_;
  const bool by_library_;
  size_t position_ = 0;
  Row stream_, x_, y_, cos_, sin_, qkv_, heads_, gate_up_, inner_, logits_;
  std::vector<rmsnorm::Prepared> qk_;  // a call for each layer
  std::vector<Row> keys_, values_;     // [positions, kv_heads, head] for each layer
};

Decoder::Decoder(const Model& model, bool by_library, size_t positions)
    : model_(model),
      by_library_(by_library),
      x_(model.shape.d),
      y_(model.shape.d),
      cos_(model.shape.head / 2),
      sin_(model.shape.head / 2),
      qkv_(model.shape.q() + 2 * model.shape.kv()),
      heads_(model.shape.q()),
      gate_up_(2 * model.shape.inner),
      inner_(model.shape.inner),
      logits_(model.shape.vocabulary),
      keys_(model.shape.layers, Row(positions * model.shape.kv())),
      values_(keys_) {
  const Shape& s = model.shape;
  rmsnorm::ForwardOperands q, k;
  q.y = {qkv_.data(), s.q_heads, s.head};
  q.x = q.y;
  q.cos = {cos_.data(), 1, s.head / 2};
  q.sin = {sin_.data(), 1, s.head / 2};
  k = q;
  k.y = {qkv_.data() + s.q(), s.kv_heads, s.head};
  k.x = k.y;
  for (const Layer& layer : model.layers) {
    qk_.emplace_back(
        std::initializer_list<rmsnorm::Call>{{&layer.q_norm.module, q}, {&layer.k_norm.module, k}});
  }
}

const Row& Decoder::step(size_t token) {
  const Clock::time_point start = Clock::now();
  const Shape& s = model_.shape;
  norm_times.push_back(0);
  for (size_t i = 0; i < s.head / 2; ++i) {
    const double angle = static_cast<double>(position_) *
                         std::pow(1e6, -2.0 * static_cast<double>(i) / static_cast<double>(s.head));
    cos_[i] = to_bf16(static_cast<float>(std::cos(angle)));
    sin_[i] = to_bf16(static_cast<float>(std::sin(angle)));
  }
  std::copy_n(model_.embedding.values.data() + token * s.d, s.d, x_.data());
  stream_.assign(s.d, bf16{0});
  for (size_t i = 0; i < s.layers; ++i) {
    const Layer& layer = model_.layers[i];
    add_norm(layer.attention_norm);
    layer.qkv.times(y_, qkv_);
    rotate(i);
    attend(i);
    layer.out.times(heads_, x_);
    add_norm(layer.inner_norm);
    layer.gate_up.times(y_, gate_up_);
    for (size_t j = 0; j < s.inner; ++j) {
      const float gate = to_float(gate_up_[j]);
      inner_[j] = to_bf16(gate / (1 + std::exp(-gate)) * to_float(gate_up_[s.inner + j]));
    }
    layer.down.times(inner_, x_);
  }
  add_norm(model_.last_norm);
  model_.embedding.times(y_, logits_);
  ++position_;
  times.push_back(seconds_since(start));
  return logits_;
}

// Adds x to the stream, and writes the norm of the sum to y.
void Decoder::add_norm(const Norm& norm) {
  const Clock::time_point start = Clock::now();
  if (by_library_) {
    norm.module.add_norm(x_.data(), stream_.data(), stream_.data(), y_.data());
  } else {
    plain_add_norm(x_, stream_, norm.weight, y_);
  }
  norm_times.back() += seconds_since(start);
}

// The norms of q and k, and their rotation.
void Decoder::rotate(size_t layer) {
  const Shape& s = model_.shape;
  const Clock::time_point start = Clock::now();
  if (by_library_) {
    qk_[layer]();
  } else {
    const Layer& of = model_.layers[layer];
    plain_rotary(qkv_.data(), s.q_heads, of.q_norm.weight, cos_, sin_);
    plain_rotary(qkv_.data() + s.q(), s.kv_heads, of.k_norm.weight, cos_, sin_);
  }
  norm_times.back() += seconds_since(start);
}

void Decoder::attend(size_t layer) {
  const Shape& s = model_.shape;
  Row& keys = keys_[layer];
  Row& values = values_[layer];
  std::copy_n(qkv_.data() + s.q(), s.kv(), keys.data() + position_ * s.kv());
  std::copy_n(qkv_.data() + s.q() + s.kv(), s.kv(), values.data() + position_ * s.kv());
  std::vector<float> weights(position_ + 1), sums(s.head);
  for (size_t head = 0; head < s.q_heads; ++head) {
    const bf16* const q = qkv_.data() + head * s.head;
    const size_t kv_head = head * s.kv_heads / s.q_heads * s.head;
    float total = 0;
    for (size_t i = 0; i <= position_; ++i) {
      const float product = dot(q, keys.data() + i * s.kv() + kv_head, s.head);
      weights[i] = std::exp(product / std::sqrt(static_cast<float>(s.head)));
      total += weights[i];
    }
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (size_t i = 0; i <= position_; ++i) {
      const bf16* const value = values.data() + i * s.kv() + kv_head;
      for (size_t j = 0; j < s.head; ++j) sums[j] += weights[i] / total * to_float(value[j]);
    }
    for (size_t j = 0; j < s.head; ++j) heads_[head * s.head + j] = to_bf16(sums[j]);
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "draft";
  const long tokens = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 16;
  if (argc > 3 || (name != "0.6b" && name != "draft") || tokens < 1) {
    std::fprintf(stderr, "usage: decode [0.6b|draft [TOKENS]]\n");
    return 2;
  }
  const Model model(name == "draft" ? kDraft : kQwen3);
  Decoder decoders[] = {{model, false, static_cast<size_t>(tokens)},
                        {model, true, static_cast<size_t>(tokens)}};
  const Row* logits[2];
  for (size_t i = 0; i < static_cast<size_t>(tokens); ++i) {
    for (size_t which = 0; which < 2; ++which) {
      logits[which] = &decoders[which].step(i * 7919 % model.shape.vocabulary);
    }
  }
  const char* const names[] = {"plain loops", "rmsnorm"};
  for (size_t which = 0; which < 2; ++which) {
    std::printf("%-12s %8.2f tokens a second, %7.1f us a token in norms and rotations\n",
                names[which], 1 / median(decoders[which].times),
                1e6 * median(decoders[which].norm_times));
  }
  // The library rounds as transformers does, the loops once, so that their logits are close.
  double largest = 0, difference = 0;
  for (size_t i = 0; i < logits[0]->size(); ++i) {
    const double plain = to_float((*logits[0])[i]), ours = to_float((*logits[1])[i]);
    largest = std::max(largest, std::abs(plain));
    difference = std::max(difference, std::abs(plain - ours));
  }
  std::printf("largest logit %.3g, largest difference %.3g\n", largest, difference);
  return difference < 0.05 * largest ? 0 : 1;
}
