"""Rotary position embeddings: their settings in ``config.json``, in old and new form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from llmk.tree.config import Config

_NEEDS_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")
_BY_LENGTH = ("longrope", "su")
LONGEST_CONTEXT = 1 << 26
"""Tokens; several times what any published model claims."""

Setting = bool | int | float | str | None | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary angles. It owns no tensor: layers with equal values share one table."""

    dim: int
    """Size of a head; ``partial_rotary_factor`` of it is rotated."""
    positions: int
    """Positions that the model was trained on, as its config states them."""
    settings: tuple[tuple[str, Setting], ...]
    """``rope_type``, ``rope_theta`` and what the type needs, sorted by name."""
    sections: tuple[int, ...] = ()
    """Pairs of elements that are rotated by each axis of positions, such as time, height and width (M-RoPE: Qwen2-VL,
    arXiv:2409.12191); empty: positions have one axis."""
    neighbours: bool = False
    """Whether neighbouring elements are a pair, as in the RoPE paper (GPT-J, GLM), not one of the first half and one of
    the second."""
    interleaved: bool = False
    """Whether the axes take turns, pair by pair (Qwen3-VL), instead of having their pairs side by side."""

    @classmethod
    def of(cls, config: Config, dim: int, *, theta: float = 10000.0, kind: str = "", **defaults: Setting) -> Self:
        """The settings of a config.

        Args:
            theta: ``rope_theta`` of a config that does not state it.
            kind: the kind of layer (``"full_attention"``), for configs that have settings for each.
            defaults: further settings, which those of the config override.

        Raises:
            CheckpointError: a setting is invalid, or layers of different kinds have different ones and there is no
                ``kind``.
        """
        settings = {**defaults, **rope_parameters(config, theta, kind)}
        return cls.with_settings(dim, config.size("max_position_embeddings"), settings)

    @classmethod
    def with_settings(cls, dim: int, positions: int, settings: Mapping[str, Any]) -> Self:
        """Of settings in the form of ``transformers`` 5."""
        pairs = ((key, tuple(value) if isinstance(value, list) else value) for key, value in settings.items())
        return cls(dim, positions, tuple(sorted(pairs)))

    @property
    def parameters(self) -> dict[str, Any]:
        """The settings, as :func:`llmk.reference.rope.rotation.cos_sin_cache` reads them."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in self.settings}

    @property
    def rotary_dim(self) -> int:
        """Elements of a head with rotation, by an angle of 0 included, as proportional RoPE has it."""
        whole = self.parameters["rope_type"] == "proportional"
        return self.dim if whole else int(self.dim * self.parameters.get("partial_rotary_factor", 1.0))

    @property
    def max_model_len(self) -> int:
        """Maximum number of positions. A YaRN checkpoint may still state the length before the extension."""
        own = self.parameters
        if own["rope_type"] != "yarn":
            return self.positions
        stretched = own.get("original_max_position_embeddings", self.positions) * own.get("factor", 1.0)
        return int(min(max(self.positions, stretched), LONGEST_CONTEXT))


def rope_parameters(config: Config, theta: float = 10000.0, kind: str = "") -> dict[str, Any]:
    """Rotary settings in the form of ``transformers`` 5: ``rope_type``, ``rope_theta`` and what the type needs.

    Uses ``rope_parameters`` if the config has it; else ``rope_scaling`` (``type`` or ``rope_type``) and ``rope_theta``.
    Raises CheckpointError as :meth:`Rope.of` does.
    """
    stored = config.rope("rope_parameters") or config.rope("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in stored.values()):
        if not isinstance(stored.get(kind), Mapping):
            raise config.unsupported(f"different RoPE settings for each kind of layer ({', '.join(stored)})")
        stored = stored[kind]
    parameters = {"rope_theta": config.positive("rope_theta", theta), **stored}
    parameters["rope_type"] = stored.get("rope_type") or stored.get("type") or "default"
    if (factor := config.positive("partial_rotary_factor", None)) is not None:
        parameters.setdefault("partial_rotary_factor", factor)
    if parameters["rope_type"] in _NEEDS_ORIGINAL_LENGTH:
        original = config.size("original_max_position_embeddings", None)
        if original is not None:
            parameters["original_max_position_embeddings"] = original
        elif (longest := config.size("max_position_embeddings", None)) is not None:
            parameters.setdefault("original_max_position_embeddings", longest)
    return parameters


def default_length(config: Config, longest: int) -> tuple[int, str]:
    """The default maximum length, if it is not ``longest``, and the reason; (0, "") if it is.

    LongRoPE has factors for texts up to the original length, and others for longer ones. ``transformers`` chooses them
    by the text's length, and recomputes the text when it grows longer. Here, cached keys must stay valid, so the
    maximum served length decides for all texts.
    """
    stored = config.rope("rope_parameters") or config.rope("rope_scaling") or {}
    for rope in (stored, *(each for each in stored.values() if isinstance(each, Mapping))):
        if (rope.get("rope_type") or rope.get("type")) in _BY_LENGTH:
            original = config.size("original_max_position_embeddings", None)
            original = original or rope.get("original_max_position_embeddings")
            if original and original < longest:
                return int(original), (
                    f"up to {original} tokens LongRoPE uses its short factors; with a larger"
                    " --model.max-model-len, all texts use its long factors"
                )
    return 0, ""
