"""Compares every kind of causal language model of transformers with what llmk serves, and keeps the results.

    python tools/model_parity.py                     # all kinds that tools/model_parity.json has no result for
    python tools/model_parity.py qwen3 glm4          # these, again
    python tools/model_parity.py --again             # those too that failed or were refused

Checkpoints are tiny and random, of the kind's own config class, in float32 on the CPU. Each kind has a process of its
own and a time limit. ``docs/models.md`` is made from the results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmk.api import SchedulingPolicy, Ticket
from llmk_testing.checkpoints import write_checkpoint

if TYPE_CHECKING:
    from llmk.engine.wire.request import EngineStats

RESULTS = Path(__file__).with_suffix(".json")
NEW_TOKENS = 12
TOLERANCE = 1e-4
"""The largest distance of a log-probability that counts as equal."""

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "prefill": {"cache": {"prefix_caching": False}},
    "chunks": {"cache": {"prefix_caching": False}, "scheduler": {"max_num_batched_tokens": 16, "max_num_seqs": 8}},
    "cached prefix": {"cache": {"prefix_caching": True, "block_size": 4, "state_block_size": 8}},
    "batch": {"cache": {"prefix_caching": False}},
    "preemption": {"cache": {"prefix_caching": False}, "scheduler": {"max_num_seqs": 3}},
}
"""What is compared, and the engine's settings for it. In ``"prefill"``, each prompt is alone."""

EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
ROUTED = {**EXPERTS, "n_routed_experts": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
LATENT: Mapping[str, Any] = {
    **ROUTED,
    "num_key_value_heads": 4,
    "q_lora_rank": 28,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
INDEXED: Mapping[str, Any] = {**LATENT, "index_n_heads": 16, "index_head_dim": 24, "index_topk": 20}
DELTA: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "head_dim": 32,
}
SCAN: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
}
PERIODS = {
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
}
PLAIN_EXPERTS: Mapping[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}
FACTORS = {"logits_scaling": 2.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5}
LINEAR, FULL = "linear_attention", "full_attention"
KIMI: Mapping[str, Any] = {
    **{key: value for key, value in LATENT.items() if key not in ("q_lora_rank", "n_routed_experts")},
    "num_hidden_layers": 4,
    "layer_types": [LINEAR, FULL, LINEAR, LINEAR],
    "num_local_experts": 8,
}
NEMOTRON: Mapping[str, Any] = {
    "head_dim": 16,
    "layers_block_type": [LINEAR, "mlp", FULL, LINEAR],
    "mamba_num_heads": 8,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 24,
    # transformers limits the step sizes of prompts by it, but not those of single tokens.
    "time_step_min": 1e-9,
}
PER_LAYER: Mapping[str, Any] = {
    "head_dim": 16,
    "sliding_window": 24,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", FULL, "sliding_attention", FULL],
    "vocab_size_per_layer_input": 384,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "apertus": {},
    "cohere, norms of heads": {"use_qk_norm": True},
    "cohere2": {"sliding_window": 24, "num_hidden_layers": 4},
    "cwm": {"head_dim": 16, "sliding_window": 24, "bos_token_id": 1},
    "dbrx": {
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": 256,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.7},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "bailing_hybrid": {**KIMI, "head_dim": 16, "n_group": 4, "topk_group": 2},
    "bamba": {**SCAN, "attn_layer_indices": [1, 3]},
    "deepseek_v4": {
        "index_n_heads": 16,
        "index_head_dim": 24,
        "index_topk": 5,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "q_lora_rank": 28,
        "o_groups": 2,
        "o_lora_rank": 12,
        "sliding_window": 8,
        "hc_mult": 3,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    },
    "deepseek_v2": {**LATENT, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
    "axk1": {**LATENT, "n_group": 4, "topk_group": 2},
    "gptj": {"rotary_dim": 8},
    "deepseek_v3": {**LATENT, "n_group": 4, "topk_group": 2},
    "deepseek_v32": {**INDEXED, "n_group": 4, "topk_group": 2},
    "dots1": {**ROUTED, "head_dim": 16, "n_shared_experts": 1},
    "ernie4_5_moe": {**ROUTED, "moe_num_experts": 8, "moe_k": 3},
    "falcon": {"num_hidden_layers": 3},
    "flint": {**ROUTED, "head_dim": 16, "sliding_window": 24},
    "glm_moe_dsa": INDEXED,
    "glm_moe_dsa, shared indexers": {
        **INDEXED,
        "num_hidden_layers": 4,
        "indexer_types": ["full", "shared", "full", "shared"],
    },
    "glm4_moe_lite": {**LATENT, "n_shared_experts": 1},
    "gpt_bigcode": {},
    "gpt_neo": {
        "num_hidden_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 24,
    },
    "exaone4": {"sliding_window": 24, "sliding_window_pattern": 2},
    "falcon_h1": {**SCAN, "mamba_d_ssm": 128, "key_multiplier": 0.7, "ssm_multipliers": [0.35, 0.25, 1.4, 0.5, 0.7]},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 24},
    "gemma4_text": {**PER_LAYER, "global_head_dim": 32, "use_double_wide_mlp": True},
    "gemma4_text, experts": {
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 24,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", FULL, FULL],
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "moe_intermediate_size": 24,
        "final_logit_softcapping": 5.0,
    },
    "gemma3n_text": {
        **PER_LAYER,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0],
        "intermediate_size": [112, 96, 112, 80],
    },
    "gemma3_text": {"head_dim": 16, "sliding_window": 24, "sliding_window_pattern": 2},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 6, "sliding_window": 24},
    "granite_swa": FACTORS,
    "granitemoe": {**FACTORS, "num_local_experts": 6},
    "granitemoe_swa": {**FACTORS, "num_local_experts": 6},
    "granitemoehybrid": {**SCAN, "layer_types": [LINEAR, FULL, LINEAR, FULL], "shared_intermediate_size": 48},
    "jamba": {**PERIODS, "num_experts": 6},
    "lfm2": {"num_hidden_layers": 4, "layer_types": ["conv", FULL, "conv", "conv"]},
    "lfm3": {
        "head_dim": 16,
        "sliding_window": 24,
        "num_hidden_layers": 4,
        "layer_types": ["conv", FULL, "conv", "sliding_attention"],
    },
    "lfm2_moe": {**EXPERTS, "num_hidden_layers": 4, "layer_types": ["conv", FULL, "conv", "conv"]},
    "kimi_linear": {**KIMI, "linear_num_heads": 4, "linear_head_dim": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1, "state_size": 24},
    "llama4_text": {
        "head_dim": 16,
        "num_hidden_layers": 4,
        "num_local_experts": 6,
        "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 24,
        "floor_scale": 8,
    },
    "zamba2": {
        "num_hidden_layers": 6,
        "num_key_value_heads": 4,
        "layers_block_type": [LINEAR, "hybrid"] * 3,
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "mamba_d_state": 24,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "adapter_rank": 8,
        "use_mem_rope": True,
        # Adapters double what random projections return, which makes attention so sharp that transformers' own float32
        # is further from float64 than what counts as equal. Norms that shrink their input make up for it.
        "rms_norm_eps": 100.0,
        # transformers limits the step sizes of prompts by it, but not those of single tokens.
        "time_step_min": 1e-9,
    },
    "longcat_flash": {
        **LATENT,
        "num_layers": 2,
        "num_hidden_layers": 4,
        "head_dim": 8,
        "ffn_hidden_size": 96,
        "expert_ffn_hidden_size": 48,
        "moe_topk": 3,
        "zero_expert_num": 4,
    },
    "minicpm3": LATENT,
    "opt": {"ffn_dim": 112, "word_embed_proj_dim": 64},
    "stablelm, norms of heads": {"qk_layernorm": True, "use_parallel_residual": True},
    # transformers sets the row of a padding token to zeros when it loads the kind's checkpoints.
    "youtu": {**LATENT, "pad_token_id": None},
    "minimax": {
        "num_hidden_layers": 4,
        "layer_types": [LINEAR, FULL, LINEAR, LINEAR],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "linear_attn_alpha_factor": 1.4,
        "full_attn_beta_factor": 0.8,
        "mlp_alpha_factor": 1.2,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron_h": NEMOTRON,
    "nemotron_h, experts": {**NEMOTRON, **PLAIN_EXPERTS, "layers_block_type": [LINEAR, "moe", FULL, "moe"]},
    "nemotron_h, latent experts": {
        **NEMOTRON,
        **PLAIN_EXPERTS,
        "layers_block_type": ["moe", LINEAR, FULL, "moe"],
        "moe_latent_size": 36,
        "n_group": 4,
        "topk_group": 2,
    },
    "olmo3": {"sliding_window": 24, "num_hidden_layers": 4},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 40},
    "qwen3_5_moe_text": {**EXPERTS, **DELTA, "shared_expert_intermediate_size": 40},
    "qwen3_5_text": DELTA,
    "qwen3_next": {**EXPERTS, **DELTA, "shared_expert_intermediate_size": 40},
}
"""Values of configs, on top of tiny sizes, for kinds whose defaults are large or hide a mechanism. Others get
:data:`DEFAULTS`. A kind of several forms has further configs, by its name, a comma and a word for each."""

DEFAULTS: Mapping[str, Any] = {**ROUTED, "head_dim": 16}

Result = dict[str, Any]


def kinds() -> list[str]:
    """The model types for which transformers has a causal language model, and their further forms."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return sorted(
        {config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING} | {name for name in CONFIGS if "," in name}
    )


def prompts() -> list[list[int]]:
    """Awkward lengths, one of them twice, two that share a prefix."""
    rng = random.Random(11)
    draw = [[rng.randrange(3, 380) for _ in range(n)] for n in (1, 5, 33, 64)]
    return [*draw, draw[2], draw[3][:48] + draw[1]]


def type_of(kind: str) -> str:
    """transformers' model type."""
    return kind.partition(",")[0]


def result_of(kind: str, folder: Path) -> Result:
    """What came of one kind: ``architecture``; ``served``, the id of what serves it; ``refused``, why nothing does;
    ``compared``, the largest distance of a log-probability by what was compared; ``failed``, what went wrong."""
    from llmk import LLM
    from llmk.api import LlmkError

    write_checkpoint(folder, type_of(kind), **_config_of(kind))
    found: Result = {"architecture": json.loads((folder / "config.json").read_text())["architectures"][0]}
    try:
        with LLM(str(folder), dtype="float32", **ENGINES["prefill"]) as llm:
            found["served"] = llm.boot.plan.model
    except LlmkError as error:
        return found | {"refused": str(error).splitlines()[0].replace(str(folder), "the checkpoint")}
    expected = oracle(folder)
    found["compared"] = {}
    for name in ENGINES:
        try:
            found["compared"][name] = distance(folder, name, expected)
        except Different as error:
            return found | {"failed": f"{name}: {error}"}
    return found


def _config_of(kind: str) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    grouped = hasattr(CONFIG_MAPPING[type_of(kind)](), "num_key_value_heads")
    return {**({} if grouped else {"num_key_value_heads": 4}), **CONFIGS.get(kind, DEFAULTS)}


class Displacing(SchedulingPolicy):
    """Puts back a running request for one that waits, now and then: what keeps little of a text is never short of
    blocks, and so would never be preempted."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        """As they arrived."""
        return requests

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        """The last."""
        return running[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        """Any, or none."""
        return self._random.choice([*running, *[None] * 4])


class Different(Exception):
    """Tokens or log-probabilities are not equal, or the engine did not do what was to be compared."""


def oracle(folder: Path) -> list[tuple[list[int], list[float]]]:
    """What transformers generates for each prompt alone, with the log-probability of every token."""
    import torch
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        wanted = {"output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0, "do_sample": False}
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, **wanted)
        tokens = out.sequences[0, len(prompt) :].tolist()
        logprobs = torch.cat(out.logits).float().log_softmax(-1)
        answers.append((tokens, [logprobs[i, token].item() for i, token in enumerate(tokens)]))
    return answers


def distance(folder: Path, name: str, expected: Sequence[tuple[list[int], list[float]]]) -> float:
    """The largest distance of a log-probability. Raises Different."""
    settings = ENGINES[name]
    if name == "preemption":
        outputs, stats = serve(folder, settings, displacing=True)
        if not stats.preemptions:
            raise Different("no request was preempted")
    elif name == "cached prefix":
        outputs, _ = serve(folder, settings, times=2)
        if not any(output.num_cached_tokens for output in outputs):
            raise Different("no token came from the cache")
    else:
        outputs, _ = serve(folder, settings, alone=name == "prefill")
    largest = 0.0
    for output, (tokens, logprobs) in zip(outputs, [*expected, *expected], strict=False):
        completion = output.outputs[0]
        if completion.token_ids != tokens:
            raise Different(
                f"tokens {completion.token_ids} of a prompt of {len(output.prompt_token_ids)}, not {tokens}"
            )
        pairs = zip(completion.logprobs or [], logprobs, strict=True)
        largest = max(largest, *(abs(entry.logprob - wanted) for entry, wanted in pairs))
    if largest > TOLERANCE:
        raise Different(f"log-probabilities differ by {largest:.1e}")
    return float(f"{largest:.0e}")


def serve(
    folder: Path, settings: Mapping[str, Any], *, alone: bool = False, times: int = 1, displacing: bool = False
) -> tuple[list[Any], EngineStats]:
    """The outputs for all prompts at once, or each ``alone``, so many ``times``."""
    from llmk import LLM, SamplingParams
    from llmk.engine.scheduling.guarded_policy import GuardedPolicy

    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)
    batches = [[prompt] for prompt in prompts()] if alone else [prompts()] * times
    with LLM(str(folder), dtype="float32", **settings) as llm:
        if displacing:
            llm.core.scheduler.live.policy = GuardedPolicy(Displacing())
        outputs = [output for batch in batches for output in llm.generate(batch, greedy, use_tqdm=False)]
        return outputs, llm.stats


def read() -> dict[str, Any]:
    """The kept results: ``transformers``, its version, and ``kinds``."""
    return json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"transformers": "", "kinds": {}}


def keep(kind: str, result: Result) -> None:
    """Adds a result to those that are kept."""
    kept = read()
    kept["transformers"] = version("transformers")
    kept["kinds"][kind] = result
    RESULTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def isolated(kind: str, seconds: float) -> Result:
    """:func:`result_of` in a process of its own, which is ended after so many seconds."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    folder = Path(tempfile.mkdtemp(prefix=f"parity-{type_of(kind)}-"))
    process = context.Process(target=_send, args=(kind, folder, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return {"failed": f"no result after {seconds:g} s"}
        received: Result = ours.recv()
        return received
    except EOFError:
        return {"failed": "the process ended without a result"}
    finally:
        process.kill()
        process.join()
        shutil.rmtree(folder, ignore_errors=True)


def _send(kind: str, folder: Path, to: Connection) -> None:
    try:
        result = result_of(kind, folder / "checkpoint")
    except Exception as error:
        first, *_ = f"{type(error).__name__}: {error}".splitlines()
        result = {"failed": first.replace(str(folder), "the folder")[:300]}
    to.send(result)


def run(wanted: Iterable[str], seconds: float) -> bool:
    """Whether everything that is served was equal."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    import llmk.engine.llm  # noqa: F401  # what every process needs is imported once
    import llmk_models.transformers_model  # noqa: F401

    disable_progress_bar()
    torch.set_num_threads(1)
    right = True
    for kind in wanted:
        result = isolated(kind, seconds)
        keep(kind, result)
        right &= "failed" not in result
        print(kind, result.get("served") or result.get("refused", ""), result.get("failed", ""), flush=True)
    return right


def main() -> int:
    """Compares; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="model types; without any, those that have no result")
    parser.add_argument("--again", action="store_true", help="those too that failed, or were refused")
    parser.add_argument("--seconds", type=float, default=240.0, help="time limit of each")
    options = parser.parse_args()
    kept = read()["kinds"]
    open_ends = {"failed", "refused"} if options.again else set()
    settled = {kind for kind, result in kept.items() if not open_ends & set(result)}
    wanted = options.kinds or [kind for kind in kinds() if kind not in settled]
    return 0 if run(wanted, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
