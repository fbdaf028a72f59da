// Integer arithmetic on every instruction set: Block, 32 numbers of 16 bits, and Sums, F::N sums of 32 bits.
//
//   numbers(pointer)          32 numbers of 8 or 16 bits; pointers need no alignment
//   add_products(sums, a, b)  adds the products of a's and b's numbers
//   add_pairs(sums, a, b)     the same, with those of the first 16 numbers apart from the others
//   pair_scales(x, y)         x where add_pairs adds products of the first 16 numbers, y elsewhere
//   float_sums(sums)
#pragma once

#include "kernel.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr int kBlock = 32;

#if defined(__AVX512F__) && !defined(LLMK_PLAIN)

struct Block {
    __m512i v;
};
struct Sums {
    __m512i v;
};

inline Block numbers(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
inline Block numbers(const int8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Sums no_sums() { return {_mm512_setzero_si512()}; }
inline Sums add_products(Sums sums, Block a, Block b) {
#if defined(__AVX512VNNI__)
    return {_mm512_dpwssd_epi32(sums.v, a.v, b.v)};
#else
    return {_mm512_add_epi32(sums.v, _mm512_madd_epi16(a.v, b.v))};
#endif
}
inline Sums add_pairs(Sums sums, Block a, Block b) { return add_products(sums, a, b); }
inline F pair_scales(float x, float y) {
    return {_mm512_insertf32x8(_mm512_set1_ps(x), _mm256_set1_ps(y), 1)};
}
inline F float_sums(Sums sums) { return {_mm512_cvtepi32_ps(sums.v)}; }

#elif defined(__AVX2__) && !defined(LLMK_PLAIN)

struct Block {
    __m256i low, high;
};
struct Sums {
    __m256i v;
};

inline __m256i bytes_at(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline Block numbers(const int16_t* p) { return {bytes_at(p), bytes_at(p + 16)}; }
inline Block numbers(const int8_t* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
inline Sums no_sums() { return {_mm256_setzero_si256()}; }
inline __m256i add_products(__m256i sums, __m256i a, __m256i b) {
#if defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sums, a, b);
#else
    return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
#endif
}
inline Sums add_products(Sums sums, Block a, Block b) {
    return {add_products(add_products(sums.v, a.low, b.low), a.high, b.high)};
}
inline Sums add_pairs(Sums sums, Block a, Block b) {
    __m256i both = _mm256_hadd_epi32(_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high));
    return {_mm256_add_epi32(sums.v, both)};
}
inline F pair_scales(float x, float y) { return {_mm256_blend_ps(_mm256_set1_ps(x), _mm256_set1_ps(y), 0xcc)}; }
inline F float_sums(Sums sums) { return {_mm256_cvtepi32_ps(sums.v)}; }

#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(LLMK_PLAIN)

struct Block {
    int16x8_t v[4];
};
struct Sums {
    int32x4_t low, high;
};

inline Block numbers(const int16_t* p) { return {{vld1q_s16(p), vld1q_s16(p + 8), vld1q_s16(p + 16), vld1q_s16(p + 24)}}; }
inline Block numbers(const int8_t* p) {
    int8x16_t a = vld1q_s8(p), b = vld1q_s8(p + 16);
    return {{vmovl_s8(vget_low_s8(a)), vmovl_high_s8(a), vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b)}};
}
inline Sums no_sums() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
inline Sums add_products(Sums sums, Block a, Block b) {
    for (int i = 0; i < 2; ++i) {
        sums.low = vmlal_s16(sums.low, vget_low_s16(a.v[i]), vget_low_s16(b.v[i]));
        sums.high = vmlal_s16(sums.high, vget_low_s16(a.v[i + 2]), vget_low_s16(b.v[i + 2]));
        sums.low = vmlal_high_s16(sums.low, a.v[i], b.v[i]);
        sums.high = vmlal_high_s16(sums.high, a.v[i + 2], b.v[i + 2]);
    }
    return sums;
}
inline Sums add_pairs(Sums sums, Block a, Block b) { return add_products(sums, a, b); }
inline F pair_scales(float x, float y) { return {vdupq_n_f32(x), vdupq_n_f32(y)}; }
inline F float_sums(Sums sums) { return {vcvtq_f32_s32(sums.low), vcvtq_f32_s32(sums.high)}; }

#elif defined(__VSX__) && defined(__LITTLE_ENDIAN__) && !defined(LLMK_PLAIN)

using shorts = __vector signed short;
using integers = __vector signed int;

struct Block {
    shorts v[4];
};
struct Sums {
    integers low, high;
};

inline Block numbers(const int16_t* p) { return {{vec_xl(0, p), vec_xl(16, p), vec_xl(32, p), vec_xl(48, p)}}; }
inline Block numbers(const int8_t* p) {
    __vector signed char a = vec_xl(0, p), b = vec_xl(16, p);
    return {{vec_unpackh(a), vec_unpackl(a), vec_unpackh(b), vec_unpackl(b)}};
}
inline Sums no_sums() { return {vec_splats(0), vec_splats(0)}; }
inline Sums add_products(Sums sums, Block a, Block b) {
    sums.low = vec_msum(a.v[0], b.v[0], vec_msum(a.v[1], b.v[1], sums.low));
    sums.high = vec_msum(a.v[2], b.v[2], vec_msum(a.v[3], b.v[3], sums.high));
    return sums;
}
inline Sums add_pairs(Sums sums, Block a, Block b) { return add_products(sums, a, b); }
inline F pair_scales(float x, float y) { return {vec_splats(x), vec_splats(y)}; }
inline F float_sums(Sums sums) { return {vec_ctf(sums.low, 0), vec_ctf(sums.high, 0)}; }

#else

struct Block {
    int16_t v[kBlock];
};
struct Sums {
    int32_t v[F::N];
};

template <class T>
inline Block numbers(const T* p) {
    Block out;
    for (int i = 0; i < kBlock; ++i) out.v[i] = p[i];
    return out;
}
inline Sums no_sums() { return {}; }
inline Sums add_products(Sums sums, Block a, Block b) {
    constexpr int kHalf = F::N / 2;
    for (int i = 0; i < kBlock; ++i) sums.v[i / 16 * kHalf + i % kHalf] += int32_t(a.v[i]) * b.v[i];
    return sums;
}
inline Sums add_pairs(Sums sums, Block a, Block b) { return add_products(sums, a, b); }
inline F pair_scales(float x, float y) {
    float out[F::N];
    for (int i = 0; i < F::N; ++i) out[i] = i < F::N / 2 ? x : y;
    return load(out);
}
inline F float_sums(Sums sums) {
    float out[F::N];
    for (int i = 0; i < F::N; ++i) out[i] = float(sums.v[i]);
    return load(out);
}

#endif

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
