// SPDX-License-Identifier: Apache-2.0
// What `rmsnorm check` goes through: each property over the sizes where it can go wrong, and then
// cases drawn at random, for what no one thought of.
#include <array>
#include <random>

#include "forward_case.h"

namespace rmsnorm::tools {
namespace {

constexpr std::array<Dtype, 3> kTypes = {Dtype::f32, Dtype::f16, Dtype::bf16};
constexpr std::array<std::optional<Dtype>, 4> kTypesOrNone = {std::nullopt, Dtype::f32, Dtype::f16,
                                                              Dtype::bf16};
constexpr std::array<CallKind, 3> kCalls = {CallKind::kForward, CallKind::kModule,
                                            CallKind::kTwoPhases};
constexpr std::array<EpsPlacement, 3> kEpsPlacements = {EpsPlacement::inside, EpsPlacement::outside,
                                                        EpsPlacement::floor};
constexpr std::array<Rounding, 3> kRoundings = {
    Rounding::scale_then_cast, Rounding::cast_then_scale, Rounding::inverse_rounded};
constexpr std::array<ResidualRounding, 2> kResidualRoundings = {ResidualRounding::cast_then_norm,
                                                                ResidualRounding::norm_then_cast};
constexpr std::array<Per, 4> kPers = {Per::kTensor, Per::kHead, Per::kGroup, Per::kRow};

// Row lengths on both sides of a vector, of a half and a whole set of lanes, and of a block.
constexpr std::array<size_t, 10> kEdges = {1, 15, 33, 64, 100, 127, 128, 129, 300, 4097};

using Cases = std::vector<ForwardCase>;

// The 27 combinations of types, and the 9 without a weight.
Cases TypeCombinations() {
  Cases cases;
  for (const Dtype x : kTypes) {
    for (const std::optional<Dtype> weight : kTypesOrNone) {
      for (const Dtype y : kTypes) {
        ForwardCase c;
        c.x = x;
        c.weight = weight;
        c.y = y;
        cases.push_back(c);
      }
    }
  }
  return cases;
}

// Every length up to 300 and around 512, a block of 4096 and its multiples; in 5 rows, which are a
// group of 4 and one left over.
void AddSizes(const ForwardCase& types, Cases& cases) {
  ForwardCase c = types;
  c.rows = 5;
  c.rstd = true;
  const auto add = [&](size_t d) {
    c.d = d;
    for (const CallKind call : kCalls) {
      c.call = call;
      cases.push_back(c);
    }
  };
  for (size_t d = 1; d <= 300; ++d) add(d);
  c.rows = 2;
  for (const size_t d : {511u, 512u, 513u, 1000u, 2880u, 4095u, 4096u, 4097u, 8193u, 16385u})
    add(d);
}

// Numbers of rows around the groups that short rows are taken in.
void AddRows(const ForwardCase& types, Cases& cases) {
  ForwardCase c = types;
  c.rstd = true;
  for (const size_t d : kEdges) {
    if (d > 300) continue;
    c.d = d;
    for (c.rows = 1; c.rows <= 20; ++c.rows) cases.push_back(c);
  }
}

// x, the weight and y each at every place in a cache line.
void AddShifts(const ForwardCase& types, Cases& cases) {
  ForwardCase c = types;
  c.rows = 3;
  for (const size_t d : kEdges) {
    c.d = d;
    for (size_t shift = 1; shift < 32; ++shift) {
      c.x_shift = shift;
      cases.push_back(c);
      c.x_shift = 0;
      c.y_shift = shift;
      cases.push_back(c);
      c.y_shift = 0;
      if (!c.weight) continue;
      c.weight_shift = shift;
      cases.push_back(c);
      c.weight_shift = 0;
    }
  }
}

// Padded, falling and repeated rows, apart and in place.
void AddStrides(const ForwardCase& types, Cases& cases) {
  for (const size_t d : kEdges) {
    for (const bool falling : {false, true}) {
      for (const size_t gap : {0u, 1u, 64u}) {
        ForwardCase c = types;
        c.rows = 9;
        c.d = d;
        c.rstd = true;
        c.falling = falling;
        c.x_gap = gap;
        c.y_gap = 2 * gap + 3;
        cases.push_back(c);
        c.y_gap = 0;
        cases.push_back(c);
        if (!CanBeInPlace(c)) continue;
        c.in_place = true;
        for (const CallKind call : kCalls) {
          c.call = call;
          cases.push_back(c);
        }
      }
      ForwardCase c = types;
      c.rows = 9;
      c.d = d;
      c.falling = falling;
      c.repeated = true;
      cases.push_back(c);
    }
  }
}

// Each option with each rounding order.
void AddOptions(const ForwardCase& types, Cases& cases) {
  for (const size_t d : kEdges) {
    for (const Rounding rounding : kRoundings) {
      ForwardCase c = types;
      c.rows = 5;
      c.d = d;
      c.rstd = true;
      c.options.rounding = rounding;
      const auto add_calls = [&] {
        for (const CallKind call : kCalls) {
          c.call = call;
          cases.push_back(c);
        }
      };
      for (const EpsPlacement placement : kEpsPlacements) {
        c.options.eps_placement = placement;
        for (const float eps : {0.0f, 1e-6f, 1e-5f, 1.0f}) {
          c.options.eps = eps;
          add_calls();
        }
        for (const float divisor : {0.5f, 1.0f, 3.0f, 16384.0f}) {
          c.options.divisor = divisor;
          cases.push_back(c);
        }
        c.options.divisor = 0;
      }
      if (!c.weight) continue;
      for (const float offset : {1.0f, -0.25f}) {
        c.options.weight_offset = offset;
        add_calls();
      }
    }
  }
}

// Weights that leave the usual range, on usual rows and on such that do too; half of them with a
// bias that does.
void AddSpecialWeights(const ForwardCase& types, size_t d, Cases& cases) {
  if (!types.weight) return;
  ForwardCase c = types;
  c.rows = 5;
  c.d = d;
  c.special_weight = true;
  for (const Values values : {Values::kNormal, Values::kWide, Values::kZero, Values::kTiny}) {
    c.values = values;
    for (const CallKind call : kCalls) {
      c.call = call;
      for (const Rounding rounding : kRoundings) {
        c.options.rounding = rounding;
        for (const float offset : {0.0f, 1.0f}) {
          c.options.weight_offset = offset;
          c.bias = offset == 0 ? std::nullopt : types.weight;
          cases.push_back(c);
        }
      }
    }
  }
}

// Rows that leave the usual range, by themselves and next to each other. Each combination of
// options comes with each call, by some length.
void AddValues(const ForwardCase& types, Cases& cases) {
  size_t number = 0;
  for (const size_t d : kEdges) {
    ++number;
    for (int i = 0; i <= static_cast<int>(Values::kMixed); ++i) {
      ForwardCase c = types;
      c.values = static_cast<Values>(i);
      // Rows of each kind by themselves only where they are short: they are slow, and kMixed has
      // all.
      if (c.values != Values::kMixed && d > 300) continue;
      c.rows = c.values == Values::kMixed ? 23 : 5;
      c.d = d;
      c.rstd = true;
      for (const EpsPlacement placement : kEpsPlacements) {
        c.options.eps_placement = placement;
        for (const float eps : {0.0f, 1e-5f}) {
          c.options.eps = eps;
          for (const Rounding rounding : kRoundings) {
            c.options.rounding = rounding;
            c.call = kCalls[number++ % kCalls.size()];
            cases.push_back(c);
          }
        }
      }
    }
    AddSpecialWeights(types, d, cases);
  }
}

// A bias of each type, in each size, number of rows, place and kind of values, with each rounding
// order, call and kind of residual.
void AddBiases(const ForwardCase& types, Cases& cases) {
  if (types.weight && types.weight != Dtype::f32) return;  // the bias does not see its type
  for (const Dtype bias : kTypes) {
    ForwardCase c = types;
    c.bias = bias;
    const auto add = [&](size_t rows, size_t d) {
      c.rows = rows;
      c.d = d;
      c.in_place = d % 4 == 0 && CanBeInPlace(c);
      c.options.rounding = kRoundings[d % 3];
      c.call = kCalls[d / 3 % 3];
      c.residual.reset();
      if (d % 5 == 0 && c.call != CallKind::kTwoPhases) c.residual = types.x;
      cases.push_back(c);
    };
    for (size_t d = 1; d <= 300; ++d) add(5, d);
    for (const size_t d : {511u, 512u, 2880u, 4095u, 4096u, 4097u, 8193u}) add(2, d);
    for (size_t rows = 1; rows <= 20; ++rows) {
      for (const size_t d : {33u, 128u, 300u}) add(rows, d);
    }
    for (size_t shift = 1; shift < 32; ++shift) {
      c.bias_shift = shift;
      add(3, 200 + shift);
    }
    c.bias_shift = 0;
    for (int i = 0; i <= static_cast<int>(Values::kMixed); ++i) {
      c.values = static_cast<Values>(i);
      for (size_t d = 60; d < 72; ++d) add(i == 0 ? 5 : 23, d);
    }
  }
}

// Weights and biases with a row for each head, group or row, in work for one thread and for more.
void AddBroadcasts(const ForwardCase& types, Cases& cases) {
  if (types.weight != types.x) return;
  for (const Per weight_per : kPers) {
    for (const Per bias_per : kPers) {
      for (const bool has_bias : {false, true}) {
        if (!has_bias && (weight_per == Per::kTensor || bias_per != Per::kTensor)) continue;
        ForwardCase c = types;
        c.weight_per = weight_per;
        c.bias_per = bias_per;
        if (has_bias) c.bias = types.y;
        c.values = Values::kMixed;
        const auto add = [&](size_t groups, size_t heads, size_t d) {
          c.rows = groups * heads;
          c.heads = heads;
          c.d = d;
          c.options.weight_offset = d % 2 == 0 ? 1.0f : 0.0f;
          c.options.rounding = kRoundings[(d + heads) % 3];
          c.falling = d % 5 == 0;
          c.x_gap = d % 3;
          c.call = d % 7 == 0 ? CallKind::kTwoPhases : CallKind::kForward;
          c.residual.reset();
          if (d % 2 == 1 && c.call == CallKind::kForward) c.residual = types.y;
          cases.push_back(c);
        };
        for (const size_t d : {1u, 33u, 63u, 64u, 65u, 127u, 128u, 4097u}) {
          for (const size_t heads : {1u, 2u, 5u}) {
            for (const size_t groups : {1u, 3u, 4u}) add(groups, heads, d);
          }
        }
        if (c.x != c.y) continue;  // the rest takes the longest
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
}

// Enough work for 8 threads, in rows that do not divide evenly.
void AddThreads(const ForwardCase& types, Cases& cases) {
  if (types.weight != types.x) return;  // how rows are split does not depend on the weight's type
  ForwardCase c = types;
  c.rows = 67;
  c.d = 4097;
  c.rstd = true;
  c.values = Values::kMixed;
  for (const bool executor : {false, true}) {
    c.executor = executor;
    for (int threads = 0; threads <= 8; ++threads) {
      c.threads = threads;
      c.call = kCalls[static_cast<size_t>(threads) % kCalls.size()];
      cases.push_back(c);
    }
  }
}

// More bytes than most last caches hold, which may be written in another way; in rows that start at
// a cache line, and in rows that start anywhere.
void AddLarge(const ForwardCase& types, Cases& cases) {
  if (types.weight != types.x) return;
  ForwardCase c = types;
  c.rows = 4100;
  c.threads = 2;
  for (const size_t d : {4128u, 4099u}) {
    if (d % 32 != 0 && c.x != c.y) continue;  // each takes as long as thousands of others
    c.d = d;
    cases.push_back(c);
  }
}

// A residual of each type, normalised rounded and not: each size, number of rows, place and kind of
// values.
void AddResiduals(const ForwardCase& types, Cases& cases) {
  if (types.weight != Dtype::f32) return;  // nothing here depends on the weight's type
  for (const Dtype residual : kTypes) {
    for (const ResidualRounding residual_rounding : kResidualRoundings) {
      ForwardCase c = types;
      c.residual = residual;
      c.options.residual_rounding = residual_rounding;
      c.rstd = true;
      // Every combination of what is in place, the rounding orders and both calls come with some
      // length.
      const auto add = [&](size_t rows, size_t d) {
        c.rows = rows;
        c.d = d;
        c.residual_in_place = d % 2 == 0;
        c.in_place = d / 2 % 2 == 0 && CanBeInPlace(c);
        c.options.rounding = kRoundings[d / 4 % 3];
        c.call = d % 5 == 0 ? CallKind::kModule : CallKind::kForward;
        cases.push_back(c);
      };
      for (size_t d = 1; d <= 300; ++d) add(5, d);
      for (const size_t d : {511u, 512u, 1000u, 2880u, 4095u, 4096u, 4097u, 8193u, 16385u})
        add(2, d);
      for (size_t rows = 1; rows <= 20; ++rows) {
        for (const size_t d : {33u, 128u, 300u}) add(rows, d);
      }
      const ForwardCase dense = c;
      for (size_t shift = 1; shift < 32; ++shift) {
        c.x_shift = shift;
        add(3, 200 + shift);
        c.residual_shift = shift;
        add(3, 202 + shift);
        c.x_shift = 0;
        c.residual_gap = shift;
        add(3, 204 + shift);
        c.in_place = false;
        c.y_shift = shift;
        c.y_gap = 3;
        cases.push_back(c);
        c = dense;
      }
      for (int i = 0; i <= static_cast<int>(Values::kMixed); ++i) {
        c.values = static_cast<Values>(i);
        for (const float eps : {0.0f, 1e-5f}) {
          c.options.eps = eps;
          for (const size_t d : {1u, 63u, 128u, 300u}) {
            for (size_t more = 0; more < 8; ++more) add(i == 0 ? 5 : 23, d + more);
          }
        }
      }
      if (residual != types.x && residual != Dtype::f32) continue;  // these take the longest
      c = dense;
      c.values = Values::kMixed;
      for (const bool executor : {false, true}) {
        c.executor = executor;
        for (int threads = 2; threads <= 4; ++threads) {
          c.threads = threads;
          add(67, 4097);
          add(1, 5 * 32768 + 77);
          add(1, 5 * 32768 + 78);
        }
      }
    }
  }
}

void AddRandomCases(const Cases& combinations, Cases& cases) {
  std::mt19937 random(1);
  const auto below = [&random](size_t n) { return random() % n; };
  const auto one_in = [&](size_t n) { return below(n) == 0; };
  constexpr float kEps[] = {0.0f, 1e-12f, 1e-6f, 1e-5f, 1e-3f, 1.0f};
  for (unsigned seed = 1; seed <= 10000; ++seed) {
    ForwardCase c = combinations[below(combinations.size())];
    c.call = kCalls[below(kCalls.size())];
    c.rows = 1 + below(12);
    if (one_in(4)) {
      c.heads = 2 + below(4);
      c.rows *= c.heads;
    }
    c.d = 1 + below(size_t{1} << (1 + below(13)));  // short ones more often than long ones
    if (one_in(3)) {
      c.bias = kTypes[below(kTypes.size())];
      c.bias_shift = below(64);
      if (one_in(2)) c.bias_per = kPers[below(kPers.size())];
    }
    if (c.weight && c.call != CallKind::kModule && one_in(4)) {
      c.weight_per = kPers[below(kPers.size())];
    }
    c.x_shift = below(64);
    c.weight_shift = below(64);
    c.x_gap = one_in(2) ? 0 : below(100);
    c.falling = one_in(4);
    c.in_place = CanBeInPlace(c) && one_in(3);
    if (!c.in_place) {
      c.y_shift = below(64);
      c.y_gap = one_in(2) ? 0 : below(100);
      c.repeated = c.x_gap == 0 && one_in(4);
    }
    c.options.eps = kEps[below(std::size(kEps))];
    c.options.eps_placement = kEpsPlacements[below(kEpsPlacements.size())];
    c.options.rounding = kRoundings[below(kRoundings.size())];
    if (c.weight && one_in(2)) c.options.weight_offset = 1;
    if (one_in(3)) c.options.divisor = static_cast<float>(1 + below(10000));
    c.rstd = one_in(2);
    c.threads = static_cast<int>(below(9));
    c.executor = one_in(4);
    c.values = static_cast<Values>(below(static_cast<size_t>(Values::kMixed) + 1));
    c.special_weight = one_in(8);
    if (c.call != CallKind::kTwoPhases && one_in(4)) {
      c.residual = kTypes[below(kTypes.size())];
      c.residual_shift = below(64);
      c.residual_gap = one_in(2) ? 0 : below(100);
      c.residual_in_place = one_in(2);
      c.options.residual_rounding = kResidualRoundings[below(kResidualRoundings.size())];
    }
    c.seed = seed;
    cases.push_back(c);
  }
}

}  // namespace

std::vector<ForwardCase> ForwardCases() {
  const Cases combinations = TypeCombinations();
  Cases cases;
  for (const ForwardCase& types : combinations) {
    AddSizes(types, cases);
    AddRows(types, cases);
    AddShifts(types, cases);
    AddStrides(types, cases);
    AddOptions(types, cases);
    AddValues(types, cases);
    AddThreads(types, cases);
    AddLarge(types, cases);
    AddResiduals(types, cases);
    AddBiases(types, cases);
    AddBroadcasts(types, cases);
  }
  AddRandomCases(combinations, cases);
  return cases;
}

}  // namespace rmsnorm::tools
