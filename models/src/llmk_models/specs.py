"""The model families of this distribution. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from llmk.api import ModelSpec, hookimpl

_DENSE = ("LlamaForCausalLM", "MistralForCausalLM", "MinistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_MINISTRAL3 = ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration")
_HUNYUAN = ("HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM")
_INDEXED = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
_GEMMA3N = ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration")
_GEMMA4 = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
_LLAMA4 = ("Llama4ForCausalLM", "Llama4ForConditionalGeneration")
_GEMMA3 = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
_QWEN3_5 = (
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
_Row = tuple[str, tuple[str, ...], str]
_FAMILIES: tuple[_Row, ...] = (
    ("dense", _DENSE, "Llama, Mistral, Ministral, Qwen2 and Qwen3 decoders"),
    ("mixtral", ("MixtralForCausalLM",), "Mixtral: experts in every layer"),
    ("gemma2", ("Gemma2ForCausalLM",), "Gemma 2: soft caps, alternating windows"),
    ("gemma3", _GEMMA3, "Gemma 3, text alone: windows in most layers, RoPE by kind of layer"),
    ("granite", ("GraniteForCausalLM",), "Granite: factors of embeddings, attention, residuals and logits"),
    ("olmo2", ("Olmo2ForCausalLM", "Olmo3ForCausalLM"), "OLMo 2 and OLMo 3: norms after the blocks alone"),
    ("phi3", ("Phi3ForCausalLM",), "Phi-3 and Phi-4-mini: packed projections, LongRoPE"),
    ("mamba2", ("Mamba2ForCausalLM",), "Mamba-2: a selective scan in every layer"),
    ("qwen3_moe", ("Qwen3MoeForCausalLM",), "Qwen3-MoE: experts in most layers"),
    ("qwen2_moe", ("Qwen2MoeForCausalLM",), "Qwen2-MoE: routed experts and a shared one with a gate"),
    ("gpt_oss", ("GptOssForCausalLM",), "GPT-OSS: attention sinks, clamped experts with biases"),
    ("deepseek_v2", ("DeepseekV2ForCausalLM",), "DeepSeek-V2: latent attention, grouped experts"),
    ("deepseek_v3", ("DeepseekV3ForCausalLM",), "DeepSeek-V3: latent attention, sigmoid-scored experts"),
    ("dots1", ("Dots1ForCausalLM",), "dots.llm1: norms of queries and keys, sigmoid-scored experts"),
    ("exaone4", ("Exaone4ForCausalLM",), "Exaone 4: norms after the blocks, rotation in windows alone"),
    ("glm4_moe", ("Glm4MoeForCausalLM",), "GLM-4.5: half of each head rotated, sigmoid-scored experts"),
    (
        "granitemoe",
        ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        "Granite 3 MoE: Granite's factors, experts in every layer",
    ),
    ("minimax_m2", ("MiniMaxM2ForCausalLM",), "MiniMax-M2: sigmoid-scored experts in every layer"),
    ("olmoe", ("OlmoeForCausalLM",), "OLMoE: norms over all heads together, experts in every layer"),
    ("smollm3", ("SmolLM3ForCausalLM",), "SmolLM3: layers without rotation"),
    ("qwen3_next", ("Qwen3NextForCausalLM",), "Qwen3-Next: delta rule, gated attention"),
)
"""The module of a family, its architectures, and a summary."""
_DECODERS: tuple[_Row, ...] = (
    ("glm4", ("GlmForCausalLM", "Glm4ForCausalLM"), "GLM-4 and GLM-4-0414: half of each head rotated"),
    ("cohere", ("CohereForCausalLM", "Cohere2ForCausalLM"), "Command R and A: blocks side by side"),
    ("hunyuan", _HUNYUAN, "Hunyuan: norms of queries and keys after the rotation"),
    ("ernie4_5", ("Ernie4_5ForCausalLM",), "Ernie 4.5: neighbours rotated"),
    ("helium", ("HeliumForCausalLM",), "Helium: neighbours rotated"),
    ("stablelm", ("StableLmForCausalLM",), "StableLM: LayerNorm, a part of each head rotated"),
    ("nemotron", ("NemotronForCausalLM",), "Nemotron 4 and Minitron: LayerNorm, squared ReLU"),
    ("arcee", ("ArceeForCausalLM",), "Arcee: squared ReLU"),
    ("apertus", ("ApertusForCausalLM",), "Apertus: xIELU, norms of queries and keys"),
    ("starcoder2", ("Starcoder2ForCausalLM",), "StarCoder2: LayerNorm, biases"),
    ("phi", ("PhiForCausalLM",), "Phi-1 and Phi-2: blocks side by side, LayerNorm, biases"),
    ("gpt_neox", ("GPTNeoXForCausalLM",), "GPT-NeoX and Pythia: blocks side by side, a norm each"),
    ("gptj", ("GPTJForCausalLM",), "GPT-J: blocks side by side, neighbours rotated"),
    ("falcon", ("FalconForCausalLM",), "Falcon: blocks side by side, heads packed in groups"),
    ("bloom", ("BloomForCausalLM",), "BLOOM: ALiBi, LayerNorm, a norm of the embeddings"),
    ("mpt", ("MptForCausalLM",), "MPT: ALiBi, LayerNorm"),
    ("gemma", ("GemmaForCausalLM",), "Gemma: GEGLU, scaled embeddings"),
    ("olmo", ("OlmoForCausalLM",), "OLMo: LayerNorm without weights"),
    ("ministral3", _MINISTRAL3, "Ministral 3, text alone: scaled queries"),
)
"""Those that differ from Llama in norms, blocks or rotation."""
_SPARSE: tuple[_Row, ...] = (
    ("ernie4_5_moe", ("Ernie4_5_MoeForCausalLM",), "Ernie 4.5 MoE: experts by biased scores"),
    ("hy_v3", ("HYV3ForCausalLM",), "Hunyuan 3: sigmoid-scored experts"),
    ("deepseek_v32", _INDEXED, "DeepSeek-V3.2 and GLM-5: latent attention to tokens that an indexer picks"),
    ("axk1", ("AXK1ForCausalLM",), "A.X K1: latent attention, a norm after sigmoid-scored experts"),
    ("solar_open", ("SolarOpenForCausalLM",), "Solar Open: sigmoid-scored experts"),
    ("glm4_moe_lite", ("Glm4MoeLiteForCausalLM",), "GLM-4.7-Flash: latent attention"),
    ("youtu", ("YoutuForCausalLM",), "Youtu-LLM: latent attention"),
    ("mimo_v2_flash", ("MiMoV2FlashForCausalLM",), "MiMo-V2-Flash: windows with sinks"),
)
"""Further ones with experts or latent attention."""
_HYBRID: tuple[_Row, ...] = (
    ("bamba", ("BambaForCausalLM",), "Bamba: Mamba-2 in most layers, attention in the others"),
    ("falcon_h1", ("FalconH1ForCausalLM",), "Falcon-H1: Mamba-2 and attention side by side in each layer"),
    ("granitemoehybrid", ("GraniteMoeHybridForCausalLM",), "Granite 4: Mamba-2, attention, experts"),
    ("kimi_linear", ("KimiLinearForCausalLM",), "Kimi-Linear: Kimi delta attention, latent attention, experts"),
    ("bailing_hybrid", ("BailingHybridForCausalLM",), "Ling 3: Kimi delta attention, latent attention, experts"),
    ("minimax", ("MiniMaxForCausalLM",), "MiniMax-Text-01 and M1: lightning attention, experts"),
    ("jamba", ("JambaForCausalLM",), "Jamba: Mamba-1's scan, attention without rotation, experts"),
    ("lfm3", ("Lfm3ForCausalLM",), "LFM3: short convolutions, attention with a gate per head"),
    ("lfm2", ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), "LFM2: short convolutions, attention, experts"),
    ("mamba", ("MambaForCausalLM", "FalconMambaForCausalLM"), "Mamba and Falcon-Mamba: Mamba-1's scan"),
    (
        "nemotron_h",
        ("NemotronHForCausalLM",),
        "Nemotron-H: layers of Mamba-2, attention, an MLP or experts without gates",
    ),
    ("qwen3_5", _QWEN3_5, "Qwen3.5, text alone: delta rule, gated attention, experts in some"),
)
"""Those with recurrent layers or convolutions with or instead of attention."""
_OWN: tuple[_Row, ...] = (
    (
        "gemma3n",
        _GEMMA3N,
        "Gemma 3n, text alone: alternating updates, embeddings of each layer, shared keys and values",
    ),
    ("gemma4", _GEMMA4, "Gemma 4, text alone: embeddings of each layer, shared keys and values, experts"),
    ("longcat_flash", ("LongcatFlashForCausalLM",), "LongCat-Flash: pairs of latent attentions, experts without work"),
    ("zamba2", ("Zamba2ForCausalLM",), "Zamba2: Mamba-2, and transformer blocks that several layers share"),
    (
        "deepseek_v4",
        ("DeepseekV4ForCausalLM",),
        "DeepSeek-V4: residual streams, groups of tokens as entries, experts by token ids",
    ),
    ("llama4", _LLAMA4, "Llama 4, text alone: chunked attention, an expert whose input is scaled"),
)
"""Those with mechanisms that no other family has."""
_AHEAD = ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite")
"""Those with heads that predict further tokens."""
DEMO = Path(__file__).with_name("demo")


@hookimpl
def llmk_demo_checkpoint() -> str | None:
    """The demo model, if this wheel contains its weights."""
    return str(DEMO) if (DEMO / "model.safetensors").is_file() else None


@hookimpl
def llmk_models() -> list[ModelSpec]:
    """The native families, and the backend for decoders of ``transformers``."""
    tables = (
        ("examples", _FAMILIES),
        ("dense_examples", _DECODERS),
        ("expert_examples", _SPARSE),
        ("hybrid_examples", _HYBRID),
        ("own_examples", _OWN),
    )
    return [
        *(_family(*row, of) for of, rows in tables for row in rows),
        ModelSpec(
            id="models.transformers",
            architectures=("*",),
            implementation="llmk_models.transformers_model:TransformersModel",
            describe="llmk_models.transformers_facts:describe",
            examples="llmk_models.transformers_examples:TRANSFORMERS",
            summary="decoders of the transformers library, by its own modules on llmk's paged cache",
        ),
    ]


def _family(module: str, architectures: tuple[str, ...], summary: str, of: str) -> ModelSpec:
    return ModelSpec(
        id=f"models.{module}",
        architectures=architectures,
        tree=f"llmk_models.{module}:tree",
        ahead=f"llmk_models.{module}:ahead" if module in _AHEAD else "",
        deterministic=True,
        examples=f"llmk_models.{of}:{module.upper()}",
        summary=summary,
    )
