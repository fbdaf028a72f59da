// Calls of kernels that were taken down once, one after the other.

#include <cstdint>

// A kernel's entry for arguments in words (LLMK_WORDS), and its arguments.
struct Call {
    void (*run)(const int64_t* words);
    const int64_t* words;
};

extern "C" __attribute__((visibility("default"))) void llmk_replay(const Call* calls, int64_t count) {
    for (int64_t i = 0; i < count; ++i) calls[i].run(calls[i].words);
}
