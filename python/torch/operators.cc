// SPDX-License-Identifier: Apache-2.0
// RMSNorm as PyTorch operators on the CPU. They use LibTorch's stable ABI alone, so one binary
// serves PyTorch 2.10 and every later version. python/rmsnorm/torch/_operators.py loads it and adds
// gradients, shapes for torch.compile, and vmap.
//
// The library reads tensors where they lie, with any strides, if the elements of a row are
// neighbours, and checks their shapes. An operator copies an input without such rows, and one of
// more dimensions than a view has that is not contiguous. Results are contiguous, like the
// results of torch.nn.functional.rms_norm. PyTorch's own threads share the rows.
#include <rmsnorm/rmsnorm.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalType = std::optional<ScalarType>;

// ------------------------------------------------------------------------- the table of operands

enum class Shape {
  kRows,     // the shape of x
  kPerRow,   // the shape of x without the last dimension
  kGroups,   // the same, or with the option `group` a dimension of groups at the end
  kColumns,  // the last dimension of x, or leading dimensions that are each x's or 1
  kTables,   // R / 2, or with leading dimensions that are each x's or 1
};

struct Operand {
  const char* name;
  const rmsnorm_view* rmsnorm_operands::*field;
  Shape shape;
};

constexpr Operand kX{"x", &rmsnorm_operands::x, Shape::kRows};
constexpr Operand kWeight{"weight", &rmsnorm_operands::weight, Shape::kColumns};
constexpr Operand kResidual{"residual", &rmsnorm_operands::residual, Shape::kRows};
constexpr Operand kCos{"cos", &rmsnorm_operands::cos, Shape::kTables};
constexpr Operand kSin{"sin", &rmsnorm_operands::sin, Shape::kTables};
constexpr Operand kY{"y", &rmsnorm_operands::y, Shape::kRows};
constexpr Operand kResidualOut{"residual_out", &rmsnorm_operands::residual_out, Shape::kRows};
constexpr Operand kRstd{"rstd", &rmsnorm_operands::rstd, Shape::kPerRow};

// The operands of a forward call beside x. The operators take them in this order, by these names.
constexpr Operand kInputs[] = {
    kWeight,
    kResidual,
    {"gate", &rmsnorm_operands::gate, Shape::kRows},
    {"bias", &rmsnorm_operands::bias, Shape::kColumns},
    {"post_norm_weight", &rmsnorm_operands::post_norm_weight, Shape::kColumns},
    kCos,
    kSin,
};
constexpr Operand kOutputs[] = {
    kY,
    kResidualOut,
    {"q", &rmsnorm_operands::q, Shape::kRows},
    kRstd,
    {"scale", &rmsnorm_operands::scale, Shape::kGroups},
    {"zero", &rmsnorm_operands::zero, Shape::kGroups},
};

constexpr Operand kDy{"dy", &rmsnorm_operands::dy, Shape::kRows};
constexpr Operand kDx{"dx", &rmsnorm_operands::dx, Shape::kRows};
constexpr Operand kDw{"dw", &rmsnorm_operands::dw, Shape::kColumns};
constexpr Operand kDb{"db", &rmsnorm_operands::db, Shape::kColumns};

// ------------------------------------------------------------------------------ checks of tensors

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

rmsnorm_dtype DtypeOf(const char* name, const Tensor& tensor) {
  const int32_t type = TypeOf(tensor);
  if (type == aoti_torch_dtype_float32()) return RMSNORM_F32;
  if (type == aoti_torch_dtype_bfloat16()) return RMSNORM_BF16;
  if (type == aoti_torch_dtype_float16()) return RMSNORM_F16;
  if (type == aoti_torch_dtype_int8()) return RMSNORM_I8;
  throw Refused(name, "the type must be float32, float16 or bfloat16");
}

// Whether the elements of a row are neighbours. The stride of a single element does not matter.
bool HasRows(const Tensor& tensor) {
  return tensor.dim() == 0 || tensor.stride(-1) == 1 || tensor.size(-1) == 1 || tensor.numel() == 0;
}

// ------------------------------------------------------------------------------ tensors as views

constexpr size_t kMostTensors = 1 + std::size(kInputs) + std::size(kOutputs);

// The tensor, or a copy of it where the library could not read it.
Tensor Readable(Tensor tensor) {
  const bool is_readable = HasRows(tensor) && tensor.dim() <= RMSNORM_MAX_DIMS;
  return is_readable ? tensor : torch::stable::contiguous(tensor);
}

// A copy of a table that has a row for each row of x, with the leading dimensions of x as one.
Tensor MergedTable(const Operand& operand, const Tensor& table, const Tensor& x) {
  const auto own = table.sizes(), of_x = x.sizes();
  bool fits = !own.empty() && own.size() <= of_x.size();
  for (size_t i = 2; fits && i <= own.size(); ++i) {  // from the right
    const int64_t size = own[own.size() - i];
    fits = size == 1 || size == of_x[of_x.size() - i];
  }
  if (!fits) throw Refused(operand.name, "each leading dimension must be that of x or 1");
  std::vector<int64_t> sizes(of_x.begin(), of_x.end());
  sizes.back() = own[own.size() - 1];
  Tensor copy = torch::stable::new_empty(table, sizes);
  torch::stable::copy_(copy, table);
  return torch::stable::flatten(copy, 0, x.dim() - 2);
}

// A contiguous tensor with the first `ndim` dimensions of another one.
Tensor NewTensor(const Tensor& like, int64_t ndim, int32_t type) {
  int64_t few_strides[RMSNORM_MAX_DIMS];
  std::vector<int64_t> many_strides(ndim > RMSNORM_MAX_DIMS ? static_cast<size_t>(ndim) : 0);
  int64_t* const strides = many_strides.empty() ? few_strides : many_strides.data();
  const auto sizes = like.sizes();
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

// ---------------------------------------------------------------------------- options and threads

// Reads the bytes of an rmsnorm_options, which _options.py of rmsnorm.torch writes in hexadecimal,
// without zeros at the end: 0 is the default of those fields. A program that another version
// exported has a struct of another size.
rmsnorm_options OptionsFrom(const std::string& text) {
  unsigned char bytes[sizeof(rmsnorm_options)] = {};
  const size_t size = text.size() / 2;
  bool is_valid = size <= sizeof bytes;
  for (size_t i = 0; is_valid && i < size; ++i) {
    const char* const digits = &text[2 * i];
    is_valid = std::from_chars(digits, digits + 2, bytes[i], 16).ptr == digits + 2;
  }
  if (!is_valid) throw Refused("options", "they are not those of this version of rmsnorm");
  rmsnorm_options options;
  std::memcpy(&options, bytes, sizeof options);
  options.size = std::min(options.size, decltype(options.size){sizeof options});
  return options;
}

// The threads of a call, which are PyTorch's. The library's executor cannot fail, so a failure of
// PyTorch's is kept until the call has returned.
class CallContext {
 public:
  CallContext() {
    context_.threads = static_cast<int32_t>(torch::stable::get_num_threads());
    // PyTorch makes large results in new memory, which the system has just written.
    context_.stores = RMSNORM_STORES_CACHED;
    context_.parallel_for = ParallelFor;
    context_.parallel_context = &has_failed_;
  }
  const rmsnorm_context* get() const { return &context_; }
  void Check(rmsnorm_status status) const {
    if (status != RMSNORM_OK) throw std::runtime_error(rmsnorm_error_message());
    if (has_failed_) throw std::runtime_error("PyTorch could not run rows on its threads");
  }

 private:
  static void ParallelFor(void* context, size_t count, rmsnorm_task task, void* state) {
    const auto run = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) task(state, static_cast<size_t>(i));
    };
    try {
      torch::stable::parallel_for(0, static_cast<int64_t>(count), 1, run);
    } catch (const std::exception&) {
      *static_cast<bool*>(context) = true;
    }
  }

  rmsnorm_context context_ = rmsnorm_default_context();
  bool has_failed_ = false;
};

// ------------------------------------------------------------------------------------------ calls

// A call of the library on tensors, which it keeps. Its first tensor is x.
class Call {
 public:
  explicit Call(const std::string& options) : options_(OptionsFrom(options)) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void Add(const Operand& operand, Tensor tensor) {
    if (count_ == 0 && tensor.dim() == 0) throw Refused("x", "0 dimensions; it must have some");
    table_[count_] = &operand;
    tensors_[count_++] = std::move(tensor);
  }
  // Adds the tensor, or a copy that the library can read.
  void AddInput(const Operand& operand, OptionalTensor tensor) {
    if (tensor) Add(operand, Readable(std::move(*tensor)));
  }
  // Adds a new tensor with the shape of `like`. An operand with one number a row lacks the last
  // dimension.
  const Tensor& AddResult(const Operand& operand, const Tensor& like, int32_t type) {
    Add(operand, NewTensor(like, like.dim() - (operand.shape == Shape::kPerRow ? 1 : 0), type));
    return *tensors_[count_ - 1];
  }

  const Tensor& x() const { return *tensors_[0]; }
  // Returns null where the call has no such tensor.
  const Tensor* Find(const Operand& operand) const {
    for (size_t i = 0; i < count_; ++i) {
      if (table_[i]->field == operand.field) return &*tensors_[i];
    }
    return nullptr;
  }
  // Rows of no element have no norm, as in PyTorch: a call with them checks its operands and writes
  // nothing. The gradient of an empty weight is empty, too.
  bool has_no_columns() const { return x().size(-1) == 0; }
  const rmsnorm_options& options() const { return options_; }

  // Makes the library's operands. The library compares their shapes, and refuses what does not fit.
  rmsnorm_operands& Prepare() {
    if (x().dim() > RMSNORM_MAX_DIMS) MergeRows();
    const bool is_empty = has_no_columns();
    for (size_t i = 0; i < count_; ++i) {
      if (is_empty && HasRowDimension(*table_[i]) && tensors_[i]->numel() != 0) {
        throw Refused(table_[i]->name, "its rows have elements, and those of x have none");
      }
      SetView(*table_[i], *tensors_[i], views_[i]);
      operands_.*table_[i]->field = &views_[i];
    }
    return operands_;
  }

  // Runs rmsnorm_forward() or rmsnorm_backward().
  void Run(decltype(rmsnorm_forward)& function) const {
    if (has_no_columns()) return;
    const CallContext context;
    context.Check(function(&operands_, &options_, context.get()));
  }
  // The call as rmsnorm_forward_all() takes it.
  rmsnorm_call get() const { return {nullptr, &operands_, &options_}; }

 private:
  // Whether the last dimension of an operand is its row.
  bool HasRowDimension(const Operand& operand) const {
    return operand.shape == Shape::kRows || operand.shape == Shape::kColumns ||
           operand.shape == Shape::kTables ||
           (operand.shape == Shape::kGroups && options_.group != 0);
  }

  // A tensor may have more dimensions than a view. Its leading dimensions then become one.
  void MergeRows() {
    const Tensor x = this->x();  // the loop replaces the member
    const auto sizes = x.sizes();
    const size_t width = sizes.size() - 1;
    for (size_t i = 0; i < count_; ++i) {
      const Operand& operand = *table_[i];
      Tensor& tensor = *tensors_[i];
      const auto own = tensor.sizes();
      if (operand.shape == Shape::kColumns && own.size() == 1) continue;
      if (operand.shape == Shape::kTables) {
        tensor = MergedTable(operand, tensor, x);
        continue;
      }
      if (own.size() != width + (HasRowDimension(operand) ? 1 : 0) ||
          !std::equal(own.begin(), own.begin() + width, sizes.begin())) {
        throw Refused(operand.name, "its shape differs from that of x");
      }
      Tensor merged = torch::stable::flatten(tensor, 0, static_cast<int64_t>(width) - 1);
      if (merged.data_ptr() != tensor.data_ptr()) {  // a copy, of a tensor that is written
        throw Refused(operand.name, std::to_string(own.size()) + " dimensions; with more than " +
                                        std::to_string(RMSNORM_MAX_DIMS) +
                                        " it must be contiguous");
      }
      tensor = std::move(merged);
    }
  }

  void SetView(const Operand& operand, const Tensor& tensor, rmsnorm_view& view) const {
    const auto sizes = tensor.sizes();
    const auto strides = tensor.strides();
    const bool needs_row = operand.shape == Shape::kColumns || operand.shape == Shape::kTables;
    if (sizes.size() > RMSNORM_MAX_DIMS || (needs_row && sizes.size() == 0)) {
      throw Refused(operand.name, std::to_string(sizes.size()) + " dimensions, but x has " +
                                      std::to_string(x().dim()));
    }
    view.data = tensor.data_ptr();
    view.dtype = DtypeOf(operand.name, tensor);
    view.ndim = static_cast<int32_t>(sizes.size());
    std::copy(sizes.begin(), sizes.end(), view.shape);
    std::copy(strides.begin(), strides.end(), view.stride);
    if (!HasRowDimension(operand)) {
      if (view.ndim > 0) return;
      view.shape[view.ndim++] = 1;  // x is one row
    } else if (!HasRows(tensor)) {
      return;
    }
    view.stride[view.ndim - 1] = 1;
  }

  rmsnorm_options options_;
  size_t count_ = 0;
  const Operand* table_[kMostTensors];
  OptionalTensor tensors_[kMostTensors];
  rmsnorm_view views_[kMostTensors];
  rmsnorm_operands operands_ = rmsnorm_no_operands();
};

// -------------------------------------------------------------------------------------- operators

// The arguments of an operator on PyTorch's stack. An operator takes all before it can fail.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) : next_(stack) {}

  template <class T>
  T Take() {
    return torch::stable::detail::to<T>(*next_++);
  }
  template <size_t kCount>
  void Take(OptionalTensor (&tensors)[kCount]) {
    for (OptionalTensor& tensor : tensors) tensor = Take<OptionalTensor>();
  }

 private:
  StableIValue* next_;
};

// The inputs of a norm: x and the tensors of kInputs.
struct Inputs {
  Tensor x;
  OptionalTensor others[std::size(kInputs)];
};

// Adds the inputs, y, and with a residual residual_out. Returns the results in this order.
void AddNorm(Call& call, Inputs& inputs, std::optional<int32_t> type,
             std::vector<Tensor>& results) {
  call.AddInput(kX, std::move(inputs.x));
  for (size_t i = 0; i < std::size(kInputs); ++i) {
    call.AddInput(kInputs[i], std::move(inputs.others[i]));
  }
  const Tensor& x = call.x();
  results.push_back(call.AddResult(kY, x, type ? *type : TypeOf(x)));
  if (const Tensor* const residual = call.Find(kResidual)) {
    results.push_back(call.AddResult(kResidualOut, x, TypeOf(*residual)));
  }
}

// PyTorch's number of a type.
std::optional<int32_t> NumberOf(OptionalType type) {
  if (!type) return {};
  return torch::stable::detail::to<int32_t>(torch::stable::detail::from(*type));
}

// Returns y, and with a residual residual_out. If the norm uses the unrounded sum, rstd follows,
// for the gradients.
void Norm(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Inputs inputs{arguments.Take<Tensor>(), {}};
  const auto options = arguments.Take<std::string>();
  const auto type = arguments.Take<OptionalType>();
  arguments.Take(inputs.others);
  Call call(options);
  std::vector<Tensor> results;
  results.reserve(3);
  AddNorm(call, inputs, NumberOf(type), results);
  const bool is_unrounded = call.options().residual_rounding == RMSNORM_RESIDUAL_UNROUNDED;
  if (results.size() == 2 && is_unrounded) {
    results.push_back(call.AddResult(kRstd, call.x(), aoti_torch_dtype_float32()));
  }
  call.Prepare();
  call.Run(rmsnorm_forward);
  *stack = torch::stable::detail::from(results);
}

// Returns y where there is no other operand: a list of one tensor would take a tenth of the time of
// a short call.
Tensor RmsNorm(Tensor x, OptionalTensor weight, std::string options, OptionalType type) {
  Call call(options);
  call.AddInput(kX, std::move(x));
  call.AddInput(kWeight, std::move(weight));
  const auto number = NumberOf(type);
  Tensor y = call.AddResult(kY, call.x(), number ? *number : TypeOf(call.x()));
  call.Prepare();
  call.Run(rmsnorm_forward);
  return y;
}

// Writes the outputs that are given.
void WriteForward(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Inputs inputs{arguments.Take<Tensor>(), {}};
  const auto options = arguments.Take<std::string>();
  OptionalTensor outputs[std::size(kOutputs)];
  arguments.Take(inputs.others);
  arguments.Take(outputs);
  Call call(options);
  // Where an output replaces an input, a copy of the input would hide that rows are no neighbours.
  const auto add = [&](const Operand& operand, Tensor& tensor) {
    for (const OptionalTensor& output : outputs) {
      if (output && output->data_ptr() == tensor.data_ptr()) return call.Add(operand, tensor);
    }
    call.AddInput(operand, tensor);
  };
  add(kX, inputs.x);
  for (size_t i = 0; i < std::size(kInputs); ++i) {
    if (inputs.others[i]) add(kInputs[i], *inputs.others[i]);
  }
  for (size_t i = 0; i < std::size(kOutputs); ++i) {
    if (!outputs[i]) continue;
    if (call.has_no_columns() && kOutputs[i].shape != Shape::kRows) {
      throw Refused("x", std::string("its rows have no elements, and so no ") + kOutputs[i].name);
    }
    call.Add(kOutputs[i], *outputs[i]);
  }
  call.Prepare();
  call.Run(rmsnorm_forward);
}

// Computes the gradients of x, of the weight and of the bias, and returns the wanted ones in this
// order. It adds dsum, a gradient of x from elsewhere, to the gradient of x.
std::vector<Tensor> Backward(Tensor dy, Tensor x, OptionalTensor weight, OptionalTensor bias,
                             OptionalTensor rstd, OptionalTensor dsum, bool wants_dx, bool wants_dw,
                             bool wants_db, std::string options, OptionalTensor cos,
                             OptionalTensor sin) {
  Call call(options);
  call.AddInput(kX, std::move(x));
  call.AddInput(kDy, std::move(dy));
  call.AddInput(kWeight, weight);
  call.AddInput(kCos, std::move(cos));
  call.AddInput(kSin, std::move(sin));
  if (rstd) call.Add(kRstd, *rstd);
  std::vector<Tensor> gradients;
  gradients.reserve(3);
  // dx begins as dsum, whose shape the library compares with x's.
  if (wants_dx) {
    gradients.push_back(call.AddResult(kDx, dsum ? *dsum : call.x(), TypeOf(call.x())));
    if (dsum) torch::stable::copy_(gradients.front(), *dsum);
  }
  const auto add = [&](const Operand& gradient, const OptionalTensor& of) {
    if (!of) throw Refused(gradient.name, "there is no operand with this gradient");
    gradients.push_back(call.AddResult(gradient, *of, TypeOf(*of)));
  };
  if (wants_dw) add(kDw, weight);
  if (wants_db) add(kDb, bias);
  rmsnorm_operands& operands = call.Prepare();
  if (wants_dx && dsum) operands.add_to = RMSNORM_ADD_TO_DX;
  if (!gradients.empty()) call.Run(rmsnorm_backward);
  return gradients;
}

// One of several norms.
struct OneNorm {
  Inputs inputs;
  const std::string& options;
  std::optional<int32_t> type;
};

// Computes several norms, which a function gives by their index, in one call of the library. An
// error names an operand as the library does: calls[1].weight.
template <class Get>
std::vector<Tensor> RunNorms(size_t count, const Get& get) {
  std::deque<Call> calls;  // a call has pointers into itself and does not move
  std::vector<rmsnorm_call> library_calls;
  std::vector<Tensor> results;
  library_calls.reserve(count);
  results.reserve(2 * count);
  for (size_t i = 0; i < count; ++i) {
    try {
      OneNorm norm = get(i);
      Call& call = calls.emplace_back(norm.options);
      AddNorm(call, norm.inputs, norm.type, results);
      call.Prepare();
      if (!call.has_no_columns()) library_calls.push_back(call.get());
    } catch (const Refused& error) {
      throw std::runtime_error("calls[" + std::to_string(i) + "]." + error.what());
    }
  }
  const CallContext context;
  context.Check(rmsnorm_forward_all(library_calls.data(), library_calls.size(), context.get()));
  return results;
}

void RequireSize(const char* name, size_t size, size_t count) {
  if (size == count) return;
  throw std::runtime_error(std::string(name) + ": " + std::to_string(size) + " for " +
                           std::to_string(count) + " tensors");
}

// Returns the norms of several tensors with common options. Longer lists take time in short calls:
// doc/data/changes.csv.
std::vector<Tensor> NormsAlike(std::vector<Tensor> xs, std::vector<OptionalTensor> weights,
                               std::string options) {
  RequireSize("weights", weights.size(), xs.size());
  return RunNorms(xs.size(), [&](size_t i) {
    return OneNorm{{std::move(xs[i]), {std::move(weights[i])}}, options, {}};
  });
}

// Returns PyTorch's number for the number of a type in rmsnorm.h, of which 0 is none.
std::optional<int32_t> NumberOf(int64_t dtype) {
  switch (dtype) {
    case RMSNORM_F32:
      return aoti_torch_dtype_float32();
    case RMSNORM_F16:
      return aoti_torch_dtype_float16();
    case RMSNORM_BF16:
      return aoti_torch_dtype_bfloat16();
    default:
      return {};
  }
}

// Returns y and, with a residual, residual_out of each of several norms. `tensors` holds x and the
// tensors of kInputs for one norm after the other.
std::vector<Tensor> NormsEach(std::vector<OptionalTensor> tensors, std::vector<std::string> options,
                              std::vector<int64_t> dtypes) {
  const size_t count = options.size(), width = 1 + std::size(kInputs);
  RequireSize("tensors", tensors.size(), width * count);
  RequireSize("dtypes", dtypes.size(), count);
  return RunNorms(count, [&](size_t i) {
    OptionalTensor* const own = &tensors[i * width];
    if (!own[0]) throw Refused("x", "it is missing");
    OneNorm norm{{std::move(*own[0]), {}}, options[i], NumberOf(dtypes[i])};
    std::move(own + 1, own + width, norm.inputs.others);
    return norm;
  });
}

// ----------------------------------------------------------------------------------- registration

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

// The arguments of an operator for the tensors of kInputs, and of kOutputs, which it writes.
std::string InputArguments() {
  std::string text;
  for (const Operand& input : kInputs) text += std::string(", Tensor? ") + input.name + "=None";
  return text;
}

std::string OutputArguments() {
  std::string text;
  char name = 'a';
  for (const Operand& output : kOutputs) {
    text += std::string(", Tensor(") + name++ + "!)? " + output.name + "=None";
  }
  return text;
}

struct Operator {
  std::string name;
  bool has_direct_form;
  std::string signature;
  Boxed* boxed;
};

std::vector<Operator> Operators() {
  const std::string inputs = InputArguments();
  return {
      {"norm", true, "(Tensor x, str options, ScalarType? dtype=None" + inputs + ") -> Tensor[]",
       Guarded<Norm>},
      {"backward", true,
       "(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor? rstd, Tensor? dsum, "
       "bool wants_dx, bool wants_dw, bool wants_db, str options, Tensor? cos=None, "
       "Tensor? sin=None) -> Tensor[]",
       Guarded<TORCH_BOX(&Backward)>},
      {"forward", true, "(Tensor x, str options" + inputs + OutputArguments() + ") -> ()",
       Guarded<WriteForward>},
      {"rms_norm", false, "(Tensor x, Tensor? weight, str options, ScalarType? dtype) -> Tensor",
       Guarded<TORCH_BOX(&RmsNorm)>},
      {"norms", false, "(Tensor[] xs, Tensor?[] weights, str options) -> Tensor[]",
       Guarded<TORCH_BOX(&NormsAlike)>},
      {"norms.each", false, "(Tensor?[] tensors, str[] options, int[] dtypes) -> Tensor[]",
       Guarded<TORCH_BOX(&NormsEach)>},
  };
}

}  // namespace

// An operator with gradients exists twice. The first gets its gradients in Python, from
// _operators.py of rmsnorm.torch, which takes time in every call. The second has no gradients.
STABLE_TORCH_LIBRARY(rmsnorm, library) {
  for (const Operator& entry : Operators()) {
    library.def((entry.name + entry.signature).c_str());
    if (entry.has_direct_form) library.def((entry.name + "_no_grad" + entry.signature).c_str());
  }
}

STABLE_TORCH_LIBRARY_IMPL(rmsnorm, CPU, library) {
  for (const Operator& entry : Operators()) {
    library.impl(entry.name.c_str(), entry.boxed);
    if (entry.has_direct_form) library.impl((entry.name + "_no_grad").c_str(), entry.boxed);
  }
}
