// SPDX-License-Identifier: Apache-2.0
// A contender computes cells: the library, by one call or by several, an older build of it, plain
// loops, or another library.
#ifndef RMSNORM_BENCH_CONTENDER_H_
#define RMSNORM_BENCH_CONTENDER_H_

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensors.h"

namespace rmsnorm::bench {

// Calls that are ready to be timed.
class TimedCall {
 public:
  TimedCall(void (*run)(void*), void* state, void (*release)(void*))
      : run_(run), state_(state, release) {}
  void Run() const { run_(state_.get()); }

 private:
  void (*run_)(void*);
  std::unique_ptr<void, void (*)(void*)> state_;
};

// The reason why a contender cannot compute a cell.
class Refusal : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Kind {
  kLibrary,
  kApart,  // the library, by the calls of Cell::apart
  kPlain,  // these need not have the reference's bits
  kPeer    // and has separate threads
};

struct Contender {
  std::string name;
  Kind kind;
  // The target is for builds of the library. It, the tensors and the contender outlive the result.
  // Throws Refusal.
  std::function<TimedCall(const Tensors& tensors, const char* target)> prepare;
};

using Contenders = std::vector<Contender>;

// The linked library, on the given target.
Contender Library();
// The same by rmsnorm_prepare().
Contender Prepared();
// The same by several calls, one after the other.
Contender Apart();
// Another build of the library, called "older", from its shared library. Throws std::runtime_error
// with the file's name if that cannot be loaded.
constexpr char kOlder[] = "older";
Contender Older(const std::string& file);
// The number of parts into which the library splits calls for an executor.
size_t CountParts(const rmsnorm_peer_case& what, const char* target);

// The plain loops that this CPU runs, each compiled in another way and all called "plain".
constexpr char kPlain[] = "plain";
Contenders PlainLoops();

// A plug-in of peers/peer.h. Throws std::runtime_error with the file's name if the file has no peer
// of this version. A plug-in is never unloaded: many libraries do not survive that.
Contender LoadPeer(const std::string& file);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CONTENDER_H_
