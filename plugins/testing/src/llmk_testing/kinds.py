"""The kinds of plugin that ``llmk plugins new`` creates, and how each is selected.

``acme`` stands for the plugin's name.
"""

from __future__ import annotations

from dataclasses import dataclass

SHADOWED = ("attention", "linear", "moe", "op")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``section``, ``key`` and ``value`` (``is_list``: a list) are the configuration that selects the plugin. A plugin
    that needs none has ``usage`` instead: an instruction, a colon, and an example."""

    help: str
    summary: str
    section: str = ""
    key: str = "use"
    value: str = ""
    usage: str = ""
    is_list: bool = False

    @property
    def command(self) -> str:
        """The command that serves with the plugin."""
        return f"llmk serve --{self.section}.{self.key} {self.value}" if self.section else f"# {self.usage}"

    @property
    def readme(self) -> str:
        """The same for a README: the lines of ``llmk.toml`` to use it, and to run it as a shadow."""
        if not self.section:
            said, _, example = self.usage.partition(": ")
            return f"{said.capitalize()}:\n\n```\n{example}\n```"
        value = f'["{self.value}"]' if self.is_list else f'"{self.value}"'
        text = f"```toml\n# llmk.toml\n[{self.section}]\n{self.key} = {value}\n```"
        if self.section.removeprefix("select.") not in SHADOWED:
            return text
        return (
            f"{text}\n\nor, before you trust it, as a shadow of the kernel in use, compared in 1% of the steps:\n\n"
            f'```toml\n[{self.section}]\nshadow = "{self.value}"\nshadow_rate = 0.01\n```\n\n'
            "`GET /metrics` then reports how many calls were compared, and how many differed: `llmk_shadow_…`."
        )


KINDS = {
    "attention": Kind(
        help="paged attention with a cache layout of its own",
        summary="An attention backend",
        section="select.attention",
        value="acme.attention",
    ),
    "moe": Kind(
        help="mixture of experts, from router logits to the weighted sum",
        summary="A kernel for mixtures of experts",
        section="select.moe",
        value="acme.moe",
    ),
    "linear": Kind(
        help="GEMMs with plain or quantized weights",
        summary="A linear kernel",
        section="select.linear",
        value="acme.linear",
    ),
    "op": Kind(
        help="norms, activations, rotary embedding, sampling, and fusions of them",
        summary="An op",
        section="select.op",
        value="acme.rms_norm",
    ),
    "op-contract": Kind(
        help="an op of your own, with what is right, and a kernel of it",
        summary="An op of its own",
        section="select.llmk_acme_tanh",
        value="acme.tanh_in_place",
    ),
    "platform": Kind(help="a device that models can run on", summary="A platform", section="platform", value="acme"),
    "model": Kind(
        help="a model family, made of llmk's layers",
        summary="A model family",
        usage="name a checkpoint of its architecture: llmk serve CHECKPOINT --select.model.use acme.seed_oss",
    ),
    "model-source": Kind(
        help="gets models that are named, rather than given as a folder",
        summary="A source of models",
        usage="name a model that it claims: llmk serve acme:NAME --set plugin.acme.shelf=/srv/models",
    ),
    "checkpoint-format": Kind(
        help="checkpoints that are not Hugging Face folders",
        summary="A format of checkpoints",
        usage="name a file of the format: llmk serve model.bundle",
    ),
    "quantization": Kind(
        help="a format of stored weights, or a quantization of plain weights while they load",
        summary="A quantization method",
        section="model",
        key="quantization",
        value="acme.rounded",
    ),
    "reasoning-parser": Kind(
        help="a dialect in which models write reasoning",
        summary="A reasoning parser",
        section="select.reasoning_parser",
        value="acme.thoughts",
    ),
    "tool-parser": Kind(
        help="a dialect in which models call tools",
        summary="A tool parser",
        section="select.tool_parser",
        value="acme.brackets",
    ),
    "io-processor": Kind(
        help="requests other than chat and completions, converted to prompts and back",
        summary="An IO processor",
        usage='requests name it: POST /v1/io/acme.surprise {"texts": ["some text"]}',
    ),
    "policy": Kind(
        help="which request is served first, and which is preempted",
        summary="A scheduling policy",
        section="select.policy",
        value="acme.shortest",
    ),
    "router": Kind(
        help="which of several replicas gets a request",
        summary="A router",
        section="select.router",
        value="acme.nearest",
    ),
    "logits-processor": Kind(
        help="changes logits before sampling, for requests that name it",
        summary="A logits processor",
        usage='requests name it, with its parameters: "logits_processors": {"acme.no_stutter": {"penalty": 2}}',
    ),
    "speculator": Kind(
        help="drafts tokens, of which the model verifies several in one step",
        summary="A speculator",
        section="speculation",
        value="acme.pairs",
    ),
    "grammar": Kind(
        help="what the outputs of requests must match",
        summary="A compiler of grammars",
        section="select.grammar",
        value="acme.choices",
    ),
    "route": Kind(
        help="a route of an HTTP API other than OpenAI's",
        summary="A route",
        usage='requests name its path: POST /acme/ask {"question": "Why?"}',
    ),
    "command": Kind(
        help="a command of llmk",
        summary="A command",
        usage="it is called by its name: llmk acme-count prompts.jsonl",
    ),
    "stat-logger": Kind(
        help="exports the server's metrics",
        summary="A stat logger",
        section="server",
        key="stat_loggers",
        value="acme.lines",
        is_list=True,
    ),
    "launcher": Kind(
        help="what starts the processes of a model that is spread over devices",
        summary="A launcher",
        section="select.launcher",
        value="acme.prefixed",
    ),
    "page": Kind(
        help="a page for browsers, which the server serves",
        summary="A page",
        usage="open it while llmk serves: http://localhost:8000/acme",
    ),
    "config": Kind(
        help="platform defaults, configuration checks, its own options, and a look at the plan",
        summary="Defaults and rules for the configuration",
        usage="it is active once installed, with options in llmk.toml: plugin.acme.allow_open = true",
    ),
    "tuned-configs": Kind(
        help="kernel measurements, which a fresh installation uses to choose",
        summary="Measurements of kernels",
        usage="measure on the target machine: llmk tune MODEL --platform.measurements src/llmk_acme/measured",
    ),
}
