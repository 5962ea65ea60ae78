// SPDX-License-Identifier: Apache-2.0
// The peer "plain-native": plain loops with all that a compiler can do for the machine it runs on.
// The file beside it, plain_loops.cc, is compiled into the plug-in once more for that.
#include <algorithm>

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

  void RunRows(size_t thread) const {
    const size_t begin = what.rows * thread / threads;
    const size_t end = what.rows * (thread + 1) / threads;
    rmsnorm::bench::PlainForward(static_cast<rmsnorm::Dtype>(what.dtype),
                                 static_cast<const char*>(what.x) + begin * row_bytes, what.weight,
                                 static_cast<char*>(what.y) + begin * row_bytes, end - begin,
                                 what.d, what.eps);
  }
};

void* Prepare(const rmsnorm_peer_case* what, const char** why) {
  if (what->operation != RMSNORM_PEER_FORWARD) {
    *why = "forward only";
    return nullptr;
  }
  const size_t worth = std::min(what->rows, what->rows * what->d / kMinElementsPerThread);
  const size_t threads = std::clamp<size_t>(worth, 1, static_cast<size_t>(what->threads));
  const size_t element_bytes = what->dtype == RMSNORM_PEER_F32 ? 4 : 2;
  return new Prepared{*what, what->d * element_bytes, threads};
}

void Run(void* data) {
  const Prepared& prepared = *static_cast<const Prepared*>(data);
  if (prepared.threads == 1) return prepared.RunRows(0);  // entering OpenMP takes 300 ns
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(prepared.threads))
#endif
  for (size_t thread = 0; thread < prepared.threads; ++thread) prepared.RunRows(thread);
}

void Release(void* prepared) { delete static_cast<Prepared*>(prepared); }

}  // namespace

const rmsnorm_peer* rmsnorm_peer_get() {
  static const rmsnorm_peer peer = {RMSNORM_PEER_VERSION, "plain-native", Prepare, Run, Release};
  return &peer;
}
