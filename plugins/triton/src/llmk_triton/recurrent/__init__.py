"""Layers that carry a state from token to token: convolution, selective scan or gated delta rule, gated norm.

What lies in the cache is updated in place, so no program may write a state that another still reads: the states of
heads are read and written by the same program, those of the convolution are written by the last kernel of the layer.
"""
