// AMX: eight tiles of 16 rows of 64 bytes, and products of them. With LLMK_EMULATED_TILES the same in plain C++, for
// tests on processors without it.
#pragma once

#include "kernel.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileWords = 16;  // of 32 bits, in a row

#if defined(LLMK_EMULATED_TILES)

thread_local float emulated_tiles[8][kTileRows][kTileWords];

inline void begin_tiles() {}
inline void end_tiles() {}

template <int Tile>
inline void load_tile(const float* from, int64_t stride) {
    for (int64_t row = 0; row < kTileRows; ++row) {
        memcpy(emulated_tiles[Tile][row], from + row * stride, sizeof(float) * kTileWords);
    }
}

template <int Tile>
inline void store_tile(float* to, int64_t stride) {
    for (int64_t row = 0; row < kTileRows; ++row) {
        memcpy(to + row * stride, emulated_tiles[Tile][row], sizeof(float) * kTileWords);
    }
}

inline float widened_half(float word, int half) {
    uint32_t bits;
    memcpy(&bits, &word, sizeof bits);
    bits = half ? bits & 0xffff0000 : bits << 16;
    memcpy(&word, &bits, sizeof word);
    return word;
}

template <int Sums, int Rows, int Outputs>
inline void add_tile_products() {
    for (int64_t row = 0; row < kTileRows; ++row) {
        for (int64_t word = 0; word < kTileWords; ++word) {
            for (int64_t output = 0; output < kTileWords; ++output) {
                for (int half = 0; half < 2; ++half) {
                    emulated_tiles[Sums][row][output] += widened_half(emulated_tiles[Rows][row][word], half) *
                                                         widened_half(emulated_tiles[Outputs][word][output], half);
                }
            }
        }
    }
}

#else

// Tiles of a thread have their shapes from here on, until end_tiles.
inline void begin_tiles() {
    struct alignas(64) Shapes {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    static const Shapes shapes;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
}

// Without state in tiles, the operating system has less to save.
inline void end_tiles() { asm volatile("tilerelease" ::: "memory"); }

// Rows of the tile are `stride` words apart.
template <int Tile>
inline void load_tile(const float* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride * 4), "i"(Tile) : "memory");
}

template <int Tile>
inline void store_tile(float* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride * 4), "i"(Tile) : "memory");
}

// Sums[row, output] += Rows[row, word] * Outputs[word, output] over all words, each a pair of bf16.
template <int Sums, int Rows, int Outputs>
inline void add_tile_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Rows), "i"(Outputs));
}

#endif

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
