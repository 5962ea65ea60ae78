// SPDX-License-Identifier: Apache-2.0
// A contender computes cells: the library, by one call or by several, an older build of it, plain
// loops, or another library. A contest is a cell with its tensors and its contenders, each of which
// has been checked.
#ifndef RMSNORM_BENCH_CONTEST_H_
#define RMSNORM_BENCH_CONTEST_H_

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "operations.h"
#include "rounds.h"
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

// ---------------------------------------------------------------------------------------- contest

constexpr char kMemcpy[] = "memcpy";

// A contender without a time: it cannot compute the cell, or its result is wrong.
struct Untimed {
  std::string name;
  bool is_wrong;
  std::string reason;
};

class Contest {
 public:
  // The library is the first contender; the contenders outlive the contest. Throws Refusal if the
  // library refuses the cell.
  Contest(const Cell& cell, const Contenders& contenders);
  Contest(const Contest&) = delete;
  Contest& operator=(const Contest&) = delete;

  const std::vector<Untimed>& untimed() const { return untimed_; }

  // The other contenders of this cell, and memcpy after the library, in the current place.
  std::vector<Turn> Turns();

  // Switches to another place in memory, if there is one.
  void MoveOn() { place_ = (place_ + 1) % places_.size(); }

  // The number of threads that share the work: the library keeps small work on one.
  size_t parts() const { return parts_; }

 private:
  struct Place {
    Place(const CallValues& calls, const CallValues& apart_calls, size_t bytes)
        : tensors(calls),
          apart(apart_calls),
          from(bytes),
          to(bytes),
          reader(tensors),
          apart_reader(apart),
          to_reader(to.data(), bytes) {}
    Tensors tensors;
    Tensors apart;
    Buffer from;  // of memcpy
    Buffer to;
    Reader reader;
    Reader apart_reader;
    Reader to_reader;
    std::vector<std::unique_ptr<TimedCall>> timed_calls;  // by contender; null if it has no part
  };

  // Prepares each contender in a place, runs it once and checks its results.
  void Prepare(Place& place);
  bool IsUntimed(const std::string& name) const;
  // Copies as many bytes as x has.
  void Memcpy() const;

  const Cell cell_;
  const Contenders& contenders_;
  const CallValues calls_;
  const CallValues apart_;
  std::vector<std::unique_ptr<Place>> places_;
  size_t place_ = 0;
  size_t parts_ = 1;
  uint64_t sum_ = 0;  // of what readers read
  std::vector<Untimed> untimed_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CONTEST_H_
