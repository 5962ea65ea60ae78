// SPDX-License-Identifier: Apache-2.0
// RMSNorm as PyTorch operators on the CPU. They use LibTorch's stable ABI alone, so one binary
// serves PyTorch 2.10 and every later version. python/rmsnorm/torch/_operators.py loads it and adds
// gradients, shapes for torch.compile, and vmap.
//
// The library reads tensors where they lie, with any strides, if the elements of a row are
// neighbours. An operator copies an input without such rows. Results are contiguous, like the
// results of torch.nn.functional.rms_norm. PyTorch's own threads share the rows.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <stdexcept>
#include <string>
#include <utility>
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

// An operand that is refused.
struct Refused : std::runtime_error {
  Refused(const char* name, const std::string& reason)
      : std::runtime_error(std::string(name) + ": " + reason) {}
};

// ------------------------------------------------------------------------- tensors as views

constexpr size_t kLast = RMSNORM_MAX_DIMS - 1;

// A tensor of a call.
struct Operand {
  const char* name;
  const Tensor* tensor;
  rmsnorm::ConstView* view = nullptr;  // its destination, a View for an output
  bool is_per_row = false;             // its shape is x's without the last dimension
};

// The tensors of a call that have the rows of x, which comes first.
class Operands {
 public:
  static constexpr size_t kMost = 9;

  Operands(const char* name, const Tensor& x, rmsnorm::ConstView& view) { Add(name, &x, view); }

  // Adds nothing where the tensor is null.
  void Add(const char* name, const Tensor* tensor, rmsnorm::ConstView& view,
           bool is_per_row = false) {
    if (tensor != nullptr) operands_[count_++] = {name, tensor, &view, is_per_row};
  }

  const Operand* begin() const { return operands_; }
  const Operand* end() const { return operands_ + count_; }
  size_t size() const { return count_; }
  const Tensor& x() const { return *operands_[0].tensor; }

 private:
  size_t count_ = 0;
  Operand operands_[kMost];
};

rmsnorm::Dtype DtypeOf(const Operand& operand) {
  const int32_t type = TypeOf(*operand.tensor);
  if (type == aoti_torch_dtype_float32()) return rmsnorm::Dtype::f32;
  if (type == aoti_torch_dtype_bfloat16()) return rmsnorm::Dtype::bf16;
  if (type == aoti_torch_dtype_float16()) return rmsnorm::Dtype::f16;
  if (type == aoti_torch_dtype_int8()) return rmsnorm::Dtype::i8;
  throw Refused(operand.name, "the type must be float32, float16 or bfloat16");
}

void CheckDevice(const char* name, const Tensor& tensor) {
  int32_t device = 0;
  Require(aoti_torch_get_device_type(tensor.get(), &device), "tell a device");
  if (device == aoti_torch_device_type_cpu()) return;
  throw Refused(name, "the tensor must be on the CPU");
}

void CheckX(const char* name, const Tensor& x) {
  CheckDevice(name, x);
  if (x.dim() > 0) return;
  throw Refused(name, "0 dimensions; it must have at least one");
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
    throw Refused(operand.name,
                  "the shape " + ShapeText(*operand.tensor) + ", but x has " + ShapeText(x));
  }
}

// Whether the elements of a row are neighbours. The stride of a single element does not matter.
bool HasRows(const Tensor& tensor) {
  return tensor.dim() == 0 || tensor.stride(-1) == 1 || tensor.size(-1) == 1 || tensor.numel() == 0;
}

// The shape that all tensors of a call have in common, and the strides of each. A PyTorch tensor
// may have more dimensions than a view, so neighbouring dimensions merge where all tensors allow
// it. Both are filled from the last dimension to the first.
struct Layout {
  size_t first = kLast;
  size_t shape[RMSNORM_MAX_DIMS];
  ptrdiff_t stride[Operands::kMost][RMSNORM_MAX_DIMS];
};

// Returns false where more dimensions remain than a view can have.
bool Merge(const Operands& operands, Layout& layout) {
  const auto sizes = operands.x().sizes();
  const size_t count = operands.size();
  const int64_t* strides[Operands::kMost];
  for (size_t i = 0; i < count; ++i) {
    strides[i] = operands.begin()[i].tensor->strides().data();
    layout.stride[i][kLast] = 1;
  }
  size_t& first = layout.first;
  layout.shape[kLast] = static_cast<size_t>(sizes[sizes.size() - 1]);
  for (size_t dim = sizes.size() - 1; dim-- > 0;) {
    const auto length = static_cast<size_t>(sizes[dim]);
    if (length == 1) continue;
    bool merges = first < kLast;
    for (size_t i = 0; merges && i < count; ++i) {
      merges =
          strides[i][dim] == layout.stride[i][first] * static_cast<ptrdiff_t>(layout.shape[first]);
    }
    if (merges) {
      layout.shape[first] *= length;
      continue;
    }
    if (first == 0) return false;
    --first;
    layout.shape[first] = length;
    for (size_t i = 0; i < count; ++i) layout.stride[i][first] = strides[i][dim];
  }
  return true;
}

// Sets the views of all tensors of a call, with the shape of x.
void SetViews(const Operands& operands) {
  const Tensor& x = operands.x();
  for (const Operand& operand : operands) {
    CheckDevice(operand.name, *operand.tensor);
    CheckShape(operand, x);
    if (operand.is_per_row || HasRows(*operand.tensor)) continue;
    throw Refused(operand.name, "the last dimension is not contiguous");
  }
  Layout layout;
  if (!Merge(operands, layout)) {
    throw Refused("x", std::to_string(x.dim()) + " dimensions, of which more than " +
                           std::to_string(RMSNORM_MAX_DIMS) +
                           " remain where neighbours with even strides count as one");
  }
  const size_t first = layout.first;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands.begin()[i];
    // A value for each row has no last dimension. Where x has no other, it is one value.
    constexpr size_t kOne = 1;
    const bool is_single = operand.is_per_row && first == kLast;
    *operand.view =
        rmsnorm::View(operand.tensor->data_ptr(), DtypeOf(operand),
                      is_single ? kOne : kLast - first + (operand.is_per_row ? 0 : 1),
                      is_single ? &kOne : layout.shape + first, layout.stride[i] + first);
  }
}

// A view of a weight, a bias or a gradient of one, for rows of x; empty if it is absent.
rmsnorm::View Vector(const char* name, const OptionalTensor& vector, const Tensor& x) {
  if (!vector) return {};
  const Operand operand{name, &*vector};
  CheckDevice(name, *vector);
  if (vector->dim() != 1 || vector->size(0) != x.size(-1)) {
    throw Refused(name, "the shape " + ShapeText(*vector) + "; it must be (" +
                            std::to_string(x.size(-1)) + ",), as x has " + ShapeText(x));
  }
  return {vector->data_ptr(), DtypeOf(operand), {vector->size(0)}};
}

// ----------------------------------------------------------------------- inputs and results

// The tensor, or a copy of it where the library could not read it.
Tensor Readable(const Tensor& tensor) {
  bool is_readable = HasRows(tensor);
  if (is_readable && tensor.dim() > RMSNORM_MAX_DIMS) {
    Layout layout;
    rmsnorm::ConstView unused;
    is_readable = Merge({"x", tensor, unused}, layout);
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

// ---------------------------------------------------------------------- options and context

// The options as the operators take them. `words` holds the options that are enumerations, four
// bits for each, in the order of their fields in rmsnorm_options.
// python/rmsnorm/torch/_operators.py packs them.
struct Numbers {
  double eps;
  int64_t words;
  double weight_offset;
  double divisor = 0;
  double factor = 1;
};

rmsnorm::Options MakeOptions(const Numbers& numbers) {
  const auto word = [&](int i) { return static_cast<int32_t>(numbers.words >> (4 * i) & 15); };
  rmsnorm::Options options;
  options.eps = static_cast<float>(numbers.eps);
  options.eps_placement = static_cast<rmsnorm::EpsPlacement>(word(0));
  options.rounding = static_cast<rmsnorm::Rounding>(word(1));
  options.residual_rounding = static_cast<rmsnorm::ResidualRounding>(word(2));
  options.weight_offset = static_cast<float>(numbers.weight_offset);
  options.divisor = static_cast<float>(numbers.divisor);
  options.factor = static_cast<float>(numbers.factor);
  options.activation = static_cast<rmsnorm::Activation>(word(3));
  options.gate_placement = static_cast<rmsnorm::GatePlacement>(word(4));
  options.gate_rounding = static_cast<rmsnorm::GateRounding>(word(5));
  return options;
}

// The threads of a call, which are PyTorch's. The library's executor cannot fail, so a failure of
// PyTorch's is kept until the call has returned.
class CallContext {
 public:
  rmsnorm::Context Make() {
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

// -------------------------------------------------------------------------------- operators

const Tensor* PointerTo(const OptionalTensor& tensor) { return tensor ? &*tensor : nullptr; }

// Rows of no element have no norm, as in PyTorch: a call with them checks its operands and writes
// nothing. The gradient of an empty weight is empty, too.
bool HasNoColumns(const Tensor& x) { return x.dim() > 0 && x.size(-1) == 0; }

// The inputs of a norm.
struct Inputs {
  Tensor x;
  OptionalTensor weight, residual, gate, bias, post_norm_weight;

  void MakeReadable() {
    x = Readable(x);
    for (OptionalTensor* input : {&weight, &residual, &gate, &bias, &post_norm_weight}) {
      *input = Readable(*input);
    }
  }
};

// The outputs of a call. Null is an absent one.
struct Outputs {
  const Tensor *y = nullptr, *residual_out = nullptr, *q = nullptr, *rstd = nullptr,
               *scale = nullptr, *zero = nullptr;
};

void SetOperands(const Inputs& inputs, const Outputs& outputs, rmsnorm::ForwardOperands& operands) {
  const Tensor& x = inputs.x;
  Operands rows("x", x, operands.x);
  rows.Add("residual", PointerTo(inputs.residual), operands.residual);
  rows.Add("gate", PointerTo(inputs.gate), operands.gate);
  rows.Add("residual_out", outputs.residual_out, operands.residual_out);
  rows.Add("y", outputs.y, operands.y);
  rows.Add("q", outputs.q, operands.q);
  rows.Add("rstd", outputs.rstd, operands.rstd, true);
  rows.Add("scale", outputs.scale, operands.scale, true);
  rows.Add("zero", outputs.zero, operands.zero, true);
  SetViews(rows);
  operands.weight = Vector("weight", inputs.weight, x);
  operands.bias = Vector("bias", inputs.bias, x);
  operands.post_norm_weight = Vector("post_norm_weight", inputs.post_norm_weight, x);
}

void Forward(const Inputs& inputs, const Outputs& outputs, const Numbers& numbers) {
  rmsnorm::ForwardOperands operands;
  SetOperands(inputs, outputs, operands);
  if (HasNoColumns(inputs.x)) return;
  CallContext context;
  rmsnorm::forward(operands, MakeOptions(numbers), context.Make());
  context.Check();
}

// Returns y, and with a residual residual_out. If the norm uses the unrounded sum, rstd follows,
// for the gradients.
std::vector<Tensor> Norm(Tensor x, OptionalTensor weight, double eps, int64_t words,
                         double weight_offset, std::optional<ScalarType> dtype,
                         OptionalTensor residual, OptionalTensor gate, OptionalTensor bias,
                         OptionalTensor post_norm_weight, double divisor, double factor) {
  const Numbers numbers{eps, words, weight_offset, divisor, factor};
  CheckX("x", x);
  Inputs inputs{std::move(x),    std::move(weight), std::move(residual),
                std::move(gate), std::move(bias),   std::move(post_norm_weight)};
  inputs.MakeReadable();
  std::vector<Tensor> results;
  results.reserve(3);
  Outputs outputs;
  const auto add = [&](int64_t ndim, int32_t type) {
    results.push_back(NewTensor(inputs.x, ndim, type));
    return &results.back();
  };
  const int64_t ndim = inputs.x.dim();
  outputs.y = add(ndim, TypeOr(inputs.x, dtype));
  if (inputs.residual) {
    outputs.residual_out = add(ndim, TypeOf(*inputs.residual));
    if (MakeOptions(numbers).residual_rounding == rmsnorm::ResidualRounding::unrounded) {
      outputs.rstd = add(ndim - 1, aoti_torch_dtype_float32());
    }
  }
  Forward(inputs, outputs, numbers);
  return results;
}

// Returns y where there is no other operand: a list of one tensor would take a tenth of the time of
// a short call.
Tensor RmsNorm(Tensor x, OptionalTensor weight, double eps, int64_t words, double weight_offset,
               std::optional<ScalarType> dtype) {
  CheckX("x", x);
  x = Readable(x);
  Tensor y = NewTensor(x, TypeOr(x, dtype));
  Outputs outputs;
  outputs.y = &y;
  Forward({x, Readable(weight), {}, {}, {}, {}}, outputs, {eps, words, weight_offset});
  return y;
}

// Writes the outputs that are given.
void WriteForward(Tensor x, OptionalTensor weight, double eps, int64_t words, double weight_offset,
                  OptionalTensor residual, OptionalTensor gate, OptionalTensor bias,
                  OptionalTensor post_norm_weight, double divisor, double factor, OptionalTensor y,
                  OptionalTensor residual_out, OptionalTensor q, OptionalTensor rstd,
                  OptionalTensor scale, OptionalTensor zero) {
  CheckX("x", x);
  // Where an output replaces an input, a copy of the input would hide that rows are no neighbours.
  const auto is_replaced = [](const Tensor& input, const OptionalTensor& output) {
    return output && output->data_ptr() == input.data_ptr();
  };
  if (!is_replaced(x, y)) x = Readable(x);
  if (residual && !is_replaced(*residual, residual_out)) residual = Readable(residual);
  Forward(
      {x, Readable(weight), residual, Readable(gate), Readable(bias), Readable(post_norm_weight)},
      {PointerTo(y), PointerTo(residual_out), PointerTo(q), PointerTo(rstd), PointerTo(scale),
       PointerTo(zero)},
      {eps, words, weight_offset, divisor, factor});
}

// Computes the gradients of x, of the weight and of the bias, and returns the wanted ones in this
// order. It adds dsum, a gradient of x from elsewhere, to the gradient of x.
std::vector<Tensor> Backward(Tensor dy, Tensor x, OptionalTensor weight, OptionalTensor bias,
                             OptionalTensor rstd, OptionalTensor dsum, bool wants_dx, bool wants_dw,
                             bool wants_db, double eps, int64_t words, double weight_offset,
                             double divisor) {
  CheckX("x", x);
  x = Readable(x);
  dy = Readable(dy);
  weight = Readable(weight);
  if (wants_dw && !weight) throw Refused("dw", "there is no weight");
  if (wants_db && !bias) throw Refused("db", "there is no bias");
  std::vector<Tensor> gradients;
  gradients.reserve(3);
  const auto add = [&](bool is_wanted, const Tensor* like) {
    if (!is_wanted) return static_cast<const Tensor*>(nullptr);
    gradients.push_back(NewTensor(*like, TypeOf(*like)));
    return static_cast<const Tensor*>(&gradients.back());
  };
  const Tensor* const dx = add(wants_dx, &x);
  const Tensor* const dw = add(wants_dw, PointerTo(weight));
  const Tensor* const db = add(wants_db, PointerTo(bias));
  if (dx != nullptr && dsum) {
    CheckShape({"dsum", &*dsum}, x);  // a copy would repeat a smaller tensor
    torch::stable::copy_(gradients.front(), *dsum);
  }
  rmsnorm::BackwardOperands operands;
  Operands rows("x", x, operands.x);
  rows.Add("dy", &dy, operands.dy);
  rows.Add("rstd", PointerTo(rstd), operands.rstd, true);
  rows.Add("dx", dx, operands.dx);
  SetViews(rows);
  operands.add_to_dx = dx != nullptr && dsum.has_value();
  operands.weight = Vector("weight", weight, x);
  if (dw != nullptr) operands.dw = Vector("dw", *dw, x);
  if (db != nullptr) operands.db = Vector("db", *db, x);
  if (gradients.empty() || HasNoColumns(x)) return gradients;
  CallContext context;
  rmsnorm::backward(operands, MakeOptions({eps, words, weight_offset, divisor}), context.Make());
  context.Check();
  return gradients;
}

// Several norms that one call of the library computes.
class Norms {
 public:
  explicit Norms(size_t count) {
    inputs_.reserve(count);
    calls_.reserve(count);
    results_.reserve(2 * count);
  }

  // An error names an operand as the library does: calls[1].weight.
  void Add(Inputs inputs, const Numbers& numbers, std::optional<int32_t> type) {
    const size_t index = inputs_.size();
    try {
      CheckX("x", inputs.x);
      inputs.MakeReadable();
      Outputs outputs;
      outputs.y = AddResult(inputs.x, type ? *type : TypeOf(inputs.x));
      if (inputs.residual) outputs.residual_out = AddResult(inputs.x, TypeOf(*inputs.residual));
      calls_.push_back({nullptr, {}, MakeOptions(numbers)});
      SetOperands(inputs, outputs, calls_.back().operands);
      if (HasNoColumns(inputs.x)) calls_.pop_back();
    } catch (const Refused& error) {
      throw std::runtime_error("calls[" + std::to_string(index) + "]." + error.what());
    }
    inputs_.push_back(std::move(inputs));  // they live until the call
  }

  std::vector<Tensor> Run() {
    CallContext context;
    rmsnorm::forward_all(calls_.data(), calls_.size(), context.Make());
    context.Check();
    return std::move(results_);
  }

 private:
  // Results have their final addresses, since all of them are reserved.
  const Tensor* AddResult(const Tensor& x, int32_t type) {
    results_.push_back(NewTensor(x, type));
    return &results_.back();
  }

  std::vector<Inputs> inputs_;
  std::vector<rmsnorm::Call> calls_;
  std::vector<Tensor> results_;
};

void RequireSize(const char* name, size_t size, size_t count) {
  if (size == count) return;
  throw std::runtime_error(std::string(name) + ": " + std::to_string(size) + " for " +
                           std::to_string(count) + " tensors");
}

// Returns the norms of several tensors with common options.
std::vector<Tensor> NormsAlike(std::vector<Tensor> xs, std::vector<OptionalTensor> weights,
                               double eps, int64_t words, double weight_offset) {
  const size_t count = xs.size();
  RequireSize("weights", weights.size(), count);
  Norms norms(count);
  for (size_t i = 0; i < count; ++i) {
    norms.Add({std::move(xs[i]), std::move(weights[i]), {}, {}, {}, {}},
              {eps, words, weight_offset}, {});
  }
  return norms.Run();
}

// Returns PyTorch's number for the number of a type in rmsnorm.h, of which 0 is none.
std::optional<int32_t> TypeOf(int64_t dtype) {
  switch (static_cast<rmsnorm::Dtype>(dtype)) {
    case rmsnorm::Dtype::f32:
      return aoti_torch_dtype_float32();
    case rmsnorm::Dtype::f16:
      return aoti_torch_dtype_float16();
    case rmsnorm::Dtype::bf16:
      return aoti_torch_dtype_bfloat16();
    default:
      return {};
  }
}

// Returns y and, with a residual, residual_out of each of several norms.
std::vector<Tensor> NormsEach(std::vector<Tensor> xs, std::vector<OptionalTensor> weights,
                              std::vector<double> eps, std::vector<int64_t> words,
                              std::vector<double> weight_offsets, std::vector<int64_t> dtypes,
                              std::vector<OptionalTensor> residuals,
                              std::vector<OptionalTensor> gates, std::vector<OptionalTensor> biases,
                              std::vector<OptionalTensor> post_norm_weights,
                              std::vector<double> divisors, std::vector<double> factors) {
  const size_t count = xs.size();
  RequireSize("weights", weights.size(), count);
  RequireSize("eps", eps.size(), count);
  RequireSize("words", words.size(), count);
  RequireSize("weight_offsets", weight_offsets.size(), count);
  RequireSize("dtypes", dtypes.size(), count);
  RequireSize("residuals", residuals.size(), count);
  RequireSize("gates", gates.size(), count);
  RequireSize("biases", biases.size(), count);
  RequireSize("post_norm_weights", post_norm_weights.size(), count);
  RequireSize("divisors", divisors.size(), count);
  RequireSize("factors", factors.size(), count);
  Norms norms(count);
  for (size_t i = 0; i < count; ++i) {
    norms.Add({std::move(xs[i]), std::move(weights[i]), std::move(residuals[i]),
               std::move(gates[i]), std::move(biases[i]), std::move(post_norm_weights[i])},
              {eps[i], words[i], weight_offsets[i], divisors[i], factors[i]}, TypeOf(dtypes[i]));
  }
  return norms.Run();
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
  bool has_direct_form;
  const char* signature;  // eps_placement, rounding and so on are numbers of rmsnorm.h
  Boxed* boxed;
};

#define NUMBERS "float eps=1e-5, int words=0, float weight_offset=0"
#define ROWS \
  "Tensor? residual=None, Tensor? gate=None, Tensor? bias=None, Tensor? post_norm_weight=None"
const Operator kOperators[] = {
    {"norm", true,
     "(Tensor x, Tensor? weight=None, " NUMBERS ", ScalarType? dtype=None, " ROWS
     ", float divisor=0, float factor=1) -> Tensor[]",
     Guarded<TORCH_BOX(&Norm)>},
    {"backward", true,
     "(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor? rstd, Tensor? dsum, "
     "bool wants_dx, bool wants_dw, bool wants_db, " NUMBERS ", float divisor=0) -> Tensor[]",
     Guarded<TORCH_BOX(&Backward)>},
    {"forward", true,
     "(Tensor x, Tensor? weight, " NUMBERS ", " ROWS
     ", float divisor=0, float factor=1, Tensor(a!)? y=None, Tensor(b!)? residual_out=None, "
     "Tensor(c!)? q=None, Tensor(d!)? rstd=None, Tensor(e!)? scale=None, Tensor(f!)? zero=None) "
     "-> ()",
     Guarded<TORCH_BOX(&WriteForward)>},
    {"rms_norm", false,
     "(Tensor x, Tensor? weight=None, " NUMBERS ", ScalarType? dtype=None) -> Tensor",
     Guarded<TORCH_BOX(&RmsNorm)>},
    {"norms", false, "(Tensor[] xs, Tensor?[] weights, " NUMBERS ") -> Tensor[]",
     Guarded<TORCH_BOX(&NormsAlike)>},
    {"norms.each", false,
     "(Tensor[] xs, Tensor?[] weights, float[] eps, int[] words, float[] weight_offsets, "
     "int[] dtypes, Tensor?[] residuals, Tensor?[] gates, Tensor?[] biases, "
     "Tensor?[] post_norm_weights, float[] divisors, float[] factors) -> Tensor[]",
     Guarded<TORCH_BOX(&NormsEach)>},
};

}  // namespace

// An operator with gradients exists twice: _operators.py of rmsnorm.torch gives gradients to the
// first in Python, which takes time in every call, and the second has none.
STABLE_TORCH_LIBRARY(rmsnorm, library) {
  for (const Operator& entry : kOperators) {
    const std::string name = entry.name;
    library.def((name + entry.signature).c_str());
    if (entry.has_direct_form) library.def((name + "_no_grad" + entry.signature).c_str());
  }
}

STABLE_TORCH_LIBRARY_IMPL(rmsnorm, CPU, library) {
  for (const Operator& entry : kOperators) {
    const std::string name = entry.name;
    library.impl(name.c_str(), entry.boxed);
    if (entry.has_direct_form) library.impl((name + "_no_grad").c_str(), entry.boxed);
  }
}
