// Scans and the delta rule of recurrent layers, in float32, token by token. Rows of a state don't depend on each other,
// so a piece of work is some rows of one head of one request, whose state stays in the first-level cache for all its
// tokens. Results are those of llmk.reference.recurrent, bit-identical in any batch and for any chunking of a prompt.

#include "states.h"

namespace llmk::LLMK_LEVEL::recurrent {
namespace {

constexpr int64_t kRows = 4, kWidest = 512;       // rows of a piece of work, and the most elements of one
constexpr int64_t kChannels = 16, kNarrow = 128;  // the same of states whose rows have decays of their own
constexpr int64_t kPad = 16;                 // rows are padded with zeros to a multiple of it

inline int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

[[gnu::noinline]] void widen_row(float* to, const void* from, int64_t at, int64_t n, int64_t size, int32_t dtype) {
    by_dtype(dtype, [&](auto none) { LLMK_LEVEL::widen_row(to, (const decltype(none)*)from + at, n, size); });
}

[[gnu::noinline]] void narrow_row(void* to, int64_t at, const float* from, int64_t n, int32_t dtype) {
    by_dtype(dtype, [&](auto none) { LLMK_LEVEL::narrow_row((decltype(none)*)to + at, from, n); });
}

// Where states are: rows of `size` elements in heads of `rows`, `stride` elements from block to block.
struct Cache {
    void* data;
    int64_t stride, rows, size;
    int32_t dtype;

    int64_t at(int64_t block, int64_t head, int64_t row) const { return block * stride + (head * rows + row) * size; }
};

// R rows of a state, of up to `Width` elements; those behind the last one of a head are zeros.
template <int64_t R, int64_t Width>
struct Rows {
    float values[R][Width];
    int64_t count, size;  // rows that there are, and padded elements of each

    void load(const Cache& cache, int64_t block, int64_t head, int64_t row) {
        for (int64_t r = 0; r < R; ++r) {
            bool there = r < count && block >= 0;
            int64_t from = there ? cache.at(block, head, row + r) : 0;
            widen_row(values[r], cache.data, from, there ? cache.size : 0, size, cache.dtype);
        }
    }

    void save(const Cache& cache, int64_t block, int64_t head, int64_t row) const {
        for (int64_t r = 0; r < count; ++r) {
            narrow_row(cache.data, cache.at(block, head, row + r), values[r], cache.size, cache.dtype);
        }
    }
};

using State = Rows<kRows, kWidest>;

// found[r] = row r times x
void multiply(const State& state, float* found, const float* x) {
    F sums[kRows] = {zero(), zero(), zero(), zero()};
    for (int64_t i = 0; i < state.size; i += F::N) {
        F each = load(x + i);
#pragma GCC unroll 4
        for (int64_t r = 0; r < kRows; ++r) sums[r] = fma(load(state.values[r] + i), each, sums[r]);
    }
    for (int64_t r = 0; r < kRows; ++r) found[r] = sum(sums[r]);
}

// row r = decay * row r + added[r] * x, and found[r] = the new row r times y
void update(State& state, float* found, float decay, const float* added, const float* x, const float* y) {
    F sums[kRows] = {zero(), zero(), zero(), zero()}, kept = set1(decay);
    for (int64_t i = 0; i < state.size; i += F::N) {
        F in = load(x + i), read = load(y + i);
#pragma GCC unroll 4
        for (int64_t r = 0; r < kRows; ++r) {
            F now = fma(set1(added[r]), in, kept * load(state.values[r] + i));
            store(state.values[r] + i, now);
            sums[r] = fma(now, read, sums[r]);
        }
    }
    for (int64_t r = 0; r < kRows; ++r) found[r] = sum(sums[r]);
}

// Some rows of one head, for all tokens of each request: token(rows, head, first row, row of the step).
template <int64_t R = kRows, int64_t Width = kWidest, class Token>
void advance(const Step& step, const Cache& cache, int64_t heads, Token&& token) {
    int64_t parts = (cache.rows + R - 1) / R;
    parallel_for(step.requests * heads * parts, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            int64_t request = i / (heads * parts), head = i / parts % heads, row = i % parts * R;
            Rows<R, Width> state;
            state.count = cache.rows - row < R ? cache.rows - row : R, state.size = padded(cache.size);
            Run(step, request).walk(
                [&](int64_t block) { state.load(cache, block, head, row); },
                [&](int64_t from, int64_t to) {
                    for (int64_t t = from; t < to; ++t) token(state, head, row, t);
                },
                [&](int64_t block) { state.save(cache, block, head, row); });
        }
    });
}

// One channel's state in a token, with decays of its own: row = exp(length * a) * row + added * b. Returns row times c.
float scan_row(float* row, const float* a, float length, float added, const float* b, const float* c, int64_t size) {
    F total = zero();
    for (int64_t i = 0; i < size; i += F::N) {
        F now = fma(exp(set1(length) * load(a + i)), load(row + i), set1(added) * load(b + i));
        store(row + i, now);
        total = fma(now, load(c + i), total);
    }
    return sum(total);
}

// x divided by its length (epsilon 1e-6), times `scale`.
void unit_row(float* to, const void* x, int64_t at, int64_t n, float scale, int32_t dtype) {
    int64_t size = padded(n);
    widen_row(to, x, at, n, size, dtype);
    F squares = zero();
    for (int64_t i = 0; i < size; i += F::N) squares = fma(load(to + i), load(to + i), squares);
    F factor = set1(scale / sqrtf(sum(squares) + 1e-6f));
    for (int64_t i = 0; i < size; i += F::N) store(to + i, load(to + i) * factor);
}

// log(1 + e^x). log(1 + u) is 2 atanh(u / (2 + u)), whose series has a remainder below 1e-9 here.
F softplus(F x) {
    F u = exp(min(x, zero() - x)), s = u / (u + set1(2.f)), squared = s * s, series = set1(1.f / 15.f);
    for (float divisor = 13.f; divisor > 0.f; divisor -= 2.f) series = fma(series, squared, set1(1.f / divisor));
    return fma(s + s, series, max(x, zero()));
}

// to[i] = softplus(x[at + i] + bias[i])
void soften(float* to, const void* x, int64_t at, const float* bias, int64_t n, int32_t dtype) {
    by_dtype(dtype, [&](auto none) {
        const auto* from = (const decltype(none)*)x + at;
        for (int64_t i = 0; i < n; i += F::N) {
            int64_t left = n - i < F::N ? n - i : F::N;
            store(to + i, softplus(load(from + i, left) + load(bias + i, left)), left);
        }
    });
}

// The values of one head's rows in a token, zeros behind the last.
void widen_rows(float* to, const void* x, int64_t at, int64_t n, int32_t dtype) {
    by_dtype(dtype, [&](auto none) {
        const auto* from = (const decltype(none)*)x + at;
        for (int64_t r = 0; r < kRows; ++r) to[r] = r < n ? widen(from[r]) : 0.f;
    });
}

void narrow_rows(void* to, int64_t at, const float* x, int64_t n, int32_t dtype) {
    by_dtype(dtype, [&](auto none) {
        auto* out = (decltype(none)*)to + at;
        for (int64_t r = 0; r < n; ++r) narrow(x[r], out[r]);
    });
}

}  // namespace

// The op gated_delta_rule: out is [tokens, heads, values] and contiguous; q, k [tokens, key_heads, keys] and v like out,
// of which heads are contiguous and tokens are strides apart; g, beta float32 [tokens, heads]; `scratch` has room for
// tokens * (2 * key_heads * (keys padded to a multiple of 16) + heads) floats.
LLMK_EXPORT(gated_delta_rule)
(void* out, const void* q, int64_t q_stride, const void* k, int64_t k_stride, const void* v, int64_t v_stride,
 const float* g, const float* beta, float* scratch, void* cache, int64_t cache_stride, const int32_t* starts,
 const int32_t* lengths, const int32_t* table, int64_t table_stride, const int64_t* drafts, int64_t block_size,
 int64_t requests, int64_t tokens, int64_t key_heads, int64_t heads, int64_t keys, int64_t values, int32_t dtype,
 int32_t cache_dtype) {
    Step step{starts, lengths, table, drafts, table_stride, block_size, requests, tokens};
    Cache states{cache, cache_stride, values, keys, cache_dtype};
    clear_padding(out, step, heads * values, dtype);
    int64_t size = padded(keys), shared_by = heads / key_heads;
    float scale = 1.f / sqrtf(float(keys)), *decays = scratch + tokens * key_heads * 2 * size;
    parallel_for(tokens * key_heads, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            int64_t token = i / key_heads, at = i % key_heads * keys;
            unit_row(scratch + i * 2 * size, q, token * q_stride + at, keys, scale, dtype);
            unit_row(scratch + i * 2 * size + size, k, token * k_stride + at, keys, 1.f, dtype);
        }
    });
    for (int64_t i = 0; i < tokens * heads; ++i) decays[i] = expf(g[i]);
    advance(step, states, heads, [&](State& state, int64_t head, int64_t row, int64_t token) {
        const float* query = scratch + (token * key_heads + head / shared_by) * 2 * size;
        float decay = decays[token * heads + head], share = beta[token * heads + head];
        float given[kRows], found[kRows], added[kRows];
        widen_rows(given, v, token * v_stride + head * values + row, state.count, dtype);
        multiply(state, found, query + size);
        for (int64_t r = 0; r < kRows; ++r) added[r] = share * (given[r] - decay * found[r]);
        update(state, found, decay, added, query + size, query);
        narrow_rows(out, (token * heads + head) * values + row, found, state.count, dtype);
    });
}
LLMK_WORDS(gated_delta_rule)

// The op state_space_scan: out is [tokens, heads, size] and contiguous; x the same, dt [tokens, heads], and b, c [tokens,
// groups, state], of which all but tokens are contiguous; a, d, dt_bias float32 [heads]; `scratch` has room for tokens *
// (2 * groups * (state padded to a multiple of 16) + 2 * heads) floats.
LLMK_EXPORT(state_space_scan)
(void* out, const void* x, int64_t x_stride, const void* dt, int64_t dt_stride, const float* a, const void* b,
 int64_t b_stride, const void* c, int64_t c_stride, const float* d, const float* dt_bias, float least, float most,
 float* scratch, void* cache, int64_t cache_stride, const int32_t* starts, const int32_t* lengths, const int32_t* table,
 int64_t table_stride, const int64_t* drafts, int64_t block_size, int64_t requests, int64_t tokens, int64_t groups,
 int64_t heads, int64_t size, int64_t state_size, int32_t dtype, int32_t cache_dtype) {
    Step step{starts, lengths, table, drafts, table_stride, block_size, requests, tokens};
    Cache states{cache, cache_stride, size, state_size, cache_dtype};
    clear_padding(out, step, heads * size, dtype);
    int64_t wide = padded(state_size), shared_by = heads / groups;
    float* sizes = scratch + tokens * groups * 2 * wide;
    parallel_for(tokens * groups, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            int64_t token = i / groups, at = i % groups * state_size;
            widen_row(scratch + i * 2 * wide, b, token * b_stride + at, state_size, wide, dtype);
            widen_row(scratch + i * 2 * wide + wide, c, token * c_stride + at, state_size, wide, dtype);
        }
    });
    for (int64_t token = 0; token < tokens; ++token) {
        float* to = sizes + token * 2 * heads;
        soften(to, dt, token * dt_stride, dt_bias, heads, dtype);
        for (int64_t h = 0; h < heads; ++h) to[h] = to[h] < least ? least : to[h] > most ? most : to[h];
        for (int64_t h = 0; h < heads; ++h) to[heads + h] = expf(to[h] * a[h]);
    }
    advance(step, states, heads, [&](State& state, int64_t head, int64_t row, int64_t token) {
        const float* in = scratch + (token * groups + head / shared_by) * 2 * wide;
        const float* of = sizes + token * 2 * heads + head;
        float given[kRows], found[kRows], added[kRows];
        widen_rows(given, x, token * x_stride + head * size + row, state.count, dtype);
        for (int64_t r = 0; r < kRows; ++r) added[r] = of[0] * given[r];
        update(state, found, of[heads], added, in, in + wide);
        for (int64_t r = 0; r < kRows; ++r) found[r] = fmaf(d[head], given[r], found[r]);
        narrow_rows(out, (token * heads + head) * size + row, found, state.count, dtype);
    });
}
LLMK_WORDS(state_space_scan)

// The op selective_scan: out is [tokens, channels] and contiguous; x, dt, gate the same and b, c [tokens, state], with
// rows strides apart; a float32 [channels, state padded to a multiple of 16]; d, dt_bias float32 [channels]; `scratch`
// has room for tokens * 2 * (state padded to a multiple of 16) floats.
LLMK_EXPORT(selective_scan)
(void* out, const void* x, int64_t x_stride, const void* dt, int64_t dt_stride, const float* a, const void* b,
 int64_t b_stride, const void* c, int64_t c_stride, const float* d, const float* dt_bias, const void* gate,
 int64_t gate_stride, float* scratch, void* cache, int64_t cache_stride, const int32_t* starts, const int32_t* lengths,
 const int32_t* table, int64_t table_stride, const int64_t* drafts, int64_t block_size, int64_t requests,
 int64_t tokens, int64_t channels, int64_t state_size, int32_t dtype, int32_t cache_dtype) {
    Step step{starts, lengths, table, drafts, table_stride, block_size, requests, tokens};
    Cache states{cache, cache_stride, channels, state_size, cache_dtype};
    clear_padding(out, step, channels, dtype);
    int64_t wide = padded(state_size);
    for (int64_t token = 0; token < tokens; ++token) {
        widen_row(scratch + token * 2 * wide, b, token * b_stride, state_size, wide, dtype);
        widen_row(scratch + token * 2 * wide + wide, c, token * c_stride, state_size, wide, dtype);
    }
    advance<kChannels, kNarrow>(step, states, 1, [&](auto& state, int64_t, int64_t first, int64_t token) {
        const float* in = scratch + token * 2 * wide;
        float given[kChannels], gates[kChannels], sizes[kChannels], found[kChannels] = {};
        widen_row(given, x, token * x_stride + first, state.count, kChannels, dtype);
        widen_row(gates, gate, token * gate_stride + first, state.count, kChannels, dtype);
        soften(sizes, dt, token * dt_stride + first, dt_bias + first, state.count, dtype);
        for (int64_t r = 0; r < state.count; ++r) {
            float added = sizes[r] * given[r], *row = state.values[r];
            float read = scan_row(row, a + (first + r) * wide, sizes[r], added, in, in + wide, wide);
            found[r] = fmaf(d[first + r], given[r], read);
        }
        for (int64_t i = 0; i < kChannels; i += F::N) {
            F by = load(gates + i);
            store(found + i, load(found + i) * by * sigmoid(by));
        }
        narrow_row(out, token * channels + first, found, state.count, dtype);
    });
}
LLMK_WORDS(selective_scan)

}  // namespace llmk::LLMK_LEVEL::recurrent
