// Whether products of tiles are right on this processor. Some virtual machines list AMX, and even grant it, but end at
// its first instruction, which is found out here.

#include <csetjmp>
#include <csignal>

#include "matrix_unit.h"

namespace llmk::LLMK_LEVEL::matrix_check {
namespace {

sigjmp_buf at_check;

void leave_check(int) { siglongjmp(at_check, 1); }

// A word of two small whole numbers, of which products and sums are exact.
float pair(int first, int second) {
    float values[2] = {float(first), float(second)};
    uint32_t bits[2], word;
    memcpy(bits, values, sizeof bits);
    word = bits[0] >> 16 | (bits[1] & 0xffff0000);
    float found;
    memcpy(&found, &word, sizeof found);
    return found;
}

int row_number(int64_t row, int64_t i) { return int((row * 5 + i * 3) % 17) - 8; }
int output_number(int64_t i, int64_t output) { return int((i * 7 + output * 11) % 13) - 6; }

bool products_are_right() {
    constexpr int64_t kApart = kTileWords + 3;
    float rows[kTileRows * kApart], outputs[kTileRows * kApart], sums[kTileRows * kApart];
    for (int64_t i = 0; i < kTileRows; ++i) {
        for (int64_t j = 0; j < kTileWords; ++j) {
            rows[i * kApart + j] = pair(row_number(i, 2 * j), row_number(i, 2 * j + 1));
            outputs[i * kApart + j] = pair(output_number(2 * i, j), output_number(2 * i + 1, j));
            sums[i * kApart + j] = float(i);
        }
    }
    begin_tiles();
    load_tile<3>(sums, kApart), load_tile<4>(rows, kApart), load_tile<7>(outputs, kApart);
    add_tile_products<3, 4, 7>();
    store_tile<3>(sums, kApart);
    end_tiles();
    for (int64_t row = 0; row < kTileRows; ++row) {
        for (int64_t output = 0; output < kTileWords; ++output) {
            int64_t sum = row;
            for (int64_t i = 0; i < 2 * kTileWords; ++i) sum += row_number(row, i) * output_number(i, output);
            if (sums[row * kApart + output] != float(sum)) return false;
        }
    }
    return true;
}

}  // namespace


// Once, before other threads use the library: meanwhile, illegal instructions of the process end up here.
extern "C" __attribute__((visibility("default"))) bool LLMK_NAME(LLMK_LEVEL, tiles_work)() {
    struct sigaction leave = {}, before = {};
    leave.sa_handler = leave_check;
    if (sigaction(SIGILL, &leave, &before)) return false;
    bool right = sigsetjmp(at_check, 1) == 0 && products_are_right();
    sigaction(SIGILL, &before, nullptr);
    return right;
}

}  // namespace llmk::LLMK_LEVEL::matrix_check
