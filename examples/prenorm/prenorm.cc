// SPDX-License-Identifier: Apache-2.0
// Trains a small transformer: how rmsnorm serves a forward and a backward pass.
//
//     h[0] = embedding of the tokens
//     h[i + 1] = h[i] + layer[i](norm[i](h[i]))        for each layer: the residual stream
//     output = norm[last](h[last]) * head
//
// The layers are, in turn, causal attention with several heads and rotary positions, and a gated
// feed-forward layer (SwiGLU).
//
// - Forward, rmsnorm::forward() adds each layer's output to the stream and normalises the sum for
//   the next layer, in one pass. The program keeps the inverse RMS of each row (rstd) for backward.
// - Backward, the gradient of h is one buffer, dh. It passes around each layer unchanged. In one
//   pass, rmsnorm::backward() adds the gradient through the norm to it (`add_to_dx`), and adds the
//   weight's gradient to its buffer (`add_to_dw`).
//
// The task: each token is a number from 0 to 6, and the target at each place is the sum of the last
// three tokens, modulo 7.
//
//     prenorm [--steps N] [--blocks N] [--rate R] [--seed N] [--threads N]
//             [--placement pre|post] [--norm rmsnorm|layernorm] [--check-gradients]
//
// It trains, and exits with 1 unless the loss falls to half. `--placement post` puts the norms into
// the stream, as the first transformers did: h[i + 1] = norm[i + 1](h[i] + layer[i](h[i])).
// `--norm layernorm` replaces the library by a LayerNorm in plain loops. With `--check-gradients`
// the program compares gradients with differences of the loss instead.
//
// Each sum has a fixed order, so the loss has the same bits for any number of threads.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kVocabulary = 7;
constexpr std::size_t kTerms = 3;        // number of tokens in the task's sum
constexpr std::size_t kSequences = 128;  // in a batch
constexpr std::size_t kLength = 16;      // tokens in a sequence
constexpr std::size_t kHeads = 4;
constexpr std::size_t kHead = 16;           // elements of a head
constexpr std::size_t kD = kHeads * kHead;  // elements of a row of the residual stream
constexpr std::size_t kHidden = 96;         // elements of a row inside the feed-forward layer
constexpr std::size_t kRows = kSequences * kLength;

constexpr char kUsage[] =
    "usage: prenorm [--steps N] [--blocks N] [--rate R] [--seed N] [--threads N]\n"
    "               [--placement pre|post] [--norm rmsnorm|layernorm] [--check-gradients]\n";

struct Settings {
  double steps = 150, blocks = 2, rate = 0.003, seed = 1, threads = 1;
  bool post_norm = false, layer_norm = false;
};

// The numbers are the same everywhere; the standard library's distributions differ.
struct Random {
  std::uint32_t Next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state >> 32);
  }
  // Uniform in -1 to 1, of 24 bits.
  float Signed() { return static_cast<float>(Next() >> 8) * 0x1p-23f - 1.0f; }

  std::uint64_t state;
};

// Computes in double and rounds, since C libraries and CPUs differ in the last bits of a float's
// exp.
float Exp(float x) { return static_cast<float>(std::exp(static_cast<double>(x))); }

// Turns scores into probabilities.
void Softmax(float* scores, std::size_t count) {
  const float largest = *std::max_element(scores, scores + count);
  float sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += scores[i] = Exp(scores[i] - largest);
  for (std::size_t i = 0; i < count; ++i) scores[i] /= sum;
}

// ----------------------------------------------------------------------------- plain matrices

struct Matrix {
  Matrix(std::size_t row_count, std::size_t row_length)
      : rows(row_count), d(row_length), data(rows * d) {}

  float* operator[](std::size_t row) { return data.data() + row * d; }
  const float* operator[](std::size_t row) const { return data.data() + row * d; }
  rmsnorm::View view() { return {data.data(), rows, d}; }
  rmsnorm::ConstView view() const { return {data.data(), rows, d}; }
  void Clear() { std::fill(data.begin(), data.end(), 0.0f); }

  std::size_t rows;
  std::size_t d;
  std::vector<float> data;
};

// c += a * b, where each element sums its products in rising order of k.
void AddProduct(const Matrix& a, const Matrix& b, Matrix& c) {
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t k = 0; k < a.d; ++k) {
      for (std::size_t j = 0; j < b.d; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
}

Matrix Transposed(const Matrix& a) {
  Matrix t(a.d, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t j = 0; j < a.d; ++j) t[j][i] = a[i][j];
  }
  return t;
}

struct Parameter;

// Makes the parameters of a model: random numbers, and a list of all parameters.
struct Maker {
  Random random;
  std::vector<Parameter*> all;
};

// A trained matrix, with its gradient and the state of the optimiser.
struct Parameter {
  Parameter(std::size_t rows, std::size_t d, Maker& maker)
      : value(rows, d), gradient(rows, d), mean(rows, d), square(rows, d) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(rows));
    for (float& v : value.data) v = scale * maker.random.Signed();
    maker.all.push_back(this);
  }
  Parameter(std::size_t d, float fill, Maker& maker) : Parameter(1, d, maker) {
    std::fill(value.data.begin(), value.data.end(), fill);
  }
  Parameter(const Parameter&) = delete;

  // output = input * value
  void Forward(const Matrix& input, Matrix& output) const {
    output.Clear();
    AddProduct(input, value, output);
  }
  // Adds to dinput, and to the parameter's gradient.
  void Backward(const Matrix& input, const Matrix& doutput, Matrix& dinput) {
    AddProduct(Transposed(input), doutput, gradient);
    AddProduct(doutput, Transposed(value), dinput);
  }

  Matrix value, gradient, mean, square;
};

// ------------------------------------------------------------------------------------- layers

// x = f(y), without the residual: the next norm adds that.
struct Layer {
  virtual ~Layer() = default;
  virtual void Forward(const Matrix& y, Matrix& x) = 0;
  // Adds to dy, and to the parameters' gradients, after Forward() of the same y.
  virtual void Backward(const Matrix& y, const Matrix& dx, Matrix& dy) = 0;
};

// Each head of a token attends to the same head of this token and of the tokens before it.
class Attention : public Layer {
 public:
  explicit Attention(Maker& maker)
      : wq_(kD, kD, maker), wk_(kD, kD, maker), wv_(kD, kD, maker), wo_(kD, kD, maker) {
    for (std::size_t t = 0; t < kLength; ++t) {
      for (std::size_t i = 0; i < kHead / 2; ++i) {
        const double angle = std::pow(100.0, -static_cast<double>(i) / (kHead / 2));
        cos_[t][i] = static_cast<float>(std::cos(static_cast<double>(t) * angle));
        sin_[t][i] = static_cast<float>(std::sin(static_cast<double>(t) * angle));
      }
    }
  }

  void Forward(const Matrix& y, Matrix& x) override {
    wq_.Forward(y, q_);
    wk_.Forward(y, k_);
    wv_.Forward(y, v_);
    Rotate(q_, 1.0f);
    Rotate(k_, 1.0f);
    mixed_.Clear();
    ForEachHead([&](std::size_t row, std::size_t first, std::size_t h, float* p) {
      for (std::size_t t = first; t <= row; ++t) {
        p[t - first] = kScale * Dot(q_[row] + h, k_[t] + h);
      }
      Softmax(p, row - first + 1);
      for (std::size_t t = first; t <= row; ++t) {
        AddScaled(p[t - first], v_[t] + h, mixed_[row] + h);
      }
    });
    wo_.Forward(mixed_, x);
  }

  void Backward(const Matrix& y, const Matrix& dx, Matrix& dy) override {
    Matrix dmixed(kRows, kD), dq(kRows, kD), dk(kRows, kD), dv(kRows, kD);
    wo_.Backward(mixed_, dx, dmixed);
    ForEachHead([&](std::size_t row, std::size_t first, std::size_t h, const float* p) {
      std::array<float, kLength> dp;
      float sum = 0;
      for (std::size_t t = first; t <= row; ++t) {
        AddScaled(p[t - first], dmixed[row] + h, dv[t] + h);
        dp[t - first] = Dot(dmixed[row] + h, v_[t] + h);
        sum += p[t - first] * dp[t - first];
      }
      for (std::size_t t = first; t <= row; ++t) {
        const float dscore = kScale * p[t - first] * (dp[t - first] - sum);
        AddScaled(dscore, k_[t] + h, dq[row] + h);
        AddScaled(dscore, q_[row] + h, dk[t] + h);
      }
    });
    Rotate(dq, -1.0f);
    Rotate(dk, -1.0f);
    wq_.Backward(y, dq, dy);
    wk_.Backward(y, dk, dy);
    wv_.Backward(y, dv, dy);
  }

 private:
  static constexpr float kScale = 0.25f;  // 1 / sqrt(kHead)

  static float Dot(const float* a, const float* b) {
    float sum = 0;
    for (std::size_t i = 0; i < kHead; ++i) sum += a[i] * b[i];
    return sum;
  }
  static void AddScaled(float scale, const float* a, float* b) {
    for (std::size_t i = 0; i < kHead; ++i) b[i] += scale * a[i];
  }

  // Calls f for each head of each row. Its arguments are the row of the first token of the
  // sequence, the head's first element and the head's probabilities.
  template <class F>
  void ForEachHead(const F& f) {
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t head = 0; head < kHeads; ++head) {
        f(row, row - row % kLength, head * kHead, p_[row] + head * kLength);
      }
    }
  }

  // Rotates pairs of elements by angles that grow with the token's place, or rotates them back.
  void Rotate(Matrix& m, float direction) const {
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t i = 0; i < kD / 2; ++i) {
        float* const pair = m[row] + 2 * i;
        const float c = cos_[row % kLength][i % (kHead / 2)];
        const float s = direction * sin_[row % kLength][i % (kHead / 2)];
        const float first = pair[0] * c - pair[1] * s;
        pair[1] = pair[0] * s + pair[1] * c;
        pair[0] = first;
      }
    }
  }

  Parameter wq_, wk_, wv_, wo_;
  std::array<std::array<float, kHead / 2>, kLength> cos_, sin_;
  Matrix q_{kRows, kD}, k_{kRows, kD}, v_{kRows, kD}, mixed_{kRows, kD};
  Matrix p_{kRows, kHeads* kLength};
};

// x = (silu(y * gate) o (y * up)) * down, where o multiplies element by element.
class FeedForward : public Layer {
 public:
  explicit FeedForward(Maker& maker)
      : gate_(kD, kHidden, maker), up_(kD, kHidden, maker), down_(kHidden, kD, maker) {}

  void Forward(const Matrix& y, Matrix& x) override {
    gate_.Forward(y, a_);
    up_.Forward(y, b_);
    for (std::size_t i = 0; i < ab_.data.size(); ++i) {
      sigmoid_.data[i] = 1.0f / (1.0f + Exp(-a_.data[i]));
      ab_.data[i] = a_.data[i] * sigmoid_.data[i] * b_.data[i];
    }
    down_.Forward(ab_, x);
  }

  void Backward(const Matrix& y, const Matrix& dx, Matrix& dy) override {
    Matrix dab(kRows, kHidden), da(kRows, kHidden), db(kRows, kHidden);
    down_.Backward(ab_, dx, dab);
    for (std::size_t i = 0; i < dab.data.size(); ++i) {
      const float a = a_.data[i], s = sigmoid_.data[i];
      da.data[i] = dab.data[i] * b_.data[i] * (s * (1.0f + a * (1.0f - s)));
      db.data[i] = dab.data[i] * (a * s);
    }
    gate_.Backward(y, da, dy);
    up_.Backward(y, db, dy);
  }

 private:
  Parameter gate_, up_, down_;
  Matrix a_{kRows, kHidden}, b_{kRows, kHidden}, ab_{kRows, kHidden}, sigmoid_{kRows, kHidden};
};

// -------------------------------------------------------------------------------------- norms

// A norm with its trained weight and the results of forward that backward needs. The optimiser
// changes the weight at every step, so this calls the free functions, which read the weight each
// time. (An rmsnorm::RmsNorm holds a copy of its weight: it suits a weight that stays the same.)
struct Norm {
  Norm(Maker& maker, double threads) : weight(kD, 1.0f, maker) {
    context.threads = static_cast<int>(threads);
  }
  virtual ~Norm() = default;

  // h = residual + x, or x at the start of the stream; y = norm(h). Leaves the residual unchanged,
  // since backward needs each h.
  virtual void Forward(const Matrix& x, const Matrix* residual) {
    rmsnorm::ForwardOperands operands;
    operands.x = x.view();
    if (residual != nullptr) {
      operands.residual = residual->view();
      operands.residual_out = h.view();
    } else {
      h = x;
    }
    operands.weight = {weight.value.data.data(), kD};
    operands.y = y.view();
    operands.rstd = {rstd.data(), kRows};
    rmsnorm::forward(operands, {}, context);
  }

  // dh holds the gradient by h along the residual path; this adds the gradient through the norm.
  virtual void Backward(const Matrix& dy, Matrix& dh) {
    rmsnorm::BackwardOperands operands;
    operands.dy = dy.view();
    operands.x = h.view();
    operands.weight = {weight.value.data.data(), kD};
    operands.rstd = {rstd.data(), kRows};
    operands.dx = dh.view();
    operands.add_to_dx = true;
    operands.dw = {weight.gradient.data.data(), kD};
    operands.add_to_dw = true;
    rmsnorm::backward(operands, {}, context);
  }

  rmsnorm::Context context;
  Parameter weight;
  Matrix h{kRows, kD}, y{kRows, kD};
  std::vector<float> rstd = std::vector<float>(kRows);
};

// (h - mean) / sqrt(variance + eps) * weight + bias, in plain loops.
class LayerNorm : public Norm {
 public:
  explicit LayerNorm(Maker& maker) : Norm(maker, 1), bias_(kD, 0.0f, maker) {}

  void Forward(const Matrix& x, const Matrix* residual) override {
    for (std::size_t row = 0; row < kRows; ++row) {
      float* const n = normed_[row];
      float mean = 0, variance = 0;
      for (std::size_t j = 0; j < kD; ++j) {
        h[row][j] = x[row][j] + (residual != nullptr ? (*residual)[row][j] : 0.0f);
        mean += h[row][j] / kD;
      }
      for (std::size_t j = 0; j < kD; ++j) {
        n[j] = h[row][j] - mean;
        variance += n[j] * n[j] / kD;
      }
      rstd[row] = 1.0f / std::sqrt(variance + 1e-5f);
      for (std::size_t j = 0; j < kD; ++j) {
        n[j] *= rstd[row];
        y[row][j] = n[j] * weight.value[0][j] + bias_.value[0][j];
      }
    }
  }

  void Backward(const Matrix& dy, Matrix& dh) override {
    for (std::size_t row = 0; row < kRows; ++row) {
      const float *const g = dy[row], *const w = weight.value[0], *const n = normed_[row];
      float mean = 0, product = 0;
      for (std::size_t j = 0; j < kD; ++j) {
        mean += g[j] * w[j] / kD;
        product += g[j] * w[j] * n[j] / kD;
        weight.gradient[0][j] += g[j] * n[j];
        bias_.gradient[0][j] += g[j];
      }
      for (std::size_t j = 0; j < kD; ++j) {
        dh[row][j] += rstd[row] * (g[j] * w[j] - mean - n[j] * product);
      }
    }
  }

 private:
  Parameter bias_;
  Matrix normed_{kRows, kD};
};

// -------------------------------------------------------------------------------------- model

struct Batch {
  explicit Batch(Random& random) {
    for (std::size_t row = 0; row < kRows; ++row) {
      tokens[row] = random.Next() % kVocabulary;
      std::size_t sum = 0;
      for (std::size_t back = 0; back < std::min(row % kLength + 1, kTerms); ++back) {
        sum += tokens[row - back];
      }
      targets[row] = sum % kVocabulary;
    }
  }

  std::array<std::size_t, kRows> tokens, targets;
};

class Model {
 public:
  explicit Model(const Settings& settings)
      : post_norm_(settings.post_norm), maker_{{static_cast<std::uint64_t>(settings.seed)}, {}} {
    for (int block = 0; block < settings.blocks; ++block) {
      layers_.push_back(std::make_unique<Attention>(maker_));
      layers_.push_back(std::make_unique<FeedForward>(maker_));
    }
    for (std::size_t i = 0; i <= layers_.size(); ++i) {
      norms_.push_back(settings.layer_norm ? std::make_unique<LayerNorm>(maker_)
                                           : std::make_unique<Norm>(maker_, settings.threads));
    }
  }

  // Returns the loss: the cross entropy of the targets, averaged over rows.
  double Forward(const Batch& batch) {
    Matrix h(kRows, kD), x(kRows, kD);
    for (std::size_t row = 0; row < kRows; ++row) {
      std::copy_n(embedding_.value[batch.tokens[row]], kD, h[row]);
    }
    Timed([&] { norms_[0]->Forward(h, nullptr); });
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i]->Forward(norms_[i]->y, x);
      const Matrix& residual = post_norm_ ? norms_[i]->y : norms_[i]->h;
      Timed([&] { norms_[i + 1]->Forward(x, &residual); });
    }
    head_.Forward(norms_.back()->y, doutput_);

    double loss = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      Softmax(doutput_[row], kVocabulary);
      float& probability = doutput_[row][batch.targets[row]];
      loss -= std::log(static_cast<double>(probability));
      probability -= 1.0f;
    }
    return loss / static_cast<double>(kRows);
  }

  // Computes all gradients, after Forward() of the same batch.
  void Backward(const Batch& batch) {
    for (Parameter* parameter : maker_.all) parameter->gradient.Clear();
    for (float& g : doutput_.data) g /= kRows;
    Matrix dy(kRows, kD), dh(kRows, kD);  // dh is zero: the last norm has no residual path
    head_.Backward(norms_.back()->y, doutput_, dy);
    for (std::size_t i = layers_.size(); i > 0; --i) {
      Timed([&] { norms_[i]->Backward(dy, dh); });
      dy.Clear();
      layers_[i - 1]->Backward(norms_[i - 1]->y, dh, dy);
      if (post_norm_) {  // here the norm before the layer is part of the stream
        for (std::size_t j = 0; j < dy.data.size(); ++j) dy.data[j] += dh.data[j];
        dh.Clear();
      }
    }
    Timed([&] { norms_[0]->Backward(dy, dh); });
    for (std::size_t row = 0; row < kRows; ++row) {
      float* const gradient = embedding_.gradient[batch.tokens[row]];
      for (std::size_t j = 0; j < kD; ++j) gradient[j] += dh[row][j];
    }
  }

  const std::vector<Parameter*>& parameters() const { return maker_.all; }
  std::clock_t time_in_norms() const { return time_in_norms_; }

 private:
  template <class F>
  void Timed(const F& call) {
    const std::clock_t begin = std::clock();
    call();
    time_in_norms_ += std::clock() - begin;
  }

  bool post_norm_;
  Maker maker_;
  Parameter embedding_{kVocabulary, kD, maker_}, head_{kD, kVocabulary, maker_};
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<std::unique_ptr<Norm>> norms_;  // one before each layer, and one at the end
  Matrix doutput_{kRows, kVocabulary};        // the gradient of the loss by the output
  std::clock_t time_in_norms_ = 0;
};

// ----------------------------------------------------------------------------------- training

// A step of Adam (Kingma and Ba, 2014); the first step is 1.
void Optimise(const std::vector<Parameter*>& parameters, double rate, int step) {
  constexpr float kMean = 0.9f, kSquare = 0.99f;
  const float mean_part = static_cast<float>(1 - std::pow(0.9, step));
  const float square_part = static_cast<float>(1 - std::pow(0.99, step));
  for (Parameter* p : parameters) {
    for (std::size_t i = 0; i < p->value.data.size(); ++i) {
      const float g = p->gradient.data[i];
      float& mean = p->mean.data[i];
      float& square = p->square.data[i];
      mean = kMean * mean + (1.0f - kMean) * g;
      square = kSquare * square + (1.0f - kSquare) * (g * g);
      p->value.data[i] -=
          static_cast<float>(rate) * (mean / mean_part) / (std::sqrt(square / square_part) + 1e-8f);
    }
  }
}

// Returns the losses of the first and the last step. Every step has a new batch.
std::array<double, 2> Train(Model& model, Random& random, double rate, int steps, bool print) {
  std::array<double, 2> losses;
  for (int step = 1; step <= steps; ++step) {
    const Batch batch(random);
    losses[1] = model.Forward(batch);
    if (step == 1) losses[0] = losses[1];
    if (print && (step % 25 == 1 || step == steps)) {
      std::printf("step %4d  loss %.4f\n", step, losses[1]);
    }
    model.Backward(batch);
    Optimise(model.parameters(), rate, step);
  }
  return losses;
}

// Compares some gradients of each parameter with central differences of the loss.
bool CheckGradients(Model& model, const Batch& batch) {
  model.Forward(batch);
  model.Backward(batch);
  double worst = 0;
  for (Parameter* parameter : model.parameters()) {
    float largest = 0;
    for (float g : parameter->gradient.data) largest = std::max(largest, std::fabs(g));
    std::vector<float>& value = parameter->value.data;
    for (std::size_t i = 0; i < value.size(); i += value.size() / 5) {
      const float middle = value[i], above = middle + 0x1p-7f, below = middle - 0x1p-7f;
      value[i] = above;
      double difference = model.Forward(batch);
      value[i] = below;
      difference -= model.Forward(batch);
      value[i] = middle;
      const double expected = difference / (static_cast<double>(above) - below);
      const double off = std::fabs(parameter->gradient.data[i] - expected) / largest;
      if (!(off <= worst)) worst = off;  // a NaN replaces any value, and stays
    }
  }
  // With this step, rounding and the third derivative cause differences of about 5e-4.
  const bool right = worst <= 1e-3;
  std::fprintf(right ? stdout : stderr,
               "%s: differ from differences of the loss by up to %.1e of the largest\n",
               right ? "gradients" : "prenorm: wrong gradients", worst);
  return right;
}

// Whether the whole text is a number of at least `least`, and an integer if `least` is one.
bool Parse(const std::string& text, double least, double& number) {
  char* end = nullptr;
  number = std::strtod(text.c_str(), &end);
  const bool may_be_broken = least != std::floor(least);
  return !text.empty() && *end == '\0' && number >= least && number <= 1e6 &&
         (may_be_broken || number == std::floor(number));
}

bool Choose(const std::string& text, const char* first, const char* second, bool& is_second) {
  is_second = text == second;
  return is_second || text == first;
}

}  // namespace

int main(int argc, char** argv) try {
  Settings settings;
  bool check_gradients = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--check-gradients") {
      check_gradients = true;
      continue;
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    const bool is_right =
        option == "--steps"     ? Parse(value, 1, settings.steps)
        : option == "--blocks"  ? Parse(value, 1, settings.blocks)
        : option == "--rate"    ? Parse(value, 1e-6, settings.rate)
        : option == "--seed"    ? Parse(value, 0, settings.seed)
        : option == "--threads" ? Parse(value, 0, settings.threads)
        : option == "--placement"
            ? Choose(value, "pre", "post", settings.post_norm)
            : option == "--norm" && Choose(value, "rmsnorm", "layernorm", settings.layer_norm);
    if (!is_right) {
      std::fprintf(stderr, "prenorm: %s '%s' is wrong\n%s", option.c_str(), value.c_str(), kUsage);
      return 2;
    }
  }

  Model model(settings);
  Random random{static_cast<std::uint64_t>(settings.seed) + 1};
  if (check_gradients) {
    Train(model, random, settings.rate, 5, false);  // moves the norms' weights away from 1
    return CheckGradients(model, Batch(random)) ? 0 : 1;
  }
  const std::clock_t begin = std::clock();
  const auto [first, last] =
      Train(model, random, settings.rate, static_cast<int>(settings.steps), true);
  const double time = static_cast<double>(std::clock() - begin);
  std::printf("the last loss in all its bits: %a\n", last);
  std::printf("norms took %.1f %% of %.1f s\n",
              100 * static_cast<double>(model.time_in_norms()) / time, time / CLOCKS_PER_SEC);
  return last <= first / 2 ? 0 : 1;
} catch (const std::exception& error) {
  // An rmsnorm::Error names the argument and describes the problem.
  std::fprintf(stderr, "prenorm: %s\n", error.what());
  return 1;
}
