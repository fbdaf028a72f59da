// Products with weights in the dtype of the activations, read as checkpoints store them. Sums are float32.

#include "experts.h"

namespace llmk::LLMK_LEVEL::linear {
namespace {

// 2 * F::N elements as floats, in an order that is the same for weights and rows.
template <class T>
inline void split(const T* p, F& first, F& second) {
    first = load(p), second = load(p + F::N);
}

// Elements with even and odd indices, which takes one instruction each.
#if defined(__AVX512F__) && !defined(LLMK_PLAIN)
inline void split(const bf16* p, F& even, F& odd) {
    __m512i bits = _mm512_loadu_si512(p);
    even = {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
    odd = {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(int(0xffff0000))))};
}
#elif defined(__AVX2__) && !defined(LLMK_PLAIN)
inline void split(const bf16* p, F& even, F& odd) {
    __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(int(0xffff0000))))};
}
#endif

// Elements of T, multiplied as floats.
template <class T>
struct Widened {
    using Element = T;
    using Row = float;
    using Sum = F;
    static constexpr int kStep = 2 * F::N;

    static F none() { return zero(); }
    static float total(F sums) { return sum(sums); }

    static void arrange(const T* x, int64_t k, float* out) {
        for (int64_t i = 0; i < k; i += kStep) {
            T copy[kStep] = {};
            const T* p = x + i;
            if (k - i < kStep) p = static_cast<T*>(memcpy(copy, p, sizeof(T) * (k - i)));
            F first, second;
            split(p, first, second);
            store(out + i, first), store(out + i + F::N, second);
        }
    }

    template <int R, int C>
    static inline void step(F (&sums)[R][C], const T* const (&w)[R], const float* rows, int64_t stride) {
        F first[R], second[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) split(w[r], first[r], second[r]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            F x = load(rows + c * stride);
            keep(x);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[r][c] = fma(first[r], x, sums[r][c]);
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            F x = load(rows + c * stride + F::N);
            keep(x);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[r][c] = fma(second[r], x, sums[r][c]);
        }
    }
};

template <class T>
struct Steps {
    using Type = Widened<T>;
};

#if defined(__AVX512BF16__) && !defined(LLMK_PLAIN)

// Pairs of bf16 elements, multiplied and added by one instruction.
struct Pairs {
    using Element = bf16;
    using Row = bf16;
    using Sum = F;
    static constexpr int kStep = 2 * F::N;

    static F none() { return zero(); }
    static float total(F sums) { return sum(sums); }

    static void arrange(const bf16* x, int64_t k, bf16* out) {
        memcpy(out, x, sizeof(bf16) * k);
        memset(out + k, 0, sizeof(bf16) * (padded(k, kStep) - k));
    }

    template <int R, int C>
    static inline void step(F (&sums)[R][C], const bf16* const (&w)[R], const bf16* rows, int64_t stride) {
        __m512bh weights[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) weights[r] = (__m512bh)_mm512_loadu_si512(w[r]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            __m512bh x = (__m512bh)_mm512_loadu_si512(rows + c * stride);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[r][c].v = _mm512_dpbf16_ps(sums[r][c].v, weights[r], x);
        }
    }
};

template <>
struct Steps<bf16> {
    using Type = Pairs;
};

#endif

template <class T>
using Product = Rowwise<typename Steps<T>::Type>;

thread_local Scratch scratch;

}  // namespace

// out = x weight^T + bias: x [m, k], weight [n, k], bias [n] or null, out [m, n], all of `dtype`; strides in elements.
LLMK_EXPORT(linear)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, int64_t weight_stride,
 const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using P = Product<T>;
        multiply<P>(
            {(const T*)weight, weight_stride}, m, n, k, k * int64_t(sizeof(T)), scratch,
            [&](int64_t row, typename P::Row* rows) { P::arrange((const T*)x + row * x_stride, k, rows); },
            [&](int64_t row, int64_t first, int64_t count, const float* sums) {
                write((T*)out + row * out_stride + first, sums, 1.f, nullptr, bias ? (const T*)bias + first : nullptr,
                      count);
            });
    });
}
LLMK_WORDS(linear)

// out[i] = x[rows[i]] weight[e]^T + bias[e] for the rows i from offsets[e] to offsets[e + 1] - 1 of every expert e:
// weight [experts, n, k], contiguous; bias [experts, n] or null; all of `dtype`.
LLMK_EXPORT(linear_experts)
(void* out, const void* x, int64_t x_stride, const int64_t* rows, const int64_t* offsets, const void* weight,
 const void* bias, int64_t experts, int64_t n, int64_t k, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        using P = Product<T>;
        multiply_experts<P>(
            [&](int64_t e, typename P::Weight& out) { out = {(const T*)weight + e * n * k, k}; }, offsets, experts, n,
            k, k * int64_t(sizeof(T)), scratch,
            [&](int64_t row, typename P::Row* to) { P::arrange((const T*)x + rows[row] * x_stride, k, to); },
            [&](int64_t e, int64_t row, int64_t first, int64_t count, const float* sums) {
                write((T*)out + row * n + first, sums, 1.f, nullptr, bias ? (const T*)bias + e * n + first : nullptr,
                      count);
            });
    });
}
LLMK_WORDS(linear_experts)

// out[t] = the sum of shares[t, j] * x[places[t, j]] over j, in this order and in float32: out [m, size], shares and
// places [m, chosen].
LLMK_EXPORT(mix_experts)
(void* out, const void* x, const int64_t* places, const float* shares, int64_t m, int64_t chosen, int64_t size,
 int32_t dtype) {
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        parallel_for(m, 8192 / (size * chosen + 1) + 1, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) {
                for (int64_t i = 0; i < size; i += F::N) {
                    int64_t n = smaller(F::N, size - i);
                    F sum = zero();
                    for (int64_t j = t * chosen; j < (t + 1) * chosen; ++j) {
                        const T* p = (const T*)x + places[j] * size + i;
                        sum = fma(set1(shares[j]), n == F::N ? load(p) : load(p, n), sum);
                    }
                    T* to = (T*)out + t * size + i;
                    n == F::N ? store(to, sum) : store(to, sum, n);
                }
            }
        });
    });
}
LLMK_WORDS(mix_experts)

}  // namespace llmk::LLMK_LEVEL::linear
