// SPDX-License-Identifier: Apache-2.0
// rmsnorm apply and rmsnorm backward: a norm and its gradients, from files into files. Tables
// define the command line: a line per tensor in the table of operands, and one per number or word
// in the table of options.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>

#include "cases/number_text.h"
#include "cases/user_error.h"
#include "command.h"
#include "file_call.h"
#include "tensor_file.h"
#include "words.h"

namespace rmsnorm::tools {
namespace {

using internal::OperandRule;
using internal::Option;

constexpr char kWeightHelp[] =
    "The weight, one element for each of a row; or one such row for each head, group or sample: "
    "leading dimensions, aligned with x's from the right, are x's or 1; none: ones";
constexpr char kXHelp[] = "x: f32, f16 or bf16, of any shape";

const FileCommand kCommands[] = {
    {"apply",
     "Normalise each row (last axis) of a tensor from a .npy or .safetensors file",
     rmsnorm_forward,
     &OperandRule::forward,
     {{internal::kX, "--input", kXHelp},
      {internal::kWeight, "--weight", kWeightHelp, internal::kWeight, nullptr, "--output"},
      {internal::kBias, "--bias",
       "Added after the weight; of a shape that the weight may have; none: nothing",
       internal::kBias, nullptr, "--output"},
      {internal::kPostNormWeight, "--post-norm-weight",
       "x is first normalised, by this weight: of a shape that the weight may have"},
      {internal::kGate, "--gate", "An activation of it multiplies the norm or x: of the shape of x",
       internal::kGate, nullptr, "--output"},
      {internal::kResidual, "--residual",
       "Added to x before the norm: of the shape of x, f32, f16 or bf16"},
      {internal::kY, "--output",
       "The file to make or replace; its ending chooses the format, and its tensor is called "
       "'output' unless named",
       internal::kX, "--dtype"},
      {internal::kResidualOut, "--residual-output",
       "A file for the sum of the residual and x, in the residual's type", internal::kResidual,
       nullptr, "--residual"},
      {internal::kQ, "--q", nullptr, internal::kX},
      {internal::kScale, "--scale", nullptr, internal::kX},
      {internal::kZero, "--zero", nullptr, internal::kX}}},
    {"backward",
     "Compute the gradients by x, weight and bias from the gradient by y, in files",
     rmsnorm_backward,
     &OperandRule::backward,
     {{internal::kX, "--input", kXHelp},
      {internal::kDy, "--grad", "The gradient by y, in the shape of x"},
      {internal::kWeight, "--weight", kWeightHelp},
      {internal::kBias, "--bias",
       "The bias, for nothing but the shape and type of its gradient; none: one element for each "
       "of a row",
       internal::kBias, nullptr, "--grad-bias"},
      {internal::kRstd, "--rstd",
       "1 / RMS of each row in f32, as saved by the forward pass and used unchanged; none: "
       "computed "
       "again"},
      {internal::kDx, "--grad-input",
       "The file to make or replace for the gradient by x, in the type of --grad; its ending "
       "chooses the format, and its tensor is called 'grad_input' unless named",
       internal::kDy},
      {internal::kDw, "--grad-weight",
       "The file for the gradient by the weight, in its shape; a .safetensors file may take all "
       "gradients",
       internal::kWeight, "--grad-weight-dtype"},
      {internal::kDb, "--grad-bias", "The file for the gradient by the bias, in its shape",
       internal::kBias, "--grad-bias-dtype"}}},
};

// A flag for an option of the library. The library's table of options has its name, its words, and
// whether gradients depend on it.
struct OptionFlag {
  Option option;
  const char* help;
  const char* needs = nullptr;         // another flag
  const char* unless_given = nullptr;  // the default of a number, for the help
  const char* refused = nullptr;       // a kind of number that the flag refuses
  bool (*refuses)(float) = [](float) { return false; };

  const internal::OptionRule& rule() const { return internal::kOptionRules[option]; }
  std::string name() const { return FlagOf(option); }
};

const OptionFlag kOptionFlags[] = {
    {internal::kEps, "Added to the mean square or to its root, or the least the root may be",
     nullptr, "1e-5", "negative", [](float value) { return value < 0; }},
    {internal::kWeightOffset, "Added to the weight: 1 for Gemma", nullptr, "0"},
    {internal::kDivisor, "Divides the sum of squares; default: the row's length", nullptr, "",
     "not from 2^-126 to 2^126",
     [](float value) { return value == 0 || !internal::IsDivisor(value); }},
    {internal::kFactor,
     "x is multiplied by it, after the post-norm and before the residual is added", nullptr, "1",
     "zero", [](float value) { return value == 0; }},
    {internal::kEpsPlacement,
     "Whether eps is added inside the root (default) or outside it, or is the root's floor (L2 "
     "norms, with a divisor of 1)"},
    {internal::kRounding,
     "Whether the normalised value is rounded to x's type after the weight (default) or before; or "
     "before, and 1 / RMS as well"},
    {internal::kResidualRounding,
     "Whether the norm is of the sum rounded to the residual's type (default) or of the sum itself",
     "--residual"},
    {internal::kActivation,
     "The factor for an element z of the gate: z / (1 + exp(-z)) (default) or 1 / (1 + exp(-z))",
     "--gate"},
    {internal::kGatePlacement,
     "Whether the gate multiplies the norm (default), or x before the norm", "--gate"},
    {internal::kGateRounding,
     "Whether the norm is rounded to x's type before the gate multiplies it; default: no",
     "--gate"},
};
static_assert(std::size(kOptionFlags) == internal::kOptions,
              "an option of the library has no flag");

// The outputs that each kind of quantisation adds to the file.
const std::map<std::string, std::vector<Operand>> kQuantisations = {
    {"int8", {internal::kQ, internal::kScale}},
    {"int8-asymmetric", {internal::kQ, internal::kScale, internal::kZero}}};

constexpr char kFooter[] =
    "In FILE[:TENSOR] the longest FILE that exists is taken. The tensor's name may be left out "
    "where the file holds one tensor; .npy files have no names.";

float ParseFloat(const std::string& option, const std::string& text) {
  float value;
  if (cases::ReadNumber(text, value) && std::isfinite(value)) return value;
  const bool is_tiny = errno == ERANGE && value == 0;
  throw cases::UserError(option + ": " +
                         (is_tiny ? text + " is too small for a 32-bit number"
                                  : "'" + text + "' is not a finite 32-bit number"));
}

// Adds the flags that change which tensors `rmsnorm apply` writes.
void AddOutputFlags(CLI::App& verb, std::string& quantisation) {
  CLI::Option* const output = verb.get_option("--output");
  verb.add_flag("--no-norm", "The addition alone: there is no --output")
      ->needs(verb.get_option("--residual-output"))
      ->excludes(output);
  verb.add_option("--quantize", quantisation,
                  "The .safetensors file of the output holds it quantised as well: 'q', 'scale' "
                  "for each row and, asymmetric, 'zero' for each row")
      ->check(OneOf(kQuantisations))
      ->needs(output);
}

void AddCommand(CLI::App& app, const FileCommand& command, int& status) {
  CLI::App& verb = *app.add_subcommand(command.name, command.help);
  const auto call = std::make_shared<FileCall>();
  const auto add = [&](const std::string& flag, const std::function<void(const std::string&)>& set,
                       const std::string& help) {
    return verb.add_option_function<std::string>(flag, set, help);
  };

  std::map<internal::Operand, const char*> flags;
  std::vector<std::string> outputs;
  for (const FileOperand& file : command.operands) {
    if (file.help == nullptr) continue;
    verb.add_option(file.flag, call->location[file.operand], file.help)
        ->type_name("FILE[:TENSOR]")
        ->check(FileName())
        ->required(internal::kOperandRules[file.operand].*command.role == Role::kRequired);
    flags[file.operand] = file.flag;
    if (command.IsOutput(file.operand)) outputs.emplace_back(file.flag);
  }
  for (const FileOperand& file : command.operands) {
    if (file.needs != nullptr) verb.get_option(file.flag)->needs(verb.get_option(file.needs));
    if (file.dtype_flag == nullptr) continue;
    std::optional<Dtype>& dtype = call->dtype[file.operand];
    add(
        file.dtype_flag, [&dtype](const std::string& word) { dtype = kDtypes.at(word); },
        std::string("The type of ") + file.flag + "; default: that of " + flags.at(file.like) +
            ", or f32")
        ->check(OneOf(kDtypes))
        ->needs(verb.get_option(file.flag));
  }
  const bool is_forward = command.call == rmsnorm_forward;
  for (const OptionFlag& flag : kOptionFlags) {
    if (!is_forward && flag.rule().gradient != internal::Gradient::kDepends) continue;
    if (internal::IsNumber(flag.option)) {
      const auto set = [call, &flag](const std::string& text) {
        const float value = ParseFloat(flag.name(), text);
        if (flag.refuses(value))
          throw cases::UserError(flag.name() + ": " + text + " is " + flag.refused);
        internal::SetValueIn(call->options, flag.option, value);
      };
      add(flag.name(), set, flag.help)->type_name("NUMBER")->default_str(flag.unless_given);
      continue;
    }
    const auto set = [call, &flag](const std::string& word) {
      internal::SetValueIn(call->options, flag.option, internal::WordOf(flag.option, word.c_str()));
    };
    std::vector<std::string> words;
    for (const char* const* word = flag.rule().words; *word != nullptr; ++word) {
      words.emplace_back(*word);
    }
    CLI::Option* const option = add(flag.name(), set, flag.help);
    option->check(OneOf(words));
    if (flag.needs != nullptr) option->needs(verb.get_option(flag.needs));
  }
  const auto quantisation = std::make_shared<std::string>();
  if (is_forward) AddOutputFlags(verb, *quantisation);
  AddInteger(verb, "--threads", call->context.threads, 0, std::numeric_limits<int32_t>::max(),
             "The most threads; 0: as OpenMP chooses");
  verb.footer(AnyOf(outputs) + " is needed. " + kFooter);

  verb.callback([call, quantisation, &verb, &command, outputs, &status] {
    const auto is_given = [&](const std::string& flag) { return verb.count(flag) > 0; };
    if (std::none_of(outputs.begin(), outputs.end(), is_given)) {
      throw cases::UserError(AnyOf(outputs) + " is required");
    }
    if (!quantisation->empty()) {
      const std::string path = ParseLocation(*call->location[internal::kY]).path;
      for (const Operand operand : kQuantisations.at(*quantisation)) call->location[operand] = path;
    }
    Run(command, *call);
    status = kSuccess;
  });
}

}  // namespace

void AddFileCommands(CLI::App& app, int& status) {
  for (const FileCommand& command : kCommands) AddCommand(app, command, status);
}

}  // namespace rmsnorm::tools
