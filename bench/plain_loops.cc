// SPDX-License-Identifier: Apache-2.0
#include "plain_loops.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace rmsnorm::bench {
namespace {

float AsFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint32_t AsBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct F32 {
  using Storage = float;
  static float Load(float value) { return value; }
  static float Store(float value) { return value; }
};

struct BF16 {
  using Storage = uint16_t;
  static float Load(uint16_t bits) { return AsFloat(static_cast<uint32_t>(bits) << 16); }
  static uint16_t Store(float value) {
    const uint32_t bits = AsBits(value);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
};

struct F16 {
  using Storage = uint16_t;
  static float Load(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 0x1F;
    const uint32_t mantissa = bits & 0x3FF;
    if (exponent == 0x1F) return AsFloat(sign | 0x7F800000 | mantissa << 13);
    if (exponent != 0) return AsFloat(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  static uint16_t Store(float value) {
    const uint32_t bits = AsBits(value);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7E00);
    if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00);
    if (magnitude < 0x1p-14f) {
      return static_cast<uint16_t>(sign |
                                   static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
    }
    const uint32_t rounded = (bits & 0x7FFFFFFF) + 0xFFF + (bits >> 13 & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)));
  }
};

template <class Type>
void ScaleRow(const typename Type::Storage* x, const typename Type::Storage* weight,
              typename Type::Storage* y, size_t d, float sum, float eps) {
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(d) + eps);
  for (size_t j = 0; j < d; ++j) {
    y[j] = Type::Store(Type::Load(x[j]) * scale * Type::Load(weight[j]));
  }
}

template <class Type>
void Forward(const void* x_data, const void* weight_data, void* y_data, size_t rows, size_t d,
             float eps) {
  using Storage = typename Type::Storage;
  const Storage* weight = static_cast<const Storage*>(weight_data);
  for (size_t row = 0; row < rows; ++row) {
    const Storage* x = static_cast<const Storage*>(x_data) + row * d;
    Storage* y = static_cast<Storage*>(y_data) + row * d;
    float sum = 0;
    for (size_t j = 0; j < d; ++j) {
      const float value = Type::Load(x[j]);
      sum += value * value;
    }
    ScaleRow<Type>(x, weight, y, d, sum, eps);
  }
}

template <class Type>
void AddForward(const void* x_data, void* residual_data, const void* weight_data, void* y_data,
                size_t rows, size_t d, float eps) {
  using Storage = typename Type::Storage;
  const Storage* weight = static_cast<const Storage*>(weight_data);
  for (size_t row = 0; row < rows; ++row) {
    const Storage* x = static_cast<const Storage*>(x_data) + row * d;
    Storage* residual = static_cast<Storage*>(residual_data) + row * d;
    Storage* y = static_cast<Storage*>(y_data) + row * d;
    float sum = 0;
    for (size_t j = 0; j < d; ++j) {
      residual[j] = Type::Store(Type::Load(residual[j]) + Type::Load(x[j]));
      const float value = Type::Load(residual[j]);
      sum += value * value;
    }
    ScaleRow<Type>(residual, weight, y, d, sum, eps);
  }
}

template <class Type>
void Backward(const void* dy_data, const void* x_data, const void* weight_data, const float* rstd,
              void* dx_data, float* dw, size_t rows, size_t d) {
  using Storage = typename Type::Storage;
  const Storage* weight = static_cast<const Storage*>(weight_data);
  for (size_t j = 0; j < d; ++j) dw[j] = 0;
  for (size_t row = 0; row < rows; ++row) {
    const Storage* dy = static_cast<const Storage*>(dy_data) + row * d;
    const Storage* x = static_cast<const Storage*>(x_data) + row * d;
    Storage* dx = static_cast<Storage*>(dx_data) + row * d;
    const float r = rstd[row];
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

template <class Type>
void LayerNorm(const void* x_data, const void* weight_data, const void* bias_data, void* y_data,
               size_t rows, size_t d, float eps) {
  using Storage = typename Type::Storage;
  const Storage* weight = static_cast<const Storage*>(weight_data);
  const Storage* bias = static_cast<const Storage*>(bias_data);
  for (size_t row = 0; row < rows; ++row) {
    const Storage* x = static_cast<const Storage*>(x_data) + row * d;
    Storage* y = static_cast<Storage*>(y_data) + row * d;
    float sum = 0;
    for (size_t j = 0; j < d; ++j) sum += Type::Load(x[j]);
    const float mean = sum / static_cast<float>(d);
    float squares = 0;
    for (size_t j = 0; j < d; ++j) {
      const float value = Type::Load(x[j]) - mean;
      squares += value * value;
    }
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(d) + eps);
    for (size_t j = 0; j < d; ++j) {
      y[j] = Type::Store((Type::Load(x[j]) - mean) * scale * Type::Load(weight[j]) +
                         Type::Load(bias[j]));
    }
  }
}

template <class Type>
void Convert(const float* from, void* to_data, size_t count) {
  typename Type::Storage* to = static_cast<typename Type::Storage*>(to_data);
  for (size_t i = 0; i < count; ++i) to[i] = Type::Store(from[i]);
}

template <class Type>
void Widen(const void* from_data, float* to, size_t count) {
  const typename Type::Storage* from = static_cast<const typename Type::Storage*>(from_data);
  for (size_t i = 0; i < count; ++i) to[i] = Type::Load(from[i]);
}

// Calls work() with the struct of a type.
template <class Work>
void ForType(Dtype dtype, const Work& work) {
  if (dtype == Dtype::f16) return work(F16());
  if (dtype == Dtype::bf16) return work(BF16());
  work(F32());
}

}  // namespace

void PlainForward(Dtype dtype, const void* x, const void* weight, void* y, size_t rows, size_t d,
                  float eps) {
  ForType(dtype, [&](auto type) { Forward<decltype(type)>(x, weight, y, rows, d, eps); });
}

void PlainAddForward(Dtype dtype, const void* x, void* residual, const void* weight, void* y,
                     size_t rows, size_t d, float eps) {
  ForType(dtype,
          [&](auto type) { AddForward<decltype(type)>(x, residual, weight, y, rows, d, eps); });
}

void PlainBackward(Dtype dtype, const void* dy, const void* x, const void* weight,
                   const float* rstd, void* dx, float* dw, size_t rows, size_t d) {
  ForType(dtype,
          [&](auto type) { Backward<decltype(type)>(dy, x, weight, rstd, dx, dw, rows, d); });
}

void PlainAddSums(const float* others, size_t count, float* dw, size_t d) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < d; ++j) dw[j] += others[i * d + j];
  }
}

void PlainLayerNorm(Dtype dtype, const void* x, const void* weight, const void* bias, void* y,
                    size_t rows, size_t d, float eps) {
  ForType(dtype, [&](auto type) { LayerNorm<decltype(type)>(x, weight, bias, y, rows, d, eps); });
}

void PlainConvert(const float* from, Dtype dtype, void* to, size_t count) {
  ForType(dtype, [&](auto type) { Convert<decltype(type)>(from, to, count); });
}

void PlainWiden(Dtype dtype, const void* from, float* to, size_t count) {
  ForType(dtype, [&](auto type) { Widen<decltype(type)>(from, to, count); });
}

}  // namespace rmsnorm::bench
