// SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <dlfcn.h>

#include <cfenv>
#include <stdexcept>

#include "job.h"

namespace rmsnorm::bench {
namespace {

// A peer keeps a few hundred bytes for each copy that it is prepared for, if not a compiled kernel.
constexpr size_t kMostCopies = 65536;

void* Load(const std::string& file) {
  // Without a slash it would be looked for where libraries are installed.
  const std::string path = file.find('/') == std::string::npos ? "./" + file : file;
  // A library linked with -ffast-math changes the floating-point state of the thread that loads it.
  std::fenv_t before;
  std::fegetenv(&before);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  std::fesetenv(&before);
  if (library == nullptr) {
    const std::string why = dlerror();  // often begins with the path
    const size_t rest = why.rfind(path + ": ", 0) == 0 ? path.size() + 2 : 0;
    throw std::runtime_error("cannot be loaded: " + why.substr(rest));
  }
  return library;
}

bool IsName(const std::string& name) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  return !name.empty() && name.find_first_not_of(kAllowed) == std::string::npos;
}

}  // namespace

Peer::Peer(const std::string& file) try {
  const auto get =
      reinterpret_cast<decltype(&rmsnorm_peer_get)>(dlsym(Load(file), "rmsnorm_peer_get"));
  if (get == nullptr) throw std::runtime_error("has no function rmsnorm_peer_get()");
  functions_ = get();
  if (functions_ == nullptr) throw std::runtime_error("rmsnorm_peer_get() returned null");
  if (functions_->version != RMSNORM_PEER_VERSION) {
    throw std::runtime_error("is made for version " + std::to_string(functions_->version) +
                             " of bench/peers/peer.h, not " + std::to_string(RMSNORM_PEER_VERSION));
  }
  if (functions_->name == nullptr || !IsName(functions_->name)) {
    throw std::runtime_error("its name is not of letters, digits, '.', '-' and '_'");
  }
  name_ = functions_->name;
  for (const char* contender : {kLibrary, kMemcpy, kReference, kPlain, kRmsNorm}) {
    if (name_ == contender) throw std::runtime_error("the name '" + name_ + "' is taken");
  }
  if (functions_->prepare == nullptr || functions_->run == nullptr ||
      functions_->release == nullptr) {
    throw std::runtime_error("prepare, run or release is null");
  }
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--peer " + file + ": " + error.what());
}

PeerCases::PeerCases(const Peer& peer, const std::function<rmsnorm_peer_case()>& describe,
                     Tensors* tensors)
    : peer_(peer) {
  if (tensors->copies() > kMostCopies) {
    refusal_ = "so small a cell has too many cold copies to prepare";
    return;
  }
  prepared_.resize(tensors->copies());
  for (size_t i = 0; i < tensors->copies(); ++i) {
    const rmsnorm_peer_case what = describe();
    const char* why = nullptr;
    void* const prepared = peer.functions().prepare(&what, &why);
    if (prepared == nullptr) {
      refusal_ = why != nullptr && *why != '\0' ? why : "it does not say why";
      return;
    }
    prepared_[tensors->copy()] = prepared;
    tensors->MoveOn();
  }
}

PeerCases::~PeerCases() {
  for (void* const prepared : prepared_) {
    if (prepared != nullptr) peer_.functions().release(prepared);
  }
}

}  // namespace rmsnorm::bench
