// SPDX-License-Identifier: Apache-2.0
#include "prepared_call.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "layout.h"
#include "text.h"

namespace rmsnorm::cases {
namespace {

// The operands for a range of indices of the first dimension.
CallOperands Piece(const Case& c, const CallOperands& operands, size_t begin, size_t end) {
  CallOperands piece = operands;
  internal::ForEachOperand(operands.given, [&](Operand o) {
    rmsnorm_view& view = piece.view[o];
    if (LeadingOf(c, o).size() != c.rows.size()) return;
    if (view.shape[0] == 1 && kOperandRules[o].leading == Leading::kShared) return;
    const auto element = static_cast<ptrdiff_t>(internal::ElementSize(view.dtype));
    view.data = static_cast<const uint8_t*>(view.data) +
                static_cast<ptrdiff_t>(begin) * view.stride[0] * element;
    view.shape[0] = end - begin;
  });
  return piece;
}

// Whether a module is made in the context of its call, which then has none.
bool IsInOwnContext(const Case& c) {
  return c.function != Function::kPlain && c.function != Function::kPrepared && c.seed % 2 != 0;
}

}  // namespace

rmsnorm_status RunRows(const Functions& functions, const rmsnorm_module* module,
                       const rmsnorm_operands& operands, size_t rows,
                       const rmsnorm_context* context) noexcept {
  const auto data = [](const rmsnorm_view* view) {
    return view != nullptr ? internal::DataOf(*view) : nullptr;
  };
  const rmsnorm_view* const x = operands.x;
  const rmsnorm_view* const residual = operands.residual;
  const auto rstd = static_cast<float*>(data(operands.rstd));
  if (operands.dy != nullptr) {
    return functions.module_backward_rows(module, x->dtype, rows, data(operands.dy), data(x), rstd,
                                          data(operands.dx), static_cast<float*>(data(operands.dw)),
                                          context);
  }
  if (residual != nullptr) {
    return functions.module_add_norm_rows(module, x->dtype, residual->dtype, rows, data(x),
                                          data(residual), data(operands.residual_out),
                                          data(operands.y), rstd, context);
  }
  return functions.module_norm_rows(module, x->dtype, rows, data(x), data(operands.y), rstd,
                                    context);
}

rmsnorm_context ContextOf(const Case& first, const char* target) {
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = first.threads;
  context.stores = first.stores;
  context.target = target;
  return context;
}

void RequireAccepted(const Calls& calls) {
  // Preparing reads only the weights, so the pages of most memory are never made.
  std::vector<std::unique_ptr<void, decltype(&std::free)>> memory;
  Calls prepared = calls;
  std::vector<CallOperands> operands;
  for (Case& c : prepared) {
    c.function = Function::kPrepared;
    c.seed = 0;  // by options
    const Layout layout(c);
    uint8_t* block[kOperands];
    for (int i = 0; i < kOperands; ++i) {
      memory.emplace_back(std::calloc(layout.block[i].bytes + 1, 1), std::free);
      if (memory.back() == nullptr) throw std::bad_alloc();
      block[i] = static_cast<uint8_t*>(memory.back().get());
    }
    operands.push_back(OperandsAt(c, layout, block));
  }
  try {
    PreparedCall(prepared, operands, ContextOf(prepared[0], "reference"));
  } catch (const Error& refused) {
    throw UserError(std::string("--case: ") + refused.what());
  }
}

PreparedCall::PreparedCall(const Calls& calls, const std::vector<CallOperands>& operands,
                           const rmsnorm_context& context, const Functions& functions)
    : functions_(functions),
      context_(context),
      function_(calls.size() == 1 || calls[0].function == Function::kPrepared ? calls[0].function
                                                                              : Function::kSeveral),
      backward_(calls[0].backward),
      rows_(calls[0].RowCount()),
      prepared_(nullptr, functions.prepared_destroy) {
  const bool in_own_context = function_ != Function::kSeveral && IsInOwnContext(calls[0]);
  own_context_ = in_own_context ? nullptr : &context_;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Case& c = calls[i];
    if (c.function == Function::kSeveral) {
      const size_t middle = c.rows[0] / 3;
      const bool with_module = c.operand[internal::kWeight].per == Per::kTensor;
      Add(c, Piece(c, operands[i], 0, middle), false, false);
      Add(c, Piece(c, operands[i], middle, c.rows[0]), with_module, false);
    } else {
      Add(c, operands[i], IsByModule(c), in_own_context);
    }
  }
  if (function_ == Function::kPrepared) Prepare();
}

void PreparedCall::Prepare() {
  rmsnorm_prepared* prepared = nullptr;
  const rmsnorm_status status =
      backward_ ? functions_.prepare_backward(&prepared, &calls_[0], &context_)
                : functions_.prepare(&prepared, calls_.data(), calls_.size(), &context_);
  prepared_.reset(prepared);
  if (status != RMSNORM_OK) throw Error(status, functions_.error_message());
}

void PreparedCall::Add(const Case& c, const CallOperands& operands, bool with_module,
                       bool in_own_context) {
  using namespace internal;
  parts_.push_back(
      std::make_unique<Part>(Part{{nullptr, functions_.module_destroy}, operands, {}, c.options}));
  Part& part = *parts_.back();
  // Default options are passed as a null pointer.
  const rmsnorm_options defaults = rmsnorm_default_options();
  const bool is_default = std::memcmp(&part.options, &defaults, sizeof defaults) == 0;
  const rmsnorm_options* const options = is_default ? nullptr : &part.options;
  if (with_module) {
    const auto require = [&](rmsnorm_status status) {
      if (status != RMSNORM_OK) throw Error(status, functions_.error_message());
    };
    const OperandSet held = HeldByModule(c) & operands.given;
    // A type that has all their values.
    rmsnorm_dtype dtype = operands.view[held != 0 ? FirstOf(held) : kX].dtype;
    ForEachOperand(held, [&](Operand o) {
      if (operands.view[o].dtype != dtype) dtype = RMSNORM_F32;
    });
    rmsnorm_module* module = nullptr;
    require(functions_.module_create(&module, c.d, dtype, options,
                                     in_own_context ? &context_ : nullptr));
    part.module.reset(module);
    ForEachOperand(held, [&](Operand o) {
      const auto set = o == kWeight ? functions_.module_set_weight
                       : o == kBias ? functions_.module_set_bias
                                    : functions_.module_set_post_norm_weight;
      require(set(module, &operands.view[o]));
    });
    part.views.given &= ~HeldByModule(c);
  }
  part.operands = part.views.Get();
  calls_.push_back({part.module.get(), &part.operands, with_module ? nullptr : options});
}

rmsnorm_status PreparedCall::Run() const noexcept {
  const rmsnorm_call& call = calls_[0];
  switch (function_) {
    case Function::kSeveral:
      return functions_.forward_all(calls_.data(), calls_.size(), own_context_);
    case Function::kRows:
      return RunRows(functions_, call.module, *call.operands, rows_, own_context_);
    case Function::kPrepared:
      return functions_.run(prepared_.get());
    case Function::kModule:
      return (backward_ ? functions_.module_backward : functions_.module_forward)(
          call.module, call.operands, own_context_);
    default:
      return (backward_ ? functions_.backward : functions_.forward)(call.operands, call.options,
                                                                    own_context_);
  }
}

}  // namespace rmsnorm::cases
