"""Manifold-constrained hyper-connections (mHC, arXiv:2512.24880): a model has several residual streams instead of one.
Between two blocks, the streams of a token are mixed by a doubly stochastic matrix of its own, each gets a share of the
block's output, and the next block reads a weighted sum of them."""

from __future__ import annotations

import torch
from torch import Tensor


def hyper_connect(streams: Tensor, out: Tensor, mix: Tensor, post: Tensor, pre: Tensor, iterations: int) -> Tensor:
    """What is right: the streams become ``M @ streams + post * out``, in place, and the next block's input is returned.

    ``M`` is :func:`sinkhorn` of ``mix``; a stream's share of the output is twice the sigmoid of ``post``, and its
    weight in the input the sigmoid of ``pre``. All arithmetic is in float32; the input is read from the streams as they
    are stored.

    Args:
        streams: ``[tokens, num_streams, size]``, in the engine's dtype or float32; changed.
        out: ``[tokens, size]``, what the last block returned.
        mix: float32 ``[tokens, num_streams, num_streams]``, logits of the matrix; row ``i`` makes stream ``i``.
        post, pre: float32 ``[tokens, num_streams]``.
        iterations: how often columns and rows are normalized.

    Returns:
        ``[tokens, size]`` in ``out``'s dtype.
    """
    matrix = sinkhorn(mix.float(), iterations)
    share = 2 * torch.sigmoid(post.float())
    total = share[..., None] * out.float()[:, None]
    for source in range(streams.shape[1]):
        total = total + matrix[:, :, source, None] * streams[:, source, None].float()
    streams.copy_(total)
    weight = torch.sigmoid(pre.float())
    return (weight[..., None] * streams.float()).sum(dim=1).to(out.dtype)


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Matrices ``[..., n, n]`` whose rows sum to 1, and whose columns do more nearly with each iteration: ``exp`` of
    the logits, of which first all columns and then all rows are divided by their sums, ``iterations`` times (Sinkhorn
    and Knopp, 1967). It works on logarithms, so that logits may lie far apart."""
    for _ in range(iterations):
        logits = logits - logits.logsumexp(dim=-2, keepdim=True)
        logits = logits - logits.logsumexp(dim=-1, keepdim=True)
    return logits.exp()


def hyper_connect_planes(
    streams: Tensor, out: Tensor, mix: Tensor, post: Tensor, pre: Tensor, iterations: int
) -> Tensor:
    """:func:`hyper_connect` for hundreds of tokens. Matrices are tiny, so that reductions over a dimension of theirs
    would be slow: ``planes[i, j]`` has that entry of all tokens side by side, and sums run over whole planes. Streams
    are mixed, and the output is added, by one batched GEMM; a second one reads the input."""
    planes = mix.float().permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    for _ in range(iterations):
        planes -= _log_sum(planes, 0)
        planes -= _log_sum(planes, 1)
    factors = torch.cat((planes.exp_().permute(2, 0, 1), 2 * torch.sigmoid(post.float())[..., None]), dim=-1)
    inputs = torch.cat((streams.float(), out.float()[:, None]), dim=1)
    streams.copy_(torch.bmm(factors, inputs))
    weight = torch.sigmoid(pre.float())
    return torch.bmm(weight[:, None], streams.float()).squeeze(1).to(out.dtype)


def _log_sum(planes: Tensor, dim: int) -> Tensor:
    """The logarithm of the sum of ``exp(planes)`` over one of the two dimensions of matrices, kept with size 1."""
    most = planes.amax(dim=dim, keepdim=True)
    return (planes - most).exp_().sum(dim=dim, keepdim=True).log_().add_(most)
