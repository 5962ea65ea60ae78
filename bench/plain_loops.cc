// SPDX-License-Identifier: Apache-2.0
// RMSNorm and the steps around it in plain loops, which compilers vectorise: as few passes over a
// row as possible, and sums in f32. The bits depend on the compiler. meson.build compiles this file
// for several CPUs, with and without -ffast-math, each time with another name for RMSNORM_LOOPS.
#include "plain_loops.h"

#include <math.h>
#include <string.h>

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

template <class Element>
Element* Row(const PlainOperand& operand, size_t row) {
  return static_cast<Element*>(operand.data) + static_cast<ptrdiff_t>(row) * operand.stride;
}

float InverseRms(float sum, size_t d, float eps) {
  return 1.0f / sqrtf(sum / static_cast<float>(d) + eps);
}

float Silu(float z) { return z / (1.0f + expf(-z)); }

template <class Type>
struct Loops {
  using Element = typename Type::Element;

  static float SumOfSquares(const Element* x, size_t d) {
    float sum = 0;
    for (size_t j = 0; j < d; ++j) sum += Type::Load(x[j]) * Type::Load(x[j]);
    return sum;
  }

  static void Scale(const Element* x, const Element* weight, float factor, Element* y, size_t d) {
    for (size_t j = 0; j < d; ++j) {
      y[j] = Type::Store(Type::Load(x[j]) * factor * Type::Load(weight[j]));
    }
  }

  static void Norm(const PlainRun* run) {
    const size_t d = run->d;
    for (size_t row = 0; row < run->rows; ++row) {
      const Element* x = Row<Element>(run->x, row);
      const float r = InverseRms(SumOfSquares(x, d), d, run->eps);
      Scale(x, Row<Element>(run->weight, row), r, Row<Element>(run->y, row), d);
    }
  }

  static void AddNorm(const PlainRun* run) {
    const size_t d = run->d;
    for (size_t row = 0; row < run->rows; ++row) {
      const Element* x = Row<Element>(run->x, row);
      Element* residual = Row<Element>(run->residual, row);
      float sum = 0;
      for (size_t j = 0; j < d; ++j) {
        residual[j] = Type::Store(Type::Load(residual[j]) + Type::Load(x[j]));
        sum += Type::Load(residual[j]) * Type::Load(residual[j]);
      }
      Scale(residual, Row<Element>(run->weight, row), InverseRms(sum, d, run->eps),
            Row<Element>(run->y, row), d);
    }
  }

  static void PostNorm(const PlainRun* run) {
    const size_t d = run->d;
    for (size_t row = 0; row < run->rows; ++row) {
      const Element* x = Row<Element>(run->x, row);
      const Element* weight = Row<Element>(run->post_norm_weight, row);
      Element* residual = Row<Element>(run->residual, row);
      const float r = InverseRms(SumOfSquares(x, d), d, run->eps);
      float sum = 0;
      for (size_t j = 0; j < d; ++j) {
        const Element norm = Type::Store(Type::Load(x[j]) * r * Type::Load(weight[j]));
        residual[j] = Type::Store(Type::Load(residual[j]) + Type::Load(norm));
        sum += Type::Load(residual[j]) * Type::Load(residual[j]);
      }
      Scale(residual, Row<Element>(run->weight, row), InverseRms(sum, d, run->eps),
            Row<Element>(run->y, row), d);
    }
  }

  static void GateAfter(const PlainRun* run) {
    const size_t d = run->d;
    for (size_t row = 0; row < run->rows; ++row) {
      const Element* x = Row<Element>(run->x, row);
      const Element* weight = Row<Element>(run->weight, row);
      const Element* gate = Row<Element>(run->gate, row);
      Element* y = Row<Element>(run->y, row);
      const float r = InverseRms(SumOfSquares(x, d), d, run->eps);
      for (size_t j = 0; j < d; ++j) {
        y[j] =
            Type::Store(Type::Load(x[j]) * r * Type::Load(weight[j]) * Silu(Type::Load(gate[j])));
      }
    }
  }

  static void GateBefore(const PlainRun* run) {
    const size_t d = run->d;
    float* gated = run->scratch;
    for (size_t row = 0; row < run->rows; ++row) {
      const Element* x = Row<Element>(run->x, row);
      const Element* weight = Row<Element>(run->weight, row);
      const Element* gate = Row<Element>(run->gate, row);
      Element* y = Row<Element>(run->y, row);
      float sum = 0;
      for (size_t j = 0; j < d; ++j) {
        gated[j] = Type::Load(x[j]) * Silu(Type::Load(gate[j]));
        sum += gated[j] * gated[j];
      }
      const float r = InverseRms(sum, d, run->eps);
      for (size_t j = 0; j < d; ++j) y[j] = Type::Store(gated[j] * r * Type::Load(weight[j]));
    }
  }

  static void Int8(const PlainRun* run) {
    const size_t d = run->d;
    float* norm = run->scratch;
    for (size_t row = 0; row < run->rows; ++row) {
      const Element* x = Row<Element>(run->x, row);
      const Element* weight = Row<Element>(run->weight, row);
      int8_t* q = Row<int8_t>(run->q, row);
      const float r = InverseRms(SumOfSquares(x, d), d, run->eps);
      float most = 0;
      for (size_t j = 0; j < d; ++j) {
        norm[j] = Type::Load(Type::Store(Type::Load(x[j]) * r * Type::Load(weight[j])));
        const float magnitude = fabsf(norm[j]);
        most = most > magnitude ? most : magnitude;
      }
      if (run->y.data != nullptr) {
        Element* y = Row<Element>(run->y, row);
        for (size_t j = 0; j < d; ++j) y[j] = Type::Store(norm[j]);
      }
      *Row<float>(run->scale, row) = most / 127.0f;
      const float factor = most > 0 ? 127.0f / most : 0.0f;
      for (size_t j = 0; j < d; ++j) q[j] = static_cast<int8_t>(nearbyintf(norm[j] * factor));
    }
  }

  static void Backward(const PlainRun* run) {
    const size_t d = run->d;
    float* dw = run->dw;
    for (size_t row = 0; row < run->rows; ++row) {
      const Element* x = Row<Element>(run->x, row);
      const Element* weight = Row<Element>(run->weight, row);
      const Element* dy = Row<Element>(run->dy, row);
      Element* dx = Row<Element>(run->dx, row);
      const float r = *Row<float>(run->rstd, row);
      float sum = 0;
      for (size_t j = 0; j < d; ++j) {
        sum += Type::Load(dy[j]) * Type::Load(weight[j]) * Type::Load(x[j]);
      }
      const float mean = sum * r * r / static_cast<float>(d);
      for (size_t j = 0; j < d; ++j) {
        const float gradient = Type::Load(dy[j]);
        const float value = Type::Load(x[j]);
        dw[j] += gradient * value * r;
        dx[j] = Type::Store(r * (gradient * Type::Load(weight[j]) - value * mean));
      }
    }
  }
};

#define RMSNORM_LOOPS_OF(Type)                                                              \
  {                                                                                         \
    Loops<Type>::Norm, Loops<Type>::AddNorm, Loops<Type>::PostNorm, Loops<Type>::GateAfter, \
        Loops<Type>::GateBefore, Loops<Type>::Int8, Loops<Type>::Backward                   \
  }

}  // namespace

const PlainLoops RMSNORM_LOOPS = {{RMSNORM_LOOPS_OF(F32),
#ifdef RMSNORM_F16_TYPE
                                   RMSNORM_LOOPS_OF(F16),
#else
                                   {},
#endif
                                   RMSNORM_LOOPS_OF(BF16)}};
