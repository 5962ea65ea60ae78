// SPDX-License-Identifier: Apache-2.0
// rmsnorm apply: normalises a tensor from a file into a file.
#include <cstdint>
#include <memory>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
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
  std::string weight;    // empty for none
  std::string residual;  // empty for none
  std::string output;
  std::string residual_output;  // empty for none
  std::int32_t dtype = 0;       // a Dtype, or 0 for x's
  Options options;
};

void CheckResidual(const TensorInfo& x, const TensorInfo& residual) {
  if (residual.shape != x.shape) {
    throw UserError("--residual: shape " + ShapeText(residual.shape) + ", but x has " +
                    ShapeText(x.shape));
  }
  if (residual.dtype != Dtype::f32 && residual.dtype != x.dtype) {
    throw UserError("--residual: " + DtypeName(residual.dtype) +
                    ", but it must be f32 or the type of x, " + DtypeName(x.dtype));
  }
}

// The residual, a chunk of rows at a time, and the file its sum with x goes to.
class Residual {
 public:
  // Throws UserError for what is wrong with any of the files, and writes nothing yet.
  Residual(const std::string& input, const std::string& output, const TensorInfo& x)
      : tensor_(ParseLocation(input)) {
    CheckResidual(x, tensor_.info());
    d_ = x.shape.back();
    if (output.empty()) return;
    location_.emplace(ParseOutputLocation(output, "output"));
    header_ = FileHeader({{*location_, tensor_.info()}});
  }

  const std::optional<TensorLocation>& location() const { return location_; }

  void Open() {
    if (!location_) return;
    file_.emplace(location_->path);
    file_->Write(header_);
  }

  // Views of `count` rows from `first` on: the residual, and memory for its sum with x.
  ConstView Input(size_t first, size_t count) { return ViewOfRows(tensor_, d_, first, count); }
  View Output(size_t count) {
    sum_.resize(count * row_bytes());
    return View(sum_.data(), dtype(), {count, d_});
  }

  void Write(size_t count) {
    if (file_) file_->Write({sum_.data(), count * row_bytes()});
  }
  void Sync() {
    if (file_) file_->Sync();
  }
  void Commit() {
    if (file_) file_->Commit();
  }

 private:
  Dtype dtype() const { return tensor_.info().dtype; }
  size_t row_bytes() const { return d_ * ElementSize(dtype()); }

  InputTensor tensor_;
  size_t d_;
  std::optional<TensorLocation> location_;
  std::string header_;
  std::optional<OutputFile> file_;
  std::vector<char> sum_;
};

void Apply(const Arguments& arguments) {
  const TensorLocation output_location = ParseOutputLocation(arguments.output, "output");
  InputTensor x(ParseLocation(arguments.input));
  Weight weight(arguments.weight);
  const RowShape shape = ShapeOfRows("--input", x.info());
  const std::optional<ConstView> weight_view = weight.View(shape.d);
  std::optional<Residual> residual;
  if (!arguments.residual.empty()) {
    residual.emplace(arguments.residual, arguments.residual_output, x.info());
    if (residual->location() &&
        ResolvedPath(residual->location()->path) == ResolvedPath(output_location.path)) {
      throw UserError("--residual-output: the same file as --output");
    }
  }

  const Dtype x_dtype = x.info().dtype;
  const Dtype y_dtype = arguments.dtype == 0 ? x_dtype : static_cast<Dtype>(arguments.dtype);
  const std::string header = FileHeader({{output_location, {y_dtype, x.info().shape}}});

  const size_t d = shape.d;
  const size_t y_row = d * ElementSize(y_dtype);
  const size_t chunk_rows = RowsInChunk(shape, x_dtype);
  std::vector<char> y(chunk_rows * y_row);

  OutputFile file(output_location.path);
  if (residual) residual->Open();
  file.Write(header);
  ForEachChunk(shape.rows, chunk_rows, [&](size_t first, size_t count) {
    const ConstView x_view = ViewOfRows(x, d, first, count);
    const View y_view(y.data(), y_dtype, {count, d});
    const rmsnorm_view* const weight_or_null = weight_view ? weight_view->get() : nullptr;
    if (residual) {
      const ConstView residual_view = residual->Input(first, count);
      check(rmsnorm_add_forward(x_view.get(), residual_view.get(), weight_or_null,
                                residual->Output(count).get(), y_view.get(), nullptr,
                                &arguments.options));
      residual->Write(count);
    } else {
      check(
          rmsnorm_forward(x_view.get(), weight_or_null, y_view.get(), nullptr, &arguments.options));
    }
    file.Write({y.data(), count * y_row});
  });
  // What a full disk refuses shows here at the latest, before either file takes its place.
  file.Sync();
  if (residual) residual->Sync();
  file.Commit();
  if (residual) residual->Commit();
}

}  // namespace

void AddApply(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "apply", "Normalise each row (last axis) of a tensor from a .npy or .safetensors file");
  const auto arguments = std::make_shared<Arguments>();

  AddLocation(*command, "--input", arguments->input, "x: f32, f16 or bf16, of any shape")
      ->required();
  CLI::Option* const weight = AddLocation(*command, "--weight", arguments->weight,
                                          "The weight, one element for each of a row; none: ones");
  CLI::Option* const residual =
      AddLocation(*command, "--residual", arguments->residual,
                  "Added to x before the norm: of the shape of x, and f32 or of its type");
  AddLocation(*command, "--output", arguments->output,
              "The file to make or replace; its ending chooses the format, and its tensor is "
              "called 'output' unless named")
      ->required();
  AddLocation(*command, "--residual-output", arguments->residual_output,
              "A file for the sum of the residual and x, in the residual's type")
      ->needs(residual);
  AddNormOptions(*command, weight, arguments->options);
  AddChoice(
      *command, "--rounding",
      {{"scale-then-cast", RMSNORM_SCALE_THEN_CAST}, {"cast-then-scale", RMSNORM_CAST_THEN_SCALE}},
      arguments->options.rounding,
      "Whether the normalised value is rounded to x's type after the weight (default) or before");
  AddChoice(
      *command, "--residual-rounding",
      {{"cast-then-norm", RMSNORM_CAST_THEN_NORM}, {"norm-then-cast", RMSNORM_NORM_THEN_CAST}},
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
