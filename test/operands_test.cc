// SPDX-License-Identifier: Apache-2.0
// Every operand of every operation, spoilt in every way: refused with which status, by a message
// that begins with the operand's name, and with nothing written. And what looks odd but is allowed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "random_rows.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

using StrideList = std::vector<ptrdiff_t>;

// ------------------------------------------------------------------------------- what there is

enum class Kind { kRows, kColumns, kPerRow };
enum class Role { kNone, kInput, kRequired, kOutput };

struct Operand {
  std::string name;
  const rmsnorm_view* rmsnorm_operands::*field;
  Kind kind;
  rmsnorm_dtype only;  // the only type it may have, or 0
  Role forward;
  Role backward;
  std::string in_place_of;  // what it may be in the place of
};

// As the header says.
const std::vector<Operand> kOperands = {
    {"x", &rmsnorm_operands::x, Kind::kRows, 0, Role::kRequired, Role::kRequired, ""},
    {"residual", &rmsnorm_operands::residual, Kind::kRows, 0, Role::kInput, Role::kNone, ""},
    {"weight", &rmsnorm_operands::weight, Kind::kColumns, 0, Role::kInput, Role::kInput, ""},
    {"bias", &rmsnorm_operands::bias, Kind::kColumns, 0, Role::kInput, Role::kNone, ""},
    {"sums", &rmsnorm_operands::sums, Kind::kPerRow, RMSNORM_F64, Role::kInput, Role::kNone, ""},
    {"y", &rmsnorm_operands::y, Kind::kRows, 0, Role::kOutput, Role::kNone, "x"},
    {"residual_out", &rmsnorm_operands::residual_out, Kind::kRows, 0, Role::kOutput, Role::kNone,
     "residual"},
    {"rstd", &rmsnorm_operands::rstd, Kind::kPerRow, RMSNORM_F32, Role::kOutput, Role::kInput, ""},
    {"sums_out", &rmsnorm_operands::sums_out, Kind::kPerRow, RMSNORM_F64, Role::kOutput,
     Role::kNone, ""},
    {"dy", &rmsnorm_operands::dy, Kind::kRows, 0, Role::kNone, Role::kRequired, ""},
    {"dx", &rmsnorm_operands::dx, Kind::kRows, 0, Role::kNone, Role::kOutput, "dy"},
    {"dw", &rmsnorm_operands::dw, Kind::kColumns, 0, Role::kNone, Role::kOutput, ""},
    {"db", &rmsnorm_operands::db, Kind::kColumns, 0, Role::kNone, Role::kOutput, ""},
    {"post_norm_weight", &rmsnorm_operands::post_norm_weight, Kind::kColumns, 0, Role::kInput,
     Role::kNone, ""},
    {"gate", &rmsnorm_operands::gate, Kind::kRows, 0, Role::kInput, Role::kNone, ""},
    {"q", &rmsnorm_operands::q, Kind::kRows, RMSNORM_I8, Role::kOutput, Role::kNone, ""},
    {"scale", &rmsnorm_operands::scale, Kind::kPerRow, RMSNORM_F32, Role::kOutput, Role::kNone, ""},
    {"zero", &rmsnorm_operands::zero, Kind::kPerRow, RMSNORM_I8, Role::kOutput, Role::kNone, ""},
};

constexpr size_t kD = 8;

// x and all that have its shape, the row of a weight, what is one per row.
const SizeList kShapes[] = {{2, 3, kD}, {kD}, {2, 3}};

rmsnorm_dtype UsualDtype(const Operand& operand) {
  return operand.only != 0 ? operand.only : RMSNORM_F32;
}

std::vector<rmsnorm_dtype> PossibleDtypes(const Operand& operand) {
  if (operand.only != 0) return {operand.only};
  return {std::begin(kDtypes), std::end(kDtypes)};
}

rmsnorm_view MakeView(const void* data, rmsnorm_dtype dtype, const SizeList& shape,
                      const StrideList& stride = {}) {
  return rmsnorm_tensor(data, dtype, static_cast<int32_t>(shape.size()), shape.data(),
                        stride.empty() ? nullptr : stride.data());
}

// Operands of one call, right as they are made; a test spoils one.
class Call {
 public:
  explicit Call(const std::vector<Operand>& operands) : operands_(operands) {
    // Numbers from 1 up, read as whatever type of 32 or 64 bits.
    Random random(1);
    for (float& number : memory_) number = 1 + static_cast<float>(random.Uniform());
    for (const Operand& operand : kOperands) {
      const size_t place = static_cast<size_t>(&operand - kOperands.data());
      homes_[operand.name] = Memory() + place * kPlaceBytes + kPlaceBytes / 2;
    }
    for (const Operand& operand : operands) Reset(operand, kShapes[static_cast<int>(operand.kind)]);
  }
  Call(const Call&) = delete;  // the views point into it
  Call& operator=(const Call&) = delete;

  rmsnorm_view& operator[](const std::string& name) { return views_.at(name); }
  bool Has(const std::string& name) const { return views_.count(name) != 0; }
  void Remove(const std::string& name) { views_.erase(name); }

  // Makes the operand a dense one, or one with these strides, in its own place.
  void Reset(const Operand& operand, const SizeList& shape, const StrideList& stride = {}) {
    views_[operand.name] = MakeView(homes_.at(operand.name), UsualDtype(operand), shape, stride);
  }
  // Gives all weights, biases and their gradients a row for each row of x.
  void ResetColumns() {
    for (const Operand& operand : operands_) {
      if (operand.kind == Kind::kColumns && Has(operand.name)) Reset(operand, kShapes[0]);
    }
  }
  // Types that go together are set together.
  void SetDtype(const std::string& name, rmsnorm_dtype dtype) {
    const bool is_residual = name == "residual" || name == "residual_out";
    for (auto& [other, view] : views_) {
      if (other == name || (is_residual && (other == "residual" || other == "residual_out"))) {
        view.dtype = dtype;
      }
    }
  }

  // In the order of the rows.
  static void ForEachRow(const Operand& operand, const rmsnorm_view& view,
                         const std::function<void(char* row, size_t bytes)>& visit) {
    const ptrdiff_t size = static_cast<ptrdiff_t>(rmsnorm_dtype_size(view.dtype));
    const bool per_row = operand.kind == Kind::kPerRow;
    const int dimensions = per_row ? view.ndim : view.ndim - 1;
    size_t rows = 1;
    for (int i = 0; i < dimensions; ++i) rows *= view.shape[i];
    for (size_t row = 0; row < rows; ++row) {
      ptrdiff_t offset = 0;
      size_t rest = row;
      for (int i = dimensions - 1; i >= 0; --i) {
        offset += static_cast<ptrdiff_t>(rest % view.shape[i]) * view.stride[i];
        rest /= view.shape[i];
      }
      visit(static_cast<char*>(view.data) + offset * size,
            static_cast<size_t>(size) * (per_row ? 1 : view.shape[dimensions]));
    }
  }
  std::string BytesOf(const Operand& operand) {
    std::string bytes;
    ForEachRow(operand, views_.at(operand.name),
               [&](const char* row, size_t size) { bytes.append(row, size); });
    return bytes;
  }

  rmsnorm_operands Get() const {
    rmsnorm_operands operands = rmsnorm_no_operands();
    for (const Operand& operand : kOperands) {
      if (Has(operand.name)) operands.*operand.field = &views_.at(operand.name);
    }
    operands.add_to = add_to;
    return operands;
  }

  char* Memory() { return reinterpret_cast<char*>(memory_); }
  std::string Snapshot() { return {Memory(), sizeof memory_}; }

  uint32_t add_to = 0;

 private:
  static constexpr size_t kPlaceBytes = 2048;

  const std::vector<Operand>& operands_;
  std::map<std::string, char*> homes_;
  std::map<std::string, rmsnorm_view> views_;
  // All operands lie in it, apart from each other and with room around each.
  alignas(64) float memory_[18 * kPlaceBytes / sizeof(float)];
};

const RmsNorm& Module() {
  static const RmsNorm module(kD);
  return module;
}

struct Function {
  std::string name;
  std::string prefix;  // of its messages about operands
  bool backward;
  std::vector<Operand> operands;
  rmsnorm_status (*run)(const rmsnorm_operands*);

  Role RoleOf(const Operand& operand) const {
    return backward ? operand.backward : operand.forward;
  }
  bool IsOutput(const Operand& operand) const { return RoleOf(operand) == Role::kOutput; }
};

// The operands that an operation takes, but for some.
std::vector<Operand> Taken(Role Operand::*role, const std::set<std::string>& without) {
  std::vector<Operand> taken;
  for (const Operand& operand : kOperands) {
    if (operand.*role != Role::kNone && without.count(operand.name) == 0) taken.push_back(operand);
  }
  return taken;
}

rmsnorm_status Forward(const rmsnorm_operands* operands) {
  return rmsnorm_forward(operands, nullptr, nullptr);
}
rmsnorm_status Backward(const rmsnorm_operands* operands) {
  return rmsnorm_backward(operands, nullptr, nullptr);
}
rmsnorm_status ModuleForward(const rmsnorm_operands* operands) {
  return rmsnorm_module_forward(Module().get(), operands, nullptr);
}
rmsnorm_status ModuleBackward(const rmsnorm_operands* operands) {
  return rmsnorm_module_backward(Module().get(), operands, nullptr);
}
rmsnorm_status ForwardAll(const rmsnorm_operands* operands) {
  const rmsnorm_call call = {nullptr, operands, nullptr};
  return rmsnorm_forward_all(&call, 1, nullptr);
}
rmsnorm_status ModuleForwardAll(const rmsnorm_operands* operands) {
  const rmsnorm_call call = {Module().get(), operands, nullptr};
  return rmsnorm_forward_all(&call, 1, nullptr);
}

// Forward with every operand that it can have beside a residual, and beside sums.
const std::set<std::string> kNotWithResidual = {"sums"};
const std::set<std::string> kNotWithSums = {"residual", "residual_out", "post_norm_weight"};

std::vector<Function> AllFunctions() {
  std::vector<Function> all;
  for (const auto& without : {kNotWithResidual, kNotWithSums}) {
    std::set<std::string> without_weight = without;
    without_weight.insert("weight");
    const std::string name = without == kNotWithResidual ? " with a residual" : "";
    const auto any = Taken(&Operand::forward, without);
    const auto of_module = Taken(&Operand::forward, without_weight);
    all.push_back({"forward" + name, "", false, any, Forward});
    all.push_back({"forward_all" + name, "calls[0].", false, any, ForwardAll});
    all.push_back({"module's forward" + name, "", false, of_module, ModuleForward});
    all.push_back(
        {"forward_all of a module" + name, "calls[0].", false, of_module, ModuleForwardAll});
  }
  all.push_back({"backward", "", true, Taken(&Operand::backward, {}), Backward});
  all.push_back(
      {"module's backward", "", true, Taken(&Operand::backward, {"weight"}), ModuleBackward});
  return all;
}
const std::vector<Function> kFunctions = AllFunctions();

using Spoil = std::function<void(Call&)>;

// Refused with a message that begins with `name` and holds `word`.
void ExpectRefused(const Function& function, rmsnorm_status status, const std::string& name,
                   const std::string& word, const Spoil& spoil) {
  SCOPED_TRACE(function.name + ", " + name);
  Call call(function.operands);
  spoil(call);
  const std::string before = call.Snapshot();
  const rmsnorm_operands operands = call.Get();
  ASSERT_EQ(status, function.run(&operands)) << rmsnorm_error_message();
  EXPECT_TRUE(before == call.Snapshot()) << "something was written";
  const std::string message = rmsnorm_error_message();
  EXPECT_EQ(0u, message.find(function.prefix + name + ": ")) << message;
  EXPECT_NE(std::string::npos, message.find(word, function.prefix.size() + name.size()))
      << message << " does not say " << word;
  EXPECT_EQ(std::string::npos, message.find('\n')) << message;
}

// Accepted, and nothing is written but to the outputs.
void ExpectAccepted(const Function& function, const Spoil& spoil) {
  SCOPED_TRACE(function.name);
  Call call(function.operands);
  spoil(call);
  const auto snapshot_without_outputs = [&] {
    std::string bytes = call.Snapshot();
    for (const Operand& operand : function.operands) {
      if (!function.IsOutput(operand) || !call.Has(operand.name)) continue;
      Call::ForEachRow(operand, call[operand.name], [&](const char* row, size_t size) {
        bytes.replace(static_cast<size_t>(row - call.Memory()), size, size, '\0');
      });
    }
    return bytes;
  };
  const std::string before = snapshot_without_outputs();
  const rmsnorm_operands operands = call.Get();
  EXPECT_EQ(RMSNORM_OK, function.run(&operands)) << rmsnorm_error_message();
  EXPECT_TRUE(before == snapshot_without_outputs()) << "something else was written";
}

void ForEachOperand(const std::function<void(const Function&, const Operand&)>& visit) {
  for (const Function& function : kFunctions) {
    for (const Operand& operand : function.operands) visit(function, operand);
  }
}

// Spoils the view of each operand that `chosen` takes.
void ExpectViewsRefused(rmsnorm_status status, const std::string& word,
                        const std::function<bool(const Operand&)>& chosen,
                        const std::function<void(rmsnorm_view&)>& spoil) {
  ForEachOperand([&](const Function& function, const Operand& operand) {
    if (!chosen(operand)) return;
    ExpectRefused(function, status, operand.name, word,
                  [&](Call& call) { spoil(call[operand.name]); });
  });
}

bool Any(const Operand&) { return true; }
bool HasRows(const Operand& operand) { return operand.kind != Kind::kPerRow; }

// ------------------------------------------------------------------------- which there may be

TEST(Operands, AreAcceptedUnspoilt) {
  for (const Function& function : kFunctions) ExpectAccepted(function, [](Call&) {});
}

TEST(Operands, AreNeeded) {
  for (const Function& function : kFunctions) {
    EXPECT_EQ(RMSNORM_ERROR_NULL, function.run(nullptr));
    EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find(function.prefix + "operands"))
        << rmsnorm_error_message();
  }
}

// Every selection of operands, and the bits of an output whatever others there are.
TEST(Operands, AreThereInEverySelection) {
  struct Wrong {
    rmsnorm_status status;
    std::string name;
  };
  size_t accepted = 0;
  size_t refused = 0;
  const Function forward = {"forward", "", false, Taken(&Operand::forward, {}), Forward};
  const Function backward = {"backward", "", true, Taken(&Operand::backward, {}), Backward};
  for (const Function& function : {forward, backward}) {
    const size_t count = function.operands.size();
    for (size_t selection = 0; selection < size_t{1} << count; ++selection) {
      Call call(function.operands);
      bool any_output = false;
      std::string names;
      std::vector<Wrong> wrong;
      for (size_t i = 0; i < count; ++i) {
        const Operand& operand = function.operands[i];
        if ((selection >> i & 1) != 0) {
          names += " " + operand.name;
          any_output = any_output || function.IsOutput(operand);
        } else {
          call.Remove(operand.name);
          if (function.RoleOf(operand) == Role::kRequired) {
            wrong.push_back({RMSNORM_ERROR_NULL, operand.name});
          }
        }
      }
      SCOPED_TRACE(function.name + ":" + names);
      if (!any_output) wrong.push_back({RMSNORM_ERROR_NULL, function.backward ? "dx" : "y"});
      if (call.Has("residual_out") && !call.Has("residual")) {
        wrong.push_back({RMSNORM_ERROR_OPERAND, "residual_out"});
      }
      if (call.Has("sums") && (call.Has("residual") || call.Has("post_norm_weight"))) {
        wrong.push_back({RMSNORM_ERROR_OPERAND, "sums"});
      }
      if (call.Has("q") && !call.Has("scale")) wrong.push_back({RMSNORM_ERROR_OPERAND, "q"});
      if (call.Has("scale") && !call.Has("q")) wrong.push_back({RMSNORM_ERROR_OPERAND, "scale"});
      if (call.Has("zero") && !call.Has("q")) wrong.push_back({RMSNORM_ERROR_OPERAND, "zero"});
      const std::string before = call.Snapshot();
      const rmsnorm_operands operands = call.Get();
      const rmsnorm_status status = function.run(&operands);
      if (!wrong.empty()) {
        ++refused;
        const std::string message = rmsnorm_error_message();
        EXPECT_TRUE(std::any_of(wrong.begin(), wrong.end(),
                                [&](const Wrong& one) {
                                  return status == one.status && message.find(one.name + ": ") == 0;
                                }))
            << status << " " << message;
        EXPECT_TRUE(before == call.Snapshot()) << "something was written";
        continue;
      }
      ++accepted;
      ASSERT_EQ(RMSNORM_OK, status) << rmsnorm_error_message();
      // The same inputs with every output. With a zero point q has other integers.
      Call full(function.operands);
      for (const Operand& operand : function.operands) {
        const bool possible = operand.name == "residual_out" ? call.Has("residual")
                              : operand.name == "zero"       ? !call.Has("q")
                                                             : true;
        if (!call.Has(operand.name) && !(function.IsOutput(operand) && possible)) {
          full.Remove(operand.name);
        }
      }
      const rmsnorm_operands full_operands = full.Get();
      ASSERT_EQ(RMSNORM_OK, function.run(&full_operands)) << rmsnorm_error_message();
      for (const Operand& operand : function.operands) {
        if (!call.Has(operand.name)) continue;
        EXPECT_TRUE(full.BytesOf(operand) == call.BytesOf(operand)) << operand.name;
      }
    }
  }
  // Forward takes any weight, bias and gate. It gives integers with a zero point, without one or
  // not at all, and of other outputs four with a residual, after a post-norm or not, and three
  // without, after a post-norm, from sums or neither: but for none at all. Backward takes any
  // weight and rstd, and gives at least one of three gradients.
  EXPECT_EQ(8u * (2 * (3 * 16 - 1) + 3 * (3 * 8 - 1)) + 4u * 7, accepted);
  EXPECT_EQ((1u << 14) + (1u << 7), accepted + refused);
}

TEST(Operands, OfOtherOperationsAreRefused) {
  for (const Function& function : kFunctions) {
    for (const Operand& other : kOperands) {
      const bool is_weight = other.name == "weight";
      if (!is_weight && function.RoleOf(other) != Role::kNone) continue;
      if (is_weight && function.name.find("module") == std::string::npos) continue;
      ExpectRefused(function, RMSNORM_ERROR_OPERAND, other.name,
                    is_weight ? "module" : "does not take it",
                    [&](Call& call) { call.Reset(other, kShapes[static_cast<int>(other.kind)]); });
    }
  }
}

TEST(Operands, UnknownFlagsAreRefused) {
  for (const Function& function : kFunctions) {
    for (const uint32_t flags : {8u, 9u, 0x80000000u, UINT32_MAX}) {
      ExpectRefused(function, RMSNORM_ERROR_FLAGS, "add_to", "unknown",
                    [&](Call& call) { call.add_to = flags; });
    }
    for (uint32_t flags = 0; function.backward && flags < 8; ++flags) {
      ExpectAccepted(function, [&](Call& call) { call.add_to = flags; });
      ExpectAccepted(function, [&](Call& call) {  // of a gradient that is not computed
        call.add_to = flags;
        call.Remove("dx");
        call.Remove("db");
      });
    }
  }
}

// ----------------------------------------------------------------------------- each by itself

TEST(Views, MustNotHaveNullData) {
  ExpectViewsRefused(RMSNORM_ERROR_NULL, "null", Any,
                     [](rmsnorm_view& view) { view.data = nullptr; });
}

TEST(Views, OfUnknownTypesAreRefused) {
  for (const int32_t dtype : {0, 6, -1, INT32_MAX, INT32_MIN}) {
    ExpectViewsRefused(RMSNORM_ERROR_DTYPE, "unknown dtype " + std::to_string(dtype), Any,
                       [&](rmsnorm_view& view) { view.dtype = dtype; });
  }
}

TEST(Views, AreOfTheirTypes) {
  ForEachOperand([](const Function& function, const Operand& operand) {
    const std::vector<rmsnorm_dtype> possible = PossibleDtypes(operand);
    for (const rmsnorm_dtype dtype :
         {RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16, RMSNORM_F64, RMSNORM_I8}) {
      const auto set = [&](Call& call) { call.SetDtype(operand.name, dtype); };
      if (std::find(possible.begin(), possible.end(), dtype) != possible.end()) {
        ExpectAccepted(function, set);
      } else {
        // The message names the only type, or else the wrong one.
        ExpectRefused(
            function, RMSNORM_ERROR_DTYPE,
            dtype > RMSNORM_BF16 && operand.name == "residual_out" ? "residual" : operand.name,
            rmsnorm_dtype_name(operand.only != 0 ? operand.only : dtype), set);
      }
    }
  });
}

TEST(Views, ResidualOutIsOfTheTypeOfTheResidual) {
  for (const Function& function : kFunctions) {
    if (!Call(function.operands).Has("residual")) continue;
    for (const rmsnorm_dtype residual : kDtypes) {
      for (const rmsnorm_dtype out : kDtypes) {
        const auto set = [&](Call& call) {
          call["residual"].dtype = residual;
          call["residual_out"].dtype = out;
        };
        if (residual == out) {
          ExpectAccepted(function, set);
        } else {
          ExpectRefused(function, RMSNORM_ERROR_DTYPE, "residual_out", rmsnorm_dtype_name(residual),
                        set);
        }
      }
    }
  }
}

TEST(Views, MustHaveOneToEightDimensions) {
  for (const int32_t ndim : {0, -1, 9, INT32_MAX, INT32_MIN}) {
    ExpectViewsRefused(RMSNORM_ERROR_SHAPE, "dimensions", Any,
                       [&](rmsnorm_view& view) { view.ndim = ndim; });
  }
  // Made through the interface, which must not write beyond its eight dimensions.
  const SizeList shape(9, 1);
  for (const int32_t ndim : {0, -1, 9}) {
    ExpectViewsRefused(RMSNORM_ERROR_SHAPE, "dimensions", Any, [&](rmsnorm_view& view) {
      view = rmsnorm_tensor(view.data, view.dtype, ndim, shape.data(), nullptr);
    });
  }
}

TEST(Views, MustHaveElementsInARow) {
  ExpectViewsRefused(RMSNORM_ERROR_SHAPE, "d, is 0", HasRows,
                     [](rmsnorm_view& view) { view.shape[view.ndim - 1] = 0; });
  // Without rows too: an empty row has no norm, whether there is one or not.
  for (const Function& function : kFunctions) {
    ExpectRefused(function, RMSNORM_ERROR_SHAPE, "x", "d, is 0", [&](Call& call) {
      for (const Operand& operand : function.operands) {
        rmsnorm_view& view = call[operand.name];
        if (operand.kind != Kind::kColumns) view.shape[0] = 0;
        if (HasRows(operand)) view.shape[view.ndim - 1] = 0;
      }
    });
  }
}

TEST(Views, LastDimensionMustBeContiguous) {
  for (const ptrdiff_t stride : {ptrdiff_t{0}, ptrdiff_t{2}, ptrdiff_t{-1}, PTRDIFF_MAX}) {
    ExpectViewsRefused(RMSNORM_ERROR_STRIDE, "contiguous", HasRows,
                       [&](rmsnorm_view& view) { view.stride[view.ndim - 1] = stride; });
  }
}

TEST(Views, MustBeAlignedToTheirElement) {
  ForEachOperand([](const Function& function, const Operand& operand) {
    for (const rmsnorm_dtype dtype : PossibleDtypes(operand)) {
      for (size_t shift = 1; shift < rmsnorm_dtype_size(dtype); ++shift) {
        ExpectRefused(function, RMSNORM_ERROR_ALIGNMENT, operand.name, "aligned", [&](Call& call) {
          call.SetDtype(operand.name, dtype);
          call[operand.name].data = static_cast<char*>(call[operand.name].data) + shift;
        });
      }
      ExpectAccepted(function, [&](Call& call) {
        call.SetDtype(operand.name, dtype);
        rmsnorm_view& view = call[operand.name];
        view.data = static_cast<char*>(view.data) + rmsnorm_dtype_size(dtype);
      });
    }
  });
}

TEST(Views, MustNotSpanMoreThanAnAddressCanCount) {
  ForEachOperand([](const Function& function, const Operand& operand) {
    const ptrdiff_t size = static_cast<ptrdiff_t>(rmsnorm_dtype_size(UsualDtype(operand)));
    const auto refused = [&](const std::function<void(rmsnorm_view&)>& spoil) {
      ExpectRefused(function, RMSNORM_ERROR_SIZE_OVERFLOW, operand.name, "address",
                    [&](Call& call) {
                      call.ResetColumns();
                      spoil(call[operand.name]);
                    });
    };
    for (const ptrdiff_t stride :
         {PTRDIFF_MAX, PTRDIFF_MIN, PTRDIFF_MAX / size, PTRDIFF_MIN / size}) {
      refused([&](rmsnorm_view& view) { view.stride[0] = stride; });
      if (HasRows(operand)) refused([&](rmsnorm_view& view) { view.stride[1] = stride; });
    }
    // Fits an address space, but not above, or below, where the data begins.
    constexpr ptrdiff_t kAlmostAll = PTRDIFF_MAX - 4096;
    refused([&](rmsnorm_view& view) {
      view.stride[0] = kAlmostAll / size;
      view.data = reinterpret_cast<void*>(UINTPTR_MAX - 4095);
    });
    refused([&](rmsnorm_view& view) { view.stride[0] = -kAlmostAll / size; });
  });
  for (const Function& function : kFunctions) {
    const auto x_refused = [&](const std::function<void(rmsnorm_view&)>& spoil) {
      ExpectRefused(function, RMSNORM_ERROR_SIZE_OVERFLOW, "x", "address",
                    [&](Call& call) { spoil(call["x"]); });
    };
    for (const size_t huge : {SIZE_MAX, SIZE_MAX / 2}) {
      for (const int dimension : {0, 1, 2}) {
        x_refused([&](rmsnorm_view& view) { view.shape[dimension] = huge; });
      }
    }
    // The number of rows overflows, though a repeated row spans little.
    x_refused([](rmsnorm_view& view) {
      view = MakeView(view.data, RMSNORM_F32, {size_t{1} << 32, size_t{1} << 32, kD}, {0, 0, 1});
    });
  }
}

// ---------------------------------------------------------------------------------- beside x

// Every operand but x, which the others are compared with.
void ExpectShapeRefused(Kind kind, const SizeList& shape, const std::string& word) {
  ForEachOperand([&](const Function& function, const Operand& operand) {
    if (operand.kind != kind || operand.name == "x") return;
    ExpectRefused(function, RMSNORM_ERROR_SHAPE, operand.name, word,
                  [&](Call& call) { call.Reset(operand, shape); });
  });
}

TEST(Shapes, OfRowsAreThatOfX) {
  for (const size_t size : SizeList{1, 3})
    ExpectShapeRefused(Kind::kRows, {size, 3, kD}, "x has 2");
  for (const size_t size : SizeList{2, 4})
    ExpectShapeRefused(Kind::kRows, {2, size, kD}, "x has 3");
  for (const size_t d : {kD - 1, kD + 1}) ExpectShapeRefused(Kind::kRows, {2, 3, d}, "x has 8");
  // The same rows in other dimensions are another shape.
  ExpectShapeRefused(Kind::kRows, {6, kD}, "x has 3");
  ExpectShapeRefused(Kind::kRows, {1, 2, 3, kD}, "x has 3");
  ExpectShapeRefused(Kind::kRows, {2 * 3 * kD}, "x has 3");
}

TEST(Shapes, OfWhatIsOnePerRowAreTheLeadingDimensionsOfX) {
  for (const size_t size : SizeList{0, 1, 3})
    ExpectShapeRefused(Kind::kPerRow, {size, 3}, "x has 2");
  for (const size_t size : SizeList{0, 2, 4})
    ExpectShapeRefused(Kind::kPerRow, {2, size}, "x has 3");
  ExpectShapeRefused(Kind::kPerRow, {6}, "dimensions");
  ExpectShapeRefused(Kind::kPerRow, {2, 3, 1}, "dimensions");
  ExpectShapeRefused(Kind::kPerRow, {1, 2, 3}, "dimensions");
}

TEST(Shapes, OfColumnsAreBroadcast) {
  for (const size_t d : {kD - 1, kD + 1}) {
    ExpectShapeRefused(Kind::kColumns, {d}, "for rows of 8");
    ExpectShapeRefused(Kind::kColumns, {2, 3, d}, "for rows of 8");
  }
  for (const size_t size : SizeList{0, 2, 4}) {
    ExpectShapeRefused(Kind::kColumns, {size, kD}, "x has 3");
    ExpectShapeRefused(Kind::kColumns, {1, size, kD}, "x has 3");
  }
  for (const size_t size : SizeList{0, 3}) {
    ExpectShapeRefused(Kind::kColumns, {size, 1, kD}, "x has 2");
    ExpectShapeRefused(Kind::kColumns, {size, 3, kD}, "x has 2");
  }
  ExpectShapeRefused(Kind::kColumns, {1, 1, 1, kD}, "dimensions");
  ExpectShapeRefused(Kind::kColumns, {1, 2, 3, kD}, "dimensions");

  const std::vector<SizeList> shapes = {{kD},       {1, kD},    {3, kD},   {1, 1, kD},
                                        {1, 3, kD}, {2, 1, kD}, {2, 3, kD}};
  for (const Function& function : kFunctions) {
    for (const SizeList& shape : shapes) {
      for (const SizeList& other : shapes) {
        ExpectAccepted(function, [&](Call& call) {
          for (const Operand& operand : function.operands) {
            const bool is_bias = operand.name == "bias" || operand.name == "db";
            if (operand.kind == Kind::kColumns) call.Reset(operand, is_bias ? other : shape);
          }
        });
      }
    }
  }
}

TEST(Shapes, OfDwIsThatOfTheWeight) {
  const Function& backward = kFunctions[kFunctions.size() - 2];
  ASSERT_EQ("backward", backward.name);
  const std::vector<SizeList> shapes = {{kD}, {3, kD}, {2, 1, kD}, {2, 3, kD}};
  for (const SizeList& weight : shapes) {
    for (const SizeList& dw : shapes) {
      const auto set = [&](Call& call) {
        for (const Operand& operand : backward.operands) {
          if (operand.name == "weight") call.Reset(operand, weight);
          if (operand.name == "dw") call.Reset(operand, dw);
        }
      };
      if (weight == dw) {
        ExpectAccepted(backward, set);
      } else {
        ExpectRefused(backward, RMSNORM_ERROR_SHAPE, "dw", "weight", set);
        ExpectAccepted(backward, [&](Call& call) {  // as free as the bias where there is no weight
          set(call);
          call.Remove("weight");
        });
      }
    }
  }
}

// x of one dimension is one row: one element of what is one per row, and nothing to broadcast over.
TEST(Shapes, OfOneRow) {
  for (const Function& function : kFunctions) {
    const auto one_row = [&](Call& call) {
      for (const Operand& operand : function.operands) {
        call.Reset(operand, HasRows(operand) ? SizeList{kD} : SizeList{1});
      }
    };
    ExpectAccepted(function, one_row);
    for (const Operand& operand : function.operands) {
      const auto refused = [&](const SizeList& shape) {
        ExpectRefused(function, RMSNORM_ERROR_SHAPE, operand.name, "x", [&](Call& call) {
          one_row(call);
          call.Reset(operand, shape);
        });
      };
      if (operand.kind == Kind::kPerRow) {
        for (const SizeList& shape : {SizeList{2}, SizeList{0}, SizeList{1, 1}}) refused(shape);
      } else if (operand.name != "x") {
        refused({1, kD});
      }
    }
  }
}

TEST(Shapes, AModuleKnowsItsD) {
  for (const Function& function : kFunctions) {
    if (function.name.find("module") == std::string::npos) continue;
    for (const size_t d : {kD - 1, kD + 1}) {
      ExpectRefused(function, RMSNORM_ERROR_SHAPE, "x", std::to_string(kD), [&](Call& call) {
        for (const Operand& operand : function.operands) {
          if (operand.kind == Kind::kRows) call.Reset(operand, {2, 3, d});
          if (operand.kind == Kind::kColumns) call.Reset(operand, {d});
        }
      });
    }
  }
}

// ----------------------------------------------------------------------------------- strides

// The rows of an output are told apart by their strides. Those of an input need not be.
TEST(Strides, TellTheRowsOfAnOutputApart) {
  ForEachOperand([](const Function& function, const Operand& operand) {
    const ptrdiff_t row = HasRows(operand) ? kD : 1;
    // Repeated rows, rows that overlap, and rows (0, 2) and (1, 0) in one place.
    for (StrideList stride :
         {StrideList{3 * row, 0}, StrideList{0, row}, StrideList{0, 0}, StrideList{2 * row, row},
          StrideList{-2 * row, row}, StrideList{row, row}}) {
      const auto set = [&](Call& call) {
        call.ResetColumns();
        for (size_t i = 0; i < stride.size(); ++i) call[operand.name].stride[i] = stride[i];
      };
      if (function.IsOutput(operand)) {
        ExpectRefused(function, RMSNORM_ERROR_STRIDE, operand.name, "tell rows apart", set);
      } else {
        ExpectAccepted(function, set);
      }
    }
    for (StrideList stride :
         {StrideList{3 * row, row}, StrideList{3 * row, -row}, StrideList{-3 * row, row},
          StrideList{row, 2 * row}, StrideList{row, -2 * row}, StrideList{3 * row + 1, row},
          StrideList{row + 1, 2 * row + 3}}) {
      ExpectAccepted(function, [&](Call& call) {
        call.ResetColumns();
        for (size_t i = 0; i < stride.size(); ++i) call[operand.name].stride[i] = stride[i];
      });
    }
  });
  for (const ptrdiff_t stride : {1, 7, -7}) {
    ForEachOperand([&](const Function& function, const Operand& operand) {
      if (operand.kind != Kind::kRows || !function.IsOutput(operand)) return;
      ExpectRefused(function, RMSNORM_ERROR_STRIDE, operand.name, "tell rows apart",
                    [&](Call& call) { call[operand.name].stride[1] = stride; });
    });
  }
}

// Rows one of which begins between two others share no byte here, but are not told apart. The text
// does not say that they overlap.
TEST(Strides, DoNotInterleaveTheRowsOfAnOutput) {
  const Function function = {"norm", "", false, Taken(&Operand::forward, kNotWithSums), Forward};
  ExpectRefused(function, RMSNORM_ERROR_STRIDE, "y",
                "its strides do not tell rows apart (12 bytes from one index to the next, but each "
                "spans 20)",
                [&](Call& call) {
                  for (const Operand& operand : function.operands) {
                    if (operand.kind == Kind::kRows) call.Reset(operand, {2, 3, 1});
                    if (operand.kind == Kind::kColumns) call.Reset(operand, {1});
                  }
                  call["y"] = MakeView(call["y"].data, RMSNORM_F32, {2, 3, 1}, {3, 2, 1});
                });
}

TEST(Strides, InPlaceTellRowsApart) {
  ForEachOperand([](const Function& function, const Operand& operand) {
    if (operand.in_place_of.empty()) return;
    ExpectRefused(function, RMSNORM_ERROR_STRIDE, operand.name, "tell rows apart", [&](Call& call) {
      call[operand.in_place_of].stride[1] = 0;
      call[operand.name] = call[operand.in_place_of];
    });
  });
}

// ----------------------------------------------------------------------------------- overlap

// The bytes of one row.
ptrdiff_t RowBytes(const Operand& operand) {
  const size_t size = rmsnorm_dtype_size(UsualDtype(operand));
  return static_cast<ptrdiff_t>(HasRows(operand) ? kD * size : size);
}

// Calls visit for each output with each other operand of the call.
void ForEachPair(const std::function<void(const Function&, const Operand& output,
                                          const Operand& other)>& visit) {
  ForEachOperand([&](const Function& function, const Operand& output) {
    if (!function.IsOutput(output)) return;
    for (const Operand& other : function.operands) {
      if (other.name != output.name) visit(function, output, other);
    }
  });
}

// The output is refused for the sake of the other. Of two outputs either may be named first.
void ExpectOverlap(const Function& function, const Operand& output, const Operand& other,
                   const Spoil& spoil) {
  SCOPED_TRACE(function.name + ": " + output.name + " over " + other.name);
  Call call(function.operands);
  spoil(call);
  const std::string before = call.Snapshot();
  const rmsnorm_operands operands = call.Get();
  ASSERT_EQ(RMSNORM_ERROR_OVERLAP, function.run(&operands)) << rmsnorm_error_message();
  EXPECT_TRUE(before == call.Snapshot()) << "something was written";
  const std::string message = rmsnorm_error_message();
  const auto says = [&](const Operand& a, const Operand& b) {
    return message.find(function.prefix + a.name + ": overlaps " + b.name + " ") == 0;
  };
  EXPECT_TRUE(says(output, other) || (function.IsOutput(other) && says(other, output))) << message;
  EXPECT_EQ(output.in_place_of == other.name,
            message.find("in place means the same data, strides") != std::string::npos)
      << message;
}

void ExpectInPlaceOnly(bool in_place, const Function& function, const Operand& output,
                       const Operand& other, const Spoil& spoil) {
  if (in_place) {
    ExpectAccepted(function, spoil);
  } else {
    ExpectOverlap(function, output, other, spoil);
  }
}

// Places the output some bytes after the other.
Spoil Place(const Operand& output, const Operand& other, ptrdiff_t bytes) {
  return [&output, &other, bytes](Call& call) {
    call.ResetColumns();
    call[output.name].data = static_cast<char*>(call[other.name].data) + bytes;
  };
}

TEST(Overlap, OutputsShareNoByteWithOtherOperands) {
  ForEachPair([](const Function& function, const Operand& output, const Operand& other) {
    const ptrdiff_t size = static_cast<ptrdiff_t>(rmsnorm_dtype_size(UsualDtype(output)));
    const ptrdiff_t before = 6 * RowBytes(output);
    const ptrdiff_t after = (6 * RowBytes(other) + size - 1) / size * size;
    for (const ptrdiff_t bytes : {size - before, -size, size, after - size}) {
      if (bytes >= after || -bytes >= before) continue;
      ExpectOverlap(function, output, other, Place(output, other, bytes));
    }
    for (const ptrdiff_t bytes : {-before, after}) {
      ExpectAccepted(function, Place(output, other, bytes));
    }
    ExpectInPlaceOnly(output.in_place_of == other.name, function, output, other,
                      Place(output, other, 0));
  });
}

TEST(Overlap, InPlaceNeedsEqualStridesAndSizes) {
  ForEachOperand([](const Function& function, const Operand& output) {
    if (output.in_place_of.empty()) return;
    const auto other = std::find_if(kOperands.begin(), kOperands.end(), [&](const Operand& one) {
      return one.name == output.in_place_of;
    });
    const auto in_place = [&](Call& call, const std::function<void(rmsnorm_view&)>& change) {
      call[output.name] = call[other->name];
      change(call[output.name]);
    };
    const auto refused = [&](const std::function<void(rmsnorm_view&)>& change) {
      ExpectOverlap(function, output, *other, [&](Call& call) { in_place(call, change); });
    };
    const auto accepted = [&](const StrideList& stride, rmsnorm_dtype a, rmsnorm_dtype b) {
      ExpectAccepted(function, [&](Call& call) {
        for (size_t i = 0; i < stride.size(); ++i) call[other->name].stride[i] = stride[i];
        call[other->name].dtype = a;
        in_place(call, [&](rmsnorm_view& view) { view.dtype = b; });
      });
    };
    refused([](rmsnorm_view& view) {
      view.stride[1] = kD + 1;
      view.stride[0] = 3 * kD + 3;
    });
    refused([](rmsnorm_view& view) { view.stride[0] = 4 * kD; });
    refused([](rmsnorm_view& view) { view.stride[1] = -static_cast<ptrdiff_t>(kD); });
    for (const StrideList& stride :
         {StrideList{24, 8}, StrideList{40, 10}, StrideList{-24, -8}, StrideList{8, 16}}) {
      accepted(stride, RMSNORM_F32, RMSNORM_F32);
      if (output.name == "residual_out") continue;  // has the type of the residual
      accepted(stride, RMSNORM_F16, RMSNORM_BF16);
      accepted(stride, RMSNORM_BF16, RMSNORM_F16);
    }
    if (output.name == "residual_out") return;
    refused([](rmsnorm_view& view) { view.dtype = RMSNORM_BF16; });
    // Rows at the same places, half as wide: still not in place.
    refused([](rmsnorm_view& view) {
      view.dtype = RMSNORM_BF16;
      for (const int i : {0, 1}) view.stride[i] *= 2;
    });
  });
}

// Everything that can be in place at once, and no more than that.
TEST(Overlap, SeveralInPlace) {
  for (const Function& function : kFunctions) {
    const auto all_in_place = [&](Call& call) {
      for (const Operand& operand : function.operands) {
        if (!operand.in_place_of.empty()) call[operand.name] = call[operand.in_place_of];
      }
    };
    ExpectAccepted(function, all_in_place);
    // Where two inputs are one tensor, an output in the place of the one overlaps the other.
    const std::string second = function.backward ? "dy" : "residual";
    if (!Call(function.operands).Has(second)) continue;
    for (const Operand& output : function.operands) {
      if (output.in_place_of.empty()) continue;
      const std::string other = output.in_place_of == "x" ? second : "x";
      ExpectRefused(function, RMSNORM_ERROR_OVERLAP, output.name, "overlaps " + other,
                    [&](Call& call) { call[second] = call[output.name] = call["x"]; });
    }
  }
}

TEST(Overlap, InputsMayShareBytes) {
  for (const Function& function : kFunctions) {
    ExpectAccepted(function, [&](Call& call) {
      void* const data = call["x"].data;
      for (const Operand& operand : function.operands) {
        if (!function.IsOutput(operand)) call[operand.name].data = data;
      }
    });
  }
}

// Bytes from one row to the next, and rows to the next index of the first dimension, in a buffer
// that holds more than one operand.
constexpr ptrdiff_t kPitch = 96;

void Spread(Call& call, const Operand& operand, ptrdiff_t pitch = kPitch) {
  rmsnorm_view& view = call[operand.name];
  const ptrdiff_t size = static_cast<ptrdiff_t>(rmsnorm_dtype_size(view.dtype));
  view.stride[0] = 3 * pitch / size;
  view.stride[1] = pitch / size;
}

TEST(Overlap, InterleavedRowsPassWithEqualStrides) {
  ForEachPair([](const Function& function, const Operand& output, const Operand& other) {
    const auto spread = [&](ptrdiff_t bytes) {
      return [&, bytes](Call& call) {
        Place(output, other, bytes)(call);
        Spread(call, output);
        Spread(call, other);
      };
    };
    const ptrdiff_t size = static_cast<ptrdiff_t>(rmsnorm_dtype_size(UsualDtype(output)));
    const ptrdiff_t after = (RowBytes(other) + size - 1) / size * size;
    const ptrdiff_t last = kPitch - RowBytes(output);
    for (const ptrdiff_t bytes : {after, last, after - kPitch, last - kPitch, 2 * kPitch + last}) {
      ExpectAccepted(function, spread(bytes));
    }
    for (const ptrdiff_t bytes : {after - size, last + size, kPitch}) {
      ExpectInPlaceOnly(bytes == 0 && output.in_place_of == other.name, function, output, other,
                        spread(bytes));
    }
    // Apart, but with strides that differ: not decided, so refused.
    ExpectOverlap(function, output, other, [&](Call& call) {
      spread(after)(call);
      Spread(call, output, 2 * kPitch);
    });
  });
}

// Two types in one buffer: rows of 32 bytes beside rows of 16.
TEST(Overlap, InterleavedRowsOfOtherTypes) {
  ForEachPair([](const Function& function, const Operand& output, const Operand& other) {
    if (output.kind != Kind::kRows || other.kind != Kind::kRows) return;
    if (output.only != 0 || other.only != 0) return;
    if (output.name == "residual_out" || other.name == "residual_out") return;
    const auto spread = [&](ptrdiff_t bytes) {
      return [&, bytes](Call& call) {
        Place(output, other, bytes)(call);
        call[output.name].dtype = RMSNORM_F16;
        Spread(call, output);
        Spread(call, other);
      };
    };
    for (const ptrdiff_t bytes : {32, 80, -16, -64}) ExpectAccepted(function, spread(bytes));
    for (const ptrdiff_t bytes : {30, 82, -14, -66}) {
      ExpectOverlap(function, output, other, spread(bytes));
    }
  });
}

// Tokens of 9 heads: the one operand has the first three heads, the other three others.
TEST(Overlap, InterleavedHeadsOfTokens) {
  ForEachPair([](const Function& function, const Operand& output, const Operand& other) {
    if (output.kind != Kind::kRows || other.kind != Kind::kRows) return;
    if (output.only != 0 || other.only != 0) return;
    const auto heads = [&](ptrdiff_t head) {
      return [&, head](Call& call) {
        for (const Operand* operand : {&output, &other}) {
          call.Reset(*operand, kShapes[0], {9 * kD, kD, 1});
        }
        call[output.name].data =
            static_cast<float*>(call[other.name].data) + head * static_cast<ptrdiff_t>(kD);
      };
    };
    for (const ptrdiff_t head : {3, 4, 6, -3, -6}) ExpectAccepted(function, heads(head));
    for (const ptrdiff_t head : {1, 2, 7, 8, -1, -2, -7}) {
      ExpectOverlap(function, output, other, heads(head));
    }
  });
}

// --------------------------------------------------------------------------------- zero rows

// No rows along one of the leading dimensions, and nowhere to write them.
void RemoveRows(Call& call, const Function& function, const SizeList& leading) {
  for (const Operand& operand : function.operands) {
    if (operand.kind == Kind::kColumns) continue;
    SizeList shape = leading;
    if (HasRows(operand)) shape.push_back(kD);
    call[operand.name] = MakeView(nullptr, UsualDtype(operand), shape);
  }
}

const std::vector<SizeList> kEmpty = {{0, 3}, {2, 0}, {0}, {SIZE_MAX, SIZE_MAX, 0}, {0, SIZE_MAX}};

TEST(ZeroRows, SucceedAndTouchNothing) {
  for (const Function& function : kFunctions) {
    for (const SizeList& leading : kEmpty) {
      ExpectAccepted(function, [&](Call& call) { RemoveRows(call, function, leading); });
    }
  }
}

TEST(ZeroRows, HaveGradientsOfZero) {
  for (const Function& function : kFunctions) {
    if (!function.backward) continue;
    for (const uint32_t add_to : {0u, 7u}) {
      Call call(function.operands);
      RemoveRows(call, function, {0, 3});
      call.add_to = add_to;
      for (const Operand& operand : function.operands) {
        if (operand.kind == Kind::kColumns) call.Reset(operand, {3, kD});
      }
      std::map<std::string, std::string> before;
      for (const Operand& operand : function.operands) before[operand.name] = call.BytesOf(operand);
      const rmsnorm_operands operands = call.Get();
      ASSERT_EQ(RMSNORM_OK, function.run(&operands)) << rmsnorm_error_message();
      for (const Operand& operand : function.operands) {
        if (operand.name != "dw" && operand.name != "db") continue;
        const std::string& held = before[operand.name];
        EXPECT_TRUE((add_to == 0 ? std::string(held.size(), '\0') : held) == call.BytesOf(operand))
            << operand.name;
      }
    }
  }
}

TEST(ZeroRows, AreStillChecked) {
  ForEachOperand([](const Function& function, const Operand& operand) {
    ExpectRefused(function, RMSNORM_ERROR_DTYPE, operand.name, "unknown dtype", [&](Call& call) {
      RemoveRows(call, function, {2, 0});
      call[operand.name].dtype = 9;
    });
  });
}

}  // namespace
}  // namespace rmsnorm::test
