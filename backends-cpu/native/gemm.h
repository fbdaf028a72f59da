// What all products y = x w^T share: how they are cut into pieces for threads, caches and registers.
//
// A weight format has a *product*, a struct with
//   Row                                     the type that elements of x are arranged in
//   length(k)                               elements of an arranged row of k inputs
//   tile<R, C>(weight, n, gap, begin, end, rows, stride, sums, sums_stride)
//       adds the products of the R rows n, n + gap, … of the weight and of C arranged rows, `stride` elements apart,
//       over the inputs from begin to end, to sums[c * sums_stride + r * gap]. `begin` is a multiple of kInputs.
// or, where some rows of the weight are stored together, their number kTogether and
//   tile<C>(weight, n, count, begin, end, rows, stride, sums, sums_stride)
//       the same of `count` rows from n on, a multiple of kTogether.
//
// A sum's terms are added in an order that depends on the number of inputs alone, so that a row's result doesn't depend
// on other rows: over kInputs inputs in a vector, whose elements are added to the sum.
#pragma once

#include <cstdlib>

#include "kernel.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr int64_t kRows = 128;     // rows of x in a pass over the weight
constexpr int64_t kOutputs = 48;   // rows of the weight that stay in the second-level cache while rows of x pass
constexpr int64_t kInputs = 1024;  // inputs for which a few rows of x stay in the first-level cache
constexpr int64_t kFew = 16;         // rows of x that are arranged in one thread, and for which pieces are large
constexpr int64_t kPiece = 1 << 15;  // bytes of weight in a thread's piece of work for few rows, at least

template <int V>
struct Count {
    static constexpr int value = V;
};

// Calls f with `count`, at least 1 and at most Most, as a constant.
template <int Most, class F>
void with_count(int64_t count, const F& f) {
    if constexpr (Most > 1) {
        if (count < Most) return with_count<Most - 1>(count, f);
    }
    f(Count<Most>());
}

// The largest tile of C columns for which sums and operands fit in the registers.
#if defined(LLMK_PLAIN)
constexpr int kColumns = 1;
#else
constexpr int kColumns = 4;
#endif
#if defined(LLMK_PLAIN)
constexpr int tile_rows(int) { return 1; }
#elif defined(__AVX512F__)
constexpr int tile_rows(int columns) { return columns == 1 ? 2 : 4; }
#elif defined(__aarch64__) || defined(__VSX__)
constexpr int tile_rows(int) { return 4; }
#else
constexpr int tile_rows(int columns) { return columns <= 2 ? 4 : columns == 3 ? 3 : 2; }
#endif

// Whether tiles ask for what the next one reads. With AVX-512, one or two columns wait for memory alone, and processors
// fetch ahead better without (measured on Zen 5).
#if defined(__AVX512F__) && !defined(LLMK_PLAIN)
constexpr bool asks_ahead(int columns) { return columns > 2; }
#else
constexpr bool asks_ahead(int) { return true; }
#endif

// Keeps a value in a register, where the compiler would rather load it again for each use.
inline void keep(F& x) {
#if defined(__AVX512F__) && !defined(LLMK_PLAIN)
    asm("" : "+v"(x.v));
#elif defined(__AVX2__) && !defined(LLMK_PLAIN)
    asm("" : "+x"(x.v));
#else
    (void)x;
#endif
}

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t pieces(int64_t size, int64_t piece) { return (size + piece - 1) / piece; }
inline int64_t padded(int64_t size, int64_t step) { return pieces(size, step) * step; }

// Memory of a thread that is kept for its next call.
class Scratch {
  public:
    ~Scratch() { free(memory_); }

    void* get(int64_t bytes) {
        if (bytes > size_) {
            free(memory_);
            size_ = padded(bytes, 4096);
            memory_ = aligned_alloc(64, size_);
        }
        return memory_;
    }

  private:
    void* memory_ = nullptr;
    int64_t size_ = 0;
};

// A product of weights that lie row by row, given what is particular to their elements, S:
//   Element, Row, kStep                     elements of the weight and of arranged rows, and how many a step takes
//   Sum, none(), total(sum)                 a vector of sums, an empty one, and the sum of its elements
//   step(sums, w, rows, stride)             adds the products of kStep elements at w[r] and at rows + c * stride
template <class S>
struct Rowwise : S {
    using Element = typename S::Element;
    struct Weight {
        const Element* data;
        int64_t stride;  // elements from row to row
    };
    static constexpr int64_t length(int64_t k) { return padded(k, S::kStep); }
    static constexpr int tile_rows(int columns) { return LLMK_LEVEL::tile_rows(columns); }

    template <int R, int C>
    static void tile(const Weight& weight, int64_t n, int64_t gap, int64_t begin, int64_t end,
                     const typename S::Row* rows, int64_t stride, float* out, int64_t out_stride) {
        constexpr int kStep = S::kStep;
        typename S::Sum sums[R][C];
#pragma GCC unroll 8
        for (auto& row : sums) {
#pragma GCC unroll 8
            for (auto& sum : row) sum = S::none();
        }
        const Element* w[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) w[r] = weight.data + (n + r * gap) * weight.stride + begin;
        int64_t ahead = weight.stride, i = begin;  // the next tile
        rows += begin;
        for (; i + kStep <= end; i += kStep, rows += kStep) {
            S::template step<R, C>(sums, w, rows, stride);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                if (asks_ahead(C)) __builtin_prefetch(w[r] + ahead);
                w[r] += kStep;
            }
        }
        if (i < end) {
            Element copy[R][kStep];
            memset(copy, 0, sizeof copy);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                memcpy(copy[r], w[r], sizeof(Element) * (end - i));
                w[r] = copy[r];
            }
            S::template step<R, C>(sums, w, rows, stride);
        }
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) out[c * out_stride + r * gap] += S::total(sums[r][c]);
        }
    }
};

// sums[m, n] over all outputs n from n0 to n1 and inputs from k0 to k1, by tiles of C rows of x. The rows of a tile are
// far apart, and those of the next tile follow them, so that each is read on from where the last one ended: processors
// fetch ahead one stream per page.
template <class P, int C>
void add_far_tiles(const typename P::Weight& weight, int64_t n0, int64_t n1, int64_t k0, int64_t k1,
                   const typename P::Row* rows, int64_t stride, float* sums, int64_t sums_stride) {
    constexpr int R = P::tile_rows(C);
    int64_t gap = (n1 - n0) / R;
    for (int64_t i = 0; i < gap; ++i) {
        for (int64_t k = k0; k < k1; k += kInputs) {
            P::template tile<R, C>(weight, n0 + i, gap, k, smaller(k1, k + kInputs), rows, stride, sums + i,
                                   sums_stride);
        }
    }
    // The few rows that are left take one row of x at a time, for which less has to be compiled.
    for (int64_t i = gap * R; i < n1 - n0; ++i) {
        for (int64_t k = k0; k < k1; k += kInputs) {
            for (int64_t c = 0; c < C; ++c) {
                P::template tile<1, 1>(weight, n0 + i, 1, k, smaller(k1, k + kInputs), rows + c * stride, stride,
                                       sums + c * sums_stride + i, sums_stride);
            }
        }
    }
}

template <class P, class = void>
struct StoresTogether : std::false_type {};
template <class P>
struct StoresTogether<P, std::void_t<decltype(P::kTogether)>> : std::true_type {};

// The same for any product: n0 is a multiple of its kTogether.
template <class P, int C>
void add_tiles(const typename P::Weight& weight, int64_t n0, int64_t n1, int64_t k0, int64_t k1,
               const typename P::Row* rows, int64_t stride, float* sums, int64_t sums_stride) {
    if constexpr (StoresTogether<P>::value) {
        for (int64_t n = n0; n < n1; n += P::kTogether) {
            int64_t count = smaller(P::kTogether, n1 - n);
            for (int64_t k = k0; k < k1; k += kInputs) {
                P::template tile<C>(weight, n, count, k, smaller(k1, k + kInputs), rows, stride, sums + n - n0,
                                    sums_stride);
            }
        }
    } else {
        add_far_tiles<P, C>(weight, n0, n1, k0, k1, rows, stride, sums, sums_stride);
    }
}

// The same for m rows of x, in tiles of nearly equal size.
template <class P>
void add_rows(const typename P::Weight& weight, int64_t n0, int64_t n1, int64_t k0, int64_t k1,
              const typename P::Row* rows, int64_t stride, int64_t m, float* sums, int64_t sums_stride) {
    int64_t columns = pieces(m, pieces(m, kColumns));
    for (int64_t begin = 0; begin < m; begin += columns) {
        const typename P::Row* first = rows + begin * stride;
        float* out = sums + begin * sums_stride;
        with_count<kColumns>(smaller(columns, m - begin), [&](auto count) {
            add_tiles<P, decltype(count)::value>(weight, n0, n1, k0, k1, first, stride, out, sums_stride);
        });
    }
}

using Finish = FunctionRef<void(int64_t row, int64_t n, int64_t count, const float* sums)>;

// Products of m <= kRows arranged rows and the weight's rows from n0 to n1, k inputs. finish(row, n, count, sums) gets
// the sums of outputs n to n + count - 1.
template <class P>
void multiply_piece(const typename P::Weight& weight, int64_t n0, int64_t n1, int64_t k, const typename P::Row* rows,
                    int64_t stride, int64_t m, Finish finish) {
    alignas(64) float sums[kRows * kOutputs];
    // Rows of x that fill one tile pass over whole rows of the weight; more of them stay in the cache in part.
    int64_t inputs = m <= kColumns ? k : kInputs;
    // A weight that is passed once is read from memory, which long streams make faster.
    int64_t most = m <= kColumns ? kRows / kColumns * kOutputs : kOutputs;
    for (int64_t n = n0; n < n1; n += most) {
        int64_t count = smaller(most, n1 - n);
        memset(sums, 0, sizeof(float) * m * count);
        for (int64_t k0 = 0; k0 < k; k0 += inputs) {
            add_rows<P>(weight, n, n + count, k0, smaller(k, k0 + inputs), rows, stride, m, sums, count);
        }
        for (int64_t row = 0; row < m; ++row) finish(row, n, count, sums + row * count);
    }
}

// y = x w^T in several threads: n outputs, k inputs, m rows. arrange(row, out) arranges a row of x in scratch memory,
// finish(row, n, count, sums) gets the sums of a row. `bytes` is the size of a row of the weight.
template <class P>
void multiply(const typename P::Weight& weight, int64_t m, int64_t n, int64_t k, int64_t bytes, Scratch& scratch,
              FunctionRef<void(int64_t row, typename P::Row* out)> arrange, Finish finish) {
    using Row = typename P::Row;
    // A cache line more than needed, because lines that are a power of two apart share a set of the cache.
    int64_t stride = P::length(k) + 64 / int64_t(sizeof(Row));
    Row* rows = static_cast<Row*>(scratch.get(sizeof(Row) * stride * smaller(m, kRows)));
    for (int64_t m0 = 0; m0 < m; m0 += kRows) {
        int64_t count = smaller(kRows, m - m0);
        parallel_for(count, kFew, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) arrange(m0 + row, rows + row * stride);
        });
        int64_t piece = padded(kPiece / (bytes > 0 ? bytes : 1) + 1, kOutputs);
        auto part = [&](int64_t begin, int64_t end) {
            multiply_piece<P>(weight, begin, end, k, rows, stride, count,
                              [&](int64_t row, int64_t first, int64_t outputs, const float* sums) {
                                  finish(m0 + row, first, outputs, sums);
                              });
        };
        parallel_for(n, count <= kFew ? piece : kOutputs, part, true);
    }
}

// out[i] = sums[i] * scale * scales[i] + bias[i], rounded to T; without `scales` (null), those are 1, and without
// `bias`, that is 0.
template <class T>
void write(T* out, const float* sums, float scale, const float* scales, const T* bias, int64_t count) {
    auto result = [&](F sum, F factor, F offset) {
        sum = sum * (set1(scale) * factor);
        return bias ? sum + offset : sum;
    };
    int64_t i = 0;
    for (; i + F::N <= count; i += F::N) {
        store(out + i, result(load(sums + i), scales ? load(scales + i) : set1(1.f), bias ? load(bias + i) : zero()));
    }
    if (int64_t n = count - i) {
        F factor = scales ? load(scales + i, n) : set1(1.f), offset = bias ? load(bias + i, n) : zero();
        store(out + i, result(load(sums + i, n), factor, offset), n);
    }
}

// multiply and write of a kind whose rows are arranged with a scale each: x [m, k], out [m, n], and bias [n] or null, all
// of `dtype`.
template <class P>
void multiply_scaled(const typename P::Weight& weight, void* out, int64_t out_stride, const void* x, int64_t x_stride,
                     const void* bias, int64_t m, int64_t n, int64_t k, int64_t bytes, int32_t dtype, Scratch& scratch,
                     Scratch& scratch_scales) {
    float* scales = static_cast<float*>(scratch_scales.get(sizeof(float) * m));
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        multiply<P>(
            weight, m, n, k, bytes, scratch,
            [&](int64_t row, typename P::Row* to) { scales[row] = P::arrange((const T*)x + row * x_stride, k, to); },
            [&](int64_t row, int64_t first, int64_t count, const float* sums) {
                write((T*)out + row * out_stride + first, sums, scales[row], nullptr,
                      bias ? (const T*)bias + first : nullptr, count);
            });
    });
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
