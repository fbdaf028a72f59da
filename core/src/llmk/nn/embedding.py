"""Token embeddings, and the LM head that computes logits; the two may share one weight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.api import StoredTensor
from llmk.nn.build import Switch
from llmk.nn.layer import Layer, Parameter
from llmk.nn.shadow import Shadowed
from llmk.nn.tensor_file import same_content

if TYPE_CHECKING:
    from llmk.nn.build import Build
    from llmk.nn.context import GivenEmbeddings

logger = logging.getLogger(__name__)


class Embedding(Layer):
    """Embedding table. Tensor-parallel ranks shard it by vocabulary: each looks up the token ids of its shard, and the
    results are all-reduced. A tied head is sharded the same way, so it finds its rows here.

    Args:
        aliases: other names of the table in the checkpoint, such as a tied head's.
        scale: factor of the embeddings, applied by the op ``scaled_embedding``; ``None``: not scaled.
        scale_given: whether embeddings that are given get the factor too.
    """

    weight: Tensor

    def __init__(
        self,
        build: Build,
        prefix: str,
        vocab_size: int,
        hidden_size: int,
        *,
        site: str = "embedding",
        aliases: Sequence[str] = (),
        scale: float | None = None,
        scale_given: bool = False,
    ) -> None:
        self._op: Callable[..., Tensor] = build.kernel("op", site)
        self._scale = () if scale is None else (scale,)
        self._given_scale = scale if scale_given else None
        self._parallel = build.parallel
        self._kept, room = build.parallel.padded_share(vocab_size)
        self._weight = Parameter(
            build,
            [f"{prefix}.weight"],
            [vocab_size],
            (hidden_size,),
            aliases=dict.fromkeys(aliases, (0,)),
            kept_rows=[[self._kept]],
            room=room,
        )
        self.tied_head: LMHead | None = None
        super().__init__(build, [self._weight])

    def finish(self) -> None:
        self.weight = self._weight.take()
        if self.tied_head:
            self.tied_head.set_weight(self.weight)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Maps token ids, int64 ``[tokens]``, to embeddings ``[tokens, hidden]``."""
        if self._parallel.tensor_size == 1:
            return self._op(token_ids, self.weight, *self._scale)
        out_of_shard = (token_ids < self._kept.start) | (token_ids >= self._kept.stop)
        rows = self._op((token_ids - self._kept.start).masked_fill(out_of_shard, 0), self.weight, *self._scale)
        return self._parallel.all_reduce(rows.masked_fill(out_of_shard[:, None], 0))

    def with_given(self, token_ids: Tensor, given: GivenEmbeddings) -> Tensor:
        """The same, with the ``given`` embeddings in their places."""
        found = self(token_ids.index_fill(0, given.index, 0))
        rows = given.rows.to(found.dtype)
        return found.index_copy(0, given.index, rows if self._given_scale is None else rows * self._given_scale)


class LMHead(Layer):
    """Computes logits from hidden states. Its row count is not the step's token count, so it switches its own kernel at
    each call. Tensor-parallel ranks shard the vocabulary and all-gather the logits.

    Args:
        tied_to: the embedding whose table is this head's weight. The head then owns no parameter, unless the table
            belongs to another pipeline stage, or the checkpoint stores a different table for the head.
        scale: factor of the logits, before a soft cap (Granite, Cohere).
        softcap: soft cap of the logits, applied by the op at ``softcap_site``; ``None``: no cap.
    """

    weight: Any
    bias: Tensor | None = None

    def __init__(
        self,
        build: Build,
        prefix: str,
        hidden_size: int,
        vocab_size: int,
        *,
        site: str = "lm_head",
        bias: bool = False,
        tied_to: Embedding | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
        softcap_site: str = "softcap",
    ) -> None:
        self._scale = scale
        self._cap = None if softcap is None else partial(build.kernel("op", softcap_site), cap=softcap)
        self._kernel = build.linear(site, own_switch=True)
        self._switch = self._kernel.run if isinstance(self._kernel.run, (Switch, Shadowed)) else None
        self._parallel = build.parallel
        self._vocab_size = vocab_size
        self._tied_to = tied_to
        kept, room = build.parallel.padded_share(vocab_size)
        sharding: dict[str, Any] = {"kept_rows": [[kept]], "room": room}
        self._own_parameter = partial(Parameter, build, [f"{prefix}.weight"], [vocab_size], (hidden_size,), **sharding)
        if tied_to and tied_to.here and build.here:
            tied_to.tied_head = self
            super().__init__(build, [])
            return
        table = tied_to.parameters[0] if tied_to else None
        tied_parameter = (
            Parameter(build, table.names, [vocab_size], (hidden_size,), aliases=table.targets, **sharding)
            if table
            else None
        )
        parameters = [tied_parameter or self._own_parameter()]
        if bias:
            parameters.append(Parameter(build, [f"{prefix}.bias"], [vocab_size], **sharding))
        super().__init__(build, parameters)

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Unties the head if ``config.json`` ties it to the embedding, but the files store a different tensor for each,
        as ``transformers`` does."""
        if self._tied_to is None:
            return
        own, (table,) = self._own_parameter(), self._tied_to.parameters
        names = {*own.targets, *table.targets}
        found = {
            tensor.name: tensor
            for prefix in {name.rpartition(".")[0] for name in names}
            for tensor in stored.get(prefix, ())
            if tensor.name in names
        }
        head = found.pop(own.names[0], None)
        if head is None or not found or any(same_content(head, other) for other in found.values()):
            return
        logger.warning(
            "config.json says tie_word_embeddings, but %s differs from %s, so the two are not tied",
            *(head.name, ", ".join(found)),
        )
        table.targets.pop(head.name, None)
        self._tied_to.tied_head = None
        self.parameters = (own, *self.parameters[1:])

    def finish(self) -> None:
        weight, *bias = self.parameters
        self.set_weight(weight.take())
        self.bias = bias[0].take() if bias else None

    def set_weight(self, weight: Tensor) -> None:
        """Prepares ``weight`` (``[vocab, hidden]``) for the kernel; the tensor itself is not changed."""
        self.weight = self._kernel.prepare({"weight": weight})

    def __call__(self, hidden: Tensor) -> Tensor:
        """Maps ``[rows, hidden]`` to logits ``[rows, vocab]``: float32 if they are capped, else in the kernel's output
        dtype."""
        if self._switch:
            self._switch.select(hidden.shape[0])
        logits = self._kernel.run(hidden, self.weight, self.bias)
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._cap is not None:
            logits = self._cap(logits.float())
        if self._parallel.tensor_size == 1:
            return logits
        return self._parallel.all_gather(logits)[:, : self._vocab_size]
