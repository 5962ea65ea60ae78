// SPDX-License-Identifier: Apache-2.0
// `rmsnorm apply` from file to file: values, options, both formats, and every kind of bad input.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <vector>

#include "run_command.h"
#include "tensor_files.h"

namespace rmsnorm::test {
namespace {

class ApplyTest : public DirectoryTest {
 protected:
  static Outcome Apply(const std::string& input, const std::string& output,
                       const std::vector<std::string>& options = {},
                       const std::function<void()>& prepare = {}) {
    std::vector<std::string> arguments = {"apply", "--input", input, "--output", output};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return RunCommand(arguments, {}, prepare);
  }

  // Applies and returns the tensor `name` of the .safetensors file that comes out.
  StoredTensor Applied(const std::string& input, const std::vector<std::string>& options = {},
                       const std::string& name = "output") const {
    const std::string output = File("applied.safetensors");
    ExpectSuccess(Apply(input, name == "output" ? output : output + ":" + name, options));
    const auto tensors = ReadSafetensors(ReadFile(output));
    EXPECT_EQ(tensors.size(), 1u);
    std::filesystem::remove(output);
    return tensors.at(name);
  }

  // Expects that applying changes nothing in the directory, which holds an output file already.
  void ExpectRefused(const std::string& input, const std::vector<std::string>& options,
                     const std::string& problem, const std::string& output_name = "y.safetensors",
                     const std::function<void()>& prepare = {}) const {
    Make(output_name, "as it was");
    const std::vector<std::string> before = directory_.Names();
    ExpectUserError(Apply(input, File(output_name), options, prepare), problem);
    EXPECT_EQ(ReadFile(File(output_name)), "as it was");
    EXPECT_EQ(directory_.Names(), before);
  }
};

// ------------------------------------------------------------------------------------- values

TEST_F(ApplyTest, PublishedExample) {
  const std::string x = Make("x.npy", Npy(NpyHeader("<f4", "(2,)"), Bytes<float>({1, 2})));
  const StoredTensor y = Applied(x);
  EXPECT_EQ(y.dtype, "F32");
  EXPECT_EQ(y.shape, std::vector<size_t>{2});
  ASSERT_EQ(y.data.size(), 8u);
  float values[2];
  std::memcpy(values, y.data.data(), sizeof values);
  EXPECT_NEAR(values[0], 0.6325, 5e-5);
  EXPECT_NEAR(values[1], 1.2649, 5e-5);
}

struct OptionCase {
  std::vector<std::string> words;
  void (*set)(Options&);
};

TEST_F(ApplyTest, EachOptionReachesTheLibrary) {
  constexpr size_t kRows = 3;
  constexpr size_t kD = 100;
  const std::vector<bf16> x = Bf16Numbers(kRows * kD);
  const std::vector<float> w = Numbers(kD);
  const std::string x_file = Make(
      "x.safetensors", Safetensors("{" + Entry("x", "BF16", "[3, 100]", 0, 600) + "}", Bytes(x)));
  const std::string w_file = Make("w.npy", Npy(NpyHeader("<f4", "(100,)"), Bytes(w)));

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
      {{"--rounding", "cast-then-scale"},
       [](Options& o) { o.rounding = Rounding::cast_then_scale; }},
      {{"--rounding", "inverse-rounded"},
       [](Options& o) { o.rounding = Rounding::inverse_rounded; }},
      {{"--weight-offset", "1"}, [](Options& o) { o.weight_offset = 1; }},
      {{"--divisor", "17.5"}, [](Options& o) { o.divisor = 17.5f; }},
  };
  std::set<std::string> different;
  for (const OptionCase& option : cases) {
    SCOPED_TRACE(testing::PrintToString(option.words));
    Options options;
    option.set(options);
    std::vector<float> expected(x.size());
    norm({x.data(), kRows, kD}, {w.data(), kD}, {expected.data(), kRows, kD}, options);
    std::vector<std::string> words = {"--weight", w_file, "--dtype", "f32"};
    words.insert(words.end(), option.words.begin(), option.words.end());
    const StoredTensor y = Applied(x_file, words);
    EXPECT_EQ(y.data, Bytes(expected));
    different.insert(y.data);
  }
  EXPECT_EQ(different.size(), std::size(cases)) << "an option that changes nothing";

  // What the options name as their defaults is what they leave out.
  const StoredTensor plain = Applied(x_file, {"--weight", w_file});
  EXPECT_EQ(plain.dtype, "BF16");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--eps", "1e-5"},
                                             {"--eps-placement", "inside"},
                                             {"--rounding", "scale-then-cast"},
                                             {"--weight-offset", "0"},
                                             {"--divisor", "100"},
                                             {"--dtype", "bf16"},
                                             {"--threads", "0"},
                                             {"--threads", "1"},
                                             {"--threads", "7"}}) {
    SCOPED_TRACE(testing::PrintToString(words));
    std::vector<std::string> all = {"--weight", w_file};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(Applied(x_file, all).data, plain.data);
  }
}

TEST_F(ApplyTest, EpsIsRoundedOnce) {
  // Just above the middle between two floats. By way of a double, which would be that middle, it
  // would round down to 1.
  const char eps[] = "1.00000005960464477540";
  const char above[] = "1.00000011920928955078125";
  const std::string x = Make("x.npy", Npy(NpyHeader("<f4", "(1,)"), Bytes<float>({0x1p-30f})));
  const auto apply = [&](const char* value) {
    return Applied(x, {"--eps", value, "--eps-placement", "outside"}).data;
  };
  ASSERT_NE(apply("1"), apply(above));
  EXPECT_EQ(apply(eps), apply(above));
}

TEST_F(ApplyTest, WritesEachDtype) {
  const std::vector<float> x = Numbers(24);
  const std::string x_file = Make("x.npy", Npy(NpyHeader("<f4", "(2, 12)"), Bytes(x)));
  std::vector<float> f32(24);
  std::vector<f16> half(24);
  std::vector<bf16> brain(24);
  norm({x.data(), 2, 12}, {}, {f32.data(), 2, 12});
  norm({x.data(), 2, 12}, {}, {half.data(), 2, 12});
  norm({x.data(), 2, 12}, {}, {brain.data(), 2, 12});
  EXPECT_EQ(Applied(x_file, {"--dtype", "f32"}).data, Bytes(f32));
  EXPECT_EQ(Applied(x_file, {"--dtype", "f16"}).data, Bytes(half));
  EXPECT_EQ(Applied(x_file, {"--dtype", "bf16"}).data, Bytes(brain));
  EXPECT_EQ(Applied(x_file, {"--dtype", "f16"}).dtype, "F16");
  EXPECT_EQ(Applied(x_file, {"--dtype", "bf16"}).dtype, "BF16");
}

// More than one chunk of x, the last one smaller, aligned and not.
TEST_F(ApplyTest, LongInputIsOneTensor) {
  constexpr size_t kRows = 3001;
  constexpr size_t kD = 1000;
  const std::vector<float> x = Numbers(kRows * kD);
  std::vector<float> expected(x.size());
  norm({x.data(), kRows, kD}, {}, {expected.data(), kRows, kD});
  for (const size_t misalignment : {0u, 1u, 2u, 3u}) {
    std::string header = NpyHeader("<f4", "(3001, 1000)");
    header.resize(118 + misalignment, ' ');
    const std::string x_file = Make("x.npy", Npy(header, Bytes(x)));
    EXPECT_EQ(Applied(x_file).data, Bytes(expected)) << misalignment;
  }
}

TEST_F(ApplyTest, RowLongerThanAChunk) {
  constexpr size_t kD = 3 << 20;
  const std::vector<float> x = Numbers(2 * kD);
  std::vector<float> expected(x.size());
  norm({x.data(), 2, kD}, {}, {expected.data(), 2, kD});
  const std::string shape = "(2, " + std::to_string(kD) + ")";
  const std::string x_file = Make("x.npy", Npy(NpyHeader("<f4", shape), Bytes(x)));
  EXPECT_EQ(Applied(x_file).data, Bytes(expected));
}

// -------------------------------------------------------------------------- weight and bias

std::string NpyShape(const std::vector<size_t>& shape) {
  std::string text = "(";
  for (const size_t dimension : shape) text += std::to_string(dimension) + ",";
  return text + ")";
}

size_t Product(const std::vector<size_t>& shape) {
  size_t product = 1;
  for (const size_t dimension : shape) product *= dimension;
  return product;
}

// A tensor of f32 in memory.
struct Floats {
  std::vector<size_t> shape;
  std::vector<float> values;

  std::string File() const { return Npy(NpyHeader("<f4", NpyShape(shape)), Bytes(values)); }

  // Its row for one of x's: by its own index along each dimension that is not 1.
  const float* RowFor(size_t row, const std::vector<size_t>& x_shape) const {
    size_t own = 0;
    size_t step = 1;
    for (size_t i = 2; i <= x_shape.size(); ++i) {
      const size_t size = x_shape[x_shape.size() - i];
      const size_t own_size = i <= shape.size() ? shape[shape.size() - i] : 1;
      if (own_size != 1) own += row % size * step;
      step *= own_size;
      row /= size;
    }
    return values.data() + own * shape.back();
  }
};

// Each row by itself, on the reference target.
std::vector<float> NormOfEachRow(const Floats& x, const Floats* weight, const Floats* bias) {
  const size_t d = x.shape.back();
  std::vector<float> y(x.values.size());
  Context context;
  context.target = "reference";
  for (size_t row = 0; row < y.size() / d; ++row) {
    ForwardOperands operands;
    operands.x = ConstView(x.values.data() + row * d, d);
    if (weight != nullptr) operands.weight = ConstView(weight->RowFor(row, x.shape), d);
    if (bias != nullptr) operands.bias = ConstView(bias->RowFor(row, x.shape), d);
    operands.y = View(y.data() + row * d, d);
    forward(operands, {}, context);
  }
  return y;
}

// x = (3, 4) without eps: 1 / RMS is 1 / sqrt(12.5). 2 and 10 are what is added.
TEST_F(ApplyTest, AddsABiasAfterTheWeight) {
  const auto file = [this](const std::string& name, const std::vector<float>& values) {
    return Make(name, Floats{{2}, values}.File());
  };
  const std::string x = file("x.npy", {3, 4});
  const std::string b = file("b.npy", {2, 10});
  const std::string w = file("w.npy", {5, 5});
  const auto expect = [&](const std::vector<std::string>& words, double first, double second) {
    const StoredTensor y = Applied(x, words);
    float values[2];
    ASSERT_EQ(y.data.size(), sizeof values);
    std::memcpy(values, y.data.data(), sizeof values);
    EXPECT_NEAR(values[0], first, 1e-6);
    EXPECT_NEAR(values[1], second, 1e-6);
  };
  const double r = 0.282842712474619;
  expect({"--eps", "0", "--bias", b}, 3 * r + 2, 4 * r + 10);
  expect({"--eps", "0", "--bias", b, "--weight", w}, 15 * r + 2, 20 * r + 10);
  expect({"--eps", "0", "--bias", b, "--weight", w, "--weight-offset", "1"}, 18 * r + 2,
         24 * r + 10);
}

TEST_F(ApplyTest, TakesABiasOfEachType) {
  const std::vector<bf16> x = Bf16Numbers(300);
  const std::string x_file = Make(
      "x.safetensors", Safetensors("{" + Entry("x", "BF16", "[3, 100]", 0, 600) + "}", Bytes(x)));
  const std::vector<float> wide = Numbers(100);
  const std::vector<f16> half(100, f16{0x3555});
  const std::vector<bf16> brain = Bf16Numbers(100);
  const std::string file =
      Make("b.safetensors", Safetensors("{" + Entry("F32", "F32", "[100]", 0, 400) + "," +
                                            Entry("F16", "F16", "[100]", 400, 600) + "," +
                                            Entry("BF16", "BF16", "[100]", 600, 800) + "}",
                                        Bytes(wide) + Bytes(half) + Bytes(brain)));
  const std::pair<std::string, ConstView> biases[] = {
      {"F32", {wide.data(), 100}}, {"F16", {half.data(), 100}}, {"BF16", {brain.data(), 100}}};
  for (const auto& [name, bias] : biases) {
    std::vector<bf16> expected(300);
    ForwardOperands operands;
    operands.x = {x.data(), 3, 100};
    operands.bias = bias;
    operands.y = {expected.data(), 3, 100};
    forward(operands);
    EXPECT_EQ(Applied(x_file, {"--bias", file + ":" + name}).data, Bytes(expected)) << name;
  }
}

TEST_F(ApplyTest, WeightsAndBiasesBroadcast) {
  const std::vector<size_t> shapes[] = {{5},          {1, 5},       {4, 5},       {1, 4, 5},
                                        {3, 1, 5},    {3, 4, 5},    {2, 1, 1, 5}, {2, 1, 4, 5},
                                        {2, 3, 1, 5}, {2, 3, 4, 5}, {1, 3, 1, 5}};
  const Floats x = {{2, 3, 4, 5}, Numbers(120)};
  const std::string x_file = Make("x.npy", x.File());
  for (const std::vector<size_t>& weight_shape : shapes) {
    const Floats weight = {weight_shape, Numbers(Product(weight_shape))};
    const std::string w = Make("w.npy", weight.File());
    EXPECT_EQ(Applied(x_file, {"--weight", w}).data, Bytes(NormOfEachRow(x, &weight, nullptr)));
    for (const std::vector<size_t>& bias_shape : shapes) {
      SCOPED_TRACE(NpyShape(weight_shape) + " " + NpyShape(bias_shape));
      const std::vector<float> numbers = Numbers(Product(bias_shape) + 7);
      const Floats bias = {bias_shape, {numbers.begin() + 7, numbers.end()}};
      const std::string b = Make("b.npy", bias.File());
      const StoredTensor y = Applied(x_file, {"--weight", w, "--bias", b});
      EXPECT_EQ(y.shape, x.shape);
      EXPECT_EQ(y.data, Bytes(NormOfEachRow(x, &weight, &bias)));
    }
  }
}

// x takes several chunks, which are cut along any of its dimensions, and share rows of the weight
// or have some of their own.
TEST_F(ApplyTest, ChunksSeeTheirRowsOfTheWeight) {
  struct Case {
    std::vector<size_t> x;
    std::vector<std::vector<size_t>> weights;
  };
  for (const Case& c :
       {Case{{2, 2100, 1000}, {{2, 1, 1000}, {2100, 1000}, {2, 2100, 1000}}},
        Case{{3, 4, 300, 1000}, {{4, 1, 1000}, {300, 1000}, {3, 1, 300, 1000}, {3, 1, 1, 1000}}},
        Case{{5, 700, 1000}, {{700, 1000}, {5, 1, 1000}}},
        Case{{2, 2, 1 << 20}, {{2, 1 << 20}, {2, 1, 1 << 20}}}}) {
    const Floats x = {c.x, Numbers(Product(c.x))};
    const std::string x_file = Make("x.npy", x.File());
    for (const std::vector<size_t>& shape : c.weights) {
      SCOPED_TRACE(NpyShape(c.x) + " " + NpyShape(shape));
      const Floats weight = {shape, Numbers(Product(shape))};
      const std::string w = Make("w.npy", weight.File());
      const bool is_right = Applied(x_file, {"--weight", w, "--bias", w}).data ==
                            Bytes(NormOfEachRow(x, &weight, &weight));
      EXPECT_TRUE(is_right);
    }
  }
}

// More dimensions than the library's views have.
TEST_F(ApplyTest, BroadcastsAmongManyDimensions) {
  const std::vector<size_t> twos(10, 2);
  const Floats x = {twos, Numbers(1024)};
  const std::string x_file = Make("x.npy", x.File());
  for (const std::vector<size_t>& shape :
       {std::vector<size_t>{2, 2, 2, 2, 2}, std::vector<size_t>{2, 2, 1, 1, 1, 1, 2, 2, 2, 2},
        twos}) {
    const Floats weight = {shape, Numbers(Product(shape))};
    EXPECT_EQ(Applied(x_file, {"--weight", Make("w.npy", weight.File())}).data,
              Bytes(NormOfEachRow(x, &weight, nullptr)))
        << NpyShape(shape);
  }
  const Floats alternating = {{2, 1, 2, 1, 2, 1, 2, 1, 1, 2}, Numbers(32)};
  ExpectRefused(x_file, {"--weight", Make("w.npy", alternating.File())}, "9 dimensions");
}

TEST_F(ApplyTest, NoRowsTakeABroadcastWeight) {
  const std::string x = Make("x.npy", Npy(NpyHeader("<f4", "(2, 0, 3)"), ""));
  for (const std::vector<size_t>& shape :
       std::vector<std::vector<size_t>>{{3}, {0, 3}, {1, 3}, {2, 1, 3}, {2, 0, 3}, {1, 0, 3}}) {
    const std::string w = Make("w.npy", Floats{shape, Numbers(Product(shape))}.File());
    EXPECT_EQ(Applied(x, {"--weight", w, "--bias", w}).shape, (std::vector<size_t>{2, 0, 3}))
        << NpyShape(shape);
  }
  ExpectRefused(x, {"--weight", Make("w.npy", Floats{{2, 3}, Numbers(6)}.File())},
                "--weight: shape [2, 3] does not broadcast to [2, 0, 3], the shape of x");
}

// ------------------------------------------------------------------------------------ residual

TEST_F(ApplyTest, AddsAResidual) {
  constexpr size_t kRows = 3;
  constexpr size_t kD = 100;
  const std::vector<bf16> x = Bf16Numbers(kRows * kD);
  const std::vector<float> w = Numbers(kD);
  // Not what x is, so that each has its place.
  std::vector<bf16> residual(x.rbegin(), x.rend());
  std::vector<float> wide(x.size());
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = w[i * 7 % kD] / 3;
  const std::string x_file = Make(
      "x.safetensors", Safetensors("{" + Entry("x", "BF16", "[3, 100]", 0, 600) + "}", Bytes(x)));
  // At an address that no f32 can have.
  const std::string residual_file =
      Make("r.safetensors", Safetensors("{" + Entry("pad", "U8", "[1]", 0, 1) + "," +
                                            Entry("own", "BF16", "[3, 100]", 1, 601) + "," +
                                            Entry("wide", "F32", "[3, 100]", 601, 1801) + "}",
                                        "!" + Bytes(residual) + Bytes(wide)));
  const std::string w_file = Make("w.npy", Npy(NpyHeader("<f4", "(100,)"), Bytes(w)));
  const std::string sum_file = File("sum.safetensors:the sum");

  std::set<std::string> different;
  for (const bool unrounded : {false, true}) {
    Options options;
    options.residual_rounding =
        unrounded ? ResidualRounding::norm_then_cast : ResidualRounding::cast_then_norm;
    const std::vector<std::string> words = {"--weight",
                                            w_file,
                                            "--dtype",
                                            "f32",
                                            "--residual-output",
                                            sum_file,
                                            "--residual-rounding",
                                            unrounded ? "norm-then-cast" : "cast-then-norm"};
    const auto apply = [&](const std::string& tensor) {
      std::vector<std::string> all = words;
      all.insert(all.end(), {"--residual", residual_file + ":" + tensor});
      return Applied(x_file, all).data;
    };
    const auto stored = [&] {
      return ReadSafetensors(ReadFile(File("sum.safetensors"))).at("the sum");
    };
    std::vector<float> y(x.size());
    std::vector<bf16> sum(x.size());
    add_norm({x.data(), kRows, kD}, {residual.data(), kRows, kD}, {w.data(), kD},
             {sum.data(), kRows, kD}, {y.data(), kRows, kD}, options);
    EXPECT_EQ(apply("own"), Bytes(y));
    EXPECT_EQ(stored().data, Bytes(sum));
    EXPECT_EQ(stored().dtype, "BF16");
    EXPECT_EQ(stored().shape, (std::vector<size_t>{kRows, kD}));
    different.insert(Bytes(y));

    std::vector<float> wide_sum(x.size());
    add_norm({x.data(), kRows, kD}, {wide.data(), kRows, kD}, {w.data(), kD},
             {wide_sum.data(), kRows, kD}, {y.data(), kRows, kD}, options);
    EXPECT_EQ(apply("wide"), Bytes(y));
    EXPECT_EQ(stored().data, Bytes(wide_sum));
    EXPECT_EQ(stored().dtype, "F32");
    different.insert(Bytes(y));
  }
  EXPECT_EQ(different.size(), 3u) << "with a residual in f32 both roundings are the same";

  // A residual that is neither of x's type nor f32.
  const std::vector<f16> half(x.size(), f16{0x3555});
  std::vector<f16> half_sum(x.size());
  std::vector<bf16> y(x.size());
  add_norm({x.data(), kRows, kD}, {half.data(), kRows, kD}, {}, {half_sum.data(), kRows, kD},
           {y.data(), kRows, kD});
  const std::string half_file = Make("half.npy", Npy(NpyHeader("<f2", "(3, 100)"), Bytes(half)));
  EXPECT_EQ(Applied(x_file, {"--residual", half_file, "--residual-output", sum_file}).data,
            Bytes(y));
  const StoredTensor stored = ReadSafetensors(ReadFile(File("sum.safetensors"))).at("the sum");
  EXPECT_EQ(stored.data, Bytes(half_sum));
  EXPECT_EQ(stored.dtype, "F16");

  // Without a weight, and without a file for the sum.
  std::vector<bf16> sum(x.size());
  add_norm({x.data(), kRows, kD}, {residual.data(), kRows, kD}, {}, {sum.data(), kRows, kD},
           {y.data(), kRows, kD});
  EXPECT_EQ(Applied(x_file, {"--residual", residual_file + ":own"}).data, Bytes(y));
}

// More than one chunk, and no rows.
TEST_F(ApplyTest, AddsALongAndAnEmptyResidual) {
  constexpr size_t kRows = 3001;
  constexpr size_t kD = 1000;
  const std::vector<float> x = Numbers(kRows * kD);
  const std::vector<float> residual(x.rbegin(), x.rend());
  std::vector<float> y(x.size());
  std::vector<float> sum(x.size());
  add_norm({x.data(), kRows, kD}, {residual.data(), kRows, kD}, {}, {sum.data(), kRows, kD},
           {y.data(), kRows, kD});
  const std::string x_file = Make("x.npy", Npy(NpyHeader("<f4", "(3001, 1000)"), Bytes(x)));
  const std::string r_file = Make("r.npy", Npy(NpyHeader("<f4", "(3001, 1000)"), Bytes(residual)));
  // In place: the sum replaces the residual, y replaces x.
  ExpectSuccess(Apply(x_file, x_file, {"--residual", r_file, "--residual-output", r_file}));
  EXPECT_EQ(Applied(Make("y.npy", ReadFile(x_file))).data,
            Applied(Make("y.npy", Npy(NpyHeader("<f4", "(3001, 1000)"), Bytes(y)))).data);
  const std::string written = ReadFile(r_file);
  EXPECT_EQ(written.substr(written.size() - sum.size() * sizeof(float)), Bytes(sum));

  const std::string none = Make("none.npy", Npy(NpyHeader("<f4", "(0, 3)"), ""));
  ExpectSuccess(
      Apply(none, File("y.npy"), {"--residual", none, "--residual-output", File("sum.npy")}));
  EXPECT_EQ(ReadFile(File("sum.npy")), ReadFile(File("y.npy")));
}

TEST_F(ApplyTest, RefusesWrongResiduals) {
  const std::string x = Make("x.npy", Npy(NpyHeader("<f4", "(2, 3)"), Bytes(Numbers(6))));
  struct Case {
    std::string shape;
    size_t count;
  };
  for (const Case& c : {Case{"(3, 2)", 6}, Case{"(2, 2)", 4}, Case{"(1, 3)", 3}, Case{"(3,)", 3},
                        Case{"(6,)", 6}, Case{"(1, 2, 3)", 6}, Case{"()", 1}, Case{"(0, 3)", 0}}) {
    const std::string r = Make("r.npy", Npy(NpyHeader("<f4", c.shape), Bytes(Numbers(c.count))));
    ExpectRefused(x, {"--residual", r}, ", but x has [2, 3]");
  }
  ExpectRefused(x, {"--residual", Make("bad.npy", "")}, "bad.npy: not a .npy file");
  ExpectRefused(x, {"--residual", File("missing.npy")}, "missing.npy: No such file");
  ExpectRefused(x, {"--residual", "x.txt"}, "x.txt: the name must end in .npy");
  ExpectRefused(x, {"--residual-output", File("sum.npy")}, "--residual-output requires --residual");
  ExpectRefused(x, {"--residual-rounding", "norm-then-cast"},
                "--residual-rounding requires --residual");
  ExpectRefused(x, {"--residual", x, "--residual-rounding", "none"}, "--residual-rounding");
}

// ------------------------------------------------------------------------------------- formats

TEST_F(ApplyTest, ReadsEveryNpyHeader) {
  const std::vector<float> x = Numbers(6);
  const std::string plain = Make("plain.npy", Npy(NpyHeader("<f4", "(2, 3)"), Bytes(x)));
  const std::string expected = Applied(plain).data;
  const std::string headers[] = {
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
      "{\"shape\": (2,3,), \"fortran_order\": False, \"descr\": \"<f4\"}",
      " { 'shape' : ( 2L , 3L ) ,\n'descr':'<f4','fortran_order':False } ",
  };
  for (const std::string& header : headers) {
    for (int version : {1, 2, 3}) {
      SCOPED_TRACE(header + " version " + std::to_string(version));
      const StoredTensor y = Applied(Make("x.npy", Npy(header, Bytes(x), version)));
      EXPECT_EQ(y.data, expected);
      EXPECT_EQ(y.shape, (std::vector<size_t>{2, 3}));
    }
  }
}

TEST_F(ApplyTest, KeepsEveryShape) {
  struct Shape {
    std::string text;
    std::vector<size_t> shape;
  };
  const std::vector<float> x = Numbers(24);
  for (const Shape& shape :
       {Shape{"(24,)", {24}}, Shape{"(24, 1)", {24, 1}}, Shape{"(1, 24)", {1, 24}},
        Shape{"(2, 3, 4)", {2, 3, 4}}, Shape{"(1, 2, 1, 3, 1, 2, 2)", {1, 2, 1, 3, 1, 2, 2}}}) {
    SCOPED_TRACE(shape.text);
    const size_t d = shape.shape.back();
    std::vector<float> expected(24);
    norm({x.data(), 24 / d, d}, {}, {expected.data(), 24 / d, d});
    const StoredTensor y = Applied(Make("x.npy", Npy(NpyHeader("<f4", shape.text), Bytes(x))));
    EXPECT_EQ(y.shape, shape.shape);
    EXPECT_EQ(y.data, Bytes(expected));
  }
}

TEST_F(ApplyTest, NoRowsGiveAnEmptyTensor) {
  const StoredTensor from_npy = Applied(Make("x.npy", Npy(NpyHeader("<f2", "(0, 512)"), "")));
  EXPECT_EQ(from_npy.shape, (std::vector<size_t>{0, 512}));
  EXPECT_EQ(from_npy.dtype, "F16");
  EXPECT_EQ(from_npy.data, "");
  const StoredTensor from_safetensors = Applied(
      Make("x.safetensors", Safetensors("{" + Entry("x", "BF16", "[3, 0, 8]", 0, 0) + "}", "")));
  EXPECT_EQ(from_safetensors.shape, (std::vector<size_t>{3, 0, 8}));
  EXPECT_EQ(from_safetensors.data, "");
}

// A size_t cannot count the bytes of the longest such row, and no memory holds the shortest.
TEST_F(ApplyTest, NoRowsOfAnyLengthGiveAnEmptyTensor) {
  for (const size_t d : {size_t{1} << 62, size_t{1} << 61, size_t{1} << 40, SIZE_MAX}) {
    const std::string length = std::to_string(d);
    SCOPED_TRACE(length);
    const std::string npy = Make("x.npy", Npy(NpyHeader("<f4", "(2, 0, " + length + ")"), ""));
    const std::string safetensors =
        Make("x.safetensors",
             Safetensors("{" + Entry("x", "F32", "[2, 0, " + length + "]", 0, 0) + "}", ""));
    for (const std::string& x : {npy, safetensors}) {
      const StoredTensor y = Applied(x, {"--residual", npy, "--residual-output", File("sum.npy")});
      EXPECT_EQ(y.shape, (std::vector<size_t>{2, 0, d}));
      EXPECT_EQ(y.dtype, "F32");
      EXPECT_EQ(y.data, "");
      ExpectSuccess(Apply(x, File("y.npy")));
      EXPECT_EQ(ReadFile(File("y.npy")), ReadFile(File("sum.npy")));
      EXPECT_NE(ReadFile(File("y.npy")).find("'shape': (2, 0, " + length + "), }"),
                std::string::npos);
    }
    const std::string w = Make("w.npy", Npy(NpyHeader("<f4", "(1,)"), "1234"));
    ExpectRefused(npy, {"--weight", w}, "[1], but the rows of x need [" + length + "]");
  }
}

// The header of version 1 as numpy writes it: the data starts at a multiple of 64.
TEST_F(ApplyTest, WritesNpyAsNumpyDoes) {
  struct Case {
    std::string dtype;
    std::string dict;
  };
  const std::vector<float> x = Numbers(6);
  const std::string x_file = Make("x.npy", Npy(NpyHeader("<f4", "(2, 3)"), Bytes(x)));
  for (const Case& c :
       {Case{"f32", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"},
        Case{"f16", "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3), }"}}) {
    const std::string expected = Applied(x_file, {"--dtype", c.dtype}).data;
    ExpectSuccess(Apply(x_file, File("y.npy"), {"--dtype", c.dtype}));
    std::string header = c.dict;
    header.resize(117, ' ');
    EXPECT_EQ(ReadFile(File("y.npy")), Npy(header + "\n", expected));
  }
}

TEST_F(ApplyTest, WritesNpyOfOneAndOfManyDimensions) {
  ExpectSuccess(
      Apply(Make("x.npy", Npy(NpyHeader("<f4", "(1,)"), Bytes<float>({3}))), File("y.npy")));
  EXPECT_NE(ReadFile(File("y.npy")).find("'shape': (1,), }"), std::string::npos);

  // Too many dimensions for the two bytes of length that version 1 has.
  std::string shape = "(";
  for (int i = 0; i < 30000; ++i) shape += "1, ";
  const std::string header = NpyHeader("<f4", shape + "2)");
  const std::string x = Make("x.npy", Npy(header, Bytes<float>({1, 2}), 2));
  ExpectSuccess(Apply(x, File("y.npy")));
  const std::string y = ReadFile(File("y.npy"));
  EXPECT_EQ(y.substr(0, 8), std::string("\x93NUMPY\2\0", 8));
  EXPECT_EQ((y.size() - 8) % 64, 0u);
  ExpectSuccess(Apply(File("y.npy"), File("z.npy")));
}

TEST_F(ApplyTest, WritesAlignedSafetensors) {
  const std::string x = Make("x.npy", Npy(NpyHeader("<f4", "(2,)"), Bytes<float>({1, 2})));
  for (const std::string& name : {std::string("a"), std::string("ab"), std::string("output"),
                                  std::string("a:b \"c\"\\\n\xc3\xa9")}) {
    ExpectSuccess(Apply(x, File("y.safetensors:" + name)));
    const std::string file = ReadFile(File("y.safetensors"));
    EXPECT_EQ(static_cast<unsigned char>(file[0]) % 8, 0);
    EXPECT_EQ(file[8], '{');
    EXPECT_EQ(ReadSafetensors(file).count(name), 1u);
  }
}

TEST_F(ApplyTest, FindsATensorByName) {
  const std::vector<float> a = {1, 2};
  const std::vector<float> b = {3, 4};
  const std::string ya = Applied(Make("a.npy", Npy(NpyHeader("<f4", "(2,)"), Bytes(a)))).data;
  const std::string yb = Applied(Make("b.npy", Npy(NpyHeader("<f4", "(2,)"), Bytes(b)))).data;
  ASSERT_NE(ya, yb);
  // Neither the order in the header nor tensors of other types matter.
  const std::string two = Safetensors(
      "{\"__metadata__\": {\"format\": \"pt\", \"\": \"\"}, " + Entry("x:b", "F32", "[2]", 16, 24) +
          "," + Entry("i", "I64", "[]", 8, 16) + "," + Entry("a", "F32", "[2]", 0, 8) + "}   ",
      Bytes(a) + "12345678" + Bytes(b));
  const std::string file = Make("two.safetensors", two);
  EXPECT_EQ(Applied(file + ":a").data, ya);
  EXPECT_EQ(Applied(file + ":x:b").data, yb);
  EXPECT_EQ(Applied(Make("a:b.safetensors", two) + ":a").data, ya);
  EXPECT_EQ(Applied(Make("a.safetensors:b.safetensors", two) + ":a").data, ya);
  std::filesystem::create_directory(File("d.safetensors"));
  EXPECT_EQ(Applied(Make("d.safetensors/two.safetensors", two) + ":x:b").data, yb);
  EXPECT_EQ(Applied(Make("d.safetensors/a.npy", ReadFile(File("a.npy")))).data, ya);
  EXPECT_EQ(Applied(File("a.npy"), {}, "named:so").data, ya);
}

// The longest path that names a file is taken.
TEST_F(ApplyTest, FindsATensorByAnyName) {
  const std::string names[] = {"y",
                               "a:b",
                               ".safetensors:y",
                               "a.safetensors:y",
                               "a.safetensors:b.safetensors:y",
                               "a.safetensors:",
                               "a.safetensors",
                               "a.npy"};
  // Each tensor has its own number of rows.
  std::string header;
  size_t rows = 0;
  for (const std::string& name : names) {
    const std::string shape = "[" + std::to_string(++rows) + ", 0, 2]";
    header += (header.empty() ? "{" : ",") + Entry(name, "F32", shape, 0, 0);
  }
  const std::string file = Make("x.safetensors", Safetensors(header + "}", ""));
  rows = 0;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    EXPECT_EQ(Applied(file + ":" + name).shape, (std::vector<size_t>{++rows, 0, 2}));
  }

  const std::string longer = Make("x.safetensors:a.npy", Npy(NpyHeader("<f4", "(0, 7)"), ""));
  EXPECT_EQ(Applied(longer).shape, (std::vector<size_t>{0, 7}));
  std::filesystem::remove(file);
  ExpectRefused(file + ":a.safetensors:y", {}, "x.safetensors:a.safetensors: No such file");

  // To write as to read, to a file that is there.
  const std::string y = Make("y.safetensors", "");
  ExpectSuccess(Apply(longer, y + ":a.safetensors:y"));
  EXPECT_EQ(ReadSafetensors(ReadFile(y)).count("a.safetensors:y"), 1u);
}

TEST_F(ApplyTest, ManyTensorsTakeNoLongerEach) {
  std::string header = "{";
  for (int i = 0; i < 300000; ++i) {
    header += Entry("x" + std::to_string(i), "F32", "[0, 2]", 0, 0) + ",";
  }
  const std::string x =
      Make("x.safetensors", Safetensors(header + Entry("last", "F32", "[0, 3]", 0, 0) + "}", ""));
  EXPECT_EQ(Applied(x + ":last").shape, (std::vector<size_t>{0, 3}));
}

TEST_F(ApplyTest, TheOnlyTensorNeedsNoName) {
  const std::string one =
      Make("one.safetensors",
           Safetensors("{\"__metadata__\": {}, " + Entry("x", "F32", "[2]", 0, 8) + "}",
                       Bytes<float>({1, 2})));
  EXPECT_EQ(Applied(one).data, Applied(one + ":x").data);
}

TEST_F(ApplyTest, DataMayLieAtAnyAddress) {
  const std::vector<bf16> x = Bf16Numbers(64);
  const std::vector<float> w = Numbers(32);
  std::vector<bf16> expected(64);
  norm({x.data(), 2, 32}, {w.data(), 32}, {expected.data(), 2, 32});
  for (size_t padding = 0; padding < 4; ++padding) {
    const std::string header = "{" + Entry("w", "F32", "[32]", 1, 129) + "," +
                               Entry("u", "U8", "[1]", 0, 1) + "," +
                               Entry("x", "BF16", "[2, 32]", 129, 257) + "}";
    const std::string file = Make("x.safetensors", Safetensors(header + std::string(padding, ' '),
                                                               "!" + Bytes(w) + Bytes(x)));
    EXPECT_EQ(Applied(file + ":x", {"--weight", file + ":w"}).data, Bytes(expected)) << padding;
  }
}

// --------------------------------------------------------------------------------- bad input

TEST_F(ApplyTest, RefusesMalformedNpy) {
  struct Case {
    std::string bytes;
    std::string problem;
  };
  const std::string data = Bytes(Numbers(6));
  const std::string good = NpyHeader("<f4", "(2, 3)");
  const auto with = [&data](const std::string& header) { return Npy(header, data); };
  const auto shape = [&data](const std::string& text) { return Npy(NpyHeader("<f4", text), data); };
  const auto descr = [&data](const std::string& text) {
    return Npy(NpyHeader(text, "(2, 3)"), data);
  };
  const Case cases[] = {
      {"", "not a .npy file"},
      {"text\n", "not a .npy file"},
      {"\x93NUMP", "not a .npy file"},
      {"\x93NUMPY", "truncated"},
      {"\x93NUMPY\1", "truncated"},
      {std::string("\x93NUMPY\1\0", 8), "truncated"},
      {std::string("\x93NUMPY\1\0\x76", 9), "truncated"},
      {std::string("\x93NUMPY\2\0\x76\0\0", 11), "truncated"},
      {std::string("\x93NUMPY\1\0\xff\xff{}", 12), "truncated"},
      {std::string("\x93NUMPY\2\0\xff\xff\xff\xff{}", 14), "truncated"},
      {with(good).substr(0, 40), "truncated"},
      {Npy(good, data, 0), "version 0.0"},
      {Npy(good, data, 4), "version 4.0"},
      {std::string("\x93NUMPY\1\1", 8) + with(good).substr(8), "version 1.1"},
      {with(""), "malformed"},
      {with("{}"), "malformed"},
      {with("["), "malformed"},
      {with("{"), "malformed"},
      {with("{'descr': '<f4', 'fortran_order': False}"), "malformed"},
      {with("{'descr': '<f4', 'shape': (2, 3)}"), "malformed"},
      {with("{'fortran_order': False, 'shape': (2, 3)}"), "malformed"},
      {with(good + "x"), "malformed"},
      {with("x" + good), "malformed"},
      {with("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"),
       "malformed"},
      {with("{'descr': '<f4', 'other': False, 'fortran_order': False, 'shape': (2, 3)}"),
       "malformed"},
      {with("{'descr': '<f4, 'fortran_order': False, 'shape': (2, 3)}"), "malformed"},
      {with("{'descr': <f4, 'fortran_order': False, 'shape': (2, 3)}"), "malformed"},
      {with("{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3)}"), "malformed"},
      {with("{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}"), "malformed"},
      {with("{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}"), "malformed"},
      {with("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}"), "Fortran order"},
      {with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3)}"), "structured"},
      {shape("((2, 3))"), "malformed"},
      {shape(std::string(50000, '(')), "malformed"},
      {shape("(6)"), "malformed"},
      {shape("(2, -3)"), "malformed"},
      {shape("(2, 3.0)"), "malformed"},
      {shape("(2 3)"), "malformed"},
      {shape("(2, 3"), "malformed"},
      {shape("(,)"), "malformed"},
      {shape("(99999999999999999999, 3)"), "overflows"},
      {shape("(4294967296, 4294967296)"), "overflows"},
      {shape("(4611686018427387904, 1)"), "overflows"},
      {shape("()"), "needs 4 bytes"},
      {Npy(NpyHeader("<f4", "()"), "1234"), "without dimensions"},
      {Npy(NpyHeader("<f4", "(3, 0)"), ""), "[3, 0] has rows of no elements"},
      {shape("(2, 2)"), "needs 16 bytes, the file holds 24"},
      {shape("(2, 4)"), "needs 32 bytes, the file holds 24"},
      {Npy(good, data.substr(1)), "needs 24 bytes, the file holds 23"},
      {Npy(good, data + "x"), "needs 24 bytes, the file holds 25"},
      {descr("<f8"), "'<f8' is not supported"},
      {descr(">f4"), "'>f4' is not supported"},
      {descr("=f4"), "'=f4' is not supported"},
      {descr("<i4"), "'<i4' is not supported"},
      {descr("|V2"), "'|V2' is not supported"},
      {descr(""), "'' is not supported"},
      {descr("a\nb\x01\xff"), "'a\\nb\\u0001"},
  };
  const std::string w = Make("w.npy", Npy(NpyHeader("<f4", "(3,)"), Bytes<float>({1, 1, 1})));
  const std::string x = Make("good.npy", with(good));
  ASSERT_EQ(Applied(x, {"--weight", w}).shape, (std::vector<size_t>{2, 3}));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.bytes.substr(0, 200));
    const std::string bad = Make("bad.npy", c.bytes);
    ExpectRefused(bad, {}, c.problem);
    ExpectRefused(bad, {}, c.problem, "y.npy");
  }
  ExpectRefused(x, {"--weight", Make("bad.npy", "")}, "bad.npy: not a .npy file");
}

TEST_F(ApplyTest, RefusesMalformedSafetensors) {
  struct Case {
    std::string bytes;
    std::string problem;
  };
  const std::string data = Bytes(Numbers(6));
  const std::string x = Entry("x", "F32", "[2, 3]", 0, 24);
  const auto with = [&data](const std::string& header) { return Safetensors(header, data); };
  const auto tensor = [&data](const std::string& dtype, const std::string& shape, size_t begin = 0,
                              size_t end = 24) {
    return Safetensors("{" + Entry("x", dtype, shape, begin, end) + "}", data);
  };
  const auto offsets = [&data](const std::string& text) {
    return Safetensors("{\"x\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":" + text + "}}",
                       data);
  };
  const std::string deep_arrays = std::string(1000000, '[');
  std::string deep_objects;
  for (int i = 0; i < 100000; ++i) deep_objects += "{\"a\":";
  const Case cases[] = {
      {"", "too short"},
      {"1234567", "too short"},
      {LittleEndian(1, 8), "beyond the file's end"},
      {LittleEndian(UINT64_MAX, 8) + "{}", "beyond the file's end"},
      {LittleEndian(uint64_t{1} << 63, 8) + "{}", "beyond the file's end"},
      {with("{" + x + "}").substr(0, 30), "beyond the file's end"},
      {Safetensors(std::string().append(100000001, ' '), ""), "above the limit"},
      {with(""), "not a JSON object"},
      {with("[]"), "not a JSON object"},
      {with("\xef\xbb\xbf{" + x + "}"), "not a JSON object"},
      {with("null"), "not a JSON object"},
      {with(" {" + x + "}"), "not a JSON object"},
      {with("{" + x + "}" + std::string(3, '\0')), "not a JSON object"},
      {with("{"), "not valid JSON"},
      {with("{" + x), "not valid JSON"},
      {with("{" + x + "}}"), "not valid JSON"},
      {with("{" + x + ",}"), "not valid JSON"},
      {with("{\"\xff\": 1}"), "not valid JSON"},
      {with("{/**/" + x + "}"), "not valid JSON"},
      {with("{\"x\": " + deep_arrays), "nested too deeply"},
      {with(deep_objects), "nested too deeply"},
      {with("{\"__metadata__\": {\"a\": [[[]]]}," + x + "}"), "nested too deeply"},
      {with("{" + x + "," + x + "}"), "'x' twice"},
      {with(
           "{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}"),
       "'dtype' twice"},
      {with("{}"), "end at byte 0 of 24"},
      {Safetensors("{}", ""), "holds no tensor"},
      {Safetensors("{\"__metadata__\": {}}", ""), "holds no tensor"},
      {with("{\"__metadata__\": {\"a\": 1}," + x + "}"), "__metadata__"},
      {with("{\"__metadata__\": \"a\"," + x + "}"), "__metadata__"},
      {with("{\"x\": 1}"), "'x': not described by an object"},
      {with("{\"x\": {}}"), "'dtype' is not a string"},
      {with("{\"x\": {\"dtype\": 1}}"), "'dtype' is not a string"},
      {with("{\"x\": {\"dtype\": \"F32\"}}"), "'data_offsets' is not a list of sizes"},
      {with("{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,24]}}"),
       "'shape' is not a list of sizes"},
      {tensor("F32", "6"), "'shape' is not a list of sizes"},
      {tensor("F32", "[2, -3]"), "'shape' is not a list of sizes"},
      {tensor("F32", "[2, 3.0]"), "'shape' is not a list of sizes"},
      {tensor("F32", "[2, \"3\"]"), "'shape' is not a list of sizes"},
      {tensor("F32", "[99999999999999999999, 3]"), "'shape' is not a list of sizes"},
      {tensor("F32", "[4294967296, 4294967296]"), "overflows"},
      {tensor("F32", "[18446744073709551615]"), "overflows"},
      {tensor("F32", "[2, 4]"), "needs 32 bytes, its offsets hold 24"},
      {tensor("F16", "[2, 3]"), "needs 12 bytes, its offsets hold 24"},
      {tensor("F32", "[]"), "needs 4 bytes, its offsets hold 24"},
      {tensor("F32", "[2, 3]", 0, 25), "lie outside the 24 bytes"},
      {tensor("F32", "[2, 3]", 4, 28), "lie outside the 24 bytes"},
      {tensor("F32", "[2, 3]", 24, 0), "lie outside the 24 bytes"},
      {tensor("F32", "[2, 3]", SIZE_MAX - 23, SIZE_MAX), "lie outside the 24 bytes"},
      {tensor("F32", "[5]", 0, 20), "end at byte 20 of 24"},
      {tensor("F32", "[5]", 4, 24), "starts at byte 4 of the data, the tensor before it ends at 0"},
      {with("{" + Entry("x", "F32", "[4]", 0, 16) + "," + Entry("y", "F32", "[4]", 8, 24) + "}"),
       "starts at byte 8 of the data, the tensor before it ends at 16"},
      {with("{" + Entry("x", "F32", "[2]", 0, 8) + "," + Entry("y", "F32", "[2]", 16, 24) + "}"),
       "starts at byte 16 of the data, the tensor before it ends at 8"},
      {offsets("[0]"), "not a pair"},
      {offsets("[0, 24, 48]"), "not a pair"},
      {offsets("[-1, 23]"), "'data_offsets' is not a list of sizes"},
      {offsets("[0, 24.5]"), "'data_offsets' is not a list of sizes"},
      {offsets("[0, 1e400]"), "number that is out of range"},
      {tensor("F64", "[3]"), "'F64' is not supported"},
      {tensor("F8_E4M3", "[24]"), "'F8_E4M3' is not supported"},
      {tensor("f32", "[2, 3]"), "'f32' is not supported"},
      {tensor("a\\nb", "[2, 3]"), "'a\\nb' is not supported"},
      {Safetensors("{" + Entry("x", "F32", "[]", 0, 4) + "}", "1234"), "without dimensions"},
      {Safetensors("{" + Entry("x", "F32", "[3, 0]", 0, 0) + "}", ""),
       "[3, 0] has rows of no elements"},
      {with("{" + x + "}").substr(0, with("{" + x + "}").size() - 1), "is the file truncated?"},
      {with("{" + x + "}") + "x", "end at byte 24 of 25"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.bytes.substr(0, 200));
    ExpectRefused(Make("bad.safetensors", c.bytes), {}, c.problem);
  }
}

TEST_F(ApplyTest, NamesTheTensorsToChooseFrom) {
  std::string header;
  for (const std::string& name : {std::string("a"), std::string("b"), std::string("c\\n"),
                                  std::string("d"), std::string("e")}) {
    header += (header.empty() ? "{" : ",") + Entry(name, "F32", "[0, 2]", 0, 0);
  }
  const std::string file = Make("five.safetensors", Safetensors(header + "}", ""));
  ExpectRefused(file, {},
                "five.safetensors: the file holds 5 tensors, name one as FILE:TENSOR: "
                "'a', 'b', 'c\\n' and 2 more");
  ExpectRefused(file + ":z", {}, "no tensor 'z'; the file holds 'a', 'b', 'c\\n' and 2 more");
  ExpectRefused(file + ":__metadata__", {}, "no tensor '__metadata__'");
  ExpectRefused(file + ":", {}, "no tensor name after the colon");
}

TEST_F(ApplyTest, RefusesWrongWeights) {
  const std::string x = Make("x.npy", Npy(NpyHeader("<f4", "(2, 3)"), Bytes(Numbers(6))));
  struct Case {
    std::string shape;
    size_t count;
    std::string problem;
  };
  for (const Case& c : {Case{"(2,)", 2, "[2], but the rows of x need [3]"},
                        Case{"(4,)", 4, "[4], but the rows of x need [3]"},
                        Case{"(1,)", 1, "[1], but the rows of x need [3]"},
                        Case{"(2, 1)", 2, "[2, 1], but the rows of x need [3]"},
                        Case{"(3, 3)", 9, "[3, 3] does not broadcast to [2, 3], the shape of x"},
                        Case{"(0, 3)", 0, "[0, 3] does not broadcast to [2, 3], the shape of x"},
                        Case{"(1, 1, 3)", 3, "[1, 1, 3] does not broadcast to [2, 3]"},
                        Case{"(1, 2, 3)", 6, "[1, 2, 3] does not broadcast to [2, 3]"},
                        Case{"(0,)", 0, "[0], but the rows of x need [3]"},
                        Case{"()", 1, "[], but the rows of x need [3]"}}) {
    const std::string w = Make("w.npy", Npy(NpyHeader("<f4", c.shape), Bytes(Numbers(c.count))));
    ExpectRefused(x, {"--weight", w}, "--weight: shape " + c.problem);
    ExpectRefused(x, {"--bias", w}, "--bias: shape " + c.problem);
  }
  ExpectRefused(x, {"--bias", Make("bad.npy", "")}, "bad.npy: not a .npy file");
  ExpectRefused(x, {"--bias", File("missing.npy")}, "missing.npy: No such file");
  ExpectRefused(x, {"--bias", x, "--weight-offset", "1"}, "--weight-offset requires --weight");
}

TEST_F(ApplyTest, RefusesFilesThatCannotBeRead) {
  std::filesystem::create_directory(File("directory.npy"));
  ASSERT_EQ(mkfifo(File("pipe.npy").c_str(), 0600), 0);
  ExpectRefused(File("missing.npy"), {}, "missing.npy: No such file or directory");
  ExpectRefused(File("missing/x.safetensors:a"), {}, "missing/x.safetensors: No such file");
  ExpectRefused(File("directory.npy"), {}, "directory.npy: not a regular file");
  ExpectRefused(File("pipe.npy"), {}, "pipe.npy: not a regular file");
  ExpectRefused("two\nlines.npy", {}, "two\\nlines.npy");
  ExpectRefused("x.txt", {}, "x.txt: the name must end in .npy");
  ExpectRefused("x.npy:a", {}, "x.npy:a: the name must end in .npy");
  ExpectRefused("", {}, "the name must end in .npy");
  ExpectRefused(".npy", {}, "the name must end in .npy");
  if (geteuid() != 0) {  // root may read anything
    const std::string secret = Make("secret.npy", "");
    ASSERT_EQ(chmod(secret.c_str(), 0), 0);
    ExpectRefused(secret, {}, "secret.npy: Permission denied");
  }
}

// ------------------------------------------------------------------------------------ output

class ApplyOutputTest : public ApplyTest {
 protected:
  const std::string x_ = Make("x.npy", Npy(NpyHeader("<f4", "(2, 3)"), Bytes(Numbers(6))));

  std::string MakeHuge() const {
    Make("huge.npy", Npy(NpyHeader("<f4", "(1048576, 1024)"), ""));
    return Extend("huge.npy", uint64_t{4} << 30);
  }
};

TEST_F(ApplyOutputTest, RefusesWhatItCannotWrite) {
  ExpectRefused(x_, {"--dtype", "bf16"}, ".npy has no bf16", "y.npy");
  ExpectRefused(x_, {}, "y.txt: the name must end in .npy", "y.txt");
  const std::vector<std::string> before = directory_.Names();
  ExpectUserError(Apply(x_, File("missing/y.npy")), "missing/y.npy: No such file or directory");
  ExpectUserError(Apply(x_, File("y.safetensors:__metadata__")), "cannot be called '__metadata__'");
  ExpectUserError(Apply(x_, File("y.safetensors:\xff")), "not UTF-8");
  ExpectUserError(Apply(x_, File("y.safetensors:")), "no tensor name after the colon");
  EXPECT_EQ(directory_.Names(), before);
  std::filesystem::create_directory(File("d.npy"));
  ExpectUserError(Apply(x_, File("d.npy")), "d.npy: not a regular file");
  EXPECT_TRUE(std::filesystem::is_empty(File("d.npy")));
}

TEST_F(ApplyOutputTest, Bf16InputNeedsAnotherTypeForNpy) {
  const std::string x =
      Make("x.safetensors",
           Safetensors("{" + Entry("x", "BF16", "[4]", 0, 8) + "}", Bytes(Bf16Numbers(4))));
  ExpectRefused(x, {}, "y.npy: .npy has no bf16", "y.npy");
  ExpectSuccess(Apply(x, File("y.npy"), {"--dtype", "f16"}));
}

TEST_F(ApplyOutputTest, AnUnknownTargetLeavesTheOutputAlone) {
  const auto pdp11 = [] { setenv("RMSNORM_TARGET", "PDP11", 1); };
  ExpectRefused(x_, {}, "PDP11", "y.npy", pdp11);
  ExpectRefused(Make("none.npy", Npy(NpyHeader("<f4", "(0, 3)"), "")), {}, "PDP11", "y.npy", pdp11);
}

TEST_F(ApplyOutputTest, AFullDiskLeavesTheOutputAlone) {
  const std::string x =
      Make("long.npy", Npy(NpyHeader("<f4", "(100, 100)"), Bytes(Numbers(10000))));
  for (const rlim_t limit : std::vector<rlim_t>{0, 100, 4096, 40000}) {
    Make("y.npy", "as it was");
    const std::vector<std::string> before = directory_.Names();
    ExpectUserError(RunOnFullDisk({"apply", "--input", x, "--output", File("y.npy")}, limit),
                    "y.npy: File too large");
    EXPECT_EQ(ReadFile(File("y.npy")), "as it was");
    EXPECT_EQ(directory_.Names(), before);
  }
}

TEST_F(ApplyOutputTest, RefusesASumItCannotWrite) {
  const auto sum = [this](const std::string& file) {
    return std::vector<std::string>{"--residual", x_, "--residual-output", file};
  };
  std::filesystem::create_directory(File("d.npy"));
  std::filesystem::create_symlink("y.npy", File("link.npy"));
  ExpectRefused(x_, sum(File("missing/sum.npy")), "missing/sum.npy: No such file");
  ExpectRefused(x_, sum(File("d.npy")), "d.npy: not a regular file");
  ExpectRefused(x_, sum(File("sum.txt")), "sum.txt: the name must end in .npy");
  ExpectRefused(x_, sum(File("sum.safetensors:")), "no tensor name after the colon");
  ExpectRefused(x_, sum(File("y.npy")), "--residual-output: the same file as --output", "y.npy");
  ExpectRefused(x_, sum(File("d.npy/../y.npy")), "the same file as --output", "y.npy");
  ExpectRefused(x_, sum(File("link.npy")), "the same file as --output", "y.npy");
  ExpectRefused(x_, sum(File("y.safetensors:other")), "the same file as --output");
  const std::string narrow =
      Make("narrow.safetensors",
           Safetensors("{" + Entry("x", "BF16", "[4]", 0, 8) + "}", Bytes(Bf16Numbers(4))));
  ExpectRefused(narrow, {"--residual", narrow, "--residual-output", File("sum.npy")},
                "sum.npy: .npy has no bf16");
}

// Neither output appears where one cannot be written to its end.
TEST_F(ApplyOutputTest, AFullDiskLeavesBothOutputsAlone) {
  const std::string x =
      Make("long.npy", Npy(NpyHeader("<f4", "(100, 100)"), Bytes(Numbers(10000))));
  // The sum, in f32, is larger than y.
  const auto shrink = [] {
    const rlimit size = {30000, 30000};
    setrlimit(RLIMIT_FSIZE, &size);
  };
  Make("sum.npy", "as it was");
  ExpectRefused(x, {"--residual", x, "--residual-output", File("sum.npy"), "--dtype", "f16"},
                "sum.npy: File too large", "y.npy", shrink);
  EXPECT_EQ(ReadFile(File("sum.npy")), "as it was");
}

TEST_F(ApplyOutputTest, MayReplaceItsInput) {
  const std::string expected = Applied(x_).data;
  ExpectSuccess(Apply(x_, x_));
  const std::string file = ReadFile(x_);
  EXPECT_EQ(file.substr(file.size() - 24), expected);
}

TEST_F(ApplyOutputTest, LeavesNothingElseBehind) {
  ExpectSuccess(Apply(x_, File("y.npy")));
  EXPECT_EQ(directory_.Names(), (std::vector<std::string>{"x.npy", "y.npy"}));
}

mode_t Permissions(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

// Nor its owner, where root replaces the file.
TEST_F(ApplyOutputTest, SpecialBitsAreNotPassedOn) {
  const std::string y = Make("y.npy", "as it was");
  if (geteuid() == 0) {
    ASSERT_EQ(chown(y.c_str(), 65534, 65534), 0);
  }
  ASSERT_EQ(chmod(y.c_str(), 07753), 0);
  ExpectSuccess(Apply(x_, y));
  EXPECT_EQ(Permissions(y), 0753u);
  struct stat status;
  ASSERT_EQ(stat(y.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, geteuid());
  EXPECT_EQ(status.st_gid, geteuid() == 0 ? 65534 : getegid());
}

TEST_F(ApplyOutputTest, PermissionsAreAsForAnyNewFileOrAsTheyWere) {
  const std::string y = File("y.npy");
  ExpectSuccess(Apply(x_, y, {}, [] { umask(027); }));
  EXPECT_EQ(Permissions(y), 0640u);
  ASSERT_EQ(chmod(y.c_str(), 0604), 0);
  ExpectSuccess(Apply(x_, y, {}, [] { umask(077); }));
  EXPECT_EQ(Permissions(y), 0604u);
  if (geteuid() != 0) {  // root may write anything
    ASSERT_EQ(chmod(y.c_str(), 0444), 0);
    ExpectUserError(Apply(x_, y), "y.npy: Permission denied");
  }
}

TEST_F(ApplyOutputTest, WritesThroughSymbolicLinks) {
  std::filesystem::create_directory(File("elsewhere"));
  Make("elsewhere/y.npy", "as it was");
  std::filesystem::create_symlink("elsewhere/y.npy", File("link.npy"));
  ExpectSuccess(Apply(x_, File("link.npy")));
  EXPECT_TRUE(std::filesystem::is_symlink(File("link.npy")));
  EXPECT_EQ(ReadFile(File("elsewhere/y.npy")).substr(1, 5), "NUMPY");
}

TEST_F(ApplyOutputTest, MakesWhatADanglingLinkNames) {
  std::filesystem::create_directory(File("elsewhere"));
  std::filesystem::create_symlink("elsewhere/other.npy", File("link.npy"));
  std::filesystem::create_symlink(File("elsewhere/y.npy"), File("elsewhere/other.npy"));
  ExpectUserError(
      Apply(x_, File("link.npy"), {"--residual", x_, "--residual-output", File("elsewhere/y.npy")}),
      "the same file as --output");
  ExpectSuccess(Apply(x_, File("link.npy")));
  EXPECT_TRUE(std::filesystem::is_symlink(File("link.npy")));
  EXPECT_TRUE(std::filesystem::is_symlink(File("elsewhere/other.npy")));
  EXPECT_EQ(ReadFile(File("elsewhere/y.npy")).substr(1, 5), "NUMPY");

  std::filesystem::create_symlink("missing/y.npy", File("nowhere.npy"));
  std::filesystem::create_symlink("circle.npy", File("circle.npy"));
  const std::vector<std::string> before = directory_.Names();
  ExpectUserError(Apply(x_, File("nowhere.npy")), "nowhere.npy: No such file or directory");
  ExpectUserError(Apply(x_, File("circle.npy")), "circle.npy: Too many levels of symbolic links");
  EXPECT_EQ(directory_.Names(), before);
}

// However the file is spelled, before there is one.
TEST_F(ApplyOutputTest, RefusesToWriteBothToOneNewFile) {
  const auto enter = [this] { ASSERT_EQ(chdir(File("").c_str()), 0); };
  for (const std::string& sum : {std::string("./y.npy"), File("y.npy"), std::string("y.npy")}) {
    SCOPED_TRACE(sum);
    ExpectUserError(Apply(x_, "y.npy", {"--residual", x_, "--residual-output", sum}, enter),
                    "--residual-output: the same file as --output");
    EXPECT_EQ(directory_.Names(), std::vector<std::string>{"x.npy"});
  }
}

TEST_F(ApplyOutputTest, WritesANameOfTheGreatestLength) {
  ExpectSuccess(Apply(x_, File(std::string(251, 'y') + ".npy")));
}

TEST_F(ApplyOutputTest, AnInterruptLeavesNothingBehind) {
  const std::string huge = MakeHuge();
  const std::string y = Make("y.npy", "as it was");
  const std::vector<std::string> before = directory_.Names();
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::signal(signal, SIG_DFL);  // under nohup it is ignored
      ExecuteCommand({"apply", "--input", huge, "--output", y, "--residual", huge,
                      "--residual-output", File("sum.npy")});
    }
    EXPECT_TRUE(Wait([&] { return directory_.Names().size() == before.size() + 2; }));
    kill(child, signal);
    ASSERT_EQ(WaitFor(child), 128 + signal);
    EXPECT_EQ(directory_.Names(), before);
    EXPECT_EQ(ReadFile(y), "as it was");
  }
}

// And before that only its owner may open the output.
TEST_F(ApplyOutputTest, AnInputThatBecomesShorterLeavesNothingBehind) {
  const std::string huge = MakeHuge();
  const std::string y = Make("y.npy", "as it was");
  const std::vector<std::string> before = directory_.Names();
  mode_t permissions = 0;
  std::thread shorten([&] {
    EXPECT_TRUE(Wait([&] { return directory_.Names().size() > before.size(); }));
    permissions = Permissions(File(directory_.Names().front()));
    std::filesystem::resize_file(huge, 4096);
  });
  ExpectUserError(Apply(huge, y, {}, [] { umask(0); }),
                  "cannot read " + huge + ": it became shorter meanwhile");
  shorten.join();
  EXPECT_EQ(permissions, 0600u);
  EXPECT_EQ(directory_.Names(), before);
  EXPECT_EQ(ReadFile(y), "as it was");
}

TEST_F(ApplyOutputTest, LongWorkShowsABarOnATerminalOnly) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) GTEST_SKIP() << "no pseudo-terminals here";
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int standard_error = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(standard_error, 0);
  ASSERT_EQ(fcntl(terminal, F_SETFL, O_NONBLOCK), 0);
  const auto on_terminal = [standard_error] { dup2(standard_error, STDERR_FILENO); };
  std::string shown;
  const auto see = [&] {
    char text[1000];
    const ssize_t length = read(terminal, text, sizeof text);
    if (length > 0) shown.append(text, static_cast<size_t>(length));
    return shown.find('%') != std::string::npos;
  };

  EXPECT_EQ(Apply(x_, File("y.npy"), {}, on_terminal).status, 0);
  see();
  EXPECT_EQ(shown, "") << "short work";

  const std::string huge = MakeHuge();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    on_terminal();
    ExecuteCommand({"apply", "--input", huge, "--output", File("y.npy")});
  }
  EXPECT_TRUE(Wait(see)) << shown;
  kill(child, SIGTERM);
  WaitFor(child);
  EXPECT_EQ(shown.rfind("\r[", 0), 0u) << shown;
  close(standard_error);
  close(terminal);
}

}  // namespace
}  // namespace rmsnorm::test
