// Which levels of instructions this processor has.

#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(LLMK_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) || defined(__powerpc64__)
#include <sys/auxv.h>
#endif

#if defined(LLMK_AMX)
extern "C" bool llmk_amx_tiles_work();  // matrix_check.cpp
#endif

namespace {

#if defined(__x86_64__)

struct Registers {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
    return r;
}

// The registers that the operating system saves (XCR0), without which instructions can't be used.
uint64_t saved_state() {
    uint32_t low, high;
    asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
}

#if defined(LLMK_AMX)

// Linux has processes ask for the registers of AMX.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr long kGetPermissions = 0x1022, kRequestPermission = 0x1023, kTileData = 18;
    uint64_t granted = 0;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 &&
           syscall(SYS_arch_prctl, kGetPermissions, &granted) == 0 && granted >> kTileData & 1;
#else
    return false;
#endif
}

#endif

const char* find_levels() {
    auto has = [](uint32_t reg, int bit) { return reg >> bit & 1; };
    Registers basic = cpuid(1), more = cpuid(7), late = cpuid(7, 1);
    bool saves = has(basic.c, 27);
    uint64_t saved = saves ? saved_state() : 0;
    bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6;
    bool avx2 = ymm && has(more.b, 5) && has(basic.c, 12) && has(basic.c, 29);  // AVX2, FMA, F16C
    if (!avx2) return "";
    bool avx2_vnni = has(late.a, 4);
    bool avx512 = zmm && has(more.b, 16) && has(more.b, 17) && has(more.b, 30) && has(more.b, 31);  // F, DQ, BW, VL
    bool vnni = avx512 && has(more.c, 11), half = vnni && has(late.a, 5);
#if defined(LLMK_AMX)
    bool tiles = (saved & 0x60000) == 0x60000 && has(more.d, 22) && has(more.d, 24);  // AMX-BF16, AMX-TILE
    bool amx = half && tiles && may_use_tiles() && llmk_amx_tiles_work();
#else
    bool amx = false;  // the assembler knew no AMX
#endif
    if (!avx512) return avx2_vnni ? "avx2_vnni avx2" : "avx2";
    if (!vnni) return "avx512 avx2";
    // Processors with AVX512-VNNI need no narrower VNNI, so that it isn't listed for them.
    if (!half) return "avx512_vnni avx512 avx2";
    return amx ? "amx avx512_bf16 avx512_vnni avx512 avx2" : "avx512_bf16 avx512_vnni avx512 avx2";
}

#elif defined(__aarch64__)

const char* find_levels() {
    constexpr unsigned long kDotProducts = 1ul << 20, kInt8Matrices = 1ul << 13, kBFloat16 = 1ul << 14;
    bool dot = getauxval(AT_HWCAP) & kDotProducts;
    unsigned long more = getauxval(AT_HWCAP2);
    return dot && more & kInt8Matrices && more & kBFloat16 ? "neon_bf16 neon" : "neon";
}

#elif defined(__powerpc64__) && defined(__VSX__)

const char* find_levels() {
    constexpr unsigned long kVersion31 = 1ul << 18, kMatrices = 1ul << 17;
    unsigned long more = getauxval(AT_HWCAP2);
    return more & kVersion31 && more & kMatrices ? "mma vsx" : "vsx";
}

#else

const char* find_levels() { return "generic"; }

#endif

}  // namespace

// Names of the levels that this processor has, best first, with spaces between them; none for one without vectors that
// kernels are written for. A kernel is taken from the first level that has it.
extern "C" __attribute__((visibility("default"))) const char* llmk_levels() {
    static const char* found = find_levels();
    return found;
}
