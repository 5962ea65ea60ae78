// SPDX-License-Identifier: Apache-2.0
// The floating-point state in which every number here is computed: round to nearest even,
// subnormals kept, no traps. The caller may run in another one (a program linked with -ffast-math
// flushes subnormals in every thread).
#ifndef RMSNORM_LIB_FLOAT_ENVIRONMENT_H_
#define RMSNORM_LIB_FLOAT_ENVIRONMENT_H_

#include <cstdint>

#include "portable.h"

#if RMSNORM_X86_64
#include <xmmintrin.h>
#elif !RMSNORM_ARM64
#include <cfenv>
#endif

namespace rmsnorm::internal {

// Sets the default state for its lifetime where the caller's differs, and puts the caller's back.
// Reading the register costs a few cycles and writing it some tens, so it is written only when
// needed.
//
// Every public function that may touch a number begins with one, before it looks at its arguments.
// (A call by pointers first compares addresses.) It is handed down to RunPlans(), which leaves the
// state for foreign code. No other line of the library runs in another state.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() { Enter(); }
  ~DefaultFloatEnvironment() { Leave(); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

  // Leave() puts the caller's state back for foreign code, an executor or OpenMP's runtime; Enter()
  // follows it.
#if RMSNORM_X86_64
  // MXCSR: bits 0 to 5 are sticky flags, which are the caller's to read and left alone.
  void Enter() {
    saved_ = _mm_getcsr();
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(kDefault);
  }
  void Leave() const {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kFlags = 0x3F;
  static constexpr unsigned kDefault = 0x1F80;  // all exceptions masked

  unsigned saved_;
#elif RMSNORM_ARM64
  void Enter() {
    saved_ = ReadFpcr();
    if (saved_ != 0) WriteFpcr(0);
  }
  void Leave() const {
    if (saved_ != 0) WriteFpcr(saved_);
  }

 private:
  uint64_t saved_;
#else
  void Enter() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  void Leave() const { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_FLOAT_ENVIRONMENT_H_
