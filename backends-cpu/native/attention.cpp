// Causal attention over a paged cache, for decode and (chunked) prefill.
//
// A row is a query token and a query head. Rows of one request that share a K/V head are computed in tiles, and keys in
// chunks of kChunk that are counted from the request's first token: scores of a chunk, their exponentials relative to
// the chunk's greatest, the weighted sum of values; then the chunks' results are merged in order (FlashAttention,
// arXiv:2205.14135). The order of arithmetic of a row depends on its position alone, so a row's result is the same in
// any batch and with any number of threads.

#include <cstdlib>

#include "attention_tile.h"

namespace llmk::LLMK_LEVEL::attention {
namespace {

constexpr int64_t kRows = 36;     // most rows of a tile
constexpr int kMicro = 6;         // rows whose sums are in registers
constexpr int64_t kFew = 4;       // most rows for which keys and values are not converted beforehand
constexpr int64_t kNear = 64;     // keys whose values are converted at a time
constexpr int64_t kUnitsPerThread = 4;

struct Problem {
    void* out;
    const void* query;
    Cache cache;
    const int32_t *query_start, *seq_lens, *block_table;
    const float* sinks;
    int64_t query_stride, table_stride, requests, heads, window;
    float scale, softcap, value_scale;
    int32_t dtype;

    int64_t group() const { return heads / cache.kv_heads; }
    int64_t width() const { return (cache.value_dim + 2 * F::N - 1) / (2 * F::N) * (2 * F::N); }
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

// The keys of a chunk that any row of a tile sees.
template <class C>
struct Chunk {
    int64_t begin, end;           // positions of the first key, and after the last
    int64_t origin, vectors;      // position of the first vector of keys, and how many there are
    const C* keys[kChunk / F::N]; // by vector
};

template <class C>
void locate(const Problem& p, const Tile& tile, int64_t index, Chunk<C>& chunk) {
    Span first = span_of(p, tile.request, tile.first), last = span_of(p, tile.request, tile.first + tile.rows - 1);
    int64_t start = index * kChunk;
    chunk.begin = first.begin > start ? first.begin : start;
    chunk.end = last.end < start + kChunk ? last.end : start + kChunk;
    chunk.origin = chunk.begin / F::N * F::N;
    chunk.vectors = (chunk.end - chunk.origin + F::N - 1) / F::N;
    const int32_t* table = p.block_table + tile.request * p.table_stride;
    for (int64_t v = 0; v < chunk.vectors; ++v) {
        int64_t at = chunk.origin + v * F::N;
        chunk.keys[v] = p.cache.keys<C>(table[at / p.cache.block_size], tile.head) + at % p.cache.block_size;
    }
}

template <class C>
const C* values_at(const Problem& p, const Tile& tile, int64_t position) {
    int64_t block = p.block_table[tile.request * p.table_stride + position / p.cache.block_size];
    return p.cache.values<C>(block, tile.head) + position % p.cache.block_size * p.cache.value_dim;
}

// Scores of all rows of a tile and two vectors of keys that were copied, [words, 2 * N]. W is any kind of words that are
// multiplied alike.
template <class W>
void score_copied(const Tile& tile, int64_t words, const float* packed, const float* query, float* scores) {
    constexpr int64_t kStride = 2 * F::N / W::kEach;  // so that words are 2 * N apart
    const float* keys[] = {packed, packed + F::N};
    by_rows<kMicro>(tile.rows, [&](int64_t r, auto rows) {
        score<Copied<W>, rows.value, 2>(query + r * words, words, keys, kStride, nullptr, 0, scores + r * kChunk);
    });
}

template <class W, class C = typename W::Type>
void score_chunk(const Problem& p, const Tile& tile, const Chunk<C>& chunk, const float* query, float* scores) {
    int64_t words = p.cache.head_dim / W::kEach, stride = p.cache.block_size;
    if (tile.rows <= kFew) {
        by_rows<2>(tile.rows, [&](int64_t r, auto rows) {
            score_few<W, rows.value>(query + r * words, words, chunk.keys, chunk.vectors, stride, scores + r * kChunk);
        });
        return;
    }
    alignas(64) float packed[2 * F::N * kWidest];
    for (int64_t v = 0; v < chunk.vectors; v += 2) {
        pack_keys<W>(packed, chunk.keys[v], chunk.keys[v + 1 < chunk.vectors ? v + 1 : v], words, stride);
        score_copied<typename W::Alike>(tile, words, packed, query, scores + v * F::N);
    }
}

// Adds the values of `keys` tokens that were copied to floats, times the weights of each row.
void mix_copied(const Tile& tile, int64_t size, int64_t keys, const float* packed, const float* weights, float* mixed,
                int64_t width) {
    for (int64_t j = 0; j < size; j += 2 * F::N) {
        by_rows<kMicro>(tile.rows, [&](int64_t r, auto rows) {
            mix<rows.value, 2, float>(weights + r * kChunk, packed + j * kNear, 2 * F::N, keys, mixed + r * width + j,
                                      width, F::N);
        });
    }
}

// `weights` are those of the keys from chunk.origin on.
template <class C>
void mix_chunk(const Problem& p, const Tile& tile, const Chunk<C>& chunk, const float* weights, float* mixed) {
    int64_t width = p.width(), size = p.cache.value_dim;
    memset(mixed, 0, tile.rows * width * sizeof(float));
    for (int64_t at = chunk.begin; at < chunk.end && tile.rows <= kFew;) {
        int64_t left = chunk.end - at, keys = p.cache.block_size - at % p.cache.block_size;
        keys = keys < left ? keys : left;
        by_rows<2>(tile.rows, [&](int64_t r, auto rows) {
            const float* from = weights + r * kChunk + (at - chunk.origin);
            mix_few<rows.value>(from, values_at<C>(p, tile, at), size, keys, mixed + r * width, width);
        });
        at += keys;
    }
    alignas(64) float packed[kNear * kWidest];
    for (int64_t at = chunk.begin; at < chunk.end && tile.rows > kFew; at += kNear) {
        int64_t keys = chunk.end - at < kNear ? chunk.end - at : kNear;
        for (int64_t k = 0; k < keys; ++k) {
            pack_values(packed + k * 2 * F::N, values_at<C>(p, tile, at + k), size, kNear * 2 * F::N);
        }
        mix_copied(tile, size, keys, packed, weights + (at - chunk.origin), mixed, width);
    }
}

// Multiplies scores or weights by the scales of the keys or values from chunk.origin on.
template <class C>
void scale_chunk(const Problem& p, const Tile& tile, const Chunk<C>& chunk, bool of_values, float* numbers) {
    const int32_t* table = p.block_table + tile.request * p.table_stride;
    for (int64_t v = 0; v < chunk.vectors; ++v) {
        int64_t at = chunk.origin + v * F::N, block = table[at / p.cache.block_size];
        const float* scales = of_values ? p.cache.value_scales(block, tile.head) : p.cache.key_scales(block, tile.head);
        F scale = load(scales + at % p.cache.block_size);
        for (int64_t r = 0; r < tile.rows; ++r) {
            float* each = numbers + r * kChunk + v * F::N;
            store(each, load(each) * scale);
        }
    }
}

// Replaces the scores of a tile's rows and the keys from position `origin` on by weights.
void weigh_rows(const Problem& p, const Tile& tile, int64_t origin, int64_t vectors, float* scores, Result& out) {
    for (int64_t r = 0; r < tile.rows; ++r) {
        Span seen = span_of(p, tile.request, tile.first + r);
        seen = {seen.begin - origin, seen.end - origin};
        if (seen.end <= 0 || seen.begin >= vectors * F::N) {
            out.top[r] = -INFINITY, out.total[r] = 0.f;
            memset(scores + r * kChunk, 0, vectors * F::N * sizeof(float));
        } else {
            weigh(scores + r * kChunk, vectors, seen, p.scale, p.softcap, out.top[r], out.total[r]);
        }
    }
}

// Computes one chunk of a tile. `query` are the tile's queries, [rows, words].
template <class W, class C = typename W::Type>
void compute_chunk(const Problem& p, const Tile& tile, int64_t index, const float* query, float* scores, Result& out) {
    Chunk<C> chunk;
    locate(p, tile, index, chunk);
    score_chunk<W>(p, tile, chunk, query, scores);
    if (p.cache.scaled) scale_chunk(p, tile, chunk, false, scores);
    weigh_rows(p, tile, chunk.origin, chunk.vectors, scores, out);
    if (p.cache.scaled) scale_chunk(p, tile, chunk, true, scores);
    mix_chunk(p, tile, chunk, scores, out.mixed);
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
    F scale = set1(factor / total * p.value_scale);
    int64_t token = p.query_start[tile.request] + row / p.group(), size = p.cache.value_dim;
    by_dtype(p.dtype, [&](auto none) {
        auto* out = static_cast<decltype(none)*>(p.out) + (token * p.heads + head) * size;
        for (int64_t j = 0; j < size; j += F::N) {
            store(out + j, load(mixed + j) * scale, size - j < F::N ? size - j : F::N);
        }
    });
}

using Compute = void (*)(const Problem&, const Tile&, int64_t, const float*, float*, Result&);

// How chunks are computed, and of how many elements a word is: all that depends on the kind of words.
struct Method {
    Compute compute_chunk;
    int64_t each;
};

// The queries of a tile as words of `each` elements, [rows, words].
void load_queries(const Problem& p, const Tile& tile, int64_t each, float* out) {
    int64_t size = p.cache.head_dim, words = size / each;
    by_dtype(p.dtype, [&](auto none) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            int64_t row = tile.first + r, head = tile.head * p.group() + row % p.group();
            int64_t token = p.query_start[tile.request] + row / p.group();
            auto* q = static_cast<const decltype(none)*>(p.query) + token * p.query_stride + head * size;
            if (each > 1) {
                memcpy(out + r * words, q, words * sizeof(float));
            } else {
                for (int64_t d = 0; d < size; ++d) out[r * size + d] = widen(q[d]);
            }
        }
    });
}

// Partial results of a tile's chunk: [rows] greatest scores, [rows] sums, [rows, width] mixed values.
int64_t partial_size(const Problem& p, const Tile& tile) { return tile.rows * (p.width() + 2); }

void compute_unit(const Problem& p, const Method& method, const Tile& tile, const Unit& unit, float* partials) {
    alignas(64) float query[kRows * kWidest], scores[kRows * kChunk], mixed[kRows * kWidest], so_far[kRows * kWidest];
    Result next{{}, {}, mixed}, sum{{}, {}, so_far};
    int64_t width = p.width();
    load_queries(p, tile, method.each, query);
    for (int64_t r = 0; r < tile.rows; ++r) sum.top[r] = -INFINITY, sum.total[r] = 0.f;
    for (int64_t i = 0; i < unit.chunks; ++i) {
        method.compute_chunk(p, tile, unit.chunk + i, query, scores, next);
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

void attend(const Problem& p, const Method& method) {
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
        for (int64_t i = begin; i < end; ++i) compute_unit(p, method, tiles[list[i].tile], list[i], results);
    });
    if (partials == 0) return;
    parallel_for(count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            if (tiles[i].partial >= 0) merge_tile(p, tiles[i], results);
        }
    });
}

template <class W>
void attend(const Problem& p) {
    attend(p, {compute_chunk<W>, W::kEach});
}

}  // namespace

// Attention of a step's queries, [tokens, heads, head_dim] with tokens `query_stride` elements apart, to
// [tokens, heads, value_dim]. `block_size` is a multiple of 16, heads have at most 512 elements; a window or soft cap of
// 0 is none; sinks may be null. `scale` and `value_scale` are times those of a cache of e4m3.
LLMK_EXPORT(attention)
(void* out, const void* query, int64_t query_stride, void* cache, int64_t block_stride, int64_t block_size,
 int64_t kv_heads, int64_t head_dim, int64_t value_dim, const int32_t* query_start, const int32_t* seq_lens,
 const int32_t* block_table, int64_t table_stride, int64_t requests, int64_t heads, int64_t window, float scale,
 float softcap, float value_scale, const float* sinks, int32_t dtype, int32_t cache_dtype) {
    Cache where{cache, block_stride, block_size, kv_heads, head_dim, value_dim, cache_dtype == kInt8};
    Problem p{out,   query,        where,        query_start, seq_lens, block_table, sinks,
              query_stride, table_stride, requests,    heads,    window,      scale, softcap, value_scale, dtype};
#if defined(__AVX512BF16__) && !defined(LLMK_PLAIN)
    if (dtype == kBFloat16 && head_dim % 2 == 0) {
        if (cache_dtype == kBFloat16) return attend<Pairs<bf16>>(p);
        if (cache_dtype == kE4M3) return attend<Pairs<e4m3>>(p);
        if (cache_dtype == kInt8) return attend<Pairs<int8_t>>(p);
    }
#endif
    by_cache_dtype(cache_dtype, [&](auto none) { attend<Singles<decltype(none)>>(p); });
}
LLMK_WORDS(attention)

}  // namespace llmk::LLMK_LEVEL::attention
