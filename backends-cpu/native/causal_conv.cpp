// The short causal convolution of recurrent layers, in float32. A token's result doesn't depend on other requests, nor
// on how a prompt is divided into steps.

#include "states.h"

namespace llmk::LLMK_LEVEL::causal_conv {
namespace {

constexpr int64_t kChannels = 64, kTaps = 16;  // of a piece of work; at most

// A piece's weights and bias, and its last inputs as a ring: `rows` of them, the oldest at `oldest`.
struct Piece {
    float taps[kTaps][kChannels], offset[kChannels], past[kTaps][kChannels];
    int64_t width, rows, oldest;
};

template <class T>
void load_weights(Piece& piece, const T* weight, const T* bias, int64_t k) {
    for (int64_t c = 0; c < kChannels; ++c) {
        bool there = c < piece.width;
        for (int64_t j = 0; j < k; ++j) piece.taps[j][c] = there ? widen(weight[c * k + j]) : 0.f;
        piece.offset[c] = there && bias ? widen(bias[c]) : 0.f;
    }
}

// One token: its inputs take the place of the oldest ones.
template <class T>
void convolve(Piece& piece, T* out, const T* x, bool activate) {
    float now[kChannels];
    widen_row(now, x, piece.width, kChannels);
    float result[kChannels];
    for (int64_t i = 0; i < kChannels; i += F::N) {
        F total = zero();
        int64_t at = piece.oldest;
        for (int64_t j = 0; j < piece.rows; ++j) {
            total = fma(load(piece.past[at] + i), load(piece.taps[j] + i), total);
            at = at + 1 == piece.rows ? 0 : at + 1;
        }
        total = fma(load(now + i), load(piece.taps[piece.rows] + i), total) + load(piece.offset + i);
        store(result + i, activate ? total * sigmoid(total) : total);
    }
    narrow_row(out, result, piece.width);
    if (piece.rows == 0) return;
    memcpy(piece.past[piece.oldest], now, sizeof now);
    piece.oldest = piece.oldest + 1 == piece.rows ? 0 : piece.oldest + 1;
}

template <class T>
void load_past(Piece& piece, const T* cache, int64_t channels) {
    for (int64_t j = 0; j < piece.rows; ++j) {
        widen_row(piece.past[j], cache ? cache + j * channels : cache, cache ? piece.width : 0, kChannels);
    }
    piece.oldest = 0;
}

template <class T>
void save_past(const Piece& piece, T* cache, int64_t channels) {
    for (int64_t j = 0; j < piece.rows; ++j) {
        narrow_row(cache + j * channels, piece.past[(piece.oldest + j) % piece.rows], piece.width);
    }
}

}  // namespace

// The op causal_conv of llmk.reference.recurrent: out is [tokens, channels] and contiguous, x the same with rows
// `x_stride` apart, weight [channels, k], cache [blocks, k - 1, channels] with blocks `cache_stride` apart, all of one
// dtype; bias and drafts may be null.
LLMK_EXPORT(causal_conv)
(void* out, const void* x, int64_t x_stride, const void* weight, const void* bias, void* cache, int64_t cache_stride,
 const int32_t* starts, const int32_t* lengths, const int32_t* table, int64_t table_stride, const int64_t* drafts,
 int64_t block_size, int64_t requests, int64_t tokens, int64_t channels, int64_t k, int32_t activate, int32_t dtype) {
    Step step{starts, lengths, table, drafts, table_stride, block_size, requests, tokens};
    clear_padding(out, step, channels, dtype);
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        parallel_for((channels + kChannels - 1) / kChannels, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                int64_t at = i * kChannels, left = channels - at;
                Piece piece;
                piece.width = left < kChannels ? left : kChannels, piece.rows = k - 1;
                load_weights(piece, (const T*)weight + at * k, bias ? (const T*)bias + at : nullptr, k);
                T* states = (T*)cache + at;
                for (int64_t request = 0; request < requests; ++request) {
                    Run(step, request).walk(
                        [&](int64_t block) {
                            load_past(piece, block < 0 ? (const T*)nullptr : states + block * cache_stride, channels);
                        },
                        [&](int64_t row, int64_t stop) {
                            for (; row < stop; ++row) {
                                T* to = (T*)out + row * channels + at;
                                convolve(piece, to, (const T*)x + row * x_stride + at, activate != 0);
                            }
                        },
                        [&](int64_t block) { save_past(piece, states + block * cache_stride, channels); });
                }
            }
        });
    });
}
LLMK_WORDS(causal_conv)

}  // namespace llmk::LLMK_LEVEL::causal_conv
