"""llmk: a plugin-registry microkernel that serves large language models.

``from llmk import LLM, SamplingParams`` is the embedded Python API; everything else is reached through its own package.
Nothing heavy is imported until it is used, so that ``import llmk`` stays quick and needs no torch. Nothing at all is
imported here, ``__future__`` included: with ``python -m llmk`` it would be looked for in the working directory.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from llmk.engine.async_llm import AsyncLLM
    from llmk.engine.llm import LLM
    from llmk.engine.wire.grammar_params import GrammarParams
    from llmk.engine.wire.request import RequestContext
    from llmk.engine.wire.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "GrammarParams", "RequestContext", "SamplingParams", "__version__"]

_LAZY = {
    "LLM": "llmk.engine.llm",
    "AsyncLLM": "llmk.engine.async_llm",
    "GrammarParams": "llmk.engine.wire.grammar_params",
    "RequestContext": "llmk.engine.wire.request",
    "SamplingParams": "llmk.engine.wire.request",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'llmk' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_LAZY[name]), name)
    return found
