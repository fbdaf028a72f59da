// Causal attention over a paged cache, for decode and (chunked) prefill.
//
// A row is a query token and a query head. Rows of one request that share a K/V head are computed in tiles, and keys in
// chunks of kChunk that are counted from the request's first token: scores of a chunk, their exponentials relative to
// the chunk's greatest, the weighted sum of values; then the chunks' results are merged in order (FlashAttention,
// arXiv:2205.14135). The order of arithmetic of a row depends on its position alone, so a row's result is the same in
// any batch and with any number of threads.

#include "attention.h"

#include <cstdlib>

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr int64_t kChunk = 256;   // keys
constexpr int64_t kRows = 32;     // most rows of a tile
constexpr int64_t kMicro = 4;     // rows whose sums are in registers
constexpr int64_t kNear = 64;     // keys whose values stay in the first-level cache
constexpr int64_t kWidest = 512;  // most elements of a head
constexpr int64_t kUnitsPerThread = 4;

struct Problem {
    void* out;
    const void* query;
    Cache cache;
    const int32_t *query_start, *seq_lens, *block_table;
    const float* sinks;
    int64_t query_stride, table_stride, requests, heads, window;
    float scale, softcap;
    int32_t dtype;

    int64_t group() const { return heads / cache.kv_heads; }
    int64_t width() const { return (cache.value_dim + F::N - 1) / F::N * F::N; }
};

// Rows [first, first + rows) of the queries * group rows of a request and a K/V head, and the chunks that they see.
// `partial` is where the results of its chunks are if several units compute them, else -1.
struct Tile {
    int64_t request, head, first, rows, chunk, chunks, partial;
};

// Consecutive chunks of a tile, computed by one thread.
struct Unit {
    int64_t tile, chunk, chunks;
};

// Keys [begin, end) that a row sees.
struct Span {
    int64_t begin, end;
};

Span span_of(const Problem& p, int64_t request, int64_t row) {
    int64_t queries = p.query_start[request + 1] - p.query_start[request];
    int64_t end = p.seq_lens[request] - queries + row / p.group() + 1;
    int64_t begin = p.window > 0 && end > p.window ? end - p.window : 0;
    return {begin, end};
}

// What a chunk, or all chunks so far, contribute to a row: the greatest score, the sum of exponentials, and the weighted
// sum of values.
struct Result {
    float top[kRows], total[kRows];
    float* mixed;  // [kRows, width]
};

// Scores of R rows and NV vectors of keys. `keys[v]` is the first element of the keys of vector v.
template <int R, int NV, class C>
inline void score(const float* query, int64_t query_stride, const C* const* keys, int64_t head_dim, int64_t key_stride,
                  float* scores) {
    F sums[R][NV];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < NV; ++v) sums[r][v] = zero();
    const C* at[NV];
    for (int v = 0; v < NV; ++v) at[v] = keys[v];
    for (int64_t d = 0; d < head_dim; ++d) {
        F key[NV];
        for (int v = 0; v < NV; ++v) {
            key[v] = load(at[v]);
            at[v] += key_stride;
        }
        for (int r = 0; r < R; ++r) {
            F q = set1(query[r * query_stride + d]);
            for (int v = 0; v < NV; ++v) sums[r][v] = fma(q, key[v], sums[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < NV; ++v) store(scores + r * kChunk + v * F::N, sums[r][v]);
}

template <int R, class C>
inline void score_rows(const float* query, int64_t query_stride, const C* const* keys, int64_t vectors,
                       int64_t head_dim, int64_t key_stride, float* scores) {
    // Fewer rows need more vectors, so that there are enough independent sums.
    constexpr int NV = R > 2 ? 2 : 4;
    int64_t v = 0;
    for (; v + NV <= vectors; v += NV)
        score<R, NV>(query, query_stride, keys + v, head_dim, key_stride, scores + v * F::N);
    for (; v < vectors; ++v) score<R, 1>(query, query_stride, keys + v, head_dim, key_stride, scores + v * F::N);
}

// Adds weights[r][k] * values[k] to mixed[r], for R rows, `keys` keys, and NV vectors of values (or `n` elements).
template <int R, int NV, class C>
inline void mix(const float* weights, const C* values, int64_t value_stride, int64_t keys, float* mixed, int64_t width,
                int64_t n) {
    F sums[R][NV];
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < NV; ++v) sums[r][v] = load(mixed + r * width + v * F::N);
    for (int64_t k = 0; k < keys; ++k) {
        F value[NV];
        if (NV == 1 && n < F::N) {
            value[0] = load(values + k * value_stride, n);
        } else {
            for (int v = 0; v < NV; ++v) value[v] = load(values + k * value_stride + v * F::N);
        }
        for (int r = 0; r < R; ++r) {
            F weight = set1(weights[r * kChunk + k]);
            for (int v = 0; v < NV; ++v) sums[r][v] = fma(weight, value[v], sums[r][v]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int v = 0; v < NV; ++v) store(mixed + r * width + v * F::N, sums[r][v]);
}

template <int R, class C>
inline void mix_rows(const float* weights, const C* values, int64_t value_dim, int64_t keys, float* mixed,
                     int64_t width) {
    constexpr int NV = R > 2 ? 2 : 4;
    int64_t j = 0;
    for (; j + NV * F::N <= value_dim; j += NV * F::N)
        mix<R, NV>(weights, values + j, value_dim, keys, mixed + j, width, F::N);
    for (; j < value_dim; j += F::N) mix<R, 1>(weights, values + j, value_dim, keys, mixed + j, width, value_dim - j);
}

// Calls f with the number of rows, at most kMicro, as a constant, for all rows.
template <class Call>
inline void by_rows(int64_t rows, Call&& f) {
    int64_t r = 0;
    for (; r + kMicro <= rows; r += kMicro) f(r, std::integral_constant<int, 4>{});
    if (rows - r == 3) f(r, std::integral_constant<int, 3>{});
    if (rows - r == 2) f(r, std::integral_constant<int, 2>{});
    if (rows - r == 1) f(r, std::integral_constant<int, 1>{});
}

// Caps the scores of a row, hides those of keys outside [begin, end), replaces them by weights, and returns the greatest
// score and the sum of weights.
inline void weigh(float* scores, int64_t vectors, Span seen, float softcap, float& top_score, float& total) {
    F most = set1(-INFINITY);
    bool partly = seen.begin > 0 || seen.end < vectors * F::N;
    F positions = iota();
    for (int64_t v = 0; v < vectors; ++v) {
        F s = load(scores + v * F::N);
        if (softcap > 0.f) s = set1(softcap) * tanh(s * set1(1.f / softcap));
        if (partly) {
            F at = positions + set1(float(v * F::N));
            s = less(at, set1(float(seen.end)), s, set1(-INFINITY));
            s = less(at, set1(float(seen.begin)), set1(-INFINITY), s);
        }
        store(scores + v * F::N, s);
        most = max(most, s);
    }
    top_score = top(most);
    F sums = zero(), greatest = set1(top_score);
    for (int64_t v = 0; v < vectors; ++v) {
        F weight = exp(load(scores + v * F::N) - greatest);
        store(scores + v * F::N, weight);
        sums = sums + weight;
    }
    total = sum(sums);
}

// Computes one chunk of a tile. `query` are the tile's queries, [rows, head_dim], times the scale.
template <class C>
void compute_chunk(const Problem& p, const Tile& tile, int64_t chunk, const float* query, float* scores, Result& out) {
    const Cache& cache = p.cache;
    int64_t width = p.width(), start = chunk * kChunk;
    Span first = span_of(p, tile.request, tile.first), last = span_of(p, tile.request, tile.first + tile.rows - 1);
    int64_t begin = first.begin > start ? first.begin - start : 0;
    int64_t end = last.end - start < kChunk ? last.end - start : kChunk;
    // Vectors from the one with the first key that any row sees on.
    int64_t skipped = begin / F::N, vectors = (end + F::N - 1) / F::N - skipped;
    const int32_t* table = p.block_table + tile.request * p.table_stride;
    const C* keys[kChunk / F::N];
    for (int64_t v = 0; v < vectors; ++v) {
        int64_t at = start + (skipped + v) * F::N;
        keys[v] = cache.keys<C>(table[at / cache.block_size], tile.head) + at % cache.block_size;
    }
    by_rows(tile.rows, [&](int64_t r, auto rows) {
        score_rows<decltype(rows)::value>(query + r * cache.head_dim, cache.head_dim, keys, vectors, cache.head_dim,
                                          cache.block_size, scores + r * kChunk);
    });
    int64_t origin = start + skipped * F::N;
    for (int64_t r = 0; r < tile.rows; ++r) {
        Span seen = span_of(p, tile.request, tile.first + r);
        seen = {seen.begin - origin, seen.end - origin};
        if (seen.end <= 0 || seen.begin >= vectors * F::N) {
            out.top[r] = -INFINITY, out.total[r] = 0.f;
            memset(scores + r * kChunk, 0, vectors * F::N * sizeof(float));
        } else {
            weigh(scores + r * kChunk, vectors, seen, p.softcap, out.top[r], out.total[r]);
        }
    }
    memset(out.mixed, 0, tile.rows * width * sizeof(float));
    for (int64_t at = start + begin; at < start + end;) {
        int64_t offset = at % cache.block_size, left = start + end - at, keys_here = cache.block_size - offset;
        keys_here = keys_here < left ? keys_here : left;
        keys_here = keys_here < kNear ? keys_here : kNear;
        const C* values = cache.values<C>(table[at / cache.block_size], tile.head) + offset * cache.value_dim;
        by_rows(tile.rows, [&](int64_t r, auto rows) {
            mix_rows<decltype(rows)::value>(scores + r * kChunk + (at - origin), values, cache.value_dim, keys_here,
                                            out.mixed + r * width, width);
        });
        at += keys_here;
    }
}

// Merges the result of the next chunk into that of the chunks before.
void merge(float& top, float& total, float* mixed, float next_top, float next_total, const float* next, int64_t width) {
    if (next_top == -INFINITY) return;
    if (top == -INFINITY) {
        top = next_top, total = next_total;
        memcpy(mixed, next, width * sizeof(float));
        return;
    }
    float most = top > next_top ? top : next_top;
    float factors[F::N] = {top - most, next_top - most};
    store(factors, exp(load(factors)));
    total = total * factors[0] + next_total * factors[1];
    F before = set1(factors[0]), after = set1(factors[1]);
    for (int64_t j = 0; j < width; j += F::N) {
        store(mixed + j, fma(load(mixed + j), before, load(next + j) * after));
    }
    top = most;
}

// Divides by the sum of exponentials, the sink's included, and writes the row's output.
void finish(const Problem& p, const Tile& tile, int64_t r, float top, float total, const float* mixed) {
    int64_t row = tile.first + r, head = tile.head * p.group() + row % p.group();
    float factor = 1.f;
    if (p.sinks) {
        float sink = p.sinks[head], most = top > sink ? top : sink;
        float factors[F::N] = {top - most, sink - most};
        store(factors, exp(load(factors)));
        factor = factors[0], total = total * factors[0] + factors[1];
    }
    F scale = set1(factor / total);
    int64_t token = p.query_start[tile.request] + row / p.group(), size = p.cache.value_dim;
    by_dtype(p.dtype, [&](auto none) {
        auto* out = static_cast<decltype(none)*>(p.out) + (token * p.heads + head) * size;
        for (int64_t j = 0; j < size; j += F::N) {
            store(out + j, load(mixed + j) * scale, size - j < F::N ? size - j : F::N);
        }
    });
}

void load_queries(const Problem& p, const Tile& tile, float* out) {
    int64_t size = p.cache.head_dim;
    by_dtype(p.dtype, [&](auto none) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            int64_t row = tile.first + r, head = tile.head * p.group() + row % p.group();
            int64_t token = p.query_start[tile.request] + row / p.group();
            auto* q = static_cast<const decltype(none)*>(p.query) + token * p.query_stride + head * size;
            for (int64_t d = 0; d < size; ++d) out[r * size + d] = widen(q[d]) * p.scale;
        }
    });
}

// Partial results of a tile's chunk: [rows] greatest scores, [rows] sums, [rows, width] mixed values.
int64_t partial_size(const Problem& p, const Tile& tile) { return tile.rows * (p.width() + 2); }

template <class C>
void compute_unit(const Problem& p, const Tile& tile, const Unit& unit, float* partials) {
    alignas(64) float query[kRows * kWidest], scores[kRows * kChunk], mixed[kRows * kWidest], so_far[kRows * kWidest];
    Result next{{}, {}, mixed}, sum{{}, {}, so_far};
    int64_t width = p.width();
    load_queries(p, tile, query);
    for (int64_t r = 0; r < tile.rows; ++r) sum.top[r] = -INFINITY, sum.total[r] = 0.f;
    for (int64_t i = 0; i < unit.chunks; ++i) {
        compute_chunk<C>(p, tile, unit.chunk + i, query, scores, next);
        if (tile.partial >= 0) {
            float* out = partials + tile.partial + (unit.chunk + i - tile.chunk) * partial_size(p, tile);
            memcpy(out, next.top, tile.rows * sizeof(float));
            memcpy(out + tile.rows, next.total, tile.rows * sizeof(float));
            memcpy(out + 2 * tile.rows, mixed, tile.rows * width * sizeof(float));
            continue;
        }
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* row = so_far + r * width;
            merge(sum.top[r], sum.total[r], row, next.top[r], next.total[r], mixed + r * width, width);
        }
    }
    if (tile.partial >= 0) return;
    for (int64_t r = 0; r < tile.rows; ++r) finish(p, tile, r, sum.top[r], sum.total[r], so_far + r * width);
}

void merge_tile(const Problem& p, const Tile& tile, const float* partials) {
    alignas(64) float mixed[kWidest];
    int64_t width = p.width();
    for (int64_t r = 0; r < tile.rows; ++r) {
        float top = -INFINITY, total = 0.f;
        for (int64_t i = 0; i < tile.chunks; ++i) {
            const float* next = partials + tile.partial + i * partial_size(p, tile);
            merge(top, total, mixed, next[r], next[tile.rows + r], next + 2 * tile.rows + r * width, width);
        }
        finish(p, tile, r, top, total, mixed);
    }
}

// A buffer that grows and is kept, for each thread.
struct Buffer {
    void* data = nullptr;
    int64_t bytes = 0;

    template <class T>
    T* of(int64_t count) {
        if (count * int64_t(sizeof(T)) > bytes) {
            free(data);
            bytes = count * int64_t(sizeof(T));
            data = malloc(bytes);
        }
        return static_cast<T*>(data);
    }
};

thread_local Buffer tile_buffer, unit_buffer, partial_buffer;

// The tiles of all requests. Returns their number.
int64_t make_tiles(const Problem& p, Tile* tiles) {
    int64_t count = 0;
    for (int64_t request = 0; request < p.requests; ++request) {
        int64_t rows = (p.query_start[request + 1] - p.query_start[request]) * p.group();
        // Tiles that share keys follow one another, so that these stay in the cache.
        for (int64_t head = 0; head < p.cache.kv_heads; ++head) {
            for (int64_t first = 0; first < rows; first += kRows) {
                int64_t here = rows - first < kRows ? rows - first : kRows;
                int64_t chunk = span_of(p, request, first).begin / kChunk;
                int64_t stop = (span_of(p, request, first + here - 1).end + kChunk - 1) / kChunk;
                if (tiles) tiles[count] = {request, head, first, here, chunk, stop - chunk, -1};
                ++count;
            }
        }
    }
    return count;
}

template <class C>
void attend(const Problem& p) {
    int64_t count = make_tiles(p, nullptr), chunks = 0, units = 0, partials = 0;
    Tile* tiles = tile_buffer.of<Tile>(count);
    make_tiles(p, tiles);
    for (int64_t i = 0; i < count; ++i) chunks += tiles[i].chunks;
    // Most chunks of a unit, so that the threads end at about the same time.
    int64_t most = kChunk * kChunk;
    int threads = thread_count();
    if (threads > 1 && count < kUnitsPerThread * threads * 4) most = 1 + chunks / (kUnitsPerThread * threads);
    Unit* list = unit_buffer.of<Unit>(chunks);
    for (int64_t i = 0; i < count; ++i) {
        Tile& tile = tiles[i];
        if (tile.chunks > most) {
            tile.partial = partials;
            partials += tile.chunks * partial_size(p, tile);
        }
        for (int64_t done = 0; done < tile.chunks; done += most) {
            list[units++] = {i, tile.chunk + done, tile.chunks - done < most ? tile.chunks - done : most};
        }
    }
    float* results = partial_buffer.of<float>(partials);
    parallel_for(units, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) compute_unit<C>(p, tiles[list[i].tile], list[i], results);
    });
    if (partials == 0) return;
    parallel_for(count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (tiles[i].partial >= 0) merge_tile(p, tiles[i], results);
        }
    });
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk

using namespace llmk;
using namespace llmk::LLMK_LEVEL;

// Attention of a step's queries, [tokens, heads, head_dim] with tokens `query_stride` elements apart, to
// [tokens, heads, value_dim]. `block_size` is a multiple of 16, heads have at most 512 elements; a window or soft cap of
// 0 is none; sinks may be null.
LLMK_EXPORT(attention)
(void* out, const void* query, int64_t query_stride, void* cache, int64_t block_stride, int64_t block_size,
 int64_t kv_heads, int64_t head_dim, int64_t value_dim, const int32_t* query_start, const int32_t* seq_lens,
 const int32_t* block_table, int64_t table_stride, int64_t requests, int64_t heads, int64_t window, float scale,
 float softcap, const float* sinks, int32_t dtype, int32_t cache_dtype) {
    Cache where{cache, block_stride, block_size, kv_heads, head_dim, value_dim};
    Problem p{out,   query,        where,        query_start, seq_lens, block_table, sinks,
              query_stride, table_stride, requests,    heads,    window,      scale, softcap, dtype};
    by_dtype(cache_dtype, [&](auto none) { attend<decltype(none)>(p); });
}
