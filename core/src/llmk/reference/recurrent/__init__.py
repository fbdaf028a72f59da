"""Layers that carry a state from token to token: a short causal convolution, a scan or delta rule, a gated norm.

Kernels get the caches of their state tensors, ``[num_blocks, *shape]`` and perhaps strided along dimension 0, and the
step (:class:`~llmk.api.CacheStep`), which says where the states lie that they read and write.
"""
