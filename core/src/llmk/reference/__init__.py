"""A plain-torch, device-agnostic implementation of every kernel contract: correct on any device torch can address, and
the oracle for all others.

``specs`` is the plugin module. Nothing is imported here, so that listing what there is needs no torch.
"""
