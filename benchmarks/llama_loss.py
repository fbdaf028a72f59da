"""The loss of GGUF files in llama.cpp, on the documents of ``quantization_loss.py --write``.

    python benchmarks/llama_loss.py FOLDER

Quantizes ``F16.gguf`` of the folder to each type of :data:`KINDS` that isn't there yet, by llama.cpp's own function.
Then, for each file: the mean cross-entropy of the tokens of replies, and the greedy continuations of the first prompts,
which go to ``greedy.json``. Needs llama-cpp-python.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import llama_cpp as lib
import numpy as np

KINDS = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")
PROMPTS, NEW = 20, 48


class Model:
    """A loaded file, with one sequence."""

    def __init__(self, file: Path) -> None:
        self._model = lib.llama_model_load_from_file(str(file).encode(), lib.llama_model_default_params())
        wanted = lib.llama_context_default_params()
        wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = 2048
        wanted.n_threads = wanted.n_threads_batch = 1
        self._context = lib.llama_init_from_model(self._model, wanted)
        self._batch = lib.llama_batch_init(2048, 0, 1)
        self._vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))

    def logits(self, ids: list[int], start: int = 0, first: int = 0) -> Any:
        """Of the tokens from ``first`` on, after ``start`` earlier ones: float32 ``[tokens, vocab]``."""
        if start == 0:
            lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        self._batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            self._batch.token[i], self._batch.pos[i], self._batch.n_seq_id[i] = token, start + i, 1
            self._batch.seq_id[i][0], self._batch.logits[i] = 0, i >= first
        if lib.llama_decode(self._context, self._batch):
            raise RuntimeError("llama_decode failed")
        rows = [lib.llama_get_logits_ith(self._context, i) for i in range(first, len(ids))]
        return np.stack([np.ctypeslib.as_array(row, shape=(self._vocab,)).copy() for row in rows])

    def loss(self, ids: list[int], prompt: int) -> Any:
        """Of each token of the reply, in nats."""
        logits = self.logits(ids[:-1], first=prompt - 1).astype(np.float64)
        peak = logits.max(axis=1, keepdims=True)
        total = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=1))
        return total - logits[np.arange(len(logits)), ids[prompt:]]

    def greedy(self, ids: list[int]) -> tuple[list[int], list[float]]:
        """The likeliest tokens after a prompt, and how far the second one's logit is from each."""
        row, found, margins = self.logits(ids, first=len(ids) - 1)[0], [], []
        for place in range(NEW):
            second, best = np.partition(row, -2)[-2:]
            found.append(int(row.argmax()))
            margins.append(float(best - second))
            row = self.logits(found[-1:], start=len(ids) + place)[0]
        return found, margins


def main() -> None:
    """Prints a row of Markdown for each file."""
    folder = Path(sys.argv[1])
    docs = json.loads((folder / "documents.json").read_text())
    for kind in KINDS:
        if not (folder / f"{kind}.gguf").exists():
            params = lib.llama_model_quantize_default_params()
            params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{kind}")
            lib.llama_model_quantize(str(folder / "F16.gguf").encode(), str(folder / f"{kind}.gguf").encode(), params)
    greedy = {}
    for file in sorted(folder.glob("*.gguf")):
        model = Model(file)
        losses = np.concatenate([model.loss(*each) for each in docs])
        print(f"| llama.cpp, {file.stem} | {losses.mean():.4f} |", flush=True)
        greedy[file.stem] = [model.greedy(ids[:prompt]) for ids, prompt in docs[:PROMPTS]]
    (folder / "greedy.json").write_text(json.dumps(greedy))


if __name__ == "__main__":
    main()
