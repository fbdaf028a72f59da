// Loads and stores of parts of a vector through memory, for instruction sets without masks.
#pragma once

namespace llmk {
namespace LLMK_LEVEL {
namespace {

template <class T>
inline F load(const T* p, int64_t n) {
    T whole[F::N] = {};
    for (int64_t i = 0; i < n; ++i) whole[i] = p[i];
    return load(whole);
}

template <class T>
inline void store(T* p, F a, int64_t n) {
    T whole[F::N];
    store(whole, a);
    for (int64_t i = 0; i < n; ++i) p[i] = whole[i];
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
