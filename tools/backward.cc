// SPDX-License-Identifier: Apache-2.0
// rmsnorm backward: the gradients of a norm, from files into files.
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "norm_options.h"
#include "output_file.h"
#include "tensor_file.h"
#include "tensor_rows.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

struct Arguments {
  std::string input;
  std::string grad;
  std::string weight;                  // empty for none
  std::string rstd;                    // empty for none
  std::string grad_input;              // empty where it is not wanted
  std::string grad_weight;             // the same
  std::int32_t grad_weight_dtype = 0;  // a Dtype, or 0 for the weight's
  Options options;
};

void CheckGrad(const TensorInfo& dy, const TensorInfo& x) {
  if (dy.shape != x.shape) {
    throw UserError("--grad: shape " + ShapeText(dy.shape) + ", but --input has " +
                    ShapeText(x.shape));
  }
}

// One number for each row: the shape of x without its last axis, or with 1 in its place.
void CheckRstd(const TensorInfo& rstd, const TensorInfo& x) {
  if (rstd.dtype != Dtype::f32) {
    throw UserError("--rstd: " + DtypeName(rstd.dtype) + ", but an inverse RMS is f32");
  }
  const std::vector<size_t> without_last(x.shape.begin(), x.shape.end() - 1);
  std::vector<size_t> last_is_1 = without_last;
  last_is_1.push_back(1);
  if (rstd.shape != without_last && rstd.shape != last_is_1) {
    throw UserError("--rstd: shape " + ShapeText(rstd.shape) + ", but the rows of x need " +
                    ShapeText(without_last) + " or " + ShapeText(last_is_1));
  }
}

// The inputs, and the library's calls on them.
class Gradient {
 public:
  // Throws UserError for inputs that do not go together.
  explicit Gradient(const Arguments& arguments)
      : x_(ParseLocation(arguments.input)),
        dy_(ParseLocation(arguments.grad)),
        weight_(arguments.weight),
        options_(arguments.options) {
    if (!arguments.rstd.empty()) rstd_.emplace(ParseLocation(arguments.rstd));
    shape_ = ShapeOfRows("--input", x_.info());
    CheckGrad(dy_.info(), x_.info());
    weight_view_ = weight_.View(shape_.d);
    if (rstd_) CheckRstd(rstd_->info(), x_.info());
  }

  // What the outputs are to be. Without a weight dw stays what it is summed in.
  TensorInfo InfoOfInput() const { return dy_.info(); }
  TensorInfo InfoOfWeight(std::int32_t dtype) const {
    const Dtype own = weight_.dtype().value_or(Dtype::f32);
    return {dtype == 0 ? own : static_cast<Dtype>(dtype), {shape_.d}};
  }

  // dw. Its sum depends on how many rows there are, so that it takes all of them at once.
  std::vector<char> OfWeight(const TensorInfo& info) {
    std::vector<char> dw;
    try {
      dw.resize(ByteSize(info));
    } catch (const std::exception&) {
      throw UserError("--grad-weight: no memory for " + ShapeText(info.shape) + " of " +
                      DtypeName(info.dtype));
    }
    Gradients gradients;
    gradients.dw.emplace(dw.data(), info.dtype, std::initializer_list<size_t>{shape_.d});
    Run(0, shape_.rows, gradients);
    return dw;
  }

  // dx, some rows at a time.
  void WriteOfInput(OutputFile& file) {
    const Dtype dtype = dy_.info().dtype;
    const size_t row_size = shape_.d * ElementSize(dtype);
    const size_t chunk_rows = RowsInChunk(shape_, x_.info().dtype);
    std::vector<char> dx(chunk_rows * row_size);
    ForEachChunk(shape_.rows, chunk_rows, [&](size_t first, size_t count) {
      Gradients gradients;
      gradients.dx.emplace(dx.data(), dtype, std::initializer_list<size_t>{count, shape_.d});
      Run(first, count, gradients);
      file.Write({dx.data(), count * row_size});
    });
  }

 private:
  void Run(size_t first, size_t count, const Gradients& gradients) {
    const ConstView dy = ViewOfRows(dy_, shape_.d, first, count);
    const ConstView x = ViewOfRows(x_, shape_.d, first, count);
    const float* const rstd =
        rstd_ ? static_cast<const float*>(rstd_->Elements(first, count)) : nullptr;
    if (weight_view_) {
      backward(dy, x, *weight_view_, gradients, options_, rstd);
    } else {
      backward(dy, x, nullptr, gradients, options_, rstd);
    }
  }

  InputTensor x_;
  InputTensor dy_;
  Weight weight_;
  std::optional<ConstView> weight_view_;
  std::optional<InputTensor> rstd_;
  Options options_;
  RowShape shape_ = {};
};

// The outputs that were asked for, as they follow one another.
struct Output {
  OutputTensor tensor;
  bool is_weight;  // dw rather than dx
};

std::vector<Output> FindOutputs(const Arguments& arguments, const Gradient& gradient) {
  std::vector<Output> outputs;
  if (!arguments.grad_input.empty()) {
    outputs.push_back(
        {{ParseOutputLocation(arguments.grad_input, "grad_input"), gradient.InfoOfInput()}, false});
  }
  if (!arguments.grad_weight.empty()) {
    outputs.push_back({{ParseOutputLocation(arguments.grad_weight, "grad_weight"),
                        gradient.InfoOfWeight(arguments.grad_weight_dtype)},
                       true});
  }
  // In a common file the larger elements come first, so that all are aligned.
  const auto size = [](const Output& output) { return ElementSize(output.tensor.info.dtype); };
  if (outputs.size() == 2 && size(outputs[0]) < size(outputs[1])) std::swap(outputs[0], outputs[1]);
  return outputs;
}

// The files, each with the outputs it takes: one where both name the same file.
std::vector<std::vector<Output>> ByFile(const std::vector<Output>& outputs) {
  const auto path = [](const Output& output) { return ResolvedPath(output.tensor.location.path); };
  if (outputs.size() == 2 && path(outputs[0]) == path(outputs[1])) return {outputs};
  std::vector<std::vector<Output>> files;
  for (const Output& output : outputs) files.push_back({output});
  return files;
}

std::string HeaderOf(const std::vector<Output>& outputs) {
  std::vector<OutputTensor> tensors;
  for (const Output& output : outputs) tensors.push_back(output.tensor);
  return FileHeader(tensors);
}

void Backward(const Arguments& arguments) {
  // Names that cannot be written are found before any file is read.
  for (const std::string& output : {arguments.grad_input, arguments.grad_weight}) {
    if (!output.empty()) ParseLocation(output);
  }
  Gradient gradient(arguments);
  const std::vector<std::vector<Output>> outputs = ByFile(FindOutputs(arguments, gradient));
  std::vector<std::string> headers;
  for (const std::vector<Output>& file : outputs) headers.push_back(HeaderOf(file));

  std::vector<std::unique_ptr<OutputFile>> files;
  for (size_t i = 0; i < outputs.size(); ++i) {
    files.push_back(std::make_unique<OutputFile>(outputs[i].front().tensor.location.path));
    files[i]->Write(headers[i]);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const Output& output : outputs[i]) {
      if (output.is_weight) {
        const std::vector<char> dw = gradient.OfWeight(output.tensor.info);
        files[i]->Write({dw.data(), dw.size()});
      } else {
        gradient.WriteOfInput(*files[i]);
      }
    }
  }
  for (const auto& file : files) file->Sync();
  for (const auto& file : files) file->Commit();
}

}  // namespace

void AddBackward(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "backward", "Compute the gradients by x and by the weight from that by y, in files");
  const auto arguments = std::make_shared<Arguments>();

  AddLocation(*command, "--input", arguments->input, "x: f32, f16 or bf16, of any shape")
      ->required();
  AddLocation(*command, "--grad", arguments->grad, "The gradient by y, in the shape of x")
      ->required();
  CLI::Option* const weight = AddLocation(*command, "--weight", arguments->weight,
                                          "The weight, one element for each of a row; none: ones");
  AddLocation(*command, "--rstd", arguments->rstd,
              "1 / RMS of each row in f32, as saved by the forward pass and used as it is; none: "
              "computed again");
  AddLocation(*command, "--grad-input", arguments->grad_input,
              "The file to make or replace for the gradient by x, in the type of --grad; its "
              "ending chooses the format, and its tensor is called 'grad_input' unless named");
  CLI::Option* const grad_weight =
      AddLocation(*command, "--grad-weight", arguments->grad_weight,
                  "The file for the gradient by the weight, whose tensor is called 'grad_weight' "
                  "unless named; a .safetensors file may take both");
  AddNormOptions(*command, weight, arguments->options);
  AddDtype(*command, "--grad-weight-dtype", arguments->grad_weight_dtype,
           "The type of the gradient by the weight; default: the weight's, f32 without one")
      ->needs(grad_weight);
  command->footer(std::string("At least one of --grad-input and --grad-weight is needed. ") +
                  kLocationFooter);
  command->callback([arguments, &status] {
    if (arguments->grad_input.empty() && arguments->grad_weight.empty()) {
      throw UserError("--grad-input or --grad-weight is required");
    }
    Backward(*arguments);
    status = kSuccess;
  });
}

}  // namespace rmsnorm::tools
