// Products of many rows. Rows and weight are copied in the order in which they are multiplied (K. Goto, R. van de Geijn:
// Anatomy of high-performance matrix multiplication, 2008): a block of the weight stays in the second-level cache while
// all rows pass. Copies cost too much for few rows.
#pragma once

#include "gemm.h"

#if defined(__AVX512BF16__) && !defined(LLMK_PLAIN) && (defined(__AMX_BF16__) || defined(LLMK_EMULATED_TILES))
#define LLMK_TILES
#include "matrix_unit.h"
#endif

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
constexpr int64_t kPass = 1152;                // rows whose sums are held, at most

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

// Products of groups of kTall rows and panels of kWide outputs, in registers for vectors. It takes kStep words at a
// time, so that blocks are filled up with zeros.
template <class T>
struct Unit {
    static constexpr int64_t kTall = LLMK_LEVEL::kTall, kStep = 1;

    static void begin() {}
    static void end() {}

    // Words of a group of rows, [words, kTall].
    static int64_t group_size(int64_t words) { return kTall * words; }
    static void copy_group(const T* from, int64_t stride, int64_t count, int64_t k, float* out) {
        copy_across<kTall>(from, stride, count, k, out);
    }

    // sums[kTall, kWide] += rows [depth, kTall] x weight [depth, kWide] from word k0 on; rows of sums are kBlockOutputs
    // apart.
    static void add_products(const float* group, int64_t, int64_t k0, const float* weight, int64_t depth, float* sums) {
        const float* rows = group + k0 * kTall;
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
};

#if defined(LLMK_TILES)

// The same with tiles: two of rows, two of outputs, and four of sums.
template <>
struct Unit<bf16> {
    static constexpr int64_t kTall = 2 * kTileRows, kStep = kTileWords;

    static void begin() { begin_tiles(); }
    static void end() { end_tiles(); }

    // Rows are a cache line longer than needed, because lines that are a power of two apart share a set of the cache.
    static int64_t row_size(int64_t words) { return padded(words, kStep) + kTileWords; }
    static int64_t group_size(int64_t words) { return kTall * row_size(words); }
    static void copy_group(const bf16* from, int64_t stride, int64_t count, int64_t k, float* out) {
        int64_t size = row_size(pieces(k, Words<bf16>::kEach));
        for (int64_t row = 0; row < kTall; ++row, out += size) {
            memset(out, 0, sizeof(float) * size);
            if (row < count) memcpy(out, from + row * stride, sizeof(bf16) * k);
        }
    }

    static void add_products(const float* group, int64_t words, int64_t k0, const float* weight, int64_t depth,
                             float* sums) {
        int64_t size = row_size(words);
        const float *upper = group + k0, *lower = upper + kTileRows * size;
        float* lower_sums = sums + kTileRows * kBlockOutputs;
        load_tile<0>(sums, kBlockOutputs), load_tile<1>(sums + kTileWords, kBlockOutputs);
        load_tile<2>(lower_sums, kBlockOutputs), load_tile<3>(lower_sums + kTileWords, kBlockOutputs);
        for (int64_t i = 0; i < depth; i += kStep, weight += kStep * kWide) {
            load_tile<4>(upper + i, size), load_tile<6>(weight, kWide);
            add_tile_products<0, 4, 6>();
            load_tile<7>(weight + kTileWords, kWide);
            add_tile_products<1, 4, 7>();
            load_tile<5>(lower + i, size);
            add_tile_products<2, 5, 6>();
            add_tile_products<3, 5, 7>();
        }
        store_tile<0>(sums, kBlockOutputs), store_tile<1>(sums + kTileWords, kBlockOutputs);
        store_tile<2>(lower_sums, kBlockOutputs), store_tile<3>(lower_sums + kTileWords, kBlockOutputs);
    }
};

#endif

// What a thread computes: outputs n0 to n0 + outputs - 1 of `groups` groups of rows, which are copied.
template <class T, class Source>
float* multiply_block(const Source& weight, int64_t n0, int64_t outputs, int64_t k, const float* rows, int64_t groups) {
    using U = Unit<T>;
    int64_t panels = pieces(outputs, kWide), words = pieces(k, Words<T>::kEach);
    float* block = static_cast<float*>(weight_scratch.get(sizeof(float) * kDepth * kBlockOutputs));
    int64_t bytes = sizeof(float) * groups * U::kTall * kBlockOutputs;
    float* sums = static_cast<float*>(sums_scratch.get(bytes));
    memset(sums, 0, bytes);
    U::begin();
    for (int64_t k0 = 0; k0 < words; k0 += kDepth) {
        int64_t depth = smaller(kDepth, words - k0), begin = k0 * Words<T>::kEach, full = padded(depth, U::kStep);
        int64_t size = smaller(kDepth * Words<T>::kEach, k - begin);
        for (int64_t p = 0; p < panels; ++p) {
            float* panel = block + p * kWide * kDepth;
            weight.copy(n0 + p * kWide, begin, size, panel);
            memset(panel + depth * kWide, 0, sizeof(float) * (full - depth) * kWide);
        }
        for (int64_t g = 0; g < groups; ++g) {
            for (int64_t p = 0; p < panels; ++p) {
                U::add_products(rows + g * U::group_size(words), words, k0, block + p * kWide * kDepth, full,
                                sums + g * U::kTall * kBlockOutputs + p * kWide);
            }
        }
    }
    U::end();
    return sums;
}

// out = x w^T + bias, in several threads. A source has copy(n, begin, size, out), which copies kWide outputs from n on
// and `size` inputs from `begin` on, as words of T, [words, kWide], with zeros for outputs that the weight lacks.
template <class T, class Source>
void multiply_many(const Source& weight, T* out, int64_t out_stride, const T* x, int64_t x_stride, const T* bias,
                   int64_t m, int64_t n, int64_t k) {
    constexpr int64_t kRowsAtOnce = kPass / Unit<T>::kTall * Unit<T>::kTall;
    for (int64_t m0 = 0; m0 < m; m0 += kRowsAtOnce) {
        int64_t count = smaller(kRowsAtOnce, m - m0), groups = pieces(count, Unit<T>::kTall);
        int64_t size = Unit<T>::group_size(pieces(k, Words<T>::kEach));
        float* rows = static_cast<float*>(rows_scratch.get(sizeof(float) * groups * size));
        parallel_for(groups, 4, [&](int64_t begin, int64_t end) {
            for (int64_t g = begin; g < end; ++g) {
                const T* from = x + (m0 + g * Unit<T>::kTall) * x_stride;
                Unit<T>::copy_group(from, x_stride, count - g * Unit<T>::kTall, k, rows + g * size);
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
