// SPDX-License-Identifier: Apache-2.0
// Direct calls of kernels that write to the library's own memory: weights with their offset, rows
// of db, and blocks of dw and db. Here it lies at inaccessible pages.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cases/guarded_memory.h"
#include "fixtures.h"
#include "kernel_table.h"
#include "target.h"
#include "walk.h"

namespace rmsnorm::test {
namespace {

using internal::KernelTable;

const KernelTable& FindTable(const char* target) {
  const KernelTable* table = nullptr;
  EXPECT_EQ(RMSNORM_OK, internal::FindKernels(target, table));
  return *table;
}

class SumsTest : public testing::TestWithParam<std::string> {
 protected:
  const KernelTable& reference_ = FindTable(kReference);
  const KernelTable& table_ = FindTable(GetParam().c_str());
  cases::GuardedMemory guard_;
  Random random_{103};
};

// db by the definition: rows are added in order to +0 or to the existing values.
TEST_P(SumsTest, AddRows) {
  std::vector<size_t> lengths = {1000, 4095, 4096, 4097, 8191, 8192, 8193};
  for (size_t d = 1; d <= 300; ++d) lengths.push_back(d);
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : lengths) {
      Rows dy = Draw(random_, Values::kMixed, dtype, 1 + d % 7, d);
      for (size_t j = 0; j < d; j += 3) Set(dy, 0, j, -0.0);
      for (const bool start : {false, true}) {
        const size_t bytes = d * sizeof(float);
        void* const memory = d % 2 == 0 ? guard_.After(bytes) : guard_.Before(bytes);
        auto* const db = static_cast<float*>(std::memset(memory, 0xFF, bytes));
        Rows expected = Draw(random_, Values::kNormal, RMSNORM_F32, 1, d);
        if (!start) std::memcpy(db, expected.row(0), bytes);
        for (size_t j = 0; j < d; ++j) {
          float sum = start ? 0 : static_cast<float>(Get(expected, 0, j));
          for (size_t row = 0; row < dy.count(); ++row) {
            sum += static_cast<float>(Get(dy, row, j));
          }
          expected.set_bits(0, j, Reinterpret<uint32_t>(sum));
        }
        internal::Norm norm = {};
        norm.kernels = &table_;
        norm.dtype[internal::kDy] = dtype;
        norm.dtype[internal::kDb] = RMSNORM_F32;
        internal::RowRun run(dy.count(), d);
        run.Set(internal::kDy, dy.row(0), static_cast<ptrdiff_t>(dy.row_bytes()));
        run.Set(internal::kDb, db, 0);
        run.start_sums = start;
        table_.add_rows(norm, run);
        Rows actual(RMSNORM_F32, 1, d);
        std::memcpy(actual.row(0), db, bytes);
        ASSERT_TRUE(SameBits(expected, actual)) << dy.count() << " x " << d;
      }
    }
  }
}

// Any length of a weight. Lists of cases have the numbers.
TEST_P(SumsTest, AddOffset) {
  for (size_t d = 1; d <= 300; ++d) {
    for (const rmsnorm_dtype dtype : kDtypes) {
      const Rows weight = Draw(random_, Values::kSpecial, dtype, 1, d);
      Rows expected(RMSNORM_F32, 1, d);
      Rows actual = expected;
      auto* const column = reinterpret_cast<float*>(guard_.Before(actual.row_bytes()));
      reference_.add_offset(dtype, weight.row(0), d, 1, reinterpret_cast<float*>(expected.row(0)));
      table_.add_offset(dtype, weight.row(0), d, 1, column);
      std::memcpy(actual.row(0), column, actual.row_bytes());
      ASSERT_TRUE(SameBits(expected, actual)) << d;
    }
  }
}

// Any number and length of blocks, which lie apart; the reference's results are in recorded bits.
TEST_P(SumsTest, AddBlocks) {
  for (size_t d = 1; d <= 150; ++d) {
    for (const size_t blocks : std::vector<size_t>{1, 2, 5, 64}) {
      const size_t stride = d + d % 3;
      const size_t count = (blocks - 1) * stride + d;  // only d elements of the last row exist
      const Rows drawn = Draw(random_, Values::kSpecial, RMSNORM_F32, 1, count);
      auto* const sums = reinterpret_cast<float*>(guard_.Before(drawn.row_bytes()));
      std::memcpy(sums, drawn.row(0), drawn.row_bytes());
      for (const rmsnorm_dtype dtype : kDtypes) {
        for (const bool add : {false, true}) {
          Rows expected = Draw(random_, Values::kNormal, dtype, 1, d);
          Rows actual = expected;
          reference_.add_blocks(sums, stride, blocks, d, add, dtype, expected.row(0));
          table_.add_blocks(sums, stride, blocks, d, add, dtype, actual.row(0));
          ASSERT_TRUE(SameBits(expected, actual)) << d << " in " << blocks << " blocks";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SumsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
