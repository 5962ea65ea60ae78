// SPDX-License-Identifier: Apache-2.0
// Structs of other versions: a smaller one has defaults for its missing fields, and the extra bytes
// of a larger one must be zero. The library reads nothing beyond a struct's size.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "argument_call.h"
#include "cases/guarded_memory.h"

namespace rmsnorm::test {
namespace {

// The first `size` bytes of a struct, with zeros where it is shorter, before an inaccessible page.
class Placed {
 public:
  Placed(const void* from, size_t known, size_t size) : data_(memory_.Before(size)) {
    std::memset(data_, 0, size);
    std::memcpy(data_, from, std::min(known, size));
    SetSize(static_cast<uint32_t>(size));
  }
  template <class Struct>
  Placed(const Struct& from, size_t size) : Placed(&from, sizeof from, size) {}

  void SetSize(uint32_t size) { std::memcpy(data_, &size, sizeof size); }
  uint8_t* Bytes() const { return data_; }
  template <class Struct>
  const Struct* As() const {
    return reinterpret_cast<const Struct*>(data_);
  }

 private:
  cases::GuardedMemory memory_;
  uint8_t* data_;
};

// Every entry point takes a struct that is larger, if its extra bytes are zero, and refuses a size
// that does not hold the size field, or exceeds any version's.
TEST(Growth, LargerStructs) {
  for (const std::string name : {"operands", "options", "context"}) {
    for (const EntryPoint& entry : EntryPoints()) {
      if (!HasWords(entry, {name == "operands" ? "call" : name})) continue;
      SCOPED_TRACE(name + " of " + entry.words);
      const ArgumentCall call(entry);
      const rmsnorm_operands operands = call.operands.Get();
      const void* const usual = name == "operands"  ? static_cast<const void*>(&operands)
                                : name == "options" ? static_cast<const void*>(&call.c.options)
                                                    : &call.context;
      const size_t known = name == "operands"  ? sizeof operands
                           : name == "options" ? sizeof call.c.options
                                               : sizeof call.context;
      const auto run = [&](const Placed& placed) {
        Arguments arguments = {&operands, &call.c.options, &call.context};
        if (name == "operands") arguments.operands = placed.As<rmsnorm_operands>();
        if (name == "options") arguments.options = placed.As<rmsnorm_options>();
        if (name == "context") arguments.context = placed.As<rmsnorm_context>();
        return entry.run(arguments);
      };
      const auto expect_refused = [&](const Placed& placed) {
        EXPECT_EQ(RMSNORM_ERROR_STRUCT_SIZE, run(placed));
        EXPECT_NE(std::string::npos, std::string(rmsnorm_error_message()).find(name + ": size is "))
            << rmsnorm_error_message();
      };
      for (const size_t more : {0u, 8u, 64u, 256u}) {
        const Placed placed(usual, known, known + more);
        EXPECT_EQ(RMSNORM_OK, run(placed)) << rmsnorm_error_message();
        for (size_t i = known; i < known + more; ++i) {
          placed.Bytes()[i] = i % 2 == 0 ? 1 : 0x80;
          expect_refused(placed);
          placed.Bytes()[i] = 0;
        }
        EXPECT_EQ(RMSNORM_OK, run(placed)) << rmsnorm_error_message();
      }
      Placed placed(usual, known, known);
      for (const uint32_t size : {0u, 1u, 2u, 3u, 0x80000000u, UINT32_MAX}) {
        placed.SetSize(size);
        expect_refused(placed);
      }
    }
  }
}

// With a field, a struct has its value, which is refused here; without it, the default.
TEST(Growth, SmallerOptions) {
  const rmsnorm_options defaults = rmsnorm_default_options();
  for (int i = 0; i < internal::kOptions; ++i) {
    const internal::OptionRule& rule = internal::kOptionRules[i];
    SCOPED_TRACE(rule.name);
    rmsnorm_options wrong = defaults;
    internal::SetValueIn(wrong, static_cast<internal::Option>(i), int32_t{-1});  // a NaN of f32
    const Placed without(wrong, rule.offset);
    const Placed with(wrong, rule.offset + sizeof(float));
    for (const EntryPoint& entry : EntryPoints()) {
      if (!HasWords(entry, {"options"})) continue;
      const ArgumentCall call(entry);
      const rmsnorm_operands operands = call.operands.Get();
      const auto run = [&](const Placed& options) {
        return entry.run({&operands, options.As<rmsnorm_options>(), &call.context});
      };
      EXPECT_EQ(RMSNORM_OK, run(without)) << entry.words;
      EXPECT_EQ(RMSNORM_ERROR_OPTION, run(with)) << entry.words;
    }
    WithModule(without.As<rmsnorm_options>(), false, [&](const rmsnorm_module* module) {
      EXPECT_EQ(0, std::memcmp(&defaults, rmsnorm_module_options(module), sizeof defaults));
      return RMSNORM_OK;
    });
  }
}

// A struct that ends before an operand has neither this nor the later ones. Flags come before all.
TEST(Growth, SmallerOperands) {
  for (const std::string kind : {"residual", "sums", "backward"}) {
    SCOPED_TRACE(kind);
    ArgumentCall call(Find({"plain", kind}),
                      kind == "backward" ? "" : "q=none,scale=none,zero=none");
    const rmsnorm_operands all = call.operands.Get();
    // The status and the memory after a call.
    const auto outcome_of = [&](const rmsnorm_operands* operands) {
      const std::string before = call.Bytes();
      const rmsnorm_status status = call.c.backward ? rmsnorm_backward(operands, nullptr, nullptr)
                                                    : rmsnorm_forward(operands, nullptr, nullptr);
      const std::string outcome = std::to_string(status) + call.Bytes();
      call.SetBytes(before);
      return outcome;
    };
    size_t accepted = 0;
    for (int i = 0; i < kOperands; ++i) {
      SCOPED_TRACE(kOperandRules[i].name);
      const Placed cut(all, kOperandRules[i].offset);
      cases::CallOperands fewer = call.operands;
      fewer.given &= cases::SetOf(static_cast<Operand>(i)) - 1;
      const rmsnorm_operands expected = fewer.Get();
      const std::string outcome = outcome_of(cut.As<rmsnorm_operands>());
      EXPECT_TRUE(outcome_of(&expected) == outcome);
      accepted += outcome[0] == '0' ? 1 : 0;
    }
    EXPECT_GT(accepted, 1u);
    rmsnorm_operands flagged = all;
    flagged.add_to = UINT32_MAX;
    const Placed with(flagged, sizeof flagged);
    const Placed without(flagged, offsetof(rmsnorm_operands, add_to));
    EXPECT_EQ(std::to_string(RMSNORM_ERROR_OPERAND)[0], outcome_of(with.As<rmsnorm_operands>())[0]);
    EXPECT_EQ(std::to_string(RMSNORM_ERROR_NULL)[0], outcome_of(without.As<rmsnorm_operands>())[0]);
  }
}

TEST(Growth, SmallerContexts) {
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = -1;
  int calls = 0;
  context.parallel_context = &calls;
  context.parallel_for = [](void* own, size_t count, rmsnorm_task task, void* state) {
    ++*static_cast<int*>(own);
    for (size_t i = 0; i < count; ++i) task(state, i);
  };
  context.target = "PDP11";
  std::vector<float> rows(1000 * 500, 1.5f);
  const View view(rows.data(), 1000, 500);
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = operands.y = view.get();
  const auto run = [&](size_t size) {
    return rmsnorm_forward(&operands, nullptr, Placed(context, size).As<rmsnorm_context>());
  };
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, threads))) << rmsnorm_error_message();
  EXPECT_EQ(RMSNORM_ERROR_OPTION, run(offsetof(rmsnorm_context, parallel_for)));
  context.threads = 2;
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, parallel_for))) << rmsnorm_error_message();
  EXPECT_EQ(0, calls);
  EXPECT_EQ(RMSNORM_OK, run(offsetof(rmsnorm_context, target))) << rmsnorm_error_message();
  EXPECT_EQ(1, calls);
  EXPECT_EQ(RMSNORM_ERROR_TARGET, run(sizeof context));
}

// A struct of zeros with size and eps means the defaults, in C++, too.
TEST(Growth, ZeroedStructs) {
  rmsnorm_options options = {};
  options.size = sizeof options;
  options.eps = 1e-5f;
  rmsnorm_context context = {};
  context.size = sizeof context;
  for (const rmsnorm_options& same : {rmsnorm_default_options(), Options().get()}) {
    EXPECT_EQ(0, std::memcmp(&same, &options, sizeof options));
  }
  for (const rmsnorm_context& same : {rmsnorm_default_context(), Context().get()}) {
    EXPECT_EQ(0, std::memcmp(&same, &context, sizeof context));
  }
}

}  // namespace
}  // namespace rmsnorm::test
