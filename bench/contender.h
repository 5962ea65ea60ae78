// SPDX-License-Identifier: Apache-2.0
// Who computes a case: the library, an older build of it, or another library.
#ifndef RMSNORM_BENCH_CONTENDER_H_
#define RMSNORM_BENCH_CONTENDER_H_

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "peers/peer.h"

namespace rmsnorm::bench {

// A case that a contender has made ready.
class Prepared {
 public:
  Prepared(void (*run)(void*), void* state, void (*release)(void*))
      : run_(run), state_(state, release) {}
  void Run() const { run_(state_.get()); }

 private:
  void (*run_)(void*);
  std::unique_ptr<void, void (*)(void*)> state_;
};

// Why a contender cannot do a case.
class Refusal : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Contender {
 public:
  Contender(std::string name, bool has_exact_bits)
      : name_(std::move(name)), has_exact_bits_(has_exact_bits) {}
  virtual ~Contender() = default;
  const std::string& name() const { return name_; }
  // Whether its results are to have the reference's bits.
  bool has_exact_bits() const { return has_exact_bits_; }
  // The target is the library's, and keeps its place. Throws Refusal.
  virtual Prepared Prepare(const rmsnorm_peer_case& what, const char* target) const = 0;

 private:
  const std::string name_;
  const bool has_exact_bits_;
};

// The library as linked, on the target that it is told.
std::unique_ptr<Contender> Library();
// Another build of the library, called "older", from its shared library. Throws std::runtime_error
// that names the file where it is none.
std::unique_ptr<Contender> Older(const std::string& file);
// How many parts the library splits a case into for an executor.
size_t CountParts(const rmsnorm_peer_case& what, const char* target);

// A plug-in of peers/peer.h. Throws std::runtime_error that names the file where it holds no peer
// of this version. A plug-in stays loaded as long as the process: many a library does not survive
// its unloading.
std::unique_ptr<Contender> LoadPeer(const std::string& file);

// A shared library, loaded from a path. Throws std::runtime_error that says why it cannot be.
void* LoadLibrary(const std::string& file, int more_flags = 0);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CONTENDER_H_
