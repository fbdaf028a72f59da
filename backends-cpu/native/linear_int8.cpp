// Products with int8 weights that have a scale per output.

#include "integers.h"

namespace llmk::LLMK_LEVEL::linear_int8 {
namespace {

// 32 bits hold the sums of kInputs products, which F::N or more elements share: 128 of at most 2^22.
struct Int8Steps {
    using Element = int8_t;
    using Row = int16_t;
    using Sum = Sums;
    static constexpr int kStep = kBlock;

    static Sums none() { return no_sums(); }
    static float total(Sums sums) { return sum(float_sums(sums)); }

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
};

using Int8Product = Rowwise<Int8Steps>;

thread_local Scratch scratch, scratch_scales;

}  // namespace

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
                row_scales[row] = arrange_integers((const T*)x + row * x_stride, k, rows);
            },
            [&](int64_t row, int64_t first, int64_t count, const float* sums) {
                write((T*)out + row * out_stride + first, sums, row_scales[row], (const float*)scales + first,
                      bias ? (const T*)bias + first : nullptr, count);
            });
    });
}
LLMK_WORDS(linear_int8)

// As linear_experts, for int8 weights: weight [experts, n, k] and scales float32 [experts, n], contiguous.
LLMK_EXPORT(linear_experts_int8)
(void* out, const void* x, int64_t x_stride, const int64_t* rows, const int64_t* offsets, const void* weight,
 const void* scales, const void* bias, int64_t experts, int64_t n, int64_t k, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        float* row_scales = static_cast<float*>(scratch_scales.get(sizeof(float) * offsets[experts]));
        multiply_experts<Int8Product>(
            [&](int64_t e, Int8Product::Weight& out) { out = {(const int8_t*)weight + e * n * k, k}; }, offsets, experts,
            n, k, k, scratch,
            [&](int64_t row, int16_t* to) {
                row_scales[row] = arrange_integers((const T*)x + rows[row] * x_stride, k, to);
            },
            [&](int64_t e, int64_t row, int64_t first, int64_t count, const float* sums) {
                write((T*)out + row * n + first, sums, row_scales[row], (const float*)scales + e * n + first,
                      bias ? (const T*)bias + e * n + first : nullptr, count);
            });
    });
}
LLMK_WORDS(linear_experts_int8)

}  // namespace llmk::LLMK_LEVEL::linear_int8
