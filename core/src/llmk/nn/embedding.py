"""Token embeddings, and the LM head that computes logits; the two may share one weight."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from llmk.api import LooksUp, StoredTensor
from llmk.nn.build import Switch
from llmk.nn.layer import Layer, Parameter, stored_dtype
from llmk.nn.linear import check_shape, sharding_error, weight_tensors
from llmk.nn.shadow import Shadowed
from llmk.nn.tensor_file import same_content

if TYPE_CHECKING:
    from llmk.nn.build import Build, WeightKernel
    from llmk.nn.context import GivenEmbeddings

logger = logging.getLogger(__name__)


class Table:
    """The parameters of a matrix ``[vocab, hidden]`` with a row per token: an embedding's table, or a head's weight.
    Tensor-parallel ranks shard it by rows, in shards that are padded to equal size.

    Args:
        aliases: other names of the matrix in the checkpoint.
        weight_format: the format in which the checkpoint stores it.

    Attributes:
        kept: the rows of this rank.
    """

    def __init__(
        self,
        build: Build,
        prefix: str,
        vocab_size: int,
        hidden_size: int,
        *,
        aliases: Sequence[str] = (),
        weight_format: str = "plain",
    ) -> None:
        self._build = build
        self.prefix = prefix
        self.aliases = tuple(aliases)
        self._shape = (vocab_size, hidden_size)
        self.weight_format = weight_format
        self.kept, self._room = build.parallel.padded_share(vocab_size)
        self._named = {"weight": self._parameter("weight", (hidden_size,), aliases=dict.fromkeys(aliases, (0,)))}

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Of the layer that owns the matrix."""
        return tuple(self._named.values())

    @property
    def packed(self) -> bool:
        """Whether the checkpoint stores it in a format of quantized weights."""
        return self.weight_format != "plain"

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Replaces the parameters by those that the checkpoint stores, if the format is not plain."""
        if not self.packed:
            return
        quantization = self._build.quantization(self.weight_format)
        tensors = weight_tensors(self._build, quantization, self.prefix, stored.get(self.prefix, ()))
        check_shape(quantization, self.prefix, tensors, self._shape)
        if tensors:
            self._named = {
                name: self._parameter(name, tensor.shape[1:], tensor.shape[0] if tensor.shape else 1, tensor)
                for name, tensor in tensors.items()
            }

    def take(self) -> dict[str, Tensor]:
        """The parameters of the weight format."""
        tensors = {name: parameter.take() for name, parameter in self._named.items()}
        if not self.packed:
            return tensors
        rows = [self.kept.stop - self.kept.start]
        return self._build.quantization(self.weight_format).convert(self.prefix, tensors, rows)

    def vector(self, name: str) -> Parameter:
        """A parameter with a number per token, which is sharded like the rows."""
        return self._parameter(name, ())

    def _parameter(
        self, name: str, columns: Sequence[int], rows: int = 0, stored: StoredTensor | None = None, **options: Any
    ) -> Parameter:
        rows, whole = rows or self._shape[0], f"{self.prefix}.{name}"
        if rows == self._shape[0]:
            options |= {"kept_rows": [[self.kept]], "room": self._room}
        elif rows > 1 and self._build.parallel.tensor_size > 1:
            raise sharding_error(whole, self._build.parallel.tensor_size)
        dtype = None if stored is None else stored_dtype(stored)
        return Parameter(self._build, [whole], [rows], columns, dtype=dtype, **options)


class Embedding(Layer):
    """Embedding table. Tensor-parallel ranks shard it by vocabulary: each looks up the token ids of its shard, and the
    results are all-reduced. A tied head is sharded the same way, so it finds its rows here.

    Args:
        aliases: other names of the table in the checkpoint, such as a tied head's.
        scale: factor of the embeddings, applied by the op ``scaled_embedding``; ``None``: not scaled.
        scale_given: whether embeddings that are given get the factor too.

    Attributes:
        weight: the table ``[vocab, hidden]``; where it stays packed, what a tied head's kernel multiplies by.
    """

    weight: Tensor | LooksUp

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
        self._dtype = build.dtype
        self.table = Table(build, prefix, vocab_size, hidden_size, aliases=aliases)
        self._head_kernel: WeightKernel | None = None
        self.tied_head: LMHead | None = None
        super().__init__(build, self.table.parameters)

    def pack(self, kernel: WeightKernel) -> None:
        """Keeps the table in the format of a tied head's ``kernel``, and as that prepares it."""
        self._head_kernel, self.table.weight_format = kernel, kernel.weight_format

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """As the base class says."""
        self.table.discover(stored)
        self.parameters = self.table.parameters

    def finish(self) -> None:
        parameters = self.table.take()
        self.weight = self._head_kernel.prepare(parameters) if self._head_kernel else parameters["weight"]
        if self.tied_head:
            self.tied_head.share(self.weight)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Maps token ids, int64 ``[tokens]``, to embeddings ``[tokens, hidden]``."""
        kept = self.table.kept
        if self._parallel.tensor_size == 1:
            return self._look_up(token_ids)
        out_of_shard = (token_ids < kept.start) | (token_ids >= kept.stop)
        rows = self._look_up((token_ids - kept.start).masked_fill(out_of_shard, 0))
        return self._parallel.all_reduce(rows.masked_fill(out_of_shard[:, None], 0))

    def with_given(self, token_ids: Tensor, given: GivenEmbeddings) -> Tensor:
        """The same, with the ``given`` embeddings in their places."""
        found = self(token_ids.index_fill(0, given.index, 0))
        rows = given.rows.to(found.dtype)
        return found.index_copy(0, given.index, rows if self._given_scale is None else rows * self._given_scale)

    def _look_up(self, ids: Tensor) -> Tensor:
        if not self.table.packed:
            return self._op(ids, self.weight, *self._scale)
        rows = cast(LooksUp, self.weight).rows(ids, self._dtype)
        return self._op(torch.arange(len(ids), device=ids.device), rows, *self._scale) if self._scale else rows


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
        self._table: Table | None = None
        weight_format = self._kernel.weight_format
        self._own = partial(Table, build, prefix, vocab_size, hidden_size, weight_format=weight_format)
        self._bias: Parameter | None = self._own().vector("bias") if bias else None
        if tied_to and weight_format != "plain":
            tied_to.pack(self._kernel)
        if tied_to and tied_to.here and build.here:
            tied_to.tied_head = self
            super().__init__(build, self._parameters())
            return
        if tied_to:
            shared, shape = tied_to.table, (vocab_size, hidden_size)
            options: dict[str, Any] = {"aliases": shared.aliases, "weight_format": weight_format}
            self._table = Table(build, shared.prefix, *shape, **options)
        else:
            self._table = self._own()
        super().__init__(build, self._parameters())

    def _parameters(self) -> tuple[Parameter, ...]:
        own = self._table.parameters if self._table else ()
        return (*own, self._bias) if self._bias else own

    def discover(self, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Unties the head if ``config.json`` ties it to the embedding, but the files store a different tensor for each,
        as ``transformers`` does."""
        if self._tied_to is not None and self._kernel.weight_format == "plain":
            self._untie(self._tied_to, stored)
        if self._table is not None:
            self._table.discover(stored)
        self.parameters = self._parameters()

    def _untie(self, tied_to: Embedding, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        own = self._own()
        (weight,), (shared,) = own.parameters, tied_to.parameters
        names = {*weight.targets, *shared.targets}
        found = {
            tensor.name: tensor
            for prefix in {name.rpartition(".")[0] for name in names}
            for tensor in stored.get(prefix, ())
            if tensor.name in names
        }
        head = found.pop(weight.names[0], None)
        if head is None or not found or any(same_content(head, other) for other in found.values()):
            return
        logger.warning(
            "config.json says tie_word_embeddings, but %s differs from %s, so the two are not tied",
            *(head.name, ", ".join(found)),
        )
        shared.targets.pop(head.name, None)
        tied_to.tied_head = None
        self._table = own

    def finish(self) -> None:
        if self._table is not None:
            self.weight = self._kernel.prepare(self._table.take())
        self.bias = self._bias.take() if self._bias else None

    def share(self, weight: Any) -> None:
        """Takes over the table of the embedding that the head is tied to; ``weight`` itself is not changed."""
        packed = self._kernel.weight_format != "plain"
        self.weight = weight if packed else self._kernel.prepare({"weight": weight})

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
