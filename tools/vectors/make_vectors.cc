// SPDX-License-Identifier: Apache-2.0
// make_vectors LIST OUTPUT: writes the inputs and the results of a list of cases into a
// .safetensors file, in the form that doc/vectors.md describes. The target `reference` computes the
// results.
#include <cctype>
#include <exception>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cases/list.h"
#include "cases/problem.h"

namespace rmsnorm::cases {
namespace {

using Json = nlohmann::ordered_json;

// A number as files hold it: the lowest byte first.
std::string LittleEndian(uint64_t value, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  return bytes;
}

// The name that the format has for a type.
std::string TypeName(rmsnorm_dtype dtype) {
  std::string name = rmsnorm_dtype_name(dtype);
  for (char& letter : name) letter = static_cast<char>(std::toupper(letter));
  return name;
}

// The elements in the order of bytes of a file. CPUs and compilers make different NaNs: in computed
// numbers, each becomes the same quiet NaN.
std::string DataOf(const Rows& rows, bool is_computed) {
  const size_t size = internal::ElementSize(rows.dtype());
  const Format format = FormatOf(rows.dtype());
  const uint64_t quiet_nan = format.infinity() | uint64_t{1} << (format.mantissa_bits - 1);
  const bool may_replace = is_computed && rows.dtype() != RMSNORM_I8;
  std::string data;
  for (size_t row = 0; row < rows.count(); ++row) {
    for (size_t j = 0; j < rows.d(); ++j) {
      const uint64_t bits = rows.bits(row, j);
      data += LittleEndian(may_replace && format.IsNan(bits) ? quiet_nan : bits, size);
    }
  }
  return data;
}

// The cases and tensors of a file.
class Vectors {
 public:
  // Computes the results of a case.
  void Add(const std::string& group, const Case& c) {
    const size_t number = cases_in_[group]++;
    const std::string name = group + "." + std::to_string(c.d) + "." + std::to_string(number);
    const Problem problem(c);
    std::string words = c.backward ? "op=backward" : "op=forward";
    internal::ForEachOperand(c.Given(), [&](Operand o) {
      const std::string operand = kOperandRules[o].name;
      if (c.IsOutput(o)) {
        const std::string result = name + "." + operand;
        AddTensor(result, c, o, DataOf(problem.after(o), true));
        words += " " + operand + "=" + result;
      }
      if (c.IsOutput(o) && !c.operand[o].add) return;
      words += " " + operand + (c.IsOutput(o) ? "_in=" : "=") + InputOf(c, o, problem.before(o));
    });
    index_[name] = words + OptionsOf(c);
    for (const Field& field : Fields()) seen_[field.name].insert(field.write(c));
  }

  // Throws std::runtime_error if an operand lacks a type, or an option a word or a second number.
  void RequireAll() const {
    const auto require = [&](const std::string& field, const std::string& value) {
      if (seen_.at(field).count(value) != 0) return;
      throw std::runtime_error("no case of the list has " + field + "=" + value);
    };
    for (const internal::OperandRule& rule : kOperandRules) {
      for (const rmsnorm_dtype dtype : {RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16}) {
        require(rule.name, rmsnorm_dtype_name(rule.dtype == 0 ? dtype : rule.dtype));
      }
    }
    for (const internal::OptionRule& rule : internal::kOptionRules) {
      for (const char* const* word = rule.words; *word != nullptr; ++word) {
        require(rule.name, *word);
      }
      if (seen_.at(rule.name).size() < 2) require(rule.name, "another number");
    }
  }

  void Write(const std::string& path) const {
    Json header = {{"__metadata__", index_}};
    std::string data;
    // Larger elements come first, so each tensor is aligned.
    for (const size_t size : {size_t{8}, size_t{4}, size_t{2}, size_t{1}}) {
      for (const Tensor& tensor : tensors_) {
        if (internal::ElementSize(tensor.dtype) != size) continue;
        const size_t begin = data.size();
        data += tensor.data;
        header[tensor.name] = {{"dtype", TypeName(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"data_offsets", {begin, data.size()}}};
      }
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::ofstream file(path, std::ios::binary);
    file << LittleEndian(text.size(), 8) << text << data << std::flush;
    if (!file) throw std::runtime_error(path + " cannot be written");
    std::cout << index_.size() << " cases, " << tensors_.size() << " tensors, "
              << 8 + text.size() + data.size() << " bytes\n";
  }

 private:
  struct Tensor {
    std::string name;
    rmsnorm_dtype dtype;
    std::vector<size_t> shape;
    std::string data;
  };

  // The options that are not the default, eps, and the kinds of the inputs' values.
  static std::string OptionsOf(const Case& c) {
    std::vector<std::string> names;
    for (const internal::OptionRule& rule : internal::kOptionRules) names.emplace_back(rule.name);
    internal::ForEachOperand(c.Given(), [&](Operand o) {
      names.push_back(kOperandRules[o].name + std::string("_values"));
    });
    std::string words;
    for (const std::string& name : names) {
      const Field& field = FindField(name);
      const std::string value = field.write(c);
      if (name != "eps" && value == field.write(Case(c.backward))) continue;
      words += " " + name + "=" + value;
    }
    return words;
  }

  void AddTensor(const std::string& name, const Case& c, Operand o, std::string data) {
    tensors_.push_back({name, c.operand[o].dtype, TensorShapeOf(c, o), std::move(data)});
  }

  // The name of an input. Cases with the same values share it.
  std::string InputOf(const Case& c, Operand o, const Rows& rows) {
    const std::string operand = kOperandRules[o].name;
    std::string data = DataOf(rows, kOperandRules[o].length == Length::kOne);
    std::string& name = inputs_[{operand, c.operand[o].dtype, TensorShapeOf(c, o), data}];
    if (name.empty()) {
      name = operand + "." + std::to_string(inputs_of_[operand]++);
      AddTensor(name, c, o, std::move(data));
    }
    return name;
  }

  Json index_;  // the cases and their words
  std::vector<Tensor> tensors_;
  using Input = std::tuple<std::string, rmsnorm_dtype, std::vector<size_t>, std::string>;
  std::map<Input, std::string> inputs_;                // names
  std::map<std::string, size_t> inputs_of_;            // numbers of inputs, by operand
  std::map<std::string, size_t> cases_in_;             // numbers of cases, by group
  std::map<std::string, std::set<std::string>> seen_;  // the values of each field
};

void Run(const std::string& list, const std::string& output) {
  Vectors vectors;
  List(ReadText(list)).ForEach([&](const std::string& group, const Calls& calls) {
    vectors.Add(group, calls.at(0));
  });
  vectors.RequireAll();
  vectors.Write(output);
}

}  // namespace
}  // namespace rmsnorm::cases

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: make_vectors LIST OUTPUT");
  rmsnorm::cases::Run(argv[1], argv[2]);
} catch (const std::exception& error) {
  std::cerr << "make_vectors: " << error.what() << "\n";
  return 1;
}
