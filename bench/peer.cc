// SPDX-License-Identifier: Apache-2.0
// Other libraries, as plug-ins of peers/peer.h.
#include <dlfcn.h>

#include <cfenv>

#include "contender.h"

namespace rmsnorm::bench {
namespace {

bool IsName(const char* name) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  return name != nullptr && *name != '\0' &&
         std::string(name).find_first_not_of(kAllowed) == std::string::npos;
}

const rmsnorm_peer& Functions(const std::string& file) try {
  const auto get =
      reinterpret_cast<decltype(&rmsnorm_peer_get)>(dlsym(LoadLibrary(file), "rmsnorm_peer_get"));
  if (get == nullptr) throw std::runtime_error("has no function rmsnorm_peer_get()");
  const rmsnorm_peer* const functions = get();
  if (functions == nullptr) throw std::runtime_error("rmsnorm_peer_get() returned null");
  if (functions->version != RMSNORM_PEER_VERSION) {
    throw std::runtime_error("is made for version " + std::to_string(functions->version) +
                             " of bench/peers/peer.h, not " + std::to_string(RMSNORM_PEER_VERSION));
  }
  if (!IsName(functions->name)) {
    throw std::runtime_error("its name is not of letters, digits, '.', '-' and '_'");
  }
  if (functions->prepare == nullptr || functions->run == nullptr || functions->release == nullptr) {
    throw std::runtime_error("prepare, run or release is null");
  }
  return *functions;
} catch (const std::runtime_error& error) {
  throw std::runtime_error("--peer " + file + ": " + error.what());
}

class Peer final : public Contender {
 public:
  explicit Peer(const rmsnorm_peer& functions)
      : Contender(functions.name, Kind::kOther), functions_(functions) {}

  Prepared Prepare(const Tensors& tensors, const char* /*target*/) const override {
    const char* why = nullptr;
    void* const state = functions_.prepare(&tensors.peer_case(), &why);
    if (state == nullptr) {
      throw Refusal(why != nullptr && *why != '\0' ? why : "it does not say why");
    }
    return {functions_.run, state, functions_.release};
  }

 private:
  const rmsnorm_peer& functions_;
};

}  // namespace

std::unique_ptr<Contender> LoadPeer(const std::string& file) {
  return std::make_unique<Peer>(Functions(file));
}

void* LoadLibrary(const std::string& file, int more_flags) {
  // Without a slash, dlopen() would search the directories of installed libraries.
  const std::string path = file.find('/') == std::string::npos ? "./" + file : file;
  // A library linked with -ffast-math changes the floating-point state of the thread that loads it.
  std::fenv_t before;
  std::fegetenv(&before);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | more_flags);
  std::fesetenv(&before);
  if (library == nullptr) {
    const std::string why = dlerror();  // often begins with the path
    const size_t rest = why.rfind(path + ": ", 0) == 0 ? path.size() + 2 : 0;
    throw std::runtime_error("cannot be loaded: " + why.substr(rest));
  }
  return library;
}

}  // namespace rmsnorm::bench
