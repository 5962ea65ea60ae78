// SPDX-License-Identifier: Apache-2.0
// Lists of cases, as short text.
//
// A line of a list is a case in which a field may have several values:
// - "x=f32|f16" multiplies the line's cases, and "d=1..300" is a range of such values;
// - "rounding=after_weight/before_weight" adds no cases: the cases that the fields before it make
//   take its values in turn. Each round begins at a value drawn at random, the same in every run:
//   otherwise some values of two such fields would never meet;
// - "x+y=f16|bf16" gives both fields the same value, and "rows+d=9:64|2:300" each its own.
// Where a line describes several calls, the last fields of the last one change first.
// "$T=f32|f16|bf16" defines "$T" for later lines, and "[NAME]" begins a group of lines. A "#"
// begins a comment, and a line that ends with a comma goes on in the next. Put a field with "/"
// after those with "|" whose values it shall meet: before "d=1..300" it has one value for all these
// d. Put fields that do not affect the results last: then the reference computes once for all their
// values.
#ifndef RMSNORM_CASES_LIST_H_
#define RMSNORM_CASES_LIST_H_

#include <functional>
#include <string>
#include <vector>

#include "case.h"

namespace rmsnorm::cases {

// The lines of a list or of a similar text: without comments, with names replaced, and with
// continued lines joined. A line that ends with a semicolon goes on in the next, too.
std::vector<std::string> LinesOf(const std::string& list);

// The text of a file. Throws UserError if it cannot be read.
std::string ReadText(const std::string& path);

class List {
 public:
  // Throws UserError if the text is not a valid list.
  explicit List(const std::string& list);

  size_t size() const;

  // Throws UserError for a case that makes no sense.
  void ForEach(const std::function<void(const Calls&)>& visit) const;
  void ForEach(const std::function<void(const std::string& group, const Calls&)>& visit) const;

 private:
  struct Axis {
    size_t call;
    std::vector<const Field*> fields;
    std::vector<std::string> values;
    bool in_turn;
  };
  struct Line {
    std::string group;
    Calls start;
    std::vector<Axis> axes;
    size_t size() const;
  };

  static Axis ParseAxis(size_t call, const std::string& text);

  std::vector<Line> lines_;
};

// The list of `rmsnorm check`: checked.txt, compiled in.
extern const char kCheckedCases[];

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_LIST_H_
