"""Of AITER."""

from __future__ import annotations

import torch


def shuffle_weight(
    x: torch.Tensor,
    layout=(16, 16),
    use_int4=False,
    is_guinterleave=False,
    gate_up: bool = False,
) -> torch.Tensor:
    """Tiles of ``layout[0]`` rows and ``2 * layout[1]`` columns one after the other, in units of 16 bytes."""
    rows, columns = layout[0], 2 * layout[1]
    unit = 16 // x.element_size()
    shape = (-1, x.shape[-2] // rows, rows, x.shape[-1] // columns, columns // unit, unit)
    bits = x.view(torch.uint8) if x.element_size() == 1 else x
    moved = bits.view(shape).permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape).view(x.dtype)
    moved.is_shuffled = True
    return moved


def restored(x: torch.Tensor) -> torch.Tensor:
    """What was shuffled with the usual layout."""
    assert x.is_shuffled
    unit = 16 // x.element_size()
    bits = x.view(torch.uint8) if x.element_size() == 1 else x
    tiles = bits.view(-1, x.shape[-2] // 16, x.shape[-1] // 32, 32 // unit, 16, unit)
    return tiles.permute(0, 1, 4, 2, 3, 5).reshape(x.shape).view(x.dtype)
