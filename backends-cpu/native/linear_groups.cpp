// Products with weights of 8 bits that have a scale, and perhaps a zero point, per group of inputs.

#include "groups.h"

namespace llmk::LLMK_LEVEL::linear_groups {
namespace {

constexpr int kSmallest = 16;                   // inputs of a group
constexpr int64_t kMost = kInputs / kSmallest;  // groups of a tile

// [n, k] numbers, and [n, groups] scales and zero points.
struct GroupedMatrix {
    const int8_t* data;
    const void* scales;
    const void* zeros;  // null: 0
    int64_t k, groups, group;
    int32_t scale_dtype, zero_dtype;

    // Of the expert `e`, where the experts' matrices of n rows follow one another.
    GroupedMatrix of(int64_t e, int64_t n) const {
        GroupedMatrix found = *this;
        int64_t at = e * n * groups;
        found.data += e * n * k;
        found.scales = element(scales, scale_dtype, at), found.zeros = element(zeros, zero_dtype, at);
        return found;
    }
};

// Multiplies as if all zero points were 0, then subtracts what they add: scale times zero point times the sum of the
// group's inputs. These sums follow an arranged row, as floats: those of blocks, then those of groups of kSmallest.
struct GroupProduct {
    using Row = int16_t;
    using Weight = GroupedMatrix;
    static constexpr int kStep = kBlock;
    static constexpr int64_t length(int64_t k) {
        return k + (k / kBlock + k / kSmallest) * int64_t(sizeof(float) / sizeof(Row));
    }
    static constexpr int tile_rows(int columns) {
        return int(smaller(LLMK_LEVEL::tile_rows(columns), columns == 1 ? 4 : 2));
    }

    template <class T>
    static float arrange(const T* x, int64_t k, int16_t* out) {
        float scale = arrange_integers(x, k, out);
        auto blocks = reinterpret_cast<float*>(out + k), parts = blocks + k / kBlock;
        for (int64_t i = 0; i < k; i += kSmallest) {
            int sum = 0;
            for (int64_t j = i; j < i + kSmallest; ++j) sum += out[j];
            parts[i / kSmallest] = float(sum);
        }
        for (int64_t i = 0; i < k / kBlock; ++i) blocks[i] = parts[2 * i] + parts[2 * i + 1];
        return scale;
    }

    // Adds the products of a block to sums, which are none before the first.
    template <int R, int C, bool First>
    static inline void add_block(Sums (&sums)[R][C], const int8_t* (&w)[R], const int16_t* x, int64_t stride,
                                 int64_t ahead) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            Block weights = numbers(w[r]);
            __builtin_prefetch(w[r] + ahead);  // of the next tile
            w[r] += kBlock;
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                sums[r][c] = add_products(First ? no_sums() : sums[r][c], weights, numbers(x + c * stride));
            }
        }
    }

    // Adds the products of a group of some blocks, times its scales.
    template <int R, int C>
    static inline void add_group(F (&totals)[R][C], const int8_t* (&w)[R], const float (&scales)[R][kMost],
                                 int64_t group, const int16_t* x, int64_t stride, int64_t blocks, int64_t ahead) {
        Sums sums[R][C];
        add_block<R, C, true>(sums, w, x, stride, ahead);
        for (int64_t block = 1; block < blocks; ++block) {
            add_block<R, C, false>(sums, w, x + block * kBlock, stride, ahead);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            F scale = set1(scales[r][group]);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) totals[r][c] = fma(float_sums(sums[r][c]), scale, totals[r][c]);
        }
    }

    // Adds the products of blocks that have two groups each, times their scales.
    template <int R, int C>
    static inline void add_small_groups(F (&totals)[R][C], const int8_t* (&w)[R], const float (&scales)[R][kMost],
                                        const int16_t* x, int64_t stride, int64_t blocks, int64_t ahead) {
        for (int64_t block = 0; block < blocks; ++block, x += kBlock) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                Block weights = numbers(w[r]);
                __builtin_prefetch(w[r] + ahead);
                w[r] += kBlock;
                F scale = pair_scales(scales[r][2 * block], scales[r][2 * block + 1]);
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) {
                    Sums sums = add_pairs(no_sums(), weights, numbers(x + c * stride));
                    totals[r][c] = fma(float_sums(sums), scale, totals[r][c]);
                }
            }
        }
    }

    template <int R, int C>
    static void tile(const Weight& weight, int64_t n, int64_t gap, int64_t begin, int64_t end, const int16_t* rows,
                     int64_t stride, float* out, int64_t out_stride) {
        float scales[R][kMost];
        int64_t first = begin / weight.group, groups = (end - 1) / weight.group + 1 - first;
        F totals[R][C];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            widen(weight.scales, weight.scale_dtype, (n + r * gap) * weight.groups + first, groups, scales[r]);
#pragma GCC unroll 8
            for (F& total : totals[r]) total = zero();
        }
        const int8_t* w[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) w[r] = weight.data + (n + r * gap) * weight.k + begin;
        const int16_t* x = rows + begin;
        if (weight.group == kSmallest) {
            add_small_groups<R, C>(totals, w, scales, x, stride, (end - begin) / kBlock, weight.k);
        } else {
            int64_t left = weight.group - begin % weight.group;
            for (int64_t group = 0, i = begin; i < end; ++group, i += left, left = weight.group) {
                int64_t blocks = smaller(left, end - i) / kBlock;
                add_group<R, C>(totals, w, scales, group, x, stride, blocks, weight.k);
                x += blocks * kBlock;
            }
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) out[c * out_stride + r * gap] += sum(totals[r][c]);
        }
        if (weight.zeros) {
            for (int c = 0; c < C; ++c) {
                float space[kMost];
                const float* inputs = group_sums(weight, begin, end, groups, rows + c * stride, space);
                for (int r = 0; r < R; ++r) {
                    int64_t at = (n + r * gap) * weight.groups + first;
                    out[c * out_stride + r * gap] -= zero_offset(weight, at, groups, scales[r], inputs);
                }
            }
        }
    }

    // The sums of a row's inputs from `begin` to `end` by group, perhaps in `space`.
    static const float* group_sums(const Weight& weight, int64_t begin, int64_t end, int64_t groups, const int16_t* row,
                                   float* space) {
        auto blocks = reinterpret_cast<const float*>(row + weight.groups * weight.group);
        if (weight.group == kBlock) return blocks + begin / kBlock;
        if (weight.group == kSmallest) return blocks + weight.groups * weight.group / kBlock + begin / kSmallest;
        int64_t i = begin, left = weight.group - begin % weight.group;
        for (int64_t group = 0; group < groups; ++group, left = weight.group) {
            space[group] = 0;
            for (int64_t stop = smaller(i + left, end); i < stop; i += kBlock) space[group] += blocks[i / kBlock];
        }
        return space;
    }

    // What zero points add to a sum; `inputs` are the sums of the inputs by group.
    static float zero_offset(const Weight& weight, int64_t at, int64_t groups, const float* scales, const float* inputs) {
        float zeros[kMost];
        widen(weight.zeros, weight.zero_dtype, at, groups, zeros);
        F total = zero();
        int64_t i = 0;
        for (; i + F::N <= groups; i += F::N) {
            total = fma(load(scales + i) * load(zeros + i), load(inputs + i), total);
        }
        if (int64_t left = groups - i) {
            total = fma(load(scales + i, left) * load(zeros + i, left), load(inputs + i, left), total);
        }
        return sum(total);
    }
};

// `count` numbers, a multiple of 16, as floats.
inline void widen_numbers(const int8_t* p, int64_t count, float* out) {
    typedef int8_t Bytes __attribute__((vector_size(16)));
    typedef float Floats __attribute__((vector_size(64)));
    for (int64_t i = 0; i < count; i += 16) {
        Bytes bytes;
        memcpy(&bytes, p + i, sizeof bytes);
        Floats floats = __builtin_convertvector(bytes, Floats);
        memcpy(out + i, &floats, sizeof floats);
    }
}

template <class T>
void widen_row(const GroupedMatrix& weight, int64_t row, T* out) {
    float scales[kMost], zeros[kMost] = {};
    const int8_t* p = weight.data + row * weight.k;
    int64_t step = smaller(weight.group, kBlock);
    for (int64_t i = 0; i < weight.k;) {
        int64_t first = i / weight.group, groups = smaller(kMost, weight.groups - first);
        widen(weight.scales, weight.scale_dtype, row * weight.groups + first, groups, scales);
        if (weight.zeros) widen(weight.zeros, weight.zero_dtype, row * weight.groups + first, groups, zeros);
        for (int64_t group = 0; group < groups; ++group) {
            F scale = set1(scales[group]), least = set1(zeros[group]);
            for (int64_t end = i + weight.group; i < end; i += step) {
                float whole[kBlock];
                widen_numbers(p + i, step, whole);
                for (int64_t j = 0; j < step; j += F::N) store(out + i + j, (load(whole + j) - least) * scale);
            }
        }
    }
}

thread_local Scratch scratch, scratch_scales;

}  // namespace

// out = x weight^T + bias: x [m, k] and out [m, n] of `dtype`, bias [n] or null; the weight as in GroupedMatrix, all
// contiguous; k / groups is a multiple of 32, or 16.
LLMK_EXPORT(linear_groups)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, const void* scales,
 const void* zeros, int64_t groups, const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype,
 int32_t scale_dtype, int32_t zero_dtype) {
    GroupedMatrix matrix{(const int8_t*)weight, scales, zeros, k, groups, k / groups, scale_dtype, zero_dtype};
    multiply_scaled<GroupProduct>(matrix, out, out_stride, x, x_stride, bias, m, n, k, k, dtype, scratch, scratch_scales);
}
LLMK_WORDS(linear_groups)

// As linear_experts, for weights as in linear_groups: those of all experts in turn.
LLMK_EXPORT(linear_experts_groups)
(void* out, const void* x, int64_t x_stride, const int64_t* rows, const int64_t* offsets, const void* weight,
 const void* scales, const void* zeros, int64_t groups, const void* bias, int64_t experts, int64_t n, int64_t k,
 int32_t dtype, int32_t scale_dtype, int32_t zero_dtype) {
    float* row_scales = static_cast<float*>(scratch_scales.get(sizeof(float) * offsets[experts]));
    GroupedMatrix first{(const int8_t*)weight, scales, zeros, k, groups, k / groups, scale_dtype, zero_dtype};
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        multiply_experts<GroupProduct>(
            [&](int64_t e, GroupedMatrix& own) { own = first.of(e, n); }, offsets, experts, n, k, k, scratch,
            [&](int64_t row, int16_t* to) {
                row_scales[row] = GroupProduct::arrange((const T*)x + rows[row] * x_stride, k, to);
            },
            [&](int64_t e, int64_t row, int64_t at, int64_t count, const float* sums) {
                write((T*)out + row * n + at, sums, row_scales[row], nullptr,
                      bias ? (const T*)bias + e * n + at : nullptr, count);
            });
    });
}
LLMK_WORDS(linear_experts_groups)

// out[i] = the weight's row rows[i], or i where `rows` is null: out [count, k] in `dtype`, rounded once.
LLMK_EXPORT(widen_groups)
(void* out, const void* weight, const void* scales, const void* zeros, int64_t groups, const int64_t* rows,
 int64_t count, int64_t k, int32_t dtype, int32_t scale_dtype, int32_t zero_dtype) {
    GroupedMatrix matrix{(const int8_t*)weight, scales, zeros, k, groups, k / groups, scale_dtype, zero_dtype};
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        parallel_for(count, 8, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) widen_row(matrix, rows ? rows[i] : i, (T*)out + i * k);
        });
    });
}
LLMK_WORDS(widen_groups)

}  // namespace llmk::LLMK_LEVEL::linear_groups
