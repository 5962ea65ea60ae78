// SPDX-License-Identifier: Apache-2.0
// The loops that a user would write, which compilers vectorise: a norm, alone or after a residual
// addition, also after another norm, quantised, rotated or with a gate, and its gradients, in as
// few passes over a row as possible, with sums in f32. The bits depend on the compiler.
//
// meson.build compiles this file into the benchmark several times, for CPUs that may not be the one
// at hand, each time with another name for rmsnorm_peer_get(). So it uses no inline function of
// this project or of C++'s library: of several copies the linker keeps one, and that one could need
// AVX-512.
#include <math.h>
#include <string.h>

#include "peer.h"

#ifndef RMSNORM_PEER_NAME
#define RMSNORM_PEER_NAME "plain"
#endif

namespace {

struct F32 {
  using Element = float;
  static float Load(float value) { return value; }
  static float Store(float value) { return value; }
};

struct BF16 {
  using Element = uint16_t;
  static float Load(uint16_t element) {
    const uint32_t bits = static_cast<uint32_t>(element) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
  static uint16_t Store(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};

#if defined(__aarch64__)
#define RMSNORM_F16_TYPE __fp16
#elif defined(__F16C__) && (!defined(__clang__) || __clang_major__ >= 15)
#define RMSNORM_F16_TYPE _Float16
#endif

#ifdef RMSNORM_F16_TYPE
struct F16 {
  using Element = RMSNORM_F16_TYPE;
  static float Load(Element value) { return static_cast<float>(value); }
  static Element Store(float value) { return static_cast<Element>(value); }
};
#endif

// The first row, and the elements to the next one in each of two dimensions.
struct Rows {
  void* data;
  ptrdiff_t outer, inner;

  template <class Element>
  Element* At(size_t i, size_t j) const {
    return static_cast<Element*>(data) + static_cast<ptrdiff_t>(i) * outer +
           static_cast<ptrdiff_t>(j) * inner;
  }
};

struct Norm {
  // Computes `rows` rows from row (i, j) on; of gradients, also the part of thread t in dw.
  void (*run)(const Norm& norm, size_t i, size_t j, size_t rows, size_t t);
  size_t outer, inner, d;
  float eps;
  size_t threads;
  size_t group;
  Rows x, weight, post_norm_weight, gate, cos, sin, residual, y, q, scale, dy, rstd, dx;
  // The data of those that are missing is null.
  float *dw, *parts_of_dw;
};

constexpr size_t kLongestGroup = 8192;

// Quantises the norm of a row, which is kept in y or, without it, group by group.
template <class Type, class Element = typename Type::Element>
void QuantiseRow(const Norm& norm, const Element* x, const Element* weight, float r, Element* y,
                 int8_t* q, float* scale) {
  Element buffer[kLongestGroup];
  const size_t group = norm.group;
  for (size_t begin = 0; begin < norm.d; begin += group) {
    Element* const values = y != nullptr ? y + begin : buffer;
    float largest = 0;
    for (size_t k = 0; k < group; ++k) {
      values[k] = Type::Store(Type::Load(x[begin + k]) * r * Type::Load(weight[begin + k]));
      const float magnitude = fabsf(Type::Load(values[k]));
      largest = magnitude > largest ? magnitude : largest;
    }
    const float inverse = largest > 0 ? 127 / largest : 0;
    for (size_t k = 0; k < group; ++k) {
      q[begin + k] = static_cast<int8_t>(rintf(Type::Load(values[k]) * inverse));
    }
    scale[begin / group] = largest / 127;
  }
}

// Rotates the halves of the norm of a row. y is not x: gcc would not vectorise the loop.
template <class Type, class Element = typename Type::Element>
void RotateRow(size_t d, const Element* x, const Element* weight, float r, const Element* cos,
               const Element* sin, Element* __restrict y) {
  const size_t half = d / 2;
  for (size_t k = 0; k < half; ++k) {
    const float a = Type::Load(x[k]) * r * Type::Load(weight[k]);
    const float b = Type::Load(x[half + k]) * r * Type::Load(weight[half + k]);
    y[k] = Type::Store(a * Type::Load(cos[k]) - b * Type::Load(sin[k]));
    y[half + k] = Type::Store(b * Type::Load(cos[k]) + a * Type::Load(sin[k]));
  }
}

template <class Type, class Element = typename Type::Element>
float InverseRms(const Norm& norm, const Element* x) {
  float sum = 0;
  for (size_t k = 0; k < norm.d; ++k) sum += Type::Load(x[k]) * Type::Load(x[k]);
  return 1.0f / sqrtf(sum / static_cast<float>(norm.d) + norm.eps);
}

template <class Type>
void RunBackwardRows(const Norm& norm, size_t i, size_t j, size_t rows, size_t t) {
  using Element = typename Type::Element;
  const size_t d = norm.d;
  float* const dw = t == 0 ? norm.dw : norm.parts_of_dw + (t - 1) * d;
  memset(dw, 0, d * sizeof *dw);
  for (; rows > 0; --rows, ++j) {
    const Element* const x = norm.x.At<Element>(i, j);
    const Element* const weight = norm.weight.At<Element>(i, j);
    const Element* const dy = norm.dy.At<Element>(i, j);
    Element* const dx = norm.dx.At<Element>(i, j);
    const float r = *norm.rstd.At<float>(i, j);
    float sum = 0;
    for (size_t k = 0; k < d; ++k) {
      sum += Type::Load(dy[k]) * Type::Load(weight[k]) * Type::Load(x[k]);
    }
    const float c = sum * r * r / static_cast<float>(d);
    for (size_t k = 0; k < d; ++k) {
      const float slope = Type::Load(dy[k]);
      const float value = Type::Load(x[k]);
      dw[k] += slope * value * r;
      dx[k] = Type::Store(r * (slope * Type::Load(weight[k]) - value * c));
    }
  }
}

template <class Type>
void RunRows(const Norm& norm, size_t i, size_t j, size_t rows, size_t /*t*/) {
  using Element = typename Type::Element;
  const size_t d = norm.d;
  for (; rows > 0; --rows) {
    const Element* x = norm.x.At<Element>(i, j);
    const Element* const weight = norm.weight.At<Element>(i, j);
    Element* const y = norm.y.data == nullptr ? nullptr : norm.y.At<Element>(i, j);
    float r;
    if (norm.residual.data == nullptr) {
      r = InverseRms<Type>(norm, x);
    } else {
      float sum = 0;
      Element* const residual = norm.residual.At<Element>(i, j);
      if (norm.post_norm_weight.data == nullptr) {
        for (size_t k = 0; k < d; ++k) {
          residual[k] = Type::Store(Type::Load(residual[k]) + Type::Load(x[k]));
          sum += Type::Load(residual[k]) * Type::Load(residual[k]);
        }
      } else {
        const Element* const post_norm_weight = norm.post_norm_weight.At<Element>(i, j);
        r = InverseRms<Type>(norm, x);
        for (size_t k = 0; k < d; ++k) {
          const Element n = Type::Store(Type::Load(x[k]) * r * Type::Load(post_norm_weight[k]));
          residual[k] = Type::Store(Type::Load(residual[k]) + Type::Load(n));
          sum += Type::Load(residual[k]) * Type::Load(residual[k]);
        }
      }
      x = residual;
      r = 1.0f / sqrtf(sum / static_cast<float>(d) + norm.eps);
    }
    if (norm.q.data != nullptr) {
      QuantiseRow<Type>(norm, x, weight, r, y, norm.q.At<int8_t>(i, j), norm.scale.At<float>(i, j));
    } else if (norm.cos.data != nullptr) {
      RotateRow<Type>(d, x, weight, r, norm.cos.At<Element>(i, j), norm.sin.At<Element>(i, j), y);
    } else if (norm.gate.data != nullptr) {
      const Element* const gate = norm.gate.At<Element>(i, j);
      for (size_t k = 0; k < d; ++k) {
        const float silu = Type::Load(gate[k]) / (1 + expf(-Type::Load(gate[k])));
        y[k] = Type::Store(Type::Load(x[k]) * r * Type::Load(weight[k]) * silu);
      }
    } else {
      for (size_t k = 0; k < d; ++k) {
        y[k] = Type::Store(Type::Load(x[k]) * r * Type::Load(weight[k]));
      }
    }
    if (++j == norm.inner) {
      j = 0;
      ++i;
    }
  }
}

// `has_row` says that the last dimension of the view is its row.
Rows RowsOf(const rmsnorm_view* view, bool has_row = true) {
  if (view == nullptr) return {};
  const int last = view->ndim - (has_row ? 2 : 1);
  const auto stride = [=](int i) { return i < 0 || view->shape[i] == 1 ? 0 : view->stride[i]; };
  return {const_cast<void*>(view->data), stride(last - 1), stride(last)};
}

// Whether x, the weight, dy and dx have one type, and dw is f32.
bool HaveTypesOfGradients(const rmsnorm_operands& given) {
  const rmsnorm_dtype type = given.x->dtype;
  return given.weight->dtype == type && given.dy->dtype == type && given.dx->dtype == type &&
         given.dw->dtype == RMSNORM_F32;
}

// The norms of a case, and one without `run` behind them.
void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  *why = nullptr;
#ifndef _OPENMP
  if (what->threads != 1) *why = "built without OpenMP";
#endif
  Norm* const norms = new Norm[what->count + 1]();
  for (size_t i = 0; i < what->count && *why == nullptr; ++i) {
    const rmsnorm_operands& operands = *what->calls[i].operands;
    const rmsnorm_view& x = *operands.x;
    const size_t d = x.shape[x.ndim - 1];
    const int32_t group = what->calls[i].options->group;
    // What remains of a norm to quantise or to rotate is a norm that they know.
    rmsnorm_operands known = operands;
    rmsnorm_options options = *what->calls[i].options;
    if (operands.q != nullptr && operands.scale != nullptr) {
      known.q = known.scale = nullptr;
      if (known.y == nullptr) known.y = known.x;
      options.group = 0;
    }
    if (operands.cos != nullptr && operands.sin != nullptr &&
        operands.cos->shape[operands.cos->ndim - 1] * 2 == d && operands.cos->dtype == x.dtype &&
        operands.sin->dtype == x.dtype) {
      known.cos = known.sin = nullptr;
    }
    if (operands.gate != nullptr && operands.gate->dtype == x.dtype) known.gate = nullptr;
    if (operands.post_norm_weight != nullptr && operands.post_norm_weight->dtype == x.dtype &&
        operands.residual != nullptr) {
      known.post_norm_weight = nullptr;
    }
    const bool has_two =
        operands.gate != nullptr && (operands.q != nullptr || operands.cos != nullptr);
    const rmsnorm_call norm_alone = {nullptr, &known, &options};
    if (what->backward != 0) {
      *why = rmsnorm_peer_no_gradients(&what->calls[i]);
      if (*why == nullptr && !HaveTypesOfGradients(operands))
        *why = "they have one type, and dw f32";
    } else {
      *why = x.ndim > 3 || has_two ? "no loop for such a call" : rmsnorm_peer_no_norm(&norm_alone);
      if (*why == nullptr && rmsnorm_peer_has_one_type(&known) == 0) *why = "they have one type";
    }
    if (operands.q != nullptr && operands.y == nullptr && group == 0 && d > kLongestGroup) {
      *why = "no loop for such a row";
    }
    if (*why != nullptr) break;
    Norm& norm = norms[i];
    const bool backward = what->backward != 0;
    norm.run = x.dtype == RMSNORM_F32 ? backward ? RunBackwardRows<F32> : RunRows<F32>
               : backward ? RunBackwardRows<BF16>
                                      : RunRows<BF16>;
    if (x.dtype == RMSNORM_F16) {
#ifdef RMSNORM_F16_TYPE
      norm.run = backward ? RunBackwardRows<F16> : RunRows<F16>;
#else
      *why = "this compiler has no f16 for them";
#endif
    }
    norm.outer = x.ndim == 3 ? x.shape[0] : 1;
    norm.inner = x.ndim == 1 ? 1 : x.shape[x.ndim - 2];
    norm.d = d;
    norm.group = group == 0 ? d : static_cast<size_t>(group);
    norm.eps = what->calls[i].options->eps;
    norm.x = RowsOf(&x);
    norm.weight = RowsOf(operands.weight);
    norm.post_norm_weight = RowsOf(operands.post_norm_weight);
    norm.gate = RowsOf(operands.gate);
    norm.cos = RowsOf(operands.cos);
    norm.sin = RowsOf(operands.sin);
    norm.residual = RowsOf(operands.residual);
    norm.y = RowsOf(operands.y);
    norm.q = RowsOf(operands.q);
    norm.scale = RowsOf(operands.scale, group != 0);
    norm.dy = RowsOf(operands.dy);
    norm.rstd = RowsOf(operands.rstd, false);
    norm.dx = RowsOf(operands.dx);
    // With less work for each thread, waking a thread takes longer than it saves.
    const size_t rows = norm.outer * norm.inner;
    const size_t most = norm.d < 32768 ? rows * norm.d / 32768 : rows;
    norm.threads = static_cast<size_t>(what->threads);
    if (most < norm.threads) norm.threads = most > 1 ? most : 1;
    if (backward && *why == nullptr) {
      norm.dw = static_cast<float*>(RowsOf(operands.dw).data);
      norm.parts_of_dw = new float[norm.threads * d];
    }
  }
  if (*why == nullptr) return norms;
  delete[] norms;
  return nullptr;
}

void AddParts(const Norm& norm) {
  for (size_t t = 1; t < norm.threads; ++t) {
    const float* const part = norm.parts_of_dw + (t - 1) * norm.d;
    for (size_t k = 0; k < norm.d; ++k) norm.dw[k] += part[k];
  }
}

void Run(void* norms) {
  for (const Norm* norm = static_cast<Norm*>(norms); norm->run != nullptr; ++norm) {
    const size_t rows = norm->outer * norm->inner;
    if (norm->threads == 1) {  // entering OpenMP costs more than a small call
      norm->run(*norm, 0, 0, rows, 0);
      continue;
    }
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(norm->threads))
#endif
    for (size_t t = 0; t < norm->threads; ++t) {
      const size_t begin = rows * t / norm->threads;
      const size_t end = rows * (t + 1) / norm->threads;
      norm->run(*norm, begin / norm->inner, begin % norm->inner, end - begin, t);
    }
    if (norm->dw != nullptr) AddParts(*norm);
  }
}

void Release(void* norms) {
  for (Norm* norm = static_cast<Norm*>(norms); norm->run != nullptr; ++norm) {
    delete[] norm->parts_of_dw;
  }
  delete[] static_cast<Norm*>(norms);
}

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, RMSNORM_PEER_NAME, Prepare, Run, Release};
  return &peer;
}
