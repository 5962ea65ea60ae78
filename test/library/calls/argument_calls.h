// SPDX-License-Identifier: Apache-2.0
// Correct calls; tests spoil their arguments. Each call is a case; its operands lie in one piece of
// memory, separate and with room around each.
#ifndef RMSNORM_TEST_ARGUMENT_CALLS_H_
#define RMSNORM_TEST_ARGUMENT_CALLS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases/case.h"
#include "cases/layout.h"
#include "cases/problem.h"
#include "cases/values.h"

namespace rmsnorm::test {

using cases::Case, cases::Operand, cases::Role, cases::Shape;
using internal::kOperandRules, internal::kOperands;

constexpr size_t kD = 8;

// The arguments of a call besides the module. A function may ignore some of them.
struct Arguments {
  const rmsnorm_operands* operands;
  const rmsnorm_options* options;
  const rmsnorm_context* context;
};

struct Function {
  std::string words;   // its kind and its arguments
  std::string text;    // a case for it
  std::string prefix;  // the start of its messages
  rmsnorm_status (*run)(const Arguments&);
};

inline const rmsnorm_module* Module() {
  static const RmsNorm module(kD);
  return module.get();
}

// Prepares a call, and runs it.
inline rmsnorm_status RunPrepared(const rmsnorm_call& call, bool is_backward,
                                  const rmsnorm_context* context) {
  rmsnorm_prepared* prepared = nullptr;
  const rmsnorm_status status = is_backward ? rmsnorm_prepare_backward(&prepared, &call, context)
                                            : rmsnorm_prepare(&prepared, &call, 1, context);
  EXPECT_EQ(status == RMSNORM_OK, prepared != nullptr);
  if (status == RMSNORM_OK) {
    EXPECT_EQ(RMSNORM_OK, rmsnorm_run(prepared));
  }
  rmsnorm_prepared_destroy(prepared);
  return status;
}

// A module that holds all that it can.
inline const rmsnorm_module* FullModule() {
  static const RmsNorm module = [] {
    RmsNorm made(kD);
    const float values[kD] = {1, 2, 3, 4, 5, 6, 7, 8};
    made.set_bias({values, kD});
    made.set_post_norm_weight({values, kD});
    return made;
  }();
  return module.get();
}

inline rmsnorm_status CreateModule(const Arguments& a) {
  rmsnorm_module* module = nullptr;
  const rmsnorm_status status =
      rmsnorm_module_create(&module, kD, RMSNORM_BF16, a.options, a.context);
  EXPECT_EQ(status == RMSNORM_OK, module != nullptr);
  rmsnorm_module_destroy(module);
  return status;
}

// Every function with each largest set of operands that it accepts. A module's functions appear
// twice, the second time with the operands of its functions for dense rows (lib/module_rows.cc).
inline std::vector<Function> MakeFunctions() {
  const auto forward = [](const Arguments& a) {
    return rmsnorm_forward(a.operands, a.options, a.context);
  };
  const auto forward_all = [](const Arguments& a) {
    const rmsnorm_call call = {nullptr, a.operands, a.options};
    return rmsnorm_forward_all(&call, 1, a.context);
  };
  const auto prepared_forward = [](const Arguments& a) {
    return RunPrepared({nullptr, a.operands, a.options}, false, a.context);
  };
  const auto prepared_backward = [](const Arguments& a) {
    return RunPrepared({nullptr, a.operands, a.options}, true, a.context);
  };
  const auto module_forward = [](const Arguments& a) {
    return rmsnorm_module_forward(Module(), a.operands, a.context);
  };
  const auto module_forward_all = [](const Arguments& a) {
    const rmsnorm_call call = {Module(), a.operands, nullptr};
    return rmsnorm_forward_all(&call, 1, a.context);
  };
  const auto backward = [](const Arguments& a) {
    return rmsnorm_backward(a.operands, a.options, a.context);
  };
  const auto module_backward = [](const Arguments& a) {
    return rmsnorm_module_backward(Module(), a.operands, a.context);
  };
  std::vector<Function> all;
  const std::string rows =
      "rows=2x3,d=8,weight_per=row,bias_per=row,post_norm_weight_per=row,"
      "dw_per=row,db_per=row,rstd=f32,";
  for (const bool with_residual : {true, false}) {
    const std::string text =
        "forward," + rows + "bias=f32,gate=f32,sums_out=f64,q=i8,scale=f32,zero=i8," +
        (with_residual ? "residual=f32,residual_out=f32,post_norm_weight=f32" : "sums=f64");
    const std::string words =
        with_residual ? "call forward residual context " : "call forward sums context ";
    all.push_back({words + "plain options", text, "", forward});
    all.push_back({words + "several options", text, "calls[0].", forward_all});
    all.push_back({words + "prepared options", text, "", prepared_forward});
    all.push_back({words + "module", text + ",weight=none", "", module_forward});
    all.push_back(
        {words + "several module", text + ",weight=none", "calls[0].", module_forward_all});
  }
  const std::string text = "backward," + rows + "db=f32";
  all.push_back({"call backward context plain options", text, "", backward});
  all.push_back({"call backward context prepared options", text, "", prepared_backward});
  all.push_back({"call backward context module", text + ",weight=none", "", module_backward});
  const std::string dense = "rows=2x3,d=8,rstd=f32,weight=none,";
  const std::string dense_forward = "forward," + dense + "residual=f32,residual_out=f32";
  all.push_back({"call forward context module", dense_forward, "", module_forward});
  all.push_back(
      {"call forward context several module", dense_forward, "calls[0].", module_forward_all});
  all.push_back({"call forward context full", dense_forward, "", [](const Arguments& a) {
                   return rmsnorm_module_forward(FullModule(), a.operands, a.context);
                 }});
  const std::string dense_backward = "backward," + dense + "dw=none";
  all.push_back({"call backward context module", dense_backward, "", module_backward});
  const std::string none = "forward,x=none,y=none,rows=one,d=8";
  all.push_back({"full_backward", dense_backward, "", [](const Arguments& a) {
                   return rmsnorm_module_backward(FullModule(), a.operands, a.context);
                 }});
  all.push_back({"create context options", none + ",weight=none", "", CreateModule});
  all.push_back({"held weight", none, "", [](const Arguments& a) {
                   RmsNorm norm(kD);
                   return rmsnorm_module_set_weight(const_cast<rmsnorm_module*>(norm.get()),
                                                    a.operands->weight);
                 }});
  all.push_back({"held weight", none, "", [](const Arguments& a) {
                   return rmsnorm_module_get_weight(Module(), a.operands->weight);
                 }});
  all.push_back({"held removable", none + ",weight=none,bias=f32", "", [](const Arguments& a) {
                   RmsNorm norm(kD);
                   return rmsnorm_module_set_bias(const_cast<rmsnorm_module*>(norm.get()),
                                                  a.operands->bias);
                 }});
  all.push_back(
      {"held removable", none + ",weight=none,post_norm_weight=f32", "", [](const Arguments& a) {
         RmsNorm norm(kD);
         return rmsnorm_module_set_post_norm_weight(const_cast<rmsnorm_module*>(norm.get()),
                                                    a.operands->post_norm_weight);
       }});
  return all;
}
inline const std::vector<Function>& Functions() {
  static const std::vector<Function> functions = MakeFunctions();
  return functions;
}

inline bool HasWords(const Function& function, const std::vector<std::string>& words) {
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
    return (" " + function.words + " ").find(" " + word + " ") != std::string::npos;
  });
}

// A call of a function; `fields` add to the case. A test spoils its views, options and context.
class Call {
 public:
  explicit Call(const Function& function, const std::string& fields = "") : function_(function) {
    const std::vector<std::string> parts = cases::Split(function.text + "," + fields, ',');
    c = Case(cases::IsBackward(parts[0]));
    for (size_t i = 1; i < parts.size(); ++i) {
      const size_t equals = parts[i].find('=');
      if (!cases::FindField(parts[i].substr(0, equals)).read(c, parts[i].substr(equals + 1))) {
        throw std::runtime_error("no value of a field: " + parts[i]);
      }
    }
    internal::ForEachOperand(c.Given(), [&](Operand o) { Give(o); });
    context.threads = c.threads;
    // As bf16 and f32, the bytes are numbers around 1; as f16 and f64, numbers not far from 1.
    cases::Random random(1);
    for (uint16_t& number : memory_) number = 0x3F80 | (random.Bits() & 0x7F);
  }
  Call(const Call&) = delete;  // the views point into it
  Call& operator=(const Call&) = delete;

  bool Has(Operand o) const { return (operands.given & cases::SetOf(o)) != 0; }
  bool IsOutput(Operand o) const { return Has(o) && c.RoleOf(o) == Role::kOutput; }
  rmsnorm_view& operator[](Operand o) { return operands.view[o]; }

  // Makes an operand dense, in a separate place, with the shape from the case.
  void Give(Operand o) {
    std::vector<size_t> shape = cases::LeadingOf(c, o);
    if (kOperandRules[o].shape != Shape::kPerRow || shape.empty()) {
      shape.push_back(cases::RowLengthOf(c, o));
    }
    Give(o, shape);
  }
  void Give(Operand o, const std::vector<size_t>& shape) {
    const rmsnorm_dtype only = kOperandRules[o].dtype;
    const rmsnorm_dtype dtype = c.Has(o) ? c.operand[o].dtype : only != 0 ? only : RMSNORM_F32;
    operands.Set(o, rmsnorm_tensor(Memory() + (static_cast<size_t>(o) * 2 + 1) * kPlace / 2, dtype,
                                   static_cast<int32_t>(shape.size()), shape.data(), nullptr));
  }
  void Remove(Operand o) { operands.given &= ~cases::SetOf(o); }

  // The address range of a row of an operand.
  struct Row {
    uintptr_t begin;
    uintptr_t end;
  };
  std::vector<Row> RowsOf(Operand o) const {
    const rmsnorm_view& view = operands.view[o];
    const bool per_row = kOperandRules[o].shape == Shape::kPerRow;
    const int dimensions = per_row ? view.ndim : view.ndim - 1;
    const size_t element = rmsnorm_dtype_size(view.dtype);
    std::vector<Row> rows;
    for (int i = 0; i < dimensions; ++i) {
      if (view.shape[i] == 0) return rows;
    }
    for (const ptrdiff_t offset :
         cases::RowOffsets({view.shape, view.shape + dimensions},
                           {view.stride, view.stride + dimensions}, element)) {
      const uintptr_t begin = reinterpret_cast<uintptr_t>(view.data) + static_cast<size_t>(offset);
      rows.push_back({begin, begin + element * (per_row ? 1 : view.shape[dimensions])});
    }
    return rows;
  }
  std::string BytesOf(Operand o) const {
    std::string bytes;
    for (const Row& row : RowsOf(o)) {
      bytes.append(reinterpret_cast<const char*>(row.begin), row.end - row.begin);
    }
    return bytes;
  }

  // All bytes of the memory; the second function replaces the outputs by zeros.
  std::string Bytes() { return {Memory(), sizeof memory_}; }
  std::string BytesBesideOutputs() {
    std::string bytes = Bytes();
    internal::ForEachOperand(operands.given, [&](Operand o) {
      if (!IsOutput(o)) return;
      for (const Row& row : RowsOf(o)) {
        const size_t size = row.end - row.begin;
        bytes.replace(row.begin - reinterpret_cast<uintptr_t>(Memory()), size, size, '\0');
      }
    });
    return bytes;
  }

  rmsnorm_status Run() const {
    const rmsnorm_operands all = operands.Get();
    return function_.run({no_operands ? nullptr : &all, &c.options, &context});
  }

  // Expects success, and that only outputs are written.
  void ExpectAccepted() {
    const std::string before = BytesBesideOutputs();
    ASSERT_EQ(RMSNORM_OK, Run()) << rmsnorm_error_message();
    EXPECT_TRUE(before == BytesBesideOutputs()) << "something else was written";
  }
  // Expects this error, and that nothing is written. Returns the message without the name of the
  // call.
  std::string ExpectRefused(rmsnorm_status status) {
    const std::string before = Bytes();
    EXPECT_EQ(status, Run()) << rmsnorm_error_message();
    EXPECT_TRUE(before == Bytes()) << "something was written";
    std::string message = rmsnorm_error_message();
    EXPECT_EQ(std::string::npos, message.find('\n')) << message;
    const bool is_of_context = message.find("context: ") == 0 || message.find("target: ") == 0;
    if (is_of_context) return message;
    EXPECT_EQ(0u, message.find(function_.prefix)) << message;
    return message.substr(function_.prefix.size());
  }

  Case c;
  cases::CallOperands operands;
  rmsnorm_context context = rmsnorm_default_context();
  bool no_operands = false;

 private:
  static constexpr size_t kPlace = 2048;  // in bytes; the operand begins in the middle

  char* Memory() { return reinterpret_cast<char*>(memory_); }

  const Function& function_;
  alignas(64) uint16_t memory_[kOperands * kPlace / sizeof(uint16_t)];
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_ARGUMENT_CALLS_H_
