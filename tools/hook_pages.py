"""What the page of a hook says of its specs, contracts, checks and first-party implementations."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from docstrings import document, listed
from first_party import registry
from generated import ROOT, Page, code, table
from signature_names import is_linked, others

from llmk.api import KernelSpec, Tier, hooks
from llmk.kernel.registry import HOOKS as KINDS
from llmk.kernel.registry import Registered

HOOKS = {name: hook for name, hook in vars(hooks).items() if name.startswith("llmk_")}
FOLDER = "docs/plugins/hooks"
DEFECTS = ROOT / "tests/conformance/defects"
KIT = ROOT / "docs/plugins/conformance.md"
_CODE = re.compile(r"`([^`]+)`")

CONTRACTS = {
    "llmk_platforms": (
        *(f"llmk.api.platform:{name}" for name in ("Platform", "PlatformFacts")),
        *("llmk.api.platform:Host", "llmk.api.platform:Probe"),
        *(f"llmk.api.platform:{name}" for name in ("Device", "Memory", "Graphs", "Compiling")),
        *(f"llmk.api.platform:{name}" for name in ("Collectives", "AllReduce")),
        "llmk.api.ranks:RankRules",
    ),
    "llmk_executors": (
        *(f"llmk.api.engine.executors:{name}" for name in ("ModelExecutor", "ExecutorContext", "ExecutorQuery")),
        *(
            f"llmk.api.engine.executors:{name}"
            for name in ("Step", "StepRequest", "StepSampling", "StepWork", "LayerGroup")
        ),
        *(
            "llmk.api.engine.executors:PendingTokens",
            "llmk.api.engine.executors:StepTokens",
            "llmk.api.cache:CacheSpec",
        ),
    ),
    "llmk_launchers": (
        *(f"llmk.api.engine.launchers:{name}" for name in ("RankLauncher", "LaunchContext", "LaunchQuery")),
        *("llmk.api.engine.launchers:RankPlace", "llmk.api.engine.launchers:RankProcess", "llmk.api.ranks:RankRules"),
    ),
    "llmk_attention_backends": (
        *("llmk.api.attention:AttentionBackend", "llmk.api.attention:CacheLayout"),
        *("llmk.api.cache:CacheStep", "llmk.api.query:AttentionQuery", "llmk.api.query:Query"),
    ),
    "llmk_linear_kernels": (
        *("llmk.api.kernels:LinearKernel", "llmk.api.kernels:Prepare", "llmk.api.kernels:LooksUp"),
        *("llmk.api.query:LinearQuery", "llmk.api.query:Query"),
    ),
    "llmk_moe_kernels": (
        *("llmk.api.kernels:MoEKernel", "llmk.api.kernels:Prepare"),
        *("llmk.reference.moe:fused_moe", "llmk.api.query:MoEQuery"),
        *("llmk.api.facts:MoEFacts", "llmk.api.query:Query"),
    ),
    "llmk_ops": (
        *("llmk.api.kernels:Op", "llmk.api.kernels:CompositeOp"),
        *("llmk.api.query:OpQuery", "llmk.api.facts:OpFacts", "llmk.api.query:Query"),
    ),
    "llmk_model_sources": tuple(
        f"llmk.api.loading.model_source:{name}"
        for name in ("ModelSource", "ModelSourceContext", "FetchedModel", "StoredModel")
    ),
    "llmk_checkpoint_formats": (
        *("llmk.api.loading.checkpoint_format:ReadCheckpoint", "llmk.api.checkpoint:Checkpoint"),
        *("llmk.api.checkpoint:CheckpointReader", "llmk.api.checkpoint:StoredTensor"),
        *("llmk.api.checkpoint:DecodeRows", "llmk.api.checkpoint:CheckpointFile"),
    ),
    "llmk_quantization_methods": ("llmk.nn.quantization:Quantization", "llmk.api.checkpoint:Checkpoint"),
    "llmk_models": (
        *("llmk.nn.model:Model", "llmk.nn.model:SelfLoading"),
        *("llmk.api.facts:DescribeModel", "llmk.api.checkpoint:Checkpoint"),
        *(f"llmk.api.facts:{name}Facts" for name in ("Model", "Attention", "Recurrent", "Linear", "MoE", "Op")),
    ),
    "llmk_reasoning_parsers": (
        *("llmk.api.parsers:ReasoningParser", "llmk.api.parsers:ParserContext"),
        *("llmk.api.parsers:TextDelta", "llmk.api.parsers:ReasoningDelta"),
    ),
    "llmk_tool_parsers": (
        *("llmk.api.parsers:ToolParser", "llmk.api.parsers:ParserContext", "llmk.api.parsers:TextDelta"),
        *(f"llmk.api.parsers:ToolCall{name}" for name in ("Start", "Arguments", "End", "Failed")),
        *("llmk.api.parsers:CallWriter", "llmk.api.parsers:WrittenCall"),
    ),
    "llmk_io_processors": tuple(
        f"llmk.api.io:IO{name}" for name in ("Processor", "Request", "Prompt", "Output", "Context", "Tokenizer")
    ),
    "llmk_scheduling_policies": tuple(
        f"llmk.api.engine.policy:{name}" for name in ("SchedulingPolicy", "Ticket", "PolicyContext")
    ),
    "llmk_routers": tuple(
        f"llmk.api.engine.routing:{name}" for name in ("Router", "RoutedRequest", "ReplicaState", "RouterContext")
    ),
    "llmk_logits_processors": tuple(
        f"llmk.api.decoding.logits:Logits{name}" for name in ("Processor", "Batch", "Request", "Rows")
    ),
    "llmk_speculators": tuple(
        f"llmk.api.decoding.speculator:{name}"
        for name in ("Speculator", "DeviceSpeculator", "HeadSpeculator", "DraftHeads", "SpeculatorContext")
    ),
    "llmk_grammars": (
        *(
            "llmk.api.decoding.grammar:GrammarCompiler",
            "llmk.api.decoding.grammar:GrammarContext",
            "llmk.api.decoding.grammar:GrammarLimits",
        ),
        *("llmk.api.decoding.grammar:CompiledGrammar", "llmk.api.decoding.grammar:Grammar"),
    ),
    "llmk_stat_loggers": (
        *("llmk.api.stats:StatLogger", "llmk.api.stats:StatLoggerContext"),
        *("llmk.api.stats:StatsSnapshot", "llmk.api.stats:Stat"),
    ),
    "llmk_commands": ("llmk.api.hooks:Command",),
    "llmk_config_defaults": ("llmk.api.platform:PlatformFacts", "llmk.api.facts:ModelFacts"),
    "llmk_check_config": ("llmk.api.platform:PlatformFacts",),
    "llmk_plan_resolved": ("llmk.api.plan:Plan", "llmk.api.plan:Choice", "llmk.api.plan:Piece"),
}
"""What an implementation follows, and what it is given."""

_TESTING = "llmk_testing"
EXAMPLES = {
    "llmk_platforms": (f"{_TESTING}.platform_example:PlatformExample",),
    "llmk_moe_kernels": ("llmk.reference.moe:MoEExamples",),
    "llmk_ops": ("llmk.reference.op_examples:OpExamples", "llmk.reference.op_examples:Draw"),
    "llmk_models": (f"{_TESTING}.model_example:ModelExample",),
    "llmk_model_sources": (f"{_TESTING}.model_sources:SourceExample",),
    "llmk_checkpoint_formats": tuple(f"{_TESTING}.format_example:Format{name}" for name in ("Example", "Content")),
    "llmk_quantization_methods": tuple(
        f"{_TESTING}.quantization_example:{name}" for name in ("QuantizationExample", "ConfigExample")
    ),
    "llmk_reasoning_parsers": (f"{_TESTING}.parser_example:ParserExample",),
    "llmk_tool_parsers": (f"{_TESTING}.parser_example:ParserExample",),
    "llmk_scheduling_policies": (f"{_TESTING}.policy_examples:PolicyExamples",),
    "llmk_routers": (f"{_TESTING}.router_examples:RouterExamples",),
    "llmk_routes": (f"{_TESTING}.route_examples:RouteExamples",),
    "llmk_io_processors": (f"{_TESTING}.suites.io_processor:IOExamples",),
    "llmk_logits_processors": (f"{_TESTING}.logits_examples:LogitsExamples",),
    "llmk_stat_loggers": (f"{_TESTING}.stat_examples:StatExamples",),
    "llmk_commands": (f"{_TESTING}.command_example:CommandExample",),
}
"""What a spec's ``examples`` may name."""

_ERRORS = ("LlmkError", "ConfigError", "CheckpointError", "ModelNotFound", "UnsupportedOption", "RequestError")
GENERAL = (
    *(f"llmk.api.verdict:{name}" for name in ("Verdict", "Reason", "no")),
    *(f"llmk.api.errors:{name}" for name in (*_ERRORS, "NotEnoughResources", "EngineDead")),
)
"""What plugins of all kinds return and raise."""

WITH_KERNELS = ("llmk.api.specs:Needs", "llmk.api.specs:TokenBand", "llmk.api.specs:Tier")


def pages() -> Iterator[Page]:
    """The page of every hook, and their list."""
    yield Page(f"{FOLDER}/index.md", {"hook_pages.py": overview})
    for name in HOOKS:
        yield Page(_path(name), {"hook_pages.py": partial(render, name)})


def overview() -> str:
    """A row for each hook."""
    rows = []
    for name in HOOKS:
        purpose = re.search(r"\*\*Purpose:\*\*\s+(.+?)\n\n", (ROOT / _path(name)).read_text(), re.S)
        if purpose is None:
            raise ValueError(f"{_path(name)} doesn't say what the hook is for")
        rows.append((f"[`{name}`]({Path(_path(name)).name})", purpose[1].replace("\n", " ")))
    return f"{table(('hook', 'what it is for'), rows)}\n\n## Verdicts and errors\n\n{_listed(GENERAL)}"


def _path(name: str) -> str:
    return f"{FOLDER}/{name.removeprefix('llmk_')}.md"


def render(name: str) -> str:
    """What is made of the page of the hook ``name``."""
    parts = list(returned(name)), CONTRACTS.get(name, ()), EXAMPLES.get(name, ())
    sections = [
        ("Signature", f"```text\n{document(f'{hooks.__name__}:{name}').signature}\n```"),
        ("What it returns", _listed(parts[0])),
        ("What it follows, and is given", _listed(parts[1])),
        ("What the conformance kit is given", f"{_examples(name)}\n\n{_listed(parts[2])}".strip()),
        ("Other names", _others([at for part in parts for at in part])),
        ("Ops of the core", _ops() if name == "llmk_ops" else ""),
        ("Mistakes that the conformance kit finds", _defects(name)),
        ("In this repository", _specs(name)),
    ]
    return "\n\n".join(f"## {title}\n\n{text.strip()}" for title, text in sections if text)


def _examples(hook: str) -> str:
    """What specs of the hook name as ``examples``, by the table of the kit's page."""
    rows = (re.split(r"(?<!\\\\)\|", line)[1:-1] for line in KIT.read_text().splitlines() if line.startswith("| `"))
    found = [row[2].strip() for row in rows if len(row) == 3 and {*KINDS.get(hook, ())} & {*_CODE.findall(row[0])}]
    told = next((cell for cell in found if cell and not cell.startswith("of `")), "")
    return f"`examples` of a spec names {told} ([what is checked](../conformance.md#what-is-checked))." if told else ""


def _listed(locations: Iterable[str]) -> str:
    return "\n".join(listed(document(at), 3) for at in locations)


def _others(locations: Sequence[str]) -> str:
    """What the signatures name that the page does not explain: links to where it is, and definitions."""
    links, own = [], []
    for at in others(locations, _explained()):
        name = at.partition(":")[2]
        page = f"../{at.split('.')[1]}.md" if is_linked(at) else _explained().get(at, "")
        if page:
            links.append(f"[`{name}`]({page}#{name.lower()})")
        else:
            own.append(at)
    elsewhere = f"On other pages: {', '.join(links)}." if links else ""
    return f"{elsewhere}\n\n{_listed(own)}".strip()


@cache
def _explained() -> dict[str, str]:
    """The pages on which types of several hooks are explained."""
    pages = dict.fromkeys(GENERAL, "index.md")
    for name in HOOKS:
        for at in (*CONTRACTS.get(name, ()), *returned(name)):
            pages.setdefault(at, Path(_path(name)).name)
    return pages


def returned(name: str) -> Iterator[str]:
    """The types of what a hook returns, of ``llmk.api``."""
    found = re.fullmatch(r"Iterable\[([\w| ]+)\]", str(inspect.signature(HOOKS[name]).return_annotation))
    types = found[1].split(" | ") if found else []
    yield from (f"{vars(hooks)[each].__module__}:{each}" for each in types)
    if "KernelSpec" in types:
        yield from WITH_KERNELS


def _ops() -> str:
    """Every op of which a wheel has the contract, what that says of it, and where its reference is."""
    references = [r.spec for r in registry().kernels("op") if r.spec.tier is Tier.REFERENCE]
    specs = {spec.op: spec for spec in sorted(references, key=lambda spec: spec.id == f"reference.{spec.op}")}
    lines = []
    for op, contract in sorted(registry().contracts.items()):
        lists = (
            ("Facts", contract.facts),
            ("Parts", contract.parts),
            ("Changes", contract.mutates_args),
            ("Spans", contract.pattern),
        )
        more = "".join(f" {title}: {code(*names)}." for title, names in lists if names)
        call = f"`{op}{contract.signature}`"
        lines.append(f"- {call}: {contract.summary}{more} Reference: `{_definition(specs[op])}`.")
    return "\n".join(lines)


def _definition(spec: KernelSpec) -> str:
    module, _, name = spec.implementation.partition(":")
    try:
        return f"{module}.{document(spec.implementation).signature}"
    except LookupError:
        return f"{getattr(importlib.import_module(module), name).__module__}.{name}"


def _defects(name: str) -> str:
    """The planted defects of the kind, all of which its suite is known to find."""
    kind = next(iter(KINDS.get(name, ())), "")
    file = DEFECTS / f"{kind}.py"
    file = file if file.exists() else DEFECTS / f"{kind.rpartition('_')[2]}.py"
    if not kind or not file.exists():
        return ""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    told = [_told(call) for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Defect"]
    rows = [(f"`{id}`", what) for id, what in told if id]
    intro = "The suite of this kind was tried on providers that are right but for one of these, and fails each:"
    return f"{intro}\n\n{table(('defect', 'what is wrong'), rows)}" if rows else ""


def _told(call: ast.Call) -> tuple[str, str]:
    texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return (texts[0], texts[1]) if len(texts) > 1 else ("", "")


def _specs(name: str) -> str:
    """What the repository's own wheels register by the hook."""
    if name not in KINDS:
        wheels = sorted({plugin.distribution for plugin in registry().plugins if name in plugin.hooks})
        return f"Implemented by {code(*wheels)}." if wheels else "No wheel of this repository implements it."
    kind, spec_type = next(iter(KINDS[name].items()))
    found: list[Registered[Any]] = registry().of(spec_type, kind)
    if not found:
        return "No wheel of this repository registers any."
    rows = [(f"`{r.spec.id}`", f"`{r.plugin.distribution}`", getattr(r.spec, "summary", "")) for r in found]
    return table(("id", "wheel", "what it is"), rows)
