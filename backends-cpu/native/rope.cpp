// Rotary position embedding (arXiv:2104.09864), and what it is fused with: the norms of heads, and the write of keys and
// values to the cache.

#include "attention.h"

namespace llmk::LLMK_LEVEL::rope {
namespace {

// Cosines and sines: table[position] has rot / 2 cosines and as many sines. A token's positions are `token_stride`
// elements apart from the next token's. With axes, there is one per axis, `axis_stride` elements apart, and pair i turns
// by that of axes[i].
struct Rotation {
    const float* table;
    const int64_t *positions, *axes;
    int64_t token_stride, axis_stride, rot;
    bool neighbours;  // pairs are 2 * i and 2 * i + 1, not i and i + rot / 2

    // Where the cosines of a token are; with axes, they are collected in `buffer`.
    const float* angles(int64_t token, float* buffer) const {
        const int64_t* own = positions + token * token_stride;
        if (!axes) return table + *own * rot;
        int64_t half = rot / 2;
        for (int64_t i = 0; i < half; ++i) {
            const float* row = table + own[axes[i] * axis_stride] * rot;
            buffer[i] = row[i], buffer[half + i] = row[half + i];
        }
        return buffer;
    }

    void turn(float* x, const float* cosines) const {
        int64_t half = rot / 2;
        const float* sines = cosines + half;
        if (neighbours) {
            for (int64_t i = 0; i < half; ++i) {
                float even = x[2 * i], odd = x[2 * i + 1];
                x[2 * i] = even * cosines[i] - odd * sines[i];
                x[2 * i + 1] = odd * cosines[i] + even * sines[i];
            }
            return;
        }
        for (int64_t i = 0; i < half; i += F::N) {
            int64_t n = half - i < F::N ? half - i : F::N;
            F first = load(x + i, n), second = load(x + half + i, n);
            F cos = load(cosines + i, n), sin = load(sines + i, n);
            store(x + i, first * cos - second * sin, n);
            store(x + half + i, second * cos + first * sin, n);
        }
    }
};

template <class T>
void widen_row(float* out, const T* x, int64_t size) {
    int64_t i = 0;
    for (; i + F::N <= size; i += F::N) store(out + i, load(x + i));
    for (; i < size; ++i) out[i] = widen(x[i]);
}

template <class T>
void narrow_row(T* out, const float* x, int64_t size) {
    int64_t i = 0;
    for (; i + F::N <= size; i += F::N) store(out + i, load(x + i));
    for (; i < size; ++i) narrow(x[i], out[i]);
}

template <class T>
void round_row(float* x, int64_t size) {
    if (sizeof(T) == sizeof(float)) return;
    for (int64_t i = 0; i < size; i += F::N) {
        int64_t n = size - i < F::N ? size - i : F::N;
        store(x + i, rounded<T>(load(x + i, n)), n);
    }
}

template <class T>
float round_to(float x) {
    T narrowed;
    narrow(x, narrowed);
    return widen(narrowed);
}

// Norms a head in place, rounded to T where llmk.reference.norms rounds.
template <class T>
void norm_head(float* x, const T* weight, int64_t size, float eps, float offset) {
    F squares = zero();
    for (int64_t i = 0; i < size; i += F::N) {
        F part = load(x + i, size - i < F::N ? size - i : F::N);
        squares = fma(part, part, squares);
    }
    float inverse = 1.f / sqrtf(sum(squares) / float(size) + eps);
    int64_t i = 0;
    for (; i + F::N <= size; i += F::N) {
        F normed = load(x + i) * set1(inverse), w = load(weight + i);
        store(x + i, rounded<T>(offset != 0.f ? normed * (w + set1(offset)) : rounded<T>(normed) * w));
    }
    for (; i < size; ++i) {
        float normed = x[i] * inverse, w = widen(weight[i]);
        x[i] = round_to<T>(offset != 0.f ? normed * (w + offset) : round_to<T>(normed) * w);
    }
}

// Stores a row of T, given as floats, in the cache: keys `stride` elements apart.
template <class C>
void store_row(C* out, const float* x, int64_t size, int64_t stride) {
    if (stride == 1) return narrow_row(out, x, size);
    alignas(64) C narrowed[kWidest];
    narrow_row(narrowed, x, size);
    for (int64_t i = 0; i < size; ++i) out[i * stride] = narrowed[i];
}

// Divides a row by a scale; without one (0), by that by which its integers are up to 127, and rounds them. Returns the
// scale.
float divide_row(float* x, int64_t size, float scale) {
    bool whole = scale == 0.f;
    if (whole) {
        for (int64_t i = 0; i < size; ++i) scale = fmaxf(scale, fabsf(x[i]));
        scale = scale > 0.f ? scale / 127.f : 1.f;
    }
    for (int64_t i = 0; i < size; i += F::N) {
        int64_t n = size - i < F::N ? size - i : F::N;
        F part = load(x + i, n) / set1(scale);
        store(x + i, whole ? nearest(part) : part, n);
    }
    return scale;
}

// Writes a token's key and value to its slot, 0 or above. In a cache of 8 bits, they are divided by the scales first.
template <class C>
void write_token(const Cache& cache, int64_t slot, int64_t head, float* key, float* value, float key_scale,
                 float value_scale) {
    int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
    if constexpr (sizeof(C) == 1) {
        key_scale = divide_row(key, cache.head_dim, cache.scaled ? 0.f : key_scale);
        value_scale = divide_row(value, cache.value_dim, cache.scaled ? 0.f : value_scale);
        if (cache.scaled) {
            cache.key_scales(block, head)[offset] = key_scale, cache.value_scales(block, head)[offset] = value_scale;
        }
    }
    store_row(cache.keys<C>(block, head) + offset, key, cache.head_dim, cache.block_size);
    store_row(cache.values<C>(block, head) + offset * cache.value_dim, value, cache.value_dim, 1);
}

// Tokens in a piece of work, so that a piece has about 32 KiB.
int64_t tokens_at_once(int64_t elements) { return elements < 8192 ? 8192 / (elements > 0 ? elements : 1) : 1; }

}  // namespace

// Rotates `heads` heads of each token: x and out are [tokens, heads, size], out contiguous.
LLMK_EXPORT(rope)
(void* out, const void* x, int64_t x_stride, int64_t tokens, int64_t heads, int64_t size, const int64_t* positions,
 const int64_t* axes, int64_t token_stride, int64_t axis_stride, const float* cos_sin, int64_t rot, int32_t neighbours,
 int32_t dtype) {
    Rotation rotation{cos_sin, positions, axes, token_stride, axis_stride, rot, neighbours != 0};
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        parallel_for(tokens, tokens_at_once(heads * size), [&](int64_t begin, int64_t end) {
            alignas(64) float row[kWidest], buffer[kWidest];
            for (int64_t t = begin; t < end; ++t) {
                const float* cosines = rotation.angles(t, buffer);
                for (int64_t h = 0; h < heads; ++h) {
                    widen_row(row, (const T*)x + t * x_stride + h * size, size);
                    rotation.turn(row, cosines);
                    narrow_row((T*)out + (t * heads + h) * size, row, size);
                }
            }
        });
    });
}
LLMK_WORDS(rope)

// Stores keys [tokens, kv_heads, head_dim] and values [tokens, kv_heads, value_dim] at the slots of the tokens, without
// norm and rotation unless q or k have them: norms heads where weights are given, rotates where `cos_sin` is given, and
// writes the new queries to `q_out`, contiguous. `q` may be null. The scales are those of a cache of e4m3.
LLMK_EXPORT(write_kv)
(void* q_out, const void* q, int64_t q_stride, const void* k, int64_t k_stride, const void* v, int64_t v_stride,
 const void* q_weight, const void* k_weight, float eps, float offset, const int64_t* positions, const int64_t* axes,
 int64_t token_stride, int64_t axis_stride, const float* cos_sin, int64_t rot, void* cache, int64_t block_stride,
 int64_t block_size, float key_scale, float value_scale, const int64_t* slots, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,
 int64_t value_dim, int32_t dtype, int32_t cache_dtype) {
    Cache where{cache, block_stride, block_size, kv_heads, head_dim, value_dim, cache_dtype == kInt8};
    Rotation rotation{cos_sin, positions, axes, token_stride, axis_stride, rot, false};
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        int64_t elements = heads * head_dim + kv_heads * (head_dim + value_dim);
        parallel_for(tokens, tokens_at_once(elements), [&](int64_t begin, int64_t end) {
            alignas(64) float key[kWidest], value[kWidest], buffer[kWidest];
            for (int64_t t = begin; t < end; ++t) {
                const float* cosines = cos_sin ? rotation.angles(t, buffer) : nullptr;
                for (int64_t h = 0; q && h < heads; ++h) {
                    widen_row(key, (const T*)q + t * q_stride + h * head_dim, head_dim);
                    if (q_weight) norm_head(key, (const T*)q_weight, head_dim, eps, offset);
                    if (cosines) rotation.turn(key, cosines);
                    narrow_row((T*)q_out + (t * heads + h) * head_dim, key, head_dim);
                }
                if (slots[t] < 0) continue;
                for (int64_t h = 0; h < kv_heads; ++h) {
                    widen_row(key, (const T*)k + t * k_stride + h * head_dim, head_dim);
                    widen_row(value, (const T*)v + t * v_stride + h * value_dim, value_dim);
                    if (k_weight) norm_head(key, (const T*)k_weight, head_dim, eps, offset);
                    if (cosines) rotation.turn(key, cosines);
                    round_row<T>(key, head_dim);
                    by_cache_dtype(cache_dtype, [&](auto stored) {
                        write_token<decltype(stored)>(where, slots[t], h, key, value, key_scale, value_scale);
                    });
                }
            }
        });
    });
}
LLMK_WORDS(write_kv)

}  // namespace llmk::LLMK_LEVEL::rope
