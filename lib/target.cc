// SPDX-License-Identifier: Apache-2.0
#include "target.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/compiled_targets.h"
#include "status.h"

namespace rmsnorm::internal {
namespace {

bool EqualIgnoringCase(const char* a, const char* b) {
  // Not std::tolower(): it follows the locale.
  const auto lower = [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  while (*a != '\0' && lower(*a) == lower(*b)) ++a, ++b;
  return lower(*a) == lower(*b);
}

// The names that stand for the best flavour of an instruction set, and how its flavours' names
// begin.
struct Family {
  const char* name;
  const char* prefix;
};
constexpr Family kFamilies[] = {{"AVX2", "AVX2"}, {"AVX512", "AVX3"}, {"NEON", "NEON"}};

// The names of all targets, for an error's text.
struct TargetList {
  char text[128] = "";

  TargetList() {
    size_t length = 0;
    for (size_t i = 0; rmsnorm_target_name(i) != nullptr && length < sizeof text; ++i) {
      const int added = std::snprintf(text + length, sizeof text - length, "%s%s",
                                      i == 0 ? "" : ", ", rmsnorm_target_name(i));
      length += static_cast<size_t>(added);
    }
  }
};

// The best target that this CPU runs and `wanted` accepts; null where there is none.
template <class Predicate>
const KernelTable* BestSupported(Predicate wanted) {
  for (const CompiledTarget* target = kCompiledTargets; target->kernels != nullptr; ++target) {
    if (IsSupported(*target) && wanted(target->kernels->target)) return target->kernels;
  }
  return nullptr;
}

// A name in an error's text, quoted, and cut so that what is wrong with it always fits.
struct Quoted {
  char text[48];

  explicit Quoted(const char* name) {
    constexpr int kLongest = 40;
    const bool whole = strnlen(name, kLongest + 1) <= kLongest;
    std::snprintf(text, sizeof text, "'%.*s%s'", kLongest, name, whole ? "" : "...");
  }
};

rmsnorm_status FindByName(const char* name, const char* origin, const KernelTable*& kernels) {
  const Family* family = nullptr;
  for (const Family& candidate : kFamilies) {
    if (EqualIgnoringCase(name, candidate.name)) family = &candidate;
  }
  const auto wanted = [&](const char* target) {
    if (family == nullptr) return EqualIgnoringCase(name, target);
    return std::strncmp(target, family->prefix, std::strlen(family->prefix)) == 0;
  };
  kernels = BestSupported(wanted);
  if (kernels != nullptr) return RMSNORM_OK;

  for (const CompiledTarget* target = kCompiledTargets; target->kernels != nullptr; ++target) {
    if (wanted(target->kernels->target)) {
      return Fail(RMSNORM_ERROR_TARGET, "%s: this CPU cannot run %s", origin, Quoted(name).text);
    }
  }
  return Fail(RMSNORM_ERROR_TARGET, "%s: %s is none of this build's targets (%s)", origin,
              Quoted(name).text, TargetList().text);
}

// RMSNORM_TARGET as it was at the first call; empty where it was not set. A copy, as putenv()
// leaves the text in the program's hands; a longer name than fits is no target's.
struct TargetVariable {
  char name[64] = "";

  TargetVariable() {
    const char* value = std::getenv("RMSNORM_TARGET");
    if (value != nullptr) std::snprintf(name, sizeof name, "%s", value);
  }
};

}  // namespace

rmsnorm_status FindKernels(const char* name, const KernelTable*& kernels) {
  if (name != nullptr) return FindByName(name, "target", kernels);

  static const TargetVariable variable;
  static const KernelTable* const chosen = [] {
    if (*variable.name == '\0') return BestSupported([](const char*) { return true; });
    const KernelTable* found = nullptr;
    FindByName(variable.name, "RMSNORM_TARGET", found);
    return found;
  }();
  kernels = chosen;
  if (chosen != nullptr) return RMSNORM_OK;
  // The variable's name is wrong: find out why again, for the message of this thread.
  return FindByName(variable.name, "RMSNORM_TARGET", kernels);
}

}  // namespace rmsnorm::internal

using namespace rmsnorm::internal;

const char* rmsnorm_target_name(size_t index) noexcept {
  for (const CompiledTarget* target = kCompiledTargets; target->kernels != nullptr; ++target) {
    if (index-- == 0) return target->kernels->target;
  }
  return nullptr;
}

rmsnorm_status rmsnorm_find_target(const char* name, const char** exact_name) noexcept {
  if (exact_name == nullptr) return Fail(RMSNORM_ERROR_NULL, "exact_name: the pointer is null");
  const KernelTable* kernels;
  RMSNORM_RETURN_IF_ERROR(FindKernels(name, kernels));
  *exact_name = kernels->target;
  return RMSNORM_OK;
}

const char* rmsnorm_highway_version() noexcept { return HighwayVersion(); }
