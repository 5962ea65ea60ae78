// SPDX-License-Identifier: Apache-2.0
// Plain loops as a contender: shares the rows of calls among threads.
#include <algorithm>
#include <cstring>

#include "contender.h"
#include "plain_loops.h"
#include "threads.h"

namespace rmsnorm::bench {
namespace {

using cases::Case;
using internal::Operand;

// With fewer elements for each thread, waking a thread takes longer than it saves.
constexpr size_t kMinElementsPerThread = 32768;

PlainKind KindOf(const Case& c) {
  if (c.backward) return kPlainBackward;
  if (c.Has(internal::kQ)) return kPlainInt8;
  if (c.Has(internal::kPostNormWeight)) return kPlainPostNorm;
  if (c.Has(internal::kResidual)) return kPlainAddNorm;
  if (!c.Has(internal::kGate)) return kPlainNorm;
  return c.options.gate_placement == RMSNORM_GATE_BEFORE ? kPlainGateBefore : kPlainGateAfter;
}

struct Member {
  Operand operand;
  PlainOperand PlainRun::*in_run;
};
constexpr Member kMembers[] = {{internal::kX, &PlainRun::x},
                               {internal::kWeight, &PlainRun::weight},
                               {internal::kPostNormWeight, &PlainRun::post_norm_weight},
                               {internal::kResidual, &PlainRun::residual},
                               {internal::kGate, &PlainRun::gate},
                               {internal::kDy, &PlainRun::dy},
                               {internal::kY, &PlainRun::y},
                               {internal::kDx, &PlainRun::dx},
                               {internal::kQ, &PlainRun::q},
                               {internal::kRstd, &PlainRun::rstd},
                               {internal::kScale, &PlainRun::scale}};

// Throws Refusal for calls that the loops do not know.
void RequireKnown(const Case& c) {
  const rmsnorm_dtype type = c.operand[internal::kX].dtype;
  for (const Operand o : {internal::kWeight, internal::kPostNormWeight, internal::kResidual,
                          internal::kGate, internal::kDy, internal::kY, internal::kDx}) {
    if (c.Has(o) && c.operand[o].dtype != type) throw Refusal("they have one type");
  }
  if (!c.Has(internal::kWeight)) throw Refusal("they have a weight");
  if (c.Has(internal::kResidual) && !c.operand[internal::kResidualOut].in_place) {
    throw Refusal("they update a residual in place");
  }
  const Operand needed = c.Has(internal::kQ) ? internal::kScale : internal::kY;
  if (!c.Has(c.backward ? internal::kDx : needed) || c.Has(internal::kDw) != c.backward ||
      c.Has(internal::kRstd) != c.backward || c.rows.size() > 2) {
    throw Refusal("no loop for such a call");
  }
}

// The rows of calls that a thread works on.
struct Share {
  struct Work {
    PlainLoop loop;
    PlainRun run;
  };
  std::vector<Work> work;
  std::vector<float> scratch;
  float* dw = nullptr;  // in the output or in `sums`
  std::vector<float> sums;

  void Run(size_t d) const {
    if (dw != nullptr) std::memset(dw, 0, d * sizeof(float));
    for (const Work& one : work) one.loop(&one.run);
  }
};

class PlainCalls {
 public:
  PlainCalls(const PlainLoops& loops, const Tensors& tensors) {
    const std::vector<Case>& calls = tensors.values().calls;
    size_t elements = 0;
    size_t rows = 0;
    for (const Case& c : calls) {
      RequireKnown(c);
      d_ = std::max(d_, c.d);
      rows += c.RowCount();
      elements += c.RowCount() * c.d;
    }
    const size_t threads = static_cast<size_t>(calls.front().threads);
    shares_.resize(
        std::clamp<size_t>(std::min(rows, elements / kMinElementsPerThread), 1, threads));
    for (size_t i = 0; i < shares_.size(); ++i) {
      Share& share = shares_[i];
      share.scratch.resize(d_);
      if (calls.front().backward) {
        if (i > 0) share.sums.resize(d_);
        share.dw =
            i > 0
                ? share.sums.data()
                : static_cast<float*>(internal::DataOf(tensors.operands()[0].view[internal::kDw]));
      }
      for (size_t call = 0; call < calls.size(); ++call) {
        const size_t count = calls[call].RowCount();
        AddRows(loops, calls[call], tensors.operands()[call], count * i / shares_.size(),
                count * (i + 1) / shares_.size(), share);
      }
    }
  }

  void Run() const {
    if (shares_.size() == 1) return shares_[0].Run(d_);  // entering OpenMP takes 300 ns
    RunOnThreads(shares_.size(), [this](size_t i) { shares_[i].Run(d_); });
    for (size_t i = 1; shares_[0].dw != nullptr && i < shares_.size(); ++i) {
      for (size_t j = 0; j < d_; ++j) shares_[0].dw[j] += shares_[i].dw[j];
    }
  }

 private:
  // Adds rows of a call: a run ends where the index of the first of two dimensions changes.
  static void AddRows(const PlainLoops& loops, const Case& c, const cases::CallOperands& operands,
                      size_t begin, size_t end, Share& share) {
    const PlainLoop loop = loops.loop[c.operand[internal::kX].dtype - 1][KindOf(c)];
    if (loop == nullptr) throw Refusal("this compiler has no f16 for them");
    const size_t inner = c.rows.empty() ? 1 : c.rows.back();
    while (begin < end) {
      const size_t rows = std::min(inner - begin % inner, end - begin);
      PlainRun run = {};
      run.rows = rows;
      run.d = c.d;
      run.eps = c.options.eps;
      run.scratch = share.scratch.data();
      run.dw = share.dw;
      for (const Member& member : kMembers) {
        if (c.Has(member.operand)) {
          run.*member.in_run =
              RowsFrom(operands.view[member.operand], member.operand, begin / inner, begin % inner);
        }
      }
      share.work.push_back({loop, run});
      begin += rows;
    }
  }

  static PlainOperand RowsFrom(const rmsnorm_view& view, Operand o, size_t outer, size_t inner) {
    const bool is_per_row = internal::kOperandRules[o].shape == internal::Shape::kPerRow;
    const int last = view.ndim - (is_per_row ? 1 : 2);  // the dimension of `inner`
    const auto stride = [&](int i) { return i < 0 || view.shape[i] == 1 ? 0 : view.stride[i]; };
    const ptrdiff_t elements = static_cast<ptrdiff_t>(outer) * stride(last - 1) +
                               static_cast<ptrdiff_t>(inner) * stride(last);
    uint8_t* const data = static_cast<uint8_t*>(internal::DataOf(view));
    return {data + elements * static_cast<ptrdiff_t>(internal::ElementSize(view.dtype)),
            stride(last)};
  }

  std::vector<Share> shares_;
  size_t d_ = 0;  // of the longest rows
};

class Plain final : public Contender {
 public:
  explicit Plain(const PlainLoops& loops) : Contender(kPlain, Kind::kOther), loops_(loops) {}

  Prepared Prepare(const Tensors& tensors, const char* /*target*/) const override {
    return {[](void* state) { static_cast<PlainCalls*>(state)->Run(); },
            new PlainCalls(loops_, tensors),
            [](void* state) { delete static_cast<PlainCalls*>(state); }};
  }

 private:
  const PlainLoops& loops_;
};

}  // namespace

Contenders PlainLoopContenders() {
  Contenders contenders;
  const auto add = [&](bool runs, const PlainLoops& usual, const PlainLoops& fast) {
    if (!runs) return;
    contenders.push_back(std::make_unique<Plain>(usual));
    contenders.push_back(std::make_unique<Plain>(fast));
  };
#ifdef __x86_64__
  const bool has_v3 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi2") != 0 &&
                      __builtin_cpu_supports("fma") != 0;
  const bool has_v4 = __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0;
  add(has_v3, plain_loops_v3, plain_loops_v3_fast);
  add(has_v3 && has_v4, plain_loops_v4, plain_loops_v4_fast);
#else
  add(true, plain_loops_base, plain_loops_base_fast);
#endif
  return contenders;
}

}  // namespace rmsnorm::bench
