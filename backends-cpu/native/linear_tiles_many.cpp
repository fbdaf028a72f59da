// Products of many rows with weights of 4 and 8 bits of which rows are stored together (linear_int4.cpp,
// linear_tiles.cpp). They are widened where blocks of the weight are copied.

#include "many.h"
#include "tiles.h"

namespace llmk::LLMK_LEVEL::linear_tiles_many {
namespace {

constexpr int kPart = 16;  // inputs that have a scale

// Stores what a tile's rows have at Inputs neighbouring inputs, as words that are kWide apart.
template <class T, int Inputs>
inline void store_words(const Floats (&values)[Inputs], float* out) {
    if constexpr (Words<T>::kEach == 1) {
#pragma GCC unroll 16
        for (int i = 0; i < Inputs; ++i) memcpy(out + i * kWide, &values[i], sizeof(Floats));
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < Inputs; i += 2) {
            F pair[2];
            memcpy(pair, &values[i], sizeof pair);
            Words<T>::store_pair(pair[0], pair[1], out + i / 2 * kWide);
        }
    }
}

// The values of a tile's rows at kPart inputs from w on, of Bits bits each.
template <int Bits>
inline void widen_part(const uint8_t* w, Floats scale, Floats zero, Floats (&out)[kPart]) {
    constexpr int kEach = 32 / Bits, kNibbles = Bits == 4;
    constexpr bool kLittle = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;
#pragma GCC unroll 4
    for (int i = 0; i < kPart; i += kEach, w += sizeof(Ints)) {
        Ints numbers;
        memcpy(&numbers, w, sizeof numbers);
#pragma GCC unroll 8
        for (int j = 0; j < kEach; ++j) {
            int byte = kLittle ? j % 4 : 3 - j % 4, shift = 8 * byte + (kNibbles ? j / 4 * 4 : 0);
            out[i + j] = (widened((numbers >> shift) & ((1 << Bits) - 1)) - zero) * scale;
        }
    }
}

// A weight of n rows.
template <class T, int Bits>
struct TiledSource {
    TiledMatrix weight;
    int64_t n;

    void copy(int64_t first, int64_t begin, int64_t size, float* out) const {
        for (int64_t side = 0; side < kWide; side += kTogether, out += kTogether) {
            if (first + side < n) {
                copy_tile(first + side, begin, size, out);
            } else {
                for (int64_t i = 0; i < size / Words<T>::kEach; ++i) memset(out + i * kWide, 0, sizeof(Floats));
            }
        }
    }

    void copy_tile(int64_t row, int64_t begin, int64_t size, float* out) const {
        float scales[kTogether], zeros[kTogether] = {};
        const uint8_t* w = weight.data + row * weight.bytes + begin * kTogether * Bits / 8;
        for (int64_t i = begin; i < begin + size; i += kPart, w += kPart * kTogether * Bits / 8) {
            if (i == begin || i % weight.group == 0) {
                int64_t at = row * weight.groups + i / weight.group * kTogether;
                widen(weight.scales, weight.scale_dtype, at, kTogether, scales);
                if (weight.zeros) widen(weight.zeros, weight.zero_dtype, at, kTogether, zeros);
            }
            float symmetric = Bits == 8 ? kOffset : weight.zeros ? 0 : kSymmetricZero;
            Floats values[kPart];
            widen_part<Bits>(w, floats_at(scales), floats_at(zeros) + symmetric, values);
            store_words<T>(values, out + (i - begin) / Words<T>::kEach * kWide);
        }
    }
};

template <int Bits>
void multiply_tiles(void* out, int64_t out_stride, const void* x, int64_t x_stride, const TiledMatrix& weight,
                    const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype) {
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        TiledSource<T, Bits> source{weight, n};
        multiply_many(source, (T*)out, out_stride, (const T*)x, x_stride, (const T*)bias, m, n, k);
    });
}

}  // namespace

// As linear_int4, for many rows.
LLMK_EXPORT(linear_int4_many)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, const void* scales,
 const void* zeros, int64_t groups, const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype,
 int32_t scale_dtype, int32_t zero_dtype) {
    TiledMatrix matrix{(const uint8_t*)weight, scales, zeros, k / 2, groups, k / groups, scale_dtype, zero_dtype};
    multiply_tiles<4>(out, out_stride, x, x_stride, matrix, bias, m, n, k, dtype);
}
LLMK_WORDS(linear_int4_many)

// As linear_tiles, for many rows; of use where there is that kernel.
LLMK_EXPORT(linear_tiles_many)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, const void* scales,
 const void* zeros, int64_t groups, const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype,
 int32_t scale_dtype, int32_t zero_dtype) {
    TiledMatrix matrix{(const uint8_t*)weight, scales, zeros, k, groups, k / groups, scale_dtype, zero_dtype};
    multiply_tiles<8>(out, out_stride, x, x_stride, matrix, bias, m, n, k, dtype);
}
LLMK_WORDS(linear_tiles_many)

}  // namespace llmk::LLMK_LEVEL::linear_tiles_many
