// A pool of threads for kernels.
#pragma once

#include <cstdint>

namespace llmk {

using Body = void (*)(void* context, int64_t begin, int64_t end);

// Calls body(context, begin, end) for ranges of `grain` items that make up [0, n), in the calling thread and those of
// the pool, and returns when all calls have returned. In a body, or while another thread uses the pool, the whole range
// is computed in the calling thread. Where items take equally long (`even`), ranges are longer at first.
void parallel_run(int64_t n, int64_t grain, bool even, Body body, void* context);

// Threads that parallel_run uses, the calling one included.
int thread_count();

}  // namespace llmk
