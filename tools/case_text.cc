// SPDX-License-Identifier: Apache-2.0
#include "case_text.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <vector>

namespace rmsnorm::tools {
namespace {

// A case's buffers take a few times this many bytes.
constexpr size_t kMaxElements = size_t{1} << 28;

const Names<Dtype> kDtypes = {{"f32", Dtype::f32}, {"f16", Dtype::f16}, {"bf16", Dtype::bf16}};
const Names<std::optional<Dtype>> kOptionalDtypes = {
    {"f32", Dtype::f32}, {"f16", Dtype::f16}, {"bf16", Dtype::bf16}, {"none", std::nullopt}};
const Names<EpsPlacement> kEpsPlacements = {{"inside", EpsPlacement::inside},
                                            {"outside", EpsPlacement::outside},
                                            {"floor", EpsPlacement::floor}};
const Names<Rounding> kRoundings = {{"scale_then_cast", Rounding::scale_then_cast},
                                    {"cast_then_scale", Rounding::cast_then_scale},
                                    {"inverse_rounded", Rounding::inverse_rounded}};
const Names<ResidualRounding> kResidualRoundings = {
    {"cast_then_norm", ResidualRounding::cast_then_norm},
    {"norm_then_cast", ResidualRounding::norm_then_cast}};
const Names<Per> kPers = {
    {"tensor", Per::kTensor}, {"head", Per::kHead}, {"group", Per::kGroup}, {"row", Per::kRow}};
const Names<Values> kValues = {{"normal", Values::kNormal},
                               {"wide", Values::kWide},
                               {"huge", Values::kHuge},
                               {"tiny", Values::kTiny},
                               {"subnormal", Values::kSubnormal},
                               {"zero", Values::kZero},
                               {"nan", Values::kNan},
                               {"infinity", Values::kInfinity},
                               {"low_edge", Values::kLowEdge},
                               {"high_edge", Values::kHighEdge},
                               {"mixed", Values::kMixed},
                               {"finite", Values::kFinite}};

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace

std::string WriteField(Dtype value) { return WriteName(value, kDtypes); }
std::string WriteField(std::optional<Dtype> value) { return WriteName(value, kOptionalDtypes); }
std::string WriteField(EpsPlacement value) { return WriteName(value, kEpsPlacements); }
std::string WriteField(Rounding value) { return WriteName(value, kRoundings); }
std::string WriteField(ResidualRounding value) { return WriteName(value, kResidualRoundings); }
std::string WriteField(Per value) { return WriteName(value, kPers); }
std::string WriteField(Values value) { return WriteName(value, kValues); }
std::string WriteField(bool value) { return value ? "1" : "0"; }
std::string WriteField(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));  // all its bits
  return text;
}

bool ReadField(const std::string& text, Dtype& value) { return ReadName(text, value, kDtypes); }
bool ReadField(const std::string& text, std::optional<Dtype>& value) {
  return ReadName(text, value, kOptionalDtypes);
}
bool ReadField(const std::string& text, EpsPlacement& value) {
  return ReadName(text, value, kEpsPlacements);
}
bool ReadField(const std::string& text, Rounding& value) {
  return ReadName(text, value, kRoundings);
}
bool ReadField(const std::string& text, ResidualRounding& value) {
  return ReadName(text, value, kResidualRoundings);
}
bool ReadField(const std::string& text, Per& value) { return ReadName(text, value, kPers); }
bool ReadField(const std::string& text, Values& value) { return ReadName(text, value, kValues); }
bool ReadField(const std::string& text, bool& value) {
  value = text == "1";
  return value || text == "0";
}
bool ReadField(const std::string& text, float& value) {
  char* end;
  value = std::strtof(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

std::string KindOfCase(const std::string& text) { return text.substr(0, text.find(',')); }

FieldTexts SplitFields(const std::string& text) {
  const std::vector<std::string> parts = Split(text, ',');
  FieldTexts given;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string::npos) throw UserError("case: '" + parts[i] + "' is not NAME=VALUE");
    const std::string name = parts[i].substr(0, equals);
    if (!given.emplace(name, parts[i].substr(equals + 1)).second) {
      throw UserError("case: '" + name + "' is given twice");
    }
  }
  for (const char* name : {"rows", "d"}) {
    if (given.count(name) == 0) throw UserError(std::string("case: '") + name + "' is missing");
  }
  return given;
}

void RequireSizes(size_t rows, size_t d, std::initializer_list<size_t> gaps,
                  std::initializer_list<size_t> shifts) {
  if (rows == 0 || d == 0) throw UserError("case: rows and d must not be 0");
  const auto require = [](size_t size) {
    if (size > kMaxElements) throw UserError("case: a size is above 2^28 elements");
  };
  require(rows);
  require(d);
  for (const size_t shift : shifts) require(shift);
  size_t row = d;
  for (const size_t gap : gaps) {
    require(gap);
    row += gap;
  }
  if (row > kMaxElements / rows) throw UserError("case: more than 2^28 elements");
}

void RequireHeads(size_t rows, size_t heads) {
  if (heads == 0 || rows % heads != 0) throw UserError("case: rows must be a multiple of heads");
}

}  // namespace rmsnorm::tools
