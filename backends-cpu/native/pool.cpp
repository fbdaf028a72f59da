#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace llmk {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
// How long threads wait before they sleep: longer than the gaps between the kernels of one layer, and far shorter than
// the time slice that other programs would lose.

constexpr int64_t kShares = 4;    // of a thread, of what is left, where items may take more or less time
constexpr int64_t kLongest = 64;  // grains of a share, so that a thread that loses its processor holds up others briefly

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#else
    std::this_thread::yield();
#endif
}

// Whether `ready` returned true before the time to spin was over.
template <class Ready>
bool spin(Ready ready) {
    auto stop = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 64; ++i) {
            if (ready()) return true;
            pause();
        }
    } while (std::chrono::steady_clock::now() < stop);
    return false;
}

struct Pool {
    std::mutex in_use;  // held by the thread that has work done

    // The work. Written only while no worker is active and `open` is false.
    Body body = nullptr;
    void* context = nullptr;
    int64_t n = 0, grain = 1, shares = 1;
    alignas(64) std::atomic<int64_t> next{0};

    // A worker counts itself as active before it looks at `open`, and the owner closes before it looks at `active`: so
    // either the worker sees that the work is closed, or the owner waits for it.
    alignas(64) std::atomic<bool> open{false};
    std::atomic<int> active{0};
    std::atomic<uint32_t> turn{0};  // counts the pieces of work

    std::mutex sleep;
    std::condition_variable wake, done;
    std::atomic<int> sleeping{0};
    std::atomic<bool> owner_sleeps{false};

    int workers = 0;
    std::atomic<int> limit{0};  // workers with an index below it take part

    // Takes shares of what is left, as OpenMP's guided schedule: long ones first, because each reads a stream of memory
    // that starts slowly (about a microsecond), and then short ones, so that threads end at about the same time.
    void take() {
        int64_t begin = next.load();
        while (begin < n) {
            int64_t grains = (n - begin) / shares / grain;
            int64_t end = begin + grain * (grains > kLongest ? kLongest : grains > 1 ? grains : 1);
            if (!next.compare_exchange_weak(begin, end)) continue;
            body(context, begin, end < n ? end : n);
            begin = next.load();
        }
    }

    void work(int index);
    void start(int count);
    void run(int64_t items, int64_t at_once, bool even, Body f, void* argument);
};

thread_local bool in_body = false;
std::atomic<int> threads{0};  // 0: not set, one per processor
std::atomic<Pool*> shared{nullptr};

void Pool::work(int index) {
    in_body = true;
    uint32_t seen = 0;
    for (;;) {
        auto changed = [&] { return turn.load() != seen; };
        if (!spin(changed)) {
            std::unique_lock<std::mutex> lock(sleep);
            sleeping.fetch_add(1);
            wake.wait(lock, changed);
            sleeping.fetch_sub(1);
        }
        seen = turn.load();
        if (index >= limit.load()) continue;
        active.fetch_add(1);
        if (open.load()) take();
        if (active.fetch_sub(1) == 1 && owner_sleeps.load()) {
            std::lock_guard<std::mutex> lock(sleep);
            done.notify_one();
        }
    }
}

void Pool::start(int count) {
    for (; workers < count; ++workers) {
        std::thread(&Pool::work, this, workers).detach();
    }
    limit.store(count);
}

void Pool::run(int64_t items, int64_t at_once, bool even, Body f, void* argument) {
    body = f, context = argument, n = items, grain = at_once;
    shares = (limit.load() + 1) * (even ? 1 : kShares);
    next.store(0);
    open.store(true);
    turn.fetch_add(1);
    if (sleeping.load() > 0) {
        std::lock_guard<std::mutex> lock(sleep);
        wake.notify_all();
    }
    take();
    open.store(false);
    auto idle = [&] { return active.load() == 0; };
    if (!spin(idle)) {
        std::unique_lock<std::mutex> lock(sleep);
        owner_sleeps.store(true);
        done.wait(lock, idle);
        owner_sleeps.store(false);
    }
}

// The pool of this process. A child of fork() has none of its parent's threads, so it gets a new pool; what the old one
// held is left alone, because its locks may be held by threads that are gone.
Pool& pool() {
    static std::once_flag once;
    std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { shared.store(nullptr), in_body = false; }); });
    Pool* found = shared.load();
    if (!found) {
        Pool* made = new Pool;
        if (shared.compare_exchange_strong(found, made)) {
            found = made;
        } else {
            delete made;
        }
    }
    return *found;
}

}  // namespace

int thread_count() {
    int set = threads.load();
    return set > 0 ? set : int(std::thread::hardware_concurrency());
}

void parallel_run(int64_t n, int64_t grain, bool even, Body body, void* context) {
    if (n <= 0) return;
    int count = thread_count();
    if (n <= grain || count <= 1 || in_body) return body(context, 0, n);
    Pool& workers = pool();
    std::unique_lock<std::mutex> owned(workers.in_use, std::try_to_lock);
    if (!owned.owns_lock()) return body(context, 0, n);
    in_body = true;
    workers.start(count - 1);
    workers.run(n, grain, even, body, context);
    in_body = false;
}

}  // namespace llmk

// Sets the number of threads of kernels; 0: one per processor.
extern "C" __attribute__((visibility("default"))) void llmk_set_threads(int32_t count) {
    llmk::threads.store(count < 0 ? 0 : count);
}

extern "C" __attribute__((visibility("default"))) int32_t llmk_threads() { return llmk::thread_count(); }
