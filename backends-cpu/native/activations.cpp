// Gated activations: out = activation(gate) * up of rows [gate, up], as llmk.reference.activations computes them.

#include "kernel.h"

namespace llmk::LLMK_LEVEL::activations {
namespace {

enum Activation : int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2 };

// Parameters of a gated activation (llmk.reference.activations.GatedOptions).
struct Gate {
    float alpha, limit, up_offset;
    bool given;
};

// The error function within 2e-7 (Abramowitz and Stegun 7.1.26 has 1.5e-7 in exact arithmetic).
inline F erf(F x) {
    F size = max(x, zero() - x);
    F t = set1(1.f) / fma(size, set1(0.3275911f), set1(1.f));
    F p = set1(1.061405429f);
    p = fma(p, t, set1(-1.453152027f));
    p = fma(p, t, set1(1.421413741f));
    p = fma(p, t, set1(-0.284496736f));
    p = fma(p, t, set1(0.254829592f));
    F tail = set1(1.f) - p * t * exp(zero() - size * size);
    return less(x, zero(), zero() - tail, tail);
}

template <int A>
F activate(F x) {
    if (A == kSilu) return x * sigmoid(x);
    if (A == kGelu) return set1(0.5f) * x * (set1(1.f) + erf(x * set1(0.70710678f)));
    F inner = set1(0.79788456f) * fma(set1(0.044715f) * x * x, x, x);
    return set1(0.5f) * x * (set1(1.f) + tanh(inner));
}

// Not inlined, because it is long and called for whole vectors and for the rest of a row.
template <int A, class T>
[[gnu::noinline]] F gated(F gate, F up, const Gate& options) {
    F limit = set1(options.limit);
    gate = min(gate, limit) * set1(options.alpha);
    up = min(max(up, zero() - limit), limit) + set1(options.up_offset);
    F active = activate<A>(gate);
    return (options.given ? active * set1(1.f / options.alpha) : rounded<T>(active)) * up;
}

template <int A, class T>
void gate_part(T* out, const T* gate, const T* up, int64_t size, const Gate& options) {
    int64_t i = 0;
    for (; i + F::N <= size; i += F::N) store(out + i, gated<A, T>(load(gate + i), load(up + i), options));
    if (int64_t n = size - i) store(out + i, gated<A, T>(load(gate + i, n), load(up + i, n), options), n);
}

template <class T>
void gate_part(T* out, const T* gate, const T* up, int64_t size, int32_t activation, const Gate& options) {
    if (activation == kSilu) return gate_part<kSilu>(out, gate, up, size, options);
    if (activation == kGelu) return gate_part<kGelu>(out, gate, up, size, options);
    gate_part<kGeluTanh>(out, gate, up, size, options);
}

}  // namespace

// x is [rows, 2 * size], out [rows, size] and contiguous. `activation`: 0 SiLU, 1 GELU, 2 GELU's tanh approximation. If
// `options`, the parameters hold, and nothing is rounded before the result; a limit of infinity is none.
LLMK_EXPORT(gate)
(void* out, const void* x, int64_t x_stride, int64_t rows, int64_t size, int32_t activation, int32_t options,
 float alpha, float limit, float up_offset, int32_t dtype) {
    Gate gate{alpha, limit, up_offset, options != 0};
    // Pieces of work are parts of rows, so that one row is computed by several threads.
    constexpr int64_t kPiece = 2048;
    int64_t pieces = (size + kPiece - 1) / kPiece;
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel_for(rows * pieces, 4, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                int64_t first = i % pieces * kPiece, n = size - first < kPiece ? size - first : kPiece;
                T* to = (T*)out + i / pieces * size + first;
                const T* from = (const T*)x + i / pieces * x_stride + first;
                gate_part(to, from, from + size, n, activation, gate);
            }
        });
    });
}
LLMK_WORDS(gate)

}  // namespace llmk::LLMK_LEVEL::activations
