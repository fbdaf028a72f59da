// Root-mean-square norms, whose arithmetic is float32 and rounded where llmk.reference.norms rounds it. A row's result
// doesn't depend on other rows.

#include "kernel.h"

namespace llmk::LLMK_LEVEL::norms {
namespace {

// Rows in a piece of work, so that a piece has about 32 KiB.
int64_t rows_at_once(int64_t size) { return size < 8192 ? 8192 / (size > 0 ? size : 1) : 1; }

// 1 / sqrt(mean of squares + eps)
template <class T>
float inverse_rms(const T* x, int64_t size, float eps) {
    F a = zero(), b = zero();
    int64_t i = 0;
    for (; i + 2 * F::N <= size; i += 2 * F::N) {
        F first = load(x + i), second = load(x + i + F::N);
        a = fma(first, first, a);
        b = fma(second, second, b);
    }
    for (; i < size; i += F::N) {
        F rest = load(x + i, size - i < F::N ? size - i : F::N);
        a = fma(rest, rest, a);
    }
    return 1.f / sqrtf(sum(a + b) / float(size) + eps);
}

// One vector of a row, normed. With an offset, the weight multiplies in float32.
template <class T>
F scaled(F x, F weight, float inverse, float offset) {
    F normed = x * set1(inverse);
    return offset != 0.f ? normed * (weight + set1(offset)) : rounded<T>(normed) * weight;
}

template <class T>
void norm_row(T* out, const T* x, const T* weight, int64_t size, float eps, float offset) {
    float inverse = inverse_rms(x, size, eps);
    int64_t i = 0;
    for (; i + F::N <= size; i += F::N) store(out + i, scaled<T>(load(x + i), load(weight + i), inverse, offset));
    if (int64_t n = size - i) store(out + i, scaled<T>(load(x + i, n), load(weight + i, n), inverse, offset), n);
}

// The norm of a recurrent layer's result, gated in float32 before (`first`) or after it.
template <class T>
void gated_row(T* out, const T* x, const T* gate, const T* weight, int64_t size, float eps, bool first) {
    F squares = zero();
    auto active = [&](int64_t i, int64_t n) {
        F g = load(gate + i, n);
        return g * sigmoid(g);
    };
    auto value = [&](int64_t i, int64_t n) { return first ? load(x + i, n) * active(i, n) : load(x + i, n); };
    auto each = [&](auto&& f) {
        for (int64_t i = 0; i < size; i += F::N) f(i, size - i < F::N ? size - i : F::N);
    };
    each([&](int64_t i, int64_t n) {
        F v = value(i, n);
        squares = fma(v, v, squares);
    });
    F inverse = set1(1.f / sqrtf(sum(squares) / float(size) + eps));
    each([&](int64_t i, int64_t n) {
        F normed = rounded<T>(load(weight + i, n) * rounded<T>(value(i, n) * inverse));
        store(out + i, first ? normed : normed * active(i, n), n);
    });
}

// total = x * multiplier + residual; total may be x.
template <class T>
void add_row(T* total, const T* x, const T* residual, int64_t size, float multiplier) {
    for (int64_t i = 0; i < size; i += F::N) {
        int64_t n = size - i < F::N ? size - i : F::N;
        F scaled = load(x + i, n);
        if (multiplier != 1.f) scaled = rounded<T>(scaled * set1(multiplier));
        store(total + i, scaled + load(residual + i, n), n);
    }
}

}  // namespace

// out[r] = norm(x[r]) * weight, [rows, size]; rows are `out_stride` and `x_stride` elements apart.
LLMK_EXPORT(rms_norm)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, int64_t rows, int64_t size,
 float eps, float offset, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel_for(rows, rows_at_once(size), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
                norm_row((T*)out + r * out_stride, (const T*)x + r * x_stride, (const T*)weight, size, eps, offset);
            }
        });
    });
}
LLMK_WORDS(rms_norm)

// total = x * multiplier + residual, and out = norm(total) * weight; all [rows, size], total and out contiguous.
LLMK_EXPORT(add_rms_norm)
(void* out, void* total, const void* x, int64_t x_stride, const void* residual, int64_t residual_stride,
 const void* weight, int64_t rows, int64_t size, float eps, float offset, float multiplier, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel_for(rows, rows_at_once(size), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
                T* sum = (T*)total + r * size;
                add_row(sum, (const T*)x + r * x_stride, (const T*)residual + r * residual_stride, size, multiplier);
                norm_row((T*)out + r * size, sum, (const T*)weight, size, eps, offset);
            }
        });
    });
}
LLMK_WORDS(add_rms_norm)

// out = residual + norm(x) * weight, [rows, size], out contiguous.
LLMK_EXPORT(rms_norm_add)
(void* out, const void* x, int64_t x_stride, const void* residual, int64_t residual_stride, const void* weight,
 int64_t rows, int64_t size, float eps, float offset, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel_for(rows, rows_at_once(size), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
                T* row = (T*)out + r * size;
                norm_row(row, (const T*)x + r * x_stride, (const T*)weight, size, eps, offset);
                add_row(row, row, (const T*)residual + r * residual_stride, size, 1.f);
            }
        });
    });
}
LLMK_WORDS(rms_norm_add)

// The norms between two blocks (Gemma 2): total = residual + norm(x) * post, and out = norm(total) * pre.
LLMK_EXPORT(sandwich_norm)
(void* out, void* total, const void* x, int64_t x_stride, const void* residual, int64_t residual_stride,
 const void* post, const void* pre, int64_t rows, int64_t size, float eps, float offset, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel_for(rows, rows_at_once(size), [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
                T* sum = (T*)total + r * size;
                norm_row(sum, (const T*)x + r * x_stride, (const T*)post, size, eps, offset);
                add_row(sum, sum, (const T*)residual + r * residual_stride, size, 1.f);
                norm_row((T*)out + r * size, sum, (const T*)pre, size, eps, offset);
            }
        });
    });
}
LLMK_WORDS(sandwich_norm)

// The op gated_rms_norm: out is [rows, groups * size] and contiguous, x and gate the same with rows strides apart; each
// group of a row has its own norm. The gate comes first, or after the norm.
LLMK_EXPORT(gated_rms_norm)
(void* out, const void* x, int64_t x_stride, const void* gate, int64_t gate_stride, const void* weight, int64_t rows,
 int64_t groups, int64_t size, float eps, int32_t gate_first, int32_t dtype) {
    by_dtype(dtype, [&](auto zero) {
        using T = decltype(zero);
        parallel_for(rows * groups, rows_at_once(size), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                int64_t row = i / groups, at = i % groups * size;
                const T *from = (const T*)x + row * x_stride + at, *by = (const T*)gate + row * gate_stride + at;
                gated_row((T*)out + i * size, from, by, (const T*)weight + at, size, eps, gate_first != 0);
            }
        });
    });
}
LLMK_WORDS(gated_rms_norm)

}  // namespace llmk::LLMK_LEVEL::norms
