// SPDX-License-Identifier: Apache-2.0
// The library as a contender: through modules with dense rows by pointer, as an engine has it, and
// through calls with views where an operation needs them.
#include <dlfcn.h>
#include <rmsnorm/rmsnorm.h>

#include <algorithm>

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
  decltype(&rmsnorm_module_forward_rows) forward_rows = rmsnorm_module_forward_rows;
  decltype(&rmsnorm_module_add_forward_rows) add_forward_rows = rmsnorm_module_add_forward_rows;
  decltype(&rmsnorm_module_backward) module_backward = rmsnorm_module_backward;
  decltype(&rmsnorm_module_backward_rows) backward_rows = rmsnorm_module_backward_rows;
};

template <class Function>
void Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("has no function ") + name + "()");
}

Functions Load(const std::string& file) try {
  // What one build calls of its own functions is not to be another's. AddressSanitizer forbids
  // this.
  const bool is_sanitized = dlsym(RTLD_DEFAULT, "__asan_init") != nullptr;
  void* const library = LoadLibrary(file, is_sanitized ? 0 : RTLD_DEEPBIND);
  Functions functions;
  Find(library, "rmsnorm_error_message", functions.error_message);
  Find(library, "rmsnorm_forward", functions.forward);
  Find(library, "rmsnorm_forward_all", functions.forward_all);
  Find(library, "rmsnorm_module_create", functions.module_create);
  Find(library, "rmsnorm_module_destroy", functions.module_destroy);
  Find(library, "rmsnorm_module_set_weight", functions.module_set_weight);
  Find(library, "rmsnorm_module_forward_rows", functions.forward_rows);
  Find(library, "rmsnorm_module_add_forward_rows", functions.add_forward_rows);
  Find(library, "rmsnorm_module_backward", functions.module_backward);
  Find(library, "rmsnorm_module_backward_rows", functions.backward_rows);
  return functions;
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--older " + file + ": " + error.what());
}

// A case with the views that its call takes.
class LibraryCase {
 public:
  LibraryCase(const Functions& functions, const rmsnorm_peer_case& what,
              const rmsnorm_context& context)
      : functions_(functions), what_(what), context_(context) {
    options_.eps = what.eps;
    Check(functions_.module_create(&module_, what.d, what.dtype, &options_, &context_));
    Check(functions_.module_set_weight(module_, &weight_));
    operands_.x = &x_;
    operands_.y = &y_;
    operands_.weight = &weight_;
    switch (what.operation) {
      case RMSNORM_PEER_ADD_FORWARD:
        run = Call<&LibraryCase::AddForward>;
        break;
      case RMSNORM_PEER_BACKWARD:
        operands_.y = operands_.weight = nullptr;
        operands_.dy = &dy_;
        operands_.rstd = &rstd_;
        operands_.dx = &dx_;
        operands_.dw = &dw_;
        // Rows by pointer take a dw of the type of x.
        run = what.dtype == RMSNORM_F32 ? Call<&LibraryCase::BackwardRows>
                                        : Call<&LibraryCase::Backward>;
        break;
      case RMSNORM_PEER_SUM_SQUARES:
        operands_.y = operands_.weight = nullptr;
        operands_.sums_out = &sums_;
        run = Call<&LibraryCase::ForwardCall>;
        break;
      case RMSNORM_PEER_SCALE:
        operands_.sums = &sums_;
        run = Call<&LibraryCase::ForwardCall>;
        break;
      case RMSNORM_PEER_FORWARD_CALL:
        run = Call<&LibraryCase::ForwardCall>;
        break;
      case RMSNORM_PEER_LATENT:
        SplitIntoLatents();
        run = Call<&LibraryCase::ForwardAll>;
        break;
      default:
        run = Call<&LibraryCase::Forward>;
    }
  }
  ~LibraryCase() { functions_.module_destroy(module_); }
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

  rmsnorm_status Forward() const {
    return functions_.forward_rows(module_, what_.dtype, what_.rows, what_.x, what_.y);
  }
  rmsnorm_status AddForward() const {
    return functions_.add_forward_rows(module_, what_.dtype, what_.rows, what_.x, what_.residual,
                                       what_.residual, what_.y);
  }
  rmsnorm_status BackwardRows() const {
    return functions_.backward_rows(module_, what_.dtype, what_.rows, what_.dy, what_.x, what_.rstd,
                                    what_.dx, what_.dw);
  }
  rmsnorm_status Backward() const {
    return functions_.module_backward(module_, &operands_, nullptr);
  }
  rmsnorm_status ForwardCall() const {
    return functions_.forward(&operands_, &options_, &context_);
  }
  rmsnorm_status ForwardAll() const { return functions_.forward_all(latents_, 2, &context_); }

  void SplitIntoLatents() {
    size_t begin = 0;
    for (size_t i = 0; i < 2; ++i) {
      const size_t d = i == 0 ? kLatentQ : kLatentKv;
      const rmsnorm_view* const wholes[] = {&x_, &y_, &weight_};
      for (size_t j = 0; j < 3; ++j) {
        rmsnorm_view& view = latent_views_[i][j];
        view = *wholes[j];
        view.shape[view.ndim - 1] = d;
        view.data = static_cast<uint8_t*>(view.data) + begin * rmsnorm_dtype_size(view.dtype);
      }
      latent_operands_[i].x = &latent_views_[i][0];
      latent_operands_[i].y = &latent_views_[i][1];
      latent_operands_[i].weight = &latent_views_[i][2];
      latents_[i] = {nullptr, &latent_operands_[i], &options_};
      begin += d;
    }
  }

  rmsnorm_view Rows(const void* data) const {
    return rmsnorm_rows(data, what_.dtype, what_.rows, what_.d, static_cast<ptrdiff_t>(what_.d));
  }

  const Functions functions_;
  const rmsnorm_peer_case what_;
  const rmsnorm_context context_;
  rmsnorm_options options_ = rmsnorm_default_options();
  rmsnorm_module* module_ = nullptr;
  const rmsnorm_view x_ = Rows(what_.x);
  const rmsnorm_view y_ = Rows(what_.y);
  const rmsnorm_view dy_ = Rows(what_.dy);
  const rmsnorm_view dx_ = Rows(what_.dx);
  const rmsnorm_view weight_ = rmsnorm_vector(what_.weight, what_.dtype, what_.d);
  const rmsnorm_view rstd_ = rmsnorm_vector(what_.rstd, RMSNORM_F32, what_.rows);
  const rmsnorm_view sums_ = rmsnorm_vector(what_.sums, RMSNORM_F64, what_.rows);
  const rmsnorm_view dw_ = rmsnorm_vector(what_.dw, RMSNORM_F32, what_.d);
  rmsnorm_operands operands_ = rmsnorm_no_operands();
  rmsnorm_view latent_views_[2][3];
  rmsnorm_operands latent_operands_[2] = {rmsnorm_no_operands(), rmsnorm_no_operands()};
  rmsnorm_call latents_[2];
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

// The library hands its parts to an executor just as to OpenMP, so one that counts them tells.
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
