// SPDX-License-Identifier: Apache-2.0
#include "vectors.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "text.h"

namespace rmsnorm::cases {
namespace {

void Require(bool holds, const std::string& problem) {
  if (!holds) throw std::runtime_error(problem);
}

uint64_t FromLittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

struct Tensor {
  std::string dtype;  // as a case has it
  std::vector<size_t> shape;
  std::string_view data;
};
using Tensors = std::map<std::string, Tensor>;

Tensor ReadTensor(const nlohmann::json& entry, std::string_view all_data) {
  Tensor tensor = {entry.at("dtype"), entry.at("shape"), {}};
  for (char& letter : tensor.dtype) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  const size_t begin = entry.at("data_offsets").at(0);
  const size_t end = entry.at("data_offsets").at(1);
  Require(begin <= end && end <= all_data.size(), "a tensor lies beyond the end of the file");
  tensor.data = all_data.substr(begin, end - begin);
  return tensor;
}

Rows RowsOfTensor(const Case& c, Operand o, const Tensor& tensor) {
  const std::string operand = kOperandRules[o].name;
  Require(tensor.shape == TensorShapeOf(c, o), "no such shape of " + operand + " belongs to x");
  Rows rows(c.operand[o].dtype, RowsOf(c, o), RowLengthOf(c, o));
  const size_t size = internal::ElementSize(rows.dtype());
  Require(tensor.data.size() == rows.count() * rows.row_bytes(),
          operand + " has another size than its shape");
  for (size_t i = 0; i < rows.count() * rows.d(); ++i) {
    rows.set_bits(i / rows.d(), i % rows.d(), FromLittleEndian(tensor.data.substr(i * size, size)));
  }
  return rows;
}

// The leading dimensions of a weight, a bias or a gradient.
void SetPer(Case& c, Operand o, std::vector<size_t> leading) {
  leading.pop_back();
  for (const Per per :
       {Per::kTensor, Per::kHead, Per::kGroup, Per::kRow, Per::kAlternate, Per::kFirst}) {
    c.operand[o].per = per;
    if (LeadingOf(c, o) == leading) return;
  }
}

// A word names a tensor, by an operand or as the gradient "dw_in" that dw is added to, or has the
// value of an option.
Recorded ReadCase(const std::string& name, const std::string& words, const Tensors& tensors) {
  std::string text, options;
  std::map<std::string, const Tensor*> given;
  for (const std::string& word : Split(words, ' ')) {
    const size_t equals = std::min(word.find('='), word.size() - 1);
    const std::string key = word.substr(0, equals);
    const std::string value = word.substr(equals + 1);
    const auto tensor = tensors.find(value);
    if (tensor != tensors.end()) {
      given[key] = &tensor->second;
      const size_t in = key.rfind("_in");
      const bool is_before = in != std::string::npos && in + 3 == key.size();
      options +=
          is_before ? "," + key.substr(0, in) + "_add=1" : "," + key + "=" + tensor->second.dtype;
    } else if (key == "op") {
      text = value;
    } else {
      options += "," + word;
    }
  }
  Require(given.count("x") != 0 && !given["x"]->shape.empty(), "there are no rows of x");
  const std::vector<size_t>& shape = given["x"]->shape;
  std::string rows;
  for (size_t i = 0; i + 1 < shape.size(); ++i) {
    rows += (i == 0 ? "" : "x") + std::to_string(shape[i]);
  }
  text += ",rows=" + (rows.empty() ? "one" : rows) + ",d=" + std::to_string(shape.back());
  if (given.count("cos") != 0 && !given["cos"]->shape.empty()) {
    text += ",rotated=" + std::to_string(2 * given["cos"]->shape.back());
  }
  for (const internal::OperandRule& rule : kOperandRules) {
    if (given.count(rule.name) == 0) text += "," + std::string(rule.name) + "=none";
  }
  Case c = Parse(text + options);
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    const std::vector<size_t>& own = given.at(kOperandRules[o].name)->shape;
    if (kOperandRules[o].leading == Leading::kShared && !own.empty()) SetPer(c, o, own);
  });
  RequireMeaning(c);
  AllRows before, after;
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    const std::string operand = kOperandRules[o].name;
    (c.IsOutput(o) ? after : before)[o] = RowsOfTensor(c, o, *given.at(operand));
    if (c.operand[o].add) before[o] = RowsOfTensor(c, o, *given.at(operand + "_in"));
  });
  return {name, c, Problem(std::move(before), std::move(after))};
}

}  // namespace

std::vector<Recorded> ReadVectors(const std::string& path) {
  std::string place;  // the case
  try {
    std::ifstream file(path, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    constexpr size_t kLengthSize = sizeof(uint64_t);
    Require(content.size() >= kLengthSize, "it cannot be read, or is too short");
    const uint64_t length = FromLittleEndian(std::string_view(content).substr(0, kLengthSize));
    Require(length <= content.size() - kLengthSize, "its header is beyond its end");
    const auto header = nlohmann::ordered_json::parse(content.substr(kLengthSize, length));
    const std::string_view data = std::string_view(content).substr(kLengthSize + length);
    Tensors tensors;
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") tensors[name] = ReadTensor(entry, data);
    }
    std::vector<Recorded> all;
    for (const auto& [name, words] : header.at("__metadata__").items()) {
      place = name + ": ";
      all.push_back(ReadCase(name, words, tensors));
    }
    Require(!all.empty(), "it has no case");
    return all;
  } catch (const std::exception& error) {
    throw UserError(path + " is no file of recorded bits: " + place + error.what());
  }
}

}  // namespace rmsnorm::cases
