"""What the attention backends, and the ops over them, can do. Imports neither torch nor Triton."""

from __future__ import annotations

from llmk.api import OK, AttentionQuery, OpQuery, Verdict, no
from llmk.api.cache import SCALE_BYTES
from llmk_triton.kernel_spec import DTYPES, has_large_tiles

NO_FP8 = no("missing_feature", wanted="fp8", found="a platform without fp8")

_ATTENTION = ("triton.attention", "triton.attention_specialized", "triton.attention_specialized_padded")
_LATENT = "triton.attention_latent"
_WIDEST_HEAD, _WIDEST_OF_HALVES = 256, 512
"""Most elements of a head, and of 16-bit heads where tiles are large (Gemma 4 has 512)."""
_LARGEST_GROUP = 32
"""Most query heads per K/V head: as many as fit into one tile in every dtype."""
_LARGEST_GROUP_OF_HALVES, _NARROW_HEAD = 128, 128
"""The same of 16-bit heads up to so many elements (Falcon 7B has 71 heads per K/V head)."""
_WIDEST_LATENT, _WIDEST_SHARED_KEY = 512, 64
"""Most elements of a latent vector, of which a program holds a result for each of its heads, and of the shared key."""
_WIDEST_KEY = 256
"""Most elements of a head's key that a latent vector is projected to."""
_SPECIALIZED_HEADS, _SPECIALIZED_GROUP = (64, 128, 256), 64
_LARGE_HEAD = 256
_LEAST_SHARE, _LEAST_OF_LARGE = 7 / 8, 3 / 4
_LEAST_WINDOW = 1024
"""With a window of 128, the plain kernel takes 0.86 of the specialized one's time (measured on an H100)."""


def _cache_dtype(query: AttentionQuery) -> Verdict:
    """A 16-bit, float32 or fp8 cache."""
    if query.cache_dtype not in (*DTYPES, "float8_e4m3fn"):
        return no("cache_dtype", wanted=query.cache_dtype, found=", ".join(DTYPES))
    return NO_FP8 if query.cache_dtype not in DTYPES and "fp8" not in query.platform.features else OK


def _largest_group(query: AttentionQuery) -> int:
    narrow = (
        max(query.head_dim, query.value_dim or 0) <= _NARROW_HEAD
        and query.dtype != "float32"
        and query.cache_dtype != "float32"
    )
    return _LARGEST_GROUP_OF_HALVES if narrow and has_large_tiles(query.platform) else _LARGEST_GROUP


def _widest_head(query: AttentionQuery) -> int:
    halves = "float32" not in (query.dtype, query.cache_dtype)
    return _WIDEST_OF_HALVES if halves and has_large_tiles(query.platform) else _WIDEST_HEAD


def supports_attention(query: AttentionQuery) -> Verdict:
    """Causal attention over a 16-bit, float32 or fp8 cache, with head sizes and group sizes that fit in a program's
    registers."""
    return _cache_dtype(query) & _fits(query)


def supports_int8(query: AttentionQuery) -> Verdict:
    """What :func:`supports_attention` does, over an int8 cache whose scales are aligned."""
    verdict = _fits(query)
    if not has_large_tiles(query.platform):
        verdict &= no("arch", wanted=query.platform.arch, found="GPUs with more registers for a row per head")
    if query.cache_dtype != "int8":
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found="int8")
    if query.block_size * query.head_dim % SCALE_BYTES:
        found = f"blocks of a multiple of {SCALE_BYTES} bytes"
        verdict &= no("block_size", wanted=f"{query.block_size} x {query.head_dim} bytes", found=found)
    return verdict


def _fits(query: AttentionQuery) -> Verdict:
    verdict = OK
    if query.num_heads % query.num_kv_heads:
        verdict &= no("num_kv_heads", wanted=f"{query.num_heads} heads", found=f"{query.num_kv_heads} K/V heads")
    elif query.num_heads // query.num_kv_heads > (most := _largest_group(query)):
        found = f"up to {most} heads per K/V head"
        verdict &= no("num_heads", wanted=query.num_heads // query.num_kv_heads, found=found)
    if query.scale <= 0:
        verdict &= no("scale", wanted=query.scale, found="above 0 only")
    widest = _widest_head(query)
    if query.head_dim > widest:
        verdict &= no("head_dim", wanted=query.head_dim, found=f"up to {widest}")
    if (query.value_dim or 0) > widest:
        verdict &= no("value_dim", wanted=query.value_dim, found=f"up to {widest}")
    return verdict


def rows_per_token(group: int) -> int:
    """Rows of a tile of specialized warps that a token's ``group`` query heads take, of which TMA copies a power of
    two; those beyond the group are computed and not stored."""
    return 1 << (group - 1).bit_length()


def supports_specialized(query: AttentionQuery) -> Verdict:
    """What :func:`supports_attention` does, with heads and blocks that TMA copies as they lie, windows of several
    tiles, and groups of heads that fill a tile, or of which it computes so few more that it is still faster: measured
    on an H100, up to a seventh more, and up to a third more of heads of 256."""
    verdict = _supports_tiles(query)
    group = query.num_heads // query.num_kv_heads
    if not _fills(group, _LEAST_OF_LARGE if query.head_dim == _LARGE_HEAD else _LEAST_SHARE):
        found = f"up to {_SPECIALIZED_GROUP} per K/V head, at least 7/8 of a power of two, or 3/4 with heads of 256"
        verdict &= no("num_heads", wanted=group, found=found)
    return verdict


def supports_padded(query: AttentionQuery) -> Verdict:
    """The same with groups of which a tile computes up to a third more heads than there are."""
    verdict = _supports_tiles(query)
    group = query.num_heads // query.num_kv_heads
    if query.head_dim == _LARGE_HEAD or not _fills(group, _LEAST_OF_LARGE) or _fills(group, _LEAST_SHARE):
        found = f"up to {_SPECIALIZED_GROUP} per K/V head, from 3/4 to less than 7/8 of a power of two"
        verdict &= no("num_heads", wanted=group, found=found)
    return verdict


def _fills(group: int, share: float) -> bool:
    """Whether the heads of a group are at least a share of those that a tile computes."""
    return group <= _SPECIALIZED_GROUP and group >= share * rows_per_token(group)


def _supports_tiles(query: AttentionQuery) -> Verdict:
    verdict = supports_attention(query)
    if query.head_dim not in _SPECIALIZED_HEADS:
        verdict &= no("head_dim", wanted=query.head_dim, found=" or ".join(map(str, _SPECIALIZED_HEADS)))
    if query.cache_dtype != query.dtype:
        verdict &= no("cache_dtype", wanted=query.cache_dtype, found=f"the model's, {query.dtype}")
    # TMA swizzles eight rows at a time, and a tile of the largest heads has 64 keys.
    if query.block_size not in (8, 16, 32, 64):
        verdict &= no("block_size", wanted=query.block_size, found="8, 16, 32 or 64")
    if 0 < (query.sliding_window or 0) < _LEAST_WINDOW:
        verdict &= no("sliding_window", wanted=query.sliding_window, found=f"from {_LEAST_WINDOW} on, or none")
    return verdict


def supports_latent(query: AttentionQuery) -> Verdict:
    """Causal latent attention, with rows that fit in a program's registers and shared memory."""
    latent = query.latent_dim
    if latent is None:
        return no("latent_dim", wanted="keys and values", found="latent rows only")
    verdict = _cache_dtype(query)
    if not has_large_tiles(query.platform):
        verdict &= no("arch", wanted=query.platform.arch, found="GPUs with more registers for a row per head")
    if query.scale <= 0:
        verdict &= no("scale", wanted=query.scale, found="above 0 only")
    if query.num_kv_heads != 1:
        verdict &= no("num_kv_heads", wanted=query.num_kv_heads, found="1")
    if latent > _WIDEST_LATENT or query.head_dim - latent > _WIDEST_SHARED_KEY:
        found = f"up to {_WIDEST_LATENT} and {_WIDEST_SHARED_KEY}"
        verdict &= no("latent_dim", wanted=f"{latent} and {query.head_dim - latent}", found=found)
    return verdict


def supports_write(query: OpQuery) -> Verdict:
    """Ops that need the cache layout and metadata of this plugin's attention backend."""
    if query.attention in _ATTENTION:
        return OK
    return no("attention", wanted=query.attention, found=f"writes to the cache of {' and '.join(_ATTENTION)} only")


def supports_latent_op(query: OpQuery) -> Verdict:
    """The cache of :data:`_LATENT`, and key projections that a program multiplies by at once."""
    verdict = OK
    if query.attention != _LATENT:
        verdict &= no("attention", wanted=query.attention, found=f"the cache of {_LATENT} only")
    if query.facts.get("qk_nope_head_dim", 0) > _WIDEST_KEY:
        verdict &= no("qk_nope_head_dim", wanted=query.facts["qk_nope_head_dim"], found=f"up to {_WIDEST_KEY}")
    return verdict
