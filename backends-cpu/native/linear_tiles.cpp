// Products with weights of 8 bits that have a scale, and perhaps a zero point, per group of inputs, on processors with
// AVX512-VNNI. Sixteen rows are stored together (pack_tiles): a vector has numbers of all of them, so that sums need no
// sum over a vector, and a thread reads one stream of memory.

#include "tiles.h"

namespace llmk::LLMK_LEVEL::linear_tiles {
namespace {

constexpr int kLine = 64;                   // bytes of four inputs of a tile
constexpr int kPart = 16;                   // inputs of the smallest group
constexpr int64_t kMost = kInputs / kPart;  // groups of a tile
constexpr int64_t kAhead = 4096;            // bytes

inline __m512i repeated(const int8_t* four) {
    int32_t bits;
    memcpy(&bits, four, sizeof bits);
    return _mm512_set1_epi32(bits);
}

struct TileProduct : Halves<kPart> {
    using Row = int8_t;
    using Weight = TiledMatrix;
    static constexpr int kTogether = LLMK_LEVEL::kTogether;

    // The products of Inputs inputs of a tile and C rows, as whole numbers.
    template <int C, int Inputs>
    static inline void multiply(__m512i (&sums)[C], const uint8_t* w, const int8_t* x, int64_t stride) {
        __m512i high[C], low[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) high[c] = low[c] = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int i = 0; i < Inputs; i += 4, w += kLine) {
            __m512i numbers = _mm512_loadu_si512(w);
            __builtin_prefetch(w + kAhead);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                const int8_t* own = x + c * stride + i;
                high[c] = _mm512_dpbusd_epi32(high[c], numbers, repeated(own));
                low[c] = _mm512_dpbusd_epi32(low[c], numbers, repeated(own + kBlock));
            }
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) sums[c] = _mm512_add_epi32(_mm512_slli_epi32(high[c], 8), low[c]);
    }

    // Adds the products of the inputs from `begin` to `end`, times their scales, by Inputs inputs, of which a group has
    // a multiple. `x` and `inputs` are those of `begin`: bytes of arranged rows, and sums of kPart inputs.
    template <int C, int Inputs>
    static void add_groups(F (&totals)[C], const uint8_t* w, const int8_t* x, const int8_t* inputs, int64_t stride,
                           const float* scales, const float* zeros, int64_t group, int64_t begin, int64_t end) {
        F found[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) found[c] = totals[c];
        for (int64_t at = begin, left = group - begin % group; at < end; at += Inputs) {
            __m512i sums[C];
            multiply<C, Inputs>(sums, w, x, stride);
            F scale = load(scales);
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                int32_t parts[Inputs / kPart], total = 0;
                memcpy(parts, inputs + c * stride, sizeof parts);
                for (int32_t part : parts) total += part;
                F sum{_mm512_cvtepi32_ps(_mm512_sub_epi32(sums[c], _mm512_set1_epi32(kOffset * total)))};
                if (zeros) sum = sum - load(zeros) * set1(float(total));
                found[c] = fma(sum, scale, found[c]);
            }
            w += Inputs * kTogether, inputs += Inputs / kPart * sizeof(int32_t);
            x += Inputs == kBlock || (at + Inputs) % kBlock == 0 ? kBlock + Inputs : Inputs;
            if ((left -= Inputs) > 0) continue;
            scales += kTogether, left = group;
            if (zeros) zeros += kTogether;
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
        const uint8_t* w = weight.data + n * weight.bytes + begin * kTogether;
        const int8_t* inputs = rows + 2 * weight.bytes + begin / kPart * sizeof(int32_t);
        F totals[C];
#pragma GCC unroll 8
        for (F& total : totals) total = zero();
        auto add = weight.group % kBlock ? &add_groups<C, kPart> : &add_groups<C, kBlock>;
        add(totals, w, rows + 2 * begin, inputs, stride, scales, weight.zeros ? zeros : nullptr, weight.group, begin, end);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
            float* to = out + c * out_stride;
            store(to, load(to, count) + totals[c], count);
        }
    }
};

// out[0, k) = a row of the weight.
template <class T>
void widen_row(const TiledMatrix& weight, int64_t row, T* out) {
    int64_t tile = row / kTogether, in_tile = row % kTogether, k = weight.bytes;
    const uint8_t* w = weight.data + tile * kTogether * k + in_tile * 4;
    for (int64_t i = 0; i < k; i += kPart, w += kPart * kTogether) {
        float scale, zero = 0, whole[kPart];
        int64_t at = (tile * weight.groups + i / weight.group) * kTogether + in_tile;
        widen(weight.scales, weight.scale_dtype, at, 1, &scale);
        if (weight.zeros) widen(weight.zeros, weight.zero_dtype, at, 1, &zero);
        for (int j = 0; j < kPart; ++j) whole[j] = float(w[j / 4 * kLine + j % 4] - kOffset);
        store(out + i, (load(whole) - set1(zero)) * set1(scale));
    }
}

thread_local Scratch scratch, scratch_scales;

}  // namespace

// Stores sixteen rows together: of every four inputs, four bytes of each row, which are the numbers plus kOffset. from
// int8 [n, k]; out has rows of zeros up to a multiple of sixteen. k is a multiple of 4.
LLMK_EXPORT(pack_tiles)(uint8_t* out, const int8_t* from, int64_t n, int64_t k) {
    parallel_for(pieces(n, kTogether), 16, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin * kTogether; row < end * kTogether; ++row) {
            uint8_t* to = out + row / kTogether * kTogether * k + row % kTogether * 4;
            for (int64_t i = 0; i < k; i += 4, to += kLine) {
                uint32_t four = 0;
                if (row < n) memcpy(&four, from + row * k + i, sizeof four);
                four ^= 0x80808080u;  // plus kOffset
                memcpy(to, &four, sizeof four);
            }
        }
    });
}
LLMK_WORDS(pack_tiles)

// out = x weight^T + bias: x [m, k] and out [m, n] of `dtype`, bias [n] or null; the weight as pack_tiles stores it, with
// scales and zero points as in TiledMatrix, without which 0 represents zero; k / groups is a multiple of 32, or 16.
LLMK_EXPORT(linear_tiles)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, const void* scales,
 const void* zeros, int64_t groups, const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype,
 int32_t scale_dtype, int32_t zero_dtype) {
    TiledMatrix matrix{(const uint8_t*)weight, scales, zeros, k, groups, k / groups, scale_dtype, zero_dtype};
    multiply_scaled<TileProduct>(matrix, out, out_stride, x, x_stride, bias, m, n, k, k, dtype, scratch, scratch_scales);
}
LLMK_WORDS(linear_tiles)

// out[i] = the weight's row rows[i], or i where `rows` is null: out [count, k] in `dtype`, rounded once.
LLMK_EXPORT(widen_tiles)
(void* out, const void* weight, const void* scales, const void* zeros, int64_t groups, const int64_t* rows,
 int64_t count, int64_t k, int32_t dtype, int32_t scale_dtype, int32_t zero_dtype) {
    TiledMatrix matrix{(const uint8_t*)weight, scales, zeros, k, groups, k / groups, scale_dtype, zero_dtype};
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        parallel_for(count, 16, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) widen_row(matrix, rows ? rows[i] : i, (T*)out + i * k);
        });
    });
}
LLMK_WORDS(widen_tiles)

}  // namespace llmk::LLMK_LEVEL::linear_tiles
