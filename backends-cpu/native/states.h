// How recurrent layers go through a step: each request's state is read from the cache, advanced over the request's
// tokens, and stored where the cache must contain it (llmk.reference.recurrent.walk).
#pragma once

#include "kernel.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

// The index tensors of a step (llmk.api.CacheStep); `drafts` may be null.
struct Step {
    const int32_t *starts, *lengths, *table;
    const int64_t* drafts;
    int64_t table_stride, block_size, requests, tokens;
};

// The tokens of a request: rows `first` to `first + count`, of which the last ones may be drafts, after `before` tokens
// in earlier steps.
struct Run {
    int64_t first, count, before, known, block_size;
    const int32_t* blocks;

    Run(const Step& step, int64_t request)
        : first(step.starts[request]),
          count(step.starts[request + 1] - first),
          before(step.lengths[request] - count),
          known(count - (step.drafts ? step.drafts[request] : 0)),
          block_size(step.block_size),
          blocks(step.table + request * step.table_stride) {}

    int64_t block_of(int64_t position) const { return blocks[position > 0 ? position / block_size : 0]; }

    // Calls load(block) with that of the state so far, or -1 for zeros; then advance(begin, end) for rows up to each
    // token after which the state is stored, and save(block): after each that fills a block, and after the last one
    // that is no draft.
    template <class Load, class Advance, class Save>
    void walk(Load&& load, Advance&& advance, Save&& save) const {
        if (count <= 0) return;
        load(before > 0 ? block_of(before - 1) : -1);
        for (int64_t done = 0; done < count;) {
            int64_t full = done + block_size - (before > 0 ? before + done : done) % block_size;
            int64_t limit = done < known ? known : count, end = full < limit ? full : limit;
            advance(first + done, first + end);
            bool fills = end < known && (before + end) % block_size == 0;
            if (end == known || fills) save(block_of(before + end - 1));
            done = end;
        }
    }
};

// `size` floats of n values of T, the others zeros.
template <class T>
void widen_row(float* to, const T* from, int64_t n, int64_t size) {
    for (int64_t i = 0; i < size; i += F::N) {
        int64_t left = n - i;
        store(to + i, left >= F::N ? load(from + i) : left > 0 ? load(from + i, left) : zero());
    }
}

template <class T>
void narrow_row(T* to, const float* from, int64_t n) {
    int64_t i = 0;
    for (; i + F::N <= n; i += F::N) store(to + i, load(from + i));
    if (i < n) store(to + i, load(from + i, n - i), n - i);
}

inline int64_t bytes_of(int32_t dtype) { return dtype == kFloat32 ? 4 : 2; }

// Rows that belong to no request are zeros.
inline void clear_padding(void* out, const Step& step, int64_t size, int32_t dtype) {
    int64_t used = step.starts[step.requests], bytes = size * bytes_of(dtype);
    if (used < step.tokens) memset((char*)out + used * bytes, 0, size_t((step.tokens - used) * bytes));
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
