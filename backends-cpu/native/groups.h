// What products with weights in groups share.
#pragma once

#include "integers.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

// The address of element `at` of an array of a dtype, or null.
inline const void* element(const void* array, int32_t dtype, int64_t at) {
    by_dtype(dtype, [&](auto none) {
        if (array) array = static_cast<const decltype(none)*>(array) + at;
    });
    return array;
}

// Floats from `count` values of a dtype, from index `at` on.
inline void widen(const void* from, int32_t dtype, int64_t at, int64_t count, float* out) {
    by_dtype(dtype, [&](auto none) {
        auto p = static_cast<const decltype(none)*>(from) + at;
        int64_t i = 0;
        for (; i + F::N <= count; i += F::N) store(out + i, load(p + i));
        if (i < count) store(out + i, load(p + i, count - i), count - i);
    });
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
