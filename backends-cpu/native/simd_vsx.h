// VSX of POWER8 and later, little-endian: 8 floats, in two registers.
#pragma once

#include <altivec.h>
#undef bool
#undef pixel
#undef vector

namespace llmk {
namespace LLMK_LEVEL {
namespace {

using floats = __vector float;
using words = __vector unsigned int;
using halves = __vector unsigned short;

struct F {
    static constexpr int N = 8;
    floats low, high;
};

inline F set1(float x) { return {vec_splats(x), vec_splats(x)}; }

inline F operator+(F a, F b) { return {vec_add(a.low, b.low), vec_add(a.high, b.high)}; }
inline F operator-(F a, F b) { return {vec_sub(a.low, b.low), vec_sub(a.high, b.high)}; }
inline F operator*(F a, F b) { return {vec_mul(a.low, b.low), vec_mul(a.high, b.high)}; }
inline F operator/(F a, F b) { return {vec_div(a.low, b.low), vec_div(a.high, b.high)}; }
inline F fma(F a, F b, F c) { return {vec_madd(a.low, b.low, c.low), vec_madd(a.high, b.high, c.high)}; }
inline F max(F a, F b) { return {vec_max(a.low, b.low), vec_max(a.high, b.high)}; }
inline F min(F a, F b) { return {vec_min(a.low, b.low), vec_min(a.high, b.high)}; }
inline F sqrt(F a) { return {vec_sqrt(a.low), vec_sqrt(a.high)}; }
inline F nearest(F a) { return {vec_rint(a.low), vec_rint(a.high)}; }

inline floats power_of_two(floats a) {
    words exponent = (words)vec_add(vec_cts(a, 0), vec_splats(127));
    return (floats)vec_sl(exponent, vec_splats(23u));
}
inline F power_of_two(F a) { return {power_of_two(a.low), power_of_two(a.high)}; }

inline F less(F a, F b, F x, F y) {
    return {vec_sel(y.low, x.low, vec_cmplt(a.low, b.low)), vec_sel(y.high, x.high, vec_cmplt(a.high, b.high))};
}

inline float sum(F a) {
    floats x = vec_add(a.low, a.high);
    return (x[0] + x[2]) + (x[1] + x[3]);
}

inline float top(F a) {
    floats x = vec_max(a.low, a.high);
    float even = x[0] > x[2] ? x[0] : x[2], odd = x[1] > x[3] ? x[1] : x[3];
    return even > odd ? even : odd;
}

inline F load(const float* p) { return {vec_xl(0, p), vec_xl(16, p)}; }

inline F load(const bf16* p) {
    halves bits = vec_xl(0, &p->bits), none = vec_splats((unsigned short)0);
    return {(floats)vec_mergeh(none, bits), (floats)vec_mergel(none, bits)};
}

inline void store(float* p, F a) {
    vec_xst(a.low, 0, p);
    vec_xst(a.high, 16, p);
}

inline words to_bf16(floats a) {
    words bits = (words)a, sixteen = vec_splats(16u);
    words odd = vec_and(vec_sr(bits, sixteen), vec_splats(1u));
    words up = vec_add(bits, vec_add(odd, vec_splats(0x7fffu)));
    return vec_sr(vec_sel(vec_or(bits, vec_splats(0x400000u)), up, vec_cmpeq(a, a)), sixteen);
}

inline void store(bf16* p, F a) { vec_xst(vec_pack(to_bf16(a.low), to_bf16(a.high)), 0, &p->bits); }

// POWER8 has no conversion between float and half-precision vectors.
inline F load(const f16* p) {
    float wide[F::N];
    for (int i = 0; i < F::N; ++i) wide[i] = widen(p[i]);
    return load(wide);
}

inline void store(f16* p, F a) {
    float wide[F::N];
    store(wide, a);
    for (int i = 0; i < F::N; ++i) narrow(wide[i], p[i]);
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk

#include "simd_parts.h"
