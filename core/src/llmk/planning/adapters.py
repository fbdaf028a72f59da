"""Adapters: the PEFT checkpoints of plain LoRA (arXiv:2106.09685) that the configuration names, read as far as their
``adapter_config.json`` goes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmk.api import CheckpointError
from llmk.api.checkpoint import CheckpointFile, files_in
from llmk.api.errors import ConfigError, shown
from llmk.tree import AdapterRoom, CausalLM, Experts, Linear, Spec

if TYPE_CHECKING:
    from llmk.config import Config
    from llmk.planning.boot import Boot

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_READ = frozenset(
    {
        *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    }
)
_WITHOUT_EFFECT = frozenset(
    {
        *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
        *("lora_dropout", "fan_in_fan_out", "megatron_core", "loftq_config", "eva_config", "corda_config"),
        *("lora_ga_config", "qalora_group_size", "ensure_weight_tying", "runtime_config"),
    }
)
"""Fields that have no effect once an adapter is trained."""
_NEUTRAL: tuple[Any, ...] = (None, False, "", [], {}, "none")
_INITIAL = (True, False, None, "gaussian", "orthogonal", "eva")
"""Ways to initialize that leave the model's own weights as they are."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an adapter adds to a projection: ``scale * x @ a.T @ b.T``, with ``a`` of ``rank`` rows."""

    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter by the ``name`` that requests use. ``targets`` are by the checkpoint's names of projections; of a
    packed layer, its own name, the projections', or both."""

    name: str
    folder: Path
    targets: Mapping[str, Target]

    @property
    def weights(self) -> CheckpointFile:
        """The file with its tensors."""
        return CheckpointFile(self.folder, WEIGHTS)

    @property
    def rank(self) -> int:
        """The highest of its ranks."""
        return max(target.rank for target in self.targets.values())


def read_adapters(config: Config, model: CausalLM | None, served_name: str) -> tuple[Adapter, ...]:
    """The adapters of ``[adapters]``, in its order. ``model`` is ``None`` for one that is not a tree.

    Raises:
        ConfigError: for a name that can't be used, a model that can't have adapters, or a folder that holds no plain
            LoRA adapter of the model.
    """
    if not config.adapters:
        return ()
    for name in config.adapters:
        if not name or not name.isprintable() or name == served_name:
            why = "is the model's own name" if name == served_name else "is not a name"
            raise ConfigError(f"[adapters]: {name!r} {why}", hint="requests choose an adapter by its name; use another")
    if model is None:
        raise ConfigError(
            "[adapters]: the model's family builds its own modules, so adapters can't be added to them",
            hint="adapters need a family that is a tree (llmk explain shows which family is chosen)",
        )
    modules, found = _Modules.of(model), []
    for name, path in config.adapters.items():
        with errors_of(name):
            found.append(_read(name, Path(path), modules))
    return tuple(found)


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Within, an error of an adapter's files becomes one of the configuration, which named the adapter."""
    try:
        yield
    except CheckpointError as error:
        raise ConfigError(f"[adapters] {name}: {error.message}", hint=error.hint) from error


def adapter_rooms(adapters: Sequence[Adapter], model: CausalLM) -> dict[str, AdapterRoom]:
    """The room that the adapters need at the linear layers of a model, by the layers' names."""
    found = {}
    for linear in _linears(model):
        targets = [a.targets[name] for a in adapters for name in module_names(linear) if name in a.targets]
        if targets:
            found[linear.at] = AdapterRoom(len(adapters), max(target.rank for target in targets))
    return found


def module_names(linear: Linear) -> tuple[str, ...]:
    """The names by which adapters may call a layer: those of its projections, then those of the whole."""
    return tuple(dict.fromkeys((*linear.modules, linear.at, *linear.aliases)))


def render_adapters(boot: Boot) -> str:
    """The adapters, in a line each; empty where there are none."""
    lines = [
        f"adapter {each.name}: {len(each.targets)} projections, rank {each.rank}, {each.folder}"
        for each in boot.adapters
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Modules:
    """The modules that a target may name: those that may have adapters, and those that may not, with the reason."""

    able: tuple[str, ...]
    unable: Mapping[str, str]
    experts: tuple[str, ...]

    @classmethod
    def of(cls, model: CausalLM) -> _Modules:
        linears = list(_linears(model))
        unable = {linear.at: "is computed inside attention" for linear in linears if linear.absorbed}
        unable |= {model.embed.at: "is an embedding", model.head.at: "is the LM head"}
        able = (name for linear in linears if not linear.absorbed for name in module_names(linear))
        experts = (spec for spec in _specs(model) if isinstance(spec, Experts))
        return cls(tuple(able), unable, tuple(f"{spec.at}.0.{name}" for spec in experts for name in spec.names))


def _specs(model: CausalLM) -> Iterator[Spec]:
    return (leaf for layer in model.layers for part in layer for leaf in part.leaves())


def _linears(model: CausalLM) -> Iterator[Linear]:
    return (spec for spec in _specs(model) if isinstance(spec, Linear))


def _read(name: str, folder: Path, modules: _Modules) -> Adapter:
    folder = folder.expanduser()
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}", hint="name the folder that PEFT's save_pretrained wrote")
    folder = folder.resolve()
    file = CheckpointFile(folder, CONFIG)
    if not file.is_there:
        raise CheckpointError(f"{folder} has no {CONFIG}", hint="name the folder that PEFT's save_pretrained wrote")
    fields = _Fields(file, file.read_json())
    if not CheckpointFile(folder, WEIGHTS).is_there:
        pickled = [other.name for kind in ("bin", "pt", "pth") for other in files_in(folder, f"*.{kind}")]
        raise CheckpointError(
            f"{folder} has no {WEIGHTS}"
            + (f", only pickled weights ({', '.join(pickled)}), which could run any code" if pickled else ""),
            hint="save it again as safetensors (save_pretrained does)" if pickled else "download the missing file",
        )
    return Adapter(name, folder, fields.targets(modules))


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of a config; ``file`` is for messages."""

    file: CheckpointFile
    data: Mapping[str, Any]

    def refuse(self, what: str, hint: str = "use a plain LoRA adapter") -> CheckpointError:
        return CheckpointError(f"{self.file} {what}", hint=hint)

    def targets(self, modules: _Modules) -> dict[str, Target]:
        """The projections that it changes."""
        self._check_plain()
        is_target = self._matcher(modules)
        names = [name for name in modules.able if is_target(name)]
        if not names:
            experts = any(is_target(name) for name in modules.experts)
            what = "of experts alone, which can't have adapters" if experts else "that the model doesn't have"
            raise self._unknown(self.data.get("target_modules"), modules, what)
        rank, alpha = self._rank("r", self.data.get("r", 8)), self._alpha("lora_alpha", self.data.get("lora_alpha", 8))
        ranks, alphas = self._patterns("rank_pattern", self._rank), self._patterns("alpha_pattern", self._alpha)
        found = {}
        for name in names:
            own, factor = _by_pattern(ranks, name, rank), _by_pattern(alphas, name, alpha)
            found[name] = Target(own, factor / (math.sqrt(own) if self.data.get("use_rslora") else own))
        return found

    def _check_plain(self) -> None:
        """Refuses what is more than two matrices per projection, and what is not known."""
        if (kind := self.data.get("peft_type")) != "LORA":
            raise self.refuse(f"has peft_type {shown(kind)}; adapters of type 'LORA' can be served")
        for name, value in self.data.items():
            if name not in _READ | _WITHOUT_EFFECT and value not in _NEUTRAL:
                raise self.refuse(f"has {name} = {shown(value)}, which can't be served")
        initial = self.data.get("init_lora_weights", True)
        if not any(initial is each or initial == each for each in _INITIAL):
            what = f"has init_lora_weights = {shown(initial)}, which changes the model's own weights"
            raise self.refuse(what, "convert it to plain LoRA (path_initial_model_for_weight_conversion of PEFT)")

    def _matcher(self, modules: _Modules) -> Callable[[str], bool]:
        """Whether a module is a target, as PEFT decides it. Checks the modules that are named."""
        targets, excluded = self._names("target_modules"), self._names("exclude_modules")
        layers = self._layers()
        if targets is None:
            raise self.refuse("has no target_modules", "name the modules that were trained")
        everything = isinstance(targets, str) and targets.lower() == "all-linear"

        def is_target(name: str) -> bool:
            wanted = everything or _matches(targets, name)
            return wanted and not (excluded and _matches(excluded, name)) and (everything or layers(name))

        for name, why in () if everything else modules.unable.items():
            if is_target(name):
                raise self.refuse(f"has target_modules that match {name}, which {why}", "train it without that module")
        known = (*modules.able, *modules.experts)
        for target in targets if isinstance(targets, tuple) else ():
            if not any(_matches((target,), name) for name in known):
                raise self._unknown(target, modules, "that the model doesn't have")
        return is_target

    def _unknown(self, target: Any, modules: _Modules, what: str) -> CheckpointError:
        names = sorted({name.rpartition(".")[2] for name in modules.able})
        near = get_close_matches(str(target), names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return self.refuse(
            f"has target_modules {what}: {shown(target)}",
            f"{hint}check that the adapter is of this model, which has {', '.join(names)}",
        )

    def _names(self, field: str) -> str | tuple[str, ...] | None:
        """A regular expression, or names."""
        value = self.data.get(field)
        if value is None or value == []:
            return None
        if isinstance(value, str):
            try:
                re.compile(value)
            except (re.error, RecursionError, OverflowError) as error:
                raise self.refuse(f"has {field} = {shown(value)}, which is no regular expression: {error}") from None
            return value
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            raise self.refuse(f"has {field} = {shown(value)}, neither names nor a regular expression")
        return tuple(value)

    def _layers(self) -> Callable[[str], bool]:
        """Whether a module is in one of ``layers_to_transform``."""
        value, pattern = self.data.get("layers_to_transform"), self._names("layers_pattern")
        if value is None or value == []:
            return lambda name: True
        indices = value if isinstance(value, list) else [value]
        if not all(type(index) is int and index >= 0 for index in indices):
            raise self.refuse(f"has layers_to_transform = {shown(value)}, not numbers of layers")
        stems = (pattern,) if isinstance(pattern, str) else pattern or (r"[^.]*",)

        def is_in(name: str) -> bool:
            found = next((match for stem in stems if (match := re.match(rf".*?\.{stem}\.(\d+)\.", name))), None)
            return found is not None and int(found[1]) in indices

        return is_in

    def _patterns(self, field: str, read: Callable[[str, Any], Any]) -> dict[str, Any]:
        value = self.data.get(field) or {}
        if not isinstance(value, dict):
            raise self.refuse(f"has {field} = {shown(value)}, not a table")
        for name in value:
            try:
                re.compile(name)
            except (re.error, RecursionError, OverflowError) as error:
                raise self.refuse(f"has {field} for {shown(name)}, which is no regular expression: {error}") from None
        return {name: read(f"{field} of {name!r}", own) for name, own in value.items()}

    def _rank(self, field: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= 1 << 16:
            raise self.refuse(f"has {field} = {shown(value)}, not a rank", "check where the adapter is from")
        return value

    def _alpha(self, field: str, value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.refuse(f"has {field} = {shown(value)}, not a number", "check where the adapter is from")
        return float(value)


def _matches(targets: str | Sequence[str], name: str) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _by_pattern(values: Mapping[str, Any], name: str, default: Any) -> Any:
    """The value of the first pattern that a module's name ends with."""
    return next((value for key, value in values.items() if re.match(rf"(.*\.)?({key})$", name)), default)
