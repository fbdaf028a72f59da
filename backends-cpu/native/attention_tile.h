// Parts of attention: scores, weights and weighted sums of a few rows.
#pragma once

#include "attention.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr int64_t kChunk = 256;  // keys whose scores are held, at most; rows of scores are as long

// Keys [begin, end) that a row sees.
struct Span {
    int64_t begin, end;
};

// How queries and keys are multiplied: in words of 32 bits, of which a key or query has size / kEach. A cache holds
// values of Type. A word is an element as a float.
template <class C>
struct Singles {
    using Type = C;
    using Alike = Singles<float>;  // what copies of words of any C are multiplied as
    static constexpr int64_t kEach = 1;
    static constexpr int kLocality = 3;  // of keys that are fetched ahead: to the first level of caches

    // A word of F::N keys; their next elements are `stride` values apart.
    static F load(const C* keys, int64_t) { return LLMK_LEVEL::load(keys); }
    static F add_products(F sums, F x, F y) { return fma(x, y, sums); }
};

// Words that were copied.
template <class W>
struct Copied : W {
    using Type = float;
    static F load(const float* keys, int64_t) { return LLMK_LEVEL::load(keys); }
};

#if defined(__AVX512BF16__) && !defined(LLMK_PLAIN)

// A word is a pair of elements as bf16, which all elements of C are, and whose products are exact. Heads have an even
// size.
template <class C>
struct Pairs {
    using Type = C;
    using Alike = Pairs<bf16>;
    static constexpr int64_t kEach = 2;
    static constexpr int kLocality = 2;  // to the second level, which is faster on Zen 5

    static F load(const C* keys, int64_t stride) {
        if constexpr (std::is_same_v<C, bf16>) {
            __m512i first = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys)));
            __m512i second = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + stride)));
            return {_mm512_castsi512_ps(_mm512_or_si512(first, _mm512_slli_epi32(second, 16)))};
        } else {
            __m512i first = _mm512_castps_si512(LLMK_LEVEL::load(keys).v);
            __m512i second = _mm512_castps_si512(LLMK_LEVEL::load(keys + stride).v);
            __m512i high = _mm512_and_si512(second, _mm512_set1_epi32(int32_t(0xffff0000)));
            return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(first, 16), high))};
        }
    }
    static F add_products(F sums, F x, F y) { return {_mm512_dpbf16_ps(sums.v, (__m512bh)x.v, (__m512bh)y.v)}; }
};

#endif

// Scores of R rows and NV vectors of keys, of `words` words. `keys[v]` is the first element of the keys of vector v;
// `next` are those that will be needed then, or null, and `ahead` is how far the values of the same tokens are.
template <class W, int R, int NV>
inline void score(const float* query, int64_t words, const typename W::Type* const* keys, int64_t key_stride,
                  const typename W::Type* const* next, int64_t ahead, float* scores) {
    // With narrow vectors, every second one starts a cache line.
    constexpr int kLine = F::N < 16 ? 2 : 1;
    F sums[R][NV];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) sums[r][v] = zero();
    for (int64_t d = 0; d < words; ++d) {
        int64_t at = d * W::kEach * key_stride;
        F key[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) key[v] = W::load(keys[v] + at, key_stride);
#pragma GCC unroll 8
        for (int v = 0; next && v < NV; v += kLine) {
#pragma GCC unroll 2
            for (int64_t i = 0; i < W::kEach; ++i) {
                __builtin_prefetch(next[v] + at + i * key_stride, 0, W::kLocality);
                __builtin_prefetch(keys[v] + at + i * key_stride + ahead);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            F q = set1(query[r * words + d]);
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) sums[r][v] = W::add_products(sums[r][v], q, key[v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) store(scores + r * kChunk + v * F::N, sums[r][v]);
}

// Adds weights[r][k] * values[k] to mixed[r], for R rows, `keys` keys, and NV vectors of values (or `n` elements).
template <int R, int NV, class C>
inline void mix(const float* weights, const C* values, int64_t value_stride, int64_t keys, float* mixed, int64_t width,
                int64_t n) {
    F sums[R][NV];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) sums[r][v] = load(mixed + r * width + v * F::N);
    for (int64_t k = 0; k < keys; ++k) {
        F value[NV];
        if (NV == 1 && n < F::N) {
            value[0] = load(values + k * value_stride, n);
        } else {
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) value[v] = load(values + k * value_stride + v * F::N);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            F weight = set1(weights[r * kChunk + k]);
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) sums[r][v] = fma(weight, value[v], sums[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) store(mixed + r * width + v * F::N, sums[r][v]);
}

// The same for few rows, which read keys and values where they are.
template <class W, int R, class C = typename W::Type>
inline void score_few(const float* query, int64_t words, const C* const* keys, int64_t vectors, int64_t key_stride,
                      float* scores) {
    constexpr int NV = 4;  // enough independent sums for one row
    int64_t v = 0, ahead = words * W::kEach * key_stride;
    for (; v + NV <= vectors; v += NV) {
        const C* const* next = v + 2 * NV <= vectors ? keys + v + NV : keys + v;
        score<W, R, NV>(query, words, keys + v, key_stride, next, ahead, scores + v * F::N);
    }
    for (; v < vectors; ++v) score<W, R, 1>(query, words, keys + v, key_stride, keys + v, ahead, scores + v * F::N);
}

template <int R, class C>
inline void mix_few(const float* weights, const C* values, int64_t size, int64_t keys, float* mixed, int64_t width) {
    constexpr int NV = 4;
    int64_t j = 0;
    for (; j + NV * F::N <= size; j += NV * F::N) mix<R, NV>(weights, values + j, size, keys, mixed + j, width, F::N);
    for (; j < size; j += F::N) mix<R, 1>(weights, values + j, size, keys, mixed + j, width, size - j);
}

// Calls f(first row, number of rows as a constant) for all rows, at most Most at a time.
template <int Most, class Call>
inline void by_rows(int64_t rows, Call&& f) {
    int64_t r = 0;
    for (; r + Most <= rows; r += Most) f(r, std::integral_constant<int, Most>{});
    for (; r + 2 <= rows; r += 2) f(r, std::integral_constant<int, 2>{});
    if (r < rows) f(r, std::integral_constant<int, 1>{});
}

// The keys of two vectors as words, [words, 2 * N].
template <class W, class C = typename W::Type>
inline void pack_keys(float* out, const C* first, const C* second, int64_t words, int64_t key_stride) {
    for (int64_t d = 0; d < words; ++d) {
        int64_t at = d * W::kEach * key_stride;
        store(out + d * 2 * F::N, W::load(first + at, key_stride));
        store(out + d * 2 * F::N + F::N, W::load(second + at, key_stride));
    }
}

// A token's values as floats, 2 * N of them at a time, `stride` floats apart.
template <class C>
inline void pack_values(float* out, const C* values, int64_t size, int64_t stride) {
    for (int64_t j = 0; j < size; j += 2 * F::N, out += stride) {
        int64_t n = size - j;
        store(out, n >= F::N ? load(values + j) : load(values + j, n));
        n -= F::N;
        store(out + F::N, n >= F::N ? load(values + j + F::N) : n > 0 ? load(values + j + F::N, n) : zero());
    }
}

// Scales and caps the scores of a row, hides those of keys outside [begin, end), replaces them by weights, and returns
// the greatest score and the sum of weights.
inline void weigh(float* scores, int64_t vectors, Span seen, float scale, float softcap, float& top_score,
                  float& total) {
    F most = set1(-INFINITY);
    bool partly = seen.begin > 0 || seen.end < vectors * F::N;
    F positions = iota();
    for (int64_t v = 0; v < vectors; ++v) {
        F s = load(scores + v * F::N) * set1(scale);
        if (softcap > 0.f) s = set1(softcap) * tanh(s * set1(1.f / softcap));
        if (partly) {
            F at = positions + set1(float(v * F::N));
            s = less(at, set1(float(seen.end)), s, set1(-INFINITY));
            s = less(at, set1(float(seen.begin)), set1(-INFINITY), s);
        }
        store(scores + v * F::N, s);
        most = max(most, s);
    }
    top_score = top(most);
    F sums = zero(), greatest = set1(top_score);
    for (int64_t v = 0; v < vectors; ++v) {
        F weight = exp(load(scores + v * F::N) - greatest);
        store(scores + v * F::N, weight);
        sums = sums + weight;
    }
    total = sum(sums);
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
