// SPDX-License-Identifier: Apache-2.0
#include "target.h"

#include <algorithm>
#include <atomic>
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
ShortText AllTargets() {
  ShortText names;
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    names.Add("%s%s", i == 0 ? "" : ", ", rmsnorm_target_name(i));
  }
  return names;
}

// A name in an error's text, quoted, and cut so that what is wrong with it always fits.
ShortText Quoted(const char* name) {
  constexpr int kLongest = 40;
  const bool is_whole = strnlen(name, kLongest + 1) <= kLongest;
  return ShortText().Add("'%.*s%s'", kLongest, name, is_whole ? "" : "...");
}

// How the names of a family's targets begin; null where `name` is no family's.
const char* PrefixOf(const char* name) {
  for (const Family& family : kFamilies) {
    if (EqualIgnoringCase(name, family.name)) return family.prefix;
  }
  return nullptr;
}

// Finds the best target that `name` stands for and this CPU runs. Null stands for all targets.
rmsnorm_status FindByName(const char* name, const char* origin, const KernelTable*& kernels) {
  const char* const prefix = name == nullptr ? "" : PrefixOf(name);
  bool is_known = false;
  for (const CompiledTarget* target = kCompiledTargets; target->kernels != nullptr; ++target) {
    kernels = target->kernels;
    const bool is_wanted = prefix == nullptr
                               ? EqualIgnoringCase(name, kernels->target)
                               : std::strncmp(kernels->target, prefix, std::strlen(prefix)) == 0;
    if (!is_wanted) continue;
    if (IsSupported(*target)) return RMSNORM_OK;
    is_known = true;  // GCOVR_EXCL_LINE: on other CPUs, which tools/platforms/cpus asks.
  }
  kernels = nullptr;
  if (is_known) {  // GCOVR_EXCL_START
    return Fail(RMSNORM_ERROR_TARGET, "%s: this CPU cannot run %s", origin, Quoted(name).c_str());
  }  // GCOVR_EXCL_STOP
  return Fail(RMSNORM_ERROR_TARGET, "%s: %s is none of this build's targets (%s)", origin,
              Quoted(name).c_str(), AllTargets().c_str());
}

// What the first call of the process finds. A static in a function would do, but for its lock: a
// child that another thread forks meanwhile would wait for it forever. Threads that make the first
// call at once find the same and store it again.
std::atomic<const KernelTable*> of_process{nullptr};

// RMSNORM_TARGET as it was at the first call. A copy, since the program may change the text that it
// gave to putenv(). A name that does not fit belongs to no target.
constexpr size_t kLongestVariable = 64;
std::atomic<char> variable[kLongestVariable];
std::atomic<bool> variable_is_read{false};

void CopyVariable(char (&text)[kLongestVariable]) {
  // GCOVR_EXCL_START: children of the test end by _exit() and write no counts.
  if (variable_is_read.load(std::memory_order_acquire)) {
    std::copy_n(variable, kLongestVariable, text);
    return;
  }  // GCOVR_EXCL_STOP
  const char* const value = std::getenv("RMSNORM_TARGET");
  std::snprintf(text, sizeof text, "%s", value == nullptr ? "" : value);
  std::copy_n(text, kLongestVariable, variable);
  variable_is_read.store(true, std::memory_order_release);
}

}  // namespace

rmsnorm_status FindKernels(const char* name, const KernelTable*& kernels) {
  if (name != nullptr) return FindByName(name, "target", kernels);

  kernels = of_process.load(std::memory_order_relaxed);
  if (kernels != nullptr) return RMSNORM_OK;
  char text[kLongestVariable];
  CopyVariable(text);
  RMSNORM_RETURN_IF_ERROR(FindByName(*text == '\0' ? nullptr : text, "RMSNORM_TARGET", kernels));
  of_process.store(kernels, std::memory_order_relaxed);
  return RMSNORM_OK;
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
  // clang-tidy cannot know that Fail() never returns RMSNORM_OK.
  *exact_name = kernels->target;  // NOLINT(clang-analyzer-core.NullDereference)
  return RMSNORM_OK;
}

const char* rmsnorm_highway_version() noexcept { return HighwayVersion(); }
