"""The bench that suites run on: the registry of installed plugins, and one platform of this machine, set up."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from llmk.api import Platform, PlatformFacts
from llmk.config import load
from llmk.kernel.loader import load_object
from llmk.kernel.registry import Registry
from llmk.planning.choices.platforms import choose_platform

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Bench:
    """Attributes:

    facts, platform, device: the requested platform, or the best one of this machine, ready for use. thorough: whether
    suites run more shapes and more rounds. seed: the seed of random inputs.
    """

    registry: Registry
    facts: PlatformFacts
    platform: Platform
    device: torch.device
    thorough: bool = False
    seed: int = 0

    @classmethod
    def open(
        cls, platform: str = "", *, thorough: bool = False, seed: int = 0, settings: Mapping[str, Any] | None = None
    ) -> Bench:
        """Discovers plugins and sets the platform up. Raises the errors that an engine start would raise."""
        config = load({"platform.use": platform, **(settings or {})}).config
        registry = Registry.discover(config.plugins)
        registered, facts = choose_platform(registry, config)
        made: Platform = load_object(
            registered.spec.implementation, plugin=registered.plugin, kind="platform", id=registered.spec.id
        )(facts)
        made.device.setup(0, config.platform.threads)
        return cls(registry, facts, made, made.device.torch_device(0), thorough, seed)

    def random(self, *more: Any) -> torch.Generator:
        """A generator on the host that is seeded by the bench's seed and ``more``, the same in every process."""
        generator = torch.Generator()
        generator.manual_seed(hash_of(self.seed, *more))
        return generator


def hash_of(*values: Any) -> int:
    """A hash below 2**63 that is the same in every process."""
    digest = hashlib.sha256(repr(values).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
