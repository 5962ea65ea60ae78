// SPDX-License-Identifier: Apache-2.0
// RMSNorm, its gradients and LayerNorm as people write them by hand: plain loops, sums in f32 and
// explicit conversions. The bits depend on the compiler. The build makes plug-ins of this file with
// several compilers and options (meson.build), each with a NAME.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "peer.h"

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

// With fewer elements per thread, waking a thread takes longer than it saves.
constexpr size_t kMinElementsPerThread = 32768;

// A case in which each thread has a range of rows.
struct Prepared {
  rmsnorm_peer_case what;
  size_t threads;
  std::vector<float> sums;  // dw of each thread except the first, d elements each
  void (*run_rows)(Prepared& prepared, size_t thread);
};

template <class Type>
class Rows {
  using Storage = typename Type::Storage;

 public:
  static void Run(Prepared& prepared, size_t thread) {
    const rmsnorm_peer_case& what = prepared.what;
    const size_t begin = what.rows * thread / prepared.threads;
    const size_t end = what.rows * (thread + 1) / prepared.threads;
    switch (what.operation) {
      case RMSNORM_PEER_NORM:
        return Forward(what, begin, end);
      case RMSNORM_PEER_ADD_NORM:
        return AddNorm(what, begin, end);
      case RMSNORM_PEER_BACKWARD:
        return Backward(what, begin, end,
                        thread == 0 ? what.dw : prepared.sums.data() + (thread - 1) * what.d);
      default:
        return LayerNorm(what, begin, end);
    }
  }

 private:
  static const Storage* Row(const void* data, size_t row, size_t d) {
    return static_cast<const Storage*>(data) + row * d;
  }
  static Storage* Row(void* data, size_t row, size_t d) {
    return static_cast<Storage*>(data) + row * d;
  }

  static void Scale(const Storage* x, const Storage* weight, Storage* y, size_t d, float sum,
                    float eps) {
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(d) + eps);
    for (size_t j = 0; j < d; ++j) {
      y[j] = Type::Store(Type::Load(x[j]) * scale * Type::Load(weight[j]));
    }
  }

  static void Forward(const rmsnorm_peer_case& what, size_t begin, size_t end) {
    const size_t d = what.d;
    const Storage* weight = Row(what.weight, 0, d);
    for (size_t row = begin; row < end; ++row) {
      const Storage* x = Row(what.x, row, d);
      float sum = 0;
      for (size_t j = 0; j < d; ++j) {
        const float value = Type::Load(x[j]);
        sum += value * value;
      }
      Scale(x, weight, Row(what.y, row, d), d, sum, what.eps);
    }
  }

  static void AddNorm(const rmsnorm_peer_case& what, size_t begin, size_t end) {
    const size_t d = what.d;
    const Storage* weight = Row(what.weight, 0, d);
    for (size_t row = begin; row < end; ++row) {
      const Storage* x = Row(what.x, row, d);
      Storage* residual = Row(what.residual, row, d);
      float sum = 0;
      for (size_t j = 0; j < d; ++j) {
        residual[j] = Type::Store(Type::Load(residual[j]) + Type::Load(x[j]));
        const float value = Type::Load(residual[j]);
        sum += value * value;
      }
      Scale(residual, weight, Row(what.y, row, d), d, sum, what.eps);
    }
  }

  static void Backward(const rmsnorm_peer_case& what, size_t begin, size_t end, float* dw) {
    const size_t d = what.d;
    const Storage* weight = Row(what.weight, 0, d);
    for (size_t j = 0; j < d; ++j) dw[j] = 0;
    for (size_t row = begin; row < end; ++row) {
      const Storage* dy = Row(what.dy, row, d);
      const Storage* x = Row(what.x, row, d);
      Storage* dx = Row(what.dx, row, d);
      const float r = what.rstd[row];
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

  static void LayerNorm(const rmsnorm_peer_case& what, size_t begin, size_t end) {
    const size_t d = what.d;
    const Storage* weight = Row(what.weight, 0, d);
    const Storage* bias = Row(what.bias, 0, d);
    for (size_t row = begin; row < end; ++row) {
      const Storage* x = Row(what.x, row, d);
      Storage* y = Row(what.y, row, d);
      float sum = 0;
      for (size_t j = 0; j < d; ++j) sum += Type::Load(x[j]);
      const float mean = sum / static_cast<float>(d);
      float squares = 0;
      for (size_t j = 0; j < d; ++j) {
        const float value = Type::Load(x[j]) - mean;
        squares += value * value;
      }
      const float scale = 1.0f / std::sqrt(squares / static_cast<float>(d) + what.eps);
      for (size_t j = 0; j < d; ++j) {
        y[j] = Type::Store((Type::Load(x[j]) - mean) * scale * Type::Load(weight[j]) +
                           Type::Load(bias[j]));
      }
    }
  }
};

void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  if (what->operation < RMSNORM_PEER_NORM || what->operation > RMSNORM_PEER_LAYERNORM) {
    *why = "unknown operation";
    return nullptr;
  }
#ifndef _OPENMP
  if (what->threads > 1) {
    *why = "built without OpenMP";
    return nullptr;
  }
#endif
  const size_t worth = std::min(what->rows, what->rows * what->d / kMinElementsPerThread);
  const size_t threads = std::clamp<size_t>(worth, 1, static_cast<size_t>(what->threads));
  const size_t sums = what->operation == RMSNORM_PEER_BACKWARD ? (threads - 1) * what->d : 0;
  return new Prepared{*what, threads, std::vector<float>(sums),
                      what->dtype == RMSNORM_PEER_F32   ? Rows<F32>::Run
                      : what->dtype == RMSNORM_PEER_F16 ? Rows<F16>::Run
                                                        : Rows<BF16>::Run};
}

void Run(void* data) {
  Prepared& prepared = *static_cast<Prepared*>(data);
  if (prepared.threads == 1) return prepared.run_rows(prepared, 0);  // entering OpenMP takes 300 ns
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(prepared.threads))
#endif
  for (size_t thread = 0; thread < prepared.threads; ++thread) prepared.run_rows(prepared, thread);
  for (size_t i = 0; i < prepared.sums.size(); ++i) {
    prepared.what.dw[i % prepared.what.d] += prepared.sums[i];
  }
}

void Release(void* prepared) { delete static_cast<Prepared*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, NAME, Prepare, Run, Release};
  return &peer;
}
