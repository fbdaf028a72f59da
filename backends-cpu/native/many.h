// Products of many rows. Rows and weight are copied in the order in which they are multiplied (K. Goto, R. van de Geijn:
// Anatomy of high-performance matrix multiplication, 2008): a block of the weight stays in the second-level cache while
// all rows pass. Copies cost too much for few rows.
#pragma once

#include "gemm.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

// Rows of x and vectors of outputs whose sums are in registers.
#if defined(__AVX512F__) || defined(__aarch64__) || defined(__VSX__)
constexpr int kTall = 12;
#else
constexpr int kTall = 6;
#endif
constexpr int kVectors = 2;
constexpr int64_t kWide = kVectors * F::N;
constexpr int64_t kDepth = 384;                // words of a row in a block of the weight
constexpr int64_t kPanels = 8;                 // kWide outputs each, in a block of the weight
constexpr int64_t kBlockOutputs = kPanels * kWide;
constexpr int64_t kBlocksPerThread = 2;        // at least, so that threads end at about the same time
constexpr int64_t kPass = kTall * 96;          // rows whose sums are held

thread_local Scratch rows_scratch, weight_scratch, sums_scratch;

// What is multiplied: words of 32 bits, each with kEach elements of T. A word is an element as a float.
template <class T>
struct Words {
    static constexpr int64_t kEach = 1;

    // F::N words of elements from p on, of which there are n.
    static F load(const T* p, int64_t n) { return n >= F::N ? LLMK_LEVEL::load(p) : LLMK_LEVEL::load(p, n); }
    static F add_products(F sums, F x, F y) { return fma(x, y, sums); }
};

#if defined(__AVX512BF16__) && !defined(LLMK_PLAIN)

// A word is a pair of elements.
template <>
struct Words<bf16> {
    static constexpr int64_t kEach = 2;

    static F load(const bf16* p, int64_t n) {
        __mmask32 present = n >= 32 ? ~0u : (1u << n) - 1;
        return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(present, p))};
    }
    static F add_products(F sums, F x, F y) { return {_mm512_dpbf16_ps(sums.v, (__m512bh)x.v, (__m512bh)y.v)}; }

    // Stores F::N words of a first and a second element, rounded.
    static void store_pair(F first, F second, float* out) {
        __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(first.v));
        __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(second.v));
        _mm512_storeu_si512(out, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
};

#endif

// Copies `count` rows of `size` elements as words, [words, kAcross], with zeros behind them if there are fewer than
// kAcross.
template <int64_t kAcross, class T>
void copy_across(const T* from, int64_t stride, int64_t count, int64_t size, float* out) {
    constexpr int64_t kStep = F::N * Words<T>::kEach;
    for (int64_t first = 0; first < kAcross; first += F::N) {
        int64_t across = smaller(F::N, kAcross - first), here = smaller(F::N, count - first);
        for (int64_t i = 0; i < size; i += kStep) {
            F tile[F::N];
#pragma GCC unroll 16
            for (int64_t r = 0; r < F::N; ++r) {
                tile[r] = r < here ? Words<T>::load(from + (first + r) * stride + i, size - i) : zero();
            }
            transpose(tile);
            float* to = out + i / Words<T>::kEach * kAcross + first;
            int64_t words = smaller(F::N, pieces(size - i, Words<T>::kEach));
#pragma GCC unroll 16
            for (int64_t j = 0; j < F::N; ++j) {
                if (j == words) break;
                across == F::N ? store(to + j * kAcross, tile[j]) : store(to + j * kAcross, tile[j], across);
            }
        }
    }
}

// sums[kTall, kWide] += rows [depth, kTall] x weight [depth, kWide], in words of T; rows of sums are kBlockOutputs apart.
template <class T>
void add_products(const float* rows, const float* weight, int64_t depth, float* sums) {
    F total[kTall][kVectors];
#pragma GCC unroll 12
    for (auto& row : total) {
#pragma GCC unroll 12
        for (F& each : row) each = zero();
    }
    for (int64_t i = 0; i < depth; ++i, rows += kTall, weight += kWide) {
        F w[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) w[v] = load(weight + v * F::N);
#pragma GCC unroll 12
        for (int r = 0; r < kTall; ++r) {
            F x = set1(rows[r]);
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) total[r][v] = Words<T>::add_products(total[r][v], x, w[v]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < kTall; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
            float* to = sums + r * kBlockOutputs + v * F::N;
            store(to, load(to) + total[r][v]);
        }
    }
}

// What a thread computes: outputs n0 to n0 + outputs - 1 of `groups` groups of kTall rows. `rows` are copied rows.
template <class T, class Source>
float* multiply_block(const Source& weight, int64_t n0, int64_t outputs, int64_t k, const float* rows, int64_t groups) {
    int64_t panels = pieces(outputs, kWide), words = pieces(k, Words<T>::kEach);
    float* block = static_cast<float*>(weight_scratch.get(sizeof(float) * kDepth * kBlockOutputs));
    int64_t bytes = sizeof(float) * groups * kTall * kBlockOutputs;
    float* sums = static_cast<float*>(sums_scratch.get(bytes));
    memset(sums, 0, bytes);
    for (int64_t k0 = 0; k0 < words; k0 += kDepth) {
        int64_t depth = smaller(kDepth, words - k0), begin = k0 * Words<T>::kEach;
        int64_t size = smaller(kDepth * Words<T>::kEach, k - begin);
        for (int64_t p = 0; p < panels; ++p) weight.copy(n0 + p * kWide, begin, size, block + p * kWide * kDepth);
        for (int64_t g = 0; g < groups; ++g) {
            for (int64_t p = 0; p < panels; ++p) {
                add_products<T>(rows + (g * words + k0) * kTall, block + p * kWide * kDepth, depth,
                                sums + g * kTall * kBlockOutputs + p * kWide);
            }
        }
    }
    return sums;
}

// out = x w^T + bias, in several threads. A source has copy(n, begin, size, out), which copies kWide outputs from n on
// and `size` inputs from `begin` on, as words of T, [words, kWide], with zeros for outputs that the weight lacks.
template <class T, class Source>
void multiply_many(const Source& weight, T* out, int64_t out_stride, const T* x, int64_t x_stride, const T* bias,
                   int64_t m, int64_t n, int64_t k) {
    for (int64_t m0 = 0; m0 < m; m0 += kPass) {
        int64_t count = smaller(kPass, m - m0), groups = pieces(count, kTall);
        int64_t size = kTall * pieces(k, Words<T>::kEach);  // words of a group
        float* rows = static_cast<float*>(rows_scratch.get(sizeof(float) * groups * size));
        parallel_for(groups, 4, [&](int64_t begin, int64_t end) {
            for (int64_t g = begin; g < end; ++g) {
                const T* from = x + (m0 + g * kTall) * x_stride;
                copy_across<kTall>(from, x_stride, count - g * kTall, k, rows + g * size);
            }
        });
        // Blocks for all threads, where there are few outputs.
        int64_t block = kWide * smaller(kPanels, pieces(n, kWide * kBlocksPerThread * thread_count()));
        parallel_for(pieces(n, block), 1, [&](int64_t begin, int64_t end) {
            for (int64_t n0 = begin * block; n0 < smaller(n, end * block); n0 += block) {
                int64_t outputs = smaller(block, n - n0);
                const float* sums = multiply_block<T>(weight, n0, outputs, k, rows, groups);
                for (int64_t row = 0; row < count; ++row) {
                    write(out + (m0 + row) * out_stride + n0, sums + row * kBlockOutputs, 1.f, nullptr,
                          bias ? bias + n0 : nullptr, outputs);
                }
            }
        });
    }
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
