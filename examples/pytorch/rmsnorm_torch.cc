// SPDX-License-Identifier: Apache-2.0
// RMSNorm as PyTorch operators on the CPU, with gradients. From Python:
//
//     torch.ops.load_library("build/examples/pytorch/rmsnorm_torch.so")
//     y = torch.ops.rmsnorm.rms_norm(x, weight, 1e-6)
//
// The library reads and writes tensors of f32, f16 and bf16 where they lie, with any strides, as
// long as the elements of a row are neighbours. The operators refuse other tensors instead of
// copying them. They copy in one case: autograd may make a gradient without such rows, such as one
// repeated number for a sum, and the user cannot copy it.
//
// Rows are spread over PyTorch's own threads; torch.set_num_threads() sets their number.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>

namespace {

using OptionalTensor = c10::optional<at::Tensor>;  // std::optional since PyTorch 2.4

// ------------------------------------------------------------------------- tensors as views

struct Argument {
  const char* name;
  const at::Tensor& tensor;
};

rmsnorm::Dtype DtypeOf(const Argument& argument) {
  switch (argument.tensor.scalar_type()) {
    case at::kFloat:
      return rmsnorm::Dtype::f32;
    case at::kHalf:
      return rmsnorm::Dtype::f16;
    case at::kBFloat16:
      return rmsnorm::Dtype::bf16;
    default:
      TORCH_CHECK(false, argument.name, " is of ", argument.tensor.scalar_type(),
                  "; rmsnorm takes Float, Half and BFloat16");
  }
}

void CheckShape(const Argument& argument, const at::Tensor& x) {
  TORCH_CHECK(argument.tensor.dim() > 0, argument.name, " has no dimension");
  TORCH_CHECK(argument.tensor.sizes() == x.sizes(), argument.name, " has the shape ",
              argument.tensor.sizes(), ", and x ", x.sizes());
  // The last stride does not matter if rows have one element, or if there are no elements.
  TORCH_CHECK(argument.tensor.stride(-1) == 1 || x.size(-1) == 1 || x.numel() == 0, argument.name,
              " has rows that are not contiguous (stride ", argument.tensor.stride(-1),
              " in the last dimension); rmsnorm does not copy them: call .contiguous()");
}

// Views of all tensors of a call with the shape of x, the first of them. A PyTorch tensor may have
// more dimensions than a view, so neighbouring dimensions merge if all tensors allow it.
template <size_t N>
std::array<rmsnorm::View, N> Views(const Argument (&arguments)[N]) {
  constexpr size_t kLast = RMSNORM_MAX_DIMS - 1;
  const at::Tensor& x = arguments[0].tensor;
  for (const Argument& argument : arguments) CheckShape(argument, x);

  // Filled from the last dimension to the first.
  size_t first = kLast;
  std::array<size_t, RMSNORM_MAX_DIMS> shape;
  std::array<std::array<ptrdiff_t, RMSNORM_MAX_DIMS>, N> stride;
  shape[kLast] = static_cast<size_t>(x.size(-1));
  for (size_t i = 0; i < N; ++i) stride[i][kLast] = 1;
  for (int64_t dim = x.dim() - 2; dim >= 0; --dim) {
    const int64_t count = x.size(dim);
    if (count == 1) continue;
    bool merges = first < kLast;
    for (size_t i = 0; merges && i < N; ++i) {
      merges = arguments[i].tensor.stride(dim) ==
               stride[i][first] * static_cast<ptrdiff_t>(shape[first]);
    }
    if (merges) {
      shape[first] *= static_cast<size_t>(count);
      continue;
    }
    TORCH_CHECK(first > 0, "x has ", x.dim(), " dimensions, of which more than ", RMSNORM_MAX_DIMS,
                " remain where neighbours with even strides count as one; rmsnorm takes no more: "
                "call .contiguous()");
    --first;
    shape[first] = static_cast<size_t>(count);
    for (size_t i = 0; i < N; ++i) stride[i][first] = arguments[i].tensor.stride(dim);
  }

  std::array<rmsnorm::View, N> views;
  for (size_t i = 0; i < N; ++i) {
    views[i] = {arguments[i].tensor.data_ptr(), DtypeOf(arguments[i]), kLast - first + 1,
                shape.data() + first, stride[i].data() + first};
  }
  return views;
}

// A view of a weight or its gradient; empty if it is absent.
rmsnorm::View WeightView(const char* name, const OptionalTensor& weight) {
  if (!weight) return {};
  TORCH_CHECK(weight->dim() == 1, name, " has ", weight->dim(),
              " dimensions; rmsnorm normalises over the last one alone");
  return Views({{name, *weight}})[0];
}

// ---------------------------------------------------------------------- options and context

void ParallelFor(void*, size_t count, rmsnorm_task task, void* state) {
  at::parallel_for(0, static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) task(state, static_cast<size_t>(i));
  });
}

rmsnorm::Options MakeOptions(double eps, double weight_offset, bool round_before_weight = false) {
  rmsnorm::Options options;
  options.eps = static_cast<float>(eps);
  options.weight_offset = static_cast<float>(weight_offset);
  if (round_before_weight) options.rounding = rmsnorm::Rounding::before_weight;
  return options;
}

rmsnorm::Context TorchContext() {
  rmsnorm::Context context;
  context.threads = at::get_num_threads();
  context.parallel_for = ParallelFor;
  return context;
}

// ------------------------------------------------------------------------- the CPU's kernels

// Autograd checks the version of a tensor to refuse the use of overwritten values.
void AnnounceChange(const at::Tensor& tensor) { torch::autograd::impl::bump_version(tensor); }

void RmsNormOut(const at::Tensor& x, const OptionalTensor& weight, double eps, double weight_offset,
                bool round_before_weight, at::Tensor& out) {
  const auto views = Views({{"x", x}, {"out", out}});
  rmsnorm::ForwardOperands operands;
  operands.x = views[0];
  operands.weight = WeightView("weight", weight);
  operands.y = views[1];
  AnnounceChange(out);
  rmsnorm::forward(operands, MakeOptions(eps, weight_offset, round_before_weight), TorchContext());
}

at::Tensor RmsNorm(const at::Tensor& x, const OptionalTensor& weight, double eps,
                   double weight_offset, bool round_before_weight) {
  at::Tensor y = at::empty_like(x);
  RmsNormOut(x, weight, eps, weight_offset, round_before_weight, y);
  return y;
}

at::Tensor AddRmsNorm(const at::Tensor& x, at::Tensor& residual, const OptionalTensor& weight,
                      double eps, double weight_offset, bool round_before_weight) {
  at::Tensor y = at::empty_like(x);
  const auto views = Views({{"x", x}, {"residual", residual}, {"y", y}});
  rmsnorm::ForwardOperands operands;
  operands.x = views[0];
  operands.residual = views[1];
  operands.weight = WeightView("weight", weight);
  operands.residual_out = views[1];
  operands.y = views[2];
  AnnounceChange(residual);
  rmsnorm::forward(operands, MakeOptions(eps, weight_offset, round_before_weight), TorchContext());
  return y;
}

using Gradients = std::tuple<at::Tensor, at::Tensor>;  // dx and dw; undefined if not needed

// Computes the inverse RMS again, so that a model keeps only x from the forward call.
Gradients RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const OptionalTensor& weight,
                          double eps, double weight_offset, std::array<bool, 2> wanted) {
  TORCH_CHECK(!wanted[1] || weight, "the gradient of a weight is wanted, and there is no weight");
  const OptionalTensor dx = wanted[0] ? OptionalTensor(at::empty_like(x)) : OptionalTensor();
  const OptionalTensor dw = wanted[1] ? OptionalTensor(at::empty_like(*weight)) : OptionalTensor();
  const auto views = Views({{"x", x}, {"dy", dy}, {"dx", dx ? *dx : x}});
  rmsnorm::BackwardOperands operands;
  operands.dy = views[1];
  operands.x = views[0];
  operands.weight = WeightView("weight", weight);
  if (dx) operands.dx = views[2];
  operands.dw = WeightView("dw", dw);
  rmsnorm::backward(operands, MakeOptions(eps, weight_offset), TorchContext());
  return {dx.value_or(at::Tensor()), dw.value_or(at::Tensor())};
}

// ---------------------------------------------------------------------------------- autograd

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const OptionalTensor& weight, double eps, double weight_offset,
                            bool round_before_weight) {
    context->save_for_backward({x, weight.value_or(at::Tensor())});
    context->saved_data["eps"] = eps;
    context->saved_data["weight_offset"] = weight_offset;
    return Call(x, weight, eps, weight_offset, round_before_weight);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& dys) {
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("rmsnorm::rms_norm_backward", "")
                                      .typed<decltype(RmsNormBackward)>();
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight = saved[1];
    const auto [dx, dw] = operation.call(
        dys[0].stride(-1) == 1 ? dys[0] : dys[0].contiguous(), saved[0],
        weight.defined() ? OptionalTensor(weight) : OptionalTensor(),
        context->saved_data["eps"].toDouble(), context->saved_data["weight_offset"].toDouble(),
        {context->needs_input_grad(0), weight.defined() && context->needs_input_grad(1)});
    return {dx, dw, {}, {}, {}};
  }

  // Calls the operator below autograd.
  static at::Tensor Call(const at::Tensor& x, const OptionalTensor& weight, double eps,
                         double weight_offset, bool round_before_weight) {
    static const auto operation = c10::Dispatcher::singleton()
                                      .findSchemaOrThrow("rmsnorm::rms_norm", "")
                                      .typed<decltype(RmsNorm)>();
    const at::AutoDispatchBelowADInplaceOrView below;
    return operation.call(x, weight, eps, weight_offset, round_before_weight);
  }
};

bool IsDifferentiated(const at::Tensor& tensor) {
  return (tensor.requires_grad() && at::GradMode::is_enabled()) ||
         tensor._fw_grad(/*level=*/0).defined();  // Function refuses forward gradients
}

at::Tensor RmsNormAutograd(const at::Tensor& x, const OptionalTensor& weight, double eps,
                           double weight_offset, bool round_before_weight) {
  return IsDifferentiated(x) || (weight && IsDifferentiated(*weight))
             ? RmsNormFunction::apply(x, weight, eps, weight_offset, round_before_weight)
             : RmsNormFunction::Call(x, weight, eps, weight_offset, round_before_weight);
}

// For the operators that write into an argument: autograd would not notice.
void RefuseGradients(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  for (const c10::IValue& argument : torch::jit::last(*stack, schema.arguments().size())) {
    TORCH_CHECK(!argument.isTensor() || !IsDifferentiated(argument.toTensor()), schema.name(),
                " has no gradients: call it in torch.no_grad() or torch.inference_mode()");
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  operation.callBoxed(stack);
}

// ------------------------------------------------- shapes, for torch.compile and device "meta"

at::Tensor EmptyLike(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_meta(), name, " is on ", tensor.device(), ", and another argument on meta");
  return at::empty_like(tensor);
}

at::Tensor RmsNormMeta(const at::Tensor& x, const OptionalTensor&, double, double, bool) {
  return EmptyLike("x", x);
}

void RmsNormOutMeta(const at::Tensor&, const OptionalTensor&, double, double, bool, at::Tensor&) {}

at::Tensor AddRmsNormMeta(const at::Tensor& x, at::Tensor&, const OptionalTensor&, double, double,
                          bool) {
  return EmptyLike("x", x);
}

Gradients RmsNormBackwardMeta(const at::Tensor&, const at::Tensor& x, const OptionalTensor& weight,
                              double, double, std::array<bool, 2> wanted) {
  return {wanted[0] ? EmptyLike("x", x) : at::Tensor(),
          wanted[1] ? EmptyLike("weight", *weight) : at::Tensor()};
}

}  // namespace

// rms_norm normalises x over its last dimension; y has the type of x. The weight has as many
// elements as a row, of any of the three types. round_before_weight rounds before the weight, as
// Llama's norm does; weight_offset is 1 for Gemma's. add_rms_norm adds x to the residual in place
// and returns the norm of the sum.
TORCH_LIBRARY(rmsnorm, library) {
  library.def(
      "rms_norm(Tensor x, Tensor? weight=None, float eps=1e-5, *, float weight_offset=0, "
      "bool round_before_weight=False) -> Tensor");
  library.def(
      "rms_norm.out(Tensor x, Tensor? weight=None, float eps=1e-5, *, float weight_offset=0, "
      "bool round_before_weight=False, Tensor(a!) out) -> ()");
  library.def(
      "add_rms_norm(Tensor x, Tensor(a!) residual, Tensor? weight=None, float eps=1e-5, *, "
      "float weight_offset=0, bool round_before_weight=False) -> Tensor");
  library.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor? weight, float eps, float weight_offset, "
      "bool[2] output_mask) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(rmsnorm, CPU, library) {
  library.impl("rms_norm", RmsNorm);
  library.impl("rms_norm.out", RmsNormOut);
  library.impl("add_rms_norm", AddRmsNorm);
  library.impl("rms_norm_backward", RmsNormBackward);
}

TORCH_LIBRARY_IMPL(rmsnorm, Meta, library) {
  library.impl("rms_norm", RmsNormMeta);
  library.impl("rms_norm.out", RmsNormOutMeta);
  library.impl("add_rms_norm", AddRmsNormMeta);
  library.impl("rms_norm_backward", RmsNormBackwardMeta);
}

TORCH_LIBRARY_IMPL(rmsnorm, Autograd, library) {
  library.impl("rms_norm", RmsNormAutograd);
  library.impl("rms_norm.out", torch::CppFunction::makeFromBoxedFunction<&RefuseGradients>());
  library.impl("add_rms_norm", torch::CppFunction::makeFromBoxedFunction<&RefuseGradients>());
  // Second derivatives fail when they are requested.
  library.impl("rms_norm_backward", torch::autograd::autogradNotImplementedFallback());
}
