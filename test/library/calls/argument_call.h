// SPDX-License-Identifier: Apache-2.0
// Correct calls; tests spoil their arguments. Each call is a case; its operands lie in one piece of
// memory, separate and with room around each, and its structs before inaccessible pages.
#ifndef RMSNORM_TEST_ARGUMENT_CALL_H_
#define RMSNORM_TEST_ARGUMENT_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "../../../lib/overlap.h"
#include "cases/case.h"
#include "cases/guarded_memory.h"
#include "cases/layout.h"
#include "cases/prepared_call.h"
#include "cases/problem.h"
#include "fixtures.h"

namespace rmsnorm::test {

using cases::Case, cases::Operand, cases::Role;
using internal::kOperandRules, internal::kOperands;

constexpr size_t kD = 8;

// The arguments of a call besides the module. An entry point may ignore some of them.
struct Arguments {
  const rmsnorm_operands* operands;
  const rmsnorm_options* options;
  const rmsnorm_context* context;
};

// A struct of another version of the library: the size that it says it has, and a byte that is not
// zero, if that is not the size itself.
struct Version {
  uint32_t size;
  size_t spoilt_byte = 0;

  // A struct has zeros beyond its known bytes. The library reads nothing beyond its size.
  template <class Struct>
  const Struct* Place(const Struct& known, cases::GuardedMemory& memory) const {
    constexpr uint32_t kMost = 4096;
    constexpr size_t kAlign = alignof(Struct);
    const size_t least = size < sizeof size || size > kMost ? sizeof size : size;
    const size_t bytes = (least + kAlign - 1) / kAlign * kAlign;
    uint8_t* const data = memory.Before(bytes);
    std::memset(data, 0, bytes);
    std::memcpy(data, &known, std::min(bytes, sizeof known));
    std::memcpy(data, &size, sizeof size);
    if (spoilt_byte != 0) data[spoilt_byte] = 0x80;
    return reinterpret_cast<const Struct*>(data);
  }
};

struct EntryPoint {
  std::string words;   // its kind and its arguments
  std::string text;    // a case for it
  std::string prefix;  // the start of its messages
  rmsnorm_status (*run)(const Arguments&);
};

template <bool is_backward>
rmsnorm_status RunPlain(const Arguments& a) {
  return (is_backward ? rmsnorm_backward : rmsnorm_forward)(a.operands, a.options, a.context);
}
// Between two other calls.
inline rmsnorm_status RunSeveral(const Arguments& a) {
  float number[2] = {1, 1};
  const rmsnorm_view view[] = {rmsnorm_vector(&number[0], RMSNORM_F32, 1),
                               rmsnorm_vector(&number[1], RMSNORM_F32, 1)};
  rmsnorm_operands others[] = {rmsnorm_no_operands(), rmsnorm_no_operands()};
  for (size_t i = 0; i < 2; ++i) others[i].x = others[i].y = &view[i];
  const rmsnorm_call calls[] = {{nullptr, &others[0], nullptr},
                                {nullptr, a.operands, a.options},
                                {nullptr, &others[1], nullptr}};
  const rmsnorm_status status = rmsnorm_forward_all(calls, 3, a.context);
  EXPECT_EQ(status == RMSNORM_OK, number[0] != 1 && number[1] != 1);
  return status;
}
// Prepares a call, and runs it.
template <bool is_backward>
rmsnorm_status RunPrepared(const Arguments& a) {
  const rmsnorm_call call = {nullptr, a.operands, a.options};
  rmsnorm_prepared* prepared = nullptr;
  const rmsnorm_status status = is_backward ? rmsnorm_prepare_backward(&prepared, &call, a.context)
                                            : rmsnorm_prepare(&prepared, &call, 1, a.context);
  EXPECT_EQ(status == RMSNORM_OK, prepared != nullptr);
  if (status == RMSNORM_OK) {
    EXPECT_EQ(RMSNORM_OK, rmsnorm_run(prepared));
  }
  rmsnorm_prepared_destroy(prepared);
  return status;
}

// Runs run(module) with a module of these options. A full one holds all that it can.
template <class Run>
rmsnorm_status WithModule(const rmsnorm_options* options, const rmsnorm_context* context,
                          bool is_full, const Run& run) {
  rmsnorm_module* module = nullptr;
  rmsnorm_status status = rmsnorm_module_create(&module, kD, RMSNORM_F32, options, context);
  EXPECT_EQ(status == RMSNORM_OK, module != nullptr);
  if (status == RMSNORM_OK && is_full) {
    const float values[kD] = {1, 2, 3, 4, 5, 6, 7, 8};
    const rmsnorm_view vector = rmsnorm_vector(values, RMSNORM_F32, kD);
    EXPECT_EQ(RMSNORM_OK, rmsnorm_module_set_bias(module, &vector));
    EXPECT_EQ(RMSNORM_OK, rmsnorm_module_set_post_norm_weight(module, &vector));
  }
  if (status == RMSNORM_OK) status = run(module);
  rmsnorm_module_destroy(module);
  return status;
}
inline rmsnorm_status CreateModule(const Arguments& a) {
  return WithModule(a.options, a.context, false, [](rmsnorm_module*) { return RMSNORM_OK; });
}
template <bool is_backward, bool is_full = false>
rmsnorm_status RunModule(const Arguments& a) {
  return WithModule(a.options, nullptr, is_full, [&](const rmsnorm_module* module) {
    return (is_backward ? rmsnorm_module_backward : rmsnorm_module_forward)(module, a.operands,
                                                                            a.context);
  });
}
// The same call by pointers to dense rows. The residual has a type, and all other rows have x's.
// Without a context, or with a usual one, the call may be direct (lib/module_rows.cc).
template <bool is_full, bool is_direct>
rmsnorm_status RunRows(const Arguments& a) {
  return WithModule(a.options, nullptr, is_full, [&](const rmsnorm_module* module) {
    return cases::RunRows({}, module, *a.operands, a.operands->x->shape[0],
                          is_direct ? nullptr : a.context);
  });
}
template <bool with_options>
rmsnorm_status RunSeveralByModule(const Arguments& a) {
  return WithModule(nullptr, nullptr, false, [&](const rmsnorm_module* module) {
    const rmsnorm_call call = {module, a.operands, with_options ? a.options : nullptr};
    return rmsnorm_forward_all(&call, 1, a.context);
  });
}
template <auto function, auto vector>
rmsnorm_status PassVector(const Arguments& a) {
  return WithModule(nullptr, nullptr, false,
                    [&](rmsnorm_module* module) { return function(module, a.operands->*vector); });
}

// Every function with each largest set of operands that it accepts.
inline std::vector<EntryPoint> MakeEntryPoints() {
  const std::string by_row =
      "rows=2x3,d=8,weight_per+bias_per+post_norm_weight_per+dw_per+db_per=row";
  const std::string forward =
      "forward," + by_row + ",bias+gate+rstd+scale=f32,sums_out=f64,q+zero=i8,";
  const std::string residual = forward + "residual+residual_out+post_norm_weight=f32";
  const std::string sums = forward + "sums=f64";
  const std::string tables = ",cos+sin=f32,cos_per+sin_per=row";
  const std::string rotated = "forward," + by_row + ",bias+rstd=f32,sums_out=f64" + tables;
  const std::string backward = "backward," + by_row + ",rstd+db=f32";
  const std::string few = "forward,rows=2x3,d=8,weight_per=row";
  const std::string no_weight = ",weight=none";
  const std::string dense = ",rows=2x3,d=8,weight=none,rstd=f32";
  const std::string vectors = "forward,x+y=none,rows=one,d=8,weight=none";
  using O = rmsnorm_operands;
  std::vector<EntryPoint> all = {
      {"call backward context plain options", backward, "", RunPlain<true>},
      {"call backward context prepared options", backward, "", RunPrepared<true>},
      {"call backward context module options", backward + no_weight, "", RunModule<true>},
      {"call context rotary options", backward + tables, "", RunPlain<true>},
      {"call context rotary rotated options", rotated, "", RunPlain<false>},
      {"call context rotary rotated options", rotated, "calls[1].", RunSeveral},
      {"call forward context full", "forward" + dense, "", RunModule<false, true>},
      {"full_backward", "backward" + dense, "", RunModule<true, true>},
      {"short options", few, "",
       [](const Arguments& a) {
         const O& o = *a.operands;
         return rmsnorm_norm(o.x, o.weight, o.y, a.options);
       }},
      {"short options", few + ",residual+residual_out=f32", "",
       [](const Arguments& a) {
         const O& o = *a.operands;
         return rmsnorm_add_norm(o.x, o.residual, o.weight, o.residual_out, o.y, a.options);
       }},
      {"create context options", vectors, "", CreateModule},
      {"held weight", vectors + ",weight=f32", "",
       PassVector<rmsnorm_module_set_weight, &O::weight>},
      {"held weight", vectors + ",weight=f32", "",
       PassVector<rmsnorm_module_get_weight, &O::weight>},
      {"held removable", vectors + ",bias=f32", "", PassVector<rmsnorm_module_set_bias, &O::bias>},
      {"held removable", vectors + ",post_norm_weight=f32", "",
       PassVector<rmsnorm_module_set_post_norm_weight, &O::post_norm_weight>},
  };
  for (const auto& [kind, text] : {std::pair("residual ", residual), {"sums ", sums}}) {
    const std::string words = std::string("call forward context ") + kind;
    all.push_back({words + "plain options", text, "", RunPlain<false>});
    all.push_back({words + "several options", text, "calls[1].", RunSeveral});
    all.push_back({words + "prepared options", text, "", RunPrepared<false>});
    all.push_back({words + "module options", text + no_weight, "", RunModule<false>});
    all.push_back(
        {words + "several module", text + no_weight, "calls[0].", RunSeveralByModule<false>});
    all.push_back({"beside", text + no_weight, "calls[0].", RunSeveralByModule<true>});
  }
  for (const std::string operands :
       {"forward", "forward,rstd=f32", "forward,x+y=bf16,rstd=f32",
        "forward,residual+residual_out=f32,rstd=f32",
        "forward,x+y=bf16,residual+residual_out=f32,rstd=f32", "backward",
        "backward,x+dy+dx=f16,rstd=f32", "backward,rstd=f32,dw=none"}) {
    const std::string rows = operands + ",rows=6,d=8,weight=none";
    all.push_back({"rows", rows, "", RunRows<false, true>});
    all.push_back({"rows context", rows, "", RunRows<false, false>});
    if (operands[0] == 'f') all.push_back({"rows", rows, "", RunRows<true, true>});
  }
  return all;
}
inline const std::vector<EntryPoint>& EntryPoints() {
  static const std::vector<EntryPoint> entry_points = MakeEntryPoints();
  return entry_points;
}

inline bool HasWords(const EntryPoint& entry, const std::vector<std::string>& words) {
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
    return (" " + entry.words + " ").find(" " + word + " ") != std::string::npos;
  });
}

// The first entry point with these words.
inline const EntryPoint& Find(const std::vector<std::string>& words) {
  return *std::find_if(EntryPoints().begin(), EntryPoints().end(),
                       [&](const EntryPoint& entry) { return HasWords(entry, words); });
}

// The address range of a row of a view.
struct Row {
  uintptr_t begin;
  uintptr_t end;
};
// `dimensions` are those over rows.
inline std::vector<Row> RowsOf(const rmsnorm_view& view, int dimensions) {
  const size_t element = rmsnorm_dtype_size(view.dtype);
  const size_t bytes = element * (dimensions < view.ndim ? view.shape[dimensions] : 1);
  std::vector<Row> rows;
  for (const ptrdiff_t offset :
       cases::RowOffsets({view.shape, view.shape + dimensions},
                         {view.stride, view.stride + dimensions}, element)) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(view.data) + static_cast<size_t>(offset);
    rows.push_back({begin, begin + bytes});
  }
  return rows;
}

// A call of an entry point; `fields` add to the case. A test spoils its views, options and context.
class ArgumentCall {
 public:
  explicit ArgumentCall(const EntryPoint& entry, const std::string& fields = "") : entry_(entry) {
    const std::vector<std::string> parts = cases::Split(entry.text + "," + fields, ',');
    c = Case(cases::IsBackward(parts[0]));
    for (size_t i = 1; i < parts.size(); ++i) cases::SetFields(c, parts[i]);
    internal::ForEachOperand(c.Given(), [&](Operand o) { Give(o, cases::ShapeOf(c, o)); });
    context.threads = c.threads;
    // As bf16 and f32, the bytes are numbers around 1; as f16 and f64, numbers not far from 1.
    cases::Random random(1);
    for (uint16_t& number : memory_) number = 0x3F80 | (random.Bits() & 0x7F);
  }
  ArgumentCall(const ArgumentCall&) = delete;  // the views point into it
  ArgumentCall& operator=(const ArgumentCall&) = delete;

  bool Has(Operand o) const { return (operands.given & cases::SetOf(o)) != 0; }
  bool IsOutput(Operand o) const { return Has(o) && c.RoleOf(o) == Role::kOutput; }
  rmsnorm_view& operator[](Operand o) { return operands.view[o]; }

  // Makes an operand dense, in a separate place.
  void Give(Operand o, const std::vector<size_t>& shape) {
    const rmsnorm_dtype only = kOperandRules[o].dtype;
    const rmsnorm_dtype dtype = c.Has(o) ? c.operand[o].dtype : only != 0 ? only : RMSNORM_F32;
    operands.Set(o, rmsnorm_tensor(Memory() + (static_cast<size_t>(o) * 2 + 1) * kPlace / 2, dtype,
                                   static_cast<int32_t>(shape.size()), shape.data(), nullptr));
  }
  void Remove(Operand o) { operands.given &= ~cases::SetOf(o); }

  std::vector<Row> RowsOf(Operand o) const {
    const rmsnorm_view& view = operands.view[o];
    const bool has_row_dimension = internal::HasRowDimension(o, c.options.group);
    return test::RowsOf(view, view.ndim - (has_row_dimension ? 1 : 0));
  }

  // All bytes of the memory.
  std::string Bytes() { return {Memory(), sizeof memory_}; }

  // In any floating-point state, which must not matter.
  rmsnorm_status Run() {
    static cases::GuardedMemory memory[3];
    const rmsnorm_operands all = operands.Get();
    const Arguments arguments = {no_operands ? nullptr : operands_version.Place(all, memory[0]),
                                 options_version.Place(c.options, memory[1]),
                                 context_version.Place(context, memory[2])};
    static Random random(2);
    rmsnorm_status status;
    RunInState(cases::RandomControl(random), [&] { status = entry_.run(arguments); });
    return status;
  }

  // Expects success, and that only outputs are written.
  void ExpectAccepted() {
    std::string before = Bytes();
    ASSERT_EQ(RMSNORM_OK, Run()) << rmsnorm_error_message();
    internal::ForEachOperand(operands.given, [&](Operand o) {
      if (!IsOutput(o)) return;
      for (const Row& row : RowsOf(o)) {
        const size_t at = row.begin - reinterpret_cast<uintptr_t>(Memory());
        before.replace(at, row.end - row.begin, reinterpret_cast<const char*>(row.begin),
                       row.end - row.begin);
      }
    });
    EXPECT_TRUE(before == Bytes()) << "something else was written";
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
    EXPECT_EQ(0u, message.find(entry_.prefix)) << message;
    return message.substr(entry_.prefix.size());
  }

  Case c;
  cases::CallOperands operands;
  rmsnorm_context context = rmsnorm_default_context();
  bool no_operands = false;
  Version operands_version{sizeof(rmsnorm_operands)};
  Version options_version{sizeof(rmsnorm_options)};
  Version context_version{sizeof(rmsnorm_context)};

 private:
  static constexpr size_t kPlace = 2048;  // in bytes; the operand begins in the middle

  char* Memory() { return reinterpret_cast<char*>(memory_); }

  const EntryPoint& entry_;
  alignas(64) uint16_t memory_[kOperands * kPlace / sizeof(uint16_t)];
};

// Whether a message begins with a pattern, or is it, where a "!" follows. "*" stands for anything.
inline bool Begins(const std::string& message, const std::string& pattern) {
  const bool is_whole = !pattern.empty() && pattern.back() == '!';
  size_t at = 0;
  bool is_first = true;
  for (const std::string& part : cases::Split(pattern.substr(0, pattern.size() - is_whole), '*')) {
    const size_t found = message.find(part, at);
    if (found == std::string::npos || (is_first && found != 0)) return false;
    at = found + part.size();
    is_first = false;
  }
  return !is_whole || at == message.size();
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_ARGUMENT_CALL_H_
