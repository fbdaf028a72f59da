"""What quantization costs the demo model, on documents that it was not trained on.

    python benchmarks/quantization_loss.py --documents 200
    python benchmarks/quantization_loss.py --documents 200 --gguf    # as a GGUF file of each type, plain and packed
    python benchmarks/quantization_loss.py --documents 200 --write FOLDER    # GGUF files for the next command
    python benchmarks/llama_loss.py FOLDER    # in an environment with llama-cpp-python: quantizes, and measures
    python benchmarks/quantization_loss.py --documents 200 --files FOLDER

Every scheme sees the same documents, whole, through the kernels that the platform's plan chooses for it. Of the tokens
of replies: the mean cross-entropy, the mean divergence from the plain model's distribution (nats), and how often the
likeliest token is the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from llmk_testing.model import ModelHarness

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "models/src/llmk_models/demo"
BLOCK = 16

SCHEMES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp8, a scale per output": {"model.quantization": "fp8"},
    "fp8, a scale per matrix": {"model.quantization": "fp8_tensor"},
    "fp8, scales per 128x128": {"model.quantization": "fp8_block"},
    "int8, a scale per output": {"model.quantization": "int8"},
    "int4, a scale per 32 inputs": {"model.quantization": "int4"},
    "plain, fp8 cache": {"cache.dtype": "float8_e4m3fn"},
    "fp8, a scale per output, fp8 cache": {"model.quantization": "fp8", "cache.dtype": "float8_e4m3fn"},
}


GGUF = ("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0")
"""Those of K have the simple writers of ``tests/support/k_quants.py``, so llama.cpp's lose less."""


def gguf_schemes(folder: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """A file of each type, in ``folder``, and how it is served."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    from gguf_files import write_demo

    files = {kind: write_demo(DEMO, folder / f"{kind}.gguf", kind) for kind in GGUF}
    plain = {f"GGUF, {kind}": (file, {"plugin.gguf.weights": "plain"}) for kind, file in files.items()}
    packed = {f"{name}, packed": (file, {"plugin.gguf.weights": "packed"}) for name, (file, _) in plain.items()}
    return plain | {name: scheme for name, scheme in packed.items() if "Q" in name}


def write(folder: Path, count: int) -> None:
    """Writes what ``llama_loss.py`` reads: files of the model, and ``documents.json``."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    from gguf_files import write_demo

    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("F16", "BF16"):
        write_demo(DEMO, folder / f"{kind}.gguf", kind)
    (folder / "documents.json").write_text(json.dumps(documents(count)))


def documents(count: int, longest: int = 1024) -> list[tuple[list[int], int]]:
    """Token ids of documents of the test split, and how many of each are the prompt's."""
    sys.path.insert(0, str(ROOT / "models/training"))
    from corpus import samples
    from rendering import Encoder

    encoder = Encoder(DEMO)
    encoded = (encoder.ids(sample) for sample in samples(1, "test"))
    fitting = ((prompt + reply, len(prompt)) for prompt, reply in encoded if prompt and len(prompt + reply) <= longest)
    return list(islice(fitting, count))


def replies(model: ModelHarness, docs: list[tuple[list[int], int]], at_once: int) -> Tensor:
    """Log-probabilities, float32 ``[tokens, vocab]``, of all replies' tokens."""
    found = []
    for first in range(0, len(docs), at_once):
        work = [(first + i, ids) for i, (ids, _) in enumerate(docs[first : first + at_once])]
        for (name, _), logits in zip(work, model.step(work), strict=True):
            found.append(torch.log_softmax(logits[docs[name][1] - 1 : -1].cpu(), dim=-1))
    return torch.cat(found)


def main() -> None:
    """Prints the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8, help="documents in one step")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--platform", default="", help="platform to use; empty: the best one that is usable here")
    parser.add_argument("--gguf", action="store_true", help="GGUF files instead of what quantizes while loading")
    parser.add_argument("--write", type=Path, help="folder for GGUF files in F16 and BF16, and for the documents")
    parser.add_argument("--files", type=Path, help="folder of GGUF files to measure instead")
    args = parser.parse_args()
    if args.write:
        write(args.write, args.documents)
        return
    with TemporaryDirectory() as folder:
        schemes = {name: (DEMO, settings) for name, settings in SCHEMES.items()}
        if args.gguf or args.files:
            found = (
                {f"GGUF, {file.stem}": (file, {}) for file in sorted(args.files.glob("*.gguf"))} if args.files else {}
            )
            schemes = {"plain": schemes["plain"], **(found or gguf_schemes(Path(folder)))}
        compare(schemes, args)


def compare(schemes: dict[str, tuple[Path, dict[str, Any]]], args: argparse.Namespace) -> None:
    """Prints a row for each scheme; the first is what the others are compared with."""
    docs = documents(args.documents)
    targets = torch.tensor([token for ids, start in docs for token in ids[start:]])
    num_blocks = sum(-(-len(ids) // BLOCK) for ids, _ in docs)
    print(f"{len(docs)} documents, {len(targets):,} tokens in replies, {args.dtype}\n")
    print("| weights and cache | kernels of qkv and attention | loss | divergence | same likeliest token |")
    print("| --- | --- | --- | --- | --- |")
    plain: Tensor | None = None
    for scheme, (path, settings) in schemes.items():
        common = {"model.dtype": args.dtype, "platform.use": args.platform, "cache.block_size": BLOCK}
        model = ModelHarness.of(path, {**common, **settings}, num_blocks=num_blocks)
        found = replies(model, docs, args.at_once)
        plain = found if plain is None else plain
        loss = -found.gather(1, targets[:, None]).mean()
        divergence = (plain.exp() * (plain - found)).sum(dim=1).mean()
        same = (plain.argmax(dim=1) == found.argmax(dim=1)).float().mean()
        chosen = [choice for choice in model.boot.plan.choices if choice.site.partition(".")[0] in ("qkv", "attention")]
        kernels = ", ".join(choice.id for choice in chosen if choice.kind in ("linear", "attention"))
        print(f"| {scheme} | {kernels} | {loss:.4f} | {divergence:.5f} | {same:.2%} |", flush=True)


if __name__ == "__main__":
    main()
