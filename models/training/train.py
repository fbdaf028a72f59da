"""Trains the demo model for a given time and writes it as a transformers checkpoint.

    python models/training/train.py --minutes 8 --out /tmp/demo

The folder given by ``--base`` holds the tokenizer and the chat template; they are copied to the weights' folder.
"""

import argparse
import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from feed import MAX_DOCUMENT, MEAN_DOCUMENT, Feed, Row
from rendering import Encoder
from transformer import Packing, Qwen3, Shape

DEMO = Path(__file__).resolve().parents[1] / "src" / "llmk_models" / "demo"
INTERFACE_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class Plan:
    """Optimizer settings; the schedule runs on the share of the time that has passed."""

    matrix_rate: float = 0.02
    other_rate: float = 0.004
    momentum: float = 0.95
    decay: float = 0.02
    warmup: float = 0.01
    decline_from: float = 0.35

    def factor(self, share: float) -> float:
        """Learning-rate factor at ``share`` (0 to 1) of the run: warm up, hold, fall linearly to zero."""
        if share < self.warmup:
            return share / self.warmup
        return min(1.0, (1.0 - share) / (1.0 - self.decline_from))


def orthogonal(update: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices to a stack [n, rows, columns], by a quintic iteration in bfloat16."""
    wide = update.shape[-2] > update.shape[-1]
    x = update.bfloat16()
    x = x.transpose(-2, -1) if wide else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(-2, -1)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.transpose(-2, -1) if wide else x).float()


class Muon:
    """Momentum with orthogonalised updates, for the matrices inside the layers, batched by shape."""

    def __init__(self, weights: list[Tensor], plan: Plan) -> None:
        shapes = sorted({tuple(weight.shape) for weight in weights})
        self.groups = [[weight for weight in weights if tuple(weight.shape) == shape] for shape in shapes]
        self.momenta = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self.groups]
        self.plan = plan
        self.orthogonal = torch.compile(orthogonal, dynamic=False) if weights[0].is_cuda else orthogonal

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """One update at ``factor`` times the plan's rate; clears the gradients."""
        rate = self.plan.matrix_rate * factor
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([weight.grad for weight in group])
            momentum.lerp_(gradient, 1 - self.plan.momentum)
            update = self.orthogonal(gradient.lerp(momentum, self.plan.momentum))
            scale = max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
            torch._foreach_mul_(group, 1 - rate * self.plan.decay)
            torch._foreach_add_(group, list(update.unbind()), alpha=-rate * scale)
            for weight in group:
                weight.grad = None


def to_device(row: Row, device: str) -> tuple[Tensor, Tensor, Tensor, Packing]:
    """Tokens, targets and weights, each [T], and the packing; the document axis is padded to a fixed size."""
    total = len(row.tokens)
    tokens = torch.from_numpy(row.tokens.astype("int32")).to(device, non_blocking=True).long()
    weights = torch.from_numpy(row.weights).to(device, non_blocking=True).float()
    ends = torch.from_numpy(row.lengths).cumsum(0, dtype=torch.int32)
    starts = torch.full((total // MEAN_DOCUMENT + 64,), total, dtype=torch.int32)
    starts[0] = 0
    starts[1 : len(ends) + 1] = ends
    last = (ends - 1).to(device).long()
    weights = weights.roll(-1)
    weights[last] = 0.0
    packing = Packing.of(starts.to(device), total, MAX_DOCUMENT)
    return tokens, tokens.roll(-1), weights, packing


def export(model: Qwen3, base: Path, out: Path) -> None:
    """Write the checkpoint folder: weights in bfloat16 under transformers' names, and its JSON files."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in model.state_dict().items()
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    tokenizer = Encoder(base).tokenizer
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        **asdict(model.shape),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": model.shape.num_hidden_layers,
        "rope_scaling": None,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
    }
    generation = {
        "do_sample": True,
        "temperature": 0.3,
        "top_p": 0.9,
        "top_k": 20,
        "eos_token_id": [end, pad],
        "pad_token_id": pad,
    }
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")
    if base.resolve() != out.resolve():
        for name in INTERFACE_FILES:
            shutil.copyfile(base / name, out / name)


def train(options: argparse.Namespace) -> None:
    """Run the whole training and leave the checkpoint and ``training.json`` in ``options.out``."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    feed = Feed(options.base, options.seed, options.row_tokens, options.workers)
    model = Qwen3(Shape(vocab_size=Encoder(options.base).tokenizer.get_vocab_size())).to(device)
    plan = Plan()
    if options.start:
        model.load_state_dict(load_file(options.start / "model.safetensors"))
        plan = replace(plan, matrix_rate=plan.matrix_rate / 2, other_rate=plan.other_rate / 2, decline_from=0.0)
    matrices = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and "layers" in name]
    others = [weight for name, weight in model.named_parameters() if weight.dim() == 1 or "layers" not in name]
    muon = Muon(matrices, plan)
    adam = torch.optim.AdamW(others, lr=plan.other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=device == "cuda")
    loss_of = torch.compile(model.loss, dynamic=False) if device == "cuda" else model.loss

    log: list[dict[str, float]] = []
    started = report_at = time.monotonic()
    step = 0
    running = torch.zeros(2, device=device)
    counted = 0
    while (share := (time.monotonic() - started) / (60 * options.minutes)) < 1:
        tokens, targets, weights, packing = to_device(feed.next(), device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            weighted, reply = loss_of(tokens, targets, weights, packing)
        weighted.backward()
        factor = plan.factor(share)
        muon.step(factor)
        adam.param_groups[0]["lr"] = plan.other_rate * factor
        adam.step()
        adam.zero_grad(set_to_none=True)
        running += torch.stack((weighted.detach(), reply))
        counted += 1
        step += 1
        if step == 1:
            reply.item()
            started = report_at = time.monotonic()
        if time.monotonic() - report_at > options.report_seconds:
            report_at = time.monotonic()
            mean = (running / counted).tolist()
            running.zero_()
            counted = 0
            entry = {
                "step": step,
                "seconds": round(report_at - started, 1),
                "tokens": step * options.row_tokens,
                "fresh_tokens": len(feed.pool) * options.row_tokens,
                "loss": round(mean[0], 4),
                "reply_loss": round(mean[1], 4),
            }
            log.append(entry)
            print(json.dumps(entry), flush=True)
            if len(log) % 6 == 0:
                export(model, options.base, options.out)
    feed.close()
    export(model, options.base, options.out)
    summary = {"parameters": sum(weight.numel() for weight in model.parameters()), "log": log}
    (options.out / "training.json").write_text(json.dumps(summary, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--base", type=Path, default=DEMO, help="folder with tokenizer and chat template")
    parser.add_argument("--start", type=Path, help="go on from this checkpoint, at half the learning rate and falling")
    parser.add_argument("--minutes", type=float, default=8.0, help="training time")
    parser.add_argument("--workers", type=int, default=14, help="processes that write training rows")
    parser.add_argument("--row-tokens", type=int, default=131072, help="tokens in a step")
    parser.add_argument("--report-seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
