// SPDX-License-Identifier: Apache-2.0
// Where the operands of a case lie in memory.
#ifndef RMSNORM_CASES_LAYOUT_H_
#define RMSNORM_CASES_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "case.h"
#include "problem.h"

namespace rmsnorm::cases {

// The layout of an operand's rows.
struct Spans {
  std::vector<ptrdiff_t> stride;  // elements, one per dimension
  ptrdiff_t first;                // bytes from the lowest row to the first one
  size_t bytes;                   // from the lowest row to the end of the highest one
};
// For rows in the order, with the gap and with the skipped rows of an operand.
Spans SpansOf(const OperandCase& own, const std::vector<size_t>& leading, size_t length,
              size_t element);

// Offsets of all rows from the first one, in bytes, in C order.
std::vector<ptrdiff_t> RowOffsets(const std::vector<size_t>& leading,
                                  const std::vector<ptrdiff_t>& stride, size_t element);

// Each operand has a block of memory, or shares another's.
struct Layout {
  explicit Layout(const Case& c);

  struct Block {
    size_t bytes = 0;  // with canaries; 0 if there is no block
    uint8_t canary = 0;
  };
  struct Place {
    Operand block = internal::kX;
    size_t first = 0;               // bytes from the start of the block to the first row
    std::vector<ptrdiff_t> stride;  // elements
    std::vector<ptrdiff_t> offset;  // bytes from the first row to each row
  };
  Block block[kOperands];
  Place place[kOperands];  // only for given operands

  // A row of an operand in memory that has these blocks. Write() and Read() copy all its rows.
  uint8_t* RowIn(uint8_t* const* memory, Operand o, size_t row) const {
    return memory[place[o].block] + place[o].first + place[o].offset[row];
  }
  void Write(const Rows& rows, Operand o, uint8_t* const* memory) const;
  void Read(uint8_t* const* memory, Operand o, Rows& rows) const;

 private:
  void PlaceAlone(const Case& c, Operand o);
  void Interleave(const Case& c);
  void Strew(const Case& c);
};

// By definition, outputs share no byte with each other, nor with any other operand unless they
// replace it exactly. Returns which operands overlap, or an empty text.
std::string OverlapIn(const Case& c, const Layout& layout);

// The operands of a case whose blocks of memory are these.
CallOperands OperandsAt(const Case& c, const Layout& layout, uint8_t* const* block);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_LAYOUT_H_
