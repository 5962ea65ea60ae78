// SPDX-License-Identifier: Apache-2.0
// The library as a contender: modules with dense rows by pointer, as in an inference engine, and
// calls with views for the operations that need them.
#include <dlfcn.h>
#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "cell.h"
#include "contender.h"

namespace rmsnorm::bench {
namespace {

// The functions of one build of the library.
struct Functions {
  decltype(&rmsnorm_error_message) error_message = rmsnorm_error_message;
  decltype(&rmsnorm_forward) forward = rmsnorm_forward;
  decltype(&rmsnorm_forward_all) forward_all = rmsnorm_forward_all;
  decltype(&rmsnorm_module_create) module_create = rmsnorm_module_create;
  decltype(&rmsnorm_module_destroy) module_destroy = rmsnorm_module_destroy;
  decltype(&rmsnorm_module_set_weight) module_set_weight = rmsnorm_module_set_weight;
  decltype(&rmsnorm_module_norm_rows) norm_rows = rmsnorm_module_norm_rows;
  decltype(&rmsnorm_module_add_norm_rows) add_norm_rows = rmsnorm_module_add_norm_rows;
  decltype(&rmsnorm_module_forward) module_forward = rmsnorm_module_forward;
  decltype(&rmsnorm_module_backward_rows) backward_rows = rmsnorm_module_backward_rows;
};

template <class Function>
void Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("has no function ") + name + "()");
}

Functions Load(const std::string& file) try {
  // One build must not call the functions of another. AddressSanitizer forbids RTLD_DEEPBIND.
  const bool is_sanitized = dlsym(RTLD_DEFAULT, "__asan_init") != nullptr;
  void* const library = LoadLibrary(file, is_sanitized ? 0 : RTLD_DEEPBIND);
  Functions functions;
  Find(library, "rmsnorm_error_message", functions.error_message);
  Find(library, "rmsnorm_forward", functions.forward);
  Find(library, "rmsnorm_forward_all", functions.forward_all);
  Find(library, "rmsnorm_module_create", functions.module_create);
  Find(library, "rmsnorm_module_destroy", functions.module_destroy);
  Find(library, "rmsnorm_module_set_weight", functions.module_set_weight);
  Find(library, "rmsnorm_module_norm_rows", functions.norm_rows);
  Find(library, "rmsnorm_module_add_norm_rows", functions.add_norm_rows);
  Find(library, "rmsnorm_module_forward", functions.module_forward);
  Find(library, "rmsnorm_module_backward_rows", functions.backward_rows);
  return functions;
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--older " + file + ": " + error.what());
}

// A case with the views for its calls.
class LibraryCase {
 public:
  LibraryCase(const Functions& functions, const rmsnorm_peer_case& what,
              const rmsnorm_context& context)
      : functions_(functions), what_(what), context_(context) {
    options_.eps = what.eps;
    MakeModule(weight_, module_);
    const auto given = [](const rmsnorm_view& view) {
      return view.data != nullptr ? &view : nullptr;
    };
    operands_.x = &x_;
    operands_.residual = operands_.residual_out = given(residual_);
    operands_.post_norm_weight = given(post_norm_weight_);
    operands_.gate = given(gate_);
    operands_.y = given(y_);
    operands_.q = given(q_);
    operands_.scale = given(scale_);
    switch (what.operation) {
      case RMSNORM_PEER_ADD_NORM:
        run = Call<&LibraryCase::AddNorm>;
        break;
      case RMSNORM_PEER_BACKWARD:
        run = Call<&LibraryCase::Backward>;
        break;
      case RMSNORM_PEER_SUM_SQUARES:
        operands_.sums_out = &sums_;
        run = Call<&LibraryCase::NormCall>;
        break;
      case RMSNORM_PEER_SCALE:
        operands_.sums = &sums_;
        operands_.weight = &weight_;
        run = Call<&LibraryCase::NormCall>;
        break;
      case RMSNORM_PEER_NORM_CALL:
        operands_.weight = &weight_;
        run = Call<&LibraryCase::NormCall>;
        break;
      case RMSNORM_PEER_LATENT:
        AddHeads(0, 1, what.d / kLatentRow * kLatentQ);
        AddHeads(what.d / kLatentRow * kLatentQ, 1, what.d / kLatentRow * kLatentKv);
        run = Call<&LibraryCase::ForwardAll>;
        break;
      case RMSNORM_PEER_Q_AND_K:
        AddHeads(0, kHeadsOfQ, what.d / kHeads);
        AddHeads(what.d / kHeads * kHeadsOfQ, kHeadsOfK, what.d / kHeads);
        run = Call<&LibraryCase::ForwardAll>;
        break;
      case RMSNORM_PEER_ALL_HEADS:
        AddHeads(0, kHeadsOfQ + kHeadsOfK, what.d / kHeads);
        run = Call<&LibraryCase::OneByOne>;
        break;
      case RMSNORM_PEER_POST_NORM:
      case RMSNORM_PEER_POST_ADD:
      case RMSNORM_PEER_GATE_AFTER:
      case RMSNORM_PEER_INT8:
      case RMSNORM_PEER_INT8_ALONE:
        run = Call<&LibraryCase::ModuleForward>;
        break;
      case RMSNORM_PEER_POST_APART: {
        MakeModule(post_norm_weight_, post_norm_);
        AddCall(post_norm_, x_, y_);
        rmsnorm_operands& addition = AddCall(nullptr, y_, residual_);
        addition.residual = addition.residual_out = &residual_;
        addition.y = nullptr;
        AddCall(module_, residual_, y_);
        run = Call<&LibraryCase::OneByOne>;
        break;
      }
      case RMSNORM_PEER_GATE_BEFORE:
        options_.gate_placement = RMSNORM_GATE_BEFORE;
        AddGroups(x_).gate = Keep(Parts(gate_, 0, what.d / kGroup, kGroup));
        run = Call<&LibraryCase::OneByOne>;
        break;
      case RMSNORM_PEER_GATE_APART: {
        // The gate alone: a norm of rows with a given RMS of 1.
        rmsnorm_operands& gating = AddCall(nullptr, x_, y_, &without_eps_);
        gating.gate = &gate_;
        sums_of_ones_.assign(what.rows, static_cast<double>(what.d));
        gating.sums = Keep(rmsnorm_vector(sums_of_ones_.data(), RMSNORM_F64, what.rows));
        AddGroups(y_);
        run = Call<&LibraryCase::OneByOne>;
        break;
      }
      default:
        run = Call<&LibraryCase::Norm>;
    }
  }
  ~LibraryCase() {
    functions_.module_destroy(module_);
    functions_.module_destroy(post_norm_);
  }
  LibraryCase(const LibraryCase&) = delete;  // its operands point to its views
  LibraryCase& operator=(const LibraryCase&) = delete;

  void (*run)(void*);

 private:
  template <rmsnorm_status (LibraryCase::*function)() const>
  static void Call(void* state) {
    LibraryCase& self = *static_cast<LibraryCase*>(state);
    self.Check((self.*function)());
  }

  void Check(rmsnorm_status status) const {
    if (status != RMSNORM_OK) throw Refusal(functions_.error_message());
  }

  rmsnorm_status Norm() const {
    return functions_.norm_rows(module_, what_.dtype, what_.rows, what_.x, what_.y, nullptr,
                                nullptr);
  }
  rmsnorm_status AddNorm() const {
    return functions_.add_norm_rows(module_, what_.dtype, what_.dtype, what_.rows, what_.x,
                                    what_.residual, what_.residual, what_.y, nullptr, nullptr);
  }
  rmsnorm_status Backward() const {
    return functions_.backward_rows(module_, what_.dtype, what_.rows, what_.dy, what_.x, what_.rstd,
                                    what_.dx, what_.dw, nullptr);
  }
  rmsnorm_status ModuleForward() const {
    return functions_.module_forward(module_, &operands_, nullptr);
  }
  rmsnorm_status NormCall() const { return functions_.forward(&operands_, &options_, &context_); }
  rmsnorm_status ForwardAll() const {
    return functions_.forward_all(calls_.data(), calls_.size(), &context_);
  }
  rmsnorm_status OneByOne() const {
    for (const rmsnorm_call& call : calls_) {
      const rmsnorm_status status =
          call.module != nullptr ? functions_.module_forward(call.module, call.operands, nullptr)
                                 : functions_.forward(call.operands, call.options, &context_);
      if (status != RMSNORM_OK) return status;
    }
    return RMSNORM_OK;
  }

  void MakeModule(const rmsnorm_view& weight, rmsnorm_module*& module) {
    Check(functions_.module_create(&module, what_.d, what_.dtype, &options_, &context_));
    Check(functions_.module_set_weight(module, &weight));
  }

  // Keeps a view as long as the case.
  const rmsnorm_view* Keep(const rmsnorm_view& view) { return &views_.emplace_back(view); }

  // Adds a call from one tensor to another; the caller may add operands.
  rmsnorm_operands& AddCall(const rmsnorm_module* module, const rmsnorm_view& from,
                            const rmsnorm_view& to, const rmsnorm_options* options) {
    rmsnorm_operands& operands = all_operands_.emplace_back(rmsnorm_no_operands());
    operands.x = Keep(from);
    operands.y = Keep(to);
    calls_.push_back({module, &operands, options});
    return operands;
  }
  // Uses the options of the case; a module has the same.
  rmsnorm_operands& AddCall(const rmsnorm_module* module, const rmsnorm_view& from,
                            const rmsnorm_view& to) {
    return AddCall(module, from, to, module != nullptr ? nullptr : &options_);
  }

  // Adds the norm of some heads in each row of x. `begin` is the first element of the first head,
  // and of the weight.
  void AddHeads(size_t begin, size_t heads, size_t d) {
    AddCall(nullptr, Parts(x_, begin, heads, d), Parts(y_, begin, heads, d)).weight =
        Keep(rmsnorm_vector(At(weight_, begin), what_.dtype, d));
  }

  // Adds the norm of groups into y; each group has its own part of the weight.
  rmsnorm_operands& AddGroups(const rmsnorm_view& from) {
    const size_t groups = what_.d / kGroup;
    rmsnorm_operands& operands =
        AddCall(nullptr, Parts(from, 0, groups, kGroup), Parts(y_, 0, groups, kGroup));
    operands.weight = Keep(rmsnorm_rows(what_.weight, what_.dtype, groups, kGroup, kGroup));
    return operands;
  }

  const void* At(const rmsnorm_view& view, size_t element) const {
    return static_cast<const uint8_t*>(view.data) + element * rmsnorm_dtype_size(view.dtype);
  }

  // Parts of each row; the first begins at element `begin`.
  rmsnorm_view Parts(const rmsnorm_view& rows, size_t begin, size_t parts, size_t d) const {
    const size_t shape[] = {what_.rows, parts, d};
    const ptrdiff_t stride[] = {static_cast<ptrdiff_t>(what_.d), static_cast<ptrdiff_t>(d), 1};
    return rmsnorm_tensor(At(rows, begin), rows.dtype, 3, shape, stride);
  }

  rmsnorm_view Rows(const void* data) const { return Rows(data, what_.dtype); }
  rmsnorm_view Rows(const void* data, rmsnorm_dtype dtype) const {
    return rmsnorm_rows(data, dtype, what_.rows, what_.d, static_cast<ptrdiff_t>(what_.d));
  }

  const Functions functions_;
  const rmsnorm_peer_case what_;
  const rmsnorm_context context_;
  rmsnorm_options options_ = rmsnorm_default_options();
  const rmsnorm_options without_eps_ = [] {
    rmsnorm_options options = rmsnorm_default_options();
    options.eps = 0;
    return options;
  }();
  rmsnorm_module* module_ = nullptr;
  rmsnorm_module* post_norm_ = nullptr;
  const rmsnorm_view x_ = Rows(what_.x);
  const rmsnorm_view residual_ = Rows(what_.residual);
  const rmsnorm_view gate_ = Rows(what_.gate);
  const rmsnorm_view y_ = Rows(what_.y);
  const rmsnorm_view q_ = Rows(what_.q, RMSNORM_I8);
  const rmsnorm_view weight_ = rmsnorm_vector(what_.weight, what_.dtype, what_.d);
  const rmsnorm_view post_norm_weight_ =
      rmsnorm_vector(what_.post_norm_weight, what_.dtype, what_.d);
  const rmsnorm_view scale_ = rmsnorm_vector(what_.scale, RMSNORM_F32, what_.rows);
  const rmsnorm_view sums_ = rmsnorm_vector(what_.sums, RMSNORM_F64, what_.rows);
  rmsnorm_operands operands_ = rmsnorm_no_operands();
  // For operations that take several calls or parts of the rows.
  std::deque<rmsnorm_view> views_;
  std::deque<rmsnorm_operands> all_operands_;
  std::vector<rmsnorm_call> calls_;
  std::vector<double> sums_of_ones_;
};

rmsnorm_context ContextFor(const rmsnorm_peer_case& what, const char* target) {
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = what.threads;
  context.target = target;
  return context;
}

class Build final : public Contender {
 public:
  Build(std::string name, const Functions& functions)
      : Contender(std::move(name), true), functions_(functions) {}

  Prepared Prepare(const rmsnorm_peer_case& what, const char* target) const override {
    auto made = std::make_unique<LibraryCase>(functions_, what, ContextFor(what, target));
    void (*const run)(void*) = made->run;
    return {run, made.release(), [](void* state) { delete static_cast<LibraryCase*>(state); }};
  }

 private:
  const Functions functions_;
};

}  // namespace

std::unique_ptr<Contender> Library() { return std::make_unique<Build>("library", Functions()); }

std::unique_ptr<Contender> Older(const std::string& file) {
  return std::make_unique<Build>("older", Load(file));
}

// Counts the parts that an executor gets. OpenMP gets as many, except for small work if its
// parallel regions take more than 0.75 us; only the library measures that.
size_t CountParts(const rmsnorm_peer_case& what, const char* target) {
  size_t parts = 1;
  rmsnorm_context context = ContextFor(what, target);
  context.parallel_context = &parts;
  context.parallel_for = [](void* counter, size_t count, rmsnorm_task task, void* state) {
    size_t& most = *static_cast<size_t*>(counter);
    most = std::max(most, count);
    for (size_t i = 0; i < count; ++i) task(state, i);
  };
  LibraryCase counted(Functions(), what, context);
  counted.run(&counted);
  return parts;
}

}  // namespace rmsnorm::bench
