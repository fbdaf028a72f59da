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

// Rounds a row to out[0, k), filled with zeros to a multiple of kBlock; returns its scale, which is NaN where the row
// isn't finite. With `halved`, each block has the numbers of even indices first.
template <class T>
float arrange_integers(const T* x, int64_t k, bool halved, int16_t* out) {
    F most = zero(), least = zero(), poison = zero();
    auto look = [&](F v) {
        most = max(most, v), least = min(least, v), poison = fma(v, zero(), poison);
    };
    int64_t i = 0;
    for (; i + F::N <= k; i += F::N) look(load(x + i));
    if (i < k) look(load(x + i, k - i));
    float scale = top(max(most, zero() - least)) / kLargest + sum(poison);
    memset(out, 0, sizeof(int16_t) * padded(k, kBlock));
    if (!(scale > 0.f)) return scale;
    F inverse = set1(1.f / scale);
    for (i = 0; i < k; i += kBlock) {
        float whole[kBlock] = {};
        int64_t n = smaller(kBlock, k - i), j = 0;
        for (; j + F::N <= n; j += F::N) store(whole + j, nearest(load(x + i + j) * inverse));
        if (j < n) store(whole + j, nearest(load(x + i + j, n - j) * inverse), n - j);
        if (halved) {
            for (int l = 0; l < kBlock / 2; ++l) {
                out[i + l] = int16_t(whole[2 * l]);
                out[i + kBlock / 2 + l] = int16_t(whole[2 * l + 1]);
            }
        } else {
            for (int l = 0; l < kBlock; ++l) out[i + l] = int16_t(whole[l]);
        }
    }
    return scale;
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
