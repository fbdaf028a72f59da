"""The engines, behind one interface. Each imports its library when it starts, so that start-up counts it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Setup:
    """What engines are started with. ``dummy``: weights are made up; ``settings`` are the engine's own, by name."""

    model: str
    dummy: bool
    max_len: int
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timing:
    """One request: tokens that came, seconds to the first, and seconds for each after it, where the engine tells."""

    tokens: int
    first: float | None = None
    each: float | None = None


class Engine(Protocol):
    """An engine that answers a batch of prompts, greedily and to their full length."""

    def __init__(self, setup: Setup) -> None: ...

    def start(self) -> dict[str, str]:
        """Loads library and model, to the point where a request can be answered; returns versions."""
        ...

    def generate(self, prompts: Sequence[list[int]], new: int) -> list[Timing]:
        """Answers all prompts, handed over at once, with ``new`` tokens each."""
        ...

    def close(self) -> None:
        """Ends what :meth:`start` began."""
        ...


class Llmk:
    """llmk's asynchronous front end with the engine in a process of its own, as the server has it."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._loop = asyncio.Runner()
        self._requests = 0

    def start(self) -> dict[str, str]:
        """Starts the engine's process, before anything else, as ``llmk serve`` does."""
        from llmk.engine.processes.spawn import AHEAD, spawn

        spawned = spawn(AHEAD)
        from importlib.metadata import version

        from llmk import AsyncLLM
        from llmk.config import load

        setup = self._setup
        settings = {"model.path": setup.model, "model.max_model_len": setup.max_len, "server.log_level": "warning"}
        settings["model.load_format"] = "dummy" if setup.dummy else "safetensors"
        self._llm = self._loop.run(AsyncLLM.start(load(settings | setup.settings), spawned=spawned))
        return {"version": version("llmk-core"), "platform": self._llm.boot.plan.platform.label}

    def generate(self, prompts: Sequence[list[int]], new: int) -> list[Timing]:
        """One task per prompt; times are those at which tokens reach it."""
        return self._loop.run(self._generate(prompts, new))

    def close(self) -> None:
        """Ends the engine's process."""
        self._loop.run(self._llm.close())
        self._loop.close()

    async def _generate(self, prompts: Sequence[list[int]], new: int) -> list[Timing]:
        start = time.perf_counter()
        return await asyncio.gather(*(self._answer(prompt, new, start) for prompt in prompts))

    async def _answer(self, prompt: list[int], new: int, start: float) -> Timing:
        from llmk import RequestContext, SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        self._requests += 1
        arrived: list[float] = []
        async for delta in self._llm.generate(prompt, params, RequestContext(str(self._requests))):
            arrived += [time.perf_counter()] * len(delta.token_ids)
        each = (arrived[-1] - arrived[0]) / (len(arrived) - 1) if len(arrived) > 1 else None
        return Timing(len(arrived), arrived[0] - start, each)


class Vllm:
    """vLLM's offline interface, which runs its engine in a process of its own."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def start(self) -> dict[str, str]:
        """Starts the engine's process."""
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        import vllm

        setup = self._setup
        options = {"dtype": "bfloat16", "max_model_len": setup.max_len, "disable_log_stats": False}
        options["load_format"] = "dummy" if setup.dummy else "auto"
        self._llm = vllm.LLM(model=setup.model, **(options | setup.settings))
        self._params = vllm.SamplingParams
        return {"version": vllm.__version__}

    def generate(self, prompts: Sequence[list[int]], new: int) -> list[Timing]:
        """One call for all prompts; times are the engine's own."""
        params = self._params(temperature=0.0, max_tokens=new, ignore_eos=True)
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [self._timing(output) for output in outputs]

    def close(self) -> None:
        """Its process ends with this one."""

    def _timing(self, output: Any) -> Timing:
        tokens, metrics = len(output.outputs[0].token_ids), output.metrics
        if metrics is None:
            return Timing(tokens)
        each = (metrics.last_token_ts - metrics.first_token_ts) / (tokens - 1) if tokens > 1 else None
        return Timing(tokens, getattr(metrics, "first_token_latency", None), each)


class Transformers:
    """transformers' ``generate`` on one batch, whose prompts are of one length."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def start(self) -> dict[str, str]:
        """Loads the model."""
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import torch
        import transformers
        from transformers import AutoConfig, AutoModelForCausalLM

        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        model = self._setup.model
        if self._setup.dummy:
            with torch.device(self._device):
                net = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model), dtype=torch.bfloat16)
        else:
            net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        self._model = net.to(self._device).eval()
        return {"version": transformers.__version__}

    def generate(self, prompts: Sequence[list[int]], new: int) -> list[Timing]:
        """One padded batch. Times of tokens are known where it is of one prompt."""
        import torch

        arrived: list[float] = []

        class Clock:
            """A streamer: it is given the prompt, then every token."""

            def put(self, value: object) -> None:
                arrived.append(time.perf_counter())

            def end(self) -> None:
                pass

        ids = torch.tensor(prompts, device=self._device)
        length = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        start = time.perf_counter()
        with torch.inference_mode():
            found = self._model.generate(ids, streamer=Clock() if len(prompts) == 1 else None, **length)
        tokens = found.shape[1] - ids.shape[1]
        if len(arrived) < 2:
            return [Timing(tokens)] * len(prompts)
        each = (arrived[-1] - arrived[1]) / (tokens - 1) if tokens > 1 else None
        return [Timing(tokens, arrived[1] - start, each)]

    def close(self) -> None:
        """Nothing runs beside this process."""


ENGINES: dict[str, type[Engine]] = {"llmk": Llmk, "vllm": Vllm, "transformers": Transformers}
