"""Paged attention by torch's fused kernel, for which oneDNN has code for these GPUs."""

from __future__ import annotations

from llmk.reference.attention.paged import ReferenceAttention


class SDPAAttention(ReferenceAttention):
    """The reference, which gathers keys and values and passes them to ``scaled_dot_product_attention``, with larger
    groups: a GPU takes as long for one request as for many, and has no cache that a group should fit in."""

    gather_elements = 1 << 26
