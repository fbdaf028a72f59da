// Draws a token per row from a large vocabulary, as llmk.reference.sampling.sample does: weights are whole numbers, and
// what top-k, top-p and min-p keep is found by counting, without sorting.

#include "kernel.h"

namespace llmk::LLMK_LEVEL::sampling {
namespace {

constexpr float kWhole = 16777216.f;  // the weight of the most likely token, 2^24

inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

constexpr uint32_t kNothing = 0xffffffff, kAll = kNothing - 1;  // distances that no token is at

// How far tokens with a weight are below the most likely one: its bits, which are ordered as distances are.
struct Tokens {
    uint32_t* distances;
    int32_t *weights, *ids;
    int64_t count;
};

// Reads tokens whose weight isn't 0, in the order of their ids.
template <class T>
void collect(Tokens& tokens, const T* logits, int64_t n, float best, float temperature) {
    tokens.count = 0;
    F most = set1(best), divisor = set1(temperature);
    for (int64_t i = 0; i < n; i += F::N) {
        int64_t left = n - i < F::N ? n - i : F::N;
        F below = (load(logits + i, left) - most) / divisor, weight = exp(below) * set1(kWhole);
        if (!(top(weight) > 0.5f)) continue;
        float distances[F::N], weights[F::N];
        store(distances, zero() - below), store(weights, weight);
        for (int64_t j = 0; j < left; ++j) {
            int32_t whole = weights[j] <= kWhole ? int32_t(lrintf(weights[j])) : 0;  // NaN has none
            tokens.distances[tokens.count] = bits_of_float(distances[j]);
            tokens.weights[tokens.count] = whole, tokens.ids[tokens.count] = int32_t(i + j);
            tokens.count += whole > 0;
        }
    }
}

// Where tokens that are counted from the nearest reach a goal: a distance, and the tokens and weights before it.
struct Place {
    uint32_t distance;
    int64_t count, weight;
};

// The distance at which the tokens, or their weights, up to and including it add up to `goal`; the greatest where they
// don't. Narrows down its bits, the upper ones first.
Place find(const Tokens& tokens, int64_t goal, bool by_count) {
    constexpr int kBits[] = {12, 10, 10};
    Place place{0, 0, 0};
    uint32_t known = 0;  // the bits that are decided
    int shift = 32;
    for (int bits : kBits) {
        int64_t counts[1 << 12] = {}, weights[1 << 12] = {};
        shift -= bits;
        uint32_t last = (1u << bits) - 1, at = 0;
        for (int64_t i = 0; i < tokens.count; ++i) {
            uint32_t distance = tokens.distances[i];
            if ((distance & known) != place.distance) continue;
            ++counts[distance >> shift & last], weights[distance >> shift & last] += tokens.weights[i];
        }
        for (; at < last && (by_count ? place.count + counts[at] : place.weight + weights[at]) < goal; ++at) {
            place.count += counts[at], place.weight += weights[at];
        }
        place.distance |= at << shift, known |= last << shift;
    }
    return place;
}

int64_t sum_of(const Tokens& tokens) {
    int64_t total = 0;
    for (int64_t i = 0; i < tokens.count; ++i) total += tokens.weights[i];
    return total;
}

// The weights of the k nearest tokens, of which those at `place` are the farthest.
int64_t nearest_weights(const Tokens& tokens, const Place& place, int64_t k) {
    int64_t each = 0;
    for (int64_t i = 0; i < tokens.count; ++i) {
        if (tokens.distances[i] == place.distance) each = tokens.weights[i];
    }
    return place.weight + (k - place.count) * each;
}

// The greatest distance that top-k and top-p keep; all are kept by 0 and by 1.
uint32_t limit(const Tokens& tokens, int64_t k, float p) {
    uint32_t farthest = kAll;
    bool cuts = k > 0 && k < tokens.count;
    int64_t mass = 0;
    if (cuts) {
        Place place = find(tokens, k, true);
        farthest = place.distance, mass = nearest_weights(tokens, place, k);
    }
    if (p < 1.f) {
        if (!cuts) mass = sum_of(tokens);
        int64_t goal = int64_t(ceilf(p * float(mass)));
        uint32_t nucleus = goal > 0 ? find(tokens, goal, false).distance : 0;
        farthest = nucleus < farthest ? nucleus : farthest;
    }
    return farthest;
}

// The same after a cut at a distance, which nothing is within if it is negative.
inline uint32_t closer(uint32_t farthest, float distance) {
    if (distance < 0.f) return kNothing;
    uint32_t bits = bits_of_float(distance + 0.f);
    return bits < farthest ? bits : farthest;
}

// SplitMix64's finaliser.
inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

// The token at a uniform number, a hash of seed and position, of the distribution of what is kept.
int64_t draw(const Tokens& tokens, uint32_t farthest, int64_t seed, int64_t position) {
    int64_t total = 0;
    for (int64_t i = 0; i < tokens.count; ++i) total += tokens.distances[i] <= farthest ? tokens.weights[i] : 0;
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
    uint64_t uniform = mix(mix(uint64_t(seed) + kGolden) + uint64_t(position) * kGolden) >> 24;  // 40 bits
    int64_t high = int64_t(uniform >> 20), low = int64_t(uniform & 0xfffff);
    int64_t target = (high * total + ((low * total) >> 20)) >> 20, sum = 0;
    for (int64_t i = 0; i < tokens.count; ++i) {
        sum += tokens.distances[i] <= farthest ? tokens.weights[i] : 0;
        if (sum > target) return tokens.ids[i];
    }
    return -1;
}

}  // namespace

// out[i] is drawn from row i of logits, [rows, n] with rows `stride` elements apart; before, it is the row's most likely
// token, and stays so where the temperature is 0; where nothing is left to draw from, it is the last token. top_k, top_p
// and min_p may be null. `scratch` has room for slots * 3 * n words; rows are divided between slots.
LLMK_EXPORT(sample)
(int64_t* out, const void* logits, int64_t stride, const float* temperature, const int64_t* top_k, const float* top_p,
 const float* min_p, const int64_t* seeds, const int64_t* positions, int32_t* scratch, int64_t slots, int64_t rows,
 int64_t n, int32_t dtype) {
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        parallel_for(slots, 1, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < rows; ++row) {
                bool is_own = row % slots >= begin && row % slots < end;
                if (!is_own || temperature[row] == 0.f) continue;
                const T* x = (const T*)logits + row * stride;
                int32_t* own = scratch + row % slots * 3 * n;
                Tokens tokens{(uint32_t*)own, own + n, own + 2 * n, 0};
                collect(tokens, x, n, widen(x[out[row]]), temperature[row]);
                uint32_t farthest = limit(tokens, top_k ? top_k[row] : 0, top_p ? top_p[row] : 1.f);
                if (min_p && min_p[row] > 0.f) farthest = closer(farthest, 0.f - logf(min_p[row]));
                int64_t found = farthest == kNothing ? -1 : draw(tokens, farthest, seeds[row], positions[row]);
                out[row] = found < 0 ? n - 1 : found;
            }
        });
    });
}
LLMK_WORDS(sample)

}  // namespace llmk::LLMK_LEVEL::sampling
