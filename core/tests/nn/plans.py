"""Plans for tests of binding, whose kernels are functions of this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from llmk.api import Choice, LinearQuery, Piece, Plan, PlatformFacts, SiteVariant
from llmk.nn import Build, Builder
from llmk.nn.parallel import Parallel
from llmk.reference.moe import fused_moe
from llmk.reference.norm_linear import make_add_rms_norm_router as make_add_rms_norm_router
from llmk.tree import Sites, Spec

PLATFORM = PlatformFacts(name="here", arch="any", device_type="cpu")
ALWAYS = (0, 1 << 31)


def piece(name: str, *, band: tuple[int, int] = ALWAYS, prepare: str = "", parts: tuple[str, ...] = ()) -> Piece:
    """A piece that runs the function ``name`` of this module."""
    where = prepare and f"{__name__}:{prepare}"
    return Piece(*band, name, "a-wheel", "1.0", f"{__name__}:{name}", where, "native", "only candidate", parts=parts)


def from_reference(where: str, *, prepare: str = "", parts: tuple[str, ...] = ()) -> Piece:
    """A piece that runs a reference kernel, ``where`` in ``llmk.reference``, with weights that ``prepare`` returns."""
    place = f"llmk.reference.{where}"
    return Piece(*ALWAYS, where, "a-wheel", "1.0", place, prepare, "reference", "only candidate", parts=parts)


def choice(kind: str, site: str, *pieces: Piece, op: str = "", parts: tuple[Choice, ...] = (), **query: Any) -> Choice:
    """A choice with a linear query where ``query`` has its fields."""
    asked = LinearQuery(platform=PLATFORM, site=site, dtype="float32", **query) if query else None
    return Choice(kind, site, op or site, asked, pieces, (), parts)


def build(
    *choices: Choice,
    dtype: torch.dtype = torch.float32,
    parallel: Parallel | None = None,
    variants: tuple[SiteVariant, ...] = (),
    position_rows: int = 0,
) -> Build:
    """A build that loads from this module, for a process at the place ``parallel``."""
    plan = Plan(PLATFORM, "here", "", "model", "", "AnyForCausalLM", "float32", choices, variants=variants)
    where: dict[str, Any] = {"device": torch.device("cpu"), "parallel": parallel, "position_rows": position_rows}
    return Build(plan, dtype=dtype, load_object=load, **where)


def builder(made: Build, spec: Spec) -> Builder:
    """A builder of ``spec``, which is the whole model."""
    return Builder(made, Sites(spec.leaves(), "float32"))


def load(path: str, *, plugin: str, kind: str, id: str) -> Any:
    """The attribute that ``path`` names."""
    assert plugin == "a-wheel 1.0"
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias``."""
    return torch.nn.functional.linear(x, weight, bias)


def gated(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A gated activation: the up part times the gate part."""
    gate, up = linear(x, weight, bias).chunk(2, dim=-1)
    return gate * up


def spans_activation(x: Tensor, activation: str, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The square of ReLU and the linear layer, and one, which identifies this kernel."""
    assert activation == "relu2"
    return linear(x.relu().square(), weight, bias) + 1


def linear_transposed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same with a weight that :func:`transpose` prepared."""
    return x @ weight if bias is None else x @ weight + bias


def transpose(parameters: dict[str, Tensor]) -> Tensor:
    """``weight`` as ``[in, out]``."""
    return parameters["weight"].t().contiguous()


def linear_scaled(x: Tensor, weight: Mapping[str, Tensor], bias: Tensor | None) -> Tensor:
    """A GEMM with an int8 weight and a scale per row."""
    return linear(x, weight["weight"].float() * weight["scale"], bias)


def keep(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """All parameters as they are."""
    return dict(parameters)


def few(x: Any) -> tuple[str, Any]:
    """A result that identifies the kernel for few tokens."""
    return "few", x


def many(x: Any) -> tuple[str, Any]:
    """A result that identifies the kernel for many tokens."""
    return "many", x


def make_twice(parts: Mapping[str, Callable[..., Any]]) -> Callable[[Any], Any]:
    """A composite op: its part, applied twice."""
    return lambda x: parts["once"](parts["once"](x))


def make_linear_twice(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """A composite op over a linear site: twice its result."""
    return lambda x, weight, bias: 2 * parts["linear"](x, weight, bias)


def moe(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """The reference's mixture of experts."""
    return fused_moe(x, router_logits, weights, **options)


def moe_zero(x: Tensor, router_logits: Tensor, weights: Any, **options: Any) -> Tensor:
    """Zeros, which identify this kernel."""
    return torch.zeros_like(x)


def moe_transposed(x: Tensor, router_logits: Tensor, weights: tuple[Tensor, Tensor], **options: Any) -> Tensor:
    """The same with weights that :func:`transpose_experts` prepared."""
    gate_up, down = (weight.transpose(1, 2) for weight in weights)
    return fused_moe(x, router_logits, {"gate_up": gate_up, "down": down}, **options)


def transpose_experts(parameters: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """``gate_up`` as ``[E, H, 2 * I]``, ``down`` as ``[E, I, H]``."""
    return parameters["gate_up"].transpose(1, 2).contiguous(), parameters["down"].transpose(1, 2).contiguous()


def linear_says_few(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Ones, which identify the kernel for few rows."""
    return linear(x, weight, bias) + 1


def linear_says_many(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Twos, which identify the kernel for many rows."""
    return linear(x, weight, bias) + 2


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x * weight + eps``, which identifies the weight."""
    return x * weight + eps


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """:func:`norm` of the sum."""
    return norm(x + residual, weight, eps), x + residual


def sandwich(x: Tensor, residual: Tensor, post: Tensor, pre: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """:func:`norm` before and after the sum."""
    total = residual + norm(x, post, eps)
    return norm(total, pre, eps), total


def embed_scaled(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Rows of ``weight``, scaled."""
    return scale * weight[ids]


def clip(x: Tensor, cap: float) -> Tensor:
    """``x`` between ``-cap`` and ``cap``."""
    return x.clamp(-cap, cap)


def embed(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of ``weight``."""
    return weight[ids]


class FewAttention:
    """An attention backend that says which one it is."""

    name = "few"

    def __init__(self, query: Any, device: torch.device) -> None:
        self.query = query

    def prepare(self, step: Any) -> Any:
        """The step, labelled."""
        return self.name, step

    def write(self, key: Any, value: Any, cache: list[Any], meta: Any) -> None:
        """Notes who wrote, with whose preparation."""
        cache.append((self.name, meta))

    def run(self, query: Any, cache: Any, meta: Any, sinks: Any = None) -> Any:
        """Who ran, with whose preparation."""
        return self.name, meta


class ManyAttention(FewAttention):
    """The other one."""

    name = "many"


def echo_queries(q: Tensor, *_: Any) -> Tensor:
    """The queries as they are, which must have heads side by side, as kernels take them."""
    assert q.stride()[1:] == (q.shape[2], 1)
    return q


def times(x: Tensor, gate: Tensor) -> Tensor:
    """The GEMM."""
    return x * gate


def arguments(*given: Any) -> tuple[Any, ...]:
    """What it was called with."""
    return given


def named_arguments(*given: Any, **options: Any) -> tuple[Any, ...]:
    """What it was called with, and then by name."""
    return *given, options


def make_write(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A composite op that is its attention backend's write."""
    return parts["attention.write"]


def make_run(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """A composite op that is its attention backend's run."""
    return parts["attention.run"]
