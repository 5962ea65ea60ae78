// SPDX-License-Identifier: Apache-2.0
// rmsnorm apply: normalises a tensor from a file into a file.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "output_file.h"
#include "progress.h"
#include "tensor_file.h"

namespace rmsnorm::tools {
namespace {

// Bytes of x that one call of the library gets: enough to keep the threads busy, little enough that
// y is still in the cache when it is written to the file.
constexpr size_t kChunkBytes = size_t{4} << 20;

struct Arguments {
  std::string input;
  std::string weight;    // empty for none
  std::string residual;  // empty for none
  std::string output;
  std::string residual_output;  // empty for none
  std::int32_t dtype = 0;       // a Dtype, or 0 for x's
  Options options;
};

// The data at an address that the library accepts: itself, or copied to `copy` if it is not aligned
// to its elements. A .safetensors file may put it anywhere.
const void* Aligned(const char* data, size_t size, Dtype dtype, std::vector<char>& copy) {
  if (reinterpret_cast<uintptr_t>(data) % ElementSize(dtype) == 0) return data;
  copy.assign(data, data + size);
  return copy.data();
}

void CheckShapes(const TensorInfo& x, const std::optional<InputTensor>& weight) {
  if (x.shape.empty()) throw UserError("--input: a tensor without dimensions has no rows");
  const size_t d = x.shape.back();
  if (d == 0) throw UserError("--input: shape " + ShapeText(x.shape) + " has rows of no elements");
  if (weight && weight->info().shape != std::vector<size_t>{d}) {
    throw UserError("--weight: shape " + ShapeText(weight->info().shape) +
                    ", but the rows of x need " + ShapeText({d}));
  }
}

bool SameFile(const std::string& a, const std::string& b) {
  // A path that cannot be resolved is one that cannot be written: opening it will say so.
  std::error_code error_of_a;
  std::error_code error_of_b;
  const std::filesystem::path resolved_a = std::filesystem::weakly_canonical(a, error_of_a);
  const std::filesystem::path resolved_b = std::filesystem::weakly_canonical(b, error_of_b);
  return !error_of_a && !error_of_b && resolved_a == resolved_b;
}

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
    location_.emplace(ParseLocation(output));
    header_ = FileHeader(*location_, tensor_.info());
  }

  const std::optional<TensorLocation>& location() const { return location_; }

  void Open() {
    if (!location_) return;
    file_.emplace(location_->path);
    file_->Write(header_);
  }

  // Views of `count` rows from `row` on: the residual, and memory for its sum with x.
  ConstView Input(size_t row, size_t count) {
    return ConstView(
        Aligned(tensor_.data() + row * row_bytes(), count * row_bytes(), dtype(), copy_), dtype(),
        {count, d_});
  }
  View Output(size_t count) {
    sum_.resize(std::max<size_t>(1, count) * row_bytes());
    return View(sum_.data(), dtype(), {count, d_});
  }

  void Write(size_t count) {
    if (file_) file_->Write({sum_.data(), count * row_bytes()});
  }
  void Close() {
    if (file_) file_->Close();
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
  std::vector<char> copy_;
  std::vector<char> sum_;
};

void Apply(const Arguments& arguments) {
  const TensorLocation output_location = ParseLocation(arguments.output);
  const InputTensor x(ParseLocation(arguments.input));
  std::optional<InputTensor> weight;
  if (!arguments.weight.empty()) weight.emplace(ParseLocation(arguments.weight));
  CheckShapes(x.info(), weight);
  std::optional<Residual> residual;
  if (!arguments.residual.empty()) {
    residual.emplace(arguments.residual, arguments.residual_output, x.info());
    if (residual->location() && SameFile(residual->location()->path, output_location.path)) {
      throw UserError("--residual-output: the same file as --output");
    }
  }

  const Dtype x_dtype = x.info().dtype;
  const Dtype y_dtype = arguments.dtype == 0 ? x_dtype : static_cast<Dtype>(arguments.dtype);
  const TensorInfo y_info = {y_dtype, x.info().shape};
  const std::string header = FileHeader(output_location, y_info);

  const size_t d = x.info().shape.back();
  const size_t x_row = d * ElementSize(x_dtype);
  const size_t y_row = d * ElementSize(y_dtype);
  const size_t rows = ByteSize(x.info()) / x_row;
  const size_t chunk_rows = std::max<size_t>(1, kChunkBytes / x_row);
  std::vector<char> x_copy;
  std::vector<char> weight_copy;
  std::vector<char> y(std::min(std::max<size_t>(1, rows), chunk_rows) * y_row);
  std::optional<ConstView> weight_view;
  if (weight) {
    const Dtype dtype = weight->info().dtype;
    const void* data = Aligned(weight->data(), d * ElementSize(dtype), dtype, weight_copy);
    weight_view.emplace(data, dtype, std::initializer_list<size_t>{d});
  }

  OutputFile file(output_location.path);
  if (residual) residual->Open();
  file.Write(header);
  Progress progress(rows);
  // Without rows there is still one call, which checks the options and the target.
  size_t row = 0;
  do {
    const size_t count = std::min(chunk_rows, rows - row);
    const char* const x_rows = x.data() + row * x_row;
    const ConstView x_view(Aligned(x_rows, count * x_row, x_dtype, x_copy), x_dtype, {count, d});
    const View y_view(y.data(), y_dtype, {count, d});
    const rmsnorm_view* const weight_or_null = weight_view ? weight_view->get() : nullptr;
    if (residual) {
      const ConstView residual_view = residual->Input(row, count);
      check(rmsnorm_add_forward(x_view.get(), residual_view.get(), weight_or_null,
                                residual->Output(count).get(), y_view.get(), nullptr,
                                &arguments.options));
      residual->Write(count);
    } else {
      check(
          rmsnorm_forward(x_view.get(), weight_or_null, y_view.get(), nullptr, &arguments.options));
    }
    file.Write({y.data(), count * y_row});
    row += count;
    progress.Update(row);
  } while (row < rows);
  // What a full disk refuses shows here at the latest, before either file takes its place.
  file.Close();
  if (residual) residual->Close();
  file.Commit();
  if (residual) residual->Commit();
}

// Straight to f32: a detour over double would round twice.
float ParseFloat(const std::string& option, const std::string& text) {
  char* end;
  errno = 0;
  const float value = std::strtof(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !std::isfinite(value)) {
    throw UserError(option + ": '" + text + "' is not a finite 32-bit number");
  }
  if (value == 0 && errno == ERANGE) {
    throw UserError(option + ": " + text + " is too small for a 32-bit number");
  }
  return value;
}

// An option whose values are words.
CLI::Option* AddChoice(CLI::App& command, const std::string& name,
                       const std::map<std::string, std::int32_t>& choices, std::int32_t& value,
                       const std::string& help) {
  return command
      .add_option_function<std::string>(
          name, [&value, choices](const std::string& text) { value = choices.at(text); }, help)
      ->check(CLI::IsMember(choices));
}

}  // namespace

void AddApply(CLI::App& app, int& status) {
  CLI::App* const command = app.add_subcommand(
      "apply", "Normalise each row (last axis) of a tensor from a .npy or .safetensors file");
  const auto arguments = std::make_shared<Arguments>();
  Options& options = arguments->options;

  const std::string location = "FILE[:TENSOR]";
  command->add_option("--input", arguments->input, "x: f32, f16 or bf16, of any shape")
      ->required()
      ->type_name(location);
  CLI::Option* const weight =
      command
          ->add_option("--weight", arguments->weight,
                       "The weight, one element for each of a row; none: ones")
          ->type_name(location);
  CLI::Option* const residual =
      command
          ->add_option("--residual", arguments->residual,
                       "Added to x before the norm: of the shape of x, and f32 or of its type")
          ->type_name(location);
  command
      ->add_option("--output", arguments->output,
                   "The file to make or replace; its ending chooses the format, and its tensor is "
                   "called 'output' unless named")
      ->required()
      ->type_name(location);
  command
      ->add_option("--residual-output", arguments->residual_output,
                   "A file for the sum of the residual and x, in the residual's type")
      ->type_name(location)
      ->needs(residual);
  command
      ->add_option_function<std::string>(
          "--eps",
          [&options](const std::string& text) {
            options.eps = ParseFloat("--eps", text);
            if (options.eps < 0) throw UserError("--eps: " + text + " is negative");
          },
          "Added to the mean square, or to its root")
      ->type_name("NUMBER")
      ->default_str("1e-5");
  AddChoice(*command, "--eps-placement",
            {{"inside", RMSNORM_EPS_INSIDE}, {"outside", RMSNORM_EPS_OUTSIDE}},
            options.eps_placement, "Where eps is added: inside the root (default) or outside it");
  AddChoice(
      *command, "--rounding",
      {{"scale-then-cast", RMSNORM_SCALE_THEN_CAST}, {"cast-then-scale", RMSNORM_CAST_THEN_SCALE}},
      options.rounding,
      "Whether the normalised value is rounded to x's type after the weight (default) or before");
  AddChoice(
      *command, "--residual-rounding",
      {{"cast-then-norm", RMSNORM_CAST_THEN_NORM}, {"norm-then-cast", RMSNORM_NORM_THEN_CAST}},
      options.residual_rounding,
      "Whether the sum is rounded to the residual's type before the norm (default) or after")
      ->needs(residual);
  command
      ->add_option_function<std::string>(
          "--weight-offset",
          [&options](const std::string& text) {
            options.weight_offset = ParseFloat("--weight-offset", text);
          },
          "Added to the weight: 1 for Gemma")
      ->type_name("NUMBER")
      ->default_str("0")
      ->needs(weight);
  command
      ->add_option_function<std::string>(
          "--divisor",
          [&options](const std::string& text) {
            options.divisor = ParseFloat("--divisor", text);
            if (options.divisor <= 0) throw UserError("--divisor: " + text + " is not positive");
          },
          "What the sum of squares is divided by; default: the row's length")
      ->type_name("NUMBER");
  AddChoice(*command, "--dtype",
            {{"f32", RMSNORM_F32}, {"f16", RMSNORM_F16}, {"bf16", RMSNORM_BF16}}, arguments->dtype,
            "The type of the output; default: x's");
  command->add_option("--threads", options.threads, "At most so many threads; 0: as OpenMP chooses")
      ->check(CLI::Range(std::numeric_limits<std::int32_t>::max()))
      ->capture_default_str();
  command->footer(
      "In FILE[:TENSOR] the tensor's name is what follows the last '.safetensors:'. It may be left "
      "out "
      "where the file holds one tensor; .npy files have no names.");
  command->callback([arguments, &status] {
    Apply(*arguments);
    status = kSuccess;
  });
}

}  // namespace rmsnorm::tools
