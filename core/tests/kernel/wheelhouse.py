"""Distributions as they lie in site-packages: a module and a ``.dist-info`` folder with metadata and entry points."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import importlib_metadata as metadata

from llmk.config import load
from llmk.kernel.discovery import Plugin
from llmk.kernel.registry import Registry

PRELUDE = "from llmk.api import *\nfrom llmk.api import hookimpl, no\n"

PLATFORM = """
BOX = PlatformFacts(
    name="box", arch="b2", device_type="cpu", arch_family="b", arch_version=(2, 0),
    features=frozenset({"wide"}), dtypes=("bfloat16", "float32"),
)
OLD = PlatformFacts(name="box", arch="b1", device_type="cpu", arch_family="b", arch_version=(1, 5))

class Box:
    def __init__(self, facts): ...

@hookimpl
def llmk_platforms():
    return [PlatformSpec(
        id="box.box", name="box", implementation="plug_box:Box", rank=99,
        probe=lambda host: Probe(OK, BOX), known=(BOX, OLD), vouches=("friend-wheel",),
    )]
"""

MODEL = """
FACTS = dict(
    architecture="ToyForCausalLM", model="", num_layers=2, hidden_size=64, vocab_size=256, max_model_len=128,
    dtype="bfloat16", num_parameters=1000,
)
ATTENTION = AttentionFacts(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16)
LINEAR = (
    LinearFacts(site="up", in_features=64, out_features=128),
    LinearFacts(site="head", in_features=64, out_features=256, quantizable=False),
)
OPS = (
    OpFacts(site="norm", op="rms_norm", facts={"size": 64}),
    OpFacts(site="write", op="qk_norm_rope_write_kv", attention="attention"),
    OpFacts(site="act", op="gate_up_silu", linear="up"),
)

def describe(checkpoint):
    if checkpoint.config.get("raises"):
        raise RuntimeError(checkpoint.config["raises"])
    return ModelFacts(**FACTS, attention=(ATTENTION,), linear=LINEAR, ops=OPS)

class Toy:
    def __init__(self, build, checkpoint): ...
    def forward(self, token_ids, step): ...
    def logits(self, hidden): ...
    def cache_specs(self): ...

@hookimpl
def llmk_models():
    return [ModelSpec(
        id="toy.toy", architectures=("ToyForCausalLM",), implementation="plug_toy:Toy", describe="plug_toy:describe",
        deterministic=True,
    )]
"""


class Wheelhouse:
    """A folder on ``sys.path`` that distributions are put into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.modules: list[str] = []
        sys.path.insert(0, str(folder))

    def close(self) -> None:
        """Takes the folder off the path, and what came from it out of memory."""
        sys.path.remove(str(self.folder))
        for module in self.modules:
            sys.modules.pop(module, None)
        self._forget()

    def install(
        self,
        plugin: str,
        code: str,
        *,
        wheel: str = "",
        version: str = "1.0",
        requires: Sequence[str] = (),
        group: str = "llmk.v1",
        module: str = "",
    ) -> None:
        """Puts a distribution with one plugin into the folder."""
        wheel, module = wheel or f"{plugin}-wheel", module or f"plug_{plugin}"
        (self.folder / f"{module}.py").write_text(PRELUDE + dedent(code))
        info = self.folder / f"{wheel.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {wheel}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires)]) + "\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{plugin} = {module}\n")
        self.modules.append(module)
        self._forget()

    def install_box(self) -> None:
        """Puts in a platform and a model family."""
        self.install("box", PLATFORM)
        self.install("toy", MODEL)

    def discover(self, **rules: object) -> Registry:
        """The registry of the core's own plugins and those in this folder."""
        return Registry.discover(load(self.flags(rules), environ={}, cwd=self.folder).config.plugins)

    def flags(self, rules: dict[str, object] | None = None) -> dict[str, object]:
        """Flags that leave out what else happens to be installed, and set ``plugins`` rules."""
        named = {name for name, value in (rules or {}).items() if value}
        others = [p.name for p in metadata.entry_points(group="llmk.v1") if p.dist and not self._has(p.dist)]
        disabled = [name for name in others if name != "reference"]
        chosen = {f"plugins.{name}": (rules or {})[name] for name in named}
        disabled += list(chosen.pop("plugins.disable", []))  # type: ignore[call-overload]
        return {"plugins.disable": disabled, **chosen}

    def plugin(self, name: str, **rules: object) -> Plugin:
        """One plugin of this folder, discovered."""
        (found,) = (p for p in self.discover(**rules).plugins if p.name == name and p.distribution.endswith("-wheel"))
        return found

    def _has(self, distribution: metadata.Distribution) -> bool:
        return str(distribution.locate_file("")).startswith(str(self.folder))

    def _forget(self) -> None:
        metadata.MetadataPathFinder.invalidate_caches()
        importlib.invalidate_caches()


def kernels(plugin: str, hook: str, *specs: str) -> str:
    """A plugin's code that returns kernels from one hook; ``specs`` are arguments of ``KernelSpec``."""
    kind = {"attention_backends": "attention", "linear_kernels": "linear", "ops": "op", "moe_kernels": "moe"}[hook]
    listed = ", ".join(f'KernelSpec(kind="{kind}", implementation="plug_{plugin}:run", {spec})' for spec in specs)
    return f"def run(*args): ...\n\n@hookimpl\ndef llmk_{hook}():\n    return [{listed}]\n"
