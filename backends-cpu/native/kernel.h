// What every kernel source includes. A kernel source is compiled once per level of instructions (CMakeLists.txt), with
// LLMK_LEVEL as the name of the level, and exports llmk_<level>_<kernel>; dispatch.cpp says which levels this processor
// has.
//
// Conventions:
// - Everything that isn't exported is in namespace llmk::LLMK_LEVEL, and in an anonymous namespace within it.
// - No containers or other templates of the standard library: they would be emitted as weak symbols, of which the
//   linker keeps one for all levels, so that a processor could meet instructions that it doesn't have.
// - Exported functions have C types only: pointers, int64_t sizes and strides (in elements), float, int32_t codes of
//   dtypes (dtype.h). They check nothing; the callers in Python do.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "dtype.h"
#include "pool.h"
#include "simd.h"

#define LLMK_JOIN3(a, b, c) a##b##_##c
#define LLMK_NAME(level, name) LLMK_JOIN3(llmk_, level, name)

// Starts the definition of an exported kernel: LLMK_EXPORT(name)(parameters) { body }
#define LLMK_EXPORT(name) extern "C" __attribute__((visibility("default"))) void LLMK_NAME(LLMK_LEVEL, name)

// Exports another entry of the kernel above it, llmk_<level>_<kernel>_words, which takes an array of one word for each
// argument (word), for calls that are replayed.
#define LLMK_WORDS(name) \
    LLMK_EXPORT(name##_words)(const int64_t* words) { call(&LLMK_NAME(LLMK_LEVEL, name), words); }

namespace llmk {
namespace LLMK_LEVEL {
namespace {

// Calls f with a value of the type that a dtype code names: by_dtype(code, [&](auto zero) { using T = decltype(zero); });
template <class F>
inline void by_dtype(int32_t dtype, F&& f) {
    if (dtype == kBFloat16) {
        f(bf16{});
    } else if (dtype == kFloat16) {
        f(f16{});
    } else {
        f(float{});
    }
}

// The argument of type T that a word holds: a number, an address, or the bits of a float.
template <class T>
inline T word(int64_t bits) {
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<T>(bits);
    } else if constexpr (std::is_same_v<T, float>) {
        int32_t low = int32_t(bits);
        float value;
        memcpy(&value, &low, sizeof value);
        return value;
    } else {
        return T(bits);
    }
}

template <class... Arguments, size_t... I>
inline void call(void (*kernel)(Arguments...), const int64_t* words, std::index_sequence<I...>) {
    kernel(word<Arguments>(words[I])...);
}

template <class... Arguments>
inline void call(void (*kernel)(Arguments...), const int64_t* words) {
    call(kernel, words, std::index_sequence_for<Arguments...>());
}

// A reference to a function object, which must outlive it. What takes one is compiled once for all function objects,
// where a template would be compiled for each.
template <class Signature>
class FunctionRef;

template <class... Arguments>
class FunctionRef<void(Arguments...)> {
  public:
    template <class F>
    FunctionRef(const F& f)
        : object_(&f), call_([](const void* object, Arguments... arguments) {
              (*static_cast<const F*>(object))(arguments...);
          }) {}

    void operator()(Arguments... arguments) const { call_(object_, arguments...); }

  private:
    const void* object_;
    void (*call_)(const void*, Arguments...);
};

// Calls f(begin, end) in several threads, for ranges of at least `grain` items (but the last) that make up [0, n).
// `even`: whether items take equally long.
template <class F>
inline void parallel_for(int64_t n, int64_t grain, F&& f, bool even = false) {
    using Function = std::remove_reference_t<F>;
    auto body = [](void* context, int64_t begin, int64_t end) { (*static_cast<Function*>(context))(begin, end); };
    parallel_run(n, grain, even, body, &f);
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
