"""What a model is: a tree of frozen specs, from which facts, weight maps and modules are derived. Imports no torch.

A family is one function, ``tree(config) -> CausalLM``. :func:`lower` decides how the tree runs; :func:`model_facts` is
what planning knows of it; ``llmk.nn.TreeModel`` builds its modules.
"""

from llmk.tree.adapting import adapted
from llmk.tree.attention import Attend, Gate, Heads, QueryScale, SelfAttention, alibi_slopes
from llmk.tree.block import Block, Branch, Entry, Parallel, Residual
from llmk.tree.causal_lm import Ahead, Carried, CausalLM, MakeAhead, MakeTree, Stream
from llmk.tree.compressed import CompressedAttend, CompressedAttention, CompressedShape, Compressor, EntryIndexer
from llmk.tree.config import Config
from llmk.tree.embedding import Embedding, Head
from llmk.tree.facts import Sites, model_facts
from llmk.tree.latent import LatentAttend, LatentAttention, LatentShape
from llmk.tree.linear import AdapterRoom, Linear, Part
from llmk.tree.lowering import Joint, Program, Sublayer, lower, token_wise_from, weight_map
from llmk.tree.mlp import MLP, GatedMLP, Xielu
from llmk.tree.moe import Experts, MoE
from llmk.tree.norm import Norm
from llmk.tree.recurrent import (
    DeltaNetSizes,
    KimiDeltaSizes,
    LightningSizes,
    Recurrent,
    RecurrentSizes,
    ScanMixer,
    StateSpaceSizes,
)
from llmk.tree.rope import Rope, default_length
from llmk.tree.selected import Indexer, IndexShape, SelectedAttend, SelectedAttention
from llmk.tree.selective_scan import SelectiveMixer, SelectiveScanSizes
from llmk.tree.short_conv import ConvMixer, ShortConvSizes
from llmk.tree.spec import Leaf, Spec, Tensor, nameless

__all__ = [
    "MLP",
    "AdapterRoom",
    "Ahead",
    "Attend",
    "Block",
    "Branch",
    "Carried",
    "CausalLM",
    "CompressedAttend",
    "CompressedAttention",
    "CompressedShape",
    "Compressor",
    "Config",
    "ConvMixer",
    "DeltaNetSizes",
    "Embedding",
    "Entry",
    "EntryIndexer",
    "Experts",
    "Gate",
    "GatedMLP",
    "Head",
    "Heads",
    "IndexShape",
    "Indexer",
    "Joint",
    "KimiDeltaSizes",
    "LatentAttend",
    "LatentAttention",
    "LatentShape",
    "Leaf",
    "LightningSizes",
    "Linear",
    "MakeAhead",
    "MakeTree",
    "MoE",
    "Norm",
    "Parallel",
    "Part",
    "Program",
    "QueryScale",
    "Recurrent",
    "RecurrentSizes",
    "Residual",
    "Rope",
    "ScanMixer",
    "SelectedAttend",
    "SelectedAttention",
    "SelectiveMixer",
    "SelectiveScanSizes",
    "SelfAttention",
    "ShortConvSizes",
    "Sites",
    "Spec",
    "StateSpaceSizes",
    "Stream",
    "Sublayer",
    "Tensor",
    "Xielu",
    "adapted",
    "alibi_slopes",
    "default_length",
    "lower",
    "model_facts",
    "nameless",
    "token_wise_from",
    "weight_map",
]
