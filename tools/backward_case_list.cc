// SPDX-License-Identifier: Apache-2.0
// The backward cases that `rmsnorm check` goes through: each property over the sizes where it can
// go wrong, and then cases drawn at random, for what no one thought of.
#include <array>
#include <random>

#include "backward_case.h"

namespace rmsnorm::tools {
namespace {

constexpr std::array<Dtype, 3> kTypes = {Dtype::f32, Dtype::f16, Dtype::bf16};
constexpr std::array<std::optional<Dtype>, 4> kWeights = {Dtype::f32, Dtype::f16, Dtype::bf16,
                                                          std::nullopt};
constexpr std::array<EpsPlacement, 3> kEpsPlacements = {EpsPlacement::inside, EpsPlacement::outside,
                                                        EpsPlacement::floor};
constexpr std::array<Per, 4> kPers = {Per::kTensor, Per::kHead, Per::kGroup, Per::kRow};
constexpr std::array<GivenRstd, 2> kUsualRstds = {GivenRstd::kNone, GivenRstd::kSaved};
constexpr size_t kKinds = static_cast<size_t>(Values::kFinite) + 1;

// Row lengths on both sides of a vector, of a half and a whole set of lanes, and of a block.
constexpr std::array<size_t, 9> kEdges = {1, 15, 33, 64, 100, 127, 128, 300, 4097};

using Cases = std::vector<BackwardCase>;

// Which of dx and dw are asked for.
enum class Outputs { kBoth, kDx, kDw };
constexpr std::array<Outputs, 3> kOutputs = {Outputs::kBoth, Outputs::kDx, Outputs::kDw};

BackwardCase WithOutputs(BackwardCase c, Outputs outputs) {
  if (outputs == Outputs::kDx) c.dw.reset();
  if (outputs == Outputs::kDw) c.dx.reset();
  return c;
}

// The kernels depend on the types of x, dy and dx. Those of the weight, of dw and of db matter at
// the beginning and at the end only, so that they are drawn where it is not they that are checked.
class DrawnTypes {
 public:
  explicit DrawnTypes(Cases& cases) : cases_(cases) {}

  void Add(BackwardCase c) {
    const bool needs_weight =
        c.options.weight_offset != 0 || c.special_weight || c.weight_shift != 0;
    c.weight = kWeights[random_() % (needs_weight ? 3 : 4)];  // the last one is none
    if (c.dw) c.dw = kTypes[random_() % kTypes.size()];
    if (c.db || random_() % 4 == 0) {
      c.db = kTypes[random_() % kTypes.size()];
      c.add_db = random_() % 2 == 0;
    }
    // Which changes nothing.
    if (random_() % 4 == 0) c.options.rounding = Rounding::cast_then_scale;
    if (c.weight_per == Per::kTensor && random_() % 4 == 0) c.call = BackwardCall::kModule;
    cases_.push_back(c);
  }

 private:
  Cases& cases_;
  std::mt19937 random_{2};
};

// All combinations of types, by rows that are one block of rows or several.
void AddTypes(Cases& cases) {
  BackwardCase c;
  for (const Dtype x : kTypes) {
    for (const std::optional<Dtype> weight : kWeights) {
      for (const Dtype dy : kTypes) {
        for (const Dtype dx : kTypes) {
          for (const Dtype dw : kTypes) {
            c.x = x;
            c.weight = weight;
            c.dy = dy;
            c.dx = dx;
            c.dw = dw;
            c.db = kTypes[(static_cast<size_t>(dx) + static_cast<size_t>(dw)) % kTypes.size()];
            for (const size_t d : {5u, 70u, 4097u}) {
              c.d = d;
              for (const size_t rows : {3u, 40u}) {
                if (rows * d > 100000) continue;
                c.rows = rows;
                for (const bool add : {false, true}) {
                  c.add_dx = add;
                  c.add_dw = add;
                  c.add_db = add;
                  cases.push_back(c);
                }
              }
            }
          }
        }
      }
    }
  }
}

// Every length up to 300 and around 512, a block of 4096 and its multiples; in 5 rows, which are a
// group of 4 and one left over.
void AddSizes(const BackwardCase& types, DrawnTypes& drawn) {
  BackwardCase c = types;
  c.rows = 5;
  const auto add = [&](size_t d) {
    c.d = d;
    for (const Outputs outputs : kOutputs) {
      for (const GivenRstd rstd : kUsualRstds) {
        c.rstd = rstd;
        drawn.Add(WithOutputs(c, outputs));
      }
    }
  };
  for (size_t d = 1; d <= 300; ++d) add(d);
  c.rows = 3;
  for (const size_t d : {511u, 512u, 513u, 1000u, 2880u, 4095u, 4096u, 4097u, 8193u, 16385u})
    add(d);
}

// Numbers of rows around the groups that they are taken in and the blocks over which dw is summed,
// up to more than the most.
void AddRows(const BackwardCase& types, DrawnTypes& drawn) {
  BackwardCase c = types;
  for (const size_t d : {1u, 33u, 64u, 70u}) {
    c.d = d;
    const auto add = [&](size_t rows) {
      c.rows = rows;
      for (const EpsPlacement placement : kEpsPlacements) {
        c.options.eps_placement = placement;
        drawn.Add(c);
      }
    };
    for (size_t rows = 1; rows <= 20; ++rows) add(rows);
    for (const size_t rows : {31u, 32u, 33u, 47u, 48u, 49u, 64u, 65u, 100u, 257u}) add(rows);
    for (const size_t rows : {1007u, 1008u, 1009u, 1023u, 1024u, 1025u, 1500u}) add(rows);
  }
}

// Each tensor at every place in a cache line.
void AddShifts(const BackwardCase& types, DrawnTypes& drawn) {
  for (const size_t d : {15u, 100u, 300u}) {
    for (size_t shift = 1; shift < 32; ++shift) {
      for (const auto field :
           {&BackwardCase::x_shift, &BackwardCase::weight_shift, &BackwardCase::dy_shift,
            &BackwardCase::dx_shift, &BackwardCase::dw_shift, &BackwardCase::db_shift}) {
        BackwardCase c = types;
        c.rows = 3;
        c.d = d;
        c.*field = shift;
        c.db = types.x;
        drawn.Add(c);
      }
    }
  }
}

// Padded, falling and repeated rows, apart and in place, written and added to.
void AddStrides(const BackwardCase& types, DrawnTypes& drawn) {
  for (const size_t d : kEdges) {
    for (const bool falling : {false, true}) {
      for (const size_t gap : {0u, 1u, 64u}) {
        BackwardCase c = types;
        c.rows = 9;
        c.d = d;
        c.falling = falling;
        for (const bool add_dx : {false, true}) {
          c.add_dx = add_dx;
          c.add_dw = gap == 1;
          c.in_place = false;
          c.x_gap = gap;
          c.dy_gap = 2 * gap;
          c.dx_gap = 3 * gap + 3;
          drawn.Add(c);
          if (!CanBeInPlace(c)) continue;
          c.dx_gap = 0;
          c.in_place = true;
          drawn.Add(c);
          c.add_dw = false;
          drawn.Add(WithOutputs(c, Outputs::kDx));
        }
      }
      BackwardCase c = types;
      c.rows = 9;
      c.d = d;
      c.falling = falling;
      c.x_repeated = true;
      drawn.Add(c);
      c.dy_repeated = true;
      drawn.Add(c);
      c.x_repeated = false;
      drawn.Add(c);
    }
  }
}

// Each option, with the inverse RMS given or not.
void AddOptions(const BackwardCase& types, DrawnTypes& drawn) {
  for (const size_t d : kEdges) {
    for (const GivenRstd rstd : kUsualRstds) {
      for (const EpsPlacement placement : kEpsPlacements) {
        BackwardCase c = types;
        c.rows = 5;
        c.d = d;
        c.rstd = rstd;
        c.options.eps_placement = placement;
        for (const float eps : {0.0f, 1e-6f, 1.0f}) {
          c.options.eps = eps;
          drawn.Add(c);
        }
        c.options.eps = 1e-5f;
        for (const float divisor : {0.5f, 1.0f, 3.0f, 16384.0f}) {
          c.options.divisor = divisor;
          drawn.Add(c);
        }
        c.options.divisor = 0;
        for (const float offset : {1.0f, -0.25f}) {
          c.options.weight_offset = offset;
          drawn.Add(c);
        }
      }
    }
  }
}

// Rows of x, of dy and of both that leave the usual range, by themselves and next to each other,
// and weights that do.
void AddValues(const BackwardCase& types, DrawnTypes& drawn) {
  for (const size_t d : {1u, 33u, 128u, 300u}) {
    for (const EpsPlacement placement : kEpsPlacements) {
      for (const GivenRstd rstd : {GivenRstd::kNone, GivenRstd::kSaved, GivenRstd::kSpecial}) {
        BackwardCase c = types;
        c.d = d;
        c.options.eps_placement = placement;
        c.rstd = rstd;
        for (const float eps : {0.0f, 1e-5f}) {
          c.options.eps = eps;
          for (size_t kind = 0; kind < kKinds; ++kind) {
            const Values values = static_cast<Values>(kind);
            c.rows = values == Values::kMixed || values == Values::kFinite ? 23 : 5;
            c.values = values;
            c.dy_values = Values::kNormal;
            drawn.Add(c);
            c.dy_values = values;
            drawn.Add(c);
            c.values = Values::kNormal;
            drawn.Add(c);
          }
          c.rows = 5;
          c.dy_values = Values::kNormal;
          c.special_weight = true;
          for (const Values values : {Values::kNormal, Values::kTiny}) {
            c.values = values;
            drawn.Add(c);
          }
          c.special_weight = false;
        }
      }
    }
  }
}

// Work for several threads: blocks of rows enough for all of them, too few, and rows that are fewer
// than threads.
void AddThreads(const BackwardCase& types, DrawnTypes& drawn) {
  struct Size {
    size_t rows;
    size_t d;
  };
  constexpr Size kSizes[] = {{1, 90001}, {3, 33000}, {20, 4500}, {36, 2500},
                             {100, 900}, {350, 257}, {1030, 80}};
  BackwardCase c = types;
  c.values = Values::kFinite;
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    c.rows = kSizes[i].rows;
    c.d = kSizes[i].d;
    for (size_t threads = 0; threads <= 5; ++threads) {
      c.threads = static_cast<int>(threads);
      c.executor = (i + threads) % 2 == 0;
      drawn.Add(WithOutputs(c, kOutputs[(i / 2 + threads) % kOutputs.size()]));
    }
  }
}

// Weights and gradients by a bias with a row for each head, group or row, in work for one thread
// and for more.
void AddBroadcasts(const BackwardCase& types, DrawnTypes& drawn) {
  for (const Per weight_per : kPers) {
    for (const Per bias_per : kPers) {
      BackwardCase c = types;
      c.weight_per = weight_per;
      c.bias_per = bias_per;
      c.db = types.x;
      c.values = Values::kFinite;
      const auto add = [&](size_t groups, size_t heads, size_t d) {
        c.rows = groups * heads;
        c.heads = heads;
        c.d = d;
        c.add_dx = d % 2 == 0;
        c.add_dw = d % 3 == 0;
        c.rstd = kUsualRstds[d / 2 % 2];
        c.falling = d % 5 == 0;
        c.x_gap = d % 3;
        drawn.Add(c);
      };
      for (const size_t d : {1u, 33u, 64u, 127u, 130u}) {
        for (const size_t heads : {1u, 2u, 5u}) {
          for (const size_t groups : {1u, 3u, 40u}) add(groups, heads, d);
        }
      }
      if (c.x != c.dy) continue;  // the rest takes the longest
      c.values = Values::kNormal;
      for (const int threads : {2, 3, 5}) {
        c.threads = threads;
        c.executor = threads == 3;
        add(40, 33, 129);
        add(3, 8, 4098);
        add(1, 2, 70001);
      }
    }
  }
}

// More bytes than most last caches hold, which may be written in another way; one row in 16 or 32
// starts at a cache line.
void AddLarge(const BackwardCase& types, DrawnTypes& drawn) {
  BackwardCase c = types;
  c.rows = 1700;
  c.d = 4099;
  c.threads = 2;
  drawn.Add(c);
}

void AddRandomCases(Cases& cases) {
  std::mt19937 random(1);
  const auto below = [&random](size_t n) { return random() % n; };
  const auto one_in = [&](size_t n) { return below(n) == 0; };
  constexpr float kEps[] = {0.0f, 1e-12f, 1e-6f, 1e-5f, 1e-3f, 1.0f};
  for (unsigned seed = 1; seed <= 7000; ++seed) {
    BackwardCase c;
    c.x = kTypes[below(kTypes.size())];
    c.weight = kWeights[below(kWeights.size())];
    c.dy = kTypes[below(kTypes.size())];
    c.dx = one_in(2) ? c.dy : kTypes[below(kTypes.size())];
    c.dw = kTypes[below(kTypes.size())];
    if (one_in(2)) c = WithOutputs(c, kOutputs[below(kOutputs.size())]);
    if (one_in(3)) c.db = kTypes[below(kTypes.size())];
    c.call = one_in(3) ? BackwardCall::kModule : BackwardCall::kBackward;
    c.d = 1 + below(size_t{1} << (1 + below(13)));  // short ones more often than long ones
    c.rows = 1 + below(c.d < 100 && one_in(4) ? 100 : 12);
    if (one_in(4)) {
      c.heads = 2 + below(4);
      c.rows *= c.heads;
    }
    if ((c.weight || c.dw) && c.call == BackwardCall::kBackward && one_in(4)) {
      c.weight_per = kPers[below(kPers.size())];
    }
    c.x_shift = below(64);
    c.weight_shift = below(64);
    c.dy_shift = below(64);
    c.x_gap = one_in(2) ? 0 : below(100);
    c.dy_gap = one_in(2) ? 0 : below(100);
    c.falling = one_in(4);
    c.x_repeated = c.x_gap == 0 && one_in(6);
    c.in_place = CanBeInPlace(c) && one_in(3);
    if (!c.in_place) c.dy_repeated = c.dy_gap == 0 && one_in(6);
    if (c.dx) {
      if (!c.in_place) c.dx_shift = below(64);
      if (!c.in_place && one_in(2)) c.dx_gap = below(100);
      c.add_dx = one_in(3);
    }
    if (c.dw) {
      c.dw_shift = below(64);
      c.add_dw = one_in(3);
    }
    if (c.db) {
      c.db_shift = below(64);
      c.add_db = one_in(3);
      if (one_in(2)) c.bias_per = kPers[below(kPers.size())];
    }
    c.options.eps = kEps[below(std::size(kEps))];
    c.options.eps_placement = kEpsPlacements[below(kEpsPlacements.size())];
    if (one_in(2)) c.options.rounding = Rounding::inverse_rounded;
    if (c.weight && one_in(2)) c.options.weight_offset = 1;
    if (one_in(3)) c.options.divisor = static_cast<float>(1 + below(10000));
    c.rstd = one_in(8) ? GivenRstd::kSpecial : kUsualRstds[below(kUsualRstds.size())];
    c.threads = static_cast<int>(below(6));
    c.executor = one_in(4);
    if (one_in(2)) c.values = static_cast<Values>(below(kKinds));
    if (one_in(2)) c.dy_values = static_cast<Values>(below(kKinds));
    c.special_weight = c.weight && one_in(16);
    c.seed = seed;
    cases.push_back(c);
  }
}

}  // namespace

std::vector<BackwardCase> BackwardCases() {
  Cases cases;
  AddTypes(cases);
  DrawnTypes drawn(cases);
  const auto add_all = [&](const BackwardCase& types) {
    AddSizes(types, drawn);
    AddRows(types, drawn);
    AddShifts(types, drawn);
    AddStrides(types, drawn);
    AddOptions(types, drawn);
    AddValues(types, drawn);
    AddThreads(types, drawn);
    AddLarge(types, drawn);
  };
  for (const Dtype x : kTypes) {
    for (const Dtype dy : kTypes) {
      BackwardCase types;
      types.x = x;
      types.dy = dy;
      types.dx = dy;
      add_all(types);
      AddBroadcasts(types, drawn);
      types.dx = Dtype::f32;
      if (x == Dtype::f32 && dy != Dtype::f32) add_all(types);
    }
  }
  AddRandomCases(cases);
  return cases;
}

}  // namespace rmsnorm::tools
