// Products of rows with the weights of the experts that they chose. Experts without rows cost nothing.
#pragma once

#include "gemm.h"

namespace llmk {
namespace LLMK_LEVEL {
namespace {

constexpr int64_t kBatch = 4 * kRows;  // arranged rows that are held at a time

// Rows begin to end - 1, which chose one expert.
struct Segment {
    int64_t expert, begin, end;
};

// The segments of rows from `begin`, at most kBatch rows and at most kRows a segment; `offsets[e]` is expert e's first
// row. Returns their number, and sets `expert` and `begin` to what comes next.
inline int64_t next_segments(Segment* out, const int64_t* offsets, int64_t experts, int64_t& expert, int64_t& begin) {
    int64_t count = 0, first = begin;
    while (expert < experts && begin < first + kBatch) {
        int64_t end = smaller(offsets[expert + 1], smaller(begin + kRows, first + kBatch));
        if (end > begin) out[count++] = {expert, begin, end};
        begin = end;
        if (begin == offsets[expert + 1]) ++expert;
    }
    return count;
}

// y = x w[e]^T for rows sorted by expert: n outputs, k inputs. matrix(e, out) sets `out` to expert e's weight; arrange
// and finish as in multiply, finish with the expert as first argument.
template <class P>
void multiply_experts(FunctionRef<void(int64_t expert, typename P::Weight& out)> matrix, const int64_t* offsets,
                      int64_t experts, int64_t n, int64_t k, int64_t bytes, Scratch& scratch,
                      FunctionRef<void(int64_t row, typename P::Row* out)> arrange,
                      FunctionRef<void(int64_t expert, int64_t row, int64_t n, int64_t count, const float*)> finish) {
    using Row = typename P::Row;
    int64_t stride = P::length(k) + 64 / int64_t(sizeof(Row));
    Row* rows = static_cast<Row*>(scratch.get(sizeof(Row) * stride * smaller(offsets[experts], kBatch)));
    Segment segments[kBatch];
    int64_t per_segment = pieces(n, padded(kPiece / (bytes > 0 ? bytes : 1) + 1, kOutputs));
    int64_t size = padded(pieces(n, per_segment), kOutputs);
    for (int64_t expert = 0, begin = 0; expert < experts;) {
        int64_t first = begin, count = next_segments(segments, offsets, experts, expert, begin);
        parallel_for(begin - first, kFew, [&](int64_t from, int64_t to) {
            for (int64_t row = from; row < to; ++row) arrange(first + row, rows + row * stride);
        });
        parallel_for(count * per_segment, 1, [&](int64_t from, int64_t to) {
            for (int64_t i = from; i < to; ++i) {
                const Segment& part = segments[i / per_segment];
                int64_t n0 = i % per_segment * size;
                typename P::Weight weight;
                matrix(part.expert, weight);
                multiply_piece<P>(weight, n0, smaller(n0 + size, n), k, rows + (part.begin - first) * stride,
                                  stride, part.end - part.begin,
                                  [&](int64_t row, int64_t at, int64_t outputs, const float* sums) {
                                      finish(part.expert, part.begin + row, at, outputs, sums);
                                  });
            }
        });
    }
}

}  // namespace
}  // namespace LLMK_LEVEL
}  // namespace llmk
