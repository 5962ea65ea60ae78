// SPDX-License-Identifier: Apache-2.0
// rmsnorm apply: normalises a tensor from a file into a file.
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
  std::string weight;    // empty for none
  std::string bias;      // the same
  std::string residual;  // the same
  std::string output;
  std::string residual_output;  // empty for none
  std::optional<Dtype> dtype;   // or x's
  Options options;
  Context context;
};

// A result, some rows at a time.
struct ResultRows {
  Result result;
  std::vector<char> memory;

  View ViewFor(const Chunk& chunk, size_t d) {
    const Dtype dtype = result.tensor.info.dtype;
    memory.resize(chunk.rows * d * ElementSize(dtype));
    result.elements = {memory.data(), memory.size()};
    return ViewOfChunk(memory.data(), dtype, chunk, d);
  }
};

void Apply(const Arguments& arguments) {
  ResultRows y = {{{ParseOutputLocation(arguments.output, "output"), {}}, {}}, {}};
  InputTensor x(ParseLocation(arguments.input));
  Columns weight("--weight", arguments.weight);
  Columns bias("--bias", arguments.bias);
  const RowShape shape = ShapeOfRows(x.info(), {&weight, &bias});
  y.result.tensor.info = {arguments.dtype.value_or(x.info().dtype), x.info().shape};
  std::vector<const Result*> results = {&y.result};

  std::optional<InputTensor> residual;
  if (!arguments.residual.empty()) {
    residual.emplace(ParseLocation(arguments.residual));
    CheckShape("--residual", residual->info(), x.info());
  }
  std::optional<ResultRows> sum;
  if (!arguments.residual_output.empty()) {
    const TensorLocation location = ParseOutputLocation(arguments.residual_output, "output");
    if (ResolvedPath(location.path) == ResolvedPath(y.result.tensor.location.path)) {
      throw UserError("--residual-output: the same file as --output");
    }
    sum = ResultRows{{{location, residual->info()}, {}}, {}};
    results.push_back(&sum->result);
  }

  ResultFiles files(results);
  files.Open();
  ForEachChunk(shape, RowsInChunk(shape, x.info().dtype), [&](const Chunk& chunk) {
    ForwardOperands operands;
    operands.x = ViewOfChunk(x, chunk, shape.d);
    operands.weight = weight.ViewFor(chunk, shape.d);
    operands.bias = bias.ViewFor(chunk, shape.d);
    operands.y = y.ViewFor(chunk, shape.d);
    if (residual) operands.residual = ViewOfChunk(*residual, chunk, shape.d);
    if (sum) operands.residual_out = sum->ViewFor(chunk, shape.d);
    forward(operands, arguments.options, arguments.context);
    files.WriteElements();
  });
  files.Commit();
}

}  // namespace

void AddApply(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "apply", "Normalise each row (last axis) of a tensor from a .npy or .safetensors file");
  const auto arguments = std::make_shared<Arguments>();

  AddLocation(*command, "--input", arguments->input, "x: f32, f16 or bf16, of any shape")
      ->required();
  CLI::Option* const weight = AddLocation(
      *command, "--weight", arguments->weight,
      "The weight, one element for each of a row; or one such row for each head, group or sample: "
      "leading dimensions, aligned with x's from the right, are x's or 1; none: ones");
  AddLocation(*command, "--bias", arguments->bias,
              "Added after the weight; of a shape that the weight may have; none: nothing");
  CLI::Option* const residual =
      AddLocation(*command, "--residual", arguments->residual,
                  "Added to x before the norm: of the shape of x, f32, f16 or bf16");
  AddLocation(*command, "--output", arguments->output,
              "The file to make or replace; its ending chooses the format, and its tensor is "
              "called 'output' unless named")
      ->required();
  AddLocation(*command, "--residual-output", arguments->residual_output,
              "A file for the sum of the residual and x, in the residual's type")
      ->needs(residual);
  AddNormOptions(*command, weight, arguments->options, arguments->context);
  AddChoice(*command, "--rounding",
            {{"scale-then-cast", Rounding::scale_then_cast},
             {"cast-then-scale", Rounding::cast_then_scale},
             {"inverse-rounded", Rounding::inverse_rounded}},
            arguments->options.rounding,
            "Whether the normalised value is rounded to x's type after the weight (default) or "
            "before; or before, and 1 / RMS as well");
  AddChoice(*command, "--residual-rounding",
            {{"cast-then-norm", ResidualRounding::cast_then_norm},
             {"norm-then-cast", ResidualRounding::norm_then_cast}},
            arguments->options.residual_rounding,
            "Whether the sum is rounded to the residual's type before the norm (default) or after")
      ->needs(residual);
  AddDtype(*command, "--dtype", arguments->dtype, "The type of the output; default: x's");
  command->footer(kLocationFooter);
  command->callback([arguments, &status] {
    Apply(*arguments);
    status = kSuccess;
  });
}

}  // namespace rmsnorm::tools
