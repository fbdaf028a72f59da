// Products with 4-bit weights that have a scale, and perhaps a zero point, per group of inputs.

#include "integers.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr int kSymmetricZero = 8;

struct Int4Matrix {
    const uint8_t* data;   // [n, k / 2], the even input in the low half of a byte
    const void* scales;    // [n, groups]
    const uint8_t* zeros;  // [n, groups], or null: kSymmetricZero
    int64_t bytes, groups, group;
    int32_t scale_dtype;

    float scale(int64_t at) const {
        float found;
        by_dtype(scale_dtype, [&](auto none) { found = widen(static_cast<const decltype(none)*>(scales)[at]); });
        return found;
    }

    // Of the expert `e`, where the experts' matrices of n rows follow one another.
    Int4Matrix of(int64_t e, int64_t n) const {
        Int4Matrix found = *this;
        int64_t at = e * n * groups;
        found.data += e * n * bytes;
        by_dtype(scale_dtype, [&](auto none) { found.scales = static_cast<const decltype(none)*>(scales) + at; });
        if (zeros) found.zeros += at;
        return found;
    }
};

struct Int4Product {
    using Row = int16_t;
    using Weight = Int4Matrix;
    static constexpr int kStep = kBlock;
    static constexpr int tile_rows(int columns) {
        return int(smaller(LLMK_LEVEL::tile_rows(columns), columns == 1 ? 4 : 2));
    }

    template <int R, int C>
    static void tile(const Weight& weight, int64_t n, int64_t gap, int64_t begin, int64_t end, const int16_t* rows,
                     int64_t stride, float* out, int64_t out_stride) {
        F totals[R][C];
#pragma GCC unroll 8
        for (auto& row : totals) {
#pragma GCC unroll 8
            for (F& total : row) total = zero();
        }
        const uint8_t* w = weight.data + n * weight.bytes;
        int64_t ahead = weight.bytes;  // the next tile
        int64_t group = begin / weight.group, left = weight.group - begin % weight.group;
        for (int64_t i = begin; i < end; ++group, left = weight.group) {
            int64_t stop = smaller(i + left, end);
            Sums sums[R][C];
            int zeros[R];
            F scales[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                int64_t at = (n + r * gap) * weight.groups + group;
                scales[r] = set1(weight.scale(at));
                zeros[r] = weight.zeros ? weight.zeros[at] : kSymmetricZero;
#pragma GCC unroll 8
                for (Sums& sum : sums[r]) sum = no_sums();
            }
            for (; i < stop; i += kStep) {
                Block weights[R];
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const uint8_t* p = w + r * gap * weight.bytes + i / 2;
                    weights[r] = nibbles(p, zeros[r]);
                    __builtin_prefetch(p + ahead);
                }
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) {
                    Block x = numbers(rows + c * stride + i);
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) sums[r][c] = add_products(sums[r][c], weights[r], x);
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) totals[r][c] = fma(float_sums(sums[r][c]), scales[r], totals[r][c]);
            }
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) out[c * out_stride + r * gap] += sum(totals[r][c]);
        }
    }
};

thread_local Scratch scratch, scratch_scales;

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk

using namespace llmk;
using namespace llmk::LLMK_LEVEL;

// out = x weight^T + bias: x [m, k] and out [m, n] of `dtype`, bias [n] or null; the weight as in Int4Matrix, with scales
// of `scale_dtype`, contiguous; k / groups is a multiple of 32.
LLMK_EXPORT(linear_int4)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, const void* scales,
 const void* zeros, int64_t groups, const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype,
 int32_t scale_dtype) {
    float* row_scales = static_cast<float*>(scratch_scales.get(sizeof(float) * m));
    Int4Matrix matrix{(const uint8_t*)weight, scales, (const uint8_t*)zeros, k / 2, groups, k / groups, scale_dtype};
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        multiply<Int4Product>(
            matrix, m, n, k, k / 2, scratch,
            [&](int64_t row, int16_t* rows) {
                row_scales[row] = arrange_integers((const T*)x + row * x_stride, k, true, rows);
            },
            [&](int64_t row, int64_t first, int64_t count, const float* sums) {
                write((T*)out + row * out_stride + first, sums, row_scales[row], nullptr,
                      bias ? (const T*)bias + first : nullptr, count);
            });
    });
}

// As linear_experts, for int4 weights: as in linear_int4, those of all experts in turn.
LLMK_EXPORT(linear_experts_int4)
(void* out, const void* x, int64_t x_stride, const int64_t* rows, const int64_t* offsets, const void* weight,
 const void* scales, const void* zeros, int64_t groups, const void* bias, int64_t experts, int64_t n, int64_t k,
 int32_t dtype, int32_t scale_dtype) {
    float* row_scales = static_cast<float*>(scratch_scales.get(sizeof(float) * offsets[experts]));
    Int4Matrix first{(const uint8_t*)weight, scales, (const uint8_t*)zeros, k / 2, groups, k / groups, scale_dtype};
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        multiply_experts<Int4Product>(
            [&](int64_t e, Int4Matrix& own) { own = first.of(e, n); }, offsets, experts, n, k, k / 2, scratch,
            [&](int64_t row, int16_t* to) {
                row_scales[row] = arrange_integers((const T*)x + rows[row] * x_stride, k, true, to);
            },
            [&](int64_t e, int64_t row, int64_t at, int64_t count, const float* sums) {
                write((T*)out + row * n + at, sums, row_scales[row], nullptr,
                      bias ? (const T*)bias + e * n + at : nullptr, count);
            });
    });
}
