// SPDX-License-Identifier: Apache-2.0
// The results of the reference keep the bounds of definition 15, and the tables of the pages hold
// the bounds and the worst errors seen. The environment variable RMSNORM_PAGES names the folder of
// the pages.
//
// The numbers are the same on every platform, as results and cases are. After a change of a list or
// of the definition, copy the lines that this test prints into the pages.
#include "error_bounds.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cases/list.h"
#include "exact.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

using cases::Case;
using cases::Operand;
using internal::kDb, internal::kDw, internal::kDx, internal::kQ, internal::kResidualOut,
    internal::kRstd, internal::kScale, internal::kSumsOut, internal::kY, internal::kZero;

// In the lists, a value that is rounded to f16 before the last operation is a normal number: the
// bounds need that. Rows of f16 with such a rounding are not adverse, as those have small elements.
const std::string kNames = R"(
$T=f32|f16|bf16
$ROWS=rows=6,x_values=adverse|massive|normal,eps=0|1e-6
$NORMAL=rows=6,x_values=massive|normal,eps=0|1e-6
$SUMS=rows=6,x_values=adverse|massive|normal,residual_values=adverse|normal
$GRADIENTS=x_values=adverse|massive|normal,dy_values=normal/massive/positive
$PLACEMENTS=eps_placement=inside|outside|floor
$LENGTHS=d=1|2|7|64|127|129|300|4097|8193
)";

// The error of a result in the unit of its bound.
double ErrorOf(const Case& c, const cases::Problem& problem, const Exact& exact, Operand o,
               size_t row, size_t j) {
  const auto result = [&](Operand operand, size_t column) {
    return Get(problem.after(operand), row, column);
  };
  const double value = exact.value(o, row, j);
  if (o == kQ) {
    const double scale = result(kScale, 0);
    const double zero = c.Has(kZero) ? result(kZero, 0) : 0;
    return std::fabs((result(kQ, j) - zero) - value / scale);
  }
  const rmsnorm_dtype dtype = o == kSumsOut ? RMSNORM_F32 : c.operand[o].dtype;
  const double size = std::max(std::fabs(result(o, j)), std::fabs(exact.size(o, row, j)));
  return std::fabs(result(o, j) - value) / Ulp(dtype, size);
}

// The worst error of an output. A NaN is infinitely wrong.
double WorstOf(const Case& c, const cases::Problem& problem, const Exact& exact, Operand o) {
  double worst = 0;
  for (size_t row = 0; row < problem.after(o).count(); ++row) {
    for (size_t j = 0; j < problem.after(o).d(); ++j) {
      const double error = ErrorOf(c, problem, exact, o, row, j);
      worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error);
    }
  }
  return worst;
}

// Calls visit(case, output, error, bound) with the worst error of each output of each case, up to
// the first case beyond a bound.
template <class Visit>
void ForEachError(const std::string& list, const Visit& visit) {
  cases::List(kNames + list).ForEach([&](const cases::Calls& calls) {
    if (testing::Test::HasFatalFailure()) return;
    const Case& c = calls[0];
    const cases::Problem problem(c);
    const Exact exact(c, problem);
    internal::ForEachOperand(c.Given(), [&](Operand o) {
      if (!c.IsOutput(o) || o == kZero) return;
      const double worst = WorstOf(c, problem, exact, o);
      const double bound = ErrorBound(c, o);
      visit(c, o, worst, bound);
      ASSERT_LE(worst, bound) << internal::kOperandRules[o].name << " of " << cases::Text(c);
    });
  });
}

// --------------------------------------------------------------------------------- pages

// A line of a table: what it holds, and cases without d.
struct Line {
  const char* label;
  Operand output;
  const char* list;
};

struct Page {
  const char* name;
  std::vector<Line> lines;
};

const Page kPages[] = {
    {"forward",
     {
         {"f32", kY, "forward,x+y=f32,weight=none,$ROWS"},
         {"f32, weight", kY, "forward,x+y+weight=f32,$ROWS"},
         {"f32, weight and bias", kY, "forward,x+y+weight+bias=f32,$ROWS"},
         {"f32, weight and offset", kY, "forward,x+y+weight=f32,weight_offset=1,$ROWS"},
         {"bf16, `after_weight`", kY, "forward,x+y+weight=bf16,$ROWS"},
         {"bf16, `before_weight`", kY, "forward,x+y+weight=bf16,rounding=before_weight,$ROWS"},
         {"bf16, `inverse`", kY, "forward,x+y+weight=bf16,rounding=inverse,$ROWS"},
         {"f16, `after_weight`", kY, "forward,x+y+weight=f16,$ROWS"},
         {"f16, `before_weight`", kY, "forward,x+y+weight=f16,rounding=before_weight,$NORMAL"},
         {"f16, `inverse`", kY, "forward,x+y+weight=f16,rounding=inverse,$NORMAL"},
         {"`rstd`", kRstd, "forward,x+rstd=f32,y=none,$ROWS"},
         {"`rstd`, eps outside", kRstd, "forward,x+rstd=f32,y=none,eps_placement=outside,$ROWS"},
     }},
    {"two_phases", {{"`sums_out`", kSumsOut, "forward,x=f32,y=none,sums_out=f64,$ROWS"}}},
    {"add_norm",
     {
         {"`residual_out`, f32", kResidualOut, "forward,x+residual+residual_out=f32,y=none,$SUMS"},
         {"`residual_out`, bf16", kResidualOut,
          "forward,x+residual+residual_out=bf16,y=none,$SUMS"},
         {"`residual_out`, f16", kResidualOut, "forward,x+residual+residual_out=f16,y=none,$SUMS"},
         {"y, f32", kY, "forward,x+y+weight+residual=f32,$SUMS"},
         {"y, bf16, `rounded`", kY, "forward,x+y+weight+residual=bf16,$SUMS"},
         {"y, bf16, `unrounded`", kY,
          "forward,x+y+weight+residual=bf16,residual_rounding=unrounded,$SUMS"},
         {"y, f16, `rounded`", kY, "forward,x+y+weight+residual=f16,$SUMS"},
         {"y, f16, `unrounded`", kY,
          "forward,x+y+weight+residual=f16,residual_rounding=unrounded,$SUMS"},
     }},
    {"post_norm",
     {
         {"`residual_out`, f32", kResidualOut,
          "forward,x+post_norm_weight+residual+residual_out=f32,y=none,$SUMS"},
         {"`residual_out`, bf16", kResidualOut,
          "forward,x+post_norm_weight+residual+residual_out=bf16,y=none,$SUMS"},
         {"y, f32", kY, "forward,x+post_norm_weight+residual+weight+y=f32,$SUMS"},
         {"y, bf16", kY, "forward,x+post_norm_weight+residual+weight+y=bf16,$SUMS"},
     }},
    {"gated_norm",
     {
         {"f32, gate after", kY, "forward,x+y+weight+gate=f32,$ROWS,activation=silu/sigmoid"},
         {"f32, gate before", kY,
          "forward,x+y+weight+gate=f32,gate_placement=before,$ROWS,activation=silu/sigmoid"},
         {"bf16, gate after", kY, "forward,x+y+weight+gate=bf16,$ROWS,activation=silu/sigmoid"},
         {"bf16, gate after, `gate_rounding` rounded", kY,
          "forward,x+y+weight+gate=bf16,gate_rounding=rounded,$ROWS,activation=silu/sigmoid"},
         {"bf16, gate before", kY,
          "forward,x+y+weight+gate=bf16,gate_placement=before,$ROWS,activation=silu/sigmoid"},
     }},
    {"quantised",
     {
         {"q, v f32", kQ, "forward,x+weight=f32,y=none,q=i8,scale=f32,$ROWS"},
         {"q, v bf16", kQ, "forward,x+weight=bf16,y=none,q=i8,scale=f32,$ROWS"},
         {"q with `zero`, v f32", kQ, "forward,x+weight=f32,y=none,q=i8,scale=f32,zero=i8,$ROWS"},
         {"q with `zero`, v bf16", kQ, "forward,x+weight=bf16,y=none,q=i8,scale=f32,zero=i8,$ROWS"},
         {"`scale`, v f32", kScale, "forward,x+weight=f32,y=none,q=i8,scale=f32,$ROWS"},
     }},
    {"backward",
     {
         {"dx, f32", kDx, "backward,x+dy+dx=f32,weight+dw+db=none,rows=6,$GRADIENTS"},
         {"dx, f32, weight", kDx, "backward,x+dy+weight+dx=f32,dw+db=none,rows=6,$GRADIENTS"},
         {"dx, bf16, weight", kDx, "backward,x+dy+weight+dx=bf16,dw+db=none,rows=6,$GRADIENTS"},
         {"dw, f32, 32 rows", kDw, "backward,x+dy+dw=f32,weight+dx+db=none,rows=32,$GRADIENTS"},
         {"db, f32, 32 rows", kDb, "backward,x+dy+db=f32,weight+dx+dw=none,rows=32,$GRADIENTS"},
     }},
};

std::string TextOf(const Page& page) {
  const char* const folder = std::getenv("RMSNORM_PAGES");
  if (folder == nullptr) return "";
  std::ifstream file(std::string(folder) + "/" + page.name + ".md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// "bound (worst seen)"
std::string CellOf(const Line& line, const char* d) {
  double most = 0;
  double worst = 0;
  const auto visit = [&](const Case&, Operand o, double error, double bound) {
    if (o != line.output) return;
    worst = std::max(worst, error);
    most = bound;
  };
  ForEachError(std::string(line.list) + ",d=" + d, visit);
  char cell[40];
  std::snprintf(cell, sizeof cell, "%.4g (%.4g)", most, worst);
  return cell;
}

class ErrorBoundsTest : public testing::TestWithParam<Page> {};

TEST_P(ErrorBoundsTest, StandOnThePage) {
  const std::string page = TextOf(GetParam());
  ASSERT_NE("", page) << "RMSNORM_PAGES does not name the folder of the pages";
  for (const Line& line : GetParam().lines) {
    std::string text = std::string("| ") + line.label;
    for (const char* d : {"128", "4096", "16384"}) text += " | " + CellOf(line, d);
    text += " |\n";
    std::printf("%s", text.c_str());
    EXPECT_NE(std::string::npos, page.find("\n" + text)) << "the page lacks " << text;
  }
}

TEST_P(ErrorBoundsTest, HoldForEveryLength) {
  for (const Line& line : GetParam().lines) {
    ForEachError(std::string(line.list) + ",$LENGTHS", [](const Case&, Operand, double, double) {});
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, ErrorBoundsTest, testing::ValuesIn(kPages),
                         [](const auto& page) { return std::string(page.param.name); });

// --------------------------------------------------------------------------------- all options

struct Named {
  const char* name;
  const char* list;
};

constexpr Named kLists[] = {
    {"Forward", R"(
forward,x=$T,y=$T,rstd=f32,sums_out=f64,weight=none|f32|bf16,bias=none/none/f32,rows=4,
  d=1|7|129|1000|4097,x_values=normal|massive,$PLACEMENTS,eps=1e-5,
  rounding=after_weight|before_weight|inverse,divisor=0/100.5
forward,x=$T,y=$T,weight=f32|bf16,weight_offset=1,bias=none/f32/f16,rows=4,d=2|129|4097,
  x_values=normal,$PLACEMENTS,rounding=after_weight/before_weight/inverse,factor=0/0.22
)"},
    {"RowsInBinary64", R"(
forward,x=f32|bf16,y=f32|bf16,rstd=f32,weight=f32,rows=4,d=2|129|4097,x_values=tiny|huge|wide,
  eps=0,$PLACEMENTS,rounding=after_weight|before_weight
)"},
    {"Steps", R"(
$STEPS=rows=4,d=2|7|130|4097,$PLACEMENTS,weight=none/f32/bf16,factor=0/0.22
forward,x=f32|bf16,y=f32|bf16,$STEPS,post_norm_weight=none/f32,
  rounding=after_weight|before_weight|inverse,x_values=adverse/massive/normal
forward,x=f32|bf16,y=f32|bf16,residual+residual_out=f32|bf16,$STEPS,post_norm_weight=none/f32,
  rounding=after_weight|before_weight|inverse,residual_rounding=rounded/unrounded,
  x_values=adverse/massive/normal,residual_values=massive/normal
forward,x=$T,y=$T,residual+residual_out=$T,$STEPS,residual_rounding=rounded/unrounded
forward,x=$T,y=$T,$STEPS,gate=$T,activation=silu/sigmoid,gate_placement=before/after,
  bias=none/none/f32
)"},
    {"QuantisedOutputs", R"(
forward,x=$T,y=$T|none,q=i8,scale=f32,zero=i8|none,weight=none/f32/bf16,rows=4,d=1|31|300|4100,
  x_values=normal|massive|positive,$PLACEMENTS,gate=none/f32
)"},
    {"Gradients", R"(
backward,x=$T,dy=$T,weight=none|f32|bf16,dx=f32/f16/bf16,dw=bf16/f32/f16,db=f16/bf16/f32,
  rows=1|20,d=1|2|127|300|4097,x_values=normal/massive,dy_values=massive/normal,$PLACEMENTS,
  rstd=none/f32,dx_add=0/1,dw_add=1/0,db_add=0/0/1
backward,x+dy=$T,weight=f32,weight_offset=1,dx=f32,dw=f32,db=f32,rows=5,d=7|129,$PLACEMENTS
backward,x+dy+weight+dx+dw+db=f32,rows=5000|1025,d=7
)"},
};

class OptionsTest : public testing::TestWithParam<Named> {};

TEST_P(OptionsTest, KeepTheBounds) {
  double share[internal::kOperands] = {};
  ForEachError(GetParam().list, [&](const Case&, Operand o, double error, double bound) {
    if (bound > 0) share[o] = std::max(share[o], error / bound);
  });
  for (int o = 0; o < internal::kOperands; ++o) {
    if (share[o] == 0) continue;
    std::printf("%s: at most %.3f of the bound\n", internal::kOperandRules[o].name, share[o]);
  }
}

INSTANTIATE_TEST_SUITE_P(Lists, OptionsTest, testing::ValuesIn(kLists),
                         [](const auto& list) { return std::string(list.param.name); });

}  // namespace
}  // namespace rmsnorm::test
