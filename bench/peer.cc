// SPDX-License-Identifier: Apache-2.0
// Plug-ins of peers/peer.h: other libraries, and the plain loops that are linked.
#include <dlfcn.h>

#include <cfenv>

#include "contender.h"

// Of peers/plain.cc, by CPU, each without and with -ffast-math.
extern "C" {
#ifdef __x86_64__
const rmsnorm_peer* rmsnorm_plain_v3();
const rmsnorm_peer* rmsnorm_plain_v3_fast();
const rmsnorm_peer* rmsnorm_plain_v4();
const rmsnorm_peer* rmsnorm_plain_v4_fast();
#else
const rmsnorm_peer* rmsnorm_plain_base();
const rmsnorm_peer* rmsnorm_plain_base_fast();
#endif
}

namespace rmsnorm::bench {
namespace {

bool IsName(const char* name) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  return name != nullptr && *name != '\0' &&
         std::string(name).find_first_not_of(kAllowed) == std::string::npos;
}

const rmsnorm_peer& Functions(const std::string& file) try {
  const auto get = reinterpret_cast<decltype(&rmsnorm_peer_get)>(
      FindFunction(LoadLibrary(file), "rmsnorm_peer_get"));
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
  Peer(const rmsnorm_peer& functions, Kind kind)
      : Contender(functions.name, kind), functions_(functions) {}

  TimedCall Prepare(const Tensors& tensors, const char* /*target*/) const override {
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
  return std::make_unique<Peer>(Functions(file), Kind::kPeer);
}

Contenders PlainLoops() {
  Contenders contenders;
  const auto add = [&](const rmsnorm_peer* usual, const rmsnorm_peer* fast) {
    contenders.push_back(std::make_unique<Peer>(*usual, Kind::kPlain));
    contenders.push_back(std::make_unique<Peer>(*fast, Kind::kPlain));
  };
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("bmi2") == 0 ||
      __builtin_cpu_supports("fma") == 0) {
    return contenders;
  }
  add(rmsnorm_plain_v3(), rmsnorm_plain_v3_fast());
  if (__builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0) {
    add(rmsnorm_plain_v4(), rmsnorm_plain_v4_fast());
  }
#else
  add(rmsnorm_plain_base(), rmsnorm_plain_base_fast());
#endif
  return contenders;
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

void* FindFunction(void* library, const std::string& name, bool is_needed) {
  void* const function = dlsym(library, name.c_str());
  if (function == nullptr && is_needed) throw std::runtime_error("has no function " + name + "()");
  return function;
}

}  // namespace rmsnorm::bench
