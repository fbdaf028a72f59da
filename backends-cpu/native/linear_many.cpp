// Products of many rows with weights in the dtype of the activations.

#include "many.h"

namespace llmk::LLMK_LEVEL::linear_many {
namespace {

// A weight of n rows.
template <class T>
struct PlainSource {
    const T* data;
    int64_t stride, n;

    void copy(int64_t first, int64_t begin, int64_t size, float* out) const {
        copy_across<kWide>(data + first * stride + begin, stride, n - first, size, out);
    }
};

}  // namespace

// As linear, for many rows.
LLMK_EXPORT(linear_many)
(void* out, int64_t out_stride, const void* x, int64_t x_stride, const void* weight, int64_t weight_stride,
 const void* bias, int64_t m, int64_t n, int64_t k, int32_t dtype) {
    by_dtype(dtype, [&](auto none) {
        using T = decltype(none);
        PlainSource<T> source{(const T*)weight, weight_stride, n};
        multiply_many(source, (T*)out, out_stride, (const T*)x, x_stride, (const T*)bias, m, n, k);
    });
}
LLMK_WORDS(linear_many)

}  // namespace llmk::LLMK_LEVEL::linear_many
