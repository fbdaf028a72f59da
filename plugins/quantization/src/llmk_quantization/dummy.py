"""Groups of dummy weights, which no checkpoint's files have a size for."""

from torch import Tensor

_LARGEST = 128


def group_size_of(weight: Tensor) -> int:
    """The largest power of two that divides the inputs of ``weight`` (``[out, in]``), at most 128."""
    inputs = weight.shape[1]
    return min(inputs & -inputs, _LARGEST)
