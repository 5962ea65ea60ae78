// SPDX-License-Identifier: Apache-2.0
// Other libraries, by the plug-ins that peers/peer.h describes.
#ifndef RMSNORM_BENCH_PEER_H_
#define RMSNORM_BENCH_PEER_H_

#include <functional>
#include <string>
#include <vector>

#include "peers/peer.h"
#include "tensors.h"

namespace rmsnorm::bench {

class Peer {
 public:
  // Throws std::runtime_error that names the file where it holds no peer of this version. A plug-in
  // stays loaded as long as the process: many a library does not survive its unloading.
  explicit Peer(const std::string& file);

  const std::string& name() const { return name_; }
  const rmsnorm_peer& functions() const { return *functions_; }

  // Whether threads have come up while it ran, which then are its own.
  bool has_threads() const { return has_threads_; }
  void FoundThreads() const { has_threads_ = true; }

 private:
  const rmsnorm_peer* functions_;
  std::string name_;
  mutable bool has_threads_ = false;
};

// A peer made ready for each copy of a cell's tensors.
class PeerCases {
 public:
  // Takes the tensors through all copies once. `describe` says what to compute with the current
  // one.
  PeerCases(const Peer& peer, const std::function<rmsnorm_peer_case()>& describe, Tensors* tensors);
  ~PeerCases();
  PeerCases(const PeerCases&) = delete;
  PeerCases& operator=(const PeerCases&) = delete;

  const Peer& peer() const { return peer_; }
  // Why the peer cannot do the cell; empty where it can.
  const std::string& refusal() const { return refusal_; }
  void Run(size_t copy) const { peer_.functions().run(prepared_[copy]); }

 private:
  const Peer& peer_;
  std::vector<void*> prepared_;  // by copy; null where it is not
  std::string refusal_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_PEER_H_
