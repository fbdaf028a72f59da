// AVX-512 (F, BW, DQ, VL): 16 floats.
#pragma once

#include <immintrin.h>

namespace llmk {
namespace LLMK_LEVEL {
namespace {

struct F {
    static constexpr int N = 16;
    __m512 v;
};

inline F set1(float x) { return {_mm512_set1_ps(x)}; }

inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F sqrt(F a) { return {_mm512_sqrt_ps(a.v)}; }
inline F nearest(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

inline F power_of_two(F a) {
    __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}

inline F less(F a, F b, F x, F y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}

inline float sum(F a) { return _mm512_reduce_add_ps(a.v); }
inline float top(F a) { return _mm512_reduce_max_ps(a.v); }

inline __mmask16 first(int64_t n) { return __mmask16((1u << n) - 1); }

inline F widened(const bf16*, __m256i x) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
}
inline F widened(const f16*, __m256i x) { return {_mm512_cvtph_ps(x)}; }

inline __m256i narrowed(const bf16*, F a) {
    __m512i bits = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}
inline __m256i narrowed(const f16*, F a) {
    return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F load(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline void store(float* p, F a, int64_t n) { _mm512_mask_storeu_ps(p, first(n), a.v); }

template <class T>
inline F load(const T* p) {
    return widened(p, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

template <class T>
inline F load(const T* p, int64_t n) {
    return widened(p, _mm256_maskz_loadu_epi16(first(n), p));
}

template <class T>
inline void store(T* p, F a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrowed(p, a));
}

template <class T>
inline void store(T* p, F a, int64_t n) {
    _mm256_mask_storeu_epi16(p, first(n), narrowed(p, a));
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
