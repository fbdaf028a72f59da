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

#include "dtype.h"
#include "pool.h"
#include "simd.h"

#define LLMK_JOIN3(a, b, c) a##b##_##c
#define LLMK_NAME(level, name) LLMK_JOIN3(llmk_, level, name)

// Starts the definition of an exported kernel: LLMK_EXPORT(name)(parameters) { body }
#define LLMK_EXPORT(name) extern "C" __attribute__((visibility("default"))) void LLMK_NAME(LLMK_LEVEL, name)

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
template <class F>
inline void parallel_for(int64_t n, int64_t grain, F&& f) {
    auto body = [](void* context, int64_t begin, int64_t end) { (*static_cast<F*>(context))(begin, end); };
    parallel_run(n, grain, body, &f);
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
