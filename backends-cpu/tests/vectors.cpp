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
 const int64_t*, const int64_t*, int64_t, const float*, int64_t, void*, int64_t, int64_t, const int64_t*, int64_t,
 int64_t, int64_t, int64_t, int64_t, int32_t, int32_t);
KERNEL(attention)
(void*, const void*, int64_t, void*, int64_t, int64_t, int64_t, int64_t, int64_t, const int32_t*, const int32_t*,
 const int32_t*, int64_t, int64_t, int64_t, int64_t, float, float, const float*, int32_t, int32_t);

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

// One request of `tokens` tokens, of which the last `queries` attend.
template <class T>
void check_attention(int32_t dtype, double bound, int64_t queries, int64_t group, int64_t window) {
    const int64_t tokens = 300, kv_heads = 2, size = 40, block_size = 16, blocks = 20;
    const int64_t heads = kv_heads * group, start = tokens - queries;
    auto q = draws<T>(queries * heads * size), k = draws<T>(tokens * kv_heads * size),
         v = draws<T>(tokens * kv_heads * size), cache = std::vector<T>(blocks * kv_heads * 2 * size * block_size);
    std::vector<int32_t> table(blocks), begins = {0, int32_t(queries)}, lengths = {int32_t(tokens)};
    std::vector<int64_t> slots(tokens);
    for (int64_t i = 0; i < blocks; ++i) table[i] = int32_t((i * 7) % blocks);
    for (int64_t t = 0; t < tokens; ++t) slots[t] = table[t / block_size] * block_size + t % block_size;
    int64_t stride = kv_heads * 2 * size * block_size;
    CALL(write_kv)
    (nullptr, nullptr, 0, k.data(), kv_heads * size, v.data(), kv_heads * size, nullptr, nullptr, 0.f, 0.f, slots.data(),
     nullptr, 0, nullptr, 0, cache.data(), stride, block_size, slots.data(), tokens, heads, kv_heads, size, size, dtype,
     dtype);
    std::vector<T> out(queries * heads * size);
    CALL(attention)
    (out.data(), q.data(), heads * size, cache.data(), stride, block_size, kv_heads, size, size, begins.data(),
     lengths.data(), table.data(), blocks, 1, heads, window, 0.2f, 0.f, nullptr, dtype, dtype);
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

template <class T>
void check(int32_t dtype, double bound) {
    check_rows<T>(dtype, bound);
    check_attention<T>(dtype, bound, 1, 2, 0);
    check_attention<T>(dtype, bound, 1, 7, 100);
    check_attention<T>(dtype, bound, 290, 3, 0);
    check_attention<T>(dtype, bound, 33, 1, 50);
}

}  // namespace

int main() {
    check<float>(kFloat32, 1e-5);
    check<bf16>(kBFloat16, 1e-2);
    check<f16>(kFloat16, 1e-3);
    return failed;
}
