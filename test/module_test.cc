// SPDX-License-Identifier: Apache-2.0
// The module: a weight that is kept, and a forward that is the plain one with it.
#include <gtest/gtest.h>

#include <clocale>
#include <locale>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "allocation_counter.h"
#include "random_rows.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kD = 300;

Dtype DtypeOfCode(rmsnorm_dtype dtype) { return static_cast<Dtype>(dtype); }

Tensor Weight(const RmsNorm& norm, rmsnorm_dtype dtype) {
  Tensor weight(dtype, 1, kD);
  norm.get_weight(View(weight.vector()));
  EXPECT_TRUE(weight.IsPaddingWiped());
  return weight;
}

Tensor Ones(rmsnorm_dtype dtype) {
  Tensor ones(dtype, 1, kD);
  for (size_t j = 0; j < kD; ++j) ones.set(0, j, 1);
  return ones;
}

TEST(Module, BeginsWithAWeightOfOnes) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    const RmsNorm norm(kD, 1e-5f, DtypeOfCode(dtype));
    for (const rmsnorm_dtype read : kDtypes) EXPECT_TRUE(SameBits(Ones(read), Weight(norm, read)));
  }
}

// The weight is rounded to the module's type when it is set, and again to the type it is read in.
TEST(Module, KeepsItsWeightInItsType) {
  Random random(71);
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const rmsnorm_dtype from : kDtypes) {
      Tensor weight(from, 1, kD, 3);
      FillWeight(random, weight);
      RmsNorm norm(kD, 1e-5f, DtypeOfCode(dtype));
      norm.set_weight(ConstView(weight.vector()));
      for (const rmsnorm_dtype read : kDtypes) {
        Tensor expected(read, 1, kD);
        for (size_t j = 0; j < kD; ++j) expected.set(0, j, RoundTo(dtype, weight.get(0, j)));
        EXPECT_TRUE(SameBits(expected, Weight(norm, read)))
            << rmsnorm_dtype_name(from) << " kept as " << rmsnorm_dtype_name(dtype);
      }
    }
  }
}

TEST(Module, KeepsACopyOfItsWeight) {
  Tensor weight = Ones(RMSNORM_F32);
  weight.set(0, 5, 2);
  const Tensor before = weight;
  RmsNorm norm(kD);
  norm.set_weight(ConstView(weight.vector()));
  weight.Wipe();
  EXPECT_TRUE(SameBits(before, Weight(norm, RMSNORM_F32)));
}

TEST(Module, CanBeReset) {
  Random random(73);
  Tensor weight(RMSNORM_F32, 1, kD);
  FillNormal(random, weight);
  for (const rmsnorm_dtype dtype : kDtypes) {
    RmsNorm norm(kD, 1e-5f, DtypeOfCode(dtype));
    norm.set_weight(ConstView(weight.vector()));
    norm.reset_weight();
    EXPECT_TRUE(SameBits(Ones(dtype), Weight(norm, dtype)));

    Tensor x(RMSNORM_F32, 1, kD);
    FillNormal(random, x);
    Tensor expected(RMSNORM_F32, 1, kD);
    forward(ConstView(x.view()), nullptr, View(expected.view()));
    Tensor y(RMSNORM_F32, 1, kD);
    norm.forward(ConstView(x.view()), View(y.view()));
    EXPECT_TRUE(SameBits(expected, y));
  }
}

std::vector<Options> Variants() {
  std::vector<Options> variants(4);
  variants[1].eps = 0.5f;
  variants[1].eps_placement = RMSNORM_EPS_OUTSIDE;
  variants[2].weight_offset = 1;
  variants[2].eps = 1e-6f;
  variants[3].rounding = RMSNORM_CAST_THEN_SCALE;
  variants[3].divisor = 100.5f;
  return variants;
}

TEST(Module, ForwardIsThePlainForwardWithItsWeight) {
  Random random(79);
  for (const std::string& target : SupportedTargets()) {
    for (Options options : Variants()) {
      options.target = target.c_str();
      for (const rmsnorm_dtype x_dtype : kDtypes) {
        for (const rmsnorm_dtype weight_dtype : kDtypes) {
          for (const rmsnorm_dtype y_dtype : kDtypes) {
            Tensor x(x_dtype, 2 * kRowKinds, kD);
            FillMixed(random, x);
            Tensor weight(weight_dtype, 1, kD);
            FillWeight(random, weight);
            Tensor expected(y_dtype, x.rows(), kD);
            std::vector<float> expected_rstd(x.rows());
            forward(ConstView(x.view()), ConstView(weight.vector()), View(expected.view()), options,
                    expected_rstd.data());

            RmsNorm norm(kD, options, DtypeOfCode(weight_dtype));
            norm.set_weight(ConstView(weight.vector()));
            Tensor y(y_dtype, x.rows(), kD);
            std::vector<float> rstd(x.rows());
            norm.forward(ConstView(x.view()), View(y.view()), rstd.data());
            EXPECT_TRUE(SameBits(expected, y)) << target;
            EXPECT_TRUE(SameBits(RMSNORM_F32, expected_rstd.data(), rstd.data(), x.rows()));
            if (x_dtype == y_dtype) {
              norm.forward(ConstView(x.view()), View(x.view()));
              EXPECT_TRUE(SameBits(expected, x)) << target << " in place";
            }
          }
        }
      }
    }
  }
}

TEST(Module, AllocatesNothingInForward) {
  for (const size_t d : SizeList{1, 300, 5000}) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      for (const auto residual_rounding : {RMSNORM_CAST_THEN_NORM, RMSNORM_NORM_THEN_CAST}) {
        Options options;
        options.weight_offset = 1;
        options.residual_rounding = residual_rounding;
        const RmsNorm norm(d, options, DtypeOfCode(dtype));
        for (const size_t rows : SizeList{1, 3, 40}) {
          Tensor x(dtype, rows, d);
          Tensor residual(dtype, rows, d);
          Random random(83);
          FillMixed(random, x);  // the cold path too
          FillMixed(random, residual);
          std::vector<float> rstd(rows);
          const View x_and_y(x.view());
          const View sum(residual.view());
          const auto run = [&] {
            norm.forward(x_and_y, x_and_y, rstd.data());
            norm.add_forward(x_and_y, sum, sum, x_and_y, rstd.data());
          };
          run();  // threads of OpenMP's begin with the first call
          const int before = Allocations();
          run();
          EXPECT_EQ(before, Allocations());
        }
      }
    }
  }
}

TEST(Allocations, AreCounted) {
  const int before = Allocations();
  const RmsNorm norm(kD);
  EXPECT_GT(Allocations(), before);
}

TEST(Module, CanBeMoved) {
  RmsNorm first(kD, 0.25f, Dtype::bf16);
  RmsNorm second(std::move(first));
  EXPECT_EQ("RmsNorm(300, eps=0.25, bf16)", second.description());
  RmsNorm third(7);
  third = std::move(second);
  EXPECT_EQ("RmsNorm(300, eps=0.25, bf16)", third.description());
}

TEST(Description, NamesEachOptionThatIsNotTheDefault) {
  EXPECT_EQ("RmsNorm(4096, eps=1e-05, bf16)", RmsNorm(4096, 1e-5f, Dtype::bf16).description());
  EXPECT_EQ("RmsNorm(1, eps=1e-06, f32)", RmsNorm(1, 1e-6f).description());
  EXPECT_EQ("RmsNorm(2, eps=0, f16)", RmsNorm(2, 0.0f, Dtype::f16).description());

  const std::string defaults = RmsNorm(8).description();
  const auto names = [&](const char* word, const std::function<void(Options&)>& change) {
    Options options;
    change(options);
    const std::string description = RmsNorm(8, options).description();
    EXPECT_NE(std::string::npos, description.find(word)) << description;
    EXPECT_EQ(std::string::npos, defaults.find(word)) << defaults;
  };
  names("outside", [](Options& options) { options.eps_placement = RMSNORM_EPS_OUTSIDE; });
  names("cast-then-scale", [](Options& options) { options.rounding = RMSNORM_CAST_THEN_SCALE; });
  names("norm-then-cast",
        [](Options& options) { options.residual_rounding = RMSNORM_NORM_THEN_CAST; });
  names("weight_offset=1", [](Options& options) { options.weight_offset = 1; });
  names("divisor=100.5", [](Options& options) { options.divisor = 100.5f; });
  names("threads=3", [](Options& options) { options.threads = 3; });
  names("target=reference", [](Options& options) { options.target = "reference"; });
}

// A point and no grouping, whatever the process prints numbers like.
class German : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Description, DoesNotFollowTheLocale) {
  const std::locale usual = std::locale::global(std::locale(std::locale(), new German));
  const std::string description = RmsNorm(4096, 0.25f).description();
  std::locale::global(usual);
  EXPECT_EQ("RmsNorm(4096, eps=0.25, f32)", description);
}

}  // namespace
}  // namespace rmsnorm::test
