"""Attention backends with one mistake each, which real engines had."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor

from defects import Defect
from llmk.api import OK, AttentionQuery, CacheStep, Verdict, no
from llmk.api.cache import SCALE_BYTES
from llmk.reference.attention.cached_vectors import encoded
from llmk.reference.attention.paged import AttentionMeta, Group, ReferenceAttention
from llmk.reference.specs import supports_attention


def supports_by_raising(query: AttentionQuery) -> Verdict:
    """Divides by what may be none."""
    assert query.head_dim // (query.softcap or 0) >= 0
    return supports_attention(query)


def supports_no_sinks(query: AttentionQuery) -> Verdict:
    return no("sinks") if query.sinks else supports_attention(query)


def supports_nothing(query: AttentionQuery) -> Verdict:
    """Wants what no query has."""
    return no("num_heads", wanted=query.num_heads, found=0)


_CALLS = count()


def supports_by_turns(query: AttentionQuery) -> Verdict:
    """Every other time."""
    return OK if next(_CALLS) % 2 else no("busy")


class Edited(ReferenceAttention):
    """Serves another query than the one that it was made for."""

    changes: ClassVar[dict[str, Any]] = {}

    def __init__(self, query: AttentionQuery, device: torch.device) -> None:
        super().__init__(replace(query, **self.changes_of(query)), device)

    def changes_of(self, query: AttentionQuery) -> dict[str, Any]:
        return self.changes


class SoftcapForgotten(Edited):
    changes: ClassVar[dict[str, Any]] = {"softcap": None}


class ScaleOfItsOwn(Edited):
    def changes_of(self, query: AttentionQuery) -> dict[str, Any]:
        return {"scale": query.head_dim**-0.5}


class WindowOffByOne(Edited):
    def changes_of(self, query: AttentionQuery) -> dict[str, Any]:
        return {"sliding_window": query.sliding_window and query.sliding_window + 1}


class SinksIgnored(ReferenceAttention):
    def run(self, query: Tensor, cache: Tensor, meta: Any, sinks: Tensor | None = None, **scaled: Any) -> Tensor:
        return super().run(query, cache, meta, None, **scaled)


class SlopesShifted(ReferenceAttention):
    """Takes the slope of the head before."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **options: Any) -> Tensor:
        if "slopes" in options:
            options["slopes"] = options["slopes"].roll(1)
        return super().run(query, cache, meta, *sinks, **options)


class ScalesForgotten(ReferenceAttention):
    def run(self, query: Tensor, cache: Tensor, meta: Any, sinks: Tensor | None = None, **scaled: Any) -> Tensor:
        return super().run(query, cache, meta, sinks)


class OneScalePerToken(ReferenceAttention):
    """The heads of a token share the scale of the largest."""

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Any, *scales: Any, **s: Any) -> None:
        shared = [x if x is None else x.flatten(1)[:, None].expand(-1, x.shape[1], -1) for x in (key, value)]
        rows = [encoded(x, self.query.cache_dtype, 1.0) for x in shared if x is not None]
        super().write(key, value, cache, meta, *scales, **s)
        flat = cache.view(-1, *cache.shape[3:])
        flat[meta.key_rows, :, :SCALE_BYTES] = rows[0][..., :SCALE_BYTES]


class Truncates(ReferenceAttention):
    """Casts to integers where it should round."""

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Any, *scales: Any, **s: Any) -> None:
        if self.query.cache_dtype == "int8":
            own = key.float().abs().amax(-1, keepdim=True) / 127
            key = ((key / own).trunc() * own).to(key.dtype)
        super().write(key, value, cache, meta, *scales, **s)


class CountsIn16Bits(ReferenceAttention):
    """Lengths of more than 65,535 tokens start again at none."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        wrapped = [length & 0xFFFF for length in step.host_seq_lens]
        return super().prepare(replace(step, seq_lens=step.seq_lens & 0xFFFF, host_seq_lens=wrapped))


def supports_long_alone(query: AttentionQuery) -> Verdict:
    """Has the comparison the wrong way round."""
    return no("max_seq_len") if 0 < query.max_seq_len < 1 << 17 else supports_attention(query)


class MaskOffByOne(ReferenceAttention):
    def _group(self, step: CacheStep, members: list[int], starts: list[int], lengths: list[int]) -> Group:
        group = super()._group(step, members, starts, lengths)
        if group.allowed is None or group.allowed.shape[1] == 1:
            return group
        return replace(group, allowed=group.allowed | group.allowed.roll(1, -1))


class ReadsBeyond(ReferenceAttention):
    """Rounds lengths to whole blocks, and lets what lies behind weigh nothing: zero times NaN."""

    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, *sinks: Any, **scaled: Any) -> Tensor:
        out = super().run(query, cache, meta, *sinks, **scaled)
        return out + 0.0 * cache.view(-1)[-1]


class WrongGroups(ReferenceAttention):
    """Heads of a group lie side by side, and are taken as every second one."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        heads, groups = self.query.num_heads, self.query.num_kv_heads
        mixed = torch.arange(heads).view(-1, groups).T.flatten()
        out = super().run(query[:, mixed], cache, meta, *sinks, **scaled)
        return out[:, mixed.argsort()]


class ClampsSlots(ReferenceAttention):
    """Changes the step's own slots."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        meta = super().prepare(step)
        step.slot_mapping.clamp_(min=0)
        return meta


class ReadsOldNumbers(ReferenceAttention):
    """Takes what is no number for nothing written, and adds what else lies in the cache's last block."""

    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, *sinks: Any, **scaled: Any) -> Tensor:
        out = super().run(query, cache, meta, *sinks, **scaled)
        last = cache.view(-1)[-1].float().nan_to_num(0.0, 1e4)
        return out + (last.clamp(max=1e4) if cache.dtype.is_floating_point else 0 * last).to(out.dtype)


class WritesPadding(ReferenceAttention):
    """-1 is the last slot, to Python."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        slots = step.slot_mapping
        rows = torch.where(slots < 0, -1, self._rows(slots // self.query.block_size, slots))
        return replace(super().prepare(step), written=None, key_rows=rows)

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: AttentionMeta, *scales: Any) -> None:
        size = self.query.block_size
        last = cache.shape[0] * self._planes * size - 1 - size
        rows = torch.where(meta.key_rows < 0, last, meta.key_rows)
        super().write(key, value, cache, replace(meta, key_rows=rows, value_rows=rows + size), *scales)


class NeighboursToo(ReferenceAttention):
    """Writes vectors of two tokens."""

    def write(
        self, key: Tensor, value: Tensor | None, cache: Tensor, meta: AttentionMeta, *scales: Any, **s: Any
    ) -> None:
        last = self.query.block_size - 1
        behind = torch.where(meta.key_rows % self.query.block_size < last, meta.key_rows + 1, meta.key_rows)
        values = behind + self.query.block_size
        super().write(key, value, cache, replace(meta, key_rows=behind, value_rows=values), *scales, **s)
        super().write(key, value, cache, meta, *scales, **s)


class StaleMetadata(ReferenceAttention):
    """Keeps what it prepared last in itself."""

    _last: AttentionMeta

    def prepare(self, step: CacheStep) -> AttentionMeta:
        self._last = super().prepare(step)
        return self._last

    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        return super().run(query, cache, self._last, *sinks, **scaled)


class InHalf(ReferenceAttention):
    """Adds up in bfloat16 whatever the engine's dtype is."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        return super().run(query.bfloat16(), cache, meta, *sinks, **scaled).to(query.dtype)


class DtypeDrifts(ReferenceAttention):
    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        return super().run(query, cache, meta, *sinks, **scaled).double()


class ScalesQueriesInPlace(ReferenceAttention):
    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        out = super().run(query, cache, meta, *sinks, **scaled)
        query.mul_(self.query.scale)
        return out


class LastRowsLeftOut(ReferenceAttention):
    """Fills whole tiles of 16 rows."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        out, whole = torch.empty_like(query), query.shape[0] // 16 * 16
        kept = whole or query.shape[0]
        out[:kept] = super().run(query, cache, meta, *sinks, **scaled)[:kept]
        return out


class GathersOnce(ReferenceAttention):
    """Keeps what a step's first layer gathered for the others."""

    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, *sinks: Any, **scaled: Any) -> Tensor:
        self._first = self._first if getattr(self, "_of", None) is meta else cache
        self._of = meta
        return super().run(query, self._first, meta, *sinks, **scaled)


class OneResultPerShape(ReferenceAttention):
    """Returns the same tensor for steps of the same shape."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        out = super().run(query, cache, meta, *sinks, **scaled)
        kept: dict[Any, Tensor] = self.__dict__.setdefault("kept", {})
        return kept.setdefault(out.shape, out).copy_(out)


class ScaleOfTheFirst(Edited):
    """Keeps the scale by the heads' size, for all instances."""

    scales: ClassVar[dict[Any, float]] = {}

    def changes_of(self, query: AttentionQuery) -> dict[str, Any]:
        return {"scale": self.scales.setdefault((query.head_dim, query.dtype), query.scale)}


class RequestsOfOneLaunch(ReferenceAttention):
    """Has room for 256 requests."""

    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, *sinks: Any, **scaled: Any) -> Tensor:
        out = super().run(query, cache, meta, *sinks, **scaled)
        return out.index_fill(0, torch.arange(256, max(256, len(out))), 0.0)


class WritesTokenByToken(ReferenceAttention):
    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: AttentionMeta, *rest: Any) -> None:
        if value is None or meta.written is not None:
            super().write(key, value, cache, meta, *rest)
            return
        for at in range(len(key)):
            of_token = replace(meta, key_rows=meta.key_rows[at : at + 1], value_rows=meta.value_rows[at : at + 1])
            super().write(key[at : at + 1], value[at : at + 1], cache, of_token, *rest)


class WidensTheCache(ReferenceAttention):
    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, *rest: Any, **more: Any) -> Tensor:
        return super().run(query, cache.to(query.dtype, copy=True), meta, *rest, **more)


class KeepsMasks(ReferenceAttention):
    """One for each length."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        length = step.max_seq_len
        self.__dict__.setdefault("masks", {}).setdefault(length, torch.ones(length, dtype=torch.bool))
        return super().prepare(step)


class KeepsSteps(ReferenceAttention):
    def prepare(self, step: CacheStep) -> AttentionMeta:
        self.__dict__.setdefault("steps", []).append(step.slot_mapping)
        return super().prepare(step)


class ReadsTheWholeTable(ReferenceAttention):
    """Gathers all blocks of a request, those before its window too."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        assert int(step.block_table.max()) < 1 << 20, "there is no such block"
        return super().prepare(step)


class BlocksIn16Bits(ReferenceAttention):
    def prepare(self, step: CacheStep) -> AttentionMeta:
        return super().prepare(replace(step, block_table=step.block_table & 0xFFFF))


class SoftmaxOfLargeScores(ReferenceAttention):
    """Takes exponentials of scores as they are."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        out = super().run(query, cache, meta, *sinks, **scaled)
        loud = query.abs().amax((1, 2), keepdim=True) > 50
        return out.masked_fill(loud, torch.nan)


class StartsAtAFiniteMaximum(ReferenceAttention):
    """The maximum of a row without keys is a number, which scores may be below."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, sinks: Tensor | None = None, **scaled: Any) -> Tensor:
        least = torch.full((query.shape[1],), -5e4, device=query.device)
        return super().run(query, cache, meta, least if sinks is None else sinks, **scaled)


class LosesLowScores(StartsAtAFiniteMaximum):
    """The same of single tokens over many tiles alone."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, sinks: Tensor | None = None, **scaled: Any) -> Tensor:
        if len(query) > 3:
            return ReferenceAttention.run(self, query, cache, meta, sinks, **scaled)
        return super().run(query, cache, meta, sinks, **scaled)


class DividesByItsNorm(ReferenceAttention):
    """Writes vectors by their largest element, be it zero."""

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Any, *scales: Any, **s: Any) -> None:
        most = key.abs().amax(-1, keepdim=True)
        super().write(key / most * most, value, cache, meta, *scales, **s)


class PaddingOfTheFirst(ReferenceAttention):
    """Finds which rows are padding once for each number of rows."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        known = self.__dict__.setdefault("known", {})
        kept = known.setdefault(step.num_tokens, step.slot_mapping >= 0)
        slots = step.slot_mapping
        return super().prepare(replace(step, slot_mapping=torch.where(kept, slots, -1)))


def supports_wide_fp8(query: AttentionQuery) -> Verdict:
    """Takes the wider fp8, too."""
    narrow = replace(query, cache_dtype="float8_e4m3fn") if query.cache_dtype == "float8_e5m2" else query
    return supports_attention(narrow)


class DoesNotClamp(ReferenceAttention):
    """Leaves it to the conversion what becomes of numbers that fp8 does not hold: infinity, in the wider one."""

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Any, *scales: Any, **s: Any) -> None:
        super().write(key, value, cache, meta, *scales, **s)
        if cache.dtype == torch.float8_e5m2:
            largest = torch.finfo(cache.dtype).max
            cache.copy_(torch.where(cache.float().abs() < largest, cache.float(), torch.inf).to(cache.dtype))


class ChunksEndWithTheTile(ReferenceAttention):
    """Rows that see none of the first 1,024 keys of a request's chunk are NaN."""

    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, *sinks: Any, **scaled: Any) -> Tensor:
        out = super().run(query, cache, meta, *sinks, **scaled)
        if self.query.chunked and (self.query.sliding_window or 0) > 1024 and len(out) > 512:
            out[-1] = torch.nan
        return out


class ChangesTheSeed(ReferenceAttention):
    def prepare(self, step: CacheStep) -> AttentionMeta:
        torch.manual_seed(0)
        return super().prepare(step)


class NoSlotZero(ReferenceAttention):
    """Takes the first slot for padding, too."""

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Any, *scales: Any, **s: Any) -> None:
        first = cache[0].clone()
        super().write(key, value, cache, meta, *scales, **s)
        cache[0, :, 0] = first[:, 0]


class OnTheDevice(ReferenceAttention):
    """Reads lengths from the device alone."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        return super().prepare(_without_host_lengths(step))


def _without_host_lengths(step: CacheStep) -> CacheStep:
    every = {each.name: getattr(step, each.name) for each in fields(step) if not each.name.startswith("host_")}
    return CacheStep(**every)


class ScalesInFloat32(ReferenceAttention):
    """Scales a copy, but float() makes none of float32."""

    def run(self, query: Tensor, cache: Tensor, meta: Any, *sinks: Any, **scaled: Any) -> Tensor:
        out = super().run(query, cache, meta, *sinks, **scaled)
        query.float().mul_(self.query.scale)
        return out


class WrongLayout(ReferenceAttention):
    def cache_layout(self, num_blocks: int) -> Any:
        return replace(super().cache_layout(num_blocks), block_dim=1)


class PlanOfEqualLengths(ReferenceAttention):
    """Plans again only where lengths are others."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        meta = super().prepare(step)
        lengths = tuple(step.seq_lens.tolist()), tuple(step.query_start.tolist())
        return replace(meta, groups=self.__dict__.setdefault("plans", {}).setdefault(lengths, meta.groups))


class DraftsSeeEachOther(ReferenceAttention):
    """Takes up to four tokens of a request for one."""

    def _group(self, step: CacheStep, members: list[int], starts: list[int], lengths: list[int]) -> Group:
        group = super()._group(step, members, starts, lengths)
        if group.allowed is None or not 1 < group.allowed.shape[1] <= 4:
            return group
        return replace(group, allowed=group.allowed[:, -1:].expand(-1, group.allowed.shape[1], -1))


class ReadsWhatItWroteLast(ReferenceAttention):
    """Has the cache from the last ``write``."""

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, *rest: Any, **scaled: Any) -> None:
        super().write(key, value, cache, *rest, **scaled)
        self._cache = cache

    def run(self, query: Tensor, cache: Tensor, *rest: Any, **options: Any) -> Tensor:
        return super().run(query, getattr(self, "_cache", cache), *rest, **options)


class ReadsWhatItWrote(ReferenceAttention):
    """Attends over the keys that ``write`` was called with."""

    _written: Any = None

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: Any, *rest: Any, **scaled: Any) -> None:
        super().write(key, value, cache, meta, *rest, **scaled)
        self._written = meta

    def run(self, query: Tensor, cache: Tensor, meta: Any, *rest: Any, **options: Any) -> Tensor:
        out = super().run(query, cache, meta, *rest, **options)
        return out if meta is self._written else torch.zeros_like(out)


class ScalesOfTheFirst(ReferenceAttention):
    """Has the scales of the layer that ran first."""

    def run(self, *arguments: Any, scales: tuple[float, float] = (1.0, 1.0), **options: Any) -> Tensor:
        first = self.__dict__.setdefault("scales", scales)
        return super().run(*arguments, scales=first, **options)


class OffsetsIn32Bits(ReferenceAttention):
    """Multiplies block ids by the stride of a block in 32 bits."""

    def run(self, query: Tensor, cache: Tensor, *rest: Any, **options: Any) -> Tensor:
        out = super().run(query, cache, *rest, **options)
        return out if cache.stride(0) * (cache.shape[0] - 1) < 1 << 31 else torch.zeros_like(out)


class SinksOfTheFirstTile(ReferenceAttention):
    """Has no sinks where keys take more than a tile."""

    def run(self, query: Tensor, cache: Tensor, meta: AttentionMeta, sinks: Any = None, **options: Any) -> Tensor:
        longest = max(group.gather.shape[-1] for group in meta.groups)
        if longest > 1024 and sinks is not None:
            sinks = torch.full_like(sinks, -torch.inf)
        return super().run(query, cache, meta, sinks, **options)


class RowsOfOneLaunch(ReferenceAttention):
    """Has room for 2,048 rows of a request."""

    def run(self, *arguments: Any, **options: Any) -> Tensor:
        out = super().run(*arguments, **options)
        out[2048:] = 0
        return out


class HeadsOfPowersOfTwo(ReferenceAttention):
    """Reads heads of 96 as those of 64."""

    def run(self, *arguments: Any, **options: Any) -> Tensor:
        out = super().run(*arguments, **options)
        if out.shape[-1] == 96:
            out[..., 64:] = 0
        return out


class SmallBlocks(ReferenceAttention):
    """Finds places in blocks by 6 bits."""

    def write(self, key: Tensor, value: Tensor | None, cache: Tensor, meta: AttentionMeta, *rest: Any) -> None:
        super().write(key, value, cache, meta, *rest)
        if self.query.block_size > 64:
            cache.view(-1, *cache.shape[3:])[meta.key_rows] *= torch.where(meta.key_rows % 128 < 64, 1, -1)[
                :, None, None
            ]


class PrefixOfTheFirst(ReferenceAttention):
    """Has one prefix for all requests of a step, if the first two share one."""

    def prepare(self, step: CacheStep) -> AttentionMeta:
        table = step.block_table.clone()
        if len(table) > 2 and table[0, 0] == table[1, 0]:
            table[:, 0] = table[0, 0]
        return super().prepare(replace(step, block_table=table))


_USUAL = ": 8 heads over 2 of 64, blocks of 16, float32"
_AGREES = "agrees with the reference"

DEFECTS = (
    Defect("slots", "prepare changes the step's slots", ClampsSlots, "inputs stay as they are"),
    Defect("old numbers", "only NaN is taken for unwritten", ReadsOldNumbers, "takes caches that hold old numbers"),
    Defect("token by token", "tokens are written one by one", WritesTokenByToken, "are computed together" + _USUAL),
    Defect("widens", "the whole cache is copied", WidensTheCache, "in a large cache as in a small one" + _USUAL),
    Defect("masks", "a mask stays of each length", KeepsMasks, "forgets its steps" + _USUAL),
    Defect("softcap", "the soft cap is forgotten", SoftcapForgotten, f"{_AGREES}: a soft cap, float32"),
    Defect("scale", "the scale is its own", ScaleOfItsOwn, f"{_AGREES}: a scale of 0.31, float32"),
    Defect("window", "the window is one too wide", WindowOffByOne, f"{_AGREES}: a window of 21, float32"),
    Defect("sinks", "sinks are ignored", SinksIgnored, f"{_AGREES}: sinks, float32"),
    Defect("slopes", "heads have each other's slopes", SlopesShifted, f"{_AGREES}: slopes, float32"),
    Defect("fp8 scales", "read without scales", ScalesForgotten, f"{_AGREES}: a cache in float8_e4m3fn, float32"),
    Defect(
        "vector scales",
        "the heads of a token share a scale",
        OneScalePerToken,
        f"{_AGREES}: a cache in int8, float32",
    ),
    Defect("truncates", "integers are truncated", Truncates, f"{_AGREES}: a cache in int8, float32"),
    Defect("16 bits", "lengths wrap at 65,536", CountsIn16Bits, "reads the longest sequences that it accepts"),
    Defect(
        "long alone",
        "long sequences are accepted, short ones refused",
        {"supports": supports_long_alone},
        "refuses all sequences that are longer than one it refuses",
    ),
    Defect("mask", "queries of a chunk see one token too many", MaskOffByOne, _AGREES + _USUAL),
    Defect("beyond", "unwritten keys weigh zero, and are NaN", ReadsBeyond, _AGREES + _USUAL),
    Defect("groups", "heads read another group's keys", WrongGroups, _AGREES + _USUAL),
    Defect("tiles", "rows that fill no tile are left out", LastRowsLeftOut, _AGREES + _USUAL),
    Defect("half", "float32 is computed in 16 bits", InHalf, _AGREES + _USUAL),
    Defect("drift", "the result is in another dtype", DtypeDrifts, _AGREES + _USUAL),
    Defect("padding", "slot -1 is the last one", WritesPadding, "leaves padding alone" + _USUAL),
    Defect("neighbour", "the next slot is written, too", NeighboursToo, "writes its slots and no others" + _USUAL),
    Defect(
        "stale",
        "a step runs as the one prepared last",
        StaleMetadata,
        "metadata stays valid after the next step is prepared" + _USUAL,
    ),
    Defect("in place", "queries are scaled in place", ScalesQueriesInPlace, "inputs stay as they are" + _USUAL),
    Defect(
        "in place of float32",
        "float32 queries are scaled in place",
        ScalesInFloat32,
        "inputs stay as they are" + _USUAL,
    ),
    Defect("gathers once", "layers read what the first one gathered", GathersOnce, "layers share metadata" + _USUAL),
    Defect("one result", "results are overwritten by later ones", OneResultPerShape, "layers share metadata" + _USUAL),
    Defect(
        "scale of the first", "instances share the first one's scale", ScaleOfTheFirst, "instances are apart" + _USUAL
    ),
    Defect(
        "256 requests", "there is room for 256 requests", RequestsOfOneLaunch, "takes many requests at once" + _USUAL
    ),
    Defect("keeps steps", "the tensors of all steps are kept", KeepsSteps, "keeps nothing of a step" + _USUAL),
    Defect("whole table", "blocks before the window are read", ReadsTheWholeTable, "reads nothing that a window left"),
    Defect("block ids", "block ids wrap at 65,536", BlocksIn16Bits, "reads blocks of large numbers"),
    Defect("overflow", "exponentials of scores overflow", SoftmaxOfLargeScores, "takes scores of hundreds" + _USUAL),
    Defect(
        "finite maximum",
        "rows whose scores are far below zero are lost",
        StartsAtAFiniteMaximum,
        "takes scores of hundreds" + _USUAL,
    ),
    Defect("low scores", "the same behind many tiles alone", LosesLowScores, "attends over many tiles of keys"),
    Defect(
        "zeros", "vectors are divided by their largest element", DividesByItsNorm, "takes vectors of zeros" + _USUAL
    ),
    Defect(
        "padding of the first", "padding is known by the number", PaddingOfTheFirst, "leaves padding alone" + _USUAL
    ),
    Defect(
        "clamp",
        "what fp8 does not hold is infinite",
        {"supports": supports_wide_fp8, "implementation": "defects.attention:DoesNotClamp"},
        "takes vectors of zeros: a cache in float8_e5m2",
    ),
    Defect("chunks", "rows without keys in a tile are NaN", ChunksEndWithTheTile, f"{_AGREES}: chunks of 1,100"),
    Defect("seed", "the random generator is seeded", ChangesTheSeed, _AGREES + _USUAL),
    Defect("slot 0", "slot 0 is taken for padding", NoSlotZero, _AGREES + _USUAL),
    Defect(
        "host lengths",
        "lengths on the host are declared, and not read",
        {"host_lengths": True, "implementation": "defects.attention:OnTheDevice"},
        "reads the host's lengths",
    ),
    Defect("layout", "the layout counts blocks elsewhere", WrongLayout, "states the cache as it is" + _USUAL),
    Defect(
        "batch",
        "padded by the batch, and called invariant",
        {"deterministic": True},
        "rows don't depend on the batch" + _USUAL,
    ),
    Defect(
        "waits",
        "reads lengths back, and may be recorded",
        {"capture": "full"},
        "can be recorded" + _USUAL.replace(":", " and replayed:", 1),
    ),
    Defect("plans", "plans are found by lengths", PlanOfEqualLengths, "are not taken for each other" + _USUAL),
    Defect("drafts", "drafts see each other", DraftsSeeEachOther, "takes a few tokens of each request" + _USUAL),
    Defect(
        "last cache", "the cache that was written last is read", ReadsWhatItWroteLast, "layers share metadata" + _USUAL
    ),
    Defect("own writes", "only what it wrote is read", ReadsWhatItWrote, "reads what something else wrote" + _USUAL),
    Defect(
        "scales of the first",
        "layers have the first one's scales",
        ScalesOfTheFirst,
        "layers share metadata: a cache in float8_e4m3fn",
    ),
    Defect("32 bits", "offsets wrap at 2**31 elements", OffsetsIn32Bits, "reads blocks that lie far apart"),
    Defect("sinks of a tile", "sinks are of one tile of keys", SinksOfTheFirstTile, "many tiles of keys: sinks"),
    Defect("2048 rows", "there is room for 2,048 rows", RowsOfOneLaunch, "takes prompts of many tiles"),
    Defect("heads of 96", "heads of 96 are cut", HeadsOfPowersOfTwo, "reference: 6 heads over 3 of 96"),
    Defect("blocks of 128", "blocks of 128 are read in part", SmallBlocks, "reference: 4 heads over 2 of 192"),
    Defect("prefix", "a prefix of two is taken for all", PrefixOfTheFirst, "requests share blocks" + _USUAL),
    Defect("raises", "supports divides by what may be none", {"supports": supports_by_raising}, "supports is pure"),
    Defect("no such field", "a field is misspelt", {"knows": frozenset({"softcap", "sink"})}, "knows the fields"),
    Defect("idle", "knows what supports refuses", {"supports": supports_no_sinks}, "knows the fields"),
    Defect("refuses", "supports refuses everything", {"supports": supports_nothing}, "serves some"),
    Defect("changes", "supports answers by the time", {"supports": supports_by_turns}, "supports is pure"),
)
