"""The model of any tree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from llmk import tree
from llmk.api import CacheSpec, Checkpoint, PluginError
from llmk.nn.build import Build
from llmk.nn.builder import Builder
from llmk.nn.context import StepContext
from llmk.nn.embedding import Embedding, LMHead


class Layer:
    """One layer: its sublayers, one after the other."""

    def __init__(self, sublayers: list[Any]) -> None:
        self._sublayers = sublayers

    def __call__(self, carried: Any, step: StepContext) -> Any:
        """Maps what the previous layer passes on to what this one does."""
        for sublayer in self._sublayers:
            carried = sublayer(*carried, step)
        return carried


class OutputRows:
    """Leaves, of a step's hidden states and residual, what is at its output rows. What comes after it computes each
    token for itself."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor | None]:
        """From ``[tokens, hidden]`` to ``[rows, hidden]``, by kernels for so many from here on."""
        rows, build = step.output_rows, self._build
        if rows is None:
            return x, residual
        build.select(rows.shape[0])
        if build.adapter_index is not None:
            build.adapter_index = build.adapter_index[rows]
        return x[rows], None if residual is None else residual[rows]


class Ahead:
    """A head that predicts the token after the next."""

    def __init__(self, builder: Builder, spec: tree.Ahead, program: tree.Program, embed: Embedding) -> None:
        self._embed, self._project = embed, builder.linear(spec.project)
        self._embed_norm, self._hidden_norm = builder.norm(spec.embed_norm), builder.norm(spec.hidden_norm)
        self._layer, self._norm = (
            Layer([builder.sublayer(part) for part in program.layers[0]]),
            builder.joint(program.end),
        )

    def __call__(self, hidden: Tensor, following: Tensor, step: StepContext) -> Tensor:
        """Final hidden states, ``[tokens, hidden]``, for the model's ``logits``: by those of the model, or of the head
        before, and the ids of the tokens that follow each, int64 ``[tokens]``. Its layer has a cache of its own."""
        embedded = self._embed_norm(self._embed(following))
        x = self._project(torch.cat((embedded, self._hidden_norm(hidden)), dim=1))
        return self._norm(*self._layer((x, None), step))[0]


class TreeModel:
    """Follows ``llmk.nn.Model``: the modules of a lowered tree, or of this process's pipeline stage.

    Attributes:
        ahead: the heads that predict further tokens, if a speculator drafts by them.
    """

    def __init__(self, build: Build, checkpoint: Checkpoint, program: tree.Program) -> None:
        model = program.model
        self.build = build
        self.program = program
        self.ignored_weights = model.ignored
        builder = Builder(build, tree.Sites(program.leaves(), build.plan.dtype))
        with build.stage(build.parallel.is_first):
            self.embed = self._embedding(builder, model.embed)
            self._embed_norm = builder.norm(model.embed_norm) if model.embed_norm else None
        self.stream = builder.stream(model.stream) if model.stream else None
        self._reads_tokens = model.stream is not None and model.stream.reads_tokens
        hidden = tree.Carried(model.embed.size)
        residual = tree.Carried(model.embed.size, model.residual_dtype)
        carried = model.stream.carried if model.stream else (hidden, residual)
        self._carried = [(each.size, getattr(torch, each.dtype) if each.dtype else build.dtype) for each in carried]

        last = len(program.layers) - 1
        self._output_rows = OutputRows(build)

        def layer(index: int) -> Layer:
            builder.layer = index
            parts = [builder.sublayer(part) for part in program.layers[index]]
            if index == last and model.stream is None:
                parts.insert(tree.token_wise_from(program.layers[index]), self._output_rows)
            return Layer(parts)

        self.layers = build.stage_layers(len(program.layers), layer)
        with build.stage(build.parallel.is_last):
            self.norm = builder.joint(program.end)
            self.head = self._lm_head(builder, model.head)
        self.ahead = self._heads_ahead(builder, program)
        self.weights = build.layers
        self._caches = builder.caches

    def forward(self, token_ids: Tensor, step: StepContext) -> Tensor:
        parallel, stream = self.build.parallel, self.stream
        carried: Any
        if parallel.is_first:
            x = self.embed(token_ids) if step.given is None else self.embed.with_given(token_ids, step.given)
            if self._embed_norm is not None:
                x = self._embed_norm(x)
            carried = (x, None) if stream is None else stream.start(x, *([token_ids] if self._reads_tokens else []))
        else:
            tensors = [((token_ids.shape[0], size), dtype) for size, dtype in self._carried]
            carried = parallel.receive_from_previous_stage(tensors, self.build.device)
        for layer in self.layers:
            carried = layer(carried, step)
        if not parallel.is_last:
            parallel.send_to_next_stage(*(x.to(dtype) for x, (_, dtype) in zip(carried, self._carried, strict=True)))
            sent: Tensor = carried[0]
            return sent
        if stream is not None:
            hidden, _ = self._output_rows(stream.end(*carried), None, step)
            return self.norm(hidden, None)[0]
        return self.norm(*carried)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)

    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        return self._caches

    def _heads_ahead(self, builder: Builder, program: tree.Program) -> list[Ahead]:
        if program.ahead and self.build.parallel.num_stages > 1:
            raise PluginError(
                "heads that predict further tokens need the embeddings, which another pipeline stage has",
                hint="name another speculator (speculation.use), or set parallel.tensor in place of parallel.pipeline",
            )
        heads = []
        for number, each in enumerate(program.ahead):
            builder.layer = len(program.layers) + number
            heads.append(Ahead(builder, program.model.ahead[number], each, self.embed))
        return heads

    def _embedding(self, builder: Builder, spec: tree.Embedding) -> Embedding:
        options: dict[str, Any] = {"site": builder.op(spec), "aliases": spec.aliases, "scale": spec.scale}
        options["scale_given"] = spec.scale_given
        return Embedding(self.build, spec.at, spec.vocab_size, spec.size, **options)

    def _lm_head(self, builder: Builder, spec: tree.Head) -> LMHead:
        tied_to = self.embed if spec.tied else None
        options: dict[str, Any] = {"bias": spec.bias, "tied_to": tied_to, "softcap": spec.softcap, "scale": spec.scale}
        options["site"] = builder.site(spec)
        if spec.softcap is not None:
            options["softcap_site"] = builder.op(spec)
        return LMHead(self.build, spec.at, spec.size, spec.vocab_size, **options)
