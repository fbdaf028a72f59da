"""The plugin module."""

from __future__ import annotations

from llmk.api import (
    OK,
    AttentionQuery,
    Checkpoint,
    IOProcessorSpec,
    KernelSpec,
    LinearQuery,
    LogitsProcessorSpec,
    ModelSpec,
    MoEQuery,
    Needs,
    ParserQuery,
    ParserSpec,
    PolicySpec,
    QuantizationSpec,
    Tier,
    Verdict,
    hookimpl,
    no,
)

_DTYPES = Needs(dtypes=("bfloat16", "float16", "float32"))


@hookimpl
def llmk_scheduling_policies() -> list[PolicySpec]:
    """Two lanes."""
    return [
        PolicySpec(
            id="orchard.lanes",
            name="lanes",
            implementation="llmk_orchard.lanes:Lanes",
            examples="llmk_orchard.examples:LANES",
            summary="short prompts overtake long ones, four at a time",
        )
    ]


@hookimpl
def llmk_logits_processors() -> list[LogitsProcessorSpec]:
    """No repeats."""
    return [
        LogitsProcessorSpec(
            id="orchard.no_repeats",
            implementation="llmk_orchard.ngrams:NoRepeats",
            examples="llmk_orchard.examples:NO_REPEATS",
            summary="no n tokens in a row are said twice",
        )
    ]


@hookimpl
def llmk_io_processors() -> list[IOProcessorSpec]:
    """Similar documents."""
    return [
        IOProcessorSpec(
            id="orchard.similar",
            name="similar",
            implementation="llmk_orchard.similar:Similar",
            examples="llmk_orchard.examples:SIMILAR",
            summary="documents by how alike they are to a query",
        )
    ]


def claims_leaves(query: ParserQuery) -> Verdict:
    """By the marker in the template."""
    if "@call " in (query.checkpoint.chat_template or ""):
        return OK
    return no("dialect", wanted="@call in the chat template", found="none")


@hookimpl
def llmk_tool_parsers() -> list[ParserSpec]:
    """Calls in lines."""
    return [
        ParserSpec(
            id="orchard.leaves",
            name="leaves",
            implementation="llmk_orchard.leaves:Leaves",
            claims=claims_leaves,
            writer="llmk_orchard.leaves:WRITER",
            examples="llmk_orchard.examples:LEAVES",
            summary="@call, @arg and @end in lines of their own",
        )
    ]


def claims_plain(checkpoint: Checkpoint) -> Verdict:
    """Plain checkpoints."""
    if not checkpoint.quantization:
        return OK
    found = checkpoint.quantization.get("quant_method", "unnamed")
    return no("quantized", wanted="plain weights", found=found, hint="leave out model.quantization")


@hookimpl
def llmk_quantization_methods() -> list[QuantizationSpec]:
    """4 bits while loading."""
    return [
        QuantizationSpec(
            id="orchard.halved",
            name="halved",
            weight_format="int4_group",
            claims=claims_plain,
            implementation="llmk_orchard.halves:Halved",
            online=True,
            examples="llmk_orchard.examples:HALVED",
            summary="4 bits while loading, groups of 64",
        )
    ]


def supports_strips(query: LinearQuery) -> Verdict:
    """Plain weights and 8-bit numbers with a scale per output."""
    if query.weight_format in ("plain", "int8_channel"):
        return OK
    return no("weight_format", wanted=query.weight_format, found="plain or int8_channel")


@hookimpl
def llmk_linear_kernels() -> list[KernelSpec]:
    """Strips."""
    return [
        KernelSpec(
            id="orchard.strips",
            kind="linear",
            implementation="llmk_orchard.strips:linear",
            prepare="llmk_orchard.strips:prepare",
            layout="orchard_strips",
            tier=Tier.PORTABLE,
            needs=_DTYPES,
            supports=supports_strips,
            summary="strips of 48 outputs",
        )
    ]


@hookimpl
def llmk_ops() -> list[KernelSpec]:
    """A norm and an activation."""
    return [
        KernelSpec(
            id=f"orchard.{op}",
            kind="op",
            op=op,
            implementation=f"llmk_orchard.norms:{op}",
            tier=Tier.PORTABLE,
            needs=_DTYPES,
            knows=knows,
            capture="full",
            summary=summary,
        )
        for op, knows, summary in (
            ("rms_norm", frozenset({"norm_offset"}), "the root-mean-square norm"),
            ("silu_and_mul", frozenset[str](), "the gated SiLU"),
        )
    ]


def claims_rings(query: ParserQuery) -> Verdict:
    """By the marker in the template."""
    if "<ring>" in (query.checkpoint.chat_template or ""):
        return OK
    return no("dialect", wanted="<ring> in the chat template", found="none")


@hookimpl
def llmk_reasoning_parsers() -> list[ParserSpec]:
    """Thoughts in rings."""
    return [
        ParserSpec(
            id="orchard.rings",
            name="rings",
            implementation="llmk_orchard.rings:Rings",
            claims=claims_rings,
            markers=("<ring>", "</ring>"),
            examples="llmk_orchard.more_examples:RINGS",
            summary="any number of <ring> blocks",
        )
    ]


def supports_vines(query: AttentionQuery) -> Verdict:
    """Keys and values of one size, in the engine's dtype."""
    if query.cache_dtype != query.dtype:
        return no("cache_dtype", wanted=query.cache_dtype, found=query.dtype)
    return OK


@hookimpl
def llmk_attention_backends() -> list[KernelSpec]:
    """Vines."""
    return [
        KernelSpec(
            id="orchard.vines",
            kind="attention",
            implementation="llmk_orchard.vines:Vines",
            layout="orchard_vines",
            tier=Tier.PORTABLE,
            needs=_DTYPES,
            supports=supports_vines,
            knows=frozenset({"sliding_window", "softcap", "sinks"}),
            summary="request by request",
        )
    ]


def supports_baskets(query: MoEQuery) -> Verdict:
    """Gated experts in one group, with plain weights."""
    verdict = OK
    if query.activation not in ("silu", "gelu_tanh"):
        verdict &= no("activation", wanted=query.activation, found="silu or gelu_tanh")
    if query.scoring not in ("softmax", "sigmoid"):
        verdict &= no("scoring", wanted=query.scoring, found="softmax or sigmoid")
    if query.weight_format != "plain":
        verdict &= no("weight_format", wanted=query.weight_format, found="plain")
    return verdict


@hookimpl
def llmk_moe_kernels() -> list[KernelSpec]:
    """Baskets."""
    return [
        KernelSpec(
            id="orchard.baskets",
            kind="moe",
            implementation="llmk_orchard.baskets:baskets",
            prepare="llmk_orchard.baskets:prepare",
            layout="orchard_baskets",
            tier=Tier.PORTABLE,
            needs=_DTYPES,
            supports=supports_baskets,
            knows=frozenset({"activation", "renormalize", "scoring", "scaling", "bias"}),
            summary="expert by expert",
        )
    ]


@hookimpl
def llmk_models() -> list[ModelSpec]:
    """Jais 2."""
    return [
        ModelSpec(
            id="orchard.jais2",
            architectures=("Jais2ForCausalLM",),
            tree="llmk_orchard.jais:tree",
            deterministic=True,
            examples="llmk_orchard.more_examples:JAIS",
            summary="Jais 2 decoders",
        )
    ]
