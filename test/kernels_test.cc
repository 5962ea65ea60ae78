// SPDX-License-Identifier: Apache-2.0
// Direct calls of the kernels, for what calls of the library rarely reach. The prepared weight and
// bias, which are the library's own memory, lie at inaccessible pages. Results are written past the
// caches, which otherwise takes more rows than the last cache holds.
#include <gtest/gtest.h>

#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "cases/guarded_memory.h"
#include "kernel_call.h"
#include "random_rows.h"
#include "reference.h"
#include "targets.h"
#include "walk.h"

namespace rmsnorm::test {
namespace {

using internal::kBias;
using internal::kResidual;
using internal::kResidualOut;
using internal::kRstd;
using internal::kWeight;
using internal::kX;
using internal::kY;

constexpr size_t kLongest = 16385;

class KernelsTest : public testing::TestWithParam<std::string> {
 protected:
  std::vector<float> DrawColumns(size_t d) {
    std::vector<float> columns(d);
    for (float& value : columns) value = static_cast<float>(1 + random_.Normal() / 2);
    return columns;
  }

  const KernelTable& reference_ = FindTable(kReference);
  const KernelTable& table_ = FindTable(GetParam());
  Random random_{101};
};

TEST_P(KernelsTest, StreamOrNotAndNoByteBesideWeightAndBias) {
  cases::GuardedMemory weight_guard;
  cases::GuardedMemory bias_guard;
  SizeList sizes = {1000, 4095, 4096, 4097, 8191, 8192, 8193, kLongest};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype y_dtype : kDtypes) {
      for (const size_t d : sizes) {
        Tensor x(x_dtype, 5, d);
        FillMixed(random_, x);
        const std::vector<float> weight = DrawColumns(d);
        const std::vector<float> bias = DrawColumns(d);
        const bool has_bias = d % 5 < 2;
        const auto guarded = [d](cases::GuardedMemory& guard, const std::vector<float>& columns) {
          const size_t bytes = d * sizeof(float);
          void* const memory = d % 2 == 0 ? guard.After(bytes) : guard.Before(bytes);
          return static_cast<const float*>(std::memcpy(memory, columns.data(), bytes));
        };
        const auto run = [&](const KernelTable& table, Tensor y, bool stream) {
          KernelCall call(table, x);
          call.SetRounding(static_cast<rmsnorm_rounding>(d % 3));
          call.norm.stream = stream;
          call.Share(kWeight, guarded(weight_guard, weight));
          if (has_bias) call.Share(kBias, guarded(bias_guard, bias));
          call.Set(kY, y);
          table.forward(call.norm, call.run);
          return y;
        };
        for (const bool stream : {false, true}) {
          // y begins at every place relative to a cache line, at some length, and each row begins
          // at a different place.
          const Tensor y(y_dtype, x.rows(), d, d % 32, d % 7);
          const Tensor expected = run(reference_, y, false);
          ASSERT_TRUE(expected.IsPaddingWiped());
          ASSERT_TRUE(SameBits(expected, run(table_, y, stream)))
              << rmsnorm_dtype_name(x_dtype) << " to " << rmsnorm_dtype_name(y_dtype) << " d " << d
              << (stream ? " streamed" : "") << (has_bias ? " with a bias" : "");
        }
      }
    }
  }
}

// Rows with lengths that have separate loops. Special rows take turns at every place.
class KnownLengthTest : public KernelsTest {
 protected:
  // The results of forward.
  struct Results {
    Tensor y;
    Tensor rstd;
    Tensor residual_out;
  };

  static KernelCall Make(const KernelTable& table, const Tensor& x,
                         const std::vector<float>& weight, Results& results, unsigned special) {
    KernelCall call(table, x);
    if (special % 8 == 7) call.SetDivisor(call.norm.root.divisor + 3);
    call.norm.root.eps_placement = special % 4 == 3 ? RMSNORM_EPS_OUTSIDE : RMSNORM_EPS_INSIDE;
    if (special % 16 == 10) {
      call.norm.root.eps_placement = RMSNORM_EPS_FLOOR;
      call.norm.root.eps = 1;
    }
    call.Share(kWeight, weight.data());
    call.Set(kY, results.y);
    call.Set(kRstd, results.rstd);
    return call;
  }

  // `rows` rows. A row is normal if its bit in `special` is 0.
  Tensor SomeSpecial(rmsnorm_dtype dtype, size_t rows, size_t d, unsigned special) {
    Tensor x(dtype, rows, d);
    for (size_t row = 0; row < rows; ++row) {
      const bool is_special = (special >> row & 1) != 0;
      FillRow(random_,
              is_special ? static_cast<RowKind>(random_.Below(kRowKinds)) : RowKind::kNormal, x,
              row);
    }
    return x;
  }
};

// Lengths that are constants in kernels, and lengths around them: rows occupy one to four pairs of
// registers, completely or partly.
const SizeList kKnownLengths = {1, 31, 32, 33, 64, 65, 80, 96, 97, 127, 128};

// Where y begins and how its rows lie: elements past a cache line, and elements between rows.
struct Place {
  size_t offset;
  size_t padding;
};
constexpr Place kPlaces[] = {{0, 0}, {16, 16}, {0, 3}, {1, 0}};

TEST_P(KnownLengthTest, SpecialRowsAnywhere) {
  constexpr size_t kRows = 6;
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : kKnownLengths) {
      for (unsigned special = 0; special < 1u << kRows; ++special) {
        const size_t rows = 1 + random_.Below(kRows);
        const Tensor x = SomeSpecial(dtype, rows, d, special);
        const std::vector<float> weight = DrawColumns(d);
        for (const Place place : kPlaces) {
          const bool stream = random_.Below(2) == 0;
          Results expected = {{dtype, rows, d, place.offset, place.padding},
                              {RMSNORM_F32, rows, 1, 0, place.padding},
                              {dtype, 1, 1}};
          Results actual = expected;
          const KernelCall plain = Make(reference_, x, weight, expected, special);
          reference_.forward(plain.norm, plain.run);
          KernelCall call = Make(table_, x, weight, actual, special);
          call.norm.stream = stream;
          table_.forward(call.norm, call.run);
          ASSERT_TRUE(SameBits(expected.y, actual.y))
              << rmsnorm_dtype_name(dtype) << " d " << d << " special " << special
              << (stream ? " streamed" : "");
          ASSERT_TRUE(SameBits(expected.rstd, actual.rstd));
        }
      }
    }
  }
}

// Four rows of x share the same memory, which must stay unchanged.
TEST_P(KnownLengthTest, InPlaceAndRepeated) {
  for (const size_t d : kKnownLengths) {
    for (unsigned special = 0; special < 16; ++special) {
      const Tensor x = SomeSpecial(RMSNORM_F32, 4, d, special);
      const std::vector<float> weight = DrawColumns(d);
      Results expected = {{RMSNORM_F32, 4, d}, {RMSNORM_F32, 4, 1}, {RMSNORM_F32, 1, 1}};
      const KernelCall plain = Make(reference_, x, weight, expected, 0);
      reference_.forward(plain.norm, plain.run);
      Results actual = expected;
      actual.y = x;
      const KernelCall in_place = Make(table_, actual.y, weight, actual, 0);
      table_.forward(in_place.norm, in_place.run);
      ASSERT_TRUE(SameBits(expected.y, actual.y)) << "d " << d << " special " << special;

      Results repeated = expected;
      repeated.y.Wipe();
      KernelCall call = Make(table_, x, weight, repeated, 0);
      call.run.stride[kX] = 0;
      table_.forward(call.norm, call.run);
      for (size_t row = 0; row < 4; ++row) {
        ASSERT_TRUE(SameBits(RMSNORM_F32, expected.y.Row(0), repeated.y.Row(row), d));
      }
    }
  }
}

TEST_P(KnownLengthTest, ResidualAdd) {
  constexpr size_t kRows = 6;
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : kKnownLengths) {
      for (unsigned special = 0; special < 1u << kRows; ++special) {
        const size_t rows = 1 + random_.Below(kRows);
        const Tensor x = SomeSpecial(dtype, rows, d, special);
        const Tensor residual = SomeSpecial(dtype, rows, d, special / 2);
        const std::vector<float> weight = DrawColumns(d);
        const bool in_place = special % 2 == 0;
        for (const Place place : kPlaces) {
          const bool stream = random_.Below(2) == 0;
          const bool norm_unrounded = random_.Below(4) == 0;
          const auto run = [&](const KernelTable& table, bool streamed) {
            Results results = {{dtype, rows, d, place.offset, place.padding},
                               {RMSNORM_F32, rows, 1},
                               in_place ? residual : Tensor(dtype, rows, d)};
            KernelCall call = Make(table, x, weight, results, special);
            call.norm.norm_unrounded = norm_unrounded;
            call.norm.stream = streamed;
            call.Set(kResidual, in_place ? results.residual_out : residual);
            call.Set(kResidualOut, results.residual_out);
            table.forward(call.norm, call.run);
            return results;
          };
          const Results expected = run(reference_, false);
          const Results actual = run(table_, stream);
          ASSERT_TRUE(SameBits(expected.residual_out, actual.residual_out))
              << rmsnorm_dtype_name(dtype) << " d " << d << " special " << special;
          ASSERT_TRUE(SameBits(expected.y, actual.y))
              << rmsnorm_dtype_name(dtype) << " d " << d << " special " << special
              << (stream ? " streamed" : "");
          ASSERT_TRUE(SameBits(expected.rstd, actual.rstd));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KnownLengthTest, testing::ValuesIn(SupportedTargets()), Name);
INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
