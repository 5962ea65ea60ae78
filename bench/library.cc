// SPDX-License-Identifier: Apache-2.0
// The library as a contender: modules, as in an inference engine, and dense rows by pointer where
// there is such a call.
#include <dlfcn.h>
#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <deque>
#include <memory>
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
  decltype(&rmsnorm_module_set_post_norm_weight) set_post_norm_weight =
      rmsnorm_module_set_post_norm_weight;
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
  // A build without this one takes the weight as an operand.
  functions.set_post_norm_weight = reinterpret_cast<decltype(functions.set_post_norm_weight)>(
      dlsym(library, "rmsnorm_module_set_post_norm_weight"));
  return functions;
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--older " + file + ": " + error.what());
}

// How the library does an operation.
enum class Calls {
  kTogether,  // in one call
  kApart      // in a call for each step
};

// A case with the modules and views for its calls.
class LibraryCase {
 public:
  LibraryCase(const Functions& functions, const rmsnorm_peer_case& what,
              const rmsnorm_context& context, Calls calls)
      : functions_(functions), what_(what), context_(context) {
    options_.eps = what.eps;
    run = calls == Calls::kTogether ? PlanTogether() : PlanApart();
  }
  LibraryCase(const LibraryCase&) = delete;  // its operands point to its views
  LibraryCase& operator=(const LibraryCase&) = delete;

  void (*run)(void*);

 private:
  using RunFunction = void (*)(void*);
  template <rmsnorm_status (LibraryCase::*function)() const>
  static void Call(void* state) {
    LibraryCase& self = *static_cast<LibraryCase*>(state);
    self.Check((self.*function)());
  }

  RunFunction PlanTogether() {
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
    switch (what_.operation) {
      case RMSNORM_PEER_NORM_CALL:
        operands_.weight = &weight_;
        return Call<&LibraryCase::Forward>;
      case RMSNORM_PEER_LATENT:
      case RMSNORM_PEER_Q_AND_K:
        AddNormsOfParts();
        return Call<&LibraryCase::ForwardAll>;
      case RMSNORM_PEER_GATE_BEFORE:
        AddNormOfGroups(x_).gate = Keep(Parts(gate_, 0, Groups(), kGroup));
        options_.gate_placement = RMSNORM_GATE_BEFORE;
        return Call<&LibraryCase::OneByOne>;
      default:
        break;
    }
    module_ = MakeModule(what_.weight, what_.d);
    switch (what_.operation) {
      case RMSNORM_PEER_ADD_NORM:
        return Call<&LibraryCase::AddNorm>;
      case RMSNORM_PEER_BACKWARD:
        return Call<&LibraryCase::Backward>;
      case RMSNORM_PEER_SUM_SQUARES:
        operands_.sums_out = &sums_;
        return Call<&LibraryCase::ModuleForward>;
      case RMSNORM_PEER_SCALE:
        operands_.sums = &sums_;
        return Call<&LibraryCase::ModuleForward>;
      case RMSNORM_PEER_POST_NORM:
      case RMSNORM_PEER_POST_ADD:
        if (functions_.set_post_norm_weight != nullptr) {
          Check(functions_.set_post_norm_weight(module_, &post_norm_weight_));
          operands_.post_norm_weight = nullptr;
          if (what_.y != nullptr) return Call<&LibraryCase::AddNorm>;
        }
        return Call<&LibraryCase::ModuleForward>;
      case RMSNORM_PEER_GATE_AFTER:
      case RMSNORM_PEER_INT8:
      case RMSNORM_PEER_INT8_ALONE:
        return Call<&LibraryCase::ModuleForward>;
      default:
        return Call<&LibraryCase::Norm>;
    }
  }

  RunFunction PlanApart() {
    if (const char* const why = WhyNotApart(what_.operation)) throw Refusal(why);
    switch (what_.operation) {
      case RMSNORM_PEER_LATENT:
      case RMSNORM_PEER_Q_AND_K:
        AddNormsOfParts();
        // The heads of one token are dense rows. Those of several lie apart, which takes views.
        if (what_.rows == 1) return Call<&LibraryCase::NormsOfPartsByPointers>;
        return Call<&LibraryCase::OneByOne>;
      case RMSNORM_PEER_POST_NORM:
        module_ = MakeModule(what_.weight, what_.d);
        post_norm_ = MakeModule(what_.post_norm_weight, what_.d);
        normed_ = what_.y;
        return Call<&LibraryCase::PostNormApart>;
      case RMSNORM_PEER_POST_ADD:
        post_norm_ = MakeModule(what_.post_norm_weight, what_.d);
        normed_ = Scratch(rmsnorm_dtype_size(what_.dtype));
        operands_.x = Keep(Rows(normed_));
        operands_.residual = operands_.residual_out = &residual_;
        return Call<&LibraryCase::PostAddApart>;
      case RMSNORM_PEER_GATE_BEFORE: {
        rmsnorm_operands& gating = AddStep(x_);
        gating.gate = &gate_;
        // In one call, the product is not rounded to the type of x.
        gating.y =
            what_.dtype == RMSNORM_F32 ? &y_ : Keep(Rows(Scratch(sizeof(float)), RMSNORM_F32));
        AddNormOfGroups(*gating.y);
        return Call<&LibraryCase::OneByOne>;
      }
      default: {  // RMSNORM_PEER_INT8, RMSNORM_PEER_INT8_ALONE
        module_ = MakeModule(what_.weight, what_.d);
        normed_ = what_.y != nullptr ? what_.y : Scratch(rmsnorm_dtype_size(what_.dtype));
        rmsnorm_operands& quantising = AddStep(*Keep(Rows(normed_)));
        quantising.q = &q_;
        quantising.scale = &scale_;
        return Call<&LibraryCase::Int8Apart>;
      }
    }
  }

  void Check(rmsnorm_status status) const {
    if (status != RMSNORM_OK) throw Refusal(functions_.error_message());
  }

  rmsnorm_status Norm() const { return NormRows(module_, what_.rows, what_.x, what_.y); }
  rmsnorm_status AddNorm() const { return AddNormRows(what_.x); }
  rmsnorm_status Backward() const {
    return functions_.backward_rows(module_, what_.dtype, what_.rows, what_.dy, what_.x, what_.rstd,
                                    what_.dx, what_.dw, nullptr);
  }
  rmsnorm_status ModuleForward() const {
    return functions_.module_forward(module_, &operands_, nullptr);
  }
  rmsnorm_status Forward() const { return functions_.forward(&operands_, &options_, &context_); }
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
  rmsnorm_status NormsOfPartsByPointers() const {
    for (const rmsnorm_call& call : calls_) {
      const rmsnorm_view& x = *call.operands->x;
      const rmsnorm_status status =
          NormRows(call.module, x.shape[1], x.data, const_cast<void*>(call.operands->y->data));
      if (status != RMSNORM_OK) return status;
    }
    return RMSNORM_OK;
  }
  rmsnorm_status PostNormApart() const {
    const rmsnorm_status status = NormRows(post_norm_, what_.rows, what_.x, normed_);
    return status == RMSNORM_OK ? AddNormRows(normed_) : status;
  }
  rmsnorm_status PostAddApart() const {
    const rmsnorm_status status = NormRows(post_norm_, what_.rows, what_.x, normed_);
    return status == RMSNORM_OK ? Forward() : status;
  }
  rmsnorm_status Int8Apart() const {
    const rmsnorm_status status = NormRows(module_, what_.rows, what_.x, normed_);
    return status == RMSNORM_OK ? OneByOne() : status;
  }

  rmsnorm_status NormRows(const rmsnorm_module* module, size_t rows, const void* x, void* y) const {
    return functions_.norm_rows(module, what_.dtype, rows, x, y, nullptr, nullptr);
  }
  rmsnorm_status AddNormRows(const void* x) const {
    return functions_.add_norm_rows(module_, what_.dtype, what_.dtype, what_.rows, x,
                                    what_.residual, what_.residual, what_.y, nullptr, nullptr);
  }

  rmsnorm_module* MakeModule(const void* weight, size_t d) {
    rmsnorm_module* module = nullptr;
    Check(functions_.module_create(&module, d, what_.dtype, &options_, &context_));
    modules_.emplace_back(module, functions_.module_destroy);
    const rmsnorm_view view = rmsnorm_vector(weight, what_.dtype, d);
    Check(functions_.module_set_weight(module, &view));
    return module;
  }

  // Keeps a view as long as the case.
  const rmsnorm_view* Keep(const rmsnorm_view& view) { return &views_.emplace_back(view); }

  // Rows between two steps that are no result of the operation.
  void* Scratch(size_t element_bytes) {
    scratch_.resize(what_.rows * what_.d * element_bytes);
    return scratch_.data();
  }

  // Adds a call on x; the caller adds other operands.
  rmsnorm_operands& AddCall(const rmsnorm_module* module, const rmsnorm_view& x,
                            const rmsnorm_options* options) {
    rmsnorm_operands& operands = all_operands_.emplace_back(rmsnorm_no_operands());
    operands.x = &x;
    calls_.push_back({module, &operands, options});
    return operands;
  }

  // Adds a step that takes x as the norm itself: rows with a given RMS of 1.
  rmsnorm_operands& AddStep(const rmsnorm_view& x) {
    sums_of_ones_.assign(what_.rows, static_cast<double>(what_.d));
    rmsnorm_operands& operands = AddCall(nullptr, x, &without_eps_);
    operands.sums = Keep(rmsnorm_vector(sums_of_ones_.data(), RMSNORM_F64, what_.rows));
    return operands;
  }

  // Adds the two norms of LATENT or Q_AND_K.
  void AddNormsOfParts() {
    if (what_.operation == RMSNORM_PEER_LATENT) {
      const size_t times = what_.d / RMSNORM_PEER_LATENT_ROW;
      AddNormOfParts(0, 1, times * RMSNORM_PEER_LATENT_Q);
      AddNormOfParts(times * RMSNORM_PEER_LATENT_Q, 1, times * RMSNORM_PEER_LATENT_KV);
    } else {
      const size_t head = what_.d / RMSNORM_PEER_HEADS;
      AddNormOfParts(0, RMSNORM_PEER_HEADS_OF_Q, head);
      AddNormOfParts(head * RMSNORM_PEER_HEADS_OF_Q, RMSNORM_PEER_HEADS_OF_K, head);
    }
  }

  // Adds the norm of parts of each row. `begin` is the first element of the first part, and of the
  // weight.
  void AddNormOfParts(size_t begin, size_t parts, size_t d) {
    const rmsnorm_module* const module = MakeModule(At(weight_, begin), d);
    AddCall(module, *Keep(Parts(x_, begin, parts, d)), nullptr).y =
        Keep(Parts(y_, begin, parts, d));
  }

  // Adds the norm of groups into y. Each group has its own part of the weight, which no module
  // holds.
  rmsnorm_operands& AddNormOfGroups(const rmsnorm_view& from) {
    rmsnorm_operands& operands =
        AddCall(nullptr, *Keep(Parts(from, 0, Groups(), kGroup)), &options_);
    operands.y = Keep(Parts(y_, 0, Groups(), kGroup));
    operands.weight = Keep(rmsnorm_rows(what_.weight, what_.dtype, Groups(), kGroup, kGroup));
    return operands;
  }
  size_t Groups() const { return what_.d / kGroup; }

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

  static constexpr size_t kGroup = RMSNORM_PEER_GROUP;

  const Functions functions_;
  const rmsnorm_peer_case what_;
  const rmsnorm_context context_;
  rmsnorm_options options_ = rmsnorm_default_options();
  const rmsnorm_options without_eps_ = [] {
    rmsnorm_options options = rmsnorm_default_options();
    options.eps = 0;
    return options;
  }();
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
  std::vector<std::unique_ptr<rmsnorm_module, decltype(&rmsnorm_module_destroy)>> modules_;
  rmsnorm_module* module_ = nullptr;
  const rmsnorm_module* post_norm_ = nullptr;
  rmsnorm_operands operands_ = rmsnorm_no_operands();
  void* normed_ = nullptr;  // the norm, for the next step
  std::vector<uint8_t> scratch_;
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

class Build : public Contender {
 public:
  Build(std::string name, const Functions& functions, Calls calls = Calls::kTogether)
      : Contender(std::move(name), true), functions_(functions), calls_(calls) {}

  Prepared Prepare(const rmsnorm_peer_case& what, const char* target) const override {
    auto made = std::make_unique<LibraryCase>(functions_, what, ContextFor(what, target), calls_);
    void (*const run)(void*) = made->run;
    return {run, made.release(), [](void* state) { delete static_cast<LibraryCase*>(state); }};
  }

 private:
  const Functions functions_;
  const Calls calls_;
};

class BuildOnOneThread final : public Build {
 public:
  using Build::Build;

  bool Joins(const rmsnorm_peer_case& what) const override { return what.threads > 1; }
  Prepared Prepare(const rmsnorm_peer_case& what, const char* target) const override {
    rmsnorm_peer_case serial = what;
    serial.threads = 1;
    return Build::Prepare(serial, target);
  }
};

}  // namespace

std::unique_ptr<Contender> Library() { return std::make_unique<Build>("library", Functions()); }

std::unique_ptr<Contender> Apart() {
  return std::make_unique<Build>(kApart, Functions(), Calls::kApart);
}

const char* WhyNotApart(int32_t operation) {
  switch (operation) {
    case RMSNORM_PEER_LATENT:
    case RMSNORM_PEER_Q_AND_K:
    case RMSNORM_PEER_POST_NORM:
    case RMSNORM_PEER_POST_ADD:
    case RMSNORM_PEER_GATE_BEFORE:
    case RMSNORM_PEER_INT8:
    case RMSNORM_PEER_INT8_ALONE:
      return nullptr;
    case RMSNORM_PEER_GATE_AFTER:
      return "two calls would round the norm before the gate";
    default:
      return "one step already";
  }
}

std::unique_ptr<Contender> OneThread() {
  return std::make_unique<BuildOnOneThread>(kOneThread, Functions());
}

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
  LibraryCase counted(Functions(), what, context, Calls::kTogether);
  counted.run(&counted);
  return parts;
}

}  // namespace rmsnorm::bench
