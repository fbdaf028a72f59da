"""The contract of executors: what holds a model and carries out the engine's steps, where that is not the engine
itself, which builds the model from torch layers and calls the kernels of the plan.

An executor gets the same steps as the engine's own: which requests enter and leave, which of their tokens to compute,
and the blocks of the cache that hold them. It decides how.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmk.api.cache import CacheSpec
from llmk.api.checkpoint import Checkpoint
from llmk.api.facts import ModelFacts
from llmk.api.plan import Plan
from llmk.api.platform import PlatformFacts
from llmk.api.specs import CheckedSpec, KernelSpec
from llmk.api.verdict import OK, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorQuery:
    """Whether an executor can run a model on a machine. ``tree`` is the model's ``llmk.tree.CausalLM``; ``None``: its
    family gives none. ``cache_dtype`` is that of keys and values. The model is to be spread over ``tensor * pipeline``
    devices."""

    platform: PlatformFacts
    model: ModelFacts
    tree: Any
    dtype: str
    cache_dtype: str
    tensor: int = 1
    pipeline: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec(CheckedSpec):
    """An executor. ``implementation`` names a class that implements :class:`ModelExecutor`. ``supports`` returns
    whether it can run a model on a machine; it imports nothing heavy."""

    id: str
    name: str
    implementation: str
    supports: Callable[[ExecutorQuery], Verdict] = lambda query: OK
    knows: frozenset[str] = frozenset()
    """What it can do beyond sampling tokens at a temperature, an open set. Of a configuration: ``"adapters"``,
    ``"deterministic"``, ``"dummy_weights"``, ``"kernels"`` (named in ``[select]``), ``"pooling"``, ``"quantization"``,
    ``"shadows"``, ``"speculation"``. Of requests:
    ``"embeddings"``, and the names of sampling parameters that act on logits (``"top_k"``, ``"logprobs"``). What it
    doesn't name is refused by name: a configuration at the start, a request before it is queued."""
    kernels: tuple[KernelSpec, ...] = ()
    """Its own kernels for sites of the model, by kind (attention, linear, MoE), from which the plan chooses as from the
    engine's: by needs, verdicts, tiers and the user's rules. ``implementation`` is the executor's to load and to call.
    Sites of a kind for which it has none appear in the plan by its ``summary``."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorContext:
    """What an executor is made from: the fields of its :class:`ExecutorQuery`, and the limits of the engine.

    Attributes:
        plan: the choices, among them those of the executor's kernels, for the shapes of one device.
        checkpoint: where the weights are. ``llmk.nn.tensor_file.stored_tensors(checkpoint)`` lists its tensors, of any
            format: each is bytes ``start`` to ``stop - 1`` of ``file.open()``, or what its ``decode`` makes of them.
            ``llmk.tree.weight_map(llmk.tree.lower(query.tree, fuse=False))`` are the names and shapes that the model
            wants; ``aliases`` and ``modules`` of the tree's linear layers are other names, and parts, that checkpoints
            may have in their place. Where that lists quantization, weights are other tensors: refuse it, unless
            ``knows`` has it.
        block_size: tokens per block of attention caches.
        max_model_len: tokens of the longest request, prompt and output.
        max_num_seqs: slots, so the most requests in a step.
        max_num_batched_tokens: most tokens of a step.
        warm_up: whether everything that is compiled is to be compiled before the first request.
        options: the plugin's section of the configuration, checked.
    """

    query: ExecutorQuery
    plan: Plan
    checkpoint: Checkpoint
    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    warm_up: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


class LayerGroup(Protocol):
    """Layers that have one block table. ``layers`` are indices in :attr:`ModelExecutor.cache_specs`."""

    @property
    @abstractmethod
    def block_size(self) -> int: ...

    @property
    @abstractmethod
    def layers(self) -> Sequence[int]: ...


class StepSampling(Protocol):
    """The sampling parameters of a request that executors may know. An executor sees values other than their neutral
    ones only of those that its spec names."""

    @property
    @abstractmethod
    def temperature(self) -> float: ...

    @property
    @abstractmethod
    def top_k(self) -> int: ...

    @property
    @abstractmethod
    def top_p(self) -> float: ...

    @property
    @abstractmethod
    def min_p(self) -> float: ...


class StepRequest(Protocol):
    """A request that enters the batch at ``slot``. ``token_ids`` are all tokens known so far, of which the first
    ``num_computed`` are in the cache already: those of a prefix that another request left there. ``block_ids`` has one
    list per cache group: token number ``i`` (from 0, which is its position too) is in block ``i // block_size`` of the
    list, at ``i % block_size``, where ``block_size`` is that of the group. ``seed`` is that of its random choices: with
    a token's number, it alone decides what is drawn from a distribution.

    A request that was preempted enters again, with the tokens that it had got as known ones, in any slot."""

    slot: int

    @property
    @abstractmethod
    def token_ids(self) -> Sequence[int]: ...

    num_computed: int

    @property
    @abstractmethod
    def block_ids(self) -> Sequence[Sequence[int]]: ...

    @property
    @abstractmethod
    def params(self) -> StepSampling: ...

    seed: int


class StepWork(Protocol):
    """Compute the next ``num_tokens`` tokens of ``slot``, after the ``before`` tokens that are in the cache by then.

    These are at positions ``before`` to ``before + num_tokens - 1``, which are their indices in the known tokens, too.
    ``new_blocks`` (one list per cache group, or none at all) are appended to its block tables first. With ``sample``,
    the last known token is among these tokens: the next is sampled from its logits, and is the request's known token
    number ``before + num_tokens``. A later step may compute it before its result was read.

    That number is the position of :func:`llmk.reference.sampling.sample.sample`, which draws by ``(seed, position)``
    alone: any executor that draws like it gives the same tokens as the engine, in any batch and after a preemption.
    Without ``sample``, nothing is sampled, and the tokens behind are known already."""

    slot: int
    before: int
    num_tokens: int

    @property
    @abstractmethod
    def new_blocks(self) -> Sequence[Sequence[int]]: ...

    sample: bool


class Step(Protocol):
    """One step. The slots in ``freed`` are vacant from this step on, before those of ``new`` are filled. There may be
    no ``work``."""

    step: int

    @property
    @abstractmethod
    def freed(self) -> Sequence[int]: ...

    @property
    @abstractmethod
    def new(self) -> Sequence[StepRequest]: ...

    @property
    @abstractmethod
    def work(self) -> Sequence[StepWork]: ...


@dataclass(frozen=True, slots=True)
class StepTokens:
    """The sampled tokens of a step: one per work item with ``sample``, in the plan's order. ``broken`` are the numbers
    of those (among ``token_ids``) whose logits are NaN or infinite; their tokens mean nothing."""

    token_ids: Sequence[int]
    broken: Sequence[int] = ()


class PendingTokens(Protocol):
    """A step that was issued."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether :meth:`result` would return at once. Does not wait; true where it can't be known. The engine puts the
        next step off no longer than this is false."""
        ...

    @abstractmethod
    def result(self) -> StepTokens:
        """Waits for the step's tokens. Called once per step, in the order of the steps."""
        ...


class ModelExecutor(Protocol):
    """Holds a model and its cache, and carries out steps in the order in which they are submitted. It is made in the
    engine's process, and loads the weights when it is made.

    ``asynchronous`` says, in words, why steps run while the host does something else; it is empty where :meth:`submit`
    itself runs them. ``cache_specs`` are what the layers keep, in the order of the layers.
    """

    asynchronous: str
    cache_specs: Sequence[CacheSpec]

    @abstractmethod
    def __init__(self, context: ExecutorContext) -> None: ...

    @abstractmethod
    def available(self) -> int:
        """Bytes that are free for the cache, once what steps need is taken off."""
        ...

    @abstractmethod
    def allocate(self, num_blocks: int, groups: Sequence[LayerGroup]) -> None:
        """Allocates the cache, whose blocks are numbered from 0 to ``num_blocks - 1`` and shared by all groups, and
        gets ready for steps. Called once."""
        ...

    @abstractmethod
    def submit(self, step: Step) -> PendingTokens:
        """Issues a step without waiting for it. What is read of ``step`` after this returns must be copied. Raises
        :class:`~llmk.api.EngineDead` where no more steps can be run."""
        ...

    def close(self) -> None:
        """Ends what it started, if anything. Idempotent."""
        return
