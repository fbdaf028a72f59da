// Products of kTogether rows of 4-bit numbers at a time, on every instruction set.
//
//   Bytes                      numbers: four of each row
//   bytes(pointer)             4 * kTogether bytes; pointers need no alignment
//   low(bytes), high(bytes)    their halves, from 0 to 15
//   Partial, no_partial()      sums of products with 8-bit numbers, at most kBlock of each row
//   add(partial, bytes, four)  adds the products of each row's numbers and the same four numbers
//   totals(partial)            Ints, the sum of each row
#pragma once

#include "tiles.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

#if defined(__AVX512F__) && !defined(LLMK_PLAIN)

using Bytes = __m512i;

inline Bytes bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes low(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Bytes high(Bytes x) { return low(_mm512_srli_epi16(x, 4)); }
inline __m512i repeated(const int8_t* four) {
    int32_t bits;
    memcpy(&bits, four, sizeof bits);
    return _mm512_set1_epi32(bits);
}

using Partial = __m512i;
inline Partial no_partial() { return _mm512_setzero_si512(); }
#if defined(__AVX512VNNI__)
inline Partial add(Partial sums, Bytes x, const int8_t* four) { return _mm512_dpbusd_epi32(sums, x, repeated(four)); }
inline Ints totals(Partial sums) { return (Ints)sums; }
#else
// As with AVX2.
inline Partial add(Partial sums, Bytes x, const int8_t* four) {
    return _mm512_add_epi16(sums, _mm512_maddubs_epi16(x, repeated(four)));
}
inline Ints totals(Partial sums) { return (Ints)_mm512_madd_epi16(sums, _mm512_set1_epi16(1)); }
#endif

#elif defined(__AVX2__) && !defined(LLMK_PLAIN)

using Bytes = __m256i;

inline Bytes bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Bytes low(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Bytes high(Bytes x) { return low(_mm256_srli_epi16(x, 4)); }
inline __m256i repeated(const int8_t* four) {
    int32_t bits;
    memcpy(&bits, four, sizeof bits);
    return _mm256_set1_epi32(bits);
}

using Partial = __m256i;
inline Partial no_partial() { return _mm256_setzero_si256(); }
#if defined(__AVXVNNI__)
inline Partial add(Partial sums, Bytes x, const int8_t* four) { return _mm256_dpbusd_avx_epi32(sums, x, repeated(four)); }
inline Ints totals(Partial sums) { return (Ints)sums; }
#else
// Two sums of 16 bits per row: of a block, each has 16 products of at most 15 * 128.
inline Partial add(Partial sums, Bytes x, const int8_t* four) {
    return _mm256_add_epi16(sums, _mm256_maddubs_epi16(x, repeated(four)));
}
inline Ints totals(Partial sums) { return (Ints)_mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
#endif

#elif defined(__ARM_NEON) && defined(__aarch64__) && !defined(LLMK_PLAIN)

struct Bytes {
    int8x16_t v[2];
};
struct Partial {
    int16x8_t v[2];
};

inline Bytes bytes(const uint8_t* p) { return {{vreinterpretq_s8_u8(vld1q_u8(p)), vreinterpretq_s8_u8(vld1q_u8(p + 16))}}; }
inline Bytes low(Bytes x) { return {{vandq_s8(x.v[0], vdupq_n_s8(15)), vandq_s8(x.v[1], vdupq_n_s8(15))}}; }
inline int8x16_t upper(int8x16_t x) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4)); }
inline Bytes high(Bytes x) { return {{upper(x.v[0]), upper(x.v[1])}}; }
inline Partial no_partial() { return {{vdupq_n_s16(0), vdupq_n_s16(0)}}; }
inline Partial add(Partial sums, Bytes x, const int8_t* four) {
    int32_t bits;
    memcpy(&bits, four, sizeof bits);
    int8x16_t y = vreinterpretq_s8_s32(vdupq_n_s32(bits));
    for (int i = 0; i < 2; ++i) {
        int16x8_t a = vmull_s8(vget_low_s8(x.v[i]), vget_low_s8(y)), b = vmull_high_s8(x.v[i], y);
        sums.v[i] = vaddq_s16(sums.v[i], vpaddq_s16(a, b));
    }
    return sums;
}
inline Ints totals(Partial sums) {
    int32x4_t both[2] = {vpaddlq_s16(sums.v[0]), vpaddlq_s16(sums.v[1])};
    Ints out;
    memcpy(&out, both, sizeof out);
    return out;
}

#elif defined(__VSX__) && defined(__LITTLE_ENDIAN__) && !defined(LLMK_PLAIN)

struct Bytes {
    __vector unsigned char v[2];
};
struct Partial {
    __vector signed int v[2];
};

inline Bytes bytes(const uint8_t* p) { return {{vec_xl(0, p), vec_xl(16, p)}}; }
inline Bytes low(Bytes x) {
    auto mask = vec_splats((unsigned char)15);
    return {{vec_and(x.v[0], mask), vec_and(x.v[1], mask)}};
}
inline Bytes high(Bytes x) {
    auto by = vec_splats((unsigned char)4);
    return {{vec_sr(x.v[0], by), vec_sr(x.v[1], by)}};
}
inline Partial no_partial() { return {{vec_splats(0), vec_splats(0)}}; }
inline Partial add(Partial sums, Bytes x, const int8_t* four) {
    int32_t bits;
    memcpy(&bits, four, sizeof bits);
    auto y = (__vector signed char)vec_splats(bits);
    return {{vec_msum(y, x.v[0], sums.v[0]), vec_msum(y, x.v[1], sums.v[1])}};
}
inline Ints totals(Partial sums) {
    Ints out;
    memcpy(&out, sums.v, sizeof out);
    return out;
}

#else

struct Bytes {
    uint8_t v[32];
};
using Partial = Ints;

inline Bytes bytes(const uint8_t* p) {
    Bytes out;
    memcpy(out.v, p, sizeof out.v);
    return out;
}
inline Bytes low(Bytes x) {
    for (uint8_t& each : x.v) each &= 15;
    return x;
}
inline Bytes high(Bytes x) {
    for (uint8_t& each : x.v) each >>= 4;
    return x;
}
inline Partial no_partial() { return Ints{}; }
inline Partial add(Partial sums, Bytes x, const int8_t* four) {
    for (int i = 0; i < 32; ++i) sums[i / 4] += int32_t(x.v[i]) * four[i % 4];
    return sums;
}
inline Ints totals(Partial sums) { return sums; }

#endif

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
