"""What a front end needs of a boot, and engines over the paged device that a process can build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from paged_device import make_core
from trained import KINDS

from llmk.api import NotEnoughMemory, Reason
from llmk.config import Config
from llmk.engine.core import EngineCore
from llmk.engine.wire.engine_info import EngineInfo
from llmk.planning.checkpoint.folder import read_checkpoint


def write_checkpoint(folder: Path, kind: str = "byte_level", **files: Any) -> Path:
    """A checkpoint folder with a trained tokenizer and no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    documents = {"config": {"architectures": ["Paged"]}, "tokenizer_config": {"eos_token": "</s>"}, **files}
    for name, content in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def boot(
    folder: Path, *, cache: dict[str, Any] | None = None, server: dict[str, Any] | None = None, **scheduler: Any
) -> Any:
    """The part of a boot that front ends read."""
    config = Config.model_validate({"scheduler": scheduler, "cache": cache or {}, "server": server or {}})
    return SimpleNamespace(settings=SimpleNamespace(config=config), checkpoint=read_checkpoint(folder), adapters=())


def early_setup(index: int) -> None:
    """Sets a device up before torch is imported."""
    print(f"early setup: {index}", file=sys.stderr, flush=True)


def build(options: dict[str, Any]) -> tuple[EngineCore, EngineInfo]:
    """An engine over the paged device. ``trouble`` says what goes wrong, and when."""
    trouble = options.pop("trouble", "")
    vocab_size = options.pop("vocab_size", 1000)
    if trouble == "memory":
        raise NotEnoughMemory("the cache needs 2 GiB", hint="lower it", reasons=[Reason("memory", "2 GiB", "1 GiB")])
    if trouble == "bug":
        raise ZeroDivisionError("at start")
    if trouble == "worker":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    core = make_core(**options)
    core.runner.before_step = lambda plan: _disturb(trouble, plan)
    info = EngineInfo(
        max_model_len=core.scheduler.max_model_len,
        vocab_size=vocab_size,
        block_size=core.scheduler.cache.block_size,
        num_blocks=core.scheduler.cache.num_blocks,
        plan={"model": "paged"},
    )
    return core, info


def _disturb(trouble: str, plan: Any) -> None:
    if trouble == "slow":
        time.sleep(0.005)
    elif trouble == "hang":
        time.sleep(60)
    elif trouble == "raise":
        raise ValueError("the step is broken")
    elif trouble == "break":
        raise KeyboardInterrupt
    elif trouble == "poison":
        time.sleep(0.005)
        if any("poison" in new.id for new in plan.new):
            os._exit(3)
