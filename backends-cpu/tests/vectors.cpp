// Compares one level's kernels with plain arithmetic in double precision; for processors that run under an emulator.
// test_cross.py compiles it, with LLMK_LEVEL as the level, together with the kernel sources.

#include <cmath>
#include <cstdio>
#include <vector>

#include "kernel.h"

using namespace llmk;
using namespace llmk::LLMK_LEVEL;

#define KERNEL(name) extern "C" void LLMK_NAME(LLMK_LEVEL, name)
#define CALL(name) LLMK_NAME(LLMK_LEVEL, name)

KERNEL(rms_norm)
(void*, int64_t, const void*, int64_t, const void*, int64_t, int64_t, float, float, int32_t);
KERNEL(gate)(void*, const void*, int64_t, int64_t, int64_t, int32_t, int32_t, float, float, float, int32_t);
KERNEL(write_kv)
(void*, const void*, int64_t, const void*, int64_t, const void*, int64_t, const void*, const void*, float, float,
 const int64_t*, const int64_t*, int64_t, int64_t, const float*, int64_t, void*, int64_t, int64_t, float, float,
 const int64_t*, int64_t, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t);
KERNEL(rope)
(void*, const void*, int64_t, int64_t, int64_t, int64_t, const int64_t*, const int64_t*, int64_t, int64_t, const float*,
 int64_t, int32_t, int32_t);
KERNEL(linear)
(void*, int64_t, const void*, int64_t, const void*, int64_t, const void*, int64_t, int64_t, int64_t, int32_t);
KERNEL(linear_many)
(void*, int64_t, const void*, int64_t, const void*, int64_t, const void*, int64_t, int64_t, int64_t, int32_t);
KERNEL(linear_int8)
(void*, int64_t, const void*, int64_t, const void*, int64_t, const void*, const void*, int64_t, int64_t, int64_t,
 int32_t);
KERNEL(linear_groups)
(void*, int64_t, const void*, int64_t, const void*, const void*, const void*, int64_t, const void*, int64_t, int64_t,
 int64_t, int32_t, int32_t, int32_t);
KERNEL(linear_int4)
(void*, int64_t, const void*, int64_t, const void*, const void*, const void*, int64_t, const void*, int64_t, int64_t,
 int64_t, int32_t, int32_t, int32_t);
KERNEL(linear_int4_many)
(void*, int64_t, const void*, int64_t, const void*, const void*, const void*, int64_t, const void*, int64_t, int64_t,
 int64_t, int32_t, int32_t, int32_t);
KERNEL(pack_int4)(uint8_t*, const uint8_t*, int64_t, int64_t);
KERNEL(attention)
(void*, const void*, int64_t, void*, int64_t, int64_t, int64_t, int64_t, int64_t, const int32_t*, const int32_t*,
 const int32_t*, int64_t, int64_t, int64_t, int64_t, float, float, float, const float*, int32_t, int32_t);
KERNEL(causal_conv)
(void*, const void*, int64_t, const void*, const void*, void*, int64_t, const int32_t*, const int32_t*, const int32_t*,
 int64_t, const int64_t*, int64_t, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t);
KERNEL(gated_delta_rule)
(void*, const void*, int64_t, const void*, int64_t, const void*, int64_t, const float*, const float*, float*, void*,
 int64_t, const int32_t*, const int32_t*, const int32_t*, int64_t, const int64_t*, int64_t, int64_t, int64_t, int64_t,
 int64_t, int64_t, int64_t, int32_t, int32_t);
KERNEL(selective_scan)
(void*, const void*, int64_t, const void*, int64_t, const float*, const void*, int64_t, const void*, int64_t,
 const float*, const float*, const void*, int64_t, float*, void*, int64_t, const int32_t*, const int32_t*,
 const int32_t*, int64_t, const int64_t*, int64_t, int64_t, int64_t, int64_t, int64_t, int32_t, int32_t);
KERNEL(latent_attention)
(void*, const void*, int64_t, const void*, int64_t, int64_t, int64_t, int64_t, const int32_t*, const int32_t*,
 const int32_t*, int64_t, int64_t, int64_t, int64_t, float, int32_t, int32_t);
KERNEL(write_rows)
(void*, int64_t, int64_t, const void*, int64_t, int64_t, const int64_t*, int64_t, int32_t, int32_t);
KERNEL(sample)
(int64_t*, const void*, int64_t, const float*, const int64_t*, const float*, const float*, const int64_t*,
 const int64_t*, int32_t*, int64_t, int64_t, int64_t, int32_t);

namespace {

uint32_t state = 1;

double draw() {  // from -2 to 2
    state = state * 1664525u + 1013904223u;
    return double(state >> 8) / (1 << 22) - 2;
}

template <class T>
std::vector<T> draws(int64_t n) {
    std::vector<T> out(n);
    for (T& x : out) narrow(float(draw()), x);
    return out;
}

bool failed = false;

template <class T>
void compare(const char* name, const std::vector<T>& found, const std::vector<double>& expected, double bound) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        difference += std::pow(double(widen(found[i])) - expected[i], 2), size += std::pow(expected[i], 2);
    }
    double error = std::sqrt(difference / size);
    if (!(error < bound)) failed = true;
    printf("%s of %d bytes: relative error %.2g of at most %.2g\n", name, int(sizeof(T)), error, bound);
}

template <class T>
void check_rows(int32_t dtype, double bound) {
    const int64_t rows = 3, size = 77;
    auto x = draws<T>(rows * size * 2), weight = draws<T>(size);
    std::vector<T> normed(rows * size), gated(rows * size);
    CALL(rms_norm)(normed.data(), size, x.data(), 2 * size, weight.data(), rows, size, 1e-6f, 1.f, dtype);
    CALL(gate)(gated.data(), x.data(), 2 * size, rows, size, 0, 0, 1.f, INFINITY, 0.f, dtype);
    std::vector<double> norms, gates;
    for (int64_t r = 0; r < rows; ++r) {
        const T* row = x.data() + r * 2 * size;
        double squares = 0;
        for (int64_t i = 0; i < size; ++i) squares += std::pow(double(widen(row[i])), 2);
        for (int64_t i = 0; i < size; ++i) {
            double at = widen(row[i]);
            norms.push_back(at / std::sqrt(squares / size + 1e-6) * (1 + widen(weight[i])));
            gates.push_back(at / (1 + std::exp(-at)) * widen(row[size + i]));
        }
    }
    compare("rms_norm", normed, norms, bound);
    compare("silu_and_mul", gated, gates, bound);
}

// Rotates the first 16 of 24 elements by positions of two axes, those of an axis side by side.
template <class T>
void check_rope(int32_t dtype, double bound) {
    const int64_t tokens = 5, heads = 3, size = 24, rot = 16, half = rot / 2, longest = 11;
    auto x = draws<T>(tokens * heads * size);
    auto table = draws<float>(longest * rot);
    std::vector<int64_t> positions(2 * tokens), axes(half);
    for (int64_t t = 0; t < tokens; ++t) positions[t] = t, positions[tokens + t] = longest - 1 - t;
    for (int64_t i = 0; i < half; ++i) axes[i] = i % 2;
    for (int neighbours : {0, 1}) {
        std::vector<T> out(x.size());
        CALL(rope)
        (out.data(), x.data(), heads * size, tokens, heads, size, positions.data(), axes.data(), 1, tokens, table.data(),
         rot, neighbours, dtype);
        std::vector<double> expected;
        for (T each : x) expected.push_back(widen(each));
        for (int64_t row = 0; row < tokens * heads; ++row) {
            for (int64_t i = 0; i < half; ++i) {
                const float* turn = table.data() + positions[axes[i] * tokens + row / heads] * rot;
                int64_t a = row * size + (neighbours ? 2 * i : i), b = a + (neighbours ? 1 : half);
                double first = widen(x[a]), second = widen(x[b]);
                expected[a] = first * turn[i] - second * turn[half + i];
                expected[b] = second * turn[i] + first * turn[half + i];
            }
        }
        compare("rope", out, expected, bound);
    }
}

// Products of m rows with plain weights, [n, k], those of 8 bits, and those of 4 and 8 bits in groups.
template <class T>
void check_linear(int32_t dtype, double bound, int64_t m) {
    const int64_t n = 53, k = 1120, groups = k / 32;
    auto x = draws<T>(m * k), plain = draws<T>(n * k), bias = draws<T>(n);
    auto scales = draws<float>(n), group_scales = draws<float>(n * groups);
    std::vector<int8_t> bytes(n * k);
    std::vector<uint8_t> nibbles(n * k / 2);
    auto zeros = draws<float>(n * groups);
    for (auto& each : bytes) each = int8_t(draw() * 63);
    for (auto& each : nibbles) each = uint8_t(int(draw() * 63) + 128);
    for (auto& each : zeros) each = each * 3 + 8;
    auto expect = [&](auto weight) {
        std::vector<double> sums;
        for (int64_t row = 0; row < m; ++row) {
            for (int64_t o = 0; o < n; ++o) {
                double sum = widen(bias[o]);
                for (int64_t i = 0; i < k; ++i) sum += double(widen(x[row * k + i])) * weight(o, i);
                sums.push_back(sum);
            }
        }
        return sums;
    };
    std::vector<T> out(m * n);
    auto values = expect([&](int64_t o, int64_t i) { return double(widen(plain[o * k + i])); });
    CALL(linear)(out.data(), n, x.data(), k, plain.data(), k, bias.data(), m, n, k, dtype);
    compare("linear", out, values, bound);
    CALL(linear_many)(out.data(), n, x.data(), k, plain.data(), k, bias.data(), m, n, k, dtype);
    compare("linear_many", out, values, bound);
    double rounding = bound < 1e-4 ? 1e-4 : bound;  // of activations to 16-bit integers
    CALL(linear_int8)
    (out.data(), n, x.data(), k, bytes.data(), k, scales.data(), bias.data(), m, n, k, dtype);
    compare("linear_int8", out, expect([&](int64_t o, int64_t i) { return double(bytes[o * k + i]) * scales[o]; }),
            rounding);
    const int64_t rows = (n + 7) / 8 * 8;
    std::vector<uint8_t> packed(rows * k / 2);
    CALL(pack_int4)(packed.data(), nibbles.data(), n, k);
    auto together = [&](const std::vector<float>& values) {  // [n, groups] as [rows / 8, groups, 8]
        std::vector<float> found(rows * groups);
        for (int64_t o = 0; o < n; ++o) {
            for (int64_t g = 0; g < groups; ++g) found[(o / 8 * groups + g) * 8 + o % 8] = values[o * groups + g];
        }
        return found;
    };
    for (bool symmetric : {false, true}) {
        CALL(linear_int4)
        (out.data(), n, x.data(), k, packed.data(), together(group_scales).data(),
         symmetric ? nullptr : together(zeros).data(), groups, bias.data(), m, n, k, dtype, kFloat32, kFloat32);
        auto int4 = [&](int64_t o, int64_t i) {
            int64_t at = o * groups + i / 32;
            int number = nibbles[(o * k + i) / 2] >> (i % 2 * 4) & 15;
            return (double(number) - (symmetric ? 8 : zeros[at])) * group_scales[at];
        };
        compare("linear_int4", out, expect(int4), rounding);
        CALL(linear_int4_many)
        (out.data(), n, x.data(), k, packed.data(), together(group_scales).data(),
         symmetric ? nullptr : together(zeros).data(), groups, bias.data(), m, n, k, dtype, kFloat32, kFloat32);
        compare("linear_int4_many", out, expect(int4), bound);
    }
    CALL(linear_groups)
    (out.data(), n, x.data(), k, bytes.data(), group_scales.data(), nullptr, groups, bias.data(), m, n, k, dtype,
     kFloat32, kFloat32);
    auto int8 = [&](int64_t o, int64_t i) { return double(bytes[o * k + i]) * group_scales[o * groups + i / 32]; };
    compare("linear_groups", out, expect(int8), rounding);
    auto small_scales = draws<float>(2 * n * groups), small_zeros = draws<float>(2 * n * groups);
    CALL(linear_groups)
    (out.data(), n, x.data(), k, bytes.data(), small_scales.data(), small_zeros.data(), 2 * groups, bias.data(), m, n,
     k, dtype, kFloat32, kFloat32);
    auto small = [&](int64_t o, int64_t i) {
        int64_t at = 2 * o * groups + i / 16;
        return (double(bytes[o * k + i]) - small_zeros[at]) * small_scales[at];
    };
    compare("linear_groups by 16", out, expect(small), rounding);
}

// One request of `tokens` tokens, of which the last `queries` attend. The bound includes what a cache of 8 bits rounds.
template <class T>
void check_attention(int32_t dtype, double bound, int64_t queries, int64_t group, int64_t window, int32_t cache_dtype) {
    const int64_t tokens = 300, kv_heads = 2, size = 40, block_size = 16, blocks = 20;
    const int64_t heads = kv_heads * group, start = tokens - queries;
    auto q = draws<T>(queries * heads * size), k = draws<T>(tokens * kv_heads * size),
         v = draws<T>(tokens * kv_heads * size);
    int64_t stride = kv_heads * (2 * size + (cache_dtype == kInt8 ? 2 * sizeof(float) : 0)) * block_size;
    std::vector<float> cache(blocks * stride);  // more than elements of fewer bytes need
    std::vector<int32_t> table(blocks), begins = {0, int32_t(queries)}, lengths = {int32_t(tokens)};
    std::vector<int64_t> slots(tokens);
    for (int64_t i = 0; i < blocks; ++i) table[i] = int32_t((i * 7) % blocks);
    for (int64_t t = 0; t < tokens; ++t) slots[t] = table[t / block_size] * block_size + t % block_size;
    CALL(write_kv)
    (nullptr, nullptr, 0, k.data(), kv_heads * size, v.data(), kv_heads * size, nullptr, nullptr, 0.f, 0.f, slots.data(),
     nullptr, 1, 1, nullptr, 0, cache.data(), stride, block_size, 1.f, 1.f, slots.data(), tokens, heads, kv_heads, size,
     size, dtype, cache_dtype);
    std::vector<T> out(queries * heads * size);
    CALL(attention)
    (out.data(), q.data(), heads * size, cache.data(), stride, block_size, kv_heads, size, size, begins.data(),
     lengths.data(), table.data(), blocks, 1, heads, window, 0.2f, 0.f, 1.f, nullptr, dtype, cache_dtype);
    std::vector<double> expected;
    for (int64_t row = 0; row < queries * heads; ++row) {
        int64_t head = row % heads / group, last = start + row / heads, first = window ? last - window + 1 : 0;
        std::vector<double> weights, mixed(size);
        double total = 0;
        for (int64_t t = first < 0 ? 0 : first; t <= last; ++t) {
            double score = 0;
            for (int64_t d = 0; d < size; ++d) {
                score += double(widen(q[row * size + d])) * widen(k[(t * kv_heads + head) * size + d]);
            }
            double weight = std::exp(0.2 * score);
            total += weight;
            for (int64_t d = 0; d < size; ++d) mixed[d] += weight * widen(v[(t * kv_heads + head) * size + d]);
        }
        for (double x : mixed) expected.push_back(x / total);
    }
    compare("attention", out, expected, bound);
}

// A new request of 40 tokens, in blocks of 16.
const int64_t kTokens = 40;
const std::vector<int32_t> kStarts = {0, int32_t(kTokens)}, kLengths = {int32_t(kTokens)}, kTable = {2, 0, 1};

template <class T>
void check_conv(int32_t dtype, double bound) {
    const int64_t channels = 77, k = 4;
    auto x = draws<T>(kTokens * channels), weight = draws<T>(channels * k), bias = draws<T>(channels);
    std::vector<T> out(x.size()), cache(3 * (k - 1) * channels);
    CALL(causal_conv)
    (out.data(), x.data(), channels, weight.data(), bias.data(), cache.data(), (k - 1) * channels, kStarts.data(),
     kLengths.data(), kTable.data(), 3, nullptr, 16, 1, kTokens, channels, k, 1, dtype);
    std::vector<double> expected;
    for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t c = 0; c < channels; ++c) {
            double total = widen(bias[c]);
            for (int64_t j = 0; j < k; ++j) {
                int64_t from = t - k + 1 + j;
                if (from >= 0) total += double(widen(weight[c * k + j])) * widen(x[from * channels + c]);
            }
            expected.push_back(total / (1 + std::exp(-total)));
        }
    }
    compare("causal_conv", out, expected, bound);
}

template <class T>
void check_delta(int32_t dtype, double bound) {
    const int64_t heads = 4, key_heads = 2, keys = 21, values = 7;
    auto q = draws<T>(kTokens * key_heads * keys), k = draws<T>(kTokens * key_heads * keys),
         v = draws<T>(kTokens * heads * values);
    auto g = draws<float>(kTokens * heads), beta = draws<float>(kTokens * heads);
    for (auto& each : g) each = (each - 2) / 4;
    for (auto& each : beta) each = (each + 2) / 4;
    std::vector<T> out(v.size());
    std::vector<float> cache(3 * heads * values * keys), scratch(kTokens * (2 * key_heads * 32 + heads));
    CALL(gated_delta_rule)
    (out.data(), q.data(), key_heads * keys, k.data(), key_heads * keys, v.data(), heads * values, g.data(),
     beta.data(), scratch.data(), cache.data(), heads * values * keys, kStarts.data(), kLengths.data(), kTable.data(), 3,
     nullptr, 16, 1, kTokens, key_heads, heads, keys, values, dtype, kFloat32);
    std::vector<double> expected(out.size());
    auto unit = [&](const std::vector<T>& x, int64_t t, int64_t head) {
        std::vector<double> found;
        double squares = 1e-6;
        for (int64_t i = 0; i < keys; ++i) found.push_back(widen(x[(t * key_heads + head) * keys + i]));
        for (double each : found) squares += each * each;
        for (double& each : found) each /= std::sqrt(squares);
        return found;
    };
    for (int64_t h = 0; h < heads; ++h) {
        std::vector<double> rows(values * keys);
        for (int64_t t = 0; t < kTokens; ++t) {
            auto query = unit(q, t, h / 2), key = unit(k, t, h / 2);
            for (int64_t r = 0; r < values; ++r) {
                double *row = rows.data() + r * keys, at = 0, read = 0, given = widen(v[(t * heads + h) * values + r]);
                for (int64_t i = 0; i < keys; ++i) at += (row[i] *= std::exp(double(g[t * heads + h]))) * key[i];
                for (int64_t i = 0; i < keys; ++i) row[i] += beta[t * heads + h] * (given - at) * key[i];
                for (int64_t i = 0; i < keys; ++i) read += row[i] * query[i] / std::sqrt(double(keys));
                expected[(t * heads + h) * values + r] = read;
            }
        }
    }
    compare("gated_delta_rule", out, expected, bound);
}

template <class T>
void check_scan(int32_t dtype, double bound) {
    const int64_t channels = 37, size = 10, wide = 16;
    auto x = draws<T>(kTokens * channels), dt = draws<T>(kTokens * channels), gate = draws<T>(kTokens * channels),
         b = draws<T>(kTokens * size), c = draws<T>(kTokens * size);
    auto a = draws<float>(channels * wide), d = draws<float>(channels), bias = draws<float>(channels);
    for (auto& each : a) each = each / 2 - 1.1f;
    std::vector<T> out(x.size());
    std::vector<float> cache(3 * channels * size), scratch(kTokens * 2 * wide);
    CALL(selective_scan)
    (out.data(), x.data(), channels, dt.data(), channels, a.data(), b.data(), size, c.data(), size, d.data(),
     bias.data(), gate.data(), channels, scratch.data(), cache.data(), channels * size, kStarts.data(), kLengths.data(),
     kTable.data(), 3, nullptr, 16, 1, kTokens, channels, size, dtype, kFloat32);
    std::vector<double> expected(out.size());
    for (int64_t h = 0; h < channels; ++h) {
        std::vector<double> row(size);
        for (int64_t t = 0; t < kTokens; ++t) {
            double given = widen(x[t * channels + h]), by = widen(gate[t * channels + h]), read = d[h] * given;
            double length = std::log1p(std::exp(double(widen(dt[t * channels + h])) + bias[h]));
            for (int64_t i = 0; i < size; ++i) {
                row[i] = std::exp(length * a[h * wide + i]) * row[i] + length * given * widen(b[t * size + i]);
                read += row[i] * widen(c[t * size + i]);
            }
            expected[t * channels + h] = read * by / (1 + std::exp(-by));
        }
    }
    compare("selective_scan", out, expected, bound);
}

// All tokens of a request attend over latent vectors.
template <class T>
void check_latent(int32_t dtype, double bound) {
    const int64_t heads = 5, size = 20, values = 13, block_size = 16;
    auto x = draws<T>(kTokens * size), q = draws<T>(kTokens * heads * size);
    std::vector<T> cache(3 * block_size * size), out(kTokens * heads * values);
    std::vector<int64_t> slots(kTokens);
    for (int64_t t = 0; t < kTokens; ++t) slots[t] = kTable[t / block_size] * block_size + t % block_size;
    CALL(write_rows)
    (cache.data(), block_size * size, block_size, x.data(), size, size, slots.data(), kTokens, dtype, dtype);
    CALL(latent_attention)
    (out.data(), q.data(), heads * size, cache.data(), block_size * size, block_size, size, values, kStarts.data(),
     kLengths.data(), kTable.data(), 3, 1, kTokens, heads, 0.2f, dtype, dtype);
    std::vector<double> expected;
    for (int64_t row = 0; row < kTokens * heads; ++row) {
        std::vector<double> mixed(values);
        double total = 0;
        for (int64_t t = 0; t <= row / heads; ++t) {
            double score = 0;
            for (int64_t d = 0; d < size; ++d) score += double(widen(q[row * size + d])) * widen(x[t * size + d]);
            double weight = std::exp(0.2 * score);
            total += weight;
            for (int64_t d = 0; d < values; ++d) mixed[d] += weight * widen(x[t * size + d]);
        }
        for (double each : mixed) expected.push_back(each / total);
    }
    compare("latent_attention", out, expected, bound);
}

// What top-k or top-p leave, drawn many times, is as frequent as it is likely.
template <class T>
void check_sample(int32_t dtype) {
    const int64_t rows = 4000, vocab = 9, k = 3;
    auto logits = draws<T>(vocab);
    std::vector<int64_t> order(vocab), top(rows, k), seeds(rows), positions(rows);
    for (int64_t i = 0; i < vocab; ++i) {
        for (int64_t j = 0; j < vocab; ++j) order[i] += widen(logits[j]) > widen(logits[i]);
    }
    int64_t best = 0;
    for (int64_t i = 0; i < vocab; ++i) best = order[i] == 0 ? i : best;
    std::vector<int64_t> out(rows, best);
    std::vector<float> temperature(rows, 1.f), all(rows, 1.f);
    std::vector<int32_t> scratch(3 * vocab);
    for (int64_t r = 0; r < rows; ++r) seeds[r] = r, positions[r] = r % 7;
    CALL(sample)
    (out.data(), logits.data(), 0, temperature.data(), top.data(), all.data(), nullptr, seeds.data(), positions.data(),
     scratch.data(), 1, rows, vocab, dtype);
    double total = 0;
    for (int64_t i = 0; i < vocab; ++i) total += order[i] < k ? std::exp(double(widen(logits[i]))) : 0;
    std::vector<float> found(vocab);
    std::vector<double> expected;
    for (int64_t token : out) found[token] += 1.f / rows;
    for (int64_t i = 0; i < vocab; ++i) expected.push_back(order[i] < k ? std::exp(double(widen(logits[i]))) / total : 0);
    compare("sample", found, expected, 0.05);
}

template <class T>
void check(int32_t dtype, double bound) {
    check_latent<T>(dtype, bound);
    check_sample<T>(dtype);
    check_conv<T>(dtype, bound);
    check_delta<T>(dtype, bound);
    check_scan<T>(dtype, bound);
    check_rows<T>(dtype, bound);
    check_rope<T>(dtype, bound);
    for (int64_t m : {1, 2, 3, 5, 150}) check_linear<T>(dtype, bound, m);
    check_attention<T>(dtype, bound, 1, 2, 0, dtype);
    check_attention<T>(dtype, bound, 1, 7, 100, dtype);
    check_attention<T>(dtype, bound, 290, 3, 0, dtype);
    check_attention<T>(dtype, bound, 33, 1, 50, dtype);
    check_attention<T>(dtype, 0.02, 33, 1, 50, kInt8);
    check_attention<T>(dtype, 0.06, 33, 1, 50, kE4M3);
}

}  // namespace

int main() {
    check<float>(kFloat32, 1e-5);
    check<bf16>(kBFloat16, 1e-2);
    check<f16>(kFloat16, 1e-3);
    return failed;
}
