"""The suite of quantization methods: their claims, their conversion of stored or plain weights, and their refusals.

Weights are read by multiplying the identity, for any layout of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from llmk.api import Checkpoint, CheckpointError, LinearQuery, QuantizationSpec
from llmk.api.matching import match
from llmk.kernel.loader import load_object
from llmk.nn import Embedding, Experts, Linear, LMHead
from llmk.nn.linear import SCALED
from llmk.nn.parallel import Parallel
from llmk.planning.boot import Boot
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk_testing.bench import Bench
from llmk_testing.booting import boot_on, on_ranks
from llmk_testing.case import Case, Skip
from llmk_testing.comparing import check_logits
from llmk_testing.files import copied
from llmk_testing.model import ModelHarness
from llmk_testing.purity import check_pure
from llmk_testing.quantization_example import QuantizationExample
from llmk_testing.suites.quantization_configs import NO_TABLES, check_configs, check_modules, odd_configs
from llmk_testing.suites.quantization_layers import layer_cases
from llmk_testing.suites.quantization_numbers import number_cases
from llmk_testing.suites.quantization_values import value_cases

_TOLERANCE = 1e-4
_ROUNDED_ELSEWHERE = 1e-2
"""Tolerance if another device than the oracle's quantizes: a value between two numbers may be rounded to either, which
is one step of an 8-bit number for one weight of a row."""
_LEAST = 1e-30
"""Of what errors are relative to: a table may have rows of zeros."""
_STRANGE: tuple[Any, ...] = (
    {"quant_method": "unheard-of"},
    {"quant_method": None},
    {"quant_method": ["unheard-of"]},
    {"quant_method": {}, "config_groups": 7},
    {"bits": 3},
    {"config_groups": {"group_0": None}},
)
"""Configs that no method claims."""


def cases(spec: QuantizationSpec, bench: Bench) -> Iterator[Case]:
    """The cases of the spec itself, and of each of its examples."""

    def case(name: str, run: Callable[[], str | None]) -> Case:
        return Case(spec.id, "quantization", name, run)

    if not spec.examples:
        yield case("has examples", _no_examples)
        return
    named = load_object(spec.examples, plugin=spec.id)
    examples = [each for each in named if isinstance(each, QuantizationExample)]
    yield case("claims are verdicts for any config", partial(_claims, spec, examples))
    yield case("claims no other method's checkpoints", partial(_claims_nothing_else, spec))
    yield case("configs mean what the examples say", partial(check_configs, spec, named))
    yield case("configs that are claimed are followed, or a CheckpointError", partial(check_modules, spec, named))
    for example in examples:
        trial = Trial(spec, bench, example)
        checks: dict[str, Callable[[], str | None]] = {
            "is claimed": trial.claimed,
            "some kernel multiplies the format": trial.has_kernel,
            "weights are those that the stored tensors represent": trial.weights,
            "numbers are near the weights": trial.near,
            "each expert is the one that the stored tensors represent": trial.experts,
            "logits are those of the stored weights": trial.logits,
            "logits are near the unquantized": trial.logits_near,
            "two tensor parallel ranks are one": trial.ranks,
            "dummy weights are quantized": trial.dummy,
            "what is left plain stays as it is, or is refused by name": trial.excluded,
            "missing, unknown and misshapen tensors are named": trial.spoilt,
        }
        for name, run in checks.items():
            yield case(f"{example.name}: {name}", run)
        yield from number_cases(spec, bench, example)
        yield from layer_cases(spec, bench, example)
        yield from value_cases(spec, bench, example)


def _no_examples() -> str:
    raise Skip("QuantizationSpec.examples names no example (llmk_testing.quantization_example)")


def _claims(spec: QuantizationSpec, examples: list[QuantizationExample]) -> str:
    configs: list[Any] = [{}, *_STRANGE, *NO_TABLES]
    for example in examples:
        configs += odd_configs(example.quantization_config)
    check_pure(spec.claims, map(_checkpoint, configs))
    return f"{len(configs)} configs"


def _claims_nothing_else(spec: QuantizationSpec) -> None:
    for config in _STRANGE:
        assert not spec.claims(_checkpoint(config)), f"claims a checkpoint whose quantization_config is {config}"
    for config in NO_TABLES:
        assert spec.online or not spec.claims(_checkpoint(config)), f"claims a checkpoint with the config {config!r}"
    plain = spec.claims(_checkpoint({}))
    assert bool(plain) == spec.online, (
        "claims a checkpoint that is not quantized" if plain else "is online, but claims no plain checkpoint"
    )


def _checkpoint(config: Any) -> Checkpoint:
    return Checkpoint(Path("/nowhere"), {"architectures": ["Some"], "quantization_config": config})


class Trial:
    """One example of one method."""

    def __init__(self, spec: QuantizationSpec, bench: Bench, example: QuantizationExample) -> None:
        self._spec, self._bench, self._example = spec, bench, example
        self._seed = f"seed {bench.seed}"

    @cached_property
    def folder(self) -> Path:
        """The folder of the example's checkpoints, which exists as long as the trial."""
        self._directory = TemporaryDirectory(prefix="llmk-")
        folder = Path(self._directory.name)
        self._example.write(folder)
        return folder

    @property
    def served(self) -> Path:
        """The checkpoint that the method serves."""
        return self.folder / ("original" if self._spec.online else "quantized")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that select the method."""
        return (
            {"model.quantization": self._spec.id} if self._spec.online else {"select.quantization.use": self._spec.id}
        )

    def load(self, folder: Path, **settings: Any) -> ModelHarness:
        """A model loaded with the method."""
        return ModelHarness(boot_on(self._bench, folder, **self.settings, **settings))

    @cached_property
    def model(self) -> ModelHarness:
        """The example, loaded with the method."""
        return self.load(self.served)

    @cached_property
    def plain(self) -> dict[str, ModelHarness]:
        """The plain checkpoints, loaded without the method."""
        return {name: ModelHarness(boot_on(self._bench, self.folder / name)) for name in ("original", "restored")}

    @cached_property
    def prompt(self) -> list[int]:
        """Random tokens."""
        return torch.randint(3, 380, (24,), generator=self._bench.random(self._example.name)).tolist()

    @property
    def _tolerance(self) -> float:
        return _ROUNDED_ELSEWHERE if self._spec.online and self._bench.device.type != "cpu" else _TOLERANCE

    def claimed(self) -> None:
        verdict = self._spec.claims(read_checkpoint(self.served))
        assert verdict, f"the example is refused: {'; '.join(map(str, verdict.reasons))}"

    def has_kernel(self) -> str:
        """For every site that may be quantized."""
        facts, kernels = self.model.boot.facts, []
        for site in (each for each in facts.linear if each.quantizable):
            shape: dict[str, Any] = {"in_features": site.in_features, "out_features": site.out_features}
            query = LinearQuery(
                platform=self._bench.facts,
                site=site.site,
                dtype="float32",
                bias=site.bias,
                weight_format=self._spec.weight_format,
                **shape,
            )
            able = [r.spec.id for r in self._bench.registry.kernels("linear") if match(r.spec, query)]
            assert able, f"no kernel serves weight_format {self._spec.weight_format!r} at {site.site!r}, {shape}"
            kernels += able
        assert kernels, "the facts of the example's model have no site that may be quantized"
        return ", ".join(sorted(set(kernels)))

    def weights(self) -> str:
        return self._compare("restored", self._tolerance)

    def near(self) -> str:
        return self._compare("original", self._example.error)

    @torch.inference_mode()
    def experts(self) -> str:
        """Every expert by itself: a router that has no doubt gives each token to one."""
        found, expected = (_experts(model) for model in (self.model, self.plain["restored"]))
        assert len(found) == len(expected), f"{len(found)} blocks of experts, expected {len(expected)}"
        for block, (one, other) in enumerate(zip(found, expected, strict=True)):
            for expert, (actual, wanted) in enumerate(zip(one, other, strict=True)):
                error = float((actual - wanted).norm() / wanted.norm())
                assert error <= self._tolerance, (
                    f"expert {expert} of block {block} differs from the restored weights by {error:.1e}, at most"
                    f" {self._tolerance:.0e} is allowed ({self._seed})"
                )
        return f"{len(found)} blocks of experts"

    def logits(self) -> str:
        return self._logits(self.model, "restored", self._tolerance)

    def logits_near(self) -> str:
        return self._logits(self.model, "original", self._example.logits_error)

    def ranks(self) -> str:
        def run(booted: Boot, place: Parallel) -> Tensor:
            return ModelHarness(booted, parallel=place).step([("a", self.prompt)])[0]

        try:
            every = on_ranks(self._bench, self.served, run, tensor=2, **self.settings)
        except CheckpointError as error:
            self._check_whole(error)
            raise Skip(f"refused: {error.message}") from error
        # A method that quantizes while it loads sees only a rank's share, so its scales may differ.
        shared = ("original", self._example.logits_error) if self._spec.online else ("restored", _TOLERANCE)
        (first, second), (plain, tolerance) = every, shared
        assert torch.equal(first, second), f"the two ranks have different logits ({self._seed})"
        return check_logits(first, self._of(plain), tolerance, f"2 ranks against the {plain} weights ({self._seed})")

    def _check_whole(self, error: CheckpointError) -> None:
        """A refusal is the method's own, or of rows and groups that are not whole on each rank."""
        tensor, _, rest = error.message.partition(" ")
        name = tensor.rpartition(".")[2]
        assert not rest.startswith("is stored in a format that can't be sharded") or name in SCALED, (
            f"{error.message}: each rank needs all of {name}, which the method's unsharded does not name"
        )

    def dummy(self) -> None:
        (logits,) = self.load(self.served, **{"model.load_format": "dummy"}).step([("a", self.prompt)])
        assert bool(logits.isfinite().all()), "logits of dummy weights are not finite"

    def excluded(self) -> str:
        """One weight is stored in float32, the others are quantized: one of a linear layer, and each table that is."""
        if self._spec.online:
            raise Skip("quantizes what is plain")
        exact = _rows(self.plain["original"])
        quantized = [each.removesuffix(".weight") for each in self._example.plain(self.folder)]
        known = [module for module in quantized if module in exact]
        layers = [module for module in known if ".layers." in f".{module}"]
        if not known:
            raise Skip("no weight that is quantized is a layer of its own")
        chosen = [*layers[:1], *(module for module in known if module not in layers)]
        return ", ".join(f"{module} {self._left_plain(module, exact[module])}" for module in chosen)

    def _left_plain(self, module: str, exact: Tensor) -> str:
        with TemporaryDirectory(prefix="llmk-") as folder:
            target, but = Path(folder) / "excluded", f"{module}.weight"
            config = {"quantization_config": dict(self._example.quantization_config)}
            copied(self.folder / "original", target, lambda tensors: self._example.store(tensors, but=but), config)
            try:
                found, refusal = _rows(self.load(target)), ""
            except CheckpointError as error:
                found, refusal = {}, str(error)
        if refusal:
            assert module in refusal, f"the refusal doesn't name {module}: {refusal}"
            return f"refused: {refusal.splitlines()[0]}"
        assert torch.equal(found[module], exact), f"{module} is stored plain, but other values are used"
        return "served"

    def spoilt(self) -> str:
        """Changes tensors of the first linear layer."""
        name = self._example.plain(self.folder)[0]
        module = name.removesuffix("weight")
        if self._spec.online:
            self._refused(lambda tensors: tensors.update({module + "weight_scale": torch.ones(())}), module)
            return "1 change"
        parts = [part for part in self._example.stored(torch.ones(256, 256)) if part not in self._example.unused]
        changes: list[Callable[[dict[str, Tensor]], object]] = [
            lambda tensors: tensors.update({module + "surprise": torch.ones(3)}),
            *(partial(_without, name=module + part) for part in parts if part not in self._example.optional),
            *(partial(_longer, name=module + part) for part in parts),
        ]
        for change in changes:
            self._refused(change, module)
        return f"{len(changes)} changes"

    def _refused(self, change: Callable[[dict[str, Tensor]], object], module: str) -> None:
        with TemporaryDirectory(prefix="llmk-") as folder:
            spoilt = copied(self.served, Path(folder) / "spoilt", change)
            try:
                self.load(spoilt)
                answer = "it is loaded all the same"
            except CheckpointError as error:
                answer = "" if module.rstrip(".") in str(error) else f"the refusal doesn't name {module}: {error}"
        what = getattr(change, "func", change).__name__.strip("_").replace("<lambda>", "with an unknown tensor")
        assert not answer, f"a checkpoint {what} {getattr(change, 'keywords', {}).get('name', module)}: {answer}"

    def _compare(self, plain: str, tolerance: float) -> str:
        """Compares every linear layer's weight, per output channel, with that of a plain checkpoint."""
        found, expected, worst = _rows(self.model), _rows(self.plain[plain]), 0.0
        assert found.keys() == expected.keys(), f"linear layers {sorted(found)}, expected {sorted(expected)}"
        for name, rows in expected.items():
            assert found[name].shape == rows.shape, f"{name}: {list(found[name].shape)}, expected {list(rows.shape)}"
            error = (found[name] - rows).norm(dim=1) / rows.norm(dim=1).clamp_min(_LEAST)
            wrong = (~(error <= tolerance)).nonzero().flatten().tolist()
            assert not wrong, (
                f"{name}: {len(wrong)} of {len(rows)} outputs differ from the {plain} weights, first {wrong[0]}, by"
                f" {float(error[wrong[0]]):.1e}, at most {tolerance:.0e} is allowed ({self._seed})"
            )
            worst = max(worst, float(error.max()))
        return f"{len(expected)} linear layers, relative error {worst:.1e} at most"

    def _logits(self, model: ModelHarness, plain: str, tolerance: float) -> str:
        (found,) = model.step([(plain, self.prompt)])
        return check_logits(found, self._of(plain), tolerance, f"against the {plain} weights ({self._seed})")

    def _of(self, plain: str) -> Tensor:
        model = self.plain[plain]
        return model.step([(object(), self.prompt)])[0]


def _without(tensors: dict[str, Tensor], name: str) -> None:
    del tensors[name]


def _longer(tensors: dict[str, Tensor], name: str) -> None:
    tensors[name] = torch.ones(*(size + 1 for size in tensors[name].shape or (2,))).to(tensors[name].dtype)


def _experts(model: ModelHarness) -> list[list[Tensor]]:
    """What each expert of each block makes of the same inputs, with nearly all of the weight."""
    found = []
    for layer in model.model.weights:
        if isinstance(layer, Experts):
            inputs = torch.eye(layer.hidden_size, device=model.device)[:: max(1, layer.hidden_size // 32)]
            sure = 80 * torch.eye(layer.num_experts, device=model.device)
            found.append([layer(inputs, row.expand(len(inputs), -1)).float().cpu() for row in sure])
    return found


@torch.inference_mode()
def _rows(model: ModelHarness) -> dict[str, Tensor]:
    """The weight ``[out, in]`` of every linear layer, by the name of the first packed projection, and of tables
    ``[vocab, hidden]``: computed by multiplying the identity, or by looking up every token."""
    rows = {}
    inputs_of = {site.site: site.in_features for site in model.boot.facts.linear}
    for layer in model.model.weights:
        if not isinstance(layer, Linear | Embedding | LMHead) or not layer.parameters:
            continue
        name = layer.parameters[0].names[0].rpartition(".")[0]
        if isinstance(layer, Embedding):
            kept = layer.table.kept
            rows[name] = layer(torch.arange(kept.start, kept.stop, device=model.device)).float().cpu()
        else:
            inputs = torch.eye(layer.in_features if isinstance(layer, Linear) else inputs_of["lm_head"])
            inputs = inputs.to(model.device)
            rows[name] = (layer(inputs) - layer(torch.zeros_like(inputs))).T.float().cpu()
    return rows
