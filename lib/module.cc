// SPDX-License-Identifier: Apache-2.0
// The module: a weight prepared once, with the kernels and options that go with it.
#include "module.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "calls.h"
#include "float_environment.h"
#include "status.h"
#include "thresholds.h"

using namespace rmsnorm::internal;

namespace {

// As "%g" prints it, but with a point in every locale.
std::string Text(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, 6);
  return std::string(text, end.ptr);
}

std::string Describe(size_t d, rmsnorm_dtype dtype, const rmsnorm_options& options,
                     const rmsnorm_context& context) {
  std::string text = "RmsNorm(" + std::to_string(d) + ", eps=" + Text(options.eps) + ", " +
                     rmsnorm_dtype_name(dtype);
  if (options.eps_placement == RMSNORM_EPS_OUTSIDE) text += ", eps_placement=outside";
  if (options.eps_placement == RMSNORM_EPS_FLOOR) text += ", eps_placement=floor";
  if (options.rounding == RMSNORM_CAST_THEN_SCALE) text += ", rounding=cast-then-scale";
  if (options.rounding == RMSNORM_INVERSE_ROUNDED) text += ", rounding=inverse-rounded";
  if (options.residual_rounding == RMSNORM_NORM_THEN_CAST) {
    text += ", residual_rounding=norm-then-cast";
  }
  if (options.weight_offset != 0.0f) text += ", weight_offset=" + Text(options.weight_offset);
  if (options.divisor != 0.0f) text += ", divisor=" + Text(options.divisor);
  if (context.threads != 0) text += ", threads=" + std::to_string(context.threads);
  if (context.parallel_for != nullptr) text += ", parallel_for";
  if (context.target != nullptr) text += std::string(", target=") + context.target;
  return text + ")";
}

void PrepareOwnWeight(rmsnorm_module& module) {
  module.kernels->prepare(RMSNORM_F32, module.weight.get(), module.d, module.options.weight_offset,
                          module.prepared.get());
}

rmsnorm_status NullModule() { return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null"); }

// ------------------------------------------------------------------ dense rows

// Bytes of an element of a valid dtype. ElementSize() and Disjoint() of the general checks would do
// for dense rows as well, but take 0.7 ns more of the 16 that one row of 64 takes.
size_t ElementBytes(rmsnorm_dtype dtype) { return dtype == RMSNORM_F32 ? 4 : 2; }

bool IsAligned(const void* data, size_t element_bytes) {
  return data != nullptr && (reinterpret_cast<uintptr_t>(data) & (element_bytes - 1)) == 0;
}

bool AreApart(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(a);
  const uintptr_t to = reinterpret_cast<uintptr_t>(b);
  return from + a_bytes <= to || to + b_bytes <= from;
}

bool IsApart(const void* a, const void* b, size_t bytes) { return AreApart(a, bytes, b, bytes); }

bool IsApartOrSame(const void* a, const void* b, size_t bytes) {
  return a == b || IsApart(a, b, bytes);
}

// Whether dense rows of a type are so few that they are work for one thread. `work` is how much an
// element is, as for PartsOf().
bool IsShortCall(const rmsnorm_module* module, rmsnorm_dtype dtype, size_t rows, size_t work) {
  return module != nullptr && dtype >= RMSNORM_F32 && dtype <= RMSNORM_BF16 && rows > 0 &&
         rows <= module->short_call && work * rows * module->d <= module->short_call;
}

const Norm& NormOf(const rmsnorm_module& module, rmsnorm_dtype dtype) {
  return module.norm[dtype - RMSNORM_F32];
}

// Dense rows without an operand but the weight. It takes no more instructions than it must: a copy
// of a whole Run is 20 ns where one row of 64 takes 12.
Run MakeRun(const rmsnorm_module& module, size_t rows) {
  Run run;
  run.count = rows;
  run.d = module.d;
  run.given = 0;
  run.safe_sum = nullptr;
  run.start_sums = false;
  run.Set(kWeight, module.prepared.get(), 0);
  return run;
}

void SetRows(Run& run, Operand operand, const void* data, size_t bytes_of_row) {
  run.Set(operand, const_cast<void*>(data), static_cast<ptrdiff_t>(bytes_of_row));
}

// How much work goes the short way: what is one thread's, and not so much that it is written past
// the caches.
size_t ShortCall(const rmsnorm_context& context) {
  constexpr size_t kBytesOfElement = 4 * sizeof(float);  // of x, residual, residual_out and y
  const size_t in_caches = StreamedBytes() / kBytesOfElement;
  return context.threads == 1 ? in_caches : std::min(in_caches, 2 * kMinWorkOfPart - 1);
}

// The view of dense rows, for calls that go the long way.
rmsnorm_view DenseRows(const rmsnorm_module& module, rmsnorm_dtype dtype, size_t rows,
                       const void* data) {
  return rmsnorm_rows(data, dtype, rows, module.d, static_cast<ptrdiff_t>(module.d));
}

// Makes the Norm of a module's dense rows of one type.
void MakeDenseNorm(rmsnorm_module& module, rmsnorm_dtype dtype) {
  const rmsnorm_view rows = DenseRows(module, dtype, 1, nullptr);
  Views views;
  for (int i = 0; i < kOperands; ++i) {
    if (kOperandRules[i].shape == Shape::kRows) views.Set(static_cast<Operand>(i), &rows);
  }
  MakeNorm(*module.kernels, module.options, module.d, views, module.norm[dtype - RMSNORM_F32]);
}

}  // namespace

rmsnorm_status rmsnorm_module_create(rmsnorm_module** module, size_t d, rmsnorm_dtype dtype,
                                     const rmsnorm_options* options,
                                     const rmsnorm_context* context) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  *module = nullptr;
  rmsnorm_options own_options;
  Place place;
  RMSNORM_RETURN_IF_ERROR(ReadOptions(options, own_options));
  if (d == 0) return Fail(RMSNORM_ERROR_SHAPE, "d: it is 0");
  if (dtype < RMSNORM_F32 || dtype > RMSNORM_BF16) {
    return Fail(RMSNORM_ERROR_DTYPE, "dtype: %d is none of f32, f16 and bf16", dtype);
  }
  RMSNORM_RETURN_IF_ERROR(FindPlace(nullptr, context, place));
  try {
    std::unique_ptr<rmsnorm_module> made(new rmsnorm_module);
    made->weight = MakeFloats(d);
    made->prepared = MakeFloats(d);
    if (!made->weight || !made->prepared) throw std::bad_alloc();
    made->d = d;
    made->dtype = dtype;
    made->options = own_options;
    made->context = place.context;
    const size_t short_call = ShortCall(place.context);
    made->short_call = d <= short_call ? short_call : 0;  // so that no product overflows
    made->kernels = place.kernels;
    for (int i = 0; i < 3; ++i) MakeDenseNorm(*made, RMSNORM_F32 + i);
    made->description = Describe(d, dtype, own_options, place.context);
    *module = made.release();
  } catch (const std::exception&) {
    return Fail(RMSNORM_ERROR_MEMORY, "d: no memory for a weight of %zu elements", d);
  }
  (*module)->context.target = nullptr;  // the caller's text, which need not stay
  return rmsnorm_module_reset_weight(*module);
}

void rmsnorm_module_destroy(rmsnorm_module* module) noexcept { delete module; }

rmsnorm_status rmsnorm_module_set_weight(rmsnorm_module* module,
                                         const rmsnorm_view* weight) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  const KernelTable& kernels = *module->kernels;
  const size_t d = module->d;
  RMSNORM_RETURN_IF_ERROR(CheckVector(kWeight, weight, d));
  // To f32, to the module's type and back; an offset of -0 changes nothing.
  float* const own = module->weight.get();
  float* const rounded = module->prepared.get();
  kernels.prepare(weight->dtype, weight->data, d, -0.0f, own);
  kernels.store_sums(own, 0, 1, d, false, module->dtype, rounded);
  kernels.prepare(module->dtype, rounded, d, -0.0f, own);
  PrepareOwnWeight(*module);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_get_weight(const rmsnorm_module* module,
                                         const rmsnorm_view* weight) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  RMSNORM_RETURN_IF_ERROR(CheckVector(kWeight, weight, module->d));
  module->kernels->store_sums(module->weight.get(), 0, 1, module->d, false, weight->dtype,
                              weight->data);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_reset_weight(rmsnorm_module* module) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return NullModule();
  for (size_t j = 0; j < module->d; ++j) module->weight[j] = 1.0f;
  PrepareOwnWeight(*module);
  return RMSNORM_OK;
}

size_t rmsnorm_module_d(const rmsnorm_module* module) noexcept {
  return module != nullptr ? module->d : 0;
}

rmsnorm_dtype rmsnorm_module_dtype(const rmsnorm_module* module) noexcept {
  return module != nullptr ? module->dtype : 0;
}

const rmsnorm_options* rmsnorm_module_options(const rmsnorm_module* module) noexcept {
  return module != nullptr ? &module->options : nullptr;
}

const char* rmsnorm_module_describe(const rmsnorm_module* module) noexcept {
  return module != nullptr ? module->description.c_str() : "";
}

rmsnorm_status rmsnorm_module_forward(const rmsnorm_module* module,
                                      const rmsnorm_operands* operands,
                                      const rmsnorm_context* context) noexcept {
  if (module == nullptr) return NullModule();
  return CallForward(module, operands, nullptr, context);
}

rmsnorm_status rmsnorm_module_backward(const rmsnorm_module* module,
                                       const rmsnorm_operands* operands,
                                       const rmsnorm_context* context) noexcept {
  if (module == nullptr) return NullModule();
  return CallBackward(module, operands, nullptr, context);
}

// Each of the following has a short way for what needs no threads and whose arguments are plainly
// right, and else goes the long way, which finds out what is wrong.

rmsnorm_status rmsnorm_module_forward_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                           size_t rows, const void* x, void* y) noexcept {
  if (IsShortCall(module, dtype, rows, 1)) {
    const size_t size = ElementBytes(dtype);
    const size_t row = module->d * size;
    if (IsAligned(x, size) && IsAligned(y, size) && IsApartOrSame(x, y, rows * row)) {
      const DefaultFloatEnvironment environment;
      Run run = MakeRun(*module, rows);
      SetRows(run, kX, x, row);
      SetRows(run, kY, y, row);
      module->kernels->forward(NormOf(*module, dtype), run);
      return RMSNORM_OK;
    }
  }
  if (module == nullptr) return NullModule();
  const rmsnorm_view x_view = DenseRows(*module, dtype, rows, x);
  const rmsnorm_view y_view = DenseRows(*module, dtype, rows, y);
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = &x_view;
  operands.y = &y_view;
  return rmsnorm_module_forward(module, &operands, nullptr);
}

rmsnorm_status rmsnorm_module_add_forward_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                               size_t rows, const void* x, const void* residual,
                                               void* residual_out, void* y) noexcept {
  if (IsShortCall(module, dtype, rows, 1)) {
    const size_t size = ElementBytes(dtype);
    const size_t row = module->d * size;
    const size_t bytes = rows * row;
    if (IsAligned(x, size) && IsAligned(residual, size) && IsAligned(residual_out, size) &&
        IsAligned(y, size) && IsApartOrSame(x, y, bytes) &&
        IsApartOrSame(residual, residual_out, bytes) && IsApart(x, residual_out, bytes) &&
        IsApart(residual, y, bytes) && IsApart(residual_out, y, bytes)) {
      const DefaultFloatEnvironment environment;
      Run run = MakeRun(*module, rows);
      SetRows(run, kX, x, row);
      SetRows(run, kResidual, residual, row);
      SetRows(run, kResidualOut, residual_out, row);
      SetRows(run, kY, y, row);
      module->kernels->forward(NormOf(*module, dtype), run);
      return RMSNORM_OK;
    }
  }
  if (module == nullptr) return NullModule();
  const rmsnorm_view x_view = DenseRows(*module, dtype, rows, x);
  const rmsnorm_view residual_view = DenseRows(*module, dtype, rows, residual);
  const rmsnorm_view out_view = DenseRows(*module, dtype, rows, residual_out);
  const rmsnorm_view y_view = DenseRows(*module, dtype, rows, y);
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = &x_view;
  operands.residual = &residual_view;
  operands.residual_out = &out_view;
  operands.y = &y_view;
  return rmsnorm_module_forward(module, &operands, nullptr);
}

rmsnorm_status rmsnorm_module_backward_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                            size_t rows, const void* dy, const void* x,
                                            const float* rstd, void* dx, void* dw) noexcept {
  // The rows of one block, whose sums of dw are dw itself or fit the stack.
  if (IsShortCall(module, dtype, rows, 2) && rows <= kMinRowsPerBlock &&
      module->d <= kSumsOnStack) {
    const size_t size = ElementBytes(dtype);
    const size_t row = module->d * size;
    const size_t bytes = rows * row;
    const size_t rstd_bytes = rows * sizeof(float);
    if (IsAligned(dy, size) && IsAligned(x, size) && IsAligned(dx, size) && IsAligned(dw, size) &&
        IsAligned(rstd, sizeof(float)) && IsApartOrSame(dy, dx, bytes) && IsApart(x, dx, bytes) &&
        AreApart(x, bytes, dw, row) && AreApart(dy, bytes, dw, row) &&
        AreApart(dx, bytes, dw, row) && AreApart(dx, bytes, rstd, rstd_bytes) &&
        AreApart(dw, row, rstd, rstd_bytes)) {
      const DefaultFloatEnvironment environment;
      alignas(64) float sums[kSumsOnStack];
      const bool own_sums = dtype != RMSNORM_F32;
      Run run = MakeRun(*module, rows);
      SetRows(run, kDy, dy, row);
      SetRows(run, kX, x, row);
      SetRows(run, kDx, dx, row);
      SetRows(run, kRstd, rstd, sizeof(float));
      run.Set(kDw, own_sums ? sums : dw, 0);
      run.start_sums = true;
      module->kernels->backward(NormOf(*module, dtype), run);
      if (own_sums) module->kernels->store_sums(sums, 0, 1, module->d, false, dtype, dw);
      return RMSNORM_OK;
    }
  }
  if (module == nullptr) return NullModule();
  const rmsnorm_view dy_view = DenseRows(*module, dtype, rows, dy);
  const rmsnorm_view x_view = DenseRows(*module, dtype, rows, x);
  const rmsnorm_view rstd_view = rmsnorm_vector(rstd, RMSNORM_F32, rows);
  const rmsnorm_view dx_view = DenseRows(*module, dtype, rows, dx);
  const rmsnorm_view dw_view = rmsnorm_vector(dw, dtype, module->d);
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.dy = &dy_view;
  operands.x = &x_view;
  operands.rstd = rstd != nullptr ? &rstd_view : nullptr;
  operands.dx = dx != nullptr ? &dx_view : nullptr;
  operands.dw = dw != nullptr ? &dw_view : nullptr;
  return rmsnorm_module_backward(module, &operands, nullptr);
}
