// What products with integer weights share. Rows of x become 16-bit integers with a scale per row, so that products are
// whole numbers: the rounding is finer than that of bf16 in all but the smallest elements, and at most 2^-16 of the
// row's largest.
#pragma once

#include "blocks.h"
#include "experts.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr float kLargest = 32767.f;

// The scale by which a row's largest element becomes `largest`; NaN where the row isn't finite.
template <class T>
float integer_scale(const T* x, int64_t k, float largest) {
    F most = zero(), least = zero(), poison = zero();
    auto look = [&](F v) {
        most = max(most, v), least = min(least, v), poison = fma(v, zero(), poison);
    };
    int64_t i = 0;
    for (; i + F::N <= k; i += F::N) look(load(x + i));
    if (i < k) look(load(x + i, k - i));
    return top(max(most, zero() - least)) / largest + sum(poison);
}

// A block of n elements, divided by a scale and rounded, with zeros behind them.
template <class T>
inline void round_block(const T* x, int64_t n, F inverse, int16_t* out) {
    float whole[kBlock] = {};
    int64_t j = 0;
    for (; j + F::N <= n; j += F::N) store(whole + j, nearest(load(x + j) * inverse));
    if (j < n) store(whole + j, nearest(load(x + j, n - j) * inverse), n - j);
    for (int l = 0; l < kBlock; ++l) out[l] = int16_t(whole[l]);
}

// Rounds a row to out[0, k), filled with zeros to a multiple of kBlock; returns its scale.
template <class T>
float arrange_integers(const T* x, int64_t k, int16_t* out) {
    float scale = integer_scale(x, k, kLargest);
    memset(out, 0, sizeof(int16_t) * padded(k, kBlock));
    if (!(scale > 0.f)) return scale;
    F inverse = set1(1.f / scale);
    for (int64_t i = 0; i < k; i += kBlock) round_block(x + i, smaller(kBlock, k - i), inverse, out + i);
    return scale;
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
