// NEON on 64-bit Arm: 8 floats, in two registers, so that a bf16 or f16 register fills one vector.
#pragma once

#include <arm_neon.h>

namespace llmk {
namespace LLMK_LEVEL {
namespace {

struct F {
    static constexpr int N = 8;
    float32x4_t low, high;
};

inline F set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }

inline F operator+(F a, F b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline F operator-(F a, F b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline F operator*(F a, F b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline F operator/(F a, F b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline F fma(F a, F b, F c) { return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
inline F max(F a, F b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
inline F min(F a, F b) { return {vminq_f32(a.low, b.low), vminq_f32(a.high, b.high)}; }
inline F sqrt(F a) { return {vsqrtq_f32(a.low), vsqrtq_f32(a.high)}; }
inline F nearest(F a) { return {vrndnq_f32(a.low), vrndnq_f32(a.high)}; }

inline float32x4_t power_of_two(float32x4_t a) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(a), vdupq_n_s32(127)), 23));
}
inline F power_of_two(F a) { return {power_of_two(a.low), power_of_two(a.high)}; }

inline F less(F a, F b, F x, F y) {
    return {vbslq_f32(vcltq_f32(a.low, b.low), x.low, y.low), vbslq_f32(vcltq_f32(a.high, b.high), x.high, y.high)};
}

inline float sum(F a) { return vaddvq_f32(vaddq_f32(a.low, a.high)); }
inline float top(F a) { return vmaxvq_f32(vmaxq_f32(a.low, a.high)); }

#define LLMK_TRANSPOSES
inline void transpose(float32x4_t& a, float32x4_t& b, float32x4_t& c, float32x4_t& d) {
    auto even = [](float32x4_t x, float32x4_t y) { return vreinterpretq_f64_f32(vtrn1q_f32(x, y)); };
    auto odd = [](float32x4_t x, float32x4_t y) { return vreinterpretq_f64_f32(vtrn2q_f32(x, y)); };
    float64x2_t ab = even(a, b), cd = even(c, d), ab_odd = odd(a, b), cd_odd = odd(c, d);
    a = vreinterpretq_f32_f64(vtrn1q_f64(ab, cd)), c = vreinterpretq_f32_f64(vtrn2q_f64(ab, cd));
    b = vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)), d = vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd));
}
inline void transpose(F (&x)[F::N]) {
    for (int i = 0; i < 8; i += 4) {
        transpose(x[i].low, x[i + 1].low, x[i + 2].low, x[i + 3].low);
        transpose(x[i].high, x[i + 1].high, x[i + 2].high, x[i + 3].high);
    }
    for (int i = 0; i < 4; ++i) {
        float32x4_t corner = x[i].high;
        x[i].high = x[i + 4].low, x[i + 4].low = corner;
    }
}

inline F load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }

inline F load(const bf16* p) {
    uint16x8_t bits = vld1q_u16(&p->bits);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits), 16))};
}

inline F load(const f16* p) {
    float16x8_t x = vreinterpretq_f16_u16(vld1q_u16(&p->bits));
    return {vcvt_f32_f16(vget_low_f16(x)), vcvt_f32_f16(vget_high_f16(x))};
}

inline void store(float* p, F a) {
    vst1q_f32(p, a.low);
    vst1q_f32(p + 4, a.high);
}

inline uint16x4_t to_bf16(float32x4_t a) {
    uint32x4_t bits = vreinterpretq_u32_f32(a);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), up, vorrq_u32(bits, vdupq_n_u32(0x400000))), 16);
}

inline void store(bf16* p, F a) { vst1q_u16(&p->bits, vcombine_u16(to_bf16(a.low), to_bf16(a.high))); }

inline void store(f16* p, F a) {
    vst1q_u16(&p->bits, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(a.low), vcvt_f16_f32(a.high))));
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk

#include "simd_parts.h"
