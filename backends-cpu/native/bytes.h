// Vectors of elements of 8 bits, which caches may have.
#pragma once

#include "kernel.h"

namespace llmk {

namespace LLMK_LEVEL {
namespace {

// The floats of f16 that have the bits of e4m3, 2^-8 times their values: exponents are biased by 15 instead of 7.
#if defined(__AVX512F__) && !defined(LLMK_PLAIN)
inline F load(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F as_halves(const e4m3* p) {
    __m256i bits = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(bits, _mm256_set1_epi16(0x80)), 8);
    __m256i rest = _mm256_slli_epi16(_mm256_and_si256(bits, _mm256_set1_epi16(0x7f)), 7);
    return {_mm512_cvtph_ps(_mm256_or_si256(sign, rest))};
}
#elif defined(__AVX2__) && !defined(LLMK_PLAIN)
inline F load(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline F as_halves(const e4m3* p) {
    __m128i bits = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    __m128i sign = _mm_slli_epi16(_mm_and_si128(bits, _mm_set1_epi16(0x80)), 8);
    __m128i rest = _mm_slli_epi16(_mm_and_si128(bits, _mm_set1_epi16(0x7f)), 7);
    return {_mm256_cvtph_ps(_mm_or_si128(sign, rest))};
}
#else
inline F load(const int8_t* p) {
    float whole[F::N];
    for (int i = 0; i < F::N; ++i) whole[i] = p[i];
    return LLMK_LEVEL::load(whole);
}
inline F as_halves(const e4m3* p) {
    f16 halves[F::N];
    for (int i = 0; i < F::N; ++i) halves[i].bits = uint16_t((p[i].bits & 0x80) << 8 | (p[i].bits & 0x7f) << 7);
    return LLMK_LEVEL::load(halves);
}
#endif

inline F load(const e4m3* p) {
    F x = as_halves(p) * set1(256.f);
    return less(set1(kLargestE4M3), max(x, zero() - x), set1(NAN), x);
}

template <class C>
inline F load_part(const C* p, int64_t n) {
    C whole[F::N] = {};
    memcpy(whole, p, n * sizeof(C));
    return load(whole);
}
inline F load(const int8_t* p, int64_t n) { return load_part(p, n); }
inline F load(const e4m3* p, int64_t n) { return load_part(p, n); }

template <class C>
inline void store_each(C* p, F a) {
    float each[F::N];
    store(each, a);
    for (int i = 0; i < F::N; ++i) narrow(each[i], p[i]);
}
inline void store(int8_t* p, F whole) { store_each(p, whole); }
inline void store(e4m3* p, F a) { store_each(p, a); }

// Calls f with a value of the type that a cache's dtype code names, as by_dtype does.
template <class Call>
inline void by_cache_dtype(int32_t dtype, Call&& f) {
    if (dtype == kInt8) {
        f(int8_t{});
    } else if (dtype == kE4M3) {
        f(e4m3{});
    } else {
        by_dtype(dtype, f);
    }
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
