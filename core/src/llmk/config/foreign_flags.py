"""Options of other servers, which people type by habit, and what they are here."""

from __future__ import annotations

_OPTIONS = {
    "--model": "the model is the first word: llmk serve MODEL",
    "-m": "the model is the first word: llmk serve MODEL",
    "-p": "--port",
    "--device": "--platform.use",
    "--tensor-parallel-size": "--parallel.tensor",
    "-tp": "--parallel.tensor",
    "--tp-size": "--parallel.tensor",
    "--pipeline-parallel-size": "--parallel.pipeline",
    "-pp": "--parallel.pipeline",
    "--gpu-memory-utilization": "--cache.memory-share",
    "--mem-fraction-static": "--cache.memory-share",
    "--kv-cache-dtype": "--cache.dtype",
    "--num-gpu-blocks-override": "--cache.num-blocks",
    "--context-length": "--max-model-len",
    "--ctx-size": "--max-model-len",
    "-c": "--max-model-len",
    "--attention-backend": "--select.attention.use",
    "--reasoning-parser": "--select.reasoning-parser.use",
    "--tool-call-parser": "--select.tool-parser.use",
    "--scheduling-policy": "--select.policy.use",
    "--enforce-eager": "--no-engine.graphs",
    "--ssl-certfile": "--server.tls-certificate",
    "--ssl-keyfile": "--server.tls-key",
    "--revision": "name it with the model: org/name@REVISION",
    "--trust-remote-code": "leave it out: no code of checkpoints is ever run",
    "--enable-auto-tool-choice": "leave it out: the chat template says how tools are called",
    "--enable-prefix-caching": "leave it out: it is on",
    "--enable-chunked-prefill": "leave it out: it is on",
    "--n-gpu-layers": "leave it out: all layers run on one platform, which --platform.use names",
    "-ngl": "leave it out: all layers run on one platform, which --platform.use names",
}
_VALUES = {
    **dict.fromkeys(("half", "fp16", "f16"), "float16"),
    **dict.fromkeys(("bf16",), "bfloat16"),
    **dict.fromkeys(("float", "fp32", "f32"), "float32"),
}
_PREFIXES = {
    "--adapters.": "adapters are set by --set adapters.NAME=FOLDER",
    "--lora-modules": "adapters are set by --set adapters.NAME=FOLDER",
    "--speculative": "see --speculation.use",
}


def hint_for(option: str) -> str:
    """What to write instead of an option or a value of another server, or what looks like one here; empty: unknown."""
    if value := _VALUES.get(option.lower()):
        return f"here, that is {value}"
    name = option.partition("=")[0].replace("_", "-")
    found = _OPTIONS.get(name) or next((text for start, text in _PREFIXES.items() if name.startswith(start)), "")
    return f"here, that is {found}" if found.startswith("--") else found
