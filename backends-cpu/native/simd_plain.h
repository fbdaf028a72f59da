// Plain C++: 8 floats, which compilers may keep in registers of any width.
#pragma once

#include <cmath>

namespace llmk {
namespace LLMK_LEVEL {
namespace {

struct F {
    static constexpr int N = 8;
    float v[N];
};

template <class Op>
inline F each(Op op) {
    F out;
    for (int i = 0; i < F::N; ++i) out.v[i] = op(i);
    return out;
}

inline F set1(float x) {
    return each([&](int) { return x; });
}
inline F operator+(F a, F b) {
    return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline F operator-(F a, F b) {
    return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline F operator*(F a, F b) {
    return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline F operator/(F a, F b) {
    return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline F fma(F a, F b, F c) {
    return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline F max(F a, F b) {
    return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F min(F a, F b) {
    return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F sqrt(F a) {
    return each([&](int i) { return ::sqrtf(a.v[i]); });
}

// Adding 1.5 * 2^23 leaves no bits for fractions. Larger numbers than 2^22 are not rounded right, and not needed.
inline F nearest(F a) {
    return each([&](int i) {
        volatile float whole = a.v[i] + 12582912.f;
        return whole - 12582912.f;
    });
}

inline F power_of_two(F a) {
    return each([&](int i) { return float_of(uint32_t(int32_t(a.v[i]) + 127) << 23); });
}
inline F less(F a, F b, F x, F y) {
    return each([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}

inline float sum(F a) { return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7])); }

inline float top(F a) {
    float most = a.v[0];
    for (int i = 1; i < F::N; ++i) most = a.v[i] > most ? a.v[i] : most;
    return most;
}

template <class T>
inline F load(const T* p) {
    return each([&](int i) { return widen(p[i]); });
}

template <class T>
inline void store(T* p, F a) {
    for (int i = 0; i < F::N; ++i) narrow(a.v[i], p[i]);
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk

#include "simd_parts.h"
