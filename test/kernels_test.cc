// SPDX-License-Identifier: Apache-2.0
// The kernels called directly, for what a call of the library does not reach at once: the prepared
// weight, which is the library's own memory, beside a page that cannot be touched; results that
// are written past the caches, which otherwise takes more rows than the last cache holds; and which
// kernel a target has for some rows.
#include <gtest/gtest.h>

#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "addend_rows.h"
#include "guarded_buffer.h"
#include "random_rows.h"
#include "rows.h"
#include "target.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

using internal::DtypeIndex;
using internal::KernelTable;
using internal::Norm;
using internal::Rows;

constexpr size_t kLongest = 16385;

const KernelTable& FindTable(const char* target) {
  const KernelTable* table = nullptr;
  EXPECT_EQ(RMSNORM_OK, internal::FindKernels(target, table));
  return *table;
}

class KernelsTest : public testing::TestWithParam<std::string> {
 protected:
  // y of one target, with the weight at the end, or at the begin, of its memory.
  Tensor Run(const KernelTable& table, const Tensor& x, const std::vector<float>& weight,
             bool at_begin, Tensor y, bool cast_then_scale, bool stream) const {
    const size_t d = weight.size();
    const size_t bytes = d * sizeof(float);
    void* const guarded = at_begin ? guard_.AtBegin() : guard_.AtEnd(bytes);
    std::memcpy(guarded, weight.data(), bytes);
    Norm norm = {};
    norm.d = d;
    norm.weight = static_cast<const float*>(guarded);
    norm.eps = 1e-5f;
    norm.divisor = static_cast<float>(d);
    norm.cast_then_scale = cast_then_scale;
    Rows rows = {};
    rows.count = x.rows();
    rows.x = x.data();
    rows.x_stride = x.view().stride[0];
    rows.y = y.data();
    rows.y_stride = y.view().stride[0];
    rows.stream = stream;
    table.forward[DtypeIndex(x.dtype())][DtypeIndex(y.dtype())](norm, rows);
    return y;
  }

  const KernelTable& reference_ = FindTable(kReference);
  const KernelTable& table_ = FindTable(GetParam().c_str());
  const GuardedBuffer guard_{kLongest * sizeof(float)};
  Random random_{101};
};

TEST_P(KernelsTest, StreamOrNotAndNoByteBesideTheWeight) {
  SizeList sizes = {1000, 4095, 4096, 4097, 8191, 8192, 8193, kLongest};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype y_dtype : kDtypes) {
      for (const size_t d : sizes) {
        Tensor x(x_dtype, 5, d);
        FillMixed(random_, x);
        std::vector<float> weight(d);
        for (float& w : weight) w = static_cast<float>(1 + random_.Normal() / 2);
        for (const bool stream : {false, true}) {
          // Every place of y relative to a cache line comes with some length, and each row has
          // another.
          const Tensor y(y_dtype, x.rows(), d, d % 32, d % 7);
          const bool cast = d % 2 == 0;
          const Tensor expected = Run(reference_, x, weight, stream, y, cast, false);
          ASSERT_TRUE(expected.IsPaddingWiped());
          ASSERT_TRUE(SameBits(expected, Run(table_, x, weight, stream, y, cast, stream)))
              << rmsnorm_dtype_name(x_dtype) << " to " << rmsnorm_dtype_name(y_dtype) << " d " << d
              << (stream ? " streamed" : "");
        }
      }
    }
  }
}

// Rows of lengths that have loops of their own, with others than normal ones at every place.
class KnownLengthTest : public testing::TestWithParam<std::string> {
 protected:
  // y and rstd of one target, and the sums where `residual` is given.
  struct Results {
    Tensor y;
    Tensor rstd;
    Tensor sum;
  };

  static Norm MakeNorm(const std::vector<float>& weight, bool usual_divisor, bool eps_outside) {
    Norm norm = {};
    norm.d = weight.size();
    norm.weight = weight.data();
    norm.eps = 1e-5f;
    norm.divisor = static_cast<float>(usual_divisor ? norm.d : norm.d + 3);
    norm.eps_outside = eps_outside;
    return norm;
  }

  static Rows MakeRows(const Tensor& x, Results& results, bool stream) {
    Rows rows = {};
    rows.count = x.rows();
    rows.x = x.data();
    rows.x_stride = x.view().stride[0];
    rows.y = results.y.data();
    rows.y_stride = results.y.view().stride[0];
    rows.rstd = static_cast<float*>(results.rstd.data());
    rows.stream = stream;
    return rows;
  }

  static void Forward(const KernelTable& table, const Norm& norm, const Tensor& x, Results& results,
                      bool stream) {
    table.forward[DtypeIndex(x.dtype())][DtypeIndex(x.dtype())](norm, MakeRows(x, results, stream));
  }

  static internal::AddendRows Addends(const Tensor& x, const Tensor& residual, Results& results) {
    return {x.rows(),           x.d(),
            x.data(),           x.view().stride[0],
            residual.data(),    residual.view().stride[0],
            results.sum.data(), results.sum.view().stride[0]};
  }

  // As many rows as there are bits, a normal one where the bit is 0.
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

  std::vector<float> SomeWeight(size_t d) {
    std::vector<float> weight(d);
    for (float& w : weight) w = static_cast<float>(1 + random_.Normal() / 2);
    return weight;
  }

  const KernelTable& reference_ = FindTable(kReference);
  const KernelTable& table_ = FindTable(GetParam().c_str());
  Random random_{102};
};

// The lengths of which kernels know something, and those around them: rows are held in one to four
// pairs of registers, which they fill or not.
const SizeList kKnownLengths = {1, 31, 32, 33, 64, 65, 80, 96, 97, 127, 128};

// Where y begins and how its rows lie, as elements past a cache line and between rows.
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
        const std::vector<float> weight = SomeWeight(d);
        for (const Place place : kPlaces) {
          const bool stream = random_.Below(2) == 0;
          const Norm norm = MakeNorm(weight, special % 8 != 7, special % 4 == 3);
          Results expected = {
              {dtype, rows, d, place.offset, place.padding}, {RMSNORM_F32, 1, rows}, {dtype, 1, 1}};
          Results actual = expected;
          Forward(reference_, norm, x, expected, false);
          Forward(table_, norm, x, actual, stream);
          ASSERT_TRUE(SameBits(expected.y, actual.y))
              << rmsnorm_dtype_name(dtype) << " d " << d << " special " << special
              << (stream ? " streamed" : "");
          ASSERT_TRUE(SameBits(expected.rstd, actual.rstd));
        }
      }
    }
  }
}

// Four rows of x that are one and the same, which stays as it was.
TEST_P(KnownLengthTest, InPlaceAndRepeated) {
  for (const size_t d : kKnownLengths) {
    for (unsigned special = 0; special < 16; ++special) {
      const Tensor x = SomeSpecial(RMSNORM_F32, 4, d, special);
      const std::vector<float> weight = SomeWeight(d);
      const Norm norm = MakeNorm(weight, true, false);
      Results expected = {{RMSNORM_F32, 4, d}, {RMSNORM_F32, 1, 4}, {RMSNORM_F32, 1, 1}};
      Forward(reference_, norm, x, expected, false);
      Results actual = expected;
      actual.y = x;
      Forward(table_, norm, actual.y, actual, false);
      ASSERT_TRUE(SameBits(expected.y, actual.y)) << "d " << d << " special " << special;

      Results repeated = expected;
      repeated.y.Wipe();
      Rows rows = MakeRows(x, repeated, false);
      rows.x_stride = 0;
      table_.forward[0][0](norm, rows);
      for (size_t row = 0; row < 4; ++row) {
        ASSERT_TRUE(SameBits(RMSNORM_F32, expected.y.Row(0), repeated.y.Row(row), d));
      }
    }
  }
}

TEST_P(KnownLengthTest, ResidualAddInOnePass) {
  const std::vector<float> long_weight = SomeWeight(192);
  const bool is_avx512 = GetParam().find("AVX3") == 0;
  for (const size_t d : SizeList{63, 64, 65, 127, 128, 129, 192}) {
    const std::vector<float> weight(long_weight.begin(), long_weight.begin() + static_cast<int>(d));
    EXPECT_EQ(is_avx512 && d <= 128,
              table_.add->one_pass(MakeNorm(weight, true, false)) != nullptr);
    Norm without = MakeNorm(weight, true, false);
    without.weight = nullptr;
    EXPECT_EQ(nullptr, table_.add->one_pass(without));
  }
  if (!is_avx512) return;
  constexpr size_t kRows = 6;
  for (const size_t d : kKnownLengths) {
    for (unsigned special = 0; special < 1u << kRows; ++special) {
      const size_t rows = 1 + random_.Below(kRows);
      const Tensor x = SomeSpecial(RMSNORM_F32, rows, d, special);
      const Tensor residual = SomeSpecial(RMSNORM_F32, rows, d, special / 2);
      const std::vector<float> weight = SomeWeight(d);
      const Norm norm = MakeNorm(weight, special % 8 != 7, special % 4 == 3);
      for (const Place place : kPlaces) {
        Results expected = {{RMSNORM_F32, rows, d, place.offset, place.padding},
                            {RMSNORM_F32, 1, rows},
                            {RMSNORM_F32, rows, d}};
        Results actual = expected;
        std::vector<double> squares(rows);
        reference_.add->same[0](Addends(x, residual, expected), squares.data());
        Forward(reference_, norm, expected.sum, expected, false);

        const bool in_place = special % 2 == 0;
        if (in_place) actual.sum = residual;
        const bool stream = random_.Below(2) == 0;
        table_.add->one_pass(norm)(norm, Addends(x, in_place ? actual.sum : residual, actual),
                                   MakeRows(actual.sum, actual, stream));
        ASSERT_TRUE(SameBits(expected.sum, actual.sum)) << "d " << d << " special " << special;
        ASSERT_TRUE(SameBits(expected.y, actual.y))
            << "d " << d << " special " << special << (stream ? " streamed" : "");
        ASSERT_TRUE(SameBits(expected.rstd, actual.rstd));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KnownLengthTest, testing::ValuesIn(SupportedTargets()), Name);
INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
