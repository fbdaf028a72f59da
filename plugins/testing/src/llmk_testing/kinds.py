"""The kinds of plugin that ``llmk plugins new`` makes, and how each is made to serve.

``acme`` stands for the plugin's name.
"""

from __future__ import annotations

from dataclasses import dataclass

SHADOWED = ("attention", "linear", "moe", "op")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``section``, ``key`` and ``value`` (``is_list``: of several) are the line of configuration by which the plugin
    serves. One that needs none has ``usage`` instead: what to do, a colon, and an example."""

    help: str
    summary: str
    section: str = ""
    key: str = "use"
    value: str = ""
    usage: str = ""
    is_list: bool = False

    @property
    def command(self) -> str:
        """The command that serves with it."""
        return f"llmk serve --{self.section}.{self.key} {self.value}" if self.section else f"# {self.usage}"

    @property
    def readme(self) -> str:
        """The same for a README: what goes into ``llmk.toml``, to serve and to run as a shadow."""
        if not self.section:
            said, _, example = self.usage.partition(": ")
            return f"{said.capitalize()}:\n\n```\n{example}\n```"
        value = f'["{self.value}"]' if self.is_list else f'"{self.value}"'
        text = f"```toml\n# llmk.toml\n[{self.section}]\n{self.key} = {value}\n```"
        if self.section.removeprefix("select.") not in SHADOWED:
            return text
        return (
            f"{text}\n\nor, before you trust it, beside what serves now, compared in a hundredth of the steps:\n\n"
            f'```toml\n[{self.section}]\nshadow = "{self.value}"\nshadow_rate = 0.01\n```\n\n'
            "`GET /metrics` tells then how many calls were compared, and how many differed: `llmk:shadow_…`."
        )


KINDS = {
    "attention": Kind(
        help="keeps keys and values in a layout of its own, and attends to them",
        summary="An attention backend",
        section="select.attention",
        value="acme.attention",
    ),
    "moe": Kind(
        help="mixtures of experts, from the router's output to the weighted sum",
        summary="A kernel for mixtures of experts",
        section="select.moe",
        value="acme.moe",
    ),
    "linear": Kind(
        help="products with weights, plain or quantized",
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
    "platform": Kind(help="a device that models can run on", summary="A platform", section="platform", value="acme"),
    "model": Kind(
        help="a model family, made of llmk's layers",
        summary="A model family",
        usage="name a checkpoint of its architecture: llmk serve CHECKPOINT --select.model.use acme.seed_oss",
    ),
    "quantization": Kind(
        help="a way in which weights are stored, or become stored while they load",
        summary="A quantization method",
        section="model",
        key="quantization",
        value="acme.rounded",
    ),
    "reasoning-parser": Kind(
        help="a dialect in which models write their thinking",
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
        help="requests of another shape than text, turned into prompts and back",
        summary="An IO processor",
        usage='requests name it: POST /v1/io/acme.surprise {"texts": ["some text"]}',
    ),
    "policy": Kind(
        help="who is served first, and who is preempted",
        summary="A scheduling policy",
        section="select.policy",
        value="acme.shortest",
    ),
    "logits-processor": Kind(
        help="changes what tokens are drawn from, for requests that ask for it",
        summary="A logits processor",
        usage='requests name it, with its parameters: "logits_processors": {"acme.no_stutter": {"penalty": 2}}',
    ),
    "stat-logger": Kind(
        help="carries the server's numbers to where they are wanted",
        summary="A stat logger",
        section="server",
        key="stat_loggers",
        value="acme.lines",
        is_list=True,
    ),
    "config": Kind(
        help="defaults for machines, rules for configurations, options of its own, and a look at the plan",
        summary="Defaults and rules for the configuration",
        usage="it takes part wherever it is installed, with options in llmk.toml: plugin.acme.allow_open = true",
    ),
    "tuned-configs": Kind(
        help="measurements of kernels, by which a fresh installation chooses",
        summary="Measurements of kernels",
        usage="measure where the kernels are to run: llmk tune MODEL --platform.measurements src/llmk_acme/measured",
    ),
}
