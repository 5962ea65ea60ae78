// SPDX-License-Identifier: Apache-2.0
// Lists of cases, as short text.
//
// A line of a list is a case whose values may be several:
// - "x=f32|f16" multiplies the line's cases, and "d=1..300" is a range of such values;
// - "rounding=after_weight/before_weight" multiplies nothing: the cases that the fields before
//   it make take its values in turn. Of several such fields the first changes with each case, the
//   next one when the first has been through;
// - "x+y=f16|bf16" gives both the same value.
// "$T=f32|f16|bf16" says what "$T" stands for in later lines. A "#" begins a comment, and a line
// that ends with a comma goes on in the next. Fields that do not change what is computed
// stand last: then the reference computes once for all of them.
#ifndef RMSNORM_TOOLS_CASES_LIST_H_
#define RMSNORM_TOOLS_CASES_LIST_H_

#include <functional>
#include <string>
#include <vector>

#include "case.h"

namespace rmsnorm::cases {

// The lines of a list or of another text of its kind: without comments, names replaced, each whole.
// A line that ends with a semicolon goes on, too.
std::vector<std::string> LinesOf(const std::string& list);

class List {
 public:
  // Throws UserError for what is no list.
  explicit List(const std::string& list);

  size_t size() const;

  // The last fields of a line change first. Throws UserError for a case without meaning.
  void ForEach(const std::function<void(const Case&)>& visit) const;

 private:
  struct Axis {
    std::vector<const Field*> fields;
    std::vector<std::string> values;
    bool in_turn;
  };
  struct Line {
    Case start;
    std::vector<Axis> axes;
    size_t size() const;
  };

  static Axis ParseAxis(const std::string& text);

  std::vector<Line> lines_;
};

// What `rmsnorm check` goes through: each property over the sizes where it can go wrong.
extern const char kCheckedCases[];

}  // namespace rmsnorm::cases

#endif  // RMSNORM_TOOLS_CASES_LIST_H_
