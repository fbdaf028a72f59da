// Products with int8 weights that have a scale per output.

#include "integers.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

struct Int8Matrix {
    const int8_t* data;
    int64_t stride;
};

struct Int8Product {
    using Row = int16_t;
    using Weight = Int8Matrix;
    static constexpr int kStep = kBlock;
    static constexpr int tile_rows(int columns) { return LLMK_LEVEL::tile_rows(columns); }

    template <int R, int C>
    static inline void step(Sums (&sums)[R][C], const int8_t* const (&w)[R], const int16_t* rows, int64_t stride) {
        Block weights[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) weights[r] = numbers(w[r]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            Block x = numbers(rows + c * stride);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[r][c] = add_products(sums[r][c], weights[r], x);
        }
    }

    // Sums of 32 bits hold the products of kInputs inputs: 1,024 / 8 products of at most 2^22.
    template <int R, int C>
    static void tile(const Weight& weight, int64_t n, int64_t begin, int64_t end, const int16_t* rows, int64_t stride,
                     float* out, int64_t out_stride) {
        Sums sums[R][C];
        for (auto& row : sums) {
            for (Sums& sum : row) sum = no_sums();
        }
        const int8_t* w[R];
        for (int r = 0; r < R; ++r) w[r] = weight.data + (n + r) * weight.stride + begin;
        int64_t ahead = R * weight.stride, i = begin;  // the next tile
        rows += begin;
        for (; i + kStep <= end; i += kStep, rows += kStep) {
            step<R, C>(sums, w, rows, stride);
            for (int r = 0; r < R; ++r) {
                __builtin_prefetch(w[r] + ahead);
                w[r] += kStep;
            }
        }
        if (i < end) {
            int8_t copy[R][kStep] = {};
            for (int r = 0; r < R; ++r) {
                memcpy(copy[r], w[r], end - i);
                w[r] = copy[r];
            }
            step<R, C>(sums, w, rows, stride);
        }
        for (int c = 0; c < C; ++c) {
            for (int r = 0; r < R; ++r) out[c * out_stride + r] += sum(floats(sums[r][c]));
        }
    }
};

thread_local Scratch scratch, scratch_scales;

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk

using namespace llmk;
using namespace llmk::LLMK_LEVEL;

// out = x (weight * scales)^T + bias: x [m, k] and out [m, n] of `dtype`, weight int8 [n, k], scales float32 [n], bias
// [n] or null; strides in elements.
LLMK_EXPORT(linear_int8)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, int64_t weight_stride,
 const void* scales, const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        float* row_scales = static_cast<float*>(scratch_scales.get(sizeof(float) * m));
        multiply<Int8Product>(
            {(const int8_t*)weight, weight_stride}, m, n, k, k, scratch,
            [&](int64_t row, int16_t* rows) {
                row_scales[row] = arrange_integers((const T*)x + row * x_stride, k, false, rows);
            },
            [&](int64_t row, int64_t first, int64_t count, const float* sums) {
                write((T*)out + row * out_stride + first, sums, row_scales[row], (const float*)scales + first,
                      bias ? (const T*)bias + first : nullptr, count);
            });
    });
}

// As linear_experts, for int8 weights: weight [experts, n, k] and scales float32 [experts, n], contiguous.
LLMK_EXPORT(linear_experts_int8)
(void* out, const void* x, int64_t x_stride, const int64_t* rows, const int64_t* offsets, const void* weight,
 const void* scales, const void* bias, int64_t experts, int64_t n, int64_t k, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        float* row_scales = static_cast<float*>(scratch_scales.get(sizeof(float) * offsets[experts]));
        multiply_experts<Int8Product>(
            [&](int64_t e) { return Int8Matrix{(const int8_t*)weight + e * n * k, k}; }, offsets, experts, n, k, k,
            scratch,
            [&](int64_t row, int16_t* to) {
                row_scales[row] = arrange_integers((const T*)x + rows[row] * x_stride, k, false, to);
            },
            [&](int64_t e, int64_t row, int64_t first, int64_t count, const float* sums) {
                write((T*)out + row * n + first, sums, row_scales[row], (const float*)scales + e * n + first,
                      bias ? (const T*)bias + e * n + first : nullptr, count);
            });
    });
}
