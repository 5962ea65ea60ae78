// SPDX-License-Identifier: Apache-2.0
// The peer "plain-native": plain loops with all that a compiler can do for the machine it runs on.
// The file beside it, plain_loops.cc, is compiled into the plug-in once more for that.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "peer.h"
#include "plain_loops.h"

namespace {

// Below that many elements for each thread, waking another takes longer than it saves.
constexpr size_t kMinElementsPerThread = 32768;

// Rows next to each other for each thread.
struct Prepared {
  rmsnorm_peer_case what;
  size_t row_bytes;
  size_t threads;
  std::vector<float> sums;  // of the threads but the first, each of d: their parts of dw

  template <class Void>  // void, or const void
  Void* RowOf(Void* data, size_t row) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    return static_cast<Byte*>(data) + row * row_bytes;
  }

  void RunRows(size_t thread) {
    const size_t begin = what.rows * thread / threads;
    const size_t rows = what.rows * (thread + 1) / threads - begin;
    const auto dtype = static_cast<rmsnorm::Dtype>(what.dtype);
    const void* const x = RowOf(what.x, begin);
    switch (what.operation) {
      case RMSNORM_PEER_FORWARD:
        return rmsnorm::bench::PlainForward(dtype, x, what.weight, RowOf(what.y, begin), rows,
                                            what.d, what.eps);
      case RMSNORM_PEER_ADD_FORWARD:
        return rmsnorm::bench::PlainAddForward(dtype, x, RowOf(what.residual, begin), what.weight,
                                               RowOf(what.y, begin), rows, what.d, what.eps);
      default:
        return rmsnorm::bench::PlainBackward(
            dtype, RowOf(what.dy, begin), x, what.weight, what.rstd + begin, RowOf(what.dx, begin),
            thread == 0 ? what.dw : sums.data() + (thread - 1) * what.d, rows, what.d);
    }
  }
};

void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  if (what->operation != RMSNORM_PEER_FORWARD && what->operation != RMSNORM_PEER_ADD_FORWARD &&
      what->operation != RMSNORM_PEER_BACKWARD) {
    *why = "unknown operation";
    return nullptr;
  }
  const size_t worth = std::min(what->rows, what->rows * what->d / kMinElementsPerThread);
  const size_t threads = std::clamp<size_t>(worth, 1, static_cast<size_t>(what->threads));
  const size_t element_bytes = what->dtype == RMSNORM_PEER_F32 ? 4 : 2;
  const size_t sums = what->operation == RMSNORM_PEER_BACKWARD ? (threads - 1) * what->d : 0;
  return new Prepared{*what, what->d * element_bytes, threads, std::vector<float>(sums)};
}

void Run(void* data) {
  Prepared& prepared = *static_cast<Prepared*>(data);
  if (prepared.threads == 1) return prepared.RunRows(0);  // entering OpenMP takes 300 ns
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(prepared.threads))
#endif
  for (size_t thread = 0; thread < prepared.threads; ++thread) prepared.RunRows(thread);
  if (!prepared.sums.empty()) {
    rmsnorm::bench::PlainAddSums(prepared.sums.data(), prepared.threads - 1, prepared.what.dw,
                                 prepared.what.d);
  }
}

void Release(void* prepared) { delete static_cast<Prepared*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, "plain-native", Prepare, Run, Release};
  return &peer;
}
