// Products with weights of 4 bits that have a scale, and perhaps a zero point, per group of inputs. Rows of a tile are stored
// together (pack_int4), so that a vector has numbers of all of them, and a block's sums need no sum over a vector.

#include "nibbles.h"

namespace llmk::LLMK_LEVEL::linear_int4 {
namespace {

constexpr int64_t kMost = kInputs / kBlock;  // groups of a tile
constexpr int64_t kTileBytes = kTogether * kBlock / 2;  // of a block

struct NibbleProduct : Halves<kBlock> {
    using Row = int8_t;
    using Weight = TiledMatrix;
    static constexpr int kTogether = LLMK_LEVEL::kTogether;

    // Adds the products of a block of a tile to the sums of C rows.
    template <int C>
    static inline void add_block(Ints (&sums)[C], const uint8_t* w, const int8_t* x, int64_t stride) {
        Partial high_bytes[C], low_bytes[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) high_bytes[c] = low_bytes[c] = no_partial();
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i, w += kTileBytes / 4, x += 8) {
            Bytes numbers = bytes(w), first = low(numbers), second = high(numbers);
            if (i * kTileBytes / 4 % 64 == 0) __builtin_prefetch(w + kAhead);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const int8_t* own = x + c * stride;
                high_bytes[c] = add(add(high_bytes[c], first, own), second, own + 4);
                low_bytes[c] = add(add(low_bytes[c], first, own + kBlock), second, own + kBlock + 4);
            }
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[c] += (totals(high_bytes[c]) << 8) + totals(low_bytes[c]);
    }

    // Adds those of all groups from input `begin` to `end`, times their scales. A group is a block, or any number of
    // them; without zero points (null), they are kSymmetricZero. `Zeros`: whether there are, where groups are blocks.
    template <int C, bool IsBlock, bool Zeros>
    static void add_groups(Floats (&totals)[C], const uint8_t* w, const int8_t* x, const int8_t* inputs, int64_t stride,
                           const float* scales, const float* zeros, int64_t group, int64_t begin, int64_t end) {
        Floats found[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) found[c] = totals[c];
        int64_t blocks = (end - begin) / kBlock, left = (group - begin % group) / kBlock, done = 0;
        while (blocks > 0) {
            Ints sums[C];
            int32_t of_inputs[C];
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) sums[c] = all(0), of_inputs[c] = 0;
            for (int64_t n = IsBlock ? 1 : smaller(left, blocks); n > 0; --n, --blocks) {
                add_block<C>(sums, w, x, stride);
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) {
                    int32_t more;
                    memcpy(&more, inputs + c * stride, sizeof more);
                    of_inputs[c] += more;
                }
                w += kTileBytes, x += 2 * kBlock, inputs += sizeof(int32_t);
            }
            left = group / kBlock;
            Floats scale = floats_at(scales + done);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                if (IsBlock ? Zeros : zeros != nullptr) {
                    found[c] += (widened(sums[c]) - floats_at(zeros + done) * all(float(of_inputs[c]))) * scale;
                } else {
                    found[c] += widened(sums[c] - all(kSymmetricZero * of_inputs[c])) * scale;
                }
            }
            done += kTogether;
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) totals[c] = found[c];
    }

    template <int C>
    static void tile(const Weight& weight, int64_t n, int64_t count, int64_t begin, int64_t end, const int8_t* rows,
                     int64_t stride, float* out, int64_t out_stride) {
        float scales[kMost * kTogether], zeros[kMost * kTogether];
        int64_t first = begin / weight.group, groups = (end - 1) / weight.group + 1 - first;
        int64_t at = (n / kTogether * weight.groups + first) * kTogether;
        widen(weight.scales, weight.scale_dtype, at, groups * kTogether, scales);
        if (weight.zeros) widen(weight.zeros, weight.zero_dtype, at, groups * kTogether, zeros);
        const uint8_t* w = weight.data + n * weight.bytes + begin / kBlock * kTileBytes;
        const int8_t* x = rows + 2 * begin;
        const int8_t* inputs = rows + 2 * weight.groups * weight.group + begin / kBlock * sizeof(int32_t);
        Floats totals[C];
#pragma GCC unroll 8
        for (Floats& total : totals) total = all(0.f);
        auto add_all = [&](auto is_block, auto has_zeros) {
            add_groups<C, is_block.value, has_zeros.value>(totals, w, x, inputs, stride, scales,
                                                           weight.zeros ? zeros : nullptr, weight.group, begin, end);
        };
        if (weight.group != kBlock) {
            add_all(std::false_type(), std::false_type());
        } else if (weight.zeros) {
            add_all(std::true_type(), std::true_type());
        } else {
            add_all(std::true_type(), std::false_type());
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            float each[kTogether];
            memcpy(each, &totals[c], sizeof each);
            for (int64_t r = 0; r < count; ++r) out[c * out_stride + r] += each[r];
        }
    }

    static constexpr int64_t kAhead = LLMK_LEVEL::kTogether == 16 ? 4096 : 1024;  // bytes
};

// out[0, k) = a row of the weight.
template <class T>
void widen_row(const TiledMatrix& weight, int64_t row, T* out) {
    int64_t tile = row / kTogether, in_tile = row % kTogether, k = weight.groups * weight.group;
    const uint8_t* w = weight.data + tile * kTogether * weight.bytes + in_tile * 4;
    for (int64_t i = 0; i < k; i += kBlock, w += kTileBytes) {
        float scale, zero = float(kSymmetricZero), whole[kBlock];
        int64_t at = (tile * weight.groups + i / weight.group) * kTogether + in_tile;
        widen(weight.scales, weight.scale_dtype, at, 1, &scale);
        if (weight.zeros) widen(weight.zeros, weight.zero_dtype, at, 1, &zero);
        for (int j = 0; j < kBlock; ++j) {
            uint8_t both = w[j / 8 * (kTileBytes / 4) + j % 4];
            whole[j] = float(j % 8 < 4 ? both & 15 : both >> 4);
        }
        for (int j = 0; j < kBlock; j += F::N) store(out + i + j, (load(whole + j) - set1(zero)) * set1(scale));
    }
}

thread_local Scratch scratch, scratch_scales;

}  // namespace

// How many rows pack_int4 stores together.
LLMK_EXPORT(tile_int4)(int64_t* rows) { *rows = kTogether; }
LLMK_WORDS(tile_int4)

// Stores kTogether rows together: of every eight inputs, the first four of each row in the low halves of four bytes, and
// the other four in their high halves. from [n, k / 2], two numbers to a byte, the even input in the low half; out has
// rows of zeros up to a multiple of kTogether. k is a multiple of 32.
LLMK_EXPORT(pack_int4)(uint8_t* out, const uint8_t* from, int64_t n, int64_t k) {
    int64_t bytes = k / 2, tiles = pieces(n, kTogether);
    parallel_for(tiles, 64, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin * kTogether; row < end * kTogether; ++row) {
            const uint8_t* p = from + row * bytes;
            uint8_t* to = out + row / kTogether * kTogether * bytes + row % kTogether * 4;
            for (int64_t i = 0; i < bytes; i += 4, to += kTogether * 4) {
                uint8_t four[4] = {};
                if (row < n) memcpy(four, p + i, sizeof four);
                to[0] = uint8_t((four[0] & 15) | four[2] << 4), to[1] = uint8_t(four[0] >> 4 | (four[2] & 0xf0));
                to[2] = uint8_t((four[1] & 15) | four[3] << 4), to[3] = uint8_t(four[1] >> 4 | (four[3] & 0xf0));
            }
        }
    });
}
LLMK_WORDS(pack_int4)

// out = x weight^T + bias: x [m, k] and out [m, n] of `dtype`, bias [n] or null; the weight as pack_int4 stores it, with
// scales and zero points as in TiledMatrix; k / groups is a multiple of 32.
LLMK_EXPORT(linear_int4)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, const void* scales,
 const void* zeros, int64_t groups, const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype,
 int32_t scale_dtype, int32_t zero_dtype) {
    TiledMatrix matrix{(const uint8_t*)weight, scales, zeros, k / 2, groups, k / groups, scale_dtype, zero_dtype};
    multiply_scaled<NibbleProduct>(matrix, out, out_stride, x, x_stride, bias, m, n, k, k / 2, dtype, scratch, scratch_scales);
}
LLMK_WORDS(linear_int4)

// As linear_experts, for weights as in linear_int4: those of all experts in turn, of n rows, a multiple of kTogether.
LLMK_EXPORT(linear_experts_int4)
(void* out, const void* x, int64_t x_stride, const int64_t* rows, const int64_t* offsets, const void* weight,
 const void* scales, const void* zeros, int64_t groups, const void* bias, int64_t experts, int64_t n, int64_t k,
 int32_t dtype, int32_t scale_dtype, int32_t zero_dtype) {
    float* row_scales = static_cast<float*>(scratch_scales.get(sizeof(float) * offsets[experts]));
    TiledMatrix first{(const uint8_t*)weight, scales, zeros, k / 2, groups, k / groups, scale_dtype, zero_dtype};
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        multiply_experts<NibbleProduct>(
            [&](int64_t e, TiledMatrix& own) { own = first.of(e, n); }, offsets, experts, n, k, k / 2, scratch,
            [&](int64_t row, int8_t* to) {
                row_scales[row] = NibbleProduct::arrange((const T*)x + rows[row] * x_stride, k, to);
            },
            [&](int64_t e, int64_t row, int64_t at, int64_t count, const float* sums) {
                write((T*)out + row * n + at, sums, row_scales[row], nullptr,
                      bias ? (const T*)bias + e * n + at : nullptr, count);
            });
    });
}
LLMK_WORDS(linear_experts_int4)

// out[i] = the weight's row rows[i], or i where `rows` is null: out [count, k] in `dtype`, rounded once.
LLMK_EXPORT(widen_int4)
(void* out, const void* weight, const void* scales, const void* zeros, int64_t groups, const int64_t* rows,
 int64_t count, int64_t k, int32_t dtype, int32_t scale_dtype, int32_t zero_dtype) {
    TiledMatrix matrix{(const uint8_t*)weight, scales, zeros, k / 2, groups, k / groups, scale_dtype, zero_dtype};
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        parallel_for(count, 8, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) widen_row(matrix, rows ? rows[i] : i, (T*)out + i * k);
        });
    });
}
LLMK_WORDS(widen_int4)

}  // namespace llmk::LLMK_LEVEL::linear_int4
