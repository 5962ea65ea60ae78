// SPDX-License-Identifier: Apache-2.0
// A contender computes a case: the library, in one call or in several or on one thread, an older
// build of it, or another library.
#ifndef RMSNORM_BENCH_CONTENDER_H_
#define RMSNORM_BENCH_CONTENDER_H_

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "peers/peer.h"

namespace rmsnorm::bench {

// A case that is ready to run.
class Prepared {
 public:
  Prepared(void (*run)(void*), void* state, void (*release)(void*))
      : run_(run), state_(state, release) {}
  void Run() const { run_(state_.get()); }

 private:
  void (*run_)(void*);
  std::unique_ptr<void, void (*)(void*)> state_;
};

// The reason why a contender cannot compute a case.
class Refusal : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Contender {
 public:
  Contender(std::string name, bool has_exact_bits)
      : name_(std::move(name)), has_exact_bits_(has_exact_bits) {}
  virtual ~Contender() = default;
  const std::string& name() const { return name_; }
  // Whether its results must have the reference's bits.
  bool has_exact_bits() const { return has_exact_bits_; }
  // Whether the contender takes part in a case. If not, the output does not mention it.
  virtual bool Joins(const rmsnorm_peer_case& /*what*/) const { return true; }
  // The target is for builds of the library, and must outlive the result. Throws Refusal.
  virtual Prepared Prepare(const rmsnorm_peer_case& what, const char* target) const = 0;

 private:
  const std::string name_;
  const bool has_exact_bits_;
};

// The linked library, on the given target.
std::unique_ptr<Contender> Library();
// The linked library, called "apart", with a separate call for each step of an operation: what its
// user does without the one call for all steps.
std::unique_ptr<Contender> Apart();
constexpr char kApart[] = "apart";
// The reason why "apart" refuses an operation; null if it does not.
const char* WhyNotApart(int32_t operation);
// The linked library, called "one_thread", on one thread where the others use several.
std::unique_ptr<Contender> OneThread();
constexpr char kOneThread[] = "one_thread";
// Another build of the library, called "older", from its shared library. Throws std::runtime_error
// with the file's name if that cannot be loaded.
std::unique_ptr<Contender> Older(const std::string& file);
// The number of parts into which the library splits a case for an executor.
size_t CountParts(const rmsnorm_peer_case& what, const char* target);

// A plug-in of peers/peer.h. Throws std::runtime_error with the file's name if the file has no peer
// of this version. A plug-in is never unloaded: many libraries do not survive that.
std::unique_ptr<Contender> LoadPeer(const std::string& file);

// Loads a shared library from a path. Throws std::runtime_error with the reason if that fails.
void* LoadLibrary(const std::string& file, int more_flags = 0);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CONTENDER_H_
