// Attention over latent vectors (multi-head latent attention, arXiv:2405.04434): all heads share one row per token,
// which is its key, and whose first elements are its value. In float32; a row's result is bit-identical in any batch.

#include "kernel.h"

namespace llmk::LLMK_LEVEL::latent {
namespace {

constexpr int64_t kHeads = 4, kKeys = 16, kWidest = 1024;

// The cache: blocks of `block_size` rows of `size` elements, of which `values` are the value.
struct Latents {
    const void* data;
    int64_t stride, block_size, size, values;
};

// Some heads of one token.
struct Query {
    alignas(64) float q[kHeads][kWidest], sums[kHeads][kWidest];
    float most[kHeads], total[kHeads], weights[kHeads][kKeys];
};

// Elements i to i + F::N of a row of n.
template <class T>
inline F part(const T* row, int64_t i, int64_t n) {
    return n - i >= F::N ? load(row + i) : load(row + i, n - i);
}

// Scores of `count` keys from `row` on.
template <class T>
void score(Query& query, const T* row, int64_t count, int64_t size, float scale) {
    for (int64_t j = 0; j < count; ++j, row += size) {
        F sums[kHeads] = {zero(), zero(), zero(), zero()};
        for (int64_t i = 0; i < size; i += F::N) {
            F key = part(row, i, size);
#pragma GCC unroll 4
            for (int64_t h = 0; h < kHeads; ++h) sums[h] = fma(load(query.q[h] + i), key, sums[h]);
        }
        for (int64_t h = 0; h < kHeads; ++h) query.weights[h][j] = sum(sums[h]) * scale;
    }
    for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t j = count; j < kKeys; ++j) query.weights[h][j] = -INFINITY;
    }
}

// Makes weights of a tile's scores; `kept` is what the sums so far count for.
inline void weigh(Query& query, float* kept) {
    for (int64_t h = 0; h < kHeads; ++h) {
        float* weights = query.weights[h];
        F tile = set1(-INFINITY), added = zero();
        for (int64_t j = 0; j < kKeys; j += F::N) tile = max(tile, load(weights + j));
        float most = top(tile);
        most = most > query.most[h] ? most : query.most[h];
        for (int64_t j = 0; j < kKeys; j += F::N) {
            F weight = exp(load(weights + j) - set1(most));
            store(weights + j, weight), added = added + weight;
        }
        kept[h] = expf(query.most[h] - most);
        query.most[h] = most, query.total[h] = query.total[h] * kept[h] + sum(added);
    }
}

// Adds the values of `count` rows.
template <class T>
void mix(Query& query, const T* rows, int64_t count, int64_t size, int64_t values, const float* kept) {
    for (int64_t i = 0; i < values; i += F::N) {
        F sums[kHeads];
#pragma GCC unroll 4
        for (int64_t h = 0; h < kHeads; ++h) sums[h] = load(query.sums[h] + i) * set1(kept[h]);
        for (int64_t j = 0; j < count; ++j) {
            F value = part(rows + j * size, i, values);
#pragma GCC unroll 4
            for (int64_t h = 0; h < kHeads; ++h) sums[h] = fma(set1(query.weights[h][j]), value, sums[h]);
        }
#pragma GCC unroll 4
        for (int64_t h = 0; h < kHeads; ++h) store(query.sums[h] + i, sums[h]);
    }
}

// The keys up to `last`; `blocks` are the request's.
template <class T>
void attend(Query& query, const Latents& latents, const int32_t* blocks, int64_t last, float scale) {
    for (int64_t h = 0; h < kHeads; ++h) {
        query.most[h] = -INFINITY, query.total[h] = 0;
        for (int64_t i = 0; i < latents.values; i += F::N) store(query.sums[h] + i, zero());
    }
    for (int64_t at = 0; at <= last;) {
        int64_t size = latents.block_size, stop = at / kKeys * kKeys + kKeys, block_stop = at / size * size + size;
        stop = stop < block_stop ? stop : block_stop;
        int64_t count = (stop <= last ? stop : last + 1) - at;
        const T* block = (const T*)latents.data + blocks[at / latents.block_size] * latents.stride;
        const T* rows = block + at % latents.block_size * latents.size;
        float kept[kHeads];
        score(query, rows, count, latents.size, scale);
        weigh(query, kept);
        mix(query, rows, count, latents.size, latents.values, kept);
        at += count;
    }
}

template <class T>
void load_query(Query& query, const T* q, int64_t heads, int64_t size) {
    for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < size; i += F::N) store(query.q[h] + i, h < heads ? part(q + h * size, i, size) : zero());
    }
}

template <class T>
void store_result(T* out, const Query& query, int64_t heads, int64_t values) {
    for (int64_t h = 0; h < heads; ++h) {
        F factor = set1(1.f / query.total[h]);
        for (int64_t i = 0; i < values; i += F::N) {
            int64_t n = values - i < F::N ? values - i : F::N;
            store(out + h * values + i, load(query.sums[h] + i) * factor, n);
        }
    }
}

}  // namespace

// out is [tokens, heads, values], q [tokens, heads, size] with tokens `q_stride` apart; the cache's blocks are
// [block_size, size], `cache_stride` apart. Rows that belong to no request are zeros.
LLMK_EXPORT(latent_attention)
(void* out, const void* q, int64_t q_stride, const void* cache, int64_t cache_stride, int64_t block_size, int64_t size,
 int64_t values, const int32_t* starts, const int32_t* lengths, const int32_t* table, int64_t table_stride,
 int64_t requests, int64_t tokens, int64_t heads, float scale, int32_t dtype, int32_t cache_dtype) {
    Latents latents{cache, cache_stride, block_size, size, values};
    int64_t groups = (heads + kHeads - 1) / kHeads, used = starts[requests];
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        memset((T*)out + used * heads * values, 0, size_t((tokens - used) * heads * values) * sizeof(T));
        parallel_for(used * groups, 1, [&](int64_t begin, int64_t end) {
            int64_t request = 0;
            for (int64_t i = begin; i < end; ++i) {
                int64_t token = i / groups, head = i % groups * kHeads, count = heads - head;
                if (count > kHeads) count = kHeads;
                while (starts[request + 1] <= token) ++request;
                int64_t last = lengths[request] - starts[request + 1] + token;
                Query query;
                load_query(query, (const T*)q + token * q_stride + head * size, count, size);
                by_dtype(cache_dtype, [&](auto kind) {
                    attend<decltype(kind)>(query, latents, table + request * table_stride, last, scale);
                });
                store_result((T*)out + (token * heads + head) * values, query, count, values);
            }
        });
    });
}
LLMK_WORDS(latent_attention)

// Stores rows of x, [tokens, size] `x_stride` apart, at the slots of a cache as above; those of -1 are skipped.
LLMK_EXPORT(write_rows)
(void* cache, int64_t cache_stride, int64_t block_size, const void* x, int64_t x_stride, int64_t size,
 const int64_t* slots, int64_t tokens, int32_t dtype, int32_t cache_dtype) {
    by_dtype(dtype, [&](auto none) {
        by_dtype(cache_dtype, [&](auto kind) {
            for (int64_t t = 0; t < tokens; ++t) {
                if (slots[t] < 0) continue;
                const auto* from = (const decltype(none)*)x + t * x_stride;
                int64_t at = slots[t] / block_size * cache_stride + slots[t] % block_size * size;
                auto* to = (decltype(kind)*)cache + at;
                for (int64_t i = 0; i < size; i += F::N) {
                    store(to + i, part(from, i, size), size - i < F::N ? size - i : F::N);
                }
            }
        });
    });
}
LLMK_WORDS(write_rows)

}  // namespace llmk::LLMK_LEVEL::latent
