"""Embeddings that a step has in place of looked-up ones."""

from __future__ import annotations

import pytest
import torch
from plans import build, from_reference
from torch import Tensor

from llmk.api import Choice
from llmk.nn import Embedding, GivenEmbeddings
from llmk.nn.parallel import Parallel

VOCAB, SIZE = 7, 6


class Rank(Parallel):
    """A rank alone: what others would add is zero."""

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor


def layer(parallel: Parallel | None = None, scale: float | None = None, scale_given: bool = False) -> Embedding:
    lookup = Choice("op", "embedding", "embedding", None, (from_reference("embedding:embedding"),), (), ())
    scaled = from_reference("embedding:make_scaled_embedding", parts=("embedding",))
    chosen = lookup if scale is None else Choice("op", "embedding", "scaled_embedding", None, (scaled,), (), (lookup,))
    made = Embedding(build(chosen, parallel=parallel), "embed", VOCAB, SIZE, scale=scale, scale_given=scale_given)
    (parameter,) = made.parameters
    table = torch.arange(VOCAB * SIZE).view(VOCAB, SIZE).float()
    for shards in parameter.targets.values():
        parameter.load(shards, table)
    made.finish()
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("scale", "scale_given"), [(None, False), (3.0, False), (3.0, True)])
def test_given_rows_take_the_places_of_looked_up_ones(
    scale: float | None, scale_given: bool, dtype: torch.dtype
) -> None:
    """As Gemma's, they are not scaled; as Granite's, they are."""
    embed, rows = layer(scale=scale, scale_given=scale_given), torch.randn(2, SIZE).to(dtype)
    ids = torch.tensor([3, VOCAB, 1, VOCAB, 6])
    found = embed.with_given(ids, GivenEmbeddings(torch.tensor([1, 3]), rows))
    assert torch.equal(found[[0, 2, 4]], embed(torch.tensor([3, 1, 6])))
    assert torch.equal(found[[1, 3]], rows.float() * (3.0 if scale_given else 1.0))
    assert ids.tolist() == [3, VOCAB, 1, VOCAB, 6]


def test_each_rank_has_them() -> None:
    rows = torch.randn(2, SIZE)
    given = GivenEmbeddings(torch.tensor([0, 2]), rows)
    ids = torch.tensor([VOCAB, 5, VOCAB, 1])
    parts = [layer(Rank(rank, 2)).with_given(ids, given) for rank in range(2)]
    assert all(torch.equal(part[[0, 2]], rows) for part in parts)
    assert torch.equal(parts[0][[1, 3]] + parts[1][[1, 3]], layer()(torch.tensor([5, 1])))
