// SPDX-License-Identifier: Apache-2.0
// What compilers offer under different names, once for gcc and clang and once for Visual C++: the
// library's attributes, builtins and assembly. Only the target of a lambda is elsewhere, in
// kernels/highway-inl.h, as it depends on Highway's.
#ifndef RMSNORM_LIB_PORTABLE_H_
#define RMSNORM_LIB_PORTABLE_H_

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#define RMSNORM_X86_64 1
#else
#define RMSNORM_X86_64 0
#endif
#if defined(__aarch64__) || defined(_M_ARM64)
#define RMSNORM_ARM64 1
#else
#define RMSNORM_ARM64 0
#endif

// Whether there are kernels for this CPU. Elsewhere the reference is the only target, and Highway
// is not needed. Both builds read this line.
#define RMSNORM_HAVE_KERNELS (RMSNORM_X86_64 || RMSNORM_ARM64)

// Whether the user's options (-march=native) let the compiler use instructions that older CPUs
// lack, in all code. On macOS it does so by default. Both builds read this, too, and say so.
#if defined(__APPLE__)
#define RMSNORM_NEEDS_NEWER_CPU 0
#elif defined(__SSE3__) || defined(__AVX__) || defined(__POPCNT__) || defined(__LZCNT__) || \
    defined(__BMI__) || defined(__BMI2__) || defined(__ARM_FEATURE_ATOMICS) ||              \
    defined(__ARM_FEATURE_CRC32) || defined(__ARM_FEATURE_DOTPROD) ||                       \
    defined(__ARM_FEATURE_FP16_SCALAR_ARITHMETIC) || defined(__ARM_FEATURE_SVE)
#define RMSNORM_NEEDS_NEWER_CPU 1
#else
#define RMSNORM_NEEDS_NEWER_CPU 0
#endif

#if RMSNORM_X86_64 && defined(__GNUC__)
#include <cpuid.h>
#elif defined(_MSC_VER)
#include <intrin.h>
#endif

// ------------------------------------------------------------------ functions and branches

#if defined(__GNUC__)
#define RMSNORM_ALWAYS_INLINE __attribute__((always_inline)) inline
#define RMSNORM_ALWAYS_INLINE_LAMBDA __attribute__((always_inline))
#define RMSNORM_COLD __attribute__((cold))
#define RMSNORM_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define RMSNORM_NOINLINE __attribute__((noinline))
#define RMSNORM_UNREACHABLE() __builtin_unreachable()
#else
#define RMSNORM_ALWAYS_INLINE __forceinline
#define RMSNORM_ALWAYS_INLINE_LAMBDA
#define RMSNORM_COLD
#define RMSNORM_LIKELY(condition) (condition)
#define RMSNORM_NOINLINE __declspec(noinline)
#define RMSNORM_UNREACHABLE() __assume(0)
#endif

// The compiler checks the arguments that follow a format. With MinGW `printf` means Microsoft's old
// formats, without %zu, but C++ gets the usual ones.
#if defined(__MINGW32__)
#define RMSNORM_PRINTF(text, first) __attribute__((format(gnu_printf, text, first)))
#elif defined(__GNUC__)
#define RMSNORM_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define RMSNORM_PRINTF(text, first)
#endif

// ------------------------------------------------------------------ vectors and caches

// Brings the line of an address into L1, or into L2 alone.
#if defined(__GNUC__)
#define RMSNORM_FETCH_TO_L1(address) __builtin_prefetch(address, 0, 3)
#define RMSNORM_FETCH_TO_L2(address) __builtin_prefetch(address, 0, 2)
#elif RMSNORM_X86_64
#define RMSNORM_FETCH_TO_L1(address) _mm_prefetch((const char*)(address), _MM_HINT_T0)
#define RMSNORM_FETCH_TO_L2(address) _mm_prefetch((const char*)(address), _MM_HINT_T1)
#else
#define RMSNORM_FETCH_TO_L1(address) __prefetch(address)
#define RMSNORM_FETCH_TO_L2(address) __prefetch(address)
#endif

// Hides from the compiler where a vector came from, or a pointer or an index: it leaves what was
// written.
#if RMSNORM_X86_64 && defined(__GNUC__)
#define RMSNORM_HIDE_ORIGIN(vector) asm("" : "+v"(vector))
#define RMSNORM_HIDE_POINTER(pointer) asm("" : "+r"(pointer))
#else
#define RMSNORM_HIDE_ORIGIN(vector) static_cast<void>(vector)
#define RMSNORM_HIDE_POINTER(pointer) static_cast<void>(pointer)
#endif

// Microsoft's compiler must not contract a * b + c by itself.
#if defined(_MSC_VER) && !defined(__clang__)
#pragma fp_contract(off)
#endif

namespace rmsnorm::internal {

// ------------------------------------------------------------------ integers

// The number of the lowest bit that is set; there is one.
constexpr int LowestBit(uint32_t bits) {
#if defined(__GNUC__)
  return __builtin_ctz(bits);
#else
  int lowest = 0;
  while ((bits >> lowest & 1) == 0) ++lowest;
  return lowest;
#endif
}

// Each stores a result, and returns whether it does not fit, in which case the result is of no use.
inline bool AddOverflows(size_t a, size_t b, size_t* sum) {
  *sum = a + b;
  return *sum < a;
}
inline bool MultiplyOverflows(size_t a, size_t b, size_t* product) {
#if defined(__GNUC__)
  return __builtin_mul_overflow(a, b, product);
#else
  *product = a * b;
  return a != 0 && *product / a != b;
#endif
}

// ------------------------------------------------------------------ what the CPU says of itself

#if RMSNORM_X86_64

struct CpuidRegisters {
  unsigned eax, ebx, ecx, edx;
};

// Zeros for a leaf that the CPU does not have.
inline CpuidRegisters Cpuid(unsigned leaf, unsigned subleaf) {
  CpuidRegisters r = {};
#if defined(__GNUC__)
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
#else
  int values[4];
  __cpuid(values, static_cast<int>(leaf & 0x80000000u));
  if (static_cast<unsigned>(values[0]) < leaf) return r;
  __cpuidex(values, static_cast<int>(leaf), static_cast<int>(subleaf));
  r.eax = static_cast<unsigned>(values[0]);
  r.ebx = static_cast<unsigned>(values[1]);
  r.ecx = static_cast<unsigned>(values[2]);
  r.edx = static_cast<unsigned>(values[3]);
#endif
  return r;
}

// 0 asks for XCR0: the registers that the system keeps for each thread; only where CPUID reports
// OSXSAVE. 1 asks which of these are in use; only where CPUID reports that, too.
inline uint64_t Xgetbv(uint32_t index) {
#if defined(__GNUC__)
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(index));
  return uint64_t{high} << 32 | low;
#else
  return _xgetbv(index);
#endif
}

#elif RMSNORM_ARM64

// The control register of floating-point arithmetic.
inline uint64_t ReadFpcr() {
#if defined(__GNUC__)
  uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  return fpcr;
#else
  return static_cast<uint64_t>(_ReadStatusReg(ARM64_FPCR));
#endif
}
inline void WriteFpcr(uint64_t fpcr) {
#if defined(__GNUC__)
  asm volatile("msr fpcr, %0" : : "r"(fpcr) : "memory");
#else
  _WriteStatusReg(ARM64_FPCR, static_cast<int64_t>(fpcr));
#endif
}

#endif

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_PORTABLE_H_
