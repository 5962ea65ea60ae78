// SPDX-License-Identifier: Apache-2.0
// RMSNorm as PyTorch operators on the CPU. They use LibTorch's stable ABI alone, so one binary
// serves PyTorch 2.10 and every later version. python/rmsnorm/torch.py loads it and adds gradients,
// shapes for torch.compile, and vmap.
//
// The library reads tensors where they lie, with any strides, if the elements of a row are
// neighbours. An operator copies an input without such rows. Results are contiguous, like the
// results of torch.nn.functional.rms_norm. PyTorch's own threads share the rows.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

void Require(AOTITorchError error, const char* action) {
  if (error != TORCH_SUCCESS) throw std::runtime_error(std::string("PyTorch could not ") + action);
}

int32_t TypeOf(const Tensor& tensor) {
  int32_t type = 0;
  Require(aoti_torch_get_dtype(tensor.get(), &type), "tell a type");
  return type;
}

// ------------------------------------------------------------------------- tensors as views

constexpr size_t kLast = RMSNORM_MAX_DIMS - 1;

// A tensor of a call, or null where it is absent.
struct Operand {
  const char* name;
  const Tensor* tensor;
  bool is_per_row = false;  // the leading dimensions of x alone
};

rmsnorm::Dtype DtypeOf(const Operand& operand) {
  const int32_t type = TypeOf(*operand.tensor);
  if (type == aoti_torch_dtype_float32()) return rmsnorm::Dtype::f32;
  if (type == aoti_torch_dtype_bfloat16()) return rmsnorm::Dtype::bf16;
  if (type == aoti_torch_dtype_float16()) return rmsnorm::Dtype::f16;
  throw std::runtime_error(std::string(operand.name) +
                           ": the type must be float32, float16 or bfloat16");
}

std::string ShapeText(const Tensor& tensor) {
  std::string text = "(";
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    text += (dim > 0 ? ", " : "") + std::to_string(tensor.size(dim));
  }
  return text + ")";
}

void CheckShape(const Operand& operand, const Tensor& x) {
  const int64_t ndim = operand.is_per_row ? x.dim() - 1 : x.dim();
  bool is_equal = operand.tensor->dim() == ndim;
  for (int64_t dim = 0; is_equal && dim < ndim; ++dim) {
    is_equal = operand.tensor->size(dim) == x.size(dim);
  }
  if (!is_equal) {
    throw std::runtime_error(std::string(operand.name) + ": the shape " +
                             ShapeText(*operand.tensor) + ", but x has " + ShapeText(x));
  }
}

// Whether the elements of a row are neighbours. The stride of a single element does not matter.
bool HasRows(const Tensor& tensor) {
  return tensor.dim() == 0 || tensor.stride(-1) == 1 || tensor.size(-1) == 1 || tensor.numel() == 0;
}

// The shape that all tensors of a call have in common, and the strides of each. A PyTorch tensor
// may have more dimensions than a view, so neighbouring dimensions merge where all tensors allow
// it. Both are filled from the last dimension to the first.
template <size_t N>
struct Layout {
  size_t first = kLast;
  std::array<size_t, RMSNORM_MAX_DIMS> shape;
  std::array<std::array<ptrdiff_t, RMSNORM_MAX_DIMS>, N> stride;
};

// Returns false where more dimensions remain than a view can have.
template <size_t N>
bool Merge(const Operand (&operands)[N], Layout<N>& layout) {
  const Tensor& x = *operands[0].tensor;
  const auto sizes = x.sizes();
  std::array<const int64_t*, N> strides{};
  for (size_t i = 0; i < N; ++i) {
    if (operands[i].tensor != nullptr) strides[i] = operands[i].tensor->strides().data();
    layout.stride[i][kLast] = 1;
  }
  layout.first = kLast;
  layout.shape[kLast] = static_cast<size_t>(sizes[sizes.size() - 1]);
  for (size_t dim = sizes.size() - 1; dim-- > 0;) {
    const auto count = static_cast<size_t>(sizes[dim]);
    if (count == 1) continue;
    size_t& first = layout.first;
    bool merges = first < kLast;
    for (size_t i = 0; merges && i < N; ++i) {
      merges =
          strides[i] == nullptr ||
          strides[i][dim] == layout.stride[i][first] * static_cast<ptrdiff_t>(layout.shape[first]);
    }
    if (merges) {
      layout.shape[first] *= count;
      continue;
    }
    if (first == 0) return false;
    --first;
    layout.shape[first] = count;
    for (size_t i = 0; i < N; ++i) {
      if (strides[i] != nullptr) layout.stride[i][first] = strides[i][dim];
    }
  }
  return true;
}

// Views of all tensors of a call with the shape of x, the first of them.
template <size_t N>
std::array<rmsnorm::View, N> Views(const Operand (&operands)[N]) {
  const Tensor& x = *operands[0].tensor;
  if (x.dim() == 0) throw std::runtime_error("x: 0 dimensions; it must have at least one");
  for (const Operand& operand : operands) {
    if (operand.tensor == nullptr) continue;
    CheckShape(operand, x);
    if (operand.is_per_row || HasRows(*operand.tensor)) continue;
    throw std::runtime_error(std::string(operand.name) + ": the last dimension is not contiguous");
  }
  Layout<N> layout;
  if (!Merge(operands, layout)) {
    throw std::runtime_error("x: " + std::to_string(x.dim()) + " dimensions, of which more than " +
                             std::to_string(RMSNORM_MAX_DIMS) +
                             " remain where neighbours with even strides count as one");
  }
  const size_t first = layout.first;
  std::array<rmsnorm::View, N> views;
  for (size_t i = 0; i < N; ++i) {
    const Operand& operand = operands[i];
    if (operand.tensor == nullptr) continue;
    // A value for each row has no last dimension. Where x has no other, it is one value.
    constexpr size_t kOne = 1;
    const bool is_single = operand.is_per_row && first == kLast;
    views[i] = {operand.tensor->data_ptr(), DtypeOf(operand),
                is_single ? kOne : kLast - first + (operand.is_per_row ? 0 : 1),
                is_single ? &kOne : layout.shape.data() + first, layout.stride[i].data() + first};
  }
  return views;
}

// A view of a weight or of its gradient; empty if it is absent.
rmsnorm::View Vector(const char* name, const OptionalTensor& vector) {
  if (!vector) return {};
  const Operand operand{name, &*vector};
  if (vector->dim() != 1) {
    throw std::runtime_error(std::string(name) + ": " + std::to_string(vector->dim()) +
                             " dimensions; it must have one");
  }
  return {vector->data_ptr(), DtypeOf(operand), {vector->size(0)}};
}

// ----------------------------------------------------------------------- inputs and results

// The tensor, or a copy of it where the library could not read it.
Tensor Readable(const Tensor& tensor) {
  bool is_readable = HasRows(tensor);
  if (is_readable && tensor.dim() > RMSNORM_MAX_DIMS) {
    Layout<1> layout;
    const Operand alone[] = {{"x", &tensor}};
    is_readable = Merge(alone, layout);
  }
  return is_readable ? tensor : torch::stable::contiguous(tensor);
}

OptionalTensor Readable(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(Readable(*tensor)) : tensor;
}

int32_t TypeOr(const Tensor& tensor, std::optional<ScalarType> type) {
  return type ? torch::stable::detail::to<int32_t>(torch::stable::detail::from(*type))
              : TypeOf(tensor);
}

// A contiguous tensor with the first `ndim` dimensions of x.
Tensor NewTensor(const Tensor& x, int64_t ndim, int32_t type) {
  constexpr int64_t kFew = 16;
  int64_t few_strides[kFew];
  std::vector<int64_t> many_strides(ndim > kFew ? static_cast<size_t>(ndim) : 0);
  int64_t* const strides = ndim > kFew ? many_strides.data() : few_strides;
  const auto sizes = x.sizes();
  int64_t dense = 1;
  for (int64_t dim = ndim - 1; dim >= 0; --dim) {
    strides[dim] = dense;
    dense *= std::max<int64_t>(sizes[static_cast<size_t>(dim)], 1);
  }
  AtenTensorHandle result = nullptr;
  Require(aoti_torch_empty_strided(ndim, sizes.data(), strides, type, aoti_torch_device_type_cpu(),
                                   0, &result),
          "allocate a result");
  return Tensor(result);
}

Tensor NewTensor(const Tensor& x, int32_t type) { return NewTensor(x, x.dim(), type); }

// A tensor of no element takes the place of a result that nobody asked for.
Tensor NewNothing(int32_t type) {
  const int64_t zero = 0;
  const int64_t one = 1;
  AtenTensorHandle result = nullptr;
  Require(aoti_torch_empty_strided(1, &zero, &one, type, aoti_torch_device_type_cpu(), 0, &result),
          "allocate a result");
  return Tensor(result);
}

// ---------------------------------------------------------------------- options and context

rmsnorm::Options MakeOptions(double eps, int64_t rounding, double weight_offset) {
  rmsnorm::Options options;
  options.eps = static_cast<float>(eps);
  options.rounding = static_cast<rmsnorm::Rounding>(rounding);
  options.weight_offset = static_cast<float>(weight_offset);
  return options;
}

// A call's place on PyTorch's threads. The library's executor cannot fail, so a failure of
// PyTorch's is kept until the call has returned.
class Place {
 public:
  rmsnorm::Context Context() {
    uint32_t threads = 1;
    Require(torch_get_num_threads(&threads), "tell its number of threads");
    rmsnorm::Context context;
    context.threads = static_cast<int32_t>(threads);
    context.parallel_for = ParallelFor;
    context.parallel_context = &error_;
    return context;
  }
  void Check() const { Require(error_, "run rows on its threads"); }

 private:
  struct Parts {
    rmsnorm_task task;
    void* state;
  };
  static void RunParts(int64_t begin, int64_t end, void* context) {
    const Parts& parts = *static_cast<const Parts*>(context);
    for (int64_t i = begin; i < end; ++i) parts.task(parts.state, static_cast<size_t>(i));
  }
  static void ParallelFor(void* context, size_t count, rmsnorm_task task, void* state) {
    Parts parts{task, state};
    const AOTITorchError error =
        torch_parallel_for(0, static_cast<int64_t>(count), 1, RunParts, &parts);
    if (error != TORCH_SUCCESS) *static_cast<AOTITorchError*>(context) = error;
  }

  AOTITorchError error_ = TORCH_SUCCESS;
};

void Forward(const rmsnorm::ForwardOperands& operands, const rmsnorm::Options& options) {
  Place place;
  rmsnorm::forward(operands, options, place.Context());
  place.Check();
}

// -------------------------------------------------------------------------------- operators

Tensor RmsNorm(Tensor x, OptionalTensor weight, double eps, int64_t rounding, double weight_offset,
               int64_t eps_placement, double divisor, double factor,
               std::optional<ScalarType> dtype) {
  x = Readable(x);
  weight = Readable(weight);
  Tensor y = NewTensor(x, TypeOr(x, dtype));
  const auto views = Views({{"x", &x}, {"y", &y}});
  rmsnorm::ForwardOperands operands;
  operands.x = views[0];
  operands.weight = Vector("weight", weight);
  operands.y = views[1];
  rmsnorm::Options options = MakeOptions(eps, rounding, weight_offset);
  options.eps_placement = static_cast<rmsnorm::EpsPlacement>(eps_placement);
  options.divisor = static_cast<float>(divisor);
  options.factor = static_cast<float>(factor);
  Forward(operands, options);
  return y;
}

// Computes the gradients of x and of the weight. It adds dsum, a gradient of x from elsewhere, to
// the gradient of x. A gradient that is not wanted has no element.
std::tuple<Tensor, Tensor> RmsNormBackward(Tensor dy, Tensor x, OptionalTensor weight,
                                           OptionalTensor rstd, OptionalTensor dsum, bool wants_dx,
                                           bool wants_dw, double eps, double weight_offset,
                                           int64_t eps_placement, double divisor) {
  x = Readable(x);
  dy = Readable(dy);
  weight = Readable(weight);
  if (wants_dw && !weight) throw std::runtime_error("dw: there is no weight");
  Tensor dx = wants_dx ? NewTensor(x, TypeOf(x)) : NewNothing(TypeOf(x));
  Tensor dw = wants_dw ? NewTensor(*weight, TypeOf(*weight)) : NewNothing(TypeOf(x));
  if (wants_dx || wants_dw) {
    if (wants_dx && dsum) {
      CheckShape({"dsum", &*dsum}, x);  // a copy would repeat a smaller tensor
      torch::stable::copy_(dx, *dsum);
    }
    const auto views = Views({{"x", &x},
                              {"dy", &dy},
                              {"rstd", rstd ? &*rstd : nullptr, true},
                              {"dx", wants_dx ? &dx : nullptr}});
    rmsnorm::BackwardOperands operands;
    operands.x = views[0];
    operands.dy = views[1];
    operands.rstd = views[2];
    operands.dx = views[3];
    operands.add_to_dx = wants_dx && dsum.has_value();
    operands.weight = Vector("weight", weight);
    if (wants_dw) operands.dw = Vector("dw", dw);
    rmsnorm::Options options;
    options.eps = static_cast<float>(eps);
    options.weight_offset = static_cast<float>(weight_offset);
    options.eps_placement = static_cast<rmsnorm::EpsPlacement>(eps_placement);
    options.divisor = static_cast<float>(divisor);
    Place place;
    rmsnorm::backward(operands, options, place.Context());
    place.Check();
  }
  return {dx, dw};
}

// rstd has elements only where the norm is of the unrounded sum, which its gradients need.
std::tuple<Tensor, Tensor, Tensor> FusedAddRmsNorm(Tensor x, Tensor residual, OptionalTensor weight,
                                                   double eps, int64_t rounding,
                                                   double weight_offset, int64_t residual_rounding,
                                                   std::optional<ScalarType> dtype) {
  x = Readable(x);
  residual = Readable(residual);
  weight = Readable(weight);
  rmsnorm::Options options = MakeOptions(eps, rounding, weight_offset);
  options.residual_rounding = static_cast<rmsnorm::ResidualRounding>(residual_rounding);
  const bool keeps_rstd = options.residual_rounding == rmsnorm::ResidualRounding::unrounded;
  Tensor y = NewTensor(x, TypeOr(x, dtype));
  Tensor residual_out = NewTensor(x, TypeOf(residual));
  Tensor rstd = keeps_rstd ? NewTensor(x, x.dim() - 1, aoti_torch_dtype_float32())
                           : NewNothing(aoti_torch_dtype_float32());
  const auto views = Views({{"x", &x},
                            {"residual", &residual},
                            {"residual_out", &residual_out},
                            {"y", &y},
                            {"rstd", keeps_rstd ? &rstd : nullptr, true}});
  rmsnorm::ForwardOperands operands;
  operands.x = views[0];
  operands.residual = views[1];
  operands.weight = Vector("weight", weight);
  operands.residual_out = views[2];
  operands.y = views[3];
  operands.rstd = views[4];
  Forward(operands, options);
  return {y, residual_out, rstd};
}

void FusedAddRmsNormInPlace(Tensor x, Tensor residual, OptionalTensor weight, double eps,
                            int64_t rounding, double weight_offset, int64_t residual_rounding) {
  weight = Readable(weight);
  const auto views = Views({{"x", &x}, {"residual", &residual}});
  rmsnorm::ForwardOperands operands;
  operands.x = views[0];
  operands.residual = views[1];
  operands.weight = Vector("weight", weight);
  operands.residual_out = views[1];
  operands.y = views[0];
  rmsnorm::Options options = MakeOptions(eps, rounding, weight_offset);
  options.residual_rounding = static_cast<rmsnorm::ResidualRounding>(residual_rounding);
  Forward(operands, options);
}

Tensor Gated(Tensor x, Tensor gate, OptionalTensor weight, double eps, int64_t rounding,
             double weight_offset, int64_t activation, int64_t gate_placement,
             int64_t gate_rounding, std::optional<ScalarType> dtype) {
  x = Readable(x);
  gate = Readable(gate);
  weight = Readable(weight);
  Tensor y = NewTensor(x, TypeOr(x, dtype));
  const auto views = Views({{"x", &x}, {"gate", &gate}, {"y", &y}});
  rmsnorm::ForwardOperands operands;
  operands.x = views[0];
  operands.gate = views[1];
  operands.weight = Vector("weight", weight);
  operands.y = views[2];
  rmsnorm::Options options = MakeOptions(eps, rounding, weight_offset);
  options.activation = static_cast<rmsnorm::Activation>(activation);
  options.gate_placement = static_cast<rmsnorm::GatePlacement>(gate_placement);
  options.gate_rounding = static_cast<rmsnorm::GateRounding>(gate_rounding);
  Forward(operands, options);
  return y;
}

std::tuple<Tensor, Tensor> Qk(Tensor q, Tensor k, OptionalTensor q_weight, OptionalTensor k_weight,
                              double eps, int64_t rounding, double weight_offset) {
  q = Readable(q);
  k = Readable(k);
  q_weight = Readable(q_weight);
  k_weight = Readable(k_weight);
  Tensor q_norm = NewTensor(q, TypeOf(q));
  Tensor k_norm = NewTensor(k, TypeOf(k));
  const auto q_views = Views({{"q", &q}, {"q_norm", &q_norm}});
  const auto k_views = Views({{"k", &k}, {"k_norm", &k_norm}});
  rmsnorm::ForwardOperands operands[2];
  operands[0].x = q_views[0];
  operands[0].weight = Vector("q_weight", q_weight);
  operands[0].y = q_views[1];
  operands[1].x = k_views[0];
  operands[1].weight = Vector("k_weight", k_weight);
  operands[1].y = k_views[1];
  const rmsnorm::Options options = MakeOptions(eps, rounding, weight_offset);
  Place place;
  rmsnorm::forward_all({{nullptr, operands[0], options}, {nullptr, operands[1], options}},
                       place.Context());
  place.Check();
  return {q_norm, k_norm};
}

// ----------------------------------------------------------------------------- registration

using Boxed = void(StableIValue*, uint64_t, uint64_t);

// Runs an operator, and returns the text of its error or null.
[[gnu::noinline]] const char* Run(Boxed* boxed, StableIValue* stack, uint64_t inputs,
                                  uint64_t outputs) {
  static thread_local char message[512];
  try {
    boxed(stack, inputs, outputs);
    return nullptr;
  } catch (const std::exception& error) {
    std::snprintf(message, sizeof message, "%s", error.what());
  }
  return message;
}

// PyTorch itself throws the error. An exception of this file might come from another C++ library
// than PyTorch's, which could not catch it. For the same reason nothing here needs a destructor.
template <Boxed* kBoxed>
void Guarded(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  const char* const message = Run(kBoxed, stack, inputs, outputs);
  if (message != nullptr) aoti_torch_check(false, __func__, "operators.cc", __LINE__, message);
}

struct Operator {
  const char* name;
  bool has_gradients;
  const char* signature;  // eps_placement, rounding and so on are numbers of rmsnorm.h
  Boxed* boxed;
};

const Operator kOperators[] = {
    {"rms_norm", true,
     "(Tensor x, Tensor? weight=None, float eps=1e-5, int rounding=0, float weight_offset=0, "
     "int eps_placement=0, float divisor=0, float factor=1, ScalarType? dtype=None) -> Tensor",
     Guarded<TORCH_BOX(&RmsNorm)>},
    {"rms_norm_backward", true,
     "(Tensor dy, Tensor x, Tensor? weight, Tensor? rstd, Tensor? dsum, bool wants_dx, "
     "bool wants_dw, float eps=1e-5, float weight_offset=0, int eps_placement=0, "
     "float divisor=0) -> (Tensor dx, Tensor dw)",
     Guarded<TORCH_BOX(&RmsNormBackward)>},
    {"fused_add_rms_norm", true,
     "(Tensor x, Tensor residual, Tensor? weight=None, float eps=1e-5, int rounding=0, "
     "float weight_offset=0, int residual_rounding=0, ScalarType? dtype=None) "
     "-> (Tensor y, Tensor residual_out, Tensor rstd)",
     Guarded<TORCH_BOX(&FusedAddRmsNorm)>},
    {"fused_add_rms_norm_", false,
     "(Tensor(a!) x, Tensor(b!) residual, Tensor? weight=None, float eps=1e-5, int rounding=0, "
     "float weight_offset=0, int residual_rounding=0) -> ()",
     Guarded<TORCH_BOX(&FusedAddRmsNormInPlace)>},
    {"gated", true,
     "(Tensor x, Tensor gate, Tensor? weight=None, float eps=1e-5, int rounding=0, "
     "float weight_offset=0, int activation=0, int gate_placement=0, int gate_rounding=0, "
     "ScalarType? dtype=None) -> Tensor",
     Guarded<TORCH_BOX(&Gated)>},
    {"qk", true,
     "(Tensor q, Tensor k, Tensor? q_weight=None, Tensor? k_weight=None, float eps=1e-5, "
     "int rounding=0, float weight_offset=0) -> (Tensor q_norm, Tensor k_norm)",
     Guarded<TORCH_BOX(&Qk)>},
};

}  // namespace

// An operator with gradients exists twice. python/rmsnorm/torch.py gives gradients to the first, in
// Python, which takes time in every call. The second has none.
STABLE_TORCH_LIBRARY(rmsnorm, library) {
  for (const Operator& entry : kOperators) {
    const std::string name = entry.name;
    library.def((name + entry.signature).c_str());
    if (entry.has_gradients) library.def((name + "_no_grad" + entry.signature).c_str());
  }
}

STABLE_TORCH_LIBRARY_IMPL(rmsnorm, CPU, library) {
  for (const Operator& entry : kOperators) {
    const std::string name = entry.name;
    library.impl(name.c_str(), entry.boxed);
    if (entry.has_gradients) library.impl((name + "_no_grad").c_str(), entry.boxed);
  }
}
