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

#define LLMK_TRANSPOSES
inline void transpose(F (&x)[F::N]) {
    __m512d pairs[F::N];  // of columns: in every quarter, those of two rows
#pragma GCC unroll 8
    for (int i = 0; i < F::N; i += 2) {
        pairs[i] = _mm512_castps_pd(_mm512_unpacklo_ps(x[i].v, x[i + 1].v));
        pairs[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(x[i].v, x[i + 1].v));
    }
    __m512 fours[4][4];  // fours[i][j]: columns j, j + 4, j + 8 and j + 12 of rows 4 * i to 4 * i + 3
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
            __m512d upper = pairs[4 * i + j], lower = pairs[4 * i + j + 2];
            fours[i][2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(upper, lower));
            fours[i][2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(upper, lower));
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        __m512 upper = _mm512_shuffle_f32x4(fours[0][j], fours[1][j], 0x44);
        __m512 lower = _mm512_shuffle_f32x4(fours[2][j], fours[3][j], 0x44);
        x[j].v = _mm512_shuffle_f32x4(upper, lower, 0x88), x[j + 4].v = _mm512_shuffle_f32x4(upper, lower, 0xdd);
        upper = _mm512_shuffle_f32x4(fours[0][j], fours[1][j], 0xee);
        lower = _mm512_shuffle_f32x4(fours[2][j], fours[3][j], 0xee);
        x[j + 8].v = _mm512_shuffle_f32x4(upper, lower, 0x88), x[j + 12].v = _mm512_shuffle_f32x4(upper, lower, 0xdd);
    }
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
