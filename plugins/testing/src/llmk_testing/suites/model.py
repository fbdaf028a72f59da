"""The suite of model families: each example checkpoint is compared with its oracle, whole, chunked and sharded, and
loading errors are checked.

A family is tested as it would be served: selected by its id, on the bench's platform, with the kernels that are chosen
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from llmk.api import ModelSpec
from llmk.kernel.loader import load_object
from llmk.nn.parallel import Parallel
from llmk.planning.boot import Boot
from llmk_testing.bench import Bench
from llmk_testing.booting import boot_on, on_ranks
from llmk_testing.case import Case, Skip
from llmk_testing.comparing import check_logits, relative_error, typical_error
from llmk_testing.files import rounded_to
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import ModelExample
from llmk_testing.suites import model_files, model_forms, model_options, model_texts

_PROMPT, _DECODED = 40, 8
_LARGEST_CHUNK = 17
_BLOCKS = 400
_TEXTS = 6
"""Texts for models with experts, in bfloat16."""


def cases(spec: ModelSpec, bench: Bench) -> Iterator[Case]:
    """The cases of every example; a spec without examples has one skipped case."""
    if not spec.examples:
        yield Case(spec.id, "model", "has examples", _no_examples)
        return
    for number, example in enumerate(load_object(spec.examples, plugin=spec.id)):
        trial = Trial(spec, bench, example)
        checks: dict[str, Callable[[], str | None]] = {
            "logits are the oracle's": trial.whole,
            "chunked prefill with other requests equals whole prefill": trial.chunks,
            "decode equals prefill and the oracle": trial.one_by_one,
            "concurrent requests don't affect each other": trial.together,
            "rows that are not wanted may be left out": trial.last_rows,
            "embeddings take the place of tokens, where that is claimed": trial.embeddings,
            "results don't depend on the batch, where that is claimed": trial.deterministic,
            "bfloat16 is as exact as the oracle's": trial.bfloat16,
            "facts are what is built": trial.facts,
            "two tensor parallel ranks are one": partial(trial.spread, 2, 1),
            "two stages are one": partial(trial.spread, 1, 2),
            "four tensor parallel ranks are one": partial(trial.spread, 4, 1),
            **model_files.checks(spec, bench, example, trial.checkpoint, trial.harness),
            **model_texts.checks(spec, bench, example, trial.checkpoint, trial.harness),
            **model_forms.checks(spec, example, trial.checkpoint),
        }
        if number == 0 or bench.thorough:
            checks["options of the config, each by itself, are the oracle's"] = partial(
                model_options.check_options, spec, bench, example, trial.checkpoint, trial.harness
            )
        for name, run in checks.items():
            yield Case(spec.id, "model", f"{example.name}: {name}", run)


def _no_examples() -> str:
    raise Skip("ModelSpec.examples names no example (llmk_testing.model_example.ModelExample)")


class Trial:
    """One example of one family. Objects that cases share are created when the first one needs them."""

    def __init__(self, spec: ModelSpec, bench: Bench, example: ModelExample) -> None:
        self._spec, self._bench, self._example = spec, bench, example
        self._seed = f"seed {bench.seed}"

    @cached_property
    def folder(self) -> Path:
        """The checkpoint's folder, which exists as long as the trial."""
        self._directory = TemporaryDirectory(prefix="llmk-")
        folder = Path(self._directory.name) / "checkpoint"
        folder.mkdir()
        self._example.write(folder)
        return folder

    def checkpoint(self) -> Path:
        """The checkpoint."""
        return self.folder

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that select the family."""
        return {"select.model.use": self._spec.id}

    def harness(self, folder: Path | None = None, /, **settings: Any) -> ModelHarness:
        """A loaded model with caches."""
        return ModelHarness(
            boot_on(self._bench, folder or self.folder, **self.settings, **settings),
            num_blocks=_BLOCKS,
            seed=self._bench.seed,
        )

    @cached_property
    def model(self) -> ModelHarness:
        """The model that cases share; they use different requests."""
        return self.harness()

    @cached_property
    def prompt(self) -> list[int]:
        """Random tokens, with the first and the last of the vocabulary among them."""
        tokens = self._tokens(_PROMPT, "prompt")
        tokens[2], tokens[7] = self.model.boot.facts.vocab_size - 1, 0
        return tokens

    @cached_property
    def expected(self) -> Tensor:
        """The oracle's logits of the prompt."""
        return self._example.logits(self.folder, self.prompt, torch.float32)

    def whole(self) -> str:
        (found,) = self.model.step([("whole", self.prompt)])
        return self._check(found, self.expected, "a prompt of 40 tokens in one step")

    def chunks(self) -> str:
        sizes = [_LARGEST_CHUNK, 1, 1, 5, _PROMPT - _LARGEST_CHUNK - 7]
        found = _in_chunks(self.model, "chunks", self.prompt, sizes)
        return self._check(found, self.expected, f"a prompt in steps of {sizes} tokens with another request")

    def one_by_one(self) -> str:
        tokens, rows = self.prompt[:9], []
        step = self.model.step([("one by one", tokens)])[0]
        for _ in range(_DECODED):
            rows.append(step[-1])
            tokens = [*tokens, int(step[-1].argmax())]
            (step,) = self.model.step([("one by one", tokens[-1:])])
        expected = self._example.logits(self.folder, tokens[:-1], torch.float32)[-_DECODED:]
        remark = self._check(torch.stack(rows), expected, f"{_DECODED} tokens after a prompt of 9, one by one")
        greedy = expected.argmax(dim=-1).tolist()
        assert tokens[9:] == greedy, f"greedy tokens {tokens[9:]}, the oracle's are {greedy} ({self._seed})"
        return remark

    def together(self) -> str:
        """Requests of several lengths, which start together and then decode together."""
        texts = {f"together {number}": self._tokens(4 + 7 * number, number) for number in range(4)}
        logits = dict(zip(texts, self.model.step([(name, text[:-2]) for name, text in texts.items()]), strict=True))
        for at in (-2, -1):
            order = list(reversed(texts)) if at == -1 else list(texts)
            for name, row in zip(order, self.model.step([(name, [texts[name][at]]) for name in order]), strict=True):
                logits[name] = torch.cat((logits[name], row))
        for name, text in texts.items():
            (alone,) = self.model.step([(f"{name} alone", text)])
            self._check(logits[name], alone, f"a request of {len(text)} tokens among four, against itself alone")
        return f"{len(texts)} requests"

    def last_rows(self) -> str:
        """Steps with some rows of a long prompt, of a chunk whose rows are not used, and of requests that decode."""
        texts = {f"last {number}": self._tokens(3 + 11 * number, "last", number) for number in range(3)}
        whole = {f"{name} whole": text for name, text in texts.items()}
        for split in (slice(None, -2), slice(-2, -1), slice(-1, None)):
            expected = self.model.step([(name, text[split]) for name, text in whole.items()])
            found = self.model.step([(name, text[split]) for name, text in texts.items()], last_only=True)
            for name, row, rows in zip(texts, found, expected, strict=True):
                self._check(row, rows[-1:], f"the last row of {name}, against that of all rows")
        return f"{len(texts)} requests"

    def embeddings(self) -> str:
        """Token ids mean nothing where embeddings are given; before and after them, tokens are looked up. Whether
        they get the factors that tokens get is the oracle's to say."""
        facts, model = self.model.boot.facts, self.model
        if not facts.takes_embeddings:
            raise Skip("ModelFacts.takes_embeddings is not claimed")
        shape = (_LARGEST_CHUNK, facts.hidden_size)
        rows = torch.randn(shape, generator=self._bench.random(self._example.name, "embeddings"))
        found = []
        for name, ids in (("embedded", [facts.vocab_size] * len(rows)), ("embedded again", self.prompt[: len(rows)])):
            model.step([(name, self.prompt[:3])])
            whole, other = model.step([(name, ids), (f"{name} other", self.prompt)], {name: rows})
            self._check(other, self.expected, "a prompt of tokens in a step with one of embeddings")
            found.append(torch.cat((whole, *model.step([(name, self.prompt[-2:])]))))
        model.step([("embedded never", self.prompt[:3])])
        (plain,) = model.step([("embedded never", self.prompt[: len(rows)])])
        assert relative_error(found[0][: len(rows)], plain) > 0.01, f"embeddings make no difference ({self._seed})"
        remark = self._check(found[1], found[0], "given embeddings, with other token ids in their places")
        if self._example.embedded is not None:
            (alone,) = model.step([("embedded alone", [0] * len(rows))], {"embedded alone": rows})
            remark = self._check(alone, self._example.embedded(self.folder, rows), "a prompt of embeddings alone")
        return remark

    def deterministic(self) -> str:
        if not self._spec.deterministic:
            raise Skip("ModelSpec.deterministic is not claimed")
        model = self.harness(self.folder, **{"engine.deterministic": True})
        (alone,) = model.step([("alone", self.prompt)])
        found = _in_chunks(model, "chunks", self.prompt, [_LARGEST_CHUNK, 1, _PROMPT - _LARGEST_CHUNK - 1])
        (last,) = model.step([("alone again", self.prompt)], last_only=True)
        assert (last == alone[-1:]).all(), f"the last row differs where no others are computed ({self._seed})"
        different = (found != alone).any(dim=-1).nonzero().flatten().tolist()
        assert not different, (
            f"tokens {different[:8]} differ bit by bit in other steps, by {relative_error(found, alone):.1e}; "
            f"ModelSpec.deterministic says that they don't ({self._seed})"
        )
        return self._check(alone, self.expected, "the deterministic kernels")

    def bfloat16(self) -> str:
        """Both round after every operator. The model's error against exact logits of the rounded weights must not be
        much larger than the oracle's."""
        if "bfloat16" not in self._bench.facts.dtypes and self._bench.facts.dtypes != ("float32",):
            raise Skip(f"{self._bench.facts.label} has no bfloat16")
        folder = self.folder.with_name("bfloat16")
        if not folder.exists():
            rounded_to(self.folder, folder, torch.bfloat16)
        model = self.harness(folder, **{"model.dtype": "bfloat16"})
        # Tokens that rounding routes to other experts say nothing about the arithmetic; they differ from text to text.
        texts = [self._tokens(_PROMPT, "bfloat16", number) for number in range(_TEXTS if model.boot.facts.moe else 1)]
        exact, rounded, found = [], [], []
        for number, text in enumerate(texts):
            exact.append(self._example.logits(folder, text, torch.float32))
            rounded.append(self._example.logits(folder, text, torch.bfloat16))
            found.append(_in_chunks(model, f"chunks {number}", text, [_LARGEST_CHUNK, 1, 22]).cpu())
        theirs, ours = (typical_error(torch.cat(each), torch.cat(exact)) for each in (rounded, found))
        allowed = self._example.bfloat16_margin * theirs
        assert ours <= allowed, (
            f"in bfloat16 {ours:.1e} from the exact logits, the oracle {theirs:.1e}; allowed is"
            f" {self._example.bfloat16_margin} times that ({self._seed})"
        )
        return f"{ours:.1e}, the oracle {theirs:.1e}"

    def facts(self) -> str:
        """Checks layers and their caches, the sizes of the vocabulary and of hidden states, the dtype, and the number
        of parameters."""
        facts, model = self.model.boot.facts, self.model.model
        hidden = self.model.hidden([("hidden", self.prompt[:3])]).shape[-1]
        assert facts.hidden_size == hidden, f"hidden_size = {facts.hidden_size} in the facts, states have {hidden}"
        config = self.model.boot.checkpoint.config
        stated = str(config.get("dtype") or config.get("torch_dtype") or facts.dtype).removeprefix("torch.")
        assert facts.dtype == stated, f"dtype = {facts.dtype!r} in the facts, the config says {stated!r}"
        kept = [site for _, site, _ in model.cache_specs()]
        counts = {site.site: site.num_layers for site in facts.attention}
        counts |= {site.site: site.num_layers for site in facts.recurrent}
        counts |= {site.site: site.num_layers for site in facts.rows}
        for site, count in counts.items():
            found = kept.count(site)
            assert found == count, f"{count} layers of site {site!r} in the facts, {found} built"
        assert not set(kept) - set(counts), f"layers have caches at sites not in the facts: {set(kept) - set(counts)}"
        layers = [layer for layer, _, _ in model.cache_specs()]
        assert layers == sorted(layers), f"cache_specs lists layers as {layers}, not in order"
        assert all(0 <= layer < facts.num_layers for layer in layers), f"layers {layers} of {facts.num_layers}"
        width = self.expected.shape[-1]
        assert facts.vocab_size == width, (
            f"vocab_size = {facts.vocab_size} in the facts, the oracle's logits have {width}"
        )
        stored = model_files.num_parameters(self.model)
        assert facts.num_parameters == stored, (
            f"num_parameters = {facts.num_parameters} in the facts, the checkpoint's tensors have {stored} elements"
        )
        return f"{stored} parameters"

    def spread(self, tensor: int, pipeline: int) -> str:
        """Several ranks, which are threads here, must give the logits of one."""
        way = "tensor" if tensor > 1 else "pipeline"
        if way not in self.model.boot.facts.parallel:
            raise Skip(f"the facts don't claim {way} parallelism")

        def run(booted: Boot, place: Parallel) -> list[Tensor]:
            model = ModelHarness(booted, num_blocks=_BLOCKS, seed=self._bench.seed, parallel=place)
            first = model.step([("prompt", self.prompt[:-2]), ("other", self.prompt[:3])])[:1]
            return [*first, *(row for token in self.prompt[-2:] for row in model.step([("prompt", [token])]))]

        size = {"tensor": tensor, "pipeline": pipeline}
        for rank, logits in enumerate(on_ranks(self._bench, self.folder, run, **size, **self.settings)):
            if logits:
                self._check(torch.cat(logits), self.expected, f"rank {rank} of {tensor} x {pipeline}")
        return f"{tensor * pipeline} ranks"

    def _check(self, found: Tensor, expected: Tensor, what: str) -> str:
        return check_logits(found, expected, self._example.tolerance, f"{what} ({self._seed})")

    def _tokens(self, count: int, *which: Any) -> list[int]:
        vocab = self.model.boot.facts.vocab_size
        generator = self._bench.random(self._example.name, *which)
        return torch.randint(3, vocab, (count,), generator=generator).tolist()


def _in_chunks(model: ModelHarness, name: str, tokens: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Logits of ``tokens``, in chunks of ``sizes``, with another request that decodes."""
    rows, start = [], 0
    for size in sizes:
        rows.append(model.step([(f"{name} other", [7 + start]), (name, tokens[start : start + size])])[1])
        start += size
    return torch.cat(rows)
