// SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "float_control.h"
#include "guarded_memory.h"
#include "user_error.h"

#if defined(__has_feature)
#define RMSNORM_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define RMSNORM_ADDRESS_SANITIZER 1
#else
#define RMSNORM_ADDRESS_SANITIZER 0
#endif
#if RMSNORM_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(begin, size) static_cast<void>(0)
#endif

namespace rmsnorm::cases {

using internal::kOperandRules;
using internal::kOperands;

namespace {

// Canaries before the lowest row and after the highest one: more than four of the widest vectors.
constexpr size_t kCanaries = 5 * 64;

// Canaries around an input make NaNs, which show in every result that reads them. A NaN written
// over such a canary could have the same bits, so canaries around outputs differ.
constexpr uint8_t kAroundInput = 0xFF;
constexpr uint8_t kAroundOutput = 0xA5;

bool IsOverwritten(const Case& c, Operand o) {
  for (int i = 0; i < kOperands; ++i) {
    if (c.operand[i].in_place && kOperandRules[i].in_place_of == o) return true;
  }
  return c.IsOutput(o);
}

// ------------------------------------------------------------------------------- calls

// The caller's executor: it runs its parts in some order, or all at once, each in a floating-point
// state that the part must restore. The call itself happens in the caller's state.
struct Parts {
  Executor kind;
  uint32_t seed;
  uint32_t control;
  uint32_t callers = kDefaultControl;
  bool was_called_in_callers = true;
  std::atomic<bool> state_was_kept{true};

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
      task(state, part);
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

class Module {
 public:
  Module() = default;
  ~Module() { rmsnorm_module_destroy(module_); }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  rmsnorm_status Make(const Case& c, const CallOperands& operands, const rmsnorm_options* options,
                      const rmsnorm_context* context) {
    using namespace internal;
    const OperandSet held = HeldByModule(c) & operands.given;
    // A type that has all their values.
    rmsnorm_dtype dtype = operands.view[held != 0 ? FirstOf(held) : kX].dtype;
    ForEachOperand(held, [&](Operand o) {
      if (operands.view[o].dtype != dtype) dtype = RMSNORM_F32;
    });
    rmsnorm_status status = rmsnorm_module_create(&module_, c.d, dtype, options, context);
    ForEachOperand(held, [&](Operand o) {
      const auto set = o == kWeight ? rmsnorm_module_set_weight
                       : o == kBias ? rmsnorm_module_set_bias
                                    : rmsnorm_module_set_post_norm_weight;
      if (status == RMSNORM_OK) status = set(module_, &operands.view[o]);
    });
    return status;
  }
  const rmsnorm_module* get() const { return module_; }

 private:
  rmsnorm_module* module_ = nullptr;
};

rmsnorm_status CallModule(const Case& c, const CallOperands& operands,
                          const rmsnorm_options* options, const rmsnorm_context* context) {
  using namespace internal;
  const bool is_rows = c.function == Function::kRows;
  const bool in_own_context = c.seed % 2 != 0;
  Module module;
  const rmsnorm_status status =
      module.Make(c, operands, options, in_own_context ? context : nullptr);
  if (status != RMSNORM_OK) return status;
  if (in_own_context) context = nullptr;
  CallOperands others = operands;
  others.given &= ~HeldByModule(c);
  const auto data = [&](Operand o) {
    return (operands.given & SetOf(o)) != 0 ? internal::DataOf(operands.view[o]) : nullptr;
  };
  const rmsnorm_dtype dtype = operands.view[kX].dtype;
  const size_t rows = c.RowCount();
  if (is_rows && c.backward) {
    return rmsnorm_module_backward_rows(module.get(), dtype, rows, data(kDy), data(kX),
                                        static_cast<const float*>(data(kRstd)), data(kDx),
                                        static_cast<float*>(data(kDw)), context);
  }
  if (is_rows && (operands.given & SetOf(kResidual)) != 0) {
    return rmsnorm_module_add_norm_rows(module.get(), dtype, operands.view[kResidual].dtype, rows,
                                        data(kX), data(kResidual), data(kResidualOut), data(kY),
                                        static_cast<float*>(data(kRstd)), context);
  }
  if (is_rows) {
    return rmsnorm_module_norm_rows(module.get(), dtype, rows, data(kX), data(kY),
                                    static_cast<float*>(data(kRstd)), context);
  }
  const rmsnorm_operands all = others.Get();
  return c.backward ? rmsnorm_module_backward(module.get(), &all, context)
                    : rmsnorm_module_forward(module.get(), &all, context);
}

// The operands for a range of indices of the first dimension.
CallOperands Piece(const Case& c, const CallOperands& operands, size_t begin, size_t end) {
  CallOperands piece = operands;
  internal::ForEachOperand(operands.given, [&](Operand o) {
    rmsnorm_view& view = piece.view[o];
    if (LeadingOf(c, o).size() != c.rows.size()) return;
    if (view.shape[0] == 1 && kOperandRules[o].shape == Shape::kColumns) return;
    const auto element = static_cast<ptrdiff_t>(internal::ElementSize(view.dtype));
    view.data = static_cast<const uint8_t*>(view.data) +
                static_cast<ptrdiff_t>(begin) * view.stride[0] * element;
    view.shape[0] = end - begin;
  });
  return piece;
}

rmsnorm_status CallSeveral(const Case& c, const CallOperands& operands,
                           const rmsnorm_options* options, const rmsnorm_context* context) {
  const size_t middle = c.rows[0] / 3;
  CallOperands pieces[] = {Piece(c, operands, 0, middle), Piece(c, operands, middle, c.rows[0])};
  Module module;
  rmsnorm_call calls[2] = {{nullptr, nullptr, options}, {nullptr, nullptr, options}};
  if (c.operand[internal::kWeight].per == Per::kTensor) {
    const rmsnorm_status status = module.Make(c, operands, options, nullptr);
    if (status != RMSNORM_OK) return status;
    pieces[1].given &= ~HeldByModule(c);
    calls[1] = {module.get(), nullptr, nullptr};
  }
  const rmsnorm_operands all[] = {pieces[0].Get(), pieces[1].Get()};
  for (size_t i = 0; i < 2; ++i) calls[i].operands = &all[i];
  return rmsnorm_forward_all(calls, 2, context);
}

}  // namespace

rmsnorm_status Call(const Case& c, const CallOperands& operands, const char* target) {
  Random random(c.state);
  Parts parts = {c.executor, c.seed, kDefaultControl};
  uint32_t control = kDefaultControl;
  if (c.state != 0) {
    control = RandomControl(random);
    parts.control = random.OneIn(2) ? control : RandomControl(random);
  }
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = c.threads;
  context.target = target;
  if (c.executor != Executor::kNone) {
    context.parallel_for = Parts::Run;
    context.parallel_context = &parts;
  }
  // Default options are passed as a null pointer.
  const rmsnorm_options defaults = rmsnorm_default_options();
  const bool is_default = std::memcmp(&c.options, &defaults, sizeof defaults) == 0;
  const rmsnorm_options* const options = is_default ? nullptr : &c.options;
  const rmsnorm_operands all = operands.Get();

  SetControl(control);
  const uint32_t before = Control();
  parts.callers = before;
  rmsnorm_status status;
  if (c.function == Function::kSeveral) {
    status = CallSeveral(c, operands, options, &context);
  } else if (c.function != Function::kPlain) {
    status = CallModule(c, operands, options, &context);
  } else {
    status = c.backward ? rmsnorm_backward(&all, options, &context)
                        : rmsnorm_forward(&all, options, &context);
  }
  const uint32_t after = Control();
  SetControl(kDefaultControl);
  if (after != before) throw std::runtime_error("the caller's floating-point state was not kept");
  if (!parts.was_called_in_callers) {
    throw std::runtime_error("an executor was called in another floating-point state");
  }
  if (!parts.state_was_kept) throw std::runtime_error("a part left another floating-point state");
  return status;
}

// ------------------------------------------------------------------------------- memory

Layout::Layout(const Case& c) {
  if (c.interleaved) Interleave(c);
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    if (c.operand[o].in_place) {
      place[o] = place[kOperandRules[o].in_place_of];
    } else if (!c.interleaved || kOperandRules[o].shape != Shape::kRows) {
      PlaceAlone(c, o);
    }
  });
}

void Layout::PlaceAlone(const Case& c, Operand o) {
  const OperandCase& own = c.operand[o];
  const size_t element = internal::ElementSize(own.dtype);
  const std::vector<size_t> leading = LeadingOf(c, o);
  const Spans spans = SpansOf(own.order, leading, RowLengthOf(c, o), own.gap, element);
  const size_t begin = c.guard == Guard::kBefore ? 0 : kCanaries + own.shift * element;
  const size_t end = c.guard == Guard::kAfter ? 0 : kCanaries;
  block[o] = {begin + spans.bytes + end, IsOverwritten(c, o) ? kAroundOutput : kAroundInput};
  place[o] = {o, begin + static_cast<size_t>(spans.first), spans.stride,
              RowOffsets(leading, spans.stride, element)};
}

// Counts in units of 4 bytes, the largest element.
void Layout::Interleave(const Case& c) {
  constexpr size_t kUnit = 4;
  const OperandCase& x = c.operand[internal::kX];
  const auto is_alone = [&](Operand o) {
    return kOperandRules[o].shape == Shape::kRows && !c.operand[o].in_place;
  };
  const auto units = [&](Operand o) {
    return (c.d * internal::ElementSize(c.operand[o].dtype) + kUnit - 1) / kUnit;
  };
  size_t pitch = 0;
  internal::ForEachOperand(c.Given(), [&](Operand o) { pitch += is_alone(o) ? units(o) : 0; });
  const Spans spans = SpansOf(x.order, c.rows, pitch, x.gap, kUnit);
  const size_t begin = c.guard == Guard::kBefore ? 0 : kCanaries + x.shift * kUnit;
  const size_t end = c.guard == Guard::kAfter ? 0 : kCanaries;
  block[internal::kX] = {begin + spans.bytes + end, kAroundOutput};
  size_t slot = 0;
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    if (!is_alone(o)) return;
    const auto element = static_cast<ptrdiff_t>(internal::ElementSize(c.operand[o].dtype));
    place[o] = {internal::kX, begin + static_cast<size_t>(spans.first) + slot * kUnit, spans.stride,
                RowOffsets(c.rows, spans.stride, kUnit)};
    for (ptrdiff_t& stride : place[o].stride) stride *= ptrdiff_t{kUnit} / element;
    slot += units(o);
  });
}

// ------------------------------------------------------------------------------- the runner

struct Runner::Memory {
  GuardedMemory actual[kOperands];
  GuardedMemory expected[kOperands];
  // The blocks of the case: the memory of the call, and its expected bytes.
  uint8_t* actual_block[kOperands];
  uint8_t* expected_block[kOperands];
};

Runner::Runner() : memory_(std::make_unique<Memory>()) {}
Runner::~Runner() = default;

void Runner::Set(const Case& c) {
  if (!problem_ || !IsSameProblem(case_, c)) {
    problem_.reset();
    problem_.emplace(c);
  }
  case_ = c;
  layout_.emplace(c);
  for (int i = 0; i < kOperands; ++i) {
    const size_t bytes = layout_->block[i].bytes;
    if (bytes == 0) continue;
    memory_->actual_block[i] = c.guard == Guard::kAfter ? memory_->actual[i].Before(bytes)
                                                        : memory_->actual[i].After(bytes);
    memory_->expected_block[i] = memory_->expected[i].After(bytes);
  }
  Write(true, memory_->expected_block);
}

// Writes the contents of memory before a call, or after a correct one.
void Runner::Write(bool after, uint8_t* const* memory) const {
  for (int i = 0; i < kOperands; ++i) {
    const Layout::Block& block = layout_->block[i];
    if (block.bytes != 0) std::memset(memory[i], block.canary, block.bytes);
  }
  internal::ForEachOperand(case_.Given(), [&](Operand o) {
    const OperandCase& own = case_.operand[o];
    const bool is_output = case_.IsOutput(o);
    if (is_output && !after && (!own.add || own.in_place)) return;
    const Rows& rows = is_output && after ? problem_->after(o) : problem_->before(o);
    const Layout::Place& place = layout_->place[o];
    uint8_t* const first = memory[place.block] + place.first;
    for (size_t row = 0; row < rows.count(); ++row) {
      std::memcpy(first + place.offset[row], rows.row(row), rows.row_bytes());
    }
  });
}

std::string Runner::Run(const std::string& target) {
  Write(false, memory_->actual_block);
  CallOperands operands;
  internal::ForEachOperand(case_.Given(), [&](Operand o) {
    const Layout::Place& place = layout_->place[o];
    std::vector<size_t> shape = LeadingOf(case_, o);
    std::vector<ptrdiff_t> stride = place.stride;
    if (kOperandRules[o].shape != Shape::kPerRow || shape.empty()) {
      shape.push_back(RowLengthOf(case_, o));
      stride.push_back(1);
    }
    // An unused stride may have any value.
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 1 && case_.guard == Guard::kNone) stride[i] = -12345;
    }
    operands.Set(
        o, rmsnorm_tensor(memory_->actual_block[place.block] + place.first, case_.operand[o].dtype,
                          static_cast<int32_t>(shape.size()), shape.data(), stride.data()));
    if (case_.operand[o].add) operands.add_to |= 1u << (o - internal::kDx);
  });
  SetPoison(true);
  std::string fault;
  try {
    if (Call(case_, operands, target.c_str()) != RMSNORM_OK) {
      fault = std::string("refused: ") + rmsnorm_error_message();
    }
  } catch (const std::runtime_error& error) {
    fault = error.what();
  }
  SetPoison(false);
  return fault.empty() ? FindFault() : fault;
}

// With AddressSanitizer, poisons all bytes that belong to no row.
void Runner::SetPoison(bool poison) const {
  for (int i = 0; RMSNORM_ADDRESS_SANITIZER && i < kOperands; ++i) {
    if (layout_->block[i].bytes == 0) continue;
    if (poison) {  // NOLINT(bugprone-branch-clone): without AddressSanitizer both do nothing
      ASAN_POISON_MEMORY_REGION(memory_->actual_block[i], layout_->block[i].bytes);
    } else {
      ASAN_UNPOISON_MEMORY_REGION(memory_->actual_block[i], layout_->block[i].bytes);
    }
  }
  internal::ForEachOperand(case_.Given(), [&](Operand o) {
    const Layout::Place& place = layout_->place[o];
    for (size_t row = 0; RMSNORM_ADDRESS_SANITIZER && poison && row < place.offset.size(); ++row) {
      ASAN_UNPOISON_MEMORY_REGION(
          memory_->actual_block[place.block] + place.first + place.offset[row],
          RowLengthOf(case_, o) * internal::ElementSize(case_.operand[o].dtype));
    }
  });
}

std::string Runner::FindFault() const {
  const auto is_same = [&](int i) {
    return std::memcmp(memory_->actual_block[i], memory_->expected_block[i],
                       layout_->block[i].bytes) == 0;
  };
  bool all_same = true;
  for (int i = 0; i < kOperands; ++i) {
    all_same = all_same && (layout_->block[i].bytes == 0 || is_same(i));
  }
  if (all_same) return {};
  std::string fault;
  internal::ForEachOperand(case_.Given(), [&](Operand o) {
    if (fault.empty() && case_.IsOutput(o)) fault = DescribeOutput(o);
  });
  for (int i = 0; fault.empty() && i < kOperands; ++i) {
    if (layout_->block[i].bytes == 0 || is_same(i)) continue;
    const uint8_t* const actual = memory_->actual_block[i];
    const uint8_t* const broken =
        std::mismatch(actual, actual + layout_->block[i].bytes, memory_->expected_block[i]).first;
    // The operand that owns the block, or an output that replaces it.
    auto owner = static_cast<Operand>(i);
    internal::ForEachOperand(case_.Given(), [&](Operand o) {
      const Layout::Place& place = layout_->place[o];
      if (place.block != i) return;
      if (case_.operand[o].in_place) owner = o;
      for (const ptrdiff_t offset : place.offset) {
        const uint8_t* const row = actual + place.first + offset;
        const size_t bytes = problem_->before(o).row_bytes();
        if (fault.empty() && !case_.IsOutput(o) && row <= broken && broken < row + bytes) {
          fault = std::string(kOperandRules[o].name) + " was written";
        }
      }
    });
    if (fault.empty()) {
      const auto first = static_cast<ptrdiff_t>(layout_->place[owner].first);
      fault = std::string(kOperandRules[owner].name) + ": byte " +
              std::to_string(broken - actual - first) +
              " from its start, outside its rows, was written";
    }
  }
  return fault;
}

// The first element of an output with unexpected bits. Two NaNs count as equal: CPUs make different
// ones, which are replaced here so that the rest of the memory can be compared.
std::string Runner::DescribeOutput(Operand o) const {
  const Layout::Place& place = layout_->place[o];
  const Rows& rows = problem_->after(o);
  const Format format = FormatOf(rows.dtype());
  const size_t element = internal::ElementSize(rows.dtype());
  for (size_t row = 0; row < rows.count(); ++row) {
    uint8_t* const actual = memory_->actual_block[place.block] + place.first + place.offset[row];
    if (std::memcmp(actual, rows.row(row), rows.row_bytes()) == 0) continue;
    for (size_t j = 0; j < rows.d(); ++j) {
      const uint64_t wanted = rows.bits(row, j);
      const uint64_t got = LoadBits(rows.dtype(), actual + j * element);
      if (got == wanted || (format.IsNan(got) && format.IsNan(wanted))) continue;
      char text[100];
      std::snprintf(text, sizeof text, "[%zu, %zu] is 0x%0*llx, not 0x%0*llx", row, j,
                    static_cast<int>(2 * element), static_cast<unsigned long long>(got),
                    static_cast<int>(2 * element), static_cast<unsigned long long>(wanted));
      return kOperandRules[o].name + std::string(text);
    }
    std::memcpy(actual, rows.row(row), rows.row_bytes());
  }
  return {};
}

std::string FaultOf(Runner& runner, const Case& c, const std::string& target) {
  try {
    runner.Set(c);
  } catch (const Error& error) {
    return std::string("the reference refused: ") + error.what();
  }
  return runner.Run(target);
}

// ------------------------------------------------------------------------------- shrinking

namespace {

// Simpler texts of a field, the simplest first.
std::vector<std::string> Simpler(const Field& field, const Case& c) {
  const std::string text = field.write(c);
  std::vector<std::string> simpler = {"none", field.write(Case(c.backward)), "1", "f32"};
  std::vector<std::string> sizes = Split(text, 'x');
  const bool is_number = !text.empty() && std::all_of(text.begin(), text.end(), [](char digit) {
    return (digit >= '0' && digit <= '9') || digit == 'x';
  });
  for (size_t i = 0; is_number && i < sizes.size(); ++i) {
    const auto with = [&](const std::string& size) {
      std::string all;
      for (size_t k = 0; k < sizes.size(); ++k) {
        const std::string& own = k == i ? size : sizes[k];
        if (!own.empty()) all += (all.empty() ? "" : "x") + own;
      }
      return all;
    };
    const unsigned long long number = std::stoull(sizes[i]);
    simpler.push_back(with(""));
    if (number > 1) simpler.push_back(with(std::to_string(number / 2)));
    if (number > 0) simpler.push_back(with(std::to_string(number - 1)));
  }
  const auto stop = std::find(simpler.begin(), simpler.end(), text);
  simpler.erase(stop, simpler.end());
  return simpler;
}

}  // namespace

Case Shrink(Runner& runner, const Case& failing, const std::string& target) {
  const auto kind = [](const std::string& fault) {
    return fault.empty() ? 0 : fault.find("refused") == std::string::npos ? 1 : 2;
  };
  const int kind_of_fault = kind(FaultOf(runner, failing, target));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  Case best = failing;
  for (bool again = true; again;) {
    again = false;
    for (const Field& field : Fields()) {
      for (const std::string& text : Simpler(field, best)) {
        if (std::chrono::steady_clock::now() > until) return best;
        Case simpler = best;
        try {
          if (!field.read(simpler, text)) continue;
          RequireMeaning(simpler);
        } catch (const tools::UserError&) {
          continue;
        }
        if (kind(FaultOf(runner, simpler, target)) != kind_of_fault) continue;
        best = simpler;
        again = true;
        break;
      }
    }
  }
  return best;
}

}  // namespace rmsnorm::cases
