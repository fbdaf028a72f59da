"""Layers that carry a state from token to token: a short causal convolution, a scan or delta rule, a gated norm.

Kernels take the caches of their state tensors, ``[num_blocks, *shape]``, possibly strided along dimension 0, and the
step (:class:`~llmk.api.CacheStep`), whose block table says which blocks hold the states to read and write.
"""
