"""Portable Triton kernels: one source for every device that Triton compiles for.

``specs`` is the plugin module, and imports neither torch nor Triton; only chosen kernels are imported.
"""
