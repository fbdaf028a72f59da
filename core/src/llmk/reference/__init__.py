"""A plain-torch, device-agnostic implementation of every kernel contract: correct on any device torch can address, and
the reference that other kernels are tested against.

``specs`` is the plugin module. Nothing is imported here, so that listing the kernels does not import torch.
"""
