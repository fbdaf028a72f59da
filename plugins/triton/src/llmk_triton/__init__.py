"""Portable Triton kernels: one source for every device that Triton compiles for.

``specs`` is the plugin module, and needs neither torch nor Triton; what is chosen is imported then.
"""
