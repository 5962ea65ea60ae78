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

constexpr Format kF32 = {8, 23};
constexpr Format kF64 = {11, 52};
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

  GuardedRows(Format format, const Layout& layout, uint8_t canary);

  Format format() const { return format_; }
  const Layout& layout() const { return layout_; }

  uint8_t* row(size_t index);
  const uint8_t* row(size_t index) const;
  uint64_t bits(size_t row, size_t j) const;
  void set_bits(size_t row, size_t j, uint64_t bits);

  // As arguments for the library.
  rmsnorm_view view(Dtype dtype);
  rmsnorm_view vector(Dtype dtype);  // the first row, with one dimension, which a weight must have

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

  Format format_;
  Layout layout_;
  uint8_t canary_;
  std::vector<Line> lines_;
};

// Rows for a result.
GuardedRows Output(Format format, const Layout& layout);

// One row, with an element for each of so many others.
GuardedRows OnePerRow(Format format, size_t rows);
float* Floats(GuardedRows& rows);
double* Doubles(GuardedRows& rows);

// Copies the elements of rows, of which there are as many in both.
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
