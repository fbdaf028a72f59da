"""Kernels that sum a tensor over GPUs of one host, each of which reads and writes the others' memory.

A message is a run of 32-bit words: one float32, or two values of 16 bits. Every rank launches the same kernel on a
message of the same size. Program ``p`` of one rank only exchanges with program ``p`` of the others, and each sends
before it waits. The device starts programs in order, so those that are waited for run or have ended.

What arrives is known by the number of the call, which each program counts for itself in its rank's memory: a recorded
launch that is replayed goes on counting. All ranks add in the same order, in float32, and round once, so that all have
the same bits, for messages of all sizes.

With ``PDL`` (programmatic dependent launch), a kernel starts while the one before it ends, and the one after it while
this one waits for its peers: a GEMM then reads its weights ahead. Nothing is read before the kernel before has ended.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["quads"])
def one_shot_kernel(
    x,
    areas,
    counts,
    quads,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Sums ``x``, of ``4 * quads`` words, in place: a program ``BLOCK`` of them. Every rank sends its message to all.

    ``areas`` are the addresses of the ranks' areas, ``[2, WORLD, WORDS]`` 64-bit numbers: for even and odd calls, and
    by sender, words with the number of the call in their upper half. So a word itself says that it has arrived, as in
    NCCL's protocol LL: it takes one way over the link and no fence, for twice the bytes.

    A rank that sends its next but one message has received all of the next. Those who sent it had read the one before,
    whose place it takes.
    """
    start(PDL)
    program = tl.program_id(0)
    call = next_call(counts, program)
    column = program * BLOCK + tl.arange(0, BLOCK)
    there = column < quads * 4
    words = as_words(x) + column
    own = tl.load(words, there, other=0)
    place = (call & 1).to(tl.int64) * (WORLD * WORDS) + column
    for distance in tl.static_range(1, WORLD):
        peer = memory(areas[(RANK + distance) % WORLD], tl.uint64) + RANK * WORDS
        # Written through: the peer waits for it.
        tl.store(peer + place, (call.to(tl.uint64) << 32) | own.to(tl.uint64), there, cache_modifier=".wt")
    mailbox = memory(areas[RANK], tl.uint64) + place
    for rank in tl.static_range(WORLD):
        low, high = halves(x, own if rank == RANK else received(mailbox + rank * WORDS, there, call))
        if rank == 0:
            low_sum, high_sum = low, high
        else:
            low_sum, high_sum = low_sum + low, high_sum + high
    tl.store(words, rounded(x, low_sum, high_sum), there)
    tl.debug_barrier()
    tl.store(counts + program, call)


@triton.jit
def add_rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    total,
    areas,
    counts,
    EPS: tl.constexpr,
    ROW: tl.constexpr,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """``total``: the sum of ``x`` over the ranks plus ``residual``; ``out``: its norm. A program has a row of ``ROW``
    words, which it sends and receives as :func:`one_shot_kernel` does, in areas that are for this kernel and for rows
    of this size. Rounds where :func:`llmk.reference.norms.make_add_rms_norm` does."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    there = column < ROW
    scale_low, scale_high = halves(x, tl.load(as_words(weight) + column, there, other=0))
    start(PDL)
    call = next_call(counts, row)
    at = row.to(tl.int64) * ROW + column
    own = tl.load(as_words(x) + at, there, other=0)
    place = (call & 1).to(tl.int64) * (WORLD * WORDS) + at
    for distance in tl.static_range(1, WORLD):
        peer = memory(areas[(RANK + distance) % WORLD], tl.uint64) + RANK * WORDS
        tl.store(peer + place, (call.to(tl.uint64) << 32) | own.to(tl.uint64), there, cache_modifier=".wt")
    rest_low, rest_high = halves(x, tl.load(as_words(residual) + at, there, other=0))
    mailbox = memory(areas[RANK], tl.uint64) + place
    for rank in tl.static_range(WORLD):
        low, high = halves(x, own if rank == RANK else received(mailbox + rank * WORDS, there, call))
        if rank == 0:
            low_sum, high_sum = low, high
        else:
            low_sum, high_sum = low_sum + low, high_sum + high
    low, high = halves(x, rounded(x, low_sum, high_sum))
    summed = rounded(x, low + rest_low, high + rest_high)
    tl.store(as_words(total) + at, summed, there)
    low, high = halves(x, summed)
    squares = tl.sum(low * low, axis=0)
    size = ROW
    if x.dtype.element_ty != tl.float32:
        squares += tl.sum(high * high, axis=0)
        size = 2 * ROW
    factor = tl.rsqrt(squares / size + EPS)
    low, high = halves(x, rounded(x, low * factor, high * factor))
    tl.store(as_words(out) + at, rounded(x, low * scale_low, high * scale_high), there)
    tl.debug_barrier()
    tl.store(counts + row, call)


@triton.jit(do_not_specialize=["quads", "tiles"])
def two_shot_kernel(
    x,
    areas,
    counts,
    quads,
    tiles,
    RANK: tl.constexpr,
    WORLD: tl.constexpr,
    WORDS: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Sums ``x``, of ``4 * quads`` words, in place: each rank sums a part of ``tiles`` times ``BLOCK`` words, which the
    others send to it, and sends the sum to them.

    ``areas`` are the addresses of the ranks' areas: ``[WORDS]`` words for what is to be summed, by sender, and as many
    for sums, by sender; then ``[2, PROGRAMS, WORLD]`` 32-bit numbers: the call of which a program's words, and its
    sums, have arrived, by sender.

    A rank that has received all sums of a call knows that the others have read its words; and one that has received
    words of the next call, that they have read its sums. So neither overwrites what is still to be read.
    """
    start(PDL)
    program, programs = tl.program_id(0), tl.num_programs(0)
    call = next_call(counts, program)
    words = as_words(x)
    part = tiles * BLOCK
    column = tl.arange(0, BLOCK)
    flags = 2 * WORDS + program * WORLD
    for distance in tl.static_range(1, WORLD):
        peer = memory(areas[(RANK + distance) % WORLD], tl.uint32) + RANK * part
        first = (RANK + distance) % WORLD * part
        for tile in range(program, tiles, programs):
            at = tile * BLOCK + column
            there = first + at < quads * 4
            tl.store(peer + at, tl.load(words + first + at, there, other=0), there)
    exchange(areas, flags, call, RANK, WORLD)
    mailbox = memory(areas[RANK], tl.uint32)
    for tile in range(program, tiles, programs):
        at = tile * BLOCK + column
        there = RANK * part + at < quads * 4
        for rank in tl.static_range(WORLD):
            # Others' words are in the L2 cache: the L1 cache doesn't see what peers write.
            found = mailbox + rank * part + at
            own = words + RANK * part + at
            if rank == RANK:
                low, high = halves(x, tl.load(own, there, other=0))
            else:
                low, high = halves(x, tl.load(found, there, other=0, cache_modifier=".cg"))
            if rank == 0:
                low_sum, high_sum = low, high
            else:
                low_sum, high_sum = low_sum + low, high_sum + high
        total = rounded(x, low_sum, high_sum)
        for distance in tl.static_range(1, WORLD):
            peer = memory(areas[(RANK + distance) % WORLD], tl.uint32) + WORDS + RANK * part
            tl.store(peer + at, total, there)
        tl.store(words + RANK * part + at, total, there)
    exchange(areas, flags + PROGRAMS * WORLD, call, RANK, WORLD)
    for distance in tl.static_range(1, WORLD):
        for tile in range(program, tiles, programs):
            at = (RANK + distance) % WORLD * part + tile * BLOCK + column
            there = at < quads * 4
            tl.store(words + at, tl.load(mailbox + WORDS + at, there, other=0, cache_modifier=".cg"), there)
    tl.store(counts + program, call)


@triton.jit
def start(PDL: tl.constexpr):
    """Lets the next kernel start once all programs of this one have, and waits until the one before has ended."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def as_words(values):
    """A pointer to the words of values."""
    return values.to(tl.pointer_type(tl.uint32), bitcast=True)


@triton.jit
def memory(address, kind: tl.constexpr):
    """What is at an address, which is a multiple of 16."""
    return tl.multiple_of(address.to(tl.pointer_type(kind)), 16)


@triton.jit
def next_call(counts, program):
    """The number of this call, from 1. After 2^32 - 1 comes 2: memory starts with 0, and odd and even alternate."""
    call = tl.load(counts + program).to(tl.uint32, bitcast=True) + 1
    return tl.where(call == 0, 2, call).to(tl.uint32)


@triton.jit
def received(mailbox, there, call):
    """The words that a peer has sent, once all have arrived."""
    found = tl.load(mailbox, there, other=0, volatile=True)
    while tl.max((((found >> 32) != call) & there).to(tl.int32), axis=0) > 0:
        found = tl.load(mailbox, there, other=0, volatile=True)
    return found.to(tl.uint32)


@triton.jit
def exchange(areas, flag, call, RANK: tl.constexpr, WORLD: tl.constexpr):
    """Says to this program's peers that what it wrote to them is there, and waits until theirs is."""
    tl.debug_barrier()
    for distance in tl.static_range(1, WORLD):
        peer = memory(areas[(RANK + distance) % WORLD], tl.uint32) + flag + RANK
        tl.atomic_xchg(peer, call, sem="release", scope="sys")
    for distance in tl.static_range(1, WORLD):
        own = memory(areas[RANK], tl.uint32) + flag + (RANK + distance) % WORLD
        while tl.atomic_add(own, 0, sem="acquire", scope="sys") != call:
            pass
    tl.debug_barrier()


@triton.jit
def halves(x, words):
    """The values in words, as float32: two, or one twice."""
    if x.dtype.element_ty == tl.float32:
        return words.to(tl.float32, bitcast=True), words.to(tl.float32, bitcast=True)
    else:
        low = (words & 0xFFFF).to(tl.uint16).to(x.dtype.element_ty, bitcast=True)
        high = (words >> 16).to(tl.uint16).to(x.dtype.element_ty, bitcast=True)
        return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def rounded(x, low, high):
    """Words of the values' dtype."""
    if x.dtype.element_ty == tl.float32:
        return low.to(tl.uint32, bitcast=True)
    else:
        kind = x.dtype.element_ty
        low_bits = low.to(kind).to(tl.uint16, bitcast=True).to(tl.uint32)
        return low_bits | (high.to(kind).to(tl.uint16, bitcast=True).to(tl.uint32) << 16)
