// SPDX-License-Identifier: Apache-2.0
// rmsnorm backward: the gradients of a norm, from files into files.
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "command.h"
#include "norm_options.h"
#include "result_files.h"
#include "tensor_file.h"
#include "tensor_rows.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

struct Arguments {
  std::string input;
  std::string grad;
  std::string weight;      // empty for none
  std::string bias;        // the same
  std::string rstd;        // the same
  std::string grad_input;  // empty where it is not wanted
  std::string grad_weight;
  std::string grad_bias;
  std::optional<Dtype> grad_weight_dtype;  // or the weight's
  std::optional<Dtype> grad_bias_dtype;    // or the bias's
  Options options;
  Context context;
};

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

// dw or db: a sum over all rows, which no chunk is a part of.
class SumOverRows {
 public:
  // `output` is the option that names the file. Throws UserError where there is no memory for it.
  SumOverRows(const std::string& option, const std::string& output, const std::string& name,
              const Columns& columns, std::optional<Dtype> dtype, size_t d) {
    TensorInfo info = columns.GradientInfo(d);
    info.dtype = dtype.value_or(info.dtype);
    try {
      memory_.resize(ByteSize(info));
    } catch (const std::exception&) {
      throw UserError(option + ": no memory for " + ShapeText(info.shape) + " of " +
                      DtypeName(info.dtype));
    }
    view_ = columns.GradientView(memory_.data(), info.dtype, d);
    result_ = {{ParseOutputLocation(output, name), info}, {memory_.data(), memory_.size()}};
  }

  const View& view() const { return view_; }
  const Result* result() const { return &result_; }

 private:
  std::vector<char> memory_;
  View view_;
  Result result_;
};

void Backward(const Arguments& arguments) {
  // Names that cannot be written are found before any file is read.
  for (const std::string& output :
       {arguments.grad_input, arguments.grad_weight, arguments.grad_bias}) {
    if (!output.empty()) ParseLocation(output);
  }
  InputTensor x(ParseLocation(arguments.input));
  InputTensor dy(ParseLocation(arguments.grad));
  Columns weight("--weight", arguments.weight);
  Columns bias("--bias", arguments.bias);
  std::optional<InputTensor> rstd;
  if (!arguments.rstd.empty()) rstd.emplace(ParseLocation(arguments.rstd));
  const RowShape shape = ShapeOfRows(x.info(), {&weight, &bias});
  CheckShape("--grad", dy.info(), x.info());
  if (rstd) CheckRstd(rstd->info(), x.info());

  std::vector<const Result*> results;
  std::optional<Result> dx;
  std::optional<SumOverRows> dw;
  std::optional<SumOverRows> db;
  if (!arguments.grad_input.empty()) {
    dx = {{ParseOutputLocation(arguments.grad_input, "grad_input"), dy.info()}, {}};
    results.push_back(&*dx);
  }
  if (!arguments.grad_weight.empty()) {
    dw.emplace("--grad-weight", arguments.grad_weight, "grad_weight", weight,
               arguments.grad_weight_dtype, shape.d);
    results.push_back(dw->result());
  }
  if (!arguments.grad_bias.empty()) {
    db.emplace("--grad-bias", arguments.grad_bias, "grad_bias", bias, arguments.grad_bias_dtype,
               shape.d);
    results.push_back(db->result());
  }

  ResultFiles files(results);
  files.Open();
  const size_t most_rows = dw || db ? SIZE_MAX : RowsInChunk(shape, x.info().dtype);
  ForEachChunk(shape, most_rows, [&](const Chunk& chunk) {
    const ConstView dy_view = ViewOfChunk(dy, chunk, shape.d);
    BackwardOperands operands;
    operands.dy = dy_view;
    operands.x = ViewOfChunk(x, chunk, shape.d);
    operands.weight = weight.ViewFor(chunk, shape.d);
    if (rstd) {
      operands.rstd = ConstView(rstd->Elements(chunk.first, chunk.rows), Dtype::f32,
                                chunk.extent.size(), chunk.extent.data());
    }
    if (dx) operands.dx = View(*dy_view.get());  // in its place
    if (dw) operands.dw = dw->view();
    if (db) operands.db = db->view();
    backward(operands, arguments.options, arguments.context);
    if (dx) {
      dx->elements = {static_cast<const char*>(dy_view.get()->data),
                      chunk.rows * shape.d * ElementSize(dy.info().dtype)};
    }
    files.WriteElements();
  });
  files.Commit();
}

}  // namespace

void AddBackward(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "backward", "Compute the gradients by x, weight and bias from that by y, in files");
  const auto arguments = std::make_shared<Arguments>();

  AddLocation(*command, "--input", arguments->input, "x: f32, f16 or bf16, of any shape")
      ->required();
  AddLocation(*command, "--grad", arguments->grad, "The gradient by y, in the shape of x")
      ->required();
  CLI::Option* const weight = AddLocation(
      *command, "--weight", arguments->weight,
      "The weight, one element for each of a row; or one such row for each head, group or sample: "
      "leading dimensions, aligned with x's from the right, are x's or 1; none: ones");
  CLI::Option* const bias =
      AddLocation(*command, "--bias", arguments->bias,
                  "The bias, for nothing but the shape and type of its gradient; none: one element "
                  "for each of a row");
  AddLocation(*command, "--rstd", arguments->rstd,
              "1 / RMS of each row in f32, as saved by the forward pass and used as it is; none: "
              "computed again");
  AddLocation(*command, "--grad-input", arguments->grad_input,
              "The file to make or replace for the gradient by x, in the type of --grad; its "
              "ending chooses the format, and its tensor is called 'grad_input' unless named");
  CLI::Option* const grad_weight =
      AddLocation(*command, "--grad-weight", arguments->grad_weight,
                  "The file for the gradient by the weight, in its shape, whose tensor is called "
                  "'grad_weight' unless named; a .safetensors file may take all gradients");
  CLI::Option* const grad_bias =
      AddLocation(*command, "--grad-bias", arguments->grad_bias,
                  "The file for the gradient by the bias, whose tensor is called 'grad_bias' "
                  "unless named");
  bias->needs(grad_bias);
  AddNormOptions(*command, weight, arguments->options, arguments->context);
  AddDtype(*command, "--grad-weight-dtype", arguments->grad_weight_dtype,
           "The type of the gradient by the weight; default: the weight's, f32 without one")
      ->needs(grad_weight);
  AddDtype(*command, "--grad-bias-dtype", arguments->grad_bias_dtype,
           "The type of the gradient by the bias; default: the bias's, f32 without one")
      ->needs(grad_bias);
  command->footer(
      std::string("At least one of --grad-input, --grad-weight and --grad-bias is needed. ") +
      kLocationFooter);
  command->callback([arguments, &status] {
    if (arguments->grad_input.empty() && arguments->grad_weight.empty() &&
        arguments->grad_bias.empty()) {
      throw UserError("--grad-input, --grad-weight or --grad-bias is required");
    }
    Backward(*arguments);
    status = kSuccess;
  });
}

}  // namespace rmsnorm::tools
