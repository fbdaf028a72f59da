// Products of many rows with weights in the dtype of the activations. Both are copied as floats, in the order in which
// they are multiplied (K. Goto, R. van de Geijn: Anatomy of high-performance matrix multiplication, 2008): a block of the
// weight stays in the second-level cache while all rows pass. Copies cost too much for few rows.

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
constexpr int64_t kDepth = 384;                // inputs of a block of the weight
constexpr int64_t kPanels = 8;                 // kWide outputs each, in a block of the weight
constexpr int64_t kBlockOutputs = kPanels * kWide;
constexpr int64_t kPass = kTall * 64;          // rows whose sums are held

thread_local Scratch rows_scratch, weight_scratch, sums_scratch;

// Copies `count` rows of `size` elements as [size, kAcross], padded with zeros if there are fewer than kAcross.
template <int64_t kAcross, class T>
void copy_across(const T* from, int64_t stride, int64_t count, int64_t size, float* out) {
    for (int64_t first = 0; first < kAcross; first += F::N) {
        int64_t across = smaller(F::N, kAcross - first), here = smaller(F::N, count - first);
        for (int64_t i = 0; i < size; i += F::N) {
            int64_t along = smaller(F::N, size - i);
            F tile[F::N];
            for (int64_t r = 0; r < F::N; ++r) {
                const T* p = from + (first + r) * stride + i;
                tile[r] = r >= here ? zero() : along == F::N ? load(p) : load(p, along);
            }
            transpose(tile);
            float* to = out + i * kAcross + first;
            for (int64_t j = 0; j < along; ++j) {
                across == F::N ? store(to + j * kAcross, tile[j]) : store(to + j * kAcross, tile[j], across);
            }
        }
    }
}

// sums[kTall, kWide] += rows [depth, kTall] x weight [depth, kWide]; rows of sums are kBlockOutputs apart.
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
            for (int v = 0; v < kVectors; ++v) total[r][v] = fma(x, w[v], total[r][v]);
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
template <class T>
float* multiply_block(const T* weight, int64_t stride, int64_t outputs, int64_t k, const float* rows, int64_t groups) {
    int64_t panels = pieces(outputs, kWide);
    float* block = static_cast<float*>(weight_scratch.get(sizeof(float) * kDepth * kBlockOutputs));
    int64_t bytes = sizeof(float) * groups * kTall * kBlockOutputs;
    float* sums = static_cast<float*>(sums_scratch.get(bytes));
    memset(sums, 0, bytes);
    for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
        int64_t depth = smaller(kDepth, k - k0);
        for (int64_t p = 0; p < panels; ++p) {
            const T* from = weight + p * kWide * stride + k0;
            copy_across<kWide>(from, stride, outputs - p * kWide, depth, block + p * kWide * kDepth);
        }
        for (int64_t g = 0; g < groups; ++g) {
            for (int64_t p = 0; p < panels; ++p) {
                add_products(rows + (g * k + k0) * kTall, block + p * kWide * kDepth, depth,
                             sums + g * kTall * kBlockOutputs + p * kWide);
            }
        }
    }
    return sums;
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk

using namespace llmk;
using namespace llmk::LLMK_LEVEL;

// As linear, for many rows.
LLMK_EXPORT(linear_many)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, int64_t weight_stride,
 const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        for (int64_t m0 = 0; m0 < m; m0 += kPass) {
            int64_t count = smaller(kPass, m - m0), groups = pieces(count, kTall);
            float* rows = static_cast<float*>(rows_scratch.get(sizeof(float) * groups * kTall * k));
            parallel_for(groups, 4, [&](int64_t begin, int64_t end) {
                for (int64_t g = begin; g < end; ++g) {
                    const T* from = (const T*)x + (m0 + g * kTall) * x_stride;
                    copy_across<kTall>(from, x_stride, count - g * kTall, k, rows + g * kTall * k);
                }
            });
            parallel_for(pieces(n, kBlockOutputs), 1, [&](int64_t begin, int64_t end) {
                for (int64_t n0 = begin * kBlockOutputs; n0 < smaller(n, end * kBlockOutputs); n0 += kBlockOutputs) {
                    int64_t outputs = smaller(kBlockOutputs, n - n0);
                    const T* from = (const T*)weight + n0 * weight_stride;
                    const float* sums = multiply_block(from, weight_stride, outputs, k, rows, groups);
                    for (int64_t row = 0; row < count; ++row) {
                        write((T*)out + (m0 + row) * out_stride + n0, sums + row * kBlockOutputs, 1.f, nullptr,
                              bias ? (const T*)bias + n0 : nullptr, outputs);
                    }
                }
            });
        }
    });
}
LLMK_WORDS(linear_many)
