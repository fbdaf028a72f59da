// Element types of tensors, and their conversions one by one. Vectors are converted in simd.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace llmk {

// Codes of dtypes in the C interface. Those of 8 bits are of caches alone (bytes.h).
enum Dtype : int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kE4M3 = 3, kInt8 = 4 };

struct bf16 {
    uint16_t bits;
};

struct f16 {
    uint16_t bits;
};

// OCP's float of 4 bits of exponent and 3 of mantissa, which has no infinity.
struct e4m3 {
    uint8_t bits;
};

constexpr float kLargestE4M3 = 448.f;

namespace LLMK_LEVEL {

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline float widen(float x) { return x; }

static inline float widen(bf16 x) { return float_of(uint32_t(x.bits) << 16); }

// Exact for normal, subnormal and infinite values, and keeps NaN.
static inline float widen(f16 x) {
    uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = uint32_t(x.bits & 0x7fff);
    if (rest >= 0x7c00) return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    // 2^-112 times the float with these bits: shifts the exponent's bias from 15 to 127, subnormal values included.
    return float_of(sign | bits_of(float_of(rest << 13) * float_of(0x77800000)));
}

static inline void narrow(float x, float& out) { out = x; }

// Rounds to nearest, ties to even.
static inline void narrow(float x, bf16& out) {
    uint32_t bits = bits_of(x);
    out.bits = x != x ? uint16_t(bits >> 16 | 0x40) : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline void narrow(float x, f16& out) {
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest >= 0x47800000) {  // 65536 and above, infinity, NaN
        out.bits = uint16_t(sign | (rest > 0x7f800000 ? 0x7e00 : 0x7c00));
    } else if (rest < 0x38800000) {  // subnormal: adding 0.5 lets the processor round to multiples of 2^-24
        out.bits = uint16_t(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000));
    } else {
        out.bits = uint16_t(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
    }
}

static inline void narrow(float whole, int8_t& out) { out = int8_t(whole); }

// Rounds to nearest, ties to even, and clamps.
static inline void narrow(float x, e4m3& out) {
    uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) {
        rest = 0x7f;  // NaN
    } else if (rest >= bits_of(kLargestE4M3)) {
        rest = 0x7e;
    } else if (rest < 0x3c800000) {  // subnormal: adding 2^14 lets the processor round to multiples of 2^-9
        rest = bits_of(float_of(rest) + 16384.f) - bits_of(16384.f);
    } else {
        rest = (rest - 0x3c000000 + 0x7ffff + (rest >> 20 & 1)) >> 20;
    }
    out.bits = uint8_t(sign | rest);
}

}  // namespace LLMK_LEVEL
}  // namespace llmk
