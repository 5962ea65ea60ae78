// SPDX-License-Identifier: Apache-2.0
// Rows of elements in memory with canaries around and between them, and the comparison of their
// bits.
#ifndef RMSNORM_TOOLS_GUARDED_ROWS_H_
#define RMSNORM_TOOLS_GUARDED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

namespace rmsnorm::tools {

// A binary floating-point format: the bits of an exponent and of a mantissa, below one of a sign.
struct Format {
  int exponent_bits;
  int mantissa_bits;

  size_t size() const { return static_cast<size_t>(1 + exponent_bits + mantissa_bits) / 8; }
  uint64_t infinity() const { return ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits; }
  uint64_t sign() const { return uint64_t{1} << (exponent_bits + mantissa_bits); }
  bool IsNan(uint64_t bits) const { return (bits & ~sign()) > infinity(); }
};

Format FormatOf(Dtype dtype);

// Where rows lie, in elements; see the cases of `rmsnorm check`.
struct Layout {
  size_t rows = 1;
  size_t d = 1;
  size_t shift = 0;  // from the start of a cache line to the lowest row
  size_t gap = 0;
  bool falling = false;
  bool repeated = false;
};

class GuardedRows {
 public:
  // The byte that all memory is filled with at first. Around an input it makes NaNs, which show in
  // every result they get into. A NaN written back over them could have the same bits, so that
  // outputs are filled with something else.
  static constexpr uint8_t kAroundInput = 0xFF;
  static constexpr uint8_t kAroundOutput = 0xA5;

  GuardedRows(Dtype dtype, const Layout& layout, uint8_t canary);

  Format format() const { return FormatOf(dtype_); }
  const Layout& layout() const { return layout_; }

  uint8_t* row(size_t index);
  const uint8_t* row(size_t index) const;
  uint64_t bits(size_t row, size_t j) const;
  void set_bits(size_t row, size_t j, uint64_t bits);

  // As arguments for the library: all rows in these leading dimensions, also as elements of another
  // type of the same size; some rows; and elements of a row from one on, in any dense shape.
  View view(const std::vector<size_t>& leading) { return view_as(dtype_, leading); }
  View view_as(Dtype dtype, const std::vector<size_t>& leading);
  View rows(size_t first, size_t count);
  View elements(size_t row, size_t first, const std::vector<size_t>& shape);

  // Describes the first byte outside the rows that is no longer the canary; empty where there is
  // none.
  std::string FindBrokenCanary() const;

  bool operator==(const GuardedRows& other) const;

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };

  ptrdiff_t stride() const;
  // Bytes from the start of the memory to a row.
  size_t Position(size_t row) const;

  Dtype dtype_;
  Layout layout_;
  uint8_t canary_;
  std::vector<Line> lines_;
};

// Rows for an argument and for a result, and one row with an element for each of so many others.
GuardedRows Input(Dtype dtype, const Layout& layout);
GuardedRows Output(Dtype dtype, const Layout& layout);
GuardedRows OnePerRow(Dtype dtype, size_t rows);

// Copies the elements of a row, and of all rows, of which there are as many in both.
void CopyRow(const GuardedRows& from, size_t from_row, GuardedRows& to, size_t to_row);
void CopyRows(const GuardedRows& from, GuardedRows& to);

// Describes the first element of `actual` whose bits are not those in `expected`; empty where there
// is none. Two NaNs count as equal: CPUs make different ones. The layouts may differ, rows and d
// may not.
std::string FindDifference(const GuardedRows& expected, const GuardedRows& actual);

// An output of a call, and what it should be.
struct ComparedRows {
  const char* name;
  const GuardedRows& expected;
  const GuardedRows& actual;
  bool is_computed;  // if not, only its surroundings are looked at
};

// Says what is wrong with the first output that is; empty where none is.
std::string FindFaultOfOutputs(std::initializer_list<ComparedRows> outputs);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_GUARDED_ROWS_H_
