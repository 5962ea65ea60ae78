// SPDX-License-Identifier: Apache-2.0
// The tables under "Accuracy" on the pages hold the bounds of definition 16 and the worst errors of
// the reference beside exact values. The environment variable RMSNORM_PAGES names the folder of the
// pages.
//
// The numbers are the same on every platform, as results and cases are. After a change of a list or
// of the definition, copy the lines that this test prints into the pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "cases/expected.h"
#include "cases/list.h"

namespace rmsnorm::test {
namespace {

// In the lists, a value that is rounded to f16 before the last operation is a normal number: the
// bounds need that. Rows of f16 with such a rounding are not adverse, as those have small elements.
//
// Below the name of a page and values of d are the lines of its table: the first column, the
// result, and a list of cases without d.
const char kTables[] = R"(
$ROWS=rows=6,x_values=adverse|massive|normal,eps=0|1e-6
$NORMAL=rows=6,x_values=massive|normal,eps=0|1e-6
$SUMS=rows=6,x_values=adverse|massive|normal,residual_values=adverse|normal
$STEP=gate_placement=before,activation=none,gate_rounding=rounded
$ROTATED=cos_per+sin_per=row,rotary_pairs=halves|neighbours,$ROWS
$GRADIENTS=x_values=adverse|massive|normal,dy_values=normal/massive/positive
[forward 128 4096 16384]
f32; y; forward,x+y=f32,weight=none,$ROWS
f32, weight; y; forward,x+y+weight=f32,$ROWS
f32, weight and bias; y; forward,x+y+weight+bias=f32,$ROWS
f32, weight and offset; y; forward,x+y+weight=f32,weight_offset=1,$ROWS
bf16, `after_weight`; y; forward,x+y+weight=bf16,$ROWS
bf16, `before_weight`; y; forward,x+y+weight=bf16,rounding=before_weight,$ROWS
bf16, `inverse`; y; forward,x+y+weight=bf16,rounding=inverse,$ROWS
f16, `after_weight`; y; forward,x+y+weight=f16,$ROWS
f16, `before_weight`; y; forward,x+y+weight=f16,rounding=before_weight,$NORMAL
f16, `inverse`; y; forward,x+y+weight=f16,rounding=inverse,$NORMAL
`rstd`; rstd; forward,x+rstd=f32,y=none,$ROWS
`rstd`, eps outside; rstd; forward,x+rstd=f32,y=none,eps_placement=outside,$ROWS
[two_phases 128 4096 16384]
`sums_out`; sums_out; forward,x=f32,y=none,sums_out=f64,$ROWS
[add_norm 128 4096 16384]
`residual_out`, f32; residual_out; forward,x+residual+residual_out=f32,y=none,$SUMS
`residual_out`, bf16; residual_out; forward,x+residual+residual_out=bf16,y=none,$SUMS
`residual_out`, f16; residual_out; forward,x+residual+residual_out=f16,y=none,$SUMS
`residual_out`, bf16, `residual_factor`; residual_out; forward,x+residual+residual_out=bf16,
  y=none,residual_factor=0.22,$SUMS
y, f32; y; forward,x+y+weight+residual=f32,$SUMS
y, bf16, `rounded`; y; forward,x+y+weight+residual=bf16,$SUMS
y, bf16, `unrounded`; y; forward,x+y+weight+residual=bf16,residual_rounding=unrounded,$SUMS
y, f16, `rounded`; y; forward,x+y+weight+residual=f16,$SUMS
y, f16, `unrounded`; y; forward,x+y+weight+residual=f16,residual_rounding=unrounded,$SUMS
[post_norm 128 4096 16384]
`residual_out`, f32; residual_out; forward,x+post_norm_weight+residual+residual_out=f32,y=none,$SUMS
`residual_out`, bf16; residual_out; forward,x+post_norm_weight+residual+residual_out=bf16,y=none,
  $SUMS
y, f32; y; forward,x+post_norm_weight+residual+weight+y=f32,$SUMS
y, bf16; y; forward,x+post_norm_weight+residual+weight+y=bf16,$SUMS
[gated_norm 128 4096 16384]
f32, gate after; y; forward,x+y+weight+gate=f32,$ROWS,activation=silu/sigmoid
f32, gate before; y; forward,x+y+weight+gate=f32,gate_placement=before,$ROWS,activation=silu/sigmoid
bf16, gate after; y; forward,x+y+weight+gate=bf16,$ROWS,activation=silu/sigmoid
bf16, gate after, `gate_rounding` rounded; y; forward,x+y+weight+gate=bf16,gate_rounding=rounded,
  $ROWS,activation=silu/sigmoid
bf16, gate before; y; forward,x+y+weight+gate=bf16,gate_placement=before,$ROWS,
  activation=silu/sigmoid
f32, residual and gate before, `none`; y; forward,x+y+weight+gate+residual=f32,$STEP,$SUMS
bf16, residual and gate before, `none`; y; forward,x+y+weight+gate+residual=bf16,$STEP,$SUMS
[rotary 64 128 4096]
f32; y; forward,x+y+weight+cos+sin=f32,$ROTATED
bf16, `each`; y; forward,x+y+weight+cos+sin=bf16,$ROTATED
bf16, `norm`; y; forward,x+y+weight+cos+sin=bf16,rotary_rounding=norm,$ROTATED
bf16, `none`; y; forward,x+y+weight+cos+sin=bf16,rotary_rounding=none,$ROTATED
bf16, f32 tables, `each`; y; forward,x+y+weight=bf16,cos+sin=f32,$ROTATED
[quantised 128 4096 16384]
q, v f32; q; forward,x+weight=f32,y=none,q=i8,scale=f32,$ROWS
q, v bf16; q; forward,x+weight=bf16,y=none,q=i8,scale=f32,$ROWS
q with `zero`, v f32; q; forward,x+weight=f32,y=none,q=i8,scale=f32,zero=i8,$ROWS
q with `zero`, v bf16; q; forward,x+weight=bf16,y=none,q=i8,scale=f32,zero=i8,$ROWS
`scale`, v f32; scale; forward,x+weight=f32,y=none,q=i8,scale=f32,$ROWS
[backward 128 4096 16384]
dx, f32; dx; backward,x+dy+dx=f32,weight+dw+db=none,rows=6,$GRADIENTS
dx, f32, weight; dx; backward,x+dy+weight+dx=f32,dw+db=none,rows=6,$GRADIENTS
dx, bf16, weight; dx; backward,x+dy+weight+dx=bf16,dw+db=none,rows=6,$GRADIENTS
dw, f32, 32 rows; dw; backward,x+dy+dw=f32,weight+dx+db=none,rows=32,$GRADIENTS
db, f32, 32 rows; db; backward,x+dy+db=f32,weight+dx+dw=none,rows=32,$GRADIENTS
)";

struct Line {
  std::string label;
  std::string result;
  std::string list;
};

struct Page {
  std::string name;
  std::vector<std::string> d;
  std::vector<Line> lines;
};

std::vector<Page> ReadPages() {
  std::vector<Page> pages;
  for (const std::string& text : cases::LinesOf(kTables)) {
    if (text[0] == '[') {
      std::vector<std::string> words = cases::Split(text.substr(1, text.size() - 2), ' ');
      pages.push_back({words[0], {words.begin() + 1, words.end()}, {}});
    } else {
      const std::vector<std::string> columns = cases::Split(text, ';');
      pages.back().lines.push_back({columns[0], columns[1].substr(1), columns[2]});
    }
  }
  return pages;
}

// "bound (worst seen)"
std::string CellOf(const Line& line, const std::string& d) {
  double bound = 0;
  double worst = 0;
  cases::List(line.list + ",d=" + d).ForEach([&](const cases::Calls& calls) {
    const cases::Problem problem(calls[0]);
    const cases::Results results = cases::ResultsOf(problem);
    const auto visit = [&](const cases::ExpectedRow& row) {
      if (internal::kOperandRules[row.operand].name != line.result) return true;
      bound = row.bound;
      for (size_t j = 0; j < row.elements.size(); ++j) {
        worst = std::max(worst, row.Error(j, results(row.operand, row.row, j)));
      }
      return true;
    };
    ForEachExpectedRow(calls[0], problem, cases::Arithmetic::kReference, results, visit);
  });
  EXPECT_LE(worst, bound) << line.label << ", d=" << d;
  // A bound is useful only if rows come near it.
  if (line.result == "rstd" && d == "4096") {
    EXPECT_GT(worst, bound / 2);
  }
  char cell[40];
  std::snprintf(cell, sizeof cell, "%.4g (%.4g)", bound, worst);
  return cell;
}

class AccuracyTest : public testing::TestWithParam<Page> {};

TEST_P(AccuracyTest, Table) {
  const char* const folder = std::getenv("RMSNORM_PAGES");
  ASSERT_NE(nullptr, folder) << "RMSNORM_PAGES does not name the folder of the pages";
  const std::string page = cases::ReadText(folder + ("/" + GetParam().name) + ".md");
  for (const Line& line : GetParam().lines) {
    std::string text = "| " + line.label;
    for (const std::string& d : GetParam().d) text += " | " + CellOf(line, d);
    text += " |\n";
    std::printf("%s", text.c_str());
    EXPECT_NE(std::string::npos, page.find("\n" + text)) << "the page lacks " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, AccuracyTest, testing::ValuesIn(ReadPages()),
                         [](const auto& page) { return page.param.name; });

}  // namespace
}  // namespace rmsnorm::test
