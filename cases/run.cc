// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "float_control.h"
#include "guarded_memory.h"
#include "layout.h"
#include "prepared_call.h"

#if defined(__has_feature)
#define RMSNORM_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define RMSNORM_ADDRESS_SANITIZER 1
#else
#define RMSNORM_ADDRESS_SANITIZER 0
#endif
#if RMSNORM_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace rmsnorm::cases {
namespace {

// The stack that the library promises not to exceed.
constexpr size_t kMostStack = 48 << 10;

// The caller's executor: it runs its parts in some order, or all at once, each in a floating-point
// state that the part must restore. The call itself happens in the caller's state.
struct Parts {
  Executor kind;
  uint32_t seed;
  uint32_t control;
  uint32_t callers = kDefaultControl;
  bool was_called_in_callers = true;
  std::atomic<bool> state_was_kept{true};
  std::atomic<bool> used_upper_halves{false};

  static void Run(void* parts, size_t count, rmsnorm_task task, void* state) {
    static_cast<Parts*>(parts)->Run(count, task, state);
  }
  void Run(size_t count, rmsnorm_task task, void* state) {
    was_called_in_callers = was_called_in_callers && Control() == callers;
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = count - 1 - i;
    Random random(seed);
    for (size_t i = count; kind == Executor::kShuffled && i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(i)]);
    }
    const auto run = [&](size_t part) {
      const uint32_t usual = Control();
      SetControl(control);
      const uint32_t before = Control();  // the bits that the CPU keeps
      ClearUpperHalves();
      task(state, part);
      if (AreUpperHalvesUsed()) used_upper_halves = true;
      if (Control() != before) state_was_kept = false;
      SetControl(usual);
    };
    std::vector<std::thread> threads;
    if (kind == Executor::kThreads) threads.reserve(order.size());
    for (const size_t part : order) {
      if (kind == Executor::kThreads) {
        try {
          threads.emplace_back(run, part);
          continue;
        } catch (const std::system_error&) {  // no memory for its stack
        }
      }
      run(part);
    }
    for (std::thread& thread : threads) thread.join();
  }
};

// Makes calls on a target, and returns the status; on a thread with the small stack, if there is
// one. Throws std::runtime_error if a floating-point state was not restored, or if the calls use
// too much stack.
rmsnorm_status MakeCalls(const Calls& calls, const std::vector<CallOperands>& operands,
                         const char* target, SmallStack* small_stack) {
  const Case& first = calls[0];
  Random random(first.state);
  Parts parts = {first.executor, first.seed, kDefaultControl};
  uint32_t control = kDefaultControl;
  if (first.state != 0) {
    control = RandomControl(random);
    parts.control = random.OneIn(2) ? control : RandomControl(random);
  }
  rmsnorm_context context = ContextOf(first, target);
  if (first.executor != Executor::kNone) {
    context.parallel_for = Parts::Run;
    context.parallel_context = &parts;
  }

  uint32_t after;
  rmsnorm_status status;
  std::optional<PreparedCall> prepared;  // which is too large for a small stack
  const auto call = [&] {
    SetControl(control);
    parts.callers = Control();
    ClearUpperHalves();
    try {
      prepared.emplace(calls, operands, context);
      status = prepared->Run();
    } catch (const Error& refused_module) {
      status = refused_module.status();
    }
    if (AreUpperHalvesUsed()) parts.used_upper_halves = true;
    after = Control();
    SetControl(kDefaultControl);
  };
  if (small_stack == nullptr) {
    call();
  } else if (const size_t used = small_stack->Run(call); used > kMostStack) {
    throw std::runtime_error("the calls used " + std::to_string(used) + " bytes of stack");
  }
  if (after != parts.callers)
    throw std::runtime_error("the caller's floating-point state was not kept");
  if (!parts.was_called_in_callers) {
    throw std::runtime_error("an executor was called in another floating-point state");
  }
  if (!parts.state_was_kept) throw std::runtime_error("a part left another floating-point state");
  if (parts.used_upper_halves) {
    throw std::runtime_error("the upper halves of vector registers were left in use");
  }
  return status;
}

}  // namespace

// A case, its values and results, and its memory: of the call, and as it must be afterwards.
class PlacedCase {
 public:
  void Set(const Case& c, const Problem* known) {
    if (known != nullptr) {
      problem_ = *known;
    } else if (!problem_ || !IsSameProblem(case_, c)) {
      problem_.reset();
      problem_.emplace(c);
    }
    case_ = c;
    layout_ = Layout(c);
    for (int i = 0; i < kOperands; ++i) {
      const size_t bytes = layout_->block[i].bytes;
      if (bytes == 0) continue;
      actual_block_[i] =
          c.guard == Guard::kAfter ? actual_[i].Before(bytes) : actual_[i].After(bytes);
      expected_block_[i] = expected_[i].After(bytes);
    }
    Write(true, expected_block_);
  }

  const Problem& problem() const { return *problem_; }

  // The views of the case, after their memory is filled as before a call.
  CallOperands Fill() {
    Write(false, actual_block_);
    CallOperands operands = OperandsAt(case_, *layout_, actual_block_);
    // An unused stride may have any value.
    internal::ForEachOperand(operands.given, [&](Operand o) {
      rmsnorm_view& view = operands.view[o];
      for (int i = 0; case_.guard == Guard::kNone && i < view.ndim; ++i) {
        if (view.shape[i] == 1) view.stride[i] = -12345;
      }
    });
    return operands;
  }

  // With AddressSanitizer, poisons all bytes that belong to no row.
  void SetPoison([[maybe_unused]] bool poison) const {
#if RMSNORM_ADDRESS_SANITIZER
    for (int i = 0; i < kOperands; ++i) {
      const size_t bytes = layout_->block[i].bytes;
      if (bytes != 0 && poison) ASAN_POISON_MEMORY_REGION(actual_block_[i], bytes);
      if (bytes != 0 && !poison) ASAN_UNPOISON_MEMORY_REGION(actual_block_[i], bytes);
    }
    ForEachRow(actual_block_, [&](Operand o, uint8_t* bytes) {
      ASAN_UNPOISON_MEMORY_REGION(
          bytes, RowLengthOf(case_, o) * internal::ElementSize(case_.operand[o].dtype));
    });
#endif
  }

  std::string FindFault() const {
    if (AreAllSame()) return {};
    std::string fault;
    internal::ForEachOperand(case_.Given(), [&](Operand o) {
      if (fault.empty() && case_.IsOutput(o)) fault = DescribeOutput(o);
    });
    for (int i = 0; fault.empty() && i < kOperands; ++i) {
      if (!IsSame(i)) fault = DescribeByte(i);
    }
    return fault;
  }

  // Whether a call that was refused wrote anything.
  bool WasWritten() {
    Write(false, expected_block_);
    const bool was_written = !AreAllSame();
    Write(true, expected_block_);
    return was_written;
  }

 private:
  // Calls visit(operand, bytes) for each row in memory.
  template <class Visit>
  void ForEachRow(uint8_t* const* memory, const Visit& visit) const {
    internal::ForEachOperand(case_.Given(), [&](Operand o) {
      for (size_t row = 0; row < layout_->place[o].offset.size(); ++row) {
        visit(o, layout_->RowIn(memory, o, row));
      }
    });
  }

  bool IsSame(int block) const {
    const size_t bytes = layout_->block[block].bytes;
    return bytes == 0 || std::memcmp(actual_block_[block], expected_block_[block], bytes) == 0;
  }
  bool AreAllSame() const {
    bool all_same = true;
    for (int i = 0; i < kOperands; ++i) all_same = all_same && IsSame(i);
    return all_same;
  }

  // Writes the contents of memory before a call, or after a correct one.
  void Write(bool after, uint8_t* const* memory) const {
    for (int i = 0; i < kOperands; ++i) {
      const Layout::Block& block = layout_->block[i];
      if (block.bytes != 0) std::memset(memory[i], block.canary, block.bytes);
    }
    internal::ForEachOperand(case_.Given(), [&](Operand o) {
      const OperandCase& own = case_.operand[o];
      const bool is_output = case_.IsOutput(o);
      if (is_output && !after && (!own.add || own.in_place)) return;
      layout_->Write(is_output && after ? problem_->after(o) : problem_->before(o), o, memory);
    });
  }

  // The first element of an output with unexpected bits. NaNs with others are replaced here, so
  // that the rest of the memory can be compared.
  std::string DescribeOutput(Operand o) const {
    const Rows& wanted = problem_->after(o);
    Rows got(wanted.dtype(), wanted.count(), wanted.d());
    layout_->Read(actual_block_, o, got);
    const std::string difference = FirstDifference(wanted, got);
    if (!difference.empty()) return kOperandRules[o].name + difference;
    layout_->Write(wanted, o, actual_block_);
    return {};
  }

  // The first byte with an unexpected value in a block where no output has one.
  std::string DescribeByte(int block) const {
    const uint8_t* const actual = actual_block_[block];
    const uint8_t* const broken =
        std::mismatch(actual, actual + layout_->block[block].bytes, expected_block_[block]).first;
    // The operand that owns the block, or an output that replaces it.
    auto owner = static_cast<Operand>(block);
    std::string fault;
    ForEachRow(actual_block_, [&](Operand o, const uint8_t* bytes) {
      if (layout_->place[o].block != block) return;
      if (case_.operand[o].in_place) owner = o;
      if (!case_.IsOutput(o) && bytes <= broken &&
          broken < bytes + problem_->before(o).row_bytes()) {
        fault = std::string(kOperandRules[o].name) + " was written";
      }
    });
    if (!fault.empty()) return fault;
    const auto first = static_cast<ptrdiff_t>(layout_->place[owner].first);
    return std::string(kOperandRules[owner].name) + ": byte " +
           std::to_string(broken - actual - first) +
           " from its start, outside its rows, was written";
  }

  Case case_;
  std::optional<Problem> problem_;
  std::optional<Layout> layout_;
  GuardedMemory actual_[kOperands];
  GuardedMemory expected_[kOperands];
  uint8_t* actual_block_[kOperands];
  uint8_t* expected_block_[kOperands];
};

// ------------------------------------------------------------------------------- the runner

Runner::Runner(bool small_stack)
    : small_stack_(small_stack ? std::make_unique<SmallStack>() : nullptr) {}
Runner::~Runner() = default;

void Runner::Set(const Calls& calls, const Problem* known) {
  calls_ = calls;
  while (placed_.size() < calls.size()) placed_.push_back(std::make_unique<PlacedCase>());
  for (size_t i = 0; i < calls.size(); ++i) placed_[i]->Set(calls[i], known);
}

const Problem& Runner::problem() const { return placed_[0]->problem(); }

std::vector<CallOperands> Runner::Fill() {
  std::vector<CallOperands> operands;
  for (size_t i = 0; i < calls_.size(); ++i) operands.push_back(placed_[i]->Fill());
  return operands;
}

std::string Runner::FindFault() {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const std::string fault = placed_[i]->FindFault();
    if (fault.empty()) continue;
    return (calls_.size() == 1 ? "" : "call " + std::to_string(i) + ": ") + fault;
  }
  return {};
}

std::string Runner::Run(const std::string& target) {
  const std::vector<CallOperands> operands = Fill();
  for (size_t i = 0; i < calls_.size(); ++i) placed_[i]->SetPoison(true);
  bool is_refused = false;
  std::string fault;
  try {
    is_refused = MakeCalls(calls_, operands, target.c_str(), small_stack_.get()) != RMSNORM_OK;
    if (is_refused) fault = std::string("refused: ") + rmsnorm_error_message();
  } catch (const std::runtime_error& error) {
    fault = error.what();
  }
  for (size_t i = 0; i < calls_.size(); ++i) {
    placed_[i]->SetPoison(false);
    if (is_refused && placed_[i]->WasWritten()) fault = "written to, and " + fault;
  }
  return fault.empty() ? FindFault() : fault;
}

std::string FaultOf(Runner& runner, const Calls& calls, const std::string& target) {
  try {
    runner.Set(calls);
  } catch (const Error& error) {
    return std::string("the reference refused: ") + error.what();
  }
  if (!calls[0].strewn) return runner.Run(target);
  const std::string refusal = runner.Run("reference");
  const bool is_refused = refusal.rfind("refused: ", 0) == 0;
  const std::string overlap = is_refused ? "" : OverlapIn(calls[0], Layout(calls[0]));
  if (!overlap.empty()) return overlap + ", and the call was accepted";
  const std::string fault = runner.Run(target);
  if (!is_refused) return fault;
  return fault == refusal ? "" : fault + ", where the reference " + refusal;
}

}  // namespace rmsnorm::cases
