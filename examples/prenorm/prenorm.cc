// SPDX-License-Identifier: Apache-2.0
// Trains a small pre-norm model: how rmsnorm serves a forward and a backward pass.
//
//     h[0] = embedding of the tokens
//     h[i + 1] = h[i] + layer[i](norm[i](h[i]))        for each sub-layer: the residual stream
//     output = norm[last](h[last]) * head
//
// - Forward, rmsnorm::forward() adds each sub-layer's output to the stream and normalises the sum
//   for the next, in one pass. The inverse RMS of each row (rstd) is kept for backward.
// - Backward, the gradient of h is one buffer, dh. It goes around each sub-layer as it is, and
//   rmsnorm::backward() adds the part that came through the norm onto it in the same pass
//   (`add_to_dx`). The weight's gradients add up over the pieces of a batch (`add_to_dw`).
//
// The task: each token is a number from 0 to 6, and what is asked for at each place is the sum of
// the last three, modulo 7. The layers are a causal convolution, which moves information between
// tokens, and a gated feed-forward layer, which multiplies. One block of them does not suffice: its
// loss stays above a third of the first.
//
// Beside the norms there are only additions, products, quotients and square roots, each in a fixed
// order: the loss has the same bits for any number of threads, and on every machine.
//
//     prenorm [--threads N] [--steps N] [--check-gradients]
//
// trains until the loss has fallen by ten times; if N steps do not bring it there, the exit status
// is 1. With --check-gradients it compares gradients with differences of the loss instead.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kVocabulary = 7;
constexpr std::size_t kPieces = 2;       // of a batch, one forward and backward call each
constexpr std::size_t kSequences = 128;  // in a piece
constexpr std::size_t kLength = 8;       // tokens in a sequence
constexpr std::size_t kD = 64;           // elements of a row of the residual stream
constexpr std::size_t kHidden = 32;      // elements of a row inside the feed-forward layer
constexpr std::size_t kTaps = 3;         // tokens that the convolution sees, and the task adds up
constexpr std::size_t kBlocks = 2;
// With these sizes the work of a norm is just enough for the library to use two threads.
constexpr std::size_t kRows = kSequences * kLength;

// Numbers that are the same everywhere; those of the standard library's distributions are not.
class Random {
 public:
  // Uniform in -1 to 1, of 24 bits.
  float Signed() { return static_cast<float>(Next() >> 8) * 0x1p-23f - 1.0f; }
  std::size_t Below(std::size_t n) { return Next() % n; }

 private:
  std::uint32_t Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(state_ >> 32);
  }

  std::uint64_t state_ = 1;
};

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

// c += a * b, where each element adds up its products in rising order of k.
void AddProduct(const Matrix& a, const Matrix& b, Matrix& c) {
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t k = 0; k < a.d; ++k) {
      for (std::size_t j = 0; j < b.d; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
}

// c = a * b
void Product(const Matrix& a, const Matrix& b, Matrix& c) {
  c.Clear();
  AddProduct(a, b, c);
}

Matrix Transposed(const Matrix& a) {
  Matrix t(a.d, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t j = 0; j < a.d; ++j) t[j][i] = a[i][j];
  }
  return t;
}

// A matrix that is trained, with its gradient and what the optimiser keeps.
struct Parameter {
  Parameter(std::size_t rows, std::size_t d)
      : value(rows, d), gradient(rows, d), mean(rows, d), square(rows, d) {}
  Parameter(std::size_t rows, std::size_t d, float scale, Random& random) : Parameter(rows, d) {
    for (float& v : value.data) v = scale * random.Signed();
  }

  Matrix value, gradient, mean, square;
};

// --------------------------------------------------------------------------------- sub-layers

// x = f(y), without the residual, which is added by the norm that follows.
class SubLayer {
 public:
  virtual ~SubLayer() = default;
  virtual void Forward(const Matrix& y, Matrix& x) = 0;
  // dy from dx, after Forward() of the same y. Adds to the parameters' gradients.
  virtual void Backward(const Matrix& y, const Matrix& dx, Matrix& dy) = 0;
  virtual std::vector<Parameter*> Parameters() = 0;
};

// x at a token is the sum over it and those before it of y times a weight, element by element.
class Convolution : public SubLayer {
 public:
  explicit Convolution(Random& random) : weight_(kTaps, kD, 0.5f, random) {}

  void Forward(const Matrix& y, Matrix& x) override {
    x.Clear();
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t tap = 0; tap <= LastTap(row); ++tap) {
        for (std::size_t j = 0; j < kD; ++j) x[row][j] += y[row - tap][j] * weight_.value[tap][j];
      }
    }
  }

  void Backward(const Matrix& y, const Matrix& dx, Matrix& dy) override {
    dy.Clear();
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t tap = 0; tap <= LastTap(row); ++tap) {
        for (std::size_t j = 0; j < kD; ++j) {
          dy[row - tap][j] += dx[row][j] * weight_.value[tap][j];
          weight_.gradient[tap][j] += dx[row][j] * y[row - tap][j];
        }
      }
    }
  }

  std::vector<Parameter*> Parameters() override { return {&weight_}; }

 private:
  // It does not look beyond the start of a sequence.
  static std::size_t LastTap(std::size_t row) { return std::min(row % kLength, kTaps - 1); }

  Parameter weight_;
};

// x = ((y * gate) o (y * up)) * down, where o is by element.
class FeedForward : public SubLayer {
 public:
  explicit FeedForward(Random& random)
      : gate_(kD, kHidden, 0.2f, random),
        up_(kD, kHidden, 0.2f, random),
        down_(kHidden, kD, 0.2f, random) {}

  void Forward(const Matrix& y, Matrix& x) override {
    Product(y, gate_.value, a_);
    Product(y, up_.value, b_);
    for (std::size_t i = 0; i < ab_.data.size(); ++i) ab_.data[i] = a_.data[i] * b_.data[i];
    Product(ab_, down_.value, x);
  }

  void Backward(const Matrix& y, const Matrix& dx, Matrix& dy) override {
    AddProduct(Transposed(ab_), dx, down_.gradient);
    Matrix dab(kRows, kHidden), da(kRows, kHidden), db(kRows, kHidden);
    Product(dx, Transposed(down_.value), dab);
    for (std::size_t i = 0; i < dab.data.size(); ++i) {
      da.data[i] = dab.data[i] * b_.data[i];
      db.data[i] = dab.data[i] * a_.data[i];
    }
    const Matrix y_transposed = Transposed(y);
    AddProduct(y_transposed, da, gate_.gradient);
    AddProduct(y_transposed, db, up_.gradient);
    Product(da, Transposed(gate_.value), dy);
    AddProduct(db, Transposed(up_.value), dy);
  }

  std::vector<Parameter*> Parameters() override { return {&gate_, &up_, &down_}; }

 private:
  Parameter gate_, up_, down_;
  Matrix a_{kRows, kHidden}, b_{kRows, kHidden}, ab_{kRows, kHidden};
};

// -------------------------------------------------------------------------------------- norms

// A norm with its trained weight, and what backward needs of its forward call. The weight belongs
// to the optimiser, which changes it at every step; so these are the free functions, which take it
// from there. (An rmsnorm::RmsNorm holds a weight of its own, for one that stays.)
class Norm {
 public:
  explicit Norm(const rmsnorm::Context& context) : context_(context) {
    std::fill(weight_.value.data.begin(), weight_.value.data.end(), 1.0f);
  }

  // y = norm(h), for the head of the stream.
  void Forward(const Matrix& h) {
    h_ = h;
    rmsnorm::ForwardOperands operands = Results();
    operands.x = h.view();
    rmsnorm::forward(operands, {}, context_);
  }

  // h = residual + x, y = norm(h). Not in place of the residual, since backward takes each h.
  void AddForward(const Matrix& x, const Matrix& residual) {
    rmsnorm::ForwardOperands operands = Results();
    operands.x = x.view();
    operands.residual = residual.view();
    operands.residual_out = h_.view();
    rmsnorm::forward(operands, {}, context_);
  }

  // Adds to dh, which holds the gradient of what goes around the norm, that of what goes through.
  void Backward(const Matrix& dy, Matrix& dh) {
    rmsnorm::BackwardOperands operands;
    operands.dy = dy.view();
    operands.x = h_.view();
    operands.weight = Weight();
    operands.rstd = {rstd_.data(), kRows};
    operands.dx = dh.view();
    operands.add_to_dx = true;
    operands.dw = {weight_.gradient.data.data(), kD};
    operands.add_to_dw = true;
    rmsnorm::backward(operands, {}, context_);
  }

  const Matrix& h() const { return h_; }
  const Matrix& y() const { return y_; }
  Parameter& weight() { return weight_; }

 private:
  rmsnorm::ConstView Weight() const { return {weight_.value.data.data(), kD}; }

  // What both forward calls have.
  rmsnorm::ForwardOperands Results() {
    rmsnorm::ForwardOperands operands;
    operands.weight = Weight();
    operands.y = y_.view();
    operands.rstd = {rstd_.data(), kRows};
    return operands;
  }

  rmsnorm::Context context_;
  Parameter weight_{1, kD};
  Matrix h_{kRows, kD};
  Matrix y_{kRows, kD};
  std::vector<float> rstd_ = std::vector<float>(kRows);
};

// -------------------------------------------------------------------------------------- model

struct Piece {
  explicit Piece(Random& random) {
    for (std::size_t row = 0; row < kRows; ++row) {
      tokens[row] = random.Below(kVocabulary);
      std::size_t sum = 0;
      for (std::size_t back = 0; back < std::min(row % kLength + 1, kTaps); ++back) {
        sum += tokens[row - back];
      }
      targets[row] = sum % kVocabulary;
    }
  }

  std::array<std::size_t, kRows> tokens, targets;
};

using Batch = std::vector<Piece>;

Batch MakeBatch(Random& random) {
  Batch batch;
  for (std::size_t i = 0; i < kPieces; ++i) batch.emplace_back(random);
  return batch;
}

class Model {
 public:
  Model(const rmsnorm::Context& context, Random& random)
      : embedding_(kVocabulary, kD, 1.0f, random), head_(kD, kVocabulary, 0.02f, random) {
    for (std::size_t block = 0; block < kBlocks; ++block) {
      layers_.push_back(std::make_unique<Convolution>(random));
      layers_.push_back(std::make_unique<FeedForward>(random));
    }
    for (std::size_t i = 0; i <= layers_.size(); ++i) norms_.emplace_back(context);
  }

  double Loss(const Batch& batch) {
    double loss = 0;
    for (const Piece& piece : batch) loss += Forward(piece);
    return loss / static_cast<double>(kPieces);
  }

  // The loss too. The gradients of the pieces add up to that of the batch.
  double LossAndGradients(const Batch& batch) {
    for (Parameter* parameter : Parameters()) parameter->gradient.Clear();
    double loss = 0;
    for (const Piece& piece : batch) {
      loss += Forward(piece);
      Backward(piece);
    }
    return loss / static_cast<double>(kPieces);
  }

  std::vector<Parameter*> Parameters() {
    std::vector<Parameter*> all = {&embedding_, &head_};
    for (auto& layer : layers_) {
      for (Parameter* parameter : layer->Parameters()) all.push_back(parameter);
    }
    for (Norm& norm : norms_) all.push_back(&norm.weight());
    return all;
  }

 private:
  // Returns the loss: the squared distance of a row of the output from the vector that has 1 at the
  // target and 0 elsewhere, averaged over rows.
  double Forward(const Piece& piece) {
    Matrix h(kRows, kD), x(kRows, kD);
    for (std::size_t row = 0; row < kRows; ++row) {
      std::copy_n(embedding_.value[piece.tokens[row]], kD, h[row]);
    }
    norms_[0].Forward(h);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i]->Forward(norms_[i].y(), x);
      norms_[i + 1].AddForward(x, norms_[i].h());
    }
    Product(norms_.back().y(), head_.value, error_);

    double loss = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      error_[row][piece.targets[row]] -= 1.0f;
      for (std::size_t j = 0; j < kVocabulary; ++j) {
        const double error = error_[row][j];
        loss += error * error;
      }
    }
    return loss / static_cast<double>(kRows);
  }

  // Adds the gradients of the batch's loss that come from this piece, after its Forward().
  void Backward(const Piece& piece) {
    Matrix doutput = error_, dy(kRows, kD);
    for (float& g : doutput.data) g *= 2.0f / static_cast<float>(kPieces * kRows);
    AddProduct(Transposed(norms_.back().y()), doutput, head_.gradient);
    Product(doutput, Transposed(head_.value), dy);

    Matrix dh(kRows, kD);  // zeros: nothing goes around the last norm
    norms_.back().Backward(dy, dh);
    for (std::size_t i = layers_.size(); i-- > 0;) {
      layers_[i]->Backward(norms_[i].y(), dh, dy);
      norms_[i].Backward(dy, dh);
    }
    for (std::size_t row = 0; row < kRows; ++row) {
      float* gradient = embedding_.gradient[piece.tokens[row]];
      for (std::size_t j = 0; j < kD; ++j) gradient[j] += dh[row][j];
    }
  }

  Parameter embedding_, head_;
  std::vector<std::unique_ptr<SubLayer>> layers_;
  std::vector<Norm> norms_;  // one before each layer, and the last
  Matrix error_{kRows, kVocabulary};
};

// ----------------------------------------------------------------------------------- training

// Adam (Kingma and Ba, 2014).
class Optimiser {
 public:
  void Step(const std::vector<Parameter*>& parameters) {
    mean_power_ *= kMean;
    square_power_ *= kSquare;
    for (Parameter* p : parameters) {
      for (std::size_t i = 0; i < p->value.data.size(); ++i) {
        const float g = p->gradient.data[i];
        float& mean = p->mean.data[i];
        float& square = p->square.data[i];
        mean = kMean * mean + (1.0f - kMean) * g;
        square = kSquare * square + (1.0f - kSquare) * (g * g);
        p->value.data[i] -= kRate * (mean / (1.0f - mean_power_)) /
                            (std::sqrt(square / (1.0f - square_power_)) + 1e-8f);
      }
    }
  }

 private:
  static constexpr float kRate = 0.005f;
  static constexpr float kMean = 0.9f;
  static constexpr float kSquare = 0.99f;
  float mean_power_ = 1.0f;
  float square_power_ = 1.0f;
};

// Whether the loss fell by ten times within so many steps, each on a batch of its own.
bool Train(Model& model, Random& random, int steps) {
  Optimiser optimiser;
  double first = 0, loss = 0;
  for (int step = 0; step < steps; ++step) {
    loss = model.LossAndGradients(MakeBatch(random));
    if (step == 0) first = loss;
    const bool fell = loss <= first / 10;
    if (fell || step % 10 == 0) std::printf("step %3d  loss %.6f\n", step, loss);
    if (fell) {
      std::printf("final loss %a\n", loss);  // all its bits
      return true;
    }
    optimiser.Step(model.Parameters());
  }
  std::fprintf(stderr, "prenorm: in %d steps the loss fell from %g to %g only, not by ten times\n",
               steps, first, loss);
  return false;
}

// Compares some gradients of each parameter with central differences of the loss.
bool CheckGradients(Model& model, Random& random) {
  // A few steps first, for weights of the norms other than 1.
  Optimiser optimiser;
  for (int step = 0; step < 5; ++step) {
    model.LossAndGradients(MakeBatch(random));
    optimiser.Step(model.Parameters());
  }

  const Batch batch = MakeBatch(random);
  model.LossAndGradients(batch);
  double worst = 0;
  for (Parameter* parameter : model.Parameters()) {
    float largest = 0;
    for (float g : parameter->gradient.data) largest = std::max(largest, std::fabs(g));
    std::vector<float>& value = parameter->value.data;
    for (std::size_t i = 0; i < value.size(); i += value.size() / 5) {
      const float middle = value[i], above = middle + 0x1p-7f, below = middle - 0x1p-7f;
      value[i] = above;
      double difference = model.Loss(batch);
      value[i] = below;
      difference -= model.Loss(batch);
      value[i] = middle;
      const double expected = difference / (static_cast<double>(above) - below);
      const double off = std::fabs(parameter->gradient.data[i] - expected) / largest;
      if (!(off <= worst)) worst = off;  // a NaN too, which stays
    }
  }
  // With this step, rounding and the third derivative make differences of about 2e-4.
  const bool right = worst <= 1e-3;
  std::fprintf(right ? stdout : stderr,
               "%s: differ from differences of the loss by up to %.1e of the largest\n",
               right ? "gradients" : "prenorm: wrong gradients", worst);
  return right;
}

// The whole text as a number from `least` on; ends the program where it is none.
int Number(const char* option, const char* text, int least) {
  char* end = nullptr;
  const long number = text == nullptr ? 0 : std::strtol(text, &end, 10);
  if (end == nullptr || end == text || *end != '\0' || number < least || number > 1000000) {
    std::fprintf(stderr, "prenorm: %s takes a number from %d on\n", option, least);
    std::exit(2);
  }
  return static_cast<int>(number);
}

}  // namespace

int main(int argc, char** argv) try {
  rmsnorm::Context context;
  context.threads = 1;
  int steps = 200;
  bool check_gradients = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--threads") {
      context.threads = Number("--threads", argv[++i], 0);
    } else if (option == "--steps") {
      steps = Number("--steps", argv[++i], 1);
    } else if (option == "--check-gradients") {
      check_gradients = true;
    } else {
      std::fprintf(stderr, "usage: prenorm [--threads N] [--steps N] [--check-gradients]\n");
      return 2;
    }
  }

  Random random;
  Model model(context, random);
  return (check_gradients ? CheckGradients(model, random) : Train(model, random, steps)) ? 0 : 1;
} catch (
    const std::exception& error) {  // an rmsnorm::Error says what was wrong with which argument
  std::fprintf(stderr, "prenorm: %s\n", error.what());
  return 1;
}
