// Vectors of floats, on every instruction set: F, with F::N elements, and functions on it.
//
// Each instruction set has a header with the same functions:
//   set1(x), load(pointer), store(pointer, f)     of float, bf16 and f16; pointers need no alignment
//   load(pointer, n), store(pointer, f, n)        the first n elements only; the others are loaded as zero
//   a + b, a - b, a * b, a / b, max(a, b), min(a, b), fma(a, b, c) = a * b + c, sqrt(a)
//   nearest(a)                                    rounded to whole numbers
//   power_of_two(a)                               2^a of whole numbers from -126 to 127
//   less(a, b, x, y)                              x where a < b, else y
//   transpose(x)                                  F::N vectors, in place; here for those that have none
//   sum(a), top(a)                                over the elements, in an order that depends on N alone
// Functions here are built from these.
#pragma once

#include <cmath>

#include "dtype.h"

#if defined(LLMK_PLAIN)
#include "simd_plain.h"
#elif defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include "simd_neon.h"
#elif defined(__VSX__) && defined(__LITTLE_ENDIAN__)
#include "simd_vsx.h"
#else
#include "simd_plain.h"
#endif

namespace llmk {
namespace LLMK_LEVEL {
namespace {

inline F zero() { return set1(0.f); }

// Rounded to T, and widened again.
template <class T>
inline F rounded(F x) {
    if constexpr (sizeof(T) == sizeof(float)) {
        return x;
    } else {
        T narrow[F::N];
        store(narrow, x);
        return load(narrow);
    }
}

#if !defined(LLMK_TRANSPOSES)
inline void transpose(F (&x)[F::N]) {
    float from[F::N][F::N], to[F::N][F::N];
    for (int i = 0; i < F::N; ++i) store(from[i], x[i]);
    for (int i = 0; i < F::N; ++i) {
        for (int j = 0; j < F::N; ++j) to[j][i] = from[i][j];
    }
    for (int i = 0; i < F::N; ++i) x[i] = load(to[i]);
}
#endif

// 0, 1, 2, …
inline F iota() {
    float values[F::N];
    for (int i = 0; i < F::N; ++i) values[i] = float(i);
    return load(values);
}

// e^x, within 2 units in the last place; 0 below -87.3, infinity above 88.7. The range reduction and the polynomial are
// those of Cephes' expf (S. Moshier).
inline F exp(F x) {
    F clamped = min(max(x, set1(-87.33654f)), set1(88.72283f));
    F whole = nearest(clamped * set1(1.44269504f));
    F r = fma(whole, set1(-0.693359375f), clamped);
    r = fma(whole, set1(2.12194440e-4f), r);
    F p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = fma(p, r * r, r) + set1(1.f);
    // 2^whole in two factors, because 2^128 is no float, although its product with p below 1 may be.
    F half = nearest(whole * set1(0.5f));
    F result = p * power_of_two(half) * power_of_two(whole - half);
    result = less(x, set1(-87.33654f), zero(), result);
    result = less(set1(88.72283f), x, set1(INFINITY), result);
    return less(x, x + set1(1.f), result, less(x, zero(), zero(), x + result));
}

inline F sigmoid(F x) { return set1(1.f) / (set1(1.f) + exp(zero() - x)); }

inline F tanh(F x) {
    F limited = min(max(x, set1(-15.f)), set1(15.f));
    F squared = exp(limited + limited);
    return (squared - set1(1.f)) / (squared + set1(1.f));
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
