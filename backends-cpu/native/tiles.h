// What products with tiles share: weights of which kTogether rows are stored together, so that a vector has numbers of
// all of them. Rows of x become 16-bit integers as high and low bytes, both signed, by which bytes of the weight are
// multiplied.
#pragma once

#include "groups.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

#if defined(__AVX512F__) && !defined(LLMK_PLAIN)
constexpr int kTogether = 16;
#else
constexpr int kTogether = 8;
#endif
constexpr int32_t kSymmetricZero = 8;  // of 4 bits
constexpr int32_t kOffset = 128;       // what is added to signed numbers of 8 bits

typedef int32_t Ints __attribute__((vector_size(4 * kTogether)));
typedef float Floats __attribute__((vector_size(4 * kTogether)));

inline Floats all(float x) { return Floats{} + x; }
inline Ints all(int32_t x) { return Ints{} + x; }
inline Floats widened(Ints x) { return __builtin_convertvector(x, Floats); }
inline Floats floats_at(const float* p) {
    Floats out;
    memcpy(&out, p, sizeof out);
    return out;
}

constexpr float kLargestHalves = 32639.f;  // of which both bytes are signed: 127 * 256 + 127

// Numbers, and scales and zero points [tiles, groups, kTogether].
struct TiledMatrix {
    const uint8_t* data;
    const void* scales;
    const void* zeros;  // null: those of symmetric numbers
    int64_t bytes, groups, group;  // bytes of a row, inputs of a group
    int32_t scale_dtype, zero_dtype;

    // Of the expert `e`, where the experts' matrices of n rows, a multiple of a tile's, follow one another.
    TiledMatrix of(int64_t e, int64_t n) const {
        TiledMatrix found = *this;
        int64_t at = e * n * groups;
        found.data += e * n * bytes;
        found.scales = element(scales, scale_dtype, at), found.zeros = element(zeros, zero_dtype, at);
        return found;
    }
};

// A row of k inputs is arranged by blocks: the high bytes of its integers, then the low ones; and behind the blocks, the
// sum of every kPart integers.
template <int kPart>
struct Halves {
    static constexpr int64_t length(int64_t k) { return 2 * k + k / kPart * int64_t(sizeof(int32_t)); }

    template <class T>
    static float arrange(const T* x, int64_t k, int8_t* out) {
        float scale = integer_scale(x, k, kLargestHalves);
        if (!(scale > 0.f)) {
            memset(out, 0, length(k));
            return scale;
        }
        F inverse = set1(1.f / scale);
        int8_t* totals = out + 2 * k;
        for (int64_t block = 0; block < k / kBlock; ++block, x += kBlock, out += 2 * kBlock) {
            int16_t whole[kBlock];
            round_block(x, kBlock, inverse, whole);
            for (int i = 0; i < kBlock; ++i) {
                int high = (whole[i] + 128) >> 8;
                out[i] = int8_t(high), out[kBlock + i] = int8_t(whole[i] - 256 * high);
            }
            for (int part = 0; part < kBlock; part += kPart, totals += sizeof(int32_t)) {
                int32_t total = 0;
                for (int i = 0; i < kPart; ++i) total += whole[part + i];
                memcpy(totals, &total, sizeof total);
            }
        }
        return scale;
    }
};

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
