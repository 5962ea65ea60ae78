// SPDX-License-Identifier: Apache-2.0
// Calls with known results: the tensors of files, and the case of each call on them.
//
// The environment variable RMSNORM_DATA names the folder of the files.
#ifndef RMSNORM_TEST_GOLDEN_H_
#define RMSNORM_TEST_GOLDEN_H_

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases/case.h"
#include "cases/problem.h"
#include "cases/values.h"
#include "tensor_files.h"

namespace rmsnorm::test {

using namespace internal;  // kX and the other operands
using cases::Case;
using cases::Rows;

inline std::string Read(const char* variable, const std::string& name = "") {
  const char* const path = std::getenv(variable);
  if (path == nullptr) throw std::runtime_error(std::string(variable) + " is not set");
  std::ifstream file(path + name, std::ios::binary);
  if (!file) throw std::runtime_error(path + name + " cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Tensor {
  std::vector<size_t> shape;
  Rows rows;
};
using Tensors = std::map<std::string, Tensor>;

using Operands = std::map<std::string, const Tensor*>;  // by name

inline Tensors ReadTensors(const std::string& file) {
  Tensors tensors;
  for (const auto& [name, stored] : ReadSafetensors(file)) {
    Tensor& tensor = tensors[name] = {stored.shape, {}};
    tensor.rows = Rows(stored.dtype, stored.data.size() / ElementSize(stored.dtype), 1);
    std::memcpy(tensor.rows.row(0), stored.data.data(), stored.data.size());
  }
  return tensors;
}

// A call with known results.
struct Golden {
  std::string name;
  Case c;
  const Tensor* tensor[kOperands] = {};  // its inputs and results
  const Tensor* before[kOperands] = {};  // the values that a gradient is added to

  rmsnorm_dtype TypeOf(Operand o) const { return c.operand[o].dtype; }
};

// The tensors have the names of the operands; "dw_in" is added to dw. The text has the options.
inline Golden MakeGolden(const std::string& name, bool backward, const Operands& tensors,
                         const std::string& options) {
  Golden golden;
  golden.name = name;
  std::string text = backward ? "backward" : "forward";
  for (int i = 0; i < kOperands; ++i) {
    const std::string operand = kOperandRules[i].name;
    const auto found = tensors.find(operand);
    const auto before = tensors.find(operand + "_in");
    if (found != tensors.end()) golden.tensor[i] = found->second;
    if (before != tensors.end()) golden.before[i] = before->second;
    text += "," + operand + "=";
    text += found == tensors.end() ? "none" : rmsnorm_dtype_name(found->second->rows.dtype());
    if (before != tensors.end()) text += "," + operand + "_add=1";
  }
  std::string rows;
  const std::vector<size_t>& shape = golden.tensor[kX]->shape;
  for (size_t i = 0; i + 1 < shape.size(); ++i) {
    rows += (i == 0 ? "" : "x") + std::to_string(shape[i]);
  }
  text += ",rows=" + (rows.empty() ? "one" : rows) + ",d=" + std::to_string(shape.back());
  golden.c = cases::Parse(text + options);
  ForEachOperand(golden.c.Given(), [&](Operand o) {
    std::vector<size_t> leading = golden.tensor[o]->shape;
    leading.pop_back();
    using cases::Per;
    for (const Per per : {Per::kHead, Per::kGroup, Per::kRow, Per::kAlternate, Per::kFirst}) {
      const bool is_right =
          kOperandRules[o].shape != Shape::kColumns || cases::LeadingOf(golden.c, o) == leading;
      if (!is_right) golden.c.operand[o].per = per;
    }
    if (golden.tensor[o]->rows.count() !=
        cases::RowsOf(golden.c, o) * cases::RowLengthOf(golden.c, o)) {
      throw std::runtime_error(name + ": wrong shape of " + kOperandRules[o].name);
    }
  });
  cases::RequireMeaning(golden.c);
  return golden;
}

// The results of a call, by operand.
using Results = std::map<Operand, Rows>;

inline Results ResultsOf(const Golden& golden, const std::string& target) {
  const Case& c = golden.c;
  cases::CallOperands operands;
  Results results;
  ForEachOperand(c.Given(), [&](Operand o) {
    std::vector<size_t> shape = cases::LeadingOf(c, o);
    if (kOperandRules[o].shape != Shape::kPerRow) shape.push_back(c.d);
    const rmsnorm_dtype dtype = golden.TypeOf(o);
    const Rows* rows = c.IsOutput(o) ? nullptr : &golden.tensor[o]->rows;
    if (c.IsOutput(o)) {
      Rows& result = results[o] = Rows(dtype, cases::RowsOf(c, o) * cases::RowLengthOf(c, o), 1);
      std::memset(result.row(0), 0x5A, result.count() * result.row_bytes());
      if (golden.before[o] != nullptr) result = golden.before[o]->rows;
      rows = &result;
    }
    operands.Set(o, rmsnorm_tensor(rows->row(0), dtype, static_cast<int32_t>(shape.size()),
                                   shape.data(), nullptr));
    if (c.operand[o].add) operands.add_to |= 1u << (o - kDx);
  });
  rmsnorm_context context = rmsnorm_default_context();
  context.target = target.c_str();
  const rmsnorm_operands all = operands.Get();
  check(c.backward ? rmsnorm_backward(&all, &c.options, &context)
                   : rmsnorm_forward(&all, &c.options, &context));
  return results;
}

// Whether both have the same bits, or are NaNs.
inline bool IsSame(const Rows& a, const Rows& b, size_t i) {
  const cases::Format format = cases::FormatOf(a.dtype());
  const bool has_nans = a.dtype() != RMSNORM_I8;
  return a.bits(i, 0) == b.bits(i, 0) ||
         (has_nans && format.IsNan(a.bits(i, 0)) && format.IsNan(b.bits(i, 0)));
}

inline size_t ElementsApart(const Rows& a, const Rows& b) {
  size_t apart = 0;
  for (size_t i = 0; i < a.count(); ++i) apart += IsSame(a, b, i) ? 0 : 1;
  return apart;
}

inline double ValueOf(const Rows& rows, size_t i) {
  const uint64_t bits = rows.bits(i, 0);
  const cases::Format format = cases::FormatOf(rows.dtype());
  const uint64_t magnitude = bits & (format.sign() - 1);
  if (magnitude >= format.infinity()) return std::numeric_limits<double>::quiet_NaN();
  // The smallest normal numbers have the exponent of the subnormal ones.
  const uint64_t exponent = std::max<uint64_t>(magnitude >> format.mantissa_bits, 1) - 1;
  const auto significand = static_cast<double>(magnitude - (exponent << format.mantissa_bits));
  const int lowest = 2 - (1 << (format.exponent_bits - 1)) - format.mantissa_bits;
  return std::ldexp(bits == magnitude ? significand : -significand,
                    static_cast<int>(exponent) + lowest);
}

// The distance from |value| to the next number of the type.
inline double Ulp(rmsnorm_dtype dtype, double value) {
  const cases::Format format = cases::FormatOf(dtype);
  const int lowest = 2 - (1 << (format.exponent_bits - 1));
  const int exponent = value == 0 ? lowest : std::max(std::ilogb(value), lowest);
  return std::ldexp(1.0, exponent - format.mantissa_bits);
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_GOLDEN_H_
