// SPDX-License-Identifier: Apache-2.0
// What a benchmark of one operation does with a cell.
#ifndef RMSNORM_BENCH_JOB_H_
#define RMSNORM_BENCH_JOB_H_

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cell.h"
#include "parallel.h"
#include "peer.h"
#include "rounds.h"
#include "tensors.h"

namespace rmsnorm::bench {

// The names of the contenders that a peer cannot have.
constexpr char kLibrary[] = "library";
constexpr char kMemcpy[] = "memcpy";
constexpr char kReference[] = "reference";
constexpr char kPlain[] = "plain";
constexpr char kRmsNorm[] = "rmsnorm";  // beside another norm in the library's place

// Why a peer is not timed: it cannot compute the cell, or it computes it wrongly.
struct PeerProblem {
  std::string peer;
  bool wrong;
  std::string text;
};

// Each operation is a class of its own below this one; operations.cc lists them. The constructor
// makes the inputs, and throws rmsnorm::Error if the library refuses the cell.
class Job {
 public:
  explicit Job(const Cell& cell, bool has_third = false) : cell_(cell), tensors_(cell, has_third) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;  // its contenders point to it
  Job& operator=(const Job&) = delete;

  // Runs the library on each copy of the tensors and says where it is wrong; empty where it is not.
  std::string FindFault();

  // The library and memcpy, then whatever else there is to compare them with, peers last, in an
  // order that is the same for each job of the cell.
  std::vector<Contender> Contenders();

  // What the library reads and writes of tensors the size of x, in multiples of x.
  virtual int passes() const { return 2; }

  // Has a peer compute the cell as well. Returns false, and what the problem is, where it cannot.
  bool AddPeer(const Peer& peer, PeerProblem* problem);

  // How many threads share the work: the library keeps small work on one.
  size_t parts() const { return parts_; }
  const Tensors& tensors() const { return tensors_; }

 protected:
  // Runs the library on the current copy and says where it is wrong.
  virtual std::string FindFaultInCopy() = 0;

  // All but the peers.
  virtual std::vector<Contender> OwnContenders() = 0;

  // What a peer is to compute with the current copy; nothing where peers do not have the operation.
  virtual std::optional<rmsnorm_peer_case> DescribeForPeer() { return {}; }
  // With what all operations have.
  rmsnorm_peer_case CommonPeerCase(int32_t operation) const;
  // Has a peer compute the current copy once and says where its results are beyond the tolerance.
  virtual std::string FindFaultOfPeer(const std::function<void()>& /*run*/) { return {}; }

  // Finds parts(), at most `most`. `call` is a call of the library as the job times it, in another
  // context.
  void CountParts(const std::function<void(const Context& context)>& call,
                  size_t most = std::numeric_limits<size_t>::max());

  // The cell's threads and a target. The context keeps the pointer.
  Context MakeContext(const char* target) const;
  RmsNorm MakeModule(const Context& context) const;

  // y = RMSNorm(x) by a module, for some dense rows of the cell's type.
  void Forward(const RmsNorm& module, size_t rows, const void* x, void* y) const;

  // Some dense rows of the cell's type.
  ConstView Rows(const void* data, size_t rows) const {
    return {data, cell_.dtype, {rows, cell_.d}};
  }
  View Rows(void* data, size_t rows) const { return {data, cell_.dtype, {rows, cell_.d}}; }
  // x of the current copy, from some row on.
  const uint8_t* XFrom(size_t row) const { return tensors_.x() + row * row_bytes(); }

  // Fills y with NaNs, which no result here is.
  void SpoilY();

  // Compares the current y with what `expect` writes for some rows at a time, so that the expected
  // rows need little memory. `compare` says where two of them differ, or nothing.
  using Expect = std::function<void(size_t first_row, size_t rows, uint8_t* y)>;
  // What a module, which outlives the result, makes of x.
  Expect ExpectForward(const RmsNorm& module) const;
  using Compare = std::function<std::string(size_t first_row, size_t rows, const uint8_t* actual,
                                            const uint8_t* expected)>;
  std::string CompareY(const Expect& expect, const Compare& compare);
  // The same, for bits.
  std::string FindDifferenceInY(const Expect& expect);
  // Says where some rows differ in a bit.
  std::string FindDifference(size_t first_row, size_t rows, const uint8_t* actual,
                             const uint8_t* expected) const;

  // A contender that goes on to another copy of the tensors before each call, where there is one:
  // all contenders take the next, so that none finds what the one before has left in the caches.
  template <class Work>
  Contender Each(std::string name, Work work) {
    if (tensors_.copies() == 1) return MakeContender(std::move(name), work);
    return MakeContender(std::move(name), [this, work] {
      tensors_.MoveOn();
      work();
    });
  }
  // Copies x to y. Its parts may end amid a row: one long row can be the work of many threads.
  Contender Memcpy();
  // RMSNorm in plain loops.
  Contender PlainLoops();

  size_t row_bytes() const { return cell_.bytes() / cell_.rows; }

  const Cell cell_;
  Tensors tensors_;

 private:
  std::string FindFaultInCopies(const PeerCases& cases);

  size_t parts_ = 1;
  std::vector<std::unique_ptr<PeerCases>> peers_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_JOB_H_
