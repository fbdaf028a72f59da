// What goes before and after the model in a step: where its tokens are, and which are the most likely to follow.

#include "kernel.h"

namespace llmk::LLMK_LEVEL::batch {
namespace {

constexpr int64_t kChunk = 4096;  // logits

// The greatest of n values; NaN where one of them isn't finite.
template <class T>
float greatest(const T* x, int64_t n) {
    F most = set1(-INFINITY), poison = zero();
    int64_t i = 0;
    for (; i + F::N <= n; i += F::N) {
        F v = load(x + i);
        most = max(most, v), poison = fma(v, zero(), poison);
    }
    float found = top(most) + sum(poison);
    for (; i < n; ++i) {
        float v = widen(x[i]);
        found = v > found ? v : found + v * 0.f;
    }
    return found;
}

// The first index of the greatest value, or of a NaN, from n values; `best` is that value so far.
template <class T>
int64_t first_greatest(const T* x, int64_t n, float& best) {
    int64_t found = -1;
    for (int64_t i = 0; i < n && best == best; ++i) {
        float v = widen(x[i]);
        if (!(v <= best)) found = i, best = v;
    }
    return found;
}

template <class T>
int64_t most_likely(const T* logits, int64_t n) {
    int64_t chunks = (n + kChunk - 1) / kChunk, found = 0;
    float best = -INFINITY;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        int64_t begin = chunk * kChunk, size = n - begin < kChunk ? n - begin : kChunk;
        if (greatest(logits + begin, size) <= best) continue;
        int64_t index = first_greatest(logits + begin, size, best);
        if (index >= 0) found = begin + index;
        if (best != best) break;
    }
    return found;
}

template <class T>
void gather(T* out, const T* x, int64_t stride, const int64_t* columns, int64_t rows, int64_t each, int64_t n) {
    T none;
    memset(&none, 0xff, sizeof none);
    for (int64_t i = 0; i < rows * each; ++i) {
        int64_t column = columns[i];
        out[i] = column >= 0 && column < n ? x[i / each * stride + column] : none;
    }
}

}  // namespace

// out[i] = the first index of the greatest of logits[i, 0:n], or of a NaN; rows are `stride` elements apart.
LLMK_EXPORT(most_likely)(int64_t* out, const void* logits, int64_t stride, int64_t rows, int64_t n, int32_t dtype) {
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) out[row] = most_likely((const T*)logits + row * stride, n);
        });
    });
}
LLMK_WORDS(most_likely)

// The op build_step of llmk.reference.batch; `stride` is that of tokens.
LLMK_EXPORT(build_step)
(int64_t* token_ids, int64_t* positions, int32_t* query_start, int32_t* seq_lens, int64_t* rows, const int32_t* tokens,
 int64_t stride, int64_t* computed, const int64_t* slots, const int64_t* counts, int64_t requests, int64_t num_tokens) {
    int64_t at = 0;
    query_start[0] = 0;
    for (int64_t r = 0; r < requests; ++r) {
        int64_t slot = slots[r], before = slot < 0 ? 0 : computed[slot];
        for (int64_t i = 0; i < counts[r] && at < num_tokens; ++i, ++at) {
            token_ids[at] = tokens[slot * stride + before + i], positions[at] = before + i, rows[at] = r;
        }
        if (slot >= 0) computed[slot] += counts[r];
        query_start[r + 1] = query_start[r] + int32_t(counts[r]);
        seq_lens[r] = int32_t(before + counts[r]);
    }
    for (; at < num_tokens; ++at) token_ids[at] = positions[at] = 0, rows[at] = -1;
}
LLMK_WORDS(build_step)

// The op compute_slot_mapping of llmk.reference.batch; `stride` is that of the table. Padding has rows of zeros.
LLMK_EXPORT(compute_slot_mapping)
(int32_t* block_table, int64_t* slot_mapping, const int32_t* table, int64_t stride, const int64_t* slots,
 const int64_t* rows, const int64_t* positions, int64_t block_size, int64_t max_blocks, int64_t requests,
 int64_t num_tokens) {
    for (int64_t r = 0; r < requests; ++r) {
        int32_t* to = block_table + r * max_blocks;
        if (slots[r] < 0) {
            memset(to, 0, sizeof(int32_t) * max_blocks);
        } else {
            memcpy(to, table + slots[r] * stride, sizeof(int32_t) * max_blocks);
        }
    }
    for (int64_t i = 0; i < num_tokens; ++i) {
        int64_t block = positions[i] / block_size, in_block = positions[i] % block_size;
        slot_mapping[i] = rows[i] < 0 ? -1 : block_table[rows[i] * max_blocks + block] * block_size + in_block;
    }
}
LLMK_WORDS(compute_slot_mapping)

// The op append_tokens of llmk.reference.batch; `stride` is that of tokens.
LLMK_EXPORT(append_tokens)
(int32_t* tokens, int64_t stride, const int64_t* computed, const int64_t* slots, const int64_t* sampled,
 int64_t requests) {
    for (int64_t r = 0; r < requests; ++r) {
        if (slots[r] >= 0) tokens[slots[r] * stride + computed[slots[r]]] = int32_t(sampled[r]);
    }
}
LLMK_WORDS(append_tokens)

// out[i] = table[ids[i]], in rows of `size` bytes. For an id outside of the table's n rows, all bits are ones: NaN in
// each floating point dtype.
LLMK_EXPORT(take_rows)
(uint8_t* out, const uint8_t* table, const int64_t* ids, int64_t rows, int64_t n, int64_t size) {
    for (int64_t i = 0; i < rows; ++i) {
        if (ids[i] >= 0 && ids[i] < n) {
            memcpy(out + i * size, table + ids[i] * size, size);
        } else {
            memset(out + i * size, 0xff, size);
        }
    }
}
LLMK_WORDS(take_rows)

// out[i, j] = x[i, columns[i, j]] of elements of `size` bytes: 2, 4 or 8. x has n columns, and rows that are `stride`
// elements apart. For a column outside of these, all bits are ones.
LLMK_EXPORT(gather)
(void* out, const void* x, int64_t stride, const int64_t* columns, int64_t rows, int64_t each, int64_t n,
 int64_t size) {
    if (size == 2) gather((uint16_t*)out, (const uint16_t*)x, stride, columns, rows, each, n);
    if (size == 4) gather((uint32_t*)out, (const uint32_t*)x, stride, columns, rows, each, n);
    if (size == 8) gather((uint64_t*)out, (const uint64_t*)x, stride, columns, rows, each, n);
}
LLMK_WORDS(gather)

// Copies rows of `size` bytes; strides are in bytes.
LLMK_EXPORT(copy_rows)
(uint8_t* out, int64_t out_stride, const uint8_t* x, int64_t stride, int64_t rows, int64_t size) {
    for (int64_t i = 0; i < rows; ++i) memcpy(out + i * out_stride, x + i * stride, size);
}
LLMK_WORDS(copy_rows)

}  // namespace llmk::LLMK_LEVEL::batch
