// SPDX-License-Identifier: Apache-2.0
// The leaves of forward for rows of one type. They have the bits of reference.cc: they change the
// order of memory accesses, never of additions.
//
//   T        the type of the elements
//   kCast    x * r is rounded to T
//   kStream  y is written past the caches
//   kD       the length of a short row, or 0 where it is not known
//   kPairs   pairs of vectors that a row in registers takes (rows-inl.h)
//   kWhole   such a row fills its pairs
//   kAdds    the residual is added to such a row
//   kRotates  the halves of such a row are rotated

#if defined(RMSNORM_LIB_KERNELS_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#undef RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "../inverse_rms.h"
#include "../thresholds.h"
#include "rows-inl.h"
#include "tile-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ scale

// `cast` says that x * r is rounded.
template <class T>
HWY_INLINE Pair Scaled(bool cast, Pair x, F32Vec r, Pair weight) {
  Pair n = Mul(x, {r, r});
  if (cast) n = Rounded<T>(n);
  return Mul(n, weight);
}

// A row to scale by r. y may be x. NaNs need no care on the way to bf16: a NaN that comes from bf16
// has no payload bits to carry.
template <bool kCast, class T>
struct RowToScale {
  HWY_INLINE RowToScale(const void* from, void* to, float inverse_rms)
      : x(static_cast<const T*>(from)), y(static_cast<T*>(to)), r(hn::Set(F32Tag(), inverse_rms)) {}
  HWY_INLINE RowToScale(const RowRun& run, Operand source, size_t row, float inverse_rms)
      : RowToScale(run.Row<T>(source, row), run.Row<T>(kY, row), inverse_rms) {}

  template <class Some>
  HWY_INLINE Pair ScaledAt(size_t j, Some some, Pair weight) const {
    return Scaled<T>(kCast, Load(x + j, some), r, weight);
  }

  // Scales the elements from `begin` up to `end`, fewer than kPair.
  HWY_INLINE void ScaleFew(size_t begin, size_t end, const float* weight) const {
    const First some = {end - begin};
    Store(ScaledAt(begin, some, Load(weight + begin, some)), y + begin, some);
  }

  // Scales the elements from `begin` up to `end`.
  HWY_INLINE void Scale(size_t begin, size_t end, const float* weight) const {
    ForEachPair(begin, end, [&](size_t j, auto some) RMSNORM_LAMBDA {
      Store(ScaledAt(j, some, Load(weight + j, some)), y + j, some);
    });
  }

  const T* x;
  T* y;
  F32Vec r;
};

// Scales f32 elements from j on in steps of kStep, and returns where the rest begins. Each vector
// is loaded after the one before it has been stored, and all stores use one base and one index,
// which are hidden since gcc 12 would compute an address for each. On AVX-512 this is faster past
// L2 (doc/data/changes.csv, "Long rows").
template <size_t kStep>
HWY_INLINE size_t ScaleInTurn(size_t j, size_t d, const float* HWY_RESTRICT weight,
                              const RowToScale<false, float>& row, bool fetch, size_t last_fetch) {
  const F32Tag tag;
  float* y = row.y;
  for (; j + kStep <= d; j += kStep) {
    RMSNORM_HIDE_POINTER(j);
    if (fetch) FetchForStores(row.y, j, kStep, last_fetch);
    for (size_t i = 0; i < kStep; i += kN) {
      const F32Vec n = hn::Mul(hn::LoadU(tag, row.x + j + i), row.r);
      hn::StoreU(hn::Mul(n, hn::LoadU(tag, weight + j + i)), tag, y + j + i);
      RMSNORM_HIDE_POINTER(y);
    }
  }
  return j;
}

// Scales the elements from `head` on, in rising order like the sum. Falling order is faster for one
// row that does not fit L1 with its weight, but slower for rows from L2 or memory. `next` and
// `more` are as for ScaleLeaf. kStream fetches the next row. Otherwise `fetch` fetches the lines of
// y or, for 16 bits, the next row.
template <bool kStream, bool kCast, class T>
HWY_INLINE void ScaleFrom(size_t head, size_t d, const float* HWY_RESTRICT weight,
                          const RowToScale<kCast, T>& row, const T* next, bool more, bool fetch) {
  if (d - head < kPair) {
    if (head < d) row.ScaleFew(head, d, weight);
    return;
  }
  // The last elements are scaled as a whole pair, together with some that are scaled twice. It is
  // read before anything is written, as y may be x.
  const size_t last = d - kPair;
  const bool is_ragged = !kStream && (d - head) % kPair != 0;
  Pair last_scaled = {hn::Zero(F32Tag()), hn::Zero(F32Tag())};
  if (is_ragged) last_scaled = row.ScaledAt(last, All(), Load(weight + last));
  const size_t last_fetch = LastFetch(more, d, 2 * kPair);
  size_t j = head;
  if constexpr (kN >= 16 && std::is_same_v<T, float> && !kStream) {
    j = ScaleInTurn<2 * kPair>(j, d, weight, row, fetch, last_fetch);
  } else {
    // Pointers advance in this loop, and in it alone (doc/data/changes.csv, "Long rows").
    RowToScale<kCast, T> at = row;
    at.x += head;
    at.y += head;
    const float* at_weight = weight + head;
    for (; j + 2 * kPair <= d; j += 2 * kPair) {
      const Pair scaled = at.ScaledAt(0, All(), Load(at_weight));
      const Pair next_scaled = at.ScaledAt(kPair, All(), Load(at_weight + kPair));
      if (fetch) {
        kMayFetch<T> ? FetchForStores(row.y, j, 2 * kPair, last_fetch) : Fetch(next + j, 2 * kPair);
      }
      if constexpr (kStream) {
        for (size_t i = 0; i < 2 * kPair; i += kCacheLine / sizeof(T)) PrefetchToL2(next + j + i);
        Stream(scaled, at.y);
        Stream(next_scaled, at.y + kPair);
      } else {
        StoreBoth(scaled, at.y, All(), next_scaled, at.y + kPair, All());
      }
      at.x += 2 * kPair;
      at.y += 2 * kPair;
      at_weight += 2 * kPair;
    }
  }
  if (kStream) return row.Scale(j, d, weight);
  if (j + kPair <= d) Store(row.ScaledAt(j, All(), Load(weight + j)), row.y + j);
  if (is_ragged) Store(last_scaled, row.y + last);
}

// A ScaleLeaf.
template <bool kStream, bool kCast, class T>
HWY_NOINLINE void ScaleRow(const void* x, const float* weight, size_t d, float r, void* y,
                           const void* next, bool more) {
  const RowToScale<kCast, T> row(x, y, r);
  size_t head = 0;
  if (kStream) {
    // A store that follows one past the caches to the same line waits for memory.
    head = std::min(d, -reinterpret_cast<uintptr_t>(y) % kCacheLine / sizeof(T));
    row.Scale(0, head, weight);
  } else if (d >= kAlignedRow) {
    head = std::min(d, -reinterpret_cast<uintptr_t>(y) % sizeof(F32Vec) / sizeof(T));
    if (head > 0) row.ScaleFew(0, head, weight);
  }
  const T* const next_x = static_cast<const T*>(next);
  const bool fetch = !kStream && (kMayFetch<T> ? kFetchesForStores && (more || d >= kRowPastL1)
                                               : next != x && d <= kLongestFetched);
  ScaleFrom<kStream>(head, d, weight, row, next_x, more, fetch);
}

template <bool kCast, class T>
HWY_NOINLINE void ScaleFourRows(const RowRun& run, Operand source, size_t index, const float* r) {
  const float* HWY_RESTRICT weight = run.Row<float>(kWeight, 0);
  const RowToScale<kCast, T> a(run, source, index, r[0]);
  const RowToScale<kCast, T> b(run, source, index + 1, r[1]);
  const RowToScale<kCast, T> c(run, source, index + 2, r[2]);
  const RowToScale<kCast, T> e(run, source, index + 3, r[3]);
  ForEachPair(0, run.d, [&](size_t j, auto some) RMSNORM_LAMBDA {
    const Pair w = Load(weight + j, some);
    StoreBoth(a.ScaledAt(j, some, w), a.y + j, some, b.ScaledAt(j, some, w), b.y + j, some);
    StoreBoth(c.ScaledAt(j, some, w), c.y + j, some, e.ScaledAt(j, some, w), e.y + j, some);
  });
}

// A RowLeaf with a bias. y may be x. NaNs need no care on the way to bf16, as for a RowToScale.
template <class T>
HWY_NOINLINE void ScaleBiasedRow(const Norm& norm, const RowRun& run, Operand source, size_t row,
                                 float inverse_rms) {
  const T* const x = run.Row<T>(source, row);
  const float* const weight = run.Row<float>(kWeight, row);
  const float* const bias = run.Row<float>(kBias, row);
  T* const y = run.Row<T>(kY, row);
  const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  const F32Vec r = hn::Set(F32Tag(), inverse_rms);
  ForEachPair(0, run.d, [&](size_t j, auto some) RMSNORM_LAMBDA {
    Pair n = Mul(Load(x + j, some), {r, r});
    if (cast) n = Rounded<T>(n);
    const Pair w = Load(weight + j, some);
    const Pair b = Load(bias + j, some);
    Store(Pair{hn::MulAdd(n.lower, w.lower, b.lower), hn::MulAdd(n.upper, w.upper, b.upper)}, y + j,
          some);
  });
}

// ------------------------------------------------------------------ short rows

// 1 / RMS of four rows from their sums, by the operations of inverse_rms.h.
struct FourInverses {
  Four r;
  bool safe;  // whether all four are; if not, r is meaningless
};

HWY_INLINE FourInverses InvertFour(const Root& root, Four sums) {
  const FourTag tag;
  const Four eps = hn::Set(tag, root.eps);
  const Four inverse_divisor = hn::Set(tag, root.inverse_divisor);
  const Four under_root = root.eps_placement == RMSNORM_EPS_INSIDE
                              ? hn::MulAdd(sums, inverse_divisor, eps)
                              : hn::Mul(sums, inverse_divisor);
  const Four s = hn::Sqrt(under_root);
  const auto safe = AreWithin(under_root, kSmallestSafe, kLargestSafe);
  const Four rms = root.eps_placement == RMSNORM_EPS_INSIDE    ? s
                   : root.eps_placement == RMSNORM_EPS_OUTSIDE ? hn::Add(s, eps)
                                                               : hn::Max(s, eps);
  return {hn::Div(hn::Set(tag, 1.0f), rms), hn::AllTrue(tag, safe)};
}

// The folded blocks of four rows. They are in memory, so that a loop can go over the rows.
struct FourBlocks {
  HWY_INLINE FourBlocks() {}
  HWY_INLINE void Put(size_t i, Four folded) { hn::Store(folded, FourTag(), block[i]); }
  HWY_INLINE Four FoldAll() const {
    const FourTag tag;
    return FoldFour(hn::Load(tag, block[0]), hn::Load(tag, block[1]), hn::Load(tag, block[2]),
                    hn::Load(tag, block[3]));
  }

  HWY_ALIGN float block[4][4];
};

template <bool kMayStream, bool kCast, class T>
HWY_INLINE void ScaleShortRow(const Norm& norm, const RowRun& run, size_t row, size_t d, float r) {
  const float* const weight = run.Row<float>(kWeight, 0);
  if (kMayStream && HWY_UNLIKELY(norm.stream)) {
    ScaleRow<true, kCast, T>(run.Row<T>(kX, row), weight, d, r, run.Row<T>(kY, row),
                             run.Row<T>(kX, std::min(row + 1, run.count - 1)), true);
  } else {
    const RowToScale<kCast, T> of_x(run, kX, row, r);
    ScaleFrom<false>(0, d, weight, of_x, of_x.x, true, kMayFetch<T> && kFetchesForStores);
  }
}

// A RowsLeaf for rows of at most a block, four at a time. One row alone leaves the units idle while
// its last fma, fold, division, root and division wait for each other. Four rows share that time,
// and the next four are summed before the last of these is scaled. For f32 a sum and a scaling
// alternate, so that loads and stores do; 16 bits are bound by arithmetic and do better with all
// four sums at once. Loops of known length are faster, except length 128 past the caches
// (doc/data/changes.csv, "Short rows").
template <size_t kD, bool kCast, class T>
HWY_NOINLINE size_t NormaliseShortRows(const Norm& norm, const RowRun& run, size_t begin) {
  const size_t d = kD != 0 ? kD : run.d;
  const RowsOf<const T> x(run, kX);
  FourBlocks blocks;
  HWY_ALIGN float r[4];
  if (begin + 4 > run.count) return begin;
  // Each round sums the four rows from `row` on and scales the four before them. The first round
  // only sums: separate code for it would be large.
  for (size_t row = begin;; row += 4) {
    const bool first = row == begin;
    const bool more = row + 4 <= run.count;
    if (!first) {
      const FourInverses inverses = InvertFour(norm.root, blocks.FoldAll());
      if (HWY_UNLIKELY(!inverses.safe)) return row - 4;
      hn::Store(inverses.r, FourTag(), r);
      for (size_t i = 0; run.Has(kRstd) && i < 4; ++i) {
        *run.Row<float>(kRstd, row - 4 + i) = r[i];
      }
    }
    if constexpr (sizeof(T) == 4) {
      for (size_t i = 0; i < 5; ++i) {
        if (more && i < 4) blocks.Put(i, SumBlock(x[row + i], d));
        if (first || i == 0) continue;
        ScaleShortRow<kD != 128, kCast, T>(norm, run, row - 5 + i, d, r[i - 1]);
      }
    } else {
      // gcc would unroll these loops, which is larger, and slower for f16.
#pragma GCC unroll 1
      for (size_t i = 0; more && i < 4; ++i) blocks.Put(i, SumBlock(x[row + i], d));
      if (first) continue;
#pragma GCC unroll 1
      for (size_t i = 0; i < 4; ++i) {
        ScaleShortRow<kD != 128, kCast, T>(norm, run, row - 4 + i, d, r[i]);
      }
    }
    if (!more) return row;
  }
}

// ------------------------------------------------------------------ rows in registers

// Whether rows of T stay in registers. 16-bit rows are faster by fours, which share a root and
// divisions. So are rows on AVX2, where registers are few.
template <class T>
constexpr bool kHoldsRowsOf = kN >= 16 && sizeof(T) == 4;

// The input of the norm: the rows of x or, with kAdds, the sums of the residual and x, which Make()
// also writes.
template <bool kAdds>
struct InputRows {
  HWY_INLINE explicit InputRows(const RowRun& run)
      : x(run, kX), residual(run, kAdds ? kResidual : kX), sum(run, kAdds ? kResidualOut : kX) {}
  template <bool kWhole, size_t kCount>
  HWY_INLINE Lanes<kCount> Make(size_t row, size_t d) const {
    if constexpr (!kAdds) return LoadRow<kWhole, kCount>(x[row], d);
    const Lanes<kCount> added =
        Add(LoadRow<kWhole, kCount>(residual[row], d), LoadRow<kWhole, kCount>(x[row], d));
    StoreRow<kWhole, false>(added, sum[row], d);
    return added;
  }
  HWY_INLINE const float* Made(size_t row) const { return sum[row]; }

  RowsOf<const float> x;
  RowsOf<const float> residual;
  RowsOf<float> sum;
};

// Whether the weight of a row in kCount pairs stays in registers, too. With one of more than 64
// elements clang 19 puts other vectors on the stack; gcc 12 finds registers for all of them.
#ifdef __clang__
template <size_t kCount>
constexpr bool kHoldsWeight = kCount < 4 && kHoldsRowsOf<float>;
#else
template <size_t kCount>
constexpr bool kHoldsWeight = kHoldsRowsOf<float>;
#endif

// Rotates the halves of a row by tables of f32 (definition 10).
template <size_t kCount>
HWY_INLINE Lanes<kCount> RotatedLanes(const Lanes<kCount>& m, const float* cos, const float* sin) {
  constexpr size_t kHalf = kCount / 2;
  const Lanes<kHalf> c = LoadRow<true, kHalf>(cos, kHalf * kPair);
  const Lanes<kHalf> s = LoadRow<true, kHalf>(sin, kHalf * kPair);
  const auto sub = [](Pair p, Pair q) RMSNORM_LAMBDA { return Sub(p, q); };
  return {MapLanes(sub, Mul(m.first, c), Mul(m.second, s)), Add(Mul(m.second, c), Mul(m.first, s))};
}

// f32 rows that take kPairs pairs. One row is summed while the row before it waits for its 1 / RMS,
// and none is read twice. The fields of the root are copied one by one: a copy by vectors waits for
// the caller's stores of single fields.
template <size_t kPairs, bool kWhole, bool kStream, bool kAdds, bool kRotates = false>
HWY_NOINLINE size_t NormaliseRowsInRegisters(const Norm& norm, const RowRun& run, size_t begin) {
  constexpr size_t kCount = kHeldPairs<kPairs>;
  Root root;
  root.eps = norm.root.eps;
  root.eps_placement = norm.root.eps_placement;
  root.inverse_divisor = norm.root.inverse_divisor;
  size_t d = run.d;
  AssumeHeld<kPairs, kWhole>(d);
  const size_t count = run.count;
  const InputRows<kAdds> input(run);
  const RowsOf<float> y(run, kY);
  const RowsOf<float> rstd(run, kRstd);
  const bool has_rstd = run.Has(kRstd);
  const float* const weight = run.Row<const float>(kWeight, 0);
  const Lanes<kCount> held_weight = LoadRow<kWhole, kCount>(weight, d);
  // Make() has already run for the row after an unsafe one.
  Lanes<kCount> row = begin == 0 ? input.template Make<kWhole, kCount>(0, d)
                                 : LoadRow<kWhole, kCount>(input.Made(begin), d);
  float sum = SumOfLanes(Mul(row, row));
  for (size_t i = begin;; ++i) {
    const bool more = kHoldsRowsOf<float> && i + 1 < count;
    Lanes<kCount> next;
    float next_sum;
    if (more) {
      next = input.template Make<kWhole, kCount>(i + 1, d);
      next_sum = SumOfLanes(Mul(next, next));
    }
    const float under_root = UnderRoot(root, sum);
    if (HWY_UNLIKELY(!IsSafe(under_root))) return i;
    const float r = InverseRms(root, under_root);
    const F32Vec rs = hn::Set(F32Tag(), r);
    const auto scaled = [rs](Pair x, Pair w) RMSNORM_LAMBDA { return Mul(Mul(x, {rs, rs}), w); };
    const Lanes<kCount> w = kHoldsWeight<kCount> ? held_weight : LoadRow<kWhole, kCount>(weight, d);
    Lanes<kCount> output = MapLanes(scaled, row, w);
    if constexpr (kRotates) {
      output = RotatedLanes(output, run.Row<float>(kCos, 0), run.Row<float>(kSin, 0));
    }
    StoreRow<kWhole, kStream>(output, y[i], d);
    if (has_rstd) *rstd[i] = r;
    if (!more) return count;
    row = next;
    sum = next_sum;
  }
}

template <size_t kPairs, bool kAdds>
size_t NormaliseHeldRows(const Norm& norm, const RowRun& run, size_t begin) {
  if constexpr (kHoldsRowsOf<float>) {
    if (run.d != kPairs * kPair) {
      return NormaliseRowsInRegisters<kPairs, false, false, kAdds>(norm, run, begin);
    }
    // Not a branch for each row, which is slow past the caches.
    if (norm.stream && AreAligned(run, kY)) {
      return NormaliseRowsInRegisters<kPairs, true, true, kAdds>(norm, run, begin);
    }
  }
  return NormaliseRowsInRegisters<kPairs, true, false, kAdds>(norm, run, begin);
}

template <size_t kPairs>
size_t NormaliseHeldRotatedRows(const Norm& norm, const RowRun& run, size_t begin) {
  return NormaliseRowsInRegisters<kPairs, true, false, false, true>(norm, run, begin);
}

// Whether the rotated rows of a run are held: f32 of two or four whole pairs, whose halves are
// rotated by one row of tables of f32.
HWY_INLINE bool HasHeldRotatedRows(const Norm& norm, const RowRun& run) {
  return kHoldsRowsOf<float> && norm.dtype[kX] == RMSNORM_F32 && norm.dtype[kCos] == RMSNORM_F32 &&
         norm.dtype[kSin] == RMSNORM_F32 && run.stride[kCos] == 0 && run.stride[kSin] == 0 &&
         norm.rotary_pairs == RMSNORM_ROTARY_HALVES && norm.rotated == run.d &&
         (run.d == 2 * kPair || run.d == 4 * kPair);
}

// Whether a run has held rows: f32 of up to kLongestHeld elements. Where registers are few, one row
// of whole pairs.
HWY_INLINE bool HasHeldRows(const Norm& norm, const RowRun& run) {
  return kHoldsRows && norm.dtype[kX] == RMSNORM_F32 && run.d <= kLongestHeld &&
         (kHoldsRowsOf<float> || (run.count == 1 && run.d % kPair == 0));
}

// ------------------------------------------------------------------ weights

template <class T>
HWY_NOINLINE void AddOffset(const void* from_data, size_t d, float given_offset,
                            float* HWY_RESTRICT column) {
  const T* const from = static_cast<const T*>(from_data);
  const F32Vec set_offset = hn::Set(F32Tag(), given_offset);
  const Pair offset = {set_offset, set_offset};
  ForEachPair(0, d, [&](size_t j, auto some) RMSNORM_LAMBDA {
    Store(PlainNaN(Add(offset, Load(from + j, some))), column + j, some);
  });
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_FORWARD_INL_H_
