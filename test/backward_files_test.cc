// SPDX-License-Identifier: Apache-2.0
// `rmsnorm backward` from files to files: values, options, both outputs in one file or two, and
// bad input. What it shares with `rmsnorm apply`, such as the formats, apply_test.cc has.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <string>
#include <vector>

#include "run_command.h"
#include "tensor_files.h"

namespace rmsnorm::test {
namespace {

using Words = std::vector<std::string>;

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// Numbers() from a place of its own, so that x and its gradient differ.
std::vector<float> OtherNumbers(size_t count) {
  const std::vector<float> numbers = Numbers(count + 1000);
  return {numbers.begin() + 1000, numbers.end()};
}

// What the library computes of dense rows in one call.
template <class Dy>
struct Computed {
  std::vector<Dy> dx;
  std::vector<float> dw;
  std::vector<float> db;
};
template <class X, class Dy>
Computed<Dy> Compute(const std::vector<Dy>& dy, const std::vector<X>& x, size_t d,
                     const ConstView& weight = {}, const Options& options = {},
                     const std::vector<float>& rstd = {}) {
  const size_t rows = x.size() / d;
  Computed<Dy> computed = {std::vector<Dy>(x.size()), std::vector<float>(d), std::vector<float>(d)};
  BackwardOperands operands;
  operands.dy = {dy.data(), rows, d};
  operands.x = {x.data(), rows, d};
  operands.weight = weight;
  if (!rstd.empty()) operands.rstd = {rstd.data(), rows};
  operands.dx = {computed.dx.data(), rows, d};
  operands.dw = {computed.dw.data(), d};
  operands.db = {computed.db.data(), d};
  backward(operands, options);
  return computed;
}

std::string F32Npy(const std::string& shape, const std::vector<float>& values) {
  return Npy(NpyHeader("<f4", shape), Bytes(values));
}

class BackwardFilesTest : public DirectoryTest {
 protected:
  static Outcome Backward(const Words& words, const std::function<void()>& prepare = {}) {
    return RunCommand(Words{"backward"} + words, {}, prepare);
  }

  // All gradients, in one file.
  std::map<std::string, StoredTensor> Gradients(const Words& inputs) const {
    const std::string file = File("gradients.safetensors");
    ExpectSuccess(
        Backward(inputs + Words{"--grad-input", file, "--grad-weight", file, "--grad-bias", file}));
    const auto tensors = ReadSafetensors(ReadFile(file));
    EXPECT_EQ(tensors.size(), 3u);
    std::filesystem::remove(file);
    return tensors;
  }

  // Expects that nothing changes in the directory, which holds both outputs already.
  void ExpectRefused(const Words& inputs, const std::string& problem,
                     const std::string& ending = ".safetensors",
                     const std::function<void()>& prepare = {}) const {
    const std::string dx = Make("dx" + ending, "dx as it was");
    const std::string dw = Make("dw" + ending, "dw as it was");
    const Words before = directory_.Names();
    ExpectUserError(Backward(inputs + Words{"--grad-input", dx, "--grad-weight", dw}, prepare),
                    problem);
    EXPECT_EQ(ReadFile(dx), "dx as it was");
    EXPECT_EQ(ReadFile(dw), "dw as it was");
    EXPECT_EQ(directory_.Names(), before);
  }
};

// 3 rows of 100, in files.
class SmallBackwardTest : public BackwardFilesTest {
 protected:
  static constexpr size_t kRows = 3;
  static constexpr size_t kD = 100;

  // What the library computes, with the weight.
  Computed<float> Expected(const Options& options, const std::vector<float>& rstd = {}) const {
    return Compute(dy_, x_, kD, {weight_.data(), kD}, options, rstd);
  }

  const std::vector<bf16> x_ = Bf16Numbers(kRows * kD);
  const std::vector<float> dy_ = OtherNumbers(kRows * kD);
  const std::vector<float> weight_ = Numbers(kD);
  const std::string x_file_ = Make(
      "x.safetensors", Safetensors("{" + Entry("x", "BF16", "[3, 100]", 0, 600) + "}", Bytes(x_)));
  const std::string dy_file_ = Make("dy.npy", F32Npy("(3, 100)", dy_));
  const std::string weight_file_ = Make("w.npy", F32Npy("(100,)", weight_));
  const Words inputs_ = {"--input", x_file_, "--grad", dy_file_};
  const Words with_weight_ = inputs_ + Words{"--weight", weight_file_};
};

// ------------------------------------------------------------------------------------- values

// x = (3, 4) and y = x / sqrt(12.5), without eps. c = 3, so dx = r * (1, 0) - x * r^3 * 3 / 2, in
// which r^2 = 0.08; dw = dy * x * r, and db = dy.
TEST_F(BackwardFilesTest, ByHand) {
  const std::string x = Make("x.npy", F32Npy("(2,)", {3, 4}));
  const std::string dy = Make("dy.npy", F32Npy("(2,)", {1, 0}));
  const auto gradients = Gradients({"--input", x, "--grad", dy, "--eps", "0"});
  float dx[2];
  float dw[2];
  ASSERT_EQ(gradients.at("grad_input").data.size(), sizeof dx);
  ASSERT_EQ(gradients.at("grad_weight").data.size(), sizeof dw);
  EXPECT_EQ(gradients.at("grad_bias").data, Bytes<float>({1, 0}));
  std::memcpy(dx, gradients.at("grad_input").data.data(), sizeof dx);
  std::memcpy(dw, gradients.at("grad_weight").data.data(), sizeof dw);
  const float r = 0.28284271f;
  EXPECT_NEAR(dx[0], r * (1 - 3 * 0.08f * 1.5f), 1e-6);
  EXPECT_NEAR(dx[1], r * (0 - 4 * 0.08f * 1.5f), 1e-6);
  EXPECT_NEAR(dw[0], 3 * r, 1e-6);
  EXPECT_EQ(dw[1], 0);
}

TEST_F(SmallBackwardTest, EachOptionReachesTheLibrary) {
  struct OptionCase {
    Words words;
    void (*set)(Options&);
  };
  const OptionCase cases[] = {
      {{}, [](Options&) {}},
      {{"--eps", "0.5"}, [](Options& o) { o.eps = 0.5f; }},
      {{"--eps", "0.5", "--eps-placement", "outside"},
       [](Options& o) {
         o.eps = 0.5f;
         o.eps_placement = EpsPlacement::outside;
       }},
      {{"--eps", "2", "--eps-placement", "floor"},
       [](Options& o) {
         o.eps = 2;
         o.eps_placement = EpsPlacement::floor;
       }},
      {{"--weight-offset", "1"}, [](Options& o) { o.weight_offset = 1; }},
      {{"--divisor", "17.5"}, [](Options& o) { o.divisor = 17.5f; }},
  };
  std::set<std::string> different;
  for (const OptionCase& option : cases) {
    SCOPED_TRACE(testing::PrintToString(option.words));
    Options options;
    option.set(options);
    const Computed<float> expected = Expected(options);
    const auto gradients = Gradients(with_weight_ + option.words);
    EXPECT_EQ(gradients.at("grad_input").data, Bytes(expected.dx));
    EXPECT_EQ(gradients.at("grad_weight").data, Bytes(expected.dw));
    different.insert(gradients.at("grad_input").data);
  }
  EXPECT_EQ(different.size(), std::size(cases)) << "an option that changes nothing";

  const Computed<float> plain = Expected({});
  for (const Words& words : std::vector<Words>{{"--eps", "1e-5"},
                                               {"--eps-placement", "inside"},
                                               {"--weight-offset", "0"},
                                               {"--divisor", "100"},
                                               {"--grad-weight-dtype", "f32"},
                                               {"--grad-bias-dtype", "f32"},
                                               {"--threads", "0"},
                                               {"--threads", "1"},
                                               {"--threads", "7"}}) {
    SCOPED_TRACE(testing::PrintToString(words));
    const auto gradients = Gradients(with_weight_ + words);
    EXPECT_EQ(gradients.at("grad_input").data, Bytes(plain.dx));
    EXPECT_EQ(gradients.at("grad_weight").data, Bytes(plain.dw));
    EXPECT_EQ(gradients.at("grad_bias").data, Bytes(plain.db));
  }
}

TEST_F(SmallBackwardTest, ASavedInverseRmsIsUsedAsItIs) {
  const std::vector<float> rstd = {1, 2, 3};
  const Computed<float> expected = Expected({}, rstd);
  ASSERT_NE(expected.dx, Expected({}).dx);
  ASSERT_NE(expected.dw, Expected({}).dw);
  for (const char* shape : {"(3,)", "(3, 1)"}) {
    const std::string file = Make("rstd.npy", F32Npy(shape, rstd));
    const auto gradients = Gradients(with_weight_ + Words{"--rstd", file});
    EXPECT_EQ(gradients.at("grad_input").data, Bytes(expected.dx));
    EXPECT_EQ(gradients.at("grad_weight").data, Bytes(expected.dw));
  }
}

TEST_F(SmallBackwardTest, WithoutWeightThereIsStillItsGradient) {
  const Computed<float> expected = Compute(dy_, x_, kD);
  const auto gradients = Gradients(inputs_);
  EXPECT_EQ(gradients.at("grad_input").data, Bytes(expected.dx));
  EXPECT_EQ(gradients.at("grad_weight").data, Bytes(expected.dw));
}

TEST_F(SmallBackwardTest, TypesAreThoseOfWhatTheGradientIsFor) {
  const std::string dy = Make(
      "dy.safetensors", Safetensors("{" + Entry("g", "F16", "[3, 100]", 0, 600) + "}", Bytes(x_)));
  const std::string weight =
      Make("w.safetensors", Safetensors("{" + Entry("w", "BF16", "[100]", 0, 200) + "}",
                                        Bytes(std::vector<bf16>(x_.begin(), x_.begin() + kD))));
  auto gradients =
      Gradients({"--input", x_file_, "--grad", dy, "--weight", weight, "--bias", weight_file_});
  EXPECT_EQ(gradients.at("grad_input").dtype, "F16");
  EXPECT_EQ(gradients.at("grad_input").shape, (std::vector<size_t>{3, 100}));
  EXPECT_EQ(gradients.at("grad_weight").dtype, "BF16");
  EXPECT_EQ(gradients.at("grad_weight").shape, (std::vector<size_t>{100}));
  EXPECT_EQ(gradients.at("grad_bias").dtype, "F32");
  EXPECT_EQ(gradients.at("grad_bias").shape, (std::vector<size_t>{100}));
  gradients = Gradients({"--input", x_file_, "--grad", dy, "--bias", weight});
  EXPECT_EQ(gradients.at("grad_weight").dtype, "F32");
  EXPECT_EQ(gradients.at("grad_bias").dtype, "BF16");
  gradients = Gradients({"--input", x_file_, "--grad", dy});
  EXPECT_EQ(gradients.at("grad_bias").dtype, "F32");

  std::vector<f16> dw(kD);
  std::vector<bf16> db(kD);
  BackwardOperands operands;
  operands.dy = {dy_.data(), kRows, kD};
  operands.x = {x_.data(), kRows, kD};
  operands.weight = {weight_.data(), kD};
  operands.dw = {dw.data(), kD};
  operands.db = {db.data(), kD};
  backward(operands);
  gradients =
      Gradients(with_weight_ + Words{"--grad-weight-dtype", "f16", "--grad-bias-dtype", "bf16"});
  EXPECT_EQ(gradients.at("grad_weight").dtype, "F16");
  EXPECT_EQ(gradients.at("grad_weight").data, Bytes(dw));
  EXPECT_EQ(gradients.at("grad_bias").dtype, "BF16");
  EXPECT_EQ(gradients.at("grad_bias").data, Bytes(db));
}

// More than one chunk of x, and more rows than the sum of dw has blocks, aligned and not.
TEST_F(BackwardFilesTest, LongInputIsOneTensor) {
  constexpr size_t kRows = 3001;
  constexpr size_t kD = 1000;
  const std::vector<float> x = Numbers(kRows * kD);
  const std::vector<float> dy = OtherNumbers(kRows * kD);
  const std::vector<float> rstd(kRows, 1.5f);
  for (const bool with_rstd : {false, true}) {
    const Computed<float> expected =
        Compute(dy, x, kD, {}, {}, with_rstd ? rstd : std::vector<float>());
    for (const size_t misalignment : {0u, 1u}) {
      const auto file = [&](const std::string& name, const std::string& shape,
                            const std::vector<float>& values) {
        std::string header = NpyHeader("<f4", shape);
        header.resize(118 + misalignment, ' ');
        return Make(name, Npy(header, Bytes(values)));
      };
      Words words = {"--input", file("x.npy", "(3001, 1000)", x), "--grad",
                     file("dy.npy", "(3001, 1000)", dy)};
      if (with_rstd) words = words + Words{"--rstd", file("rstd.npy", "(3001,)", rstd)};
      const auto gradients = Gradients(words);
      EXPECT_TRUE(gradients.at("grad_input").data == Bytes(expected.dx)) << misalignment;
      EXPECT_EQ(gradients.at("grad_weight").data, Bytes(expected.dw)) << misalignment;
      EXPECT_EQ(gradients.at("grad_bias").data, Bytes(expected.db)) << misalignment;
      // By itself dx comes in chunks.
      const std::string dx = File("dx.npy");
      ExpectSuccess(Backward(words + Words{"--grad-input", dx}));
      EXPECT_TRUE(ReadFile(dx).substr(128) == Bytes(expected.dx)) << misalignment;
    }
  }
}

TEST_F(BackwardFilesTest, KeepsEveryShape) {
  struct Shape {
    std::string text;
    std::vector<size_t> shape;
    std::string rstd;
  };
  const std::vector<float> x = Numbers(24);
  const std::vector<float> dy = OtherNumbers(24);
  for (const Shape& shape :
       {Shape{"(24,)", {24}, "()"}, Shape{"(24,)", {24}, "(1,)"},
        Shape{"(24, 1)", {24, 1}, "(24,)"}, Shape{"(2, 3, 4)", {2, 3, 4}, "(2, 3)"},
        Shape{"(1, 2, 1, 3, 1, 2, 2)", {1, 2, 1, 3, 1, 2, 2}, "(1, 2, 1, 3, 1, 2, 1)"}}) {
    SCOPED_TRACE(shape.text + " " + shape.rstd);
    const size_t d = shape.shape.back();
    const size_t rows = 24 / d;
    const std::vector<float> rstd = Numbers(rows);
    const Computed<float> expected = Compute(dy, x, d, {}, {}, rstd);
    const auto gradients = Gradients({"--input", Make("x.npy", F32Npy(shape.text, x)), "--grad",
                                      Make("dy.npy", F32Npy(shape.text, dy)), "--rstd",
                                      Make("rstd.npy", F32Npy(shape.rstd, rstd))});
    EXPECT_EQ(gradients.at("grad_input").shape, shape.shape);
    EXPECT_EQ(gradients.at("grad_input").data, Bytes(expected.dx));
    EXPECT_EQ(gradients.at("grad_weight").shape, std::vector<size_t>{d});
    EXPECT_EQ(gradients.at("grad_weight").data, Bytes(expected.dw));
    EXPECT_EQ(gradients.at("grad_bias").shape, std::vector<size_t>{d});
    EXPECT_EQ(gradients.at("grad_bias").data, Bytes(expected.db));
  }
}

TEST_F(BackwardFilesTest, NoRowsGiveZeros) {
  const std::string none = Make("none.npy", Npy(NpyHeader("<f2", "(0, 5)"), ""));
  const auto gradients = Gradients({"--input", none, "--grad", none});
  EXPECT_EQ(gradients.at("grad_input").shape, (std::vector<size_t>{0, 5}));
  EXPECT_EQ(gradients.at("grad_input").data, "");
  EXPECT_EQ(gradients.at("grad_weight").data, std::string(20, '\0'));
  EXPECT_EQ(gradients.at("grad_bias").data, std::string(20, '\0'));

  // Also where only some of x's dimensions are there.
  const std::string heads = Make("heads.npy", Npy(NpyHeader("<f2", "(3, 0, 5)"), ""));
  const std::string weight = Make("w.npy", F32Npy("(3, 1, 5)", Numbers(15)));
  const auto of_heads =
      Gradients({"--input", heads, "--grad", heads, "--weight", weight, "--bias", weight});
  EXPECT_EQ(of_heads.at("grad_weight").shape, (std::vector<size_t>{3, 1, 5}));
  EXPECT_EQ(of_heads.at("grad_weight").data, std::string(60, '\0'));
  EXPECT_EQ(of_heads.at("grad_bias").data, std::string(60, '\0'));
}

// A size_t cannot count the bytes of the longest such row, and no memory holds the shortest.
TEST_F(BackwardFilesTest, NoRowsOfAnyLengthGiveAnEmptyGradient) {
  for (const size_t d : {size_t{1} << 62, size_t{1} << 61, size_t{1} << 40, SIZE_MAX}) {
    const std::string length = std::to_string(d);
    SCOPED_TRACE(length);
    const std::string none = Make("none.npy", Npy(NpyHeader("<f4", "(0, " + length + ")"), ""));
    const std::string rstd = Make("rstd.npy", Npy(NpyHeader("<f4", "(0,)"), ""));
    const Words inputs = {"--input", none, "--grad", none, "--rstd", rstd};
    const std::string dx = File("dx.safetensors");
    ExpectSuccess(Backward(inputs + Words{"--grad-input", dx}));
    const StoredTensor gradient = ReadSafetensors(ReadFile(dx)).at("grad_input");
    EXPECT_EQ(gradient.shape, (std::vector<size_t>{0, d}));
    EXPECT_EQ(gradient.data, "");
    std::filesystem::remove(dx);

    if (d == size_t{1} << 40) continue;  // it depends on the system whether there is memory
    ExpectRefused(inputs, "--grad-weight: no memory for [" + length + "] of f32", ".npy");
    ExpectUserError(Backward(inputs + Words{"--grad-bias", dx}),
                    "--grad-bias: no memory for [" + length + "] of f32");
  }
}

// Rows of x, of shape (2, 3, 4, 5), that share one of the weight or of the bias.
TEST_F(BackwardFilesTest, GradientsHaveTheShapesOfWeightAndBias) {
  constexpr size_t kD = 5;
  const std::vector<float> x = Numbers(120);
  const std::vector<float> dy = OtherNumbers(120);
  struct Shape {
    std::vector<size_t> shape;
    std::string text;
    std::vector<size_t> row;  // which of its rows each of x's has
  };
  std::vector<Shape> shapes = {{{5}, "(5,)", {}},
                               {{1, 1, 1, 5}, "(1, 1, 1, 5)", {}},
                               {{4, 5}, "(4, 5)", {}},
                               {{3, 1, 5}, "(3, 1, 5)", {}},
                               {{2, 1, 1, 5}, "(2, 1, 1, 5)", {}},
                               {{2, 1, 4, 5}, "(2, 1, 4, 5)", {}},
                               {{2, 3, 4, 5}, "(2, 3, 4, 5)", {}}};
  for (size_t row = 0; row < 24; ++row) {
    const size_t a = row / 12;
    const size_t b = row / 4 % 3;
    const size_t c = row % 4;
    const size_t rows[] = {0, 0, c, b, a, a * 4 + c, row};
    for (size_t i = 0; i < shapes.size(); ++i) shapes[i].row.push_back(rows[i]);
  }
  // The gradients of the rows that share one.
  struct Sum {
    std::vector<float> dx;
    std::string dw;
    std::string db;
  };
  const auto sum = [&](const Shape& shape, const std::vector<float>& weight) {
    Sum all = {std::vector<float>(120), "", ""};
    for (size_t own = 0; own < weight.size() / kD; ++own) {
      std::vector<float> some_x;
      std::vector<float> some_dy;
      for (size_t i = 0; i < 120; ++i) {
        if (shape.row[i / kD] != own) continue;
        some_x.push_back(x[i]);
        some_dy.push_back(dy[i]);
      }
      const Computed<float> some = Compute(some_dy, some_x, kD, {weight.data() + own * kD, kD});
      size_t next = 0;
      for (size_t i = 0; i < 120; ++i) {
        if (shape.row[i / kD] == own) all.dx[i] = some.dx[next++];
      }
      all.dw += Bytes(some.dw);
      all.db += Bytes(some.db);
    }
    return all;
  };
  const std::string x_file = Make("x.npy", F32Npy("(2, 3, 4, 5)", x));
  const std::string dy_file = Make("dy.npy", F32Npy("(2, 3, 4, 5)", dy));
  for (const Shape& shape : shapes) {
    size_t size = 1;
    for (const size_t dimension : shape.shape) size *= dimension;
    const std::vector<float> weight = Numbers(size);
    const std::string file = Make("w.npy", F32Npy(shape.text, weight));
    const Sum of_weight = sum(shape, weight);
    for (const Shape& other : shapes) {
      SCOPED_TRACE(shape.text + " " + other.text);
      size_t other_size = 1;
      for (const size_t dimension : other.shape) other_size *= dimension;
      const std::vector<float> bias(other_size);  // whose values are no matter
      const auto gradients = Gradients({"--input", x_file, "--grad", dy_file, "--weight", file,
                                        "--bias", Make("b.npy", F32Npy(other.text, bias))});
      EXPECT_EQ(gradients.at("grad_input").data, Bytes(of_weight.dx));
      EXPECT_EQ(gradients.at("grad_weight").shape, shape.shape);
      EXPECT_EQ(gradients.at("grad_weight").data, of_weight.dw);
      EXPECT_EQ(gradients.at("grad_bias").shape, other.shape);
      EXPECT_EQ(gradients.at("grad_bias").data, sum(other, bias).db);
    }
  }
}

// ------------------------------------------------------------------------------------- outputs

TEST_F(SmallBackwardTest, EachGradientAloneAndAllInFilesOfTheirOwn) {
  const auto all = Gradients(with_weight_);
  const std::string dx_file = File("dx.npy");
  const std::string dw_file = File("dw.safetensors");
  const auto expect_dx = [&] {
    const std::string bytes = ReadFile(dx_file);
    EXPECT_EQ(bytes.substr(128), all.at("grad_input").data);
    std::filesystem::remove(dx_file);
  };
  const auto expect_dw = [&](const std::string& name) {
    const auto tensors = ReadSafetensors(ReadFile(dw_file));
    ASSERT_EQ(tensors.size(), 1u);
    EXPECT_EQ(tensors.at(name).data, all.at("grad_weight").data);
    std::filesystem::remove(dw_file);
  };
  const std::string db_file = File("db.npy");
  const auto expect_db = [&] {
    EXPECT_EQ(ReadFile(db_file).substr(128), all.at("grad_bias").data);
    std::filesystem::remove(db_file);
  };
  const Words before = directory_.Names();
  ExpectSuccess(Backward(with_weight_ + Words{"--grad-input", dx_file}));
  expect_dx();
  ExpectSuccess(Backward(with_weight_ + Words{"--grad-weight", dw_file}));
  expect_dw("grad_weight");
  ExpectSuccess(Backward(with_weight_ + Words{"--grad-bias", db_file}));
  expect_db();
  ExpectSuccess(Backward(with_weight_ + Words{"--grad-input", dx_file, "--grad-weight",
                                              dw_file + ":norm", "--grad-bias", db_file}));
  expect_dx();
  expect_dw("norm");
  expect_db();
  EXPECT_EQ(directory_.Names(), before);
}

// However the file is spelled.
TEST_F(SmallBackwardTest, OneFileTakesBoth) {
  const auto both = Gradients(with_weight_);
  Make("a.safetensors", "");
  std::filesystem::create_symlink("a.safetensors", File("link.safetensors"));
  for (const char* const other : {"a.safetensors", "./a.safetensors", "link.safetensors"}) {
    SCOPED_TRACE(other);
    ExpectSuccess(Backward(with_weight_ + Words{"--grad-input", File("a.safetensors") + ":x",
                                                "--grad-weight", File(other) + ":w"}));
    const auto tensors = ReadSafetensors(ReadFile(File("a.safetensors")));
    ASSERT_EQ(tensors.size(), 2u);
    EXPECT_EQ(tensors.at("x").data, both.at("grad_input").data);
    EXPECT_EQ(tensors.at("w").data, both.at("grad_weight").data);
  }
  // The third one has a file of its own.
  for (const Words& words : std::vector<Words>{{"--grad-input", "--grad-bias", "--grad-weight"},
                                               {"--grad-weight", "--grad-input", "--grad-bias"}}) {
    ExpectSuccess(Backward(with_weight_ + Words{words[0], File("a.safetensors") + ":a", words[1],
                                                File("link.safetensors") + ":b", words[2],
                                                File("c.safetensors")}));
    EXPECT_EQ(ReadSafetensors(ReadFile(File("a.safetensors"))).size(), 2u);
    EXPECT_EQ(ReadSafetensors(ReadFile(File("c.safetensors"))).size(), 1u);
  }
}

// So that a reader may map them: with an odd number of elements of 2 bytes before those of 4 they
// were not.
TEST_F(BackwardFilesTest, BothAreAlignedInOneFile) {
  const std::vector<float> numbers = Numbers(3);
  const std::vector<bf16> narrow = Bf16Numbers(3);
  const std::string f32 = Make("f32.npy", F32Npy("(1, 3)", numbers));
  const std::string bf16_file =
      Make("bf16.safetensors",
           Safetensors("{" + Entry("g", "BF16", "[1, 3]", 0, 6) + "}", Bytes(narrow)));
  const std::string out = File("out.safetensors");
  for (const Words& words : std::vector<Words>{{"--grad", bf16_file, "--grad-weight-dtype", "f32"},
                                               {"--grad", f32, "--grad-weight-dtype", "bf16"}}) {
    SCOPED_TRACE(testing::PrintToString(words));
    ExpectSuccess(
        Backward(Words{"--input", f32, "--grad-input", out, "--grad-weight", out} + words));
    const std::string bytes = ReadFile(out);
    const auto tensors = ReadSafetensors(bytes);
    const size_t wide = words[1] == f32 ? tensors.at("grad_input").data.size()
                                        : tensors.at("grad_weight").data.size();
    EXPECT_EQ(wide, 12u);
    uint64_t header;
    std::memcpy(&header, bytes.data(), sizeof header);
    EXPECT_EQ(header % 8, 0u);
    const std::string first = words[1] == f32 ? "grad_input" : "grad_weight";
    EXPECT_NE(bytes.find("\"" + first + "\":{\"data_offsets\":[0,12]"), std::string::npos) << bytes;
  }
}

TEST_F(SmallBackwardTest, OneNewFileTakesBoth) {
  const auto both = Gradients(with_weight_);
  const std::string file = File("a.safetensors");
  const auto enter = [this] { ASSERT_EQ(chdir(File("").c_str()), 0); };
  for (const std::string& other : {std::string("./a.safetensors"), file}) {
    SCOPED_TRACE(other);
    ExpectSuccess(Backward(
        with_weight_ + Words{"--grad-input", "a.safetensors", "--grad-weight", other}, enter));
    const auto tensors = ReadSafetensors(ReadFile(file));
    ASSERT_EQ(tensors.size(), 2u);
    EXPECT_EQ(tensors.at("grad_input").data, both.at("grad_input").data);
    EXPECT_EQ(tensors.at("grad_weight").data, both.at("grad_weight").data);
    std::filesystem::remove(file);
  }
}

TEST_F(SmallBackwardTest, OutputsThatCannotShareAFile) {
  const std::string safetensors = Make("a.safetensors", "as it was");
  const std::string npy = Make("a.npy", "as it was");
  const Words before = directory_.Names();
  ExpectUserError(Backward(inputs_ + Words{"--grad-input", npy, "--grad-weight", npy}),
                  "a.npy: a .npy file holds one tensor");
  ExpectUserError(Backward(inputs_ + Words{"--grad-input", safetensors + ":g", "--grad-weight",
                                           safetensors + ":g"}),
                  "a.safetensors: two tensors cannot be called 'g'");
  ExpectUserError(Backward(inputs_ + Words{"--grad-input", safetensors + ":grad_weight",
                                           "--grad-weight", safetensors}),
                  "two tensors cannot be called 'grad_weight'");
  ExpectUserError(Backward(inputs_ + Words{"--grad-bias", safetensors + ":grad_weight",
                                           "--grad-weight", safetensors}),
                  "two tensors cannot be called 'grad_weight'");
  EXPECT_EQ(ReadFile(safetensors), "as it was");
  EXPECT_EQ(ReadFile(npy), "as it was");
  EXPECT_EQ(directory_.Names(), before);
}

TEST_F(SmallBackwardTest, MayReplaceItsInputs) {
  const auto both = Gradients(with_weight_);
  ExpectSuccess(
      Backward(with_weight_ + Words{"--grad-input", dy_file_, "--grad-weight", weight_file_}));
  EXPECT_EQ(ReadFile(dy_file_).substr(128), both.at("grad_input").data);
  EXPECT_EQ(ReadFile(weight_file_).substr(128), both.at("grad_weight").data);
}

// --------------------------------------------------------------------------------- bad input

TEST_F(SmallBackwardTest, RefusesShapesThatDoNotFit) {
  const auto f32 = [this](const std::string& name, const std::string& shape, size_t count) {
    return Make(name, F32Npy(shape, Numbers(count)));
  };
  for (const auto& [shape, count] : std::vector<std::pair<std::string, size_t>>{
           {"(3, 99)", 297}, {"(2, 100)", 200}, {"(300,)", 300}, {"(1, 3, 100)", 300}, {"()", 1}}) {
    std::string brackets = shape == "(300,)" ? "[300]" : shape;
    if (brackets[0] == '(') brackets = "[" + shape.substr(1, shape.size() - 2) + "]";
    ExpectRefused({"--input", x_file_, "--grad", f32("g.npy", shape, count)},
                  "--grad: shape " + brackets + ", but x has [3, 100]");
  }
  ExpectRefused(inputs_ + Words{"--weight", f32("v.npy", "(99,)", 99)},
                "--weight: shape [99], but the rows of x need [100]");
  ExpectRefused(inputs_ + Words{"--weight", f32("v.npy", "(2, 100)", 200)},
                "--weight: shape [2, 100] does not broadcast to [3, 100], the shape of x");
  const std::string db = File("db.npy");
  ExpectRefused(inputs_ + Words{"--grad-bias", db, "--bias", f32("v.npy", "(99,)", 99)},
                "--bias: shape [99], but the rows of x need [100]");
  ExpectRefused(inputs_ + Words{"--grad-bias", db, "--bias", f32("v.npy", "(1, 1, 100)", 100)},
                "--bias: shape [1, 1, 100] does not broadcast to [3, 100], the shape of x");
  for (const auto& [shape, count] : std::vector<std::pair<std::string, size_t>>{
           {"(2,)", 2}, {"(1, 3)", 3}, {"()", 1}, {"(3, 100)", 300}, {"(3, 1, 1)", 3}}) {
    ExpectRefused(inputs_ + Words{"--rstd", f32("rstd.npy", shape, count)},
                  ", but the rows of x need [3] or [3, 1]");
  }
  ExpectRefused(
      inputs_ + Words{"--rstd", Make("rstd.npy", Npy(NpyHeader("<f2", "(3,)"), "123456"))},
      "--rstd: f16, but an inverse RMS is f32");
  const std::string none = f32("none.npy", "()", 1);
  ExpectRefused({"--input", none, "--grad", none}, "--input: a tensor without dimensions");
  const std::string empty = f32("empty.npy", "(3, 0)", 0);
  ExpectRefused({"--input", empty, "--grad", empty},
                "--input: shape [3, 0] has rows of no elements");
}

TEST_F(SmallBackwardTest, RefusesFilesThatCannotBeRead) {
  const std::string missing = File("missing.npy");
  const std::string bad = Make("bad.npy", "");
  ExpectRefused({"--input", missing, "--grad", dy_file_}, "missing.npy: No such file");
  ExpectRefused({"--input", x_file_, "--grad", missing}, "missing.npy: No such file");
  ExpectRefused(inputs_ + Words{"--weight", missing}, "missing.npy: No such file");
  ExpectRefused(inputs_ + Words{"--rstd", missing}, "missing.npy: No such file");
  ExpectRefused(inputs_ + Words{"--grad-bias", File("b.npy"), "--bias", missing},
                "missing.npy: No such file");
  ExpectRefused({"--input", x_file_, "--grad", bad}, "bad.npy: not a .npy file");
  ExpectRefused(inputs_ + Words{"--rstd", bad}, "bad.npy: not a .npy file");
  ExpectRefused({"--input", x_file_ + ":z", "--grad", dy_file_}, "no tensor 'z'");
}

TEST_F(SmallBackwardTest, RefusesWhatItCannotWrite) {
  const std::string dx = Make("x.npy", "as it was");
  const std::string dw = Make("w.safetensors", "as it was");
  const Words before = directory_.Names();
  const auto expect = [&](const std::string& to_dx, const std::string& to_dw,
                          const std::string& problem, const Words& more = {}) {
    SCOPED_TRACE(problem);
    ExpectUserError(
        Backward(with_weight_ + Words{"--grad-input", to_dx, "--grad-weight", to_dw} + more),
        problem);
    EXPECT_EQ(ReadFile(dx), "as it was");
    EXPECT_EQ(ReadFile(dw), "as it was");
    EXPECT_EQ(directory_.Names(), before);
  };
  expect(dx, File("missing/w.npy"), "missing/w.npy: No such file or directory");
  expect(File("missing/x.npy"), dw, "missing/x.npy: No such file or directory");
  expect(dx, "w.txt", "w.txt: the name must end in .npy");
  expect("x.txt", dw, "x.txt: the name must end in .npy");
  expect(dx, File("w.npy"), "w.npy: .npy has no bf16", {"--grad-weight-dtype", "bf16"});
  expect(dx, dw + ":\xff", "not UTF-8");
  expect(dx, dw + ":__metadata__", "cannot be called '__metadata__'");
  std::filesystem::create_directory(File("d.npy"));
  ExpectUserError(Backward(inputs_ + Words{"--grad-input", dx, "--grad-weight", File("d.npy")}),
                  "d.npy: not a regular file");
  EXPECT_EQ(ReadFile(dx), "as it was");
}

TEST_F(SmallBackwardTest, RefusesWrongUse) {
  ExpectUserError(Backward(inputs_), "--grad-input, --grad-weight or --grad-bias is required");
  const std::string out = File("dx.npy");
  ExpectUserError(Backward({"--input", x_file_, "--grad-input", out}), "--grad is required");
  ExpectUserError(Backward({"--grad", dy_file_, "--grad-input", out}), "--input is required");
  ExpectUserError(Backward(inputs_ + Words{"--grad-input", out, "--grad-weight-dtype", "f32"}),
                  "--grad-weight-dtype requires --grad-weight");
  ExpectUserError(Backward(inputs_ + Words{"--grad-input", out, "--grad-bias-dtype", "f32"}),
                  "--grad-bias-dtype requires --grad-bias");
  ExpectUserError(Backward(inputs_ + Words{"--grad-input", out, "--bias", weight_file_}),
                  "--bias requires --grad-bias");
  ExpectUserError(Backward(inputs_ + Words{"--grad-bias", "b.txt"}), "b.txt: the name must end in");
  ExpectUserError(Backward(inputs_ + Words{"--grad-input", out, "--weight-offset", "1"}),
                  "--weight-offset requires --weight");
  for (const auto& [words, problem] : std::vector<std::pair<Words, std::string>>{
           {{"--eps", "-1"}, "--eps: -1 is negative"},
           {{"--eps", "x"}, "--eps: 'x' is not a finite 32-bit number"},
           {{"--divisor", "0"}, "--divisor: 0 is not positive"},
           {{"--threads", "-1"}, "--threads"},
           {{"--eps-placement", "beside"}, "--eps-placement"},
           {{"--grad-weight-dtype", "f64"}, "--grad-weight-dtype"},
           {{"--rounding", "scale-then-cast"}, "--rounding"}}) {
    ExpectRefused(with_weight_ + words, problem);
  }
  ExpectRefused(with_weight_, "PDP11", ".npy", [] { setenv("RMSNORM_TARGET", "PDP11", 1); });
}

// ------------------------------------------------------------------------- nothing half-written

TEST_F(SmallBackwardTest, AFullDiskLeavesBothOutputsAlone) {
  const std::string dx = Make("dx.npy", "dx as it was");
  const std::string dw = Make("dw.npy", "dw as it was");
  const Words before = directory_.Names();
  // dx takes 128 + 1200 bytes, dw 128 + 400.
  for (const rlim_t limit : std::vector<rlim_t>{0, 100, 300, 600, 1300}) {
    const Outcome outcome = RunOnFullDisk(
        Words{"backward"} + inputs_ + Words{"--grad-input", dx, "--grad-weight", dw}, limit);
    ExpectUserError(outcome, ".npy: File too large");
    EXPECT_EQ(ReadFile(dx), "dx as it was");
    EXPECT_EQ(ReadFile(dw), "dw as it was");
    EXPECT_EQ(directory_.Names(), before);
  }
}

TEST_F(BackwardFilesTest, AnInterruptLeavesNothingBehind) {
  // 2 GiB of zeros, more than any machine works through at once.
  Make("huge.npy", Npy(NpyHeader("<f4", "(524288, 1024)"), ""));
  const std::string huge = Extend("huge.npy", uint64_t{2} << 30);
  const std::string dx = Make("dx.npy", "dx as it was");
  const std::string dw = Make("dw.npy", "dw as it was");
  const Words before = directory_.Names();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::signal(signal, SIG_DFL);  // under nohup it is ignored
      ExecuteCommand(
          {"backward", "--input", huge, "--grad", huge, "--grad-input", dx, "--grad-weight", dw});
    }
    EXPECT_TRUE(Wait([&] { return directory_.Names().size() == before.size() + 2; }));
    kill(child, signal);
    ASSERT_EQ(WaitFor(child), 128 + signal);
    EXPECT_EQ(directory_.Names(), before);
    EXPECT_EQ(ReadFile(dx), "dx as it was");
    EXPECT_EQ(ReadFile(dw), "dw as it was");
  }
}

}  // namespace
}  // namespace rmsnorm::test
