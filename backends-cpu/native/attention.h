// The cache of attention: where a token's key and value are.
//
// A block holds, for each K/V head, the keys as [head_dim, block_size] and then the values as [block_size, value_dim].
// Consecutive tokens are neighbours in the keys, so that a vector holds the same element of F::N keys, and a product
// of queries and keys needs no sums within vectors. In a cache of integers, each key and value has a scale, a float:
// those of the keys, [block_size], are behind the values, and those of the values behind them.
#pragma once

#include "bytes.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr int64_t kWidest = 512;  // most elements of a head

struct Cache {
    void* data;
    int64_t block_stride, block_size, kv_heads, head_dim, value_dim;
    bool scaled;

    int64_t head_size() const {
        return block_size * (head_dim + value_dim + (scaled ? 2 * int64_t(sizeof(float)) : 0));
    }

    template <class C>
    C* keys(int64_t block, int64_t head) const {
        return static_cast<C*>(data) + block * block_stride + head * head_size();
    }

    template <class C>
    C* values(int64_t block, int64_t head) const {
        return keys<C>(block, head) + block_size * head_dim;
    }

    float* key_scales(int64_t block, int64_t head) const {
        return reinterpret_cast<float*>(values<int8_t>(block, head) + block_size * value_dim);
    }

    float* value_scales(int64_t block, int64_t head) const { return key_scales(block, head) + block_size; }
};

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
