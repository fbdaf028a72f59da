// Any processor: 8 floats, by the compilers' vector extension, which uses the registers that there are.
#pragma once

#include <cmath>

namespace llmk {
namespace LLMK_LEVEL {
namespace {

using floats = float __attribute__((vector_size(32)));
using words = int32_t __attribute__((vector_size(32)));
using halves = uint16_t __attribute__((vector_size(16)));

struct F {
    static constexpr int N = 8;
    floats v;
};

inline F set1(float x) { return {floats{} + x}; }

inline F operator+(F a, F b) { return {a.v + b.v}; }
inline F operator-(F a, F b) { return {a.v - b.v}; }
inline F operator*(F a, F b) { return {a.v * b.v}; }
inline F operator/(F a, F b) { return {a.v / b.v}; }
inline F fma(F a, F b, F c) { return {a.v * b.v + c.v}; }
inline F less(F a, F b, F x, F y) { return {a.v < b.v ? x.v : y.v}; }
inline F max(F a, F b) { return {a.v > b.v ? a.v : b.v}; }
inline F min(F a, F b) { return {a.v < b.v ? a.v : b.v}; }

inline F sqrt(F a) {
    for (int i = 0; i < F::N; ++i) a.v[i] = ::sqrtf(a.v[i]);
    return a;
}

// Adding 1.5 * 2^23 leaves no bits for fractions. Larger numbers than 2^22 are not rounded right, and not needed.
inline F nearest(F a) { return {(a.v + 12582912.f) - 12582912.f}; }

inline F power_of_two(F a) { return {(floats)((__builtin_convertvector(a.v, words) + 127) << 23)}; }

inline float sum(F a) {
    return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}

inline float top(F a) {
    float most = a.v[0];
    for (int i = 1; i < F::N; ++i) most = a.v[i] > most ? a.v[i] : most;
    return most;
}

inline F load(const float* p) {
    F out;
    memcpy(&out.v, p, sizeof(out.v));
    return out;
}

inline void store(float* p, F a) { memcpy(p, &a.v, sizeof(a.v)); }

inline words bits_of(const void* p) {
    halves narrow;
    memcpy(&narrow, p, sizeof(narrow));
    return __builtin_convertvector(narrow, words);
}

inline void store_bits(void* p, words bits) {
    halves narrow = __builtin_convertvector(bits, halves);
    memcpy(p, &narrow, sizeof(narrow));
}

// The conversions are those of dtype.h.
inline F load(const bf16* p) { return {(floats)(bits_of(p) << 16)}; }

inline F load(const f16* p) {
    words bits = bits_of(p), sign = (bits & 0x8000) << 16, rest = (bits & 0x7fff) << 13;
    words finite = (words)((floats)rest * float_of(0x77800000));
    return {(floats)(sign | (rest < 0xf800000 ? finite : rest | 0x7f800000))};
}

inline void store(bf16* p, F a) {
    words bits = (words)a.v, up = bits + 0x7fff + (bits >> 16 & 1);
    store_bits(p, (a.v == a.v ? up : bits | 0x400000) >> 16);
}

inline void store(f16* p, F a) {
    words bits = (words)a.v, sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    words normal = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
    words small = (words)((floats)rest + 0.5f) - 0x3f000000;
    words large = rest > 0x7f800000 ? words{} + 0x7e00 : words{} + 0x7c00;
    store_bits(p, sign | (rest >= 0x47800000 ? large : rest < 0x38800000 ? small : normal));
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk

#include "simd_parts.h"
