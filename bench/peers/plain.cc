// SPDX-License-Identifier: Apache-2.0
// RMSNorm, its gradients, the steps of models around it, and LayerNorm as people write them by hand
// to be fast: plain loops that compilers vectorise, each as few passes over a row as it takes, and
// sums in f32. The bits depend on the compiler. The build makes plug-ins of this file with several
// compilers and options (meson.build), each with a NAME.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "peer.h"

// For loops that call the exponential of libmvec, which has it for 8 elements, not for 16: of f16
// clang would take 4 at a time, in more than twice the time.
#if defined(__clang__) && defined(__FAST_MATH__)
#define EIGHT_AT_A_TIME _Pragma("clang loop vectorize_width(8)")
#else
#define EIGHT_AT_A_TIME
#endif

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

// Converts by the instructions of F16C where the compiler knows the type, else by shifts.
#if defined(__F16C__) && (!defined(__clang__) || __clang_major__ >= 15)
struct F16 {
  using Storage = _Float16;
  static float Load(_Float16 value) { return static_cast<float>(value); }
  static _Float16 Store(float value) { return static_cast<_Float16>(value); }
};
#else
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
#endif

// With fewer elements per thread, waking a thread takes longer than it saves.
constexpr size_t kMinElementsPerThread = 32768;

// A case in which each thread has a range of rows.
struct Prepared {
  rmsnorm_peer_case what;
  size_t threads;
  std::vector<float> sums;     // dw of each thread except the first, d elements each
  std::vector<float> scratch;  // d elements for each thread
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
      case RMSNORM_PEER_LAYERNORM:
        return LayerNorm(what, begin, end);
      case RMSNORM_PEER_LATENT: {
        const size_t times = what.d / RMSNORM_PEER_LATENT_ROW;
        const size_t q = times * RMSNORM_PEER_LATENT_Q;
        NormParts(what, begin, end, 0, 1, q);
        return NormParts(what, begin, end, q, 1, times * RMSNORM_PEER_LATENT_KV);
      }
      case RMSNORM_PEER_Q_AND_K: {
        const size_t head = what.d / RMSNORM_PEER_HEADS;
        const size_t q = head * RMSNORM_PEER_HEADS_OF_Q;
        NormParts(what, begin, end, 0, RMSNORM_PEER_HEADS_OF_Q, head);
        return NormParts(what, begin, end, q, RMSNORM_PEER_HEADS_OF_K, head);
      }
      case RMSNORM_PEER_POST_NORM:
      case RMSNORM_PEER_POST_ADD:
        return PostNorm(what, begin, end);
      case RMSNORM_PEER_GATE_AFTER:
        return GateAfter(what, begin, end);
      case RMSNORM_PEER_GATE_BEFORE:
        return GateBefore(what, begin, end);
      default:  // RMSNORM_PEER_INT8, RMSNORM_PEER_INT8_ALONE
        return Int8(what, begin, end, prepared.scratch.data() + thread * what.d);
    }
  }

 private:
  static const Storage* Row(const void* data, size_t row, size_t d) {
    return static_cast<const Storage*>(data) + row * d;
  }
  static Storage* Row(void* data, size_t row, size_t d) {
    return static_cast<Storage*>(data) + row * d;
  }

  static float SumOfSquares(const Storage* x, size_t d) {
    float sum = 0;
    for (size_t j = 0; j < d; ++j) {
      const float value = Type::Load(x[j]);
      sum += value * value;
    }
    return sum;
  }

  static float InverseRms(float sum, size_t d, float eps) {
    return 1.0f / std::sqrt(sum / static_cast<float>(d) + eps);
  }

  static float Silu(float z) { return z / (1.0f + std::exp(-z)); }

  static void Scale(const Storage* x, const Storage* weight, Storage* y, size_t d, float sum,
                    float eps) {
    const float scale = InverseRms(sum, d, eps);
    for (size_t j = 0; j < d; ++j) {
      y[j] = Type::Store(Type::Load(x[j]) * scale * Type::Load(weight[j]));
    }
  }

  static void Forward(const rmsnorm_peer_case& what, size_t begin, size_t end) {
    const size_t d = what.d;
    const Storage* weight = Row(what.weight, 0, d);
    for (size_t row = begin; row < end; ++row) {
      const Storage* x = Row(what.x, row, d);
      Scale(x, weight, Row(what.y, row, d), d, SumOfSquares(x, d), what.eps);
    }
  }

  // The norm of `parts` parts of each row, `d` elements each, from element `first` on.
  static void NormParts(const rmsnorm_peer_case& what, size_t begin, size_t end, size_t first,
                        size_t parts, size_t d) {
    const Storage* weight = Row(what.weight, 0, what.d) + first;
    for (size_t row = begin; row < end; ++row) {
      const Storage* x = Row(what.x, row, what.d) + first;
      Storage* y = Row(what.y, row, what.d) + first;
      for (size_t j = 0; j < parts * d; j += d) {
        Scale(x + j, weight, y + j, d, SumOfSquares(x + j, d), what.eps);
      }
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

  static void PostNorm(const rmsnorm_peer_case& what, size_t begin, size_t end) {
    const size_t d = what.d;
    const Storage* weight = Row(what.weight, 0, d);
    const Storage* post_norm_weight = Row(what.post_norm_weight, 0, d);
    for (size_t row = begin; row < end; ++row) {
      const Storage* x = Row(what.x, row, d);
      Storage* residual = Row(what.residual, row, d);
      const float scale = InverseRms(SumOfSquares(x, d), d, what.eps);
      float sum = 0;
      for (size_t j = 0; j < d; ++j) {
        const Storage norm =
            Type::Store(Type::Load(x[j]) * scale * Type::Load(post_norm_weight[j]));
        residual[j] = Type::Store(Type::Load(residual[j]) + Type::Load(norm));
        const float value = Type::Load(residual[j]);
        sum += value * value;
      }
      if (what.y != nullptr) Scale(residual, weight, Row(what.y, row, d), d, sum, what.eps);
    }
  }

  static void GateAfter(const rmsnorm_peer_case& what, size_t begin, size_t end) {
    const size_t d = what.d;
    const Storage* weight = Row(what.weight, 0, d);
    for (size_t row = begin; row < end; ++row) {
      const Storage* x = Row(what.x, row, d);
      const Storage* gate = Row(what.gate, row, d);
      Storage* y = Row(what.y, row, d);
      const float scale = InverseRms(SumOfSquares(x, d), d, what.eps);
      EIGHT_AT_A_TIME
      for (size_t j = 0; j < d; ++j) {
        y[j] = Type::Store(Type::Load(x[j]) * scale * Type::Load(weight[j]) *
                           Silu(Type::Load(gate[j])));
      }
    }
  }

  static void GateBefore(const rmsnorm_peer_case& what, size_t begin, size_t end) {
    constexpr size_t kGroup = RMSNORM_PEER_GROUP;
    const Storage* weight = Row(what.weight, 0, what.d);
    for (size_t row = begin; row < end; ++row) {
      for (size_t group = 0; group < what.d; group += kGroup) {
        const Storage* x = Row(what.x, row, what.d) + group;
        const Storage* gate = Row(what.gate, row, what.d) + group;
        Storage* y = Row(what.y, row, what.d) + group;
        float gated[kGroup];
        float sum = 0;
        EIGHT_AT_A_TIME
        for (size_t j = 0; j < kGroup; ++j) {
          gated[j] = Type::Load(x[j]) * Silu(Type::Load(gate[j]));
          sum += gated[j] * gated[j];
        }
        const float scale = InverseRms(sum, kGroup, what.eps);
        for (size_t j = 0; j < kGroup; ++j) {
          y[j] = Type::Store(gated[j] * scale * Type::Load(weight[group + j]));
        }
      }
    }
  }

  static void Int8(const rmsnorm_peer_case& what, size_t begin, size_t end, float* norm) {
    const size_t d = what.d;
    const Storage* weight = Row(what.weight, 0, d);
    for (size_t row = begin; row < end; ++row) {
      const Storage* x = Row(what.x, row, d);
      const float scale = InverseRms(SumOfSquares(x, d), d, what.eps);
      float most = 0;
      if (what.y != nullptr) {
        Storage* y = Row(what.y, row, d);
        for (size_t j = 0; j < d; ++j) {
          y[j] = Type::Store(Type::Load(x[j]) * scale * Type::Load(weight[j]));
          norm[j] = Type::Load(y[j]);
          most = std::max(most, std::fabs(norm[j]));
        }
      } else {
        for (size_t j = 0; j < d; ++j) {
          norm[j] = Type::Load(Type::Store(Type::Load(x[j]) * scale * Type::Load(weight[j])));
          most = std::max(most, std::fabs(norm[j]));
        }
      }
      what.scale[row] = most / 127.0f;
      const float factor = most > 0 ? 127.0f / most : 0.0f;
      int8_t* q = what.q + row * d;
      for (size_t j = 0; j < d; ++j) {
        q[j] = static_cast<int8_t>(static_cast<int32_t>(std::nearbyint(norm[j] * factor)));
      }
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
  switch (what->operation) {
    case RMSNORM_PEER_NORM:
    case RMSNORM_PEER_ADD_NORM:
    case RMSNORM_PEER_BACKWARD:
    case RMSNORM_PEER_LAYERNORM:
    case RMSNORM_PEER_LATENT:
    case RMSNORM_PEER_Q_AND_K:
    case RMSNORM_PEER_POST_NORM:
    case RMSNORM_PEER_POST_ADD:
    case RMSNORM_PEER_GATE_AFTER:
    case RMSNORM_PEER_GATE_BEFORE:
    case RMSNORM_PEER_INT8:
    case RMSNORM_PEER_INT8_ALONE:
      break;
    default:
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
  const size_t scratch = what->q != nullptr ? threads * what->d : 0;
  return new Prepared{*what, threads, std::vector<float>(sums), std::vector<float>(scratch),
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
