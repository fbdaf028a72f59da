"""Token embeddings, and the head that turns hidden states into logits; one tensor may serve both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from llmk.nn.build import Switch
from llmk.nn.layer import Layer, Parameter
from llmk.nn.shadow import Shadowed
from llmk.nn.tensor_file import StoredTensor, same_content

if TYPE_CHECKING:
    from llmk.nn.build import Build

logger = logging.getLogger(__name__)


class Embedding(Layer):
    """A table of rows by token id, which the processes of a stage cut between them: each looks up what it has, and the
    results are added up. So a tied head, which is cut likewise, finds its rows here.

    Args:
        also_named: the checkpoint's other names for it, such as a tied head's.
        scale: multiplies the rows, by the op ``scaled_embedding``; ``None``: they stay as they are.
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
        also_named: Sequence[str] = (),
        scale: float | None = None,
    ) -> None:
        self._op: Callable[..., Tensor] = build.kernel("op", site)
        self._scale = () if scale is None else (scale,)
        self._parallel = build.parallel
        self._kept, room = build.parallel.padded_share(vocab_size)
        self._weight = Parameter(
            build,
            [f"{prefix}.weight"],
            [vocab_size],
            (hidden_size,),
            others=dict.fromkeys(also_named, (0,)),
            kept_rows=[[self._kept]],
            room=room,
        )
        self.tied_head: LMHead | None = None
        super().__init__(build, [self._weight])

    def finish(self) -> None:
        self.weight = self._weight.take()
        if self.tied_head:
            self.tied_head.adopt(self.weight)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """int64 ``[tokens]`` to ``[tokens, hidden]``."""
        if self._parallel.tensor_size == 1:
            return self._op(token_ids, self.weight, *self._scale)
        elsewhere = (token_ids < self._kept.start) | (token_ids >= self._kept.stop)
        rows = self._op((token_ids - self._kept.start).masked_fill(elsewhere, 0), self.weight, *self._scale)
        return self._parallel.all_reduce(rows.masked_fill(elsewhere[:, None], 0))


class LMHead(Layer):
    """Logits of hidden states. Its row count is not the step's token count, so it flips its own switch, once a call.
    The processes of a stage cut the vocabulary between them, and gather the logits.

    Args:
        tied_to: the embedding whose table this head multiplies by; it then owns no parameter, unless the table is with
            another stage, or the checkpoint has another table for it.
        softcap: bounds the logits, by the op ``softcap``; ``None``: they stay as they are.
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
        softcap: float | None = None,
    ) -> None:
        self._cap = None if softcap is None else partial(build.kernel("op", "softcap"), cap=softcap)
        self._kernel = build.linear(site, rows=True)
        self._switch = self._kernel.run if isinstance(self._kernel.run, (Switch, Shadowed)) else None
        self._parallel = build.parallel
        self._vocab_size = vocab_size
        self._tied_to = tied_to
        kept, room = build.parallel.padded_share(vocab_size)
        cut: dict[str, Any] = {"kept_rows": [[kept]], "room": room}
        self._own = partial(Parameter, build, [f"{prefix}.weight"], [vocab_size], (hidden_size,), **cut)
        if tied_to and tied_to.here and build.here:
            tied_to.tied_head = self
            super().__init__(build, [])
            return
        table = tied_to.parameters[0] if tied_to else None
        also = (
            Parameter(build, table.names, [vocab_size], (hidden_size,), others=table.targets, **cut) if table else None
        )
        parameters = [also or self._own()]
        if bias:
            parameters.append(Parameter(build, [f"{prefix}.bias"], [vocab_size], **cut))
        super().__init__(build, parameters)

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Where ``config.json`` ties the head to the embedding, and the files hold another table for each, takes what
        they hold: as ``transformers`` does."""
        if self._tied_to is None:
            return
        own, (table,) = self._own(), self._tied_to.parameters
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
            "config.json says tie_word_embeddings, but %s is another tensor than %s, so the two are not tied",
            *(head.name, ", ".join(found)),
        )
        table.targets.pop(head.name, None)
        self._tied_to.tied_head = None
        self.parameters = (own, *self.parameters[1:])

    def finish(self) -> None:
        weight, *bias = self.parameters
        self.adopt(weight.take())
        self.bias = bias[0].take() if bias else None

    def adopt(self, weight: Tensor) -> None:
        """Prepares ``weight`` (``[vocab, hidden]``) for the kernel; the tensor itself stays as it is."""
        self.weight = self._kernel.prepare({"weight": weight})

    def __call__(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden]`` to ``[rows, vocab]``: float32 where the logits are capped, else as the kernel gives
        them."""
        if self._switch:
            self._switch.select(hidden.shape[0])
        logits = self._kernel.run(hidden, self.weight, self.bias)
        if self._cap is not None:
            logits = self._cap(logits.float())
        if self._parallel.tensor_size == 1:
            return logits
        return self._parallel.all_gather(logits)[:, : self._vocab_size]
