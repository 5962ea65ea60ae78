// SPDX-License-Identifier: Apache-2.0
// The kernels called directly, for what a call of the library does not reach at once: the prepared
// weight, which is the library's own memory, beside a page that cannot be touched; and results that
// are written past the caches, which otherwise takes more rows than the last cache holds.
#include <gtest/gtest.h>

#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

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

const KernelTable& FindTable(const std::string& target) {
  const KernelTable* table = nullptr;
  EXPECT_EQ(RMSNORM_OK, internal::FindKernels(target.c_str(), table));
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
  const KernelTable& table_ = FindTable(GetParam());
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

INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
